"""Test the critical path: exact on reports made by hand; without gaps, and as long as the job, on
samples.
"""

import sqlite3
from collections import Counter
from itertools import pairwise
from pathlib import Path

import polars as pl
import pytest
from tools.conversions import convert_and_read
from tools.exports import make_call, make_export, make_global_pid, make_kernel, make_strings
from tools.trace_reader import Trace

import nsys2prv
from nsys2prv._util.native import NEEDS_CORE, core
from nsys2prv.conversion import job_reader

pytestmark = pytest.mark.skipif(core is None, reason="the replay needs the compiled core")
SAMPLES = Path(__file__).parents[2] / "sample_reports"
CAUSE = 69110000


@pytest.mark.parametrize(
    "name", ["graphs", "mpi", pytest.param("training", marks=pytest.mark.slow)]
)
def test_the_pieces_of_samples_follow_each_other(name: str, tmp_path: Path) -> None:
    reports = sorted((SAMPLES / name).glob("*.sqlite"))
    trace, summary = convert_and_read(reports, tmp_path / "o.prv", demanded=("critical_path",))
    pieces = list_causes(trace)
    assert [pieces[0][0], pieces[-1][1]] == [0, summary.duration]
    assert all(one[1] == other[0] for one, other in pairwise(pieces))
    assert len(pieces) == summary.events["critical_path"]


def test_the_path_of_a_report(tmp_path: Path) -> None:
    """From rows to the trace: a call, the kernel that it launches, the wait for that."""
    names = make_strings("k", "cudaLaunchKernel_v7000", "cudaDeviceSynchronize_v3020")
    report = make_export(
        tmp_path / "r.sqlite",
        {
            "CUPTI_ACTIVITY_KIND_RUNTIME": [
                make_call(1_000, 1_200, 7),
                make_call(1_500, 4_000, 8, nameId=3),
            ],
            "CUPTI_ACTIVITY_KIND_KERNEL": [make_kernel(1_400, 3_900, correlationId=7)],
            "StringIds": names,
        },
    )
    trace, summary = convert_and_read([report], tmp_path / "o.prv", demanded=("critical_path",))
    assert list_causes(trace) == [
        (0, 200, "CUDA call"),
        (200, 400, "Launch latency"),
        (400, 2_900, "Kernel"),
        (2_900, 3_000, "Return from synchronisation"),
    ]
    assert Counter(summary.events)["critical_path"] == 4


def test_time_counts_for_the_gpu_while_it_works(tmp_path: Path) -> None:
    """The second kernel waits for its host alone; but until the first one ends, a GPU works."""
    names = make_strings("k", "cudaLaunchKernel_v7000", "other")
    report = make_export(
        tmp_path / "r.sqlite",
        {
            "CUPTI_ACTIVITY_KIND_RUNTIME": [make_call(1_000, 1_200, 7), make_call(7_000, 7_200, 8)],
            "CUPTI_ACTIVITY_KIND_KERNEL": [
                make_kernel(1_400, 5_000, correlationId=7),
                make_kernel(7_500, 9_000, correlationId=8, demangledName=3, shortName=3),
            ],
            "StringIds": names,
        },
    )
    with nsys2prv.open([report], quiet=True) as job:
        result = job.analyse("findings")["findings"]
        assert result.tables["path"].frame["time_ns"].sum() == job.duration
    path = result.tables["path"].frame.select("part", "name", "time_ns").rows()
    assert sorted(path) == [
        ("call", "cudaLaunchKernel", 200),
        ("exit", "", 0),
        ("host", "between cudaLaunchKernel calls", 2_000),
        ("kernel", "k", 3_600),
        ("kernel", "other", 1_500),
        ("latency", "cudaLaunchKernel", 300),
        ("start", "in CUDA API calls", 200),
        ("start", "outside recorded calls", 200),
    ]
    work = result.tables["work"].frame.select("part", "name", "follows", "count", "time_ns").rows()
    assert ("kernel", "other", "k", 1, 1_500) in work
    assert ("kernel", "k", None, 1, 3_600) in work


def test_calls_of_mpi_are_counted_once(tmp_path: Path) -> None:
    """A call that waits for one or several transfers is one call, as in the reports."""
    folder = SAMPLES / "mpi"
    recorded: Counter[tuple[str, str]] = Counter()
    for path in sorted(folder.glob("*.sqlite")):
        with sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True) as connection:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
            for table in tables & {
                f"MPI_{one}_EVENTS" for one in ("P2P", "COLLECTIVES", "START_WAIT")
            }:
                rows = connection.execute(
                    f"SELECT value, globalTid FROM {table} JOIN StringIds ON id = textId GROUP BY value, globalTid, start, end"
                )
                recorded.update(name for name, _ in rows)
    with nsys2prv.open(folder, quiet=True) as job:
        frame = job.analyse("findings")["findings"].tables["work"].frame
    counted = dict(frame.filter(part="mpi").group_by("name").agg(pl.col("count").sum()).rows())
    named = {name: count for name, count in counted.items() if name in recorded}
    assert named
    assert not {name: count for name, count in named.items() if count > recorded[name]}


def list_causes(trace: Trace) -> list[tuple[int, int, str]]:
    """Return begin, end and label of the pieces of the critical path, by begin."""
    return sorted(
        (item.begin, item.end, trace.get_label(CAUSE, item.value))
        for item in trace.list_intervals(CAUSE)
    )


def make_stream_events(waiting_stream: int | None) -> dict:
    """Return a kernel on stream 7 and an event recorded after it, for which stream 13 waits before
    its own kernel.

    A kernel on stream 21 ends last before that one begins, and nothing waits for it.
    """
    own = {"deviceId": 0, "contextId": 1, "globalPid": make_global_pid(), "eventId": 5}
    wait = {"start": 1_152, "end": 1_158, "streamId": waiting_stream, "syncType": 2, **own}
    return {
        "CUPTI_ACTIVITY_KIND_RUNTIME": [
            make_call(1_000, 1_100, 1),
            make_call(1_120, 1_130, 2, nameId=3),
            make_call(1_150, 1_160, 3, nameId=4),
            make_call(1_200, 1_210, 4),
            make_call(1_250, 1_260, 5),
            make_call(1_300, 12_100, 6, nameId=5),
        ],
        "CUPTI_ACTIVITY_KIND_KERNEL": [
            make_kernel(1_400, 9_000, correlationId=1),
            make_kernel(9_100, 12_000, correlationId=4, streamId=13),
            make_kernel(1_500, 9_050, correlationId=5, streamId=21),
        ],
        "CUPTI_ACTIVITY_KIND_CUDA_EVENT": [{"streamId": 7, "correlationId": 2, **own}],
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": [{"correlationId": 3, **wait}],
        "StringIds": make_strings(
            "k",
            "cudaLaunchKernel_v7000",
            "cudaEventRecord_v3020",
            "cudaStreamWaitEvent_v3020",
            "cudaDeviceSynchronize_v3020",
        ),
    }


def test_events_lead_from_the_wait_to_the_record(tmp_path: Path) -> None:
    report = make_export(tmp_path / "r.sqlite", make_stream_events(13))
    trace, _ = convert_and_read([report], tmp_path / "o.prv", demanded=("critical_path",))
    assert list_causes(trace) == [
        (0, 100, "CUDA call"),
        (100, 400, "Launch latency"),
        (400, 8_000, "Kernel"),
        (8_000, 8_100, "Queued on the device"),
        (8_100, 11_000, "Kernel"),
        (11_000, 11_100, "Return from synchronisation"),
    ]


def test_a_wait_of_an_unknown_stream_leads_nowhere(tmp_path: Path) -> None:
    """As older exports have it: then the kernel comes from its launch."""
    report = make_export(tmp_path / "r.sqlite", make_stream_events(0xFFFFFFFF))
    trace, _ = convert_and_read([report], tmp_path / "o.prv", demanded=("critical_path",))
    kernels = [
        (item.begin, item.end)
        for item in trace.list_intervals(CAUSE)
        if trace.get_label(CAUSE, item.value) == "Kernel"
    ]
    assert kernels == [(8_100, 11_000)]


def test_it_is_written_on_demand_alone(tmp_path: Path) -> None:
    report = make_export(
        tmp_path / "r.sqlite",
        {"CUPTI_ACTIVITY_KIND_KERNEL": [make_kernel(1_400, 3_900)], "StringIds": make_strings("k")},
    )
    trace, _ = convert_and_read([report], tmp_path / "o.prv")
    assert not trace.list_intervals(CAUSE)


def test_without_the_compiled_core_it_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_reader, "core", None)
    report = make_export(
        tmp_path / "r.sqlite",
        {"CUPTI_ACTIVITY_KIND_KERNEL": [make_kernel(1_400, 3_900)], "StringIds": make_strings("k")},
    )
    trace, summary = convert_and_read([report], tmp_path / "o.prv", demanded=("critical_path",))
    assert not trace.list_intervals(CAUSE)
    assert f"the critical path {NEEDS_CORE}" in summary.warnings
