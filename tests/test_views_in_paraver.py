"""What Paraver itself makes of the views: paramedir reads each on the samples' traces, and its figures are those of SQL on the reports."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from nsys2prv import Options, convert
from nsys2prv.paraver.cfg.catalogue import FILE, load
from nsys2prv.paraver.cfg.model import asks

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "cfgs"
VIEWS = load(FOLDER / FILE)
GRAPH = 63000008
PARAMEDIR = shutil.which("paramedir")
#: What paramedir says of a view or record that it does not like; it exits with 0 all the same.
COMPLAINT = re.compile(r"Cannot load|aborted|[Ee]rror|Unkwnown|None of the events|Some of the events|multiple instances|0 objects")
SAMPLES = {folder: sorted((ROOT / "sample_reports" / folder).glob("*.sqlite")) for folder in ("training", "graphs", "cluster")}
#: What no sample holds an event of.
NOT_IN_SAMPLES = {"basics/migration_cause.cfg", "basics/nvtx_category.cfg"}
needs_paraver = pytest.mark.skipif(PARAMEDIR is None, reason="paramedir, Paraver's command line program, is not on the PATH")


@dataclass(frozen=True)
class Answers:
    """What paramedir said of the views on a sample's trace. tables: view -> text of the table or timeline."""

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

    def bursts(self, view: str) -> list[tuple[float, float]]:
        """Length and value of each burst of a timeline that has a length."""
        lines = (line.split("\t") for line in self.tables[view].splitlines())
        return [(float(length), float(value)) for _, _, length, value in lines if float(length)]

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


@pytest.fixture(scope="module", params=sorted(SAMPLES))
def answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """Every view that has its events in a sample, as paramedir reads it."""
    exports = SAMPLES[request.param]
    if not exports:
        pytest.skip(f"sample_reports/{request.param} is not here")
    folder = tmp_path_factory.mktemp(request.param)
    trace = folder / "trace.prv"
    convert(exports, trace, Options(jobs=1, align="utc"))
    lines = trace.read_text().splitlines()
    present = {int(code) for line in lines if line.startswith("2:") for code in line.split(":")[6::2]}
    chosen = [view for view in VIEWS if not asks(view.cfg, present)]
    command_line = [str(PARAMEDIR), str(trace)]
    for number, view in enumerate(chosen):
        command_line += [str(FOLDER / view.path), str(folder / f"view{number:03d}")]
    run = subprocess.run(command_line, env={**os.environ, "HOME": str(folder)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         text=True, errors="replace", timeout=300, check=False)
    tables = {}
    for number, view in enumerate(chosen):
        path = folder / (f"view{number:03d}" + ("" if view.cfg.histogram else ".csv"))
        tables[view.path] = path.read_text(errors="replace") if path.exists() else ""
    return Answers(exports, int(lines[0].split(":")[2].removesuffix("_ns")), present, run.stdout, tables)


@needs_paraver
def test_paraver_reads_every_view_without_complaint(answers: Answers) -> None:
    assert [line for line in answers.output.splitlines() if COMPLAINT.search(line)] == []
    assert [view for view, text in answers.tables.items() if not text.strip()] == []


@needs_paraver
def test_every_view_has_a_sample(tmp_path: Path) -> None:
    served = set()
    for exports in SAMPLES.values():
        convert(exports, tmp_path / "trace.prv", Options(jobs=1, align="utc"))
        lines = (tmp_path / "trace.prv").read_text().splitlines()
        present = {int(code) for line in lines if line.startswith("2:") for code in line.split(":")[6::2]}
        served |= {view.path for view in VIEWS if not asks(view.cfg, present)}
    assert {view.path for view in VIEWS} - served <= NOT_IN_SAMPLES


@dataclass(frozen=True)
class Work:
    """An operation on a device, from an export. task: export and process."""

    task: tuple[int, int]
    begin: int
    end: int
    name: str
    computes: bool


@pytest.fixture(scope="module")
def work(answers: Answers) -> list[Work]:
    times = "globalPid, start, end"
    kernels = answers.sql(f"SELECT {times}, (SELECT value FROM StringIds WHERE id = demangledName) FROM CUPTI_ACTIVITY_KIND_KERNEL")
    graphs = answers.sql(f"SELECT {times}, graphExecId FROM CUPTI_ACTIVITY_KIND_GRAPH_TRACE")
    copies = answers.sql(f"SELECT {times}, copyKind FROM CUPTI_ACTIVITY_KIND_MEMCPY")
    sets = answers.sql(f"SELECT {times}, 'set' FROM CUPTI_ACTIVITY_KIND_MEMSET")
    found = [Work((export, pid), begin, end, name, not name.startswith("nccl")) for export, pid, begin, end, name in kernels]
    found += [Work((export, pid), begin, end, f"graph {number}", True) for export, pid, begin, end, number in graphs]
    return found + [Work((export, pid), begin, end, f"memory {kind}", False) for export, pid, begin, end, kind in copies + sets]


def _union(work: Iterable[Work]) -> list[tuple[int, int]]:
    """Stretches with at least one operation."""
    stretches: list[tuple[int, int]] = []
    for begin, end in sorted((one.begin, one.end) for one in work):
        if stretches and begin <= stretches[-1][1]:
            stretches[-1] = (stretches[-1][0], max(end, stretches[-1][1]))
        else:
            stretches.append((begin, end))
    return stretches


def _length(stretches: Iterable[tuple[int, int]]) -> int:
    return sum(end - begin for begin, end in stretches)


def _by_task(work: Iterable[Work]) -> dict[tuple[int, int], list[Work]]:
    tasks: dict[tuple[int, int], list[Work]] = defaultdict(list)
    for one in work:
        tasks[one.task].append(one)
    return tasks


def _sorted_sums(pairs: Iterable[tuple[str, float]]) -> list[float]:
    sums: dict[str, float] = defaultdict(float)
    for name, value in pairs:
        sums[name] += value
    return sorted(sums.values())


def _cells(columns: dict[str, float]) -> list[float]:
    return sorted(value for value in columns.values() if value)


@needs_paraver
def test_kernels_by_name(answers: Answers, work: list[Work]) -> None:
    kernels = [one for one in work if not one.name.startswith("memory")]
    assert _cells(answers.columns("analysis/kernel_time_2dh.cfg")) == _sorted_sums((one.name, one.end - one.begin) for one in kernels)
    assert _cells(answers.columns("analysis/kernel_calls_2dh.cfg")) == _sorted_sums((one.name, 1) for one in kernels)
    durations = sorted(value for _, value in answers.bursts("views/kernel_duration.cfg") if value)
    assert durations == sorted(one.end - one.begin for one in kernels)


@needs_paraver
def test_memory_operations_by_kind(answers: Answers) -> None:
    rows = answers.sql("SELECT copyKind, bytes, end - start FROM CUPTI_ACTIVITY_KIND_MEMCPY WHERE copyKind != 10")
    rows += answers.sql("SELECT 'set', bytes, end - start FROM CUPTI_ACTIVITY_KIND_MEMSET")
    rows += answers.sql("SELECT 10, bytes, end - start FROM CUPTI_ACTIVITY_KIND_MEMCPY WHERE copyKind = 10")
    assert _cells(answers.columns("analysis/memory_bytes_2dh.cfg")) == _sorted_sums((row[1], row[2]) for row in rows)
    assert _cells(answers.columns("analysis/memory_time_2dh.cfg")) == _sorted_sums((row[1], row[3]) for row in rows)
    assert _cells(answers.columns("analysis/memory_calls_2dh.cfg")) == _sorted_sums((row[1], 1) for row in rows)


@needs_paraver
def test_api_calls_by_name(answers: Answers) -> None:
    rows = answers.sql("SELECT globalTid, start, end, (SELECT value FROM StringIds WHERE id = nameId) FROM CUPTI_ACTIVITY_KIND_RUNTIME")
    calls = [((export, tid), begin, end, re.sub(r"_v\d{4,}$", "", name)) for export, tid, begin, end, name in rows]
    counted = {name: count for name, count in answers.columns("analysis/api_calls_2dh.cfg").items() if count}
    assert counted == Counter(name for _, _, _, name in calls)
    assert {name: time for name, time in answers.columns("analysis/api_time_2dh.cfg").items() if time} == _innermost(calls)


@needs_paraver
def test_nvtx_ranges_by_text(answers: Answers) -> None:
    rows = answers.sql("SELECT globalTid, start, end, coalesce(text, (SELECT value FROM StringIds WHERE id = textId)) "
                       "FROM NVTX_EVENTS WHERE eventType IN (59, 70)")
    counted = {name: count for name, count in answers.columns("analysis/nvtx_calls_2dh.cfg").items() if count}
    assert counted == Counter(text for *_, text in rows)
    ended = [((export, tid), begin, end, text) for export, tid, begin, end, text in rows if end is not None]
    open_ended = {text for *_, end, text in rows if end is None}
    shown = answers.columns("analysis/nvtx_time_2dh.cfg")
    assert {name: shown[name] for name in _innermost(ended) if name not in open_ended} == _innermost(ended)


def _innermost(ranges: Iterable[tuple[tuple[int, int], int, int, str]]) -> dict[str, float]:
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


@needs_paraver
def test_busy_time_of_tasks(answers: Answers, work: list[Work]) -> None:
    tasks = _by_task(work).values()
    active = sorted(_length(_union(task)) for task in tasks)
    useful = sorted(_length(_union(one for one in task if one.computes)) for task in tasks)
    communicating = sum(_length(_union(one for one in task if not one.computes)) for task in tasks)
    both = sum(useful) + communicating - sum(active)
    assert sorted(row[0] for row in answers.rows("analysis/gpu_active.cfg")) == active
    assert sorted(row[0] for row in answers.rows("analysis/gpu_useful_sumtime_2dh.cfg")) == useful
    assert sorted(row[0] for row in answers.rows("model/GPU_LB.cfg")) == useful
    states = answers.columns("model/Device_State.cfg")
    assert states == {"0": len(tasks) * answers.duration - sum(active), "1": communicating - both, "2": sum(useful)}
    shares = answers.columns("analysis/overlap-communication-compute-2dh-timeline.cfg")
    share = 100 / answers.duration
    assert shares == pytest.approx({"1": (communicating - both) * share, "2": both * share}, abs=0.01 * len(tasks))


@needs_paraver
def test_gaps(answers: Answers, work: list[Work]) -> None:
    tasks = _by_task(work).values()
    gaps = [length for length, value in answers.bursts("analysis/gpu-gaps.cfg") if value]
    assert sum(gaps) == len(tasks) * answers.duration - sum(_length(_union(task)) for task in tasks)
    assert len(gaps) == sum(len(_union(task)) + 1 for task in tasks)
    assert all(value in (0, length) for length, value in answers.bursts("analysis/gpu-gaps.cfg"))


@needs_paraver
def test_launches(answers: Answers) -> None:
    rows = answers.sql(
        "SELECT kernel.start - min(call.start), kernel.end - kernel.start, call.globalTid, call.correlationId "
        "FROM CUPTI_ACTIVITY_KIND_KERNEL AS kernel JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS call "
        "ON call.correlationId = kernel.correlationId AND call.globalTid >> 24 = kernel.globalPid >> 24 GROUP BY kernel.rowid")
    calls = {(export, tid, correlation) for export, _, _, tid, correlation in rows}
    if GRAPH in answers.present:
        assert sum(answers.columns("analysis/launch_latency_2dh.cfg").values()) >= len(calls)
        return
    assert sum(answers.columns("analysis/launch_latency_2dh.cfg").values()) == len(calls)
    assert sum(length * value for length, value in answers.bursts("analysis/kernels-inflight.cfg")) == sum(row[1] for row in rows)
    launched: dict[float, float] = defaultdict(float)
    for length, thread in answers.bursts("views/who_launches_kernel.cfg"):
        launched[thread] += length if thread else 0
    assert sorted(time for time in launched.values() if time) == _sorted_sums((f"{row[0]} {row[3]}", row[2]) for row in rows)
