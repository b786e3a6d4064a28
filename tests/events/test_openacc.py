"""OpenACC constructs: with and without places in the source, of kinds that nobody knows."""

from __future__ import annotations

from pathlib import Path

from tools.conversions import convert_and_read, list_labelled_intervals
from tools.exports import PID, Row, make_export, make_global_tid, make_strings

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
