"""Read and replay what-ifs in words, such as `rank 3: gpu as others; no cudaFree`, and write the
words for a cause.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.errors import UsageError
from nsys2prv._util.text import list_some
from nsys2prv.replay.causes import JOB_CHANGES, Cause, KernelFacts, has_gpu_work
from nsys2prv.replay.graph import Kind
from nsys2prv.replay.suspects import (
    KINDS,
    LINK_TO_OTHERS,
    LINK_WITHIN,
    link_as_others,
    work_as_others,
)
from nsys2prv.replay.unit_graph import make_place, split_place
from nsys2prv.replay.whatif import GPU, Changes, Replay

#: Kind of cause of the whole job -> the words for its change.
_WORDS = {
    "messages": "messages in time",
    "transfers": "no transfers",
    "host_time": "no host time",
    "launching": "no host time",
    "pauses": "no long pauses",
    "pageable": "copies pinned",
    "tensor_cores": "tensor cores",
    "allocation": "no allocation",
    "module_loading": "no module loading",
}
#: How changes are read, and examples of all of them.
_WHO, _FACTOR = r"(?P<who>ranks?|host) (?P<names>[^:]+): ?", r" x ?(?P<factor>[\d.]+)"
_FORMS = (
    _WHO + r"(?P<work>gpu|host|copies)(?: work)? as (?:the )?others",
    _WHO + r"(?P<link>network(?: within| outside)?) as (?:the )?others",
    rf"(?:{_WHO})?(?P<scaled>gpu|host|copies|network)(?: work)?{_FACTOR}",
    rf"kernels? (?P<kernel>.+){_FACTOR}",
    r"(?P<balanced>gpu|host)(?: work)? balanced",
    rf"(?P<whole>{'|'.join(_WORDS.values())})",
    r"no time between (?P<before>.+) and (?P<after>.+)",
    r"no (?P<call>\S+)",
)
EXAMPLES = (
    "rank 3,5-7: gpu as others", "rank 3: host as others", "rank 3: copies as others",
    "host NAME: gpu as others", "host NAME: network as others",
    "host NAME: network within as others", "host NAME: network outside as others",
    "gpu x0.5", "rank 3: host x0.5", "kernel NAME x0.5", "gpu balanced", "host balanced",
    *dict.fromkeys(_WORDS.values()), "no time between CALL and CALL", "no CALL",
)  # fmt: skip
_SCALED = {**KINDS, "network": (Kind.NCCL, Kind.MPI)}
_LINKS = {"network within": (LINK_WITHIN,), "network outside": (LINK_TO_OTHERS,)}


class Names(Struct, frozen=True):
    """Meaning of the words of a what-if in a job."""

    #: Rank -> its process.
    ranks: Mapping[int, int]
    #: Label of each kernel, by event value.
    kernels: Mapping[int, str]
    #: What is known of kernels and memory.
    facts: KernelFacts


def parse_what_ifs(texts: Sequence[str]) -> list[re.Match[str]]:
    """Return the changes that texts ask for. Raises UsageError for what cannot be said."""
    parts = [" ".join(part.split()) for text in texts for part in text.split(";")]
    return [_parse_change(part) for part in parts if part]


def _parse_change(text: str) -> re.Match[str]:
    for form in _FORMS:
        if match := re.fullmatch(form, text):
            return match
    near = get_close_matches(text, EXAMPLES, 1)
    meant = f"did you mean {near[0]}? " if near else ""
    raise UsageError(f"--what-if {text}: {meant}It takes {'; '.join(EXAMPLES)}")


def replay_what_ifs(asked: Sequence[re.Match[str]], replay: Replay, names: Names) -> pl.DataFrame:
    """Return a row for each change, each with those before it: `what_if`, `gain_share` (beyond those
    before, of the recorded time), `duration_ns` (predicted). Raises UsageError for unknown names.
    """
    rows, left = [("as recorded", 0.0, replay.span)], 1.0
    for one in asked:
        changes = make_changes(one, replay, names)
        gain = replay.compute_gain(changes)
        replay, left = replay.change(changes), left - gain
        rows.append((one.string, gain, round(left * replay.span)))
    return pl.DataFrame(rows, schema=["what_if", "gain_share", "duration_ns"], orient="row")


def make_changes(asked: re.Match[str], replay: Replay, names: Names) -> Changes:
    """Return the changes of the replay that are asked for. Raises UsageError for unknown names."""
    said = {name: value for name, value in asked.groupdict().items() if value}
    processes = _find_processes(said, replay, names) if "who" in said else ()
    if "work" in said:
        return work_as_others(replay, said["work"], processes)
    if "link" in said:
        kinds = _LINKS.get(said["link"], (LINK_WITHIN, LINK_TO_OTHERS))
        return [change for kind in kinds for change in link_as_others(replay, kind, said["names"])]
    if "factor" in said:
        return _scale(said, processes, replay, names)
    if "balanced" in said:
        return replay.balance(KINDS[said["balanced"]])
    if "whole" in said:
        kind = next(kind for kind, words in _WORDS.items() if words == said["whole"])
        return JOB_CHANGES[kind](replay, names.facts)
    calls = replay.job.calls
    if "before" in said:
        before, after = (_find_named(said[side], calls, "call") for side in ("before", "after"))
        places = make_place(*np.meshgrid(before, after))
        return replay.remove_pauses(places.ravel())
    return replay.remove_calls(_find_named(said["call"], calls, "call of CUDA or MPI"))


def _scale(
    said: Mapping[str, str], processes: Sequence[int], replay: Replay, names: Names
) -> Changes:
    try:
        factor = float(said["factor"])
    except ValueError:
        raise UsageError(f"--what-if x{said['factor']}: give a factor, as in x0.5") from None
    if "kernel" in said:
        kernels = _find_named(f"*{said['kernel']}*", names.kernels, "kernel")
        rows = replay.select(GPU, kernels)
        return replay.scale_rows(rows, factor)
    kinds = _SCALED[said["scaled"]]
    return (
        replay.scale_work(kinds, processes, factor)
        if processes
        else replay.scale_all(kinds, factor)
    )


def _find_processes(said: Mapping[str, str], replay: Replay, names: Names) -> tuple[int, ...]:
    hosts = replay.job.hosts
    if said["who"] == "host":
        found = [one for one in replay.processes.tolist() if hosts[one] == said["names"]]
        if not found:
            there = list_some(sorted({*hosts}))
            raise UsageError(f"--what-if host {said['names']}: no such host; there are {there}")
        return tuple(found)
    try:
        ranges = [part.partition("-")[::2] for part in said["names"].split(",")]
        ranks = [
            rank for first, last in ranges for rank in range(int(first), int(last or first) + 1)
        ]
    except ValueError:
        raise UsageError(f"--what-if rank {said['names']}: give ranks as in 3,5-7") from None
    if unknown := [rank for rank in ranks if rank not in names.ranks]:
        there = list_some([str(rank) for rank in sorted(names.ranks)], 8)
        raise UsageError(f"--what-if rank {unknown[0]}: no such rank; there are {there or 'none'}")
    return tuple(sorted({names.ranks[rank] for rank in ranks}))


def _find_named(wanted: str, labels: Mapping[int, str], what: str) -> list[int]:
    """Return the event values of the names that are wanted: exactly, or by a pattern."""
    for fits in (wanted.__eq__, lambda label: fnmatchcase(label.lower(), wanted.lower())):
        if found := [value for value, label in labels.items() if fits(label)]:
            return found
    near = get_close_matches(wanted, list(labels.values()), 3, 0.4) or [*labels.values()]
    there = f"; there are {list_some(near)}" if near else ""
    raise UsageError(f"--what-if {wanted.strip('*')}: no {what} of this name in the job{there}")


def describe_cause(cause: Cause, replay: Replay, names: Names) -> str:
    """Return the words for what a cause changes; nothing where there are none."""
    if suspect := cause.suspect:
        if suspect.is_link:
            link = next(name for name, kinds in _LINKS.items() if kinds == (suspect.kind,))
            return f"host {suspect.host}: {link} as others"
        by_process = {process: rank for rank, process in names.ranks.items()}
        ranks = [by_process.get(process) for process in suspect.processes]
        if None in ranks:
            return ""
        who = f"rank{'s' if len(ranks) > 1 else ''} {','.join(map(str, ranks))}"
        how = f"x{1 / suspect.ratio:.4f}" if suspect.ratio else "as others"
        return f"{who}: {suspect.kind} {how}"
    if cause.place is not None:
        calls = replay.job.calls
        kind, key = cause.place
        if kind == Kind.CALL:
            return f"no {calls[key]}" if key in calls else ""
        before, after = (calls.get(name, "") for name in split_place(key))
        return f"no time between {before} and {after}" if before and after else ""
    if cause.kind == "imbalance":
        return f"{'gpu' if has_gpu_work(replay) else 'host'} balanced"
    return _WORDS[cause.kind]
