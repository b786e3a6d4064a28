"""Everything that commands print is plain English: no output, no message and no sentence template has the habits of
tests/tools/habits.py.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tools.commands import SAMPLES
from tools.habits import find_habits

import nsys2prv
from nsys2prv.cli import main

PACKAGE = Path(nsys2prv.__file__).parent
#: Files with sentences, and the keys of the parts that have them; none for all.
TEXTS = {
    "verdict/findings.yaml": ("says", "advice", "limits"),
    "figures/findings.yaml": ("reasons", "parts", "groups"),
    "figures/analyses.yaml": (),
    "conversion/quality.yaml": (),
    "conversion/mistakes.yaml": (),
    "cli/mistakes.yaml": (),
    "cli/options.yaml": (),
    "events/reasons.yaml": (),
    "export/foreign.yaml": ("content", "names", "tables"),
    "match/notes.yaml": (),
    "clock/findings.yaml": ("findings",),
    "show/study/warnings.yaml": (),
}
REPORTS = {
    name: str(SAMPLES / name) for name in ("training", "cluster", "graphs", "mpi", "machine")
}
COMMANDS = (
    *(("quality", REPORTS[name]) for name in ("graphs", "machine")),
    *(("--list", REPORTS[name]) for name in ("cluster", "mpi")),
    ("diff", REPORTS["graphs"], REPORTS["training"]),
    ("study", REPORTS["graphs"], REPORTS["training"]),
    ("--help",),
    *(
        ("help", name)
        for name in ("convert", "report", "diff", "study", "quality", "cfgs", "check")
    ),
)


def list_texts(value: object) -> Iterator[str]:
    """Yield all texts in a value of YAML."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from list_texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from list_texts(one)


@pytest.mark.parametrize("name", TEXTS)
def test_templates(name: str) -> None:
    content = yaml.safe_load((PACKAGE / name).read_text(encoding="utf-8"))
    wanted = [content[key] for key in TEXTS[name]] or content
    texts = list(list_texts(wanted))
    assert texts
    assert not [habit for text in texts for habit in find_habits(text)]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(map(str, command[:1])))
def test_commands(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    if command[0] in ("quality", "diff", "study"):
        command = (*command, "-q", "-j", "1")
    with contextlib.suppress(SystemExit):
        assert main([*command]) in (0, 6)
    assert not [*find_habits(capsys.readouterr().out)]


@pytest.mark.parametrize("name", REPORTS)
def test_summary_of_a_conversion(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-v", "-j", "1", REPORTS[name], str(tmp_path / "o.prv")]) == 0
    assert not [*find_habits(capsys.readouterr().out)]
