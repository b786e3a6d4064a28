"""Declare the facts about two runs, as in JSON, and describe them in sentences."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct, to_builtins

from nsys2prv._util.text import format_nanoseconds, format_share, list_some, shorten
from nsys2prv.show.difference.runs import ARGUMENTS, NOT_COMPARABLE
from nsys2prv.show.thresholds import ALIKE, APART, MANY_TIMES, OUTLIER, SAME_COUNT
from nsys2prv.verdict.words import TEXTS, say

#: Compared unit -> its name.
UNITS = {
    "iteration": "iteration",
    "job": "job",
    "work": "from the first to the last GPU work",
}
#: Names of causes, the largest first.
ORDER = ("Main", "Second")
#: Characters of a name in a sentence.
WIDEST = 50


class Reason(Struct, frozen=True):
    """One cause of the difference between two runs. Times are ns per compared unit (an iteration or
    the job).
    """

    #: Family of the time: kernels, communication, copies, hosts, startup, shutdown, unexplained.
    family: str
    #: The part of the path, as in `path` of findings.
    part: str
    #: Kernel, call, NVTX range or place; "" for several.
    name: str
    #: Increase from A to B (ns).
    change_ns: float
    #: Share of the whole difference.
    share: float
    #: Its ranks; empty for all ranks.
    ranks: tuple[str, ...] = ()
    #: Number of occurrences on a rank, in A and B: means over the ranks, without startup and shutdown.
    counts: tuple[float, float] | None = None
    #: Factor by which each lasts longer in B.
    times: float | None = None
    #: NVTX range, or the longest of several; for startup and shutdown, the call or range with most of the
    #: time.
    inside: str = ""
    #: True if it takes longer because GPU clocks are lower, or less time because they are higher.
    is_of_clock: bool = False
    #: True if its name (otherwise `inside`) describes the time between two calls.
    is_between: bool = False

    def __str__(self) -> str:
        """Return the reason as text: `rank 2 takes 2.0 ms longer in load_batch`."""
        who, name = list_some([*self.ranks]), _shorten(self.name)
        inside = _shorten(self.inside) if self.inside != self.name else ""

        def place(name: str) -> str:
            """Return a text with the place of hosts: in a call or range, or between two calls."""
            return name if self.is_between or not name else f"in {name}"

        facts = {
            "who": who,
            "name": name,
            "time": abs(self.change_ns),
            "more": "longer" if self.change_ns > 0 else "less",
            "each": self._say_each(),
            "hosts": f"{who} take{'s' * (len(self.ranks) == 1)}" if who else "hosts take",
            "where": place(name),
            "inside": inside if name or self.family != "hosts" else "",
            "most": "" if name else place(inside),
            "family": self.family,
        }
        is_one = self.family == "kernels" and bool(name)
        key = f"more {'kernel' if is_one else self.family}"
        return str(say(key if key in TEXTS["says"] else "more", **facts))

    def _say_each(self) -> str:
        if self.counts and abs(self.counts[1] - self.counts[0]) > SAME_COUNT * self.counts[0]:
            after, before = (f"{count:,.3g}" for count in reversed(self.counts))
            if self.family == "iterations":
                return f"{after} iterations instead of {before}"
            said = f"executed {after} times per rank instead of {before}"
            is_mean = any(count % 1 for count in self.counts)
            return f"{said} on average, without startup and shutdown" if is_mean else said
        if not self.times or abs(self.times - 1) < APART:
            return ""
        each = f"each {format_share(abs(self.times - 1), 0)} {'longer' if self.times > 1 else 'shorter'}"
        if self.times >= MANY_TIMES:
            each = f"each {self.times:.3g} times as long"
        clock = f", because the clock is {'lower' if self.times > 1 else 'higher'}"
        return each + clock * self.is_of_clock


class Limit(Struct, frozen=True):
    """Limit on how much B may exceed A: `job`, `iteration`, `communication`, `region`, `kernel`,
    `efficiency` (how much lower it may be); "" for the compared unit.
    """

    what: str
    #: Name of the region, kernel or efficiency, as a pattern or a part of it.
    name: str
    #: Allowed share (0.05: 5%).
    share: float


class Checked(Struct, frozen=True):
    """A limit on changes with the values of both runs. Times are ns, efficiencies fractions of 1."""

    limit: Limit
    #: In A.
    before: float
    #: In B.
    after: float
    #: Relative deterioration from A to B (0.22: 22% worse).
    change: float
    #: Random part of the change.
    noise: float
    #: True if the change exceeds the limit and the random part.
    is_exceeded: bool

    def __str__(self) -> str:
        what = " ".join(filter(None, (self.limit.what, self.limit.name)))
        is_efficiency = self.limit.what == "efficiency"
        worse, better = ("lower", "higher") if is_efficiency else ("longer", "shorter")
        how = better if self.change < 0 else worse
        state = "exceeds the limit of" if self.is_exceeded else "is within the limit of"
        return (
            f"{what}: {how} by {format_share(abs(self.change))}, which {state} {100 * self.limit.share:g}% "
            f"(up to {format_share(self.noise)} may be chance)"
        )


class Comparison(Struct, frozen=True):
    """The facts about the difference of two runs A and B, as in JSON."""

    #: Names of the runs.
    names: tuple[str, str]
    #: `comparable`, `with reserve` or `not comparable`.
    verdict: str
    #: Why not.
    reserves: list[str]
    #: The compared unit: `iteration`, `job`, or `work`, the time from the first to the last GPU work.
    unit: str
    #: Likeness of the unit in both runs, or None if unknown.
    likeness: float | None
    #: Mean time of the unit in both runs (ns).
    unit_ns: tuple[float, float]
    #: Time of the job in both runs (ns).
    job_ns: tuple[float, float]
    #: Numbers of iterations, 0 for none.
    iterations: tuple[int, int]
    #: Share of A's unit by which two runs may differ by chance; None if no spread is known.
    noise: float | None
    #: Iterations that take far longer than the median: name of the run, number, time (ns).
    outliers: list[tuple[str, int, float]]
    #: Causes of the difference, the first one first.
    causes: list[Reason]
    #: The largest part that changes in the other direction, if it compensates much of the causes;
    #: otherwise empty.
    against: list[Reason]
    #: Causes of the job's difference, if it is not the compared one.
    job_causes: list[Reason]
    #: NVTX ranges of both runs, if no iterations are compared: name, and time in A and B (ns).
    regions: list[tuple[str, float, float]] = []
    #: Numbers of runs. The runs with the median times are compared.
    runs: tuple[int, int] = (1, 1)
    #: Results for limits.
    checked: list[Checked] = []

    @property
    def change(self) -> float:
        """Relative change of the time from A to B (0.22: B takes 22% longer)."""
        return compute_change(*self.unit_ns)

    @property
    def job_change(self) -> float:
        """Relative change of the whole job's time."""
        return compute_change(*self.job_ns)

    @property
    def is_alike(self) -> bool:
        """True if the compared unit (iteration or job) takes equally long in both runs, within the
        uncertainty.
        """
        return abs(self.change) < max(ALIKE, self.noise or 0.0)

    @property
    def disagrees(self) -> bool:
        """True if the whole job changes differently from the compared iteration."""
        if self.unit != "iteration":
            return False
        of_job = 0 if abs(self.job_change) < ALIKE else np.sign(self.job_change)
        other = of_job != (0 if self.is_alike else np.sign(self.change))
        is_apart = abs(self.job_change - self.change) >= APART
        return is_apart and bool(other or self.job_causes)

    @property
    def headline(self) -> str:
        """A sentence that says by how much the time changes, and why."""
        a, b = self.names
        reserves = "; ".join(self.reserves)
        if self.verdict == NOT_COMPARABLE:
            return f"{a} and {b} cannot be compared: {reserves}. Job: {_say_times(*self.job_ns)}"
        reserve = f"Comparable with reservations: {reserves}. " if reserves else ""
        is_small = abs(self.change) < ALIKE
        how = "as long as" if is_small else _say_change(self.change, " than", " as")
        noise = max(self.noise or 0.0, ALIKE)
        chance = f"up to {format_share(noise)} may be chance" if self.noise is not None else ""
        maybe = ", which may be chance" if self.is_alike and not is_small else ""
        medians = f"medians of {self.runs[0]} and {self.runs[1]} runs" if max(self.runs) > 1 else ""
        times = ", ".join(filter(None, (_say_times(*self.unit_ns), medians, chance)))
        said = f"{b} takes {how} {a}{maybe} ({UNITS[self.unit]} {times})"
        if self.causes and (self.against or not is_small):
            for what, one in zip(ORDER, self.causes, strict=False):
                share = f", {format_share(one.share, 0)} of the difference"
                said += f". {what} cause: {one}{share if one.share < MANY_TIMES else ''}"
            # A family that is named as a whole includes its changes in the other direction.
            whole = {cause.family for cause in self.causes if not cause.part}
            said += "".join(
                f". {'This total includes a change in' if one.family in whole else 'In'} the other direction: {one}"
                for one in self.against
            )
        if self.outliers:
            far = [
                f"{number} of {job} ({format_nanoseconds(time)})"
                for job, number, time in self.outliers
            ]
            said += (
                f". Iterations that take more than {OUTLIER:g} times the median: {list_some(far)}"
            )
        if self.disagrees:
            said += (
                f". The whole job takes {_say_change(self.job_change)} ({_say_times(*self.job_ns)})"
            )
            if self.job_causes:
                said += f", because {' and '.join(map(str, self.job_causes))}"
        if self.regions:
            regions = (f"{name} {_say_times(*times)}" for name, *times in self.regions)
            said += f". Times of common NVTX ranges (GPU time of the launched work, or else host time): {', '.join(regions)}"
        return reserve + said

    def to_dict(self) -> dict[str, Any]:
        """Return the facts and the headline as plain data, for JSON."""
        derived = ("change", "job_change", "is_alike", "disagrees", "headline")
        return {**to_builtins(self), **{name: getattr(self, name) for name in derived}}


def _shorten(name: str) -> str:
    """Return the name of a kernel or call for a sentence, without its arguments if it is long."""
    return name if len(name) <= WIDEST else shorten(ARGUMENTS.sub("", name), WIDEST)


def compute_change(before: float, after: float) -> float:
    """Return the relative change from `before` to `after`: 0.22 if it is 22% more; 0 if there was
    nothing before.
    """
    return after / before - 1 if before else 0.0


def _say_change(change: float, than: str = "", as_: str = "") -> str:
    """Return a change as text. than, as_: text after a difference as a share, and as a multiple."""
    if change >= MANY_TIMES - 1:
        return f"{1 + change:.3g} times as long{as_}"
    return f"{format_share(abs(change))} {'longer' if change > 0 else 'less time'}{than}"


def _say_times(before: float, after: float) -> str:
    return f"{format_nanoseconds(before)} → {format_nanoseconds(after)}"
