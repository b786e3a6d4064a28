"""Views that the summary of a conversion names to be opened first: something for every kind of event that has views."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsys2prv import Options, convert
from nsys2prv.events import all_kinds
from nsys2prv.views import fitting

SAMPLES = Path(__file__).parent.parent / "sample_reports"
CLUSTER, GRAPHS = (sorted((SAMPLES / name).glob("*.sqlite")) for name in ("cluster", "graphs"))
#: The types of their numbers depend on the program: no view can know them.
WITHOUT_VIEWS = {"generic_events", "nvtx_payloads"}
KINDS = [kind.name for kind in all_kinds() if kind.tables]


@pytest.mark.parametrize("kind", KINDS)
def test_a_trace_of_one_kind_names_views_that_show_something(kind: str, tmp_path: Path) -> None:
    reports = GRAPHS if kind == "graphs" else CLUSTER
    summary = convert(reports, tmp_path / "t.prv", Options(kinds=(kind,), align="utc"))
    shown = {view for view, _, reason in fitting(tmp_path / "t.prv") if not reason}
    assert set(summary.views) <= shown
    assert bool(summary.views) == (kind not in WITHOUT_VIEWS)
