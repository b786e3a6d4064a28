"""The summary of a conversion, for people: what was written, what is missing, what Nsight Systems
reported as lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field

from nsys2prv._util.errors import Detail, Nsys2prvError
from nsys2prv._util.text import format_count, list_some
from nsys2prv.clock.maps import UNPLACED
from nsys2prv.conversion.clock_text import MOST, describe_causal_moves, describe_hosts
from nsys2prv.conversion.ledger import Ledger, make_ledger, sum_accounts
from nsys2prv.conversion.summary_text import describe_clocks, format_summary, format_summary_html
from nsys2prv.events import all_kinds
from nsys2prv.events.catalogue import load_catalogue
from nsys2prv.events.kind import EventKind
from nsys2prv.events.reasons import Reason
from nsys2prv.events.selection import Selection
from nsys2prv.nsight.capture import ERROR, INFO, Message
from nsys2prv.nsight.info import ReportInfo
from nsys2prv.nsight.opening import open_source
from nsys2prv.store.task_result import TaskResult

if TYPE_CHECKING:
    from nsys2prv.clock.maps import Placement
    from nsys2prv.conversion.job import Job


#: So many reports at most are asked what they have in the place of such a kind: it may mean walking
#: through a table.
ASKED = 3


def warn_of_missing_kinds(
    infos: Sequence[ReportInfo], selection: Selection, results: Sequence[TaskResult]
) -> list[str]:
    """Return a warning for each name given to -t, of a kind or of a group of kinds, of which no
    report holds an event.
    """
    records: Counter[str] = Counter()
    for result in results:
        records.update(result.events)
    dropped = {
        kind for result in results for kind, account in result.accounts.items() if account.dropped
    }
    warnings = []
    for name in sorted(selection.asked):
        named = [kind for kind in selection.kinds if kind.name == name]
        meant_kinds = named or [kind for kind in selection.kinds if kind.is_called(name)]
        if meant_kinds and not any(
            kind.name in dropped or any(records[layout] for layout in kind.layouts)
            for kind in meant_kinds
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


def note_unrequested_kinds(infos: Sequence[ReportInfo], selection: Selection) -> list[str]:
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


class Summary(Struct, dict=True):
    """Summary of a conversion."""

    #: Number of ranks.
    ranks: int
    #: Number of hosts.
    hosts: int
    #: Number of GPUs with work.
    devices: int
    #: Number of rows of the trace.
    threads: int
    #: Length of the trace, ns.
    duration: int
    #: Number of lines of the .prv.
    lines: int
    #: How the reports were put in order.
    order: str
    #: How the clocks of hosts were aligned, in a line or two.
    clock_lines: list[str]
    #: Records written, by layout.
    events: dict[str, int]
    #: Rows dropped, by (kind, key of :class:`nsys2prv.events.reasons.Reason`).
    dropped: dict[tuple[str, str], int]
    #: Rows changed, by (kind, key).
    repaired: dict[tuple[str, str], int]
    #: Size of every file, bytes.
    sizes: dict[Path, int]
    #: Records not written, by (layout or kind of lines, key).
    left_out: dict[tuple[str, str], int] = field(default_factory=dict)
    #: Account of all rows and records.
    ledger: Ledger = field(default_factory=Ledger)
    #: Notes; those that are :class:`nsys2prv._util.errors.Detail` need no attention.
    notes: list[str] = field(default_factory=list)
    #: Where each report was placed in time, a line for each.
    placed: list[str] = field(default_factory=list)
    #: How the clock of each host was aligned.
    clocks: list[str] = field(default_factory=list)
    #: What the user should know, a line each.
    warnings: list[str] = field(default_factory=list)
    #: Event types in the trace.
    types: frozenset[int] = frozenset()
    #: Text of the analyses, "" if they were not asked for.
    report: str = ""
    #: What options would make of a large trace, for people.
    smaller: str = ""
    #: CPU seconds by stage, in one line.
    cpu: str = ""
    #: One line for each report that could not be read, with keep_going.
    unread: list[str] = field(default_factory=list)
    #: True if only a part of the job was asked for.
    is_cut: bool = False

    @cached_property
    def views(self) -> dict[str, str]:
        """Views to be opened first, and what each shows in a sentence."""
        from nsys2prv.paraver.views import choose_first_views

        return choose_first_views(self.types)

    @classmethod
    def from_job(
        cls,
        job: Job,
        events: Counter[str],
        left_out: Counter[tuple[str, str]],
        *,
        lines: int,
        types: frozenset[int],
        sizes: dict[Path, int],
        smaller: str = "",
    ) -> Summary:
        """Return the summary of a trace. events: records and samples by layout, communication lines
        by kind. left_out: made but not written, by (layout or kind of lines, reason). The others
        are as in the summary.
        """
        infos, timeline, results, model = job.infos, job.timeline, job.results, job.model
        kinds = sum_accounts(results)
        balance = make_ledger(kinds, results, events, left_out)
        dropped, repaired = (
            {
                (kind, reason): count
                for kind, account in kinds.items()
                for reason, count in getattr(account, name).items()
            }
            for name in ("dropped", "repaired")
        )
        placements = timeline.placements
        return cls(
            ranks=model.ranks,
            hosts=len(model.tree.nodes),
            devices=model.devices,
            threads=model.tree.threads,
            duration=job.duration,
            lines=lines,
            order=model.ranked,
            clock_lines=[
                *describe_clocks(timeline.record, placements, len(model.tree.nodes)),
                *describe_causal_moves(timeline.causal),
            ],
            is_cut=job.is_cut,
            events={
                name: count for name, count in events.items() if name in load_catalogue().layouts
            },
            dropped=dropped,
            repaired=repaired,
            left_out=dict(left_out),
            ledger=balance,
            sizes=sizes,
            types=types,
            smaller=smaller,
            cpu=job.workers.spent.text(),
            unread=job.unread,
            notes=[
                *(note for result in results for note in result.notes),
                *map(Detail, _group_by_message(infos, "warning", "warns")),
                *note_unrequested_kinds(infos, job.selection),
                *job.notes,
            ],
            placed=_describe_placements(infos, placements),
            clocks=describe_hosts(timeline.record, MOST) if timeline.record else [],
            warnings=[
                *job.warnings,
                *(
                    line
                    for one, text in CLASSES.items()
                    for line in _group_by_message(infos, one, text)
                ),
                *timeline.warnings,
                *_collect_warnings(job),
                *(
                    f"{name}: {count:,} rows or records are not accounted for: a bug in nsys2prv, please report it"
                    for name, count in balance.missing.items()
                ),
            ],
        )

    def __repr__(self) -> str:
        trace = next((str(path) for path in self.sizes if ".prv" in path.suffixes), "")
        return (
            f"<Summary of {trace}: {format_count(self.ranks, 'task')} on {format_count(self.hosts, 'host')}, {self.duration / 1e9:.3f} s, "
            f"{self.lines:,} lines, {format_count(len(self.warnings), 'warning')}; .text() tells all>"
        )

    def _repr_html_(self) -> str:
        return format_summary_html(self)

    def text(self, verbose: bool = False) -> str:
        """Return the closing summary; verbose: with everything that was noticed."""
        return format_summary(self, verbose)


def _describe_placements(infos: list[ReportInfo], placements: list[Placement]) -> list[str]:
    earliest = min(placement.map.offset for placement in placements)
    return [
        f"  {info.given}: host {info.host or 'unknown'}, local time 0 at {placement.map.offset - earliest:,} ns "
        f"after the first report's, by {placement.method}"
        for info, placement in zip(infos, placements, strict=True)
    ]


def _collect_warnings(job: Job) -> list[str]:
    infos, results, selection = job.infos, job.results, job.selection
    placements = job.timeline.placements
    warnings = warn_of_missing_kinds(infos, selection, results)
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
