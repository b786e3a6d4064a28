"""Test that a trace for Perfetto contains the input: in one piece, in many small ones, and for a
part.
"""

from collections import Counter
from pathlib import Path

import pytest
from tools.exports import make_export, make_kernel, make_nvtx_range, make_strings
from tools.made_jobs import METRICS, PIECES, MadeJob, make_job, set_pieces
from tools.perfetto_reader import PerfettoTrace, read_perfetto

from nsys2prv import Options, convert
from nsys2prv.conversion.options import CutOptions


@pytest.fixture(params=[*PIECES], autouse=True)
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Store and write in one piece, and in many small ones."""
    set_pieces(monkeypatch, PIECES[request.param])


@pytest.fixture(params=range(2))
def made(request: pytest.FixtureRequest, tmp_path: Path) -> MadeJob:
    return make_job(tmp_path / "r.sqlite", request.param)


def convert_and_read(made: MadeJob, folder: Path, **cut: object) -> PerfettoTrace:
    convert(made.reports, folder / "o.pftrace", Options(cut=CutOptions(**cut)))
    return read_perfetto(folder / "o.pftrace")


def list_slices(trace: PerfettoTrace, category: str, zero: int) -> list[tuple[int, int, str]]:
    """Return begin, end and name of the slices of a category, in ns after `zero`."""
    return sorted(
        (one.begin - zero, one.begin + one.duration - zero, one.name)
        for one in trace.slices
        if one.category == category
    )


def list_put_in(made: MadeJob) -> dict[str, list[tuple[int, int, str]]]:
    """Return the events put in, by category."""
    groups = {"cuda_kernel": made.kernels, "nvtx_pushpop": made.nested}
    groups["nvtx_startend"] = made.crossing
    return {
        name: sorted(one for ranges in group.values() for one in ranges)
        for name, group in groups.items()
    }


def find_zero(trace: PerfettoTrace) -> int:
    """Return when the trace begins (ns), with the range of the whole job."""
    (whole,) = (one for one in trace.slices if one.name == "all")
    return whole.begin


def test_slices_are_what_was_put_in(made: MadeJob, tmp_path: Path) -> None:
    trace = convert_and_read(made, tmp_path)
    zero = find_zero(trace)
    for category, expected in list_put_in(made).items():
        assert list_slices(trace, category, zero) == expected


def test_a_state_lasts_until_the_next(made: MadeJob, tmp_path: Path) -> None:
    trace = convert_and_read(made, tmp_path)
    expected = [
        (begin, end)
        for changes in made.states.values()
        for (begin, _), end in zip(
            changes, [*(time for time, _ in changes[1:]), made.duration], strict=True
        )
    ]
    found = list_slices(trace, "thread_state", find_zero(trace))
    assert [one[:2] for one in found] == sorted(expected)


def test_counters_are_what_was_sampled(made: MadeJob, tmp_path: Path) -> None:
    trace = convert_and_read(made, tmp_path)
    zero, found = find_zero(trace), {}
    for track, samples in trace.counters.items():
        own = [(time - zero, value) for time, value in samples]
        assert own == sorted(own)
        found[trace.tracks[track][0]] = dict(own[:-1] if own[-1][0] == made.duration else own)
    expected = {name.split(" [")[0]: values for name, values in made.samples.items()}
    found = {
        next((name for name in expected if name in label), label): values
        for label, values in found.items()
    }
    assert found == expected
    assert len(found) == len(METRICS)


def test_flows_join_calls_with_their_kernels(made: MadeJob, tmp_path: Path) -> None:
    trace = convert_and_read(made, tmp_path)
    zero, found = find_zero(trace), Counter()
    for _, first, second in trace.flows:
        call, kernel = trace.slices[first], trace.slices[second]
        assert (call.category, kernel.category) == ("cuda_api", "cuda_kernel")
        found[call.begin - zero, kernel.begin - zero, kernel.begin + kernel.duration - zero] += 1
    assert found == made.lines


def test_slices_of_a_track_nest(made: MadeJob, tmp_path: Path) -> None:
    """Paraver has rows, Perfetto tracks: of none two slices cross."""
    trace = convert_and_read(made, tmp_path)
    spans: dict[int, list[tuple[int, int]]] = {}
    for one in trace.slices:
        if one.duration:
            spans.setdefault(one.track, []).append((one.begin, one.begin + one.duration))
    assert len(spans) > 6
    for own in spans.values():
        ends: list[int] = []
        for begin, end in sorted(own, key=lambda span: (span[0], -span[1])):
            while ends and ends[-1] <= begin:
                ends.pop()
            assert not ends or end <= ends[-1]
            ends.append(end)


@pytest.mark.parametrize("first", [0, 1003])
def test_slices_of_a_part_are_those_in_it(made: MadeJob, first: int, tmp_path: Path) -> None:
    last = 2501
    trace = convert_and_read(made, tmp_path, time=f"{first}ns:{last}ns", keep_time=True)
    zero = find_zero(trace) - first
    for category, put_in in list_put_in(made).items():
        expected = [
            (max(begin, first), min(end, last), name)
            for begin, end, name in put_in
            if end > first and begin < last
        ]
        assert list_slices(trace, category, zero) == sorted(expected)


def test_arguments_are_the_attributes(tmp_path: Path) -> None:
    """Of each slice its own, where only some have one."""
    kernels = [
        make_kernel(10 * number, 10 * number + 5, correlationId=number or None, gridX=number + 1)
        for number in range(9)
    ]
    ranges = [make_nvtx_range(0, 90, "step 7"), make_nvtx_range(20, 40, "plain")]
    tables = {"CUPTI_ACTIVITY_KIND_KERNEL": kernels, "NVTX_EVENTS": ranges}
    report = make_export(tmp_path / "r.sqlite", tables | {"StringIds": make_strings("k")})
    cut = CutOptions(fields={"kernels": ("grid_x", "correlation")})
    convert([report], tmp_path / "o.pftrace", Options(cut=cut))
    trace = read_perfetto(tmp_path / "o.pftrace")
    own = sorted(one for one in trace.slices if one.category == "cuda_kernel")
    assert [one.arguments.get("grid_x") for one in own] == [*range(1, 10)]
    assert [one.arguments.get("correlation") for one in own] == [None, *range(1, 9)]
    numbers = {
        one.name: one.arguments.get("number") for one in trace.slices if "nvtx" in one.category
    }
    assert numbers == {"step": 7, "plain": None}


def test_a_trace_of_samples_alone(tmp_path: Path) -> None:
    tables = {
        "GPU_METRICS": [
            {"timestamp": time, "typeId": 1, "metricId": 1, "value": time} for time in (10, 20, 30)
        ],
        "TARGET_INFO_GPU_METRICS": [{"typeId": 1, "metricId": 1, "metricName": METRICS[0]}],
    }
    convert([make_export(tmp_path / "r.sqlite", tables)], tmp_path / "o.pftrace")
    (samples,) = read_perfetto(tmp_path / "o.pftrace").counters.values()
    assert [value for _, value in samples][:3] == [10, 20, 30]
