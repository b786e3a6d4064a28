"""Test that no view shows data that is missing from a trace, even if it is opened anyway.

Paraver asks before it opens a view with events missing from a trace, and `wxparaver -i` agrees. An
additional window, which needs no events, makes paramedir open such views.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from tools.exports import (
    KERNEL,
    Row,
    make_export,
    make_global_tid,
    make_kernel,
    make_nvtx_range,
    make_os_call,
    make_strings,
)
from tools.installed_views import VIEWS, find_view_file
from tools.view_answers import PARAMEDIR, needs_paraver

from nsys2prv import Options, convert
from nsys2prv.writers.paraver.cfg import View
from nsys2prv.writers.paraver.views import find_views_for_trace

TABLE, TOTALS = (
    "\n< NEW ANALYZER2D >",
    ("Total", "Average", "Maximum", "Minimum", "StDev", "Avg/Max"),
)
OPENS_ANY_VIEW = """
window_name opens any view
window_type single
window_units Nanoseconds
window_level thread
window_selected_functions { 3, { {thread, Last Evt Val}, {evt_type, None}, {evt_value, All} } }
"""
MPI_CALL = {"start": 20, "end": 90, "globalTid": make_global_tid(1000), "textId": 1}
JOBS: dict[str, Mapping[str, Sequence[Row]]] = {
    "kernels": {KERNEL: [make_kernel(10, 200), make_kernel(300, 900)]},
    "nccl": {KERNEL: [make_kernel(10, 200, demangledName=2, shortName=2), make_kernel(300, 900)]},
    "mpi": {"MPI_OTHER_EVENTS": [MPI_CALL]},
    "nvtx": {"NVTX_EVENTS": [make_nvtx_range(10, 500, "step")]},
    "osrt": {"OSRT_API": [make_os_call(10, 500)]},
}


def convert_job(tables: Mapping[str, Sequence[Row]], folder: Path, states: bool) -> Path:
    names = make_strings("MPI_Barrier", "ncclDevKernel_AllReduce_Sum_f32_RING_LL")
    report = make_export(folder / "r.sqlite", {**tables, "StringIds": names})
    convert([report], folder / "o.prv", Options(jobs=1, quiet=True, states=states))
    return folder / "o.prv"


def open_tables(trace: Path, views: Sequence[View]) -> dict[str, str]:
    """Return path -> the table that Paraver makes of each view, whatever the trace lacks."""
    command = [str(PARAMEDIR), "-npr", str(trace)]
    for number, view in enumerate(views):
        before, mark, table = find_view_file(view.path).read_text().partition(TABLE)
        path = trace.parent / f"view{number:03d}.cfg"
        path.write_text(before + OPENS_ANY_VIEW + mark + table)
        command += [str(path), str(path.with_suffix(".out"))]
    environment = {**os.environ, "HOME": str(trace.parent)}
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, timeout=600, check=True)
    return {
        view.path: (trace.parent / f"view{number:03d}.out").read_text()
        for number, view in enumerate(views)
    }


def list_columns(table: str) -> list[str]:
    """Return the columns with a figure other than 0 and the mean of nothing (-nan), in any row or plane."""
    columns, found = [], []
    for line in table.splitlines():
        name, *cells = line.split("\t")
        if not name:
            columns = cells
        elif name not in TOTALS:
            pairs = zip(columns, cells, strict=False)
            found += [column for column, cell in pairs if cell and abs(float(cell)) > 0]
    return found


@needs_paraver
@pytest.mark.slow
@pytest.mark.parametrize("states", [False, True], ids=["", "states"])
@pytest.mark.parametrize("job", JOBS)
def test_tables_show_nothing_of_what_is_absent(job: str, states: bool, tmp_path: Path) -> None:
    trace = convert_job(JOBS[job], tmp_path, states)
    lacking = {fit.path for fit in find_views_for_trace(trace) if fit.lacking}
    tables = open_tables(trace, [view for view in VIEWS if view.cfg.histogram])
    shown = {path: columns for path, table in tables.items() if (columns := list_columns(table))}
    assert shown
    assert shown.keys() & lacking == set()
    assert [path for path, columns in shown.items() if "End" in columns] == []
