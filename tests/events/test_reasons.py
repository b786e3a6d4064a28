"""Test the reasons for which rows and records are lost or changed."""

import doctest
import json
import pickle
import re
from pathlib import Path

import pytest

from nsys2prv._util.files import load_shipped_file
from nsys2prv.events import kind
from nsys2prv.events.kind import Reason, describe_reason, is_routine

PACKAGE = Path(kind.__file__).parents[1]
TEXTS = load_shipped_file("nsys2prv.events", "reasons.yaml")


def test_the_examples_run() -> None:
    result = doctest.testmod(kind)
    assert result.attempted
    assert not result.failed


@pytest.mark.parametrize("key", [*TEXTS["unusual"], *TEXTS["routine"]])
def test_a_reason_is_its_key_everywhere(key: str) -> None:
    reason = getattr(Reason, key.upper().replace("-", "_"))
    assert re.fullmatch("[a-z-]+", key)
    assert {key: 1}[reason] == {reason: 1}[key] == 1
    assert json.loads(json.dumps({reason: reason})) == {key: key}
    assert (str(reason), f"{reason}") == (key, key)
    assert pickle.loads(pickle.dumps(reason)) == reason
    assert is_routine(reason.with_detail("this")) is is_routine(key)
    assert describe_reason(reason.with_detail("this: that")) == reason.text.replace(
        "{}", "this: that"
    )


def test_every_reason_has_a_text_and_is_used() -> None:
    """Check that counts in accounts use keys of the list, never texts."""
    used = set()
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        used |= set(re.findall(r"\bReason\.([A-Z_]+)", text))
        assert not re.findall(r"\.(?:dropped|skipped|synthesized|repaired)\[\s*f?[\"'].*", text), (
            path
        )
    assert used == {key.upper().replace("-", "_") for texts in TEXTS.values() for key in texts}


def test_a_reason_without_a_text_is_none() -> None:
    with pytest.raises(AttributeError):
        Reason.NONE_OF_OURS  # noqa: B018
