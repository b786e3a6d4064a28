"""The result of a task on reports or between them: its runs, the account of the rows that it read,
and the facts that it set aside, which are brought together here for what compares the ranks; and how
a result is packed into a few small files, to be unpacked elsewhere.

Packed runs become columns, compressed, whose times are differences: of a record's begin to the one
before, of its other times to its begin. Ends follow from begins and are left out.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import BinaryIO

import numpy as np
import polars as pl
from msgspec import Struct, field
from msgspec.structs import replace

from nsys2prv._util.columns import OPEN, FrameWriter, StoredFrame, factorize, read_frame
from nsys2prv._util.data_files import panics_unseen
from nsys2prv._util.store_file import check_unpacked, from_json, to_json
from nsys2prv.clock.maps import ClockMap
from nsys2prv.events.call_indexes import Segment
from nsys2prv.events.extraction import OBJECT, TIME, ObjectKey
from nsys2prv.events.kind import Account, CommunicationLines, Counters, Reason, Rows
from nsys2prv.nsight.source import NULL
from nsys2prv.store.runs import (
    DOMAINS,
    END,
    LINE,
    OBJECTS,
    Run,
    Shape,
    SpillWriter,
    find_role,
    pair_runs,
    read_run,
)
from nsys2prv.store.spilling import make_end_records, spill_counters, spill_lines, spill_rows

#: Facts (bytes) that one step of a relation brings into order, unless one report has more: of NCCL,
#: fifty thousand kernels.
BATCH_BYTES = 10_000_000
#: File of a packed result that holds all but runs and frames.
ENTRY_FILE = "result.json"
#: Stands for the file of ends, which follow from begins.
NO_FILE = -1
#: Times that are packed as the difference to another.
RELATIVE_TIMES = {"end": "time", "receive": "time", "until": "receive"}
#: How a zstd frame begins.
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
#: No buffer that is made has so many bytes.
MOST_BUFFER = 1 << 40


class TaskResult(Struct):
    """Result of a task."""

    #: Number of the task.
    task: int
    #: Index of the report that it read.
    report: int
    #: Number of rows that it read.
    rows: int
    #: Runs on disk; a run of ends directly follows that of its begins
    #: (:func:`nsys2prv.store.runs.pair_runs`).
    runs: list[Run] = field(default_factory=list)
    #: Meaning of the local object indices.
    objects: list[ObjectKey] = field(default_factory=list)
    #: Names of the local NVTX domains.
    domains: list[str] = field(default_factory=list)
    #: Name set -> frame of local names: text and, where any name has one, short and the index of
    #: its domain.
    names: dict[str, StoredFrame] = field(default_factory=dict)
    #: Frames for the relations between reports, by name.
    facts: dict[str, StoredFrame] = field(default_factory=dict)
    #: Segments of the index from correlation ids to launching calls.
    launches: list[Segment] = field(default_factory=list)
    #: Frames of NCCL calls for later tasks.
    nccl_calls: list[StoredFrame] = field(default_factory=list)
    #: Notes for the summary.
    notes: list[str] = field(default_factory=list)
    #: Number of records by layout.
    events: Counter[str] = field(default_factory=Counter)
    #: Account of each kind of event or relation.
    accounts: dict[str, Account] = field(default_factory=dict)
    #: Rows by table, for tables that kinds read in parts by conditions.
    tables: Counter[str] = field(default_factory=Counter)
    #: Rows of these tables that kinds have read.
    of_table: Counter[str] = field(default_factory=Counter)
    #: Communication lines by kind, before any is left out.
    lines: Counter[str] = field(default_factory=Counter)
    #: Lines that are not stored, by (kind of lines, reason).
    left_out: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, kind: str, account: Account) -> None:
        """Add to the account of a kind of event."""
        self.accounts[kind] = self.accounts.get(kind, Account()) + account

    def add_found(self, kind: str, account: Account) -> None:
        """Add to the account what no row by itself is a record of."""
        account.synthesized[Reason.FROM_SEVERAL_ROWS] = account.records + account.dropped.total()
        self.add(kind, account)

    def store(
        self, rows: Rows | Counters, writer: SpillWriter, account: Account, open_ended: bool = False
    ) -> None:
        """Store records or samples, and the lines to them, and count them. open_ended: as for
        :func:`nsys2prv.store.spilling.spill_rows`.
        """
        if isinstance(rows, Counters):
            runs = list(spill_counters(rows, writer, account))
        else:
            runs = list(spill_rows(rows, open_ended, writer, account))
            if rows.lines is not None:
                self._count_lines(rows.lines, runs)
        self.runs += runs
        stored = sum(run.count for run in runs if run.shape.stream != LINE)
        self.events[rows.layout] += stored
        account.records += stored

    def store_lines(self, lines: CommunicationLines, writer: SpillWriter) -> None:
        """Store lines by themselves, and count them."""
        runs = list(spill_lines(lines, writer))
        self.runs += runs
        self._count_lines(lines, runs)

    def _count_lines(self, lines: CommunicationLines, runs: list[Run]) -> None:
        """Count the lines that were to be stored, and those that were not."""
        stored = sum(run.rows for run in runs if run.shape.stream == LINE)
        self.lines[lines.kind] += len(lines.send)
        if stored < len(lines.send):
            self.left_out[lines.kind, Reason.LINE_WITHOUT_TIME] += len(lines.send) - stored


class FactFile(Struct, frozen=True):
    """Facts of one reading task."""

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
    #: Number of the reports whose times can be compared with this one's.
    clock_group: int = 0


class FactBook(Struct, frozen=True):
    """Index of all facts of a job."""

    #: Results of reading.
    results: Sequence[TaskResult]
    #: Clock map of each report.
    clocks: Sequence[ClockMap]
    #: Index of the host of each report.
    hosts: Sequence[int]
    #: Reading task -> thread index of each of its local objects.
    threads: Mapping[int, np.ndarray]
    #: (report, globalPid) -> 0-based task of the trace.
    tasks: Mapping[tuple[int, int], int]
    #: Clock group of each report: times of reports of one group can be compared. None: of one group.
    clock_groups: Sequence[int] = ()

    def list_files(self, names: Sequence[str]) -> dict[str, tuple[FactFile, ...]]:
        """Return the files of these facts, in the order of their tasks."""
        ordered = sorted(self.results, key=lambda result: result.task)
        return {
            name: tuple(
                FactFile(
                    result.facts[name],
                    result.report,
                    self.clocks[result.report],
                    self.hosts[result.report],
                    self.threads[result.task],
                    self.clock_groups[result.report] if self.clock_groups else 0,
                )
                for result in ordered
                if name in result.facts
            )
            for name in names
        }


def batch_by_report(files: Sequence[FactFile]) -> list[tuple[FactFile, ...]]:
    """Return the files in batches for a step each, all of a report in one."""
    batches: list[list[FactFile]] = []
    room, report = 0, -1
    for file in sorted(files, key=lambda file: file.report):
        if room <= 0 and file.report != report:
            batches.append([])
            room = BATCH_BYTES
        batches[-1].append(file)
        room -= file.frame.size
        report = file.report
    return [tuple(batch) for batch in batches]


def read_fact(
    files: Sequence[FactFile],
    tasks: Mapping[tuple[int, int], int],
    columns: Sequence[str] | None = None,
) -> pl.DataFrame:
    """Return the facts of one name, from all its files, or some columns of them."""
    if not files:
        return pl.DataFrame()
    read = [(file, read_frame(file.frame, columns)) for file in files]
    alike = groupby(read, key=lambda item: list(item[1].schema.items()))
    return pl.concat([_translate_facts(list(group), tasks) for _, group in alike], how="diagonal")


def _translate_facts(
    frames: Sequence[tuple[FactFile, pl.DataFrame]], tasks: Mapping[tuple[int, int], int]
) -> pl.DataFrame:
    """Return the facts of tasks whose frames have the same columns."""
    files = [file for file, _ in frames]
    heights = np.array([frame.height for _, frame in frames])
    bounds = np.cumsum(heights)[:-1]
    frame = pl.concat([frame for _, frame in frames])

    def by_file(name: str, translate: Callable[[FactFile, np.ndarray], np.ndarray]) -> np.ndarray:
        parts = np.split(frame[name].to_numpy(), bounds)
        return np.concatenate(list(map(translate, files, parts)))

    def find_tasks(file: FactFile, processes: np.ndarray) -> np.ndarray:
        distinct, codes = factorize(processes)
        found = [tasks.get((file.report, process), -1) for process in distinct.tolist()]
        return np.array(found, np.int64)[codes]

    columns = {
        name: np.repeat(np.array([getattr(file, name) for file in files], np.int64), heights)
        for name in ("report", "host", "clock_group")
    }
    for name in frame.columns:
        if name.startswith(TIME):
            columns[name] = by_file(name, _to_trace_times)
        elif name.startswith(OBJECT):
            columns[name] = by_file(name, lambda file, objects: file.threads[objects])
    if "process" in frame.columns:
        columns["task"] = by_file("process", find_tasks)
    return frame.with_columns(pl.Series(name, values) for name, values in columns.items())


def _to_trace_times(file: FactFile, times: np.ndarray) -> np.ndarray:
    is_time = (times != NULL) & (times != OPEN)
    return np.where(is_time, file.clock.to_global(np.where(is_time, times, 0)), times)


class PackedRun(Struct, frozen=True):
    """Packed form of a :class:`nsys2prv.store.runs.Run`."""

    #: Format of the records.
    shape: Shape
    #: Number of the file with its rows; NO_FILE for ends.
    file: int
    #: Index of its first row in the file.
    first: int
    #: Number of records.
    rows: int
    #: Greatest time of the records that is not OPEN.
    greatest_time: int
    #: Object of all records, -1 for several.
    object: int
    #: Number of sampled numbers, in a run of samples.
    values: int


class PackedResult(Struct, frozen=True):
    """A result without its files."""

    #: The result.
    result: TaskResult
    #: The runs, in the order of the result's.
    runs: list[PackedRun]
    #: Name sets of which there are files.
    names: list[str]
    #: Names of the facts.
    facts: list[str]


def pack_result(result: TaskResult, folder: Path) -> None:
    """Write a result to files in a new folder."""
    folder.mkdir()
    # A file for each dtype.
    frames: dict[np.dtype, list[pl.DataFrame]] = {}
    filled: Counter[np.dtype] = Counter()
    runs = []
    for run in result.runs:
        number, first, dtype = NO_FILE, 0, run.shape.dtype
        if run.shape.stream != END:
            frames.setdefault(dtype, []).append(_to_columns(run))
            number, first = list(frames).index(dtype), filled[dtype]
            filled[dtype] += run.rows
        runs.append(
            PackedRun(run.shape, number, first, run.rows, run.greatest_time, run.object, run.values)
        )
    for number, of_dtype in enumerate(frames.values()):
        _write_frame(pl.concat(of_dtype), folder / f"runs-{number}.arrow")
    for kind, files in (("names", result.names), ("facts", result.facts)):
        for number, frame in enumerate(files.values()):
            _write_frame(read_frame(frame), folder / f"{kind}-{number}.arrow")
    bare = replace(result, runs=[], names={}, facts={}, launches=[], nccl_calls=[])
    entry = PackedResult(bare, runs, list(result.names), list(result.facts))
    (folder / ENTRY_FILE).write_text(json.dumps(to_json(entry, PackedResult)), encoding="ascii")


def unpack_result(
    opened: Callable[[str], BinaryIO], spill: Path, number: int, report: int
) -> TaskResult:
    """Return the result whose files `opened` gives, as task `number` of this report; its own files
    are in the folder `spill`.

    Raises an exception of its own choice for files that :func:`pack_result` did not write.
    """
    with opened(ENTRY_FILE) as file:
        entry = from_json(json.load(file), PackedResult)
    result = replace(entry.result, task=number, report=report)
    with FrameWriter(spill / f"frames-{number}.arrows") as stored:
        limits = {OBJECTS: len(result.objects), DOMAINS: len(result.domains)}
        for index, name in enumerate(entry.names):
            frame = _read_frame(opened, f"names-{index}.arrow")
            result.names[name], limits[name] = stored.append(frame), frame.height
        for index, name in enumerate(entry.facts):
            result.facts[name] = stored.append(_read_frame(opened, f"facts-{index}.arrow"))
    frames: dict[int, pl.DataFrame] = {}
    with closing(SpillWriter(spill / f"runs-{number}.bin", report, number)) as writer:
        for run, ends in pair_runs(entry.runs):
            if run.file not in frames:
                frames[run.file] = _read_frame(opened, f"runs-{run.file}.arrow")
            records = _to_records(run, frames[run.file].slice(run.first, run.rows))
            _check_records(run.shape, records, limits)
            result.runs.append(_append_records(writer, run, records))
            if ends is not None:
                end_records = make_end_records(records, records["end"], ends.shape)
                result.runs.append(_append_records(writer, ends, end_records))
    return result


def _append_records(writer: SpillWriter, packed: PackedRun, records: np.ndarray) -> Run:
    if len(records) != packed.rows:
        raise ValueError("rows are missing")
    return writer.append(packed.shape, records, packed.greatest_time, packed.object, packed.values)


def _to_columns(run: Run) -> pl.DataFrame:
    """Return the records of a run in columns."""
    records = read_run(run)
    columns = {"time": np.diff(records["time"], prepend=0)}
    for name in records.dtype.names[1:]:
        if name == "values":
            columns |= {f"value {index}": column for index, column in enumerate(records[name].T)}
        else:
            columns[name] = (
                records[name] - records[RELATIVE_TIMES[name]]
                if name in RELATIVE_TIMES
                else records[name]
            )
    return pl.DataFrame({name: np.ascontiguousarray(column) for name, column in columns.items()})


def _to_records(run: PackedRun, columns: pl.DataFrame) -> np.ndarray:
    """Return the records of a run from their columns."""
    records = np.empty(columns.height, run.shape.dtype)
    records["time"] = np.cumsum(columns["time"].to_numpy())
    for name in records.dtype.names[1:]:
        if name == "values":
            for index in range(len(run.shape.metrics)):
                records[name][:, index] = columns[f"value {index}"].to_numpy()
        else:
            # In the records' order: a time may be relative to one that is.
            column = columns[name].to_numpy()
            records[name] = (
                column + records[RELATIVE_TIMES[name]] if name in RELATIVE_TIMES else column
            )
    return records


def _check_records(shape: Shape, records: np.ndarray, limits: Mapping[str, int]) -> None:
    """Raise ValueError where records do not ascend by time, or refer to what is not there."""
    if (np.diff(records["time"]) < 0).any():
        raise ValueError("times are out of order")
    for name in records.dtype.names:
        limit = limits.get(find_role(shape.stream, shape.name, name))
        if limit is not None and len(records) and int(records[name].max()) >= limit:
            raise ValueError(f"{name} is not there")


def find_unpacked_size(content: bytes) -> int:
    """Return the bytes that the zstd buffers of an Arrow file will take, as far as they tell.

    Each buffer begins with its unpacked size (int64, at a multiple of 8 bytes), then a zstd frame,
    whose head mostly has the size too.
    """
    total = 0
    for match in re.finditer(re.escape(ZSTD_MAGIC), content):
        at = match.start()
        size = int.from_bytes(content[max(at - 8, 0) : at], "little")
        head = content[at + 4 : at + 5]
        if at % 8 == 0 and size < MOST_BUFFER and head and not head[0] & 0b11000:
            total += size
    return total


def _write_frame(frame: pl.DataFrame, path: Path) -> None:
    with path.open("wb") as file:
        frame.write_ipc(file, compression="zstd")


def _read_frame(opened: Callable[[str], BinaryIO], name: str) -> pl.DataFrame:
    with opened(name) as file:
        content = file.read()
    check_unpacked(find_unpacked_size(content), len(content), name)
    try:
        with panics_unseen():
            return pl.read_ipc(content)
    except OSError as error:
        # Of the content, for all of it was read.
        raise ValueError(str(error)) from None
