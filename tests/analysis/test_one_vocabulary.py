"""What hosts do is said by one vocabulary: states of traces, parts of time, and samples in stacks agree to the
nanosecond.
"""

from collections import Counter
from pathlib import Path

import polars as pl
import pytest
from tools.commands import SAMPLES
from tools.trace_reader import read_trace

import nsys2prv
from nsys2prv.figures import time_division
from nsys2prv.figures.device_group import DeviceGroup
from nsys2prv.figures.host_time import CALLS, PARTS, find_host_parts
from nsys2prv.figures.result import Table

RUNNING, PROFILING = 1, 18


def measure_parts(
    monkeypatch: pytest.MonkeyPatch, reports: list[Path]
) -> tuple[dict[str, dict[str, int]], pl.DataFrame]:
    """Return label of the main thread of each task -> its time in each part (ns); and the threads."""

    def collect(unit: DeviceGroup):
        for task in unit.tasks:
            thread = unit.find_main_thread(task)
            sums = Counter(dict.fromkeys(PARTS, 0))
            for part, spans in find_host_parts(unit, thread, unit.covered):
                sums[part] += spans.length
            yield "parts", pl.DataFrame({"thread": thread, **sums})

    def conclude(frames, context, result) -> None:
        result.tables["parts"] = Table("", frames["parts"])

    monkeypatch.setattr(time_division, "collect", collect)
    monkeypatch.setattr(time_division, "conclude", conclude)
    with nsys2prv.open(reports, jobs=1) as job:
        frame = job.analyse("time", whole=True)["time"].tables["parts"].frame
        threads = job.reader.rows.threads
    rows = frame.join(threads.select(pl.col("thread").cast(pl.Int64), "row"), on="thread")
    return {row.pop("row"): row for row in rows.iter_rows(named=True)}, threads


@pytest.mark.parametrize("name", ["mpi", "graphs", "machine"])
def test_states_are_the_parts_of_time(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state is none of a call where no part is: off the CPU, by thread states, states alone tell."""
    reports = sorted((SAMPLES / name).glob("*.sqlite"))
    nsys2prv.convert(reports, tmp_path / "o.prv", nsys2prv.Options(states=True, jobs=1))
    trace = read_trace(tmp_path / "o.prv")
    parts, _ = measure_parts(monkeypatch, reports)
    assert parts
    for label, own in parts.items():
        of_row = [one for one in trace.states if label.endswith(trace.get_row_name(one.row))]
        states = Counter[int]()
        for one in of_row:
            states[one.value] += one.end - one.begin
        assert sum(states.values()) == trace.duration
        assert states[PROFILING] == own["profiler"]
        if name != "machine":
            in_calls = sum(own[part] for part in {*CALLS.values(), "io", "profiler"})
            assert states[RUNNING] == own["unknown"] == trace.duration - in_calls > 0
