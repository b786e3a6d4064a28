"""Declare analyses by their entries in analyses.yaml, their context, and their results with
findings and tables.

Also name ranks, hosts, GPUs and communicators in results (`ranks 4-7 (node02)`, `world (0-15)`,
`every 4th (0,4,8,12)`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from html import escape
from itertools import groupby, pairwise
from operator import attrgetter
from typing import Any

import polars as pl
from msgspec import Struct, convert, field, to_builtins
from msgspec.structs import replace

from nsys2prv._util.files import load_shipped_file
from nsys2prv._util.intervals import Spans
from nsys2prv._util.text import format_count, format_ordinal, format_span, inflect, list_some
from nsys2prv.figures.device_group import AnalysisOptions, Frames
from nsys2prv.figures.thresholds import MUCH_MORE
from nsys2prv.replay.job_graph import JobGraph
from nsys2prv.table.event_reader import HELPER, EventReader
from nsys2prv.writers.paraver.cfg import make_view_command
from nsys2prv.writers.rows import BY_FILE_NAME

#: Kinds of findings about one-time costs, however long the job is: their shares refer to the whole job.
OUTSIDE = ("startup", "shutdown")
#: Kinds of findings with the share in their titles.
STATING_SHARE = ("in_mpi", "untraced_mpi")
#: Names of the parts of a moment in JSON.
MOMENT = ("begin_ns", "end_ns", "ranks")
#: In the needs of an analysis, means the names of most kernels.
KERNEL_NAMES = "kernel names"
#: Largest number of findings.
MOST_FINDINGS = 10
#: Ranks, or members of a communicator, that are named one by one.
MOST_NAMED = 8
#: Maximum number of processes with named GPUs.
MOST_PROCESSES = 3
#: Maximum number of named GPUs of one process.
MOST_DEVICES = 2
#: Text for a job without findings.
NOTHING = "No bottleneck found: no rank is persistently late, and nothing else costs much."


class Analysis(Struct, frozen=True):
    """An analysis and its tables, as declared in analyses.yaml."""

    #: Name in ``--only``.
    name: str
    #: Heading of its tables.
    title: str
    #: Function (`module.function`) that yields partial frames of a device group, each with its name:
    #: `collect(unit)`. Empty where it needs none.
    collect: str = ""
    #: Function that fills the result, from the frames of all groups, put together by name (without
    #: columns where no group has any): `conclude(frames, context, result)`.
    conclude: str = ""
    #: Groups of layouts; the job must have one of each.
    needs: tuple[str, ...] = ()
    #: `conclude` adds the job's findings to `result.findings`.
    has_findings: bool = False
    #: Contents of its tables, for the documents (Markdown) and the first table.
    about: str = ""
    #: Its figures are of the time that the reports of all processes cover.
    covered: bool = False
    #: Few jobs have data for it: if there is none, the reason is given only on request.
    special: bool = False
    #: Name of a table -> its title, or its title and contents.
    tables: dict[str, str | tuple[str, str]] = field(default_factory=dict)
    #: Name of a table -> text for its absence, and the layouts it needs, or their group.
    absent: dict[str, tuple[str, str]] = field(default_factory=dict)
    #: Tables that terminals do not show, and those that pages draw, which terminals do not show either.
    hidden: frozenset[str] = frozenset()
    drawn: frozenset[str] = frozenset()
    #: Terms for its module.
    terms: dict[str, Any] = field(default_factory=dict)


#: Declarations of analyses by name.
DECLARED = {
    name: convert({"name": name, **declared}, Analysis)
    for name, declared in load_shipped_file(__package__, "analyses.yaml").items()
}
#: Texts of findings.
TEXTS = load_shipped_file(__package__, "findings.yaml")
#: Kinds of findings of ranks that wait for each other.
AT_COLLECTIVES = frozenset(TEXTS["at_collectives"])
#: Kind of finding -> its meaning, for docs/analysis.md.
FINDING_KINDS: dict[str, str] = DECLARED["findings"].terms


class Finding(Struct, frozen=True):
    """A finding about something that takes time. Its share is a duration, which is an upper limit:
    no more can be saved, and rarely all of it. Only a :class:`Gain` states savings.
    """

    #: One of FINDING_KINDS.
    kind: str
    #: One sentence with the place and the cause.
    title: str
    #: Share of the job's time, or of its steady state, if there is one.
    share: float
    #: Responsible ranks, the main one first; empty if no rank is responsible.
    ranks: tuple[int, ...] = ()
    #: Their GPUs, as "host GPU number".
    devices: tuple[str, ...] = ()
    #: Measurements, a sentence each.
    evidence: tuple[str, ...] = ()
    #: Advice.
    advice: str = ""
    #: Paraver views that show it: paths below the folder that `nsys2prv cfgs DIR` writes.
    views: tuple[str, ...] = ()
    #: Times that show it: start and end (ns of the trace), and ranks.
    moments: tuple[tuple[int, int, tuple[int, ...]], ...] = ()
    #: The argument of `report --what-if` that replays the job without it, or "".
    what_if: str = ""
    #: Its place in the program, by call stacks, or "".
    where: str = ""
    #: The recorded part of the trace (start and end, ns). Commands do not exceed it.
    within: tuple[int, int] = (0, 1 << 62)

    def __repr__(self) -> str:
        saves = "saves at most" if self.is_limit else "saves"
        saves = "one-time cost" if self.happens_once else saves
        return f"<Finding {self.kind}, {saves} {self.share:.1%}: {self.title}>"

    def _repr_html_(self) -> str:
        lines = "".join(
            f"<li>{escape(line)}</li>" for line in (*self.evidence, self.where, self.advice) if line
        )
        return f"<p><b>{escape(self.title)}</b> ({'at most ' if self.is_limit else ''}{self.share:.1%} of the time)</p><ul>{lines}</ul>"

    @property
    def happens_once(self) -> bool:
        """Return True if it occurs once per job, so that its share is smaller in longer jobs."""
        return self.kind in OUTSIDE

    @property
    def is_limit(self) -> bool:
        """Return True if its share is a limit rather than savings."""
        return not self.happens_once

    @property
    def group(self) -> str:
        """Return the group of findings with comparable shares: causes, limits (of the steady state,
        if there is one), or once (of the job).
        """
        return "once" if self.happens_once else "limits" if self.is_limit else "causes"

    @property
    def states_share(self) -> bool:
        """Return True if its title contains its share."""
        return self.kind in STATING_SHARE

    def confine(self, covered: Spans) -> Finding:
        """Return the finding with only the moments that are in recorded time."""
        parts = ((covered.clip(begin, end), ranks) for begin, end, ranks in self.moments)
        moments = ((*part.find_hull(), ranks) for part, ranks in parts if len(part))
        return replace(self, moments=tuple(moments), within=covered.find_hull())

    @property
    def look_at(self) -> str:
        """Return a text that names the first moment to look at and the rank, or "": `12.304-12.318
        s, rank 3`.
        """
        parts = []
        for begin, end, ranks in self.moments[:1]:
            parts = [format_span(begin, end)]
            if ranks:
                parts.append(f"{inflect('rank', len(ranks))} {format_numbers(sorted(ranks))}")
            elif not self.ranks:
                parts += self.devices[:1]
        return ", ".join(parts)

    @property
    def span(self) -> tuple[int, int] | None:
        """Return (start, end) in ns of the first moment with some time around it, or None."""
        for begin, end, _ in self.moments[:1]:
            around = max((end - begin) // 4, 1)
            return max(begin - around, self.within[0]), min(end + around, self.within[1])
        return None

    @property
    def command(self) -> str:
        """Return the command that opens the first view in Paraver at the first moment; "" without a
        view. The trace is called job.prv.
        """
        return make_view_command("job.prv", self.views[0], self.span) if self.views else ""

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as plain data, for JSON."""
        moments = [dict(zip(MOMENT, moment, strict=True)) for moment in self.moments]
        return {
            **to_builtins(self),
            "moments": to_builtins(moments),
            "at_most": self.is_limit,
            "group": self.group,
        }

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Finding:
        """Return a finding from the data of :meth:`as_dict`."""
        moments = [[moment[name] for name in MOMENT] for moment in content.get("moments", ())]
        is_gain = not content.get("at_most") and content["kind"] not in OUTSIDE
        return convert({**content, "moments": moments}, Gain if is_gain else Finding)


class Gain(Finding, frozen=True):
    """A finding about a cause of lost time. Its share is the savings in a replay of the job without
    it. Only the verdict creates these (:mod:`nsys2prv.verdict.findings`).
    """

    @property
    def is_limit(self) -> bool:
        """Return True if its share is an upper limit of the savings."""
        return False


class Table(Struct, frozen=True):
    """A table of results. Columns that end in `_ns` are durations, in `_bytes` sizes, in `share`
    and `efficiency` fractions of 1, and in `_gb_s` 10^9 bytes per second.
    """

    #: Its heading.
    title: str
    #: The figures; in JSON `columns`.
    frame: pl.DataFrame = field(name="columns")
    #: Their definitions.
    about: str = ""

    def __repr__(self) -> str:
        return f"<Table {self.title!r}: {format_count(self.frame.height, 'row')}; .frame has {', '.join(self.frame.columns)}>"

    def _repr_html_(self) -> str:
        about = "".join(f"<p>{escape(text)}</p>" for text in self.about.split("\n\n") if text)
        return f"<b>{escape(self.title)}</b>{about}{self.frame._repr_html_()}"


class Result(Struct, frozen=True):
    """The result of one analysis: tables, notes and findings."""

    #: Name of the analysis.
    name: str
    #: Heading of its tables.
    title: str
    #: Tables by name.
    tables: dict[str, Table] = field(default_factory=dict)
    #: Sentences on how to read them.
    notes: list[str] = field(default_factory=list)
    #: Missing data of the reports, and the figures missing for that reason.
    missing: list[str] = field(default_factory=list)
    #: Causes of lost time, largest share first.
    findings: list[Finding] = field(default_factory=list)

    def add(self, name: str, frame: pl.DataFrame, about: str = "", **words: object) -> None:
        """Add a table that the analysis declares, if it has rows. about: description that replaces
        the declared one. words: values for placeholders in its title.
        """
        said = self.declared.tables[name]
        title, text = (said, "") if isinstance(said, str) else said
        if name == next(iter(self.declared.tables)):
            text = text or self.declared.about
        if frame.height:
            self.tables[name] = Table(title.format(**words), frame, about or text)

    @property
    def declared(self) -> Analysis:
        """Return the declaration of the analysis. For an analysis that only exists in a file,
        return a declaration with its title.
        """
        return DECLARED.get(self.name, Analysis(self.name, self.title))

    def __repr__(self) -> str:
        tables = ", ".join(self.tables) or "nothing"
        return f"<Result {self.name}: {self.title}; .tables has {tables}>"

    def _repr_html_(self) -> str:
        """Return findings, tables and notes as HTML, for notebooks."""
        lines = (f"<p>{escape(line)}</p>" for line in (*self.notes, *self.missing))
        shown: tuple[Finding | Table, ...] = (*self.findings, *self.tables.values())
        parts = (part._repr_html_() for part in shown)
        return f"<h4>{escape(self.title)}</h4>{''.join(parts)}{''.join(lines)}"


class Results(dict[str, Result]):
    """The results of several analyses: name of the analysis -> result."""

    def _repr_html_(self) -> str:
        return "".join(result._repr_html_() for result in self.values())


def join_findings(lists: Iterable[Sequence[Finding]]) -> list[Finding]:
    """Merge the findings of several analyses. Those of the first analysis keep their order. All
    others are inserted in their group before the first finding with lower cost.
    """
    joined: list[Finding] = []
    for number, findings in enumerate(lists):
        for one in findings:
            own = [at for at, other in enumerate(joined) if other.group == one.group]
            less = [at for at in own if number and joined[at].share < one.share]
            places = less[:1] or [at + 1 for at in own[-1:]] if number else ()
            joined.insert(next(iter(places), len(joined)), one)
    return joined[:MOST_FINDINGS]


def group_findings(findings: Iterable[Finding]) -> list[tuple[str, list[Finding]]]:
    """Return (title of the group, its findings) for each group, in display order."""
    return [(group, [*own]) for group, own in groupby(findings, attrgetter("group"))]


def comes_first(
    findings: Sequence[Finding], others: Sequence[Finding], repeats: float | None = None
) -> bool:
    """Return True if some findings are shown before others, because the most expensive one costs
    much more than the total savings of the others.

    repeats: share of the job in the steady state, which is larger in longer jobs; the savings of
    the others refer to it. None if they refer to the job; then only the most expensive of them
    counts.
    """
    if repeats is None:
        repeats = max((one.share for one in others), default=0.0)
    return max((one.share for one in findings), default=0.0) > MUCH_MORE * repeats


class Context(Struct, frozen=True):
    """Facts about the job that `conclude` functions of analyses use. Its methods replace numbers by
    texts.
    """

    #: Reads the job's events.
    reader: EventReader
    #: Options of all analyses.
    options: AnalysisOptions
    #: Name set -> frame of value and label.
    labels: Frames
    #: NVTX names as groups (nvtx_operations.py).
    folded: pl.DataFrame
    #: Layouts that there are events of, and KERNEL_NAMES where most kernels have names.
    available: Collection[str]
    #: Returns why nothing of these is available.
    explain_absence: Callable[[Sequence[str]], str]
    #: As `make_clock_table` of collectives.py returns them.
    clocks: pl.DataFrame
    #: Returns the graph of the job for replays.
    get_graph: Callable[[], JobGraph]
    #: Returns the parallel groups of the job (`Mesh` of mesh.py), None where ranks are not known.
    get_mesh: Callable[[], Any] = lambda: None
    #: Reasons that the analysis under way has given.
    said: set[str] = field(default_factory=set)

    def explain_loss(self) -> str:
        """Return a sentence for a note about the processes in which GPU work was not recorded, or
        "".
        """
        self.said.add(self.options.lost_work)
        return self.options.lost_work

    @property
    def duration(self) -> int:
        """Duration of the job (ns)."""
        return self.reader.duration

    @property
    def elapsed(self) -> int:
        """The length of the time for which the reports of all processes cover the job (ns)."""
        return self.options.covered.length

    @property
    def devices(self) -> pl.DataFrame:
        """The devices with work, as rows of `RowTable.devices` in event_reader.py."""
        used = self.reader.rows.threads.filter(pl.col("stream").is_not_null())["device"]
        return self.reader.rows.devices.filter(pl.col("device").is_in(used.unique().to_list()))

    @property
    def tasks(self) -> pl.DataFrame:
        """Every task except helpers: `task`, `rank` (or null; `by_name`: derived from file names),
        `who` (its name in tables), `node`, `is_gpu`, `nccl_rank`, and `device` (its first GPU with
        work, or null).
        """
        rows = self.reader.rows.threads.filter(pl.col("kind") != HELPER)
        rows = rows.select("task", "rank", "by_name", "who", "node", "is_gpu", "nccl_rank")
        devices = self.devices.unique("task", keep="first").select("task", device="label")
        rows = rows.unique("task").sort("task")
        return rows.join(devices, "task", how="left", maintain_order="left")

    def name_thread(self, row: int) -> tuple[str, str]:
        """Return the name of a thread (without the prefix of helpers) and the name of its host.
        row: its row of the trace.
        """
        name, node = self.reader.rows.threads.select("name", "node").row(row)
        return name.removeprefix("helper "), node

    def label_devices(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Replace the numbers of devices in a frame by their names, and add the column `node`."""
        names = self.devices.select("device", "node", name="label")
        joined = _join_names(frame.drop("node", strict=False), names, "device")
        return joined.select(
            "node", pl.col("name").alias("device"), pl.exclude("node", "device", "name")
        )

    def label_tasks(self, frame: pl.DataFrame, *places: str) -> pl.DataFrame:
        """Replace the numbers of tasks in a frame by names of ranks (column `rank`), and add
        columns that say where they run, such as `node`.
        """
        joined = _join_names(frame, self.tasks.select("task", *places, rank="who"), "task")
        return joined.select("rank", *places, pl.exclude("task", "rank", *places))

    def find_label(self, value: int, *names: str) -> str:
        """Return the label of a value, from the first of these name sets that contains it (`range`:
        groups of NVTX names), or "".
        """
        for name in names:
            labels = self.labels.get(name)
            if name == "range":
                labels = self.folded.select(value="group", label="operation")
            if labels is not None and (row := labels.filter(pl.col("value") == value)).height:
                return str(row["label"][0])
        return ""

    def label_names(
        self, frame: pl.DataFrame, column: str, *sets: str, unknown: pl.Expr | None = None
    ) -> pl.DataFrame:
        """Replace the values in a column by their labels in some name sets. unknown: for values
        without a label (default: the number).
        """
        known = pl.concat([self.labels[one] for one in sets]).unique("value")
        joined = _join_names(frame, known.select("label", pl.col("value").alias(column)), column)
        unknown = pl.format("value {}", column) if unknown is None else unknown
        return joined.with_columns(pl.coalesce("label", unknown).alias(column)).drop("label")


def _join_names(frame: pl.DataFrame, names: pl.DataFrame, key: str) -> pl.DataFrame:
    """Add the names of the numbers in one column to a frame."""
    names = names.cast({key: frame[key].dtype})
    return frame.join(names, on=key, how="left", maintain_order="left")


class JobRanks(Struct, frozen=True):
    """The ranks of a job with their hosts, and the time of their devices, as findings name them."""

    #: A row for each task, as `Context.tasks` has them.
    tasks: pl.DataFrame
    #: A row for each device: device, task, node, label, and the parts of its time (ns).
    devices: pl.DataFrame

    @classmethod
    def from_job(cls, context: Context, devices: pl.DataFrame) -> JobRanks:
        """Return the ranks of a job. devices: activity of each device, as findings.py collects it."""
        tasks = context.tasks.with_columns(pl.col("task").cast(pl.Int64))
        labels = context.reader.rows.devices.select(
            pl.col("device").cast(pl.Int64), "label", "node"
        )
        if devices.height:
            devices = devices.join(labels, on="device", how="left", maintain_order="left")
        else:
            devices = labels.with_columns(
                task=pl.lit(0, pl.Int64), host=pl.lit(0, pl.Int64)
            ).clear()
        return cls(tasks, devices)

    @property
    def has_gpus(self) -> bool:
        """True if the devices are GPUs and not the ranks themselves."""
        return bool(self.devices["label"].is_not_null().any())

    def list_ranks(self, tasks: list[int]) -> tuple[int, ...]:
        """Return the ranks of these tasks, in order, without tasks that have none. For a job of one
        process, return nothing, because its rank means nothing.
        """
        if self.tasks.height == 1:
            return ()
        rank_of_task = dict(self.tasks.select("task", "rank").drop_nulls().rows())
        return tuple(rank_of_task[task] for task in tasks if task in rank_of_task)

    def name_task(self, task: int) -> str:
        """Return the name of a task as text."""
        who = str(self.tasks.filter(pl.col("task") == task)["who"][0])
        return f"process {who}" if who.isdecimal() else who

    def list_devices(self, tasks: list[int]) -> tuple[str, ...]:
        """Return the names of the devices of tasks, in order."""
        by_task: dict[int, list[str]] = {}
        for *owners, label in self.devices.select("task", "host", "label").drop_nulls().rows():
            for task in {*owners}:
                by_task.setdefault(task, []).append(label)
        return tuple(label for task in tasks for label in by_task.get(task, ()))

    def find_host(self, tasks: list[int]) -> str:
        """Return the host that has exactly these ranks, if there are other hosts; otherwise ""."""
        nodes = self.tasks.filter(pl.col("task").is_in(tasks))["node"].unique()
        others = self.tasks.filter(~pl.col("task").is_in(tasks))["node"]
        is_whole = len(nodes) == 1 and len(others) > 0 and nodes[0] not in others
        return nodes[0] if is_whole else ""

    def describe_ranks(self, tasks: list[int]) -> str:
        """Return ranks with hosts and GPUs as text: `rank 41 (node05 GPU1)`, `ranks 4-7 (node02)`,
        `48 ranks`.
        """
        rows = self.tasks.filter(pl.col("task").is_in(tasks))
        if len(tasks) == 1:
            return self._describe_one(tasks[0])
        ranks = sorted(self.list_ranks(tasks))
        nodes = rows["node"].unique(maintain_order=True).to_list()
        more = f" and {format_count(len(nodes) - 3, 'node')} more" if len(nodes) > 3 else ""
        where = ", ".join(nodes[:3]) + more
        unnamed = rows["who"].filter(rows["rank"].is_null()).to_list()
        if unnamed:
            return f"{list_some([*(f'rank {rank}' for rank in ranks), *unnamed])} ({where})"
        by_name = BY_FILE_NAME if rows["by_name"].all() else ""
        return f"ranks {format_numbers(ranks)}{by_name} ({where})"

    def _describe_one(self, task: int) -> str:
        """Return the name of a rank with its GPUs or host. A GPU that is an NCCL rank has its own
        name; its host is included if there are several, or if nothing else is known.
        """
        (row,) = self.tasks.filter(task=task).rows(named=True)
        where, number = [*self.list_devices([task])], row["nccl_rank"]
        if len(where) > MOST_DEVICES:
            where = [row["node"], format_count(len(where), "GPU")]
        if row["is_gpu"]:
            is_alone = number is not None and self.tasks["node"].n_unique() == 1
            where = [] if is_alone else [row["node"]]
            where += [f"NCCL rank {number}"] if number is not None else []
        return f"{row['who']} ({', '.join(where) or row['node']})"


def format_numbers(numbers: list[int], separator: str = ", ") -> str:
    """Return sorted numbers as text: `0-3`, `1, 5, 9`, `2, 6, ... 62`."""
    if len(numbers) > 2:
        steps = {second - first for first, second in pairwise(numbers)}
        if steps == {1}:
            return f"{numbers[0]}-{numbers[-1]}"
        if len(steps) == 1 and len(numbers) > 4:
            return f"{numbers[0]}, {numbers[1]}, ... {numbers[-1]}"
    return list_some([*map(str, numbers)], MOST_NAMED, separator)


def name_communicators(kernels: pl.DataFrame, tasks: pl.DataFrame) -> dict[int, str]:
    """Give each communicator a name from its members. Return value of the communicator -> name.

    kernels: at least one row per communicator (value, negative if unknown) and task. tasks: task,
    rank (or null), who, node, is_gpu. Communicators with the same members are numbered: `world
    (0-15)`, `world (0-15) #2`.
    """
    places = {task: place for task, *place in tasks.select("task", "rank", "who", "node").rows()}
    all_ranks, gpus = tasks["rank"].drop_nulls().n_unique(), {*tasks.filter("is_gpu")["task"]}
    known = kernels.filter(pl.col("communicator") >= 0)
    members = known.group_by("communicator").agg(pl.col("task").unique().sort())
    used: Counter[str] = Counter()
    names = {}
    for value, of_tasks in members.sort("communicator").rows():
        ranks, who, hosts = zip(*(places[task] for task in of_tasks), strict=True)
        if {*of_tasks} <= gpus:
            name = _name_gpus(who)
            name = f"world ({name})" if len(of_tasks) == len(gpus) else name
        elif None in ranks:
            name = list_some(who)
        else:
            name = _name_ranks(sorted(ranks), sorted(set(hosts)), all_ranks)
        used[name] += 1
        names[value] = f"{name} #{used[name]}" if used[name] > 1 else name
    return names


def _name_gpus(names: Sequence[str]) -> str:
    """Return names of GPUs such as `rank 0 GPU1` as one text by process: `rank 0 GPU0-3, rank 1
    GPU0-3`.
    """
    numbers: dict[str, list[int]] = {}
    for name in names:
        process, _, number = name.rpartition("GPU")
        numbers.setdefault(process, []).append(int(number))
    parts = (f"{process}GPU{format_numbers(sorted(own), ',')}" for process, own in numbers.items())
    return (
        list_some([*parts]) if len(numbers) <= MOST_PROCESSES else format_count(len(names), "GPU")
    )


def _name_ranks(ranks: Sequence[int], hosts: Sequence[str], all_ranks: int) -> str:
    """Return the name of a set of sorted ranks."""
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
        return f"every {format_ordinal(*steps)} ({shown})"
    return f"ranks {shown}, across nodes"


def sum_known(numbers: pl.Expr) -> pl.Expr:
    """Return an expression for the sum of numbers; null if one of them is unknown (null or
    negative).
    """
    return pl.when((numbers.fill_null(-1) >= 0).all()).then(numbers.sum())


def divide_columns(part: pl.Expr | str, whole: pl.Expr | str) -> pl.Expr:
    """Return an expression for the ratio of columns; null if there is nothing to divide by."""
    part = pl.col(part) if isinstance(part, str) else part
    whole = pl.col(whole) if isinstance(whole, str) else whole
    return pl.when(whole != 0).then(part / whole)
