"""Test outlines of tables, which are made while tables are checked, against their rows."""

from __future__ import annotations

import re
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from nsys2prv._util.native import core
from nsys2prv.events.nvtx import PUSHPOP, STARTEND
from nsys2prv.export import outlines, sqlite
from nsys2prv.export.info import read_report_info
from nsys2prv.export.outlines import (
    ENDS,
    GREATEST,
    HIGH,
    IS_NAME,
    IS_NOTED,
    IS_OPEN,
    IS_UNDATED,
    LEAST,
    LOW,
    NVTX_RANGES,
    NVTX_TABLE,
    SERIES,
    TIMES,
    TRAITS,
)

SAMPLES = Path(__file__).parents[2] / "sample_reports"
REPORTS = [next((SAMPLES / name).glob("*.sqlite")) for name in ("graphs", "machine", "training")]
BLOCK_ROWS = 16
NUMBERS = ("uint64Value", "int64Value", "uint32Value", "int32Value", "doubleValue", "floatValue")
LARGEST, SMALLEST = np.iinfo(np.int64).max, np.iinfo(np.int64).min

pytestmark = pytest.mark.skipif(not core, reason="made by the compiled core")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlines, "BLOCK_ROWS", BLOCK_ROWS)
    monkeypatch.setattr(sqlite, "SMALL_FILE", 0)


def compare(report: Path) -> int:
    """Compare all outlines of a report with the rows of its tables; return how many there are."""
    found = read_report_info(report, outlined=True)
    connection = sqlite3.connect(report)
    for table, outline in found.outlines.items():
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        begin = next(name for name in TIMES if name in columns)
        end = next((name for name in ENDS if name in columns), "NULL")
        identity = "correlationId" if "correlationId" in columns else "NULL"
        kind = "eventType" if table == NVTX_TABLE else "NULL"
        by_series = {*SERIES} <= {*columns}
        identity, kind = SERIES if by_series else (identity, kind)
        note, domain = "NULL", "0"
        if table == NVTX_TABLE:
            domain = "CASE WHEN domainId BETWEEN 0 AND 254 THEN domainId ELSE 255 END"
            # The reasons of a row: numbers, JSON, and another domain.
            note = " + ".join(
                f"{bit} * (coalesce({', '.join([*(one for one in names if one in columns), 'NULL', 'NULL'])}) IS NOT NULL)"
                for bit, names in ((1, NUMBERS), (2, ("jsonText", "jsonTextId")))
            )
            note = f"nullif({note} + 4 * (coalesce(domainId, 0) != 0), 0)"
        rows = connection.execute(
            f"SELECT rowid, {begin}, {end}, {identity}, {kind}, {domain}, {note} FROM {table}"
        )
        first, count = found.parts[table].first, outline.bounds.shape[1]
        expected = np.tile(np.array([[LARGEST, SMALLEST] * 2 + [0]]).T, count)
        found_noted, series = [], set()
        for rowid, *times, identity, kind, domain, note in rows:
            of_block = expected[:, (rowid - first) // BLOCK_ROWS]
            if by_series and (identity, kind) not in series:
                series.add((identity, kind))
                note = 1
            known = [time for time in times if time is not None]
            ids = [] if identity is None else [identity]
            if times[0] is not None:
                of_block[LEAST] = min(of_block[LEAST], times[0])
            of_block[GREATEST] = max(of_block[GREATEST], *known, SMALLEST)
            of_block[LOW], of_block[HIGH] = (
                min(of_block[LOW], *ids, LARGEST),
                max(of_block[HIGH], *ids, SMALLEST),
            )
            lasts = kind in NVTX_RANGES or table != NVTX_TABLE
            traits = outlines.IS_RANGE * lasts
            traits |= IS_UNDATED * (times[0] is None) | IS_OPEN * (lasts and times[1] is None)
            traits |= IS_NOTED * (note is not None) | IS_NAME * (kind in (33, 75))
            of_block[TRAITS] |= traits
            found_noted += [(rowid, note, domain)] if note is not None else []
        assert np.array_equal(outline.bounds, expected), table
        noted = outline.noted.rowids, outline.noted.reasons, outline.noted.domains
        assert list(zip(*(one.tolist() for one in noted), strict=True)) == found_noted
    return len(found.outlines)


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.parent.name)
def test_outlines_of_samples(report: Path) -> None:
    assert compare(report) > 3


def copy_changed(folder: Path, *statements: str, report: Path = REPORTS[0]) -> Path:
    """Copy a report to a folder and change it by SQL statements."""
    report = Path(shutil.copy(report, folder))
    connection = sqlite3.connect(report)
    with connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()
    return report


def test_outlines_with_gaps_and_nulls(tmp_path: Path) -> None:
    report = copy_changed(
        tmp_path,
        "DELETE FROM NVTX_EVENTS WHERE rowid BETWEEN 30 AND 90 OR rowid % 7 = 3",
        "UPDATE NVTX_EVENTS SET end = NULL WHERE rowid % 50 = 1",
        "UPDATE NVTX_EVENTS SET eventType = 33 WHERE rowid % 90 = 2",
        "UPDATE NVTX_EVENTS SET domainId = rowid * 7 - 500 WHERE rowid % 20 = 5",
        "UPDATE NVTX_EVENTS SET domainId = 256 WHERE rowid % 80 = 5",
        "UPDATE NVTX_EVENTS SET jsonText = '{}' WHERE rowid % 30 = 7",
        "UPDATE NVTX_EVENTS SET int32Value = rowid WHERE rowid % 30 = 8",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = -start WHERE rowid = 20",
    )
    assert compare(report) > 3


def test_no_outline_of_other_values(tmp_path: Path) -> None:
    report = copy_changed(tmp_path, "UPDATE NVTX_EVENTS SET end = 'late' WHERE rowid = 20")
    assert NVTX_TABLE not in read_report_info(report, outlined=True).outlines


def test_no_outline_if_ids_are_rowids(tmp_path: Path) -> None:
    columns = "start INT, end INT, correlationId INTEGER PRIMARY KEY"
    report = copy_changed(
        tmp_path,
        f"CREATE TABLE OTHER ({columns})",
        "INSERT INTO OTHER SELECT start, end, rowid FROM CUPTI_ACTIVITY_KIND_KERNEL",
    )
    assert "OTHER" not in read_report_info(report, outlined=True).outlines
    assert compare(report) > 3


def test_series_of_several_devices(tmp_path: Path) -> None:
    report = copy_changed(
        tmp_path,
        # Later there are more metrics, with larger numbers, and then rows of several devices.
        "UPDATE GPU_METRICS SET metricId = metricId * 16 WHERE rowid > 300",
        "UPDATE GPU_METRICS SET typeId = typeId + rowid % 3 WHERE rowid > 600",
        "UPDATE GPU_METRICS SET metricId = -1 WHERE rowid > 900 AND metricId = 16",
        report=REPORTS[2],
    )
    assert compare(report) > 3


def test_names_of_domains_are_found_by_outlines(monkeypatch: pytest.MonkeyPatch) -> None:
    for report in REPORTS:
        by_outline = read_report_info(report)
        monkeypatch.setattr(sqlite, "SMALL_FILE", 1 << 40)
        whole = read_report_info(report)
        monkeypatch.setattr(sqlite, "SMALL_FILE", 0)
        assert by_outline.domains == whole.domains
        assert by_outline.categories == whole.categories


def test_types_of_ranges() -> None:
    assert set(map(int, re.findall(r"\d+", PUSHPOP + STARTEND))) == {*NVTX_RANGES}
