"""Test that one bar shows all phases of a command."""

from __future__ import annotations

import io

import pytest

from nsys2prv._util import text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Bar:
    """Stand-in for tqdm's bar that records the phase and position (`n`) after each change."""

    made: list[Bar]

    def __init__(self, total: int, delay: float, **_: object) -> None:
        self.total, self.delay, self.n, self.closed = total, delay, 0.0, False
        self.told: list[tuple[str, float]] = []
        self.made.append(self)

    def set_description_str(self, name: str, refresh: bool) -> None:
        self.name = name

    def update(self, done: float) -> None:
        self.n += done
        self.told.append((self.name, self.n))

    def close(self) -> None:
        self.closed = True


def test_one_bar_counts_all_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", Terminal())
    monkeypatch.setattr("tqdm.tqdm", Bar)
    Bar.made = []
    phases = ("opening", "reading", "writing")
    shown = text.Progress(False, phases)
    for name in phases:
        with shown.show_phase(name, 2) as advance:
            advance(1)
            # A phase that was not announced, and more pieces than there are.
            with shown.show_phase("page", 1):
                pass
            advance(2)
    (bar,) = Bar.made
    assert list(dict.fromkeys(name for name, _ in bar.told)) == list(phases)
    places = [place for _, place in bar.told]
    assert places == sorted(places)
    assert places[-1] == bar.total == sum(text.WEIGHTS[name] for name in phases)
    assert bar.closed
    assert bar.delay >= 1
    with shown.show_phase("analysing", 1):
        pass
    assert len(Bar.made) == 2
