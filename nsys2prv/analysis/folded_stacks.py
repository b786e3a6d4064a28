"""Fold the whole call stacks of host threads: how long each thread is in each of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import polars as pl

from nsys2prv.analysis.device_group import DeviceGroup, find_driving_threads
from nsys2prv.analysis.host_time import choose_thread
from nsys2prv.analysis.intervals import Spans, unite
from nsys2prv.analysis.result import Context, Result
from nsys2prv.analysis.stacks import CALLS, divide_time, keep_whole_stacks, weigh_samples
from nsys2prv.events.stacks import SEPARATOR, STACK_LAYOUTS

#: Of flame graphs: frames above each other, the least share of one, and those of single ranks.
MOST_DEPTH, LEAST_WIDTH, MOST_RANKS = 40, 0.005, 16
FLAME_SCHEMA = {"depth": pl.Int64, "name": pl.String, "begin_ns": pl.Int64, "time_ns": pl.Int64}


def collect(group: DeviceGroup) -> Iterator[tuple[str, pl.DataFrame]]:
    """Collect the time of each thread in each stack (`stacks`)."""
    rows, texts = group.reader.read_stacks(group.number)
    if not rows.height:
        return
    rows = rows.sort("begin", maintain_order=True)
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
    """Return when all GPUs of a process are idle, None where that is not known, and the threads that
    drive them.
    """
    work = group.work.filter(group.list_tasks(group.work) == task)
    devices = work["device"].unique().to_list()
    drivers = {one for device in devices for one in find_driving_threads(group, device)}
    drivers.add(choose_thread(group, task))
    if not devices or set(devices) & set(group.options.lossy_devices):
        return None, drivers
    return group.covered - unite(*(group.find_active_spans(one) for one in devices)), drivers


def conclude(frames: Mapping[str, pl.DataFrame], context: Context, result: Result) -> None:
    """Add the folded stacks, and the flame graph of threads that drive GPUs while these are idle."""
    stacks = frames["stacks"]
    if not stacks.height:
        layouts = (*CALLS, *STACK_LAYOUTS[len(CALLS) :])
        result.missing.append(f"call stacks: none recorded ({context.explain_absence(layouts)})")
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
    flames = [lay_out_flame(driving).with_columns(rank=pl.lit("all"))]
    if (ranks := driving["rank"].unique(maintain_order=True).to_list())[1:]:
        flames += [
            lay_out_flame(driving.filter(rank=rank)).with_columns(rank=pl.lit(rank))
            for rank in ranks[:MOST_RANKS]
        ]
    flame = pl.concat(flames).select("rank", *FLAME_SCHEMA)
    result.add("flame", flame)


def lay_out_flame(stacks: pl.DataFrame) -> pl.DataFrame:
    """Return the frames of a flame graph: `depth` (0 is the outermost), `name`, `begin_ns` (from the
    left) and `time_ns`; of `all` the whole, in depth 0. stacks: `stack`, `time_ns`.
    """
    sums = stacks.filter(pl.col("time_ns") > 0).group_by("stack").agg(pl.col("time_ns").sum())
    # So that stacks with the same begin stand together.
    sums = sums.sort(pl.col("stack").str.replace_all(SEPARATOR, "\0", literal=True))
    whole = int(sums["time_ns"].sum())
    sums = sums.with_columns(
        begin_ns=pl.col("time_ns").cum_sum() - pl.col("time_ns"),
        path=pl.lit("all" + SEPARATOR) + pl.col("stack"),
    ).with_columns(path=pl.col("path").str.split(SEPARATOR))
    levels = [pl.DataFrame(schema=FLAME_SCHEMA)]
    for depth in range(MOST_DEPTH):
        sums = sums.filter(pl.col("path").list.len() > depth)
        if not sums.height:
            break
        frames = sums.group_by(pl.col("path").list.head(depth + 1).list.join(SEPARATOR)).agg(
            pl.lit(depth, pl.Int64).alias("depth"),
            name=pl.col("path").first().list.get(depth),
            begin_ns=pl.col("begin_ns").min(),
            time_ns=pl.col("time_ns").sum(),
        )
        wide = frames.filter(pl.col("time_ns") >= LEAST_WIDTH * whole)
        levels.append(wide.sort("begin_ns").select(*FLAME_SCHEMA))
    return pl.concat(levels)
