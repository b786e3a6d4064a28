"""Reasons for which rows and records are lost or changed."""

from __future__ import annotations

import doctest
import json
import pickle
import re
from pathlib import Path

import pytest

from nsys2prv.events import kind
from nsys2prv.events.kind import Reason, describe_reason, is_routine


def test_the_examples_run() -> None:
    result = doctest.testmod(kind)
    assert result.attempted
    assert not result.failed


@pytest.mark.parametrize("reason", Reason)
def test_a_reason_is_its_key_everywhere(reason: Reason) -> None:
    key = reason.value
    assert re.fullmatch("[a-z-]+", key)
    assert {key: 1}[reason] == {reason: 1}[key] == 1
    assert json.loads(json.dumps({reason: reason})) == {key: key}
    assert (str(reason), f"{reason}") == (key, key)
    assert pickle.loads(pickle.dumps(reason)) is reason
    assert is_routine(reason.with_detail("this")) is is_routine(key)
    assert describe_reason(reason.with_detail("this: that")) == reason.text.replace(
        "{}", "this: that"
    )


def test_nobody_else_makes_reasons() -> None:
    """Counts of accounts are by members of the enumeration, never by texts."""
    package = Path(kind.__file__).parents[1]
    for path in package.rglob("*.py"):
        result = re.findall(
            r"\.(?:dropped|skipped|synthesized|repaired)\[\s*f?[\"'].*", path.read_text()
        )
        assert not result, path
