"""Represent known facts about a job and the activity of its hosts in a set of times, and choose
advice from them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property

import polars as pl
from msgspec import Struct

from nsys2prv._util.text import shorten_name
from nsys2prv.figures.device_group import AnalysisOptions, Frames
from nsys2prv.figures.host_time import NAMES, PARTS, describe_parts, describe_unrecorded
from nsys2prv.figures.result import TEXTS, Context, JobRanks
from nsys2prv.figures.stacks import Place, find_place
from nsys2prv.verdict.thresholds import EXPLAINS, LONG_CALL, MOST, WORTH_RECORDING
from nsys2prv.verdict.words import ADVICE, Said, choose_advice, say
from nsys2prv.verdict.words import TEXTS as WORDS

#: Parts of time that are not the program's.
NO_CAUSE = ("profiler", "away")
#: Parts in which a thread or its process is no more.
OVER = ("ended", "exiting")


class NamedTime(Struct, frozen=True):
    """Time that hosts spend in calls, functions or NVTX ranges of one name."""

    #: Part of PARTS, or `range`.
    part: str
    #: Name set of the name.
    names: str
    name: str
    #: Its time (ns), the longest single occurrence, and its share of the part.
    time: int
    longest: int
    share: float
    #: Whether the longest is the first call of CUDA in its process that takes long.
    is_first: bool = False

    @property
    def sets_up(self) -> bool:
        """Return True if most of the time is the first CUDA API call of its process (CUDA
        initialization).
        """
        return self.is_first and self.longest >= MOST * self.time

    @property
    def is_single(self) -> bool:
        """Return True if most of the time is a single long call."""
        is_long = self.longest >= max(LONG_CALL, MOST * self.time)
        return self.part in ("io", "cuda") and is_long and not self.sets_up

    @property
    def of_whole(self) -> Said:
        """Return a text with the share of the whole time that this is."""
        return say(
            "of whole", share=min(self.share, 1.0), is_range=self.part == "range", name=self.name
        )

    def __str__(self) -> str:
        launches = "Launch" in self.name
        named = say(
            "named time",
            name=self.name,
            time=self.time,
            is_within=self.part == "mpi" and self.names == "cuda_api",
            launches=self.sets_up and launches,
            sets_up=self.sets_up and not launches,
            is_single=self.is_single,
        )
        return str(named)


class Pauses(Struct, frozen=True):
    """Activities of a host during its pauses between calls."""

    #: Part of PARTS -> its time (ns).
    parts: Mapping[str, int]
    #: The NVTX range, and the call of the operating system, that it is in longest.
    range: NamedTime | None
    call: NamedTime | None
    #: The thread that ends its waits.
    until: Said | None = None

    @property
    def advice(self) -> str:
        """Return the key in ADVICE of the advice against these pauses, or ""."""
        call, share = (self.call.name, self.call.share) if self.call else ("", 0.0)
        largest = max(self.parts, key=lambda part: (self.parts[part], part))
        return choose_advice("pauses", part=largest, call=call, share=share)

    def describe(self) -> Iterator[Said]:
        """Yield sentences about what the host does in the pauses: parts, NVTX range and call, as
        far as known.
        """
        if self.parts["unknown"] < sum(self.parts.values()):
            yield say("host is", parts=describe_parts(self.parts))
        yield from (one.of_whole for one in (self.range, self.call) if one)
        yield from filter(None, [self.until])


class HostUse(Struct, frozen=True):
    """Activities of the host threads that launch GPU work, within a set of times such as those
    before the first GPU work.
    """

    #: The time: before, after, idle, all.
    when: str
    #: Length of the time (ns), and its longest stretch: begin and end (ns of the trace).
    length: int
    moment: tuple[int, int]
    #: Part of PARTS -> its time (ns).
    parts: Mapping[str, int]
    #: The two calls or functions of each part that take most of it, the longest first.
    calls: tuple[NamedTime, ...]
    #: The NVTX range that most of it is in.
    inside: NamedTime | None
    #: Program location of most of it, by stacks.
    place: Place | None
    #: Name of the process of these threads; empty in a job of one process.
    who: str
    #: Further events that would explain it, and the options that record them.
    lacking: str
    #: Whether the job has GPUs.
    has_gpus: bool

    @property
    def largest(self) -> str:
        """Return the name of the longest part of the hosts' time."""
        return max(self.parts, key=lambda one: self.parts[one])

    @property
    def own(self) -> str:
        """Return the name of the longest part that belongs to the program, unless it is short."""
        rest = {part: time for part, time in self.parts.items() if part not in (*NO_CAUSE, *OVER)}
        part = max(rest, key=lambda one: rest[one])
        length, gone = sum(rest.values()), OVER if self.when == "all" else ()
        whole = self.length - sum(self.parts[one] for one in (*NO_CAUSE, *gone))
        matters = rest[part] > WORTH_RECORDING * length > WORTH_RECORDING**2 * whole
        return part if matters else self.largest

    @property
    def where(self) -> str:
        """Return the location in the program of most of the time, or "" without stacks."""
        return str(self.place or "")

    @property
    def advice(self) -> str:
        """Return advice for reducing this activity of hosts."""
        part = self.own
        calls = self.list_calls(part)
        first, second, *_ = [*(one.name for one in calls), "", ""]
        # CUDA API calls are more informative than locations in its libraries.
        place = None if part == "cuda" else self.place
        key = choose_advice(
            "hosts",
            when=self.when,
            part=part,
            call=first,
            second=second,
            sets_up=any(one.sets_up for one in calls),
            single=any(one.is_single for one in calls),
            owner=place.owner if place else "",
            untraced=place is not None and place.is_untraced,
            known=self.place is not None,
            lacking=self.lacking,
            gpus=self.has_gpus,
        )
        advice = ADVICE[key].format(lacking=self.lacking) if key else TEXTS["parts"][part][1]
        is_known = self.when != "before" or key in WORDS["about_startup"]
        return advice if is_known else f"{advice}. {ADVICE['capture']}"

    def list_calls(self, part: str) -> list[NamedTime]:
        """Return the calls or functions with most of a part's time."""
        return [one for one in self.calls if one.part == part]

    def name_most(self, part: str) -> str:
        """Return a text with the calls in which most of a part's time is, ` (...)`; "" if unknown."""
        calls = self.list_calls(part)
        return f" ({'; '.join(map(str, calls))})" if calls else ""

    def describe_most(self, excluded: Collection[str] = ("profiler",)) -> str:
        """Return a text with the dominant part of the hosts' time outside excluded parts, and its
        calls; "" without a dominant part.
        """
        rest = {part: time for part, time in self.parts.items() if part not in excluded}
        part = max(rest, key=lambda one: rest[one])
        is_most = rest[part] >= MOST * max(sum(rest.values()), 1)
        return f"{PARTS[part]}{self.name_most(part)}" if is_most else ""

    def list_evidence(self) -> list[Said]:
        """Return sentences about the host activity in this time, and about data that was not
        recorded.
        """
        named = {part: self.name_most(part) for part in self.parts}
        # In a job without GPU work the title states the unrecorded time.
        gone = dict.fromkeys(("away", *OVER), 0) if self.when == "all" else {}
        parts = {**self.parts, **gone}
        described = describe_parts(parts, 4, named)
        said = [say("who is" if self.who else "host is", who=self.who, parts=described)]
        lines = said if described else []
        if self.inside:
            lines.append(self.inside.of_whole)
        if self.parts["unknown"] >= WORTH_RECORDING * self.length and self.own != "unknown":
            lines.append(
                say(
                    "unrecorded",
                    what="host activity during this time",
                    partly=True,
                    options=self.lacking,
                )
            )
        return lines


class JobFacts(Struct, frozen=True, dict=True):
    """Frames and context of a job, from which findings about its use of time are made."""

    #: Frames of frames.py.
    frames: Frames
    context: Context

    @property
    def options(self) -> AnalysisOptions:
        """The options of all analyses."""
        return self.context.options

    @property
    def is_steady(self) -> bool:
        """Return True if the job has a steady state."""
        return self.options.steady is not None

    @property
    def devices(self) -> pl.DataFrame:
        """Activity of each GPU, one row per GPU."""
        return self.frames["devices"]

    @cached_property
    def job(self) -> JobRanks:
        """Names of the ranks and GPUs of the job."""
        return JobRanks.from_job(self.context, self.devices)

    @cached_property
    def lacking(self) -> str:
        """Text about missing information on hosts, and the options that record it."""
        return describe_unrecorded(self.frames, self.context)

    def find_use(self, when: str) -> HostUse | None:
        """Return the host activity before the first GPU work, after the last, while GPUs are idle,
        or at all times (`when`: before, after, idle, all); None if unknown.
        """
        rows, activities = self.frames["uses"], self.frames["activities"]
        if not rows.height:
            return None
        rows = rows.filter((pl.col("when") == when) & (pl.col("length") > 0))
        if self.devices.height:
            # Processes that use GPUs, without processes that only start others.
            rows = rows.filter(pl.col("task").is_in(self.devices["host"].to_list()))
        if when in ("before", "after"):
            # All GPUs do nothing until the first one works.
            rows = rows.filter(pl.col("length") == pl.col("length").min())
        if not rows.height:
            return None
        starts = pl.col("who").str.contains(NAMES["launchers"]).fill_null(False)
        rows = rows.join(self.job.tasks.select("task", starts=starts), on="task")
        activities = activities.filter(when=when)
        row = _sort_processes(rows, activities).row(-1, named=True)
        task, length, parts = row["task"], row["length"], {part: row[part] for part in PARTS}
        activities = activities.filter(task=task)
        places = activities.filter(part="where").select("time", place="name")
        # The two activities of each part that take most time.
        activities = activities.filter(pl.col("part") != "where").sort(
            "time", descending=True, maintain_order=True
        )
        named = [
            NamedTime(part, names, name, time, longest, share, is_first)
            for part, names, value, time, longest, is_first in activities.filter(
                pl.int_range(pl.len()).over("part") < 2
            )
            .select("part", "names", "name", "time", "longest", "first")
            .rows()
            if (name := shorten_name(self.context.find_label(value, names)))
            and (share := time / max(length if part == "range" else parts[part], 1)) >= EXPLAINS
        ]
        inside = next((one for one in named if one.part == "range"), None)
        return HostUse(
            when,
            length,
            (row["begin"], row["end"]),
            parts,
            tuple(one for one in named if one is not inside),
            inside,
            find_place(places, length, self.context),
            self.job.name_task(task) if self.job.tasks.height > 1 else "",
            self.lacking,
            self.job.has_gpus,
        )


def _sort_processes(rows: pl.DataFrame, activities: pl.DataFrame) -> pl.DataFrame:
    """Return the processes sorted by work (columns of `uses`, `starts`); the last one works
    longest.

    Work is time in calls, samples and ranges that is not waiting in the OS. The last process
    neither only starts others nor exists for only a short part of the others' time. Otherwise equal
    processes with NVTX ranges come later.
    """
    in_ranges = pl.col("time").filter(pl.col("part") == "range").sum()
    sums = activities.group_by("task").agg(in_ranges=in_ranges)
    rows = rows.join(sums, on="task", how="left")
    rows = rows.with_columns(waiting=pl.sum_horizontal("os", "io", "off_cpu"))
    in_ranges = (pl.col("in_ranges").fill_null(0) - pl.col("waiting")).clip(0)
    works = pl.sum_horizontal("mpi", "nccl", "cuda", "computing", "compiling") + in_ranges
    has_ranges, waits = pl.col("in_ranges").is_not_null(), pl.col("waiting")
    lives = (pl.col("length") - pl.sum_horizontal("away", *OVER)).clip(1) * ~pl.col("starts")
    matters = (lives > 0) & (lives >= EXPLAINS * lives.max())
    return rows.sort("length", matters, works, has_ranges, -waits, "task")
