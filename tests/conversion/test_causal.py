"""--causal through the whole conversion: generated jobs on clocks that UTC leaves wrong by
milliseconds, and cases by hand.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import yaml
from events.test_mpi import make_init_call, make_mpi_call, make_p2p_call, write_rank
from samples import Options as Job
from samples import generate
from tools.conversions import convert_and_read
from tools.exports import make_global_tid
from tools.slow import mark_slow_except
from tools.trace import Trace

from nsys2prv import Options, Summary, convert
from nsys2prv.cli import main

KERNELS, CALLS, MARKS = 63000006, 63000000, 9003
COLLECTIVE, NUMBER = 9540, 9541
#: What is transferred once all ranks have begun: how many there are depends on the clocks.
TRANSFER, TRANSFERS = 9547, (9545, 9546, 9547)
JOBS = {
    "NCCL": Job(
        ranks=6,
        hosts=3,
        steps=8,
        layers=1,
        pace_ms=20,
        seed=31,
        clock_offset_range_ms=8.0,
        clock_drift_range_ppm=50.0,
        end_jitter_us=3.0,
        waited_us=(0.0, 17.0),
    ),
    "MPI and NCCL": Job(
        ranks=4,
        hosts=2,
        steps=8,
        layers=1,
        pace_ms=20,
        seed=32,
        mpi=True,
        osrt=20,
        clock_offset_range_ms=8.0,
    ),
    "MPI": Job(
        ranks=4,
        hosts=4,
        steps=8,
        layers=1,
        pace_ms=20,
        seed=33,
        mpi=True,
        nccl=False,
        clock_offset_range_ms=8.0,
        row_order="shuffled",
    ),
}


class ReorderedJob:
    """A generated job, by UTC as it is and with ranks moved."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.truth = folder, generate(folder, JOBS[name])
        self.reports = sorted(folder.glob("rank*.sqlite"), key=lambda path: int(path.stem[4:]))
        self.before, _ = convert_and_read(self.reports, folder / "utc.prv", align="utc", jobs=1)
        self.after, self.summary = convert_and_read(
            self.reports, folder / "out.prv", align="utc", causal=True, jobs=1
        )
        self.record = yaml.safe_load((folder / "out.clock.yaml").read_text())

    def convert(self, name: str, **options: object) -> Summary:
        return convert(self.reports, self.folder / name, Options(**options))


@pytest.fixture(scope="module", params=mark_slow_except(JOBS), ids=list(JOBS))
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ReorderedJob:
    return ReorderedJob(tmp_path_factory.mktemp("job"), request.param)


def list_backward_lines(trace: Trace) -> int:
    """Return lines that end before they begin."""
    return sum(line.receive < line.send for line in trace.comms)


def list_separate_collectives(trace: Trace) -> int:
    """Return NCCL collectives of which a kernel ends before another one begins."""
    intervals = defaultdict(list)
    for item in trace.list_intervals(COLLECTIVE):
        if NUMBER not in item.others:
            continue  # a kernel that sends and receives
        intervals[item.others[NUMBER]].append((item.begin, item.end))
    return sum(
        min(end for _, end in items) < max(begin for begin, _ in items)
        for items in intervals.values()
    )


def _drop_measures(trace: Trace) -> int:
    """Return the lines of a trace without what depends on the order: samples, of which several may
    be one line, messages, kernels whose messages are all matched, and transfers, which only
    collectives in order have.
    """
    exchanges = [item for item in trace.list_intervals(COLLECTIVE) if NUMBER not in item.others]
    ranges = len(trace.list_intervals(TRANSFER)) + len(exchanges)
    return trace.lines - len(trace.samples) - len(trace.comms) - 2 * ranges


@pytest.mark.slow
def test_no_message_goes_back_in_time_and_no_kernel_ends_before_its_collective_begins(
    job: ReorderedJob,
) -> None:
    assert list_backward_lines(job.before) + list_separate_collectives(job.before) > 20, (
        "nothing to put in order"
    )
    assert (list_backward_lines(job.after), list_separate_collectives(job.after)) == (0, 0)


@pytest.mark.slow
def test_every_record_is_still_there_in_its_place(job: ReorderedJob) -> None:
    """As many of every type on every row, in the same order and nesting, each as it was but for its
    times.
    """
    assert _drop_measures(job.after) == _drop_measures(job.before)
    # Times that agree settle which send belongs to which receive.
    assert len(job.after.comms) >= len(job.before.comms)
    assert set(job.after.events) == set(job.before.events)
    assert job.after.deepest == job.before.deepest
    for code in job.before.events:
        rows = []
        for trace in (job.before, job.after):
            # The order in which ranges end and that in which they begin tell the nesting.
            ends = defaultdict(list)
            for item in trace.list_intervals(code):
                ends[item.row].append(item)
            rows.append(
                {
                    row: (
                        [item.value for item in items],
                        [item.value for item in sorted(items, key=lambda item: item.begin)],
                    )
                    for row, items in ends.items()
                }
            )
        if code not in (COLLECTIVE, *TRANSFERS):
            assert rows[0] == rows[1]


def test_times_of_a_rank_are_stretched_by_a_tenth_or_shortened_by_a_hundredth_at_most(
    job: ReorderedJob,
) -> None:
    """Where nothing stands in the way of growing slowly, as it does before a begin that must
    precede something: only few places.
    """
    steep = 0
    for task in range(1, len(job.reports) + 1):
        times = [
            np.sort(
                [
                    time
                    for item in trace.list_intervals(CALLS)
                    if item.row[0] == task
                    for time in (item.begin, item.end)
                ]
            )
            for trace in (job.before, job.after)
        ]
        assert len(times[0]) == len(times[1]) > 100
        moved, passed = np.diff(times[1] - times[0]), np.diff(times[0])
        assert (moved >= -passed / 100 - 2).all()
        steep += int((moved > passed / 10 + 2).sum())
    assert steep < 0.2 * sum(len(trace.list_intervals(CALLS)) for trace in (job.before,))


def test_what_was_done_is_said_in_summary_trace_and_clock_file(job: ReorderedJob) -> None:
    causal = job.record["causal"]
    assert causal["ranks"] == len(job.reports)
    assert (
        causal["before"]["checked"]
        == causal["after"]["checked"]
        >= causal["before"]["violated"]
        > 20
    )
    assert causal["after"]["violated"] == 0
    moves = causal["moved"]
    assert set(moves) < {f"rank {rank}" for rank in range(len(job.reports))}
    most = max(moves, key=lambda name: moves[name]["largest_ns"])
    largest = moves[most]["largest_ns"]
    offsets = [host["offset_ns"] for host in job.truth["hosts"]]
    assert 1_000_000 < largest < max(offsets) - min(offsets) + 1_000_000
    clock_text = "\n".join(job.summary.clock_lines)
    assert (
        f"{causal['before']['violated']:,} of {causal['before']['checked']:,} violated"
        in clock_text
    )
    assert f"0 of {causal['after']['checked']:,} violated after" in clock_text
    assert (
        f"{len(moves)} of {len(job.reports)} ranks moved, by up to {largest / 1000:,.1f} us ({most})"
        in clock_text
    )
    comments = [
        line for line in (job.folder / "out.prv").read_text().splitlines() if line.startswith("#")
    ]
    assert any("ranks moved, by up to" in line for line in comments)


def test_a_clock_file_does_not_move_ranks_again(job: ReorderedJob) -> None:
    job.convert("again.prv", align=str(job.folder / "out.clock.yaml"))
    again, before = (
        (job.folder / name).read_bytes().splitlines() for name in ("again.prv", "utc.prv")
    )
    assert [line for line in again if not line.startswith(b"# ")] == before
    assert "causal" not in yaml.safe_load((job.folder / "again.clock.yaml").read_text())


@pytest.mark.slow
def test_neither_processes_nor_the_order_of_reports_matter(
    job: ReorderedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsys2prv.conversion.opened_reports.SMALL_JOB_ROWS", 0)
    convert(job.reports[::-1], job.folder / "two.prv", Options(align="utc", causal=True, jobs=2))
    for ending in ("prv", "clock.yaml"):
        assert (job.folder / f"two.{ending}").read_bytes() == (
            job.folder / f"out.{ending}"
        ).read_bytes()


@pytest.mark.slow
def test_windows_do_not_matter(job: ReorderedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsys2prv.store.windows.WINDOW_RECORDS", 500)
    monkeypatch.setattr("nsys2prv.store.windows.RECORDS_PER_RUN", 1)
    job.convert("many.prv", align="utc", causal=True)
    assert (job.folder / "many.prv").read_bytes() == (job.folder / "out.prv").read_bytes()


@pytest.mark.slow
def test_after_alignment_little_is_left_to_move(job: ReorderedJob) -> None:
    job.convert("aligned.prv", causal=True)
    moves = (
        yaml.safe_load((job.folder / "aligned.clock.yaml").read_text())
        .get("causal", {})
        .get("moved", {})
    )
    assert all(move["largest_ns"] < 20_000 for move in moves.values())


@pytest.mark.slow
def test_nothing_to_do_changes_nothing(tmp_path: Path) -> None:
    generate(
        tmp_path,
        Job(
            ranks=4,
            hosts=2,
            steps=4,
            layers=1,
            seed=34,
            mpi=True,
            clock_offsets_ms=(0.0, 0.0),
            clock_drifts_ppm=(0.0, 0.0),
        ),
    )
    reports = sorted(tmp_path.glob("rank*.sqlite"))
    for align in ("auto", "utc"):
        for causal in (False, True):
            summary = convert(
                reports, tmp_path / f"{align}{causal}.prv", Options(align=align, causal=causal)
            )
        assert "no rank moved" in summary.text(verbose=True)
        assert (tmp_path / f"{align}True.prv").read_bytes() == (
            tmp_path / f"{align}False.prv"
        ).read_bytes()
    assert (tmp_path / "autoTrue.clock.yaml").read_bytes() == (
        tmp_path / "autoFalse.clock.yaml"
    ).read_bytes()
    assert not (tmp_path / "utcTrue.clock.yaml").exists()


def test_one_report_alone(tmp_path: Path) -> None:
    generate(tmp_path, Job(ranks=1, hosts=1, steps=2, layers=1, seed=35))
    summary = convert([tmp_path / "rank0.sqlite"], tmp_path / "o.prv", Options(causal=True))
    assert "0 of 0 violated before, 0 of 0 violated after; no rank moved" in summary.text(
        verbose=True
    )


@pytest.mark.slow
def test_a_message_by_hand_and_marks_where_the_shift_fades(tmp_path: Path) -> None:
    """Received at 50 us though sent at 100 us. Marks, which last 1 ns, every 2 ns: wherever the
    shift fades by 1 ns, one is hit.
    """
    marks = [
        (
            "NVTX_EVENTS",
            {
                "start": time,
                "end": None,
                "eventType": 34,
                "text": "m",
                "globalTid": make_global_tid(1, 1),
            },
        )
        for time in range(50_101, 90_101, 2)
    ]
    reports = [
        write_rank(
            tmp_path / "0.sqlite",
            0,
            [make_init_call(), make_p2p_call("MPI_Send", 100_000, 100_100, 1)],
        ),
        write_rank(
            tmp_path / "1.sqlite",
            1,
            [
                make_init_call(),
                make_p2p_call("MPI_Recv", 40_000, 50_000, 0),
                *marks,
                make_mpi_call("MPI_OTHER_EVENTS", "MPI_Finalize", 6_000_000, 6_000_100),
            ],
        ),
    ]
    trace, _ = convert_and_read(reports, tmp_path / "o.prv", align="utc", causal=True)
    (line,) = trace.comms
    assert (line.send, line.receive) == (100_000, 100_000)
    result = sorted(
        (item.begin, item.end)
        for code in trace.events
        for item in trace.list_intervals(code)
        if trace.get_label(code, item.value) == "m"
    )
    assert len(result) == len(marks)
    expected = [row["start"] + 50_000 - (row["start"] - 50_000) / 100 for _, row in marks]
    assert np.abs(np.array([begin for begin, _ in result]) - expected).max() <= 2
    assert {end - begin for begin, end in result} <= {1, 2}
    # When the shift has faded, 5 ms later, times are as they were.
    assert any(
        (item.begin, item.end) == (6_000_000, 6_000_100)
        for code in trace.events
        for item in trace.list_intervals(code)
    )


def test_what_cannot_be_put_in_order_is_a_warning(tmp_path: Path) -> None:
    """Each rank receives before it sends what the other has received already."""
    reports = [
        write_rank(
            tmp_path / f"{rank}.sqlite",
            rank,
            [
                make_init_call(),
                make_p2p_call("MPI_Recv", 1_000, 2_000, 1 - rank),
                make_p2p_call("MPI_Send", 5_000, 6_000, 1 - rank),
            ],
        )
        for rank in range(2)
    ]
    trace, summary = convert_and_read(reports, tmp_path / "o.prv", align="utc", causal=True)
    assert any("no order of the ranks' events was found" in warning for warning in summary.warnings)
    assert list_backward_lines(trace) == 2


def test_the_clock_command_tells_of_it(
    job: ReorderedJob, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["clock", str(job.folder / "out.clock.yaml")]) == 0
    output = capsys.readouterr().out
    assert f"{len(job.record['causal']['moved'])} of {len(job.reports)} ranks moved" in output


@pytest.mark.parametrize(
    "section",
    [
        "5",
        "[1]",
        "{ranks: many}",
        "{ranks: 2, moved: [1], before: 3}",
        "{ranks: 2, moved: {rank 0: 5, rank 1: {largest_ns: much}}}",
    ],
)
def test_a_section_that_is_none_of_ours_is_one_line(
    section: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "my.clock.yaml"
    file.write_text(f"hosts: {{n1: {{offset_ns: 5}}}}\ncausal: {section}\n")
    assert main(["clock", str(file)]) == 1
    error = capsys.readouterr().err
    assert "my.clock.yaml: not a clock file: " in error
    assert "$.causal" in error
    assert error.count("\n") == 1


def test_local_times_as_they_are_are_not_moved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["--align", "none", "--causal", str(tmp_path / "r.sqlite"), str(tmp_path / "o.prv")])
        == 2
    )
    assert "--causal moves ranks" in capsys.readouterr().err
