"""Test that a cut job has the events of the whole job in that part, for every layout, in Python."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tools import cut_filter
from tools.commands import SAMPLES
from tools.cut_frames import (
    FrameCut,
    Frames,
    compare_frames,
    filter_frames,
    find_region,
    open_part,
    prepare_job,
    read_frames,
)
from tools.cut_jobs import STEPS, write_small_job

from nsys2prv import Options
from nsys2prv._util.errors import Nsys2prvError
from nsys2prv.conversion.cut import cut_job
from nsys2prv.conversion.job import Job
from nsys2prv.conversion.options import CutOptions, Plan
from nsys2prv.conversion.write import write_job
from nsys2prv.events.kind import Reason
from nsys2prv.open_job import OpenJob
from nsys2prv.table.runs import TIMES, find_role, read_run

SETS = sorted(path.parent.name for path in SAMPLES.glob("*/truth.json"))


class Whole:
    """A prepared job, what it says of its events, its trace taken apart, and its ranks and hosts."""

    def __init__(self, reports: list[Path], folder: Path) -> None:
        self.folder = folder
        (folder / "whole").mkdir()
        self.job: Job = prepare_job(reports, folder / "whole")
        self.opened = OpenJob(self.job)
        self.frames: Frames = read_frames(self.opened)
        self.times = self.frames.list_times()
        self.ranks = sorted(self.opened.rows["rank"].drop_nulls().unique().to_list())
        self.hosts = sorted(self.opened.rows["node"].unique().to_list())
        write_job(self.job, folder / "whole.prv", keep_runs=True)
        self.trace = cut_filter.parse_trace(folder / "whole.prv")
        self._parts = 0

    def check(
        self,
        options: dict,
        first: int,
        last: int,
        rate: int | None = None,
        has_lines: bool = True,
        **rows: frozenset | None,
    ) -> None:
        """Check the frames of a part of the job, and its trace, with so many samples a second and with
        or without lines, where all rows stay.
        """
        self._parts += 1
        folder = self.folder / f"part-{self._parts}"
        keep_time = options.get("keep_time", False)
        cut = FrameCut(first, last, 0 if keep_time else first, **rows)
        expected = filter_frames(self.frames, cut)
        try:
            with open_part(self.job, folder, CutOptions(**options)) as part:
                compare_frames(read_frames(part), expected)
            if any(rows.values()):
                return
            written = {"rates": {"all": rate}} if rate else {}
            written |= {} if has_lines else {"lines": "none"}
            with open_part(self.job, folder / "trace", CutOptions(**options, **written)) as part:
                summary = write_job(part.prepared, folder / "cut.prv", keep_runs=True)
            lines, order, duration = cut_filter.read_lines(folder / "cut.prv")
            request = cut_filter.CutRequest(first, last, True, has_lines, rate, keep_time)
            wanted, wanted_order = cut_filter.filter_trace(self.trace, request)
            assert lines == wanted
            assert {key: order[key] for key in wanted_order} == wanted_order
            assert duration == expected.duration
            if has_lines:
                counts = summary.left_out.items()
                halves = [n for (_, reason), n in counts if reason == Reason.HALF_OUTSIDE_CUT]
                assert self._count_halves(first, last) == sum(halves)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _count_halves(self, first: int, last: int) -> int:
        """Return the lines with exactly one end in a part."""
        end = last + (last == self.frames.duration)
        sent, came = (pl.col(time).is_between(first, end, "left") for time in ("sent", "begin"))
        return sum(frame.filter(sent != came).height for frame in self.frames.lines.values())


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    folder = tmp_path_factory.mktemp("small")
    whole = Whole(write_small_job(folder), folder)
    yield whole
    whole.opened.close()


@st.composite
def draw_cuts(draw: st.DrawFn, whole: Whole) -> tuple[dict, int, int, dict[str, frozenset | None]]:
    """Draw a cut: its options, begin and end, and the rows that stay."""
    near = st.sampled_from(whole.times).flatmap(
        lambda time: st.sampled_from((time - 1, time, time, time + 1))
    )
    first, last = sorted(min(max(draw(near), 0), whole.frames.duration) for _ in range(2))
    return _make_cut(whole, first, last, draw(st.randoms(use_true_random=False)))


def _make_cut(
    whole: Whole, first: int, last: int, luck: random.Random
) -> tuple[dict, int, int, dict[str, frozenset | None]]:
    if first == last:
        first, last = 0, whole.frames.duration
    options: dict = {"time": f"{first}ns:{last}ns", "keep_time": luck.random() < 0.3}
    rows: dict[str, frozenset | None] = {"ranks": None, "hosts": None}
    if luck.random() < 0.3:
        rows["ranks"] = frozenset(luck.sample(whole.ranks, luck.randint(1, len(whole.ranks))))
        options["ranks"] = tuple(map(str, sorted(rows["ranks"])))
    elif luck.random() < 0.3:
        rows["hosts"] = frozenset(luck.sample(whole.hosts, luck.randint(1, len(whole.hosts))))
        options["hosts"] = tuple(sorted(rows["hosts"]))
    return options, first, last, rows


# The same cuts in each run; without looking for simpler ones, which takes minutes.
@settings(max_examples=10, derandomize=True, phases=[Phase.generate])
@given(data=st.data())
def test_any_part_is_the_whole_filtered(small: Whole, data: st.DataObject) -> None:
    options, first, last, rows = data.draw(draw_cuts(small))
    small.check(options, first, last, **rows)


@pytest.mark.parametrize("region", ["step*:3-5", "layer", "load ?:2", "step 7"])
def test_a_region_is_the_time_of_its_ranges(small: Whole, region: str) -> None:
    pattern, _, places = region.partition(":")
    first, _, last = places.partition("-")
    pattern = pattern.replace("step 7", "step*").replace("load ?", "load*")
    numbers = (int(first or 1), int(last or first) if places else None)
    if region == "step 7":
        numbers = (8, 8)
    span = find_region(small.opened, pattern, *numbers)
    small.check({"region": region}, *span)


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_any_part_of_a_sample_is_the_whole_filtered(name: str, tmp_path: Path) -> None:
    whole = Whole(sorted((SAMPLES / name).glob("rank*.sqlite")), tmp_path)
    luck = random.Random(3)
    for _ in range(12):
        first, last = sorted(luck.sample(whole.times, 2))
        options, first, last, rows = _make_cut(whole, first, last, luck)
        rate, has_lines = luck.choice((None, 10, 1000, 10**6)), luck.random() < 0.7
        whole.check(options, first, last, rate, has_lines, **rows)
    whole.opened.close()


def test_a_cut_of_the_whole_time_changes_nothing(small: Whole, tmp_path: Path) -> None:
    with open_part(small.job, tmp_path / "part", CutOptions(time="0:100%")) as part:
        summary = write_job(part.prepared, tmp_path / "cut.prv", keep_runs=True)
    cut, whole = tmp_path / "cut.prv", small.folder / "whole.prv"
    assert sorted(cut.read_text().splitlines()) == sorted(whole.read_text().splitlines())
    assert {reason for _, reason in summary.left_out} == {Reason.LAUNCH_LEFT_OUT}
    assert not small.job.left_out


def test_a_cut_moves_every_time_of_every_record(small: Whole, tmp_path: Path) -> None:
    """What a cut writes begins at 0 as a whole: all columns that hold times move alike."""
    span = f"{3 * 1000}ns:{7 * 1000}ns"
    runs = []
    for place, keep_time in enumerate((True, False)):
        folder = tmp_path / str(place)
        cut = CutOptions(time=span, keep_time=keep_time)
        with open_part(small.job, folder, cut) as part:
            runs.append([(run.shape, read_run(run)) for run in part.prepared.runs])
    kept, moved = runs
    streams = set()
    for (shape, before), (other, after) in zip(kept, moved, strict=True):
        assert shape == other
        streams.add(shape.stream)
        for name in before:
            is_time = find_role(shape.stream, shape.name, name) == TIMES
            moved = before[name].astype(int) - after[name].astype(int)
            assert (moved == 3000 * is_time).all(), (shape, name)
    assert streams == {"range", "line", "counter"}


def test_columns_have_roles(small: Whole) -> None:
    for run in small.job.runs:
        for name in run.columns:
            assert find_role(run.shape.stream, run.shape.name, name) is not None
    with pytest.raises(KeyError):
        find_role("line", "launch", "moment")


@pytest.mark.parametrize("layout", ["cuda_kernel", "cuda_api", "nvtx_pushpop"])
def test_a_range_that_ends_where_the_part_begins_is_not_in_it(
    small: Whole, layout: str, tmp_path: Path
) -> None:
    ends = small.frames.ranges[layout]["end"].sort()
    end = int(ends[7])
    with open_part(small.job, tmp_path / "at", CutOptions(time=f"{end}ns:")) as part:
        assert part.frame(layout).height == (ends > end).sum()
    with open_part(small.job, tmp_path / "before", CutOptions(time=f"{end - 1}ns:")) as part:
        assert part.frame(layout).height == (ends > end - 1).sum() > (ends > end).sum()


def test_a_region_that_is_not_there(small: Whole, tmp_path: Path) -> None:
    with pytest.raises(Nsys2prvError, match="no NVTX range"):
        cut_job(small.job, Plan.from_options(Options(cut=CutOptions(region="none"))).cut)
    with pytest.raises(Nsys2prvError, match=f"{STEPS}"):
        cut_job(small.job, Plan.from_options(Options(cut=CutOptions(region="step*:11"))).cut)


@pytest.mark.parametrize(
    ("first", "last"), [(3100, 3900), (3100, 3500), (3060, 3800), (3040, 3801)]
)
def test_nested_ranges_keep_their_order_and_their_ends(small: Whole, first: int, last: int) -> None:
    """Those that the part clips, and end together in it or behind it, begin together there."""
    small.check({"time": f"{first}ns:{last}ns"}, first, last)
