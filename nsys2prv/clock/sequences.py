"""Recognising one collective on all its members: by the report's own numbers, else by order, checked by when the calls ended."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from nsys2prv.clock.matching import AGREEING, FEWEST, agreeing, match, shift_spread
from nsys2prv.clock.observations import NOISE, Finding, Noise, Role
from nsys2prv.clock.robust import evenly, line_through

#: Ends compared to see whether a member's calls fit in order.
SAMPLE = 1_024
#: Members tried as the one that the others of their group are compared with.
REFERENCES = 3


@dataclass(frozen=True)
class _Sequence:
    """One member's calls in order: rows of the table, ends (float ns), signatures, and which calls synchronise all members."""

    member: int
    rows: np.ndarray
    end: np.ndarray
    signature: np.ndarray
    all: np.ndarray


def number_calls(table: pl.DataFrame) -> tuple[pl.DataFrame, list[Finding]]:
    """The table with `ordinal`, equal for the calls of one collective of a `key`; calls of no known collective are left out."""
    numbered, findings = _numbered(table.filter("numbered"))
    rest = table.filter(~pl.col("numbered"))
    if not rest.height:
        return numbered, findings
    rest = rest.sort("key", "member", "begin", "end")
    ordinals = np.full(rest.height, -1, np.int64)
    starts = np.append(np.flatnonzero(rest.select((pl.struct("key", "member").rle_id().diff() != 0).fill_null(True)).to_series()),
                       rest.height)
    keys, members = rest["key"].to_numpy(), rest["member"].to_numpy()
    ends, signatures = rest["end"].to_numpy().astype(np.float64), rest["signature"].to_numpy()
    alls = rest["role"].to_numpy() == Role.ALL
    groups: dict[int, list[_Sequence]] = {}
    for low, high in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        part = slice(low, high)
        groups.setdefault(int(keys[low]), []).append(
            _Sequence(int(members[low]), np.arange(low, high), ends[part], signatures[part], alls[part]))
    names = rest.group_by("key").agg(pl.col("source", "group").first())
    for key, source, group in names.sort("key").iter_rows():
        findings += _number_group(groups[key], ordinals, source, group)
    rest = rest.with_columns(ordinal=pl.Series(ordinals)).filter(pl.col("ordinal") >= 0)
    return pl.concat([numbered, rest]), findings


def _numbered(table: pl.DataFrame) -> tuple[pl.DataFrame, list[Finding]]:
    table = table.with_columns(ordinal=pl.col("number"))
    findings = []
    # Counting the members of each number is cheaper than looking for equal ones in every row.
    seen = table.group_by("key", "ordinal").agg(
        calls=pl.len(), most=pl.col("member").n_unique() if table.height < 1_000_000 else pl.len(),
        signs=pl.col("signature").filter(pl.col("signature") != 0).min() != pl.col("signature").max())
    if table.height >= 1_000_000:
        members = table.group_by("key").agg(everyone=pl.col("member").n_unique())
        seen = seen.join(members, on="key").with_columns(most=pl.min_horizontal("calls", "everyone"))
    twice = seen.filter(pl.col("calls") > pl.col("most"))
    unlike = seen.filter(pl.col("signs").fill_null(False))
    for bad, kind, reason in ((twice, "repeated", "numbers that occur twice on one member are left out"),
                              (unlike, "unlike", "collectives whose operation or size differs between members are left out")):
        if bad.height:
            names = bad.group_by("key").len().join(table.select("key", "source", "group").unique(), on="key").sort("key")
            findings += [Finding(kind, reason, count, source, group)
                         for _, count, source, group in names.select("key", "len", "source", "group").iter_rows()]
            table = table.join(bad.select("key", "ordinal"), on=["key", "ordinal"], how="anti")
    return table, findings


def _number_group(members: list[_Sequence], ordinals: np.ndarray, source: int, group: int) -> list[Finding]:
    """Write the ordinals of one group's calls, as counted by the member that most of the others fit."""
    noise = NOISE[source]
    counts = [len(member.rows) for member in members]
    usual = max(set(counts), key=lambda count: (counts.count(count), count))
    order = sorted(range(len(members)), key=lambda at: (counts[at] != usual, -counts[at], members[at].member))
    best: tuple[int, dict[int, np.ndarray], list[Finding]] | None = None
    for at in order[:REFERENCES]:
        fits, findings = _fit(members, at, noise, source, group)
        if best is None or len(fits) > len(best[1]):
            best = at, fits, findings
        if len(fits) > len(members) // 2 or any(finding.kind == "ambiguous" for finding in findings):
            break
    _, fits, findings = best
    for at, found in fits.items():
        ordinals[members[at].rows] = found
    return findings


def _fit(members: list[_Sequence], at: int, noise: Noise, source: int, group: int) -> tuple[dict[int, np.ndarray], list[Finding]]:
    """Ordinals of every member that fits the one `at`."""
    reference = members[at]
    own = shift_spread(reference.end[reference.all], reference.signature[reference.all])
    fits, findings = {at: np.arange(len(reference.rows))}, []
    for number, member in enumerate(members):
        if number == at:
            continue
        found, kind, reason = _in_order(member, reference, own, noise)
        if kind == "other":
            found, kind, reason = _by_ends(member, reference, noise)
        if kind:
            findings.append(Finding(kind, reason, len(member.rows), source, group, member.member))
        if found is not None:
            fits[number] = found
            left = int((found < 0).sum())
            if left:
                findings.append(Finding("partial", f"of {len(found)} calls this many are no other member's", left, source, group,
                                        member.member))
    return fits, findings


def _in_order(member: _Sequence, reference: _Sequence, own: float, noise: Noise) -> tuple[np.ndarray | None, str, str]:
    """Ordinals by order, if both have equally many calls of agreeing signatures whose ends fit; kind "other" if not so."""
    count = len(member.rows)
    if count != len(reference.rows) or agreeing(member.signature, reference.signature).mean() < 0.99 or (member.all != reference.all).any():
        return None, "other", ""
    ordinals = np.arange(count)
    synchronous = ordinals[member.all]
    if not len(synchronous):
        return ordinals, "", ""
    if len(synchronous) < FEWEST:
        return None, "few", "too few calls to tell by their ends which belong together"
    sample = synchronous[evenly(len(synchronous), SAMPLE)]
    _, _, spread = line_through(member.end[sample], reference.end[sample] - member.end[sample])
    if spread > noise.misfit or spread > own / 2:
        return None, "other", ""
    # A call missing here and one too many there leave the counts equal and this part out of step.
    _, _, whole = line_through(member.end[member.all], reference.end[member.all] - member.end[member.all])
    offset, slope, _ = line_through(member.end[sample], reference.end[sample] - member.end[sample])
    misfit = np.abs(reference.end[member.all] - member.end[member.all] * (1 + slope) - offset)
    if (misfit > max(10 * whole, noise.misfit / 4)).mean() > 0.01:
        return None, "other", ""
    return ordinals, "", ""


def _by_ends(member: _Sequence, reference: _Sequence, noise: Noise) -> tuple[np.ndarray | None, str, str]:
    """Ordinals of the synchronising calls by their ends; of all calls where the order only begins elsewhere."""
    own, other = _by_end(member), _by_end(reference)
    if min(len(own), len(other)) < FEWEST:
        return None, "few", "too few calls to tell by their ends which belong together"
    found = match(member.end[own], member.signature[own], reference.end[other], reference.signature[other])
    if found.count < FEWEST or found.spread > noise.misfit or found.count < 0.2 * min(len(own), len(other)):
        return None, "unrelated", "calls whose ends fit those of no other member"
    if found.ambiguous:
        return None, "ambiguous", "calls so regular that several ways of pairing them fit equally"
    ordinals = np.full(len(member.rows), -1, np.int64)
    matched = found.index >= 0
    ordinals[own[matched]] = other[found.index[matched]]
    shifts = np.unique(ordinals[own[matched]] - own[matched])
    if len(shifts) == 1:
        shifted = np.arange(len(ordinals)) + shifts[0]
        inside = (shifted >= 0) & (shifted < len(reference.rows))
        fits = inside & agreeing(member.signature, reference.signature[np.clip(shifted, 0, len(reference.rows) - 1)])
        if fits[inside].mean() >= AGREEING:
            ordinals = np.where(fits, shifted, -1)
    return ordinals, "", ""


def _by_end(sequence: _Sequence) -> np.ndarray:
    """Places of the synchronising calls, in the order of their ends."""
    places = np.flatnonzero(sequence.all)
    return places[np.argsort(sequence.end[places], kind="stable")]
