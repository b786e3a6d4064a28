"""Test that a trace, and frames, contain the input: lanes, windows, ranges without an end, samples,
and the order of simultaneous events; in one piece, and in many small ones.
"""

from collections import Counter
from itertools import chain, pairwise
from pathlib import Path

import polars as pl
import pytest
from tools.conversions import convert_and_read
from tools.made_jobs import METRICS, PIECES, STREAMS, THREADS, MadeJob, make_job, set_pieces
from tools.trace import Trace

import nsys2prv
from nsys2prv.conversion.options import CutOptions

KERNELS, PUSHED, STARTED = 63000006, 9600, 9610


@pytest.fixture(params=[*PIECES], autouse=True)
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Store and write in one piece, and in many small ones."""
    set_pieces(monkeypatch, PIECES[request.param])


@pytest.fixture(params=range(2))
def made(request: pytest.FixtureRequest, tmp_path: Path) -> MadeJob:
    return make_job(tmp_path / "r.sqlite", request.param)


def list_by_row(trace: Trace, code: int) -> dict[str, list[tuple[int, int, str]]]:
    """Return begin, end and label of the ranges of a type, by what rows are called."""
    found: dict[str, list[tuple[int, int, str]]] = {}
    for one in trace.list_intervals(code):
        label = trace.get_label(code, one.value)
        found.setdefault(trace.get_row_name(one.row), []).append((one.begin, one.end, label))
    return {row: sorted(ranges) for row, ranges in found.items()}


def test_a_trace_has_what_was_put_in(made: MadeJob, tmp_path: Path) -> None:
    trace, _ = convert_and_read(made.reports, tmp_path / "o.prv")
    assert trace.duration == made.duration
    kernels = list_by_row(trace, KERNELS)
    assert kernels == {f"CUDA-D0.S{one}": sorted(made.kernels[one]) for one in STREAMS}
    for code, put_in in ((PUSHED, made.nested), (STARTED, made.crossing)):
        ranges = list_by_row(trace, code)
        for thread in THREADS:
            # Those that overlap others are on further rows.
            rows = (found for row, found in ranges.items() if row.endswith(f" {thread}"))
            assert sorted(chain.from_iterable(rows)) == sorted(put_in[thread])
    lines = Counter((line.send, line.receive) for line in trace.comms)
    assert lines == Counter((send, begin) for send, begin, _ in made.lines)
    # Each leads to the row that its kernel is on.
    begins = Counter((one.row, one.begin) for one in trace.list_intervals(KERNELS))
    assert Counter((line.receiver, line.receive) for line in trace.comms) == begins
    assert _list_samples(trace) == made.samples


def test_lanes_are_the_first_that_are_free(made: MadeJob, tmp_path: Path) -> None:
    trace, _ = convert_and_read(made.reports, tmp_path / "o.prv")
    lanes: dict[str, dict[tuple[int, int], list[tuple[int, int]]]] = {}
    for one in trace.list_intervals(KERNELS):
        rows = lanes.setdefault(trace.get_row_name(one.row), {})
        rows.setdefault(one.row, []).append((one.begin, one.end))
    for rows in lanes.values():
        ordered = [sorted(spans) for _, spans in sorted(rows.items())]
        assert len(ordered) > 2
        for number, spans in enumerate(ordered):
            assert all(one[1] <= other[0] for one, other in pairwise(spans))
            for begin, _ in spans:
                for before in ordered[:number]:
                    assert any(first <= begin < last for first, last in before)


def _list_samples(trace: Trace) -> dict[str, dict[int, int]]:
    """Return time -> value of each metric, without the zeros that close a trace."""
    found: dict[str, dict[int, int]] = {}
    for code, label in trace.labels.types.items():
        for name in (name for name in METRICS if label.endswith(name)):
            own = [(one.time, one.numbers[code]) for one in trace.samples if code in one.numbers]
            assert len(own) == len({time for time, _ in own})
            found[name] = {time: value for time, value in own if time < trace.duration}
    return found


def test_frames_have_what_was_put_in(made: MadeJob) -> None:
    with nsys2prv.open(made.reports, quiet=True) as job:
        kernels = job.frame("cuda_kernel", "kernel").cast({"kernel": pl.String})
        assert kernels["begin"].is_sorted()
        for stream in STREAMS:
            own = kernels.filter(stream=stream).select("begin", "end", "kernel")
            assert sorted(own.rows()) == sorted(made.kernels[stream])
        for layout, put_in in (("nvtx_pushpop", made.nested), ("nvtx_startend", made.crossing)):
            ranges = job.frame(layout, "range").cast({pl.Categorical: pl.String})
            for thread, expected in put_in.items():
                own = ranges.filter(pl.col("row").str.ends_with(f" {thread}"))
                assert sorted(own.select("begin", "end", "range").rows()) == sorted(expected)
        states = job.frame("thread_state").cast({pl.Categorical: pl.String})
        for thread, expected in made.states.items():
            own = states.filter(pl.col("row").str.ends_with(f" {thread}")).sort("begin")
            assert own["begin"].to_list() == [time for time, _ in expected]
            on_a_cpu = own["state"].str.contains("(?i)running")
            assert on_a_cpu.to_list() == [is_on for _, is_on in expected]
        lines = Counter(job.lines("launch").select("sent", "begin", "end").rows())
        assert lines == made.lines
        (samples,) = job.samples("gpu_metrics")
        for name, column in zip(samples.metrics, samples.values.T, strict=True):
            found = dict(zip(samples.time.tolist(), column.tolist(), strict=True))
            assert found == made.samples[name]


@pytest.mark.parametrize("first", [0, 1000, 1777])
def test_frames_of_a_part_have_what_was_put_in_there(made: MadeJob, first: int) -> None:
    last = 2500
    with nsys2prv.open(made.reports, cut=CutOptions(time=f"{first}ns:{last}ns")) as job:
        frame = job.frame("nvtx_pushpop", "range").cast({pl.Categorical: pl.String})
        expected = [
            (max(begin, first) - first, min(end, last) - first, name)
            for ranges in made.nested.values()
            for begin, end, name in ranges
            if end > first and begin < last
        ]
        assert sorted(frame.select("begin", "end", "range").rows()) == sorted(expected)
