"""Match the calls of one member with another's by their end times (float ns, sorted), and rate the
certainty of the match.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from nsys2prv._util.columns import Table
from nsys2prv.clock import PLAUSIBLE_DRIFT, Noise, estimate_spread, find_median, fit_line

#: Lengths of the chunks that are searched, and their number: if single calls are missing, only
#: short chunks are complete.
CHUNKS = ((96, 5), (24, 15))
#: Fewer calls than this cannot show that they belong together.
FEWEST_CALLS = 4
#: From MANY_CALLS ends on, a scatter below the usual one is believed, down to 1 / SHARPER of it.
MANY_CALLS, SHARPER = 8, 4.0
#: A second fit with a spread below this multiple of the best one's may also be right.
RIVAL_SPREAD = 1.3
#: Largest number of places in the other sequence that a chunk is compared with; other chunks cover the
#: rest.
MOST_PLACES = 4_096
#: Intervals between ends may differ by this many times the scatter of ends.
INTERVAL_MISFITS = 4.0
#: Largest number of candidates of a chunk that are grown.
MOST_CANDIDATES = 3
#: Share of equal signatures among the calls matched.
AGREEING_SHARE = 0.9


class Ends(Table, frozen=True):
    """End times (ns) of the calls of one member, with their signatures: hashes of what all members
    share; 0 if unknown.
    """

    #: Times, float ns, ascending.
    time: np.ndarray
    #: Hash of operation and size, 0 for unknown.
    signature: np.ndarray

    def move(self, offset: float, slope: float) -> Ends:
        """Return the ends with times converted to another clock: time * (1 + slope) + offset (ns)."""
        return Ends(self.time * (1 + slope) + offset, self.signature)


class Match(Struct, frozen=True):
    """Pairs of calls from two sequences that belong together, and how well their ends agree."""

    #: Place of each call's partner in the other sequence, -1 without one.
    index: np.ndarray
    #: Standard deviation of the differences of the ends, ns.
    spread: float
    #: Whether another match fits as well.
    ambiguous: bool = False

    @property
    def count(self) -> int:
        """Return the number of calls with a partner."""
        return int((self.index >= 0).sum())


def mask_compatible(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return a mask of the pairs (one, other) of signatures that do not contradict each other; 0
    means unknown.
    """
    return (one == other) | (one == 0) | (other == 0)


def match_sequences(own: Ends, other: Ends, noise: Noise) -> Match:
    """Find the calls of two members that belong together by their end times; each may lack calls.
    If nothing fits, return a match without partners. noise: how simultaneously such calls end.
    """
    length = _choose_chunk_length(len(own), len(other))
    for most, chunks in CHUNKS if length else ():
        fits = _find_fits(own, other, min(most, length), chunks, noise)
        if fits:
            return _choose_best(fits)
    return Match(np.full(len(own), -1, np.int64), float("inf"))


def _find_fits(own: Ends, other: Ends, length: int, chunks: int, noise: Noise) -> list[Match]:
    fits: list[Match] = []
    begins = np.unique(np.linspace(0, len(own) - length, chunks).round().astype(np.int64))
    for begin in begins.tolist():
        for place in _find_places(own, begin, length, other, noise.misfit):
            if any(fit.index[begin + length // 2] == place + length // 2 for fit in fits):
                continue
            fit = _grow_match(own, other, begin, place, length, noise.reach)
            if fit is not None:
                fits.append(fit)
    return fits


def _choose_best(fits: list[Match]) -> Match:
    most = max(fit.count for fit in fits)
    whole = [fit for fit in fits if fit.count >= 0.5 * most]
    best, *others = sorted(whole, key=lambda fit: (fit.spread, -fit.count))
    ambiguous = any(
        fit.spread < RIVAL_SPREAD * best.spread and not _do_matches_agree(fit, best)
        for fit in others
    )
    return Match(best.index, best.spread, ambiguous)


def _do_matches_agree(one: Match, other: Match) -> bool:
    """Return True if most calls that both matches contain have the same partners."""
    both = (one.index >= 0) & (other.index >= 0)
    return bool(both.any()) and float((one.index[both] == other.index[both]).mean()) > 0.5


def _choose_chunk_length(count: int, other: int) -> int:
    """Return the length of the chunks to compare: half of the shorter sequence, because both
    sequences may be cut short; all of a sequence that is only just long enough; 0 for a shorter
    one.
    """
    shorter = min(count, other)
    if shorter < FEWEST_CALLS:
        return 0
    return min(CHUNKS[0][0], max(shorter // 2, min(shorter, 2 * FEWEST_CALLS)))


def _find_places(
    own: Ends, begin: int, length: int, other: Ends, misfit: float = np.inf
) -> list[int]:
    """Return the places in the other sequence where the intervals of a chunk fit best. Most must
    fit within the scatter of ends (`misfit`, ns).
    """
    chunk = own[begin : begin + length]
    first = max(0, min(begin - MOST_PLACES // 2, len(other) - length + 1 - MOST_PLACES))
    near = slice(first, first + MOST_PLACES)
    windows = np.lib.stride_tricks.sliding_window_view(np.diff(other.time), length - 1)[near]
    intervals = np.diff(chunk.time)
    misfits = np.abs(windows - intervals)
    middle = (length - 1) // 2
    spreads = np.partition(misfits, middle, axis=1)[:, middle]
    if chunk.signature.any():
        signs = np.lib.stride_tricks.sliding_window_view(other.signature, length)[near]
        # Half: a chunk with a call missing in its middle agrees on one side of it only.
        agreeing = mask_compatible(signs, chunk.signature).mean(axis=1)
        spreads = np.where(agreeing < 0.5, np.inf, spreads)
    places = np.argsort(spreads, kind="stable")[:MOST_CANDIDATES]
    most = INTERVAL_MISFITS * misfit + PLAUSIBLE_DRIFT * float(np.median(intervals))
    return [first + int(place) for place in places if spreads[place] < most]


def _grow_match(
    own: Ends, other: Ends, begin: int, place: int, length: int, usual: float
) -> Match | None:
    """Extend the match of a chunk to all calls; return None if this fails. usual: allowed
    difference between ends of one collective (ns), even if most are closer.
    """
    low, high = begin, begin + length
    times = own.time[low:high]
    offset, slope, spread = fit_line(times, other.time[place : place + length] - times)
    while True:
        part = own[low:high]
        index, misfit = find_nearest_partners(part.move(offset, slope), other)
        matched = (index >= 0) & (np.abs(misfit) <= max(4 * spread, usual))
        if matched.sum() < FEWEST_CALLS:
            return None
        times = part.time[matched]
        offset, slope, spread = fit_line(times, other.time[index[matched]] - times)
        if low == 0 and high == len(own):
            break
        width = high - low
        low, high = max(0, low - width // 2 - 1), min(len(own), high + width // 2 + 1)
    if abs(slope) > PLAUSIBLE_DRIFT:
        return None
    index, misfit = find_nearest_partners(own.move(offset, slope), other)
    matched = (index >= 0) & (np.abs(misfit) <= max(6 * spread, usual))
    if matched.sum() < FEWEST_CALLS or not is_tighter_than_chance(
        np.abs(misfit[matched]), other.time, index[matched]
    ):
        return None
    index = np.where(matched, index, -1)
    return Match(keep_nearest_partners(index, np.abs(misfit)), estimate_spread(misfit[matched]))


def find_nearest_partners(own: Ends, other: Ends) -> tuple[np.ndarray, np.ndarray]:
    """Find for each end the nearer of the two neighboring ends in `other`, if their signatures are
    compatible. Return two arrays: its index (-1 for none), and how much later it is (ns).
    """
    after = np.clip(np.searchsorted(other.time, own.time), 0, len(other) - 1)
    before = np.maximum(after - 1, 0)

    def find_misfit(place: np.ndarray) -> np.ndarray:
        is_compatible = mask_compatible(other.signature[place], own.signature)
        return np.where(is_compatible, other.time[place] - own.time, np.inf)

    late, early = find_misfit(after), find_misfit(before)
    earlier = np.abs(early) <= np.abs(late)
    misfit = np.where(earlier, early, late)
    return np.where(np.isfinite(misfit), np.where(earlier, before, after), -1), misfit


def is_tighter_than_chance(misfits: np.ndarray, other: np.ndarray, index: np.ndarray) -> bool:
    """Return True if ends are closer to their partners than unrelated, evenly spread ends would be;
    these would be a quarter of a gap away (median). misfits: distances (ns). index: of the partners
    among the times `other`.
    """
    gaps = np.diff(other)
    around = np.minimum(gaps[np.minimum(index, len(gaps) - 1)], gaps[np.maximum(index - 1, 0)]) / 2
    return bool(np.median(misfits / np.maximum(around, 1.0)) < 0.25)


def keep_nearest_partners(index: np.ndarray, misfit: np.ndarray) -> np.ndarray:
    """Let each call be the partner of at most one other: if several have the same partner, only the
    nearest keeps it. Return the partners, -1 for none. index: partner of each call. misfit: its
    distance (ns).
    """
    order = np.lexsort((misfit, index))
    again = np.zeros(len(index), bool)
    again[order[1:]] = index[order[1:]] == index[order[:-1]]
    return np.where(again, -1, index)


#: By chance alone no other pairing may look so much worse more often than once in a million times;
#: natural logarithm.
SURE_RATING = float(np.log(1e6))
#: A rival pairing is judged by its worst calls: WORST_SHARE of them, at least LEAST_WORST, as most may
#: fit well in a job that repeats itself. Each must add LEAST_GAIN_PER_CALL on average, so that scatter
#: adds nothing.
WORST_SHARE, LEAST_WORST = 0.1, 3
LEAST_GAIN_PER_CALL = 0.25
#: About one call in 20 may be missing: one without a partner counts as a misfit of 20 widths.
MISSING_CALL_WIDTHS = 20.0
#: Largest number of calls that are compared at once.
WINDOW = 512
#: Largest number of distances by which calls are moved for rival pairings, in both directions.
RIVALS = 4
#: Distances that differ by less than this (ns) are one.
SAME_DISTANCE = 100_000.0


def rate_in_order(own: Ends, other: Ends, noise: Noise, rivals: list[float]) -> float:
    """Rate how certain it is that the calls of two equally long sequences belong together one by
    one, whatever line relates their clocks. The result is as in :func:`rate_match`.

    Because no call is missing, a call without a partner counts as off by the gap between two calls.
    """
    if len(own) < 2:
        return 0.0
    offset, slope, spread = fit_line(own.time, other.time - own.time)
    width = find_width(noise, spread, len(own))
    apart = max(find_median(np.diff(other.time)) / width, MISSING_CALL_WIDTHS)
    return rate_match(own.move(offset, slope), other, width, rivals, apart)


def find_width(noise: Noise, spread: float, count: int) -> float:
    """Return the largest plausible difference (ns) between the ends of one collective, given the
    spread (ns) and the number of matched ends. Many ends with a small spread allow a smaller width.
    """
    least = noise.reach if count < MANY_CALLS else noise.reach / SHARPER
    return max(least, 3 * spread)


def rate_match(
    own: Ends, other: Ends, width: float, rivals: list[float], missing: float = MISSING_CALL_WIDTHS
) -> float:
    """Rate how certain it is that calls with these ends belong together, if both sequences may lack
    calls: reliable from SURE_RATING on; 0 if another pairing fits about as well.

    Calls with different signatures never form a collective. width: from :func:`find_width`. rivals:
    from :func:`find_rival_distances`, for `other`. missing: assumed misfit of a call without a
    partner, in widths.
    """
    if not (own.signature.all() and other.signature.all()):
        own, other = (Ends(side.time, np.zeros_like(side.signature)) for side in (own, other))
    other = other[_choose_central(len(other))]

    def mask_near(times: np.ndarray) -> np.ndarray:
        return (times >= other.time[0] - width) & (times <= other.time[-1] + width)

    own = own[mask_near(own.time)]
    misfits = _rate_misfits(own, other, width, missing)
    gain = np.log(missing)
    for by in (sign * distance for distance in rivals for sign in (1, -1)):
        inside = mask_near(own.time + by)
        count = int(inside.sum())
        if count >= max(2, len(own) // 2):
            # One call always has another at a rival's distance.
            moved = Ends(own.time[inside] + by, own.signature[inside])
            worse = _compare_worst(_rate_misfits(moved, other, width, missing), misfits[inside])
            gain = min(gain, worse * count / (count - 1))
    # One call is used up to find the place of the others.
    return gain * (len(own) - 1) if gain >= LEAST_GAIN_PER_CALL else 0.0


def _compare_worst(rival: np.ndarray, own: np.ndarray) -> float:
    """Return by how much the worst misfits of a rival pairing exceed the worst misfits of this
    pairing.
    """
    count = min(len(own), max(LEAST_WORST, round(WORST_SHARE * len(own))))
    return float(np.sort(rival)[-count:].mean() - np.sort(own)[-count:].mean())


def _choose_central(count: int) -> slice:
    first = max(0, (count - WINDOW) // 2)
    return slice(first, first + WINDOW)


def find_rival_distances(ends: Ends) -> list[float]:
    """Return the distances (ns) at which most calls have another call with the same signature, up
    to half of the sequence.
    """
    part = ends[_choose_central(len(ends))]
    kinds = part.signature if ends.signature.all() else np.zeros_like(part.signature)
    most, gathered = len(part) // 2, []
    for kind in np.unique(kinds):
        own = part.time[kinds == kind]
        gathered += [own[shift:] - own[:-shift] for shift in range(1, min(len(own), most + 1))]
    distances = np.sort(np.concatenate(gathered)) if gathered else np.empty(0)
    chosen: list[float] = []
    while len(distances) and len(chosen) < RIVALS:
        low, high = (np.searchsorted(distances, distances + by) for by in (0, SAME_DISTANCE))
        at = int(np.argmax(high - low))
        chosen.append(float(np.median(distances[low[at] : high[at]])))
        distances = distances[np.abs(distances - chosen[-1]) > SAME_DISTANCE]
    return chosen


def _rate_misfits(own: Ends, other: Ends, width: float, missing: float) -> np.ndarray:
    """Return the misfit of each call to the nearest call with its signature: the logarithm of
    widths, 0 if it fits, limited to that of `missing`.
    """
    if not len(own):
        return np.empty(0)
    kinds = np.unique(np.concatenate([own.signature, other.signature]))
    times = np.concatenate([own.time, other.time])
    # Move calls of each signature far from all others.
    far = 4 * (times.max() - times.min() + width)
    wanted, place = (
        side.time + np.searchsorted(kinds, side.signature) * far for side in (own, other)
    )
    place = np.concatenate([[-far], np.sort(place), [(len(kinds) + 1) * far]])
    after = np.clip(np.searchsorted(place, wanted), 1, len(place) - 1)
    misfit = np.minimum(np.abs(place[after] - wanted), np.abs(wanted - place[after - 1]))
    return np.log(np.clip(misfit / width, 1.0, missing))
