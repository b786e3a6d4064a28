"""Test contexts on GPUs: moments in any order become ranges, even if some are missing."""

from pathlib import Path

import pytest
from tools.conversions import convert_and_read, list_labelled_intervals
from tools.exports import KERNEL, Row, make_export, make_global_pid, make_kernel, make_strings

from nsys2prv.events.kind import Reason

TABLE, CODE = "GPU_CONTEXT_SWITCH_EVENTS", 68007100
SAVE_END, RESTORE_START, RESET = 7, 8, 11
PROCESSES = [
    {"globalPid": make_global_pid(pid), "pid": pid, "name": name}
    for pid, name in ((10, "/bin/one"), (20, "two"))
]


def make_context_switch(
    tag: int, at: int, context: int = 1, pid: int | None = 10, gpu: int = 0
) -> Row:
    """Return a row of a context switch on a GPU."""
    owner = None if pid is None else make_global_pid(pid)
    return {
        "tag": tag,
        "vmId": 1,
        "seqNo": at,
        "contextId": context,
        "timestamp": at,
        "globalPid": owner,
        "gpuId": gpu,
    }


def convert_context_switches(folder: Path, rows: list[Row], table: str = TABLE, **options: object):
    """Convert an export with these context switches."""
    report = make_export(folder / "r.sqlite", {table: rows, "PROCESSES": PROCESSES})
    return convert_and_read([report], folder / "o.prv", **options)


@pytest.mark.parametrize("table", [TABLE, "FECS_EVENTS"])
def test_a_context_is_on_the_gpu_from_restore_to_save(tmp_path: Path, table: str) -> None:
    rows = [
        make_context_switch(1, 90),
        make_context_switch(RESTORE_START, 100),
        make_context_switch(9, 110),
        make_context_switch(SAVE_END, 200),
        make_context_switch(RESTORE_START, 210, 2, 20),
        make_context_switch(SAVE_END, 300, 2, 20),
        make_context_switch(RESTORE_START, 150, 3, None, gpu=1),
        make_context_switch(SAVE_END, 160, 3, None, gpu=1),
    ]
    trace, summary = convert_context_switches(tmp_path, rows, table)
    assert list_labelled_intervals(trace, CODE) == [
        ("one 10", 0, 100),
        ("two 20", 110, 200),
        ("unknown process", 50, 60),
    ]
    items = sorted(trace.list_intervals(CODE), key=lambda item: (item.row, item.begin))
    assert [(trace.get_row_name(item.row), item.others) for item in items] == [
        ("Contexts GPU0", {68007101: 1}),
        ("Contexts GPU0", {68007101: 2}),
        ("Contexts GPU1", {68007101: 3}),
    ]
    assert summary.dropped == summary.repaired == {}


def test_what_is_missing_is_counted(tmp_path: Path) -> None:
    rows = [
        make_context_switch(SAVE_END, 50),
        make_context_switch(RESTORE_START, 60),
        make_context_switch(RESTORE_START, 100),
        make_context_switch(RESET, 120),
        make_context_switch(RESTORE_START, 130, 2, 20),
        make_context_switch(SAVE_END, 140, 2, 20),
        make_context_switch(RESTORE_START, 150, 2, 20),
    ]
    trace, summary = convert_context_switches(tmp_path, rows)
    assert list_labelled_intervals(trace, CODE) == [
        ("one 10", 0, 40),
        ("one 10", 40, 60),
        ("two 20", 70, 80),
        ("two 20", 90, 91),
    ]
    assert list(summary.dropped.values()) == [1]
    assert sorted(summary.repaired.values()) == [1, 1]


def test_short_ones_are_dropped_when_asked(tmp_path: Path) -> None:
    rows = [
        make_context_switch(RESTORE_START, 0),
        make_context_switch(SAVE_END, 5),
        make_context_switch(RESTORE_START, 10),
        make_context_switch(SAVE_END, 500),
    ]
    trace, summary = convert_context_switches(tmp_path, rows, min_duration={"gpu_contexts": 100})
    assert [end - begin for _, begin, end in list_labelled_intervals(trace, CODE)] == [490]
    assert summary.dropped == {("gpu_contexts", Reason.TOO_SHORT.with_detail("100 ns")): 1}


def test_damage_ends_in_no_traceback(tmp_path: Path) -> None:
    rows = [
        make_context_switch(RESTORE_START, 0),
        make_context_switch(SAVE_END, 5),
        {**make_context_switch(RESTORE_START, 10), "gpuId": "x", "contextId": None},
        {**make_context_switch(SAVE_END, 20), "timestamp": "late"},
        {**make_context_switch(RESTORE_START, 30), "timestamp": None},
    ]
    trace, summary = convert_context_switches(tmp_path, rows)
    assert list_labelled_intervals(trace, CODE)[0][1:] == (0, 5)
    assert sum(summary.repaired.values()) >= 1


def test_a_table_without_its_columns_is_counted(tmp_path: Path) -> None:
    report = make_export(
        tmp_path / "r.sqlite",
        {
            TABLE: [{"tag": 8, "timestamp": 5}],
            KERNEL: [make_kernel(0, 9)],
            "StringIds": make_strings("k"),
        },
    )
    _, summary = convert_and_read([report], tmp_path / "o.prv")
    assert list(summary.dropped.values()) == [1]
