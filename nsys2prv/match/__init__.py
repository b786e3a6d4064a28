"""Relate events of several reports: messages, collectives, memory in use.

Input: *facts*, small frames that event kinds store while reading
(:meth:`nsys2prv.events.extraction.Extraction.add_fact`). Output: further records and lines in trace
time, and clock observations. Start here, then read :mod:`gpu_memory`, the shortest relation.

The event catalogue declares all relations and names their functions. :func:`run_relations` runs
them when every clock, object and name is known. The rows of a job are stored on disk as
:class:`Block`, by group and report, so no task needs all rows of a job at once. `gathering` makes
clock observations from collectives; `meetings` lists the matched calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import polars as pl
from msgspec import Struct, convert
from msgspec.structs import replace

from nsys2prv._util.budget import BUCKET_BYTES, FACT_BYTES, LINE_ROWS
from nsys2prv._util.columns import OPEN, factorize, find_edges, join_pieces, split_rows
from nsys2prv._util.files import load_shipped_file
from nsys2prv._util.stored_columns import StoredFrame, read_columns
from nsys2prv.clock import ALIGNED_ERROR
from nsys2prv.clock.maps import ClockMap
from nsys2prv.events.catalogue import load_catalogue
from nsys2prv.events.extraction import OBJECT, TIME
from nsys2prv.events.kind import Account, CommunicationLines, Counters, Rows, find_function
from nsys2prv.export.source import NULL
from nsys2prv.table.runs import TRACE, Span, SpillWriter
from nsys2prv.table.task_result import TaskResult

if TYPE_CHECKING:
    from nsys2prv.match.calls import CallPiece

#: Models of parallel programs whose rules relations follow; names for --align.
MPI, NCCL = "mpi", "nccl"
#: The model of a relation that follows no parallel program's rules.
NO_MODEL = ""
#: Rules by which calls are found to belong together, in the order in which they are tried: values of the
#: value set `matching_rule` of the catalogue, which has their words. Three are of MPI calls, one of
#: waits for other processes.
BY_NUMBER, BY_LAUNCH, BY_ENDS, BY_STREAMS, BY_CALLS, BY_SET_UP, BY_WAITS, BY_EPOCHS = range(1, 9)
MPI_RULES = (BY_CALLS, BY_SET_UP, BY_EPOCHS)
#: A task has fewer devices than this: task * DEVICES + device numbers all of a job.
DEVICES = 1 << 12

T = TypeVar("T")
AnyBlock = TypeVar("AnyBlock", bound="Block")
#: Runs a pure function over files on the workers, for each of its arguments, and yields the results
#: in order.
RunTasks = Callable[[Callable, Sequence], Iterator]


class Observed(Struct, frozen=True):
    """Events from which a relation lets host clocks be compared. Times are on the hosts' own
    clocks.
    """

    #: Calls of collectives, in pieces of whole groups that ascend by group.
    calls: Sequence[CallPiece] = ()
    #: Messages between hosts, blocks of clock.MESSAGES.
    messages: Sequence[Block] = ()


#: Names of columns by their owner, as explained in ``columns.yaml``.
COLUMNS = {
    name: tuple(names.split())
    for name, names in load_shipped_file(__package__, "columns.yaml").items()
}
#: Number of ordinals of each part that are examined to decide where to cut.
SAMPLES = 64
#: The fact column of communicators, and the number mixed with theirs in each further capture.
COMMUNICATOR, CAPTURE_BITS = "communicator", np.int64(0x1E3779B97F4A7C15)


class FactFile(Struct, frozen=True):
    """A file with the facts (small tables about events) that one reading task kept, and what is
    needed to translate them: the report's clock, host and threads.
    """

    #: The facts, on disk; times are local ns.
    frame: StoredFrame
    #: Index of the report.
    report: int
    #: Clock map of the report.
    clock: ClockMap
    #: Index of the report's host.
    host: int
    #: Thread index of each local object of the task, int64.
    threads: np.ndarray
    #: Number of the group of reports with comparable times.
    clock_group: int = 0
    #: Number of the reports that were recorded at the same time.
    capture: int = 0


class RelationContext(Struct, frozen=True):
    """Everything that a relation needs to run: facts by name, tasks of the trace, workers, and a
    folder.
    """

    #: Facts by name, in the order of their tasks.
    files: Mapping[str, tuple[FactFile, ...]]
    #: (report, globalPid) -> 0-based task of the trace.
    tasks: Mapping[tuple[int, int], int]
    #: Folder for files between the tasks and for runs.
    folder: Path
    #: First free task number.
    first_task: int
    #: Runs tasks on the workers.
    run_tasks: RunTasks
    #: Largest error (ns) between times of one clock group.
    clock_error: int = ALIGNED_ERROR
    #: If only a part of the job is converted: its first and last time. Records outside it are not
    #: needed.
    span: Span | None = None

    def select_facts(self, relation: Relation, first_task: int) -> RelationContext | None:
        """Return the context with only the facts that a relation reads, or None if there are no
        facts of its first name. first_task: number for its first result.
        """
        files = {name: self.files.get(name, ()) for name in relation.facts}
        own = replace(self, files=files, first_task=first_task)
        return own if files[relation.facts[0]] else None

    def run_all(self, tasks: Sequence[Callable[[], T]]) -> list[T]:
        """Run the tasks on the workers and return their results in order. A task is a `partial` of
        a function that depends only on files.
        """
        return list(self.run_tasks(run_task, tasks))

    def run_each(
        self, name: str, function: Callable[..., T], *columns: Iterable, more: tuple = ()
    ) -> list[T]:
        """Run a function on the workers, once for each element of the columns (as `map` does), and
        return the results in order.

        After the elements, the function gets a unique path for files that it writes, then `more`.
        name: prefix of these files.
        """
        tasks = [
            partial(function, *own, self.folder / f"{name}-{self.first_task}-{place}", *more)
            for place, own in enumerate(zip(*columns, strict=True))
        ]
        return self.run_all(tasks)

    def divide_facts(self, first: str, *names: str) -> list[list]:
        """Return columns of arguments for :meth:`run_each`; each row is for a task that reads the
        facts of some reports. The columns are the fact files for each of these names, then the
        tasks of the trace.
        """
        pieces = divide_by_report(self.files[first])
        reports = [{file.report for file in piece} for piece in pieces]
        others = [
            [tuple(file for file in self.files[name] if file.report in some) for some in reports]
            for name in names
        ]
        return [pieces, *others, [self.tasks] * len(pieces)]


def run_task(task: Callable[[], T]) -> T:
    """Call a task, and return its result."""
    return task()


class Relation(Struct, frozen=True, forbid_unknown_fields=True):
    """Declaration of a relation: the facts it reads, and two functions (`module.function` of this
    package, or "").

    Both functions get the facts as files and run tasks on them. They decide how many facts a task
    reads at a time.

    A frame of facts has the columns from its event kind, with trace times and thread indices
    instead of local times and objects. Four columns are added: `report` (index in rank order),
    `host` (its machine), `clock_group` (times within a group can be compared), and `task` (trace
    task, from 0, of the process in column `process`).
    """

    #: Name, as --args and --sample take it.
    name: str
    #: Title.
    title: str
    #: Names of the facts that it reads. It is omitted if the first one was not found.
    facts: tuple[str, ...]
    #: Its model of parallel programs, or NO_MODEL.
    model: str = NO_MODEL
    #: Record layouts that it yields.
    layouts: tuple[str, ...] = ()
    #: Makes and stores records from the facts: `RelationContext` to `TaskResult` objects.
    relate: str = ""
    #: Finds observations of clocks in the facts: `RelationContext` to `Observed`.
    observe: str = ""

    def call(self, function: str, *arguments: Any) -> Any:
        """Call one of the relation's functions by its name (`module.function`), and return its
        result.
        """
        return find_function(function, __name__)(*arguments)


def write_result(
    name: str,
    number: int,
    folder: Path,
    rows: Iterable[Rows | Counters] = (),
    lines: Iterable[CommunicationLines] = (),
) -> TaskResult:
    """Store records and communication lines found by a relation, and return them as the result of
    the task with this number. name: of the relation. folder: for the file.

    Times are trace times (ns), and objects are thread indices of the trace. Fields contain plain
    numbers or values of value sets.
    """
    result = TaskResult(number, TRACE, 0)
    account = Account()
    with SpillWriter(folder / f"runs-{number}.bin", TRACE, number) as writer:
        for piece in rows:
            result.store(piece, writer, account)
        for piece in lines:
            result.store_lines(piece, writer)
    result.add_found(name, account)
    return result


@cache
def all_relations() -> tuple[Relation, ...]:
    """Return all relations, in alphabetical order."""
    declared = sorted(load_catalogue().relations.items())
    return tuple(convert({"name": name, **spec}, Relation) for name, spec in declared)


def run_relations(context: RelationContext) -> list[TaskResult]:
    """Run all relations in order, and return the results of their tasks."""
    results: list[TaskResult] = []
    first_task = context.first_task
    for relation in all_relations():
        if relation.relate and (own := context.select_facts(relation, first_task)):
            relation_results = relation.call(relation.relate, own)
            first_task = max((result.task + 1 for result in relation_results), default=first_task)
            results += relation_results
    return results


def divide_by_report(files: Sequence[FactFile]) -> list[tuple[FactFile, ...]]:
    """Group fact files into tuples, one for each task. All files of a report are in the same tuple."""
    pieces: list[list[FactFile]] = []
    room, report = 0, -1
    for file in sorted(files, key=lambda file: file.report):
        if room <= 0 and file.report != report:
            pieces.append([])
            room = FACT_BYTES
        pieces[-1].append(file)
        room -= file.frame.size
        report = file.report
    return [tuple(piece) for piece in pieces]


def read_fact(
    files: Sequence[FactFile],
    tasks: Mapping[tuple[int, int], int],
    columns: Sequence[str] | None = None,
) -> pl.DataFrame:
    """Read the facts of one name from all their files into one frame; an empty frame without files.
    tasks: (report, process) -> task of the trace. columns: read only these; None for all.
    """
    if not files:
        return pl.DataFrame()
    read = [(file, read_columns(file.frame, columns)) for file in files]
    alike = groupby(read, key=lambda item: [(name, one.dtype) for name, one in item[1].items()])
    return pl.concat([_translate_facts(list(group), tasks) for _, group in alike], how="diagonal")


def _translate_facts(
    read: Sequence[tuple[FactFile, Mapping[str, Any]]], tasks: Mapping[tuple[int, int], int]
) -> pl.DataFrame:
    """Return the facts of several tasks, which have the same columns, as one frame."""
    files = [file for file, _ in read]
    columns = {name: join_pieces([columns[name] for _, columns in read]) for name in read[0][1]}
    heights = [len(next(iter(columns.values()))) for _, columns in read]

    def by_file(name: str, translate: Callable[[FactFile, np.ndarray], np.ndarray]) -> np.ndarray:
        parts = split_rows(np.asarray(columns[name]), heights)
        return np.concatenate(list(map(translate, files, parts)))

    def find_tasks(file: FactFile, processes: np.ndarray) -> np.ndarray:
        distinct, codes = factorize(processes)
        found = [tasks.get((file.report, process), -1) for process in distinct.tolist()]
        return np.array(found, np.int64)[codes]

    for name in columns:
        if name.startswith(TIME):
            columns[name] = by_file(name, _to_trace_times)
        elif name.startswith(OBJECT):
            columns[name] = by_file(name, lambda file, objects: file.threads[objects])
    for name in ("report", "host", "clock_group", "capture"):
        columns[name] = np.repeat(np.array([getattr(file, name) for file in files]), heights)
    if COMMUNICATOR in columns and columns["capture"].any():
        # Numbered separately for each capture, because data of different times must not be compared. Numbers
        # of the first capture are unchanged; 0 is unknown.
        known = np.asarray(columns[COMMUNICATOR])
        apart = known ^ (columns["capture"].astype(np.int64) * CAPTURE_BITS)
        columns[COMMUNICATOR] = np.where(known == 0, 0, apart)
    if "process" in columns:
        columns["task"] = by_file("process", find_tasks)
    return pl.DataFrame(columns)


def _to_trace_times(file: FactFile, times: np.ndarray) -> np.ndarray:
    is_time = (times != NULL) & (times != OPEN)
    return np.where(is_time, file.clock.to_global(np.where(is_time, times, 0)), times)


# ---- rows in blocks on disk ----------------------------------------------------------------------


class Block(Struct, frozen=True):
    """Rows of one group in a file: `rows` rows of int64 numbers, after `first` other rows. If parts
    of a block are read, its rows are sorted by the first column, the ordinal.
    """

    #: File with the rows.
    path: Path
    #: Number of the group.
    group: int
    #: Rows before it in the file.
    first: int
    #: Number of rows.
    rows: int
    #: Names of the columns.
    columns: tuple[str, ...]

    def read(self, low: int | None = None, high: int | None = None) -> pl.DataFrame:
        """Return the rows with low <= ordinal < high (None: no limit) as a frame."""
        return read_blocks([self], low, high)

    def read_rows(self, low: int | None = None, high: int | None = None) -> np.ndarray:
        """Return the rows with low <= ordinal < high (None: no limit) as an array."""
        first, last = 0, self.rows
        if low is not None:
            first = int(np.searchsorted(self._map_rows()[:, 0], low))
        if high is not None:
            last = int(np.searchsorted(self._map_rows()[:, 0], high))
        width = len(self.columns)
        count, offset = (last - first) * width, (self.first + first) * width * 8
        return np.fromfile(self.path, np.int64, count, offset=offset).reshape(-1, width)

    def sample_ordinals(self, count: int) -> np.ndarray:
        """Return about `count` ordinals of the block (values of its first column), evenly spaced by
        row.
        """
        return self._map_rows()[np.linspace(0, self.rows - 1, count).round().astype(np.int64), 0]

    def _map_rows(self) -> np.ndarray:
        width = len(self.columns)
        return np.memmap(self.path, np.int64, "r", self.first * width * 8, (self.rows, width))


def write_blocks(path: Path, groups: np.ndarray, rows: pl.DataFrame) -> tuple[Block, ...]:
    """Write rows of integers, sorted by group, to a file as one block per group. Return the blocks.
    groups: number of the group of each row.
    """
    if not len(rows):
        return ()
    # Written by Python, because numpy's errors do not mention a full disk.
    path.write_bytes(np.ascontiguousarray(rows.cast(pl.Int64).to_numpy()).data)
    edges = find_edges(groups).tolist()
    return tuple(
        Block(path, int(groups[first]), first, last - first, tuple(rows.columns))
        for first, last in pairwise(edges)
    )


def write_block(path: Path, rows: pl.DataFrame) -> tuple[Block, ...]:
    """Write rows of integers to a file as one block without a group."""
    return write_blocks(path, np.zeros(len(rows), np.int64), rows)


def write_buckets(path: Path, bucket: np.ndarray, rows: pl.DataFrame) -> tuple[Block, ...]:
    """Write rows of integers to a file as one block per bucket. Return the blocks. bucket: number
    of the bucket of each row.
    """
    order = np.argsort(bucket, kind="stable")
    return write_blocks(path, bucket[order], rows[order])


def read_blocks(blocks: Sequence[Block], *span: int | None) -> pl.DataFrame:
    """Return the rows of all blocks, one block after another, as a frame. low, high: only rows with
    low <= ordinal < high.
    """
    pieces = blocks if span else _join_adjacent(blocks)
    rows = join_pieces([block.read_rows(*span) for block in pieces])
    return pl.DataFrame(rows, blocks[0].columns, orient="row")


def _join_adjacent(blocks: Sequence[Block]) -> list[Block]:
    """Return the blocks, with those joined that follow one another in a file, to be read at once."""
    joined = [blocks[0]]
    for block in blocks[1:]:
        last = joined[-1]
        if block.path == last.path and block.first == last.first + last.rows:
            joined[-1] = replace(last, rows=last.rows + block.rows)
        else:
            joined.append(block)
    return joined


def hash_rows(*columns: np.ndarray) -> np.ndarray:
    """Return a hash (uint64) for each row of integer columns; 0 if all values of the row are 0."""
    mixed = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        mixed = (mixed ^ column.astype(np.uint64)) * np.uint64(0xD6E8FEB86659FD93)
        mixed ^= mixed >> np.uint64(32)
    return mixed


def hash_signatures(*columns: np.ndarray) -> np.ndarray:
    """Return a hash (31 bits) for each row of the values that all members of a collective share; 0
    (unknown) if all values are 0.
    """
    mixed = hash_rows(*columns)
    return np.where(mixed > 0, mixed >> np.uint64(33) | np.uint64(1), 0).astype(np.int64)


def count_buckets(files: Sequence[FactFile]) -> int:
    """Return the number of buckets into which the rows of these facts should be sorted, so that a
    task can read a whole bucket.
    """
    return max(1, sum(file.frame.size for file in files) // BUCKET_BYTES)


def assign_buckets(count: int, *columns: np.ndarray) -> np.ndarray:
    """Return the bucket of each row, below `count`. Rows that are equal in these columns are in the
    same bucket.
    """
    return (hash_rows(*columns) % np.uint64(count)).astype(np.int64)


def group_blocks(blocks: Iterable[AnyBlock]) -> list[tuple[AnyBlock, ...]]:
    """Return one tuple of blocks for each group, sorted by the number of the group."""
    groups: dict[int, list[AnyBlock]] = {}
    for block in blocks:
        groups.setdefault(block.group, []).append(block)
    return [tuple(groups[group]) for group in sorted(groups)]


def divide_ordinals(blocks: Sequence[Block], most: int) -> list[tuple[int | None, int | None]]:
    """Divide blocks into parts of about `most` rows, taken together, by their ordinals (first
    column). Return the span (low, high) of each part; None for no limit.
    """
    rows = sum(block.rows for block in blocks)
    count = -(-rows // most)
    if count <= 1:
        return [(None, None)]
    # Each sample represents equally many rows of its block.
    samples = [block.sample_ordinals(-(-block.rows * count * SAMPLES // rows)) for block in blocks]
    sampled = np.sort(np.concatenate(samples))
    cuts = np.unique(sampled[np.arange(1, count) * len(sampled) // count]).tolist()
    return list(zip([None, *cuts], [*cuts, None], strict=True))


def store_by_time(
    context: RelationContext, blocks: Sequence[Block], most: int, store: Callable[..., TaskResult]
) -> list[TaskResult]:
    """Run `store` for each time span (low, high) with about `most` rows of these blocks, and return
    the results. The ordinal (first column) of the blocks is a time.

    `store` also gets the folder and the number of its task. Without rows, return one empty result.
    """
    tasks = [
        partial(store, context.folder, number, *span)
        for number, span in enumerate(divide_ordinals(blocks, most), context.first_task)
        if blocks
    ]
    return context.run_all(tasks) or [TaskResult(context.first_task, TRACE, 0)]


#: The first columns of a pair: times (ns), threads of the trace, bytes, the line's tag (for kinds with tags;
#: otherwise anything). Further columns order lines of equal time.
PAIR_COLUMNS = ("send", "sender", "receive", "receiver", "size", "tag")
#: Further columns of messages of MPI: when the receive was posted, and when the call ended that completed
#: the send (ns).
SIDE_COLUMNS = ("posted", "released")


def store_lines(
    context: RelationContext, name: str, kind: str, tagged: bool, pairs: Sequence[Block]
) -> list[TaskResult]:
    """Store communication lines for all pairs of events, about LINE_ROWS per task, and return the
    results. Without lines, return one empty result. name: of the relation. kind: of lines. tagged:
    lines have a tag.
    """
    store = partial(_store_span, name, kind, tagged, tuple(pairs))
    return store_by_time(context, pairs, LINE_ROWS, store)


def _store_span(
    name: str,
    kind: str,
    tagged: bool,
    pairs: Sequence[Block],
    folder: Path,
    number: int,
    *span: int | None,
) -> TaskResult:
    """Store the lines that begin within a time span (ns; None: no limit). pairs: rows of
    PAIR_COLUMNS, sorted by the time of the send.
    """
    rows = read_blocks(pairs, *span)
    rows = rows.sort(rows.columns[len(PAIR_COLUMNS) :], maintain_order=True)
    send, sender, receive, receiver, size, tag = (rows[name].to_numpy() for name in PAIR_COLUMNS)
    size, tags = np.maximum(size, 0), tag if tagged else None
    sides = [rows[name].to_numpy() for name in SIDE_COLUMNS if name in rows.columns]
    lines = CommunicationLines(kind, send, sender, receive, receiver, receive, size, tags, *sides)
    return write_result(name, number, folder, lines=[lines])


def write_messages(path: Path, pairs: pl.DataFrame, noise_kind: int) -> tuple[Block, ...]:
    """Write the messages between different hosts as a block of clock.MESSAGES. pairs: `host`,
    `time_begin`, `host_there`, `completed`. noise_kind: their kind (NoiseKind).
    """
    messages = pairs.filter(pl.col("host") != pl.col("host_there")).select(
        noise_kind=pl.lit(noise_kind, pl.Int64),
        before="host",
        begin="time_begin",
        after="host_there",
        end="completed",
    )
    return write_block(path, messages)
