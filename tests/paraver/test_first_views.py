"""Test the views that the summary of a conversion names: every kind of event that has views must
have one.
"""

from pathlib import Path

import pytest

from nsys2prv import Options, Summary, convert
from nsys2prv._util.errors import NothingToWrite
from nsys2prv.events import all_kinds
from nsys2prv.writers.paraver.cfg import make_view_command
from nsys2prv.writers.paraver.views import find_views_for_trace

SAMPLES = Path(__file__).parents[2] / "sample_reports"
REPORTS = {
    name: sorted((SAMPLES / name).glob("*.sqlite")) for name in ("cluster", "graphs", "machine")
}
KINDS = [kind.name for kind in all_kinds() if kind.tables]


#: Kinds whose rows no sample has: those of Windows, and of tables whose whole schema no public export
#: shows.
KINDS_IN_NO_SAMPLE = {
    "gpu_blocks",
    "graph_host_nodes",
    "host_callbacks",
    "jit",
    "memory_decompression",
    "memory_transfers",
    "nvmedia",
    "soc_metrics",
    "tegra",
    "ucx_calls",
    "ucx_submissions",
    "ucx_transfers",
    "dx11",
    "dx11_gpu",
    "dx11_debug",
    "dx12",
    "dx12_gpu",
    "dx12_debug",
    "dx12_memory",
    "dxgi",
    "nvapi",
    "openxr",
    "sli_transfers",
    "jpeg",
    "syscalls",
    "video_engine",
    "windows_events",
    "load_balance",
    "load_balance_master",
}
WINDOWS = ("wddm", "video_memory")


def convert_first_sample(kind: str, folder: Path) -> Summary | None:
    """Return the summary of the first sample that has events of a kind; None if none has."""
    for reports in REPORTS.values():
        try:
            return convert(reports, folder / "t.prv", Options(kinds=(kind,), align="utc"))
        except NothingToWrite:
            continue
    return None


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_trace_of_one_kind_names_views_that_show_something(kind: str, tmp_path: Path) -> None:
    summary = convert_first_sample(kind, tmp_path)
    if kind in KINDS_IN_NO_SAMPLE or kind.startswith(WINDOWS):
        assert summary is None, f"a sample has rows of {kind!r}: remove it from KINDS_IN_NO_SAMPLE"
    else:
        assert summary, f"no sample has rows of {kind!r}: add it to KINDS_IN_NO_SAMPLE"
    if summary is not None:
        shown = {fit.path for fit in find_views_for_trace(tmp_path / "t.prv") if not fit.lacking}
        assert set(summary.views) <= shown
        command = make_view_command(summary.trace, next(iter(summary.views)))
        assert command in summary.text()
