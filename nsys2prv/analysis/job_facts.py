"""What is known of a job as a whole: when it ran, on which GPUs, recorded by which versions, and
how the clocks of its hosts were corrected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone

import polars as pl

from nsys2prv._util.text import list_some
from nsys2prv.analysis.result import Analysis, Context, Result
from nsys2prv.analysis.unit import Unit
from nsys2prv.clock.maps import UNPLACED
from nsys2prv.conversion.job import Job

ABOUT_CLOCKS = """How the clocks of the hosts were corrected, and how well.

Times of two hosts can be compared to within the sum of their error bounds: a wait or a delay between
them that is shorter means nothing. The least certain host comes first. A host is not comparable where
nothing in the reports tells how its clock differs from the others'.
"""
#: Begins (UTC, ns) outside of which no date can be told.
LATEST = 250_000_000_000_000_000_000


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


ANALYSIS = Analysis(
    "clocks",
    "Clocks of hosts",
    "how the clock of each host was corrected, and the error that may remain",
    (),
    collect,
    conclude,
)
