"""Divide time into disjoint parts: the time of each GPU, or of ranks without GPUs; the time of the
job along its critical path; and the time of host threads by their call stacks, as in flame graphs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import polars as pl

from nsys2prv._util.columns import ABSENT, COUNT, DURATION
from nsys2prv._util.intervals import EMPTY, SIDES, Spans, merge_spans, take_first, unite
from nsys2prv.events.stacks import SEPARATOR, STACK_LAYOUTS
from nsys2prv.figures.device_group import (
    BUSY,
    WORK,
    Collected,
    DeviceGroup,
    Frames,
    find_driving_threads,
    label_values,
    to_arrays,
)
from nsys2prv.figures.host_time import choose_thread, find_task_parts
from nsys2prv.figures.mesh import sum_by_rank
from nsys2prv.figures.result import DECLARED, KERNEL_NAMES, TEXTS, Context, Result
from nsys2prv.figures.stacks import (
    CALLS,
    divide_time,
    keep_whole_stacks,
    read_layouts,
    read_stacks,
    weigh_samples,
)
from nsys2prv.match.meetings import list_compared_kernels
from nsys2prv.replay.path import Cause, join_work

_TERMS = DECLARED["time"].terms
#: Parts of the time of a host, of a GPU, and of both over time: the display name of each, and its colour on
#: a page.
HOST_PARTS: dict[str, tuple[str, str]] = {
    **_TERMS["calls"],
    **{part: (said, colour) for part, (said, _, colour) in TEXTS["parts"].items()},
    **_TERMS["calls"],
}
IDLE = "idle_"
PARTS: dict[str, tuple[str, str]] = {
    **_TERMS["parts"],
    **{f"{IDLE}{part}": (f"idle: host {said}", at) for part, (said, at) in HOST_PARTS.items()},
}
BINS: dict[str, tuple[str, str]] = _TERMS["bins"] | HOST_PARTS
#: Part of the time of a GPU -> the part over time that it counts for; the rest is idle.
COARSE: dict[str, str] = _TERMS["coarse"]
#: Parts that have figures also where they have no time.
ALWAYS = {*_TERMS["parts"], *_TERMS["bins"], "unknown", f"{IDLE}unknown"}
#: Layouts with the time that an NCCL kernel waits for other ranks.
WAITS = ("nccl_collective", "nccl_point_to_point")
#: Number of bins over time: of all lanes together, and of each lane at least and at most.
ALL_BINS, FEWEST_BINS, MOST_BINS = 100_000, 200, 800
#: Means no GPU.
NO_DEVICE = -1


def list_lanes(group: DeviceGroup) -> list[tuple[int, int]]:
    """Return (task, device), sorted, for each pair of a task and a GPU on which it has work; and
    (task, NO_DEVICE) for ranks without any.
    """
    lanes = {(task, device) for device, task, _ in group.work_counts}
    busy = {one for task, _ in lanes for one in (task, group.find_host(task))}
    tasks = {*group.tasks}
    if group.has(*WORK):
        tasks &= {*group.task_of[group.reader.rows.get_column("rank") >= 0].tolist()}
    return sorted(lanes | {(task, NO_DEVICE) for task in tasks - busy})


def divide_lane(group: DeviceGroup, task: int, device: int) -> Iterator[tuple[str, Spans]]:
    """Divide the covered time of a GPU, or of a rank without a GPU (device NO_DEVICE): yield (part,
    spans) for each of PARTS, or of HOST_PARTS. A part may be yielded several times.
    """
    if device == NO_DEVICE:
        yield from find_task_parts(group, task, group.covered)
        return
    compute, communication, memory = (
        group.find_device_spans(device, *BUSY[name]) for name in ("compute", "nccl", "memory")
    )
    waits, transfers = _find_nccl_spans(group, device)
    busy = {
        "both": compute & communication,
        "compute": compute,
        "transfer": transfers & communication,
        "wait": waits & communication,
        "unmatched": communication,
        "copies": memory,
    }
    yield from take_first(busy.items())
    idle = group.covered - group.find_active_spans(device)
    for part, spans in find_task_parts(group, task, idle):
        yield f"{IDLE}{part}", spans


def _find_nccl_spans(group: DeviceGroup, device: int) -> tuple[Spans, Spans]:
    """Return the spans in which NCCL kernels on a device wait for other ranks, and those in which
    they move data.
    """
    if not group.has(*WAITS):
        return EMPTY, EMPTY

    def read() -> tuple[np.ndarray, ...]:
        kernels = read_layouts(group, WAITS, "late", "wait").filter(pl.col("late") >= 0)
        begin, end, wait, thread = to_arrays(kernels, *SIDES, "wait", "thread")
        return begin, np.minimum(begin + wait, end), end, group.device_of[thread]

    *times, device_of = group.remember("waits", read)
    begin, ready, end = (column[device_of == device] for column in times)
    return merge_spans(begin, ready), merge_spans(ready, end)


def collect(group: DeviceGroup) -> Collected:
    """Yield the division of time (ns) of each GPU or rank: in total (`lanes`), by iteration
    (`iterations`), and over time (`bins`; also for a GPU's host).
    """
    steady, covered = group.options.steady, group.options.covered_steady
    bins = np.arange(count_bins(group) + 1) * group.duration // count_bins(group)
    edges = steady.edges if steady else np.zeros(1, np.int64)
    for task, device in list_lanes(group):
        lane = {"task": pl.lit(task, pl.Int64), "device": pl.lit(device, pl.Int64)}
        if device in group.options.lossy_devices or (device == NO_DEVICE and group.has(*WORK)):
            unknown = dict.fromkeys(("length", *PARTS), pl.lit(None, pl.Int64))
            yield "lanes", pl.select(**lane, **unknown)
            continue
        is_host = device == NO_DEVICE
        own, coarse = (HOST_PARTS, HOST_PARTS) if is_host else (PARTS, _TERMS["bins"])
        lengths = {"length": covered.length, **dict.fromkeys(own, 0)}
        times = {
            key: {name: np.zeros(len(limits) - 1, np.int64) for name in names}
            for key, limits, names in (
                ("bins", bins, {**coarse, **HOST_PARTS}),
                ("iterations", edges, coarse),
            )
        }
        for part, spans in divide_lane(group, task, device):
            lengths[part] += covered.overlap(spans)
            name = COARSE.get(part, part)
            if name in coarse and len(spans):
                times["bins"][name] += np.diff(spans.until(bins))
                times["iterations"][name] += np.diff(spans.until(edges))
        for part, spans in () if is_host else find_task_parts(group, task, group.covered):
            times["bins"][part] += np.diff(spans.until(bins))
        times["lanes"] = {part: np.array([time]) for part, time in lengths.items()}
        for key, columns in times.items():
            number = np.arange(len(next(iter(columns.values()))))
            place = {"task": np.full_like(number, task), "device": np.full_like(number, device)}
            yield key, {**columns, "number": number, **place}


def count_bins(group: DeviceGroup) -> int:
    """Return the number of equal spans (bins) into which figures over time divide the trace."""
    rows = group.reader.rows
    lanes = max(rows.devices.height, rows.threads["rank"].n_unique(), 1)
    return min(max(ALL_BINS // lanes, FEWEST_BINS), MOST_BINS)


def conclude(frames: Frames, context: Context, result: Result) -> None:
    """Add tables of the division of time by GPU (or rank), by iteration and over time to the
    result.
    """
    lanes = frames["lanes"]
    if not lanes.height:
        result.missing.append(f"where the time went: {context.explain_absence(tuple(WORK))}")
        return
    lanes = lanes.sort("task", "device").with_row_index("lane")
    numbers = lanes.select("lane", "task", "device")
    devices = context.reader.rows.devices.select(pl.col("device").cast(pl.Int64), gpu="label")
    named = lanes.join(devices, "device", "left", maintain_order="left")
    processes = dict(context.reader.rows.threads.select("task", "process").unique().rows())
    named = named.with_columns(paraver_task=pl.col("task").replace_strict(processes))
    named = context.label_tasks(named, "node")
    parts = _list_parts(lanes, (*PARTS, *HOST_PARTS))
    if KERNEL_NAMES not in context.available and "compute" in parts:
        result.notes.append(
            f"communication kernels count as computing: {context.explain_absence((KERNEL_NAMES,))}"
        )
    columns = [pl.col(name).alias(f"{name}_ns") for name in ("length", *parts)]
    places = ("rank", "node", pl.col("gpu").alias("device"), "paraver_task")
    place = "GPU" if context.devices.height else "process"
    result.add("lanes", named.select(*places, *columns), place=place)
    if (mesh := context.get_mesh()) and len(mesh.dimensions) > 1:
        result.add("by_dimension", sum_by_rank(mesh, context), span=context.options.span_name)
    if frames["bins"].height:
        count = int(frames["bins"]["number"].max()) + 1
        shares = [
            (pl.col(name) / (context.duration / count)).round(4).alias(f"{name}_share")
            for name in _list_parts(frames["bins"], BINS)
        ]
        over_time = frames["bins"].join(numbers, ["task", "device"]).sort("lane", "number")
        over_time = over_time.select("lane", pl.col("number").alias("bin"), *shares)
        result.add("over_time", over_time)
    if frames["iterations"].height:
        each = frames["iterations"].join(numbers, ["task", "device"]).sort("lane", "number")
        each = each.join(_sum_lateness(context, numbers), ["lane", "number"], "left")
        begins = pl.Series("begin", context.options.steady.iteration_begins, dtype=pl.Int64)
        each = each.with_columns(begins.gather(each["number"]))
        names = ("begin", *_list_parts(each, BINS), "late", "delays")
        columns = [pl.col(name).alias(f"{name}_ns") for name in names]
        each = each.select("lane", (pl.col("number") + 1).alias("iteration"), *columns)
        result.add("by_iteration", each.fill_null(0))


def _list_parts(frame: pl.DataFrame, parts: Iterable[str]) -> list[str]:
    """Return the parts that have values in a frame. Host parts are included if they take time."""
    known = (part for part in parts if part in frame.columns)
    return [part for part in known if part in ALWAYS or frame[part].sum()]


def _sum_lateness(context: Context, lanes: pl.DataFrame) -> pl.DataFrame:
    """Return by lane and iteration (`number`) its delay at NCCL collectives (`late`), and the time
    that others wait only for it (`delays`), until the second to last rank arrived.
    """
    steady, late = context.options.steady, pl.col("late")
    if steady is None:
        return lanes.select("lane", number=pl.lit(0, pl.Int64), late=0, delays=0).clear()
    rows = context.reader.rows.threads.select("thread", "task", "device").cast(pl.Int64)
    known = list_compared_kernels(context.reader).select("thread", "begin", "collective", "late")
    known = known.cast(pl.Int64).join(rows, "thread")
    is_last = late == late.max().over("collective")
    before = late.top_k(2).min().over("collective")
    edges = pl.Series(steady.edges)
    known = known.with_columns(
        number=edges.search_sorted(known["begin"], "right").cast(pl.Int64) - 1,
        delays=pl.when(is_last).then(late - before).otherwise(0),
    )
    sums = known.join(lanes, ["task", "device"]).group_by("lane", "number")
    return sums.agg(pl.col("late", "delays").sum())


# ---- the critical path ---------------------------------------------------------------------------


CRITICAL_PATH = "critical_path"
#: On these the path is on a device that works.
WORKING = (Cause.COMPUTATION, Cause.NCCL, Cause.MEMORY, Cause.GRAPH)
#: Columns of the table of ranks -> the causes that they add up.
PATH_PARTS = {
    "kernels_ns": (Cause.COMPUTATION, Cause.GRAPH),
    "nccl_ns": (Cause.NCCL,),
    "memory_ns": (Cause.MEMORY,),
}


def collect_path(unit: DeviceGroup) -> Collected:
    """Yield the time on the critical path by task, cause, class and kernel."""
    pieces = unit.read_begins(CRITICAL_PATH, ("cause", "class"))
    work = unit.work.select(pl.col("thread", "name").cast(pl.Int64), "begin", "end")
    pieces = join_work(pieces, work).with_columns(
        unit.list_tasks(pieces),
        name=pl.when(pl.col("cause").is_in([Cause.COMPUTATION, Cause.NCCL])).then("name"),
    )
    begin, end = unit.options.get_steady_span(unit.duration)
    steady = (pl.col("end").clip(begin, end) - pl.col("begin").clip(begin, end)).sum()
    keys = ("task", "cause", "class", "name")
    sums = pieces.group_by(keys, maintain_order=True).agg(
        pieces=COUNT,
        time_ns=DURATION.sum(),
        steady_ns=steady,
    )
    yield "pieces", sums


def conclude_path(unit_frames: Frames, context: Context, result: Result) -> None:
    """Add tables of the critical path by cause, rank, class and kernel to the result."""
    pieces, steady = unit_frames["pieces"], context.options.steady is not None
    # Shares of the time of the whole job, also for ranks, classes and kernels.
    whole = {name: max(int(pieces[name].sum()), 1) for name in ("time_ns", "steady_ns")}
    parts = {
        name: pl.col("time_ns").filter(pl.col("cause").is_in(list(causes))).sum()
        for name, causes in PATH_PARTS.items()
    }
    sets = [name for name in ("kernels", "nccl_kernels") if name in context.labels]
    of_classes = pieces.filter(pl.col("class") != ABSENT)
    by_rank = _sum_shares(pieces, whole, "task", **parts).drop("pieces")
    by_kernel = _sum_shares(pieces.filter(pl.col("name").is_not_null()), whole, "name")
    frames = {
        "causes": _sum_shares(pieces, whole, "cause").with_columns(
            label_values("cause", "critical_path", "unknown")
        ),
        "ranks": context.label_tasks(
            by_rank.with_columns(other_ns=pl.col("time_ns") - pl.sum_horizontal(*PATH_PARTS))
        ),
        "classes": _sum_shares(of_classes, whole, "class").with_columns(
            label_values("class", "kernel_class", "unknown")
        ),
        "by_kernel": context.label_names(by_kernel, "name", *sets).rename({"name": "kernel"}),
    }
    waiting = pieces.filter(~pl.col("cause").is_in(list(WORKING)))
    shares = {name: waiting[name].sum() / whole[name] for name in whole}
    idle = f"all GPUs are idle for {shares['time_ns']:.1%} of it"
    if steady:
        idle += f", in the steady state for {shares['steady_ns']:.1%}"
    for name, frame in frames.items():
        shown = frame if steady else frame.drop("steady_ns", "steady_share")
        result.add(name, shown, idle=idle)


def _sum_shares(
    pieces: pl.DataFrame, whole: Mapping[str, int], key: str, **more: pl.Expr
) -> pl.DataFrame:
    """Return the number of path pieces by a column, their time (ns), its share of the whole path,
    the same for the steady state, and further sums.
    """
    sums = pieces.group_by(key, maintain_order=True).agg(
        pl.col("pieces", "time_ns").sum(),
        (pl.col("time_ns").sum() / whole["time_ns"]).alias("share"),
        pl.col("steady_ns").sum(),
        (pl.col("steady_ns").sum() / whole["steady_ns"]).alias("steady_share"),
        **more,
    )
    return sums.sort("time_ns", key, descending=[True, False])


# ---- call stacks of host threads -----------------------------------------------------------------


#: Limits of flame graphs: depth, minimum share of a frame, and number of single ranks.
MOST_DEPTH, LEAST_WIDTH, MOST_RANKS = 40, 0.005, 16
FLAME_SCHEMA = {"depth": pl.Int64, "name": pl.String, "begin_ns": pl.Int64, "time_ns": pl.Int64}


def collect_stacks(group: DeviceGroup) -> Collected:
    """Yield the time of each thread in each call stack (`stacks`)."""
    rows, texts = read_stacks(group)
    if not rows.height:
        return
    deep = texts.str.contains(SEPARATOR, literal=True).to_numpy()
    for (thread,), own in rows.group_by("thread", maintain_order=True):
        task = int(group.task_of[thread])
        idle, drivers = group.remember(
            ("idle and drivers", task), lambda task=task: _find_idle(group, task)
        )
        own = own.rename({"text": "place"})
        calls = [own.filter(layout=number) for number in range(len(CALLS))]
        samples = own.filter(pl.col("layout") >= len(CALLS))
        samples = keep_whole_stacks(samples, pl.Series(deep[samples["place"].to_numpy()]))
        samples = samples.with_columns(lasts=weigh_samples(samples["begin"]))
        frame = divide_time(group.covered, calls, samples).rename({"time": "time_ns"})
        idle_ns = pl.lit(None, pl.Int64)
        if idle is not None:
            while_idle = divide_time(idle, calls, samples).select("place", idle_ns="time")
            frame = frame.join(while_idle, on="place", how="left")
            idle_ns = pl.col("idle_ns").fill_null(0)
        frame = frame.with_columns(
            task=pl.lit(task, pl.Int64),
            thread=pl.lit(int(thread), pl.Int64),
            drives_gpus=pl.lit(int(thread) in drivers),
            stack=texts.gather(frame["place"]),
            idle_ns=idle_ns,
        )
        yield "stacks", frame.drop("place")


def _find_idle(group: DeviceGroup, task: int) -> tuple[Spans | None, set[int]]:
    """Return the spans in which all GPUs of a process are idle (None if unknown), and the threads
    that launch work on them.
    """
    devices = [one for one in group.devices if task in group.list_device_tasks(one)]
    pairs = group.launch_pairs if devices else ()
    drivers = {one for one, thread in pairs if int(group.device_of[thread]) in devices}
    if devices and not drivers:
        drivers = {one for device in devices for one in find_driving_threads(group, device)}
    elif not group.has(*WORK):
        drivers = {choose_thread(group, task)}
    if not devices or set(devices) & set(group.options.lossy_devices):
        return None, drivers
    return group.covered - unite(*(group.find_active_spans(one) for one in devices)), drivers


def conclude_stacks(frames: Frames, context: Context, result: Result) -> None:
    """Add the folded stacks, and the flame graph of threads that launch GPU work while the GPUs are
    idle, to the result.
    """
    stacks = frames["stacks"]
    if not stacks.height:
        absent = context.explain_absence(STACK_LAYOUTS)
        result.missing.append(f"call stacks: {absent}")
        return
    places = ("task", "thread", "drives_gpus", "stack")
    stacks = stacks.group_by(places, maintain_order=True).agg(
        pl.col("time_ns", "count").sum(),
        pl.when(pl.col("idle_ns").is_not_null().any())
        .then(pl.col("idle_ns").sum())
        .alias("idle_ns"),
    )
    by_time = pl.coalesce("idle_ns", "time_ns")
    stacks = stacks.sort("task", "thread", -by_time, -pl.col("time_ns"), "stack")
    names = context.reader.rows.threads.select("thread", row="row")
    labelled = stacks.join(names, on="thread", maintain_order="left").drop("thread")
    labelled = context.label_tasks(labelled.rename({"row": "thread"}))
    columns = ("rank", "thread", "drives_gpus", "stack", "time_ns", "idle_ns", "count")
    result.add("stacks", labelled.select(columns))
    driving = labelled.filter("drives_gpus").select("rank", "stack", time_ns=by_time)
    result.add("flame", lay_out_flames(driving))


def lay_out_flames(stacks: pl.DataFrame) -> pl.DataFrame:
    """Return the frames of flame graphs of all ranks together (`rank` is "all"), and of each of
    several ranks: `depth` (0 is the outermost), `name`, `begin_ns` (from the left) and `time_ns`.
    The frame `all` in depth 0 contains the whole. stacks: `rank`, `stack`, `time_ns`.
    """
    graphs = [stacks.select("stack", "time_ns", graph=pl.lit(0))]
    ranks = stacks["rank"].unique(maintain_order=True).head(MOST_RANKS).to_frame()
    ranks = ranks.with_columns(graph=pl.int_range(1, pl.len() + 1, dtype=pl.Int32))
    if ranks.height > 1:
        graphs.append(stacks.join(ranks, "rank").select("stack", "time_ns", "graph"))
    sums = pl.concat(graphs).filter(pl.col("time_ns") > 0)
    sums = sums.group_by("graph", "stack").agg(pl.col("time_ns").sum())
    # So that stacks with the same begin stand together.
    sums = sums.sort("graph", pl.col("stack").str.replace_all(SEPARATOR, "\0", literal=True))
    path = (pl.lit("all" + SEPARATOR) + pl.col("stack")).str.split(SEPARATOR)
    sums = sums.with_columns(
        whole=pl.col("time_ns").sum().over("graph"),
        begin_ns=pl.col("time_ns").cum_sum().over("graph") - pl.col("time_ns"),
        path=path,
    )
    levels = [pl.DataFrame(schema={"graph": pl.Int32, **FLAME_SCHEMA})]
    for depth in range(MOST_DEPTH):
        sums = sums.filter(pl.col("path").list.len() > depth)
        if not sums.height:
            break
        above = pl.col("path").list.head(depth + 1).list.join(SEPARATOR)
        frames = sums.group_by("graph", above).agg(
            pl.lit(depth, pl.Int64).alias("depth"),
            pl.col("whole").first(),
            name=pl.col("path").first().list.get(depth),
            begin_ns=pl.col("begin_ns").min(),
            time_ns=pl.col("time_ns").sum(),
        )
        wide = frames.filter(pl.col("time_ns") >= LEAST_WIDTH * pl.col("whole"))
        levels.append(wide.select(levels[0].columns))
    names = ["all", *ranks["rank"]]
    laid_out = pl.concat(levels).sort("graph", "depth", "begin_ns")
    rank = pl.Series("rank", names, pl.String).gather(laid_out["graph"])
    return laid_out.select(rank, *FLAME_SCHEMA)
