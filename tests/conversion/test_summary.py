"""Test that the closing summary is short without problems, complete with --verbose, and saved
beside the trace.
"""

import importlib
import json
import re
from html import escape
from pathlib import Path

import pytest

import nsys2prv
from nsys2prv import Options, Summary, convert
from nsys2prv.clock.maps import ClockMap, ClockRecord, HostClock, Placement
from nsys2prv.conversion.options import CutOptions
from nsys2prv.conversion.summary import describe_clocks
from nsys2prv.events.kind import describe_reason

SAMPLES = Path(__file__).parents[2] / "sample_reports"
PARTS = [
    "Wrote",
    "Also",
    "Job",
    "Clocks",
    "Events",
    "Notes",
    "Next",
    "nsys2prv",
    "nsys2prv",
    "wxparaver",
]


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    return convert(
        sorted((SAMPLES / "training").glob("rank*.sqlite")),
        tmp_path_factory.mktemp("summary") / "out.prv",
        Options(jobs=1),
    )


def test_it_has_four_parts_and_is_short(summary: Summary) -> None:
    lines = summary.text().splitlines()
    assert [line.split()[0] for line in lines if not line.startswith("   ")] == PARTS
    assert len(lines) <= 20
    assert any("error below" in line for line in lines)


def test_what_needs_no_action_is_told_on_request_and_beside_the_trace(summary: Summary) -> None:
    short, full = summary.text(), summary.text(verbose=True)
    details = [note.text for note in summary.noted if note.is_routine]
    assert details
    assert summary.repaired
    for part in [*details, *(describe_reason(reason) for _, reason in summary.repaired)]:
        assert part not in short
        assert part in full
    assert set(short.splitlines()[:2]) <= set(full.splitlines())
    (beside,) = [path for path in summary.sizes if path.name.endswith(".json")]
    metadata = json.loads(beside.read_text())
    assert metadata["notes"] == summary.notes
    assert metadata["repaired"]


def test_a_cut_is_one_line(tmp_path: Path) -> None:
    text = convert(
        sorted((SAMPLES / "graphs").glob("rank*.sqlite")),
        tmp_path / "out.prv",
        Options(jobs=1, cut=CutOptions(time="20%:60%")),
    ).text()
    (line,) = [line for line in text.splitlines() if "cut: " in line]
    assert "records discarded" in line
    assert "discarded: outside" not in text


def test_groups_of_kinds_are_lacking_as_a_whole_alone(tmp_path: Path) -> None:
    reports = sorted((SAMPLES / "graphs").glob("rank*.sqlite"))
    lacking = {}
    for kinds in (("nvtx", "kernels"), ("kernels", "mpi")):
        warnings = convert(reports, tmp_path / "o.prv", Options(kinds=kinds)).warnings
        lacking[kinds] = [line for line in warnings if "no events of this kind" in line]
    assert lacking["nvtx", "kernels"] == []
    (line,) = lacking["kernels", "mpi"]
    assert line.startswith("mpi: ")


def clocks(*known: HostClock) -> list[str]:
    placements = [
        Placement(number, ClockMap(0), "host clock + UTC") for number in range(len(known))
    ]
    return describe_clocks(
        ClockRecord({f"n{number}": clock for number, clock in enumerate(known)}),
        placements,
        len(known),
    )


def test_clocks_of_hosts_are_told_in_a_line() -> None:
    reference = HostClock(0, method="reference", observations=135, bound_ns=9_000)
    ends = HostClock(
        5, method="ends of collectives", reference="n0", observations=130, bound_ns=20_100
    )
    assert clocks(reference, ends) == ["2 nodes aligned by 135 collectives; error below 21 us"]
    utc = HostClock(0, method="UTC")
    aligned, alone = clocks(reference, ends, utc)
    assert aligned.startswith("2 of 3 nodes aligned by")
    assert alone.startswith("1 node not aligned with the others (n2): placed by UTC")
    placed = HostClock(0, method="host clock + UTC")
    assert clocks(placed, placed) == [
        "2 nodes not aligned (n0, n1): placed by UTC, which may be wrong by milliseconds"
    ]
    assert clocks(HostClock(3), HostClock(4)) == ["2 nodes corrected by the given clock file"]
    (both,) = describe_clocks(
        None, [Placement(0, ClockMap(0), "UTC"), Placement(1, ClockMap(0), "UTC")], 2
    )
    assert "UTC only" in both


def test_it_shows_itself_in_a_line(summary: Summary) -> None:
    assert repr(summary).startswith("<Summary of ")
    assert "4 ranks on 2 nodes" in repr(summary)
    assert "\n" not in repr(summary)


def test_the_package_shows_what_it_offers() -> None:
    assert {"convert", "open", "Options", "Summary", "OpenJob"} <= set(dir(nsys2prv))
    with pytest.raises(nsys2prv.Nsys2prvError, match="nowhere: no such file"):
        nsys2prv.convert("nowhere", "out.prv")
    with nsys2prv.open(SAMPLES / "graphs") as job:
        assert repr(job).startswith("<job of 2 reports: 2 ranks on 1 node, 2 GPUs")
        assert "<iframe srcdoc=" in job._repr_html_()
        results = job.analyse("efficiencies", "findings")
        assert "<Result efficiencies: Efficiencies" in repr(results)
        table = results["efficiencies"].tables["device"]
        assert "2 rows; .frame has part, devices, elapsed_ns" in repr(table)
        assert all(title in results._repr_html_() for title in (table.title, "parallel_efficiency"))
        (first, *_) = job.findings()
        assert repr(first).startswith(f"<Finding {first.kind}, one-time cost {first.share:.1%}: ")
        assert escape(first.advice) in first._repr_html_()


def test_what_would_make_a_large_trace_smaller(
    summary: Summary, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "large trace" not in summary.text()
    monkeypatch.setattr(importlib.import_module("nsys2prv.conversion.summary"), "LARGE_TRACE", 0)
    assert re.search(r"large trace; .*--no-args.*--time", summary.text(), re.MULTILINE)
