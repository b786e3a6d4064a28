"""Test that states in traces and parts of host time in tables and findings use the same terms, and
agree to the nanosecond.
"""

from collections import Counter
from pathlib import Path

import pytest
from tools.commands import SAMPLES
from tools.trace_reader import read_trace

import nsys2prv
from nsys2prv import analyses
from nsys2prv.figures.host_time import CALLS, find_host_parts, sum_host_parts

RUNNING, PROFILING = 1, 18


def measure_parts(
    monkeypatch: pytest.MonkeyPatch, reports: list[Path]
) -> dict[str, dict[str, int]]:
    """Return label of the main thread of each task -> its time in each part (ns)."""

    found: dict[str, dict[str, int]] = {}
    collect_units = analyses._collect_units

    def measure(opened, able, options):
        labels = opened.reader.rows.threads["row"]
        for number in opened.units:
            unit = analyses.make_device_group(options, opened.saved_reader, number)
            for thread in map(unit.find_main_thread, unit.tasks):
                found[labels[thread]] = sum_host_parts(find_host_parts(unit, thread, unit.covered))
        return collect_units(opened, able, options)

    monkeypatch.setattr(analyses, "_collect_units", measure)
    with nsys2prv.open(reports, jobs=1) as job:
        job.analyse("time", whole=True)
    return found


@pytest.mark.parametrize("name", ["mpi", "graphs", "machine"])
def test_states_are_the_parts_of_time(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the state is not that of a call where there is no part. Off the CPU, only thread
    states decide.
    """
    reports = sorted((SAMPLES / name).glob("*.sqlite"))
    nsys2prv.convert(reports, tmp_path / "o.prv", nsys2prv.Options(states=True, jobs=1))
    trace = read_trace(tmp_path / "o.prv")
    parts = measure_parts(monkeypatch, reports)
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
