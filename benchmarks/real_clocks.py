"""Measure how well clocks are aligned by MPI of recorded jobs: their ranks are spread over hosts whose clocks
are made wrong by known offsets and drifts, and the true error of each host after aligning is
compared with the bound told.

    python benchmarks/real_clocks.py JOB... [--seeds N] [--hosts N]

prints a row for each job, a folder of exports of one machine, one per rank, with the UTC of their
session (rank*.sqlite). Clocks are wrong by up to 50 ms and drift by up to 50 ppm.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

import nsys2prv
from nsys2prv import Options
from nsys2prv.clock.maps import read_record

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from tools.exports import query_export
from tools.shifted_clocks import shift_clock

OFFSET, DRIFT = 50e6, 50e-6


def measure_errors(
    job: Path, seed: int, hosts: int
) -> list[tuple[str, float, float | None, float, float | None]]:
    """Return of each host but the first: by what it was aligned ("" if not at all), the larger error at
    the first and the last call of its ranks, its bound there, the larger error at the first
    and the last of the job, its bound; ns.
    """
    rng = np.random.default_rng(seed)
    reports = sorted(job.glob("rank*.sqlite"))
    hosts = min(hosts, len(reports))
    offset, drift = rng.uniform(-OFFSET, OFFSET, hosts), rng.uniform(-DRIFT, DRIFT, hosts)
    offset = offset.astype(np.int64)
    spans = np.array([read_span(report) for report in reports])
    epoch = int(spans[0, 0])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shifted = [
            shift_clock(
                report,
                folder / report.name,
                f"host{rank % hosts}",
                int(offset[rank % hosts]),
                float(drift[rank % hosts]),
                epoch,
            )
            for rank, report in enumerate(reports)
        ]
        nsys2prv.convert(shifted, folder / "job.prv", Options(kinds=("mpi_event_trace",)))
        file = folder / "job.clock.yaml"
        clocks = read_record(file.read_text(), str(file)).hosts

    def correct(host: int, true: np.ndarray) -> np.ndarray:
        """Return what the corrected clock of a host shows (ns from `epoch` on) at true times."""
        shown = true - epoch + offset[host] + drift[host] * (true - epoch)
        clock = clocks[f"host{host}"]
        return shown + clock.offset_ns + clock.drift_ppm / 1e6 * (shown + epoch - clock.at_utc_ns)

    found = []
    for host in range(1, hosts):
        own = spans[host::hosts]
        observed = np.array([own[:, 0].min(), own[:, 1].max()])
        near, far = (
            float(np.abs(correct(host, times) - correct(0, times)).max())
            for times in (observed, np.array([spans.min(), spans.max()]))
        )
        clock = clocks[f"host{host}"]
        method = clock.method if clock.reference == "host0" and clock.sure else ""
        found.append((method, near, clock.observed_bound_ns, far, clock.bound_ns))
    return found


def read_span(report: Path) -> tuple[int, int]:
    """Return when the first call of MPI begins and the last one ends (UTC, ns)."""
    times = (
        "SELECT start, end FROM MPI_OTHER_EVENTS UNION ALL SELECT start, end FROM MPI_P2P_EVENTS"
    )
    utc = "(SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME)"
    ((first, last),) = query_export(
        report, f"SELECT {utc} + min(start), {utc} + max(end) FROM ({times})"
    )
    return first, last


def make_row(job: Path, seeds: int, hosts: int) -> str:
    """Return the row of a job."""
    found = [one for seed in range(seeds) for one in measure_errors(job, seed, hosts)]
    placed = [one for one in found if one[0]]
    cells = [job.name, f"{len(placed)} of {len(found)}", Counter(one[0] for one in placed)]
    if placed:
        _, near, near_bound, far, far_bound = zip(*placed, strict=True)
        cells[2] = cells[2].most_common(1)[0][0]
        for errors, bounds in ((near, near_bound), (far, far_bound)):
            cells += [f"{np.median(errors) / 1000:,.1f} us", f"{max(errors) / 1000:,.1f} us"]
            bounded = [(e, b) for e, b in zip(errors, bounds, strict=True) if b is not None]
            cells.append(f"{np.median([b for _, b in bounded]) / 1000:,.1f} us")
            cells.append(f"{sum(e <= b for e, b in bounded)} of {len(bounded)}")
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("jobs", nargs="+", type=Path, help="folders of rank*.sqlite")
    parser.add_argument("--seeds", type=int, default=5, help="clocks for each job")
    parser.add_argument("--hosts", type=int, default=8, help="hosts at most; ranks take turns")
    options = parser.parse_args()
    print(
        "| job | hosts aligned | by | median error | largest | median bound | inside |"
        " in the whole job: median error | largest | median bound | inside |"
    )
    print("|---|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for job in options.jobs:
        print(make_row(job, options.seeds, options.hosts), flush=True)
