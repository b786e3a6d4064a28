"""Test exports with unusual but legal rows, each in a small export: the trace must contain exactly
their contents.
"""

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from tools.conversions import WITH_LAUNCHES, convert_and_read, list_labelled_intervals
from tools.exports import (
    KERNEL,
    PID,
    RUNTIME,
    Row,
    make_call,
    make_export,
    make_global_pid,
    make_global_tid,
    make_host,
    make_kernel,
    make_nvtx_range,
    make_strings,
)
from tools.trace_reader import Trace, read_trace

from nsys2prv import Options, convert
from nsys2prv._util.errors import Nsys2prvError
from nsys2prv._util.text import make_natural_key
from nsys2prv.cli import main
from nsys2prv.events.kind import Reason

SAMPLES = Path(__file__).parents[2] / "sample_reports"
NVTX = "NVTX_EVENTS"
START = "TARGET_INFO_SESSION_START_TIME"
META = "META_DATA_EXPORT"
UTC = 1_760_000_000_000_000_000
PUSHPOP, STARTEND, MARK, DOMAIN = 59, 60, 34, 75
KERNEL_CODE, API_CODE, NVTX_CODE, MARK_CODE, SYNC_CODE = 63000006, 63000000, 9600, 9620, 63000030
STRINGS = make_strings("kern", "cudaLaunchKernel", "outer", "inner", "other")


def make_session_start(utc: int | None, system: int | None) -> list[Row]:
    return [{"utcEpochNs": utc, "systemClockNs": system}]


def convert_tables(folder: Path, *reports: dict[str, list[Row]] | Path, **options: object) -> Trace:
    """Convert reports, some made of these tables."""
    paths = [
        report
        if isinstance(report, Path)
        else make_export(folder / f"rank{number}.sqlite", {"StringIds": STRINGS, **report})
        for number, report in enumerate(reports)
    ]
    return convert_and_read(paths, folder / "out.prv", full_kernel_names=True, **options)[0]


def list_ranges(trace: Trace, code: int) -> set[tuple[str, int, int]]:
    """Return (label, begin, end) of the intervals of a type."""
    return set(list_labelled_intervals(trace, code))


#: Tables -> type -> the (label, begin, end) that the trace has of it.
SHOWN: dict[str, tuple[dict[str, list[Row]], dict[int, set[tuple[str, int, int]]]]] = {
    "begins of one time are outer first whatever they carry": (
        {
            RUNTIME: [
                make_call(0, 100, 1, returnValue=2),
                make_call(0, 50, 2, nameId=1),
                make_call(0, 20, 0, nameId=3, correlationId=None),
            ],
            NVTX: [
                make_nvtx_range(0, 90, "inner", category=3),
                make_nvtx_range(0, 95, "outer"),
                make_nvtx_range(0, 0, "point", category=3),
            ],
            "StringIds": make_strings("cuMemAlloc_v2", "cudaMalloc_v3020", "cudaFree_v3020"),
        },
        {
            API_CODE: {("cuMemAlloc_v2", 0, 50), ("cudaFree", 0, 20), ("cudaMalloc", 0, 100)},
            NVTX_CODE: {("inner", 0, 90), ("outer", 0, 95), ("point", 0, 1)},
        },
    ),
    "a failed call around one that succeeds": (
        {RUNTIME: [make_call(10, 100, 1, nameId=3, returnValue=2), make_call(10, 50, 2, nameId=4)]},
        {API_CODE: {("outer", 0, 90), ("inner", 0, 40)}},
    ),
    "marks of one time both show": (
        {
            NVTX: [
                make_nvtx_range(5, None, "a", MARK),
                make_nvtx_range(5, None, "b", MARK),
                make_nvtx_range(0, 9, "r"),
            ]
        },
        {MARK_CODE: {("a", 5, 6), ("b", 5, 6)}},
    ),
    "text that is no UTF-8": (
        {NVTX: [make_nvtx_range(0, 5, "ok"), make_nvtx_range(10, 15, b"\xff\xfebad")]},
        {NVTX_CODE: {("ok", 0, 5), ("\ufffd\ufffdbad", 10, 15)}},
    ),
    "a string stored as bytes is its text": (
        {"StringIds": [{"id": 1, "value": b"kern"}], KERNEL: [make_kernel(100, 200)]},
        {KERNEL_CODE: {("kern", 0, 100)}},
    ),
    "a column called rowid": (
        {
            KERNEL: [
                make_kernel(at, at + 100, rowid=5 if at < 500 else None) for at in (100, 300, 500)
            ]
        },
        {KERNEL_CODE: {("kern", 0, 100), ("kern", 200, 300), ("kern", 400, 500)}},
    ),
    "times before the capture move the origin": (
        {KERNEL: [make_kernel(-500, -400), make_kernel(0, 10)]},
        {KERNEL_CODE: {("kern", 0, 100), ("kern", 500, 510)}},
    ),
    "absolute times": (
        {
            KERNEL: [make_kernel(UTC, UTC + 7)],
            START: [{"utcEpochNs": UTC - 5}],
            META: [{"name": "EXPORT_PARAM_TIME_NORMALIZE", "value": "true"}],
        },
        {KERNEL_CODE: {("kern", 0, 7)}},
    ),
    **{
        f"the domain number {domain!r} never reaches SQL": (
            {
                NVTX: [
                    make_nvtx_range(0, None, "NCCL", DOMAIN, domainId=domain),
                    make_nvtx_range(0, None, "NCCL", DOMAIN, domainId=3),
                    make_nvtx_range(5, 9, "r"),
                ]
            },
            {NVTX_CODE: {("r", 0, 4)}},
        )
        for domain in ("x", "1) OR (1", b"blob", 0.5)
    },
}


@pytest.mark.parametrize("case", SHOWN)
def test_what_the_rows_hold_is_in_the_trace(case: str, tmp_path: Path) -> None:
    tables, expected = SHOWN[case]
    trace = convert_tables(tmp_path, tables)
    for code, ranges in expected.items():
        assert sorted(list_labelled_intervals(trace, code)) == sorted(ranges)


@pytest.mark.parametrize(
    ("kernels", "calls", "lines"),
    [
        (
            [make_kernel(-1000, None, correlationId=1), make_kernel(100, 150, correlationId=2)],
            [make_call(10, 20, 1), make_call(30, 40, 2)],
            1,
        ),
        ([make_kernel(100, 150, correlationId=1)], [make_call(10, None, 1)], 0),
    ],
    ids=["kernel", "call"],
)
def test_no_line_leads_from_or_to_what_is_not_written(
    kernels: list[Row], calls: list[Row], lines: int, tmp_path: Path
) -> None:
    assert len(convert_tables(tmp_path, {KERNEL: kernels, RUNTIME: calls}).comms) == lines


def test_overlapping_synchronizations_keep_their_durations(tmp_path: Path) -> None:
    sync = [
        {"start": start, "end": end, "globalPid": make_global_pid(), "correlationId": None}
        for start, end in ((0, 50), (20, 80), (90, 95))
    ]
    trace = convert_tables(tmp_path, {"CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": sync})
    assert [(begin, end) for _, begin, end in sorted(list_ranges(trace, SYNC_CODE))] == [
        (0, 50),
        (20, 80),
        (90, 95),
    ]


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
    labels = {begin: label for label, begin, _ in sorted(list_ranges(trace, NVTX_CODE))}
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
    labels = [label for label, _, _ in list_labelled_intervals(trace, NVTX_CODE)]
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


@pytest.mark.parametrize("bad", ["text", 2.5, b"blob", "9" * 30])
def test_values_of_the_wrong_type_are_counted(bad: object, tmp_path: Path) -> None:
    rows = [make_kernel(10 * place, 10 * place + 5) for place in range(3)] + [
        make_kernel(bad, 50),
        make_kernel(60, 65, gridX=bad),
    ]  # type: ignore[arg-type]
    report = make_export(tmp_path / "r.sqlite", {KERNEL: rows, "StringIds": make_strings("k")})
    summary = convert([report], tmp_path / "o.prv", Options(cut=WITH_LAUNCHES))
    assert summary.events == {"cuda_kernel": 4}
    assert summary.dropped == {("kernels", Reason.NO_TIME): 1}
    assert summary.repaired == {("kernels", Reason.NOT_INTEGER): 2}
    assert not read_trace(tmp_path / "o.prv").violations


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
        for _, begin, end in sorted(list_ranges(read_trace(tmp_path / "o.prv"), KERNEL_CODE))
    ] == [(0, 1), (10, 11)]
    assert summary.repaired == {("kernels", Reason.END_BEFORE_BEGIN): 1}
    assert summary.dropped == {("kernels", Reason.NO_TIME): 1}


def test_a_table_without_rowid_is_read(tmp_path: Path) -> None:
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
    assert len(read_trace(tmp_path / "o.prv").list_intervals(KERNEL_CODE)) == 10


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


# ---- clocks ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [PUSHPOP, STARTEND])
@pytest.mark.parametrize("category", [None, 3])
def test_a_table_of_open_ranges_alone_with_a_clock(
    kind: int, category: int | None, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    trace = convert_tables(
        tmp_path,
        {
            KERNEL: [make_kernel(100, 200)],
            NVTX: [make_nvtx_range(10, None, "x", kind, category=category)],
            START: make_session_start(UTC, 5),
        },
    )
    code = NVTX_CODE if kind == PUSHPOP else 9610
    assert list_ranges(trace, code) == {("x", 0, 190)}
    assert not recwarn.list, [str(item.message) for item in recwarn.list]


def test_open_ranges_of_a_report_that_starts_later(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    trace = convert_tables(
        tmp_path,
        {KERNEL: [make_kernel(100, 200)], START: make_session_start(UTC, 5)},
        {NVTX: [make_nvtx_range(10, None, "x")], START: make_session_start(UTC + 1000, 1005)},
    )
    assert list_ranges(trace, KERNEL_CODE) == {("kern", 0, 100)}
    assert list_ranges(trace, NVTX_CODE) == {("x", 910, trace.duration)}
    assert not recwarn.list, [str(item.message) for item in recwarn.list]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("utc", "system"),
    [(2**63 - 1, 5), (-(2**63), 5), (2**63 - 1, -(2**63)), (UTC, 2**63 - 1), (2**62, -(2**63) + 1)],
)
def test_absurd_clocks_are_no_traceback(utc: int, system: int, tmp_path: Path) -> None:
    """Check a sane and an absurd report in both orders: the trace lacks the clock, or one line is
    printed.
    """
    for starts in (
        [make_session_start(utc, system)],
        [make_session_start(utc, system), make_session_start(UTC, 7)],
        [make_session_start(UTC, 7), make_session_start(utc, system)],
    ):
        try:
            convert_tables(
                tmp_path, *({KERNEL: [make_kernel(100, 200)], START: start} for start in starts)
            )
        except Nsys2prvError:
            continue


@pytest.mark.parametrize("utc", [0, -5])
def test_a_utc_that_was_never_set_is_no_clock(utc: int, tmp_path: Path) -> None:
    """Its report is placed beside the other, not half a century before it."""
    trace = convert_tables(
        tmp_path,
        {KERNEL: [make_kernel(100, 200)], START: make_session_start(utc, 5)},
        {KERNEL: [make_kernel(100, 200)], START: make_session_start(UTC, 7)},
    )
    assert trace.duration < 10_000_000_000


def test_a_report_without_clock_beside_one_in_utc(tmp_path: Path) -> None:
    """Placed at the start of the other, not at 1970."""
    trace = convert_tables(
        tmp_path,
        {
            KERNEL: [make_kernel(UTC + 100, UTC + 200)],
            META: [{"name": "EXPORT_PARAM_TIME_NORMALIZE", "value": "1"}],
        },
        {KERNEL: [make_kernel(100, 200)]},
    )
    assert trace.duration < 10_000_000_000


# ---- equal times ---------------------------------------------------------------------------------------------------------------------


def test_lines_of_other_streams_stay_in_very_long_traces(tmp_path: Path) -> None:
    far = 1 << 46
    trace = convert_tables(
        tmp_path,
        {
            KERNEL: [
                make_kernel(0, 1000, correlationId=1),
                make_kernel(10, 20, correlationId=2),
                make_kernel(far + 10, far + 20, correlationId=3, streamId=6),
            ],
            RUNTIME: [make_call(0, 1, 1), make_call(2, 3, 2), make_call(far, far + 1, 3)],
        },
    )
    for comm in trace.comms:
        assert any(
            item.row == comm.receiver and item.begin == comm.receive
            for item in trace.list_intervals(KERNEL_CODE)
        ), comm


# ---- the tables' rowids ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_rowid_far_off_does_not_take_for_ever(tmp_path: Path) -> None:
    path = make_export(
        tmp_path / "r.sqlite", {"StringIds": STRINGS, KERNEL: [make_kernel(100, 200)]}
    )
    with sqlite3.connect(path) as connection:
        connection.execute(
            f"INSERT INTO {KERNEL} (rowid, start, end, globalPid, demangledName) VALUES (?, 300, 400, ?, 1)",
            (2_000_000_000, make_global_pid()),
        )
    subprocess.run(
        [sys.executable, "-m", "nsys2prv", "-q", "-j", "1", path, tmp_path / "out.prv"],
        check=True,
        timeout=20,
    )
    assert len(read_trace(tmp_path / "out.prv").list_intervals(KERNEL_CODE)) == 2


# ---- names ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("domain", ["default domain", "x" * 3000 + "1", "a\n", "a\t"])
def test_domains_whose_labels_agree_once_cleaned(domain: str, tmp_path: Path) -> None:
    other = {"default domain": "third", "a\n": "a", "a\t": "a"}.get(domain, "x" * 3000 + "2")
    convert_tables(
        tmp_path,
        {
            NVTX: [
                make_nvtx_range(0, None, domain, DOMAIN, domainId=1),
                make_nvtx_range(0, None, other, DOMAIN, domainId=2),
                make_nvtx_range(1, 9, "a"),
                make_nvtx_range(2, 3, "b", domainId=1),
                make_nvtx_range(4, 5, "c", domainId=2),
            ]
        },
    )


@pytest.mark.parametrize("name", ["10²", "²", "٣", "9" * 5000])
def test_odd_digits_in_the_name_of_a_thread(name: str, tmp_path: Path) -> None:
    make_natural_key(name)
    trace = convert_tables(
        tmp_path,
        {
            "StringIds": [*STRINGS, {"id": 9, "value": name}],
            RUNTIME: [make_call(10, 20, 1)],
            "ThreadNames": [{"nameId": 9, "priority": 1, "globalTid": make_global_tid(PID)}],
        },
    )
    assert name[:100] in trace.names["THREAD"][0]


def test_a_string_without_text_is_not_called_none(tmp_path: Path) -> None:
    path = make_export(
        tmp_path / "r.sqlite",
        {"StringIds": [{"id": 1, "value": None}], KERNEL: [make_kernel(100, 200, shortName=None)]},
    )
    assert not {name for name, _, _ in list_ranges(convert_tables(tmp_path, path), KERNEL_CODE)} & {
        "None",
        "b''",
    }


@pytest.mark.parametrize("host", ["LEVEL NODE SIZE 1", "\n"])
def test_host_names_that_look_like_the_row_file(host: str, tmp_path: Path) -> None:
    convert_tables(
        tmp_path,
        {
            KERNEL: [make_kernel(1, 5)],
            **make_host(host),
            "PROCESSES": [{"globalPid": make_global_pid(), "name": host}],
        },
    )


# ---- what stays behind --------------------------------------------------------------------------------------------------------------


def test_nothing_is_written_beside_an_export_with_a_write_ahead_log(tmp_path: Path) -> None:
    path = make_export(
        tmp_path / "live.sqlite", {"StringIds": STRINGS, KERNEL: [make_kernel(100, 200)]}
    )
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(
        f"INSERT INTO {KERNEL} (start, end, globalPid, demangledName) VALUES (300, 400, ?, 1)",
        (make_global_pid(),),
    )
    connection.commit()
    folder = tmp_path / "copied"
    folder.mkdir()
    for name in ("live.sqlite", "live.sqlite-wal"):
        shutil.copy(tmp_path / name, folder)
    connection.close()
    convert([folder / "live.sqlite"], tmp_path / "out.prv")
    assert len(read_trace(tmp_path / "out.prv").list_intervals(KERNEL_CODE)) == 2
    assert sorted(item.name for item in folder.iterdir()) == ["live.sqlite", "live.sqlite-wal"]


# ---- columns that conditions ask for ---------------------------------------------------------------------------------------------------


NCCL_CODE, PTHREAD_CODE, OSRT_CODE = 9500, 61000000, 66400000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "column", "lost", "more"),
    [
        (NVTX, "domainId", {NCCL_CODE}, {NVTX_CODE}),  # all are of the default domain then
        (NVTX, "eventType", {NCCL_CODE, NVTX_CODE}, set()),
        (NVTX, "globalTid", set(), set()),
        ("OSRT_API", "eventClass", set(), {OSRT_CODE}),  # marks of the tracing's beginning and end
        ("OSRT_API", "nameId", {PTHREAD_CODE}, {OSRT_CODE}),
        (
            "StringIds",
            "value",
            {PTHREAD_CODE},
            {OSRT_CODE, KERNEL_CODE},
        ),  # NCCL kernels are told by name
        ("TARGET_INFO_SYSTEM_ENV", "name", set(), set()),
        ("META_DATA_CAPTURE", "name", set(), set()),
        ("ANALYSIS_DETAILS", "duration", set(), set()),
        ("TARGET_INFO_SESSION_START_TIME", "utcEpochNs", set(), set()),
    ],
)
def test_a_column_that_a_condition_names_reads_as_null(
    table: str,
    column: str,
    lost: set[int],
    more: set[int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = tmp_path / "r.sqlite"
    shutil.copy(SAMPLES / "cluster" / "rank0.sqlite", report)
    first_trace = convert_tables(tmp_path, report)
    with contextlib.closing(sqlite3.connect(report)) as connection:
        connection.execute(f'ALTER TABLE "{table}" DROP COLUMN "{column}"')
    assert main(["--list", str(report)]) == 0
    assert report.name in capsys.readouterr().out
    trace = convert_tables(tmp_path, report)
    for code in (KERNEL_CODE, API_CODE, NVTX_CODE, NCCL_CODE, PTHREAD_CODE, OSRT_CODE):
        before, after = len(first_trace.list_intervals(code)), len(trace.list_intervals(code))
        assert before > 0
        assert (after == 0) == (code in lost)
        assert (after > before) == (code in more)
        assert code in lost | more or after == before
