"""Analyze NCCL and MPI collectives, the stragglers in them, and host clocks, whose errors limit the
precision of waits between ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import polars as pl

from nsys2prv._util.columns import ABSENT, COUNT, DURATION
from nsys2prv._util.text import format_count, list_some
from nsys2prv.conversion.clocks import is_aligned
from nsys2prv.conversion.job import Job
from nsys2prv.events.mpi import MPI_LAYOUTS
from nsys2prv.figures.device_group import Collected, DeviceGroup, Frames, label_values
from nsys2prv.figures.products import GPUS
from nsys2prv.figures.result import Context, Result, divide_columns, name_communicators
from nsys2prv.figures.thresholds import FEWEST_SIZES, FITS, SIZES_APART
from nsys2prv.match.groups import name_unknown
from nsys2prv.match.meetings import list_collectives, list_compared_kernels, list_mpi_waits
from nsys2prv.table.event_reader import EventReader

MPI_FIELDS = {
    "mpi_collective": ("call", "sent", "received", "communicator"),
    "mpi_point_to_point": ("call", "size", "communicator"),
}
#: Whether the size of a kernel or call is known; how many have no size where others do.
SIZED, UNSIZED = pl.col("bytes").fill_null(ABSENT) >= 0, "of_unknown_size"
#: Maximum number of listed pairs of waiting and late ranks: those with the longest waits.
MOST_PAIRS = 1000
#: Blocks of a kernel, one for each NCCL channel; and its algorithm, which few names contain.
_CHANNELS, _ALGORITHM = r"^grid (\d+)x1x1\b", r"_(TREE|RING)_"
#: Sums of kernels or calls.
SUMS = {
    "count": COUNT,
    "time_ns": DURATION.sum(),
    "bytes": pl.col("bytes").filter(SIZED).sum(),
    "sized": SIZED.sum().cast(pl.Int64),
}


def collect(unit: DeviceGroup) -> Collected:
    """Yield sums of NCCL kernels (`kernels`) and of MPI calls (`mpi`) by task."""
    fields = ("operation", "bytes", "communicator", "graph_node", "kernel", "launch")
    kernels = unit.read_begins("nccl_kernel", fields)
    by_task = kernels.with_columns(unit.list_tasks(kernels)).group_by(
        "task", "communicator", "operation", "kernel", "launch", maintain_order=True
    )
    yield "kernels", by_task.agg(**SUMS, replayed=(pl.col("graph_node") > 0).sum())
    for layout in MPI_LAYOUTS:
        if unit.has(layout):
            yield "mpi", _sum_mpi_calls(unit, layout)


def _list_matched(reader: EventReader) -> pl.DataFrame:
    """Return a row for each kernel of a matched collective, with `task`, `operation` and
    `bus_bandwidth` (B/s, or null).
    """
    table = list_compared_kernels(reader).rename({"call": "operation"})
    table = name_unknown(reader, table)
    speeds = reader.read_begins("nccl_transfer", ("bus_bandwidth",))
    # Their transfers begin when their waits end.
    speeds = speeds.select("thread", "bus_bandwidth", ready="begin").unique(("thread", "ready"))
    task = reader.rows.find("task", table["thread"])
    table = table.with_columns(task, ready=pl.col("begin") + pl.col("wait"))
    return table.join(speeds, on=["thread", "ready"], how="left", maintain_order="left")


def _sum_mpi_calls(unit: DeviceGroup, layout: str) -> pl.DataFrame:
    fields = MPI_FIELDS.get(layout, ("call",))
    calls = unit.read_begins(layout, fields)
    sizes = [pl.col(name) for name in fields if name in ("sent", "received", "size")]
    known = pl.any_horizontal(pl.lit(False), *(size >= 0 for size in sizes))
    size = pl.sum_horizontal(pl.lit(0, pl.Int64), *(size.clip(0) for size in sizes))
    absent = pl.lit(ABSENT, pl.Int64)
    calls = calls.with_columns(
        unit.list_tasks(calls),
        kind=pl.lit(layout),
        communicator=pl.col("communicator") if "communicator" in fields else absent,
        bytes=pl.when(known).then(size).otherwise(absent),
    )
    by_task = calls.group_by("kind", "call", "communicator", "task", maintain_order=True)
    return by_task.agg(**SUMS)


def conclude(frames: Frames, context: Context, result: Result) -> None:
    """Add tables of collectives to the result: kernels by operation, across ranks, stragglers, and
    MPI calls.
    """
    kernels, mpi = frames["kernels"], frames["mpi"]
    matched = _list_matched(context.reader)
    # One name for each communicator in all tables.
    members = name_communicators(kernels, context.tasks) if kernels.height else {}
    # On hosts that could not be placed against each other.
    unplaced = list_collectives(context.reader).filter(pl.col("late") < 0)["collective"].n_unique()
    if kernels.height:
        _add_sized("nccl", _sum_by_operation(kernels, members, context), result)
        if not (kernels["communicator"] >= 0).any():
            why = (
                "no NVTX payload identifies them (NCCL before 2.25.1, or exported without --include-json or --include-blobs)"
                if 2 * kernels["replayed"].sum() < kernels["count"].sum()
                else "the reports lack the capture of their CUDA graphs"
            )
            result.missing.append(f"communicators of NCCL kernels: {why}")
    if matched.height:
        _add_sized("across_ranks", _sum_across_ranks(matched, members, context), result)
        _add_sizes(matched, members, context, result)
        result.add("stragglers", _find_stragglers(matched, context))
        result.notes.extend(_list_excluded(kernels, matched))
    elif kernels.height and not unplaced:
        result.missing.append(
            f"waits, bandwidths and stragglers of NCCL collectives: {context.explain_absence(('nccl_collective',))}"
        )
    if unplaced:
        result.missing.append(
            f"waits, bandwidths and stragglers of {format_count(unplaced, 'NCCL collective')}: unknown, as the clocks of their nodes "
            "could not be aligned"
        )
    if mpi.height:
        _add_sized("mpi", _sum_mpi_over_tasks(mpi, context), result)
        _add_mpi_waiting(context, result)


def _tell_sizes(known: pl.Expr, all_of_them: pl.Expr) -> dict[str, pl.Expr]:
    """Return expressions for the bytes of kernels or calls (null if no size is known), and for the
    number of unknown sizes. known, all_of_them: numbers of known sizes and of all.
    """
    lacking = all_of_them - known
    return {
        "bytes": pl.when(known > 0).then(pl.col("bytes").filter(SIZED).sum()),
        UNSIZED: pl.when((known > 0) & (lacking > 0)).then(lacking),
    }


def _add_sized(name: str, rows: pl.DataFrame, result: Result) -> None:
    """Add a table, with the column UNSIZED if sizes are missing."""
    lacks = rows[UNSIZED].is_not_null().any()
    result.add(name, rows if lacks else rows.drop(UNSIZED))


def _sum_mpi_over_tasks(calls: pl.DataFrame, context: Context) -> pl.DataFrame:
    sums = calls.group_by("kind", "call", "communicator", maintain_order=True).agg(
        pl.col("count").sum(),
        **_tell_sizes(pl.col("sized").sum(), pl.col("count").sum()),
        time_ns=pl.col("time_ns").sum(),
        mean_ns=pl.col("time_ns").sum() / pl.col("count").sum(),
        max_of_a_rank_ns=pl.col("time_ns").max(),
    )
    names = [layout for layout in MPI_LAYOUTS if layout in context.labels]
    labelled = context.label_names(sums.drop("kind"), "call", *names)
    labelled = _label_communicators(labelled, context, "mpi_communicators")
    return labelled.sort("time_ns", descending=True, maintain_order=True)


def _add_mpi_waiting(context: Context, result: Result) -> None:
    """Add a table of how long each rank waits in MPI, by reason and by the rank it waits for."""
    waits, tasks = list_mpi_waits(context.reader), context.reader.rows.get_column("task")
    own, other = (pl.Series(tasks[waits[name].to_numpy()]) for name in ("thread", "other"))
    waits = waits.with_columns(task=own, waits_for=other, time=DURATION)
    pairs = waits.select("task", "waits_for").unique().with_row_index("communicator")
    met = pl.concat(pairs.select("communicator", task=side) for side in ("task", "waits_for"))
    time = pl.col("time")
    sums = {"waits": pl.len(), "wait_ns": time.sum(), "mean_ns": time.mean(), "max_ns": time.max()}
    by_kind = waits.group_by("task", "kind", maintain_order=True).agg(**sums)
    by_kind = by_kind.with_columns(compare_with_clock_error("task", "mean_ns", met, context))
    by_pair = waits.group_by("task", "waits_for", maintain_order=True).agg(**sums)
    names = dict(context.tasks.select("task", "who").rows())
    by_pair = by_pair.with_columns(pl.col("waits_for").replace_strict(names))
    for name, table in (("mpi_waiting", by_kind), ("mpi_waiting_for", by_pair)):
        table = table.sort("wait_ns", descending=True, maintain_order=True).head(MOST_PAIRS)
        if "kind" in table.columns:
            table = table.with_columns(label_values("kind", "mpi_waiting", None))
        table = context.label_tasks(table).rename({"rank": "waiting_rank"})
        result.add(name, table, count=f"{MOST_PAIRS:,}")


def _label_communicators(rows: pl.DataFrame, context: Context, name_set: str) -> pl.DataFrame:
    return context.label_names(rows, "communicator", name_set, unknown=pl.lit("unknown"))


def _label_operations(
    rows: pl.DataFrame, members: Mapping[int, str], context: Context
) -> pl.DataFrame:
    """Return operations by name, and NCCL communicators by members, with the dimension of their
    parallel groups; the last column (`communicator_hash`) is NCCL's number. members: communicator
    -> name by its members.
    """
    if mesh := context.get_mesh():
        rows = mesh.add_dimensions(rows)
    communicator = pl.col("communicator")
    rows = rows.with_columns(
        label_values("operation", "nccl_operation", "unknown"),
        by_members=communicator.replace_strict(members, default=None, return_dtype=pl.String),
    )
    labelled = _label_communicators(rows, context, "nccl_communicator")
    return labelled.with_columns(
        pl.coalesce("by_members", "communicator").alias("communicator"),
        communicator_hash=pl.when(pl.col("by_members").is_not_null()).then(communicator),
    ).drop("by_members")


def _sum_by_operation(
    kernels: pl.DataFrame, members: Mapping[int, str], context: Context
) -> pl.DataFrame:
    """Return values per communicator and operation over all NCCL kernels. If known, they include
    the `channels` of most kernels (one block each), and the number of kernels that use a tree, the
    only algorithm that kernel names show.
    """
    unknown = pl.lit(None, pl.String)
    kernels = context.label_names(kernels, "launch", "launch_configuration", unknown=unknown)
    kernels = context.label_names(kernels, "kernel", "nccl_kernels", unknown=unknown)
    channels = pl.col("launch").str.extract(_CHANNELS).cast(pl.Int64).sort_by("count")
    is_tree = pl.col("kernel").str.extract(_ALGORITHM) == "TREE"
    more = {
        "channels": channels.drop_nulls().last(),
        "tree_kernels": pl.when(is_tree.any()).then(pl.col("count").filter(is_tree).sum()),
    }
    rows = kernels.group_by("communicator", "operation", maintain_order=True).agg(
        ranks=pl.col("task").n_unique().cast(pl.Int64),
        kernels=pl.col("count").sum(),
        **_tell_sizes(pl.col("sized").sum(), pl.col("count").sum()),
        time_ns=pl.col("time_ns").sum(),
        mean_ns=pl.col("time_ns").sum() / pl.col("count").sum(),
        **more,
    )
    rows = rows.drop(name for name in more if not rows[name].count())
    rows = rows.sort("time_ns", descending=True, maintain_order=True)
    return _label_operations(rows, members, context)


def _add_sizes(
    matched: pl.DataFrame, members: Mapping[int, str], context: Context, result: Result
) -> None:
    """Add a table of transfers by size: whether latency or bandwidth dominates, and the share of
    the link speed reached.

    If an operation has enough sizes, its times are fitted by a latency and a time per byte, with
    the same relative error at all sizes.
    """
    keys = ("communicator", "operation")
    measured = matched.filter(SIZED & (pl.col("bytes") > 0) & (pl.col("transfer") > 0))
    each = measured.group_by(*keys, "collective").agg(
        pl.col("bytes").max(), pl.col("transfer", "bus_bandwidth").median()
    )
    size = (2 ** pl.col("bytes").log(2).ceil()).cast(pl.Int64)
    rows = each.group_by(*keys, up_to_bytes=size).agg(
        collectives=COUNT,
        x=pl.col("bytes").median(),
        median_transfer_ns=pl.col("transfer").median(),
        median_bus_gb_s=pl.col("bus_bandwidth").median() / 1e9,
    )
    # Sums of floats depend on the order.
    rows = rows.sort(*keys, "up_to_bytes")
    x, y = pl.col("x"), pl.col("median_transfer_ns")
    weight = 1 / y**2
    of_x, of_y, of_xx, of_xy, of_all = (
        (weight * one).sum().over(keys) for one in (x, y, x * x, x * y, 1)
    )
    slope = (of_all * of_xy - of_x * of_y) / (of_all * of_xx - of_x * of_x)
    # Neither can be below zero.
    slope = pl.when(of_y < slope * of_x).then(of_xy / of_xx).otherwise(slope.clip(0))
    rows = rows.with_columns(slope=slope)
    latency = ((of_y - pl.col("slope") * of_x) / of_all).clip(0)
    rows = rows.with_columns(latency_ns=latency)
    fitted = pl.col("latency_ns") + pl.col("slope") * x
    fits = (pl.len().over(keys) >= FEWEST_SIZES) & (
        x.max().over(keys) >= SIZES_APART * x.min().over(keys)
    )
    fits &= (fitted / y - 1).abs().max().over(keys) <= FITS
    share = pl.col("latency_ns") / fitted
    bound = pl.when(share > 0.5).then(pl.lit("latency")).otherwise(pl.lit("bandwidth"))
    rows = rows.with_columns(
        pl.when(fits).then(one).alias(name)
        for name, one in (
            ("latency_ns", pl.col("latency_ns")),
            ("latency_share", share),
            ("bound", bound),
        )
    )
    links = _find_links(matched, context)
    link = pl.col("communicator").replace_strict(links, default=None, return_dtype=pl.Float64)
    rows = rows.with_columns(link_gb_s=link, link_share=pl.col("median_bus_gb_s") / link)
    link_is_unknown = rows["link_gb_s"].null_count() > 0
    whole = (pl.col("collectives") * pl.col("median_transfer_ns")).sum().over(keys)
    rows = rows.sort(-whole, *keys, "up_to_bytes")
    shown = (
        "up_to_bytes",
        "collectives",
        "median_transfer_ns",
        "latency_ns",
        "latency_share",
        "bound",
        "median_bus_gb_s",
        "link_gb_s",
        "link_share",
    )
    rows = rows.select(*keys, *(name for name in shown if rows[name].count()))
    # The title names the columns that are there.
    parts = {
        "bound": "bound: by latency or bandwidth",
        "link_gb_s": "link: NVLink speed in one direction",
    }
    columns = "".join(f"; {text}" for name, text in parts.items() if name in rows.columns)
    result.add("sizes", _label_operations(rows, members, context), columns=columns)
    if link_is_unknown:
        result.notes.append(
            "link speeds are known only for NVLink between GPUs of one node; reports do not contain network speeds"
        )


def _find_links(matched: pl.DataFrame, context: Context) -> dict[int, float]:
    """Return communicator -> NVLink speed between its GPUs (GB/s, one direction), for communicators
    within one host and GPU models with a known speed.
    """
    models = {device: "/".join(sorted(names)) for device, names in context.options.gpus}
    devices = context.devices.select(pl.col("device", "task").cast(pl.Int64), "node")
    devices = devices.with_columns(
        model=pl.col("device").replace_strict(models, default="", return_dtype=pl.String)
    )
    members = matched.select("communicator", pl.col("task").cast(pl.Int64)).unique()
    members = members.join(devices, on="task").group_by("communicator")
    found = members.agg(pl.col("node").n_unique(), pl.col("model").unique())
    links = {}
    for communicator, nodes, own in found.rows():
        speeds = {
            next((one["gb_s"] / 2 for one in GPUS["links"] if re.search(one["model"], model)), None)
            for model in own
        }
        if nodes == 1 and len(speeds) == 1 and (speed := speeds.pop()):
            links[communicator] = float(speed)
    return links


def _sum_across_ranks(
    matched: pl.DataFrame, members: Mapping[int, str], context: Context
) -> pl.DataFrame:
    """Return values per communicator and operation over matched collectives. Bytes are summed over
    all their kernels.
    """
    wait, transfer, bandwidth = (pl.col(name) for name in ("wait", "transfer", "bus_bandwidth"))
    measured = bandwidth.is_not_null()
    carried = (bandwidth.cast(pl.Float64) * transfer).filter(measured).sum()
    rows = matched.group_by("communicator", "operation", maintain_order=True).agg(
        collectives=pl.col("collective").n_unique().cast(pl.Int64),
        ranks=pl.col("task").n_unique().cast(pl.Int64),
        **_tell_sizes(SIZED.sum().cast(pl.Int64), COUNT),
        wait_ns=wait.sum(),
        transfer_ns=transfer.sum(),
        mean_wait_ns=wait.mean(),
        mean_transfer_ns=transfer.mean(),
        max_late_ns=pl.col("late").max(),
        bus_gb_s=divide_columns(carried / 10**9, transfer.filter(measured).sum()),
        median_bus_gb_s=bandwidth.filter(measured).median() / 10**9,
        wait_share=divide_columns(wait.sum(), wait.sum() + transfer.sum()),
    )
    unsure = compare_with_clock_error("communicator", "mean_wait_ns", matched, context)
    rows = rows.with_columns(unsure).sort("wait_ns", descending=True, maintain_order=True)
    return _label_operations(rows, members, context)


def _find_stragglers(matched: pl.DataFrame, context: Context) -> pl.DataFrame:
    """Return for each rank how often it arrived last in a collective, and the cost."""
    last = pl.col("late").max().over("collective")
    rows = matched.with_columns(
        last=(pl.col("late") == last) & (last > 0), waited=pl.col("wait").sum().over("collective")
    )
    rows = rows.with_columns(waited=pl.col("waited") / pl.col("last").sum().over("collective"))
    by_task = rows.group_by("task", maintain_order=True).agg(
        collectives=COUNT,
        times_last=pl.col("last").sum().cast(pl.Int64),
        last_share=pl.col("last").sum() / pl.len(),
        total_late_ns=pl.col("late").filter("last").sum(),
        max_late_ns=pl.col("late").filter("last").max(),
        others_waited_ns=pl.col("waited").filter("last").sum(),
        waited_ns=pl.col("wait").sum(),
    )
    by_task = by_task.sort("others_waited_ns", "task", descending=[True, False])
    if mesh := context.get_mesh():
        by_task = mesh.add_places(by_task)
    unsure = compare_with_clock_error("task", "max_late_ns", matched, context)
    return context.label_tasks(by_task.with_columns(unsure), "node", "device")


def _list_excluded(kernels: pl.DataFrame, matched: pl.DataFrame) -> Iterator[str]:
    """Yield a note about NCCL kernels in no matched collective, by operation if that is known."""
    every = kernels.group_by("operation").agg(pl.col("count").sum())
    joined = every.join(matched.group_by("operation").agg(known=COUNT), on="operation", how="left")
    left = joined.with_columns(left=pl.col("count") - pl.col("known").fill_null(0))
    left = left.filter(pl.col("left") > 0).sort("left", "operation", descending=True)
    whole = int(every["count"].sum())
    if matched.height >= whole:
        return
    left = left.with_columns(label_values("operation", "nccl_operation", "unknown operation"))
    named = [
        f'{format_count(count, "kernel")} of "{name}"'
        for name, count in left.select("operation", "left").rows()
    ]
    # A match can name an operation that a kernel alone does not tell.
    is_sure = left["left"].sum() == whole - matched.height
    others = f", but not for {list_some(named)}" if is_sure else ""
    kernels_in_all = format_count(whole, "NCCL kernel")
    yield f"waits and the last rank to arrive are known for {matched.height:,} of {kernels_in_all}{others}"


# ---- clocks of hosts -----------------------------------------------------------------------------


CLOCK_COLUMNS = pl.Schema(
    {"host": pl.String, "method": pl.String, "offset_ns": pl.Int64}
    | {"drift_ppm": pl.Float64, "error_bound_ns": pl.Int64, "comparable": pl.Boolean}
)


def make_clock_table(job: Job) -> pl.DataFrame:
    """Return the correction of each host's clock: host, method, offset_ns, drift_ppm,
    error_bound_ns (null if unknown). The frame is empty with only one clock, or without
    corrections.
    """
    hosts = job.clock_record.hosts if job.clock_record else {}
    rows = [
        (name, one.method, one.offset_ns, one.drift_ppm, one.bound_ns, is_aligned(one))
        for name, one in hosts.items()
    ]
    table = pl.DataFrame(rows, schema=CLOCK_COLUMNS, orient="row")
    return table.sort("error_bound_ns", descending=True, nulls_last=False, maintain_order=True)


def conclude_clocks(_: Frames, context: Context, result: Result) -> None:
    """Add a table of the corrections of host clocks to the result."""
    result.add("hosts", context.clocks)


def compare_with_clock_error(
    key: str, figure: str, matched: pl.DataFrame, context: Context
) -> list[pl.Expr]:
    """Return a column (or none, with only one clock) that shows whether a value exceeds the
    relative clock error of the hosts that its collectives connect. It is null if this is unknown.

    key: column that identifies the rows, `task` or `communicator`. figure: column of the value
    (ns). matched: the collectives.
    """
    bounds = context.clocks
    if bounds.height < 2:
        return []
    hosts = context.tasks.select(pl.col("task").cast(pl.Int64), host="node")
    bounded_hosts = hosts.join(bounds.select("host", "error_bound_ns"), on="host", how="left")
    members = matched.select("communicator", pl.col("task").cast(pl.Int64)).unique()
    joined = members.join(bounded_hosts, on="task", how="left")
    if key == "task":
        # All whom a rank meets in any communicator.
        joined = members.rename({"task": "of"}).join(joined, on="communicator").drop("communicator")
        joined = joined.rename({"of": "task", "task": "other"})
    rows = joined.select(key, "host", "error_bound_ns").unique()
    error, is_alone = pl.col("error_bound_ns"), pl.len() == 1
    worst = pl.when(is_alone).then(0).when(error.is_not_null().all()).then(error.top_k(2).sum())
    of_each = dict(rows.group_by(key).agg(worst).rows())
    bound = pl.col(key).replace_strict(of_each, default=None, return_dtype=pl.Int64)
    return [(pl.col(figure) > bound).alias("exceeds_clock_error")]
