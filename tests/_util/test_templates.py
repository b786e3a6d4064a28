"""Test that compiled templates are cached, and compiled again if their text has changed."""

import sys
from pathlib import Path

import pytest

from nsys2prv._util import templates


def test_templates_are_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "{{ number }} of them"
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(templates, "cache_from_source", lambda _: str(tmp_path / "module.pyc"))

    def render() -> str:
        environment = templates.make_environment("a.b", lambda _: text)
        return environment.get_template("c.txt").render(number=3)

    assert render() == "3 of them"
    (kept,) = tmp_path.iterdir()
    first = kept.read_bytes()
    assert render() == "3 of them"
    assert kept.read_bytes() == first
    text = "{{ number }} others"
    assert render() == "3 others"
    assert kept.read_bytes() != first
    kept.unlink()
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert render() == "3 others"
    assert not [*tmp_path.iterdir()]


def test_templates_need_no_writable_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(
        templates, "cache_from_source", lambda _: str(tmp_path / "no" / "module.pyc")
    )
    environment = templates.make_environment("a.b", lambda _: "one")
    assert environment.get_template("c.txt").render() == "one"
