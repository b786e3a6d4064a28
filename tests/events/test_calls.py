"""Test tables that are declared by one line each: every line with its own small export, and the
possible keys of a line.
"""

from pathlib import Path

import pytest
from tools.conversions import convert_and_read, list_labelled_intervals
from tools.exports import PID, Row, make_export, make_global_pid, make_global_tid, make_strings

from nsys2prv.events import all_kinds, select_kinds
from nsys2prv.events.catalogue import CallTable, DomainCode, load_catalogue
from nsys2prv.events.kind import Reason

LINES = load_catalogue().calls
TEXTS = ("first", "second")


def make_row(line: CallTable, begin: int, end: int | None, name: int | None, **more: object) -> Row:
    """Return a row with all columns that the line reads, on the main thread."""
    process = make_global_pid() if line.thread == "globalPid" else make_global_tid(PID)
    columns: dict[str, object] = {
        line.time[0]: begin,
        line.thread: process,
        **({line.time[1]: end} if line.has_duration else {}),
        **({line.gpu: 1} if line.queue else {}),
        **dict.fromkeys(line.names[1:], 2),
    }
    columns.update({line.names[0]: name} if line.names else {})
    return {**columns, **more}


@pytest.mark.slow
@pytest.mark.parametrize("line", LINES.values(), ids=lambda line: line.name)
def test_every_line_gives_its_events(line: CallTable, tmp_path: Path) -> None:
    numbers = {column: 70 + place for place, column in enumerate(line.numbers)}
    rows = [
        make_row(line, 10, 50, 1, **numbers),
        make_row(line, 60, 90, None if len(line.names) > 1 else 2),
    ]
    tables = {line.table: rows, "StringIds": make_strings(*TEXTS)}
    if line.enum:
        tables[line.enum] = [
            {"id": number, "name": "", "label": text} for number, text in enumerate(TEXTS, 1)
        ]
    trace, summary = convert_and_read(
        [make_export(tmp_path / "r.sqlite", tables)], tmp_path / "o.prv", kinds=(line.name,)
    )
    names = TEXTS if line.names else (line.label, line.label)
    ends = (40, 80) if line.has_duration else (1, 51)
    assert list_labelled_intervals(trace, line.code) == [
        (names[0], 0, ends[0]),
        (names[1], 50, ends[1]),
    ]
    assert summary.events[line.name] == 2
    assert summary.dropped == summary.repaired == {}
    first, second = sorted(trace.list_intervals(line.code), key=lambda item: item.begin)
    assert first.others == {line.code + 2 + place: 70 + place for place in range(len(line.numbers))}
    assert second.others == {}
    assert trace.get_row_name(first.row) == (
        f"{line.queue} GPU1" if line.queue else f"THREAD 1.1.1 {PID}"
    )


def test_codes_of_lines_lie_apart() -> None:
    codes = sorted(line.code for line in LINES.values())
    assert all(code % 100 == 0 for code in codes)
    assert len(set(codes)) == len(codes)
    of_lines = {
        field.code
        for line in LINES
        for field in load_catalogue().layouts[line].fields
        if not field.name.startswith("caller_")
    }
    others = {
        field.code
        for name, layout in load_catalogue().layouts.items()
        if name not in LINES
        for field in layout.fields
    }
    assert not of_lines & {code for code in others if not isinstance(code, DomainCode)}


def test_no_table_is_read_by_two_kinds_of_which_one_is_a_line() -> None:
    others = {table for kind in all_kinds() if kind.name not in LINES for table in kind.tables}
    tables = [line.table for line in LINES.values()]
    assert len(set(tables)) == len(tables)
    assert not others & set(tables)


def test_a_group_means_its_lines() -> None:
    assert {kind.name for kind in select_kinds(["graphics"]).kinds} == {
        line.name for line in LINES.values() if "graphics" in line.groups
    }


def test_a_line_is_all_that_a_table_needs() -> None:
    line = CallTable(
        "tomorrow", "TOMORROW_API", 68009900, "Calls of tomorrow", groups=("graphics",)
    )
    kind = line.make_kind()
    assert [kind[key] for key in ("tables", "groups", "row")] == [
        ["TOMORROW_API"],
        ("graphics",),
        "host thread",
    ]


def test_rows_without_an_end_are_points_where_the_line_says_so(tmp_path: Path) -> None:
    debug, call = LINES["opengl_debug"], LINES["vulkan"]
    tables = {
        debug.table: [make_row(debug, 10, None, 1)],
        call.table: [make_row(call, 20, None, 2)],
        "StringIds": make_strings(*TEXTS),
    }
    trace, summary = convert_and_read(
        [make_export(tmp_path / "r.sqlite", tables)], tmp_path / "o.prv"
    )
    assert list_labelled_intervals(trace, debug.code) == [("first", 0, 1)]
    assert list_labelled_intervals(trace, call.code) == []
    assert summary.dropped == {("vulkan", Reason.NO_TIME): 1}


def test_results_and_numbers_of_enumerations_that_have_no_name(tmp_path: Path) -> None:
    line, gl = LINES["wddm_queue"], LINES["opengl"]
    tables = {
        line.table: [make_row(line, 0, 5, 4), make_row(line, 6, 9, None)],
        gl.table: [make_row(gl, 0, 5, 1, returnValue=7), make_row(gl, 6, 9, 1, returnValue=-1)],
        "StringIds": make_strings(*TEXTS),
    }
    trace, _ = convert_and_read([make_export(tmp_path / "r.sqlite", tables)], tmp_path / "o.prv")
    assert [name for name, _, _ in list_labelled_intervals(trace, line.code)] == [
        "WDDM queue packets 4",
        "WDDM queue packets",
    ]
    assert [
        item.others for item in sorted(trace.list_intervals(gl.code), key=lambda item: item.begin)
    ] == [{gl.code + 1: 7}, {}]
