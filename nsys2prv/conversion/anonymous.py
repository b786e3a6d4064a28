"""Replace texts that identify users, machines and programs by pseudonyms, in a job that is ready to
be written or analyzed: names of hosts, reports, processes, threads, NVTX ranges, functions, modules
and files.

A pseudonym depends only on the text, so a text has the same pseudonym in every trace. Names of
CUDA, MPI and OS functions, kernels, GPUs and metrics do not change, because kernel classes,
findings and views depend on them.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

import polars as pl
from msgspec.structs import replace

from nsys2prv._util.files import load_shipped_file
from nsys2prv._util.stored_columns import FrameWriter, read_columns
from nsys2prv._util.text import Note
from nsys2prv.clock.maps import ClockRecord
from nsys2prv.conversion.job import Job
from nsys2prv.events.catalogue import find_known_label, load_catalogue
from nsys2prv.events.extraction import GPU, DeviceKey
from nsys2prv.events.stacks import SEPARATOR, STACK_TEXTS
from nsys2prv.export.info import ReportInfo
from nsys2prv.table.runs import Shape
from nsys2prv.table.task_result import TaskResult
from nsys2prv.writers.rows import ObjectTree

_DECLARED = load_shipped_file(__package__, "anonymous.yaml")
#: Name set -> prefix of pseudonyms of its names.
PRIVATE_SETS: dict[str, str] = _DECLARED["private"]
#: Sort of name -> common names, which are not private.
_PUBLIC = {what: re.compile(pattern) for what, pattern in _DECLARED["public"].items()}
#: The label of a function: its name, and its module in brackets if known.
_FUNCTION = re.compile(r"(?s)(.*?)(?: \(([^()]*)\))?")
_NUMBER = re.compile(r"\d+")
#: Layout of samples -> prefix of pseudonyms of its metrics.
_SAMPLED: dict[str, str] = _DECLARED["sampled"]
#: Words of Nsight's own messages, and the separators of words.
_MESSAGE_WORDS = frozenset(_DECLARED["message_words"].split())
_BETWEEN_WORDS = re.compile(r"[\W_]+")
#: Longer numbers may be keys and are hidden, too.
LONGEST_NUMBER = 6


@lru_cache(100_000)
def make_pseudonym(kind: str, text: str) -> str:
    """Return the pseudonym of a text, such as `range-5f3a91c2-12`. Short numbers in the text are
    kept in order, because names that differ only in numbers belong together. kind: first word of
    the pseudonym.
    """
    numbers = [one for one in _NUMBER.findall(text) if len(one) <= LONGEST_NUMBER]
    pattern = _NUMBER.sub(lambda one: "#" if len(one[0]) <= LONGEST_NUMBER else one[0], text)
    digest = hashlib.blake2b(pattern.encode("utf-8", "replace"), digest_size=4).hexdigest()
    return "-".join((kind, digest, *numbers))


class Pseudonyms:
    """Replaces the names in a job's reports (programs, hosts, users, ...) by pseudonyms in any
    text.
    """

    def __init__(self, infos: Iterable[ReportInfo], devices: Iterable[str] = ()) -> None:
        """Collect the names in reports. devices: names of rows of devices and sources."""
        self._of: dict[str, str] = {}
        for info in infos:
            # Longer texts first, as they contain the shorter ones.
            self._add("report", (str(info.given), info.given.name))
            self._add("folder", (str(info.given.parent),))
            self._add("host", (info.host,))
            for kind, names in (("process", info.processes), ("thread", info.threads)):
                self._add(
                    kind, (one for one in names.values() if not _PUBLIC["programs"].match(one))
                )
        self._add("source", (one for one in devices if not _PUBLIC["devices"].match(one)))
        longest_first = sorted(self._of, key=lambda text: (-len(text), text))
        self._pattern = re.compile(
            rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)" if self._of else "(?!)"
        )

    def _add(self, kind: str, texts: Iterable[str]) -> None:
        for text in texts:
            if text.strip("./"):
                self._of.setdefault(text, make_pseudonym(kind, text))

    def find(self, text: str) -> str:
        """Return the pseudonym of a name, or the name itself if it is generally known."""
        return self._of.get(text, text)

    def hide(self, text: str) -> str:
        """Return a text with all names in it replaced."""
        return self._pattern.sub(lambda match: self._of[match[0]], text)

    def hide_lines(self, lines: Iterable[str]) -> list[str]:
        """Return lines with all names in them replaced."""
        return list(map(self.hide, lines))


def hide_names(job: Job) -> Job:
    """Return a job with pseudonyms for private names. Its `plain_labels` keep the original labels
    for decisions that depend on them.
    """
    keys = (key for _, key in job.list_objects() if isinstance(key, DeviceKey) and key.kind != GPU)
    names = Pseudonyms(job.infos, {key.name for key in keys})
    tree = job.model.tree
    tasks = (
        replace(
            task,
            name=names.hide(task.name),
            threads=tuple(replace(row, name=names.hide(row.name)) for row in task.threads),
        )
        for task in tree.tasks
    )
    domains = {name: hide_domain(name) for name, _ in job.domain_codes}
    with FrameWriter(job.folder / "anonymous-stacks") as frames:
        results = [_hide_result(result, names, frames) for result in job.results]
    return replace(
        job,
        infos=[hide_report(info, names) for info in job.infos],
        warnings=names.hide_lines(job.warnings),
        unread=names.hide_lines(job.unread),
        notes=_hide_notes(job.notes, names),
        results=results,
        model=replace(
            job.model,
            tree=ObjectTree(tuple(map(names.hide, tree.nodes)), tuple(tasks)),
            helpers=tuple(map(names.hide, job.model.helpers)),
        ),
        clock_record=job.clock_record and _hide_clocks(job.clock_record, names),
        domain_codes=[(domains[name], number) for name, number in job.domain_codes],
        plain_labels={name: values.labels for name, values in job.values.items()},
        values={
            name: replace(
                values,
                labels=_hide_labels(name, values.labels),
                domains={domains.get(one, one): frame for one, frame in values.domains.items()},
            )
            for name, values in job.values.items()
        },
        runs=[replace(run, shape=_hide_metrics(run.shape)) for run in job.runs],
    )


def _hide_notes(notes: Iterable[Note], names: Pseudonyms) -> list[Note]:
    return [replace(note, text=names.hide(note.text)) for note in notes]


def _hide_result(result: TaskResult, names: Pseudonyms, frames: FrameWriter) -> TaskResult:
    """Return a result without private names in notes, reasons and texts of call stacks. The texts
    are stored again.
    """
    accounts = {
        kind: replace(
            account,
            # Reasons name processes that were not profiled.
            **{
                fate: Counter(
                    {type(key)(names.hide(key)): n for key, n in getattr(account, fate).items()}
                )
                for fate in ("dropped", "skipped")
            },
        )
        for kind, account in result.accounts.items()
    }
    facts = dict(result.facts)
    if STACK_TEXTS in facts:
        columns = read_columns(facts[STACK_TEXTS])
        texts = (text.split(SEPARATOR) for text in columns["text"])
        hidden = [SEPARATOR.join(map(_hide_function, functions)) for functions in texts]
        columns["text"] = pl.Series(hidden, dtype=pl.String)
        facts[STACK_TEXTS] = frames.append_frame(columns)
    notes = _hide_notes(result.notes, names)
    return replace(result, notes=notes, accounts=accounts, facts=facts)


def hide_message(text: str) -> str:
    """Return a message of Nsight Systems without words that may come from the program."""
    words: list[str] = []
    for word in text.split():
        parts = filter(None, _BETWEEN_WORDS.split(word.casefold()))
        if all(part in _MESSAGE_WORDS or re.fullmatch(r"\d", part) for part in parts):
            words.append(word)
        elif words[-1:] != ["..."]:
            words.append("...")
    return " ".join(words)


def hide_domain(name: str) -> str:
    """Return the pseudonym of an NVTX domain, unless it belongs to a well-known library."""
    return name if not name or _PUBLIC["domains"].match(name) else make_pseudonym("domain", name)


@lru_cache(1000)
def _hide_metrics(shape: Shape) -> Shape:
    """Return a shape of samples without private names of metrics."""
    kind = _SAMPLED.get(shape.name)
    if not (kind and shape.metrics):
        return shape
    hidden = (
        one
        if find_known_label(shape.name, one.name)
        else one._replace(name=make_pseudonym(kind, one.name))
        for one in shape.metrics
    )
    return replace(shape, metrics=tuple(hidden))


def hide_report(info: ReportInfo, names: Pseudonyms) -> ReportInfo:
    """Return the facts of a report with pseudonyms for private names."""
    return replace(
        info,
        alias=names.find(info.given.name),
        host=names.find(info.host),
        processes={pid: names.find(name) for pid, name in info.processes.items()},
        threads={tid: names.find(name) for tid, name in info.threads.items()},
        messages=tuple(replace(one, text=hide_message(one.text)) for one in info.messages),
    )


def _hide_clocks(record: ClockRecord, names: Pseudonyms) -> ClockRecord:
    hosts = {
        names.hide(name): replace(clock, reference=names.hide(clock.reference))
        for name, clock in record.hosts.items()
    }
    notes, warnings = (tuple(names.hide_lines(one)) for one in (record.notes, record.warnings))
    return replace(record, hosts=hosts, notes=notes, warnings=warnings)


def _hide_labels(name_set: str, labels: pl.DataFrame) -> pl.DataFrame:
    kind = PRIVATE_SETS.get(name_set)
    if kind is None or not labels.height:
        return labels
    known = load_catalogue().name_sets[name_set].list_known_values()
    texts = labels["label"].to_list()
    hidden = [one if one in known else _hide_label(kind, one) for one in texts]
    return labels.with_columns(label=pl.Series(hidden, dtype=pl.String))


def _hide_label(kind: str, label: str) -> str:
    if kind == "function":
        return _hide_function(label)
    if kind == "message":
        shown = hide_message(label)
        # Messages that differ have labels that do.
        return label if shown == label else f"{shown} ({make_pseudonym(kind, label)})"
    is_public = kind == "module" and _PUBLIC["modules"].match(label)
    return label if is_public else make_pseudonym(kind, label)


def _hide_function(label: str) -> str:
    """Return the label of a function, such as `solve (app)` or `[libc.so.6]`, without private
    names.
    """
    function, module = _FUNCTION.fullmatch(label).groups()
    if module is None and function.startswith("["):
        return f"[{_hide_label('module', function.strip('[]'))}]"
    if not _PUBLIC["functions"].match(function):
        function = make_pseudonym("function", function)
    return function if module is None else f"{function} ({_hide_label('module', module)})"
