"""How well clocks are known by few calls: jobs of known clocks, the true error of every host after
aligning, and the bound told.

    python benchmarks/few_calls.py [--seeds N]

prints the table of which docs/clocks.md has some rows. Every job has four hosts with one member each in one
communicator, recorded from its beginning; their clocks are wrong by up to 50 ms and drift by up to
50 ppm. Calls follow each other at random intervals, half to one and a half of the usual one. Ends
jitter by up to 20 us, and the last to come ends 10 us later, as was measured. Last come the same
jobs with reports that lack the communicator's beginning. Hosts that stay at UTC are not in a row's
figures.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from nsys2prv.clock import NoiseKind, Role
from nsys2prv.clock.observations import Calls

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from tools.clocks import align_hosts

HOSTS, OFFSET, DRIFT = 4, 50e6, 50e-6
COUNTS, GAPS = (1, 2, 3, 4, 6, 8, 12, 20, 50), (5, 50, 500)
JITTER, LATE, SECOND = 20e3, 10e3, 1_000_000_000
EPOCH = 1_780_000_000 * SECOND
#: So long after the last call the error is looked at too, s.
LATER = 60


def job(
    rng: np.random.Generator, count: int, gap: float, noise_kind: int, began: bool
) -> tuple[Calls, np.ndarray, np.ndarray]:
    """Calls of all hosts, `gap` ns apart; and how far each host's clock is off at the beginning
    (ns), and its drift.
    """
    offset, drift = rng.uniform(-OFFSET, OFFSET, HOSTS), rng.uniform(-DRIFT, DRIFT, HOSTS)
    ends = np.cumsum(rng.uniform(0.5, 1.5, count) * gap)[:, None]
    last = np.arange(HOSTS) == rng.integers(0, HOSTS, count)[:, None]
    begin = ends - 100e3 - np.where(last, 0.0, rng.uniform(0, gap / 4, (count, HOSTS)))
    end = ends + rng.uniform(0, JITTER, (count, HOSTS)) + LATE * last
    shown = [
        EPOCH + np.round(time * (1 + drift) + offset).astype(np.int64).ravel()
        for time in (begin, end)
    ]
    host = np.tile(np.arange(HOSTS), count)
    same = np.ones(len(host), np.int64)
    return (
        Calls(
            noise_kind * same,
            same,
            host,
            host,
            -same,
            same,
            int(Role.ALL) * same,
            np.zeros(len(host), bool),
            *shown,
            np.full(len(host), began),
        ),
        offset,
        drift,
    )


def errors(
    count: int, gap: float, noise_kind: int, began: bool, seeds: int
) -> Iterator[tuple[str, float, float | None, float, float | None]]:
    """Of each host that is placed against the first: method, largest error where it was observed,
    its bound, the error LATER, and the bound of the trace; ns.
    """
    for seed in range(seeds):
        calls, offset, drift = job(
            np.random.default_rng([seed, count, int(gap), noise_kind]),
            count,
            gap,
            noise_kind,
            began,
        )
        until = int(calls.end.max()) + LATER * SECOND
        for found in align_hosts(HOSTS, calls, span=(int(calls.begin.min()), until)).corrections[
            1:
        ]:
            if found.reference != 0:
                continue
            host = found.host

            def error(placed: int, found=found, host=host, offset=offset, drift=drift) -> float:
                true = (placed - EPOCH - offset[host]) / (1 + drift[host])
                wanted = true * (1 + drift[0]) + offset[0]
                return abs(
                    placed - EPOCH + found.offset_ns + found.drift * (placed - found.pivot) - wanted
                )

            first, last = found.span or (EPOCH, EPOCH)
            yield (
                found.method,
                max(error(first), error(last)),
                found.observed_bound_ns,
                error(until),
                found.bound_ns,
            )


def table(seeds: int) -> Iterator[str]:
    yield (
        "| calls | apart | source | from the beginning | method | true error, median | largest | bound, median | hosts within | "
        "error 60 s later | its bound | hosts within |"
    )
    yield "|--:|--:|---|---|---|--:|--:|--:|--:|--:|--:|--:|"
    for began in (True, False):
        for noise_kind, name in ((NoiseKind.NCCL, "NCCL"), (NoiseKind.MPI, "MPI")):
            for gap in GAPS:
                for count in COUNTS if began else COUNTS[:4]:
                    method, near, bound, far, whole = zip(
                        *errors(count, gap * 1e6, noise_kind, began, seeds), strict=True
                    )
                    usual = Counter(method).most_common(1)[0][0]
                    yield (
                        f"| {count} | {gap} ms | {name} | {'yes' if began else 'no'} | {usual} | {_us(near)} | {_us(near, max)} | "
                        f"{_us(bound)} | {_within(near, bound)} | {_us(far)} | {_us(whole)} | {_within(far, whole)} |"
                    )


def _us(values: tuple[float | None, ...], of=np.median) -> str:
    known = [value for value in values if value is not None]
    return f"{of(known) / 1000:,.1f} us" if known else "none told"


def _within(values: tuple[float, ...], bounds: tuple[float | None, ...]) -> str:
    met = [value <= bound for value, bound in zip(values, bounds, strict=True) if bound is not None]
    return f"{sum(met)} of {len(met)}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=100, help="jobs for each row")
    for line in table(parser.parse_args().seeds):
        print(line, flush=True)
