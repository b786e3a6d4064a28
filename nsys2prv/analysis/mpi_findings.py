"""Findings of jobs without work on GPUs: for which rank the others wait in MPI, and what that rank
does longer.

Of each rank its main thread counts, from the end of MPI_Init to the begin of MPI_Finalize. Ranks
are compared segment by segment: between collectives that all ranks have to reach, by their own
order, else in equal parts of that time. So hosts' clocks need not agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import polars as pl
from msgspec.structs import replace

from nsys2prv.analysis.intervals import (
    Spans,
    clip_spans,
    find_gaps,
    intersect_spans,
    merge_spans,
    subtract_spans,
    unite_span_sets,
)
from nsys2prv.analysis.result import Context, Finding, JobRanks, Result
from nsys2prv.analysis.stragglers import (
    EQUAL_SEGMENTS,
    LEAST_SEGMENTS,
    Segments,
    find_culprits,
    make_culprit_finding,
    make_hiccup_finding,
    make_imbalance_findings,
)
from nsys2prv.analysis.text import format_nanoseconds
from nsys2prv.analysis.unit import Unit, find_io_spans, to_arrays
from nsys2prv.events.catalogue import load_catalogue, map_labels
from nsys2prv.events.mpi import ALL, MPI_LAYOUTS, get_meeting_values

#: What costs this share of the time at least is a finding.
LEAST = 0.03
#: Part of a rank's time outside MPI -> kind of finding, what ranks do, and what helps.
JOB_WIDE = {
    "host_io": (
        "host_io",
        "in file or network I/O",
        "read ahead in other threads, write fewer and larger blocks, or use MPI-IO collectively",
    ),
    "host_off": (
        "off_cpu",
        "off the CPU in no recorded call",
        "give each rank a core of its own (--cpus-per-task, --bind-to core), and look for other processes there",
    ),
}
#: Of the calls of a function about so many are ends of segments at most.
MOST_SEGMENTS = 1000
#: A range or function explains what a rank does longer if it has this share of the difference.
EXPLAINS = 0.5
#: Layouts of calls of the operating system, and of what a thread's states and samples are.
OS, STATE_LAYOUTS, SAMPLES = (
    ("osrt", "pthread"),
    ("thread_state", "thread_state_reason"),
    ("cpu_sample", "cpu_sample_stack"),
)
_CALLS = load_catalogue().name_sets["mpi_other"].list_known_values()
_INIT = [_CALLS["MPI_Init"], _CALLS["MPI_Init_thread"]]


def find_mpi_span(unit: Unit, thread: int) -> tuple[int, int] | None:
    """Return when a main thread is between MPI_Init and MPI_Finalize, else between its first and its
    last call of MPI; None where it has none.
    """
    in_mpi = unit.find_mpi_spans([thread])
    if not len(in_mpi):
        return None
    calls = unit.read_begins("mpi_other", ("call",)).filter(pl.col("thread") == thread)
    begin = calls.filter(pl.col("call").is_in(_INIT))["end"].max()
    end = calls.filter(pl.col("call") == _CALLS["MPI_Finalize"])["begin"].min()
    begin = int(in_mpi.begin[0] if begin is None else begin)
    return begin, max(int(in_mpi.end[-1] if end is None else end), begin)


def collect(unit: Unit) -> Iterator[tuple[str, pl.DataFrame]]:
    """Collect of each rank: its time (`hosts`, a row each); the time in MPI until each call
    (`steps`) and until the ends of equal parts (`parts`); time in MPI by call (`calls`); time outside it by
    NVTX range (`ranges`); samples outside it by function (`samples`).
    """
    for task in unit.tasks:
        thread = unit.find_main_thread(task)
        span = find_mpi_span(unit, thread)
        if span is None:
            continue
        one = pl.lit(task, pl.Int64).alias("task")
        in_mpi = clip_spans(unit.find_mpi_spans([thread]), *span)
        outside = intersect_spans(find_gaps(in_mpi, *span), unit.covered)
        yield "hosts", _divide_time(unit, thread, span, outside).with_columns(one)
        edges = np.linspace(*span, EQUAL_SEGMENTS + 1).astype(np.int64)
        yield (
            "parts",
            pl.DataFrame(
                {"part": np.arange(EQUAL_SEGMENTS), "mpi": in_mpi.within(edges[:-1], edges[1:])}
            ).with_columns(one, end=pl.Series(edges[1:])),
        )
        for layout in MPI_LAYOUTS:
            calls = unit.read_begins(layout, ("call",)).filter(
                (pl.col("thread") == thread) & pl.col("begin").is_between(*span, closed="left")
            )
            time = in_mpi.within(*to_arrays(calls, "begin", "end"))
            sums = calls.select("call", time=pl.Series(time, dtype=pl.Int64)).group_by("call").sum()
            of_layout = pl.lit(layout).alias("layout")
            yield "calls", sums.with_columns(of_layout)
            yield "steps", _list_steps(calls, in_mpi).with_columns(one, of_layout)
        if unit.has("nvtx_pushpop"):
            yield "ranges", _sum_ranges(unit, thread, outside).with_columns(one)
        for layout in filter(unit.has, SAMPLES):
            samples = unit.read_begins(layout, ("function",)).filter(pl.col("thread") == thread)
            samples = samples.filter(pl.Series(outside.contains(samples["begin"].to_numpy())))
            counts = samples.group_by("function").agg(count=pl.len().cast(pl.Int64))
            yield "samples", counts.with_columns(one)


def _divide_time(unit: Unit, thread: int, span: tuple[int, int], outside: Spans) -> pl.DataFrame:
    """Return a row: the length of a rank's time, and its parts outside MPI (ns), each moment in the
    first that applies.
    """
    calls = unite_span_sets([unit.find_thread_spans(layout, [thread]) for layout in OS])
    kinds = {
        "host_io": find_io_spans(unit, [thread]),
        "host_os": calls,
        "host_off": _find_off_cpu(unit, thread),
    }
    parts, left = {}, outside
    for name, spans in kinds.items():
        parts[name] = intersect_spans(left, spans).length
        left = subtract_spans(left, spans)
    rest = "host_compute" if unit.has(*STATE_LAYOUTS) else "host_unknown"
    length = int(unit.covered.within(*np.array([span]).T)[0])
    figures = {"length": length, **parts, rest: left.length}
    return pl.DataFrame([figures], schema=dict.fromkeys(figures, pl.Int64))


def _find_off_cpu(unit: Unit, thread: int) -> Spans:
    """Return when a thread was off the CPU, from the changes of its state."""
    changes = pl.concat(
        [
            unit.read_begins(layout, ("state",)).filter(pl.col("thread") == thread)
            for layout in STATE_LAYOUTS
        ]
    ).sort("begin")
    state, begin = to_arrays(changes, "state", "begin")
    away = state[:-1] == map_labels("thread_state")["off the cpu"]
    return merge_spans(begin[:-1][away], begin[1:][away])


def _list_steps(calls: pl.DataFrame, in_mpi: Spans) -> pl.DataFrame:
    """Return the calls of each function, some of very many: call, count (of its calls), number (from
    0), end, mpi (time in MPI until then).
    """
    rows = calls.select(
        "call",
        "end",
        pl.len().over("call").alias("count"),
        pl.int_range(pl.len()).over("call").alias("number"),
    )
    rows = rows.filter(pl.col("number") % (pl.col("count") // MOST_SEGMENTS + 1) == 0)
    until = in_mpi.until(rows["end"].to_numpy())
    return rows.with_columns(mpi=pl.Series(until, dtype=pl.Int64))


def _sum_ranges(unit: Unit, thread: int, outside: Spans) -> pl.DataFrame:
    """Return the time outside MPI (`time`), and in all (`host`), of NVTX ranges by `group` of names,
    as the options have them.
    """
    ranges = unit.read_begins("nvtx_pushpop", ("range",)).filter(pl.col("thread") == thread)
    begin, end, name = to_arrays(ranges, "begin", "end", "range")
    group = np.load(str(unit.options.groups), mmap_mode="r")[name].astype(np.int64)
    frame = pl.DataFrame({"group": group, "time": outside.within(begin, end), "host": end - begin})
    return frame.group_by("group").sum()


def conclude(frames: Mapping[str, pl.DataFrame], context: Context, result: Result) -> None:
    """Add the findings, the most costly first."""
    hosts = frames["hosts"].sort("task")
    if hosts.height < 2:
        result.missing.append(
            "what holds the job back cannot be told of one rank without work on GPUs"
        )
        return
    length = int(hosts["length"].median() or 0)
    devices = hosts.with_columns(device="task")
    job = JobRanks.from_job(context, devices, pl.DataFrame(), pl.DataFrame(), length)
    segments, least = _find_segments(frames, context, hosts["task"].to_numpy())
    culprits, hiccups = find_culprits(segments, job.length)
    findings = [make_hiccup_finding(job, hiccup) for hiccup in hiccups]
    reported = sum(hiccup.cost for hiccup in hiccups)
    if culprits:
        reported += culprits.cost
        one = make_culprit_finding(job, segments, culprits)
        where = tuple(_say_where(frames, context, culprits.tasks))
        findings.append(replace(one, evidence=(*one.evidence, *where)))
    findings += make_imbalance_findings(job, segments, reported)
    findings += _find_in_mpi(frames, context, least / job.length)
    findings += _find_job_wide(job)
    result.findings.extend(sorted(findings, key=lambda finding: -finding.share))


def _find_segments(
    frames: Mapping[str, pl.DataFrame], context: Context, tasks: np.ndarray
) -> tuple[Segments, float]:
    """Return the time that each rank is in MPI longer than the one that is so least, segment by
    segment; and the sum of what this one is (ns).
    """
    steps = frames["steps"].with_columns(
        ranks=pl.col("task").n_unique().over("layout", "call"),
        counts=pl.col("count").n_unique().over("layout", "call"),
        # Where all wait for all, nobody's waits are left for the next segment.
        meeting=(pl.col("layout") == "mpi_collective")
        & pl.col("call").is_in(get_meeting_values(ALL)),
    )
    steps = steps.filter(
        (pl.col("ranks") == len(tasks))
        & (pl.col("counts") == 1)
        & (pl.col("count") > LEAST_SEGMENTS)
    )
    between = f"{EQUAL_SEGMENTS} equal parts of the time"
    if steps.height:
        steps = steps.with_columns(best=pl.col("meeting") & (pl.col("count") >= EQUAL_SEGMENTS / 2))
        best = steps.sort("best", "count", "layout", "call", descending=[True, True, False, False])
        layout, call = best.select("layout", "call").row(0)
        table = steps.filter((pl.col("layout") == layout) & (pl.col("call") == call))
        table = table.sort("task", "number")
        between = f"calls of {context.label_names(table.head(1), 'call', layout)['call'][0]}"
    else:
        table = frames["parts"].sort("task", "part")
    in_mpi = table["mpi"].to_numpy().reshape(len(tasks), -1).T
    # Before the first call there is set-up.
    in_mpi = np.diff(in_mpi, axis=0).astype(float)
    ends = table.filter(pl.col("task") == tasks[0])["end"].to_numpy()[1:]
    least = in_mpi.min(axis=1, keepdims=True)
    none = np.zeros(len(tasks), np.int64)
    return Segments(tasks, in_mpi - least, ends, none, none, between), float(least.sum())


def _say_where(
    frames: Mapping[str, pl.DataFrame], context: Context, tasks: Sequence[int]
) -> Iterator[str]:
    """Say in which NVTX range, and in which function of its samples, a rank spends the time that
    the others do not.
    """
    named = False
    ranges = _compare(frames["ranges"], "group", "time", tasks)
    if ranges.height:
        most = ranges["more"].max()
        # Of ranges within each other the innermost that has most of it.
        host = frames["ranges"].group_by("group").agg(pl.col("host").sum())
        ranges = ranges.filter(pl.col("more") >= EXPLAINS * most).join(host, on="group")
        row = ranges.sort("host").row(0, named=True)
        name = dict(context.folded.select("group", "operation").unique().rows())[row["group"]]
        named = True
        yield (
            f"in NVTX range {name}: {format_nanoseconds(row['own'])} outside MPI; median of the others: "
            f"{format_nanoseconds(row['usual'])}"
        )
    samples = _compare(frames["samples"], "function", "count", tasks)
    if samples.height:
        row = samples.sort("more").row(-1, named=True)
        label = dict(context.labels["cpu_function"].rows()).get(row["function"], "")
        named = True
        yield (
            f"CPU samples outside MPI: {row['own']:,.0f} in {label}; median of the others: {row['usual']:,.0f}"
        )
    if not named:
        yield "where in the program is not recorded: add NVTX ranges, or samples (nsys --sample=process-tree)"


def _compare(frame: pl.DataFrame, name: str, value: str, tasks: Sequence[int]) -> pl.DataFrame:
    """Return what some ranks have more of (mean) than the others (median): name, own, usual, more."""
    if not frame.height:
        return frame
    count = frame["task"].n_unique() - len(tasks)
    is_own = pl.col("task").is_in(list(tasks))
    sums = frame.group_by(name).agg(
        own=pl.col(value).filter(is_own).sum() / len(tasks),
        # A rank without a row has none of it.
        usual=pl.when((~is_own).sum() * 2 > count)
        .then(pl.col(value).filter(~is_own).median())
        .otherwise(0.0),
    )
    return sums.with_columns(more=pl.col("own") - pl.col("usual")).filter(pl.col("more") > 0)


def _find_in_mpi(
    frames: Mapping[str, pl.DataFrame], context: Context, share: float
) -> Iterator[Finding]:
    if share < LEAST:
        return
    calls = pl.concat(
        [
            context.label_names(frames["calls"].filter(pl.col("layout") == layout), "call", layout)
            for layout in MPI_LAYOUTS
            if layout in context.labels
        ]
    )
    sums = calls.group_by("call").agg(pl.col("time").sum()).sort("time", "call", descending=True)
    total = max(int(sums["time"].sum()), 1)
    named = ", ".join(f"{call} {time / total:.0%}" for call, time in sums.head(3).rows())
    yield Finding(
        "mpi_time",
        f"Even the rank that waits least is in MPI for {share:.1%} of the time.",
        share,
        evidence=(f"time in MPI, of all ranks: {named}",),
        advice="send fewer and larger messages, and compute between non-blocking calls and their Wait",
        views=("mpi_time_2dh",),
    )


def _find_job_wide(job: JobRanks) -> Iterator[Finding]:
    for part, (kind, what, advice) in JOB_WIDE.items():
        values = job.devices.sort(part, descending=True)
        share = job.compute_share(part)
        if share >= LEAST:
            (worst,) = job.tasks.filter(pl.col("task") == values["task"][0])["who"]
            yield Finding(
                kind,
                f"Ranks are {what} for {share:.1%} of the time, outside MPI.",
                share,
                evidence=(
                    f"{format_nanoseconds(float(values[part].mean()))} per rank on average, at most "
                    f"{format_nanoseconds(float(values[part][0]))} on {worst}",
                ),
                advice=advice,
                views=("host_outside_mpi_2dh",),
            )
