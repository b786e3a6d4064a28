"""Test that a part of a job has the same values as the whole job in that time."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tools.commands import SAMPLES
from tools.cut_figures import Work, add_up, check_figures
from tools.cut_frames import open_part, prepare_job
from tools.cut_jobs import METRIC, PERIOD, STEP, write_small_job

import nsys2prv
from nsys2prv.conversion.job_reader import make_event_reader
from nsys2prv.conversion.options import CutOptions
from nsys2prv.open_job import OpenJob


class Whole:
    """A job, and the activity of its devices."""

    def __init__(self, reports: list[Path], folder: Path) -> None:
        self.folder, self.parts = folder, 0
        (folder / "whole").mkdir()
        self.job = prepare_job(reports, folder / "whole")
        self.opened = OpenJob(self.job)
        self.work = Work(self.opened)

    def check(self, first: int, last: int) -> None:
        """Check the figures of the part from first to last (ns)."""
        self.parts += 1
        folder = self.folder / str(self.parts)
        with open_part(self.job, folder, CutOptions(time=f"{first}ns:{last}ns")) as part:
            check_figures(self.opened, self.work, part, first, last)
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    folder = tmp_path_factory.mktemp("small")
    whole = Whole(write_small_job(folder), folder)
    yield whole
    whole.opened.close()


# The same parts in each run; without looking for simpler ones, which takes minutes.
@settings(max_examples=3, derandomize=True, phases=[Phase.generate])
@given(st.data())
def test_figures_of_a_part(small: Whole, data: st.DataObject) -> None:
    duration = small.opened.duration
    first = data.draw(st.integers(0, duration - STEP))
    small.check(first, data.draw(st.integers(first + STEP // 2, duration)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cluster", "graphs", "machine", "mpi", "training"])
def test_figures_of_parts_of_a_sample(name: str, tmp_path: Path) -> None:
    whole = Whole(sorted((SAMPLES / name).glob("*.sqlite")), tmp_path)
    luck, duration = random.Random(5), whole.opened.duration
    for _ in range(10):
        first = luck.randrange(duration * 9 // 10)
        whole.check(first, luck.randrange(first + duration // 20, duration))
    whole.opened.close()


def test_iterations_of_a_part_are_those_of_the_whole(small: Whole, tmp_path: Path) -> None:
    """GPUs lag half a step behind: what was launched before the part delays its first iteration, and
    that whose work goes on behind it is none.
    """
    begins = small.opened.steady.iteration_begins
    first, last = 3 * STEP + 700, 7 * STEP + 950
    inside = [begin - first for begin in begins if first < begin]
    with open_part(small.job, tmp_path / "part", CutOptions(time=f"{first}ns:{last}ns")) as part:
        steady = part.steady
        assert list(steady.iteration_begins) == inside[:3]
        assert steady.end == inside[3]
        each = part.analyse("iterations")["iterations"].tables["each"].frame
    whole = small.opened.analyse("iterations")["iterations"].tables["each"].frame
    at = begins.index(inside[0] + first)
    columns = [name for name in each.columns if name not in ("iteration", "begin_ns")]
    assert each.select(columns).rows() == whole[at : at + 3].select(columns).rows()


def test_an_iteration_of_a_job_has_one_length_in_all_parts(small: Whole, tmp_path: Path) -> None:
    for number in range(3):
        span = f"{1500 + 333 * number}ns:{8000 + 333 * number}ns"
        with open_part(small.job, tmp_path / str(number), CutOptions(time=span)) as part:
            table = part.analyse("iterations")["iterations"].tables["summary"].frame
        row = table.filter(part="whole iteration").row(0, named=True)
        assert {row[name] for name in ("median_ns", "min_ns", "max_ns")} == {STEP}


@pytest.mark.parametrize("first", [0, 2 * STEP + 100])
def test_iterations_of_ranks_far_apart_are_told_by_their_numbers(
    first: int, tmp_path: Path
) -> None:
    """Rank 1 is more than half a step behind: the part begins with another step of each rank. The
    first step has the number 0.
    """
    whole = Whole(write_small_job(tmp_path, lag=650, hosts=1), tmp_path)
    begins = whole.opened.steady.iteration_begins
    last = 8 * STEP + 500
    with open_part(whole.job, tmp_path / "part", CutOptions(time=f"{first}ns:{last}ns")) as part:
        found = [begin + first for begin in part.steady.iteration_begins]
    # The step in which the part begins, and those that one of the ranks does not end in it, are none.
    assert found == [begin for begin in begins if first + STEP < begin < last - 2 * STEP]
    whole.opened.close()


def test_what_was_not_sampled_is_no_sample_of_a_part(small: Whole, tmp_path: Path) -> None:
    """Samples have a hole from 4000 to 6000 ns. What is in effect when a part begins is written there."""
    for place, (first, last) in enumerate([(3000, 7000), (4500, 7000), (4500, 5500)]):
        cut = CutOptions(time=f"{first}ns:{last}ns", rates={"all": 10**9} if place else {})
        with open_part(small.job, tmp_path / str(place), cut) as part:
            times = [time + first for one in part.samples("gpu_metrics") for time in one.time]
            means = part.analyse("metrics")["metrics"].tables.get("means")
        assert not any(4000 <= time < 6000 and time != first for time in times)
        values = [time // PERIOD % 100 for time in set(times) if time != first]
        if values:
            assert means.frame["metric"].unique().to_list() == [METRIC]
            assert means.frame["min"].min() >= min(values)


def test_stacks_of_a_part_are_those_in_it(small: Whole, tmp_path: Path) -> None:
    whole = small.opened.stacks(while_idle=False)
    first, last = 2000, 5000
    with open_part(small.job, tmp_path / "part", CutOptions(time=f"{first}ns:{last}ns")) as part:
        own = part.stacks(while_idle=False)
    assert own["stack"].unique().to_list() == whole["stack"].unique().to_list()
    assert own["time_ns"].sum() <= 2 * (last - first)
    assert own["time_ns"].sum() == pytest.approx(whole["time_ns"].sum() * 3000 / 10_000, rel=0.1)


def test_looking_at_the_whole_leaves_a_part_as_it_is() -> None:
    """The whole job, with files in the same folder, determines the ends of recordings."""
    with nsys2prv.open(SAMPLES / "graphs", cut=CutOptions(time="10%:90%")) as part:
        own = {run.path for run in part.reader.runs}
        content = {path: path.read_bytes() for path in own}
        make_event_reader(part.prepared.uncut)
        assert {path: path.read_bytes() for path in own} == content


def test_the_number_of_events_is_that_of_the_part(small: Whole, tmp_path: Path) -> None:
    with open_part(small.job, tmp_path / "part", CutOptions(time="2us:4us")) as part:
        assert part.layouts["cuda_kernel"] == part.frame("cuda_kernel").height
        assert part.layouts["cuda_kernel"] < small.opened.layouts["cuda_kernel"]


def test_a_part_that_keeps_its_times_covers_that_time_alone(small: Whole, tmp_path: Path) -> None:
    shares = []
    for keep_time in (False, True):
        cut = CutOptions(time="2us:4us", keep_time=keep_time)
        with open_part(small.job, tmp_path / str(keep_time), cut) as part:
            assert part.coverage.common.length == 2000
            tables = part.analyse("efficiencies", whole=True)["efficiencies"].tables
            shares.append(tables["devices"].frame["compute_share"].to_list())
    assert shares[0] == shares[1]


def list_ranges(job: OpenJob, layout: str, first: int, last: int) -> pl.DataFrame:
    """Return the events of a layout from `first` to `last` (ns), clipped to that time."""
    if layout not in job.layouts:
        return pl.DataFrame(schema={"begin": pl.Int64, "end": pl.Int64, "rank": pl.Int64})
    inside = (pl.col("end") > first) & (pl.col("begin") < last)
    frame = job.frame(layout, labels=False).filter(inside).cast({pl.Categorical: pl.String})
    return frame.with_columns(pl.col("begin").clip(first), pl.col("end").clip(None, last))


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [("cluster", 854_000_000, 859_000_000), ("machine", 567_500_000, 571_000_000)],
)
def test_hosts_are_useful_outside_of_calls(name: str, first: int, last: int) -> None:
    cut = CutOptions(time=f"{first}ns:{last}ns")
    with nsys2prv.open(SAMPLES / name) as whole, nsys2prv.open(SAMPLES / name, cut=cut) as part:
        hosts = part.analyse("efficiencies")["efficiencies"].tables["hosts"].frame
        main = whole.rows.filter(pl.col("kind") == "host").unique("rank", keep="first")
        for rank, row in main.sort("rank").select("rank", "row").rows():
            in_mpi, in_api = (
                [
                    span
                    for layout in whole.layouts
                    if layout.startswith(begins)
                    for span in list_ranges(whole, layout, first, last)
                    .filter(rank=rank, row=row)
                    .select("begin", "end")
                    .rows()
                ]
                for begins in ("mpi_", "cuda_api")
            )
            figures = hosts.row(rank, named=True)
            outside = figures.get("outside_mpi_ns", last - first)
            assert outside == last - first - add_up(in_mpi)
            assert figures["useful_ns"] == last - first - add_up(in_mpi + in_api)
