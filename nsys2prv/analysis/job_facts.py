"""What is known of a job as a whole: when it ran, on which GPUs, recorded by which versions, and
how the clocks of its hosts were corrected; what its ranks, hosts, GPUs and communicators are called
(`ranks 4-7 (node02)`, `world (0-15)`, `every 4th (0,4,8,12)`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from itertools import pairwise

import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.text import format_count, list_some
from nsys2prv.analysis.result import Analysis, Context, Result
from nsys2prv.analysis.unit import STATES, Unit
from nsys2prv.clock.maps import UNPLACED
from nsys2prv.conversion.job import Job

ABOUT_CLOCKS = """How the clocks of the hosts were corrected, and how well.

Times of two hosts can be compared to within the sum of their error bounds: a wait or a delay between
them that is shorter means nothing. The least certain host comes first. A host is not comparable where
nothing in the reports tells how its clock differs from the others'.
"""
#: Begins (UTC, ns) outside of which no date can be told.
LATEST = 250_000_000_000_000_000_000
#: Ranks, or members of a communicator, that are named one by one.
MOST_NAMED = 8
#: Parts of a device's time that are findings of the whole job.
JOB_WIDE = ("transfer", "memory", *(f"idle_{name}" for name in (*STATES, "unknown")))


def describe_job_facts(job: Job) -> dict[str, object]:
    """Return when the job began (`begins_utc`, text, empty where unknown), its GPU models with how
    many of each there are, and versions of drivers and of Nsight Systems.
    """
    gpus: dict[tuple[str, object], str] = {}
    for number, info in enumerate(job.infos):
        # Reports of one host name the same GPUs.
        where = info.host or str(number)
        for gpu in info.gpus.values():
            gpus[where, gpu.key or gpu.number] = gpu.name
    return {
        "begins_utc": _find_date(job),
        "gpu_models": dict(Counter(filter(None, gpus.values())).most_common()),
        "drivers": _drop_repetitions(info.driver for info in job.infos),
        "nsys": _drop_repetitions(info.product for info in job.infos),
    }


def _drop_repetitions(texts: Iterable[str]) -> list[str]:
    return sorted({text for text in texts if text})


def _find_date(job: Job) -> str:
    is_placed = any(placement.method != UNPLACED for placement in job.timeline.placements)
    if not is_placed or not 0 < job.timeline.epoch < LATEST:
        return ""
    begin = datetime.fromtimestamp(job.timeline.epoch // 1_000_000_000, timezone.utc)
    return begin.strftime("%Y-%m-%d %H:%M:%S")


def format_machine_line(facts: dict[str, object]) -> str:
    """Return the date, the GPUs and the versions for people; empty where nothing is known."""
    models = dict(facts.get("gpu_models") or {})
    # Hosts may have more GPUs than the job uses.
    more = sum(models.values()) > int(str(facts.get("devices", sum(models.values()))))
    gpus = list_some([f"{count:,} x {name}" for name, count in models.items()])
    parts = [
        f"{facts['begins_utc']} UTC" if facts.get("begins_utc") else "",
        f"the hosts have {gpus}" if more else gpus,
        f"driver {list_some(list(facts['drivers']))}" if facts.get("drivers") else "",
        f"recorded by nsys {list_some(list(facts['nsys']))}" if facts.get("nsys") else "",
    ]
    return "; ".join(filter(None, parts))


def make_clock_table(job: Job) -> pl.DataFrame:
    """Return how the clock of each host was corrected: host, method, offset_ns, drift_ppm,
    error_bound_ns (null where it is not known). Empty where there is one clock, or none was to be
    corrected.
    """
    hosts = job.timeline.record.hosts if job.timeline.record else {}
    return pl.DataFrame(
        [
            (name, clock.method, clock.offset_ns, clock.drift_ppm, clock.bound_ns, clock.sure)
            for name, clock in hosts.items()
        ],
        schema={
            "host": pl.String,
            "method": pl.String,
            "offset_ns": pl.Int64,
            "drift_ppm": pl.Float64,
            "error_bound_ns": pl.Int64,
            "comparable": pl.Boolean,
        },
        orient="row",
    ).sort(pl.col("error_bound_ns"), descending=True, nulls_last=False, maintain_order=True)


def collect(_: Unit) -> Iterator[tuple[str, pl.DataFrame]]:
    return iter(())


def conclude(_: Mapping[str, pl.DataFrame], context: Context, result: Result) -> None:
    if context.clocks.height:
        title = "Corrections of the hosts' clocks, least certain first"
        result.add("hosts", title, context.clocks, ABOUT_CLOCKS)
    else:
        result.missing.append(
            "clocks of hosts: all reports have the same clock, or none was corrected"
        )


def compare_with_clock_error(
    key: str, figure: str, matched: pl.DataFrame, context: Context
) -> list[pl.Expr]:
    """Return a column that says whether a figure of each row (ns) is more than the clocks of the
    hosts that its collectives connect may be wrong against each other; null where that is not
    known, no column where there is one clock. key: what the rows are of, `task` or `communicator`.
    """
    bounds = context.clocks
    if bounds.height < 2:
        return []
    hosts = context.tasks.select(pl.col("task").cast(pl.Int64), host="node")
    bounded_hosts = hosts.join(bounds.select("host", "error_bound_ns"), on="host", how="left")
    members = matched.select("communicator", pl.col("task").cast(pl.Int64)).unique()
    joined = members.join(bounded_hosts, on="task", how="left")
    if key == "task":
        # All whom a rank meets in any communicator.
        joined = members.rename({"task": "of"}).join(joined, on="communicator").drop("communicator")
        joined = joined.rename({"of": "task", "task": "other"})
    rows = joined.select(key, "host", "error_bound_ns").unique()
    unsure = pl.col("error_bound_ns").is_null().any() & (pl.len() > 1)
    sums = rows.group_by(key).agg(
        bound=pl.when(~unsure).then(
            pl.when(pl.len() > 1).then(pl.col("error_bound_ns").top_k(2).sum()).otherwise(0)
        )
    )
    of_each = dict(sums.rows())
    bound = pl.col(key).replace_strict(of_each, default=None, return_dtype=pl.Int64)
    return [(pl.col(figure) > bound).alias("exceeds_clock_error")]


class JobRanks(Struct, frozen=True):
    """The ranks of a job with their hosts, and the time of their devices, of which findings are
    made.
    """

    #: A row for each task: task, rank (or task where unknown), node, who.
    tasks: pl.DataFrame
    #: A row for each device: device, task, node, label, and the parts of its time (ns).
    devices: pl.DataFrame
    #: Kernels of matched collectives, as findings.py collects them.
    records: pl.DataFrame
    #: Other NCCL kernels and calls of MPI, as `add_waits` returns them.
    others: pl.DataFrame
    #: Of the time that findings are of (ns).
    length: int
    #: Ranks whose devices are counted with no more than the others have (`level_ranks`).
    levelled: tuple[int, ...] = ()

    @classmethod
    def from_job(
        cls,
        context: Context,
        devices: pl.DataFrame,
        records: pl.DataFrame,
        others: pl.DataFrame,
        length: int,
    ) -> JobRanks:
        """Return the ranks of a job. devices, records: as findings.py collects them; others: as
        `add_waits` returns them. length: ns.
        """
        tasks = context.tasks.with_columns(
            pl.col("task").cast(pl.Int64), rank=pl.coalesce("rank", pl.col("task") - 1)
        )
        labels = context.reader.rows.devices.select(
            pl.col("device").cast(pl.Int64), "label", "node"
        )
        devices = devices.join(labels, on="device", how="left", maintain_order="left")
        return cls(tasks, devices, records, others, max(length, 1))

    def level_ranks(self, ranks: Collection[int]) -> JobRanks:
        """Return the same with no more of each part of time on the devices of some ranks than the
        median of the others has: what they have beyond it is told of elsewhere.
        """
        tasks = self.tasks.filter(pl.col("rank").is_in(list(ranks)))["task"].to_list()
        of_tasks = pl.col("task").is_in(tasks)
        rest = self.devices.filter(~of_tasks)
        if not rest.height or rest.height == self.devices.height:
            return self
        usual = {part: float(rest[part].median()) for part in JOB_WIDE}
        devices = self.devices.with_columns(
            pl.when(of_tasks)
            .then(pl.col(part).clip(upper_bound=usual[part]))
            .otherwise(part)
            .alias(part)
            for part in JOB_WIDE
        )
        return replace(self, devices=devices, levelled=tuple(sorted(ranks)))

    def compute_share(self, part: str) -> float:
        """Return a part of the devices' time, as a share of all of it."""
        return float(self.devices[part].sum()) / (self.length * self.devices.height)

    def list_ranks(self, tasks: list[int]) -> tuple[int, ...]:
        rank_of_task = dict(self.tasks.select("task", "rank").rows())
        return tuple(rank_of_task[task] for task in tasks)

    def list_devices(self, tasks: list[int]) -> tuple[str, ...]:
        """Return the devices of tasks, in their order."""
        by_task: dict[int, list[str]] = {}
        for task, label in self.devices.select("task", "label").rows():
            by_task.setdefault(task, []).append(label)
        return tuple(label for task in tasks for label in by_task.get(task, ()))

    def find_host(self, tasks: list[int]) -> str:
        """Return the host whose ranks are just these, where there are other hosts, else an empty
        text.
        """
        nodes = self.tasks.filter(pl.col("task").is_in(tasks))["node"].unique()
        others = self.tasks.filter(~pl.col("task").is_in(tasks))["node"]
        is_whole = len(nodes) == 1 and len(others) > 0 and nodes[0] not in others
        return nodes[0] if is_whole else ""

    def describe_ranks(self, tasks: list[int]) -> str:
        """Return ranks with their hosts and GPUs: `rank 41 (node05 GPU1)`, `ranks 4-7 (node02)`,
        `48 ranks`.
        """
        rows = self.tasks.filter(pl.col("task").is_in(tasks))
        if len(tasks) == 1:
            return f"{rows['who'][0]} ({', '.join(self.list_devices(tasks)) or rows['node'][0]})"
        ranks = sorted(self.list_ranks(tasks))
        nodes = rows["node"].unique(maintain_order=True).to_list()
        where = ", ".join(nodes[:3]) + (
            f" and {format_count(len(nodes) - 3, 'host')} more" if len(nodes) > 3 else ""
        )
        return f"ranks {format_numbers(ranks)} ({where})"

    def find_longer_parts(
        self, tasks: list[int], parts: Iterable[str]
    ) -> list[tuple[str, float, float]]:
        """Return the parts of time that are longer on the devices of some tasks (mean, ns) than on
        all others (median, ns), with both, the greatest difference first.
        """
        is_own = self.devices["task"].is_in(tasks)
        own, rest = self.devices.filter(is_own), self.devices.filter(~is_own)
        if not own.height or not rest.height:
            return []
        compared = [(part, float(own[part].mean()), float(rest[part].median())) for part in parts]
        longer = [one for one in compared if one[1] > one[2]]
        return sorted(longer, key=lambda one: one[2] - one[1])


def format_numbers(numbers: list[int], separator: str = ", ") -> str:
    """Return ascending numbers for people: `0-3`, `1, 5, 9`, `2, 6, ... 62`."""
    if len(numbers) > 2:
        steps = {second - first for first, second in pairwise(numbers)}
        if steps == {1}:
            return f"{numbers[0]}-{numbers[-1]}"
        if len(steps) == 1 and len(numbers) > 4:
            return f"{numbers[0]}, {numbers[1]}, ... {numbers[-1]}"
    return list_some([*map(str, numbers)], MOST_NAMED, separator)


def name_communicators(kernels: pl.DataFrame, tasks: pl.DataFrame) -> pl.DataFrame:
    """Return the name of every communicator: value, name. kernels: a row at least for each
    communicator (its value, negative where unknown) and task. tasks: task, rank (null where
    unknown), node.

    Several communicators of the same members are numbered: `world (0-15)`, `world (0-15) #2`.
    """
    places = {
        task: (task - 1 if rank is None else rank, node)
        for task, rank, node in tasks.select("task", "rank", "node").rows()
    }
    members = (
        kernels.filter(pl.col("communicator") >= 0)
        .group_by("communicator", maintain_order=True)
        .agg(pl.col("task").unique().sort())
        .sort("communicator")
    )
    used: Counter[str] = Counter()
    names = []
    for value, of_tasks in members.select("communicator", "task").rows():
        ranks = sorted(places[task][0] for task in of_tasks)
        hosts = {places[task][1] for task in of_tasks}
        name = _name_ranks(ranks, sorted(hosts), len(places))
        used[name] += 1
        names.append((value, f"{name} #{used[name]}" if used[name] > 1 else name))
    return pl.DataFrame(names, schema={"value": pl.Int64, "name": pl.String}, orient="row")


def _name_ranks(ranks: Sequence[int], hosts: Sequence[str], all_ranks: int) -> str:
    """Return the name of a set of ascending ranks."""
    shown = format_numbers(list(ranks), ",")
    steps = {second - first for first, second in pairwise(ranks)}
    if len(ranks) == 1:
        return f"rank {ranks[0]} alone"
    if len(ranks) == all_ranks:
        return f"world ({shown})"
    if len(hosts) == 1:
        return f"{hosts[0]} ({shown})"
    if len(ranks) > 2 and len(steps) == 1 and steps != {1}:
        if len(ranks) <= MOST_NAMED:
            shown = ",".join(map(str, ranks))
        return f"every {_format_ordinal(*steps)} ({shown})"
    return f"ranks {shown}, across hosts"


def _format_ordinal(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{dict(enumerate(('st', 'nd', 'rd'), 1)).get(number % 10, 'th')}"


ANALYSIS = Analysis(
    "clocks",
    "Clocks of hosts",
    "how the clock of each host was corrected, and the error that may remain",
    (),
    collect,
    conclude,
)
