"""Test GPU work with impossible times: the operations of a stream run one after another."""

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from tools.conversions import convert_and_read
from tools.exports import (
    KERNEL,
    MEMCPY,
    RUNTIME,
    Row,
    make_call,
    make_export,
    make_kernel,
    make_strings,
)

import nsys2prv
from nsys2prv.conversion.options import CutOptions
from nsys2prv.open_job import OpenJob

GRAPH, MEMSET = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "CUPTI_ACTIVITY_KIND_MEMSET"
NAMES = make_strings("gemm", "cudaLaunchKernel")
#: Kernels, and what each lasts (ns).
COUNT, LASTS = 30, 100
Tables = dict[str, list[Row]]


def make_stream() -> Tables:
    """Return kernels of one stream with their calls, every tenth followed by a copy."""
    tables: Tables = {"StringIds": NAMES, KERNEL: [], RUNTIME: [], MEMCPY: []}
    for number in range(1, COUNT + 1):
        begin = 200 * number
        tables[RUNTIME].append(make_call(begin - 20, begin - 10, number))
        tables[KERNEL].append(make_kernel(begin, begin + LASTS, correlationId=number))
        if number % 10 == 0:
            copy = make_kernel(begin + 120, begin + 150, correlationId=100 + number)
            tables[MEMCPY].append({**copy, "bytes": 8, "copyKind": 1, "srcKind": 0, "dstKind": 2})
    return tables


def open_tables(folder: Path, tables: Tables) -> OpenJob:
    return nsys2prv.open(make_export(folder / "r.sqlite", tables), jobs=1)


def list_damaged(job: OpenJob) -> list[str]:
    """Return the note on damaged durations, if there is one."""
    return [note.text for note in job.quality if note.kind == "damaged_durations"]


def get_useful(job: OpenJob) -> int:
    frame = job.analyse("efficiencies", whole=True)["efficiencies"].tables["device"].frame
    return int(frame["useful_ns"][0])


def test_a_kernel_that_outlasts_later_ones_is_named_and_left_out(tmp_path: Path) -> None:
    tables = make_stream()
    tables[KERNEL][4]["end"] += 1_850
    with open_tables(tmp_path, tables) as job:
        (text,) = list_damaged(job)
        assert text.startswith(
            "1 damaged duration: r.sqlite, stream 7 of device 0, correlationId 5: "
        )
        assert " us, although 10 later operations start in that time" in text
        assert get_useful(job) == (COUNT - 1) * LASTS
        findings = [finding.title for finding in job.findings()]
        # What the file holds can be had all the same.
        kernels = job.frame("cuda_kernel")
        assert kernels.height == COUNT
        assert (kernels["end"] - kernels["begin"]).max() == LASTS + 1_850
        assert job.lines("launch").height == COUNT
    del tables[KERNEL][4], tables[RUNTIME][4]
    with open_tables(tmp_path, tables) as job:
        assert not list_damaged(job)
        assert [finding.title for finding in job.findings()] == findings


def test_a_cut_leaves_it_out_too(tmp_path: Path) -> None:
    tables = make_stream()
    tables[KERNEL][4]["end"] += 1_850
    path = make_export(tmp_path / "r.sqlite", tables)
    for time, kernels in (("1000ns:3000ns", 10), ("1500ns:1900ns", 3)):
        with nsys2prv.open(path, jobs=1, cut=CutOptions(time=time)) as job:
            assert list_damaged(job)
            work = job.reader.read_begins("cuda_kernel")
            assert work.height == kernels
            assert (work["end"] - work["begin"]).max() == LASTS
    # Of what was launched before the second one, it is not the last to end.
    assert [*job.reader.edges.carried.values()] == [20]


def test_the_trace_has_all_that_the_file_has(tmp_path: Path) -> None:
    tables = make_stream()
    tables[KERNEL][4]["end"] += 1_850
    report = make_export(tmp_path / "r.sqlite", tables)
    _, summary = convert_and_read([report], tmp_path / "o.prv")
    assert summary.events["cuda_kernel"] == COUNT
    assert any("1 damaged duration" in str(note) for note in summary.quality)


def last_longer(tables: Tables, table: str, number: int) -> None:
    tables[table][number]["end"] += 1_900


def begin_earlier(tables: Tables) -> None:
    tables[KERNEL][20]["start"] -= 1_900


def add_graph(tables: Tables) -> None:
    graph = {**tables[KERNEL].pop(3), "graphId": 1, "graphExecId": 2, "end": 2_050}
    tables[GRAPH] = [{name: value for name, value in graph.items() if "Name" not in name}]


def add_memset(tables: Tables) -> None:
    tables[MEMSET] = [{**tables[MEMCPY].pop(0), "end": 3_500, "memKind": 2, "value": 0}]


def hold_each_other(tables: Tables) -> None:
    tables[KERNEL][4]["end"] += 2_450
    tables[KERNEL][5]["end"] += 1_050


@pytest.mark.parametrize(
    ("damage", "count"),
    [
        (lambda tables: last_longer(tables, MEMCPY, 0), 1),
        (begin_earlier, 1),
        (add_graph, 1),
        (add_memset, 1),
        (hold_each_other, 2),
        (lambda tables: [row.pop("correlationId") for row in tables[KERNEL]] and last_longer(tables, KERNEL, 4), 1),
    ],
    ids=["copy", "begin", "graph", "memset", "two", "no correlation ids"],
)  # fmt: skip
def test_any_operation_of_a_stream_may_be_damaged(
    damage: Callable[[Tables], object], count: int, tmp_path: Path
) -> None:
    tables = make_stream()
    damage(tables)
    with open_tables(tmp_path, tables) as job:
        (text,) = list_damaged(job)
        assert text.startswith(f"{count} damaged duration{'s' * (count > 1)}: ")
        assert job.reader.read_begins("cuda_kernel")["begin"].is_sorted()
        work = pl.concat(
            job.reader.read_begins(layout)
            for layout in ("cuda_kernel", "memory_operation", "cuda_graph")
        )
        assert (work["end"] - work["begin"]).max() == LASTS


def run_branches(tables: Tables) -> None:
    """Run one graph with concurrent nodes; the next one is launched afterwards."""
    for number in range(5, 12):
        tables[KERNEL][number] |= {"correlationId": 5, "graphNodeId": number}
    last_longer(tables, KERNEL, 5)
    tables[KERNEL][5]["end"] = tables[KERNEL][12]["start"] - 1


def run_unknown_branches(tables: Tables) -> None:
    run_branches(tables)
    for row in tables[KERNEL]:
        row["correlationId"] = None


def launch_ahead(tables: Tables) -> None:
    """Return kernels that each start before the previous one ends."""
    for row in tables[KERNEL]:
        row["end"] += 150


def hold_one(tables: Tables) -> None:
    tables[KERNEL][4]["end"] += 250


def use_context(tables: Tables, name: str) -> None:
    for row in tables[KERNEL]:
        row[name] = 1
    tables[KERNEL][4][name] = 2
    last_longer(tables, KERNEL, 4)


def migrate(tables: Tables) -> None:
    for row in tables[MEMCPY]:
        row |= {"correlationId": 0, "copyKind": 11, "contextId": 1}
    last_longer(tables, MEMCPY, 0)


def run_at_once(tables: Tables) -> None:
    """Return alternating long and short kernels, as on several streams with one number."""
    for number in range(0, COUNT, 5):
        tables[KERNEL][number]["end"] += 700


@pytest.mark.parametrize(
    "change",
    [
        run_branches,
        run_unknown_branches,
        launch_ahead,
        hold_one,
        lambda tables: use_context(tables, "contextId"),
        lambda tables: use_context(tables, "greenContextId"),
        migrate,
        run_at_once,
    ],
    ids=["graph", "unknown graph", "launched ahead", "one", "context", "green", "migration", "all"],
)
def test_what_may_overlap_is_not_damaged(
    change: Callable[[Tables], object], tmp_path: Path
) -> None:
    tables = make_stream()
    change(tables)
    with open_tables(tmp_path, tables) as job:
        assert not list_damaged(job)
        assert job.reader.read_begins("cuda_kernel").height == COUNT
