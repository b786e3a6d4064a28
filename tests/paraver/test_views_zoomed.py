"""Test that a timeline shows the same if it is opened zoomed, although Paraver starts some
functions again where the picture begins.
"""

import os
import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from tools.installed_views import VIEWS, find_view_file

from nsys2prv import Options, convert
from nsys2prv.writers.paraver.views import find_views_for_trace

ROOT = Path(__file__).parents[2]
PARAMEDIR = shutil.which("paramedir")
#: Where the picture begins, as a part of the trace: in the middle of a step, and within ranges of
#: the host.
BEGIN = 0.9
TIMELINES = [view.path for view in VIEWS if view.cfg.histogram is None]
Rows = dict[str, tuple[np.ndarray, np.ndarray]]


pytestmark = pytest.mark.skipif(
    PARAMEDIR is None, reason="paramedir, Paraver's command line program, is not on the PATH"
)


@pytest.fixture(scope="module", params=["cluster", "graphs", "training"])
def different(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[str]]:
    """Return view -> rows that differ between the whole and the zoomed timeline, of the views that
    show something of a sample.
    """
    there = tmp_path_factory.mktemp("zoomed")
    trace = there / "out.prv"
    convert(
        sorted((ROOT / "sample_reports" / request.param).glob("*.sqlite")), trace, Options(jobs=1)
    )
    duration = int(trace.read_text().split(":")[2].removesuffix("_ns"))
    views = [
        fit.path for fit in find_views_for_trace(trace) if not fit.lacking and fit.path in TIMELINES
    ]
    arguments, outputs = [], []
    for number, path in enumerate(views):
        text = find_view_file(path).read_text()
        for kind, begin in (("whole", 0), ("zoomed", BEGIN)):
            cfg = there / f"{kind}{number:03}.cfg"
            cfg.write_text(
                re.sub(
                    "^window_begin_time_relative 0$",
                    f"window_begin_time_relative {begin}",
                    text,
                    flags=re.M,
                )
            )
            outputs.append(there / f"{kind}{number:03}.csv")
            arguments += [cfg, outputs[-1]]
    home = there / "home"
    home.mkdir()
    subprocess.run(
        [PARAMEDIR, trace, *arguments],
        env={**os.environ, "HOME": str(home)},
        check=True,
        capture_output=True,
        timeout=600,
    )
    times = np.linspace(BEGIN * duration + 1, duration - 1, 4001).round() + 0.5
    full, zoomed = ([_read_rows(path) for path in outputs[first::2]] for first in (0, 1))
    return {
        view: [
            row
            for row, bursts in item.items()
            if not np.array_equal(_find_value_at(bursts, times), _find_value_at(other[row], times))
        ]
        for view, item, other in zip(views, full, zoomed, strict=True)
    }


def _read_rows(path: Path) -> Rows:
    """Return row -> begins and values of its bursts."""
    rows: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for line in path.read_text().splitlines():
        row, begin, length, value = line.split("\t")
        if float(length):
            rows[row].append((float(begin), float(value)))
    return {
        row: (np.array([begin for begin, _ in bursts]), np.array([value for _, value in bursts]))
        for row, bursts in rows.items()
    }


def _find_value_at(bursts: tuple[np.ndarray, np.ndarray], times: np.ndarray) -> np.ndarray:
    begins, values = bursts
    return values[np.searchsorted(begins, times, side="right") - 1]


def test_timelines_show_the_same_when_zoomed(different: dict[str, list[str]]) -> None:
    assert len(different) > 30
    assert {view: rows for view, rows in different.items() if rows} == {}
