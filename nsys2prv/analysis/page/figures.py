"""The figures of the page: where the time of devices went, sampled metrics, iterations, operations.
Of very many rows the mean is shown, and those that differ most from it.
"""

from __future__ import annotations

import base64
import re
import struct
import zlib
from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl
from msgspec.structs import replace

from nsys2prv.analysis.iterations import PARTS
from nsys2prv.analysis.nvtx_operations import BETWEEN
from nsys2prv.analysis.page.parts import (
    MOST_ROWS,
    Bars,
    Block,
    Figure,
    Grid,
    HeatMap,
    Items,
    Material,
)

#: Colour-blind safe.
BLUE, SKY, RED, ORANGE, GREY = "#0072B2", "#56B4E9", "#D55E00", "#E69F00", "#999999"
#: What hosts do while devices are idle: column -> name, colour.
IDLE = {
    "mpi_ns": ("idle: host in MPI", "#CC79A7"),
    "nccl_ns": ("idle: host in NCCL", "#8C564B"),
    "io_ns": ("idle: host in I/O", "#009E73"),
    "synchronisation_ns": ("idle: host waits for it", "#F0E442"),
    "launch_ns": ("idle: host in CUDA calls", "#7F7FBF"),
    "unknown_ns": ("idle: cause unknown", GREY),
}
#: What devices do: name and colour -> ns, of the columns of `divide_elapsed_time`.
BUSY = {
    ("computing", BLUE): pl.col("compute_ns") - pl.col("overlapped_ns"),
    ("computing and communicating", SKY): pl.col("overlapped_ns"),
    ("communication alone", RED): pl.col("nccl_exposed_ns"),
    ("copies alone", ORANGE): pl.col("exposed_ns") - pl.col("nccl_exposed_ns"),
}
#: Metrics that are shown open, in this order; others are folded away.
FIRST = (
    "SMs Active [Throughput %]",
    "Tensor Active [Throughput %]",
    "DRAM Read Bandwidth [Throughput %]",
    "DRAM Write Bandwidth [Throughput %]",
    "IB: Bytes sent [bytes/ms]",
    "IB: Bytes received [bytes/ms]",
)
#: Maps of metrics on a page.
MOST_MAPS = 48
#: Rows of a figure that are shown one by one; of more, so many that differ most.
MOST_SHOWN, MOST_WORST = 40, 24
#: Colours of maps from low to high, evenly spaced: viridis, which is colour-blind safe; style.css has
#: them too.
COLOURS = (
    "44015448186a472d7b4240863b528b33638d2c728e26828e21918c"
    "1fa08828ae803fbc735ec96284d44baddc30d8e219fde725"
)


def divide_elapsed_time(material: Material) -> Iterator[Block]:
    """Divide the time of each device."""
    devices = material.find_frame("efficiencies.devices")
    if devices is None:
        return
    elapsed = int(material.job.get("covered_ns", material.job["duration_ns"])) or 1
    columns = ["overlapped_ns", "nccl_exposed_ns"]
    overlap, gaps = (
        material.find_frame(one) for one in ("overlap.devices", "idle.gaps_of_devices")
    )
    if overlap is None:
        devices = devices.with_columns(pl.lit(0).alias(name) for name in columns)
    else:
        own = overlap.select("device", *columns)
        devices = devices.join(own, on="device", how="left", maintain_order="left")
    idle = {IDLE["unknown_ns"]: elapsed - pl.col("active_ns")}
    if gaps is not None:
        sums = gaps.group_by("device").agg(pl.col(*IDLE).sum().name.prefix("idle_"))
        devices = devices.join(sums, on="device", how="left", maintain_order="left")
        idle = {part: pl.col(f"idle_{column}") for column, part in IDLE.items()}
    times = devices.fill_null(0).select(
        time.alias(name) for (name, _), time in (BUSY | idle).items()
    )
    yield _divide_rows(
        "Each device's elapsed time",
        devices["device"].to_list(),
        times.to_numpy() / elapsed,
        [*BUSY, *idle],
        "of the elapsed time",
        "Copies are all memory operations; alone means while the device computes nothing.",
    )


def divide_iterations(material: Material) -> Iterator[Block]:
    """Divide the iterations of the steady state."""
    each = material.find_frame("iterations.each")
    if each is None:
        return
    columns = [column for column in PARTS if column in each.columns]
    colours = dict(zip(PARTS, (BLUE, RED, ORANGE, GREY), strict=True))
    longest = each["time_ns"].max()
    yield _divide_rows(
        "How a GPU spends each iteration",
        each["iteration"].to_list(),
        each.select(columns).cast(pl.Float64).to_numpy() / longest,
        [(PARTS[column], colours[column]) for column in columns],
        "of the longest iteration",
    )


def _divide_rows(
    title: str,
    labels: Sequence[object],
    values: np.ndarray,
    parts: Sequence[tuple[str, str]],
    axis: str,
    note: str = "",
) -> Bars:
    """Return bars of the parts that any row has. values: fractions of 1 (rows, parts)."""
    values = np.nan_to_num(values)
    some = [at for at in range(len(parts)) if values[:, at].any()]
    return Bars(
        title=title,
        labels=labels,
        values=values[:, some],
        parts=[parts[at] for at in some],
        axis=axis,
        note=note,
    )


def map_use(material: Material) -> Iterator[Block]:
    """Show how devices are used over time."""
    use = material.find_frame("metrics.use")
    for column, activity in (
        ("compute_share", "computing"),
        ("nccl_share", "communicating"),
        ("active_share", "doing any work"),
    ):
        if use is not None and use[column].max():
            title, folded = f"Devices {activity} over time", column == "active_share"
            percent = use.with_columns(pl.col(column) * 100)
            yield _map_over_time(material, title, percent, column, "device", "% of a bin", folded)


def map_metrics(material: Material) -> Iterator[Block]:
    """Show sampled metrics over time, and name those that are not shown."""
    maps = material.find_frame("metrics.map")
    if maps is None:
        return
    greatest = dict(maps.group_by("metric").agg(pl.col("mean").max()).rows())
    order = sorted(
        (name for name, most in greatest.items() if most),
        key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name),
    )
    maps = maps.with_columns(label=pl.format("{} {}", "node", "device"))
    parts = maps.partition_by("metric", as_dict=True)
    for name in order[:MOST_MAPS]:
        unit = re.search(r"%|[^\[]*(?=\]$)|$", name)[0] or "mean"
        folded = name not in FIRST
        yield _map_over_time(material, name, parts[(name,)], "mean", "label", unit, folded)
    silent = sorted(set(greatest) - set(order))
    notes = [f"0 all the time: {', '.join(silent)}"] if silent else []
    if left := order[MOST_MAPS:]:
        notes.append(f"not drawn, as there are more than {MOST_MAPS}: {', '.join(left)}")
    yield Items(items=notes)


def _map_over_time(
    material: Material,
    title: str,
    frame: pl.DataFrame,
    column: str,
    row: str,
    unit: str,
    folded: bool,
) -> HeatMap:
    """Show a column of a frame over time (`bin`), a row for each value of `row`. unit: what is
    counted; of percentages 100 has the brightest colour.
    """
    labels = frame[row].unique(maintain_order=True).to_list()
    values = np.full((len(labels), int(frame["bin"].max()) + 1), np.nan)
    at = frame[row].replace_strict(labels, range(len(labels)), return_dtype=pl.Int64)
    values[at.to_numpy(), frame["bin"].to_numpy()] = frame[column].to_numpy()
    return HeatMap(
        title=title,
        labels=labels,
        values=values,
        axis="time",
        end=f"{material.job['duration_ns'] / 1e9:.4g} s",
        quantity=unit,
        high=100 if unit.startswith("%") else np.nanmax(values, initial=0) or 1,
        folded=folded,
    )


def make_operation_tree(material: Material) -> Iterator[Block]:
    """Return the operations as a tree; of very many those that take the most time."""
    tree = material.find_frame("operations.tree")
    if tree is None:
        return
    time = "gpu_ns" if "gpu_ns" in tree.columns else "host_ns"
    shown = tree.filter(pl.col(time) >= tree[time].top_k(MOST_ROWS).min())
    outer: list[str] = []
    names, depths = [], []
    for path, depth in shown.select("path", "depth").rows():
        names.append(path.removeprefix("".join(f"{one}{BETWEEN}" for one in outer[:depth])))
        outer[depth:] = [names[-1]]
        depths.append(len(outer) - 1)
    left = tree.height - shown.height
    yield Grid(
        title="Operations as a tree",
        frame=shown.select(pl.Series("operation", names), pl.exclude("path", "depth")),
        source="operations.tree",
        note=f"{left:,} paths that take the least time are left out." if left else "",
        depths=depths,
    )


def condense_rows(block: Block) -> Block:
    """Return a figure of few rows: the block itself, or the mean of a figure's rows (of a heat map
    the maximum and the minimum too) and the rows that are farthest from it, farthest first.
    """
    if not isinstance(block, Figure) or len(block.labels) <= MOST_SHOWN:
        return block
    count = len(block.labels)
    known = np.ma.masked_invalid(block.values)
    distance = np.abs(known - known.mean(axis=0)).sum(axis=1).filled(0)
    farthest = np.argsort(-distance, kind="stable")[:MOST_WORST].tolist()
    statistics = ("max", "mean", "min") if isinstance(block, HeatMap) else ("mean",)
    first = [getattr(known, one)(axis=0).filled(np.nan) for one in statistics]
    note = (
        f"The {', '.join(statistics)} of {count:,} rows, then the {MOST_WORST} rows that differ most "
        "from the mean; the table has all."
    )
    return replace(
        block,
        labels=[
            *(f"{one} of {count:,}" for one in statistics),
            *(block.labels[at] for at in farthest),
        ],
        values=np.concatenate([first, block.values[farthest]]),
        note=f"{block.note} {note}".strip(),
    )


def encode_png(block: HeatMap) -> str:
    """Return the values of a heat map as an image of a pixel each (PNG with a palette) in base64;
    unknown ones are transparent.
    """
    palette = bytes.fromhex(COLOURS)
    scaled = np.clip(block.values / block.high, 0, 1) * (len(palette) // 3 - 1)
    # Entry 0 of the palette stands for what is not known.
    pixels = np.nan_to_num(1 + np.round(scaled)).astype(np.uint8)
    lines = np.pad(pixels, ((0, 0), (1, 0)))
    size = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 8, 3, 0, 0, 0)
    chunks = (
        (b"IHDR", size),
        (b"PLTE", b"\0\0\0" + palette),
        (b"tRNS", b"\0"),
        (b"IDAT", zlib.compress(lines.tobytes(), 9)),
        (b"IEND", b""),
    )
    image = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )
    return base64.b64encode(image).decode()
