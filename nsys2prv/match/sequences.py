"""Recognize the calls of one collective on all its members: by the report's own numbers, otherwise
by order, checked by the end times of the calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.columns import Table
from nsys2prv.clock import (
    ALIGNED_ERROR,
    ENOUGH_CALLS,
    NOISE,
    UTC_ERROR,
    ClockFinding,
    FindingKind,
    Noise,
    Role,
    choose_evenly,
    fit_line,
)
from nsys2prv.match.ends import (
    AGREEING_SHARE,
    FEWEST_CALLS,
    SURE_RATING,
    Ends,
    find_nearest_partners,
    find_rival_distances,
    find_width,
    keep_nearest_partners,
    mask_compatible,
    match_sequences,
    rate_in_order,
    rate_match,
)

#: Ends compared to see whether a member's calls fit in order.
COMPARED_ENDS = 1_024
#: By how much UTC seldom errs (ns).
USUAL_UTC_ERROR = 10_000_000
#: Drifts between two clocks that are tried, and the largest of them.
TRIED_DRIFTS, USUAL_DRIFT = 161, 2e-4
#: Members tried as the one that the others of their group are compared with.
REFERENCES = 3


class CallSequence(Table, frozen=True, dict=True):
    """The calls of one member of a communicator, sorted by start, as arrays."""

    #: Times of the begins and the ends, float ns relative to the pivot.
    begin: np.ndarray
    end: np.ndarray
    #: Hash of operation and size, 0 for unknown.
    signature: np.ndarray
    #: Whether the call synchronises all members.
    all: np.ndarray

    @classmethod
    def from_frame(cls, calls: pl.DataFrame) -> CallSequence:
        """Make the sequence of one member's calls. calls: signature, role, begin and end (ns
        relative to the pivot).
        """
        return cls(
            *(calls[side].to_numpy().astype(np.float64) for side in ("begin", "end")),
            calls["signature"].to_numpy(),
            calls["role"].to_numpy() == Role.ALL,
        )

    @cached_property
    def places(self) -> np.ndarray:
        """Return the indices of the synchronizing calls, sorted by end."""
        places = np.flatnonzero(self.all)
        return places[np.argsort(self.end[places], kind="stable")]

    @cached_property
    def ends(self) -> Ends:
        """Return the sorted end times of the synchronizing calls, with their signatures."""
        return Ends(self.end[self.places], self.signature[self.places])

    @cached_property
    def rivals(self) -> list[float]:
        """Return the distances in time (ns) between synchronizing calls that could be mistaken for
        each other.
        """
        return find_rival_distances(self.ends)


class Member(Struct, frozen=True):
    """A member of a communicator: how many calls it has, and a function that loads them."""

    #: Number of the member.
    member: int
    #: Number of its calls.
    count: int
    #: Loads its calls in order of their begins, as often as needed, with the columns of
    #: :meth:`CallSequence.from_frame`.
    load: Callable[[], pl.DataFrame]
    #: True if its report has the beginning of the group.
    began: bool = False
    #: The host, or another owner of a clock.
    clock: int = -1


def number_calls(table: pl.DataFrame) -> tuple[pl.DataFrame, list[ClockFinding]]:
    """Find out which calls belong to one collective. Return the calls with an `ordinal` that is
    equal for the calls of one collective of a `key`, and findings. Calls of unknown collectives are
    dropped. table: from :func:`nsys2prv.match.gathering.find_shared_calls`.
    """
    numbered, findings = _keep_numbered(table.filter("numbered"))
    rest = table.filter(~pl.col("numbered"))
    if not rest.height:
        return numbered, findings
    rest, order_findings = number_by_order(rest, UTC_ERROR)
    return pl.concat([numbered, rest]), findings + order_findings


def number_by_order(
    calls: pl.DataFrame, error: float, own_error: float | None = None
) -> tuple[pl.DataFrame, list[ClockFinding]]:
    """Number the calls by the order in which each member made them. Return the calls of known
    collectives with `ordinal`, and findings. error, own_error: as in :func:`number_group`.
    """
    ordinals, findings = [], []
    calls = calls.sort("noise_kind", "group", "member", "begin", maintain_order=True)
    for part in calls.partition_by("noise_kind", "group", maintain_order=True):
        members = [
            Member(own["member"][0], own.height, own.clone, own["began"][0], own["clock"][0])
            for own in part.partition_by("member", maintain_order=True)
        ]
        owner = part["noise_kind"][0], part["group"][0]
        fits, group_findings = number_group(members, *owner, error, own_error)
        findings += group_findings
        ordinals += [fits.get(at, np.full(member.count, -1)) for at, member in enumerate(members)]
    numbered = calls.with_columns(ordinal=pl.Series(np.concatenate(ordinals)))
    return numbered.filter(pl.col("ordinal") >= 0), findings


def _keep_numbered(table: pl.DataFrame) -> tuple[pl.DataFrame, list[ClockFinding]]:
    """Return the calls whose number and signature are the same as on the other members."""
    collective, signature = ["key", "ordinal"], pl.col("signature")
    table = table.with_columns(ordinal=pl.col("number")).with_row_index("row")
    # More calls than members is quick to see; fewer than that may still hide a repeated one, which
    # then does not fit in time.
    everyone = pl.col("member").n_unique().over("key")
    repeated = table.filter(pl.len().over(collective) > everyone)
    table = table.join(repeated, on="row", how="anti", maintain_order="left")
    known = table.filter(signature != 0)
    unlike = known.filter(signature.min().over(collective) != signature.max().over(collective))
    # The value of more than half of the members.
    usual = signature.mode().min()
    right = (signature == usual) & ((signature == usual).sum() * 2 > pl.len())
    wrong = unlike.filter(~right.over(collective))
    table = table.join(wrong, on="row", how="anti", maintain_order="left")
    findings = []
    columns = ["noise_kind", "group", "member"]
    for kind, rows in ((FindingKind.REPEATED, repeated), (FindingKind.UNLIKE, wrong)):
        counts = rows.group_by(columns).len().sort(columns)
        findings += [ClockFinding(kind, count, *owner) for _, *owner, count in counts.iter_rows()]
    return table.drop("row"), findings


def number_group(
    members: Sequence[Member],
    noise_kind: int,
    group: int,
    error: float,
    own_error: float | None = None,
) -> tuple[dict[int, np.ndarray], list[ClockFinding]]:
    """Number the calls of one group so that the calls of one collective have the same ordinal.
    Return two results: for each member that fits, by its index in `members`, the ordinals of its
    calls; and findings.

    Ordinals count the calls of the member that fits most of the others. Two members' calls are in
    memory at a time. members: sorted. error: of the clocks as placed (ns). own_error: of times by
    one clock, if different.
    """
    noise = NOISE[noise_kind]
    errors = error, error if own_error is None else own_error
    counts = [member.count for member in members]
    usual = max(set(counts), key=lambda count: (counts.count(count), count))
    order = sorted(
        range(len(members)), key=lambda at: (counts[at] != usual, -counts[at], members[at].member)
    )
    best: tuple[dict[int, np.ndarray], list[ClockFinding]] | None = None
    for at in order[:REFERENCES]:
        fits, findings = _fit_members(members, at, noise, group, errors)
        if best is None or len(fits) > len(best[0]):
            best = fits, findings
        if len(fits) > len(members) // 2:
            break
    return best


def _fit_members(
    members: Sequence[Member], at: int, noise: Noise, group: int, errors: tuple[float, float]
) -> tuple[dict[int, np.ndarray], list[ClockFinding]]:
    """Return the ordinals of every member that fits the member with index `at`. errors: of the
    clocks as placed, and of times by one clock (ns).
    """
    reference = CallSequence.from_frame(members[at].load())
    in_order = np.arange(len(reference))
    most = max(member.count for member in members)
    fits, findings = {at: in_order}, []
    for number, member in enumerate(members):
        if number == at:
            continue
        # A member with fewer calls than another has calls missing, even if the reference has as many missing.
        whole = member.began and members[at].began and member.count == most
        calls = CallSequence.from_frame(member.load())
        error = errors[member.clock == members[at].clock]
        partners, kind = _pair_in_order(calls, reference, noise, whole, error), None
        if partners is None:
            partners, kind = pair_calls(calls, reference, noise, error)
        count = member.count
        if partners is not None:
            fits[number] = in_order if np.array_equal(partners, in_order) else partners
            count = int((partners < 0).sum())
            kind = FindingKind.PARTIAL if count else None
        if kind:
            findings.append(ClockFinding(kind, count, group, member.member, member.clock))
    return fits, findings


def pair_calls(
    member: CallSequence, reference: CallSequence, noise: Noise, error: float
) -> tuple[np.ndarray | None, FindingKind | None]:
    """Pair the calls of two members. Return for each of the member's calls the index of the
    reference's call (-1 for none) and None; or None and the reason why they do not fit. error: of
    the clocks as placed (ns).
    """
    count = len(member)
    if are_even(member, reference):
        ends, others = member.end[member.all], reference.end[member.all]
        fits = do_fit_in_order(ends, others, noise)
        if fits and (
            not len(ends)
            or are_nearby(ends, others, error)
            or rate_in_order(member.ends, reference.ends, noise, reference.rivals) >= SURE_RATING
        ):
            return np.arange(count), None
        if fits:
            partners, _ = _pair_by_ends(member, reference, noise)
            if partners is not None:
                return partners, None
            return None, FindingKind.FEW_CALLS if len(
                ends
            ) < ENOUGH_CALLS else FindingKind.AMBIGUOUS
    if error <= ALIGNED_ERROR:
        partners = _pair_by_time(member, reference, noise, error)
        if partners is not None:
            return partners, None
    return _pair_by_ends(member, reference, noise)


def are_even(member: CallSequence, reference: CallSequence) -> bool:
    """Return True if both have the same calls in the same order, as far as this is known."""
    return (
        len(member) == len(reference)
        and bool(mask_compatible(member.signature, reference.signature).mean() >= 0.99)
        and bool((member.all == reference.all).all())
    )


def _pair_in_order(
    own: CallSequence, other: CallSequence, noise: Noise, whole: bool, error: float
) -> np.ndarray | None:
    """Pair calls in order. Return None if this is uncertain, because a call in which all wait for
    all would end before its partner has begun.

    If both have all calls (`whole`), any line between the clocks is possible. Otherwise the clocks
    must agree: the first call of the one that starts later belongs to the other's call in progress,
    the next calls follow, and no neighboring call fits as well. error: of the clocks as placed
    (ns).
    """
    is_even = len(own) == len(other)
    if whole and is_even and (places := _meet(own, other, 0, noise, np.inf)) is not None:
        return places
    if error > ALIGNED_ERROR:
        return None
    shift = _find_first(own, other) - _find_first(other, own)
    if is_even and not shift:
        return _meet(own, other, 0, noise, ALIGNED_ERROR)
    if any(_meet(own, other, shift + by, noise, error) is not None for by in (-1, 1)):
        return None
    return _meet(own, other, shift, noise, error)


def _meet(
    own: CallSequence, other: CallSequence, shift: int, noise: Noise, error: float
) -> np.ndarray | None:
    """Pair calls with partners at a shifted index; return None if some pairs do not overlap. error:
    of the clocks as placed (ns); inf if any line between them is possible.
    """
    place = np.arange(len(own)) + shift
    place = np.where((place >= 0) & (place < len(other)), place, -1)
    own, other = own[place >= 0], other[place[place >= 0]]
    sample = choose_evenly(len(own), COMPARED_ENDS)
    sample = sample[own.all[sample]]
    if not len(sample) or not are_even(own, other):
        return None
    # From the first one on, as a drift counts from there: clocks may be hours apart.
    is_known = np.isfinite(error)
    first = own.end.min()
    other_first = first if is_known else other.end.min()
    begin, end = own.begin[sample] - first, own.end[sample] - first
    other_begin, other_end = (times[sample] - other_first for times in (other.begin, other.end))
    drifts = np.zeros(1) if is_known else np.linspace(-USUAL_DRIFT, USUAL_DRIFT, TRIED_DRIFTS)
    rate = 1 + drifts[:, None]
    least = np.maximum((other_begin - end * rate).max(axis=1), -error)
    most = np.minimum((other_end - begin * rate).min(axis=1), error)
    return place if (least <= most + noise.slack).any() else None


def _find_first(own: CallSequence, other: CallSequence) -> int:
    """Return the index of the other's call in progress when the first call in which all wait for
    all begins, if the clocks agree; or 0.
    """
    begins = own.begin[own.all]
    return int(np.argmax(other.all & (other.end >= begins.min(initial=np.inf))))


def _pair_by_time(
    member: CallSequence, reference: CallSequence, noise: Noise, error: float
) -> np.ndarray | None:
    """Pair calls that ended at the same time, if the clocks agree. Return None if similar calls
    follow each other too closely.
    """
    own, other = member.ends, reference.ends
    if not len(own) or len(other) < 2:
        return None
    # Calls that differ are never taken for each other.
    far = min(reference.rivals, default=float(np.median(np.diff(other.time)))) / 4
    if far < error + noise.reach:
        return None
    index, late = find_nearest_partners(own, other)
    index = keep_nearest_partners(np.where(np.abs(late) < far, index, -1), np.abs(late))
    has_partner = index >= 0
    inside = (own.time > other.time[0] - far) & (own.time < other.time[-1] + far)
    if not has_partner.any() or has_partner[inside].mean() < AGREEING_SHARE:
        return None
    ordinals = np.full(len(member), -1, np.int64)
    ordinals[member.places[has_partner]] = reference.places[index[has_partner]]
    return ordinals


def do_fit_in_order(ends: np.ndarray, others: np.ndarray, noise: Noise) -> bool:
    """Return True if calls that are paired in order ended together, up to a line between their
    clocks. This is False if different calls are missing on each side. ends, others: end times (ns).
    """
    if not len(ends):
        return True
    sample = choose_evenly(len(ends), COMPARED_ENDS)
    offset, slope, spread = fit_line(ends[sample], others[sample] - ends[sample])
    misfit = np.abs(others - ends * (1 + slope) - offset)
    return (
        spread <= noise.misfit
        and float((misfit > max(10 * spread, noise.misfit / 4)).mean()) <= 0.01
    )


def are_nearby(ends: np.ndarray, others: np.ndarray, error: float) -> bool:
    """Return True if the end times of paired calls differ by much less than the distance to the
    next call. error: error of the aligned clocks (ns).
    """
    far = float(np.median(np.abs(np.diff(ends)))) / 4 if len(ends) > 1 else 0.0
    return far >= error and bool(np.abs(others - ends).max() < far)


def _is_gapless(index: np.ndarray, count: int) -> bool:
    """Return True if nearly all calls that the other member (with `count` calls) should share are
    matched; a few of many fit by chance.
    """
    matched = np.flatnonzero(index >= 0)
    shifted = np.arange(len(index)) + int(np.median(index[matched] - matched))
    shared = int(((shifted >= 0) & (shifted < count)).sum())
    return len(matched) >= ENOUGH_CALLS or len(matched) >= 0.8 * shared


def _pair_by_ends(
    member: CallSequence, reference: CallSequence, noise: Noise
) -> tuple[np.ndarray | None, FindingKind | None]:
    """Return ordinals of the synchronizing calls by their ends; of all calls if only the start of
    the order differs.
    """
    own, other = member.ends, reference.ends
    shorter = min(len(own), len(other))
    if shorter < FEWEST_CALLS:
        return None, FindingKind.FEW_CALLS
    match = match_sequences(own, other, noise)
    if match.count < max(FEWEST_CALLS, 0.2 * shorter) or match.spread > noise.misfit:
        return None, FindingKind.UNRELATED if shorter >= ENOUGH_CALLS else FindingKind.FEW_CALLS
    matched = match.index >= 0
    index = match.index[matched]
    offset, slope, spread = fit_line(own.time[matched], other.time[index] - own.time[matched])
    width = find_width(noise, spread, len(index))
    if (
        match.ambiguous
        or not _is_gapless(match.index, len(other))
        or rate_match(own.move(offset, slope), other, width, reference.rivals) < SURE_RATING
    ):
        return None, FindingKind.AMBIGUOUS
    ordinals = np.full(len(member), -1, np.int64)
    places = member.places[matched]
    ordinals[places] = reference.places[index]
    shifts = np.unique(ordinals[places] - places)
    if len(shifts) == 1:
        shifted = np.arange(len(ordinals)) + shifts[0]
        inside = (shifted >= 0) & (shifted < len(reference))
        fits = inside & mask_compatible(
            member.signature, reference.signature[np.clip(shifted, 0, len(reference) - 1)]
        )
        if fits[inside].mean() >= AGREEING_SHARE:
            # Ends decide about synchronizing calls; the others follow their order.
            ordinals = np.where(fits & ~member.all, shifted, ordinals)
    return ordinals, None
