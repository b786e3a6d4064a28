"""Check every trace that tests write, and mark tests by their parameters."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from tools.corpus import EXPORTS
from tools.exports import make_large_export
from tools.slow import LARGE_SAMPLES

from nsys2prv import Summary
from nsys2prv._util.native import core
from nsys2prv.conversion import convert
from nsys2prv.conversion.job import Job
from nsys2prv.conversion.write import choose_writer
from nsys2prv.events.catalogue import NameSet, load_catalogue
from nsys2prv.events.kind import Counters, Rows
from nsys2prv.table.task_result import TaskResult
from nsys2prv.writers.paraver.check import check_trace

if TYPE_CHECKING:
    from tools.view_answers import Answers

# Hundreds of tests start the command in a process of its own: each would compile the package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# However slow the machine is, no example fails for its time.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

SAMPLES = Path(__file__).parent.parent / "sample_reports"
#: Findings that are true of traces that tests ask for: rule -> the tests (all, if none is named).
#: Clocks of hosts that a test leaves as they are; exports of different months in one trace, or of
#: damaged times.
EXPECTED_FINDINGS: dict[str, tuple[str, ...]] = {
    "comm-backwards": (),
    "time-inexact": (
        "test_counts_and_durations_add_up_over_exports",
        "test_anything_in_the_columns",
        "test_years_in_one_report",
    ),
}


def _is_expected(rule: str) -> bool:
    """Return whether the running test may write traces with findings of a rule."""
    tests = EXPECTED_FINDINGS.get(rule)
    running = os.environ.get("PYTEST_CURRENT_TEST", "")
    return tests is not None and (not tests or any(f"::{test}" in running for test in tests))


def _check_written_traces(write: Callable[..., Summary]) -> Callable[..., Summary]:
    """Wrap a conversion so that its trace is checked once it is written."""

    @wraps(write)
    def wrapper(job: Job, output: str | Path, **arguments: object) -> Summary:
        summary = write(job, output, **arguments)
        trace = choose_writer(output, job.plan.options.compress)[1]
        if core is None or ".prv" not in trace.suffixes:
            return summary
        unexpected = [
            f"{finding.file}:{finding.line} ({finding.count}) {finding.rule}: {finding.message}"
            for finding in check_trace(trace).findings
            if not _is_expected(finding.rule)
        ]
        assert not unexpected, "\n".join(unexpected)
        return summary

    return wrapper


def _check_stored_names(store: Callable[..., None]) -> Callable[..., None]:
    """Wrap a way to store rows so that it refuses rows without a name that their layout needs: it
    would become the first name of the set.
    """

    @wraps(store)
    def wrapper(result: TaskResult, rows: Rows | Counters, *args: object) -> None:
        if isinstance(rows, Rows):
            chosen = slice(None) if rows.selection is None else rows.selection
            for field in load_catalogue().layouts[rows.layout].fields:
                if isinstance(field.values, NameSet) and not field.optional:
                    assert (np.asarray(rows.columns[field.name])[chosen] >= 0).all(), (
                        f"{rows.layout}: rows without {field.name}, which is not optional"
                    )
        store(result, rows, *args)

    return wrapper


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by their parameters: those of a real export for `-m corpus`, those of a large
    sample, of tests that take each sample in turn, for `-m slow`.
    """
    exports = set(EXPORTS)
    for item in items:
        if not hasattr(item, "callspec"):
            continue
        parameters = item.callspec.params.values()
        if exports and any(isinstance(value, Path) and value in exports for value in parameters):
            item.add_marker(pytest.mark.corpus)
        if any(re.search(rf"(^|-){sample}($|-)", item.callspec.id) for sample in LARGE_SAMPLES):
            item.add_marker(pytest.mark.slow)


# Every trace that a test has this process write is checked, whatever for and through which door.
convert.write_job = _check_written_traces(convert.write_job)
TaskResult.store = _check_stored_names(TaskResult.store)


@pytest.fixture(
    scope="module", params=sorted(path.parent.name for path in SAMPLES.glob("*/truth.json"))
)
def answers(request: pytest.FixtureRequest) -> Answers:
    """Return the answers of paramedir to every view that has its events in a sample."""
    from tools.view_answers import answer_views

    return answer_views(request.param)


@pytest.fixture(scope="module")
def large_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a report large enough for worker processes."""
    return make_large_export(tmp_path_factory.mktemp("large") / "r.sqlite")
