"""Test that the independent reader of traces finds defects beyond the rules of `nsys2prv check`."""

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


def write_and_read(folder: Path, **texts: str) -> Trace:
    """Write these texts by their files' endings as a trace and read it."""
    for ending, text in texts.items():
        (folder / f"t.{ending}").write_bytes(text.encode())
    return read_trace(folder / "t.prv")


def test_a_sound_trace_reads_as_written(tmp_path: Path) -> None:
    trace = write_and_read(tmp_path, prv="\n".join((HEADER, *RECORDS)), pcf=PCF, row=ROW)
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
    ("file", "old", "new", "violation"),
    [
        ("prv", "2:2:1:1:2:6", "2:1:1:1:2:6", "CPU shared by two rows"),
        ("prv", "20:7", "20:7:20:7", "type twice in one record"),
        ("prv", ":5:5:2:", ":5:4:2:", "line sent before it is sent logically"),
        ("prv", "2:1:1:1:1:5:10:4\n", "1:1:1:1:1:5:6:1\n", "STATES section without states"),
        ("prv", "\n", "\r\n", "carriage return"),
        ("pcf", "3 outer [x]", "3000000000 other", "value beyond what can be labelled"),
        ("pcf", "0 End", "0 Off", "type with values whose 0 is not End"),
        ("pcf", "7 20 Number", "7 300001 Number", "type that begins with 30000"),
        (
            "pcf",
            "EVENT_TYPE\n0 10",
            "STATES\n1 Running\nEVENT_TYPE\n0 10",
            "STATES section without",
        ),
        ("pcf", "\n", "\r\n", "carriage return"),
        ("row", "NODE SIZE 2", "TASK SIZE 2", "level twice in the .row"),
    ],
)
def test_a_defect_is_found(tmp_path: Path, file: str, old: str, new: str, violation: str) -> None:
    texts = {"prv": "\n".join((HEADER, *RECORDS)) + "\n", "pcf": PCF, "row": ROW}
    violations = write_and_read(
        tmp_path, **{**texts, file: texts[file].replace(old, new)}
    ).violations
    assert [found.startswith(violation) for found in violations] == [True]
