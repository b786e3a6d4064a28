"""Compute how much of a GPU kernels can use: their blocks and threads relative to its SMs, and to
the capacity of each SM.
"""

from __future__ import annotations

import polars as pl
from msgspec.structs import astuple

from nsys2prv._util.text import shorten_name
from nsys2prv.export.info import UNKNOWN, GpuLimits
from nsys2prv.figures.result import Finding
from nsys2prv.verdict.host_use import JobFacts
from nsys2prv.verdict.thresholds import ALONE, LEAST_LOSS, LEAST_USE, UNKNOWN_GPU
from nsys2prv.verdict.time_use import make_limit
from nsys2prv.verdict.words import say

#: Fields in the texts of launch configurations.
CONFIGURATION = (
    r"grid (?P<x>\d+)x(?P<y>\d+)x(?P<z>\d+), block (?P<i>\d+)x(?P<j>\d+)x(?P<k>\d+), "
    r"(?P<registers>\S+) registers, (?P<fixed>\S+) \+ (?P<dynamic>\S+) bytes"
)
#: Threads of a warp, and schedulers of an SM, each issuing instructions of one warp at a time.
WARP, SCHEDULERS = 32, 4
#: Smallest share of threads that is written.
LEAST_SHOWN = 0.0001
#: For blocks that occupy SMs in part -> the reason why the rest of an SM has no work.
REASONS = ("blocks", "lanes", "warps")


def describe_unused(facts: JobFacts) -> Finding | None:
    """Return a finding about kernels that leave most of a GPU without work, if they take long and
    mostly run alone; otherwise None.
    """
    kernels, devices = facts.frames["kernels"], facts.devices
    labels = facts.context.labels.get("launch_configuration")
    if labels is None or not kernels.height or not devices.height:
        return None
    configurations = labels.select(pl.col("value").alias("launch"), configuration="label")
    own = kernels.join(configurations, on="launch").filter(pl.col("time") > 0)
    own = measure_use(own, dict(facts.options.limits)).filter(pl.col("use") < LEAST_USE)
    lasts = own["time"].sum()
    share = (own["time"] * (1 - own["fill"])).sum() / max(devices["length"].sum(), 1)
    if share < LEAST_LOSS or lasts > ALONE * devices["compute"].sum():
        return None
    most = own.sort("time", "begin").row(-1, named=True)
    label = shorten_name(facts.context.find_label(most["name"], "kernels")) or "a kernel"
    grid, block, *_ = most["configuration"].split(", ")
    reason = min(REASONS, key=lambda one: most[one])
    known = dict(facts.options.limits).get(most["device"], UNKNOWN)
    model, *others = sorted(dict(facts.options.gpus).get(most["device"], ())) or [""]
    evidence = say(
        "small grid",
        kernel=label,
        time=most["time"],
        grid=grid,
        block=block,
        model=model if model and not others else "the GPU",
        processors=known.processors,
        resident=most["resident"] if known.blocks else 0,
    )
    fill = max((own["time"] * own["fill"]).sum() / lasts, LEAST_SHOWN)
    title = say("small_grids", fill=fill, reason=say(reason))
    moments = ((most["begin"], most["end"], ()),)
    return make_limit("small_grids", share, [evidence], title, reason, moments=moments)


def measure_use(kernels: pl.DataFrame, limits: dict[int, GpuLimits]) -> pl.DataFrame:
    """Add three columns to kernels with a known configuration: how much of a GPU they use.

    `resident`: blocks per SM at a time. `fill`: threads at a time, as a share of the GPU's capacity
    for them. `use`: the share of the issue slots with work, by `blocks` (SMs with a block), `warps`
    (their schedulers with a warp), and `lanes` (lanes of each warp with a thread). kernels:
    `configuration`, `device`. limits: device -> its limits.
    """
    rows = [
        # The first fields of limits, in this order.
        (device, *(own or usual for own, usual in zip(astuple(one), UNKNOWN_GPU, strict=False)))
        for device in kernels["device"].unique().to_list()
        for one in (limits.get(device, UNKNOWN),)
    ]
    names = ("processors", "most_warps", "most_blocks", "most_registers", "most_shared")
    held = pl.DataFrame(rows, ["device", *names], orient="row")
    asked = pl.col("configuration").str.extract_groups(CONFIGURATION).struct.unnest()
    sizes = kernels.select(asked).cast(pl.Int64, strict=False)
    sizes = sizes.select(
        grid=pl.col("x") * pl.col("y") * pl.col("z"),
        threads=pl.col("i") * pl.col("j") * pl.col("k"),
        registers=pl.col("registers").fill_null(0),
        shared=(pl.col("fixed") + pl.col("dynamic")).fill_null(0),
    )
    of_block = (pl.col("threads") / WARP).ceil()
    a_processor = pl.col("grid") / pl.col("processors")
    whole = kernels.hstack(sizes).join(held.cast(pl.Int64), on="device")
    whole = whole.filter((pl.col("grid") > 0) & (pl.col("threads") > 0))
    # As many threads could be in fewer blocks.
    could = pl.min_horizontal(
        pl.col("most_warps") // of_block,
        pl.col("most_registers") // (pl.col("registers") * WARP * of_block).clip(1),
        pl.col("most_shared") // pl.col("shared").clip(1),
    )
    whole = whole.with_columns(could=could.clip(1).cast(pl.Int64))
    whole = whole.with_columns(resident=pl.min_horizontal("could", "most_blocks"))
    at_a_time = pl.min_horizontal(a_processor, "resident")
    whole = whole.with_columns(
        blocks=a_processor.clip(0, 1),
        warps=(of_block * at_a_time.clip(1) / SCHEDULERS).clip(0, 1),
        lanes=pl.col("threads") / (WARP * of_block),
    )
    whole = whole.with_columns(fill=at_a_time / pl.col("could") * pl.col("lanes"))
    return whole.with_columns(use=pl.col("blocks") * pl.col("warps") * pl.col("lanes"))
