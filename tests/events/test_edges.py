"""Cases that no sample holds, each a small export of its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tools.conversions import convert_and_read
from tools.exports import (
    KERNEL,
    RUNTIME,
    Row,
    make_call,
    make_export,
    make_global_pid,
    make_kernel,
    make_nvtx_range,
    make_strings,
)
from tools.trace_reader import Trace, read_trace

from nsys2prv import Options, convert
from nsys2prv.events.kind import Reason

NVTX = "NVTX_EVENTS"
START = "TARGET_INFO_SESSION_START_TIME"
UTC = 1_780_000_000_000_000_000
CALL, KERNELS, PUSHPOP, STARTEND, SYNC = 63000000, 63000006, 9600, 9610, 63000030


def convert_tables(folder: Path, tables: dict[str, list[Row]], **options: object) -> Trace:
    """Convert one export and return the trace, which has no violations."""
    return convert_and_read(
        [make_export(folder / "r.sqlite", tables)], folder / "o.prv", **options
    )[0]


def list_sorted_intervals(trace: Trace, code: int) -> list[tuple[str, int, int]]:
    """Return (label, begin, end) of the intervals of a type, sorted."""
    return sorted(
        (trace.get_label(code, item.value), item.begin, item.end)
        for item in trace.list_intervals(code)
    )


def test_begins_of_one_time_are_outer_first_whatever_they_carry(tmp_path: Path) -> None:
    calls = [
        make_call(0, 100, 1, returnValue=2),
        make_call(0, 50, 2, nameId=1),
        make_call(0, 20, 0, nameId=3, correlationId=None),
    ]
    ranges = [
        make_nvtx_range(0, 90, "inner", category=3),
        make_nvtx_range(0, 95, "outer"),
        make_nvtx_range(0, 0, "point", category=3),
    ]
    trace = convert_tables(
        tmp_path,
        {
            RUNTIME: calls,
            NVTX: ranges,
            "StringIds": make_strings("cuMemAlloc_v2", "cudaMalloc_v3020", "cudaFree_v3020"),
        },
    )
    assert list_sorted_intervals(trace, CALL) == [
        ("cuMemAlloc_v2", 0, 50),
        ("cudaFree", 0, 20),
        ("cudaMalloc", 0, 100),
    ]
    assert list_sorted_intervals(trace, PUSHPOP) == [
        ("inner", 0, 90),
        ("outer", 0, 95),
        ("point", 0, 1),
    ]


def test_overlapping_synchronizations_keep_their_durations(tmp_path: Path) -> None:
    sync = [
        {"start": start, "end": end, "globalPid": make_global_pid(), "correlationId": None}
        for start, end in ((0, 50), (20, 80), (90, 95))
    ]
    trace = convert_tables(tmp_path, {"CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": sync})
    assert [(begin, end) for _, begin, end in list_sorted_intervals(trace, SYNC)] == [
        (0, 50),
        (20, 80),
        (90, 95),
    ]


def test_marks_of_one_time_both_show(tmp_path: Path) -> None:
    trace = convert_tables(
        tmp_path,
        {
            NVTX: [
                make_nvtx_range(5, None, "a", 34),
                make_nvtx_range(5, None, "b", 34),
                make_nvtx_range(0, 9, "r"),
            ]
        },
    )
    assert list_sorted_intervals(trace, 9620) == [("a", 5, 6), ("b", 5, 6)]


def test_names_that_could_break_the_files(tmp_path: Path) -> None:
    names = [
        "End",
        "[all in brackets]",
        "two\nlines\tand tab",
        "",
        "x" * 5000,
        "é€😀",
        " padded ",
        "VALUES",
        "EVENT_TYPE",
        "a" * 999 + "bb",
    ]
    trace = convert_tables(
        tmp_path,
        {
            NVTX: [
                make_nvtx_range(10 * place, 10 * place + 5, name)
                for place, name in enumerate(names)
            ]
        },
    )
    labels = {begin: label for label, begin, _ in list_sorted_intervals(trace, PUSHPOP)}
    assert len(set(labels.values())) == len(names)
    assert labels[20] == "two lines and tab"
    assert labels[10] == "(all in brackets)"
    assert labels[30] == "(no text)"
    assert labels[0] == "End #2"


BRACKETED = [
    "step [1/2]",
    "step",
    "a[0] and b[1]",
    "[x] in [y]",
    "[[2, 3], []]",
    "operator[]",
    "[0, 1)",
    "step {1/2}",
    "[all]",
]


def test_short_names_of_labels_with_brackets_stay_distinct(tmp_path: Path) -> None:
    trace = convert_tables(
        tmp_path,
        {
            NVTX: [
                make_nvtx_range(10 * place, 10 * place + 5, name)
                for place, name in enumerate(BRACKETED)
            ]
        },
        nvtx_rules="none",
    )
    labels = [
        label
        for label, begin, _ in sorted(
            list_sorted_intervals(trace, PUSHPOP), key=lambda item: item[1]
        )
    ]
    assert labels == [
        "step {1/2}",
        "step",
        "a{0} and b{1}",
        "{x} in {y}",
        "{{2, 3}, {}}",
        "operator{}",
        "[0, 1)",
        "step {1/2} #2",
        "(all)",
    ]


def test_text_that_is_no_utf8(tmp_path: Path) -> None:
    trace = convert_tables(
        tmp_path, {NVTX: [make_nvtx_range(0, 5, "ok"), make_nvtx_range(10, 15, b"\xff\xfebad")]}
    )  # type: ignore[arg-type]
    assert [label for label, *_ in list_sorted_intervals(trace, PUSHPOP)] == [
        "ok",
        "\ufffd\ufffdbad",
    ]


@pytest.mark.parametrize("bad", ["text", 2.5, b"blob", "9" * 30])
def test_values_of_the_wrong_type_are_counted(bad: object, tmp_path: Path) -> None:
    rows = [make_kernel(10 * place, 10 * place + 5) for place in range(3)] + [
        make_kernel(bad, 50),
        make_kernel(60, 65, gridX=bad),
    ]  # type: ignore[arg-type]
    report = make_export(tmp_path / "r.sqlite", {KERNEL: rows, "StringIds": make_strings("k")})
    summary = convert([report], tmp_path / "o.prv", Options())
    assert summary.events == {"cuda_kernel": 4}
    assert summary.dropped == {("kernels", Reason.NO_TIME): 1}
    assert summary.repaired == {("kernels", Reason.NOT_INTEGER): 2}
    assert not read_trace(tmp_path / "o.prv").violations


def test_times_before_the_capture_move_the_origin(tmp_path: Path) -> None:
    trace = convert_tables(
        tmp_path,
        {KERNEL: [make_kernel(-500, -400), make_kernel(0, 10)], "StringIds": make_strings("k")},
    )
    assert list_sorted_intervals(trace, KERNELS) == [("k", 0, 100), ("k", 500, 510)]


def test_absolute_times(tmp_path: Path) -> None:
    trace = convert_tables(
        tmp_path,
        {
            KERNEL: [make_kernel(UTC, UTC + 7)],
            "StringIds": make_strings("k"),
            START: [{"utcEpochNs": UTC - 5}],
            "META_DATA_EXPORT": [{"name": "EXPORT_PARAM_TIME_NORMALIZE", "value": "true"}],
        },
    )
    assert list_sorted_intervals(trace, KERNELS) == [("k", 0, 7)]


def test_ends_before_begins_and_zero_lengths(tmp_path: Path) -> None:
    report = make_export(
        tmp_path / "r.sqlite",
        {
            KERNEL: [make_kernel(10, 5), make_kernel(20, 20), make_kernel(30, None)],
            "StringIds": make_strings("k"),
        },
    )
    summary = convert([report], tmp_path / "o.prv", Options())
    assert [
        (begin, end)
        for _, begin, end in list_sorted_intervals(read_trace(tmp_path / "o.prv"), KERNELS)
    ] == [(0, 1), (10, 11)]
    assert summary.repaired == {("kernels", Reason.END_BEFORE_BEGIN): 1}
    assert summary.dropped == {("kernels", Reason.NO_TIME): 1}


def test_a_table_without_rowid_is_read(tmp_path: Path) -> None:
    import sqlite3

    report = make_export(tmp_path / "r.sqlite", {"StringIds": make_strings("k")})
    connection = sqlite3.connect(report)
    connection.execute(
        f"CREATE TABLE {KERNEL} (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, globalPid INTEGER, "
        "demangledName INTEGER, shortName INTEGER, PRIMARY KEY (start)) WITHOUT ROWID"
    )
    rows = [(place, place + 1, make_global_pid()) for place in range(0, 50, 5)]
    connection.executemany(f"INSERT INTO {KERNEL} VALUES (?, ?, 0, 7, ?, 1, 1)", rows)
    connection.commit()
    connection.close()
    convert([report], tmp_path / "o.prv", Options())
    assert len(read_trace(tmp_path / "o.prv").list_intervals(KERNELS)) == 10


@pytest.mark.slow
def test_many_reports_need_few_descriptors(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    reports = [
        make_export(
            tmp_path / f"r{number}.sqlite",
            {KERNEL: [make_kernel(0, 5)], "StringIds": make_strings("k")},
        )
        for number in range(200)
    ]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 160, hard))
    try:
        convert(reports, tmp_path / "o.prv", Options())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(read_trace(tmp_path / "o.prv").tasks) == 200


@pytest.mark.parametrize("domain", ["x", "1) OR (1", b"blob", 0.5])
def test_domain_numbers_that_are_none_never_reach_sql(domain: object, tmp_path: Path) -> None:
    rows = [
        make_nvtx_range(0, None, "NCCL", 75, domainId=domain),
        make_nvtx_range(0, None, "NCCL", 75, domainId=3),
        make_nvtx_range(5, 9, "r"),
    ]
    assert list_sorted_intervals(convert_tables(tmp_path, {NVTX: rows}), PUSHPOP) == [("r", 0, 4)]
