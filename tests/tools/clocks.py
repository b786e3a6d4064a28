"""Simulate jobs on clocks with known offset and drift, and solve for these."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from msgspec.structs import replace

from nsys2prv.clock import CALLS, MESSAGES, NoiseKind, Role
from nsys2prv.clock.maps import HostClock
from nsys2prv.clock.solve import Alignment, solve_clocks
from nsys2prv.match.gathering import gather_calls, merge_observations

SECOND = 1_000_000_000
EPOCH = 1_780_000_000 * SECOND


@dataclass(frozen=True)
class Clocks:
    """A host's clock shows true + offset + drift * (true - EPOCH)."""

    offset: np.ndarray
    drift: np.ndarray

    @classmethod
    def random(
        cls, rng: np.random.Generator, hosts: int, offset: float = 50e6, drift: float = 50e-6
    ) -> Clocks:
        """Return clocks of random offset (ns) and drift."""
        return cls(np.round(rng.uniform(-offset, offset, hosts)), rng.uniform(-drift, drift, hosts))

    def to_local_time(self, host: np.ndarray | int, true: np.ndarray) -> np.ndarray:
        """Return the times (int64 ns) that a host's clock shows at true times (float ns since
        EPOCH).
        """
        return EPOCH + np.round(true + self.offset[host] + self.drift[host] * true).astype(np.int64)

    def to_true_time(self, host: int, shown: np.ndarray | int) -> np.ndarray:
        """Return the true times (float ns since EPOCH) at which a host's clock shows these times."""
        return ((np.asarray(shown) - EPOCH).astype(np.float64) - self.offset[host]) / (
            1 + self.drift[host]
        )


def draw_end_times(rng: np.random.Generator, count: int, seconds: float) -> np.ndarray:
    """Return end times of `count` collectives within these seconds (float ns since EPOCH), at
    irregular intervals of at least 1 ms.
    """
    gaps = rng.uniform(0.5, 1.5, count)
    return np.cumsum(gaps) / gaps.sum() * seconds * 1e9


def make_calls(**columns: np.ndarray) -> pl.DataFrame:
    """Return calls as a frame of CALLS."""
    return pl.DataFrame(columns).select(*CALLS).cast(CALLS)


def simulate_collectives(
    rng: np.random.Generator,
    clocks: Clocks,
    clock_of: np.ndarray,
    ends: np.ndarray,
    *,
    group: int = 7,
    jitter: float = 20e3,
    late: float = 10e3,
    slowest: np.ndarray | None = None,
    numbered: bool = True,
    noise_kind: int = NoiseKind.NCCL,
    skew: float = 5e6,
) -> pl.DataFrame:
    """Return the calls of every member in every collective.

    Each end jitters in [0, jitter); the last member (`slowest`, or a random one) ends `late` later
    and begins 100 us before the end, the others up to `skew` earlier. `clock_of` has the clock of
    each member.
    """
    members, count = len(clock_of), len(ends)
    last = rng.integers(0, members, count) if slowest is None else slowest
    is_last = np.arange(members)[None, :] == last[:, None]
    begin = (
        ends[:, None] - 100e3 - np.where(is_last, 0.0, rng.uniform(100e3, skew, (count, members)))
    )
    end = ends[:, None] + rng.uniform(0, jitter, (count, members)) + late * is_last
    clock = np.broadcast_to(clock_of, end.shape)
    number = (
        np.broadcast_to(np.arange(count)[:, None], end.shape)
        if numbered
        else np.full(end.shape, -1)
    )
    signature = np.broadcast_to(rng.integers(1, 4, count)[:, None], end.shape)
    member = np.broadcast_to(np.arange(members), end.shape)
    rate, shift = clocks.drift[clock], clocks.offset[clock]
    shown = [EPOCH + np.round(t + shift + rate * t).astype(np.int64).ravel() for t in (begin, end)]
    size = end.size
    return make_calls(
        noise_kind=np.full(size, noise_kind),
        group=np.full(size, group),
        member=member.ravel(),
        clock=clock.ravel(),
        number=number.ravel(),
        signature=signature.ravel(),
        role=np.full(size, int(Role.ALL)),
        is_root=np.zeros(size, bool),
        begin=shown[0],
        end=shown[1],
        began=np.zeros(size, bool),
    )


def simulate_messages(
    rng: np.random.Generator,
    clocks: Clocks,
    pairs: list[tuple[int, int]],
    count: int,
    seconds: float,
    delay: float = 5e3,
    queue: float = 50e3,
    noise_kind: int = NoiseKind.MPI,
) -> pl.DataFrame:
    """Return `count` messages of each pair (sender, receiver), each at least `delay` on the way and
    an exponential `queue` more.
    """
    parts = []
    for sender, receiver in pairs:
        sent = np.sort(rng.uniform(0, seconds * 1e9, count))
        received = sent + delay + rng.exponential(queue, count)
        parts.append(
            (
                np.full(count, noise_kind),
                np.full(count, sender),
                clocks.to_local_time(sender, sent),
                np.full(count, receiver),
                clocks.to_local_time(receiver, received),
            )
        )
    return pl.concat(pl.DataFrame(dict(zip(MESSAGES, part, strict=True))) for part in parts)


def replace_columns(table: pl.DataFrame, **columns: np.ndarray | pl.Series | int) -> pl.DataFrame:
    """Return the calls with some columns replaced; a number fills the column."""
    filled = {name: np.broadcast_to(column, table.height) for name, column in columns.items()}
    return table.with_columns(
        pl.Series(name, one).cast(CALLS[name]) for name, one in filled.items()
    )


def find_span(*observations: pl.DataFrame) -> tuple[int, int] | None:
    """Return the first and the last of all times, None of nothing."""
    times = np.concatenate([one.select("begin", "end").to_numpy().ravel() for one in observations])
    return (int(times.min()), int(times.max())) if len(times) else None


def find_pivot(*observations: pl.DataFrame) -> int:
    """Return the middle of all observed times, in whole ns; 0 without any."""
    span = find_span(*observations)
    return (span[0] + span[1]) // 2 if span else 0


@dataclass(frozen=True)
class Correction:
    """The correction of a host's clock, with the reference as a number and the first and last
    observed time.
    """

    host: int
    clock: HostClock
    span: tuple[int, int] | None

    def __getattr__(self, name: str) -> object:
        return getattr(self.clock, name)

    @property
    def reference(self) -> int:
        return int(self.clock.reference)

    @property
    def pivot(self) -> int:
        return self.clock.at_utc_ns

    @property
    def drift(self) -> float:
        return self.clock.drift_ppm / 1e6


def align_hosts(
    hosts: int,
    calls: pl.DataFrame | None = None,
    messages: pl.DataFrame | None = None,
    span: tuple[int, int] | None = None,
) -> Alignment:
    """Align these hosts, with all calls in one part.

    Bounds hold for `span`, by default that of the observations.
    """
    calls = pl.DataFrame(schema=CALLS) if calls is None else calls
    messages = pl.DataFrame(schema=MESSAGES) if messages is None else messages
    pivot = find_pivot(calls, messages)
    names = [str(host) for host in range(hosts)]
    observed = [
        np.concatenate(
            [
                calls.filter(clock=host)["end"],
                messages.filter(before=host)["begin"],
                messages.filter(after=host)["end"],
            ]
        )
        for host in range(hosts)
    ]
    ends = [(int(times.min()), int(times.max())) if len(times) else None for times in observed]
    spans = np.array([span or one or (np.nan, np.nan) for one in ends], np.float64)
    alignment = solve_clocks(
        names, merge_observations([gather_calls(calls, pivot)], messages, len(names)), pivot, spans
    )
    corrections = [
        Correction(host, clock, ends[host]) for host, clock in enumerate(alignment.corrections)
    ]
    return replace(alignment, corrections=corrections)


def measure_error(alignment: Alignment, clocks: Clocks, host: int, reference: int = 0) -> float:
    """Return the largest error (ns) of a host against a reference over its span.

    Both maps are lines, so the error is largest at one of the ends.
    """
    correction, reference_correction = alignment.corrections[host], alignment.corrections[reference]
    assert correction.span is not None
    largest = 0.0
    for local_time in correction.span:
        true = float(clocks.to_true_time(host, local_time))
        shown = (
            true
            + clocks.offset[reference]
            + clocks.drift[reference] * true
            + (EPOCH - correction.pivot)
        )
        corrected = (local_time - correction.pivot) * (1 + correction.drift) + correction.offset_ns
        corrected_reference = (
            shown * (1 + reference_correction.drift) + reference_correction.offset_ns
        )
        largest = max(largest, abs(corrected - corrected_reference))
    return largest
