"""The independent reader of traces finds every defect that is put into a sound trace."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.defects import ROW
from tools.trace_reader import Interval, Trace, read_trace

HEADER = "#Paraver (21/11/2025 at 07:30):100_ns:2(2,1):1:2(2:1,1:2)"
RECORDS = (
    "2:1:1:1:1:0:10:3:20:7",
    "2:1:1:1:1:5:10:4",
    "3:1:1:1:1:5:5:2:1:1:2:6:6:64:9",
    "2:2:1:1:2:6:10:3",
    "2:1:1:1:1:8:10:0",
    "2:2:1:1:2:9:10:0",
    "2:1:1:1:1:9:10:0:20:0",
)
PCF = """DEFAULT_OPTIONS

LEVEL               THREAD

EVENT_TYPE
0 10 Range
VALUES
0 End
3 outer [x]
4 inner

EVENT_TYPE
7 20 Number
"""


def write_and_read(
    folder: Path,
    records: tuple[str, ...] = RECORDS,
    header: str = HEADER,
    pcf: str = PCF,
    row: str = ROW,
) -> Trace:
    """Write these texts as a trace and read it."""
    for ending, text in (
        (".prv", "\n".join((header, *records)) + "\n"),
        (".pcf", pcf),
        (".row", row),
    ):
        (folder / f"t{ending}").write_bytes(text.encode())
    return read_trace(folder / "t.prv")


def test_a_sound_trace_reads_as_written(tmp_path: Path) -> None:
    trace = write_and_read(tmp_path)
    assert not trace.violations, str(trace.violations)
    assert (trace.duration, trace.nodes, trace.tasks) == (100, [2, 1], [(2, 1), (1, 2)])
    assert trace.list_intervals(10) == [
        Interval((1, 1), 4, 5, 8, {}),
        Interval((1, 2), 3, 6, 9, {}),
        Interval((1, 1), 3, 0, 9, {20: 7}),
    ]
    assert [
        (comm.sender, comm.send, comm.receiver, comm.receive, comm.size, comm.tag)
        for comm in trace.comms
    ] == [((1, 1), 5, (1, 2), 6, 64, 9)]
    assert trace.get_label(10, 3) == "outer [x]"
    assert trace.get_row_name((2, 1)) == "other"
    assert trace.get_task_name((2, 1)) == "second"
    assert trace.deepest[10] == 2


@pytest.mark.parametrize(
    ("records", "violation"),
    [
        (("2:1:1:1:1:5:20:1", "2:1:1:1:1:4:20:0"), "not sorted by time"),
        (("2:1:1:1:1:-5:20:0",), "negative number"),
        (("2:1:1:1:1:101:20:0",), "time outside the trace"),
        (("2:1:1:1:3:5:20:0",), "unknown object"),
        (("2:3:1:1:1:5:20:0",), "CPU not on the node of the task"),
        (("2:1:1:1:1:5:20:0", "2:1:1:1:2:5:20:0"), "CPU shared by two rows"),
        (("2:1:1:1:1:5:10:0",), "end of a range that never began"),
        (("2:1:1:1:1:5:10:3",), "ranges left open at the end"),
        (("2:1:1:1:1:5:20:3",), "number left standing at the end"),
        (("2:1:1:1:1:5:10:3", "2:1:1:1:1:5:10:0"), "range of no length"),
        (("2:1:1:1:1:5:30:0",), "type without a label"),
        (("2:1:1:1:1:5:10:9", "2:1:1:1:1:6:10:0"), "value without a label"),
        (("2:1:1:1:1:5:20: 1",), "not a record"),
        (("2:1:1:1:1:5:20",), "record of unknown kind or length"),
        (("1:1:1:1:1:5:6:1",), "STATES section without states, or states without it"),
        (("1:1:1:1:1:5:5:1",), "state of no length"),
        (("2:1:1:1:1:5:20:0\r",), "carriage return"),
    ],
)
def test_defects_of_records(tmp_path: Path, records: tuple[str, ...], violation: str) -> None:
    assert violation in write_and_read(tmp_path, records).violations


@pytest.mark.parametrize(
    ("old", "new", "violation"),
    [
        ("3 outer [x]", "3 [outer]", "label all in brackets"),
        ("3 outer [x]", "3 out\ter", "label with a tab or control character"),
        ("3 outer [x]", "3 ", "line of the .pcf is not `number label`"),
        ("3 outer [x]", "3 inner", "label of several values of a type"),
        ("3 outer [x]", "4 other", "value labelled twice"),
        ("3 outer [x]", "3000000000 other", "value beyond what can be labelled"),
        ("0 End", "0 Off", "type with values whose 0 is not End"),
        ("7 20 Number", "7 20 Range", "label of several types"),
        ("7 20 Number", "7 10 Number", "type declared twice"),
        ("7 20 Number", "20 Number", "EVENT_TYPE line is not `colour type label`"),
        (
            "7 20 Number",
            "7 300001 Number",
            "type that begins with 30000, which others take for CPU samples",
        ),
        ("0 10 Range\n", "", "type without a label"),
        (
            "EVENT_TYPE\n0 10",
            "STATES\n1 Running\nEVENT_TYPE\n0 10",
            "STATES section without states, or states without it",
        ),
        ("\n", "\r\n", "carriage return"),
        ("DEFAULT_OPTIONS", "OPTIONS", "line of the .pcf outside a section"),
    ],
)
def test_defects_of_labels(tmp_path: Path, old: str, new: str, violation: str) -> None:
    assert violation in write_and_read(tmp_path, pcf=PCF.replace(old, new)).violations


@pytest.mark.parametrize(
    ("old", "new", "violation"),
    [
        ("THREAD SIZE 3", "THREAD SIZE 2", "wrong SIZE in the .row"),
        ("NODE SIZE 2", "NODE  SIZE 2", "line of the .row outside a level"),
        ("NODE SIZE 2", "TASK SIZE 2", "level twice in the .row"),
        ("other", " ", "row name empty or with control characters"),
    ],
)
def test_defects_of_names(tmp_path: Path, old: str, new: str, violation: str) -> None:
    assert violation in write_and_read(tmp_path, row=ROW.replace(old, new)).violations


@pytest.mark.parametrize(
    ("header", "violation"),
    [
        (HEADER.replace("2(2,1)", "3(2,1)"), "wrong number of nodes or tasks in the header"),
        (HEADER.replace("(2,1)", "(2,0)"), "node without CPU, or task on an unknown node"),
        (HEADER.replace("1:2)", "70000:2)"), "more objects than Paraver holds"),
    ],
)
def test_defects_of_the_header(tmp_path: Path, header: str, violation: str) -> None:
    assert violation in write_and_read(tmp_path, header=header).violations
