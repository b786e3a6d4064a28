"""Test that numbers in JSON payloads of NVTX are in the trace from start to end."""

import json
import sqlite3
from pathlib import Path

from tools.conversions import convert_and_read
from tools.exports import Row, make_export, make_global_tid, make_strings
from tools.trace import Trace

from nsys2prv.conversion.summary import Summary
from nsys2prv.events.kind import Reason
from nsys2prv.events.nvtx import MOST_NAMES

NVTX = "NVTX_EVENTS"
MARK, PUSHPOP, STARTEND, DOMAIN = 34, 59, 60, 75
TEXTS = ("nvtx_payloads", Reason.PAYLOAD_TEXT)


def make_event(
    start: int,
    end: int | None,
    payload: object = None,
    kind: int = PUSHPOP,
    domain: int = 1,
    tid: int = 4242,
    **columns: object,
) -> Row:
    """Return an NVTX row with a payload."""
    text = payload if payload is None or isinstance(payload, (str, bytes)) else json.dumps(payload)
    return {
        "start": start,
        "end": end,
        "eventType": kind,
        "text": "r",
        "globalTid": make_global_tid(tid),
        "domainId": domain,
        "jsonText": text,
        "jsonTextId": None,
        **columns,
    }


def convert_events(
    folder: Path, *rows: Row, name: str = "lib", texts: tuple[str, ...] = (), **options: object
) -> tuple[Trace, Summary]:
    """Convert an export with these NVTX rows."""
    created = make_event(0, None, kind=DOMAIN, text=name)
    origin = make_event(0, 1, domain=0)
    report = make_export(
        folder / "r.sqlite", {NVTX: [created, origin, *rows], "StringIds": make_strings(*texts)}
    )
    return convert_and_read([report], folder / "o.prv", **options)


def list_numbers(trace: Trace, label: str) -> list[tuple[int, int]]:
    """Return (time, value) of the records with a label, without the 0 at the end of the trace."""
    codes = [code for code, known in trace.labels.types.items() if known == label]
    return [
        (sample.time, sample.numbers[code])
        for code in codes
        for sample in trace.samples
        if code in sample.numbers and (sample.time < trace.duration or sample.numbers[code])
    ]


def test_numbers_stand_from_begin_to_end_by_domain_and_name(tmp_path: Path) -> None:
    payload = {
        "data": [
            {"size": {"uint64": 7}},
            {"shape": [{"int32": 2}, {"int32": 3}]},
            {"ratio": {"float64": 0.25}},
        ]
    }
    trace, _ = convert_events(
        tmp_path,
        make_event(10, 50, payload),
        make_event(60, 90, {"data": [{"size": {"uint64": 9}}]}, STARTEND),
        make_event(70, 80, {"data": [{"size": {"int64": 4}}]}, domain=0),
        make_event(95, 99),
    )
    assert list_numbers(trace, "lib: size") == [(10, 7), (50, 0), (60, 9), (90, 0)]
    assert list_numbers(trace, "lib: shape[0]") == [(10, 2), (50, 0)]
    assert list_numbers(trace, "lib: shape[1]") == [(10, 3), (50, 0)]
    assert list_numbers(trace, "lib: ratio (fraction)") == [(10, 25), (50, 0)]
    assert list_numbers(trace, "default domain: size") == [(70, 4), (80, 0)]
    [code] = [
        code for code, label in trace.labels.types.items() if label == "lib: ratio (fraction)"
    ]
    assert trace.labels.precision[code] == 2


def test_threads_flat_objects_registered_json_and_repeated_names(tmp_path: Path) -> None:
    twice = {"data": [{"n": {"int32": 5}}, {"n": {"int32": 6}}]}
    trace, _ = convert_events(
        tmp_path,
        make_event(10, 20, jsonTextId=1),
        make_event(10, 30, {"n": 3}, tid=4243),
        make_event(40, 50, twice),
        make_event(60, 70),
        texts=('{"n": 8}',),
    )
    by_row = {
        (trace.get_row_name(sample.row).split()[-1], sample.time, value)
        for sample in trace.samples
        for value in sample.numbers.values()
        if value and sample.time < 40
    }
    assert by_row == {("4242", 10, 8), ("4243", 10, 3)}
    assert list_numbers(trace, "lib: n #2") == [(40, 6), (50, 0)]


def test_marks_last_1_ns_and_calls_of_nccl_have_types_of_their_own(tmp_path: Path) -> None:
    trace, summary = convert_events(
        tmp_path,
        make_event(10, None, {"nRanks": 2}, MARK),
        make_event(20, 30, {"nRanks": 2}),
        make_event(40, 50),
        name="NCCL",
    )
    assert list_numbers(trace, "NCCL: nRanks") == [(10, 2), (11, 0)]
    assert [item.others[9505] for item in trace.list_intervals(9500) if 9505 in item.others] == [2]
    assert not summary.dropped


def test_texts_and_damage_are_no_numbers(tmp_path: Path) -> None:
    rows = [
        make_event(10, 20, {"data": [{"name": {"string": "abc"}}, {"n": {"int32": 1}}]}),
        make_event(30, 40, "{not json"),
        make_event(50, 60, b"\xff\x00{"),
        make_event(70, 80, "[]"),
        make_event(90, 95, '{"n": null, "big": 1e300, "minus": -5}'),
        make_event(100, None, {"n": 2}),
    ]
    trace, summary = convert_events(tmp_path, *rows)
    assert list_numbers(trace, "lib: n")[:3] == [(10, 1), (20, 0), (100, 2)]
    assert list_numbers(trace, "lib: minus") == [(90, 0), (95, 0)]
    assert summary.dropped == {TEXTS: 1}


def test_names_that_are_no_utf8_and_numbers_without_a_name(tmp_path: Path) -> None:
    rows = [
        make_event(0, 1, domain=0),
        make_event(10, 20, b'{"n\xff": 1}', domain=0),
        make_event(30, 40, "7", domain=0),
    ]
    report = make_export(tmp_path / "r.sqlite", {NVTX: rows})
    with sqlite3.connect(report) as connection:
        connection.execute(f"UPDATE {NVTX} SET jsonText = CAST(jsonText AS TEXT)")
    trace, _ = convert_and_read([report], tmp_path / "o.prv")
    assert list_numbers(trace, "default domain: n\ufffd") == [(10, 1), (20, 0)]
    assert list_numbers(trace, "default domain: number") == [(30, 7)]


def test_payloads_of_short_ranges_are_left_out_with_them(tmp_path: Path) -> None:
    trace, _ = convert_events(
        tmp_path,
        make_event(10, 12, {"n": 1}),
        make_event(20, 40, {"n": 2}),
        make_event(50, 51, {"n": 3}, MARK),
        make_event(60, 90),
        min_duration={"nvtx": 5},
    )
    times = [time for time, value in list_numbers(trace, "lib: n") if value]
    assert [value for _, value in list_numbers(trace, "lib: n") if value] == [2, 3]
    assert times[1] - times[0] == 30


def test_names_without_end_are_cut(tmp_path: Path) -> None:
    rows = [
        make_event(10 * place, 10 * place + 5, {f"step{place}": 1, "n": 2})
        for place in range(1, MOST_NAMES + 50)
    ]
    trace, summary = convert_events(tmp_path, *rows)
    assert (
        len([label for label in trace.labels.types.values() if label.startswith("lib: ")])
        == MOST_NAMES
    )
    assert len([value for _, value in list_numbers(trace, "lib: n") if value]) == len(rows)
    assert summary.dropped == {
        ("nvtx_payloads", Reason.RARE_PAYLOAD_NAME): len(rows) + 1 - MOST_NAMES
    }
