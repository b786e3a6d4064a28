"""Derive the frames of a cut job from those of the whole job.

This is plain polars over public frames and shares nothing with the code that cuts.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

import polars as pl
from msgspec.structs import replace

from nsys2prv import Options
from nsys2prv._util.workers import Pool
from nsys2prv.conversion.convert import prepare
from nsys2prv.conversion.cut import cut_job
from nsys2prv.conversion.job import Job
from nsys2prv.conversion.options import CutOptions, Plan
from nsys2prv.events.catalogue import load_catalogue
from nsys2prv.events.extraction import DeviceKey
from nsys2prv.events.stacks import STACK_LAYOUTS
from nsys2prv.open_job import OpenJob

#: Where an event is. Rows of a machine have no rank: they are beside any of its ranks. Those that
#: several machines see have no node either.
PLACE = ("rank", "node", "row")
#: Names of rows without what follows from the other rows of a trace: the number of the task, and the
#: host where several have such a row.
_NAME = (
    pl.col("row")
    .str.replace(r"^THREAD \d+\.\d+\.\d+", "THREAD")
    .str.strip_suffix(pl.lit("-") + pl.col("node"))
)


@dataclass(frozen=True)
class Frames:
    """Everything that a job says of its events.

    ranges, states: by layout: begin, end, PLACE, fields. lines: by kind: sent, begin, end, bytes,
    and PLACE of both ends. samples: by layout: time, PLACE, metric, value (-1: nothing was sampled
    from then on). stacks: begin, end, PLACE, layout, text.
    """

    duration: int
    ranges: dict[str, pl.DataFrame] = field(default_factory=dict)
    states: dict[str, pl.DataFrame] = field(default_factory=dict)
    lines: dict[str, pl.DataFrame] = field(default_factory=dict)
    samples: dict[str, pl.DataFrame] = field(default_factory=dict)
    stacks: dict[str, pl.DataFrame] = field(default_factory=dict)

    def list_all(self) -> Iterator[tuple[str, pl.DataFrame]]:
        """Yield all frames that have rows, with a name."""
        for group in ("ranges", "states", "lines", "samples", "stacks"):
            for name, frame in getattr(self, group).items():
                if frame.height:
                    yield f"{group} {name}", frame

    def list_times(self) -> list[int]:
        """Return the times at which something happens: cuts there are the hardest."""
        names = ("begin", "end", "time", "sent")
        columns = {"ranges": names[:2], "stacks": names[:2], "states": names[:1]}
        columns |= {"samples": names[2:3], "lines": ("begin", "end", "sent")}
        times = {0, self.duration}
        for group, own in columns.items():
            for frame in getattr(self, group).values():
                times.update(time for name in own for time in frame[name].to_list())
        return sorted(times)


@dataclass(frozen=True)
class FrameCut:
    """What to keep: first <= time < last (ns; to the end of the trace, which belongs to it, where that is
    `last`), ranks, hosts (all, if None); origin: the time that becomes 0.
    """

    first: int
    last: int
    origin: int
    ranks: frozenset[int] | None = None
    hosts: frozenset[str] | None = None


def read_frames(job: OpenJob) -> Frames:
    """Return everything that a job says of its events."""
    catalogue = load_catalogue()
    of_machines = {
        thread for (_, key), thread in job.prepared.model.rows.items() if isinstance(key, DeviceKey)
    }
    rows = job.rows.with_columns(_NAME.alias("name"))
    of_machine = pl.col("thread").is_in(sorted(of_machines))
    shared = pl.col("row").str.starts_with("Switch ")
    places = rows.select(
        "row",
        "name",
        rank=pl.when(~of_machine).then("rank"),
        node=pl.when(~shared).then("node"),
        task_rank="rank",
        task_node="node",
    )
    found = Frames(job.duration)
    for layout in sorted(job.layouts):
        declared = catalogue.layouts[layout]
        if not declared.fields:
            found.samples[layout] = _read_samples(
                job, layout, places.select("rank", "node", row="name")
            )
            continue
        frame = job.frame(layout, labels=False)
        frame = frame.cast({pl.Categorical: pl.String}).drop("device", "stream")
        by = {"rank": "task_rank", "node": "task_node", "row": "row"}
        frame = frame.rename(by).join(
            places.unique([*by.values()]), on=[*by.values()], how="left", nulls_equal=True
        )
        frame = frame.drop(by.values()).rename({"name": "row"})
        (found.states if declared.is_state else found.ranges)[layout] = frame
    places = places.select("rank", "node", row="name")
    for kind in sorted(set(catalogue.lines) & job.reader.layouts):
        frame = job.lines(kind)
        for end, name in (("sender", "sent_by_"), ("thread", "")):
            at = places.select(PLACE)[frame[end]]
            frame = frame.drop(end).hstack(at.rename(lambda one, name=name: name + one))
        found.lines[kind] = frame
    for unit in job.units:
        frame, texts = job.reader.read_stacks(unit)
        frame = frame.select(
            "begin",
            "end",
            *places.select(PLACE)[frame["thread"].cast(pl.Int64)],
            pl.col("layout").replace_strict(dict(enumerate(STACK_LAYOUTS)), return_dtype=pl.String),
            text=texts[frame["text"]],
        )
        known = found.stacks.get("stacks", frame.clear())
        found.stacks["stacks"] = pl.concat([known, frame])
    return found


def _read_samples(job: OpenJob, layout: str, places: pl.DataFrame) -> pl.DataFrame:
    frames = [
        pl.DataFrame({"time": one.time, **dict(zip(one.metrics, one.values.T, strict=True))})
        .unpivot(index="time", variable_name="metric", value_name="value")
        .filter(pl.col("value").is_not_nan())
        .select("time", *(pl.lit(places[name][one.thread]).alias(name) for name in PLACE), "metric", "value")
        for one in job.reader.read_samples(layout)
    ]  # fmt: skip
    return pl.concat(frames).with_columns(pl.col("rank").cast(pl.Int64))


def filter_frames(whole: Frames, cut: FrameCut) -> Frames:
    """Return the frames that a cut must leave."""
    first, last, origin = cut.first, cut.last, cut.origin
    is_closed = last == whole.duration

    def is_inside(time: str) -> pl.Expr:
        return pl.col(time).is_between(first, last, closed="both" if is_closed else "left")

    hosts_of = _list_kept_hosts(whole, cut)

    def keep_rows(frame: pl.DataFrame, prefix: str = "") -> pl.DataFrame:
        rank, node = pl.col(f"{prefix}rank"), pl.col(f"{prefix}node")
        if cut.hosts is not None:
            frame = frame.filter(node.is_null() | node.is_in(sorted(cut.hosts)))
        if cut.ranks is not None:
            near = rank.is_null() & (node.is_null() | node.is_in(sorted(hosts_of)))
            frame = frame.filter(near | rank.is_in(sorted(cut.ranks)).fill_null(False))
        return frame

    def clip(frame: pl.DataFrame) -> pl.DataFrame:
        met = pl.col("end") > first
        if not is_closed:
            met &= pl.col("begin") < last
        begin, end = pl.col("begin").clip(first) - origin, pl.col("end").clip(None, last) - origin
        return keep_rows(frame).filter(met).with_columns(begin, end)

    kept = Frames(last - origin)
    kept.ranges.update((name, clip(frame)) for name, frame in whole.ranges.items())
    kept.stacks.update((name, clip(frame)) for name, frame in whole.stacks.items())
    for name, frame in whole.lines.items():
        rows = keep_rows(keep_rows(frame), "sent_by_").filter(is_inside("sent"), is_inside("begin"))
        times = pl.col("sent", "begin") - origin, pl.col("end").clip(None, last) - origin
        kept.lines[name] = rows.with_columns(*times)
    for name, frame in whole.samples.items():
        frame = keep_rows(frame).sort("time", maintain_order=True)
        held = frame.filter(pl.col("time") <= first).group_by(*PLACE, "metric").last()
        held = held.with_columns(time=pl.lit(first, pl.Int64)).select(frame.columns)
        later = frame.filter(is_inside("time"), pl.col("time") > first)
        kept.samples[name] = pl.concat([held, later]).with_columns(pl.col("time") - origin)
    kept.states.update(_filter_states(whole, first, origin, keep_rows, is_inside))
    return kept


def _list_kept_hosts(whole: Frames, cut: FrameCut) -> set[str]:
    """Return the hosts with any of the ranks."""
    pairs = {
        pair
        for frames in (whole.ranges, whole.states)
        for frame in frames.values()
        for pair in frame.select("rank", "node").unique().rows()
    }
    return {node for rank, node in pairs if cut.ranks is None or rank in cut.ranks}


def _filter_states(
    whole: Frames,
    first: int,
    origin: int,
    keep_rows: Callable[[pl.DataFrame], pl.DataFrame],
    is_inside: Callable[[str], pl.Expr],
) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield the states of each layout. Those that share an event type share what holds at the begin."""
    layouts = load_catalogue().layouts
    for name, frame in whole.states.items():
        code = layouts[name].fields[0].code
        alike = [one for one in whole.states if layouts[one].fields[0].code == code]
        before = [
            keep_rows(whole.states[one])
            .filter(pl.col("begin") <= first)
            .select(*PLACE, "begin", layout=pl.lit(one))
            .with_row_index("place")
            for one in alike
        ]
        latest = pl.concat(before).sort("begin", maintain_order=True).group_by(*PLACE).last()
        own = keep_rows(frame).filter(pl.col("begin") <= first).with_row_index("place")
        held = own.join(latest.filter(layout=name).select("place"), on="place")
        held = held.drop("place").with_columns(
            begin=pl.lit(first, pl.Int64), end=pl.lit(first + 1, pl.Int64)
        )
        later = keep_rows(frame).filter(is_inside("begin"), pl.col("begin") > first)
        both = pl.concat([held, later.select(held.columns)])
        yield name, both.with_columns(pl.col("begin", "end") - origin)


def compare_frames(actual: Frames, expected: Frames) -> None:
    """Check that two jobs say the same of their events."""
    assert actual.duration == expected.duration
    found, wanted = dict(actual.list_all()), dict(expected.list_all())
    assert found.keys() == wanted.keys(), found.keys() ^ wanted.keys()
    for name, frame in wanted.items():
        own = found[name].select(frame.columns)
        order = [pl.col(one) for one in frame.columns]
        own, frame = own.sort(order), frame.sort(order)
        if not own.equals(frame):
            lacking = frame.join(own, on=frame.columns, how="anti", nulls_equal=True)
            more = own.join(frame, on=frame.columns, how="anti", nulls_equal=True)
            raise AssertionError(
                f"{name}: lacks {lacking}, has {more}, {own.height}/{frame.height}"
            )


def find_region(whole: OpenJob, pattern: str, first: int, last: int | None) -> tuple[int, int]:
    """Return the first begin and the last end (ns) of the NVTX ranges of this name, of each thread those
    from the first-th to the last-th (None: to the last), counted from 1.
    """
    pieces = []
    for layout in ("nvtx_pushpop", "nvtx_startend"):
        if layout in whole.layouts:
            frame = whole.frame(layout).cast({pl.Categorical: pl.String})
            pieces.append(frame.select("begin", "end", *PLACE, "range"))
    ranges = pl.concat(pieces)
    names = [name for name in ranges["range"].unique() if fnmatchcase(name, pattern)]
    ranges = ranges.filter(pl.col("range").is_in(names)).sort(
        *PLACE, "begin", "end", descending=[False] * 4 + [True]
    )
    place = pl.int_range(1, pl.len() + 1).over(PLACE)
    kept = ranges.filter(place.is_between(first, last if last else ranges.height))
    return kept["begin"].min(), kept["end"].max()


def prepare_job(reports: Iterable[Path], folder: Path) -> Job:
    """Return the prepared job of these reports."""
    return prepare(list(reports), Plan.from_options(Options(report=True)), folder, Pool())


@contextmanager
def open_part(job: Job, folder: Path, cut: CutOptions) -> Iterator[OpenJob]:
    """Open a part of a prepared job; its files are in the folder, which is made."""
    folder.mkdir(parents=True)
    plan = Plan.from_options(Options(cut=cut, report=True))
    with OpenJob(cut_job(replace(job, folder=folder), plan.cut)) as part:
        yield part
