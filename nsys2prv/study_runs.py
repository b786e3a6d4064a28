"""Make a study: read of each run its efficiencies in the focus of analysis, by the analysis that `report`
has, and of the largest its findings; then compare them: their order, what speed-up and scalability
are relative to, whether the work grows with the devices, and what keeps runs from being compared.
"""

from __future__ import annotations

import glob
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import polars.selectors as cs
from msgspec.structs import replace

from nsys2prv._util.errors import Nsys2prvError, UsageError
from nsys2prv._util.files import load_shipped_file
from nsys2prv._util.text import format_nanoseconds, format_share, list_differing, list_some
from nsys2prv.conversion.options import Options
from nsys2prv.figures.device_group import ALL
from nsys2prv.figures.efficiencies import HOST_THREADS, USEFUL
from nsys2prv.figures.study_model import (
    FORMAT,
    Interval,
    Metrics,
    Past,
    Run,
    Scaling,
    Work,
    compute_loss,
    name_metrics,
)
from nsys2prv.open_job import open_job
from nsys2prv.show.finished_job import JSON, FinishedJob
from nsys2prv.show.page.excerpts import choose_excerpts
from nsys2prv.show.study.formats import Study
from nsys2prv.show.text import say_clock

#: Where all regions are asked for, those of at least this share of the time of a run, or of the time that
#: it loses, are shown: what is smaller explains nothing that a study is about.
LARGE_REGION = 0.05
#: The work of an iteration grows with this power of the number of devices: less is strong scaling;
#: further than this from 0 (strong) and from 1 (weak) it is not clear.
MIDDLE, UNCLEAR = 0.5, 0.25
#: Runs on equally many devices of one model do different work if an iteration computes longer by this
#: factor: clocks and instructions per cycle differ by less.
OTHER_WORK = 1.5
#: What a study shows of each run.
WANTED = ("efficiencies", "findings", "kernels", "collectives", "metrics", "clocks")
#: What is not counted as work of iterations: kernels that communicate are counted by operation, and some
#: calls happen once in a job.
NO_WORK = ("Communication", "MPI_Init", "MPI_Init_thread", "MPI_Finalize")
#: When a run began, in its environment.
BEGIN = "begin (UTC)"
#: Iterations that take so many times the median are named if they come regularly, at least so often.
LONGER, REGULAR = 1.2, 3
#: A table that a run lacks.
NO_ROWS = pl.DataFrame(schema={"elapsed_ns": pl.Int64})
#: What is said of runs that do not compare.
WARNINGS: dict[str, str] = load_shipped_file("nsys2prv.show.study", "warnings.yaml")


def make_study(
    runs: Sequence[str | Path | Sequence[str | Path]],
    scaling: str | None = None,
    regions: Sequence[str] = (),
    reference: str | None = None,
    iterations: str = "",
    whole: bool = False,
    labels: Mapping[str, str] | None = None,
    host_threads: str = "main",
    useful: str = "compute",
    options: Options | None = None,
    drawn: dict[str, FinishedJob] | None = None,
    history: Sequence[str | Path] = (),
    **fields: object,
) -> Study:
    """Return the study of several runs of one program.

    runs: each a folder of reports, a report, a pattern, a list of these, or the JSON of an earlier
    study, whose runs come with their figures. scaling: `strong` or `weak`, None to find it. regions:
    names or glob patterns of NVTX ranges, or ("all",). reference: the run that others are compared
    with, None for the smallest. iterations: pattern of the NVTX ranges that are iterations, "" to
    find them. whole: of the whole capture instead. labels: run -> what it is called. host_threads:
    `main` or `all`. useful: as in OpenJob.analyse. drawn: run -> what a page draws of its job, which is
    added. history: JSON of earlier studies of the program, the first one first. options, fields: as in nsys2prv.open.

    Raises Nsys2prvError where a run cannot be read, UsageError for a region that no run has.
    """
    if scaling not in (None, "strong", "weak"):
        raise UsageError(f"scaling: {scaling} is none of strong, weak")
    if not runs:
        raise UsageError("a study needs a run: reports, a folder, or the JSON of an earlier study")
    asked = {"regions": tuple(regions), "iterations": iterations, "whole": whole}
    asked |= {"host_threads": host_threads, "useful": useful}
    given = [[one] if isinstance(one, str | Path) else [*one] for one in runs]
    if not all(given):
        raise UsageError("a run has no reports")
    names = [str(paths[0]) for paths in given]
    earlier = {name: _read_earlier(Path(name)) for name in names if Path(name).suffix == JSON}
    _distinguish_runs(names, earlier)
    read: list[Run] = []
    for name, paths in zip(names, given, strict=True):
        if name in earlier:
            read += earlier[name]
            continue
        with open_job(paths, options, **fields) as job:
            wanted = [*WANTED] + ["time"] * (drawn is not None)
            try:
                results = job.analyse(*wanted, **asked)
            except UsageError as error:
                raise UsageError(f"{name}: {error}") from error
            finished = FinishedJob(job.describe(), results)
            run = _make_run(name, finished)
            run.findings = [one.as_dict() for one in finished.findings]
            if drawn is not None:
                excerpts = choose_excerpts(job, results, typical=True)
                drawn[name] = replace(finished, excerpts=excerpts)
        read.append(run)
    _label_runs(read, labels or {})
    study = compare_runs(read, scaling, reference)
    names = _choose_regions(study.runs, regions)
    if unknown := [one for one in regions if one not in (*names, ALL)]:
        raise UsageError(
            f"--regions {unknown[0]}: no run has NVTX ranges of this name; --regions {ALL} shows those there are"
        )
    for run in (run for of_file in earlier.values() for run in of_file):
        lacking = list_some([name for name in names if name not in run.regions])
        line = f"regions: not measured of {lacking} in its JSON: give its reports"
        if lacking and line not in run.missing:
            run.missing.append(line)
    study.regions = names
    study.history = [_read_past(Path(path)) for path in history]
    return study


def _read_past(path: Path) -> Past:
    """Return an earlier study of the program."""
    runs = _read_earlier(path)
    begins = min((begin for run in runs if (begin := run.environment.get(BEGIN))), default="")
    return Past(path.stem, begins, {run.shape: run.metrics for run in reversed(runs)})


def _distinguish_runs(given: Sequence[str], earlier: Mapping[str, Sequence[Run]]) -> None:
    """Rename runs that have the name of another one, by the file that holds them. Raises UsageError for a
    run that is given twice, also by way of an earlier study.
    """
    seen: dict[Path, Run | None] = {}
    for name in given:
        for run in earlier.get(name, (None,)):
            place = Path(run.name if run else name).absolute()
            other = seen.get(place)
            if place in seen and not (run and other and run.interval != other.interval):
                of = f"{name}: {run.name}" if run else f"{name}:"
                raise UsageError(f"{of} is given twice; give each run once")
            if run and place in seen:
                run.name, run.label = f"{name}: {run.name}", ""
            seen[place] = run


def _choose_regions(runs: Sequence[Run], asked: Sequence[str]) -> list[str]:
    """Return the regions to show: those asked for, then of all those that are large in some run, or
    lose much of what it loses, the largest of the last run first.
    """
    largest: dict[str, float] = {}
    for run in reversed(runs):
        for name, figures in run.regions.items():
            lost = (figures.get("lost_ns") or 0.0) / max(run.lost_ns or 0.0, 1.0)
            share = max(figures.get("share") or 0.0, lost)
            largest[name] = max(largest.get(name, 0.0), share)
    others = [
        name for name, share in largest.items() if name not in asked and share >= LARGE_REGION
    ]
    return [*(name for name in asked if name in largest), *others]


def _label_runs(runs: Sequence[Run], labels: Mapping[str, str]) -> None:
    """Label the runs by their folders: by as many parts of their paths as it takes to distinguish them."""
    asked = {Path(name): label for name, label in labels.items()}
    parts = {run.name: _split_path(Path(run.name)) for run in runs}
    named = {run.name: asked.get(Path(run.name)) or run.label for run in runs}
    for depth in range(1, max(map(len, parts.values())) + 1):
        chosen = {name: named[name] or "/".join(parts[name][-depth:]) for name in parts}
        if len(set(chosen.values())) == len(chosen):
            break
    for run in runs:
        run.label = chosen[run.name]


def _split_path(path: Path) -> list[str]:
    """Return the names of a path: of a pattern those of its folder, of a file without its ending."""
    if glob.has_magic(path.name) and not path.exists() and path.parent.name:
        path = path.parent
    path = path.absolute()
    return [*path.parent.parts[1:], path.stem if path.is_file() else path.name]


def _read_earlier(path: Path) -> list[Run]:
    """Return the runs of an earlier study, or that of a file that `report --json` wrote."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Nsys2prvError(f"{path}: cannot be read as JSON: {error}") from error
    if isinstance(content, dict) and content.get("format") == FORMAT:
        return Study.from_dict(content, str(path)).runs
    job = FinishedJob.read(path)
    if job.find_frame("efficiencies", "focus") is None:
        raise Nsys2prvError(f"{path}: has no efficiencies of a job; give its reports instead")
    return [_make_run(str(path), job)]


def _make_run(name: str, job: FinishedJob) -> Run:
    """Return a run of the result of the analysis of efficiencies."""
    result = job.results["efficiencies"]
    focus, device, host, sampled = (
        job.find_row("efficiencies", table) for table in ("focus", "device", "host", "instructions")
    )
    if not focus:
        raise Nsys2prvError(f"{name}: {'; '.join(result.missing) or 'there are no efficiencies'}")
    count = max(focus["iterations"], 1)
    elapsed = focus["elapsed_ns"] / count
    metrics = {"elapsed_ns": elapsed, **job.metrics}
    sums = {**_sum_work(device, host, count), "elapsed_ns": elapsed}
    if sampled:
        # Of all devices, where some were not sampled.
        instructions = sampled["instructions"] / sampled["useful_ns"] * device["useful_ns"]
        sums |= {"instructions": instructions / count, "clock_hertz": sampled["clock_hertz"]}
    tables = {key: table.frame for key, table in result.tables.items()}
    of_devices, of_hosts = (
        {row["region"]: row for row in tables.get(key, NO_ROWS).iter_rows(named=True)}
        for key in ("regions", "host_regions")
    )
    regions: dict[str, Metrics] = {}
    for region in {**of_devices, **of_hosts}:
        on_devices, on_hosts = of_devices.get(region, {}), of_hosts.get(region, {})
        figures = name_metrics(on_devices, on_hosts)
        if on_devices:
            figures["elapsed_ns"] = on_devices["elapsed_ns"]
        if on_hosts:
            figures["host"]["elapsed_ns"] = on_hosts["elapsed_ns"]
        regions[region] = {**figures, "share": (on_devices or on_hosts)["share_of_elapsed"]}
        sums.setdefault("regions", {})[region] = _sum_work(on_devices, on_hosts, count)
    iterations = tables.get("iterations", tables.get("host_iterations", NO_ROWS))["elapsed_ns"]
    environment = _describe_environment(job, focus)
    if len(iterations) > 1:
        middle, *ends = map(
            format_nanoseconds, (iterations.median(), iterations.min(), iterations.max())
        )
        spread = 2 * float(iterations.std()) / len(iterations) ** 0.5 / float(iterations.mean())
        said = [
            f"median {middle}",
            " to ".join(ends),
            f"mean ± {format_share(spread)} (two standard errors)",
        ]
        environment["time of an iteration"] = ", ".join([*said, *_find_regular(iterations)])
    return Run(
        name=name,
        ranks=focus["ranks"],
        devices=focus["devices"],
        nodes=focus["nodes"],
        gpu_models=dict(job.description.get("gpu_models", {})),
        programs=job.programs,
        environment=environment,
        interval=Interval(focus["begin_ns"], focus["end_ns"], focus["iterations"], focus["what"]),
        threads=HOST_THREADS[focus["host_threads"]],
        useful=USEFUL[focus["useful"]],
        metrics=metrics,
        errors=_estimate_errors(tables),
        phases=_list_phases(job),
        balance=_measure_balance(tables),
        gpu_metrics=_find_metrics(job),
        iteration_ns=iterations.to_list(),
        regions=regions,
        missing=[*result.missing],
        work=_measure_work(job, focus),
        sums={
            **sums,
            "found_by": focus["found_by"],
            "iterations_of_job": focus["iterations_of_job"],
            "recorded": focus["recorded"].split(", "),
        },
    )


def _find_regular(iterations: pl.Series) -> list[str]:
    """Say which iterations are longer than the others if these come regularly: `every 5th 1.4 × as long`."""
    times = iterations / iterations.median()
    at = times.ge(LONGER).arg_true()
    steps = at.diff().drop_nulls().unique()
    if len(at) < REGULAR or len(steps) != 1 or steps[0] < 2:
        return []
    return [f"every {steps[0]}th {times.gather(at).median():.1f} × as long"]


def _estimate_errors(tables: Mapping[str, pl.DataFrame]) -> Metrics:
    """Return the standard errors of the means of efficiencies and of the time, over iterations."""
    rows = []
    for name in ("iterations", "host_iterations"):
        frame = tables.get(name, NO_ROWS)
        known = frame.select(cs.ends_with("_efficiency"), "elapsed_ns")
        errors = known.select(pl.all().std() / max(frame.height, 1) ** 0.5)
        rows.append(errors.row(0, named=True) if frame.height > 1 else {})
    elapsed = next((row["elapsed_ns"] for row in rows if row.get("elapsed_ns")), None)
    return {**name_metrics(*rows), **({"elapsed_ns": elapsed} if elapsed else {})}


def _find_metrics(job: FinishedJob) -> dict[str, float]:
    frame = job.find_frame("metrics", "metrics")
    return {} if frame is None else dict(frame.select("metric", "mean").drop_nulls().rows())


def _list_phases(job: FinishedJob) -> list[tuple[str, int, int]]:
    """Return the phases of a run, all of it as one where these are not known."""
    phases = job.find_frame("findings", "phases")
    if phases is None or phases.is_empty():
        return [("run", 0, job.duration)]
    return phases.select("phase", "begin_ns", "time_ns").rows()


def _measure_balance(tables: Mapping[str, pl.DataFrame]) -> dict[str, float]:
    """Return the useful share of each GPU, or rank without any: of MPI alone what is outside it."""
    for name, key in (("devices", "device"), ("hosts", "rank")):
        frame = tables.get(name, NO_ROWS)
        for share in ("useful_share", "outside_mpi_share"):
            if share in frame.columns:
                return dict(frame.select(key, share).drop_nulls().rows())
    return {}


def _measure_work(job: FinishedJob, focus: Mapping[str, Any]) -> dict[str, dict[str, Work]]:
    """Return the kernels by class and the communication by operation, on all ranks, divided by the
    iterations of the job; none of these without iterations.
    """
    found: dict[str, dict[str, Work]] = {}
    waiting = job.find_frame("collectives", "across_ranks")
    waits = {}
    if waiting is not None and "wait_ns" in waiting.columns:
        waits = dict(waiting.group_by("operation").agg(pl.col("wait_ns").sum()).rows())
    for sort, analysis, table, names in (
        ("kernels", "kernels", "classes", ("class", "count")),
        ("communication", "collectives", "nccl", ("operation", "kernels")),
        ("communication", "collectives", "mpi", ("call", "count")),
    ):
        frame, iterations = job.find_frame(analysis, table), focus["iterations_of_job"]
        if frame is None or not iterations:
            continue
        name, count = names
        size = pl.col("bytes").sum() if "bytes" in frame.columns else pl.lit(None)
        of_each = frame.group_by(name, maintain_order=True)
        sums = of_each.agg(pl.col(count).sum(), pl.col("time_ns").sum(), size=size)
        found.setdefault(sort, {}).update(
            (
                f"NCCL {key}" if table == "nccl" else key,
                Work(
                    number / iterations,
                    time / iterations,
                    sent and sent / iterations,
                    waits[key] / iterations if table == "nccl" and key in waits else None,
                ),
            )
            for key, number, time, sent in sums.rows()
            if key not in NO_WORK
        )
    return found


def _describe_environment(job: FinishedJob, focus: Mapping[str, Any]) -> dict[str, str]:
    """Return where and how a run ran and was recorded, and which part of it the figures are of."""
    facts = job.description
    models = (facts.get("gpu_models") or {}).items()
    lists = {
        "program": job.programs,
        "nodes": facts["nodes"],
        "GPUs": [f"{count:,} x {name}" for name, count in models],
        "GPU clock": filter(None, [say_clock(job.clock)]),
        **facts.get("machine", {}),
        "driver": facts.get("drivers", ()),
        "recorded by nsys": facts.get("recorded_by", ()),
        "exported by nsys": facts.get("exported_by", ()),
    }
    clocks = job.find_frame("clocks", "hosts")
    if clocks is not None and "error_bound_ns" in clocks.columns:
        error = format_nanoseconds(clocks["error_bound_ns"].max() or 0)
        methods = clocks["method"].unique(maintain_order=True).to_list()
        lists["clocks of hosts"] = [f"{list_some(methods)}; error at most {error}"]
    made = {name: list_some([*texts]) for name, texts in lists.items() if texts}
    length = max(job.length, 1)
    made["recorded"] = focus["recorded"]
    made[BEGIN] = facts.get("begins_utc", "")
    made["captured"] = format_nanoseconds(job.length)
    for name, time in (
        ("before the focus", focus["begin_ns"]),
        ("focus of analysis", focus["end_ns"] - focus["begin_ns"]),
    ):
        made[name] = f"{format_nanoseconds(time)}, {format_share(time / length, 0)} of it"
    return {name: text for name, text in made.items() if text}


def _sum_work(device: Mapping[str, Any], host: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Return the components of scalabilities, per iteration."""
    sums = {"elapsed_ns": device.get("elapsed_ns"), "useful_ns": device.get("useful_ns")}
    useful, on_cpu = host.get("useful_ns"), host.get("cpu_efficiency")
    sums["host_useful_ns"] = useful
    # Thread states are measured of main threads, and the useful time of OpenMP is that of all threads.
    if useful and on_cpu and host.get("openmp_parallel_efficiency") is None:
        sums["host_cpu_ns"] = useful * on_cpu
    sums = {name: value / count for name, value in sums.items() if value is not None}
    return {**sums, "hosts": host.get("hosts", 0)}


# ---- comparing the runs ---------------------------------------------------------------------------


def compare_runs(
    runs: Sequence[Run],
    scaling: str | None = None,
    reference: str | None = None,
    regions: Sequence[str] = (),
) -> Study:
    """Return the study of these runs, whose figures of scalability are added. scaling: `strong` or `weak`,
    None to find it. reference: name or label of a run, None for the smallest that has iterations.
    """
    runs = sorted(runs, key=lambda run: (run.devices, run.nodes, run.ranks))
    first = _choose_reference(runs, reference)
    powers, why = _measure_growth(runs, first)
    power = sum(powers) / len(powers) if powers else None
    detected = None if power is None else "strong" if power < MIDDLE else "weak"
    is_mixed = bool(powers) and min(powers) < UNCLEAR and max(powers) > 1 - UNCLEAR
    is_clear = power is None or min(abs(power), abs(power - 1)) < UNCLEAR
    used = scaling or detected or "strong"
    for run in runs:
        _add_scalability(run, first, used, is_alone=len(runs) == 1)
    warnings = [
        *_compare_machines(runs),
        *_compare_intervals(runs),
        *_compare_work(runs),
        *_list_repeats(runs),
        *_compare_recordings(runs),
    ]
    if not (why or scaling) and len({run.units for run in runs}) > 1:
        warnings.append(WARNINGS["unknown_scaling"])
    if is_mixed:
        warnings.append(WARNINGS["mixed_scaling"])
    elif not (is_clear or scaling):
        warnings.append(WARNINGS["unclear_scaling"].format(why=why))
    if scaling and detected and scaling != detected:
        said = WARNINGS["other_scaling"]
        warnings.append(said.format(given=scaling, detected=detected, why=why))
    found = Scaling(detected, used, why, is_mixed)
    return Study(found, first.name, warnings, runs, list(regions))


def _choose_reference(runs: Sequence[Run], name: str | None) -> Run:
    if name is None:
        return next((run for run in runs if run.interval.iterations), runs[0])
    chosen = [run for run in runs if name.rstrip("/") in (run.name.rstrip("/"), run.label)]
    if not chosen:
        raise UsageError(
            f"--reference {name}: is none of the runs; give one of {', '.join(run.label for run in runs)}"
        )
    return chosen[0]


def _measure_growth(runs: Sequence[Run], first: Run) -> tuple[list[float], str]:
    """Return with which power of the number of devices the work of an iteration grows, for every run of
    another size of which it is known; and the mean of these, as text.
    """
    key = "useful_ns" if first.devices else "host_useful_ns"
    if not first.devices and all(run.sums.get("host_cpu_ns") for run in runs):
        # Threads that wait for CPUs are no more work.
        key = "host_cpu_ns"
    powers = [
        math.log(run.sums[key] / first.sums[key]) / math.log(run.units / first.units)
        for run in runs
        if run.units != first.units
        and run.interval.iterations
        and _are_alike(run, first)
        and run.sums.get(key)
        and first.sums.get(key)
    ]
    units = "GPUs" if first.devices else "ranks"
    mean = sum(powers) / max(len(powers), 1)
    why = f"the work of an iteration grows as {units}^{round(mean, 2) + 0.0:.2f}"
    return powers, why if powers else ""


def _are_alike(run: Run, first: Run) -> bool:
    """Return whether both are of the same iterations or neither has any, and of GPUs or of ranks
    without.
    """
    by, counts = (
        {one.sums.get(key) for one in (run, first)} for key in ("found_by", "iterations_of_job")
    )
    return (
        bool(run.interval.iterations) == bool(first.interval.iterations)
        and bool(run.devices) == bool(first.devices)
        # The same loop is found by other events, but executed as often.
        and (len(by) == 1 or len(counts) == 1)
    )


#: Ends of names of figures that are relative to a reference.
_RELATIVE = ("speedup", "efficiency", "global", "scalability")


def _add_scalability(run: Run, first: Run, used: str, is_alone: bool) -> None:
    """Add the figures of a run, and of its regions, that are relative to the reference; is_alone: there
    is no other run, and no scalability.
    """
    grown = run.units / max(first.units, 1)
    of_regions, of_first = (one.sums.get("regions", {}) for one in (run, first))
    parts = [(run.metrics, run.sums, first.sums)]
    parts += [
        (run.regions[name], sums, of_first.get(name, {}))
        for name, sums in of_regions.items()
        if name in run.regions
    ]
    for metrics, sums, reference in parts:
        _forget_scalability(metrics)
        if _are_alike(run, first) and not is_alone:
            _relate(metrics, sums, reference, grown, used == "weak")
    for name, sums in of_regions.items():
        lost = compute_loss(run.regions.get(name, {}), sums.get("elapsed_ns", 0.0))
        if lost is not None:
            run.regions[name]["lost_ns"] = lost


def _forget_scalability(metrics: Metrics) -> None:
    """Remove what an earlier study found relative to its reference."""
    for figures in (metrics, metrics.get("device", {}), metrics.get("host", {})):
        for name in [one for one in figures if one.endswith(_RELATIVE)]:
            del figures[name]


def _relate(
    metrics: Metrics, sums: dict[str, Any], reference: dict[str, Any], grown: float, is_weak: bool
) -> None:
    def divide(key: str, by: float) -> float | None:
        """Return what the reference has of a sum, by what the run has; of weak scaling times `by`."""
        own, other = sums.get(key), reference.get(key)
        return other / own * (by if is_weak else 1) if own and other else None

    if (speedup := divide("elapsed_ns", grown)) is not None:
        metrics |= {"speedup": speedup, "efficiency": speedup / grown}
    hosts = sums.get("hosts", 0) / max(reference.get("hosts", 0), 1)
    # Without GPUs MPI alone may be what is parallel.
    has_devices = bool(metrics.get("device"))
    of_mpi = None if has_devices else metrics.get("mpi", {}).get("parallel")
    for part, key, by in (("device", "useful_ns", grown), ("host", "host_useful_ns", hosts)):
        figures, scalability = metrics.get(part, {}), divide(key, by)
        parallel = figures.get("parallel", of_mpi)
        if scalability is not None and parallel is not None:
            figures["computation_scalability"] = scalability
            figures["global"] = scalability * parallel
    on_cpu, host = divide("host_cpu_ns", hosts), metrics.get("host", {})
    if on_cpu and not has_devices and "computation_scalability" in host:
        host["cpu_time_scalability"] = on_cpu
        host["cpu_scalability"] = host["computation_scalability"] / on_cpu
    instructions, useful = divide("instructions", grown), divide("useful_ns", grown)
    if instructions and useful:
        clock = sums["clock_hertz"] / reference["clock_hertz"]
        metrics["device"] |= {
            "instruction_scalability": instructions,
            "ipc_scalability": useful / instructions / clock,
            "frequency_scalability": clock,
        }


def _list_differing(runs: Sequence[Run], describe: Callable[[Run], str]) -> str:
    return list_differing((run.label, describe(run)) for run in runs)


def _compare_machines(runs: Sequence[Run]) -> list[str]:
    models = [sorted(run.gpu_models) for run in runs]
    if not any(len(one) > 1 for one in models) and len({tuple(one) for one in models if one}) < 2:
        return []
    named = "; ".join(
        f"{run.label}: {', '.join(one)}" for run, one in zip(runs, models, strict=True)
    )
    return [WARNINGS["machines"].format(named=named)]


def _compare_intervals(runs: Sequence[Run]) -> list[str]:
    bare = [run.label for run in runs if not run.interval.iterations]
    if len(bare) == len(runs):
        wholes = {run.interval.what for run in runs}
        return [WARNINGS["no_iterations"].format(wholes=", ".join(sorted(wholes)))]
    warnings = []
    if bare:
        warnings.append(WARNINGS["some_without_iterations"].format(runs=list_some(bare)))
    whole = [run for run in runs if run.interval.iterations]
    if differing := _list_differing(whole, lambda run: str(run.sums.get("found_by", ""))):
        warnings.append(WARNINGS["other_iterations"].format(differing=differing))
    if differing := _list_differing(whole, lambda run: f"{run.interval.iterations}"):
        warnings.append(WARNINGS["iteration_counts"].format(differing=differing))
    return warnings


def _group_alike(runs: Sequence[Run]) -> Iterator[tuple[str, list[Run], float]]:
    """Yield the runs with iterations on the same number of devices: that number, the runs by their work, the least
    first, and how many times as much the last does as the first: by instructions where all have them, else by
    useful time; 1 where that is not known, as on GPUs of several models.
    """
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        if run.interval.iterations:
            measured = run.useful if run.devices else run.threads
            groups.setdefault((run.size, measured), []).append(run)
    for (size, _), alike in groups.items():
        key = _find_measure(alike)
        known = sorted((run for run in alike if run.sums.get(key)), key=lambda run: run.sums[key])
        times = known[-1].sums[key] / known[0].sums[key] if known else 1.0
        yield size, known or alike, times


def _find_measure(runs: Sequence[Run]) -> str:
    """Return the figure that work of runs is measured by; "" for none."""
    if all(run.sums.get("instructions") for run in runs):
        return "instructions"
    is_one_model = len({tuple(sorted(run.gpu_models)) for run in runs}) == 1
    return ("useful_ns" if runs[0].devices else "host_useful_ns") if is_one_model else ""


def _compare_work(runs: Sequence[Run]) -> Iterator[str]:
    """Say which runs on the same number of devices do different work in an iteration."""
    for size, alike, times in _group_alike(runs):
        if times >= OTHER_WORK:
            said = WARNINGS["execute" if _find_measure(alike) == "instructions" else "compute"]
            most, least = alike[-1].label, alike[0].label
            yield said.format(units=size, times=times, most=most, least=least)


def _list_repeats(runs: Sequence[Run]) -> Iterator[str]:
    """Say which runs are repeats, of the same work on as many devices of one model, and how far apart they are."""
    for size, alike, times in _group_alike(runs):
        if times < OTHER_WORK and len(alike) > 1 and _find_measure(alike):
            lasts = sorted(run.metrics["elapsed_ns"] for run in alike)
            ends = " to ".join(map(format_nanoseconds, (lasts[0], lasts[-1])))
            said, apart = WARNINGS["repeats"], format_share(lasts[-1] / lasts[0] - 1)
            yield said.format(count=len(alike), units=size, ends=ends, apart=apart)


def _compare_recordings(runs: Sequence[Run]) -> list[str]:
    """Return further obstacles to a comparison of figures."""
    warnings = []
    named = [run for run in runs if run.programs]
    if differing := _list_differing(named, lambda run: ", ".join(run.programs)):
        warnings.append(WARNINGS["programs"].format(differing=differing))
    for what, describe in (
        ("the useful work of GPUs differs", lambda run: run.useful),
        ("host threads are not the same", lambda run: run.threads),
        ("ranks for each GPU are not the same", lambda run: f"{run.ranks / max(run.units, 1):g}"),
        ("recorded is not the same", lambda run: ", ".join(run.sums.get("recorded", ()))),
    ):
        if differing := _list_differing(runs, describe):
            warnings.append(f"warning: {what} ({differing})")
    return warnings
