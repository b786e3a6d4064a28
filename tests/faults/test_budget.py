"""Test that small inputs that could cause any amount of work cost little, or are refused in one
line, and that omissions are counted.
"""

import gzip
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tools.commands import measure_command, read_error, read_error_line, run_main
from tools.conversions import convert_and_read
from tools.exports import (
    KERNEL,
    PID,
    RUNTIME,
    Row,
    make_call,
    make_export,
    make_global_pid,
    make_global_tid,
    make_kernel,
    make_nvtx_range,
    make_strings,
)

from nsys2prv._util import budget
from nsys2prv._util.budget import FolderBudget
from nsys2prv._util.columns import cut_texts, join_first
from nsys2prv.events import extraction, nvtx
from nsys2prv.events.kind import Reason
from nsys2prv.export.parquet import measure_table

#: Memory that no input of 20 MB may take (KiB).
MOST_KILOBYTES = 1 << 20
LARGE = "nvtx_payloads", Reason.PAYLOAD_TOO_LARGE


def make_payloads(path: Path, texts: list[str], repeated: int = 1) -> Path:
    """Write a report with ranges that have these payloads, as registered strings."""
    rows = [
        make_nvtx_range(10 * n, 10 * n + 5, "r", jsonText=None, jsonTextId=2 + n % len(texts))
        for n in range(len(texts) * repeated)
    ]
    strings = make_strings("kern", *texts)
    return make_export(
        path, {"StringIds": strings, KERNEL: [make_kernel(1, 5)], "NVTX_EVENTS": rows}
    )


def make_processes(path: Path, count: int) -> Path:
    """Write a report of processes that each launch one kernel."""
    threads = [(n, make_global_tid(n % 60_000 + 1, n + 1)) for n in range(count)]
    return make_export(
        path,
        {
            "StringIds": make_strings("kern", "cudaLaunchKernel"),
            RUNTIME: [make_call(9 * n, 9 * n + 1, n, globalTid=tid) for n, tid in threads],
            KERNEL: [
                make_kernel(9 * n + 2, 9 * n + 7, correlationId=n, globalPid=make_global_pid(n + 1))
                for n, _ in threads
            ],
        },
    )


def test_payloads_that_are_too_long_are_left_out_and_counted(tmp_path: Path) -> None:
    numbers = {f"n{place}": place for place in range(5)}
    long = json.dumps({"k" * budget.PAYLOAD_BYTES: 1})
    report = make_payloads(tmp_path / "r.sqlite", [json.dumps(numbers), long], 3)
    trace, summary = convert_and_read([report], tmp_path / "o.prv")
    assert summary.dropped[LARGE] == 3
    assert sum("default domain: n" in label for label in trace.labels.types.values()) == 5


def test_values_beyond_the_budget_are_left_out_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = make_payloads(tmp_path / "r.sqlite", ['{"a": 1, "b": 2}'], 50)
    whole = convert_and_read([report], tmp_path / "whole.prv")[0]
    monkeypatch.setattr(nvtx, "VALUES_TOGETHER", 7)
    monkeypatch.setattr(nvtx, "PATH_BYTES", 1)
    pieces, summary = convert_and_read([report], tmp_path / "pieces.prv")
    assert [(one.time, one.numbers) for one in pieces.samples] == [
        (one.time, one.numbers) for one in whole.samples
    ]
    assert LARGE not in summary.dropped
    monkeypatch.setattr(nvtx, "LEAST_VALUES", 60 - report.stat().st_size // 4)
    _, summary = convert_and_read([report], tmp_path / "some.prv")
    assert summary.dropped[LARGE] == 20


def test_processes_beyond_the_budget_are_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = make_processes(tmp_path / "r.sqlite", 30)
    monkeypatch.setattr(budget, "LEAST_PROCESSES", 20)
    assert run_main("report", report) == 1
    assert "30 processes and devices, but at most " in read_error_line(capsys)
    assert run_main("-q", report, tmp_path / "out.prv") == 0
    monkeypatch.setattr(budget, "BYTES_PER_PROCESS", 1)
    capsys.readouterr()
    assert run_main("report", report) == 0, "larger reports may have more"


def test_events_are_joined_to_one_each() -> None:
    rows = pl.DataFrame({"thread": np.zeros(3_000, np.int64), "begin": 5, "number": range(3_000)})
    joined = join_first(rows, rows.rename({"number": "other"}), ("thread", "begin"))
    assert joined.height == rows.height
    assert joined["other"].unique().to_list() == [0]


def test_the_size_of_a_table_is_known_before_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / "t.parquet"
    frame = pl.DataFrame({"a": range(1000), "text": ["x" * 500] * 500 + ["y" * 300] * 500})
    for more in ({}, {"row_group_size": 100}, {"compression": "snappy"}, {"statistics": False}):
        frame.write_parquet(file, **more)
        size = measure_table(file)
        assert size.rows == 1000
        assert 2_000 < size.unpacked < 40_000
    whole = file.read_bytes()
    for cut in (20, len(whole) // 2):
        file.write_bytes(whole[:cut] + whole[-8:])
        with pytest.raises(ValueError, match=r"damaged|end like"):
            measure_table(file)


def test_a_folder_has_what_its_size_allows() -> None:
    allowed = FolderBudget(1000)
    allowed.take("rows", budget.LEAST_ROWS)
    allowed.take("rows", 500)
    with pytest.raises(ValueError, match="more rows than"):
        allowed.take("rows", 1)


def test_columns_that_take_no_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "r.parquetdir"
    folder.mkdir()
    rows = 200_000
    nothing = pl.Series([None], dtype=pl.Int64).new_from_index(0, rows)
    columns = {f"c{number}": nothing for number in range(600)}
    times = {name: range(rows) for name in ("start", "end")}
    pl.DataFrame({**times, **columns}).write_parquet(folder / f"{KERNEL}.parquet")
    assert run_main("-q", folder, tmp_path / "out.prv") == 1
    assert "more values than" in read_error_line(capsys)


def make_deep_keys() -> list[str]:
    """Return a payload with values whose paths are as long as the payload."""
    text = "1"
    for place in range(900):
        text = f'{{"{"k" * 400}": {text}, "v{place}": [1, 2, 3, 4, 5, 6, 7, 8, 9]}}'
    return [text]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("texts", "repeated"),
    [
        (make_deep_keys(), 40),
        ([json.dumps({f"n{place}": place for place in range(1000)})], 4000),
        (["[" + "1," * 2_000_000 + "1]"], 2),
        ([f"[{number}{',1' * 8000}]" for number in range(400)], 1),
    ],
    ids=["deep keys", "many numbers", "one array", "arrays"],
)
def test_memory_of_payloads(texts: list[str], repeated: int, tmp_path: Path) -> None:
    report = make_payloads(tmp_path / "r.sqlite", texts, repeated)
    done, kilobytes = measure_command("-q", report, tmp_path / "out.prv")
    assert done.returncode == 0, done.stderr
    assert kilobytes < MOST_KILOBYTES


@pytest.mark.slow
def test_memory_of_collectives_at_one_moment(tmp_path: Path) -> None:
    tids = [make_global_tid(1, pid) for pid in (1, 2)]
    rows: list[Row] = [
        {
            "start": 10,
            "end": 1000 + n,
            "globalTid": tids[n % 2],
            "textId": 1,
            "commHandle": 1,
            "rootRank": 0,
            "collSendCount": 8,
        }
        for n in range(8_000)
    ]
    report = make_export(
        tmp_path / "r.sqlite",
        {
            "StringIds": make_strings("MPI_Allreduce"),
            "MPI_RANKS": [{"globalTid": tid, "rank": rank} for rank, tid in enumerate(tids)],
            "MPI_COLLECTIVES_EVENTS": rows,
        },
    )
    done, kilobytes = measure_command("report", "--html", tmp_path / "r.html", report)
    assert done.returncode == 0, done.stderr
    assert kilobytes < MOST_KILOBYTES


@pytest.mark.slow
def test_memory_of_functions_with_long_names_in_many_stacks(tmp_path: Path) -> None:
    functions, stacks = 2_000, 3_000
    report = make_export(
        tmp_path / "r.sqlite",
        {
            "StringIds": make_strings("kern", "lib.so", *(f"f{n}{'y' * 1900}" for n in range(functions))),
            KERNEL: [make_kernel(1, 9 * stacks)],
            "SAMPLING_CALLCHAINS": [
                {"id": n, "symbol": 3 + (n * 7 + depth * 13) % functions, "module": 2, "stackDepth": depth}
                for n in range(stacks)
                for depth in range(100)
            ],
            "COMPOSITE_EVENTS": [
                {"id": n, "start": 9 * n, "cpu": 0, "threadState": 0, "globalTid": make_global_tid(PID), "cpuCycles": 1}
                for n in range(stacks)
            ],
        },
    )  # fmt: skip
    done, kilobytes = measure_command("report", "--json", tmp_path / "r.json", report)
    assert done.returncode == 0, done.stderr
    assert kilobytes < MOST_KILOBYTES


@pytest.mark.slow
def test_memory_of_many_processes(tmp_path: Path) -> None:
    report = make_processes(tmp_path / "r.sqlite", 13_000)
    done, kilobytes = measure_command("report", report)
    assert "13,000 processes and devices" in read_error(done)
    assert kilobytes < MOST_KILOBYTES


@pytest.mark.slow
def test_memory_of_rows_that_are_run_lengths(tmp_path: Path) -> None:
    folder = tmp_path / "r.parquetdir"
    folder.mkdir()
    times = pl.Series([5]).new_from_index(0, 30_000_000)
    pl.DataFrame({"start": times, "end": times}).write_parquet(folder / f"{KERNEL}.parquet")
    done, kilobytes = measure_command("-q", folder, tmp_path / "out.prv")
    assert "more rows than files of their size" in read_error(done)
    assert kilobytes < MOST_KILOBYTES


def test_a_compressed_trace_of_any_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "t.prv.gz"
    head = b"#Paraver (01/01/2026 at 00:00):100_ns:1(1):1:1(1:1)\n"
    trace.write_bytes(gzip.compress(head + b"2:1:1:1:1:1:2:3\n" * 300_000))
    monkeypatch.setattr(budget, "LEAST_TRACE", 1 << 16)
    for arguments in (("check", trace), ("cfgs", "--for", trace)):
        assert run_main(*arguments) == 1
        assert "which is too much for a trace" in read_error_line(capsys)
    monkeypatch.setattr(budget, "TRACE_PER_BYTE", 1 << 20)
    assert run_main("cfgs", "--for", trace) == 0


def test_one_text_that_is_the_name_of_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "t" * 5_000
    report = make_export(
        tmp_path / "r.sqlite",
        {
            "StringIds": make_strings("kern", text),
            KERNEL: [make_kernel(1, 5)],
            "ThreadNames": [{"globalTid": make_global_tid(PID), "nameId": 2, "priority": 1}],
            "NVTX_EVENTS": [
                make_nvtx_range(10 * n, 10 * n + 5, None, domainId=n, textId=2) for n in range(40)
            ],
        },
    )
    _, summary = convert_and_read([report], tmp_path / "whole.prv")
    name_cut = "nvtx_pushpop_trace", Reason.NAME_CUT
    assert name_cut not in summary.repaired
    assert len((tmp_path / "whole.row").read_text()) < 2 * budget.OBJECT_NAME
    monkeypatch.setattr(extraction, "LEAST_NAMES", 1)
    monkeypatch.setattr(extraction, "NAMES_PER_BYTE", 1)
    _, summary = convert_and_read([report], tmp_path / "cut.prv")
    assert summary.repaired[name_cut] == 40
    assert cut_texts([text] * 9, 100) == cut_texts(pl.Series([text] * 9), 100).to_list()
    assert cut_texts([text] * 9, 100)[0] == f"{'t' * budget.LEAST_NAME}..."
