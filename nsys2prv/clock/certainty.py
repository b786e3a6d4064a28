"""Whether calls that were paired surely belong together: no other pairing of them fits nearly as well.

A wrong pairing of irregular calls fits by chance with a probability of width / misfit for each of them, where misfit is what a rival
pairing leaves. Regular calls fit shifted as well as not, whatever their number. So the rivals are looked for, and compared.
"""

from __future__ import annotations

import numpy as np

from nsys2prv.clock.matching import AGREEING, agreeing, similar_shifts
from nsys2prv.clock.observations import Noise
from nsys2prv.clock.robust import line_through

#: By chance alone no other pairing may look so much worse more often than once in a million times; natural logarithm.
SURE = float(np.log(1e6))
#: Of many calls, each adds at least so much on average: how they scatter by themselves adds nothing, but not exactly nothing.
EACH = 0.25
#: One call in so many may be missing, so that one without a partner tells no more than a misfit of so many widths.
LACKING = 20.0
#: Calls looked at together; of up to so many every shift is tried.
WINDOW, ALL_SHIFTS = 512, 64
#: Rivals that are compared with the pairing, each to both sides: those that fit a sequence best to itself. Distances that differ by less
#: than this (ns) are one.
RIVALS, CLOSE = 4, 100_000.0


def certainty_of_order(ends: np.ndarray, others: np.ndarray, signatures: np.ndarray, noise: Noise) -> float:
    """How certainly calls whose `ends` (ns, ascending but for noise) were paired with `others`, one by one, belong together: surely from
    SURE on; 0 where another pairing fits about as well, or nothing can be compared."""
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
        for low, high in ((slice(None, -shift), slice(shift, None)), (slice(shift, None), slice(None, -shift))):
            if count - shift >= 2:
                gain = min(gain, float(np.log(np.maximum(_misfits(ends[low], others[high]), width) / own[low]).mean()))
    if not np.isfinite(gain):
        # Nothing to compare with: of calls of which each could be paired with one other alone, how far they lie apart tells.
        gain = 0.0 if possible else float(np.log(max(float(np.median(np.diff(np.sort(ends)))), width) / width))
    return _certainty(gain, count)


def certainty_of_match(times: np.ndarray, kinds: np.ndarray, others: np.ndarray, other_kinds: np.ndarray, width: float,
                       rivals: list[float]) -> float:
    """The same for sequences of calls, either of which may lack some, as they lie. times, others: ascending ends on one clock (ns); kinds:
    calls of different ones are no collective; rivals: rival_distances of the others."""
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
                lacks = _lacks(times[inside] + by, kinds[inside], others, other_kinds, width) - own[inside]
                gain = min(gain, float(lacks.sum()) / (count - 1))
    return _certainty(gain, len(times))


def _certainty(gain: float, count: int) -> float:
    """So much for each call, but for one that tells where the others are to be."""
    return gain * (count - 1) if gain >= EACH else 0.0


def _central(count: int) -> slice:
    first = max(0, (count - WINDOW) // 2)
    return slice(first, first + WINDOW)


def _misfits(ends: np.ndarray, others: np.ndarray) -> np.ndarray:
    """By how much each interval differs between the two, without a drift."""
    _, slope, _ = line_through(ends, others - ends)
    return np.abs(np.diff(others - ends * (1 + slope)))


def _rival_shifts(ends: np.ndarray, signatures: np.ndarray, width: float) -> list[int]:
    """The shifts with which the calls fit themselves best, of those that the signatures allow and that leave half of them, if any do."""
    count = len(ends)
    shifts = range(1, count) if count <= 3 else range(1, count // 2 + 1) if count <= ALL_SHIFTS else similar_shifts(ends, signatures)
    fits = []
    for shift in shifts:
        if agreeing(signatures[shift:], signatures[:-shift]).mean() < AGREEING:
            continue
        misfit = np.abs(np.diff(ends[shift:] - ends[:-shift])) if count - shift >= 2 else np.full(1, np.inf)
        fits.append((float(np.log(np.maximum(misfit, width)).mean()), shift))
    return [shift for _, shift in sorted(fits)[:RIVALS]]


def rival_distances(ends: np.ndarray, kinds: np.ndarray) -> list[float]:
    """The distances (ns) at which most calls have another one of their kind, up to that of half of the calls."""
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
        chosen.append(float(np.median(distances[low[at]:high[at]])))
        distances = distances[np.abs(distances - chosen[-1]) > CLOSE]
    return chosen


def _lacks(times: np.ndarray, kinds: np.ndarray, others: np.ndarray, other_kinds: np.ndarray, width: float) -> np.ndarray:
    """How badly each call fits the nearest of its kind: logarithm of widths, 0 where it fits."""
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
