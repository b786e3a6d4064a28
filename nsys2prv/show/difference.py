"""Compare two runs of a program: whether they can be compared, by how much one takes longer, and why, in parts
that add up to the difference.

What is compared is an iteration, where both runs repeat the same work, else the whole job. Its time goes along
the critical path (`path` of findings, :mod:`nsys2prv.verdict.path_parts`), so that the parts of two runs add
up to their difference; what each rank does (`work`) says which of them do more, more often or slower. Facts
first, then sentences; no code reads these.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import PurePath
from typing import Any

import numpy as np
import polars as pl
from msgspec import Struct, to_builtins
from msgspec.structs import replace

from nsys2prv._util.errors import UsageError
from nsys2prv._util.text import format_count, format_nanoseconds, list_some, shorten
from nsys2prv.figures.result import DECLARED, Result, Table, divide_columns
from nsys2prv.figures.study_model import list_known_rows
from nsys2prv.show.finished_job import FinishedJob
from nsys2prv.verdict.words import TEXTS, say

#: Families of parts of the path, in the order of sentences.
FAMILIES = {
    "kernel": "kernels",
    "nccl": "communication",
    "mpi": "communication",
    "copy": "copies",
    "host": "hosts",
    "call": "hosts",
    "latency": "hosts",
    "start": "start-up",
    "exit": "shutdown",
    "unexplained": "unexplained",
    "outside": "unexplained",
}
REST, NOT_COMPARABLE = "rest", "not comparable"
#: Runs that differ by a smaller share are alike where their spread is not known: so much do repeated runs of
#: one program on one machine differ.
ALIKE = 0.005
#: Iterations are compared if so much of their kernels (calls) is the same, by number, or half of it, if they are
#: NVTX ranges of the same name; programs are others if kernels that both have take less of the time of one.
LEAST_ALIKE, LEAST_COMMON = 0.8, 0.5
#: A single reason that has so much of what its family differs by is named alone; further causes are named from
#: this share of the difference on.
MOSTLY, LEAST_NAMED = 0.6, 0.2
#: Iterations that take longer than this multiple of the median are named.
OUTLIER = 1.5
#: Causes, and regions, that are named at most.
MOST_CAUSES, MOST_REGIONS = 2, 3
#: Families whose reasons have names of their own.
OF_MANY = ("kernels", "communication", "copies", "hosts")
#: Ranks are named whose own change is this share of the largest, and that makes up as much of the difference.
OWN = 0.5
#: Shares that people are told of a difference twice: of the job and of an iteration, if they are so far apart.
APART = 0.02
#: Numbers of kernels that are the same, by place in the program, differ by at most this.
SAME_COUNT = 0.2
#: Characters of a name in a sentence.
WIDEST = 50
#: What of a kernel's name is of one build or GPU alone.
_ARGUMENTS = re.compile(r"<.*(?:>|…$)|\(.*(?:\)|…$)")
_GPU = re.compile(r"(?i)sm_?\d+|maxwell|pascal|volta|turing|ampere|ada|hopper|blackwell")
#: Tables of two jobs that are compared.
COMPARED = DECLARED["difference"].terms["compared"]
#: The change from `a_ns` to `b_ns`.
CHANGE = (
    (pl.col("b_ns") - pl.col("a_ns")).alias("change_ns"),
    (divide_columns("b_ns", "a_ns") - 1).alias("change_share"),
)


#: What tells reasons apart, and columns of what a change is by.
KEY = ["part", "name", "range"]
BY = ("by_count_ns", "by_duration_ns", "by_place_ns")


class Reason(Struct, frozen=True):
    """A part of the difference. Times are ns of the unit that is compared."""

    #: What the time is of: kernels, communication, copies, hosts, start-up, shutdown, unexplained.
    family: str
    #: The part of the path, as in `path` of findings.
    part: str
    #: Kernel, call, NVTX range or place; "" for several.
    name: str
    #: By how much it takes longer in B (ns).
    change_ns: float
    #: Of the whole difference.
    share: float
    #: The ranks that it is of, where it is not of all.
    ranks: tuple[str, ...] = ()
    #: How often it happens on a rank, in A and B.
    counts: tuple[float, float] | None = None
    #: How many times as long each lasts.
    times: float | None = None
    #: NVTX range, or the longest of several.
    inside: str = ""

    def __str__(self) -> str:
        """Return the reason for people: `rank 2 takes 2.0 ms longer in load_batch`."""
        who, name = list_some([*self.ranks]), _shorten(self.name)
        inside = _shorten(self.inside) if self.inside != self.name else ""

        def place(name: str) -> str:
            """Return where hosts are: in a call or range, or between two calls."""
            return name if name.startswith("between ") or not name else f"in {name}"

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
            return f"{self.counts[1]:,.4g} instead of {self.counts[0]:,.4g}"
        if self.times and abs(self.times - 1) >= APART:
            return f"each {100 * abs(self.times - 1):.0f} % {'longer' if self.times > 1 else 'shorter'}"
        return ""


class Limit(Struct, frozen=True):
    """By how much something of B may exceed that of A: `job`, `iteration`, `communication`, `region`, `kernel`,
    `efficiency` (by how much it may be lower); "" for the unit that is compared.
    """

    what: str
    #: Of the region, kernel or efficiency, as a pattern or a part of it.
    name: str
    #: What is allowed (0.05: 5 %).
    share: float


class Checked(Struct, frozen=True):
    """A limit, and what was found. Times are ns, efficiencies fractions of 1."""

    limit: Limit
    #: In A.
    before: float
    #: In B.
    after: float
    #: By how much B is worse (0.22: by 22 %).
    change: float
    #: What the change may be by chance.
    noise: float
    #: The change is greater than the limit and what may be by chance.
    is_exceeded: bool

    def __str__(self) -> str:
        what = " ".join(filter(None, (self.limit.what, self.limit.name)))
        is_efficiency = self.limit.what == "efficiency"
        worse, better = ("lower", "higher") if is_efficiency else ("longer", "shorter")
        how = better if self.change < 0 else worse
        state = "exceeds the limit of" if self.is_exceeded else "is within the limit of"
        return (
            f"{what}: {how} by {100 * abs(self.change):.1f} %, which {state} {100 * self.limit.share:g} % "
            f"(by chance up to {100 * self.noise:.1f} %)"
        )


class Comparison(Struct, frozen=True):
    """Facts that are found of two runs A and B; JSON has them as they are."""

    #: What the runs are called.
    names: tuple[str, str]
    #: `comparable`, `with reserve` or `not comparable`.
    verdict: str
    #: Why not.
    reserves: list[str]
    #: What is compared: `iteration` or `job`.
    unit: str
    #: How alike that of both runs is, None where it is not known.
    likeness: float | None
    #: Mean time of the unit in both runs (ns).
    unit_ns: tuple[float, float]
    #: Time of the job in both runs (ns).
    job_ns: tuple[float, float]
    #: Numbers of iterations, 0 for none.
    iterations: tuple[int, int]
    #: The share of A's unit by which two runs may differ by chance; None where no spread is known.
    noise: float | None
    #: Iterations that take far longer than the median: name of the run, number, time (ns).
    outliers: list[tuple[str, int, float]]
    #: Causes of the difference, the first one first.
    causes: list[Reason]
    #: Causes of the job's difference, where it is another one.
    job_causes: list[Reason]
    #: NVTX ranges of both, where no iterations are compared: name, and time of each in A and B (ns).
    regions: list[tuple[str, float, float]] = []
    #: Numbers of runs, of which these have the median times.
    runs: tuple[int, int] = (1, 1)
    #: What was found of limits.
    checked: list[Checked] = []

    @property
    def change(self) -> float:
        """By how much B takes longer than A (0.22: by 22 %)."""
        return _compute_change(*self.unit_ns)

    @property
    def job_change(self) -> float:
        """The same of the whole job."""
        return _compute_change(*self.job_ns)

    @property
    def is_alike(self) -> bool:
        """True if the unit takes as long in both runs, as far as can be told."""
        return abs(self.change) < max(ALIKE, self.noise or 0.0)

    @property
    def disagrees(self) -> bool:
        """True if the job changes in another way than the iteration that is compared."""
        if self.unit == "job":
            return False
        of_job = 0 if abs(self.job_change) < ALIKE else np.sign(self.job_change)
        other = of_job != (0 if self.is_alike else np.sign(self.change))
        is_apart = abs(self.job_change - self.change) >= APART
        return is_apart and bool(other or self.job_causes)

    @property
    def headline(self) -> str:
        """A sentence that says what changed and why."""
        a, b = self.names
        reserves = "; ".join(self.reserves)
        if self.verdict == NOT_COMPARABLE:
            return f"{a} and {b} cannot be compared: {reserves}. The job takes {_say_times(*self.job_ns)}"
        reserve = f"With reserve ({reserves}): " if reserves else ""
        is_small = abs(self.change) < ALIKE
        how = "as long as" if is_small else f"{_say_change(self.change)} than"
        chance = f"by chance up to {100 * self.noise:.1f} %" if self.noise is not None else ""
        if self.is_alike and not is_small:
            how = f"{_say_change(self.change)}, which may be chance, than"
        medians = f"medians of {self.runs[0]} and {self.runs[1]} runs" if max(self.runs) > 1 else ""
        times = ", ".join(filter(None, (_say_times(*self.unit_ns), medians, chance)))
        said = f"{b} takes {how} {a} ({self.unit} {times})"
        if self.causes and not is_small:
            causes = (f"{one}, {100 * one.share:.0f} % of the difference" for one in self.causes)
            said += f": {'; then '.join(causes)}"
        if self.outliers:
            far = [
                f"{number} of {job} ({format_nanoseconds(time)})"
                for job, number, time in self.outliers
            ]
            said += f". Iterations of more than {OUTLIER:g} times the median: {list_some(far)}"
        if self.disagrees:
            said += f". The job takes {_say_change(self.job_change)} ({_say_times(*self.job_ns)})"
            if self.job_causes:
                said += f": {'; then '.join(map(str, self.job_causes))}"
        if self.regions:
            regions = (f"{name} {_say_times(*times)}" for name, *times in self.regions)
            said += f". NVTX ranges of both, GPU time (else host time) of one: {', '.join(regions)}"
        return reserve + said

    def to_dict(self) -> dict[str, Any]:
        """Return the facts and the sentence, for JSON."""
        derived = ("change", "job_change", "is_alike", "disagrees", "headline")
        return {**to_builtins(self), **{name: getattr(self, name) for name in derived}}


def _shorten(name: str) -> str:
    """Return the name of a kernel or call for a sentence: a long one without its arguments."""
    return name if len(name) <= WIDEST else shorten(_ARGUMENTS.sub("", name), WIDEST)


def _compute_change(before: float, after: float) -> float:
    return after / before - 1 if before else 0.0


def _say_change(change: float) -> str:
    return f"{100 * abs(change):.1f} % {'longer' if change > 0 else 'less time'}"


def _say_times(before: float, after: float) -> str:
    return f"{format_nanoseconds(before)} → {format_nanoseconds(after)}"


class Run(Struct, frozen=True):
    """A side of the comparison."""

    job: FinishedJob
    #: Iterations of the steady state, 0 for none.
    iterations: int
    #: As `path` and `work` of findings, with the names of both runs in the place of kernels' own.
    path: pl.DataFrame
    work: pl.DataFrame
    ranks: int

    def count(self, unit: str) -> int:
        """Return how many units the run is."""
        return self.iterations if unit == "iteration" else 1

    def measure(self, unit: str) -> float:
        """Return how long a unit takes on average (ns)."""
        begin, end = self.job.span
        return (end - begin) / self.iterations if unit == "iteration" else self.job.length

    @property
    def lasts(self) -> np.ndarray:
        """How long each iteration takes (ns), empty where that is not known."""
        return np.diff(self.job.iterations or [0])


def _choose_unit(runs: Iterable[Run]) -> str:
    """Return what runs are compared by: an iteration, if all have some."""
    return "iteration" if all(run.iterations for run in runs) else "job"


PATH = dict.fromkeys(("rank", "part", "name", "range"), pl.String) | {"time_ns": pl.Int64}
WORK = dict.fromkeys(("rank", "part", "name", "follows"), pl.String)
WORK |= {"time_ns": pl.Int64, "count": pl.Int64}


def _open(job: FinishedJob) -> Run:
    frames = [
        pl.DataFrame(schema=schema) if frame is None else frame.cast(schema)
        for name, schema in (("path", PATH), ("work", WORK))
        for frame in (job.find_frame("findings", name),)
    ]
    steady = job.steady
    ranks = max(int(job.description.get("ranks") or 0), 1)
    return Run(job, int(steady["iterations"]) if steady else 0, *frames, ranks)


# ---- the same kernel under other names ------------------------------------------------------------


def _simplify(name: str) -> str:
    """Return what of a kernel's name is the same in each build and on each GPU."""
    return re.sub(r"\d+", "#", _GPU.sub("", _ARGUMENTS.sub("", name)))


def _pair_names(runs: Sequence[Run], unit: str) -> list[dict[str, str]]:
    """Return of each run name of a kernel -> what both are called. Those of other names are paired where these
    differ by numbers, arguments and GPUs alone, then where they follow the same kernel about as often.
    """
    tables = [
        {name: (follows or "", count) for name, count, _, follows in _count_work(run, unit).rows()}
        for run in runs
    ]
    both = tables[0].keys() & tables[1].keys()
    names = [{name: name for name in both} for _ in runs]
    left = [[name for name in table if name not in both] for table in tables]
    simple: dict[str, list[list[str]]] = {}
    for side, own in enumerate(left):
        for name in own:
            simple.setdefault(_simplify(name), [[], []])[side].append(name)
    for first, second in simple.values():
        if first and second:
            for side, own in enumerate((first, second)):
                names[side] |= dict.fromkeys(own, second[0])

    def place(side: int, name: str) -> tuple[str, float]:
        follows, count = tables[side][name]
        return names[side].get(follows, ""), count

    for first in [one for one in left[0] if one not in names[0]]:
        follows, count = place(0, first)
        others = {second: place(1, second) for second in left[1] if second not in names[1]}
        alike = [
            second
            for second, (before, number) in others.items()
            if follows and before == follows and abs(number - count) <= SAME_COUNT * count
        ]
        if len(alike) == 1:
            label = f"{shorten(first, 40)} → {shorten(alike[0], 40)}"
            names[0][first] = names[1][alike[0]] = label
    return names


def _rename(run: Run, names: dict[str, str]) -> Run:
    is_kernel = pl.col("part") == "kernel"
    named = pl.when(is_kernel).then(pl.col("name").replace(names)).otherwise("name").alias("name")
    return replace(run, path=run.path.with_columns(named), work=run.work.with_columns(named))


# ---- can they be compared -------------------------------------------------------------------------


def _count_work(run: Run, unit: str) -> pl.DataFrame:
    """Return how often a rank runs each kernel in a unit (`name`, `count`), or where there is none makes each call of
    MPI; the `time` of all (ns), and which kernel it `follows`.
    """
    part = "kernel" if (run.work["part"] == "kernel").any() else "mpi"
    rows = run.work.filter(pl.col("part") == part, pl.col("name") != "")
    return rows.group_by("name", maintain_order=True).agg(
        count=pl.col("count").sum() / (run.count(unit) * run.ranks),
        time=pl.col("time_ns").sum(),
        follows=pl.col("follows").drop_nulls().first(),
    )


def _compare_work(runs: Sequence[Run], unit: str) -> tuple[float | None, float | None]:
    """Return how alike the work of a unit is, by its number, and the least share of the time of kernels of a run
    that the other has, too; None where nothing is known of one.
    """
    first, second = (_count_work(run, unit).drop("follows") for run in runs)
    if not (first.height and second.height):
        return None, None
    both = first.join(second, on="name", how="full", coalesce=True).fill_null(0)
    least, most = (
        both.select(one("count", "count_right").sum()).item()
        for one in (pl.min_horizontal, pl.max_horizontal)
    )
    common = both.filter((pl.col("count") > 0) & (pl.col("count_right") > 0))
    shares = [common[name].sum() / max(both[name].sum(), 1) for name in ("time", "time_right")]
    has_kernels = all((run.work["part"] == "kernel").any() for run in runs)
    return float(least / most), float(min(shares)) if has_kernels else None


def _list_reserves(
    runs: Sequence[Run], likeness: float | None, common: float | None
) -> tuple[str, list[str]]:
    """Return the verdict on two runs, and why they compare with reserve, or not."""
    jobs = [run.job.description for run in runs]
    what = "kernels" if (runs[0].work["part"] == "kernel").any() else "calls of MPI"
    reserves, others = [], []
    programs = [", ".join(PurePath(one).name for one in job.get("programs") or ()) for job in jobs]
    if bool(jobs[0]["devices"]) != bool(jobs[1]["devices"]):
        others.append(f"{'AB'[not jobs[1]['devices']]} has no work on GPUs")
    elif common is not None and common < LEAST_COMMON:
        others.append(
            f"other programs, kernels that both have take {100 * common:.0f} % of the time of one's"
        )
    elif common is None and all(programs) and programs[0] != programs[1]:
        others.append("other programs")
    elif likeness is not None and likeness < LEAST_ALIKE:
        reserves.append(f"other work, {100 * likeness:.0f} % of its {what} are the same")
    if all(programs) and programs[0] != programs[1]:
        reserves.append(f"A runs {programs[0]}, B {programs[1]}")
    models = [", ".join(sorted(job.get("gpu_models") or {})) for job in jobs]
    if all(models) and models[0] != models[1]:
        reserves.append(f"A ran on {models[0]}, B on {models[1]}")
    for name, noun in (("ranks", "rank"), ("devices", "GPU")):
        a, b = (format_count(int(job[name]), noun) for job in jobs)
        if a != b:
            reserves.append(f"A has {a}, B has {b}")
    if others:
        return NOT_COMPARABLE, others + reserves
    return "with reserve" if reserves else "comparable", reserves


# ---- why ------------------------------------------------------------------------------------------


def _list_reasons(
    runs: Sequence[Run], of_ranks: pl.DataFrame, unit: str, whole: Sequence[float]
) -> pl.DataFrame:
    """Return the parts of the difference of a unit, the largest first: `family`, `part`, `name`, `range`, `a_ns`,
    `b_ns`, `change_ns`, of that what is by numbers (`by_count_ns`), by how long each takes on most ranks
    (`by_duration_ns`) and else, as on single ranks or where other work hides it (`by_place_ns`); and how
    often a rank does it (`a_count`, `b_count`). The parts add up to the difference; what no row has is
    the row `rest`. of_ranks: as :func:`_compare_ranks` returns it; whole: the unit's times (ns).
    """
    sides, left = [], []
    for job, run, time in zip("ab", runs, whole, strict=True):
        path = run.path
        if unit == "iteration":
            path = path.filter(~pl.col("part").is_in(["start", "exit"]))
        has_range = pl.col("part").is_in(["host", "call"])
        is_host = (pl.col("part") == "host") & (pl.col("range") != "")
        name = pl.when(is_host).then("range").otherwise("name")
        named = path.with_columns(
            name=pl.when(pl.col("part") == "latency").then(pl.lit("")).otherwise(name),
            range=pl.when(has_range).then("range").otherwise(pl.lit("")),
        )
        own = (pl.col("time_ns").sum() / run.count(unit)).alias(f"{job}_ns")
        sides.append(named.group_by(KEY, maintain_order=True).agg(own))
        left.append(time - named["time_ns"].sum() / run.count(unit))
    joined = sides[0].join(sides[1], on=KEY, how="full", coalesce=True)
    rest = {"part": REST, "name": "", "range": "", "a_ns": left[0], "b_ns": left[1]}
    counts = of_ranks.group_by("part", "name").agg(
        pl.col("a_count").sum() / runs[0].ranks,
        pl.col("b_count").sum() / runs[1].ranks,
        pl.col("times").first(),
    )
    joined = pl.concat([joined, pl.DataFrame(rest)]).join(counts, on=["part", "name"], how="left")
    joined = joined.with_columns(pl.col("^[ab]_.*$").fill_null(0.0))
    change, count = pl.col("b_ns") - pl.col("a_ns"), pl.col("b_count")
    often = pl.when(pl.col("a_count") > 0).then(count / pl.col("a_count"))
    # What is new or gone; work that both have may be on the path of one alone.
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


def _compare_ranks(runs: Sequence[Run], unit: str) -> pl.DataFrame:
    """Return what each rank does in a unit in both runs: `rank`, `part`, `name`, `a_time_ns`, `b_time_ns`, `a_count`,
    `b_count`, how many times as long each takes in B on most ranks (`times`), and how long all would take with
    that (`usual`).
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
    # Of two in the middle the one that changes less.
    low, high = (times.quantile(0.5, one).over("part", "name") for one in ("lower", "higher"))
    both = both.with_columns(
        times=pl.when(low.log().abs() <= high.log().abs()).then(low).otherwise(high)
    )
    return both.with_columns(usual=pl.col("a_time_ns") * pl.col("times") * often)


def _choose_causes(
    reasons: pl.DataFrame, of_ranks: pl.DataFrame, runs: Sequence[Run], whole: float
) -> list[Reason]:
    """Return what makes most of the difference (`whole`, ns), the first cause first. of_ranks: as :func:`_compare_ranks` returns it."""
    if not (whole and all(run.path.height for run in runs)):
        return []
    # Of a range the work of ranks is known by the places between calls that the path has in it.
    paths = pl.concat([run.path for run in runs]).filter(part="host")
    places = paths.select("part", "range", place="name").unique()
    rows = reasons.join(places, on=["part", "range"], how="left")
    rows = rows.with_columns(place=pl.coalesce("place", "name"))
    of_ranks = of_ranks if runs[0].ranks == runs[1].ranks else of_ranks.clear()

    def find_ranks(some: pl.DataFrame, change: float) -> tuple[tuple[str, ...], float | None]:
        """Return the ranks that have a change (ns) to themselves, beyond what is longer on most ranks, empty for
        none; and how many times as long their work takes as it does on most.
        """
        key = ["part", "place"]
        wanted = rows.join(some.select(KEY), on=KEY).select(key).unique()
        own = of_ranks.join(wanted, left_on=["part", "name"], right_on=key).group_by("rank")
        own = own.agg(pl.col("usual", "b_time_ns").sum())
        own = own.with_columns(change=(pl.col("b_time_ns") - pl.col("usual")) * sign)
        most = float(own["change"].max() or 0)
        longest = own.filter(pl.col("change") >= OWN * most).sort("rank")
        if longest.height > own.height / 2 or most < OWN * abs(change):
            return (), None
        usual = longest["usual"].sum()
        return tuple(longest["rank"]), longest["b_time_ns"].sum() / usual if usual else None

    sign, causes = np.sign(whole), []
    for family in reasons["family"].unique(maintain_order=True):
        own = reasons.filter(family=family)
        at_place = float(own["by_place_ns"].sum())
        is_of_ranks = at_place * sign >= LEAST_NAMED * abs(whole) and find_ranks(own, at_place)[0]
        parts = [BY[2:], BY[:2]] if is_of_ranks else [BY]
        for columns in parts:
            grown = own.with_columns(own=pl.sum_horizontal(columns) * sign)
            change = float(grown["own"].sum())
            if change < LEAST_NAMED * abs(whole):
                continue
            grown = grown.filter(pl.col("own") > 0).sort("own", descending=True)
            first = grown.row(0, named=True)
            # What others of the family make up for is no cause by itself.
            is_single = MOSTLY * change <= first["own"] <= change / MOSTLY
            if is_single and family in OF_MANY:
                grown, change = grown[:1], first["own"]
            is_single = is_single or family not in OF_MANY
            ranks, times = find_ranks(grown, change) if columns == BY[2:] else ((), None)
            if times is None:
                known = grown.filter(pl.col("a_ns") > 0)
                usual = float((known["a_ns"] * known["times"].fill_null(1.0)).sum())
                times = usual / max(float(known["a_ns"].sum()), 1.0) if usual else None
            counted = grown[:1] if is_single else own
            counts = tuple(float(counted[f"{job}_count"].sum()) for job in "ab")
            causes.append(
                Reason(
                    family,
                    first["part"],
                    first["name"] if is_single else "",
                    float(change * sign),
                    change / abs(whole),
                    ranks,
                    counts,
                    times,
                    first["range"] if is_single else first["name"],
                )
            )
    return sorted(causes, key=lambda one: -one.share)[:MOST_CAUSES]


# ---- the comparison -------------------------------------------------------------------------------


def compare_jobs(
    first: FinishedJob, second: FinishedJob, names: tuple[str, str] = ("A", "B")
) -> tuple[Comparison, Result]:
    """Compare two runs: the facts, and the tables that belong to them. Changes are of the second from the
    first. names: of both for people.
    """
    runs = [_open(job) for job in (first, second)]
    unit = _choose_unit(runs)
    named = _pair_names(runs, unit)
    runs = [_rename(run, own) for run, own in zip(runs, named, strict=True)]
    likeness, common = _compare_work(runs, unit)
    if likeness is not None and likeness < (LEAST_COMMON if _repeat_alike(runs) else LEAST_ALIKE):
        unit = "job"
    verdict, reserves = _list_reserves(runs, likeness, common)
    times = tuple(run.measure(unit) for run in runs)
    lengths = tuple(run.measure("job") for run in runs)
    of_ranks = _compare_ranks(runs, unit)
    reasons = _list_reasons(runs, of_ranks, unit, times)
    is_of_iterations = unit == "iteration"
    comparison = Comparison(
        names,
        verdict,
        reserves,
        unit,
        likeness,
        times,
        lengths,
        (runs[0].iterations, runs[1].iterations),
        _estimate_noise(runs, times) if is_of_iterations else None,
        _list_outliers(runs, names) if is_of_iterations else [],
        _choose_causes(reasons, of_ranks, runs, times[1] - times[0]),
        _explain_job(runs, times) if is_of_iterations else [],
        [] if is_of_iterations else _compare_regions(first, second),
    )
    return comparison, _make_tables(first, second, comparison, reasons)


def _repeat_alike(runs: Sequence[Run]) -> bool:
    """Return whether iterations of both runs are NVTX ranges of the same name: a region that both have."""
    first, second = (str((run.job.steady or {}).get("activity")) for run in runs)
    return first == second and first.startswith("NVTX")


def _estimate_noise(runs: Sequence[Run], times: Sequence[float]) -> float | None:
    """Return by which share of A's iteration the means of both may differ by chance: two standard errors."""
    lasts = [run.lasts for run in runs]
    if min(map(len, lasts)) < 2:
        return None
    return float(2 * sum(one.var(ddof=1) / len(one) for one in lasts) ** 0.5 / times[0])


def _list_outliers(runs: Sequence[Run], names: Sequence[str]) -> list[tuple[str, int, float]]:
    """Return the iterations that take far longer than the median of their run, the longest first."""
    far = [
        (name, int(number) + 1, float(run.lasts[number]))
        for name, run in zip(names, runs, strict=True)
        for number in np.flatnonzero(run.lasts > OUTLIER * np.median(run.lasts))
    ]
    return sorted(far, key=lambda one: -one[2])


def _compare_regions(first: FinishedJob, second: FinishedJob) -> list[tuple[str, float, float]]:
    """Return the NVTX ranges that both jobs have and that change most, and the time of each in both (ns)."""
    frames = [job.find_frame("operations", "operations") for job in (first, second)]
    if any(frame is None for frame in frames):
        return []
    time = _choose_column(frames)
    a, b = (
        frame.filter(pl.col(time) > 0).select(
            "operation", "calls", each=pl.col(time) / pl.col("calls")
        )
        for frame in frames
    )
    both = a.join(b, on="operation")
    change = (pl.col("each_right") - pl.col("each")) * pl.min_horizontal("calls", "calls_right")
    most = both.sort(-change.abs(), "operation").head(MOST_REGIONS)
    return most.select("operation", "each", "each_right").rows()


def _choose_column(
    frames: Sequence[pl.DataFrame], names: Sequence[str] = ("gpu_ns", "host_ns")
) -> str:
    """Return the first of some columns that all frames have."""
    return next(one for one in names if all(one in frame.columns for frame in frames))


def _explain_job(runs: Sequence[Run], times: Sequence[float]) -> list[Reason]:
    """Return what else than the length of iterations makes the difference of jobs: their number, and what is
    before and after. times: of an iteration of both (ns).
    """
    whole = runs[1].job.length - runs[0].job.length
    counts = runs[0].iterations, runs[1].iterations
    more = (counts[1] - counts[0]) * times[0]
    found = [("iterations", "", more)]
    for part in ("start", "exit"):
        rows = [run.path.filter(part=part) for run in runs]
        change = rows[1]["time_ns"].sum() - rows[0]["time_ns"].sum()
        most = max(rows, key=lambda one: one["time_ns"].sum())
        found.append((FAMILIES[part], most["name"].first() or "", float(change)))
    causes = [
        Reason(family, "", name, change, change / whole, counts=counts)
        for family, name, change in found
        if whole and change / whole >= LEAST_NAMED
    ]
    return sorted(causes, key=lambda one: -one.share)[:MOST_CAUSES]


def _make_tables(
    first: FinishedJob, second: FinishedJob, comparison: Comparison, reasons: pl.DataFrame
) -> Result:
    """Return the tables of a comparison."""
    jobs = first, second
    result = Result("difference", "Difference of two jobs", notes=list(comparison.reserves))
    lacking = [one for one in jobs if one.find_frame("findings", "path") is None]
    if lacking:
        names = list_some([one.description["name"] for one in lacking])
        result.notes.append(
            f"why they differ is not known: {names} has no findings, or is of an older version"
        )
    kernels = reasons.filter(pl.col("part") == "kernel", pl.col("name") != "")
    for name, lacking, there in (("A", "b_count", "a_count"), ("B", "a_count", "b_count")):
        if (own := kernels.filter(pl.col(lacking) == 0, pl.col(there) > 0)).height:
            result.notes.append(f"kernels of {name} alone: {list_some(own['name'].to_list())}")
    a, b = (job.description["name"] for job in jobs)
    whole = comparison.unit_ns[1] - comparison.unit_ns[0]
    families = reasons.group_by("family").agg(pl.col("a_ns", "b_ns", "change_ns").sum())
    is_small = abs(comparison.change) < ALIKE
    share = pl.lit(None) if is_small else pl.col("change_ns") / whole
    share = share.cast(pl.Float64).alias("difference_share")
    said = {"unit": comparison.unit}
    result.add(
        "parts", families.with_columns(share).sort(-pl.col("change_ns").abs(), "family"), **said
    )
    # Of equal runs nothing is left.
    changed = pl.any_horizontal(pl.col("change_ns", *BY).abs() >= 1)
    result.add("reasons", reasons.with_columns(share).filter(changed), **said)
    result.add("job", _describe_jobs(jobs), a=a, b=b)
    # Tables are of the whole job, with warm-up.
    steps = [
        int(job.find_row("efficiencies", "focus").get("iterations_of_job") or count)
        for job, count in zip(jobs, comparison.iterations, strict=True)
    ]
    for analysis, name, keys, count, values in COMPARED:
        frames = [job.find_frame(analysis, name) for job in jobs]
        if all(frame is not None for frame in frames):
            value = _choose_column(frames, values)
            title = first.results[analysis].tables[name].title
            if (joined := _join_by_key(frames, keys, count, value, steps)).height:
                result.tables[f"{analysis}_{name}"] = Table(title, joined)
        elif any(frame is not None for frame in frames):
            has_none = "AB"[[frame is None for frame in frames].index(True)]
            result.notes.append(f"{analysis}, {name}: {has_none} has none, not compared")
    return result


# ---- several runs, and limits ---------------------------------------------------------------------


def measure_run(job: FinishedJob, what: str, name: str) -> float | None:
    """Return a figure of a run that is limited (:class:`Limit`), None where the run has none: ns of an iteration
    (`job`: of the job; `region`: of an execution), or an efficiency.
    """
    run = _open(job)
    unit = _choose_unit([run])
    if what in ("job", "iteration"):
        return run.measure(what) if what == "job" or run.iterations else None
    if what == "efficiency":
        for row, (value,) in list_known_rows([job.metrics]):
            if row.is_efficiency and name.lower() in (
                "",
                row.path,
                row.name.lower(),
                row.bare_name.lower(),
            ):
                return value
        return None
    if what == "region":
        regions = job.find_frame("operations", "operations")
        if regions is None:
            return None
        rows = regions.filter([fnmatch.fnmatchcase(one, name) for one in regions["operation"]])
        time = _choose_column([rows])
        return float(rows[time].sum() / rows["calls"].sum()) if rows.height else None
    rows = run.path.filter(pl.col("part").is_in(["nccl", "mpi"]))
    if what == "kernel":
        is_named = pl.col("name").str.contains(name, literal=True)
        rows = run.work.filter(pl.col("part") == "kernel", is_named)
        if not rows.height:
            return None
    return float(rows["time_ns"].sum() / run.count(unit))


def check_limits(
    sides: Sequence[Sequence[FinishedJob]], comparison: Comparison, limits: Sequence[Limit]
) -> list[Checked]:
    """Return what was found of each limit, of the means of the runs of both sides. A change that may be chance, by
    the spread over runs or over iterations, exceeds none. Raises UsageError where a run lacks a figure.
    """
    checked = []
    for limit in limits:
        what = limit.what or comparison.unit
        found = [[measure_run(job, what, limit.name) for job in side] for side in sides]
        if any(one is None for side in found for one in side):
            lacking = "A" if None in found[0] else "B"
            raise UsageError(f"--fail-above {what}:{limit.name}: {lacking} has no such figure")
        (before, after), noise = _average(found)
        change = before - after if what == "efficiency" else _compute_change(before, after)
        if what == comparison.unit:
            noise = max(noise, comparison.noise or 0.0)
        noise = max(noise, ALIKE)
        checked.append(
            Checked(
                replace(limit, what=what),
                before,
                after,
                change,
                noise,
                change > max(limit.share, noise),
            )
        )
    return checked


def _average(sides: Sequence[Sequence[float]]) -> tuple[tuple[float, ...], float]:
    """Return the means of both sides, and the share of the first by which these may differ by chance: two standard
    errors, by the spread of the runs of each side; 0 where each side is one run.
    """
    means = tuple(float(np.mean(side)) for side in sides)
    free = sum(len(side) - 1 for side in sides)
    squares = sum(float(np.var(side) * len(side)) for side in sides)
    error = (squares / free * sum(1 / len(side) for side in sides)) ** 0.5 if free > 0 else 0.0
    return means, 2 * error / means[0] if means[0] else 0.0


def compare_sides(
    sides: Sequence[Sequence[FinishedJob]], names: tuple[str, str] = ("A", "B")
) -> tuple[Comparison, Result, tuple[FinishedJob, FinishedJob]]:
    """Compare several runs of each side by that with the median time, and what may be chance by all; returns these
    two runs, too.
    """
    runs = [[_open(job) for job in side] for side in sides]
    unit = _choose_unit(chain(*runs))
    first, second = (
        sorted(side, key=lambda run: run.measure(unit))[(len(side) - 1) // 2].job for side in runs
    )
    comparison, result = compare_jobs(first, second, names)
    counts = len(sides[0]), len(sides[1])
    if max(counts) > 1:
        times = [[run.measure(comparison.unit) for run in side] for side in runs]
        noise = max(comparison.noise or 0.0, _average(times)[1])
        comparison = replace(comparison, noise=noise, runs=counts)
    return comparison, result, (first, second)


def find_jump(jobs: Sequence[FinishedJob]) -> tuple[int, pl.DataFrame]:
    """Return where a series of runs jumps: the place of the run that differs most from that before it; and the
    series: `run`, `time_ns` (of an iteration, without these of the job), `change_share` from the run before and
    `since_first_share`.
    """
    runs = [_open(job) for job in jobs]
    unit = _choose_unit(runs)
    times = np.array([run.measure(unit) for run in runs])
    changes = times[1:] / times[:-1] - 1
    series = pl.DataFrame(
        {
            "run": [job.description["name"] for job in jobs],
            "time_ns": times,
            "change_share": [None, *changes],
            "since_first_share": times / times[0] - 1,
        }
    )
    return int(np.argmax(np.abs(np.log(times[1:] / times[:-1])))) + 1, series


def _describe_jobs(jobs: Sequence[FinishedJob]) -> pl.DataFrame:
    rows = [("elapsed (s)", *(job.length / 1e9 for job in jobs))]
    rows += [(name, *(job.description[name] for job in jobs)) for name in ("ranks", "devices")]
    rows += [
        (f"{row.name} (%)", *(None if one is None else 100 * one for one in values))
        for row, values in list_known_rows([job.metrics for job in jobs])
    ]
    schema = {"figure": pl.String, "a": pl.Float64, "b": pl.Float64}
    frame = pl.DataFrame(rows, schema=schema, orient="row", strict=False)
    return frame.with_columns(change_share=divide_columns("b", "a") - 1)


def _join_by_key(
    frames: Sequence[pl.DataFrame],
    keys: Sequence[str],
    count: str,
    value: str,
    steps: Sequence[int],
) -> pl.DataFrame:
    """Return both jobs' rows by key, largest change first; what one job lacks counts as 0. steps:
    how many iterations they have, 0 for unknown; where these differ, the change is that of an
    iteration.
    """
    first, second = (
        frame.group_by(keys, maintain_order=True).agg(
            pl.col(count).sum().cast(pl.Int64).alias(f"count_{job}"),
            pl.col(value).sum().alias(f"{job}_ns"),
        )
        for job, frame in zip("ab", frames, strict=True)
    )
    joined = first.join(
        second, on=keys, how="full", coalesce=True, nulls_equal=True, maintain_order="left_right"
    )
    sums = pl.col("count_a", "count_b", "a_ns", "b_ns").fill_null(0)
    joined = joined.with_columns(sums).with_columns(CHANGE)
    change = "change_ns"
    if 0 < steps[0] != steps[1] > 0:
        change = "change_of_iteration_ns"
        joined = joined.with_columns(
            a_of_iteration_ns=pl.col("a_ns") / steps[0], b_of_iteration_ns=pl.col("b_ns") / steps[1]
        ).with_columns(
            change_of_iteration_ns=pl.col("b_of_iteration_ns") - pl.col("a_of_iteration_ns")
        )
    return joined.sort(pl.col(change).abs(), descending=True, maintain_order=True)
