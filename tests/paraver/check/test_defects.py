"""Test that every defect put into a sound trace is found at its line, only by its rule, and that
Paraver reacts to it as described.
"""

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tools.defects import PRV, Edit, write_trace
from tools.paramedir import classify_trace, skip_without_paramedir

from nsys2prv.writers.paraver.check import RULES, check_trace

HEADER, _, *RECORDS = PRV.splitlines()


@dataclass(frozen=True)
class Defect:
    """An edit of one of the files, the rule that it breaks, and the first line and count. `also`:
    rules that it cannot avoid breaking. fate: the outcome in paramedir.
    """

    rule: str
    file: str
    edit: Edit
    line: int
    count: int = 1
    also: set[str] = field(default_factory=set)
    fate: str = "done"

    def __str__(self) -> str:
        return f"{self.rule}-{self.line}"


def edit_prv(
    rule: str,
    edit: Edit,
    line: int | None = None,
    count: int = 1,
    also: set[str] | None = None,
    fate: str = "done",
) -> Defect:
    return Defect(
        rule, "prv", edit, next(iter(edit)) if line is None else line, count, also or set(), fate
    )


def edit_header(rule: str, old: str, new: str, fate: str, also: set[str] | None = None) -> Defect:
    assert old in HEADER
    return edit_prv(rule, {1: HEADER.replace(old, new)}, 1, 1, also, fate)


def edit_pcf(
    rule: str, edit: Edit, line: int | None = None, count: int = 1, also: set[str] | None = None
) -> Defect:
    return Defect(
        rule, "pcf", edit, next(iter(edit)) if line is None else line, count, also or set()
    )


def edit_row(
    rule: str, edit: Edit, line: int | None = None, count: int = 1, also: set[str] | None = None
) -> Defect:
    return Defect(
        rule, "row", edit, next(iter(edit)) if line is None else line, count, also or set()
    )


LATE = "2:1:1:1:1:95:"
#: What a trace breaks, too, if a record with the begin of a range is not read.
BEGIN_LOST = {"end-without-begin"}
DEFECTS = [
    edit_header("not-a-trace", "#Paraver ", "#Paraver", "unrecognised"),
    edit_header("not-a-trace", "#Paraver", "\ufeff#Paraver", "unrecognised"),
    edit_header("header-syntax", "2(2,1)", "3(2,1)", "refused"),
    edit_header("header-syntax", ":1:2(", ":2:2(", "refused"),
    edit_header("header-syntax", "1:2),1", "1:2)xx", "refused"),
    edit_header(
        "task-without-node",
        "1:2(2:1,1:2)",
        "1:2(2:1,0:2)",
        "refused",
        {"object-absent", "row-count"},
    ),
    edit_header("header-syntax", ":100_ns", "", "refused"),
    edit_header("node-without-cpus", "(2,1)", "(2,0)", "crashed", {"cpu-absent", "row-count"}),
    edit_header("task-without-node", "1:2)", "1:0)", "refused", {"cpu-absent"}),
    edit_header("task-without-node", "1:2)", "1:3)", "endless", {"cpu-absent"}),
    edit_header("too-many-objects", "(2:1", "(70000:1", "refused"),
    edit_prv("communicators-missing", {1: HEADER.replace("),1", "),2")}, 3, fate="refused"),
    edit_header("unit", "_ns", "ns", "done"),
    edit_header("unit", "_ns", "", "done"),
    edit_header("header-syntax", "2(2,1)", "2(2,1,5)", "done"),
    edit_header("header-syntax", "1:2)", "1:2,4:1)", "done"),
    edit_prv("unknown-record", {1: HEADER.removesuffix(",1")}, 2, fate="skips"),
    edit_prv("unknown-record", {12: [RECORDS[-1], "c:1:2:1:1"]}, 13, fate="skips"),
    edit_prv("unknown-record", {6: "5:1:1:1:1:5:20:4"}, also=BEGIN_LOST, fate="skips"),
    edit_prv("unknown-record", {12: "12:1:1:1:1:40:90:2"}),
    edit_prv("number-syntax", {12: [RECORDS[-1], LATE + "20: 1"]}, 13, fate="skips"),
    edit_prv("number-syntax", {12: [RECORDS[-1], LATE + "20:1.5"]}, 13, fate="skips"),
    edit_prv("number-syntax", {5: "2:1:1:1:1:0:10:3:20:99999999999999999999"}, also=BEGIN_LOST),
    edit_prv("fields", {12: "1:1:1:1:1:40:90"}, fate="skips"),
    edit_prv("fields", {7: "3:1:1:1:1:5:5:3:1:2:1:6:7:64"}, fate="skips"),
    edit_prv("fields", {12: "1:1:1:1:1:40:90:2:7"}),
    edit_prv("fields", {7: RECORDS[4] + ":1"}),
    edit_prv(
        "fields", {11: RECORDS[8] + ":30"}, also={"open-at-end", "range-unbalanced"}, fate="skips"
    ),
    edit_prv("unknown-record", {5: ["  ", RECORDS[2]]}, fate="skips"),
    edit_prv("number-syntax", {5: "2:1:1:1:1::10:3:20:7"}, also=BEGIN_LOST),
    edit_prv("number-syntax", {5: RECORDS[2] + ":"}, also=BEGIN_LOST),
    edit_prv("unknown-record", {5: ["4:1:2:3", RECORDS[2]]}),
    edit_prv("fields", {12: [RECORDS[-1], LATE[:-1]]}, 13),
    edit_prv("object-absent", {12: [RECORDS[-1], "2:1:1:1:3:95:20:0"]}, 13, fate="skips"),
    edit_prv(
        "object-absent",
        {12: [RECORDS[-1], "2:1:2:1:1:95:20:0", "2:1:0:1:1:96:20:0"]},
        13,
        2,
        fate="skips",
    ),
    edit_prv("object-absent", {7: "3:1:1:1:1:5:5:3:1:2:7:6:7:64:9"}, fate="skips"),
    edit_prv("object-absent", {12: [RECORDS[-1], "2:1:1:1:65537:95:10:0"]}, 13),
    edit_prv("cpu-absent", {12: [RECORDS[-1], "2:4:1:1:1:95:20:0"]}, 13, fate="skips"),
    edit_prv("cpu-absent", {12: [RECORDS[-1], "2:3:1:1:1:95:20:0"]}, 13, fate="skips"),
    edit_prv("time-order", {6: RECORDS[5], 8: RECORDS[3]}, 7, 2),
    edit_prv("negative-time", {3: ["2:1:1:1:1:-5:20:0", RECORDS[0]]}, fate="skips"),
    edit_prv(
        "time-inexact",
        {
            1: HEADER.replace(":100_", f":{2**53 + 10}_"),
            12: [RECORDS[-1], f"2:1:1:1:1:{2**53 + 1}:20:0"],
        },
        13,
    ),
    edit_prv("time-beyond-duration", {12: [RECORDS[-1], "2:1:1:1:1:101:20:0"]}, 13),
    edit_prv("time-beyond-duration", {7: RECORDS[4].replace(":6:7:", ":6:107:")}),
    edit_prv("type-number", {12: [RECORDS[-1], LATE + "-20:0"]}, 13, fate="skips"),
    edit_prv("type-number", {12: [RECORDS[-1], LATE + f"{2**32 + 10}:0"]}, 13),
    edit_prv("type-unlabelled", {12: [RECORDS[-1], LATE + f"{2**31}:0"]}, 13),
    edit_prv("type-unlabelled", {12: [RECORDS[-1], LATE + "30:0", LATE + "30:0:31:0"]}, 13, 3),
    edit_prv("negative-value", {5: "2:1:1:1:1:0:10:3:20:-7"}),
    edit_prv("value-unlabelled", {6: "2:1:1:1:1:5:10:9"}),
    edit_prv("open-at-end", {10: None}, 8),
    edit_prv("range-unbalanced", {9: None}, 10),
    edit_prv("open-at-end", {11: "2:1:1:1:1:9:10:0"}, 5),
    edit_prv("zero-length-range", {9: "2:1:1:1:1:5:10:0", 7: RECORDS[4]}, 9, also={"time-order"}),
    edit_prv("zero-length-range", {6: ["2:1:1:1:1:5:10:4:10:0"], 9: None}, 6),
    edit_prv("end-without-begin", {12: [RECORDS[-1], LATE + "10:0"]}, 13),
    edit_prv("state-number", {12: "1:1:1:1:1:40:90:-2"}, fate="skips"),
    edit_prv("state-number", {12: f"1:1:1:1:1:40:90:{2**32 + 2}"}),
    edit_prv("state-backwards", {12: "1:1:1:1:1:40:39:2"}),
    edit_prv("state-backwards", {12: "1:1:1:1:1:40:40:2"}),
    edit_prv("state-overlap", {3: "1:1:1:1:1:0:41:1"}, 12),
    edit_prv("state-unlabelled", {12: "1:1:1:1:1:40:90:5"}),
    edit_prv("state-backwards", {12: "1:1:1:1:1:40:-1:2"}),
    edit_prv("comm-backwards", {7: "3:1:1:1:1:5:4:3:1:2:1:6:7:64:9"}),
    edit_prv("comm-backwards", {7: "3:1:1:1:1:5:5:3:1:2:1:3:4:64:9"}),
    edit_prv("negative-size", {7: "3:1:1:1:1:5:5:3:1:2:1:6:7:-64:9"}),
    edit_pcf("pcf-line", {1: "OPTIONS"}, count=2),
    edit_pcf("pcf-line", {7: ["1 Running", "Sleeping"]}, 8),
    edit_pcf("pcf-line", {11: "1 {0,0,256}"}),
    edit_pcf("pcf-line", {21: "20 Number"}, also={"type-unlabelled"}),
    edit_pcf("pcf-line", {21: "7 20"}, also={"type-unlabelled"}),
    edit_pcf("label-twice", {21: "7 10 Range"}, also={"type-unlabelled"}),
    edit_pcf("labels-equal", {21: "7 20 Range"}),
    edit_pcf("pcf-line", {22: "PRECISION two"}),
    edit_pcf("pcf-line", {18: ["4 inner", "five"]}, 19),
    edit_pcf("label-twice", {18: ["4 inner", "4 another"]}, 19),
    edit_pcf("labels-equal", {18: ["4 inner", "5 inner"]}, 19),
    edit_pcf("label-text", {17: "3 [outer]"}),
    edit_pcf("label-text", {17: "3 out\ter"}),
    edit_row("row-size", {14: "LEVEL THREAD SIZE 4"}),
    edit_row("row-size", {14: "LEVEL THREAD SIZE 2"}),
    edit_row("row-line", {14: "LEVEL THREAD  SIZE 3"}, also={"row-size"}),
    edit_row("row-count", {17: None, 14: "LEVEL THREAD SIZE 2"}, 14),
    edit_row("row-name", {16: " "}),
    edit_row("row-name", {16: "CUDA\tD0"}),
]


def test_the_sound_trace_is_sound(tmp_path: Path) -> None:
    result = check_trace(write_trace(tmp_path))
    assert not result.findings
    contents = result.contents
    assert (contents.lines, contents.states, contents.events, contents.comms, contents.pairs) == (
        12,
        3,
        6,
        1,
        8,
    )
    assert (contents.types, contents.first, contents.last, contents.end, contents.unit) == (
        (10, 20),
        0,
        90,
        100,
        "ns",
    )
    assert contents.objects == {
        "WORKLOAD": 1,
        "APPL": 1,
        "TASK": 2,
        "THREAD": 3,
        "SYSTEM": 1,
        "NODE": 2,
        "CPU": 3,
    }


@pytest.mark.parametrize("defect", DEFECTS, ids=str)
def test_a_defect_is_found_by_its_rule(tmp_path: Path, defect: Defect) -> None:
    result = check_trace(write_trace(tmp_path, {defect.file: defect.edit}))
    findings = {(finding.rule, finding.file): finding for finding in result.findings}
    finding = findings.get((defect.rule, f"t.{defect.file}"))
    assert finding, list(findings)
    assert (finding.line, finding.count) == (defect.line, defect.count)
    others = {other.rule for other in result.findings} - {defect.rule}
    assert others == defect.also


@pytest.mark.parametrize("defect", [defect for defect in DEFECTS if defect.file == "prv"], ids=str)
def test_paraver_does_what_the_rule_says(tmp_path: Path, defect: Defect) -> None:
    skip_without_paramedir()
    assert classify_trace(tmp_path, write_trace(tmp_path, {"prv": defect.edit})) == defect.fate


@pytest.mark.slow
@pytest.mark.parametrize("size", [16, 61])
def test_blocks_of_any_size_tell_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """What lies before and behind the seam of two blocks is seen together."""
    for defect in DEFECTS:
        prv = write_trace(tmp_path, {defect.file: defect.edit})
        monkeypatch.undo()
        expected = check_trace(prv)
        monkeypatch.setattr("nsys2prv.writers.paraver.check.BLOCK_BYTES", size)
        parts = check_trace(prv)
        assert [(item.rule, item.line, item.count) for item in parts.findings] == [
            (item.rule, item.line, item.count) for item in expected.findings
        ], defect
        assert parts.contents == expected.contents


def test_every_rule_of_records_and_labels_has_a_defect() -> None:
    """Rules of whole files have tests of their own, beside this one."""
    rules = {name for name, rule in RULES.items() if rule.part != "file"}
    elsewhere = {"pcf-missing", "row-missing"}
    assert rules - elsewhere == {defect.rule for defect in DEFECTS} - {
        name for name, rule in RULES.items() if rule.part == "file"
    }
