"""Test the file beside a trace about its making: inputs, options, clocks, and the account of rows;
and data that must not be in it.
"""

import hashlib
import json
import sqlite3
from pathlib import Path

import pytest
from tools.trace_reader import read_trace

from nsys2prv import Options, __version__, convert
from nsys2prv.cli import main
from nsys2prv.conversion.options import CutOptions
from nsys2prv.events.kind import Reason

SAMPLES = Path(__file__).parents[2] / "sample_reports"
RANKS = sorted((SAMPLES / "cluster").glob("rank*.sqlite"))


@pytest.mark.slow
def test_it_says_of_what_the_trace_was_made(tmp_path: Path) -> None:
    summary = convert(
        RANKS,
        tmp_path / "out.prv",
        Options(min_duration={"osrt": 5_000}, cut=CutOptions(time="10%:90%")),
    )
    metadata = json.loads((tmp_path / "out.nsys2prv.json").read_text())
    assert metadata["nsys2prv"] == __version__
    assert metadata["options"] == {"min_duration": {"osrt": 5000}, "cut": {"time": "10%:90%"}}
    assert [item["name"] for item in metadata["inputs"]] == [str(path) for path in RANKS]
    for item, path in zip(metadata["inputs"], RANKS, strict=True):
        content = path.read_bytes()
        assert item["bytes"] == len(content)
        ends = content[: 1 << 20] + content[max(0, len(content) - (1 << 20)) :]
        assert (
            item["checksum"]
            == hashlib.blake2b(
                len(content).to_bytes(8, "little") + ends, digest_size=16
            ).hexdigest()
        )
    assert metadata["clock_file"] == "out.clock.yaml"
    assert metadata["trace"]["lines"] == summary.lines
    for name, size in metadata["trace"]["files"].items():
        assert (tmp_path / name).stat().st_size == size
    kinds, records = metadata["ledger"]["kinds"], metadata["ledger"]["records"]
    assert kinds["osrt"]["dropped"][Reason.TOO_SHORT.with_detail("5 us")] > 0
    assert (
        records["osrt"]["made"]
        == records["osrt"]["written"] + records["osrt"]["left_out"][Reason.OUTSIDE_CUT]
    )
    assert metadata["reasons"][Reason.TOO_SHORT.with_detail("5 us")] == "shorter than 5 us"
    assert metadata["reasons"][Reason.OUTSIDE_CUT] == Reason.OUTSIDE_CUT.text
    assert not any(
        account["missing"]
        for part in ("kinds", "records", "lines")
        for account in metadata["ledger"][part].values()
    )


@pytest.mark.slow
def test_clocks_lead_from_reports_to_the_trace(tmp_path: Path) -> None:
    """Check that kernels of a report are in the trace where its rows and the stated clock place
    them.
    """
    convert(
        RANKS, tmp_path / "out.prv", Options(kinds=("kernels",), cut=CutOptions(time="30%:100%"))
    )
    metadata = json.loads((tmp_path / "out.nsys2prv.json").read_text())
    trace = read_trace(tmp_path / "out.prv")
    begins = {item.begin for code in (63000006, 63000007) for item in trace.list_intervals(code)}
    compared = 0
    for item in metadata["inputs"]:
        clock = item["clock"]
        for (start,) in sqlite3.connect(item["name"]).execute(
            "SELECT start FROM CUPTI_ACTIVITY_KIND_KERNEL"
        ):
            time = start + clock["offset_ns"] + clock["drift"] * (start - clock["pivot_ns"])
            if time > 1:
                compared += 1
                assert any(near in begins for near in range(int(time) - 1, int(time) + 2))
    assert compared > 100


def test_it_can_be_left_away(tmp_path: Path) -> None:
    assert main(["-q", str(RANKS[0]), str(tmp_path / "out.prv")]) == 0
    assert (tmp_path / "out.nsys2prv.json").exists()
    assert main(["-q", "--no-metadata", str(RANKS[0]), str(tmp_path / "out.prv")]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.pcf", "out.prv", "out.row"]


@pytest.mark.slow
def test_without_paths_files_have_names_alone(tmp_path: Path) -> None:
    reports = sorted((SAMPLES / "machine").glob("rank*.sqlite"))
    for options, folders in (([], True), (["--no-paths"], False)):
        assert (
            main(["-q", "--report", *options, *map(str, reports), str(tmp_path / "out.prv")]) == 0
        )
        for ending in ("nsys2prv.json", "report.json", "report.html"):
            assert (str(SAMPLES) in (tmp_path / f"out.{ending}").read_text()) == folders, ending
        labels = (
            (tmp_path / "out.pcf").read_text().split("File accessed\n", 1)[1].split("\n\n", 1)[0]
        )
        assert ("/" in labels.replace("N/A", "")) == folders
        assert [
            report["name"].rsplit("/", 1)[-1]
            for report in json.loads((tmp_path / "out.nsys2prv.json").read_text())["inputs"]
        ] == [report.name for report in reports]
