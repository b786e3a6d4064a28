"""Test parts of large jobs, which are read in part, against the same parts of jobs that are read
completely.
"""

from __future__ import annotations

import random
import re
import shutil
import sqlite3
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from samples import Options as Job
from samples import generate
from tools.merged_processes import merge_processes
from tools.trace import Row, Trace
from tools.trace_reader import read_trace

from nsys2prv import Options, convert
from nsys2prv.conversion import cut_reading, cut_rows, table_maps
from nsys2prv.conversion import read as reading
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


@pytest.fixture(autouse=True)
def small_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose rows of small reports, too."""
    monkeypatch.setattr(cut_reading, "LEAST_REPORT_ROWS", 0)
    monkeypatch.setattr(sqlite, "SMALL_FILE", 0)


def compare_part(
    reports: Sequence[Path],
    time: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    kinds: Sequence[str] = (),
) -> tuple[int, int]:
    """Compare a part of a job that is read in full with the same part of one that is not; return how many rows each
    time were read. kinds: the selected ones.
    """
    found, read = [], []
    for least in (1 << 60, 0):
        monkeypatch.setattr(cut_reading, "LEAST_ROWS", least)
        options = Options(kinds, cut=CutOptions(time=time), full_kernel_names=True)
        summary = convert(reports, folder / "cut.prv", options)
        trace = read_trace(folder / "cut.prv")
        assert not trace.violations, str(trace.violations)
        assert not summary.ledger.missing
        found.append((trace.duration, len(trace.tasks), list_records(trace), summary.clocks))
        read.append(sum(account.rows for account in summary.ledger.kinds.values()))
    assert found[0] == found[1], time
    outside = [one.get("outside-cut", 0) for one in summary.ledger.tables.values()]
    assert sum(outside) >= read[0] - read[1]
    return read[0], read[1]


@pytest.mark.parametrize("name", SETS)
def test_a_part_of_a_large_job(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reports, luck = sorted((SAMPLES / name).glob("*.sqlite")), random.Random(len(name))
    of_all: Counter[str] = Counter()
    for block_rows, kept_runs, task_rows in ((8, 3, 200), (8, 100, 1000), (64, 100, 100_000)):
        begin = luck.uniform(0, 90)
        monkeypatch.setattr(reading, "TASK_ROWS", task_rows)
        monkeypatch.setattr(cut_rows, "KEPT_RUNS", kept_runs)
        monkeypatch.setattr(outlines, "BLOCK_ROWS", block_rows)
        time = f"{begin}%:{begin + luck.uniform(1, 10)}%"
        whole, part = compare_part(reports, time, tmp_path, monkeypatch)
        of_all.update(all=whole, part=part)
    assert of_all["part"] < of_all["all"]


def test_a_part_of_a_job_with_collectives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generate(tmp_path, Job(ranks=3, hosts=1, events_per_rank=3_000, nccl_groups=True))
    reports, luck = sorted(tmp_path.glob("*.sqlite")), random.Random(2)
    monkeypatch.setattr(outlines, "BLOCK_ROWS", 8)
    for task_rows, rows_together in ((300, 100), (100_000, 50_000)):
        monkeypatch.setattr(reading, "TASK_ROWS", task_rows)
        monkeypatch.setattr(table_maps, "ROWS_TOGETHER", rows_together)
        begin = luck.uniform(5, 90)
        whole, part = compare_part(reports, f"{begin}%:{begin + 4}%", tmp_path, monkeypatch)
        assert part < whole / 2


@pytest.mark.parametrize(
    ("hosts", "kinds", "more"),
    [
        (2, (), {"mpi": True, "nccl_groups": True}),
        (2, (), {"payload": "none"}),
        (4, (), {"nccl": False, "mpi": True}),
        # Clocks are aligned by events that are not in the trace.
        (2, ("nvtx_pushpop_trace", "cuda_sync"), {}),
    ],
)
def test_a_part_of_a_job_of_several_hosts(
    hosts: int,
    kinds: tuple[str, ...],
    more: dict[str, object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generate(tmp_path, Job(ranks=4, hosts=hosts, events_per_rank=1_500, **more))
    reports, luck = sorted(tmp_path.glob("*.sqlite")), random.Random(hosts)
    monkeypatch.setattr(outlines, "BLOCK_ROWS", 8)
    monkeypatch.setattr(reading, "TASK_ROWS", 500)
    begin = luck.uniform(5, 90)
    whole, part = compare_part(reports, f"{begin}%:{begin + 4}%", tmp_path, monkeypatch, kinds)
    assert part < whole * 0.7


@pytest.mark.parametrize("processes", [1, 2])
def test_a_part_of_a_process_with_several_gpus(
    processes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate(tmp_path, Job(ranks=4, hosts=1, events_per_rank=1_500))
    ranks, luck = sorted(tmp_path.glob("*.sqlite")), random.Random(processes)
    own = [ranks[first::processes] for first in range(processes)]
    reports = [
        merge_processes(of, tmp_path / f"process{number}.sqlite") for number, of in enumerate(own)
    ]
    monkeypatch.setattr(outlines, "BLOCK_ROWS", 8)
    begin = luck.uniform(5, 90)
    whole, part = compare_part(reports, f"{begin}%:{begin + 4}%", tmp_path, monkeypatch)
    assert part < whole / 2


def test_ranges_that_overlap_in_chains_keep_their_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report, luck = (
        Path(shutil.copy(SAMPLES / "training" / "rank0.sqlite", tmp_path)),
        random.Random(1),
    )
    connection = sqlite3.connect(report)
    for table, where in (("CUPTI_ACTIVITY_KIND_KERNEL", "1"), ("NVTX_EVENTS", "eventType = 60")):
        rows = f"{table} WHERE {where} AND end IS NOT NULL"
        times = connection.execute(f"SELECT rowid, start, end FROM {rows}").fetchall()
        apart = (times[-1][1] - times[0][1]) / len(times)
        for rowid, _, end in times:
            later = end + int(luck.expovariate(1 / (4 * apart)))
            connection.execute(f"UPDATE {table} SET end = {later} WHERE rowid = {rowid}")
    connection.commit()
    connection.close()
    monkeypatch.setattr(outlines, "BLOCK_ROWS", 4)
    for _ in range(8):
        begin = luck.uniform(10, 90)
        compare_part([report], f"{begin}%:{begin + 0.3}%", tmp_path, monkeypatch)
