"""Recognising one collective on all its members: by the report's own numbers, else by order, checked by when the calls ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from nsys2prv.clock.matching import AGREEING, FEW, FEWEST, agreeing, match, shift_spread
from nsys2prv.clock.observations import NOISE, Calls, Finding, Messages, Noise, Role, pivot_of
from nsys2prv.clock.robust import evenly, line_through

#: Ends compared to see whether a member's calls fit in order.
SAMPLE = 1_024
#: By how much UTC seldom errs (ns): what lies closer together it does not tell apart.
UTC_ERROR = 10_000_000
#: Members tried as the one that the others of their group are compared with.
REFERENCES = 3


@dataclass(frozen=True)
class CallSequence:
    """One member's calls by their begins: ends (float ns relative to the pivot), signatures, and which calls synchronise all members."""

    end: np.ndarray
    signature: np.ndarray
    all: np.ndarray

    def __len__(self) -> int:
        return len(self.end)


@dataclass(frozen=True)
class Member:
    """A member of a group, how many calls it has, and where to get them, as often as they are asked for."""

    member: int
    count: int
    load: Callable[[], CallSequence]


def number_calls(table: pl.DataFrame) -> tuple[pl.DataFrame, list[Finding]]:
    """The table with `ordinal`, equal for the calls of one collective of a `key`; calls of no known collective are left out."""
    numbered, findings = _numbered(table.filter("numbered"))
    rest = table.filter(~pl.col("numbered"))
    if not rest.height:
        return numbered, findings
    order, starts, owners = _members(rest)
    ends, signatures = rest["end"].to_numpy().astype(np.float64)[order], rest["signature"].to_numpy()[order]
    alls = rest["role"].to_numpy()[order] == Role.ALL
    groups: dict[int, list[Member]] = {}
    parts: dict[int, list[slice]] = {}
    for (key, member), low, high in zip(owners, starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        part = slice(low, high)
        parts.setdefault(key, []).append(part)
        groups.setdefault(key, []).append(
            Member(member, high - low, lambda part=part: CallSequence(ends[part], signatures[part], alls[part])))
    ordinals = np.full(rest.height, -1, np.int64)
    names = rest.group_by("key").agg(pl.col("source", "group").first())
    for key, source, group in names.sort("key").iter_rows():
        fits, found = number_group(groups[key], source, group)
        for at, numbers in fits.items():
            ordinals[order[parts[key][at]]] = numbers
        findings += found
    rest = rest.with_columns(ordinal=pl.Series(ordinals)).filter(pl.col("ordinal") >= 0)
    return pl.concat([numbered, rest]), findings


def recognised(calls: Calls) -> tuple[np.ndarray, list[Finding]]:
    """Each call's ordinal among the collectives of its (source, group), equal on all members; -1 for calls of no known collective.

    Numbers of the report are not heeded, nor whose clocks the times are of.
    """
    pivot = pivot_of(calls, Messages.none())
    table = pl.DataFrame({
        "source": calls.source, "group": calls.group, "member": calls.member, "signature": calls.signature, "role": calls.role,
        "begin": calls.begin - pivot, "end": calls.end - pivot}).with_row_index("call")
    table = table.with_columns(key=pl.struct("source", "group").rank("dense").cast(pl.Int32), numbered=pl.lit(False),
                               number=pl.lit(-1, pl.Int64))
    ordinals = np.full(table.height, -1, np.int64)
    found, findings = number_calls(table)
    ordinals[found["call"].to_numpy()] = found["ordinal"].to_numpy()
    return ordinals, findings


def _members(table: pl.DataFrame) -> tuple[np.ndarray, np.ndarray, list[tuple[int, int]]]:
    """Order of the rows by (key, member, begin), where each member's begin in it, and (key, member) of each."""
    begin, member = table["begin"].to_numpy(), table["member"].to_numpy()
    first, lowest = int(begin.min()), int(member.min())
    bits, width = (int(begin.max()) - first).bit_length(), (int(member.max()) - lowest).bit_length()
    if bits + width + int(table["key"].max()).bit_length() < 63:
        # One number sorts several times faster than three columns.
        packed = ((table["key"].to_numpy().astype(np.int64) << width | (member - lowest)) << bits) | (begin - first)
        order = pl.Series(packed).arg_sort().to_numpy()
    else:
        order = table.select(pl.arg_sort_by("key", "member", "begin")).to_series().to_numpy()
    order = order.astype(np.int64)
    keys, members = table["key"].to_numpy()[order], member[order]
    starts = np.append(0, np.flatnonzero((np.diff(keys) != 0) | (np.diff(members) != 0)) + 1)
    return order, np.append(starts, len(order)), list(zip(keys[starts].tolist(), members[starts].tolist(), strict=True))


def _numbered(table: pl.DataFrame) -> tuple[pl.DataFrame, list[Finding]]:
    table = table.with_columns(ordinal=pl.col("number"))
    if not table.height:
        return table, []
    members = table.group_by("key").agg(everyone=pl.col("member").n_unique())
    seen = table.group_by("key", "ordinal").agg(
        calls=pl.len(), unlike=pl.col("signature").filter(pl.col("signature") != 0).min() != pl.col("signature").max())
    # More calls than members is quick to see; fewer than that may still hide a repeated one, which then does not fit in time.
    repeated = seen.join(members, on="key").filter(pl.col("calls") > pl.col("everyone")).select("key", "ordinal")
    findings = []
    if repeated.height:
        findings = _told(table.join(repeated, on=["key", "ordinal"], how="semi"), "repeated",
                         "calls whose number occurs more often than there are members are left out")
        table = table.join(repeated, on=["key", "ordinal"], how="anti")
    unlike = seen.filter(pl.col("unlike").fill_null(False)).select("key", "ordinal")
    if unlike.height:
        some = table.with_row_index("row").join(unlike, on=["key", "ordinal"], how="semi")
        known = pl.col("signature").filter(pl.col("signature") != 0)
        usual = some.group_by("key", "ordinal").agg(
            usual=pl.when((known == known.mode().min()).sum() * 2 > known.len()).then(known.mode().min()))
        wrong = some.join(usual, on=["key", "ordinal"]).filter((pl.col("signature") != 0) & pl.col("signature").ne_missing(pl.col("usual")))
        findings += _told(wrong, "unlike", "calls of another operation or size than the other members' of that number are left out")
        table = table.with_row_index("row").join(wrong.select("row"), on="row", how="anti").drop("row")
    return table, findings


def _told(wrong: pl.DataFrame, kind: str, reason: str) -> list[Finding]:
    counts = wrong.group_by("source", "group", "member").len().sort("source", "group", "member")
    return [Finding(kind, reason, count, source, group, member) for source, group, member, count in counts.iter_rows()]


def number_group(members: Sequence[Member], source: int, group: int) -> tuple[dict[int, np.ndarray], list[Finding]]:
    """The ordinals of one group's calls, as counted by the member that most of the others fit: of each member that fits, by its index
    among `members`, which ascend by member. Two members' calls are in memory at a time."""
    noise = NOISE[source]
    counts = [member.count for member in members]
    usual = max(set(counts), key=lambda count: (counts.count(count), count))
    order = sorted(range(len(members)), key=lambda at: (counts[at] != usual, -counts[at], members[at].member))
    best: tuple[dict[int, np.ndarray], list[Finding]] | None = None
    for at in order[:REFERENCES]:
        fits, findings = _fit(members, at, noise, source, group)
        if best is None or len(fits) > len(best[0]):
            best = fits, findings
        if len(fits) > len(members) // 2 or any(finding.kind == "ambiguous" for finding in findings):
            break
    return best


def _fit(members: Sequence[Member], at: int, noise: Noise, source: int, group: int) -> tuple[dict[int, np.ndarray], list[Finding]]:
    """Ordinals of every member that fits the one `at`."""
    reference = members[at].load()
    own = shift_spread(reference.end[reference.all], reference.signature[reference.all])
    in_order = np.arange(len(reference))
    fits, findings = {at: in_order}, []
    for number, member in enumerate(members):
        if number == at:
            continue
        calls = member.load()
        found, kind, reason = _in_order(calls, reference, own, noise)
        if kind == "other":
            found, kind, reason = _by_ends(calls, reference, own, noise)
        if kind:
            findings.append(Finding(kind, reason, member.count, source, group, member.member))
        if found is not None:
            fits[number] = in_order if np.array_equal(found, in_order) else found
            left = int((found < 0).sum())
            if left:
                findings.append(Finding("partial", "calls that the members they were compared with do not have", left, source, group,
                                        member.member))
    return fits, findings


def _in_order(member: CallSequence, reference: CallSequence, own: float, noise: Noise) -> tuple[np.ndarray | None, str, str]:
    """Ordinals by order, if both have equally many calls of agreeing signatures whose ends fit; kind "other" if not so."""
    count = len(member)
    if count != len(reference) or agreeing(member.signature, reference.signature).mean() < 0.99 or (member.all != reference.all).any():
        return None, "other", ""
    ordinals = np.arange(count)
    synchronous = ordinals[member.all]
    if not len(synchronous):
        return ordinals, "", ""
    if len(synchronous) < FEWEST:
        return None, "few", "too few calls to tell by their ends which belong together"
    sample = synchronous[evenly(len(synchronous), SAMPLE)]
    _, _, spread = line_through(member.end[sample], reference.end[sample] - member.end[sample])
    told = spread <= own / 2 and _few_fit(member.end[sample], reference.end[sample], own, noise)
    if spread > noise.misfit or not (told or (spread <= noise.reach and _nearby(member.end[sample], reference.end[sample]))):
        return None, "other", ""
    # A call missing here and one too many there leave the counts equal and this part out of step.
    _, _, whole = line_through(member.end[member.all], reference.end[member.all] - member.end[member.all])
    offset, slope, _ = line_through(member.end[sample], reference.end[sample] - member.end[sample])
    misfit = np.abs(reference.end[member.all] - member.end[member.all] * (1 + slope) - offset)
    if (misfit > max(10 * whole, noise.misfit / 4)).mean() > 0.01:
        return None, "other", ""
    return ordinals, "", ""


def _few_fit(ends: np.ndarray, other: np.ndarray, own: float, noise: Noise) -> bool:
    """Whether calls so few that a shifted sequence may fit by chance fit clearly better than that; True of more calls."""
    if len(ends) >= FEW:
        return True
    order = np.argsort(ends, kind="stable")
    ends, other = ends[order], other[order]
    offset, slope, _ = line_through(ends, other - ends)
    return own >= 3 * noise.reach and bool(np.abs(other - ends * (1 + slope) - offset).max() <= own / 3)


def _nearby(ends: np.ndarray, other: np.ndarray) -> bool:
    """Whether the clocks as placed say too that calls of one order belong together, as a shift by one would be much farther off."""
    far = float(np.median(np.abs(np.diff(ends)))) / 4
    return far >= UTC_ERROR and bool(np.abs(other - ends).max() < far)


def _gapless(index: np.ndarray, count: int) -> bool:
    """Whether nearly all calls that the other member (of `count` calls) should have too are matched: some few of many fit by chance."""
    matched = np.flatnonzero(index >= 0)
    shifted = np.arange(len(index)) + int(np.median(index[matched] - matched))
    return len(matched) >= FEW or len(matched) >= 0.8 * int(((shifted >= 0) & (shifted < count)).sum())


def _by_ends(member: CallSequence, reference: CallSequence, own_shifted: float, noise: Noise) -> tuple[np.ndarray | None, str, str]:
    """Ordinals of the synchronising calls by their ends; of all calls where the order only begins elsewhere."""
    own, other = _by_end(member), _by_end(reference)
    if min(len(own), len(other)) < FEWEST:
        return None, "few", "too few calls to tell by their ends which belong together"
    found = match(member.end[own], member.signature[own], reference.end[other], reference.signature[other], noise.reach)
    if found.count < FEWEST or found.spread > noise.misfit or found.count < 0.2 * min(len(own), len(other)):
        return None, "unrelated", "calls whose ends fit those of no other member"
    matched = found.index >= 0
    few = member.end[own[matched]], reference.end[other[found.index[matched]]]
    if found.ambiguous or not (_gapless(found.index, len(other)) and _few_fit(*few, own_shifted, noise)):
        return None, "ambiguous", "calls so regular that several ways of pairing them fit equally"
    ordinals = np.full(len(member), -1, np.int64)
    ordinals[own[matched]] = other[found.index[matched]]
    shifts = np.unique(ordinals[own[matched]] - own[matched])
    if len(shifts) == 1:
        shifted = np.arange(len(ordinals)) + shifts[0]
        inside = (shifted >= 0) & (shifted < len(reference))
        fits = inside & agreeing(member.signature, reference.signature[np.clip(shifted, 0, len(reference) - 1)])
        if fits[inside].mean() >= AGREEING:
            # Of the synchronising calls the ends have told; the others follow their order.
            ordinals = np.where(fits & ~member.all, shifted, ordinals)
    return ordinals, "", ""


def _by_end(sequence: CallSequence) -> np.ndarray:
    """Places of the synchronising calls, in the order of their ends."""
    places = np.flatnonzero(sequence.all)
    return places[np.argsort(sequence.end[places], kind="stable")]
