"""Open a job for analysis: events as frames, and analyses as methods."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from html import escape
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import polars as pl
from msgspec import to_builtins
from msgspec.structs import replace

from nsys2prv._util import workers
from nsys2prv._util.budget import check_processes, return_freed_memory
from nsys2prv._util.errors import Nsys2prvError, UsageError
from nsys2prv._util.files import (
    Closable,
    check_folder,
    create_temporary_file,
    make_temporary_folder,
)
from nsys2prv._util.text import Note, format_count, format_nanoseconds
from nsys2prv.analyses import ANALYSES, ON_DEMAND, call_on_group, run_analyses
from nsys2prv.conversion.anonymous import make_pseudonym
from nsys2prv.conversion.convert import prepare
from nsys2prv.conversion.job import Job
from nsys2prv.conversion.job_reader import make_event_reader
from nsys2prv.conversion.options import Options, Plan, choose_options, find_layouts
from nsys2prv.conversion.quality import QualityNote, assess_quality, collect_warnings
from nsys2prv.events import all_kinds
from nsys2prv.events.catalogue import Layout, NameSet, ValueSet, load_catalogue
from nsys2prv.events.extraction import DeviceKey
from nsys2prv.events.kind import EventKind
from nsys2prv.events.name_rules import NamePattern
from nsys2prv.export.info import MACHINE
from nsys2prv.export.report_files import find_reports
from nsys2prv.export.roles import find_program
from nsys2prv.figures.coverage import Coverage, find_coverage
from nsys2prv.figures.device_group import DEFAULTS, AnalysisOptions, DeviceGroup, Steady
from nsys2prv.figures.efficiencies import HOST_THREADS, USEFUL
from nsys2prv.figures.iterations import find_steady_state, list_task_iterations
from nsys2prv.figures.modules import classify_names
from nsys2prv.figures.nvtx_operations import fold_labels, make_value_table
from nsys2prv.figures.reach import (
    COLLECTIVE,
    Reach,
    find_mpi_reaches,
    find_reaches,
    place_reaches,
)
from nsys2prv.figures.result import KERNEL_NAMES, Finding, Result, Results, join_findings
from nsys2prv.match import Relation, all_relations
from nsys2prv.match.handoffs import list_joining_handoffs
from nsys2prv.replay.events import label_calls
from nsys2prv.replay.job_graph import JobGraph, join_units
from nsys2prv.replay.unit_graph import UnitGraph, build_unit_graph
from nsys2prv.table.event_reader import (
    HELPER,
    SAMPLED,
    UNKNOWN,
    EventReader,
    Samples,
    load_event_reader,
    save_event_reader,
)
from nsys2prv.writers.names import NO_LABELS

if TYPE_CHECKING:
    from nsys2prv.show.page import Frame

T = TypeVar("T")
#: Columns of folded call stacks.
STACK_COLUMNS = pl.Schema(
    {"rank": pl.String, "thread": pl.String, "drives_gpus": pl.Boolean}
    | {"stack": pl.String, "time_ns": pl.Int64}
)
#: Columns with the place of an event.
PLACE = ("rank", "row", "node", "device", "stream")


class OpenJob(Closable):
    """The events of a job, on one timeline. :func:`nsys2prv.open` returns it.

        with nsys2prv.open("run/rank*.sqlite") as job:
            kernels = job.frame("cuda_kernel", "kernel")   # a polars frame, a row for each kernel
            job.analyse("efficiencies")                    # tables
            job.findings()                                 # the bottlenecks

    Use it in a `with` statement, or call close(): that removes its temporary files. Times are ns
    (int64) since the job's first event; ranks count from 0.
    """

    def __init__(self, job: Job, stack: ExitStack | None = None) -> None:
        self.prepared = job
        devices = sum(isinstance(key, DeviceKey) for _, key in job.model.rows)
        size = sum(info.path.stat().st_size for info in job.infos)
        check_processes(len(job.model.tree.tasks) + devices, size)
        self._apart = make_event_reader(job)
        self.reader = self._apart.join_small_units()
        self.saved_reader = job.folder / "reader"
        save_event_reader(self.reader, self.saved_reader, job.pool.shares_memory)
        self.units = self.reader.rows.unit_numbers
        self._steady: dict[str, tuple[Steady | None, Path | None]] = {}
        self._results: dict[tuple[object, ...], dict[str, Result]] = {}
        # The last step here: if it fails, the caller that opened the job cleans up.
        self._stack = stack.pop_all() if stack else ExitStack()

    def __repr__(self) -> str:
        return (
            f"<job of {format_count(len(self.prepared.infos), 'report')}: {self.prepared.model.describe_processes()} on "
            f"{format_count(len(self.prepared.model.tree.nodes), 'node')}, {format_count(self.devices.height, 'GPU')}, {format_nanoseconds(self.duration)}, "
            f"{sum(self.layouts.values()):,} events, {format_count(len(self.warnings), 'warning')}; "
            ".kinds, .frame(KIND), .analyse(), .findings()>"
        )

    def _repr_html_(self) -> str:
        """Return the page of the job in a frame, for notebooks."""
        from nsys2prv.show.page import Frame, make_job_page

        return f"<p>{escape(repr(self)[1:-1])}</p>{Frame(make_job_page(self))._repr_html_()}"

    def timeline(self, finding: int = 0) -> Frame:
        """Return a timeline for notebooks. finding: number of a finding in :meth:`findings`, from
        1, to show its time; 0 for the whole job.
        """
        from nsys2prv.show.page import Frame, make_timeline_page

        return Frame(make_timeline_page(self, finding), 640)

    def close(self) -> None:
        """Remove the temporary files."""
        load_event_reader.cache_clear()
        self._stack.close()

    @cached_property
    def whole_reader(self) -> EventReader:
        """The reader of all events, including damaged ones, which figures and findings exclude."""
        return (
            make_event_reader(self.prepared, whole=True) if self.prepared.damaged else self.reader
        )

    @property
    def duration(self) -> int:
        """Duration of the job, from its first event to its last (ns)."""
        return self.reader.duration

    @property
    def rows(self) -> pl.DataFrame:
        """The rows of the trace as a frame, one row each.

        Columns: thread, row (name), kind (host, stream, samples, helper), paraver_task (from 1, as
        in Paraver), rank (from 0), who (label of the rank, or of a process without a rank), node,
        device, stream.
        """
        return self.reader.rows.threads.drop("task", "clocks").rename({"process": "paraver_task"})

    @property
    def devices(self) -> pl.DataFrame:
        """The physical GPUs as a frame, one row each: device, node, gpu, label, and the first task
        that uses it.
        """
        return self.reader.rows.devices.drop("task")

    def describe(self, reports: Sequence[str | Path] = (), name: str = "") -> dict[str, Any]:
        """Return the description of the job for JSON, without notes that need no action.

        reports: the paths that the user gave. name: label of the job.
        """
        infos, begin = self.prepared.infos, self.prepared.begin_utc
        if not reports or self.prepared.plan.options.anonymous:
            reports = [info.name for info in infos]
        # Reports of one host name the same GPUs.
        gpus = {
            (machine, gpu.key or gpu.number): gpu.name
            for info, machine in zip(infos, self.prepared.machines, strict=True)
            for gpu in info.gpus.values()
        }
        recorders = sorted({info.recorder for info in infos})
        rows = self.rows.filter(~pl.col("kind").is_in([SAMPLED, HELPER]))
        programs = {
            find_program(infos[one.report], one.pid)
            for one in self.prepared.model.processes
            if not one.is_helper and not self.prepared.plan.options.anonymous
        }
        more = f" and {len(reports) - 1} more" if len(reports) > 1 else ""
        return {
            "name": name or f"{reports[0]}{more}",
            "reports": [str(one) for one in reports],
            "duration_ns": self.duration,
            "job_ns": self.coverage.job.length,
            "covered_ns": self.coverage.common.length,
            "processes": rows["paraver_task"].n_unique(),
            "ranks": rows["rank"].drop_nulls().n_unique(),
            "ranks_by": self.prepared.model.rank_sources,
            "programs": sorted(filter(None, programs)),
            "devices": self.devices.height,
            "nodes": self.rows["node"].unique(maintain_order=True).to_list(),
            "records": self.layouts,
            "begins_utc": f"{begin:%Y-%m-%d %H:%M:%S}" if begin else "",
            "gpu_models": dict(Counter(filter(None, gpus.values())).most_common()),
            "gpu_clocks_hertz": sorted(
                {gpu.limits.clock for info in infos for gpu in info.gpus.values()} - {0}
            ),
            "machine": {
                part: sorted({info.machine[part] for info in infos if part in info.machine})
                for part in MACHINE
            },
            "drivers": sorted({info.driver for info in infos if info.driver}),
            "recorded_by": recorders if all(recorders) else [],
            "exported_by": sorted({info.exporter for info in infos if info.exporter}),
            "quality": to_builtins(self.quality),
            "notes": [one.text for one in self._noted if not one.is_routine],
            "warnings": self.warnings,
        }

    @property
    def warnings(self) -> list[str]:
        """Warnings about the reports and their clocks, a line each."""
        return collect_warnings(self.prepared)

    @cached_property
    def quality(self) -> list[QualityNote]:
        """Notes on missing or lost data in the reports, with remedies."""
        ends: dict[bool, list[str]] = {True: [], False: []}
        for one in self.reaches:
            ends[one.layout == COLLECTIVE].append(self._describe_reach(one))
        return assess_quality(self.prepared, ends[False], ends[True])

    def _describe_reach(self, reach: Reach) -> str:
        """Describe the time after which a thread or process has no recorded calls."""
        rows = self.reader.rows.threads
        who = str(rows.filter(process=reach.task)["who"][0])
        if reach.thread >= 0:
            who = f"thread {rows['name'][reach.thread]} of {who}"
        return reach.describe(who, self.find_label)

    def find_label(self, value: int, names: str) -> str:
        """Return the label of a value in a name set (`range` for groups of NVTX names), or "" if
        unknown.
        """
        labels = (
            self.folded.select(value="group", label="operation")
            if names == "range"
            else self.labels.get(names)
        )
        found = [] if labels is None else labels.filter(pl.col("value") == value)["label"].to_list()
        return str(found[0]) if found else ""

    @property
    def notes(self) -> list[str]:
        """Notes on the comparison of ranks, on excluded data, and on times that some reports do not
        cover; one line each.
        """
        return [one.text for one in self._noted]

    @property
    def _noted(self) -> list[Note]:
        coverage, prepared = self.coverage, self.prepared
        found = (note for result in prepared.results for note in result.notes)
        more = filter(None, (coverage.describe_unseen(), coverage.describe()))
        return [*prepared.notes, *found, *map(Note, more)]

    @cached_property
    def coverage(self) -> Coverage:
        """The time that the reports cover, for each process and for the whole job."""
        return find_coverage(self.prepared, self.reader, self.reaches)

    @cached_property
    def reaches(self) -> list[Reach]:
        """Return the times after which CUDA or MPI calls are missing although the capture
        continues. If only a part of the job was opened, use the whole job.
        """
        job, reader, saved = self.prepared, self.reader, self.saved_reader
        if job.uncut:
            reader, saved = make_event_reader(job.uncut), job.folder / "uncut-reader"
            save_event_reader(reader, saved, job.pool.shares_memory)
        options = AnalysisOptions(groups=self.group_table)
        find = partial(call_on_group, find_reaches, options, saved)
        found = job.run(find, np.unique(reader.rows.units).tolist())
        of_mpi = find_mpi_reaches(reader)
        reaches = sorted([*of_mpi, *chain.from_iterable(found)], key=lambda one: one.until)
        if job.uncut:
            reaches = [*place_reaches(reaches, job.uncut, job)]
        return reaches

    @cached_property
    def kinds(self) -> dict[str, int]:
        """The event kinds of the job (names for :meth:`frame`) -> number of events."""
        sources: list[EventKind | Relation] = [*all_kinds(), *all_relations()]
        sums = {one.name: sum(self.layouts.get(name, 0) for name in one.layouts) for one in sources}
        return {name: count for name, count in sorted(sums.items()) if count}

    @cached_property
    def layouts(self) -> dict[str, int]:
        """The layouts with events in the job -> number of events."""
        written, lines = self.prepared.written, load_catalogue().lines
        return {name: count for name, count in written.items() if count and name not in lines}

    def frame(self, kind: str, *columns: str, labels: bool = True) -> pl.DataFrame:
        """Return the events of a kind as a frame, one row each, sorted by start.

        kind: a name that `-t` accepts, such as `kernels`; a relation between ranks
        (`nccl_collectives`); or one of :attr:`layouts`. columns: names of fields to return
        (default: all). labels: False returns names as event values (integers).

        The first columns are begin and end (ns, Int64), rank, row, node, device and stream (the
        location of the event). The fields follow: names as texts (Categorical), numbers as Int64,
        sizes in bytes, and null for events without the field. If a field has the same name as one
        of the first columns, it is called event_<name>.

        Raise UsageError for an unknown kind or field; the message lists the known ones.
        """
        layouts = self._find_layouts(kind)
        declared = {
            layout: {field.name: field.values for field in known.fields if not field.sums_up}
            | ({"domain": None} if known.has_domain else {})
            for layout, known in layouts.items()
            if known.fields or len(layouts) == 1
        }
        every = dict.fromkeys(name for names in declared.values() for name in names)
        _check_names(columns, every, f"no field of {kind}; it has")
        frames = [
            self._read_layout(
                layout, {name: of[name] for name in columns or of if name in of}, labels
            )
            for layout, of in declared.items()
        ]
        return frames[0] if len(frames) == 1 else pl.concat(frames, how="diagonal").sort("begin")

    def _find_layouts(self, kind: str) -> dict[str, Layout]:
        """Return layout name -> layout for a kind, or for a layout with this name."""
        known = load_catalogue().layouts
        if found := [kind] if kind in known else find_layouts(kind):
            return {layout: known[layout] for layout in found}
        held = ", ".join(self.kinds) or "none"
        raise UsageError(f"{kind}: no such kind of event; this job has {held}")

    def _read_layout(
        self, layout: str, fields: Mapping[str, ValueSet | NameSet | None], labels: bool
    ) -> pl.DataFrame:
        """Return the events of a layout as a frame, with location and these fields. labels: replace
        values by names.
        """
        events = self.whole_reader.read_begins(layout, tuple(fields))
        places = self.reader.rows.threads.select(PLACE).cast({pl.String: pl.Categorical})
        series = places[events["thread"].to_numpy()].get_columns()
        for name, values in fields.items():
            column = events[name].set(events[name] < 0, None)
            if labels and (name == "domain" or values is not None):
                column = self._label_values(column, values)
            series.append(column.alias(f"event_{name}" if name in PLACE else name))
        return events.select("begin", "end", *series)

    def lines(self, kind: str) -> pl.DataFrame:
        """Return the communication lines of a kind as a frame, one row each.

        kind: `launch`, `memory`, `nccl_message` or `mpi_message`. Columns: sent (ns) and sender
        (`thread` in :attr:`rows`); begin and end (ns) of the event to which the line leads, and its
        thread; bytes.
        """
        _check_names([kind], load_catalogue().lines, "no such kind of line; there are")
        return self.whole_reader.read_lines([kind])

    def samples(self, kind: str) -> Iterator[Samples]:
        """Yield the samples of a kind of counters, one object per device.

        kind: such as `gpu_metrics` or `nic_metrics`, or one of its layouts. Each object has `time`
        (ns, shape (n,)) and `values` (float, shape (n, metrics), NaN if a metric was not sampled).
        """
        for layout, known in self._find_layouts(kind).items():
            for device_samples in () if known.fields else self.reader.read_samples(layout):
                values = np.where(device_samples.values == UNKNOWN, np.nan, device_samples.values)
                sampled = ~np.isnan(values).all(axis=1)
                time = device_samples.time[sampled]
                yield replace(device_samples, time=time, values=values[sampled])

    def _label_values(self, column: pl.Series, values: NameSet | ValueSet | None) -> pl.Series:
        """Replace the values in a column by texts. values: the names or labels of the values, or
        None for NVTX domains.
        """
        if isinstance(values, NameSet):
            labels = self.labels[values.name]
        else:
            domains = enumerate(name for name, _ in self.prepared.domain_codes)
            pairs = [*(values.labels if values else domains)]
            labels = pl.DataFrame(pairs, schema=NO_LABELS.schema, orient="row")
        labels = labels.with_columns(pl.col("label").cast(pl.Categorical))
        return column.to_frame("value").join(labels, "value", "left", maintain_order="left")[
            "label"
        ]

    @cached_property
    def labels(self) -> dict[str, pl.DataFrame]:
        """Name set -> frame of value and label."""
        return {name: one.labels for name, one in self.prepared.values.items()}

    @property
    def plain_labels(self) -> Mapping[str, pl.DataFrame]:
        """Labels as in the reports, not anonymized, for decisions that depend on names."""
        return self.prepared.plain_labels or self.labels

    @cached_property
    def folded(self) -> pl.DataFrame:
        """NVTX names grouped by operation: value, group, and operation (the name of the group)."""
        return fold_labels(self.labels["nvtx"])

    @cached_property
    def group_table(self) -> Path:
        """File with the group of each NVTX name, for workers."""
        return self._store("groups", make_value_table(self.folded, "group")[0])

    @cached_property
    def module_table(self) -> Path:
        """File with the modules in NVTX names, for workers."""
        names = classify_names(self.labels["nvtx"])
        return self._store("modules", make_value_table(names, "sort", "backward", "part"))

    def _store(self, name: str, table: np.ndarray) -> Path:
        """Save a table to a file for workers, and return its path."""
        path = self.prepared.folder / f"{name}.npy"
        with create_temporary_file(path) as file:
            np.save(file, table)
        return path

    @cached_property
    def available(self) -> set[str]:
        """Layouts with events, and KERNEL_NAMES if most kernels have names."""
        is_unnamed = self.labels["kernels"]["label"].is_in(self.prepared.unnamed)
        named = {KERNEL_NAMES} if 2 * is_unnamed.sum() <= len(is_unnamed) else set()
        return {*self.reader.layouts, *named}

    def analyse(
        self,
        *names: str,
        useful: str = "compute",
        iterations: str = "",
        bins: int = 200,
        what_if: Sequence[str] = (),
        mesh: str = "",
        regions: Sequence[str] = (),
        host_threads: str = "main",
        whole: bool = False,
        divided: bool = True,
    ) -> Results:
        """Return analysis name -> result for these analyses, or for all.

        names: from :attr:`analyses`. useful: kernels that count as useful work: `compute` (all
        except communication), `bsc` (all except NCCL's) or `all-kernels`. iterations: glob pattern
        of the NVTX ranges that are iterations, "" to detect iterations. bins: number of intervals
        in maps over time. what_if: changes to replay, as in :meth:`what_if`, for `findings`. mesh:
        names and sizes of the dimensions of parallel groups, such as `tp=2,pp=4`, "" to detect
        them. regions: names or glob patterns of NVTX ranges with efficiencies of their own, or
        ("all",). host_threads: threads that count in host efficiencies, `main` or `all`. whole:
        analyze the whole job instead of its steady state. divided: add the tables that compare
        runs (`path`, `work`, `instructions`) and iterations.

        ``job.analyse("idle")["idle"].tables["host"].frame`` is a polars frame; column names contain
        the units. Raise UsageError for an unknown name.
        """
        known = [analysis.name for analysis in ANALYSES]
        _check_names(names, known, "no such analysis; there are")
        for option, value, values in (
            ("useful", useful, USEFUL),
            ("host_threads", host_threads, HOST_THREADS),
        ):
            if value not in values:
                raise UsageError(f"{option}: {value} is not one of {', '.join(values)}")
        names = names or tuple(self.analyses)
        asked = AnalysisOptions(
            useful=useful,
            bins=bins,
            what_ifs=tuple(what_if),
            mesh=mesh,
            host_threads=host_threads,
            whole=whole,
            divided=divided,
        )
        key = asked, iterations, tuple(regions)
        made = self._results.setdefault(key, {})
        # Those whose findings belong to the one list.
        others = [one.name for one in ANALYSES if one.has_findings] if "findings" in names else []
        if left := [name for name in (*names, *others) if name not in made]:
            made.update(run_analyses(self, left, *key))
        results = Results((name, made[name]) for name in names)
        if "findings" in names:
            joined = join_findings(made[name].findings for name in ("findings", *others))
            results["findings"] = replace(made["findings"], findings=joined)
        return results

    @property
    def analyses(self) -> list[str]:
        """The names of all analyses of this job. `critical_path` is included only if the job was
        opened with its kind.
        """
        names = [analysis.name for analysis in ANALYSES]
        return [name for name in names if name != ON_DEMAND or name in self.reader.layouts]

    def findings(self, useful: str = "compute") -> list[Finding]:
        """Return the bottlenecks of the job by group, most expensive first in each: at most ten,
        with one cause each. useful: as in :meth:`analyse`.
        """
        return self.analyse("findings", useful=useful)["findings"].findings

    def places(self) -> pl.DataFrame:
        """Return the functions that hosts execute while GPUs are idle, from call stacks and CPU
        samples.

        Columns: `who`, `where`, `time_ns`, `idle_share`; for each rank, the longest first. Empty
        without stacks.
        """
        tables = self.analyse("findings")["findings"].tables
        return tables["places"].frame if "places" in tables else pl.DataFrame()

    def stacks(self, rank: int | None = None, while_idle: bool = True) -> pl.DataFrame:
        """Return folded call stacks of host threads, for each thread the longest first.

        Columns: `rank`, `thread`, `drives_gpus`, `stack` (`main;solve;cudaMalloc`), `time_ns`.
        Empty without stacks. rank: return only this rank. while_idle: count only the time in which
        the GPUs of the process are idle; this excludes processes without GPU work.
        """
        tables = self.analyse("stacks")["stacks"].tables
        if "stacks" not in tables:
            return pl.DataFrame(schema=STACK_COLUMNS)
        frame, rows = tables["stacks"].frame, self.reader.rows.threads
        if rank is not None:
            who = rows.filter(pl.col("rank") == rank)["who"].unique().to_list()
            frame = frame.filter(pl.col("rank").is_in(who))
        time = pl.col("idle_ns" if while_idle else "time_ns")
        frame = frame.select(*[*STACK_COLUMNS][:-1], time_ns=time).filter(pl.col("time_ns") > 0)
        return frame.sort("rank", "thread", -pl.col("time_ns"), maintain_order=True)

    def what_if(self, *changes: str) -> pl.DataFrame:
        """Predict the duration of the steady state (or of the whole job without iterations) after
        changes.

        Example: ``job.what_if("rank 3: gpu as others; no cudaFree")``. Return one row per change,
        which includes the changes above it: `what_if`, `gain_share` and `duration_ns`. Raise
        UsageError for an unknown change; the message lists the possible ones.
        """
        result = self.analyse("findings", what_if=changes)["findings"]
        if "what_if" not in result.tables:
            raise UsageError("; ".join(result.missing) or "what-if: no change given")
        return result.tables["what_if"].frame

    @property
    def steady(self) -> Steady | None:
        """The steady state of the job: all iterations except the first. None if the job has no
        iterations.
        """
        return self.find_steady("")[0]

    def find_steady(self, pattern: str) -> tuple[Steady | None, Path | None]:
        """Return the steady state, and the file with its iterations by task. pattern: glob pattern
        of the NVTX ranges that are iterations, "" to detect iterations.
        """
        if pattern not in self._steady:
            labels, covered = self.plain_labels["nvtx"], self.coverage.common
            show = partial(make_pseudonym, "range") if self.prepared.plain_labels else str
            found = find_steady_state(
                self._apart, labels, pattern, covered, self._list_iterations, show
            )
            name, self._steady[pattern] = f"iterations-{len(self._steady)}", (None, None)
            if found:
                self._steady[pattern] = found[0], self._store(name, found[1].to_numpy())
        return self._steady[pattern]

    def _list_iterations(self, names: NamePattern) -> pl.DataFrame:
        return pl.concat(self.run_on_groups(partial(list_task_iterations, names=names)))

    @cached_property
    def graph(self) -> JobGraph:
        """The dependency graph of the job (:mod:`nsys2prv.replay`)."""
        return_freed_memory()
        calls = label_calls(self.labels)
        handoffs = list_joining_handoffs(self.reader)
        # Of paths that are equally long the first unit's is found.
        saved = self.saved_reader
        if self._apart is not self.reader:
            saved = self.prepared.folder / "reader-apart"
            save_event_reader(self._apart, saved, self.prepared.pool.shares_memory)
        build = partial(call_on_group, partial(_build_unit_graph, calls, handoffs), DEFAULTS, saved)
        graphs = self.prepared.run(build, self._apart.rows.unit_numbers)
        return join_units(self.reader, calls, graphs)

    def run_on_groups(
        self, function: Callable[[DeviceGroup], T], options: AnalysisOptions = DEFAULTS
    ) -> Iterator[T]:
        """Yield the result of a function for each device group (threads that share a report or a
        GPU), in order. Workers call the function.
        """
        run = partial(call_on_group, function, options, self.saved_reader)
        return iter(self.prepared.run(run, self.units))


def _check_names(names: Iterable[str], known: Collection[str], said: str) -> None:
    """Raise UsageError if a name is unknown. said: text that introduces the list of known names in
    the message.
    """
    if unknown := sorted({*names}.difference(known)):
        raise UsageError(f"{', '.join(unknown)}: {said} {', '.join(known)}")


def _build_unit_graph(
    calls: Mapping[int, str], handoffs: pl.DataFrame, unit: DeviceGroup
) -> UnitGraph:
    """Return the dependency graph of one device group."""
    return build_unit_graph(unit.reader, unit.number, calls, handoffs)


def open_job(
    reports: Sequence[str | Path] | str | Path,
    options: Options | None = None,
    *,
    page: bool = False,
    **fields: object,
) -> OpenJob:
    """Open the job of these reports, with aligned host clocks.

    reports: files, folders of reports, or patterns such as "run/rank*.sqlite". options: as for a
    conversion, or None for the defaults. fields: single fields of Options by name, such as jobs=0
    or align="utc". page: True if an HTML page will follow, so that the progress bar includes it. By
    default, temporary files are in the system's folder.

    Raise Nsys2prvError, in one line, if a report cannot be read; NothingToWrite if the reports
    contain no events.
    """
    options = choose_options(options, fields)
    given = [reports] if isinstance(reports, str | Path) else reports
    left_out: list[str] = []
    paths = find_reports(given, left_out)
    plan = Plan.from_options(replace(options, report=True))
    if options.tmp:
        check_folder(Path(options.tmp))
    try:
        with ExitStack() as stack:
            pool = stack.enter_context(
                workers.make_pool(options.engine, options.jobs, options.scheduler, len(paths))
            )
            folder = stack.enter_context(
                make_temporary_folder(Path(options.tmp or tempfile.gettempdir()))
            )
            stack.enter_context(pool.ensure_end())
            phases = ("analysing", "page")[: 1 + page]
            job = prepare(paths, plan, folder, pool, options.quiet, phases, given, left_out)
            if runs := job.captures.describe_runs(job.infos):
                raise Nsys2prvError(
                    f"{runs}: report each run alone, or compare two with `nsys2prv diff`"
                )
            return OpenJob(job, stack)
    except OSError as error:
        raise Nsys2prvError(
            f"{error.filename or options.tmp or 'temporary files'}: {error.strerror or error}"
        ) from error
