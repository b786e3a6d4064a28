"""Tables of programming models, libraries and memory with anything in their columns: no traceback,
and traces within Paraver's format.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from samples import data as samples
from tools.exports import PID, Row, make_export, make_global_pid, make_global_tid, make_strings
from tools.trace_reader import read_trace

from nsys2prv import convert
from nsys2prv._util.errors import NothingToWrite
from nsys2prv.events import all_kinds

KINDS = (
    "openacc",
    "openmp",
    "openmp_points",
    "cublas",
    "cudnn",
    "memory_usage",
    "memory_pools",
    "cpu_page_faults",
    "gpu_page_faults",
)
TABLES = sorted({table for kind in all_kinds() if kind.name in KINDS for table in kind.tables})
ODD = (
    None,
    0,
    1,
    2,
    3,
    -1,
    5,
    "x",
    "",
    1.5,
    b"\xff\xfe",
    1 << 31,
    1 << 32,
    1 << 53,
    (1 << 63) - 1,
    -(1 << 63),
    10**18,
    make_global_pid(),
    make_global_tid(PID),
)
#: Times of 10**18 ns are in these tables on purpose.
EXPECTED = {"time beyond exact numbers"}


def draw_odd_tables(draw: random.Random) -> dict[str, list[Row]]:
    """Return some tables with some of their columns; times are often, other numbers sometimes, what
    they should be.
    """
    result: dict[str, list[Row]] = {"StringIds": make_strings("a", "b", "", "c")}
    for table in draw.sample(TABLES, 6):
        columns = [
            name
            for name in re.findall(r"^    (\w+) +(?:INTEGER|TEXT)", samples.tables()[table], re.M)
            if draw.random() < 0.8
        ]
        result[table] = [
            {
                name: draw.randrange(1000)
                if name in ("start", "end") and draw.random() < 0.6
                else draw.choice(ODD)
                for name in columns or ["start"]
            }
            for _ in range(draw.randrange(1, 30))
        ]
    if draw.random() < 0.5:
        result["ANALYSIS_DETAILS"] = [{"duration": draw.choice([1000, None, 0, -5, 10**9, "x"])}]
    return result


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_anything_in_the_columns(seed: int, tmp_path: Path) -> None:
    report = make_export(tmp_path / "r.sqlite", draw_odd_tables(random.Random(seed)))
    try:
        convert([report], tmp_path / "o.prv")
    except NothingToWrite:
        return
    trace = read_trace(tmp_path / "o.prv")
    assert set(trace.violations) <= EXPECTED, str(trace.violations)
