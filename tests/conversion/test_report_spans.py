"""Test that traces of the same reports have the same timeline, whatever kinds of events are
selected.
"""

from pathlib import Path

import pytest
from tools.conversions import convert_and_read, list_labelled_intervals
from tools.exports import (
    PID,
    make_call,
    make_export,
    make_global_pid,
    make_global_tid,
    make_kernel,
    make_strings,
)

from nsys2prv import Options, convert
from nsys2prv._util.errors import NothingToWrite

OVERHEAD = 69201100
SAMPLES = Path(__file__).parents[2] / "sample_reports"


def read_header_and_events(prv: Path, valued: bool = True) -> tuple[bytes, set[bytes]]:
    """Return the duration in the header, and time, type and value of every event, or the times
    alone where types and values depend on what else was read.
    """
    head, *lines = prv.read_bytes().splitlines()
    events = set()
    for line in lines:
        if line.startswith(b"2:"):
            _, _, _, _, _, time, *pairs = line.split(b":")
            events |= {
                b":".join((time, code, value)) if valued else time
                for code, value in zip(pairs[::2], pairs[1::2], strict=True)
            }
    return head.split(b"):", 1)[1].split(b"_", 1)[0], events


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cluster", "graphs", "machine", "training"])
def test_samples_have_one_timeline(name: str, tmp_path: Path) -> None:
    reports = sorted((SAMPLES / name).glob("rank*.sqlite"))
    convert(reports, tmp_path / "all.prv", Options(metadata=False))
    for kinds in (
        ("cuda_api_trace",),
        ("osrt",),
        ("kernels",),
        ("nvtx_pushpop_trace",),
        ("profiler",),
    ):
        valued = kinds[0] in ("cuda_api_trace", "osrt")
        duration, everything = read_header_and_events(tmp_path / "all.prv", valued)
        output = tmp_path / f"{kinds[0]}.prv"
        convert(reports, output, Options(kinds=kinds, metadata=False))
        mine, events = read_header_and_events(output, valued)
        assert mine == duration
        assert len(events) > 10
        assert events <= everything


def make_profiled_report(folder: Path, overheads: list[tuple[int, int]]) -> Path:
    """Write a report of a kernel from 3,200 to 4,000 ns, its call from 3,000 ns on, and overheads
    of the profiler.
    """
    overhead = {"globalTid": make_global_tid(PID), "nameId": 1, "overheadType": 1}
    rows = {
        "CUPTI_ACTIVITY_KIND_RUNTIME": [make_call(3_000, 3_100, 7)],
        "CUPTI_ACTIVITY_KIND_KERNEL": [make_kernel(3_200, 4_000, correlationId=7)],
        "PROFILER_OVERHEAD": [{"start": a, "end": b, **overhead} for a, b in overheads],
        "StringIds": make_strings("overhead", "cudaLaunchKernel_v7000"),
    }
    return make_export(folder / "r.sqlite", rows)


def test_the_profilers_rows_alone_lie_where_they_do_beside_others(tmp_path: Path) -> None:
    """One overhead lies before all else, one begins there, one ends after all else."""
    path = make_profiled_report(tmp_path, [(500, 900), (2_800, 3_300), (3_900, 9_000)])
    everything, whole = convert_and_read([path], tmp_path / "all.prv")
    alone, summary = convert_and_read([path], tmp_path / "o.prv", kinds=("profiler",))
    assert summary.duration == whole.duration == 1_000
    assert list_labelled_intervals(alone, OVERHEAD) == list_labelled_intervals(everything, OVERHEAD)
    assert [times for _, *times in list_labelled_intervals(alone, OVERHEAD)] == [
        [0, 300],
        [900, 1_000],
    ]
    assert sum(summary.dropped.values()) == sum(whole.dropped.values()) == 1


def test_nothing_is_written_of_profilers_rows_outside_the_program(tmp_path: Path) -> None:
    path = make_profiled_report(tmp_path, [(500, 900)])
    with pytest.raises(NothingToWrite, match="1 before the first"):
        convert([path], tmp_path / "o.prv", Options(kinds=("profiler",)))
    assert not (tmp_path / "o.prv").exists()


def test_tables_without_times_do_not_change_the_timeline(tmp_path: Path) -> None:
    """Older exports have records of CUDA events without times. They have the times of their calls."""
    rows = {
        "CUPTI_ACTIVITY_KIND_RUNTIME": [make_call(3_000, 3_100, 7), make_call(3_200, 3_300, 8)],
        "CUPTI_ACTIVITY_KIND_KERNEL": [make_kernel(3_200, 4_000, correlationId=7)],
        "CUPTI_ACTIVITY_KIND_CUDA_EVENT": [
            {"globalPid": make_global_pid(PID), "deviceId": 0, "contextId": 1, "streamId": 7}
            | {"correlationId": 8, "eventId": 1}
        ],
        "StringIds": make_strings("", "cudaLaunchKernel_v7000"),
    }
    report = make_export(tmp_path / "r.sqlite", rows)
    kernels = convert([report], tmp_path / "o.prv", Options(kinds=("kernels",)))
    assert kernels.duration == 1_000
    assert kernels.events
