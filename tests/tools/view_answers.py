"""What Paraver's command line program makes of the views on the samples' traces, and the same by other means.

What it said is recorded in tests/view_answers/, so that figures can be compared where there is no Paraver. After a change of views or
traces: ``PYTHONPATH=tests:. python tests/tools/view_answers.py``, with paramedir on the PATH, records them again; read the difference.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import lzma
import os
import re
import shutil
import sqlite3
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tools.shared_gpus import make_shared_gpus
from tools.trace import Trace
from tools.trace_reader import read_trace

from nsys2prv import Options, convert
from nsys2prv.paraver.cfg.catalogue import FILE, load
from nsys2prv.paraver.cfg.model import asks

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "cfgs"
VIEWS = load(FOLDER / FILE)
PARAMEDIR = shutil.which("paramedir")
SAMPLES = {folder: sorted((ROOT / "sample_reports" / folder).glob("*.sqlite")) for folder in ("training", "graphs", "cluster", "machine")}
#: Jobs made for a case that no sample has: name -> what writes its exports into a folder, always the same.
MADE: dict[str, Callable[[Path], list[Path]]] = {"shared_gpus": lambda folder: make_shared_gpus(folder).exports}
needs_paraver = pytest.mark.skipif(PARAMEDIR is None, reason="paramedir, Paraver's command line program, is not on the PATH")
RECORDS = ROOT / "tests" / "view_answers"
#: Characters of a timeline that is recorded: those of every event would be most of it.
LONGEST = 100_000
_read = cache(read_trace)


@dataclass(frozen=True)
class Answers:
    """What paramedir said of the views on a sample's trace. path: the trace. tables: view -> text of the table or timeline."""

    path: Path
    exports: list[Path]
    duration: int
    present: set[int]
    output: str
    tables: dict[str, str]

    def columns(self, view: str) -> dict[str, float]:
        """Column -> sum over the rows of a table."""
        head, *rows = self.tables[view].split("\n\n")[0].splitlines()
        found: dict[str, float] = defaultdict(float)
        for row in rows:
            for name, cell in zip(head.split("\t")[1:], row.split("\t")[1:], strict=True):
                if name:
                    found[name] += float(cell)
        return dict(found)

    def rows(self, view: str) -> list[list[float]]:
        """Cells of each row of a table."""
        return [[float(cell) for cell in row.split("\t")[1:] if cell] for row in self.tables[view].split("\n\n")[0].splitlines()[1:]]

    def totals(self, view: str) -> dict[str, list[float]]:
        """Total, Average, Maximum, Minimum, StDev and Avg/Max over the rows of a table: one figure for each column."""
        lines = (line.split("\t") for line in self.tables[view].split("\n\n")[1].splitlines())
        return {name: [float(cell) for cell in cells if cell] for name, *cells in lines}

    def by_row(self, view: str) -> list[dict[str, float]]:
        """Column -> figure of each row of a table, those that are not 0."""
        names = self.tables[view].splitlines()[0].split("\t")[1:]
        return [{name: cell for name, cell in zip(names, row, strict=False) if cell} for row in self.rows(view)]

    def bursts(self, view: str) -> list[tuple[float, float]]:
        """Length and value of each burst of a timeline that has a length."""
        lines = (line.split("\t") for line in self.tables[view].splitlines())
        return [(float(length), float(value)) for _, _, length, value in lines if float(length)]

    def trace(self) -> Trace:
        """The trace itself, read by other means than Paraver's."""
        return _read(self.path)

    def sql(self, query: str) -> list[tuple]:
        """Rows of the exports, each behind the number of its export; none from an export without the table."""
        found = []
        for number, path in enumerate(self.exports):
            with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
                table = re.search(r"FROM (\w+)", query)
                if connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table[1],)).fetchone():
                    found += [(number, *row) for row in connection.execute(query)]
            connection.close()
        return found


@cache
def ask(sample: str) -> Answers:
    """Converts a sample and has paramedir read every view that has its events in it, once a session; or what it said before."""
    folder = Path(tempfile.mkdtemp(prefix=f"views-{sample}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    exports = SAMPLES[sample] if sample in SAMPLES else MADE[sample](folder)
    trace = folder / "trace.prv"
    convert(exports, trace, Options(jobs=1, align="utc", states=True))
    lines = trace.read_text().splitlines()
    present = {int(code) for line in lines if line.startswith("2:") for code in line.split(":")[6::2]}
    output, tables = said(folder, trace, present) if PARAMEDIR else _recorded(sample, trace)
    return Answers(trace, exports, int(lines[0].split(":")[2].removesuffix("_ns")), present, output, tables)


def recorded(sample: str) -> dict[str, Any]:
    """The record of a sample: digests of what was asked, and the tables."""
    return json.loads(lzma.decompress((RECORDS / f"{sample}.json.xz").read_bytes()))


def digest(trace: Path) -> dict[str, str]:
    """What the answers depend on."""
    views = b"".join((FOLDER / view.path).read_bytes() for view in VIEWS)
    return {"trace": hashlib.sha256(trace.read_bytes()).hexdigest(), "views": hashlib.sha256(views).hexdigest()}


def _recorded(sample: str, trace: Path) -> tuple[str, dict[str, str]]:
    record = recorded(sample)
    assert record["of"] == digest(trace), "traces or views have changed since Paraver's answers were recorded: see this module's head"
    return "", record["tables"]


def worth_recording(answers: Answers) -> dict[str, str]:
    """All tables, and timelines that are not too long."""
    histograms = {view.path for view in VIEWS if view.cfg.histogram}
    return {view: table for view, table in answers.tables.items() if view in histograms or len(table) <= LONGEST}


def record(sample: str) -> None:
    """Writes the record of a sample."""
    answers = ask(sample)
    text = json.dumps({"of": digest(answers.path), "tables": worth_recording(answers)}, indent=0)
    (RECORDS / f"{sample}.json.xz").write_bytes(lzma.compress(text.encode(), preset=9))


def said(folder: Path, trace: Path, present: set[int]) -> tuple[str, dict[str, str]]:
    """paramedir's messages, and its tables by view."""
    chosen = [view for view in VIEWS if not asks(view.cfg, present)]
    command_line = [str(PARAMEDIR), "-npr", str(trace)]
    for number, view in enumerate(chosen):
        command_line += [str(FOLDER / view.path), str(folder / f"view{number:03d}")]
    run = subprocess.run(command_line, env={**os.environ, "HOME": str(folder)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         text=True, errors="replace", timeout=600, check=False)
    tables = {}
    for number, view in enumerate(chosen):
        path = folder / (f"view{number:03d}" + ("" if view.cfg.histogram else ".csv"))
        tables[view.path] = path.read_text(errors="replace") if path.exists() else ""
    return run.stdout, tables


@dataclass(frozen=True)
class Work:
    """An operation on a device, from an export. task: export and process."""

    task: tuple[int, int]
    begin: int
    end: int
    name: str
    computes: bool


def work_of(answers: Answers) -> list[Work]:
    """All kernels, graph executions and memory operations of the exports."""
    times = "globalPid, start, end"
    kernels = answers.sql(f"SELECT {times}, (SELECT value FROM StringIds WHERE id = demangledName) FROM CUPTI_ACTIVITY_KIND_KERNEL")
    graphs = answers.sql(f"SELECT {times}, graphExecId FROM CUPTI_ACTIVITY_KIND_GRAPH_TRACE")
    copies = answers.sql(f"SELECT {times}, copyKind FROM CUPTI_ACTIVITY_KIND_MEMCPY")
    sets = answers.sql(f"SELECT {times}, 'set' FROM CUPTI_ACTIVITY_KIND_MEMSET")
    found = [Work((export, pid), begin, end, name, not name.startswith("nccl")) for export, pid, begin, end, name in kernels]
    found += [Work((export, pid), begin, end, f"graph {number}", True) for export, pid, begin, end, number in graphs]
    return found + [Work((export, pid), begin, end, f"memory {kind}", False) for export, pid, begin, end, kind in copies + sets]


def union(work: Iterable[Work]) -> list[tuple[int, int]]:
    """Stretches with at least one operation."""
    stretches: list[tuple[int, int]] = []
    for begin, end in sorted((one.begin, one.end) for one in work):
        if stretches and begin <= stretches[-1][1]:
            stretches[-1] = (stretches[-1][0], max(end, stretches[-1][1]))
        else:
            stretches.append((begin, end))
    return stretches


def length(stretches: Iterable[tuple[int, int]]) -> int:
    return sum(end - begin for begin, end in stretches)


def by_task(work: Iterable[Work]) -> dict[tuple[int, int], list[Work]]:
    tasks: dict[tuple[int, int], list[Work]] = defaultdict(list)
    for one in work:
        tasks[one.task].append(one)
    return tasks


def innermost(ranges: Iterable[tuple[tuple[int, int], int, int, str]]) -> dict[str, float]:
    """Name -> time in ranges (thread, begin, end, name) of that name but in none within them."""
    edges = defaultdict(list)
    for thread, begin, end, name in ranges:
        edges[thread] += [(begin, 1, -end, name), (end, 0, -begin, name)]
    times: dict[str, float] = defaultdict(float)
    for found in edges.values():
        stack: list[str] = []
        last = 0
        for time, is_begin, _, name in sorted(found):
            if stack:
                times[stack[-1]] += time - last
            last = time
            if is_begin:
                stack.append(name)
            else:
                stack.reverse()
                stack.remove(name)
                stack.reverse()
    return {name: time for name, time in times.items() if time}


if __name__ == "__main__":
    RECORDS.mkdir(exist_ok=True)
    for name in (*SAMPLES, *MADE):
        record(name)
