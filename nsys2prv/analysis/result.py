"""What an analysis declares, what it is told, and what it gives: findings and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

import polars as pl
from msgspec import Struct, field
from msgspec.structs import asdict

from nsys2prv._util.text import format_count
from nsys2prv.analysis.event_reader import EventReader
from nsys2prv.analysis.unit import AnalysisOptions, Unit

#: Kind of finding -> what it means, for docs/analysis.md.
FINDING_KINDS = {
    "straggler": "a rank that is usually the last at collectives, so that the others wait for it",
    "slow_host": "all ranks of one host are usually last: what they share is slow",
    "slow_link": "a group of ranks takes longer than its peers to move the same data",
    "hiccup": "a rank that was held up once, or a few times, for much longer than usual",
    "imbalance": "ranks wait for each other, and not always for the same one",
    "exposed_communication": "devices move data between ranks without computing",
    "exposed_copies": "devices copy or set memory and do nothing else",
    "blocked_by_call": "devices are idle while their hosts wait in a call that synchronises",
    "launch_bound": "devices are idle while their hosts are in other CUDA API calls",
    "host_mpi": "devices are idle while their hosts are in MPI",
    "host_nccl": "devices are idle while their hosts are in NCCL calls",
    "host_io": "devices are idle while their hosts read or write files, or the network",
    "host_work": "devices are idle while their hosts are in no recorded call: they compute",
    "no_tensor_cores": "matrix products run without tensor cores",
    "critical_path": "what the critical path consists of, and how much of it no device works (only with `--only critical_path`)",
}

#: What is said where there are no findings.
NOTHING = "Nothing found: no rank is persistently late, and the GPUs are busy."


class Finding(Struct, frozen=True):
    """One cause that holds the job back."""

    #: One of FINDING_KINDS.
    kind: str
    #: One sentence: who and what.
    title: str
    #: Share of the job's time (of its steady state, where one was found) that would be gained at
    #: most if the cause were removed.
    share: float
    #: Whose fault it is, the culprit first; empty where it is nobody's.
    ranks: tuple[int, ...] = ()
    #: Their GPUs, as "host GPU number".
    devices: tuple[str, ...] = ()
    #: What was measured, a sentence each.
    evidence: tuple[str, ...] = ()
    #: What to do.
    advice: str = ""
    #: Paraver views that show it (nsys2prv cfgs).
    views: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Finding {self.kind}, costs up to {self.share:.1%}: {self.title}>"

    def _repr_html_(self) -> str:
        lines = "".join(
            f"<li>{escape(line)}</li>" for line in (*self.evidence, self.advice) if line
        )
        return f"<p><b>{escape(self.title)}</b> (costs up to {self.share:.1%} of the time)</p><ul>{lines}</ul>"

    def as_dict(self) -> dict[str, object]:
        """Return the finding as plain data, for JSON."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
        }

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Finding:
        """Return the finding that :meth:`as_dict` wrote."""
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in content.items()
        }
        return cls(**values)


class Table(Struct, frozen=True):
    """Figures. Columns that end in `_ns` are durations, `_bytes` sizes, `share` and `efficiency`
    fractions of 1, `_gb_s` 10^9 bytes a second.
    """

    #: For people.
    title: str
    #: The figures.
    frame: pl.DataFrame
    #: How they are defined.
    about: str = ""

    def __repr__(self) -> str:
        return f"<Table {self.title!r}: {format_count(self.frame.height, 'row')}; .frame has {', '.join(self.frame.columns)}>"

    def _repr_html_(self) -> str:
        about = f"<p>{escape(self.about)}</p>" if self.about else ""
        return f"<b>{escape(self.title)}</b>{about}{self.frame._repr_html_()}"


class Result(Struct, frozen=True):
    """Result of one analysis."""

    #: Name of the analysis.
    name: str
    #: For people.
    title: str
    #: By name.
    tables: dict[str, Table] = field(default_factory=dict)
    #: On how to read them.
    notes: list[str] = field(default_factory=list)
    #: What the reports lack, and which figures are not given therefore.
    missing: list[str] = field(default_factory=list)
    #: What holds the job back, greatest share first.
    findings: list[Finding] = field(default_factory=list)

    def add(self, name: str, title: str, frame: pl.DataFrame, about: str | None = "") -> None:
        """Add a table. about: as in :class:`Table`."""
        self.tables[name] = Table(title, frame, about or "")

    def __repr__(self) -> str:
        return (
            f"<Result {self.name}: {self.title}; .tables has {', '.join(self.tables) or 'nothing'}>"
        )

    def _repr_html_(self) -> str:
        """Return the findings and tables, then the notes, for notebooks."""
        lines = (f"<p>{escape(line)}</p>" for line in (*self.notes, *self.missing))
        shown: tuple[Finding | Table, ...] = (*self.findings, *self.tables.values())
        parts = (part._repr_html_() for part in shown)
        return f"<h4>{escape(self.title)}</h4>{''.join(parts)}{''.join(lines)}"


class Results(dict[str, Result]):
    """Results by the names of their analyses."""

    def _repr_html_(self) -> str:
        return "".join(result._repr_html_() for result in self.values())


class Context(Struct, frozen=True):
    """What `conclude` is told of the job. Its methods put texts in the place of numbers."""

    #: Reads the job's events.
    reader: EventReader
    #: Options of all analyses.
    options: AnalysisOptions
    #: Name set -> frame of value and label.
    labels: Mapping[str, pl.DataFrame]
    #: NVTX names as groups (nvtx_operations.py).
    folded: pl.DataFrame
    #: Layouts -> why there are none of them.
    explain_absence: Callable[[Sequence[str]], str]
    #: As `make_clock_table` of job_facts.py has them.
    clocks: pl.DataFrame

    @property
    def duration(self) -> int:
        return self.reader.duration

    @property
    def devices(self) -> pl.DataFrame:
        """As in `RowTable` of event_reader.py, but the devices with work alone."""
        used = self.reader.rows.threads.filter(pl.col("stream").is_not_null())["device"]
        return self.reader.rows.devices.filter(pl.col("device").is_in(used.unique().to_list()))

    @property
    def tasks(self) -> pl.DataFrame:
        """`task`, `rank`, `node` of every task, `device`, its first GPU with work, null for none, and
        `who`, its name in tables.
        """
        tasks = self.reader.rows.threads.select("task", "rank", "node").unique("task").sort("task")
        devices = self.devices.unique("task", keep="first").select("task", device="label")
        return tasks.join(devices, on="task", how="left", maintain_order="left").with_columns(
            who=pl.when(pl.col("rank").is_not_null())
            .then(pl.format("rank {}", "rank"))
            .otherwise(pl.format("task {}", "task"))
        )

    def name_devices(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return the frame with names of devices in the place of their numbers, and `node`."""
        names = self.devices.select(pl.col("device").cast(frame["device"].dtype), "label", "node")
        joined = frame.drop("node", strict=False).join(
            names, on="device", how="left", maintain_order="left"
        )
        return joined.select(
            "node", pl.col("label").alias("device"), pl.exclude("node", "device", "label")
        )

    def name_tasks(self, frame: pl.DataFrame, *places: str) -> pl.DataFrame:
        """Return the frame with names of ranks in the place of tasks, and columns of `tasks` that
        say where they are.
        """
        names = self.tasks.select(pl.col("task").cast(frame["task"].dtype), "who", *places)
        joined = frame.join(names, on="task", how="left", maintain_order="left")
        return joined.select(
            pl.col("who").alias("rank"), *places, pl.exclude("task", "who", *places)
        )

    def label_names(
        self, frame: pl.DataFrame, column: str, *sets: str, unknown: pl.Expr | None = None
    ) -> pl.DataFrame:
        """Return the frame with labels in the place of the values of some name sets. unknown: in
        the place of those without one; default: what they are.
        """
        labels = (
            pl.concat([self.labels[one] for one in sets])
            .unique("value")
            .select(pl.col("value").cast(frame[column].dtype), "label")
        )
        joined = frame.join(
            labels, left_on=column, right_on="value", how="left", maintain_order="left"
        )
        unknown = pl.format("value {}", column) if unknown is None else unknown
        return joined.with_columns(pl.coalesce("label", unknown).alias(column)).drop("label")


class Analysis(Struct, frozen=True):
    """Declaration of an analysis: what it needs, and two functions."""

    #: As in ``--only``.
    name: str
    #: For people.
    title: str
    #: What it shows, for the documents (Markdown).
    about: str
    #: Groups of layouts; of each group the job must have one, else the analysis is not run.
    needs: tuple[tuple[str, ...], ...]
    #: Yields partial frames of one unit, each with its name.
    collect: Callable[[Unit], Iterator[tuple[str, pl.DataFrame]]]
    #: Fills the result, from the frames of all units, put together by name: without columns where
    #: no unit has any.
    conclude: Callable[[Mapping[str, pl.DataFrame], Context, Result], None]


def divide_columns(part: pl.Expr | str, whole: pl.Expr | str) -> pl.Expr:
    """Return the ratio of columns; null where there is nothing to divide by."""
    part = pl.col(part) if isinstance(part, str) else part
    whole = pl.col(whole) if isinstance(whole, str) else whole
    return pl.when(whole != 0).then(part / whole)
