"""Test that the account of every conversion balances: rows that were read are records, or are
dropped for a named reason.
"""

import random
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools import cut_filter
from tools.corpus import EXPORTS, UNSET
from tools.exports import make_export, make_strings
from tools.trace import Trace
from tools.trace_reader import read_trace

from nsys2prv import Options, Summary, convert
from nsys2prv._util.errors import NothingToWrite
from nsys2prv.conversion.options import CutOptions
from nsys2prv.events import all_kinds
from nsys2prv.events.catalogue import load_catalogue
from nsys2prv.export.sqlite import open_database

SAMPLES = Path(__file__).parents[2] / "sample_reports"
SETS = sorted(path.parent.name for path in SAMPLES.glob("*/truth.json"))
#: What stands in damaged columns.
DAMAGE = (
    "NULL",
    "-1",
    "0",
    "9223372036854775807",
    "-9223372036854775808",
    "'text'",
    "x'00ff'",
    "1e300",
    "2305843009213693952",
)


def check_ledger(summary: Summary, prv: Path) -> None:
    """Check that the ledger balances, and that the trace contains what it counts as written."""
    assert summary.ledger.missing == {}
    assert not any("not accounted for" in warning for warning in summary.warnings)
    trace = cut_filter.parse_trace(prv)
    layouts = load_catalogue().layouts
    events = {
        name: account.written
        for name, account in summary.ledger.records.items()
        if layouts[name].fields
    }
    assert len(trace.ranges) + len(trace.states) == sum(events.values())
    # A closing zero may be of a sample's own.
    sampled = sum(
        account.written
        for name, account in summary.ledger.records.items()
        if not layouts[name].fields
    )
    numbers = sum(len(pairs) for _, _, pairs in trace.samples)
    assert numbers <= sampled <= numbers + sum(1 for _ in list_zeros_at_end(prv))
    assert len(trace.lines) == sum(account.written for account in summary.ledger.lines.values())
    assert {name: count for name, count in summary.events.items() if count} == {
        name: account.written for name, account in summary.ledger.records.items() if account.written
    }


def list_zeros_at_end(prv: Path) -> Iterator[int]:
    """Return event types of the records at the very end of a trace that contain only zeros."""
    header, *body = prv.read_text().splitlines()
    duration = header.split("):", 1)[1].split("_ns", 1)[0]
    for line in body:
        words = line.split(":")
        if words[0] == "2" and words[5] == duration and set(words[7::2]) == {"0"}:
            yield from map(int, words[6::2])


def count_rows(report: Path) -> Counter[str]:
    """Count rows by table with plain SQL."""
    connection = sqlite3.connect(f"file:{report}?mode=ro&immutable=1", uri=True)
    tables = [
        name
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    ]
    return Counter(
        {
            table: connection.execute(f'SELECT count(*) FROM "{table}"').fetchone()[0]
            for table in tables
        }
    )


def check_rows(summary: Summary, reports: list[Path]) -> None:
    """Check that the rows which kinds read are those of their tables, without rows that no kind
    used according to the ledger.
    """
    there: Counter[str] = Counter()
    for report in reports:
        there.update(count_rows(report))
    for table, item in summary.ledger.tables.items():
        assert item["rows"] == there[table]
        assert min(item.values()) >= 0
    for kind in all_kinds():
        if kind.opt_in or kind.where or kind.where_in_report:
            continue
        if kind.name in summary.ledger.kinds:
            assert summary.ledger.kinds[kind.name].rows == sum(
                there[table] for table in kind.tables
            ), kind.name
        else:
            assert not any(there[table] for table in kind.tables), kind.name


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_samples_balance(name: str, tmp_path: Path) -> None:
    reports = sorted((SAMPLES / name).glob("rank*.sqlite"))
    summary = convert(reports, tmp_path / "out.prv")
    check_ledger(summary, tmp_path / "out.prv")
    check_rows(summary, reports)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"min_duration": {"all": 5_000}},
        {"kinds": ("nvtx", "osrt", "kernels")},
        {"callstack": 4},
        {"cut": CutOptions(time="20%:70%")},
        {"cut": CutOptions(arguments=False, lines="none", ranks=("0",), rates={"all": 100})},
        {"cut": CutOptions(region="*", keep_time=True)},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", SETS)
def test_what_is_left_out_is_on_the_account(name: str, options: dict, tmp_path: Path) -> None:
    reports = sorted((SAMPLES / name).glob("rank*.sqlite"))
    check_ledger(convert(reports, tmp_path / "out.prv", Options(**options)), tmp_path / "out.prv")


@pytest.mark.parametrize(
    "report", EXPORTS or [UNSET], ids=lambda path: path.name[:40] if path else "none"
)
def test_corpus_balances(report: Path, tmp_path: Path) -> None:
    try:
        summary = convert([report], tmp_path / "out.prv")
    except NothingToWrite:
        return
    check_ledger(summary, tmp_path / "out.prv")
    check_rows(summary, [report])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_damaged_reports_balance(seed: int, tmp_path: Path) -> None:
    """NULLs, texts, bytes, fractions and numbers beyond all limits in any column of any table that
    has events; ends before begins.
    """
    luck = random.Random(seed)
    source = luck.choice(sorted(SAMPLES.glob("*/rank*.sqlite")))
    report = tmp_path / "damaged.sqlite"
    report.write_bytes(source.read_bytes())
    tables = {table for kind in all_kinds() for table in (*kind.tables, *kind.lookup_tables)}
    with open_database(source) as database:
        columns = {
            name: list(table.columns) for name, table in database.tables.items() if name in tables
        }
    connection = sqlite3.connect(report)
    for table, names in columns.items():
        for column in luck.sample(names, max(1, len(names) // 3)):
            try:
                connection.execute(
                    f'UPDATE OR IGNORE "{table}" SET "{column}" = {luck.choice(DAMAGE)} '
                    f"WHERE rowid % {luck.choice((2, 3, 7, 19))} = 0"
                )
            except sqlite3.IntegrityError:
                continue
        if {"start", "end"} <= set(names):
            connection.execute(f'UPDATE "{table}" SET "end" = "start" - 5 WHERE rowid % 11 = 0')
    connection.commit()
    connection.close()
    summary = convert([report], tmp_path / "out.prv")
    assert summary.ledger.missing == {}
    check_rows(summary, [report])
    trace: Trace = read_trace(tmp_path / "out.prv")
    assert sum(account.written for account in summary.ledger.lines.values()) == len(trace.comms)


def test_numbers_of_one_time_in_different_parts_are_on_the_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two samples of one metric at one time the greater stays, also where different tasks read
    them.
    """
    monkeypatch.setattr("nsys2prv.conversion.read.PART_ROWS", 2)
    samples = ((10, 5), (20, 6), (20, 9), (30, 1), (30, 1))
    rows = [
        {"timestamp": time, "typeId": 1, "metricId": 1, "value": value} for time, value in samples
    ]
    names = [{"typeId": 1, "metricId": 1, "metricName": "SMs Active [Throughput %]"}]
    report = make_export(
        tmp_path / "r.sqlite",
        {"GPU_METRICS": rows, "TARGET_INFO_GPU_METRICS": names, "StringIds": make_strings("a")},
    )
    summary = convert([report], tmp_path / "out.prv")
    check_ledger(summary, tmp_path / "out.prv")
    account = summary.ledger.records["gpu_metric"]
    assert (account.made, account.written) == (5, 3)
