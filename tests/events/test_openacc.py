"""Test OpenACC constructs: with and without source locations, and of unknown kinds."""

from pathlib import Path

from tools.conversions import convert_and_read, list_labelled_intervals
from tools.exports import PID, Row, make_export, make_global_tid, make_strings

import nsys2prv
from nsys2prv.events.kind import Reason

OTHER, DATA, LAUNCH = 66000000, 66000001, 66000002
SOURCE, FUNCTION, BYTES, LINE, DEVICE, DEVICE_TYPE = (
    66100000,
    66200000,
    66300001,
    66400101,
    66400102,
    66400103,
)
CALLER_LINE = 80000001
NAMES = make_strings("acc_wait", "a.c", "main", "", "u")
NVIDIA = 4


def make_construct(start: int, end: int | None, kind: int | None, **columns: object) -> Row:
    return {
        "start": start,
        "end": end,
        "nameId": 1,
        "globalTid": make_global_tid(PID),
        "eventKind": kind,
        "DeviceType": NVIDIA,
        "lineNo": 7,
        "cuDeviceId": 1,
        "srcFile": 2,
        "funcName": 3,
        **columns,
    }


def make_table(kind: str) -> str:
    return f"CUPTI_ACTIVITY_KIND_OPENACC_{kind}"


def test_values_are_those_of_other_converters(tmp_path: Path) -> None:
    """BSC's nsys2prv 0.6: ENUM_OPENACC_EVENT_KIND + 1, the same for all three types, and
    `name@file:line`.
    """
    constructs = [make_construct(100 * number, 100 * number + 50, number) for number in range(17)]
    rows = dict.fromkeys(map(make_table, ("OTHER", "DATA", "LAUNCH")), constructs)
    trace, _ = convert_and_read(
        [make_export(tmp_path / "r.sqlite", rows | {"StringIds": NAMES})], tmp_path / "o.prv"
    )
    for code in (OTHER, DATA, LAUNCH):
        assert [
            item.value for item in sorted(trace.list_intervals(code), key=lambda item: item.begin)
        ] == list(range(1, 18))
        assert set(trace.labels.values[code + 100000].values()) == {"End", "acc_wait@a.c:7"}
        assert set(trace.labels.values[code + 200000].values()) == {"End", "main"}
    assert {label for label, *_ in list_labelled_intervals(trace, CALLER_LINE)} == {"7 (a.c)"}
    assert (trace.get_label(DATA, 6), trace.get_label(DATA, 10)) == (
        "Enqueue upload",
        "Compute construct",
    )


def test_a_construct_without_a_place(tmp_path: Path) -> None:
    rows = [
        make_construct(0, 9, 1, srcFile=None, lineNo=0, funcName=None, DeviceType=2),
        make_construct(10, 19, 2, srcFile=4, funcName=4),
        make_construct(20, 29, 99, nameId=None, srcFile=None, DeviceType=None),
        make_construct(30, 39, None, lineNo=None),
    ]
    trace, _ = convert_and_read(
        [make_export(tmp_path / "r.sqlite", {make_table("OTHER"): rows, "StringIds": NAMES})],
        tmp_path / "o.prv",
    )
    assert [name for name, _, _ in list_labelled_intervals(trace, SOURCE)] == [
        "acc_wait",
        "acc_wait",
        "(no name)",
        "acc_wait@a.c",
    ]
    records = sorted(trace.list_intervals(OTHER), key=lambda item: item.begin)
    assert [trace.get_label(OTHER, item.value) for item in records] == [
        "Device init",
        "Device shutdown",
        "OpenACC construct of unknown kind",
        "OpenACC construct of unknown kind",
    ]
    assert [FUNCTION in item.others for item in records] == [False, False, True, True]
    assert [CALLER_LINE in item.others for item in records] == [False] * 4
    assert [item.others.get(DEVICE) for item in records] == [None, 1, 1, 1]
    assert [item.others.get(DEVICE_TYPE) for item in records] == [3, 5, None, 5]
    assert [item.others.get(LINE) for item in records] == [None, 7, 7, None]


def test_an_export_without_most_columns(tmp_path: Path) -> None:
    rows = [{"start": 0, "end": 5}, {"start": 5, "end": None}]
    trace, summary = convert_and_read(
        [make_export(tmp_path / "r.sqlite", {make_table("LAUNCH"): rows})], tmp_path / "o.prv"
    )
    assert list_labelled_intervals(trace, LAUNCH) == [("OpenACC construct of unknown kind", 0, 5)]
    assert summary.dropped == {("openacc", Reason.NO_TIME): 1}


def test_constructs_are_summed_by_source_line(tmp_path: Path) -> None:
    """Two uploads of one variable at one line, and one at another, within a data construct."""
    inner = [
        make_construct(100 * at, 100 * at + 50, 11, lineNo=line, varName=5, bytes=1000 * at)
        for at, line in ((1, 7), (2, 7), (3, 9))
    ]
    outer = make_construct(50, 500, 10, lineNo=7)
    tables = {make_table("DATA"): [outer, *inner], "StringIds": NAMES}
    with nsys2prv.open(make_export(tmp_path / "r.sqlite", tables), jobs=1) as job:
        frame = job.analyse("openacc")["openacc"].tables["constructs"].frame
    rows = frame.select("line", "name", "count", "time_ns", "exclusive_ns", "bytes").rows()
    assert rows == [
        (7, None, 1, 450, 300, None),
        (7, "u", 2, 100, 100, 3000),
        (9, "u", 1, 50, 50, 3000),
    ]
