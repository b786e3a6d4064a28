"""OpenACC, OpenMP and libraries on the sample set `machine`: against the truth of what was put in,
and against plain SQL by thread.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from tools.conversions import convert_and_read
from tools.corpus import EXPORTS, skip_without_corpus
from tools.trace import Trace

from nsys2prv.events.catalogue import load_catalogue
from nsys2prv.events.directives import POINTS, RANGES

SET = Path(__file__).parents[2] / "sample_reports" / "machine"
TRUTH = json.loads((SET / "truth.json").read_text(encoding="utf-8"))["ranks"]
REPORTS = [SET / rank["report"] for rank in TRUTH]
KINDS = ("openacc", "openmp", "cublas", "cudnn", "nvtx")
OTHER, DATA, LAUNCH = 66000000, 66000001, 66000002
CONSTRUCTS = {"OTHER": OTHER, "DATA": DATA, "LAUNCH": LAUNCH}
BYTES, LINE, GANGS = 66300001, 66400101, 66400106
CUBLAS, CUDNN = 66700001, 66700002
#: Numbers of the NVTX domains that libraries report as.
DOMAINS = {"UCX": 9900, "NVSHMEM": 10000, "OpenSHMEM": 10100, "Python GIL": 12500}


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return convert_and_read(
        REPORTS, tmp_path_factory.mktemp("machine") / "o.prv", kinds=KINDS, align="utc"
    )[0]


def sum_figures(trace: Trace, rank: int, code: int) -> dict[str, tuple[int, int]]:
    """Return label -> count and duration of a type's ranges in a rank."""
    count, time = Counter[str](), Counter[str]()
    for item in trace.list_intervals(code):
        if item.row[0] == rank + 1:
            count[trace.get_label(code, item.value)] += 1
            time[trace.get_label(code, item.value)] += item.end - item.begin
    return {name: (count[name], time[name]) for name in count}


@pytest.mark.parametrize("rank", range(len(REPORTS)))
@pytest.mark.parametrize("table", CONSTRUCTS)
def test_openacc_is_what_was_put_in(trace: Trace, table: str, rank: int) -> None:
    truth = TRUTH[rank]["additions"]["openacc"][table]
    code = CONSTRUCTS[table]
    for other, expected in ((code, truth["by_construct"]), (code + 100000, truth["by_source"])):
        assert sum_figures(trace, rank, other) == {
            name: (entry["rows"], entry["ns"]) for name, entry in expected.items()
        }
    if table == "DATA":
        result = Counter[str]()
        for item in trace.list_intervals(code):
            if item.row[0] == rank + 1:
                result[trace.get_label(code, item.value)] += item.others.get(BYTES, 0)
        assert result == {name: entry["bytes"] for name, entry in truth["by_construct"].items()}


@pytest.mark.parametrize("rank", range(len(REPORTS)))
def test_openmp_is_what_was_put_in(trace: Trace, rank: int) -> None:
    """Ranges without an end end with their parallel region, the trace's last one with the trace."""
    truth = TRUTH[rank]["additions"]["openmp"]
    assert truth["closed"].keys() == {construct.layout for construct in (*RANGES, *POINTS)}
    for layout, values in truth["closed"].items():
        code = load_catalogue().layouts[layout].fields[0].code
        result = defaultdict(lambda: [0, 0])
        for item in trace.list_intervals(code):
            if item.row[0] == rank + 1 and not (
                layout in truth["open"] and item.end == trace.duration
            ):
                result[str(item.value)][0] += 1
                result[str(item.value)][1] += item.end - item.begin
        assert dict(result) == {
            value: [entry["rows"], entry["ns"]] for value, entry in values.items()
        }, layout
    for layout in truth["open"]:
        code = load_catalogue().layouts[layout].fields[0].code
        assert (
            sum(
                item.row[0] == rank + 1 and item.end == trace.duration
                for item in trace.list_intervals(code)
            )
            == 1
        ), layout


@pytest.mark.parametrize("rank", range(len(REPORTS)))
def test_library_calls_are_what_was_put_in(trace: Trace, rank: int) -> None:
    truth = TRUTH[rank]["additions"]["libraries"]
    for code, name in (
        (CUBLAS, "CUBLAS_EVENTS"),
        (CUDNN, "CUDNN_EVENTS"),
        *((code, name) for name, code in DOMAINS.items()),
    ):
        assert sum_figures(trace, rank, code) == {
            call: (entry["rows"], entry["ns"]) for call, entry in truth[name].items()
        }, name
    assert trace.deepest[CUBLAS] == 2


@pytest.mark.parametrize(
    ("kind", "table", "own"), [("cublas", "CUBLAS_EVENTS", 29), ("cudnn", "CUDNN_EVENTS", 28)]
)
def test_library_calls_of_real_exports_are_counted(
    kind: str, table: str, own: int, tmp_path: Path
) -> None:
    """Rows that mark begin and end of the tracing, which is all that the exports at hand have, are
    no calls.
    """
    skip_without_corpus()
    for number, path in enumerate(EXPORTS):
        connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
        try:
            rows = connection.execute(
                f"SELECT count(*), sum(eventClass = {own}) FROM {table}"
            ).fetchone()
        except sqlite3.OperationalError:  # no such table
            continue
        finally:
            connection.close()
        if rows[0]:
            _, summary = convert_and_read(
                [path], tmp_path / f"{number}.prv", kinds=(kind, "kernels")
            )
            assert summary.events.get(kind, 0) == rows[1], path.name
