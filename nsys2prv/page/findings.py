"""What is worth attention, in figures of the analyses, most costly first."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import polars as pl

from nsys2prv.analysis.text import duration
from nsys2prv.page.drift import drift, outliers
from nsys2prv.page.parts import GOOD, Finding, Material

#: What costs less than this share of the time of all devices (or main threads) is no finding.
LEAST = 0.001
NOTE = ("Most costly first; the bar is the share of the time of all devices (of all tasks for what hosts do). Costs overlap: they do not "
        f"add up. What costs less than {LEAST:.1%} is left out.")
#: Factors of efficiency: what a low one means.
FACTORS = {"load_balance_efficiency": "devices have different amounts of useful work",
           "communication_efficiency": "devices that work communicate instead of computing",
           "orchestration_efficiency": "devices have nothing to do: hosts, input, or synchronisation"}
#: What hosts do while devices are idle.
IDLE = {"mpi_ns": "the host in MPI", "nccl_ns": "the host in calls of NCCL", "io_ns": "the host in file or network I/O",
        "synchronisation_ns": "the host waiting for the device", "launch_ns": "the host in calls of the CUDA API",
        "unknown_ns": "no cause in the reports"}
#: Rules whose time is that of hosts.
OF_HOSTS = "API calls"


def findings(material: Material) -> list[Finding]:
    """All, greatest share first; those without a share last."""
    found = [finding for judge in JUDGES for finding in judge(material) if finding.share is None or finding.share >= LEAST]
    return sorted(found, key=lambda finding: -1.0 if finding.share is None else finding.share, reverse=True)


def _all_devices(material: Material) -> float:
    return max(int(str(material.job["devices"])) * material.duration, 1)


def percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _efficiency(material: Material) -> Iterator[Finding]:
    frame = material.frame("efficiencies", "device")
    if frame is None or frame["parallel_efficiency"][0] is None or frame["parallel_efficiency"][0] >= GOOD:
        return
    row = frame.row(0, named=True)
    name, value = min(((name, row[name]) for name in FACTORS if row[name] is not None), key=lambda item: item[1], default=("", 0.0))
    why = f"; weakest factor: {name.replace('_', ' ')}, {percent(value)} ({FACTORS[name]})" if name else ""
    yield Finding(f"Devices do useful work for {percent(row['parallel_efficiency'])} of the time{why}.", 1 - row["parallel_efficiency"],
                  "devices")


def _exposed(material: Material) -> Iterator[Finding]:
    frame = material.frame("overlap", "devices")
    row = None if frame is None else frame.filter(pl.col("device") == "all").row(0, named=True)
    if row and row["exposed_ns"]:
        yield Finding(f"Communication is exposed for {duration(row['exposed_ns'])} of all devices, "
                      f"{percent(row['exposed_of_communication_share'])} of all communication.", row["exposed_of_elapsed_share"],
                      "communication")


def _straggler(material: Material) -> Iterator[Finding]:
    ranking, doing = material.frame("collectives", "stragglers"), material.frame("collectives", "meanwhile")
    if ranking is None or not ranking["made_wait_ns"].sum():
        return
    row, total = ranking.row(0, named=True), ranking["made_wait_ns"].sum()
    mine = None if doing is None else doing.filter(pl.col("rank") == row["rank"])
    did = ""
    if mine is not None and mine.height and mine["late_ns"][0]:
        figures = mine.row(0, named=True)
        most = max(("computing_ns", "other_nccl_ns", "memory_ns", "idle_ns"), key=lambda name: figures[name])
        did = (f"; meanwhile its device was mostly {most.removesuffix('_ns').replace('_', ' ')} "
               f"({percent(figures[most] / figures['late_ns'])} of that time)")
    yield Finding(f"Ranks wait {duration(total)} for the last at collectives; {row['rank']} causes {percent(row['made_wait_ns'] / total)} "
                  f"of it, last in {row['last']:,} of {row['collectives']:,}{did}.", total / _all_devices(material), "collectives")


def _tensor_cores(material: Material) -> Iterator[Finding]:
    frame = material.frame("kernels", "tensor_cores")
    without = None if frame is None else frame.filter(pl.col("tensor_cores") == "No")
    if without is not None and without.height:
        time = int(without["time_ns"][0])
        yield Finding(f"Matrix products run {duration(time)} without tensor cores, {percent(without['time_share'][0])} of their time.",
                      time / _all_devices(material), "kernels")


def _two_modes(material: Material) -> Iterator[Finding]:
    frame = material.frame("kernels", "two_modes")
    if frame is not None:
        row = frame.sort("time_ns", descending=True).row(0, named=True)
        time = int(frame["time_ns"].sum())
        yield Finding(f"Kernels whose durations have two modes: {frame.height:,}, {duration(time)} in all; most of it {row['kernel']}: "
                      f"about {duration(row['low_ns'])} or {duration(row['high_ns'])}.", time / _all_devices(material), "kernels")


def _idle(material: Material) -> Iterator[Finding]:
    gaps = material.frame("idle", "gaps")
    if gaps is None or not gaps["time_ns"].sum():
        return
    total = int(gaps["time_ns"].sum())
    cause = max(IDLE, key=lambda name: gaps[name].sum())
    yield Finding(f"Devices are idle for {duration(total)} in {int(gaps['count'].sum()):,} gaps; {percent(gaps[cause].sum() / total)} of "
                  f"it: {IDLE[cause]}.", total / _all_devices(material), "idle")


def _rules(material: Material) -> Iterator[Finding]:
    rules = material.frame("idle", "rules")
    for row in [] if rules is None else rules.filter(pl.col("count") > 0).iter_rows(named=True):
        whole = (int(str(material.job["ranks"])) * material.duration or 1) if row["rule"].startswith(OF_HOSTS) else _all_devices(material)
        rule = row["rule"][:1].upper() + row["rule"][1:]
        yield Finding(f"{rule}: {row['count']:,}, {duration(row['time_ns'])}; {row['advice']}.", row["time_ns"] / whole, "idle")


def _iterations(material: Material) -> Iterator[Finding]:
    rows = material.frame("efficiencies", "iterations")
    if rows is None:
        return
    elapsed = rows["elapsed_ns"].to_numpy()
    far = outliers(elapsed)
    if far:
        worst = max(far, key=lambda at: elapsed[at])
        name = f"{rows['region'][worst]} (number {rows['iteration'][worst]})"
        yield Finding(f"{len(far):,} of {len(elapsed):,} iterations are far from the others in elapsed time; the longest of them is "
                      f"{name}, {duration(float(elapsed[worst]))}.", None, "iterations")
    trend = drift(elapsed)
    if trend is not None:
        yield Finding(f"Iterations get {'longer' if trend > 0 else 'shorter'}: by {percent(abs(trend))} of their median from the first to "
                      "the last.", None, "iterations")


JUDGES: tuple[Callable[[Material], Iterator[Finding]], ...] = (
    _efficiency, _exposed, _straggler, _tensor_cores, _two_modes, _idle, _rules, _iterations)
