"""Represent the events of one unit of analysis (threads that share a report or a GPU), and the
activity of the hosts that launch work on a device.

Values that several analyses need are computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial, reduce
from operator import or_
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.columns import number_rows, sum_by
from nsys2prv._util.intervals import (
    EMPTY,
    SIDES,
    Spans,
    merge_spans,
    order_by_thread,
    order_ranges,
    unite,
)
from nsys2prv.events.catalogue import load_catalogue, map_labels
from nsys2prv.events.mpi import MPI_LAYOUTS
from nsys2prv.events.name_rules import NamePattern
from nsys2prv.export.info import GpuLimits
from nsys2prv.table.event_reader import HOST, RANGES, EventReader, Samples, make_frame

#: Results of analyses for a device group: named frames; and those of all groups by name.
Columns = Mapping[str, np.ndarray | list[Any]]
Part = pl.DataFrame | Columns
Collected = Iterator[tuple[str, Part]]
Frames = Mapping[str, pl.DataFrame]
T = TypeVar("T")
#: Layouts of calls of UCX, and of the operating system.
UCX, OS = ("ucx_submissions", "ucx_calls"), ("osrt", "pthread")
#: Activities of a device; other communication is that of kernels whose class is Communication.
COMPUTE, NCCL, GRAPH, MEMORY, OTHER_COMMUNICATION = range(5)
#: Kernels that move data between ranks, or wait for it.
COMMUNICATING = (NCCL, OTHER_COMMUNICATION)
#: Names of columns -> activities of devices.
BUSY = {
    "compute": (COMPUTE, GRAPH),
    "nccl": COMMUNICATING,
    "memory": (MEMORY,),
    "active": (COMPUTE, GRAPH, MEMORY, *COMMUNICATING),
}
#: All regions, all host threads.
ALL = "all"
#: The useful time that BSC's tools mean: of all kernels but NCCL's.
BSC = "bsc"
#: Layouts of device work -> its activity, and the fields for columns of `DeviceGroup.work`.
_OF_KERNELS = {"name": "kernel", "class": "class", "tensor": "tensor_cores"}
WORK = {
    "cuda_kernel": (COMPUTE, _OF_KERNELS),
    "nccl_kernel": (NCCL, {**_OF_KERNELS, "operation": "operation"}),
    "cuda_graph": (GRAPH, {"name": "execution"}),
    "memory_operation": (MEMORY, {"name": "operation"}),
    "memory_decompression": (MEMORY, {"name": "what"}),
}
#: Columns of `DeviceGroup.work`; the last ones are fields, 0 in layouts without them.
WORK_COLUMNS = {
    "begin": np.int64, "end": np.int64, "thread": np.int32, "device": np.int32, "what": np.int8,
    "name": np.int32, "class": np.int8, "tensor": np.int8, "operation": np.int8,
}  # fmt: skip
_CLASSES, _TENSOR_CORES = map_labels("kernel_class"), map_labels("tensor_cores")
#: Values of the catalogue: classes of kernels, and whether they use Tensor Cores.
GEMM, CONVOLUTION = _CLASSES["gemm"], _CLASSES["convolution"]
ATTENTION, COMMUNICATION = _CLASSES["attention"], _CLASSES["communication"]
TENSOR_YES, TENSOR_NO = _TENSOR_CORES["yes"], _TENSOR_CORES["no"]
#: The iterations of a task: unit, task, thread, number, begin and end on the host, and on its devices: the
#: end of all work launched before, and the end of the work launched in it (ns).
ITERATION_COLUMNS = dict.fromkeys(
    ("unit", "task", "thread", "iteration", "begin", "end", "since", "until"), pl.Int64
)
#: So many rows of one time are looked at one by one.
MOST_TOGETHER = 8
#: Layouts of host activity -> the field that names it.
NAMED_BY = {
    **dict.fromkeys(("cuda_api", *MPI_LAYOUTS, *UCX, *OS), "call"),
    **dict.fromkeys(("nvtx_pushpop", "nccl_call"), "range"),
    "profiler_overhead": "what",
}


class Steady(Struct, frozen=True):
    """The steady state of a job: the time in which it repeats itself."""

    #: Begin of its first iteration (ns of the trace).
    begin: int
    #: End of its last iteration (ns of the trace).
    end: int
    #: Begins of the iterations (ns, ascending).
    iteration_begins: tuple[int, ...]
    #: Description of the iterations: "NVTX ranges step #".
    found_by: str
    #: Number of iterations of the job, and a text on those that do not count.
    found: int = 0
    left_out: str = ""
    #: Whether they are NVTX ranges.
    of_ranges: bool = False

    @property
    def count(self) -> int:
        """Number of iterations."""
        return len(self.iteration_begins)

    @property
    def edges(self) -> np.ndarray:
        """Return the starts of the iterations, and the end of the last one (ns)."""
        return np.append(self.iteration_begins, self.end)

    def describe(self) -> str:
        """Return a text such as `9 of 10 iterations (NVTX ranges step #), excluding the first`."""
        found = max(self.found, self.count)
        return f"{self.count} of {found} iterations ({self.found_by}){self.left_out}"


class AnalysisOptions(Struct, frozen=True):
    """Options and facts that all analyses use."""

    #: `compute` (kernels that do not communicate), `bsc` (kernels other than NCCL's) or `all-kernels`
    #: (as TALP).
    useful: str = "compute"
    #: File of the iterations of the steady state of each task, by unit: ITERATION_COLUMNS.
    iterations: Path | None = None
    #: Number of intervals of maps over time.
    bins: int = 200
    #: Values of CUDA API calls that wait for the device.
    synchronising: tuple[int, ...] = ()
    #: Values of the CUDA API calls of each of `set_up` of findings.yaml.
    set_up_calls: Sequence[tuple[int, ...]] = ((), (), ())
    #: Models that the GPU of each device with work may be; none where not known.
    gpus: Sequence[tuple[int, Collection[str]]] = ()
    #: Limits of each task's GPU; of several the largest.
    limits: Sequence[tuple[int, GpuLimits]] = ()
    #: Values of OS runtime calls that wait for files or the network.
    io: tuple[int, ...] = ()
    #: Values of NVTX ranges that libraries of shared memory make of their calls.
    shmem: tuple[int, ...] = ()
    #: Values of modules that compile code while the program runs.
    compilers: tuple[int, ...] = ()
    #: Values of overhead that is recorded as the profiler's and is not.
    no_profiler: tuple[int, ...] = ()
    #: Values of overhead in which the profiler writes pending data.
    writing_out: tuple[int, ...] = ()
    #: File of the groups of NVTX names by value (nvtx_operations.py).
    groups: Path | None = None
    #: File with the modules in NVTX names (modules.py).
    modules: Path | None = None
    #: The job's steady state (iterations.py), None where it has none.
    steady: Steady | None = None
    #: Whether figures are of the whole job, though it may have a steady state.
    whole: bool = False
    #: Whether tables are made by which runs are compared.
    divided: bool = True
    #: The time that the reports of all processes cover (coverage.py): outside of it nothing counts.
    covered: Spans = EMPTY
    #: Length of the job without times in which only helpers run (ns).
    length: int = 0
    #: A sentence on recordings of processes that end early.
    cut: str = ""
    #: Devices with lost work, whose idle time is unknown.
    lossy_devices: tuple[int, ...] = ()
    #: A sentence on processes with lost work, or "".
    lost_work: str = ""
    #: MPI was to be traced in a report that has none of its calls.
    lacks_mpi: bool = False
    #: MPI calls that Nsight Systems does not record and the program may make.
    unrecorded_mpi: tuple[str, ...] = ()
    #: Regions with figures: the requested names with their patterns, or ALL.
    regions: Sequence[tuple[str, NamePattern]] | str = ()
    #: Which host threads count in efficiencies: `main` or ALL.
    host_threads: str = "main"
    #: Changes that people ask about (replay/causes.py).
    what_ifs: tuple[str, ...] = ()
    #: Names and sizes of the dimensions of the job's parallel groups, as in `tp=2,pp=4`; "" to find them.
    mesh: str = ""

    #: Reports whose NCCL kernels could not be matched with those of the other ranks.
    unmatched: tuple[str, ...] = ()

    def find_groups(self, names: np.ndarray) -> np.ndarray:
        """Return for each NVTX name the number of its group (names that differ only in numbers are
        usually one group), or -1. names: values of names.
        """
        found: np.ndarray = np.load(str(self.groups), mmap_mode="r")[names]
        return found

    def read_iterations(self, of: str, number: int) -> pl.DataFrame:
        """Return the iterations of the steady state of a unit or a task, with ITERATION_COLUMNS.
        of: `unit` or `task`. number: of this unit or task.
        """
        if self.iterations is None:
            return pl.DataFrame(schema=ITERATION_COLUMNS)
        rows = np.load(str(self.iterations), mmap_mode="r")
        own = rows[rows[:, [*ITERATION_COLUMNS].index(of)] == number]
        return pl.DataFrame(own, schema=ITERATION_COLUMNS, orient="row")

    @property
    def span_name(self) -> str:
        """Name of the time that figures of the steady state cover."""
        return "steady state" if self.steady else "whole job"

    def get_steady_span(self, duration: int) -> tuple[int, int]:
        """Return (start, end) in ns of the steady state; of the whole job without one. duration: of
        the job (ns).
        """
        return (self.steady.begin, self.steady.end) if self.steady else (0, duration)

    @property
    def repeats(self) -> float | None:
        """Share of the job that is in the steady state, or None without one."""
        steady = self.steady
        return (steady.end - steady.begin) / max(self.length, 1) if steady else None

    @property
    def covered_steady(self) -> Spans:
        """Times of the steady state (without one: of the job) that the reports cover."""
        if self.steady is None:
            return self.covered
        return self.covered.clip(self.steady.begin, self.steady.end)


#: Defaults for uses that need nothing more.
DEFAULTS = AnalysisOptions()


class DeviceGroup:
    """The events of one unit: threads and devices that an analysis reads at a time. folder: for
    results that are too large to return. caller: the only thread whose CUDA API calls are read,
    None for all.
    """

    def __init__(
        self,
        reader: EventReader,
        number: int,
        options: AnalysisOptions,
        folder: Path,
        caller: int | None = None,
    ) -> None:
        self.reader, self.number, self.options, self.folder = reader, number, options, folder
        self.caller = caller
        self.duration = reader.duration
        self.covered = options.covered
        columns = reader.remember("columns of rows", partial(_list_row_columns, reader))
        self.device_of, self.task_of, self._is_host, self._is_main = columns
        self._computed: dict[object, Any] = {}

    def list_tasks(self, events: pl.DataFrame) -> pl.Series:
        """Return the task of each event, from its column `thread`."""
        return pl.Series("task", self.task_of[events["thread"].to_numpy()], dtype=pl.Int64)

    def has(self, *layouts: str) -> bool:
        """Return True if the job has events of any of these layouts (kinds of records)."""
        return any(layout in self.reader.layouts for layout in layouts)

    def read_begins(
        self, layout: str, fields: Sequence[str] = (), dtype: type[np.signedinteger] = np.int64
    ) -> pl.DataFrame:
        """Return the events of a layout on this unit's threads, sorted by start: `begin`, `end`
        (trace time, ns), `thread`, and the requested fields.

        Names are event values; events without a field have ABSENT. See
        :meth:`EventReader.read_begins`.
        """
        return self.reader.read_begins(layout, fields, self.number, dtype=dtype)

    def read_ordered_ranges(self, layout: str, thread: int | None = None) -> tuple[np.ndarray, ...]:
        """Return the NVTX ranges of a layout in this unit, as :func:`read_ordered_ranges` does."""
        return read_ordered_ranges(self.reader, self.options, layout, self.number, thread)

    @cached_property
    def tasks(self) -> list[int]:
        """Numbers of the tasks (processes) with host threads. In jobs without MPI, tasks are
        excluded whose threads launch no work on those GPUs of their process that are tasks.
        """
        rows = self.reader.rows
        is_own = rows.units == self.number
        tasks = np.unique(self.task_of[self._is_host & is_own])
        if rows.threads["is_gpu"].any() and not self.has(*MPI_LAYOUTS):
            own = rows.threads.filter(pl.Series(is_own))
            gpus = own.filter("is_gpu")
            drivers = {*map(self.find_host, gpus["task"].unique().to_list())}
            others = ~pl.col("process").is_in(gpus["process"].unique().implode())
            drivers |= {*own.filter(others)["task"]}
            tasks = tasks[np.isin(tasks, [*drivers])]
        return tasks.tolist()

    @cached_property
    def devices(self) -> list[int]:
        """Numbers of the devices with work, sorted."""
        return sorted({device for device, *_ in self.work_counts})

    @cached_property
    def known_devices(self) -> list[int]:
        """Numbers of the devices with work, without devices of which some work was not recorded, so
        that idle times are unknown.
        """
        return [one for one in self.devices if one not in self.options.lossy_devices]

    @cached_property
    def work(self) -> pl.DataFrame:
        """All work executed by devices, sorted by start, as a frame: begin, end, thread, device,
        what (kind of work), name (value), class, tensor, operation (of memory, or of an NCCL
        kernel).
        """
        fields = {layout: [*named.values()] for layout, (_, named) in WORK.items()}
        columns = self.reader.read_joined(fields, self.number, WORK_COLUMNS, self._make_work)
        return make_frame(columns)

    def _make_work(self, layout: str, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        what, named = WORK[layout]
        given = {
            "what": np.full(len(columns["begin"]), what),
            "device": self.device_of[columns["thread"]],
        }
        given |= {name: columns[name] for name in (*SIDES, "thread")}
        given |= {name: columns[field] for name, field in named.items()}
        if what == COMPUTE and self.options.useful != BSC:
            given["what"][given["class"] == COMMUNICATION] = OTHER_COMMUNICATION
        return dict.fromkeys(WORK_COLUMNS, np.zeros_like(given["what"])) | given

    def find_device_spans(self, device: int, *what: int) -> Spans:
        """Return the covered times in which a device executes work of any of these kinds. The
        result is cached. kinds: values of the column `what` of :attr:`work`.
        """
        return self.remember((device, what), lambda: self.merge_device_work(device, *what))

    def merge_device_work(self, device: int, *what: int, among: np.ndarray | bool = True) -> Spans:
        """Return the covered times in which a device executes work of any of these kinds, without
        caching. among: mask of the rows of `work` that count.
        """
        kinds, devices = to_arrays(self.work, "what", "device")
        chosen = reduce(or_, (kinds == one for one in what)) & (devices == device) & among
        rows = slice(None) if chosen.all() else chosen
        return self.covered & merge_spans(*(one[rows] for one in to_arrays(self.work, *SIDES)))

    @cached_property
    def work_counts(self) -> list[tuple[int, int, int]]:
        """Return (device, task, number of operations), sorted."""
        counts = np.bincount(self.work["thread"].to_numpy())
        rows = np.flatnonzero(counts)
        pairs = {"device": self.device_of[rows], "task": self.task_of[rows]}
        sums = sum_by(pairs, count=counts[rows])
        return sorted(zip(*(column.tolist() for column in sums.values()), strict=True))

    @cached_property
    def unit_of(self) -> np.ndarray:
        """The unit of each row of the trace, as numbered before small units were joined."""
        rows = self.reader.rows
        return rows.units if rows.units_apart is None else rows.units_apart

    def number_apart(self, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Make numbers (at least -1) of rows different for rows of different original units, if
        units were joined. rows: rows of the trace. values: their numbers.
        """
        if self.reader.rows.units_apart is None:
            return values
        return values + self.unit_of[rows] * (int(values.max(initial=0)) + 2)

    def read_samples(self, *layouts: str) -> Iterable[Samples]:
        """Yield the samples of some layouts device by device, in the order of the units before
        small ones were joined.
        """
        found = (
            samples
            for layout in filter(self.has, layouts)
            for samples in self.reader.read_samples(layout, self.number)
        )
        if self.reader.rows.units_apart is None:
            return found
        return sorted(found, key=lambda one: self.unit_of[one.thread])

    def list_apart(self, events: pl.DataFrame) -> np.ndarray | None:
        """Return for each event its unit before small units were joined, or None if none were."""
        is_joined = self.reader.rows.units_apart is not None and events.height
        return self.unit_of[events["thread"].to_numpy()] if is_joined else None

    def select_apart(self, events: pl.DataFrame, row: int) -> pl.DataFrame:
        """Return the events that belong to the same unit as a row of the trace, as before small
        units were joined.
        """
        if self.reader.rows.units_apart is None:
            return events
        is_own = self.unit_of[events["thread"].to_numpy()] == self.unit_of[row]
        return events.filter(pl.Series(is_own))

    @cached_property
    def spans_of_work(self) -> dict[int, tuple[int, int]]:
        """Unit, as before small units were joined -> start of its first work and end of its last
        (ns).
        """
        work = self.work.select("thread", *SIDES)
        parts = [work] if work.height else []
        if self.reader.rows.units_apart is not None:
            parts = work.with_columns(unit=self.unit_of[work["thread"]]).partition_by("unit")
        return {
            int(self.unit_of[own["thread"][0]]): (int(own["begin"][0]), int(own["end"].max()))
            for own in parts
        }

    def find_span_of_work(self, row: int) -> tuple[int, int] | None:
        """Return (start of the first work, end of the last work) in ns in the unit of a row, as
        before small units were joined; None without work.
        """
        return self.spans_of_work.get(int(self.unit_of[row]))

    def find_host(self, task: int) -> int:
        """Return the task whose threads launch work on the GPUs of this task: itself, unless GPUs
        of a process are tasks of their own.
        """
        return self.reader.rows.hosts.get(task, task)

    def list_device_tasks(self, device: int) -> list[int]:
        """Return the sorted tasks whose threads launch work on a device."""
        return self._device_tasks.get(device, [])

    @cached_property
    def _device_tasks(self) -> dict[int, list[int]]:
        tasks: dict[int, set[int]] = {}
        for device, task, _ in self.work_counts:
            tasks.setdefault(device, set()).add(self.find_host(task))
        return {device: sorted(own) for device, own in tasks.items()}

    def find_main_task(self, device: int) -> int:
        """Return the task that launches the most work on a device; of several, the first."""
        counts = {task: count for one, task, count in self.work_counts if one == device}
        return max(counts, key=counts.__getitem__)

    @property
    def useful(self) -> tuple[int, ...]:
        """Values of the column `what` of :attr:`work` that count as useful work, as the options
        define it.
        """
        return COMPUTE, GRAPH, *(COMMUNICATING if self.options.useful == "all-kernels" else ())

    def find_active_spans(self, device: int) -> Spans:
        """Return the spans in which a device executes any work."""
        return self.find_device_spans(device, *BUSY["active"])

    @property
    def api(self) -> pl.DataFrame:
        """CUDA API calls, sorted by start: begin, end, thread, call (value), error (ABSENT for
        none).
        """
        return self.read_named("cuda_api")

    def find_main_thread(self, task: int) -> int:
        """Return the first host thread of a task."""
        return int(self.list_threads(task)[0])

    def list_threads(self, task: int) -> list[int]:
        """Return the host threads of a task, without the additional rows for overlapping ranges."""
        return np.flatnonzero(self._is_host & self._is_main & (self.task_of == task)).tolist()

    def list_rows(self, task: int) -> list[int]:
        """Return all threads of a task, including the additional rows for overlapping ranges."""
        return np.flatnonzero(self.task_of == task).tolist()

    def find_thread_spans(
        self, threads: Sequence[int], *layouts: str, only: Collection[int] | None = None
    ) -> Spans:
        """Return the covered times in which any of these threads is in an event of some layouts.
        only: if given, only events with these values of the field in NAMED_BY.
        """
        layouts = tuple(filter(self.has, layouts))
        # Without threads that have no events, more questions have the same answer.
        wanted = np.array([*{*threads}], np.int64)
        edges = map(self._find_edges, layouts)
        counts = sum((one[wanted + 1] - one[wanted] for one in edges), np.zeros_like(wanted))
        threads = np.sort(wanted[counts > 0]).tolist()

        def find() -> Spans:
            if only is None:
                sides = (self.select_events(layout, threads, SIDES) for layout in layouts)
                return unite(*map(self.merge_rows, sides))
            events = (self.select_events(layout, threads) for layout in layouts)
            named = zip(events, (NAMED_BY[layout] for layout in layouts), strict=True)
            return unite(*(self.merge_rows(one, one[name], only) for one, name in named))

        return self.remember((layouts, *threads), find) if only is None else find()

    def merge_rows(
        self, frame: pl.DataFrame, values: pl.Series | None = None, only: Collection[int] = ()
    ) -> Spans:
        """Return the covered times that are between `begin` and `end` of any row. values, only: if
        given, only rows whose value is in `only`.
        """
        sides = to_arrays(frame, *SIDES)
        if values is not None:
            counts = np.isin(values.to_numpy(), [*only])
            sides = [side[counts] for side in sides]
        return self.covered & merge_spans(*sides)

    def measure_within(self, time: Spans, rows: pl.DataFrame) -> pl.Series:
        """Return for each row how much of a set of times is between its `begin` and `end` (ns)."""
        return pl.Series(time.within(*to_arrays(rows, *SIDES)), dtype=pl.Int64)

    def read_named(self, layout: str) -> pl.DataFrame:
        """Return the events of a layout, sorted by start, with the field that names them
        (NAMED_BY). The result is cached.
        """
        fields = [NAMED_BY[layout]] if layout in NAMED_BY else []
        fields += ["error"] * (layout == "cuda_api")

        def is_own(columns: Mapping[str, np.ndarray]) -> np.ndarray:
            return columns["thread"] == self.caller

        keep = is_own if layout == "cuda_api" and self.caller is not None else None
        read = partial(self.reader.read_begins, layout, fields, self.number, keep, np.int32)
        return self.remember(layout, read)

    def select_events(
        self, layout: str, threads: Sequence[int], columns: Sequence[str] = ()
    ) -> pl.DataFrame:
        """Return the events of a layout on these threads, sorted by start. columns: only these
        columns, which needs less memory.
        """
        frame = self.read_named(layout)
        if not frame.height:
            return frame
        thread, wanted = frame["thread"].to_numpy(), list(set(threads))
        edges = self._find_edges(layout)
        first, last = edges[:-1], edges[1:]
        if (last[wanted] - first[wanted]).sum() == frame.height:
            return frame
        order = self.remember(
            ("order", layout),
            lambda: order_by_thread(thread, frame["begin"].to_numpy()).astype(np.uint32),
        )
        rows = [order[first[one] : last[one]] for one in wanted]
        chosen = rows[0] if len(rows) == 1 else np.sort(np.concatenate([order[:0], *rows]))
        return (frame.select(columns) if columns else frame)[chosen]

    def _find_edges(self, layout: str) -> np.ndarray:
        """Return the first row of each thread of the job, and the end of the last, among the events
        of a layout if these are sorted by thread.
        """
        threads = len(self.task_of)

        def find() -> np.ndarray:
            counts = np.bincount(self.read_named(layout)["thread"].to_numpy(), minlength=threads)
            return np.append(0, counts.cumsum())

        return self.remember(("edges", layout), find)

    def remember(self, key: object, compute: Callable[[], T]) -> T:
        """Return `compute()`, which is called only once for each key."""
        if key not in self._computed:
            self._computed[key] = compute()
        return self._computed[key]

    def forget(self) -> None:
        """Free what was computed for a large unit, except device work, because its memory costs
        more than computing it again. Units joined from small ones keep everything.
        """
        if self.reader.has_one_large_unit:
            self._computed.clear()
            self.__dict__.pop("launches", None)

    def forget_ranges(self) -> None:
        """Free the NVTX ranges of a very large unit. They are read again on demand."""
        if self.reader.must_save_memory:
            for layout in RANGES:
                self._computed.pop(("ranges", layout), None)

    def forget_work(self) -> None:
        """Free the device work of a very large unit. It is read again on demand."""
        if self.reader.must_save_memory:
            self.__dict__.pop("work", None)

    def find_mpi_spans(self, threads: Sequence[int]) -> Spans:
        """Return the spans in which any of these threads is in MPI."""
        return self.find_thread_spans(threads, *MPI_LAYOUTS)

    @cached_property
    def launch_pairs(self) -> set[tuple[int, int]]:
        """(host thread, row of a stream) for each pair in which the thread launches work on the
        stream.
        """
        return {
            pair
            for kind in ("launch", "memory")
            for pair in self.reader.find_connected(kind, self.number)
        }

    @cached_property
    def launches(self) -> pl.DataFrame:
        """The launching call of each row of `work`: `sent` (its start) and `sender` (its thread),
        both null if unknown.
        """
        names = ("begin", "thread", "sent", "sender")
        lines = self.reader.read_lines(("launch", "memory"), self.number, names, np.int32)
        line = find_ordered_rows(
            *to_arrays(lines, "thread", "begin"), *to_arrays(self.work, "thread", "begin")
        )
        known = pl.Series(line).set(pl.Series(line < 0), None)
        return lines.select(pl.col("sent", "sender").gather(known))

    def list_launched_work(self, columns: Sequence[str]) -> pl.DataFrame:
        """Return the work with a known launching call, sorted by start. columns: names of columns
        of `work` and `launches`.
        """
        work = self.work.hstack(self.launches).select(*columns)
        return work.filter(self.launches["sent"].is_not_null())

    def is_in_steady(self) -> pl.Expr:
        """Return an expression that is True for rows in the steady state (for all rows without
        one).
        """
        begin, end = self.options.get_steady_span(self.duration)
        return (pl.col("begin") >= begin) & (pl.col("end") <= end)

    @cached_property
    def iterations(self) -> pl.DataFrame:
        """Iterations of the steady state by task, with ITERATION_COLUMNS."""
        return self.options.read_iterations("unit", self.number)

    def list_iterations(self, task: int) -> pl.DataFrame:
        """Return the iterations of the steady state of a task, with ITERATION_COLUMNS."""
        tasks = self.iterations["task"].to_numpy()
        return self.iterations[slice(*np.searchsorted(tasks, (task, task + 1)))]


def _list_row_columns(reader: EventReader) -> tuple[np.ndarray, ...]:
    """Return the device and task of each row of the trace, and whether it is a host row that is not
    an additional row.
    """
    rows = reader.rows
    is_host = (rows.threads["kind"] == HOST).to_numpy()
    is_main = rows.main_rows == np.arange(len(rows.main_rows))
    return rows.get_column("device"), rows.get_column("task"), is_host, is_main


def read_ordered_ranges(
    reader: EventReader,
    options: AnalysisOptions,
    layout: str,
    unit: int,
    only: int | None = None,
) -> tuple[np.ndarray, ...]:
    """Read the NVTX ranges of a layout in a unit, sorted by thread and start, longer ranges first.
    Return four arrays: thread, start, end (ns), and group of the name (-1 for none). only: thread
    of the ranges, None for all.
    """
    main_rows = reader.rows.main_rows.astype(np.int32)

    def is_own(columns: Mapping[str, np.ndarray]) -> np.ndarray:
        return main_rows[columns["thread"]] == only

    keep = None if only is None else is_own
    frame = reader.read_begins(layout, ("range",), unit, keep, dtype=np.int32)
    thread = main_rows[frame.drop_in_place("thread").to_numpy()]
    order = order_ranges(*to_arrays(frame, *SIDES), thread).astype(np.uint32)
    # One after the other: of millions of ranges both orders together would take most memory.
    ordered = [thread[order]]
    del thread
    ordered += [frame.drop_in_place(side).to_numpy()[order] for side in SIDES]
    name = frame.drop_in_place("range").to_numpy()[order]
    return *ordered, options.find_groups(name).astype(np.int32)


def join_launch_ranges(work: pl.DataFrame, ranges: pl.DataFrame) -> pl.DataFrame:
    """Find the range in which each piece of work was launched, and add the other columns of the
    range. Work launched outside ranges is left out; the rest is in launch order. work: with
    `sender` and `sent` (the launching call). ranges: with `thread`, `begin` and `end` (ns), not
    nested.
    """
    work = work.cast({"sender": pl.Int64, "sent": pl.Int64}).sort("sent")
    ranges = ranges.rename({"thread": "sender", "begin": "at", "end": "until"}).sort("at")
    within = work.join_asof(
        ranges, left_on="sent", right_on="at", by="sender", check_sortedness=False
    )
    return within.filter(pl.col("sent") <= pl.col("until"))


def to_arrays(frame: pl.DataFrame, *names: str) -> list[np.ndarray]:
    """Return the columns with these names as arrays. They must not contain nulls."""
    return [frame[name].to_numpy() for name in names]


def find_rows(
    thread: np.ndarray, time: np.ndarray, at_thread: np.ndarray, at: np.ndarray
) -> np.ndarray:
    """Find for each pair of a thread and a time (at_thread, at) the first row with this thread and
    time. Return its index, or -1. thread, time: of the rows.
    """
    first, codes = number_rows(np.append(thread, at_thread), np.append(time, at))
    found = first[codes[len(time) :]]
    return np.where(found < len(time), found, -1)


def find_ordered_rows(
    thread: np.ndarray, time: np.ndarray, at_thread: np.ndarray, at: np.ndarray
) -> np.ndarray:
    """Return the same as :func:`find_rows`, for rows with ascending times. This is much faster for
    few queries, or ascending ones.
    """
    found, row = np.full(len(at), -1), np.searchsorted(time, at)
    left = np.arange(len(at))
    for _ in range(MOST_TOGETHER):
        left = left[np.append(time, at[:1])[row[left]] == at[left]]
        left = left[row[left] < len(time)]
        is_found = thread[row[left]] == at_thread[left]
        found[left[is_found]] = row[left[is_found]]
        left = left[~is_found]
        if not len(left):
            return found
        row[left] += 1
    found[left] = find_rows(thread, time, at_thread[left], at[left])
    return found


def list_labels(value_set: str) -> dict[int, str]:
    """Return value -> label for a value set of the catalogue."""
    return dict(load_catalogue().value_sets[value_set].labels)


def label_values(column: str, value_set: str, default: str | None) -> pl.Expr:
    """Return an expression that replaces the values in a column by their labels in a value set.
    default: for values without a label.
    """
    return (
        pl.col(column)
        .cast(pl.Int64)
        .replace_strict(list_labels(value_set), default=default, return_dtype=pl.String)
    )


def find_driving_threads(unit: DeviceGroup, device: int) -> list[int]:
    """Return the host threads that launch work on a device, and the main threads of the tasks that
    use it.
    """

    def find() -> list[int]:
        tasks = set(unit.list_device_tasks(device)).intersection(unit.tasks)
        pairs = unit.launch_pairs
        drivers = {sender for sender, thread in pairs if unit.device_of[thread] == device}
        return sorted(drivers.union(map(unit.find_main_thread, tasks)))

    return unit.remember(("drivers", device), find)


def find_io_spans(unit: DeviceGroup, threads: list[int]) -> Spans:
    """Return the spans in which any of these threads is in a call that may wait for files or the
    network.
    """
    return unit.remember(
        ("io", *threads), lambda: unit.find_thread_spans(threads, "osrt", only=unit.options.io)
    )


_MPI_CALLS = load_catalogue().name_sets["mpi_other"].list_known_values()
_INIT = [_MPI_CALLS["MPI_Init"], _MPI_CALLS["MPI_Init_thread"]]


def find_mpi_span(unit: DeviceGroup, thread: int) -> tuple[int, int] | None:
    """Return (start, end) in ns of the time of a thread from MPI_Init to MPI_Finalize; without
    these, from its first to its last MPI call; None without MPI calls.
    """
    in_mpi = unit.find_mpi_spans([thread])
    if not len(in_mpi):
        return None
    calls = unit.read_begins("mpi_other", ("call",)).filter(pl.col("thread") == thread)
    begin = calls.filter(pl.col("call").is_in(_INIT))["end"].max()
    end = calls.filter(pl.col("call") == _MPI_CALLS["MPI_Finalize"])["begin"].min()
    begin = int(in_mpi.begin[0] if begin is None else begin)
    return begin, max(int(in_mpi.end[-1] if end is None else end), begin)
