"""Compare Paraver's display of states with the records, read by other means, and with SQL on the
exports.
"""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest
from tools.conversions import EVERY_ATTRIBUTE
from tools.view_answers import (
    SAMPLES,
    Answers,
    Work,
    answer_views,
    group_by_task,
    list_views_with_events,
    merge_stretches,
    needs_paraver,
    read_work,
    run_paramedir_on_views,
    sum_lengths,
)

from nsys2prv import Options, convert

IDLE, RUNNING, GROUP, TRANSFER = 0, 1, 13, 17


@pytest.fixture(scope="module", params=sorted(SAMPLES))
def answers(request: pytest.FixtureRequest) -> Answers:
    return answer_views(request.param)


def sum_times(answers: Answers) -> list[dict[str, float]]:
    """Return label of a state -> time in it, on each row in order."""
    return answers.read_labelled_rows("analysis/state_time_2dh.cfg")


@pytest.mark.slow
def test_time_by_state_is_that_of_the_records(answers: Answers) -> None:
    trace = answers.load_trace()
    expected = {row: defaultdict(float) for row in _list_rows(answers)}
    for state in trace.states:
        expected[state.row][trace.labels.states[state.value]] += state.end - state.begin
    with_states = {state.row for state in trace.states}
    for row, item in zip(expected, sum_times(answers), strict=True):
        assert sum(item.values()) == (answers.duration if row in with_states else 0)
        assert item == (expected[row] if row in with_states else {})


def _list_rows(answers: Answers) -> list[tuple[int, int]]:
    return [
        (task, thread)
        for task, (threads, _) in enumerate(answers.load_trace().tasks, 1)
        for thread in range(1, threads + 1)
    ]


@needs_paraver
def test_other_views_are_the_same_without_states(tmp_path: Path) -> None:
    with_states = answer_views("training")
    options = Options(jobs=1, align="utc", cut=EVERY_ATTRIBUTE)
    convert(with_states.exports, tmp_path / "trace.prv", options)
    views = list_views_with_events(with_states.present)
    _, without = run_paramedir_on_views(tmp_path, tmp_path / "trace.prv", views)
    assert set(without) == set(with_states.tables)
    differing = [view for view, text in without.items() if text != with_states.tables[view]]
    assert differing == ["analysis/state_time_2dh.cfg"]


def test_states_on_streams_are_the_work_on_gpus(answers: Answers) -> None:
    """Kernels run, NCCL's communicate and memory operations transfer: in each export on all streams
    together as long as SQL says.

    The rows of one stream never overlap, and nothing but the execution of a whole graph holds other
    work.
    """
    trace = answers.load_trace()
    result: dict[int, float] = defaultdict(float)
    for state in trace.states:
        if trace.get_row_name(state.row).startswith("CUDA-D"):
            result[state.value] += state.end - state.begin
    work = [item for item in read_work(answers) if item.end > item.begin]
    if any(item.name.startswith("graph") for item in work):
        # As long as any stream works some state says so.
        assert sum(result[state] for state in (RUNNING, GROUP, TRANSFER)) >= max(
            sum_lengths(merge_stretches(item)) for item in group_by_task(work).values()
        )
        return
    assert result[RUNNING] == _sum_dicts(item for item in work if item.computes)
    assert result[GROUP] == _sum_dicts(item for item in work if item.name.startswith("nccl"))
    assert result[TRANSFER] == _sum_dicts(item for item in work if item.name.startswith("memory"))


def _sum_dicts(work: Iterable[Work]) -> int:
    return sum(item.end - item.begin for item in work)
