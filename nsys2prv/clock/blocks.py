"""The ends of one communicator's collectives as a matrix (collectives by hosts), and the noise that
no averaging removes.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import polars as pl
from msgspec import Struct, field

from nsys2prv._util.columns import factorize
from nsys2prv.clock import Role
from nsys2prv.clock.observations import NOISE, TO_SIGMA, Finding, line_through, spread_of

#: Hosts tried as the one that the others of their group are compared with.
REFERENCES = 3


class Block(Struct):
    """`end`: mean end of each host's members, float ns relative to the pivot; `late`: the last to
    come is there; `seen`: exists.

    All of shape (collectives, hosts); `clocks`: the hosts. `lateness`: how much later the last to
    come ends, as estimated.
    """

    source: int
    group: int
    clocks: np.ndarray
    end: np.ndarray
    late: np.ndarray
    seen: np.ndarray
    lateness: float = 0.0
    weight: np.ndarray = field(default_factory=lambda: np.empty(0))


class Link(Struct, frozen=True):
    """time on clock `to` = time + offset + drift * time of clock `clock`, all relative to the
    pivot; `weight`: its uncertainty, ns.
    """

    clock: int
    to: int
    offset: float
    drift: float
    weight: float

    def reversed(self) -> Link:
        return Link(
            self.to,
            self.clock,
            -self.offset / (1 + self.drift),
            -self.drift / (1 + self.drift),
            self.weight,
        )


def blocks_of(hosts: pl.DataFrame, groups: dict[int, int]) -> list[Block]:
    """Return a block of each group's synchronising collectives that are not held back; `groups`:
    communicator of each key.
    """
    some = hosts.filter((pl.col("role") == Role.ALL) & ~pl.col("held"))
    keys = some["key"].to_numpy()
    bounds = np.append(np.flatnonzero(np.diff(keys, prepend=keys[:1] - 1)), len(keys)).tolist()
    columns = {
        name: some[name].to_numpy() for name in ("source", "collective", "clock", "end", "late")
    }
    blocks = []
    for low, high in pairwise(bounds):
        part = {name: column[low:high] for name, column in columns.items()}
        _, row = factorize(part["collective"])
        clocks, column = factorize(part["clock"])
        shape = int(row[-1]) + 1, len(clocks)
        end, late, seen = np.zeros(shape), np.zeros(shape), np.zeros(shape, bool)
        at = row, column.reshape(-1)
        end[at], late[at], seen[at] = part["end"], part["late"], True
        blocks.append(
            Block(
                int(part["source"][0]),
                groups[int(keys[low])],
                clocks.astype(np.int64),
                end,
                late,
                seen,
            )
        )
    return blocks


def links_of(blocks: list[Block]) -> tuple[list[Link], list[Finding]]:
    """Return lines of each block's hosts against one of them; hosts that fit none are taken out of
    the block.
    """
    links, findings = [], []
    for block in blocks:
        best, alone = _star(block)
        links += best
        for at in alone:
            findings.append(
                Finding(
                    "unfit",
                    "collectives whose ends scatter too much against the other hosts'",
                    int(block.seen[:, at].sum()),
                    block.source,
                    block.group,
                    clock=int(block.clocks[at]),
                )
            )
            block.seen[:, at] = False
    return links, findings


def _star(block: Block) -> tuple[list[Link], list[int]]:
    """Return lines of the hosts against the one that most fit, and the places of those that do not."""
    noise = NOISE[block.source]
    seen = block.seen.sum(axis=0)
    best: tuple[list[Link], list[int]] = [], []
    for tried, hub in enumerate(np.argsort(-seen, kind="stable")[:REFERENCES].tolist()):
        links, alone = [], []
        for at in range(len(block.clocks)):
            both = block.seen[:, at] & block.seen[:, hub]
            if at == hub or not both.any():
                continue
            times = block.end[both, at]
            offset, drift, spread = line_through(times, block.end[both, hub] - times)
            if spread > noise.misfit:
                alone.append(at)
                continue
            weight = max(spread, noise.end) / np.sqrt(both.sum())
            links.append(
                Link(int(block.clocks[at]), int(block.clocks[hub]), offset, drift, float(weight))
            )
        if not tried or len(links) > len(best[0]):
            best = links, alone if links else [*alone, hub]
        if len(links) >= len(alone):
            break
    return best


#: Scatter of up to this multiple of the source's noise is usual.
USUAL = 1.5
#: Middle of ends that are late by chance alone (exponentially), as a multiple of the scatter that
#: their residuals show.
SKEWED = 1.25
#: Parts of a host's span whose residuals are compared, and how many ends each needs.
PARTS, ENOUGH = 8, 16
#: A part lies off the line if its median does by so many standard deviations of a median, and by
#: more than this (ns).
SIGNIFICANT, NOTICED = 5.0, 5_000.0


def measure_unsteadiness(
    blocks: list[Block], residuals: list[np.ndarray], scale: dict[int, float], hosts: int
) -> np.ndarray:
    """Return by host, in ns, how much its ends scatter, if more than is usual, and how far whole
    parts of its span lie off its line.

    Ends that scatter more are late more often than early, which moves their middle by as much as
    they scatter. Parts that lie off the line show a clock whose rate changes, as when NTP steers
    it.
    """
    times: list[list[np.ndarray]] = [[] for _ in range(hosts)]
    values: list[list[np.ndarray]] = [[] for _ in range(hosts)]
    usual = np.zeros(hosts)
    for block, residual in zip(blocks, residuals, strict=True):
        for at, clock in enumerate(block.clocks.tolist()):
            seen = block.seen[:, at]
            # Ends that are beyond all reason are not this collective's.
            seen = seen & (np.abs(residual[:, at]) < NOISE[block.source].misfit)
            times[clock].append(block.end[seen, at])
            values[clock].append(residual[seen, at])
            usual[clock] = max(usual[clock], USUAL * NOISE[block.source].end * scale[block.source])
    found = np.zeros(hosts)
    for host in range(hosts):
        value = np.concatenate(values[host]) if values[host] else np.empty(0)
        if len(value) >= ENOUGH:
            spread = spread_of(value)
            found[host] = (SKEWED * spread if spread > usual[host] else 0.0) + _bend(
                np.concatenate(times[host]), value
            )
    return found


def _bend(times: np.ndarray, values: np.ndarray) -> float:
    """Return the largest distance of a part's median from 0, of those that are no chance."""
    parts = min(PARTS, len(times) // ENOUGH)
    if parts < 3:
        return 0.0
    largest = 0.0
    for part in np.array_split(values[np.argsort(times, kind="stable")], parts):
        middle = float(np.median(part))
        chance = 1.2533 * TO_SIGMA * float(np.median(np.abs(part - middle))) / len(part) ** 0.5
        if abs(middle) > max(SIGNIFICANT * chance, NOTICED):
            largest = max(largest, abs(middle))
    return largest
