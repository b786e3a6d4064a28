"""Read exports: the metadata of all of them first, then their tables, whose rows become sorted runs,
and of the tables that are not read when their events begin and end. Each task reads part of one
report, on its own, in bounded memory.

Kinds of events that take rows of the same table share one reading of it.

Time 0 and the duration of a trace follow from all events, whatever kinds of them are asked for, so
that traces of the same reports can be laid over each other. Of the tables that are not read for the
trace the columns of times are, and where these exceed what is known, the few pieces of the table
with the earliest and the latest times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain, count
from operator import itemgetter
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from nsys2prv._util.columns import OPEN, FrameWriter, StoredFrame
from nsys2prv._util.errors import Nsys2prvError
from nsys2prv.events import Selection, all_kinds
from nsys2prv.events.call_indexes import (
    LaunchIndex,
    NcclCallIndex,
    Segment,
    save_launches,
    save_nccl_calls,
)
from nsys2prv.events.extraction import Extraction, ReadingSettings
from nsys2prv.events.kind import Account, Counters, EventKind, Index, Reason, Rows
from nsys2prv.nsight import prepare_export
from nsys2prv.nsight.info import ENDS, TIMES, ReportInfo, read_report_info
from nsys2prv.nsight.report_files import count_bytes
from nsys2prv.nsight.source import TIME_LIMIT, Part, Shared, mask_usable
from nsys2prv.nsight.sqlite import Database
from nsys2prv.store.runs import Span, SpillWriter
from nsys2prv.store.task_result import TaskResult

#: Rows read at a time: a few tens of MB whatever the table.
PART_ROWS = 200_000
#: Rows of one task: small enough to share the work out, large enough that opening the report again
#: costs nothing.
TASK_ROWS = 400_000
#: Rows of a piece of a table of which the earliest or latest events are sought.
PIECE_ROWS = 20_000
#: Bounds of times of which nothing is known.
UNKNOWN = -TIME_LIMIT, TIME_LIMIT
#: Kinds whose ranges end where rows anywhere else in their table say.
ENDS_ELSEWHERE = ("gpu_contexts",)
#: Reports that a worker inspects in one task: up to so many, or so many bytes.
INSPECTED_REPORTS, INSPECTED_BYTES = 16, 50_000_000

#: An export, and the report as it was given.
Export = tuple[Path, Path]


def inspect_reports(
    paths: Sequence[Path],
    folder: Path,
    keep_going: bool,
    run_tasks: Callable[[Callable, Iterable], Iterator],
) -> Iterator[ReportInfo | Nsys2prvError]:
    """Read the metadata of the reports, in their order; for one that cannot be read, the error.

    folder: where .nsys-rep files are exported to, by this process. keep_going: go on after one that
    cannot be exported. run_tasks: maps over tasks, in order.
    """
    tasks = _plan_inspection_tasks(paths, folder, keep_going)
    return chain.from_iterable(run_tasks(inspect_task, tasks))


def inspect_task(task: Sequence[Export | Nsys2prvError]) -> list[ReportInfo | Nsys2prvError]:
    """Read the metadata of some reports."""
    return [
        export if isinstance(export, Nsys2prvError) else _inspect_report(*export) for export in task
    ]


def name_first_report(task: Sequence[Export | Nsys2prvError]) -> str:
    """Return the first report of a task, for users."""
    return next(
        (str(export[1]) for export in task if not isinstance(export, Nsys2prvError)), "nsys2prv"
    )


def _inspect_report(path: Path, given_path: Path) -> ReportInfo | Nsys2prvError:
    try:
        return read_report_info(path, given_path)
    except Nsys2prvError as error:
        return error


def _plan_inspection_tasks(
    paths: Sequence[Path], folder: Path, keep_going: bool
) -> Iterator[list[Export | Nsys2prvError]]:
    """Divide the reports into portions inspected together. None waits behind an export that had to
    be made.
    """
    portion: list[Export | Nsys2prvError] = []
    size = 0
    for number, path in enumerate(paths):
        was_exported = False
        try:
            export = prepare_export(path, folder / f"export-{number}")
            portion.append(export)
            size += count_bytes(export[0])
            was_exported = export[0] != path
        except Nsys2prvError as error:
            portion.append(error)
            if not keep_going:
                break
        if len(portion) >= INSPECTED_REPORTS or size >= INSPECTED_BYTES or was_exported:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def group_by_table(kinds: Iterable[EventKind]) -> list[tuple[EventKind, ...]]:
    """Group kinds that read the same table, if all its readers are selected: of the rows that fewer
    kinds read together, most might be of none. Kinds and groups are in the order given.
    """
    readers: dict[tuple[str, ...], list[EventKind]] = defaultdict(list)
    for kind in all_kinds():
        if len(kind.tables) == 1 and not kind.selection.opt_in:
            readers[kind.tables].append(kind)
    kinds, groups = list(kinds), []
    for kind in kinds:
        group = readers.get(kind.tables, [])
        if kind not in group or not all(other in kinds for other in group):
            groups.append((kind,))
        elif kind is group[0]:
            groups.append(tuple(group))
    return groups


def read_once(extraction: Extraction, kinds: Sequence[EventKind], part: Part) -> Shared | None:
    """Return a part of a table for several kinds, their conditions in this order; None where each
    has to read it.
    """
    if len(kinds) < 2:
        return None
    integers, texts = (
        tuple(dict.fromkeys(name for kind in kinds for name in names(kind)))
        for names in (lambda kind: kind.reads.columns, lambda kind: kind.reads.texts)
    )
    return extraction.database.read_once(
        part, integers, texts, [kind.make_condition(extraction.report) for kind in kinds]
    )


class ReadingTask(Struct, frozen=True):
    """Parts of one report to read."""

    #: Number of the task, from 0.
    number: int
    #: Index of the report.
    report: int
    #: What is known of the report.
    info: ReportInfo
    #: (kinds, part, whether their rows are wanted), in this order; a part of several kinds is read
    #: once.
    parts: tuple[tuple[tuple[str, ...], Part, bool], ...]
    #: Folder for its runs.
    spill_folder: Path
    #: Settings of reading.
    settings: ReadingSettings
    #: Table whose rows are counted -> the kind whose parts are its.
    counting: Mapping[str, str] = field(default_factory=dict)
    #: Calls of the report that other tasks indexed.
    launches: tuple[Segment, ...] = ()
    #: NCCL calls of the report that other tasks indexed.
    nccl_calls: tuple[StoredFrame, ...] = ()

    @property
    def rows(self) -> int:
        """Return the number of rows of the parts."""
        return sum(part.last - part.first + 1 for _, part, _ in self.parts)


def read_task(task: ReadingTask) -> TaskResult:
    """Read the task's parts and spill their runs (a pure function over files)."""
    kinds = {kind.name: kind for kind in all_kinds()}
    result = TaskResult(task.number, task.report, task.rows)
    spill_file = task.spill_folder / f"runs-{task.number}.bin"
    with (
        FrameWriter(task.spill_folder / f"launches-{task.number}.bin") as launches,
        closing(SpillWriter(spill_file, task.report, task.number)) as writer,
        Database(task.info.path) as database,
    ):
        launch_index, nccl_calls = LaunchIndex(list(task.launches)), NcclCallIndex(task.nccl_calls)
        extraction = Extraction(task.info, database, launch_index, task.settings, nccl_calls)
        pieces = _PieceReader(task, extraction, writer, result)
        for names, part, wanted in task.parts:
            for piece in part.split(PART_ROWS):
                pieces.read([kinds[name] for name in names], piece, wanted)
                for launched in extraction.launched:
                    result.launches += save_launches(launched, launches)
                extraction.launched = []
        result.nccl_calls = save_nccl_calls(extraction.found_nccl_calls, launches)
    result.objects, result.domains = list(extraction.objects), list(extraction.domains)
    with FrameWriter(spill_file) as frames:
        result.names = {
            name_set: names.save(frames) for name_set, names in extraction.names.items()
        }
        result.facts = extraction.save_facts(frames)
    return result


class _PieceReader:
    """Reads pieces of the tables of a task's report, and stores what the kinds find there."""

    def __init__(
        self, task: ReadingTask, extraction: Extraction, writer: SpillWriter, result: TaskResult
    ) -> None:
        self._task, self._extraction = task, extraction
        self._writer, self._result = writer, result

    def read(self, kinds: Sequence[EventKind], piece: Part, wanted: bool) -> None:
        """Let the kinds, all of one table, have their rows of a piece of it. wanted: whether they
        are to be stored.
        """
        extraction = self._extraction
        shared = read_once(extraction, kinds, piece)
        if self._task.counting.get(piece.table) in [kind.name for kind in kinds]:
            self._result.tables[piece.table] += (
                extraction.database.count_rows(piece) if shared is None else len(shared.met)
            )
        for number, kind in enumerate(kinds):
            if shared is not None and not shared.mask_meeting(number).any():
                continue
            extraction.condition = kind.make_condition(self._task.info)
            extraction.min_duration = self._task.settings.min_durations.get(kind.name, 0)
            extraction.shared = None if shared is None else (shared, number)
            rows = piece if shared is None or kind.reads.columns else shared.narrow(number)
            self._extract(kind, rows, wanted)

    def _extract(self, kind: EventKind, piece: Part, wanted: bool) -> None:
        account = self._extraction.account = Account()
        for rows in _extract_rows(kind, self._extraction, piece):
            if wanted:
                self._result.store(rows, self._writer, account, kind.rows.open_ended)
        if kind.derived:
            account.skipped[Reason.FACT] += account.rows - account.dropped.total()
        if wanted:
            if not kind.reads.rereads_rows:
                self._result.of_table[piece.table] += account.rows
            self._result.add(kind.name, account)


def _extract_rows(
    kind: EventKind, extraction: Extraction, piece: Part
) -> Iterator[Rows | Counters]:
    """Yield what a kind finds in a piece of its table, without rows of damaged times."""
    for rows in kind.extract(extraction, piece):
        yield extraction.drop_far_rows(rows) if kind.rows.extends_trace else rows


def plan_tasks(
    reports: list[ReportInfo],
    kinds: Iterable[EventKind],
    spill_folder: Path,
    settings: ReadingSettings,
) -> tuple[list[ReadingTask], list[ReadingTask]]:
    """Return tasks of two stages: those that fill the indices of launching calls and of NCCL calls,
    then those that may ask them.

    The second stage's tasks get their report's indices through :func:`add_indexes` once the first
    stage is done.
    """
    selected = list(kinds)
    settings = replace(
        settings, lines=any(Index.LAUNCHES in kind.indexes.provides for kind in selected)
    )
    launches_needed = any(Index.LAUNCHES in kind.indexes.needs for kind in selected)
    providers = [
        kind
        for kind in all_kinds()
        if (kind.indexes.provides and kind in selected)
        or (Index.LAUNCHES in kind.indexes.provides and launches_needed)
    ]
    tables = {kind.tables for kind in providers}
    # Those that read the same tables come along.
    first = [
        kind
        for kind in all_kinds()
        if kind in providers
        or (kind in selected and kind.tables in tables and not kind.indexes.needs)
    ]
    second = [kind for kind in selected if kind not in first]
    counting, wanted = _find_counting_kinds(selected), {kind.name for kind in selected}
    numbers = count()
    first_tasks, second_tasks = (
        [
            ReadingTask(next(numbers), index, info, tuple(parts), spill_folder, settings, counting)
            for index, info in enumerate(reports)
            for parts in _gather_portions(info, groups, wanted)
        ]
        for groups in (group_by_table(first), group_by_table(second))
    )
    return first_tasks, second_tasks


def _find_counting_kinds(selected: Iterable[EventKind]) -> dict[str, str]:
    """Return the tables of which no kind reads all rows, each with the first kind that reads some."""
    readers: dict[str, list[EventKind]] = defaultdict(list)
    for kind in selected:
        for table in kind.tables:
            readers[table].append(kind)
    return {
        table: kinds[0].name
        for table, kinds in readers.items()
        if all(kind.where for kind in kinds)
    }


def _gather_portions(
    info: ReportInfo, groups: Sequence[tuple[EventKind, ...]], wanted: set[str]
) -> Iterator[list[tuple[tuple[str, ...], Part, bool]]]:
    """Yield a report's parts for each of the groups of kinds that read together, gathered into
    portions of at most TASK_ROWS rows.
    """
    portion: list[tuple[tuple[str, ...], Part, bool]] = []
    room = TASK_ROWS
    for group in groups:
        names = tuple(kind.name for kind in group)
        for part in (info.parts[table] for table in group[0].tables if table in info.parts):
            first = part.first
            while first <= part.last:
                last = min(part.last, first + room - 1)
                portion.append((names, Part(part.table, first, last), names[0] in wanted))
                room -= last - first + 1
                first = last + 1
                if room <= 0:
                    yield portion
                    portion, room = [], TASK_ROWS
    if portion:
        yield portion


def add_indexes(tasks: list[ReadingTask], results: Iterable[TaskResult]) -> list[ReadingTask]:
    """Return the tasks of the second stage with the indexes (of launching calls and of NCCL calls)
    that the first one made of their reports.
    """
    segments: dict[int, list[Segment]] = defaultdict(list)
    nccl_calls: dict[int, list[StoredFrame]] = defaultdict(list)
    for result in results:
        segments[result.report] += result.launches
        nccl_calls[result.report] += result.nccl_calls
    return [
        replace(
            task, launches=tuple(segments[task.report]), nccl_calls=tuple(nccl_calls[task.report])
        )
        for task in tasks
    ]


class SpanTask(Struct, frozen=True):
    """Finds the span of one report's events."""

    #: Index of the report.
    report: int
    #: What is known of the report.
    info: ReportInfo
    #: Kinds that were not read, or not in full.
    kinds: tuple[str, ...]
    #: Span of the kinds that were; None where they have no events.
    known: Span | None
    #: Temporary file.
    spill_file: Path
    #: Settings of reading.
    settings: ReadingSettings


def find_known_spans(results: Sequence[TaskResult], extending: bool = True) -> dict[int, Span]:
    """Return the span of the runs of each report that has any. extending: those alone of kinds that
    may make the trace longer.
    """
    others = {
        layout for kind in all_kinds() if not kind.rows.extends_trace for layout in kind.layouts
    }
    spans: dict[int, Span] = {}
    for run in (run for result in results for run in result.runs):
        if run.first_time != OPEN and not (extending and run.shape.name in others):
            spans[run.report] = _unite_spans(
                spans.get(run.report), (run.first_time, run.greatest_time)
            )
    return spans


def plan_span_tasks(
    infos: Sequence[ReportInfo],
    known: Mapping[int, Span],
    selection: Selection,
    settings: ReadingSettings,
    folder: Path,
) -> list[SpanTask]:
    """Return a task for each report with tables that were not read, or of which short ranges were
    left out. known: span of the runs of each report that has any. folder: for temporary files.
    """
    left_out = [
        kind
        for kind in all_kinds()
        if kind.tables
        and not (kind.selection.opt_in or kind.reads.rereads_rows)
        and (kind not in selection.kinds or settings.min_durations.get(kind.name))
    ]
    settings = ReadingSettings(kernel_rules=settings.kernel_rules, nvtx_rules=settings.nvtx_rules)
    tasks = []
    for report, info in enumerate(infos):
        kinds = tuple(kind.name for kind in left_out if info.parts.keys() & set(kind.tables))
        if kinds:
            spill_file = folder / f"span-of-{report}.bin"
            tasks.append(SpanTask(report, info, kinds, known.get(report), spill_file, settings))
    return tasks


def find_span(task: SpanTask) -> Span | None:
    """Return the span of all events of a report (a pure function over files); None if it has none."""
    kinds = [kind for kind in all_kinds() if kind.name in task.kinds]
    span = task.known
    scanned: dict[str, list] = {}
    with Database(task.info.path) as database:
        for extends in (True, False):
            if extends or span is None:
                for kind in (kind for kind in kinds if kind.rows.extends_trace == extends):
                    span = _widen(span, task, database, kind, scanned)
    task.spill_file.unlink(missing_ok=True)
    return span


def _widen(
    span: Span | None, task: SpanTask, database: Database, kind: EventKind, scanned: dict[str, list]
) -> Span | None:
    """Return the span made long enough for the events of a kind. scanned: the pieces of tables that
    have been looked at, for the next kind.
    """
    pieces, parts = [], task.info.parts
    for table in kind.tables:
        if table in parts and table not in scanned:
            scanned[table] = list(_list_pieces(database, task.info, parts[table]))
        pieces += scanned.get(table, ())
    bounds = _unite_spans(*(piece[1:] for piece in pieces if piece[1:] != UNKNOWN)) or UNKNOWN
    if kind.name in ENDS_ELSEWHERE:
        pieces = [(part, *bounds) for part, _, _ in pieces]
    # Pieces without times of their own lie where the others of the kind do.
    pieces = [(piece[0], *(bounds if piece[1:] == UNKNOWN else piece[1:])) for piece in pieces]
    read: set[Part] = set()
    for part, first, _ in sorted(pieces, key=itemgetter(1)):
        if span is not None and first >= span[0]:
            break
        read.add(part)
        span = _unite_spans(span, _read_span(task, database, kind, part))
    for part, _, last in sorted(pieces, key=itemgetter(2), reverse=True):
        if span is not None and last <= span[1]:
            break
        if part not in read:
            span = _unite_spans(span, _read_span(task, database, kind, part))
    return span


def _list_pieces(
    database: Database, info: ReportInfo, part: Part
) -> Iterator[tuple[Part, int, int]]:
    """Yield pieces of a part with the bounds of their events' times, but those that can have none;
    the bounds are UNKNOWN in tables without times.
    """
    columns, capture = database.tables[part.table].columns, info.capture
    begin = next((name for name in TIMES if name in columns), None)
    names = tuple(name for name in (begin, *ENDS) if name in columns)
    for piece in part.split(PIECE_ROWS):
        if begin is None:
            yield (piece, *UNKNOWN)
            continue
        columns_read = database.read(piece, names)
        times = [
            times[mask_usable(times) & (times >= capture.first) & (times <= capture.last)]
            for times in (columns_read[name] for name in names)
        ]
        if len(times[0]):
            # Events last 1 ns at least.
            last = max(int(column.max()) for column in times if len(column)) + 1
            yield piece, int(times[0].min()), last


def _read_span(task: SpanTask, database: Database, kind: EventKind, part: Part) -> Span | None:
    """Return the span of the events of a kind in a piece of its table, by reading them."""
    extraction = Extraction(task.info, database, settings=task.settings)
    extraction.condition = kind.make_condition(task.info)
    result = TaskResult(0, task.report, 0)
    with closing(SpillWriter(task.spill_file, task.report, 0)) as writer:
        for rows in _extract_rows(kind, extraction, part):
            result.store(rows, writer, extraction.account, kind.rows.open_ended)
    return find_known_spans([result], extending=False).get(task.report)


def _unite_spans(*spans: Span | None) -> Span | None:
    """Return the span of all that there are, None where there is none."""
    known = [span for span in spans if span is not None]
    return (min(first for first, _ in known), max(last for _, last in known)) if known else None
