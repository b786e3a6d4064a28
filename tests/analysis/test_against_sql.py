"""Compare figures of the analyses with plain SQL and plain Python on the exports: on the samples,
and on a folder of real exports.
"""

import re
import sqlite3
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import polars as pl
import pytest
from tools.corpus import EXPORTS, UNSET, skip_without_corpus
from tools.view_answers import SAMPLES

import nsys2prv
from nsys2prv._util.errors import NothingToWrite
from nsys2prv.open_job import OpenJob

PREFIX = "CUPTI_ACTIVITY_KIND_"
KERNEL, RUNTIME, MEMCPY, MEMSET, GRAPH = (
    PREFIX + name for name in ("KERNEL", "RUNTIME", "MEMCPY", "MEMSET", "GRAPH_TRACE")
)
#: Rows of this event class repeat calls.
BACKTRACES = 67
#: The kinds that these tests look at.
KINDS = ("cuda", "nvtx", "mpi")


class Export:
    """An export, read with plain SQL."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
        self.tables = {
            name for (name,) in self._connection.execute("SELECT name FROM sqlite_master")
        }

    def query(self, table: str, query: str) -> list[tuple]:
        """Return the rows of a query, none if the table is missing."""
        return self._connection.execute(query).fetchall() if table in self.tables else []

    def list_columns(self, table: str) -> set[str]:
        return {row[1] for row in self._connection.execute(f"PRAGMA table_info({table})")}

    def close(self) -> None:
        self._connection.close()


def compute_statistics(durations: Sequence[int]) -> tuple:
    """Return the statistics as `nsys stats` defines them: count, total, mean, median, least,
    greatest, deviation of a sample.
    """
    deviation = statistics.stdev(durations) if len(durations) > 1 else -1
    return (
        len(durations),
        sum(durations),
        statistics.fmean(durations),
        statistics.median(durations),
        min(durations),
        max(durations),
        deviation,
    )


def group_durations(rows: Iterable[tuple]) -> dict[object, list[int]]:
    """Return name -> durations (at least 1 ns, as in the trace)."""
    result: dict[object, list[int]] = defaultdict(list)
    for name, start, end in rows:
        result[name].append(max(end - start, 1))
    return result


def are_close(actual: Iterable[tuple], expected: Iterable[tuple]) -> bool:
    """Return whether rows of figures are equal, in any order."""

    def key(row: tuple) -> tuple:
        return row[0], row[1], row[4], row[5]

    actual = sorted(
        (tuple(-1 if value is None else value for value in row) for row in actual), key=key
    )
    expected = sorted(expected, key=key)
    return len(actual) == len(expected) and all(
        item == pytest.approx(other, rel=1e-9) for item, other in zip(actual, expected, strict=True)
    )


FIGURES = ("count", "time_ns", "mean_ns", "median_ns", "min_ns", "max_ns", "std_dev_ns")


def check_summaries(job: OpenJob, exports: Sequence[Export]) -> None:
    """Check the summaries of kernels, API calls and copies."""
    results = job.analyse("kernels", "idle")
    # What helpers of the ranks do is in no figure.
    helpers = job.rows.filter(pl.col("kind") == "helper")["row"]
    of_helpers = ", ".join(helpers.str.split(" ").list.last())
    kernels, graphs = defaultdict(list), defaultdict(list)
    calls, copies = defaultdict(list), Counter()
    for number, export in enumerate(exports):
        for name, item in group_durations(
            export.query(KERNEL, f"SELECT demangledName, start, end FROM {KERNEL}")
        ).items():
            text = export.query("StringIds", f"SELECT value FROM StringIds WHERE id = {name}")
            kernels[text[0][0] if text else name] += item
        for name, item in group_durations(
            export.query(GRAPH, f"SELECT graphExecId, start, end FROM {GRAPH}")
        ).items():
            graphs[number, name] += item
        query = (
            f"SELECT value, start, end FROM {RUNTIME} LEFT JOIN StringIds ON id = nameId "
            f"WHERE eventClass <> {BACKTRACES} AND globalTid & 0xFFFFFF NOT IN ({of_helpers})"
        )
        for name, item in group_durations(export.query(RUNTIME, query)).items():
            calls[name] += item
        for kind, size, start, end in export.query(
            MEMCPY, f"SELECT copyKind, bytes, start, end FROM {MEMCPY}"
        ):
            copies[kind, "count"] += 1
            copies[kind, "bytes"] += size
            copies[kind, "time"] += max(end - start, 1)
    tables = results["kernels"].tables
    if kernels or graphs:
        frame = tables["kernels"].frame
        of_graphs = frame.filter(pl.col("class") == "CUDA graph")
        assert are_close(
            frame.filter(pl.col("class") != "CUDA graph").select(FIGURES).rows(),
            map(compute_statistics, kernels.values()),
        )
        assert of_graphs["time_ns"].sum() == sum(map(sum, graphs.values()))
        assert tables["classes"].frame["count"].sum() == sum(
            map(len, [*kernels.values(), *graphs.values()])
        )
        assert tables["classes"].frame["time_share"].sum() == pytest.approx(1)
    if calls:
        frame = results["idle"].tables["calls"].frame
        assert (frame["count"].sum(), frame["time_ns"].sum()) == (
            sum(map(len, calls.values())),
            sum(map(sum, calls.values())),
        )
        greatest = max(calls.values(), key=len)
        assert (
            are_close(
                frame.filter(pl.col("count") == len(greatest)).select(FIGURES).rows()[:1],
                [compute_statistics(greatest)],
            )
            or len(calls) > 1
        )
    if copies:
        frame = (
            results["idle"]
            .tables["memory"]
            .frame.filter(pl.col("operation").str.contains("memcpy|migration"))
        )
        for column, what in (("count", "count"), ("bytes", "bytes"), ("time_ns", "time")):
            assert frame[column].sum() == sum(
                value for (_, which), value in copies.items() if which == what
            )


def read_device_work(export: Export) -> dict[tuple, dict[str, list[tuple[int, int]]]]:
    """Return the intervals of the work of each process on each device, by kind."""
    result: dict[tuple, dict[str, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    name = "(SELECT value FROM StringIds WHERE id = demangledName)"
    for pid, device, start, end, text in export.query(
        KERNEL, f"SELECT globalPid, deviceId, start, end, {name} FROM {KERNEL}"
    ):
        result[pid, device]["nccl" if text.startswith("nccl") else "compute"].append(
            (start, max(end, start + 1))
        )
    for table, kind in ((GRAPH, "compute"), (MEMCPY, "memory"), (MEMSET, "memory")):
        for pid, device, start, end in export.query(
            table, f"SELECT globalPid, deviceId, start, end FROM {table}"
        ):
            result[pid, device][kind].append((start, max(end, start + 1)))
    return result


def merge_intervals(pieces: Iterable[list[tuple[int, int]]]) -> list[tuple[int, int]]:
    """Return the spans that are covered by at least one of these intervals."""
    marks = sorted(
        (time, step)
        for piece in pieces
        for begin, end in piece
        for time, step in ((begin, 0), (end, 1))
    )
    stretches, open_ = [], 0
    for time, step in marks:
        if step == 0:
            if open_ == 0 and not (stretches and stretches[-1][1] == time):
                stretches.append((time, time))
            open_ += 1
        else:
            open_ -= 1
            stretches[-1] = stretches[-1][0], time
    return stretches


def sum_lengths(stretches: Iterable[tuple[int, int]]) -> int:
    return sum(end - begin for begin, end in stretches)


def check_efficiencies(job: OpenJob, exports: Sequence[Export]) -> None:
    """Check efficiencies and overlap of jobs in which every (process, device) is a GPU of its
    own."""
    by_device = [sets for export in exports for _, sets in sorted(read_device_work(export).items())]
    # The time that only helpers have is not the job's.
    elapsed = job.describe()["job_ns"]
    assert elapsed == job.duration or (job.rows["kind"] == "helper").any()
    for useful, kinds in (("compute", ("compute",)), ("all-kernels", ("compute", "nccl"))):
        results = job.analyse("efficiencies", "overlap", useful=useful)
        if not by_device:
            assert "device" not in results["efficiencies"].tables
            return
        times = [sum_lengths(merge_intervals(sets[kind] for kind in kinds)) for sets in by_device]
        active = [sum_lengths(merge_intervals(sets.values())) for sets in by_device]
        rows = results["efficiencies"].tables["device"].frame
        row = rows.row(by_predicate=pl.col("part") == "whole job", named=True)
        assert row["devices"] == len(by_device)
        assert row["parallel_efficiency"] == pytest.approx(
            sum(times) / len(times) / elapsed, rel=1e-9
        )
        assert row["orchestration_efficiency"] == pytest.approx(max(active) / elapsed, rel=1e-9)
        if max(times):
            assert row["load_balance_efficiency"] == pytest.approx(
                sum(times) / len(times) / max(times), rel=1e-9
            )
            assert row["communication_efficiency"] == pytest.approx(
                max(times) / max(active), rel=1e-9
            )
    *rows, _ = (
        results["overlap"].tables["devices"].frame.rows(named=True)
        if "devices" in results["overlap"].tables
        else (None,)
    )
    for row, sets in zip(rows, by_device, strict=False):
        compute, communication = (
            merge_intervals([sets["compute"]]),
            merge_intervals([sets["nccl"], sets["memory"]]),
        )
        both = (
            sum_lengths(compute)
            + sum_lengths(communication)
            - sum_lengths(merge_intervals([compute, communication]))
        )
        assert (row["communication_ns"], row["overlapped_ns"]) == (sum_lengths(communication), both)


def check_operations(job: OpenJob, exports: Sequence[Export]) -> None:
    """Check GPU time, kernels and calls of ranges, over all names and by name."""
    expected: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    unclosed: set[str] = set()
    has_captures = False
    for export in exports:
        if "NVTX_EVENTS" not in export.tables:
            continue
        columns = export.list_columns("NVTX_EVENTS")
        text = (
            "COALESCE(text, (SELECT value FROM StringIds WHERE id = textId))"
            if "textId" in columns
            else "text"
        )
        nccl = {
            (domain, tid >> 24)
            for domain, tid in export.query(
                "NVTX_EVENTS",
                f"SELECT domainId, globalTid FROM NVTX_EVENTS WHERE eventType = 75 AND {text} = 'NCCL'",
            )
        }
        unclosed |= {
            name or ""
            for (name,) in export.query(
                "NVTX_EVENTS",
                f"SELECT {text} FROM NVTX_EVENTS WHERE eventType IN (59, 60) AND end IS NULL",
            )
        }
        query = f"SELECT globalTid, start, end, domainId, {text} FROM NVTX_EVENTS WHERE eventType IN (59, 60) AND end IS NOT NULL"
        ranges = [
            row for row in export.query("NVTX_EVENTS", query) if (row[3], row[0] >> 24) not in nccl
        ]
        launched = read_launches(export)
        captured, replays = read_captures(export)
        replaying = {
            name
            for tid, start, end, _, name in ranges
            if any(start <= sent <= end for sent in replays.get(tid, ()))
        }
        has_captures |= bool(captured)
        for tid, start, end, _, name in ranges:
            figures_ = expected[name or ""]
            figures_[0] += 1
            figures_[1] += max(end - start, 1)
            for sent, time, is_kernel in launched.get(tid, ()):
                if start <= sent <= end:
                    figures_[2] += time
                    figures_[3] += is_kernel
            for sent, time in captured.get(tid, ()) if name not in replaying else ():
                if start <= sent <= end:
                    figures_[2] += time
                    figures_[3] += 1
    results = job.analyse("operations")["operations"]
    if not expected:
        assert results.tables == {}
        return
    # Ranges that a report does not close last to the end of the trace.
    frame = results.tables["operations"].frame
    tree = results.tables["tree"].frame
    assert tree["calls"].sum() == frame["calls"].sum()
    assert tree.filter(pl.col("depth") == 0)["host_ns"].sum() == frame["host_exclusive_ns"].sum()
    if "gpu_ns" not in frame.columns:
        assert not any(item[2] or item[3] for item in expected.values())
        frame, tree = (
            one.with_columns(gpu_ns=0, gpu_exclusive_ns=0, kernels=0) for one in (frame, tree)
        )
    # Replayed work is in the ranges of its launch, and in those of its capture.
    whole = tree.filter(pl.col("depth") == 0)["gpu_ns"].sum()
    exclusive = frame["gpu_exclusive_ns"].sum()
    assert whole >= exclusive if has_captures else whole == exclusive
    frame = frame.filter(~pl.col("operation").is_in(sorted(unclosed)))
    expected = {name: item for name, item in expected.items() if name not in unclosed}
    assert frame["calls"].sum() == sum(item[0] for item in expected.values())
    assert frame["host_ns"].sum() == sum(item[1] for item in expected.values())
    assert frame["gpu_ns"].sum() == sum(item[2] for item in expected.values())
    by_name = {row["operation"]: row for row in frame.rows(named=True)}
    for name in expected.keys() & by_name.keys():
        row = by_name[name]
        assert [row["calls"], row["host_ns"], row["gpu_ns"], row["kernels"]] == expected[name], name


#: Number of an export, and globalTid.
Thread = tuple[int, int]
FSDP = re.compile(r"FSDP::(pre|post)_forward \((.+?)\)")


def check_modules(job: OpenJob, exports: Sequence[Export]) -> None:
    """Check the work between FSDP's hooks by module; without hooks, all work launched in push/pop
    ranges.
    """
    hooks: dict[Thread, list[tuple[int, int, str, str]]] = defaultdict(list)
    ranges: dict[Thread, list[tuple[int, int]]] = defaultdict(list)
    launched: dict[Thread, list[tuple[int, int, bool]]] = defaultdict(list)
    for number, export in enumerate(exports):
        if "NVTX_EVENTS" not in export.tables or "textId" not in export.list_columns("NVTX_EVENTS"):
            continue
        text = "COALESCE(text, (SELECT value FROM StringIds WHERE id = textId))"
        query = f"SELECT globalTid, start, end, {text} FROM NVTX_EVENTS WHERE eventType = 59 AND end IS NOT NULL ORDER BY start"
        for tid, start, end, name in export.query("NVTX_EVENTS", query):
            ranges[number, tid].append((start, end))
            if found := FSDP.match(name or ""):
                hooks[number, tid].append((start, end, *found.groups()))
        launched |= {(number, tid): calls for tid, calls in read_launches(export).items()}
    tables = job.analyse("modules")["modules"].tables
    if not any("aten" in one for one in job.labels["nvtx"]["label"]):
        return
    tree = tables["modules"].frame
    whole = sum(
        time
        for tid, calls in launched.items()
        for sent, time, _ in calls
        if any(start <= sent <= end for start, end in ranges[tid])
    )
    assert tree.filter(pl.col("depth") == 0)["gpu_ns"].sum() == whole
    expected: dict[str, int] = defaultdict(int)
    for tid, own in hooks.items():
        opened: dict[str, int] = {}
        for start, end, when, name in own:
            if when == "pre":
                opened[name] = start
            elif name in opened:
                since = opened.pop(name)
                name = name.replace("._checkpoint_wrapped_module", "")
                name = re.sub(r"(blocks?)\.\d+", r"\1.*", name)
                times = (time for sent, time, _ in launched[tid] if since <= sent <= end)
                expected[re.sub(r"\.(?![\d*])", " / ", name)] += sum(times)
    sums = dict(tree.select("path", "gpu_ns").rows())
    assert {name: sums.get(name, 0) for name in expected} == expected


def read_captures(export: Export) -> tuple[dict[int, list[tuple[int, int]]], dict[int, list[int]]]:
    """Return thread -> captured calls (their start, and the time of a kernel that replays them);
    and thread -> starts of calls that replay such kernels.
    """
    captured: dict[int, list[tuple[int, int]]] = defaultdict(list)
    replays: dict[int, list[int]] = defaultdict(list)
    if "CUDA_GRAPH_NODE_EVENTS" not in export.tables:
        return captured, replays
    columns = "graphNodeId, originalGraphNodeId, globalTid, start"
    nodes = {
        (tid >> 24, node): (original, tid, start)
        for node, original, tid, start in export.query(
            "CUDA_GRAPH_NODE_EVENTS", f"SELECT {columns} FROM CUDA_GRAPH_NODE_EVENTS"
        )
    }
    calls = {
        (tid >> 24, correlation): (tid, start)
        for tid, start, correlation in export.query(
            RUNTIME, f"SELECT globalTid, start, correlationId FROM {RUNTIME}"
        )
    }
    query = f"SELECT globalPid, correlationId, graphNodeId, start, end FROM {KERNEL} WHERE graphNodeId > 0"
    for pid, correlation, node, start, end in export.query(KERNEL, query):
        made = nodes.get((pid >> 24, node))
        while made and made[0]:
            made = nodes.get((pid >> 24, made[0]))
        if made and (pid >> 24, correlation) in calls:
            captured[made[1]].append((made[2], max(end - start, 1)))
            tid, sent = calls[pid >> 24, correlation]
            replays[tid].append(sent)
    return captured, replays


def read_launches(export: Export) -> dict[int, list[tuple[int, int, bool]]]:
    """Return thread -> launching calls (start of the call, time of the work, whether it is a kernel
    or graph).
    """
    calls: dict[tuple[int, int], tuple[int, int]] = {}
    for tid, start, correlation in export.query(
        RUNTIME, f"SELECT globalTid, start, correlationId FROM {RUNTIME} WHERE correlationId <> 0"
    ):
        key = tid >> 24, correlation
        if key not in calls or start < calls[key][1]:
            calls[key] = tid, start
    result: dict[int, list[tuple[int, int, bool]]] = defaultdict(list)
    for table in (KERNEL, GRAPH, MEMCPY, MEMSET):
        for pid, correlation, start, end in export.query(
            table, f"SELECT globalPid, correlationId, start, end FROM {table}"
        ):
            if (pid >> 24, correlation) in calls:
                tid, sent = calls[pid >> 24, correlation]
                result[tid].append((sent, max(end - start, 1), table in (KERNEL, GRAPH)))
    return result


@pytest.fixture(scope="module", params=sorted(SAMPLES))
def sample(request: pytest.FixtureRequest) -> Iterator[tuple[OpenJob, list[Export]]]:
    exports = [Export(path) for path in SAMPLES[request.param]]
    with nsys2prv.open(SAMPLES[request.param], align="utc") as job:
        yield job, exports
    for export in exports:
        export.close()


@pytest.mark.parametrize(
    "check",
    [check_summaries, check_efficiencies, check_operations, check_modules],
    ids=lambda check: check.__name__,
)
def test_samples(sample: tuple[OpenJob, list[Export]], check) -> None:
    check(*sample)


@pytest.mark.parametrize(
    "path", EXPORTS or [UNSET], ids=lambda path: path.stem[:60] if path else "none"
)
def test_real_exports(path: Path) -> None:
    skip_without_corpus()
    export = Export(path)
    try:
        with nsys2prv.open(path, kinds=KINDS) as job:
            check_summaries(job, [export])
            check_efficiencies(job, [export])
            check_operations(job, [export])
            check_modules(job, [export])
    except NothingToWrite:
        assert not any(
            export.query(table, f"SELECT 1 FROM {table} LIMIT 1")
            for table in (KERNEL, RUNTIME, MEMCPY)
        )
    finally:
        export.close()
