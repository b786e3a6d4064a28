"""What others' libraries do with damaged data ends in one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nsys2prv._util import data_files

ROOT = Path(__file__).parents[2]


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_an_abort_while_a_file_is_read_names_the_file() -> None:
    if data_files.core is None:
        pytest.skip("installed without a compiler")
    ended = run(
        "import os\n"
        "from nsys2prv._util.data_files import panics_unseen\n"
        "with panics_unseen('one.parquet'), panics_unseen('other.parquet'):\n"
        "    os.write(2, b'what a library says')\n"
        "    os.abort()\n"
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (
        1,
        "",
        "nsys2prv: error: one.parquet or other.parquet: is so damaged that reading it ended the program; "
        "export the report again\n",
    )


def test_other_aborts_are_the_systems() -> None:
    ended = run(
        "import os\n"
        "from nsys2prv._util.data_files import panics_unseen\n"
        "with panics_unseen('one.parquet'):\n"
        "    pass\n"
        "os.abort()\n"
    )
    assert ended.returncode == -signal.SIGABRT
