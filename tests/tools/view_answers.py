"""Compare Paraver's display of the samples: ``paramedir``, its command line program, reads every
view that has its events in a trace, and tests compare its values with SQL on the exports.
"""

import atexit
import os
import re
import shutil
import sqlite3
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import pytest
from msgspec.structs import replace
from tools.conversions import EVERY_ATTRIBUTE
from tools.installed_views import VIEWS, install_views
from tools.shared_gpus import make_shared_gpus
from tools.trace import Trace
from tools.trace_reader import read_trace
from tools.view_reader import find_reason_to_ask

from nsys2prv import Options, convert
from nsys2prv.writers.paraver.cfg import View, format_cfg

ROOT = Path(__file__).parent.parent.parent
PARAMEDIR = shutil.which("paramedir")
SAMPLES = {
    folder: sorted((ROOT / "sample_reports" / folder).glob("*.sqlite"))
    for folder in ("training", "graphs", "cluster", "machine")
}
#: Jobs made for a case that no sample has: name -> what writes its exports into a folder, always
#: the same.
MADE: dict[str, Callable[[Path], list[Path]]] = {
    "shared_gpus": lambda folder: make_shared_gpus(folder).exports
}
NO_PARAMEDIR = "paramedir, Paraver's command line program, is not on the PATH"
needs_paraver = pytest.mark.skipif(PARAMEDIR is None, reason=NO_PARAMEDIR)
_read = cache(read_trace)


@dataclass(frozen=True)
class Answers:
    """A sample's trace, and the answers of paramedir to views on it: those of the core that have
    their events in it, unless `views` are given.
    """

    path: Path
    exports: list[Path]
    duration: int
    present: set[int]
    views: tuple[View, ...] = ()

    @cached_property
    def answered(self) -> tuple[str, dict[str, str]]:
        """The messages of paramedir, and by view the text of its table or timeline. Skip the test
        without paramedir.
        """
        if not PARAMEDIR:
            pytest.skip(NO_PARAMEDIR)
        views = self.views or list_views_with_events(self.present)
        folder = Path(tempfile.mkdtemp(dir=self.path.parent))
        return run_paramedir_on_views(folder, self.path, views)

    @property
    def output(self) -> str:
        return self.answered[0]

    @property
    def tables(self) -> dict[str, str]:
        return self.answered[1]

    def sum_columns(self, view: str) -> dict[str, float]:
        """Return column -> sum over the rows of a table, without hosts' devices."""
        head, *rows = self.tables[view].split("\n\n")[0].splitlines()
        sums: dict[str, float] = defaultdict(float)
        for row in filter(_is_process_row, rows):
            for name, cell in zip(head.split("\t")[1:], row.split("\t")[1:], strict=True):
                if name:
                    sums[name] += float(cell)
        return dict(sums)

    def read_rows(self, view: str) -> list[list[float]]:
        """Return the cells of each row of a table, without hosts' devices."""
        rows = filter(_is_process_row, self.tables[view].split("\n\n")[0].splitlines()[1:])
        return [[float(cell) for cell in row.split("\t")[1:] if cell] for row in rows]

    def read_totals(self, view: str) -> dict[str, list[float]]:
        """Return Total, Average, Maximum, Minimum, StDev and Avg/Max over the rows of a table: one
        figure for each column.
        """
        lines = (line.split("\t") for line in self.tables[view].split("\n\n")[1].splitlines())
        return {name: [float(cell) for cell in cells if cell] for name, *cells in lines}

    def read_labelled_rows(self, view: str) -> list[dict[str, float]]:
        """Return column -> figure of each row of a table, without zeros."""
        names = self.tables[view].splitlines()[0].split("\t")[1:]
        return [
            {name: cell for name, cell in zip(names, row, strict=False) if cell}
            for row in self.read_rows(view)
        ]

    def list_bursts(self, view: str) -> list[tuple[float, float]]:
        """Return length and value of each burst of a timeline that has a length; of a timeline of
        tasks, without hosts' devices.
        """
        lines = (line.split("\t") for line in self.tables[view].splitlines())
        apart = {
            f"1.{task}"
            for task, name in enumerate(self.load_trace().names["TASK"], 1)
            if not _is_process_row(name)
        }
        return [
            (float(length), float(value))
            for row, _, length, value in lines
            if float(length) and row not in apart
        ]

    def load_trace(self) -> Trace:
        """Read the trace without Paraver."""
        return _read(self.path)

    def query(self, query: str) -> list[tuple]:
        """Return rows of the exports behind the number of their export; none from an export without
        the table.
        """
        rows = []
        for number, path in enumerate(self.exports):
            with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
                table = re.search(r"FROM (\w+)", query)
                if connection.execute(
                    "SELECT 1 FROM sqlite_master WHERE name = ?", (table[1],)
                ).fetchone():
                    rows += [(number, *row) for row in connection.execute(query)]
            connection.close()
        return rows


def _is_process_row(row: str) -> bool:
    """Return whether a row of a table of tasks is that of a process, not of a host's devices."""
    return not row.startswith("devices of ")


@cache
def answer_views(sample: str) -> Answers:
    """Convert a sample, once a session."""
    folder = Path(tempfile.mkdtemp(prefix=f"views-{sample}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    exports = SAMPLES[sample] if sample in SAMPLES else MADE[sample](folder)
    return answer_exports(exports, folder)


def answer_exports(exports: list[Path], folder: Path) -> Answers:
    """Convert exports to a trace in a folder, with all attributes and states."""
    trace = folder / "trace.prv"
    convert(exports, trace, Options(jobs=1, align="utc", states=True, cut=EVERY_ATTRIBUTE))
    lines = trace.read_text().splitlines()
    present = {
        int(code) for line in lines if line.startswith("2:") for code in line.split(":")[6::2]
    }
    return Answers(trace, exports, int(lines[0].split(":")[2].removesuffix("_ns")), present)


def list_views_with_events(present: set[int]) -> list[View]:
    """Return the views of the core that a trace with these event types has the events of."""
    return [view for view in VIEWS if view.is_core and not find_reason_to_ask(view.cfg, present)]


def run_paramedir_on_views(
    folder: Path, trace: Path, views: Sequence[View]
) -> tuple[str, dict[str, str]]:
    """Return paramedir's messages, and its tables by view. Of a view of several tables or with a timeline
    it writes the last table alone; the others are by their titles.
    """
    command_line = [str(PARAMEDIR), "-npr", str(trace)]
    asked = {view.path: (install_views() / view.path, view.cfg) for view in views}
    for cfg in (view.cfg for view in views if not view.opens):
        others = {table.title: replace(cfg, histogram=table, more=()) for table in cfg.more}
        for number, window in enumerate(cfg.windows if cfg.tables else (), 1):
            # Paraver asks about a view's events without its guards, which stand behind it.
            if window.look.shown and not any(
                getattr(one, "guards", False) for one in cfg.windows[number:]
            ):
                others[window.title] = replace(
                    cfg, windows=cfg.windows[:number], histogram=None, more=()
                )
        for title, one in others.items():
            alone = folder / f"other{len(asked)}.cfg"
            alone.write_text(format_cfg(one))
            asked[title] = alone, one
    for number, (path, _) in enumerate(asked.values()):
        command_line += [str(path), str(folder / f"view{number:03d}")]
    process = subprocess.run(
        command_line,
        env={**os.environ, "HOME": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=600,
        check=False,
    )
    tables = {}
    for number, (name, (_, cfg)) in enumerate(asked.items()):
        path = folder / (f"view{number:03d}" + ("" if cfg.histogram else ".csv"))
        tables[name] = path.read_text(errors="replace") if path.exists() else ""
    return process.stdout, tables


@dataclass(frozen=True)
class Work:
    """An operation on a device, from an export.

    task: export and process.
    """

    task: tuple[int, int]
    begin: int
    end: int
    name: str
    computes: bool


def read_work(answers: Answers) -> list[Work]:
    """Return all kernels, graph executions and memory operations of the exports."""
    times = "globalPid, start, end"
    kernels = answers.query(
        f"SELECT {times}, (SELECT value FROM StringIds WHERE id = demangledName) FROM CUPTI_ACTIVITY_KIND_KERNEL"
    )
    graphs = answers.query(f"SELECT {times}, graphExecId FROM CUPTI_ACTIVITY_KIND_GRAPH_TRACE")
    copies = answers.query(f"SELECT {times}, copyKind FROM CUPTI_ACTIVITY_KIND_MEMCPY")
    sets = answers.query(f"SELECT {times}, 'set' FROM CUPTI_ACTIVITY_KIND_MEMSET")
    work = [
        Work((export, pid), begin, end, name, not name.startswith("nccl"))
        for export, pid, begin, end, name in kernels
    ]
    work += [
        Work((export, pid), begin, end, f"graph {number}", True)
        for export, pid, begin, end, number in graphs
    ]
    return work + [
        Work((export, pid), begin, end, f"memory {kind}", False)
        for export, pid, begin, end, kind in copies + sets
    ]


def merge_stretches(work: Iterable[Work]) -> list[tuple[int, int]]:
    """Return the stretches with at least one operation."""
    stretches: list[tuple[int, int]] = []
    for begin, end in sorted((operation.begin, operation.end) for operation in work):
        if stretches and begin <= stretches[-1][1]:
            stretches[-1] = (stretches[-1][0], max(end, stretches[-1][1]))
        else:
            stretches.append((begin, end))
    return stretches


def sum_lengths(stretches: Iterable[tuple[int, int]]) -> int:
    """Return the total length of stretches."""
    return sum(end - begin for begin, end in stretches)


def group_by_task(work: Iterable[Work]) -> dict[tuple[int, int], list[Work]]:
    """Return task -> its operations."""
    tasks: dict[tuple[int, int], list[Work]] = defaultdict(list)
    for operation in work:
        tasks[operation.task].append(operation)
    return tasks


def sum_innermost_times(
    ranges: Iterable[tuple[tuple[int, int], int, int, str]],
) -> dict[str, float]:
    """Return name -> time in which a range (thread, begin, end, name) of that name is the innermost
    one.
    """
    edges = defaultdict(list)
    for thread, begin, end, name in ranges:
        edges[thread] += [(begin, 1, -end, name), (end, 0, -begin, name)]
    times: dict[str, float] = defaultdict(float)
    for thread_edges in edges.values():
        stack: list[str] = []
        last = 0
        for time, is_begin, _, name in sorted(thread_edges):
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
