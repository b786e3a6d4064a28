"""Examine the kernels at the start of a trace: find the most interesting one, and whether kernels
that some views need are present.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import polars as pl
from isal import igzip

from nsys2prv._util.columns import find_modes
from nsys2prv.events.catalogue import load_catalogue

#: Event types that name a kernel, its class and its use of Tensor Cores.
KERNEL_TYPE, CLASS_TYPE, TENSOR_CORES_TYPE = (
    load_catalogue().layouts["cuda_kernel"].by_name[name].code
    for name in ("kernel", "class", "tensor_cores")
)
#: The class of GEMMs, and the value of "without Tensor Cores".
GEMM, WITHOUT = 1, 2
#: Event types of GPU metrics, in a line.
METRICS = r":94\d\d:"
#: Bytes at the start of a trace that are searched for the kernel to show. One with bimodal
#: durations is preferred if it takes at least this share of the time of the most costly kernel.
BYTES_SEARCHED, LEAST_BIMODAL = 1 << 26, 0.1


@lru_cache(1)
def find_kernel_to_show(trace: Path) -> int:
    """Return the value of the most interesting kernel at the start of a trace; 0 without kernels.

    This is the most expensive GEMM (without GEMMs: kernel) with bimodal durations, if it is
    expensive enough; otherwise the most expensive one.
    """
    events = (
        _read_kernels(trace)
        .group_by("kernel")
        .agg(
            pl.col("lasts").drop_nulls(),
            product=(pl.col("of_class") == GEMM).any(),
            time=pl.col("lasts").sum(),
        )
        .sort("product", "time", "kernel", descending=True, nulls_last=True)
    )
    if not events.height:
        return 0
    first = events.row(0, named=True)
    candidates = events.filter(
        (pl.col("product") == first["product"]) & (pl.col("time") >= LEAST_BIMODAL * first["time"])
    )
    bimodal = (
        kernel
        for kernel, durations in zip(candidates["kernel"], candidates["lasts"], strict=True)
        if find_modes(durations.to_numpy())[0]
    )
    return int(next(bimodal, first["kernel"]))


@lru_cache(1)
def _read_kernels(trace: Path) -> pl.DataFrame:
    """Return the kernels at the start of a trace: `kernel`, `of_class`, `tensor_cores` and `lasts`
    (ns).
    """
    line = pl.col("line")
    types = {"kernel": KERNEL_TYPE, "of_class": CLASS_TYPE, "tensor_cores": TENSOR_CORES_TYPE}
    values = {
        name: line.str.extract(rf":{code}:(\d+)").cast(pl.Int64) for name, code in types.items()
    }
    return (
        _read_lines(trace)
        .filter(line.str.contains(f":{KERNEL_TYPE}:", literal=True))
        .select(**_make_place(), **values)
        .with_columns(lasts=pl.col("time").shift(-1).over("cpu") - pl.col("time"))
        .filter(pl.col("kernel") > 0)
        .collect()
    )


def _make_place() -> dict[str, pl.Expr]:
    """Return expressions for the row (`cpu`) and the time (`time`) in an event line."""
    return {
        "cpu": pl.col("line").str.extract(r"^2:(\d+):"),
        "time": pl.col("line").str.extract(r"^2:\d+:\d+:\d+:\d+:(\d+):").cast(pl.Int64),
    }


def _read_lines(trace: Path) -> pl.LazyFrame:
    """Return the event lines (`line`) at the start of a trace."""
    with (igzip.open if trace.suffix == ".gz" else open)(trace, "rb") as file:
        data = file.read(BYTES_SEARCHED)
    lines = pl.read_csv(
        data, has_header=False, separator="\x1f", quote_char=None, new_columns=["line"]
    )
    return lines.lazy().filter(pl.col("line").str.starts_with("2:"))


def explain_lacking_kernels(trace: Path, kernels: str) -> str:
    """Return a text that names the kernels that a view needs (:attr:`View.kernels`) and that are
    missing from the start of a trace; "" if none.
    """
    found = _read_kernels(trace)
    if kernels == "without tensor cores":
        is_wanted = (pl.col("of_class") == GEMM) & (pl.col("tensor_cores") == WITHOUT)
        return "" if found.filter(is_wanted).height else "no GEMM without tensor cores"
    samples = (
        _read_lines(trace).filter(pl.col("line").str.contains(METRICS)).select(**_make_place())
    )
    periods = (
        samples.unique().sort("cpu", "time").select(pl.col("time").diff().over("cpu").median())
    )
    period, longest = periods.collect().item(), found["lasts"].max()
    if period and longest and longest >= period:
        return ""
    return "no kernel that lasts as long as the time between two samples"
