"""What Paraver shows of graphics, libraries, files, contexts on GPUs and the profiler: its figures
are those of SQL on the reports.
"""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest
from tools.corpus import CORPUS, EXPORTS, NO_CORPUS
from tools.installed_views import VIEWS, find_view_file
from tools.view_answers import (
    PARAMEDIR,
    Answers,
    Work,
    answer_views,
    merge_stretches,
    needs_paraver,
    sum_lengths,
)
from tools.view_reader import find_reason_to_ask

from nsys2prv import Options, convert

SAMPLE = "machine"
#: Calls of these do not lie within each other, so that the innermost one is the only one.
CALLS = {
    "opengl": ("OPENGL_API", "nameId"),
    "vulkan": ("VULKAN_API", "nameId"),
    "video_decoder": ("NVVIDEO_DECODER_API", "nameId"),
    "opengl_gpu": ("OPENGL_WORKLOAD", "nameId"),
    "vulkan_gpu": ("VULKAN_WORKLOAD", "coalesce(textId, nameId)"),
}
COMPLAINT = re.compile(
    r"Cannot load|aborted|[Ee]rror|Unkwnown|None of the events|Some of the events|multiple instances|0 objects"
)
#: Real exports with file accesses, overhead and messages; with overhead of CUPTI.
REAL = [
    path
    for path in EXPORTS
    if path.name.startswith(("cestwc", "GindaChen__nsys-ai__tests_fixtures_mock"))
]


@pytest.fixture(scope="module")
def answers() -> Answers:
    return answer_views(SAMPLE)


@pytest.mark.parametrize("name", CALLS)
def test_time_by_call_and_work(answers: Answers, name: str) -> None:
    table, column = CALLS[name]
    expected: dict[str, int] = defaultdict(int)
    for _, text, time in answers.query(
        f'SELECT value, "end" - start FROM {table} JOIN StringIds ON StringIds.id = {column}'
    ):
        expected[text] += time
    assert expected
    result = {
        label: time
        for label, time in answers.sum_columns(f"analysis/{name}_time_2dh.cfg").items()
        if time
    }
    assert sorted(result.values()) == sorted(expected.values())
    assert all(any(label.startswith(text[:12]) for label in result) for text in expected)


def test_bytes_by_file(answers: Answers) -> None:
    rows = answers.query(
        "SELECT filePath, sum(bytesProcessed) FROM OSRT_FILE_ACCESS_EVENTS JOIN OSRT_FILE_ACCESS_DESCRIPTORS "
        "USING (fileAccessId) GROUP BY 1"
    )
    moved: dict[str, int] = defaultdict(int)
    for _, path, size in rows:
        moved[path] += size
    assert sorted(
        value
        for value in answers.sum_columns("extra/analysis/file_bytes_2dh.cfg").values()
        if value
    ) == sorted(moved.values())


def test_time_by_file_and_by_action(answers: Answers) -> None:
    for view, column in (
        ("extra/analysis/file_time_2dh.cfg", "filePath"),
        ("extra/analysis/file_action_time_2dh.cfg", "eventType"),
    ):
        times: dict[str, int] = defaultdict(int)
        for _, key, time in answers.query(
            f"SELECT {column}, endedAt - startedAt FROM OSRT_FILE_ACCESS_EVENTS "
            "JOIN OSRT_FILE_ACCESS_DESCRIPTORS USING (fileAccessId)"
        ):
            times[str(key)] += time
        assert sorted(value for value in answers.sum_columns(view).values() if value) == sorted(
            times.values()
        ), view


def test_processes_on_gpus(answers: Answers) -> None:
    """By the trace, whose contexts are compared with the truth elsewhere."""
    trace = answers.load_trace()
    times: dict[str, int] = defaultdict(int)
    for item in trace.list_intervals(68007100):
        times[trace.get_label(68007100, item.value)] += item.end - item.begin
    result = {
        name: value
        for name, value in answers.sum_columns("extra/analysis/gpu_context_time_2dh.cfg").items()
        if value and name != "End"
    }
    assert sorted(result.values()) == sorted(times.values())
    switches = len(answers.query("SELECT 1 FROM GPU_CONTEXT_SWITCH_EVENTS WHERE tag = 8"))
    assert (
        sum(
            value
            for name, value in answers.sum_columns(
                "extra/analysis/gpu_context_switches_2dh.cfg"
            ).items()
            if name != "End"
        )
        == switches
    )


def test_share_of_the_profiler(answers: Answers) -> None:
    """Of each thread, time in any work of the profiler, also where it lies within other such work."""
    spans: dict[tuple, list[Work]] = defaultdict(list)
    for item in answers.load_trace().events[69000000]:
        spans[item.row].append(Work(item.row, item.begin, item.end, "", False))
    expected = sorted(
        100 * sum_lengths(merge_stretches(ranges)) / answers.duration for ranges in spans.values()
    )
    result = sorted(
        cell
        for row in answers.read_rows("extra/analysis/profiler_overhead_share_2dh.cfg")
        for cell in row[-1:]
        if cell
    )
    assert result == pytest.approx(expected, rel=1e-4)


def test_messages_by_severity(answers: Answers) -> None:
    counts = sorted(
        count
        for _, count in _sum_rows(
            answers.query("SELECT severity, count(*) FROM DIAGNOSTIC_EVENT GROUP BY 1")
        ).items()
    )
    result = {
        name: value
        for name, value in answers.sum_columns("extra/analysis/messages_2dh.cfg").items()
        if value and name != "End"
    }
    assert len(result) == len(counts)
    # Paraver keeps one of several messages of one instant.
    assert sum(result.values()) <= sum(counts)


def _sum_rows(rows: list[tuple]) -> dict[int, int]:
    sums: dict[int, int] = defaultdict(int)
    for _, key, count in rows:
        sums[key] += count
    return sums


@needs_paraver
@pytest.mark.skipif(not CORPUS, reason=NO_CORPUS)
@pytest.mark.parametrize("export", REAL, ids=lambda path: path.stem)
def test_paraver_reads_real_exports_without_complaint(export: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.prv"
    convert([export], trace, Options(jobs=1))
    present = {
        int(code)
        for line in trace.read_text().splitlines()
        if line.startswith("2:")
        for code in line.split(":")[6::2]
    }
    views = [
        view
        for view in VIEWS
        if not find_reason_to_ask(view.cfg, present)
        and re.search(r"file|profiler|messages", view.path)
    ]
    assert len(views) >= 7
    command = [str(PARAMEDIR), "-npr", str(trace)]
    for number, view in enumerate(views):
        command += [str(find_view_file(view.path)), str(tmp_path / f"view{number}")]
    process = subprocess.run(
        command, capture_output=True, text=True, errors="replace", check=True, timeout=120
    )
    assert not COMPLAINT.search(process.stdout + process.stderr), process.stdout + process.stderr
    for number, view in enumerate(views):
        answer = tmp_path / (f"view{number}" if view.cfg.histogram else f"view{number}.csv")
        assert answer.read_text(errors="replace").strip(), view.path
