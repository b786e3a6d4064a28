"""What an analysis declares, what it is told, and what it gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape

import polars as pl
from msgspec import Struct, field

from nsys2prv._util.text import plural
from nsys2prv.analysis.book import EventReader
from nsys2prv.analysis.findings.finding import Finding
from nsys2prv.analysis.unit import AnalysisOptions, Unit


class Table(Struct, frozen=True):
    """Figures. Columns that end in `_ns` are durations, `_bytes` sizes, `share` and `efficiency`
    fractions of 1, `_gb_s` 10^9 bytes a second. about: how they are defined.
    """

    title: str
    frame: pl.DataFrame
    about: str = ""

    def __repr__(self) -> str:
        return f"<Table {self.title!r}: {plural(self.frame.height, 'row')}; .frame has {', '.join(self.frame.columns)}>"

    def _repr_html_(self) -> str:
        about = f"<p>{escape(self.about)}</p>" if self.about else ""
        return f"<b>{escape(self.title)}</b>{about}{self.frame._repr_html_()}"


class Result(Struct, frozen=True):
    """tables: by name. notes: on how to read them. missing: what the reports lack, and which
    figures are not given therefore. findings: what holds the job back, greatest share first.
    """

    name: str
    title: str
    tables: dict[str, Table] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

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
    """Context that analyses conclude with. labels: name set -> frame of value and label. folded:
    NVTX names as groups (folding.py). absent: layouts -> why there are none of them. clocks: as
    head.clock_table has them.
    """

    book: EventReader
    question: AnalysisOptions
    labels: Mapping[str, pl.DataFrame]
    folded: pl.DataFrame
    absent: Callable[[Sequence[str]], str]
    clocks: pl.DataFrame

    @property
    def duration(self) -> int:
        return self.book.duration

    @property
    def devices(self) -> pl.DataFrame:
        """As in rows.RowTable, but the devices with work alone."""
        used = self.book.rows.threads.filter(pl.col("stream").is_not_null())["device"]
        return self.book.rows.devices.filter(pl.col("device").is_in(used.unique().to_list()))

    @property
    def tasks(self) -> pl.DataFrame:
        """`task`, `rank`, `node` of every task, and `who`, its name in tables."""
        tasks = self.book.rows.threads.select("task", "rank", "node").unique("task").sort("task")
        return tasks.with_columns(
            who=pl.when(pl.col("rank").is_not_null())
            .then(pl.format("rank {}", "rank"))
            .otherwise(pl.format("task {}", "task"))
        )

    def with_device(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The frame with names of devices in the place of their numbers, and `node`."""
        names = self.devices.select(pl.col("device").cast(frame["device"].dtype), "label", "node")
        joined = (
            frame.join(names, on="device", how="left", maintain_order="left")
            .with_columns(device="label")
            .drop("label")
        )
        return joined.select(
            "node", "device", *(name for name in frame.columns if name not in ("device", "node"))
        )

    def with_task(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The frame with names of ranks in the place of tasks."""
        names = self.tasks.select(pl.col("task").cast(frame["task"].dtype), "who")
        joined = frame.join(names, on="task", how="left", maintain_order="left")
        return joined.select(
            pl.col("who").alias("rank"), *(name for name in frame.columns if name != "task")
        )

    def with_place(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The frame with names of ranks in the place of tasks, and with `node` and `device`: the
        rank's first GPU with work, null for none.
        """
        nodes = self.tasks.select(pl.col("task").cast(frame["task"].dtype), "node")
        devices = self.devices.unique("task", keep="first").select(
            pl.col("task").cast(frame["task"].dtype), device="label"
        )
        placed = frame.join(nodes, on="task", how="left", maintain_order="left").join(
            devices, on="task", how="left", maintain_order="left"
        )
        columns = ("task", "node", "device")
        return self.with_task(placed.select(*columns, pl.exclude(columns)))

    def named(self, frame: pl.DataFrame, column: str, *sets: str) -> pl.DataFrame:
        """The frame with labels in the place of the values of some name sets."""
        labels = (
            pl.concat([self.labels[one] for one in sets])
            .unique("value")
            .select(pl.col("value").cast(frame[column].dtype), "label")
        )
        joined = frame.join(
            labels, left_on=column, right_on="value", how="left", maintain_order="left"
        )
        return joined.with_columns(
            pl.coalesce("label", pl.format("value {}", column)).alias(column)
        ).drop("label")


class Analysis(Struct, frozen=True):
    """An analysis. needs: groups of layouts, of each of which one must be there. collect: partial
    frames of one unit, by name. conclude: the tables of the frames of all units, each put together.
    """

    name: str
    title: str
    needs: tuple[tuple[str, ...], ...]
    collect: Callable[[Unit], dict[str, pl.DataFrame]]
    conclude: Callable[[Mapping[str, pl.DataFrame], Context], Result]


def ratio(part: pl.Expr | str, whole: pl.Expr | str) -> pl.Expr:
    """The ratio of columns; null where there is nothing to divide by."""
    part = pl.col(part) if isinstance(part, str) else part
    whole = pl.col(whole) if isinstance(whole, str) else whole
    return pl.when(whole != 0).then(part / whole)
