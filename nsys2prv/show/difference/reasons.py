"""Find the reasons why two runs differ: the parts of the difference, and the causes among them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv.show.difference.facts import Reason
from nsys2prv.show.difference.runs import ENDS, Run
from nsys2prv.show.thresholds import LEAST_NAMED, MOSTLY, OF_CLOCK, OPPOSED, OWN

#: Families of parts of the path, in the order of sentences.
FAMILIES = {
    "kernel": "kernels",
    "nccl": "communication",
    "mpi": "communication",
    "copy": "copies",
    "host": "hosts",
    "call": "hosts",
    "latency": "hosts",
    "start": "startup",
    "exit": "shutdown",
    "unexplained": "unexplained",
    "outside": "unexplained",
}
REST = "rest"
#: Maximum number of causes that are named.
MOST_CAUSES = 2
#: Families with named reasons.
OF_MANY = ("kernels", "communication", "copies", "hosts")
#: Families that name nothing to change.
UNKNOWN = ("unexplained", REST)
#: Columns that identify reasons, and columns for the parts of a change.
KEY = ["part", "name", "range"]
BY = ("by_count_ns", "by_duration_ns", "by_place_ns")


def list_reasons(
    runs: Sequence[Run], of_ranks: pl.DataFrame, unit: str, whole: Sequence[float]
) -> pl.DataFrame:
    """Divide the difference of a unit (iteration or job) between two runs into parts, the largest
    first. They add up to the difference, with the remainder in the row `rest`.

    Columns: `family`, `part`, `name`, `range`, `a_ns`, `b_ns`, `change_ns`; the shares of the
    change due to different counts (`by_count_ns`), longer durations on most ranks
    (`by_duration_ns`), and other reasons, such as single ranks or overlap (`by_place_ns`); the
    mean count per rank, without calls in startup and shutdown (`a_count`, `b_count`). of_ranks: from :func:`compare_ranks`. whole: times of the
    unit (ns).
    """
    sides, left = [], []
    for job, run, time in zip("ab", runs, whole, strict=True):
        path = run.path
        if unit != "job":
            path = path.filter(~pl.col("part").is_in(ENDS))
        has_range = pl.col("part").is_in(["host", "call"])
        is_host = (pl.col("part") == "host") & (pl.col("range") != "")
        name = pl.when(is_host).then("range").otherwise("name")
        named = path.with_columns(
            name=pl.when(pl.col("part") == "latency").then(pl.lit("")).otherwise(name),
            range=pl.when(has_range).then("range").otherwise(pl.lit("")),
            inside="range",
        )
        own = (pl.col("time_ns").sum() / run.count(unit)).alias(f"{job}_ns")
        inside = pl.col("inside").first().alias(f"{job}_inside")
        sides.append(named.group_by(KEY, maintain_order=True).agg(own, inside))
        left.append(time - named["time_ns"].sum() / run.count(unit))
    joined = sides[0].join(sides[1], on=KEY, how="full", coalesce=True)
    rest = {"part": REST, "name": "", "range": "", "a_ns": left[0], "b_ns": left[1]}
    counts = of_ranks.group_by("part", "name").agg(
        pl.col("a_count").sum() / runs[0].ranks,
        pl.col("b_count").sum() / runs[1].ranks,
        pl.col("times").first(),
    )
    joined = pl.concat([joined, pl.DataFrame(rest)], how="diagonal").join(
        counts, on=["part", "name"], how="left"
    )
    # The activity in startup and shutdown is named by the run in which it takes longer.
    inside = (pl.col(f"{job}_inside").fill_null("") for job in "ab")
    inside = (
        pl.when(pl.col("a_ns").fill_null(0) >= pl.col("b_ns").fill_null(0))
        .then(next(inside))
        .otherwise(next(inside))
    )
    of_ends = pl.col("part").is_in(ENDS)
    joined = joined.with_columns(range=pl.when(of_ends).then(inside).otherwise("range"))
    joined = joined.with_columns(pl.col("^[ab]_(ns|count)$").fill_null(0.0))
    change, count = pl.col("b_ns") - pl.col("a_ns"), pl.col("b_count")
    often = pl.when(pl.col("a_count") > 0).then(count / pl.col("a_count"))
    # New or missing work; common work may be on the path of one run alone.
    is_new = (pl.col("a_count") == 0) != (count == 0)
    by_count = (often.fill_null(1.0) - 1) * pl.col("a_ns")
    by_duration = (pl.col("times").fill_null(1.0) - 1) * (pl.col("a_ns") + by_count)
    joined = joined.with_columns(
        family=pl.col("part").replace_strict({**FAMILIES, REST: REST}),
        change_ns=change,
        by_count_ns=pl.when(is_new).then(change).otherwise(by_count),
        by_duration_ns=pl.when(is_new).then(0.0).otherwise(by_duration),
    ).with_columns(by_place_ns=change - pl.col("by_count_ns") - pl.col("by_duration_ns"))
    columns = ("family", *KEY, "a_ns", "b_ns", "change_ns", *BY, "a_count", "b_count", "times")
    return joined.select(columns).sort(-pl.col("change_ns").abs(), *KEY)


def compare_ranks(runs: Sequence[Run], unit: str) -> pl.DataFrame:
    """Compare the work of each rank in a unit (iteration or job) of both runs.

    Columns: `rank`, `part`, `name`, `a_time_ns`, `b_time_ns`, `a_count`, `b_count`; the factor by
    which the work takes longer in B on most ranks (`times`), and the time that the work
    would take in B with this factor (`usual`).
    """
    key = ["rank", "part", "name"]
    sums = [
        run.work.filter(pl.col("name") != "")
        .group_by(key)
        .agg((pl.col("time_ns", "count").sum() / run.count(unit)).name.prefix(f"{job}_"))
        for job, run in zip("ab", runs, strict=True)
    ]
    both = sums[0].join(sums[1], on=key, how="full", coalesce=True)
    often = pl.col("b_count") / pl.col("a_count")
    times = pl.col("b_time_ns") / pl.col("a_time_ns") / often
    # Of the two middle values, the one that changes less.
    low, high = (times.quantile(0.5, one).over("part", "name") for one in ("lower", "higher"))
    both = both.with_columns(
        times=pl.when(low.log().abs() <= high.log().abs()).then(low).otherwise(high)
    )
    return both.with_columns(usual=pl.col("a_time_ns") * pl.col("times") * often)


def choose_causes(
    reasons: pl.DataFrame,
    of_ranks: pl.DataFrame,
    runs: Sequence[Run],
    times: Sequence[float],
    clock: float,
) -> tuple[list[Reason], list[Reason]]:
    """Choose the main causes of the difference. Return them, the largest first, and the largest
    change in the other direction. reasons: from :func:`list_reasons`. of_ranks: from
    :func:`compare_ranks`. times: of the unit in both runs (ns). clock: factor by which kernels take
    longer because of GPU clocks.
    """
    whole = times[1] - times[0]
    if not (whole and all(run.path.height for run in runs)):
        return [], []
    # Of a range the work of ranks is known by the places between calls that the path has in it.
    paths = pl.concat([run.path for run in runs]).filter(part="host")
    places = paths.select("part", "range", place="name").unique()
    rows = reasons.join(places, on=["part", "range"], how="left")
    rows = rows.with_columns(place=pl.coalesce("place", "name"))
    of_ranks = of_ranks if runs[0].ranks == runs[1].ranks else of_ranks.clear()
    found = _Causes(reasons, rows, of_ranks, whole, clock)
    sign, least = np.sign(whole), LEAST_NAMED * abs(whole)
    # Differences of single parts between equal runs are random.
    most = found.find_against(-sign, max(least, OPPOSED * min(times)))
    causes = found.list_parts(sign, least)[:MOST_CAUSES]
    return causes, [most] if causes and most else []


class _Causes(Struct, frozen=True):
    """Finds large parts of a difference (`whole`, ns). The tables are those of
    :func:`choose_causes`.
    """

    reasons: pl.DataFrame
    #: With the `place` that ranks' work has.
    rows: pl.DataFrame
    of_ranks: pl.DataFrame
    whole: float
    clock: float

    def find_ranks(
        self, some: pl.DataFrame, change: float, sign: float
    ) -> tuple[tuple[str, ...], float | None]:
        """Return the ranks with a change (ns) beyond the increase on most ranks (empty if none),
        and the factor by which their work takes longer than on most ranks.
        """
        key = ["part", "place"]
        wanted = self.rows.join(some.select(KEY), on=KEY).select(key).unique()
        own = self.of_ranks.join(wanted, left_on=["part", "name"], right_on=key).group_by("rank")
        own = own.agg(pl.col("usual", "b_time_ns").sum())
        own = own.with_columns(change=(pl.col("b_time_ns") - pl.col("usual")) * sign)
        most = float(own["change"].max() or 0)
        longest = own.filter(pl.col("change") >= OWN * most).sort("rank")
        if longest.height > own.height / 2 or most < OWN * abs(change):
            return (), None
        usual = longest["usual"].sum()
        return tuple(longest["rank"]), longest["b_time_ns"].sum() / usual if usual else None

    def list_parts(self, sign: float, least: float) -> list[Reason]:
        """Return the changes in one direction, the largest first: of each family, and of single
        ranks separately.
        """
        found = []
        for family in self.reasons["family"].unique(maintain_order=True):
            own = self.reasons.filter(family=family)
            at_place = float(own["by_place_ns"].sum())
            is_of_ranks = at_place * sign >= least and self.find_ranks(own, at_place, sign)[0]
            for columns in [BY[2:], BY[:2]] if is_of_ranks else [BY]:
                if part := self._find_part(family, own, columns, sign, least):
                    found.append(part)
        return sorted(found, key=lambda one: -abs(one.change_ns))

    def find_against(self, sign: float, least: float) -> Reason | None:
        """Return the largest change in a direction: of a family, or a single change that others of
        its family offset. None if all are too small to mention.
        """
        found = self.list_parts(sign, least)
        families = {one.family for one in found}
        rows = self.reasons.filter(pl.col("change_ns") * sign >= least)
        singles = (
            self._find_part(row["family"][0], row, BY, sign, least)
            for row in rows.iter_slices(1)
            if row["family"][0] in OF_MANY and row["family"][0] not in families
        )
        named = [one for one in (*found, *singles) if one and one.family not in UNKNOWN]
        return max(named, key=lambda one: abs(one.change_ns), default=None)

    def _find_part(
        self, family: str, own: pl.DataFrame, columns: Sequence[str], sign: float, least: float
    ) -> Reason | None:
        """Return the change of a family in some columns; None if it is too small to be named."""
        grown = own.with_columns(own=pl.sum_horizontal(columns) * sign)
        change = float(grown["own"].sum())
        if change < least:
            return None
        grown = grown.filter(pl.col("own") > 0).sort("own", descending=True)
        first = grown.row(0, named=True)
        # A change offset by others of the family is not a cause by itself.
        is_single = MOSTLY * change <= first["own"] <= change / MOSTLY
        if is_single and family in OF_MANY:
            grown, change = grown[:1], first["own"]
        is_single = is_single or family not in OF_MANY
        ranks, times = self.find_ranks(grown, change, sign) if columns == BY[2:] else ((), None)
        if times is None:
            known = grown.filter(pl.col("a_ns") > 0)
            usual = float((known["a_ns"] * known["times"].fill_null(1.0)).sum())
            times = usual / max(float(known["a_ns"].sum()), 1.0) if usual else None
        counted = grown[:1] if is_single else own
        return Reason(
            family,
            first["part"] if is_single else "",
            first["name"] if is_single else "",
            float(sign * change),
            float(sign * change / self.whole),
            ranks,
            tuple(float(counted[f"{job}_count"].sum()) for job in "ab"),
            times,
            first["range"] if is_single else first["name"],
            family == "kernels" and is_of_clock(times, self.clock),
            first["part"] == "host" and not first["range"],
        )


def is_of_clock(times: float | None, clock: float) -> bool:
    """Return True if the difference of GPU clocks (factor `clock`) explains work that takes longer
    by the factor `times`.
    """
    if not times or clock == 1:
        return False
    return bool(abs(np.log(times) / np.log(clock) - 1) <= OF_CLOCK)


def explain_job(runs: Sequence[Run], times: Sequence[float]) -> list[Reason]:
    """Find the causes of a difference between jobs other than the length of iterations: the number
    of iterations, and the time before and after them. times: of an iteration in both runs (ns).
    """
    whole = runs[1].job.length - runs[0].job.length
    counts = runs[0].iterations, runs[1].iterations
    more = (counts[1] - counts[0]) * times[0]
    found = [("iterations", "", "", more)]
    for part in ENDS:
        rows = [run.path.filter(part=part) for run in runs]
        change = rows[1]["time_ns"].sum() - rows[0]["time_ns"].sum()
        most = max(rows, key=lambda one: one["time_ns"].sum())
        names = (most[name].first() or "" for name in ("name", "range"))
        found.append((FAMILIES[part], *names, float(change)))
    causes = [
        Reason(family, "", name, change, change / whole, counts=counts, inside=inside)
        for family, name, inside, change in found
        if whole and change / whole >= LEAST_NAMED
    ]
    return sorted(causes, key=lambda one: -one.share)[:MOST_CAUSES]
