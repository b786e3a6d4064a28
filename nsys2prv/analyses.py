"""Run analyses: collect frames of every device group, in any worker, and draw conclusions from all of
them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import polars as pl
from msgspec.structs import replace

from nsys2prv._util.budget import (
    keep_freed_memory,
    return_freed_memory,
    return_large_blocks,
)
from nsys2prv._util.columns import join_columns
from nsys2prv.conversion.quality import lacks_mpi
from nsys2prv.events.attributes import select_by_state, select_labels
from nsys2prv.events.cuda import select_synchronising_calls
from nsys2prv.events.kind import find_function
from nsys2prv.events.mpi import MPI_LAYOUTS
from nsys2prv.events.name_rules import NamePattern
from nsys2prv.figures import coverage
from nsys2prv.figures.collectives import make_clock_table
from nsys2prv.figures.device_group import ALL, WORK, AnalysisOptions, DeviceGroup, Part
from nsys2prv.figures.host_time import NAMES, select_named
from nsys2prv.figures.nvtx_operations import RANGES
from nsys2prv.figures.openacc import LAYOUTS as OPENACC
from nsys2prv.figures.result import DECLARED, KERNEL_NAMES, Analysis, Context, Result
from nsys2prv.figures.time_division import CRITICAL_PATH
from nsys2prv.table.event_reader import load_event_reader

if TYPE_CHECKING:
    from nsys2prv.open_job import OpenJob

T = TypeVar("T")
#: The analysis, and the kind and layout of the same name, that are there on demand.
ON_DEMAND = CRITICAL_PATH
#: Needs of analyses -> layouts, at least one of which is required.
GROUPS: dict[str, tuple[str, ...]] = {
    "work": (*WORK,),
    "work or calls": (*WORK, "cuda_api"),
    "kernels": ("cuda_kernel", "nccl_kernel", "cuda_graph"),
    "kernel names": (KERNEL_NAMES,),
    "collectives": ("nccl_kernel", *MPI_LAYOUTS),
    "NVTX ranges": RANGES,
    "MPI": MPI_LAYOUTS,
    "OpenACC": OPENACC,
    ON_DEMAND: (ON_DEMAND,),
}
#: The analysis of parallel groups, which others ask, too.
MESH = "groups"
#: The analysis that reads modules from names.
MODULES = "modules"
#: All analyses, in the order of their tables.
ANALYSES = [analysis for analysis in DECLARED.values() if analysis.conclude]


def run_analyses(
    opened: OpenJob,
    wanted: Sequence[str],
    asked: AnalysisOptions,
    pattern: str,
    regions: tuple[str, ...],
) -> dict[str, Result]:
    """Return analysis name -> result for the wanted analyses.

    pattern: glob pattern of the NVTX ranges that are iterations, or "" to detect iterations.
    regions: names or glob patterns of NVTX ranges with efficiencies of their own.
    """
    job, plain = opened.prepared, opened.plain_labels
    # Many units use blocks of memory again and again.
    (return_large_blocks if opened.reader.must_save_memory else keep_freed_memory)()
    steady, iterations = (None, None) if asked.whole else opened.find_steady(pattern)
    lost_work = coverage.name_lossy_processes(job)
    gpus = coverage.list_gpus(job, opened.reader)
    has_gpu_work = bool(opened.available & set(WORK))
    options = replace(
        asked,
        iterations=iterations,
        synchronising=select_synchronising_calls(plain["cuda_api"]),
        set_up_calls=[select_labels(plain["cuda_api"], one) for one in NAMES["set_up"]],
        gpus=tuple((one, {gpu.name for gpu in seen} - {""}) for one, seen in gpus.items()),
        limits=tuple((one, max(gpu.limits for gpu in seen)) for one, seen in gpus.items() if seen),
        io=select_by_state("osrt", plain["osrt"], "io"),
        shmem=select_labels(plain["nvtx"], NAMES["shmem"]),
        compilers=select_labels(plain["cpu_module"], NAMES["compilers"]),
        no_profiler=select_by_state("profiler_overhead", plain["profiler_overhead"], None),
        writing_out=select_named(plain["profiler_overhead"], "writes_out"),
        groups=opened.group_table,
        modules=opened.module_table if MODULES in wanted and has_gpu_work else None,
        steady=steady,
        covered=opened.coverage.common,
        length=opened.coverage.job.length,
        cut=opened.coverage.describe_cut(),
        lossy_devices=coverage.find_lossy_devices(job, opened.reader),
        lost_work=lost_work,
        lacks_mpi=any(map(lacks_mpi, job.infos)),
        unrecorded_mpi=coverage.list_unrecorded_mpi(job, opened.reader.layouts),
        regions=ALL
        if regions == (ALL,)
        else tuple((name, NamePattern.from_glob(name, plain["nvtx"])) for name in regions),
        unmatched=tuple(
            dict.fromkeys(
                job.infos[report].name
                for (report, _), (kernels, matched) in job.silent_in_nccl.items()
                if 2 * matched < kernels
            )
        ),
    )

    def explain(layouts: Sequence[str]) -> str:
        is_lost = lost_work and set(layouts) & set(WORK) & opened.reader.layouts
        return context.explain_loss() if is_lost else coverage.explain_absence(job, layouts)

    @cache
    def find_mesh() -> Any:
        find = find_function("figures.mesh.find_mesh_of_job", __package__)
        return find(join(MESH)["kernels"], context)

    context = Context(
        opened.reader,
        options,
        opened.labels,
        opened.folded,
        opened.available,
        explain,
        make_clock_table(job),
        lambda: opened.graph,
        find_mesh,
    )
    results, able = {}, []
    for analysis in (one for one in ANALYSES if one.name in wanted):
        groups = [GROUPS[name] for name in analysis.needs]
        absent = [group for group in groups if not opened.available & set(group)]
        missing = [f"{analysis.title}: {coverage.explain_absence(job, group)}" for group in absent]
        if analysis.covered and not len(opened.coverage.common):
            missing.insert(0, opened.coverage.describe())
        results[analysis.name] = Result(analysis.name, analysis.title, missing=missing)
        able += [] if missing else [analysis]
    # Collectives, and time that is lost to them, are named by the dimensions that they are of.
    collecting = [*able]
    if {one.name for one in able} & {"collectives", "time"} and MESH not in wanted:
        collecting.append(DECLARED[MESH])
    collected: dict[str, dict[str, list[Part]]] = defaultdict(lambda: defaultdict(list))
    units = len(opened.units)
    parts = units if units > 1 else sum(bool(one.collect) for one in collecting)

    def join(name: str) -> dict[str, pl.DataFrame]:
        joined: dict[str, pl.DataFrame] = defaultdict(pl.DataFrame)
        for key, parts in collected[name].items():
            made = [part for part in parts if isinstance(part, pl.DataFrame)]
            if columns := [part for part in parts if not isinstance(part, pl.DataFrame)]:
                made.append(join_columns(columns))
            kept = [part for part in made if part.height] or made[:1]
            joined[key] = pl.concat(kept, how="diagonal_relaxed") if len(kept) > 1 else kept[0]
        return joined

    with job.progress.show_phase("analysing", parts + len(able)) as advance:
        for frames in _collect_units(opened, collecting, options):
            for name, key, frame in frames:
                collected[name][key].append(frame)
            advance(1)
        for analysis in able:
            result = results[analysis.name]
            context.said.clear()
            find_function(analysis.conclude, __package__)(join(analysis.name), context, result)
            result.findings[:] = [one.confine(options.covered) for one in result.findings]
            for table, (said, group) in analysis.absent.items():
                if table not in result.tables:
                    result.missing.append(said.format(why=explain(GROUPS.get(group, (group,)))))
            if lost_work and analysis.covered and lost_work not in context.said:
                result.missing.append(f"figures of all GPUs: {lost_work}")
            advance(1)
    return results


def _collect_units(
    opened: OpenJob, able: Sequence[Analysis], options: AnalysisOptions
) -> Iterator[list[tuple[str, str, Part]]]:
    """Yield the frames that the analyses collect, one list per device group.

    If there is only one group, which workers cannot share, yield one list per analysis instead.
    """
    names = [analysis.name for analysis in able if analysis.collect]
    if len(opened.units) > 1:
        yield from opened.run_on_groups(partial(_collect_frames, names), options)
        return
    unit = make_device_group(options, opened.saved_reader, *opened.units)
    for place, name in enumerate(names):
        # The second analysis, efficiencies, uses much that the first, findings, has found.
        if place != 1 or opened.reader.must_save_memory:
            unit.forget()
            return_freed_memory()
        yield _collect_frames([name], unit)


def _collect_frames(names: Sequence[str], unit: DeviceGroup) -> list[tuple[str, str, Part]]:
    """Return the frames that these analyses collect for one device group, as (analysis, frame name,
    frame).
    """
    return [
        (name, *frame)
        for name in names
        for frame in find_function(DECLARED[name].collect, __package__)(unit)
    ]


def make_device_group(options: AnalysisOptions, saved: Path, number: int) -> DeviceGroup:
    """Open a device group (threads that share a report or a GPU) of a job for analyses. saved: file
    with the saved event reader. number: of the group, from 0.
    """
    return DeviceGroup(load_event_reader(saved), number, options, saved.parent)


def call_on_group(
    function: Callable[[DeviceGroup], T], options: AnalysisOptions, saved: Path, number: int
) -> T:
    """Call a function with a device group, and return its result. Workers call this; it depends
    only on files. saved, number: as for :func:`make_device_group`.
    """
    return function(make_device_group(options, saved, number))
