"""Parse and format changes in words, such as `rank 3: gpu as others; no cudaFree`, for `--what-if`
and for causes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.errors import UsageError
from nsys2prv._util.text import inflect, list_some
from nsys2prv.replay.causes import JOB_CHANGES, Cause, has_gpu_work
from nsys2prv.replay.graph import TRANSFERS, Kind
from nsys2prv.replay.suspects import (
    HANDOFF,
    KINDS,
    LATE_HANDOFF,
    LINK_OF,
    LINK_TO_OTHERS,
    LINK_WITHIN,
    Suspect,
    do_as_others,
)
from nsys2prv.replay.unit_graph import make_place, split_place
from nsys2prv.replay.whatif import GPU, Changes, Replay

_WORDS = [words for words, _ in JOB_CHANGES.values() if words]
_WHO, _FACTOR = r"(?P<who>ranks?|host|gpus?) (?P<names>[^:]+): ?", r" x ?(?P<factor>[\d.]+)"
#: Also processes without a GPU, whose work no others do.
_ANYONE = _WHO.replace("host|", "host|process|")
_SCALED = {**KINDS, "network": TRANSFERS}
_HANDOFFS = {"as usual": LATE_HANDOFF, "at once": HANDOFF}
_LINKS = {
    "network": (LINK_WITHIN, LINK_TO_OTHERS),
    "network within": (LINK_WITHIN,),
    "network outside": (LINK_TO_OTHERS,),
}


class Names(Struct, frozen=True):
    """The processes and kernels that words of a what-if question (ranks, GPUs, kernels, helpers)
    refer to.
    """

    #: Rank -> its processes.
    ranks: Mapping[int, tuple[int, ...]]
    #: Name of each GPU in lower case, as `gpu3` (where it is the only one), `node01 gpu3` -> the process.
    gpus: Mapping[str, int]
    #: Label of each kernel, by event value.
    kernels: Mapping[int, str]
    #: Name, and host, of each process without a GPU that ranks wait for, by its number.
    helpers: Mapping[int, tuple[str, str]] = {}


class Question(Struct, frozen=True):
    """A requested what-if change (`said`: the words by their part in the sentence) and the job to
    change. Raises UsageError for unknown names.
    """

    #: Group of the form -> its text.
    said: Mapping[str, str]
    replay: Replay
    names: Names

    @property
    def processes(self) -> tuple[int, ...] | None:
        """Return the numbers of the processes that the words name, or None for all."""
        if not self.said["who"]:
            return None
        wanted, known, hosts = self.said["names"], self.names.ranks, self.replay.job.hosts
        if self.said["who"].startswith("gpu"):
            return self._find_gpus(wanted)
        if self.said["who"] == "process":
            labels = {one: f"{name} ({host})" for one, (name, host) in self.names.helpers.items()}
            pattern = wanted if wanted in labels.values() else f"{wanted} (*)"
            return tuple(_find_named(pattern, labels, "process without a GPU"))
        if self.said["who"] == "host":
            found = [one for one in self.replay.processes.tolist() if hosts[one] == wanted]
            if not found:
                there = list_some(sorted({*hosts}))
                raise UsageError(f"--what-if host {wanted}: no such host; there are {there}")
            return tuple(found)
        try:
            ranks = _parse_numbers(wanted)
        except ValueError:
            raise UsageError(f"--what-if rank {wanted}: give ranks as in 3,5-7") from None
        if unknown := [rank for rank in ranks if rank not in known]:
            there = list_some([str(rank) for rank in sorted(known)], 8) or "none"
            raise UsageError(f"--what-if rank {unknown[0]}: no such rank; there are {there}")
        return tuple(sorted({process for rank in ranks for process in known[rank]}))

    def find_workers(self, work: str) -> tuple[int, ...] | None:
        """Return the named processes that do work of this sort, on GPUs or as hosts that launch GPU
        work; None for all. work: the part of the sentence that names the work, or the work itself.
        """
        drivers, named = self.replay.job.drivers, self.processes
        if named is None or not drivers:
            return named
        if self.said.get(work, work) == "host":
            return tuple(sorted({drivers.get(one, one) for one in named}))
        gpus = (gpu for gpu, driver in drivers.items() if {gpu, driver} & {*named})
        return tuple(sorted(gpus))

    def _find_gpus(self, wanted: str) -> tuple[int, ...]:
        """Return the processes of GPUs, given by numbers, or by one number with its host or
        process.
        """
        known = self.names.gpus
        try:
            names = [f"gpu{number}" for number in _parse_numbers(wanted)]
        except ValueError:
            names = [wanted.lower()]
        if unknown := [name for name in names if name not in known]:
            there = list_some(sorted(known), 8) or "none"
            raise UsageError(f"--what-if {unknown[0]}: no such GPU; there are {there}")
        return tuple(sorted({known[name] for name in names}))

    @property
    def factor(self) -> float:
        """The factor by which the what-if multiplies durations."""
        try:
            return float(self.said["factor"])
        except ValueError:
            text = self.said["factor"]
            raise UsageError(f"--what-if x{text}: give a factor, as in x0.5") from None

    def find_calls(self, name: str, what: str = "call", advice: str = "") -> list[int]:
        """Return the numbers of the calls whose names match the words. name: the part of the
        sentence with the name or pattern. what, advice: noun for the error
        message, and its end.
        """
        return _find_named(self.said[name], self.replay.job.calls, what, advice)

    def work_as_others(self) -> Changes:
        """Return changes in which the named ranks, or the ranks of a host, take as long for their
        work as the others.
        """
        suspect = Suspect(0.0, self.said["work"], self.find_workers("work") or ())
        return do_as_others(self.replay, suspect)

    def hand_off(self) -> Changes:
        """Return changes in which the named ranks take no time, or no longer than usual, while
        others wait for their results.
        """
        kind = _HANDOFFS[self.said["handoffs"]]
        return do_as_others(self.replay, Suspect(0.0, kind, self.processes or ()))

    def share(self) -> Changes:
        """Return changes in which all ranks share the extra work of some ranks equally."""
        suspect = Suspect(0.0, "gpu", self.find_workers("gpu") or (), is_shared=True)
        return do_as_others(self.replay, suspect)

    def leave_out(self) -> Changes:
        """Return changes without the work of ranks (or the ranks of a host) that the others do not
        do.
        """
        suspect = Suspect(0.0, self.said["own"], self.find_workers("own") or (), is_own=True)
        return do_as_others(self.replay, suspect)

    def link_as_others(self) -> Changes:
        """Return changes in which the links of a host, or of ranks, are as fast as the others."""
        if self.said["who"] != "host":
            return do_as_others(self.replay, Suspect(0.0, LINK_OF, self.processes))
        links = (Suspect(0.0, kind, (), self.said["names"]) for kind in _LINKS[self.said["link"]])
        return [change for link in links for change in do_as_others(self.replay, link)]

    def scale_work(self) -> Changes:
        """Return changes in which the named work takes the given fraction of its time."""
        kinds = _SCALED[self.said["scaled"]]
        return self.replay.scale(kinds, self.factor, processes=self.find_workers("scaled"))

    def scale_kernels(self) -> Changes:
        """Return changes in which kernels with the named label take the given fraction of their
        time.
        """
        found = _find_named(f"*{self.said['kernel']}*", self.names.kernels, "kernel")
        return self.replay.scale(GPU, self.factor, keys=found)

    def balance(self) -> Changes:
        """Return changes in which the named work is divided equally among the ranks."""
        return self.replay.balance(KINDS[self.said["balanced"]])

    def change_job(self) -> Changes:
        """Return the named change to the whole job, such as one without launches."""
        make = dict(JOB_CHANGES.values())[self.said["whole"]]
        return make(self.replay)

    def remove_pauses(self) -> Changes:
        """Return changes in which no time passes between the two named calls."""
        places = make_place(*np.meshgrid(self.find_calls("before"), self.find_calls("after")))
        return self.replay.scale((Kind.GAP,), keys=places.ravel())

    def remove_calls(self) -> Changes:
        """Return changes in which calls with this name take no time."""
        ranks = sorted(self.names.ranks)
        other = f'; for other host time, write "rank {ranks[0]}: host as others"' if ranks else ""
        calls = self.find_calls("call", "call of CUDA or MPI", other)
        return self.replay.remove_calls(calls)


#: Wording of a change -> function that makes it, and examples.
_FORMS: dict[str, tuple[Callable[[Question], Changes], tuple[str, ...]]] = {
    _WHO + r"(?P<work>gpu|host|copies)(?: work)? as (?:the )?others": (
        Question.work_as_others,
        (
            "rank 3,5-7: gpu as others",
            "rank 3: host as others",
            "rank 3: copies as others",
            "host NAME: gpu as others",
            "gpu 3: host as others",
        ),
    ),
    _ANYONE + rf"hand-?offs (?P<handoffs>{'|'.join(_HANDOFFS)})": (
        Question.hand_off,
        (*(f"rank 0: hand-offs {how}" for how in _HANDOFFS), "process NAME: hand-offs as usual"),
    ),
    _WHO + r"(?P<link>network(?: within| outside)?) as (?:the )?others": (
        Question.link_as_others,
        (*(f"host NAME: {link} as others" for link in _LINKS), "ranks 1,2: network as others"),
    ),
    _WHO + r"gpu(?: work)? (?P<shared>shared)": (Question.share, ("rank 3: gpu shared",)),
    _WHO + r"no own (?P<own>gpu|host|copies)(?: work)?": (
        Question.leave_out,
        ("rank 3: no own gpu work",),
    ),
    rf"(?:{_ANYONE})?(?P<scaled>gpu|host|copies|network)(?: work)?{_FACTOR}": (
        Question.scale_work,
        ("gpu x0.5", "rank 3: host x0.5"),
    ),
    rf"kernels? (?P<kernel>.+){_FACTOR}": (Question.scale_kernels, ("kernel NAME x0.5",)),
    r"(?P<balanced>gpu|host)(?: work)? balanced": (
        Question.balance,
        ("gpu balanced", "host balanced"),
    ),
    rf"(?P<whole>{'|'.join(_WORDS)})": (Question.change_job, tuple(_WORDS)),
    r"no time between (?P<before>.+) and (?P<after>.+)": (
        Question.remove_pauses,
        ("no time between CALL and CALL",),
    ),
    r"no (?P<call>\S+)": (Question.remove_calls, ("no CALL",)),
}
EXAMPLES = [one for _, examples in _FORMS.values() for one in examples]


def _parse_numbers(text: str) -> list[int]:
    """Return the numbers in a text such as `3,5-7`. Raise ValueError for other text."""
    ends = [part.partition("-")[::2] for part in text.split(",")]
    return [one for first, last in ends for one in range(int(first), int(last or first) + 1)]


def parse_what_ifs(texts: Sequence[str]) -> list[re.Match[str]]:
    """Split texts into single what-if changes and parse each. Return the matches of their patterns.
    Raise UsageError for unknown wording.
    """
    parts = [" ".join(part.split()) for text in texts for part in text.split(";")]
    return [_parse_change(part) for part in parts if part]


def _parse_change(text: str) -> re.Match[str]:
    for form in _FORMS:
        if match := re.fullmatch(form, text):
            return match
    near = get_close_matches(text, EXAMPLES, 1)
    meant = f"did you mean {near[0]}?" if near else "no such change;"
    raise UsageError(f"--what-if {text}: {meant} there are {'; '.join(EXAMPLES)}")


def replay_what_ifs(asked: Sequence[re.Match[str]], replay: Replay, names: Names) -> pl.DataFrame:
    """Replay requested changes, each together with those before it. Return a row for each:
    `what_if` (text), `gain_share` (additional savings as a share of the recorded time),
    `duration_ns` (predicted).

    asked: from :func:`parse_what_ifs`. Raise UsageError for unknown names.
    """
    rows, left = [("as recorded", 0.0, replay.span)], 1.0
    for one in asked:
        make, _ = _FORMS[one.re.pattern]
        changes = make(Question(one.groupdict(), replay, names))
        gain = replay.compute_gain(changes)
        replay, left = replay.change(changes), left - gain
        rows.append((one.string, gain, round(left * replay.span)))
    return pl.DataFrame(rows, schema=["what_if", "gain_share", "duration_ns"], orient="row")


def _find_named(wanted: str, labels: Mapping[int, str], what: str, advice: str = "") -> list[int]:
    """Return the event values of the wanted names, which may be exact or a pattern. what, advice:
    noun for the error message, and its end.
    """
    for fits in (wanted.__eq__, lambda label: fnmatchcase(label.lower(), wanted.lower())):
        if found := [value for value, label in labels.items() if fits(label)]:
            return found
    near = get_close_matches(wanted, list(labels.values()), 3, 0.4) or [*labels.values()]
    there = f"; there are {list_some(near)}" if near else ""
    raise UsageError(
        f"--what-if {wanted.strip('*')}: no {what} of this name in the job{there}{advice}"
    )


def describe_cause(cause: Cause, replay: Replay, names: Names) -> str:
    """Return the text that asks for the change of a cause as a what-if; "" if no text can ask for
    it.
    """
    if suspect := cause.suspect:
        if suspect.host and suspect.is_link:
            link = next(name for name, kinds in _LINKS.items() if kinds == (suspect.kind,))
            return f"host {suspect.host}: {link} as others"
        if not (who := _name_workers(suspect.processes, replay, names)):
            return ""
        if suspect.hands_off:
            how = next(how for how, kind in _HANDOFFS.items() if kind == suspect.kind)
            return f"{who}: hand-offs {how}"
        if suspect.is_own:
            return f"{who}: no own {suspect.kind} work"
        if suspect.is_shared:
            return f"{who}: {suspect.kind} shared"
        how = f"x{1 / suspect.ratio:.4f}" if suspect.ratio else "as others"
        return f"{who}: {'network' if suspect.is_link else suspect.kind} {how}"
    if cause.place is not None:
        calls = replay.job.calls
        kind, key = cause.place
        if kind == Kind.CALL:
            return f"no {calls[key]}" if key in calls else ""
        before, after = (calls.get(name, "") for name in split_place(key))
        return f"no time between {before} and {after}" if before and after else ""
    if cause.kind == "imbalance":
        return f"{'gpu' if has_gpu_work(replay) else 'host'} balanced"
    return JOB_CHANGES["host_time" if cause.kind == "launching" else cause.kind][0]


def _name_workers(processes: Sequence[int], replay: Replay, names: Names) -> str:
    """Return the words for processes, or "": GPUs that are NCCL ranks, ranks, or one process
    without a GPU.
    """
    drivers = replay.job.drivers
    if processes[0] in names.helpers:
        name, host = names.helpers[processes[0]]
        return f"process {name} ({host})" if ":" not in name + host else ""
    if drivers.keys() & {*processes}:
        found = {process: name for name, process in names.gpus.items()}
        gpus = [found.get(process, "") for process in processes]
        numbers = [one.removeprefix("gpu") for one in gpus]
        if all(map(str.isdecimal, numbers)):
            return f"{inflect('gpu', len(gpus))} {','.join(numbers)}"
        return f"gpu {gpus[0]}" if gpus[0] and not gpus[1:] else ""
    by_process = {process: rank for rank, own in names.ranks.items() for process in own}
    ranks = [by_process.get(process) for process in processes]
    if None in ranks:
        return ""
    return f"{inflect('rank', len(ranks))} {','.join(map(str, ranks))}"
