"""Test the views in Paraver: paramedir reads each view on the samples' traces, and its values equal
SQL on the reports.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from tools.conversions import EVERY_ATTRIBUTE
from tools.view_answers import (
    MADE,
    SAMPLES,
    VIEWS,
    Answers,
    Work,
    answer_views,
    group_by_task,
    list_views_with_events,
    merge_stretches,
    needs_paraver,
    read_work,
    sum_innermost_times,
    sum_lengths,
)
from tools.view_reader import find_reason_to_ask

from nsys2prv import Options, convert

GRAPH = 63000008
#: What paramedir says of a view or record that it does not like; it exits with 0 all the same.
COMPLAINT = re.compile(
    r"Cannot load|aborted|[Ee]rror|Unkwnown|None of the events|Some of the events|multiple instances|0 objects"
)
#: Views of the core of which no sample holds an event: of events that are made on demand alone.
NOT_IN_SAMPLES = {
    "analysis/critical_path_time_2dh.cfg",
    "analysis/mpi_waiting_2dh.cfg",
    "analysis/mpi_waiting_for_2dh.cfg",
    "analysis/nvtx_on_gpu_time_2dh.cfg",
    "views/nvtx_on_gpu.cfg",
}


@pytest.fixture(scope="module")
def work(answers: Answers) -> list[Work]:
    return read_work(answers)


@needs_paraver
def test_paraver_reads_every_view_without_complaint(answers: Answers) -> None:
    assert [line for line in answers.output.splitlines() if COMPLAINT.search(line)] == []
    assert [view for view, text in answers.tables.items() if not text.strip()] == []


@pytest.mark.slow
def test_every_view_of_the_core_has_a_sample(tmp_path: Path) -> None:
    result = set()
    for exports in (*SAMPLES.values(), *(make(tmp_path) for make in MADE.values())):
        options = Options(jobs=1, align="utc", cut=EVERY_ATTRIBUTE)
        convert(exports, tmp_path / "trace.prv", options)
        lines = (tmp_path / "trace.prv").read_text().splitlines()
        present = {
            int(code) for line in lines if line.startswith("2:") for code in line.split(":")[6::2]
        }
        result |= {view.path for view in list_views_with_events(present)}
    assert {view.path for view in VIEWS if view.is_core} - result == NOT_IN_SAMPLES


@needs_paraver
def test_views_made_by_rule_show_what_the_trace_has() -> None:
    answers = answer_views("machine")
    views = [
        view
        for view in VIEWS
        if not view.is_core and not find_reason_to_ask(view.cfg, answers.present)
    ]
    shown = replace(answers, views=tuple(views))
    assert [line for line in shown.output.splitlines() if COMPLAINT.search(line)] == []
    assert [view for view, text in shown.tables.items() if not text.strip()] == []
    trace = answers.load_trace()
    compared, differing = 0, set()
    for view in views:
        types = [*map(int, view.cfg.windows[0].types.values)]
        if view.path.endswith("_calls_2dh.cfg"):
            items = [(code, item) for code in types for item in trace.list_intervals(code)]
            expected = Counter(trace.get_label(code, item.value) for code, item in items)
            if _read_cells(shown.sum_columns(view.path)) != sorted(expected.values()):
                differing.add(view.path)
            compared += 1
    assert compared > 20
    # Paraver keeps one of several messages of one instant.
    assert differing == {"extra/analysis/diagnostic_calls_2dh.cfg"}


def _sort_sums(pairs: Iterable[tuple[str, float]]) -> list[float]:
    sums: dict[str, float] = defaultdict(float)
    for name, value in pairs:
        sums[name] += value
    return sorted(sums.values())


def _read_cells(columns: dict[str, float]) -> list[float]:
    return sorted(value for value in columns.values() if value)


def test_kernels_by_name(answers: Answers, work: list[Work]) -> None:
    kernels = [item for item in work if not item.name.startswith("memory")]
    assert _read_cells(answers.sum_columns("analysis/kernel_time_2dh.cfg")) == _sort_sums(
        (item.name, item.end - item.begin) for item in kernels
    )
    durations = sorted(
        value for _, value in answers.list_bursts("views/kernel_duration.cfg") if value
    )
    assert durations == sorted(item.end - item.begin for item in kernels)


def test_api_calls_by_name(answers: Answers) -> None:
    rows = answers.query(
        "SELECT globalTid, start, end, (SELECT value FROM StringIds WHERE id = nameId) FROM CUPTI_ACTIVITY_KIND_RUNTIME"
    )
    calls = [
        ((export, tid), begin, end, re.sub(r"_v\d{4,}$", "", name))
        for export, tid, begin, end, name in rows
    ]
    assert {
        name: time
        for name, time in answers.sum_columns("analysis/api_time_2dh.cfg").items()
        if time
    } == sum_innermost_times(calls)


def test_nvtx_ranges_by_text(answers: Answers) -> None:
    rows = answers.query(
        "SELECT globalTid, start, end, coalesce(text, (SELECT value FROM StringIds WHERE id = textId)) "
        "FROM NVTX_EVENTS WHERE eventType IN (59, 70)"
    )
    rows = [
        (*place, re.sub(r", (op_id|seq|sizes) = .*|(?<=^iteration) \d+$", "", text))
        for *place, text in rows
    ]
    ended = [
        ((export, tid), begin, end, text)
        for export, tid, begin, end, text in rows
        if end is not None
    ]
    open_ended = {text for *_, end, text in rows if end is None}
    shown = answers.sum_columns("analysis/nvtx_time_2dh.cfg")
    assert {
        name: shown[name] for name in sum_innermost_times(ended) if name not in open_ended
    } == sum_innermost_times(ended)


def test_busy_time_of_tasks(answers: Answers, work: list[Work]) -> None:
    tasks = group_by_task(work).values()
    active = sorted(sum_lengths(merge_stretches(task)) for task in tasks)
    useful = sorted(
        sum_lengths(merge_stretches(item for item in task if item.computes)) for task in tasks
    )
    communicating = sum(
        sum_lengths(merge_stretches(item for item in task if not item.computes)) for task in tasks
    )
    both = sum(useful) + communicating - sum(active)
    assert sorted(row[0] for row in answers.read_rows("model/GPU_LB.cfg")) == pytest.approx(
        [100 * time / answers.duration for time in useful]
    )
    share = 100 / answers.duration
    assert answers.sum_columns("model/Device_State.cfg") == pytest.approx(
        {
            "Idle": (len(tasks) * answers.duration - sum(active)) * share,
            "Only communicates": (communicating - both) * share,
            "Computes": sum(useful) * share,
        }
    )


def test_launches(answers: Answers) -> None:
    rows = answers.query(
        "SELECT kernel.start - min(call.start), kernel.end - kernel.start, call.globalTid, call.correlationId "
        "FROM CUPTI_ACTIVITY_KIND_KERNEL AS kernel JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS call "
        "ON call.correlationId = kernel.correlationId AND call.globalTid >> 24 = kernel.globalPid >> 24 GROUP BY kernel.rowid"
    )
    if GRAPH in answers.present:
        return
    assert sum(
        lasting * value for lasting, value in answers.list_bursts("analysis/kernels-inflight.cfg")
    ) == sum(row[1] for row in rows)
    launched: dict[float, float] = defaultdict(float)
    for lasting, thread in answers.list_bursts("views/who_launches_kernel.cfg"):
        launched[thread] += lasting if thread else 0
    assert sorted(time for time in launched.values() if time) == _sort_sums(
        (f"{row[0]} {row[3]}", row[2]) for row in rows
    )
