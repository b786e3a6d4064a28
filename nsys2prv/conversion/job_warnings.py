"""Warnings and notes of a job, for people: what is missing, what Nsight Systems reported as lost, what
looks wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from nsys2prv._util.errors import Detail, Nsys2prvError
from nsys2prv._util.text import list_some
from nsys2prv.clock.maps import UNPLACED
from nsys2prv.events import all_kinds
from nsys2prv.events.kind import EventKind
from nsys2prv.events.reasons import Reason
from nsys2prv.events.selection import Selection
from nsys2prv.nsight.capture import ERROR, INFO, Message
from nsys2prv.nsight.info import ReportInfo
from nsys2prv.nsight.opening import open_source
from nsys2prv.store.task_result import TaskResult

if TYPE_CHECKING:
    from nsys2prv.conversion.job import Job


#: So many reports at most are asked what they have in the place of such a kind: it may mean walking
#: through a table.
ASKED = 3


def _warn_of_missing_kinds(
    infos: Sequence[ReportInfo], selection: Selection, results: Sequence[TaskResult]
) -> list[str]:
    """Return a warning for each name given to -t, of a kind or of a group of kinds, of which no
    report holds an event.
    """
    records = {layout for result in results for layout, count in result.events.items() if count}
    dropped = {
        kind for result in results for kind, account in result.accounts.items() if account.dropped
    }
    warnings = []
    for name in sorted(selection.asked):
        named = [kind for kind in selection.kinds if kind.name == name]
        meant_kinds = named or [kind for kind in selection.kinds if kind.is_called(name)]
        if meant_kinds and not any(
            kind.name in dropped or not records.isdisjoint(kind.layouts) for kind in meant_kinds
        ):
            warnings.append(
                f"{name}: the reports hold no events of this kind{_hint_elsewhere(named[0], infos) if named else ''}"
            )
    return warnings


def _hint_elsewhere(kind: EventKind, infos: Sequence[ReportInfo]) -> str:
    if kind.gpu_work is None or kind.gpu_work.hint_when_missing is None:
        return ""
    for info in infos[:ASKED]:
        try:
            with open_source(info.path) as source:
                if hint := kind.gpu_work.hint_when_missing(source):
                    return f": {hint}"
        except Nsys2prvError:
            # What was read from a store need not be there any more.
            continue
    return ""


def _note_unrequested_kinds(infos: Sequence[ReportInfo], selection: Selection) -> list[str]:
    """Return a note where the reports hold work on GPUs and none was asked for."""
    if any(kind.gpu_work for kind in selection.kinds):
        return []
    left_out = sorted({name for info in infos for name in _list_gpu_work(info)})
    note = f"the reports hold work on GPUs that -t does not select: {', '.join(left_out)}"
    return [note] if left_out else []


def _list_gpu_work(info: ReportInfo) -> list[str]:
    """Return the kinds of work on GPUs that a report holds."""
    return [
        kind.name for kind in all_kinds() if kind.gpu_work and info.parts.keys() & set(kind.tables)
    ]


#: Lines of warnings and of notes at most.
MOST_MESSAGES = 12


#: Classes of messages that are warned of, the worst first -> what such a message is said to do.
CLASSES = {
    "loss": "says that events may be missing",
    "fallback": "says that it recorded in another way than asked for",
    "error": "reports an error",
}


def _classify_message(message: Message) -> str:
    """Return the class of a message; "" for one that is not told, as about libraries that a program
    does not use.
    """
    if message.loss:
        return "loss"
    if message.fallback:
        return "fallback"
    if message.severity == ERROR:
        return "error"
    return "warning" if INFO < message.severity < ERROR and not message.unused else ""


def _group_by_message(infos: Sequence[ReportInfo], wanted: str, noun: str) -> list[str]:
    counts: Counter[str] = Counter()
    names: dict[str, dict[str, None]] = {}
    for info in infos:
        for message in info.messages:
            if _classify_message(message) == wanted:
                counts[message.text] += message.count
                names.setdefault(message.text, {})[info.name] = None
    times = {text: f"{count:,} times, " if count > 1 else "" for text, count in counts.items()}
    lines = [
        f'Nsight Systems {noun}: "{text}" ({times[text]}in {list_some([*reports])})'
        for text, reports in names.items()
    ]
    if len(lines) > MOST_MESSAGES:
        more = len(lines) - MOST_MESSAGES
        lines[MOST_MESSAGES:] = [f"Nsight Systems {noun}: {more} further messages"]
    return lines


def warn_of_far_rows(infos: Sequence[ReportInfo], results: Iterable[TaskResult]) -> list[str]:
    """Return a warning that names the reports and kinds of events, where there are such rows."""
    kinds: Counter[str] = Counter()
    reports: set[int] = set()
    for result in results:
        for kind, account in result.accounts.items():
            if count := account.dropped[Reason.FAR]:
                kinds[kind] += count
                reports.add(result.report)
    if not kinds:
        return []
    where = list_some([infos[report].name for report in sorted(reports)])
    return [
        f"{where}: {Reason.FAR.text} are left out because their times are damaged: "
        + ", ".join(f"{count:,} of {kind}" for kind, count in kinds.most_common())
    ]


#: Reports that begin further apart than this (ns: one day) are hardly of one job.
FAR_APART = 86_400 * 1_000_000_000
#: Paraver keeps times as doubles, exact up to this (ns).
EXACT_TIMES = 2**53


def collect_notes(job: Job) -> list[str]:
    """Return the notes of a job; those that are :class:`nsys2prv._util.errors.Detail` need no
    attention.
    """
    return [
        *(note for result in job.results for note in result.notes),
        *map(Detail, _group_by_message(job.infos, "warning", "warns")),
        *_note_unrequested_kinds(job.infos, job.selection),
        *job.notes,
    ]


def collect_warnings(job: Job) -> list[str]:
    """Return what the user should know of a job, a line each."""
    infos, results, selection = job.infos, job.results, job.selection
    placements = job.timeline.placements
    warnings = list(job.warnings)
    for one, text in CLASSES.items():
        warnings += _group_by_message(infos, one, text)
    warnings += [*job.timeline.warnings, *_warn_of_missing_kinds(infos, selection, results)]
    unplaced = [
        info.name
        for info, placement in zip(infos, placements, strict=True)
        if placement.method == UNPLACED
    ]
    if unplaced and len(infos) > 1:
        warnings.append(
            f"{list_some(unplaced)}: no clock in the report; placed at the start of the others"
        )
    placed = [
        placement.map.offset
        for info, placement in zip(infos, placements, strict=True)
        if placement.method != UNPLACED and not info.absolute
    ]
    if placed and max(placed) - min(placed) > FAR_APART:
        warnings.append(
            f"the reports begin up to {(max(placed) - min(placed)) / 86_400e9:.1f} days apart: are they of one job?"
        )
    hidden = sorted({result.report for result in results if result.events.get("cuda_graph")})
    if hidden:
        warnings.append(
            f"{list_some([infos[index].name for index in hidden])}: CUDA graphs were traced as a whole, so the kernels inside "
            "them are not in the report; profile with --cuda-graph-trace=node to see them"
        )
    wanted = any(kind.gpu_work for kind in selection.kinds)
    if idle := [info.name for info in infos if wanted and not _list_gpu_work(info)]:
        warnings.append(f"{list_some(idle)}: no work on any GPU")
    if job.duration > EXACT_TIMES:
        warnings.append(
            f"the trace spans {job.duration / 86_400e9:,.0f} days; beyond {EXACT_TIMES / 86_400e9:.0f} Paraver cannot tell nanoseconds apart"
        )
    return warnings
