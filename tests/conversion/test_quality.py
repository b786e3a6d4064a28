"""Test capture quality: missing data of reports is reported once, in both commands, and
correctly."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from tools.corpus import EXPORTS, UNSET
from tools.exports import (
    KERNEL,
    MEMCPY,
    RUNTIME,
    Row,
    make_call,
    make_export,
    make_global_pid,
    make_global_tid,
    make_kernel,
    make_strings,
    query_export,
)

import nsys2prv
from nsys2prv._util.errors import NothingToWrite
from nsys2prv.cli import main
from nsys2prv.conversion.options import CutOptions

OTHER = 777
LAUNCH, BEGIN, END, GRAPH = 2, 3, 4, 5
NAMES = make_strings(
    "kern",
    "cudaLaunchKernel_v7000",
    "cudaStreamBeginCapture",
    "cudaStreamEndCapture",
    "cudaGraphLaunch",
)


def call(at: int, correlation: int, name: int = LAUNCH, **columns: object) -> Row:
    return make_call(at, at + 4, correlation, nameId=name, **columns)


def write_lossy(path: Path, kept: Sequence[int] = (1, 2, 4, 6, 8, 10)) -> Path:
    """Write a report of two processes; of the first all work is there, of the other that of some launches."""
    thread = {"globalTid": make_global_tid(OTHER, OTHER)}
    calls = [
        *(call(10 * number, number) for number in range(1, 11)),
        *(call(10 * number, number, **thread) for number in range(1, 11)),
        # None of these has work: one fails, one is captured, by another thread.
        call(200, 50, returnValue=2),
        call(210, 51, BEGIN),
        call(215, 52, globalTid=make_global_tid(4243)),
        call(220, 53, END),
        call(230, 54, GRAPH),
    ]
    kernels = [
        *(
            make_kernel(10 * number, 10 * number + 5, correlationId=number)
            for number in range(1, 11)
        ),
        *(make_kernel(240 + number, 241 + number, correlationId=54) for number in range(2)),
        *(
            make_kernel(
                10 * number, 10 * number + 5, correlationId=number, globalPid=make_global_pid(OTHER)
            )
            for number in kept
        ),
    ]
    gpu = {"TARGET_INFO_GPU": [{"id": 0, "name": "H100", "uuid": "u"}]}
    return make_export(path, {**gpu, "StringIds": NAMES, RUNTIME: calls, KERNEL: kernels})


def test_calls_that_are_missing(tmp_path: Path) -> None:
    report = make_export(tmp_path / "r.sqlite", {"StringIds": NAMES, KERNEL: [make_kernel(0, 9)]})
    assert "r.sqlite" in list_notes(report)["no_calls"]


def list_notes(*reports: Path) -> dict[str, str]:
    with nsys2prv.open([*reports]) as job:
        return {note.kind: note.text for note in job.quality if note.kind != "not_recorded"}


def test_launches_without_work_are_counted_by_process_in_both_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = write_lossy(tmp_path / "r.sqlite")
    wanted = " 777: 4 of 10"
    assert main([str(report), str(tmp_path / "o.prv")]) == 0
    assert wanted in capsys.readouterr().out
    page, data = tmp_path / "r.html", tmp_path / "r.json"
    assert main(["report", str(report), "--json", str(data), "--html", str(page)]) == 0
    assert wanted in " ".join(capsys.readouterr().out.split())
    note, lacks = json.loads(data.read_text())["job"]["quality"]
    assert "CPU samples (--sample=process-tree identifies the code)" in lacks["text"]
    assert "CPU samples (--sample" in page.read_text()
    assert note["kind"] == "launches_without_work"
    assert wanted in note["text"]
    assert wanted in page.read_text()
    written = json.loads((tmp_path / "o.nsys2prv.json").read_text())
    assert written["quality"] == [note, lacks]
    assert list_notes(write_lossy(tmp_path / "whole.sqlite", range(1, 11))) == {}


def test_launches_without_work_are_told_with_their_time(tmp_path: Path) -> None:
    """Of ten launches, the third to the fifth have no kernel: of a part, only where it has these."""
    us = 1000
    tables = {
        "StringIds": NAMES,
        RUNTIME: [call(10 * us * one, one) for one in range(1, 11)],
        KERNEL: [
            make_kernel(10 * us * one + 1, 10 * us * one + 5 * us, correlationId=one)
            for one in range(1, 11)
            if one not in (3, 4, 5)
        ],
    }
    report = make_export(tmp_path / "r.sqlite", tables)

    def find_note(time: str) -> list[str]:
        with nsys2prv.open([report], cut=CutOptions(time=time)) as job:
            return [one.text for one in job.quality if one.kind == "launches_without_work"]

    # The trace begins with the first call.
    (text,) = find_note("")
    assert "3 of 10 (from 0.000020 s to 0.000040 s)" in text
    (text,) = find_note("25us:60us")
    assert "3 of 10 (from 0.000000 s to 0.000015 s)" in text
    assert not find_note("50us:90us")


def test_no_idle_time_is_blamed_where_work_is_lost(tmp_path: Path) -> None:
    def find_kinds(*kept: int) -> set[str]:
        with nsys2prv.open([write_lossy(tmp_path / "r.sqlite", kept)]) as job:
            return {finding.kind for finding in job.findings()}

    # Both processes are on one GPU, which hardly works.
    assert find_kinds(*range(1, 11)) & {"host_work", "host_bound"}
    assert find_kinds(1, 2, 4, 6, 8, 10) == set()


def test_where_all_later_work_is_lost_what_is_before_counts(tmp_path: Path) -> None:
    """The first launch without work begins at 70 ns, when the last work has ended."""
    with nsys2prv.open([write_lossy(tmp_path / "r.sqlite", range(1, 7))]) as job:
        (note, _) = job.quality
        assert note.text.endswith(
            "777: 4 of 10 (all from 0.00000006 s on). GPU activity at these times is unknown"
        )
        assert job.coverage.common.find_hull() == (0, 60)
        result = job.analyse("findings")["findings"]
        assert "until 0.00000006 s" in result.notes[0]
        assert (
            job.analyse("efficiencies")["efficiencies"].tables["device"].frame["elapsed_ns"][-1]
            == 60
        )


@pytest.mark.parametrize(("stream", "lost"), [(7, 3), (8, 0)])
def test_work_is_lost_where_copies_of_its_stream_go_on(
    stream: int, lost: int, tmp_path: Path
) -> None:
    """Three of six launches have no kernel; a copy of the last of their stream, launched later, is there
    and lasts as long as to the end of the report.
    """
    copy = {"deviceId": 0, "contextId": 1, "streamId": stream, "globalPid": make_global_pid()}
    tables = {
        "StringIds": [*NAMES, {"id": 9, "value": "cudaMemcpyAsync"}],
        RUNTIME: [*(call(10 * number, number) for number in range(1, 7)), call(65, 7, 9)],
        KERNEL: [make_kernel(10 * one + 1, 10 * one + 5, correlationId=one) for one in (1, 2, 3)],
        MEMCPY: [{**copy, "start": 66, "end": 150, "correlationId": 7, "bytes": 8, "copyKind": 1}],
    }
    with nsys2prv.open([make_export(tmp_path / "r.sqlite", tables)]) as job:
        found = [(one.lost, one.launches, one.since) for one in job.prepared.lost]
    assert found == ([(3, 6, 40)] if lost else [])


def test_no_figures_are_given_of_gpus_with_lost_work(tmp_path: Path) -> None:
    with nsys2prv.open([write_lossy(tmp_path / "r.sqlite")]) as job:
        results = job.analyse("efficiencies", "overlap", "idle", "iterations")
    assert not {"device", "devices", "steady"} & results["efficiencies"].tables.keys()
    assert not {"gaps", "long_gaps"} & results["idle"].tables.keys()
    for name in ("efficiencies", "overlap"):
        assert any("is missing" in line for line in results[name].missing)


@pytest.mark.parametrize(("busy_until", "lost"), [(1000, set()), (500, {"launches_without_work"})])
def test_work_after_the_end_of_the_report_is_not_lost(
    tmp_path: Path, busy_until: int, lost: set[str]
) -> None:
    """The kernels of the last three launches begin after the report, if the GPU is busy until then."""
    kernels = [make_kernel(10 * number, 10 * number + 5, correlationId=number) for number in (1, 2)]
    kernels.append(make_kernel(40, busy_until, correlationId=3))
    calls = [call(10 * number, number) for number in range(1, 7)]
    last = make_call(980, 1000, 90, nameId=END)
    tables = {"StringIds": NAMES, RUNTIME: [*calls, last], KERNEL: kernels}
    kernels[-1]["start"] = busy_until - 400
    assert list_notes(make_export(tmp_path / "r.sqlite", tables)).keys() == lost


def test_tables_of_another_version_and_missing_names_are_told(tmp_path: Path) -> None:
    tables = {
        "StringIds": NAMES,
        RUNTIME: [call(1, 1)],
        f"{KERNEL}_V2": [make_kernel(1, 5, correlationId=1)],
        "ETW_EVENTS": [{"timestamp": 5}],
        # No events.
        "TARGET_INFO_FUTURE": [{"start": 1}],
        "Notes": [{"text": "x"}],
    }
    notes = list_notes(make_export(tmp_path / "new.sqlite", tables))
    assert notes.keys() == {"launches_without_work", "unknown_table", "not_used"}
    assert "the table ETW_EVENTS (1 row) is not read: Windows trace" in notes["not_used"]
    assert f"the table {KERNEL}_V2 (1 row) is not read" in notes["unknown_table"]
    assert notes["unknown_table"].endswith(f"(it supports {KERNEL})")
    tables = {RUNTIME: [call(1, 1)], KERNEL: [make_kernel(1, 5, correlationId=1)]}
    notes = list_notes(make_export(tmp_path / "bare.sqlite", tables))
    assert notes.keys() == {"names_missing"}
    assert "lacks the names of 2 functions and kernels" in notes["names_missing"]


@pytest.mark.parametrize("report", EXPORTS or [UNSET], ids=lambda path: getattr(path, "name", ""))
def test_lost_launches_are_those_of_sql(report: Path) -> None:
    try:
        with nsys2prv.open([report], quiet=True) as job:
            lost = job.prepared.lost
    except NothingToWrite:
        return
    tables = {name for (name,) in query_export(report, "SELECT name FROM sqlite_master")}
    work = [one for one in (KERNEL, MEMCPY, MEMCPY.replace("CPY", "SET")) if one in tables]
    there = " ".join(
        f"OR EXISTS (SELECT 1 FROM {one} w WHERE w.correlationId = r.correlationId "
        "AND w.globalPid = r.globalTid & ~0xffffff)"
        for one in work
    )
    rows = []
    if RUNTIME in tables:
        # GPUs of all exports are busy to the end: calls after the last with work are not lost.
        rows = query_export(
            report,
            f"WITH calls AS (SELECT globalTid, start, nameId, 0 {there} AS there FROM {RUNTIME} r JOIN StringIds s ON s.id = nameId "
            "WHERE coalesce(returnValue, 0) = 0 AND correlationId != 0 AND (value LIKE 'cu%LaunchKernel%' "
            "OR value LIKE 'cu%GraphLaunch%' OR value LIKE 'cudaLaunch/_%' ESCAPE '/' OR value LIKE 'cu%LaunchCooperative%')), "
            "lasts AS (SELECT *, max(start) FILTER (WHERE there) OVER (PARTITION BY globalTid, nameId) AS last FROM calls) "
            "SELECT globalTid & ~0xffffff, count(*), sum(NOT there AND start < coalesce(last, 1 << 62)) FROM lasts GROUP BY 1",
        )
    found = [(one.process, one.launches, one.lost) for one in lost]
    assert found == [row for row in rows if row[2]]


def test_work_before_its_launch_is_counted_by_gpu(tmp_path: Path) -> None:
    """The clock of GPU 1 is 60 us off; a copy of unknown size is no reason to fail."""
    kernels = [
        make_kernel(call - 60_000 * gpu + 1_000, call + 5_000, correlationId=number, deviceId=gpu)
        for number, (call, gpu) in enumerate([(100_000, 0), (200_000, 1), (300_000, 1)], 1)
    ]
    copy = {**make_kernel(400_500, 401_000, correlationId=4), "bytes": None, "copyKind": 1}
    report = make_export(
        tmp_path / "r.sqlite",
        {
            KERNEL: kernels,
            MEMCPY: [copy],
            RUNTIME: [
                make_call(at, at + 500, at // 100_000) for at in range(100_000, 500_000, 100_000)
            ],
            "StringIds": make_strings("gemm", "cudaLaunchKernel"),
        },
    )
    summary = nsys2prv.convert(report, tmp_path / "o.prv")
    (line,) = (note.text for note in summary.quality if note.kind == "work_before_launch")
    assert "2 on GPU 1 of r.sqlite, by up to 59.0 us" in line
    assert "GPU 0" not in line
