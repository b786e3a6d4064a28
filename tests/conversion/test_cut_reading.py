"""Parts in time of large jobs, of which little is read, against the same parts of jobs that are read in full."""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path

import pytest
from tools.trace import Row, Trace
from tools.trace_reader import read_trace

from nsys2prv import Options, convert
from nsys2prv.conversion import cut_reading
from nsys2prv.conversion.options import CutOptions
from nsys2prv.export import outlines, sqlite

SAMPLES = Path(__file__).parents[2] / "sample_reports"
#: Numbers that are counted from the first one that is read.
COUNTED = ("NCCL collective number",)
#: Of which little is read: reports of one host.
SETS = ["graphs", "machine"]


def list_records(trace: Trace) -> Counter[tuple]:
    """Return the records of a trace, with names of rows and labels for numbers."""

    def name(row: Row) -> tuple[str, str]:
        return trace.get_task_name(row), re.sub(r"^THREAD [\d.]+", "", trace.get_row_name(row))

    def label(code: int, value: int) -> tuple[str, str]:
        return trace.labels.types[code], trace.get_label(code, value)

    records: Counter[tuple] = Counter()
    for code, intervals in trace.events.items():
        for one in intervals:
            others = frozenset(label(*pair) for pair in one.others.items())
            others = frozenset(pair for pair in others if pair[0] not in COUNTED)
            value = () if trace.labels.types[code] in COUNTED else label(code, one.value)
            records[name(one.row), value, one.begin, one.end, others] += 1
    for line in trace.comms:
        ends = name(line.sender), line.send, name(line.receiver), line.receive
        records[(*ends, line.size, line.tag)] += 1
    for sample in trace.samples:
        numbers = ((trace.labels.types[code], number) for code, number in sample.numbers.items())
        records[name(sample.row), sample.time, frozenset(numbers)] += 1
    return records


@pytest.mark.parametrize("name", SETS)
def test_a_part_of_a_large_job(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reports, luck = sorted((SAMPLES / name).glob("*.sqlite")), random.Random(len(name))
    monkeypatch.setattr(cut_reading, "LEAST_REPORT_ROWS", 0)
    monkeypatch.setattr(sqlite, "SMALL_FILE", 0)
    of_all: Counter[str] = Counter()
    for block_rows in (8, 8, 64):
        begin = luck.uniform(0, 90)
        time = f"{begin}%:{begin + luck.uniform(1, 10)}%"
        monkeypatch.setattr(outlines, "BLOCK_ROWS", block_rows)
        found, read = [], []
        for least in (1 << 60, 0):
            monkeypatch.setattr(cut_reading, "LEAST_ROWS", least)
            options = Options(cut=CutOptions(time=time), full_kernel_names=True)
            summary = convert(reports, tmp_path / "cut.prv", options)
            trace = read_trace(tmp_path / "cut.prv")
            assert not trace.violations, str(trace.violations)
            assert not summary.ledger.missing
            found.append((trace.duration, len(trace.tasks), list_records(trace)))
            read.append(sum(account.rows for account in summary.ledger.kinds.values()))
        assert found[0] == found[1], (time, block_rows)
        outside = [one.get("outside-cut", 0) for one in summary.ledger.tables.values()]
        assert sum(outside) >= read[0] - read[1]
        of_all.update(all=read[0], part=read[1])
    assert of_all["part"] < of_all["all"]
