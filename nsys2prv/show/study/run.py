"""Make a run of a study from a finished job: its values in the focus of analysis, its work, and its
environment.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import polars.selectors as cs

from nsys2prv._util.errors import Nsys2prvError
from nsys2prv._util.text import format_nanoseconds, format_share, list_some
from nsys2prv.figures.device_group import COMMUNICATION, list_labels
from nsys2prv.figures.efficiencies import HOST_THREADS, USEFUL
from nsys2prv.figures.study_model import (
    FORMAT,
    Interval,
    Metrics,
    Run,
    Work,
    name_metrics,
)
from nsys2prv.show.finished_job import FinishedJob
from nsys2prv.show.study.formats import Study
from nsys2prv.show.text import say_clock
from nsys2prv.show.thresholds import LONGER, REGULAR

#: Work that does not count for iterations: kernels that communicate are counted by operation, and some calls
#: occur once in a job.
NO_WORK = (
    list_labels("kernel_class")[COMMUNICATION],
    "MPI_Init",
    "MPI_Init_thread",
    "MPI_Finalize",
)
#: Start of a run, in its environment.
BEGIN = "begin (UTC)"
#: A table missing from a run.
NO_ROWS = pl.DataFrame(schema={"elapsed_ns": pl.Int64})


def read_earlier(path: Path) -> list[Run]:
    """Return the runs of an earlier study, or the single run in a file of `report --json`."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Nsys2prvError(f"{path}: cannot be read as JSON: {error}") from error
    if isinstance(content, dict) and content.get("format") == FORMAT:
        return Study.from_dict(content, str(path)).runs
    job = FinishedJob.read(path)
    if job.find_frame("efficiencies", "focus") is None:
        raise Nsys2prvError(f"{path}: has no efficiencies of a job; give its reports instead")
    return [make_run(str(path), job)]


def make_run(name: str, job: FinishedJob) -> Run:
    """Make a run of a study from the efficiencies of a finished job."""
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
        # Extrapolated to all devices if some were not sampled.
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
    """Return a text about iterations that are regularly longer than others, such as `every 5th 1.4
    × as long`.
    """
    times = iterations / iterations.median()
    at = times.ge(LONGER).arg_true()
    steps = at.diff().drop_nulls().unique()
    if len(at) < REGULAR or len(steps) != 1 or steps[0] < 2:
        return []
    return [f"every {steps[0]}th {times.gather(at).median():.1f} × as long"]


def _estimate_errors(tables: Mapping[str, pl.DataFrame]) -> Metrics:
    """Return the standard errors, over iterations, of mean efficiencies and mean time."""
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
    """Return the phases of a run, or the whole run as one phase if unknown."""
    phases = job.find_frame("findings", "phases")
    if phases is None or phases.is_empty():
        return [("run", 0, job.duration)]
    return phases.select("phase", "begin_ns", "time_ns").rows()


def _measure_balance(tables: Mapping[str, pl.DataFrame]) -> dict[str, float]:
    """Return the useful share of each GPU (without GPUs, each rank); for MPI alone, the share of
    time outside MPI.
    """
    for name, key in (("devices", "device"), ("hosts", "rank")):
        frame = tables.get(name, NO_ROWS)
        for share in ("useful_share", "outside_mpi_share"):
            if share in frame.columns:
                return dict(frame.select(key, share).drop_nulls().rows())
    return {}


def _measure_work(job: FinishedJob, focus: Mapping[str, Any]) -> dict[str, dict[str, Work]]:
    """Return kernels by class and communication by operation, over all ranks, divided by the number
    of iterations; empty without iterations.
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
    """Return facts about where and how a run was executed and recorded, and the part of it that the
    values cover.
    """
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
    """Return the sums from which scalability is computed, per iteration."""
    sums = {"elapsed_ns": device.get("elapsed_ns"), "useful_ns": device.get("useful_ns")}
    useful, on_cpu = host.get("useful_ns"), host.get("cpu_efficiency")
    sums["host_useful_ns"] = useful
    # Thread states are measured of main threads, and the useful time of OpenMP is that of all threads.
    if useful and on_cpu and host.get("openmp_parallel_efficiency") is None:
        sums["host_cpu_ns"] = useful * on_cpu
    sums = {name: value / count for name, value in sums.items() if value is not None}
    return {**sums, "hosts": host.get("hosts", 0)}
