"""``python -m tools.samples OUTDIR [options]``"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import get_args

from . import additions
from .options import ClockUnit, CutReport, GpuModels, Graphs, MetricDevices, NcclTrace, Options, Payload, RowOrder, Visible
from .sets import TRUTH, generate


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


def _additions(text: str) -> tuple[str, ...]:
    return additions.names() if text == "all" else tuple(text.split(","))


def build_parser() -> argparse.ArgumentParser:
    default = Options()
    parser = argparse.ArgumentParser(
        prog="python -m tools.samples",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        description="Generate Nsight Systems exports (one per rank) of an imagined training job, and their truth.",
    )
    parser.add_argument("outdir", type=Path, help="folder for rank0.sqlite ... and truth.json")
    add = parser.add_argument
    add("--ranks", type=int, default=default.ranks, help="processes, one GPU and one report each")
    add("--hosts", type=int, default=default.hosts, help="machines, each with its own clock")
    add("--steps", type=int, default=default.steps, help="training steps")
    add("--layers", type=int, default=default.layers, help="layers of the model")
    add("--events-per-rank", type=int, metavar="N", help="as many steps as give about N event rows per report")
    add("--seed", type=int, default=default.seed, help="everything random follows from it")
    add(
        "--graphs",
        choices=get_args(Graphs),
        default=default.graphs,
        help="CUDA graphs: none, traced as graphs, traced as nodes, or mixed (even ranks graph, odd ranks node)",
    )
    add(
        "--visible-devices",
        dest="visible",
        choices=get_args(Visible),
        default=default.visible,
        help="what a process sees: its GPU as device 0 (all are listed / only its own is), or all GPUs of the host",
    )
    add("--payload", choices=get_args(Payload), default=default.payload, help="how NCCL's NVTX payloads are exported")
    add("--row-order", choices=get_args(RowOrder), default=default.row_order, help="order of the rows in the tables")
    add(
        "--clock-offsets-ms",
        type=_numbers,
        default=default.clock_offsets_ms,
        metavar="MS,MS...",
        help="clock error of each host at the beginning; hosts not named get one from the seed",
    )
    add(
        "--clock-drifts-ppm",
        type=_numbers,
        default=default.clock_drifts_ppm,
        metavar="PPM,PPM...",
        help="drift of each host's clock; hosts not named get one from the seed",
    )
    add("--skew-us", type=float, default=default.skew_us, help="mean lateness of a rank at a step's beginning")
    add(
        "--truth-collectives",
        type=int,
        default=default.truth_collectives,
        help="at most so many collectives in the truth",
    )
    add("--additions", type=_additions, default=(), metavar="NAME[,NAME...]",
        help=f"further tables: all, or some of {', '.join(additions.names())}")
    add("--jobs", type=int, default=default.jobs, help="processes to write with")
    add("--page-size", type=int, default=default.page_size, help="bytes of a page of the SQLite files")
    _add_clocks(parser)
    _add_faults(parser)
    _add_mpi_and_system(parser)
    _add_metrics(parser)
    _add_nccl(parser)
    return parser


def _add_clocks(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("clocks of hosts, and what blurs them").add_argument
    add("--clock-offset-range-ms", type=float, metavar="MS", help="clock error of every host from the seed, within so much to both sides")
    add("--clock-drift-range-ppm", type=float, metavar="PPM", help="drift of every host's clock, likewise")
    add("--pace-ms", type=float, default=0.0, metavar="MS", help="idle time between steps")
    add("--end-jitter-us", type=float, metavar="US", help="ranks leave a collective later by up to so much")
    add("--waited-us", type=_numbers, metavar="US[,US...]", help="those who waited for others later still by (one of) this")
    add("--gpu-lag-us", type=float, default=0.0, metavar="US", help="a constant lag of each GPU, up to so much")
    add("--lonely-host", action="store_true", help="ranks of the last host communicate only among themselves")
    add("--same-host-name", action="store_true", help="all hosts have one name")


def _add_faults(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("faulty reports").add_argument
    add("--lost-collectives", type=float, default=0.0, metavar="SHARE", help="share of the collectives missing in one report each")
    add("--extra-collectives", type=float, default=0.0, metavar="SHARE", help="collectives only one report has, per step and kind")
    add("--cut-report", choices=get_args(CutReport), default="none", help="one report lacks its begin or end")
    add("--cut-rank", type=int, default=0, help="whose report")
    add("--cut-at", type=float, default=0.5, metavar="SHARE", help="and where, as a share of the steps")


def _add_mpi_and_system(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("MPI and the OS runtime")
    group.add_argument("--no-nccl", dest="nccl", action="store_false", help="the job uses no NCCL")
    group.add_argument("--mpi", action="store_true", help="the job uses MPI too")
    group.add_argument(
        "--no-mpi-comm-uids",
        dest="mpi_comm_uids",
        action="store_false",
        help="MPI rows name their communicator only by its handle, as in older exports",
    )
    group.add_argument("--osrt", type=int, default=0, metavar="N", help="N more OS runtime calls per step and process")
    group.add_argument("--osrt-callchains", action="store_true", help="OS runtime calls of more than 80 us have call chains")


def _add_metrics(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampled metrics (HZ: samples per second, 1000 if left out)")
    for name, what in (
        ("gpu-metrics", "GPU metrics"),
        ("nic-metrics", "network interfaces, in every report of a host"),
        ("switch-metrics", "an InfiniBand switch, in every report"),
        ("storage-metrics", "storage volumes (generic events)"),
        ("efa-metrics", "EFA devices (generic events)"),
    ):
        group.add_argument(f"--{name}", type=float, nargs="?", const=1000.0, default=0.0, metavar="HZ", help=what)
    group.add_argument("--switch-congestion", action="store_true", help="congestion that the switch reports, in every report")
    group.add_argument(
        "--gpu-metric-devices",
        choices=get_args(MetricDevices),
        default="own",
        help="GPUs a report samples: its process's, all of its host's, or the latter in one report per host only",
    )
    group.add_argument("--gpu-models", choices=get_args(GpuModels), default="same", help="mixed: hosts of odd number have another model")
    group.add_argument("--gpu-clock-unit", choices=get_args(ClockUnit), default="hz", help="what the clock metrics hold (really Hz)")


def _add_nccl(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("NCCL")
    group.add_argument("--nccl-trace", choices=get_args(NcclTrace), default="legacy", help="NCCL's own ranges, or nsys's advanced trace")
    group.add_argument("--nccl-groups", action="store_true", help="steps also have two collectives in one group")
    group.add_argument("--nccl-rooted", action="store_true", help="steps also have a broadcast and a reduction to one rank")
    group.add_argument("--nccl-channels", type=int, default=0, metavar="N", help="at most N channels (0: as NCCL likes)")
    group.add_argument("--nccl-proxy", action="store_true", help="the advanced trace has the proxy's operations too")
    group.add_argument("--bandwidth-truth", action="store_true", help="waits, transfers and bus bandwidths of collectives in the truth")


def main(arguments: list[str] | None = None) -> None:
    chosen = vars(build_parser().parse_args(arguments))
    folder: Path = chosen.pop("outdir")
    begin = time.perf_counter()
    truth = generate(folder, Options(**chosen))
    seconds = time.perf_counter() - begin
    rows = sum(rank["event_rows"] for rank in truth["ranks"])
    for rank in truth["ranks"]:
        size = (folder / rank["report"]).stat().st_size
        print(f"{folder / rank['report']}  {rank['host']}  {rank['event_rows']:,} event rows  {size / 1e6:.1f} MB")
    print(f"{folder / TRUTH}  {truth['collectives_total']:,} collectives")
    print(f"{rows:,} event rows in {seconds:.1f} s ({rows / seconds:,.0f} a second)")


if __name__ == "__main__":
    main()
