"""What holds for every test."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path

from nsys2prv import Summary, conversion
from nsys2prv.check import Severity, check

#: Findings that are true of traces that tests ask for: rule -> the tests (all, if none is named). Clocks of hosts that a test leaves as
#: they are; exports of different months in one trace, or of damaged times.
TRUE: dict[str, tuple[str, ...]] = {
    "received-before-sent": (),
    "time-inexact": ("test_counts_and_durations_add_up_over_exports", "test_anything_in_the_columns"),
    # Of a handful of states that stand until the next one.
    "range-unbalanced": ("test_a_thread_that_has_ended_has_no_state", "test_one_record_a_change_and_one_at_the_end_for_each_thread"),
}


def _true(rule: str) -> bool:
    tests = TRUE.get(rule)
    running = os.environ.get("PYTEST_CURRENT_TEST", "")
    return tests is not None and (not tests or any(f"::{test}" in running for test in tests))


def _checked(convert: Callable[..., Summary]) -> Callable[..., Summary]:
    """A conversion whose trace is checked once it is written."""

    @wraps(convert)
    def wrapper(job: object, outputs: Sequence[Path], *options: object) -> Summary:
        summary = convert(job, outputs, *options)
        findings = [finding for finding in check(outputs[0]).findings if finding.severity is not Severity.REMARK]
        wrong = [f"{found.file}:{found.line} ({found.count}) {found.rule}: {found.message}" for found in findings if not _true(found.rule)]
        assert not wrong, "\n".join(wrong)
        return summary

    return wrapper


# Every trace that a test has this process write is checked, whatever for and through which door.
conversion._convert = _checked(conversion._convert)
