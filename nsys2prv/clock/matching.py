"""Match one member's calls with another's by their end times (float ns, ascending), and judge how
certain the match is.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from nsys2prv.clock.observations import PLAUSIBLE_DRIFT, Noise, line_through, spread_of

#: Lengths of the chunks looked for, and how many: where calls are missing here and there, only
#: short ones are whole.
CHUNKS = ((96, 5), (24, 15))
#: Fewer calls than this cannot show that they belong together.
FEWEST = 4
#: Of fewer calls than this the median misfit may be small by chance: all have to fit.
FEW = 16
#: A second fit whose spread is below this multiple of the best one's could be right as well.
NEARLY = 1.3
#: Places of the other sequence that are compared with a chunk: what lies farther off is reached by
#: another chunk.
PLACES = 4_096
CANDIDATES = 3
#: Share of equal signatures among the calls matched.
AGREEING = 0.9


class Match(Struct, frozen=True):
    """`index`: of the partner of each call, -1 without one; `spread`: of the end differences;
    `ambiguous`: another fits as well.
    """

    index: np.ndarray
    spread: float
    ambiguous: bool = False

    @property
    def count(self) -> int:
        return int((self.index >= 0).sum())


def compatible_signatures(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return a mask of the signatures that do not contradict each other: 0 is unknown."""
    return (one == other) | (one == 0) | (other == 0)


def similar_shifts(ends: np.ndarray, signatures: np.ndarray) -> list[int]:
    """Return shifts with which a sequence may be taken for itself: by a few calls, and where a part
    of it looks most like another.
    """
    count = len(ends)
    shifts = {1, 2, 3}
    length = _chunk_length(count, count)
    begin = (count - length) // 2
    shifts |= {
        abs(place - begin)
        for place in _places(ends, signatures, begin, length, ends, signatures)
        if place != begin
    }
    return sorted(shifts)


def match_sequences(
    ends: np.ndarray,
    signatures: np.ndarray,
    other: np.ndarray,
    other_signatures: np.ndarray,
    usual: float = 1_000.0,
) -> Match:
    """Return the partners of the calls in the other sequence, whatever calls either lacks; none if
    nothing fits.

    usual: what ends of one collective may differ by (ns), however close most of them are.
    """
    nothing = Match(np.full(len(ends), -1, np.int64), float("inf"))
    length = _chunk_length(len(ends), len(other))
    if not length:
        return nothing
    for most, chunks in CHUNKS:
        fits = _fits(ends, signatures, other, other_signatures, min(most, length), chunks, usual)
        if fits:
            return _best(fits)
    return nothing


def _fits(
    ends: np.ndarray,
    signatures: np.ndarray,
    other: np.ndarray,
    other_signatures: np.ndarray,
    length: int,
    chunks: int,
    usual: float,
) -> list[Match]:
    fits: list[Match] = []
    begins = np.unique(np.linspace(0, len(ends) - length, chunks).round().astype(np.int64))
    for begin in begins.tolist():
        for place in _places(ends, signatures, begin, length, other, other_signatures):
            if any(fit.index[begin + length // 2] == place + length // 2 for fit in fits):
                continue
            fit = _grow(ends, signatures, other, other_signatures, begin, place, length, usual)
            if fit is not None:
                fits.append(fit)
    return fits


def _best(fits: list[Match]) -> Match:
    most = max(fit.count for fit in fits)
    fits = sorted(
        (fit for fit in fits if fit.count >= 0.5 * most), key=lambda fit: (fit.spread, -fit.count)
    )
    best = fits[0]
    ambiguous = any(fit.spread < NEARLY * best.spread and not _same(fit, best) for fit in fits[1:])
    return Match(best.index, best.spread, ambiguous)


def _same(one: Match, other: Match) -> bool:
    both = (one.index >= 0) & (other.index >= 0)
    return bool(both.any()) and float((one.index[both] == other.index[both]).mean()) > 0.5


def _chunk_length(count: int, other: int) -> int:
    """Return the length of the chunks: half of the shorter sequence, as either may have been cut
    short; all of one that is only just long enough.
    """
    shorter = min(count, other)
    return 0 if shorter < FEWEST else min(CHUNKS[0][0], max(shorter // 2, min(shorter, 2 * FEWEST)))


def _places(
    ends: np.ndarray,
    signatures: np.ndarray,
    begin: int,
    length: int,
    other: np.ndarray,
    other_signatures: np.ndarray,
) -> list[int]:
    """Return the places in the other sequence where the chunk's intervals fit best."""
    chunk, known = np.diff(ends[begin : begin + length]), signatures[begin : begin + length]
    first = max(0, min(begin - PLACES // 2, len(other) - length + 1 - PLACES))
    windows = np.lib.stride_tricks.sliding_window_view(np.diff(other), length - 1)[
        first : first + PLACES
    ]
    misfits = np.abs(windows - chunk)
    middle = (length - 1) // 2
    spreads = np.partition(misfits, middle, axis=1)[:, middle]
    if known.any():
        signs = np.lib.stride_tricks.sliding_window_view(other_signatures, length)[
            first : first + PLACES
        ]
        # Half: a chunk with a call missing in its middle agrees on one side of it only.
        spreads = np.where(compatible_signatures(signs, known).mean(axis=1) < 0.5, np.inf, spreads)
    places = np.argsort(spreads, kind="stable")[:CANDIDATES]
    return [first + int(place) for place in places if np.isfinite(spreads[place])]


def _grow(
    ends: np.ndarray,
    signatures: np.ndarray,
    other: np.ndarray,
    other_signatures: np.ndarray,
    begin: int,
    place: int,
    length: int,
    usual: float,
) -> Match | None:
    offset, slope, spread = line_through(
        ends[begin : begin + length], other[place : place + length] - ends[begin : begin + length]
    )
    low, high = begin, begin + length
    while True:
        part = slice(low, high)
        index, misfit = nearest_partners(
            ends[part] * (1 + slope) + offset, signatures[part], other, other_signatures
        )
        found = (index >= 0) & (np.abs(misfit) <= max(4 * spread, usual))
        if found.sum() < FEWEST:
            return None
        times = ends[part][found]
        offset, slope, spread = line_through(times, other[index[found]] - times)
        if abs(slope) > PLAUSIBLE_DRIFT and low == 0 and high == len(ends):
            return None
        if low == 0 and high == len(ends):
            break
        width = high - low
        low, high = max(0, low - width // 2 - 1), min(len(ends), high + width // 2 + 1)
    index, misfit = nearest_partners(
        ends * (1 + slope) + offset, signatures, other, other_signatures
    )
    found = (index >= 0) & (np.abs(misfit) <= max(6 * spread, usual))
    if found.sum() < FEWEST or not _tighter_than_chance(np.abs(misfit[found]), other, index[found]):
        return None
    index = np.where(found, index, -1)
    return Match(keep_mutual(index, np.abs(misfit)), spread_of(misfit[found]))


def nearest_partners(
    times: np.ndarray, signatures: np.ndarray, other: np.ndarray, other_signatures: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the index of the nearest other time with an agreeing signature of the two around (-1
    without), and how much later it is, ns.
    """
    after = np.clip(np.searchsorted(other, times), 0, len(other) - 1)
    before = np.maximum(after - 1, 0)
    late, early = other[after] - times, other[before] - times
    late = np.where(compatible_signatures(other_signatures[after], signatures), late, np.inf)
    early = np.where(compatible_signatures(other_signatures[before], signatures), early, np.inf)
    index, misfit = (
        np.where(np.abs(early) <= np.abs(late), before, after),
        np.where(np.abs(early) <= np.abs(late), early, late),
    )
    return np.where(np.isfinite(misfit), index, -1), misfit


def _tighter_than_chance(misfits: np.ndarray, other: np.ndarray, index: np.ndarray) -> bool:
    """True if the ends are closer than unrelated ones, which lie anywhere between two others: at a
    median of a half of half the gap.
    """
    gaps = np.diff(other)
    around = np.minimum(gaps[np.minimum(index, len(gaps) - 1)], gaps[np.maximum(index - 1, 0)]) / 2
    return bool(np.median(misfits / np.maximum(around, 1.0)) < 0.25)


def keep_mutual(index: np.ndarray, misfit: np.ndarray) -> np.ndarray:
    """Return each partner only for the nearest of those that chose it."""
    order = np.lexsort((misfit, index))
    again = np.zeros(len(index), bool)
    again[order[1:]] = index[order[1:]] == index[order[:-1]]
    return np.where(again, -1, index)


#: By chance alone no other pairing may look so much worse more often than once in a million times;
#: natural logarithm.
SURE = float(np.log(1e6))
#: Of many calls, each adds at least so much on average: how they scatter by themselves adds
#: nothing, but not exactly nothing.
EACH = 0.25
#: One call in so many may be missing, so that one without a partner tells no more than a misfit of
#: so many widths.
LACKING = 20.0
#: Calls looked at together; of up to so many every shift is tried.
WINDOW, ALL_SHIFTS = 512, 64
#: Rivals that are compared with the pairing, each to both sides: those that fit a sequence best to
#: itself. Distances that differ by less than this (ns) are one.
RIVALS, CLOSE = 4, 100_000.0


def certainty_of_order(
    ends: np.ndarray, others: np.ndarray, signatures: np.ndarray, noise: Noise
) -> float:
    """Return how certainly calls belong together whose `ends` (ns, ascending but for noise) were
    paired with `others` one by one: reliable from SURE on; 0 if another pairing fits about as well,
    or nothing can be compared.
    """
    part = _central(len(ends))
    ends, others, signatures = ends[part], others[part], signatures[part]
    count = len(ends)
    if count < 2:
        return 0.0
    own = _misfits(ends, others)
    width = max(noise.reach, 3 * float(np.median(own)))
    own = np.maximum(own, width)
    gain, possible = np.inf, False
    for shift in _rival_shifts(others, signatures, width):
        possible = True
        for low, high in (
            (slice(None, -shift), slice(shift, None)),
            (slice(shift, None), slice(None, -shift)),
        ):
            if count - shift >= 2:
                gain = min(
                    gain,
                    float(
                        np.log(
                            np.maximum(_misfits(ends[low], others[high]), width) / own[low]
                        ).mean()
                    ),
                )
    if not np.isfinite(gain):
        # Nothing to compare with: of calls of which each could be paired with one other alone, how
        # far they lie apart tells.
        gain = (
            0.0
            if possible
            else float(np.log(max(float(np.median(np.diff(np.sort(ends)))), width) / width))
        )
    return _certainty(gain, count)


def certainty_of_match(
    times: np.ndarray,
    kinds: np.ndarray,
    others: np.ndarray,
    other_kinds: np.ndarray,
    width: float,
    rivals: list[float],
) -> float:
    """Return the same for sequences of calls, either of which may lack some, as they lie. times,
    others: ascending ends on one clock (ns); kinds: calls of different ones are no collective;
    rivals: rival_distances of the others.
    """
    if not (kinds.all() and other_kinds.all()):
        kinds, other_kinds = np.zeros_like(kinds), np.zeros_like(other_kinds)
    part = _central(len(others))
    others, other_kinds = others[part], other_kinds[part]
    near = (times >= others[0] - width) & (times <= others[-1] + width)
    times, kinds = times[near], kinds[near]
    own = _lacks(times, kinds, others, other_kinds, width)
    gain = np.log(LACKING)
    for distance in rivals:
        for by in (distance, -distance):
            inside = (times + by >= others[0] - width) & (times + by <= others[-1] + width)
            count = int(inside.sum())
            if count >= max(2, len(times) // 2):
                # One call always has another at a rival's distance.
                lacks = (
                    _lacks(times[inside] + by, kinds[inside], others, other_kinds, width)
                    - own[inside]
                )
                gain = min(gain, float(lacks.sum()) / (count - 1))
    return _certainty(gain, len(times))


def _certainty(gain: float, count: int) -> float:
    """Return the certainty of each call; one call is used up to find the place of the others."""
    return gain * (count - 1) if gain >= EACH else 0.0


def _central(count: int) -> slice:
    first = max(0, (count - WINDOW) // 2)
    return slice(first, first + WINDOW)


def _misfits(ends: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the difference of each interval between the two sequences, without a drift."""
    _, slope, _ = line_through(ends, others - ends)
    return np.abs(np.diff(others - ends * (1 + slope)))


def _rival_shifts(ends: np.ndarray, signatures: np.ndarray, width: float) -> list[int]:
    """Return the shifts with which the calls fit themselves best, of those that the signatures
    allow and that leave half of them, if any do.
    """
    count = len(ends)
    shifts = (
        range(1, count)
        if count <= 3
        else range(1, count // 2 + 1)
        if count <= ALL_SHIFTS
        else similar_shifts(ends, signatures)
    )
    fits = []
    for shift in shifts:
        if compatible_signatures(signatures[shift:], signatures[:-shift]).mean() < AGREEING:
            continue
        misfit = (
            np.abs(np.diff(ends[shift:] - ends[:-shift]))
            if count - shift >= 2
            else np.full(1, np.inf)
        )
        fits.append((float(np.log(np.maximum(misfit, width)).mean()), shift))
    return [shift for _, shift in sorted(fits)[:RIVALS]]


def rival_distances(ends: np.ndarray, kinds: np.ndarray) -> list[float]:
    """Return the distances (ns) at which most calls have another one of their kind, up to that of
    half of the calls.
    """
    part = _central(len(ends))
    ends, kinds = ends[part], kinds[part] if kinds.all() else np.zeros_like(kinds[part])
    most, found = len(ends) // 2, []
    for kind in np.unique(kinds):
        own = ends[kinds == kind]
        found += [own[shift:] - own[:-shift] for shift in range(1, min(len(own), most + 1))]
    distances = np.sort(np.concatenate(found)) if found else np.empty(0)
    chosen: list[float] = []
    while len(distances) and len(chosen) < RIVALS:
        low, high = (np.searchsorted(distances, distances + by) for by in (0, CLOSE))
        at = int(np.argmax(high - low))
        chosen.append(float(np.median(distances[low[at] : high[at]])))
        distances = distances[np.abs(distances - chosen[-1]) > CLOSE]
    return chosen


def _lacks(
    times: np.ndarray, kinds: np.ndarray, others: np.ndarray, other_kinds: np.ndarray, width: float
) -> np.ndarray:
    """Return how badly each call fits the nearest of its kind: logarithm of widths, 0 where it
    fits.
    """
    if not len(times):
        return np.empty(0)
    names = np.unique(np.concatenate([kinds, other_kinds]))
    far = 4 * (max(times.max(), others.max()) - min(times.min(), others.min()) + width)
    place = others + np.searchsorted(names, other_kinds) * far
    place = np.concatenate([[-far], np.sort(place), [(len(names) + 1) * far]])
    wanted = times + np.searchsorted(names, kinds) * far
    after = np.clip(np.searchsorted(place, wanted), 1, len(place) - 1)
    misfit = np.minimum(np.abs(place[after] - wanted), np.abs(wanted - place[after - 1]))
    return np.log(np.clip(misfit / width, 1.0, LACKING))
