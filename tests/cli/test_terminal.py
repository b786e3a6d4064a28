"""Test that on a terminal of any width nothing is omitted, broken or escaped."""

import random
import re
import sys
from pathlib import Path

import pytest
from tools.commands import SAMPLES
from tools.terminals import run_on_terminal

from nsys2prv._util.text import Column, fold_lines, lay_out_table
from nsys2prv.show.text import BOLD, PLAIN

FACTORS = ("parallel", "balance", "communication", "orchestration")
LISTS = (
    ("report", SAMPLES / "cluster", "-q"),
    ("report", SAMPLES / "graphs", "--full", "-q"),
    ("report", SAMPLES / "training", "--only", "efficiencies", "-q"),
    ("diff", SAMPLES / "graphs", SAMPLES / "machine", "--full", "-q"),
    ("study", SAMPLES / "graphs", SAMPLES / "training", "--regions", "all", "-q"),
)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="has no pseudo terminals")
@pytest.mark.parametrize(
    ("columns", "environment"),
    [(60, {}), (80, {}), (100, {}), (80, {"NO_COLOR": "1"}), (120, {"TERM": "dumb"})],
)
def test_all_commands_on_a_terminal(
    tmp_path: Path, columns: int, environment: dict[str, str]
) -> None:
    trace = tmp_path / "job.prv"
    printed = run_on_terminal(
        [
            *LISTS,
            (SAMPLES / "cluster", trace, "--report"),
            ("check", trace),
            ("--list", SAMPLES / "cluster"),
            ("help",),
        ],
        columns,
        environment,
    )
    bold = not environment
    for text in printed[: len(LISTS) + 1]:
        assert "\\x1b" not in text
        assert (BOLD in text) == bold
        # The first screen has no room for lines below its titles.
        assert bold or text in (printed[0], printed[len(LISTS)]) or re.search(r"^=+$", text, re.M)
    for text in printed:
        # Progress bars are overwritten, and words stay whole.
        lines = [line.rpartition("\r")[2] for line in text.splitlines()]
        lines = [re.sub(r"\x1b\[\d+m", "", line) for line in lines]
        assert not [line for line in lines if len(line) > columns and " " in line.strip(" \\")]
        assert not [line for line in lines if re.search(r"[\x00-\x1f]|^ *\.\.\. and ", line)]
    for text in (printed[0], *printed[2:5]):
        assert all(factor in text for factor in FACTORS) or "Efficiency" not in text
        assert text.count("efficiency") >= len(FACTORS) or "Efficiency" not in text
    assert printed[2].count("whole job ") <= 2  # a title and a row


def test_a_table_keeps_its_cells_at_any_width() -> None:
    generator = random.Random(1)
    for width in range(60, 161):
        columns = [
            Column("kernel", ["k" * generator.randint(1, 90) for _ in range(5)]),
            *(
                Column(
                    " ".join(generator.choices(["share", "of", "communication", "median"], k=3)),
                    [f"{generator.randint(1, 999999):,} us" for _ in range(5)],
                    False,
                )
                for _ in range(generator.randint(1, 12))
            ),
            Column("advice", [" ".join(["words"] * generator.randint(1, 20)) for _ in range(5)]),
        ]
        lines = lay_out_table(columns, width)
        assert max(map(len, lines)) <= width
        for cell in (cell for column in columns[1:-1] for cell in column.cells):
            assert any(cell in line for line in lines)
        text = " ".join(lines)
        assert text.count("words") == sum(cell.count("words") for cell in columns[-1].cells)


def test_folded_lines_hang_below_their_column() -> None:
    assert fold_lines(["node01  a long clock of a host"], 20) == [
        "node01  a long clock",
        "        of a host",
    ]
    path = f"/{'p' * 50}"
    assert fold_lines([f"  written: {path}"], 20) == ["  written:", f"      {path}"]
    assert fold_lines([f"  {path}: x"], 20) == [f"  {path}:", "      x"]
    assert f"{PLAIN}x" not in fold_lines([f"{PLAIN}x"], None)
