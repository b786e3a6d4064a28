"""Assess a capture: missing and lost data, and fallback collection methods, one line each with
advice.

Input: a job. Output: notes and warnings for the summary of a conversion and for reports.
``quality.yaml`` contains their texts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.errors import Nsys2prvError
from nsys2prv._util.files import load_shipped_file
from nsys2prv._util.stored_columns import read_frame
from nsys2prv._util.text import (
    Note,
    capitalize,
    format_count,
    format_moment,
    format_nanoseconds,
    list_some,
)
from nsys2prv.clock.maps import UNPLACED
from nsys2prv.conversion.job import Job
from nsys2prv.events import all_kinds
from nsys2prv.events.attributes import EARLY_WORK
from nsys2prv.events.catalogue import load_catalogue
from nsys2prv.events.cuda import GRAPH_TABLE
from nsys2prv.events.kind import (
    UNKNOWN_TABLE,
    EventKind,
    explain_unread_table,
    find_function,
)
from nsys2prv.events.mpi import COLLECTIVES, OTHER, P2P, START_WAIT
from nsys2prv.events.stacks import CUDA_CALLS
from nsys2prv.export.info import ReportInfo, pid_of
from nsys2prv.export.outlines import TIMES
from nsys2prv.export.recording import ERROR, INFO, Message
from nsys2prv.export.sqlite import open_database
from nsys2prv.table.samples import list_partly_sampled

#: Tables of MPI calls.
MPI_CALLS = {P2P, COLLECTIVES, START_WAIT, OTHER}
#: Largest number of notes that are shown unless all are asked for.
MOST_SHOWN = 5
#: Name sets of functions and kernels.
NAME_SETS = ("kernels", "cuda_api", "osrt")
#: Work may start before its launch by less than this (ns) because of the precision of clocks.
LEAST_EARLY = 1_000
#: Maximum number of messages of Nsight Systems of one class and the same reports.
MOST_MESSAGES = 12
#: Maximum number of reports examined for substitutes of a missing kind, because that may require walking
#: through a table.
MOST_HINTING = 3
#: Reports that begin further apart than this (ns: one day) are unlikely to be of one job.
FAR_APART = 86_400 * 1_000_000_000
#: Paraver keeps times as doubles, exact up to this (ns).
EXACT_TIMES = 2**53
_DECLARED = load_shipped_file(__package__, "quality.yaml")
#: Data that would explain more about hosts and GPUs -> its `tables`, the `option` that records it, and what
#: that `tells`.
WOULD_TELL: dict[str, dict[str, Any]] = _DECLARED["would_tell"]
_WARNINGS: dict[str, str] = _DECLARED["warnings"]
#: Variables of launchers of MPI.
MPI_LAUNCHERS = frozenset(("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"))
#: Message of Nsight Systems about a system on which CUDA cannot be traced.
REFUSED = re.compile(r"\bCUDA trac(e|ing) .*\bnot (be )?(collected|supported)\b", re.IGNORECASE)
#: Classes of messages of Nsight Systems, the worst first.
CLASSES = ("loss", "fallback", "error", "warning")


class QualityNote(Struct, frozen=True):
    """A note about data that is missing from the reports, and advice on how to record it."""

    #: Its kind, for scripts.
    kind: str
    #: The missing data, and the reports.
    text: str
    #: Advice.
    advice: str

    def __str__(self) -> str:
        return f"{self.text}. {capitalize(self.advice)}"


def assess_quality(
    job: Job, ends: Sequence[str] = (), mpi_ends: Sequence[str] = ()
) -> list[QualityNote]:
    """Return notes about missing data in the reports of a job; causes come before their
    consequences. ends, mpi_ends: descriptions of CUDA and MPI calls that end before the capture.
    """
    helping = _find_reports_without_ranks(job)
    infos = [info for report, info in enumerate(job.infos) if report not in helping]
    notes = _note("mpi_not_recorded", [info.name for info in infos if lacks_mpi(info)])
    notes += _note("mpi_calls_end", mpi_ends)
    notes += _note_unused_tables(job.infos)
    notes += _note_missing_names(job)
    if any(kind.gpu_work for kind in job.selection.kinds):
        apart = helping | {one.report for one in job.lost}
        idle = [info for number, info in enumerate(job.infos) if number not in apart]
        notes += _note("calls_end", ends)
        notes += _note_lost_launches(job)
        notes += _note_early_work(job)
        notes += _note_damaged_work(job)
        notes += _note_missing_gpu_work(idle)
        gpu_work = [info for info in job.infos if list_gpu_work(info)]
        notes += _note("no_calls", [one.name for one in gpu_work if CUDA_CALLS not in one.parts])
        whole = [info.name for info in job.infos if GRAPH_TABLE in info.parts]
        notes += _note("graphs_as_a_whole", whole)
    notes += _note_partly_sampled(job)
    notes += _note_missing_payloads(job)
    notes += _note("no_rank", [job.infos[report].name for report in sorted(helping)])
    notes += _note("helpers", job.model.helpers)
    notes += _note_differences(infos)
    notes += _note_stacks_without_names(job)
    notes += _quote_messages(job.infos)
    tables = {table for info in job.infos for table in info.parts}
    unrecorded = list_unrecorded(tables | ({CUDA_CALLS} if find_refusal(job.infos) else set()))
    lines = ", ".join(f"{what} ({how})" for what, how in unrecorded.items())
    return notes + _note("not_recorded", [lines] if lines else [])


def assess_report_set(job: Job) -> list[QualityNote]:
    """Return notes about reports that are missing or do not belong to one job, which are also
    warnings.
    """
    return [note for kind, found in job.of_set.items() for note in _note(kind, found)]


def _find_reports_without_ranks(job: Job) -> set[int]:
    """Return the numbers of reports that contain only helper processes."""
    # In a part of a job, not all of these are in the trace.
    roles = job.model.roles
    others = {*roles.ranks} | (job.model.tasks.keys() - roles.helpers.keys())
    return {report for report, _ in roles.helpers} - {report for report, _ in others}


def list_unrecorded(tables: Collection[str]) -> dict[str, str]:
    """Return a map from useful data that was not recorded to the option of `nsys profile` that
    records it, with its benefit. tables: tables with rows.
    """
    return {
        what: f"{one['option']} {one['tells']}"
        for what, one in WOULD_TELL.items()
        if set(one["tables"]).isdisjoint(tables)
    }


def is_minor(note: QualityNote) -> bool:
    """Return True if a note needs no action."""
    return bool(_DECLARED["notes"][note.kind].get("minor"))


def list_options(notes: Iterable[QualityNote]) -> list[str]:
    """Return the `nsys profile` options that record the data missing according to these notes."""
    declared = (_DECLARED["notes"][note.kind] for note in notes)
    return [one["option"] for one in declared if "option" in one]


def format_quality(notes: Sequence[QualityNote], full: bool = False) -> list[str]:
    """Return the notes as text, one line each. full: include minor notes."""
    shown = [str(note) for note in notes if full or not is_minor(note)]
    if len(shown) > MOST_SHOWN and not full:
        shown[MOST_SHOWN:] = [f"and {len(shown) - MOST_SHOWN} more"]
    return shown


def _note(kind: str, where: Sequence[str], **facts: Any) -> list[QualityNote]:
    """Return the note of a kind about these names, with the facts inserted into its text; empty
    without names.
    """
    declared = _DECLARED["notes"][kind]
    text, advice = (
        declared[part].format(where=list_some(where), **facts) for part in ("text", "advice")
    )
    return [QualityNote(kind, text, advice)] if where else []


def _note_lost_launches(job: Job) -> list[QualityNote]:
    """Return a note about launches whose work is missing from the reports, and since when."""
    labels, tasks, lines = job.model.labels, job.model.tasks, []
    for lost in sorted(job.lost, key=lambda one: -one.lost / one.launches):
        task, report = tasks.get((lost.report, lost.process)), job.infos[lost.report].name
        since = lost.first if lost.since is None else lost.since
        times = job.clocks[lost.report].to_global(np.array([lost.first, lost.last, since]))
        first, last, since = times.tolist()
        if job.uncut and (task is None or last < 0 or first > job.duration):
            continue
        name = f"process {pid_of(lost.process)}" if task is None else labels[task]
        name += f" in {report}" if task is None or job.captures.chains else ""
        begin, end = (
            format_moment(time, job.duration) for time in (max(since, 0), min(last, job.duration))
        )
        when = f"from {begin} to {end}" if first < last else f"at {begin}"
        if lost.since is not None:
            when = f"all from {begin} on"
        lines.append(f"{name}: {lost.lost:,} of {lost.launches:,} ({when})")
    return _note("launches_without_work", lines)


def _note_early_work(job: Job) -> list[QualityNote]:
    """Return a note about GPUs with work that starts before its launch, because their clocks are
    off.
    """
    counts: dict[str, tuple[int, int]] = {}
    found = (
        (job.infos[result.report], *row)
        for result in job.results
        if EARLY_WORK in result.facts
        for row in read_frame(result.facts[EARLY_WORK]).rows()
    )
    for info, pid, ordinal, count, most in found:
        gpu = f"GPU {info.find_gpu_or_ordinal(pid, ordinal)} of {info.name}"
        before = counts.get(gpu, (0, 0))
        counts[gpu] = before[0] + count, max(before[1], most)
    worst_first = sorted(counts.items(), key=lambda item: -item[1][1])
    lines = [
        f"{count:,} on {gpu}, by up to {format_nanoseconds(most)}"
        for gpu, (count, most) in worst_first
        if most >= LEAST_EARLY
    ]
    return _note("work_before_launch", lines)


def _note_damaged_work(job: Job) -> list[QualityNote]:
    lines = []
    for one in sorted(job.damaged, key=lambda one: one.begin - one.end):
        known = "" if one.correlation is None else f", correlationId {one.correlation}"
        lines.append(
            f"{job.infos[one.report].name}, stream {one.stream.stream} of device {one.stream.device}{known}: "
            f"{format_nanoseconds(one.end - one.begin)}, although {one.later:,} later operations start in that time"
        )
    count = format_count(len(lines), "damaged duration")
    return _note("damaged_durations", lines, count=count)


def _note_partly_sampled(job: Job) -> list[QualityNote]:
    lines = []
    for report, gpu, begin, end in list_partly_sampled(job.results, job.clocks, job.duration):
        sides = {"before": begin, "after": end}
        lacking = [
            f"{side} {format_moment(time, job.duration)}"
            for side, time in sides.items()
            if time is not None
        ]
        name = f"GPU {gpu.number} of {job.infos[report].name}"
        lines.append(f"{name} has none {' and '.join(lacking)}")
    return _note("partly_sampled", lines)


def _note_missing_gpu_work(infos: Sequence[ReportInfo]) -> list[QualityNote]:
    idle = [info.name for info in infos if not list_gpu_work(info)]
    tables = {table for info in infos for table in info.parts}
    has_gpus = len(idle) < len(infos) or any(info.gpus for info in infos)
    is_cpu_job = (tables & MPI_CALLS or any(map(lacks_mpi, infos))) and not has_gpus
    kind = "cuda_refused" if find_refusal(infos) else "no_gpu_work"
    return [] if is_cpu_job else _note(kind, idle)


def lacks_mpi(info: ReportInfo) -> bool:
    """Return True if MPI was to be traced in a report but no call was recorded, unless torchrun
    alone launched the program.
    """
    launchers = info.launcher_ranks.keys()
    uses_torchrun = "RANK" in launchers and launchers.isdisjoint(MPI_LAUNCHERS)
    return info.traces_mpi and not uses_torchrun and info.parts.keys().isdisjoint(MPI_CALLS)


def find_refusal(infos: Iterable[ReportInfo]) -> str:
    """Return the message of Nsight Systems that CUDA could not be traced on this system, or ""."""
    texts = (message.text for info in infos for message in info.messages)
    return next(filter(REFUSED.search, texts), "")


def list_gpu_work(info: ReportInfo) -> list[str]:
    """Return the names of the event kinds of GPU work that a report has."""
    return [
        kind.name for kind in all_kinds() if kind.gpu_work and info.parts.keys() & set(kind.tables)
    ]


def _note_unused_tables(infos: Sequence[ReportInfo]) -> Iterator[QualityNote]:
    """Yield a note about each table with events that no kind reads."""
    known = {table for kind in all_kinds() for table in (*kind.tables, *kind.lookup_tables)}
    rows: dict[str, Counter[str]] = {}
    for info in infos:
        unread = [
            one for one in info.parts.keys() - known if explain_unread_table(one).has != "no_events"
        ]
        if unread:
            with open_database(info.path) as source:
                for table in sorted(unread):
                    if any(column in source.tables[table] for column in TIMES):
                        rows.setdefault(table, Counter())[info.name] += source.count_rows(
                            info.parts[table]
                        )
    for table, counts in rows.items():
        kind, why = explain_unread_table(table)
        if kind == UNKNOWN_TABLE.has:
            alike = max((one for one in known if table.startswith(one)), key=len, default="")
            why = f" (it supports {alike})" if alike else ""
        yield from _note(
            kind, [*counts], rows=format_count(counts.total(), "row"), table=table, why=why
        )


def _note_missing_payloads(job: Job) -> list[QualityNote]:
    """Return a note about reports without communicators of NCCL kernels."""
    kernels, matched = map(sum, zip((0, 0), *job.silent_in_nccl.values(), strict=True))
    names = list(dict.fromkeys(job.infos[report].name for report, _ in job.silent_in_nccl))
    return _note("nccl_payloads_missing", names, kernels=kernels, matched=matched)


def _note_stacks_without_names(job: Job) -> list[QualityNote]:
    """Return a note if call stacks contain no function name of the program."""
    callers = job.values["caller"].labels["label"].to_list()
    plain = job.plain_labels.get("caller", job.values["caller"].labels)["label"]
    return _note("stacks_without_names", callers if plain.is_in(job.unnamed).all() else [])


def _note_differences(infos: Sequence[ReportInfo]) -> Iterator[QualityNote]:
    """Yield notes about data that only some reports contain."""
    for table, facts in _DECLARED["traced"].items():
        lacking = [info.name for info in infos if table not in info.parts]
        if len(lacking) < len(infos):
            yield from _note("not_traced", lacking, **facts)
    versions: dict[str, list[str]] = {}
    by_recorder = all(info.recorder for info in infos)
    for info in infos:
        version = info.recorder if by_recorder else info.exporter
        versions.setdefault(version or "an unknown version", []).append(info.name)
    if len(versions) > 1:
        named = [f"{version} ({list_some(names)})" for version, names in sorted(versions.items())]
        yield from _note("versions_differ", named)


def _note_missing_names(job: Job) -> list[QualityNote]:
    """Return a note about functions and kernels whose names are missing."""
    labels = [job.values[name].labels["label"] for name in NAME_SETS]
    lacking = [*chain(*(one.filter(one.is_in(job.unnamed)) for one in labels))]
    reports = {one.report for one in job.results if not one.unnamed.isdisjoint(lacking)}
    names = sorted(job.infos[report].name for report in reports)
    return _note("names_missing", names, count=len(lacking))


def _classify_message(message: Message) -> str:
    """Return the class of a message; "" for one that is not shown, such as about unused libraries."""
    if message.loss:
        return "loss"
    if message.fallback:
        return "fallback"
    if message.severity == ERROR:
        return "error"
    return "warning" if INFO < message.severity < ERROR and not message.unused else ""


def _quote_messages(infos: Sequence[ReportInfo]) -> Iterator[QualityNote]:
    """Yield notes that quote messages of Nsight Systems. Messages of one class in the same reports
    are merged.
    """
    reports: dict[tuple[str, str], Counter[str]] = {}
    for info in infos:
        for message in info.messages:
            key = _classify_message(message), message.text
            reports.setdefault(key, Counter())[info.name] += message.count
    for name in CLASSES:
        alike: dict[tuple[str, ...], dict[str, str]] = {}
        for (_, text), counts in (item for item in reports.items() if item[0][0] == name):
            total, several = counts.total(), len(counts) > 1
            times = f" ({total:,} times{' in total' if several else ''})"
            times = "" if total == len(counts) else times
            alike.setdefault(tuple(counts), {})[text] = f'"{text}"{times}'
        for where, texts in alike.items():
            quoted = f"{list_some(where)}: {list_some([*texts.values()], MOST_MESSAGES)}"
            remedies = [
                do
                for what, do in _DECLARED["remedies"].items()
                if any(re.search(what, text) for text in texts)
            ]
            for note in _note(f"nsight_{name}", [quoted]):
                yield replace(note, advice=". ".join(map(capitalize, remedies)) or note.advice)


def collect_notes(job: Job) -> list[Note]:
    """Return all notes on findings and omitted data in a job."""
    return [
        *(note for result in job.results for note in result.notes),
        *map(Note, _note_unrequested_kinds(job)),
        *map(Note, _note_details(job)),
        *job.notes,
    ]


def collect_warnings(job: Job) -> list[str]:
    """Return the warnings of a job, one line each."""
    infos, warnings = job.infos, [*job.warnings, *_warn_of_missing_kinds(job)]
    unplaced, offsets = [], []
    for info, placement in zip(infos, job.placements, strict=True):
        if placement.method == UNPLACED:
            unplaced.append(info.name)
        elif info.begin_ns is not None:
            offsets.append(placement.map.offset + info.begin_ns)
    if unplaced and len(infos) > 1:
        warnings.append(_WARNINGS["unplaced"].format(list_some(unplaced)))
    apart = max(offsets, default=0) - min(offsets, default=0)
    if apart > FAR_APART:
        warnings.append(_WARNINGS["apart"].format(apart / 86_400e9))
    if job.duration > EXACT_TIMES:
        days = (time / 86_400e9 for time in (job.duration, EXACT_TIMES))
        warnings.append(_WARNINGS["long"].format(*days))
    return warnings


def _warn_of_missing_kinds(job: Job) -> Iterator[str]:
    """Yield a warning for each name given with -t (a kind or a group) for which the reports contain
    no events.
    """
    records = {layout for one in job.results for layout, count in one.events.items() if count}
    dropped = {
        kind for one in job.results for kind, account in one.accounts.items() if account.dropped
    }
    kinds, options = job.selection.kinds, job.plan.options
    # Kinds requested by an analysis are not a mistake of the user.
    own = options.demanded if options.report else ()
    for name in sorted(job.selection.asked.difference(own)):
        named = [kind for kind in kinds if kind.name == name]
        meant = named or [kind for kind in kinds if kind.is_called(name)]
        if meant and not any(
            kind.name in dropped or not records.isdisjoint(kind.layouts) for kind in meant
        ):
            hint = _hint_elsewhere(named[0], job.infos) if named else ""
            yield f"{name}: the reports contain no events of this kind{hint}"


def _hint_elsewhere(kind: EventKind, infos: Sequence[ReportInfo]) -> str:
    if not kind.hint_when_missing:
        return ""
    for info in infos[:MOST_HINTING]:
        with suppress(Nsys2prvError), open_database(info.path) as source:
            if hint := find_function(kind.hint_when_missing)(source):
                return f": {hint}"
    return ""


def _note_details(job: Job) -> Iterator[str]:
    """Yield a note about each kind that has attributes which are written only on request."""
    cut, layouts = job.plan.options.cut, load_catalogue().layouts
    for kind in job.selection.kinds if cut.arguments else ():
        # Others of the kind have the same.
        first = next((name for name in kind.layouts if job.written[name]), None)
        names = [one.name for one in layouts[first].fields if one.detail] if first else ()
        if names and not any(kind.is_called(name) for name in cut.fields):
            yield (
                f"{kind.name}: {len(names)} attributes are not written ({names[0]} … {names[-1]}); "
                f"--args {kind.name}=all writes them"
            )


def _note_unrequested_kinds(job: Job) -> Iterator[str]:
    """Yield a note if the reports contain GPU work and none was selected."""
    if any(kind.gpu_work for kind in job.selection.kinds):
        return
    if left_out := sorted({name for info in job.infos for name in list_gpu_work(info)}):
        yield f"the reports contain GPU work that -t does not select: {', '.join(left_out)}"
