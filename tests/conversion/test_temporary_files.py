"""Count the temporary files that a conversion opens: on a shared file system each takes a while."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from samples import Options as Job
from samples import generate
from tools.commands import ENVIRONMENT

COUNT = """
import sys
from nsys2prv import convert
opened = []
def note(event, values):
    if event == "open" and ".nsys2prv-" in str(values[0]):
        opened.append(values[0])
sys.addaudithook(note)
convert(sys.argv[1], sys.argv[2])
print(len(opened))
"""


def count_opens(folder: Path, ranks: int) -> int:
    """Return how many temporary files the conversion of so many small reports opens."""
    generate(folder / "run", Job(ranks=ranks, hosts=2, steps=1, layers=1))
    command = [sys.executable, "-c", COUNT, str(folder / "run"), str(folder / "out.prv")]
    said = subprocess.run(command, env=ENVIRONMENT, check=True, capture_output=True, text=True)
    return int(said.stdout)


def test_each_report_opens_few_temporary_files(tmp_path: Path) -> None:
    few, many = (count_opens(tmp_path / str(ranks), ranks) for ranks in (4, 12))
    assert many - few <= 8 * 5
