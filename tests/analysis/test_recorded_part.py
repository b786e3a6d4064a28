"""Test that nothing is claimed about other programs, or about events that were not recorded."""

import re
from pathlib import Path

import pytest
from tools.exports import (
    KERNEL,
    MEMCPY,
    PID,
    RUNTIME,
    Row,
    make_call,
    make_export,
    make_global_pid,
    make_global_tid,
    make_gpus,
    make_host,
    make_kernel,
    make_metrics,
    make_nvtx_range,
    make_os_call,
    make_sample,
    make_strings,
)

import nsys2prv
from nsys2prv.cli import main
from nsys2prv.conversion.options import CutOptions
from nsys2prv.figures.result import Finding
from nsys2prv.show.page import make_job_page

MS, US = 1_000_000, 1_000
SAMPLES = Path(__file__).parents[2] / "sample_reports"
LAUNCH, MALLOC, OVERHEAD, WRITE, WAIT, DRIVER, FLUSH = range(2, 9)
STRINGS = make_strings(
    "kern",
    "cudaLaunchKernel_v7000",
    "cudaMalloc_v3020",
    "CUPTI: Resource Management",
    "write",
    "pthread_cond_wait",
    "/usr/lib/libcuda.so.535",
    "CUDA profiling data flush on process exit",
)


def find(path: Path, tables: dict[str, list[Row]]) -> list[Finding]:
    """Return the findings of a report."""
    report = make_export(path / "one.sqlite", {"StringIds": STRINGS, **tables})
    with nsys2prv.open(report, quiet=True) as job:
        return job.findings()


def make_overhead(begin: int, end: int) -> Row:
    return {"start": begin, "end": end, "globalTid": make_global_tid(PID), "nameId": OVERHEAD}


def test_the_profilers_own_time_within_a_call_is_no_gain(tmp_path: Path) -> None:
    """cudaMalloc lasts 90 ms, of which the profiler takes 30 in two parts."""
    calls = [make_call(0, 90 * MS, 1, nameId=MALLOC), make_call(98 * MS, 99 * MS, 2)]
    overhead = [make_overhead(20 * MS, 40 * MS), make_overhead(50 * MS, 60 * MS)]
    kernel = make_kernel(99 * MS, 100 * MS, correlationId=2)
    (startup,) = find(tmp_path, {RUNTIME: calls, KERNEL: [kernel], "PROFILER_OVERHEAD": overhead})
    assert startup.share == pytest.approx(0.69)
    assert (
        "(not counted as savings: 30.0 ms in the profiler); in the rest of this time, the host is"
        in startup.title
    )
    assert "cudaMalloc 60.0 ms" in startup.title


@pytest.mark.parametrize("where", ["call", "pause", "around"])
def test_the_profilers_own_time_while_gpus_wait_is_no_gain(where: str, tmp_path: Path) -> None:
    """20 kernels of 4 ms; after each a call of 6 ms, or a pause, of which the profiler takes 5 ms. What it
    is said to do during whole calls tells nothing of the thread.
    """
    calls, kernels, overhead = [], [], []
    for number in range(20):
        at = 10 * MS * number
        kernels.append(make_kernel(at + MS, at + 5 * MS, correlationId=2 * number))
        calls.append(make_call(at, at + MS, 2 * number))
        if where != "pause":
            calls.append(make_call(at + MS, at + 10 * MS - US, 2 * number + 1, nameId=MALLOC))
        edge = 2 * US if where == "around" else -US
        overhead.append(
            make_overhead(at + (MS - edge if edge > 0 else 5 * MS), at + 10 * MS - US + edge)
        )
    tables = {RUNTIME: calls, KERNEL: kernels, "PROFILER_OVERHEAD": overhead}
    found = find(tmp_path, tables)
    most = max(one.share for one in found)
    # 4 of 10 ms are not, in iterations with the pause before each.
    assert (most > 0.45) == (where == "around"), found


def test_a_process_that_exits_does_not_compute(tmp_path: Path) -> None:
    """The last call ends at 40 ms; until 100 ms the thread is on a CPU, as its states alone say."""
    tid = make_global_tid(PID)
    states = [(0, 1), (99 * MS, 0), (99 * MS + US, 1), (100 * MS, 0)]
    tables = {
        RUNTIME: [make_call(MS, 2 * MS, 1)],
        KERNEL: [make_kernel(2 * MS, 30 * MS, correlationId=1)],
        "OSRT_API": [make_os_call(39 * MS, 40 * MS, WRITE)],
        "SCHED_EVENTS": [
            {"start": at, "cpu": 0, "isSchedIn": into, "globalTid": tid} for at, into in states
        ],
    }
    (shutdown,) = (one for one in find(tmp_path, tables) if one.kind == "shutdown")
    assert "mostly exiting (no recorded calls or samples)" in shutdown.title
    assert "on the GPU" not in shutdown.advice
    launcher = {
        **make_os_call(70 * MS, 80 * MS, WRITE),
        "globalTid": make_global_tid(1, pid=PID - 1),
    }
    outlived = {**tables, "OSRT_API": [*tables["OSRT_API"], launcher]}
    (shutdown,) = (one for one in find(tmp_path, outlived) if one.kind == "shutdown")
    assert "mostly exiting" in shutdown.title, "the launcher that waits for it is another process"
    del tables["OSRT_API"]
    (shutdown,) = (one for one in find(tmp_path, tables) if one.kind == "shutdown")
    assert "mostly computing" in shutdown.title, "no table tells when the process ends"
    assert "on the GPU" not in shutdown.advice
    for name, does in ((OVERHEAD, "computing"), (FLUSH, "exiting")):
        tables["PROFILER_OVERHEAD"] = [{**make_overhead(39 * MS, 40 * MS), "nameId": name}]
        (shutdown,) = (one for one in find(tmp_path, tables) if one.kind == "shutdown")
        assert f"mostly {does}" in shutdown.title, "only at the end the profiler writes out all"


def test_moments_and_commands_stay_within_the_capture(tmp_path: Path) -> None:
    """A capture of 300 ms; a call that began in it ends at 2 s."""
    tables = {
        RUNTIME: [make_call(0, 99 * MS, 1, nameId=MALLOC), make_call(99 * MS, 100 * MS, 2)],
        KERNEL: [make_kernel(100 * MS, 110 * MS, correlationId=2)],
        "OSRT_API": [make_os_call(290 * MS, 2000 * MS, WRITE)],
        "ANALYSIS_DETAILS": [{"duration": 300 * MS}],
    }
    found = {one.kind: one for one in find(tmp_path, tables)}
    assert found["shutdown"].moments == ((110 * MS, 300 * MS, ()),)
    for finding in found.values():
        assert float(re.search(r"-([\d.]+) s", finding.look_at)[1]) <= 0.3
        assert float(finding.command.rstrip(")").rpartition(":")[2]) <= 0.3


def test_one_time_costs_are_behind_what_holds_the_job_back(tmp_path: Path) -> None:
    """Set up for 500 ms, then 30 kernels, with as long a pause of the host before each."""
    calls, kernels = [make_call(0, 500 * MS, 0, nameId=MALLOC)], []
    for number in range(1, 31):
        at = 490 * MS + 10 * MS * number
        calls.append(make_call(at, at + 10 * US, number))
        kernels.append(make_kernel(at + 10 * US, at + 5 * MS, correlationId=number))
    found = find(tmp_path, {RUNTIME: calls, KERNEL: kernels})
    assert [one.kind for one in found] == ["host_work", "startup"]
    assert found[0].share < found[1].share


def write_iterations(
    path: Path,
    recorded: int = 20,
    *,
    told_by: str = "ranges",
    thread: int = PID,
    shorter: int = 1,
    name: str = "step",
    count: int = 60,
) -> Path:
    """Write a report of iterations of 10 ms, each with a launch and a kernel of 5 ms, of which the last
    ones are not recorded. told_by: what goes on: NVTX ranges, waits of the thread, or CPU samples. shorter: so
    many times as short are those without calls, named `name`. thread: whose calls these are.
    """
    tid = make_global_tid(thread)
    tables: dict[str, list[Row]] = {"StringIds": STRINGS, RUNTIME: [], KERNEL: []}
    ranges, waits, samples = [], [], []
    for number in range(count):
        at, is_there = 10 * MS * number, number < recorded
        lasts = 9 * MS // (1 if is_there else shorter)
        kind = 60 if told_by == "marked ranges" else 59
        text = "step" if is_there else name
        ranges.append(make_nvtx_range(at, at + lasts, text, kind, rangeId=number))
        waits.append(make_os_call(at + lasts, at + 10 * MS, WAIT, thread))
        samples += [(at + MS, 8), (at + 2 * MS, DRIVER), (at + 3 * MS, 8)]
        if is_there:
            call = make_call(at + MS, at + 3 * MS, number, nameId=LAUNCH, globalTid=tid)
            tables[RUNTIME].append(call)
            tables[KERNEL].append(make_kernel(at + 3 * MS, at + 8 * MS, correlationId=number))
    if told_by.endswith("ranges"):
        tables["NVTX_EVENTS"] = ranges
    elif told_by == "waits":
        tables["OSRT_API"] = waits
    else:
        tables["COMPOSITE_EVENTS"] = [
            {"id": number, "start": at, "cpu": 0, "threadState": 0, "globalTid": tid}
            for number, (at, _) in enumerate(samples)
        ]
        tables["SAMPLING_CALLCHAINS"] = [
            {"id": number, "symbol": 1, "module": module, "stackDepth": 0, "unresolved": 0}
            for number, (_, module) in enumerate(samples)
        ]
        tables["StringIds"] = [*STRINGS, {"id": 8, "value": "/home/app"}]
    end = {"timestamp": count * 10 * MS, "text": "Profiling has stopped.", "severity": 1}
    tables["DIAGNOSTIC_EVENT"] = [end]
    return make_export(path / "one.sqlite", tables)


@pytest.mark.parametrize(
    ("told_by", "thread", "what"),
    [
        ("ranges", PID, "40 NVTX ranges step"),
        ("ranges", PID + 1, "40 NVTX ranges step"),
        ("marked ranges", PID + 1, "40 NVTX ranges step"),
        ("waits", PID + 1, "40 returns from pthread_cond_wait"),
        ("samples", PID, "40 CPU samples in CUDA"),
    ],
)
def test_nothing_is_claimed_after_the_last_recorded_call(
    told_by: str, thread: int, what: str, tmp_path: Path
) -> None:
    """The calls of 20 of 60 iterations are recorded, to 193 ms."""
    with nsys2prv.open(write_iterations(tmp_path, told_by=told_by, thread=thread)) as job:
        result = job.analyse("findings")["findings"]
        (note,) = (one for one in job.quality if one.kind == "calls_end")
        begin, end = job.coverage.common.find_hull()
        gaps = job.analyse("idle")["idle"].tables["gaps"].frame["time_ns"].sum()
        phases = result.tables["phases"].frame
        assert "The rest is not analyzed" in make_job_page(job)
    first = 0 if told_by.endswith("ranges") else 1
    assert what in note.text
    assert f" at 0.{193 - first} s (" in note.text
    assert (begin, end) == (0, (193 - first) * MS)
    assert gaps < 100 * MS
    assert phases["begin_ns"][-1] + phases["time_ns"][-1] <= end
    assert "shutdown" not in {one.kind for one in result.findings}
    assert "is recorded only until 0.19" in result.notes[0]


@pytest.mark.parametrize(
    "options",
    [
        {"name": "write results"},
        {"shorter": 3},
        {"recorded": 58},
        {"recorded": 2},
        {"told_by": "waits", "thread": PID + 1, "recorded": 51},
        {"told_by": "waits", "shorter": 3},
        {"count": 22},
    ],
)
def test_work_of_the_host_alone_is_no_end_of_the_recording(
    options: dict[str, object], tmp_path: Path
) -> None:
    with nsys2prv.open(write_iterations(tmp_path, **options)) as job:
        assert not job.reaches
        assert job.coverage.common.length == job.duration


def sample_gpu(values: list[tuple[int, int]]) -> dict[str, list[Row]]:
    """Return the tables of the metric SM Active of a GPU: time (ns) and value (%) of each sample."""
    type_id = 1 << 56 | 1 << 48 | 2 << 32 | 7 << 8
    return {
        "TARGET_INFO_GPU": make_gpus("u"),
        "TARGET_INFO_GPU_METRICS": make_metrics(type_id, ["SM Active"]),
        "GPU_METRICS": [
            row for at, value in values for row in make_sample(type_id, at, {0: value})
        ],
    }


@pytest.mark.parametrize("active", [0, 5, 60])
def test_gpus_that_work_for_another_process_are_not_idle(active: int, tmp_path: Path) -> None:
    """Two kernels of 10 ms, 80 ms apart, after 100 ms; samples each millisecond are `active` % where this
    job has nothing on the GPU, 90% where it has.
    """
    spans = [(100 * MS, 110 * MS), (190 * MS, 200 * MS)]
    values = [
        (at, 90 if any(begin < at <= end + MS for begin, end in spans) else active)
        for at in range(0, 300 * MS, MS)
    ]
    tables = {
        RUNTIME: [
            make_call(0, 90 * MS, 0, nameId=MALLOC),
            *(make_call(begin - MS, begin, number) for number, (begin, _) in enumerate(spans, 1)),
        ],
        KERNEL: [make_kernel(*span, correlationId=number) for number, span in enumerate(spans, 1)],
        **sample_gpu(values),
    }
    report = make_export(tmp_path / "one.sqlite", {"StringIds": STRINGS, **tables})
    with nsys2prv.open(report) as job:
        result = job.analyse("findings")["findings"]
    told = [*result.notes, *(one.title for one in result.findings)]
    is_busy = active > 10
    assert any("idle" in one or "GPUs wait" in one for one in told) != is_busy
    share = f"is {active:.1f}% before its first work"
    assert any(share in one for one in told) == is_busy


@pytest.mark.parametrize(("source", "pins"), [(0, True), (1, False)])
def test_pinned_memory_is_not_advised_for_copies_of_it(
    source: int, pins: bool, tmp_path: Path
) -> None:
    """40 kernels of 1 ms, each after a call of 4 ms that copies 10 us (source: 0 pageable, 1 pinned)."""
    place = {"deviceId": 0, "contextId": 1, "streamId": 7, "globalPid": make_global_pid()}
    kinds = {"bytes": 100, "copyKind": 1, "srcKind": source, "dstKind": 2}
    calls, kernels, copies = [], [], []
    for number in range(40):
        at = 5 * MS * number
        calls.append(make_call(at, at + 4 * MS, 2 * number, nameId=MALLOC))
        calls.append(make_call(at + 4 * MS, at + 4 * MS + US, 2 * number + 1))
        times = {"start": at + 10 * US, "end": at + 20 * US, "correlationId": 2 * number}
        copies.append({**times, **place, **kinds})
        kernels.append(make_kernel(at + 4 * MS, at + 5 * MS, correlationId=2 * number + 1))
    strings = [
        {"id": MALLOC, "value": "cuMemcpyHtoDAsync_v2"},
        *(one for one in STRINGS if one["id"] != MALLOC),
    ]
    tables = {"StringIds": strings, RUNTIME: calls, KERNEL: kernels, MEMCPY: copies}
    (first, *_) = find(tmp_path, tables)
    assert first.title == "Hosts wait in cuMemcpyHtoDAsync_v2"
    assert ("pinned memory with asynchronous" in first.advice) == pins
    assert ("no copy here uses pageable memory" in first.advice) != pins


@pytest.mark.parametrize(
    ("time", "covered"), [("0ms:150ms", 150), ("100ms:300ms", 93), ("300ms:500ms", 0)]
)
def test_the_end_of_a_recording_is_that_of_the_whole_job_in_a_part_of_it(
    time: str, covered: int, tmp_path: Path
) -> None:
    report = write_iterations(tmp_path)
    with nsys2prv.open(report, cut=CutOptions(time=time)) as job:
        assert job.coverage.common.length == covered * MS
        assert len(job.reaches) == (covered < 150)
        if not covered:
            result = job.analyse("findings")["findings"]
            assert not result.findings
            assert any("have no common time" in one for one in result.missing)


def test_mpi_calls_that_end_before_those_of_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rank 1 has no recorded MPI call after 40 ms, although rank 0 makes collective calls up to
    100."""

    def write(rank: int, until: int, finalizes: bool) -> Path:
        thread = {"globalTid": make_global_tid(PID + rank, PID + rank)}
        calls = [{"start": 0, "end": 10, "textId": 1}]
        calls += [{"start": 100 * MS, "end": 101 * MS, "textId": 2}] if finalizes else []
        collectives = [
            {"start": at * MS, "end": at * MS + 1000, "textId": 3, "commHandle": 1, **thread}
            for at in range(5, until, 5)
        ]
        tables: dict[str, list[Row]] = {
            "StringIds": make_strings("MPI_Init", "MPI_Finalize", "MPI_Allreduce", "read"),
            "MPI_RANKS": [{"rank": rank, **thread}],
            "MPI_COMMUNICATORS": [
                {
                    "rank": rank,
                    "timestamp": 0,
                    "commHandle": 1,
                    "localRank": rank,
                    "size": 2,
                    "groupRoot": 0,
                    "groupRootUid": 0,
                    "members": "[0, 1]",
                }
            ],
            "MPI_OTHER_EVENTS": [{**one, **thread} for one in calls],
            "MPI_COLLECTIVES_EVENTS": collectives,
            "OSRT_API": [
                {"start": at * MS, "end": at * MS + 500, "nameId": 4, **thread}
                for at in range(1, 100, 5)
            ],
            **make_host("node", 10**18, 500),
        }
        return make_export(tmp_path / f"r{rank}.sqlite", tables)

    for until, finalizes in ((40, False), (100, True), (40, True)):
        write(0, 100, finalizes=True)
        write(1, until, finalizes)
        assert main(["report", "--full", str(tmp_path)]) == 0
        text = " ".join(capsys.readouterr().out.split())
        told = "rank 1 at 0.035 s (other ranks make 12 collective"
        assert (told in text) == (not finalizes)
        assert (
            "MPI calls are recorded only until 0.035 s for rank 1; the trace ends at 0.101 s"
            in text
        ) == (not finalizes)


def read_times(text: str) -> list[float]:
    """Return the durations in a text (ms)."""
    units = {"s": 1000.0, "ms": 1.0, "us": 0.001, "ns": 1e-6}
    return [
        float(value) * units[unit] for value, unit in re.findall(r"([\d.]+) (s|ms|us|ns)\b", text)
    ]


@pytest.mark.parametrize("sample", ["machine", "cluster", "graphs"])
def test_titles_of_edges_state_what_their_share_excludes(sample: str) -> None:
    """The share is that of the stated time, less all times that the title says are not counted."""
    with nsys2prv.open(SAMPLES / sample, quiet=True) as job:
        edges = [one for one in job.findings() if one.happens_once]
        length = job.duration / MS
    assert edges
    for one in edges:
        counted, _, rest = one.title.partition(" (not counted as savings: ")
        uncounted = rest.partition(")")[0] if rest else ""
        own = read_times(counted)[0] - sum(read_times(uncounted))
        assert own / length == pytest.approx(one.share, abs=0.003)
        # Time without events is not what the host mostly does in the counted part.
        assert "mostly not yet or no longer recorded" not in one.title


def test_startup_of_a_steady_state_states_both_times() -> None:
    """The title states idle time and the length of the phase, which the table of phases repeats."""
    with nsys2prv.open(SAMPLES / "graphs", quiet=True) as job:
        (startup,) = (one for one in job.findings() if one.kind == "startup")
        found = job.analyse("findings")["findings"]
    phases = found.tables["phases"].frame
    length = phases.filter(phase="startup")["time_ns"].item() / MS
    idle, whole = read_times(startup.title)[:2]
    assert startup.title.startswith("Startup: for ")
    assert whole == pytest.approx(length, rel=0.01)
    assert idle <= whole
