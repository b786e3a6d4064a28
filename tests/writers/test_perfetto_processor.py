"""Test traces for Perfetto with Perfetto's own trace processor, if installed:
`trace_processor_shell` on the PATH, or the program in TRACE_PROCESSOR, called as `PROGRAM -q
QUERY.sql TRACE`.
"""

import csv
import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from tools.perfetto_reader import read_perfetto

from nsys2prv import Options, convert

SAMPLES = Path(__file__).parents[2] / "sample_reports"
PROCESSOR = os.environ.get("TRACE_PROCESSOR") or shutil.which("trace_processor_shell")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not PROCESSOR,
        reason="no trace_processor_shell (perfetto.dev) on PATH or in TRACE_PROCESSOR",
    ),
]


def query(trace: Path, sql: str) -> list[list[str]]:
    file = trace.with_suffix(".sql")
    file.write_text(sql)
    command = [PROCESSOR, "-q", str(file), str(trace)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [row for row in csv.reader(done.stdout.splitlines()) if row][1:]


@pytest.mark.parametrize("sample", ["training", "cluster", "graphs", "machine", "mpi"])
def test_the_trace_processor_reads_what_was_written(sample: str, tmp_path: Path) -> None:
    reports = sorted((SAMPLES / sample).glob("*.sqlite"))
    path = tmp_path / "out.pftrace"
    convert(reports, path, Options(report=True))
    errors = "select name, value from stats where value > 0 and severity in ('error', 'data_loss')"
    assert query(path, errors) == []
    lost = "select name, value from stats where value > 0 and name glob 'track_event*'"
    assert query(path, lost) == []
    trace = read_perfetto(path)

    counts = Counter(one.category for one in trace.slices)
    times = Counter[str]()
    for one in trace.slices:
        times[one.category] += one.duration
    found, lengths = Counter[str](), Counter[str]()
    sums = "select coalesce(category, ''), count(*), sum(dur) from slice group by 1"
    for categories, count, length in query(path, sums):
        # The processor joins the names of an event's categories.
        found[categories.split(",")[0]] += int(count)
        lengths[categories.split(",")[0]] += int(length)
    assert (found, +lengths) == (counts, +times)

    joined = Counter(
        (trace.slices[first].category, trace.slices[second].category)
        for _, first, second in trace.flows
    )
    pairs = query(
        path,
        "select a.category, b.category, count(*) from flow"
        " join slice a on slice_out = a.id join slice b on slice_in = b.id group by 1, 2",
    )
    assert {(a, b): int(number) for a, b, number in pairs} == joined
    assert joined

    (samples,) = query(path, "select count(*) from counter")
    assert int(samples[0]) == sum(map(len, trace.counters.values()))
    (first,) = query(path, "select name from process where pid = 1000000000")
    assert first == ["Report of nsys2prv"]
    texts = "select count(distinct display_value) from args where key = 'debug.finding'"
    (told,) = query(path, texts)
    assert int(told[0]) == len(
        {one.arguments["finding"] for one in trace.slices if "finding" in one.arguments}
    )
