"""What must precede what on which host's clock; and corrections judged by it: violations of
causality with and without them, and a sample of the remaining residuals.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import astuple

from nsys2prv._util.columns import factorize
from nsys2prv.clock import Role
from nsys2prv.clock.gathering import HOLD_BACK
from nsys2prv.clock.observations import Messages, choose_evenly

#: Share of collectives and messages that may be taken for misfits.
MISFITS = 0.05
#: Messages between two hosts, in one direction.
MOST_MESSAGES = 2_000


PRECEDENCE_COLUMNS = {
    "source": pl.Int64,
    "before": pl.Int64,
    "begin": pl.Float64,
    "after": pl.Int64,
    "end": pl.Float64,
    "held": pl.Boolean,
}


class Precedences(Struct, frozen=True):
    """`begin` on clock `before` is not later than `end` on clock `after`: arrays of one length,
    float ns relative to the pivot.
    """

    #: Key of NOISE.
    source: np.ndarray
    #: Clock of the begin.
    before: np.ndarray
    #: The earlier time.
    begin: np.ndarray
    #: Clock of the end.
    after: np.ndarray
    #: The later time.
    end: np.ndarray
    #: Held back from the estimate, to judge it by.
    held: np.ndarray

    def __len__(self) -> int:
        return len(self.begin)

    def take(self, rows: np.ndarray) -> Precedences:
        return Precedences(*(column[rows] for column in astuple(self)))

    def correct(self, offset: np.ndarray, drift: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the begins and the ends by corrected clocks: time + offset + drift * time, by
        clock.
        """
        return (
            self.begin * (1 + drift[self.before]) + offset[self.before],
            self.end * (1 + drift[self.after]) + offset[self.after],
        )


def find_precedences(hosts: pl.DataFrame, messages: Messages, pivot: int) -> Precedences:
    """Return the precedences of collectives: the begin of the root or of the last member, and the
    ends of those that waited for it.
    """
    parts = [_find_message_precedences(messages, pivot)]
    for role, one, begin, end in (
        (Role.ALL, "late", "begin", "first_end"),
        (Role.FROM_ROOT, "at_root", "root_begin", "first_end"),
        (Role.TO_ROOT, "at_root", "begin", "root_end"),
    ):
        role_rows = hosts.filter(pl.col("role") == role)
        begins = role_rows.select("collective", "source", "held", one, before="clock", begin=begin)
        ends = role_rows.select("collective", "source", "held", one, after="clock", end=end)
        every, single = (begins, ends) if role == Role.TO_ROOT else (ends, begins)
        parts.append(every.join(single.filter(one), on="collective"))
    table = pl.concat(
        part.filter(pl.col("before") != pl.col("after")).select(
            pl.col(name).cast(kind) for name, kind in PRECEDENCE_COLUMNS.items()
        )
        for part in parts
    )
    return Precedences(*(column.to_numpy() for column in table))


def _find_message_precedences(messages: Messages, pivot: int) -> pl.DataFrame:
    pair = ("before", "after")
    table = pl.DataFrame(
        {
            "source": messages.source,
            "before": messages.sender,
            "begin": messages.send_begin - np.int64(pivot),
            "after": messages.receiver,
            "end": messages.receive_end - np.int64(pivot),
        }
    )
    table = (
        table.filter(pl.col("before") != pl.col("after"))
        .sort(*pair, "begin", "end", "source")
        .with_columns(place=pl.int_range(pl.len()).over(pair), size=pl.len().over(pair))
    )
    # The place after which a whole step of size / MOST_MESSAGES begins: spread evenly, as many as
    # allowed.
    step, place = pl.col("size") / MOST_MESSAGES, pl.col("place")
    begins_step = (place / step).floor() != ((place - 1) / step).floor()
    return table.filter((pl.col("size") <= MOST_MESSAGES) | begins_step).with_columns(
        held=place % HOLD_BACK == HOLD_BACK - 1
    )


class Violations(Struct, frozen=True):
    """Count and size of causality violations."""

    #: Number of ends checked.
    checked: int = 0
    #: Number of ends before a begin that must precede them.
    number: int = 0
    #: Largest violation, ns.
    largest: float = 0.0
    #: Sum of the violations, ns.
    total: float = 0.0

    def counts(self) -> dict[str, int]:
        """Return the counts for the record, in whole ns."""
        return {
            "checked": self.checked,
            "violated": self.number,
            "largest_ns": round(self.largest),
            "sum_ns": round(self.total),
        }

    def __add__(self, other: Violations) -> Violations:
        return Violations(
            self.checked + other.checked,
            self.number + other.number,
            max(self.largest, other.largest),
            self.total + other.total,
        )


class Verdict(Struct, frozen=True):
    """Violations in what was used for the estimate and in what was held back from it, by placed
    times and by corrected ones.
    """

    #: Of what was used, by placed times.
    used_before: Violations
    #: Of what was used, by corrected times.
    used_after: Violations
    #: Of what was held back, by placed times.
    held_before: Violations
    #: Of what was held back, by corrected times.
    held_after: Violations

    @property
    def before(self) -> Violations:
        """Return those of all, by placed times."""
        return self.used_before + self.held_before

    @property
    def after(self) -> Violations:
        """Return those of all, by corrected times."""
        return self.used_after + self.held_after


def judge_corrections(
    hosts: pl.DataFrame, messages: Precedences, offset: np.ndarray, drift: np.ndarray
) -> Verdict:
    """Return what corrections violate, before and after. hosts: of per_host. messages: of messages
    alone. offset, drift: per host, corrected = time + offset + drift * time.
    """
    nothing = np.zeros_like(offset)
    used_before, held_before = _find_violations(hosts, messages, nothing, nothing)
    used_after, held_after = _find_violations(hosts, messages, offset, drift)
    return Verdict(used_before, used_after, held_before, held_after)


def drop_misfits(
    hosts: pl.DataFrame,
    messages: Precedences,
    offset: np.ndarray,
    drift: np.ndarray,
    limit: np.ndarray,
) -> tuple[pl.DataFrame, Precedences, int]:
    """Remove collectives and messages that corrected clocks contradict by more than `limit` (ns, by
    host), and return the rest and their number: calls that do not belong together. If they are more
    than a few, the clocks are as likely wrong, and all stay.
    """
    late = _find_collective_violations(hosts, offset, drift)
    wrong = np.unique(hosts["collective"].to_numpy()[late > limit[hosts["clock"].to_numpy()]])
    sent, received = messages.correct(offset, drift)
    lost = sent - received > np.maximum(limit[messages.before], limit[messages.after])
    count = len(wrong) + int(lost.sum())
    if not count or count > MISFITS * (hosts["collective"].n_unique() + len(messages)):
        return hosts, messages, 0
    hosts = _renumber_collectives(hosts.filter(~pl.col("collective").is_in(wrong)))
    return hosts, messages.take(np.flatnonzero(~lost)), count


def split_by_component(
    hosts: pl.DataFrame, messages: Precedences, part: np.ndarray
) -> tuple[pl.DataFrame, Precedences]:
    """Divide collectives by the components that the hosts belong to; one across several is divided
    into a share for each.
    """
    number = hosts["collective"].to_numpy() * len(part) + part[hosts["clock"].to_numpy()]
    hosts = hosts.with_columns(collective=pl.Series(number)).sort("collective", maintain_order=True)
    together = np.flatnonzero(part[messages.before] == part[messages.after])
    return _renumber_collectives(hosts), messages.take(together)


def _renumber_collectives(hosts: pl.DataFrame) -> pl.DataFrame:
    """Return the rows with collectives that are numbered from 0 without gaps."""
    _, number = factorize(hosts["collective"].to_numpy())
    return hosts.with_columns(collective=pl.Series(number))


def _find_violations(
    hosts: pl.DataFrame, messages: Precedences, offset: np.ndarray, drift: np.ndarray
) -> tuple[Violations, Violations]:
    """Return the violations in what is used and in what is held back."""
    sent, received = messages.correct(offset, drift)
    late = np.append(_find_collective_violations(hosts, offset, drift), sent - received)
    held = np.append(hosts["held"].to_numpy(), messages.held)
    finite = np.isfinite(late)
    return count_violations(late[~held & finite]), count_violations(late[held & finite])


def count_violations(late: np.ndarray) -> Violations:
    """Return the violations, of ends that are so late (ns; negative: in time)."""
    # Times are whole ns; what is earlier by less is rounding.
    wrong = late[late >= 1]
    return Violations(len(late), len(wrong), float(wrong.max(initial=0)), float(wrong.sum()))


def _find_collective_violations(
    hosts: pl.DataFrame, offset: np.ndarray, drift: np.ndarray
) -> np.ndarray:
    """Return by how much each host's first end of a collective precedes the last begin on another
    host that it must follow, ns.
    """
    if not hosts.height:
        return np.empty(0)
    clock, role, root, collective = (
        hosts[name].to_numpy() for name in ("clock", "role", "at_root", "collective")
    )
    rate, shift = 1 + drift[clock], offset[clock]
    begin = np.where(
        role == Role.FROM_ROOT,
        hosts["root_begin"].cast(pl.Float64).fill_null(-np.inf).to_numpy(),
        hosts["begin"].to_numpy(),
    )
    end = np.where(
        role == Role.TO_ROOT,
        hosts["root_end"].cast(pl.Float64).fill_null(np.inf).to_numpy(),
        hosts["first_end"].to_numpy(),
    )
    begin, end = begin * rate + shift, end * rate + shift
    begin[(role == Role.FROM_ROOT) & ~root] = -np.inf
    end[(role == Role.TO_ROOT) & ~root] = np.inf
    starts = np.flatnonzero(np.diff(collective, prepend=-1))
    last = np.maximum.reduceat(begin, starts)[collective]
    # On the host of the last begin, the last one of the others counts.
    own = begin == last
    second = np.maximum.reduceat(np.where(own, -np.inf, begin), starts)[collective]
    several = np.add.reduceat(own.astype(np.int64), starts)[collective] > 1
    return np.where(own & ~several, second, last) - end


#: Collectives of the sample, per host.
MOST = 100

#: (placed time, deviation with it, deviation with the corrected time), ns.
Sample = tuple[int, int, int]


def sample_residuals(
    hosts: pl.DataFrame, offset: np.ndarray, drift: np.ndarray, pivot: int
) -> list[tuple[Sample, ...]]:
    """Return a sample for each host. `hosts` as of per_host; corrected = time + offset + drift *
    time by host, relative to the pivot.

    Deviations are from the median over the hosts of a collective in which all wait for all.
    """
    collectives = hosts.filter(pl.col("role") == Role.ALL).select("collective", "clock", "end")
    clock, end = collectives["clock"].to_numpy(), collectives["end"].to_numpy().astype(np.float64)
    deviation = pl.col("before", "after") - pl.col("before", "after").median().over("collective")
    collectives = collectives.with_columns(
        before=pl.Series(end), after=pl.Series(end * (1 + drift[clock]) + offset[clock])
    ).with_columns(deviation)
    samples: list[tuple[Sample, ...]] = [()] * len(offset)
    for part in collectives.sort("clock", "end").partition_by("clock", maintain_order=True):
        kept = part[choose_evenly(part.height, MOST)].select(
            pl.col("end", "before", "after").round().cast(pl.Int64)
        )
        kept = kept.with_columns(pl.col("end") + pivot)
        samples[part["clock"][0]] = tuple(kept.iter_rows())
    return samples
