"""Test that statements in findings agree with the report's tables."""

import re
from collections.abc import Mapping, Sequence
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
    make_kernel,
    make_nvtx_range,
    make_os_call,
    make_strings,
)

import nsys2prv
from nsys2prv.export.info import LIMITS
from nsys2prv.figures.result import Finding
from nsys2prv.show.page import make_job_page

MS, US = 1_000_000, 1_000
NAMES = ("kern", "cudaLaunchKernel_v7000", "cudaStreamSynchronize_v3020", "cudaMalloc_v3020")
LAUNCH, SYNCHRONIZE, MALLOC = 2, 3, 4


def test_instances_of_a_template_are_one_kernel(tmp_path: Path) -> None:
    """Check that each instance takes less than `other`, and all together take more."""
    names = ("other(int)", *(f"void at::fill<{one}>(int)" for one in ("int", "float", "double")))
    lengths = (40, 30, 20, 20)
    kernels = [
        make_kernel(100 * number, 100 * number + length, demangledName=number, shortName=number)
        for number, length in enumerate(lengths, 1)
    ]
    tables = {KERNEL: kernels, "StringIds": make_strings(*names)}
    with nsys2prv.open(make_export(tmp_path / "r.sqlite", tables), quiet=True) as job:
        (note, *_) = job.analyse("findings")["findings"].notes
    assert "Top kernel: fill (64% of compute kernel time, 3 template instances)" in note


def find(
    path: Path,
    calls: Sequence[tuple[int, int, int]],
    kernels: Mapping[int, tuple[int, int]],
    more: Mapping[str, Sequence[Row]] | None = None,
    names: Sequence[str] = (),
) -> list[Finding]:
    """Return the findings of a process. calls: begin, end (ns) and name (number in NAMES, then in
    `names`) of each. kernels: index of the call that launches it -> begin, end. more: further tables.
    """
    tables: dict[str, Sequence[Row]] = {
        "StringIds": make_strings(*NAMES, *names),
        RUNTIME: [
            make_call(begin, end, number, nameId=name)
            for number, (begin, end, name) in enumerate(calls)
        ],
        **(more or {}),
    }
    if kernels:
        tables[KERNEL] = [
            make_kernel(begin, end, correlationId=call) for call, (begin, end) in kernels.items()
        ]
    with nsys2prv.open(make_export(path / "one.sqlite", tables), quiet=True) as job:
        return job.findings()


def make_overhead(begin: int, end: int, name: int) -> Row:
    """Return a row of the profiler's overhead on the main thread."""
    return {"start": begin, "end": end, "globalTid": make_global_tid(PID), "nameId": name}


def make_copy(begin: int, end: int, size: int, correlation: int, source: int) -> Row:
    """Return a row of a copy to the device. source: kind of memory, 0: pageable, 1: pinned."""
    place = {"deviceId": 0, "contextId": 1, "streamId": 7, "globalPid": make_global_pid()}
    what = {"bytes": size, "copyKind": 1, "srcKind": source, "dstKind": 2}
    return {"start": begin, "end": end, "correlationId": correlation, **place, **what}


def test_calls_of_cuda_that_mpi_makes(tmp_path: Path) -> None:
    calls = [(10 * MS, 80 * MS, len(NAMES) + 1), (99 * MS, 99 * MS + 5 * US, LAUNCH)]
    call = {"globalTid": make_global_tid(PID), "textId": len(NAMES) + 2}
    more = {"MPI_COLLECTIVES_EVENTS": [{"start": 0, "end": 98 * MS, **call}]}
    found = find(tmp_path, calls, {1: (100 * MS, 101 * MS)}, more, ["cudaMemcpy", "MPI_Bcast"])
    assert "MPI calls (MPI_Bcast 98.0 ms; cudaMemcpy 70.0 ms inside MPI)" in found[0].title
    assert found[0].advice.startswith("MPI itself copies between hosts and GPUs")


def test_a_call_lasts_as_long_as_it_waits(tmp_path: Path) -> None:
    """Three kernels of 1 ms, each launched when the one before was waited for, with idle time."""
    calls, kernels = [], {}
    for begin in range(0, 30 * MS, 10 * MS):
        kernels[len(calls)] = (begin + 20 * US, begin + MS)
        calls += [(begin, begin + 10 * US, LAUNCH), (begin + 20 * US, begin + 9 * MS, SYNCHRONIZE)]
    findings = find(tmp_path, calls, kernels)
    (waiting,) = (one for one in findings if one.kind == "blocked_by_call")
    assert "maximum 8.98 ms" in waiting.evidence[0]


@pytest.mark.parametrize(
    ("name", "is_profiler"),
    [
        ("CUDA profiling initialization", True),
        ("dlopen(libcupti.so.12)", True),
        ("dlopen(libnvidia-ptxjitcompiler.so.1)", False),
    ],
)
def test_overhead_that_is_not_the_profilers(name: str, is_profiler: bool, tmp_path: Path) -> None:
    overhead = {"PROFILER_OVERHEAD": [make_overhead(2 * MS, 90 * MS, len(NAMES) + 1)]}
    calls = [(0, MS, MALLOC), (99 * MS, 100 * MS, LAUNCH)]
    findings = find(tmp_path, calls, {1: (101 * MS, 102 * MS)}, overhead, [name])
    assert ("in the profiler" in findings[0].evidence[0]) is is_profiler
    assert findings[0].share == pytest.approx(0.13 if is_profiler else 0.99, abs=0.01)


def test_start_up_is_told_by_what_it_consists_of(tmp_path: Path) -> None:
    """CUDA is used by another thread than the main one."""
    other = make_global_tid(PID + 5)
    load = len(NAMES) + 2
    calls = [(0, 10 * MS, load), (10 * MS, 70 * MS, MALLOC), (99 * MS, 100 * MS, LAUNCH)]
    more = {
        RUNTIME: [
            make_call(begin, end, number, nameId=name, globalTid=other)
            for number, (begin, end, name) in enumerate(calls)
        ],
        "OSRT_API": [make_os_call(*span, len(NAMES) + 1) for span in ((0, MS), (20 * MS, 60 * MS))],
    }
    (startup, *_) = find(
        tmp_path, calls, {2: (101 * MS, 102 * MS)}, more, ["ioctl", "cuLibraryLoadData"]
    )
    assert round(startup.share, 3) == 0.99
    assert startup.title.startswith("Startup: 101 ms before the first GPU work")
    assert (
        "mostly in CUDA API calls (cudaMalloc 60.0 ms, which includes CUDA initialization)"
        in startup.title
    )
    # The main thread's call is within no call of CUDA, but of no thread that uses the GPU.
    assert "ioctl" not in startup.evidence[0]
    assert "--cpuctxsw=process-tree" in startup.evidence[-1]


@pytest.mark.parametrize("first", ["cudaMalloc", "cuInit", "cudaLaunchKernel"])
def test_calls_that_find_cuda_set_up_do_not_set_it_up(first: str, tmp_path: Path) -> None:
    """Check that a capture may begin while a GPU works."""
    calls = [(0, US, len(NAMES) + 1), (3 * MS, 50 * MS, len(NAMES) + 2), (51 * MS, 52 * MS, LAUNCH)]
    kernels = {2: (52 * MS + US, 54 * MS), **({0: (2 * US, 2 * MS)} if "Launch" in first else {})}
    findings = find(tmp_path, calls, kernels, names=[first, "cuMemHostAlloc"])
    assert findings
    assert not any("sets CUDA up" in "".join((one.title, *one.evidence)) for one in findings)
    # What is before the first work is told once.
    assert "Launch" in first or [one.kind for one in findings] == ["startup"]


def test_launches_that_load_code(tmp_path: Path) -> None:
    """Two kernels, each launched twice, with a long first launch."""
    calls, rows = [], []
    for number, lasts in enumerate((20 * MS, 20 * MS, 10 * US, 10 * US)):
        begin = number * 25 * MS
        calls.append((begin, begin + lasts, LAUNCH))
        names = dict.fromkeys(("demangledName", "shortName"), len(NAMES) + 1 + number % 2)
        end = begin + lasts
        rows.append(make_kernel(end, end + MS, correlationId=number, **names))
    findings = find(tmp_path, calls, {}, {KERNEL: rows}, ["first_kernel", "second_kernel"])
    (launches,) = (one for one in findings if one.title == "Hosts wait in cudaLaunchKernel")
    assert "The first launches of kernels (1 call) take 20.0 ms of the " in launches.evidence[0]
    assert "CUDA_MODULE_LOADING" in launches.advice


def test_what_hosts_do_without_gpus(tmp_path: Path) -> None:
    calls = [(0, 60 * MS, MALLOC)]
    more = {
        "OSRT_API": [make_os_call(60 * MS, 100 * MS, len(NAMES) + 1)],
        "PROFILER_OVERHEAD": [make_overhead(90 * MS, 100 * MS, len(NAMES) + 2)],
    }
    (finding,) = find(tmp_path, calls, {}, more, ["read", "CUPTI buffers"])
    assert (
        "for 60.0 ms of the 100 ms between its first and last recorded activity (cudaMalloc 60.0 ms"
        in finding.title
    )
    # A moment counts once, with its name, too.
    assert "30% in file or network I/O (read 30.0 ms), 10% in the prof" in finding.evidence[0]
    # There are calls of CUDA: to trace it is no advice.
    assert "CUDA was traced, but no report has" in finding.evidence[-1]


def test_cuda_that_cannot_be_traced(tmp_path: Path) -> None:
    text = "The system is running in Protected Memory mode. CUDA tracing data was not collected."
    tables = {
        "StringIds": make_strings("read"),
        "OSRT_API": [make_os_call(0, MS, 1)],
        "DIAGNOSTIC_EVENT": [
            {"timestamp": 0, "severity": 3, "text": one}
            for one in (text, "Sampling disabled. perf event paranoid level is 3.")
        ],
    }
    with nsys2prv.open(make_export(tmp_path / "one.sqlite", tables), quiet=True) as job:
        (finding,) = job.findings()
        said = (*finding.evidence, finding.advice, *map(str, job.quality))
    assert text in finding.evidence[-1]
    assert not any("--trace=cuda" in line for line in said)
    assert any("sudo sysctl kernel.perf_event_paranoid=1" in line for line in said)


@pytest.mark.parametrize("processors", [0, 40])
@pytest.mark.parametrize(
    ("grid", "block", "registers", "shared", "says"),
    [
        (1, 32, 32, 0, "fewer blocks than the GPU has SMs"),
        (7, 256, 32, 0, "fewer blocks than the GPU has SMs"),
        (1 << 20, 4, 26, 0, "6.25% of a GPU's thread slots: their blocks do not fill a warp of 32"),
        (40, 32, 32, 0, "fewer than the four warps per SM"),
        # One block at a time on each, by its shared memory or registers: all that it can.
        (120, 128, 128, 60_000, ""),
        (40, 512, 128, 0, ""),
        (1 << 20, 256, 32, 0, ""),
    ],
)
def test_kernels_that_leave_a_gpu_without_work(
    grid: int, block: int, registers: int, shared: int, says: str, processors: int, tmp_path: Path
) -> None:
    """On a GPU with 40 SMs, or an unknown one."""
    size = dict.fromkeys(("gridY", "gridZ", "blockY", "blockZ"), 1)
    size |= {"gridX": grid, "blockX": block, "registersPerThread": registers}
    size |= {"staticSharedMemory": 0, "dynamicSharedMemory": shared}
    kernel = make_kernel(20 * US, 50 * MS, correlationId=0, **size)
    gpu = {"id": 0, "name": "Tesla T4", "uuid": "u", "cuDevice": 0, "smCount": processors}
    gpu |= dict(zip(LIMITS, (32, 16, 65536, 65536), strict=False))
    tables = {KERNEL: [kernel], **({"TARGET_INFO_GPU": [gpu]} if processors else {})}
    findings = find(tmp_path, [(0, 10 * US, LAUNCH)], {}, tables)
    found = [one for one in findings if one.kind == "small_grids"]
    # A GPU of which nothing is known may have 8 multiprocessors.
    if not says or (grid in (7, 40) and not processors):
        assert not found
        return
    (finding,) = found
    assert says in finding.title
    assert finding.is_limit
    assert f"mostly kern: 50.0 ms with grid {grid}x1x1, block {block}x1x1" in finding.evidence[0]
    assert ("Tesla T4 has 40 SMs" in finding.evidence[0]) == bool(processors)


@pytest.mark.parametrize("several", [1, 5])
def test_nobody_waits_for_a_thread_that_only_looks(several: int, tmp_path: Path) -> None:
    """Check a watchdog that polls every 0.7 ms and makes the last call."""
    mode = len(NAMES) + 1
    calls = [(at, at + 10 * US, LAUNCH) for at in range(0, 100 * MS, 5 * MS)]
    # Of several names: pauses are at several places.
    launches = [
        make_call(*call[:2], number, nameId=mode + number % several if number % several else LAUNCH)
        for number, call in enumerate(calls)
    ]
    looks = [
        make_call(at, at + US, 0, nameId=mode, globalTid=make_global_tid(PID + 1))
        for at in range(MS, 100 * MS, 7 * MS // 10)
    ]
    kernels = {at: (begin + 20 * US, begin + MS) for at, (begin, _, _) in enumerate(calls)}
    names = ("cudaThreadExchangeStreamCaptureMode_v10010", *(f"cuLaunch{one}" for one in "ABCDE"))
    findings = find(tmp_path, [], kernels, {RUNTIME: [*launches, *looks]}, names)
    assert findings
    assert not any("Exchange" in text for one in findings for text in (one.title, *one.evidence))


def test_calls_that_fail(tmp_path: Path) -> None:
    calls = [make_call(at, at + MS, at, nameId=LAUNCH, returnValue=222) for at in (0, 2 * MS)]
    strings = [{"id": LAUNCH, "value": NAMES[LAUNCH - 1]}]
    report = make_export(tmp_path / "r.sqlite", {RUNTIME: calls, "StringIds": strings})
    with nsys2prv.open(report, quiet=True, jobs=1) as job:
        result = job.analyse("findings")["findings"]
    assert "failed: cudaLaunchKernel 2 times (Unsupported PTX version)" in result.notes[0]
    assert "failed CUDA calls" in result.findings[0].advice


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("getc", "terminal"),
        ("ioctl", "calls a driver"),
        ("cudaFreeHost", "If the process ends here"),
    ],
)
def test_advice_by_what_takes_most_time(name: str, said: str, tmp_path: Path) -> None:
    calls = [make_call(0, 10 * US, 0, nameId=LAUNCH)]
    long = (2 * MS, 900 * MS)
    tables = {RUNTIME: calls, "OSRT_API": [make_os_call(*long, len(NAMES) + 1)]}
    if name == "cudaFreeHost":
        tables = {RUNTIME: [*calls, make_call(*long, 1, nameId=len(NAMES) + 1)]}
    (finding, *_) = find(tmp_path, [], {0: (20 * US, MS)}, tables, [name])
    assert finding.kind == "shutdown"
    assert said in finding.advice


def test_nobody_gains_more_than_gpus_are_idle(tmp_path: Path) -> None:
    """Kernels of two streams, each waited for: one at a time, they keep the GPU busy for 90%."""
    calls, rows = [], []
    for number in range(20):
        begin = number * 10 * MS
        calls += [(begin, begin + 10 * US, LAUNCH), (begin + 20 * US, begin + 9 * MS, SYNCHRONIZE)]
        rows.append(
            make_kernel(
                begin + 20 * US, begin + 9 * MS, correlationId=2 * number, streamId=7 + number % 2
            )
        )
    findings = find(tmp_path, calls, {}, {KERNEL: rows})
    assert findings
    assert sum(one.share for one in findings if one.kind == "blocked_by_call") < 0.12


@pytest.mark.parametrize("does", ["copy", "fill memory"])
def test_gpus_that_only_copy(does: str, tmp_path: Path) -> None:
    """Use copies of pinned memory, or memsets, each after an unknown wait, so that no savings are
    stated.
    """
    copies = [
        make_copy(begin, begin + 8 * MS, 80_000_000, 900 + number, 1)
        for number, begin in enumerate(range(0, 100 * MS, 10 * MS))
    ]
    calls = [(0, 10 * US, LAUNCH)]
    said = "memcpy Host-to-Device from pinned to device memory: 10 times"
    table = MEMCPY
    if does != "copy":
        copies = [{**one, "memKind": 4, "srcKind": None} for one in copies]
        table, said = MEMCPY.replace("CPY", "SET"), "memset to managed memory: 10 times"
    findings = find(tmp_path, calls, {0: (98 * MS, 99 * MS)}, {table: copies})
    (loss,) = (one for one in findings if one.kind == "idle")
    assert loss.title.startswith(f"GPUs only {does} for ")
    assert loss.views[0] == "basics/memory_operations.cfg"
    assert loss.evidence[0] == f"{said}, 800.0 MB in 80.0 ms (10.00 GB/s)"
    assert does.split()[0] in loss.advice


def test_a_short_start_up_beside_a_steady_state_without_causes(tmp_path: Path) -> None:
    calls, kernels = [(0, 10 * MS, MALLOC)], {}
    for number in range(40):
        begin = 10 * MS + 10 * US * number
        kernels[len(calls)] = (11 * MS + 2 * MS * number, 13 * MS + 2 * MS * number)
        calls.append((begin, begin + 5 * US, LAUNCH))
    (startup,) = find(tmp_path, calls, kernels)
    assert (startup.kind, round(startup.share, 2), startup.is_limit) == ("startup", 0.12, False)


def test_nothing_of_the_program_is_recorded(tmp_path: Path) -> None:
    tables = {"PROFILER_OVERHEAD": [make_overhead(0, MS, 1)], "StringIds": make_strings("o")}
    with nsys2prv.open(make_export(tmp_path / "one.sqlite", tables), quiet=True) as job:
        result = job.analyse("findings")["findings"]
    assert "No program event was recorded. Check that the program ran" in result.missing[0]


@pytest.mark.parametrize("name", ["solver", "mpirun", "mpirun.mpich"])
def test_of_several_processes_the_one_that_works(name: str, tmp_path: Path) -> None:
    """A process waits for its child, or starts it; the child may live for only a tenth of the time,
    and only its ranges are recorded.
    """
    child, own = PID + 1, {"globalTid": make_global_tid(PID + 1, PID + 1)}
    tables = {
        "StringIds": make_strings("waitpid", "read"),
        "PROCESSES": [{"globalPid": make_global_pid(PID), "name": name}],
        "OSRT_API": [make_os_call(0, 99 * MS, 1), make_os_call(50 * MS, 51 * MS, 2, **own)],
        "NVTX_EVENTS": (ranges := [make_nvtx_range(2 * MS, 98 * MS, "solve", **own)]),
    }
    if name.startswith("mpirun"):
        tables |= {"OSRT_API": [], "NVTX_EVENTS": [*ranges, make_nvtx_range(0, 99 * MS, "start")]}
    if name == "mpirun.mpich":
        lives = make_states((50 * MS, 1, child), (60 * MS, 0, child), state=5)
        states = [*make_states((0, 1, PID), (99 * MS, 0, PID)), *(row | own for row in lives)]
        tables |= {"SCHED_EVENTS": states, "NVTX_EVENTS": []}
    with nsys2prv.open(make_export(tmp_path / "one.sqlite", tables), quiet=True) as job:
        (finding,) = job.findings()
    if name == "mpirun.mpich":
        assert f"Process {child} is computing for 10.0 ms" in finding.title
        return
    assert f"How process {child} spends" in finding.title
    assert any("in NVTX range solve" in line for line in finding.evidence)
    assert "--sample=process-tree" in finding.advice


@pytest.mark.parametrize(
    ("stages", "gpu", "speed"),
    [(False, "Tesla T4", 12), (True, "NVIDIA A100-SXM4-80GB", 24), (True, "NVIDIA H200", 50)],
)
def test_copies_that_would_be_faster_from_pinned_memory(
    stages: bool, gpu: str, speed: int, tmp_path: Path
) -> None:
    """Use calls that return at once, or when the last part of a copy is staged."""
    calls, kernels, copies, at, end = [], {}, [], MS, 0
    for _ in range(20):
        begin = end + 30 * US
        end = at + 6 * MS - 80 * US if stages else begin + 10 * US
        copies.append(make_copy(at, at + 6 * MS, 12_000_000, len(calls), 0))
        calls.append((begin, end, len(NAMES) + 1))
        kernels[len(calls)] = (at + 6 * MS + US, at + 7 * MS)
        calls.append((end + 10 * US, end + 20 * US, LAUNCH))
        end += 20 * US
        at += 7 * MS + US
    more = {MEMCPY: copies, "TARGET_INFO_GPU": [{"id": 0, "name": gpu, "uuid": "u", "cuDevice": 0}]}
    (copied, *_) = find(tmp_path, calls, kernels, more, ["cudaMemcpyAsync_v3020"])
    assert copied.kind == "exposed_copies"
    assert re.search(
        r"from pageable to device memory: \d\d times, 2\d\d.0 MB in 1\d\d ms \(2.00 GB/s\)",
        copied.evidence[0],
    )
    assert (
        f"{speed}.0 GB/s. This job has few pinned copies, so this is the usual speed"
        in copied.evidence[1]
    )
    assert copied.share == pytest.approx((6 - 12 / speed) / 7, abs=0.03)


@pytest.mark.parametrize(
    ("gpu", "advised"), [("NVIDIA A100", [True]), ("Tesla V100", [False]), ("NVIDIA T1000", [])]
)
def test_a_copy_that_waits_for_kernels_does_not_hide_them(
    gpu: str, advised: list[bool], tmp_path: Path
) -> None:
    """Check also that nothing is advised about Tensor Cores or TF32 for a GPU without them."""
    calls, rows, copies = [], [], []
    for begin in range(0, 100 * MS, 5 * MS):
        for number in range(3):
            times = (begin + number * MS + 50 * US, begin + (number + 1) * MS + 49 * US)
            rows.append(make_kernel(*times, correlationId=len(calls), demangledName=6))
            calls.append((begin + 10 * number * US, begin + (10 * number + 5) * US, LAUNCH))
        end = begin + 3 * MS + 55 * US
        copies.append(make_copy(end - 2 * US, end, 4, len(calls), 0))
        calls.append((begin + 40 * US, end + 3 * US, 5))
    more = {
        MEMCPY: copies,
        KERNEL: rows,
        "TARGET_INFO_GPU": [{"id": 0, "name": gpu}, {"id": 1, "name": "NVIDIA H100"}],
        "TARGET_INFO_CUDA_DEVICE": [{"gpuId": 0, "cudaId": 0, "pid": PID}],
    }
    found = find(tmp_path, calls, {}, more, ["cudaMemcpyAsync_v3020", "ampere_sgemm_128x64_nn"])
    advice = [one.advice for one in found if one.kind == "no_tensor_cores"]
    assert ["TF32" in said for said in advice] == advised


def test_launches_that_are_waited_for_one_by_one(tmp_path: Path) -> None:
    calls, kernels = [], {}
    for begin in range(0, 10 * MS, 50 * US):
        kernels[len(calls)] = (begin + 12 * US, begin + 35 * US)
        calls += [(begin, begin + 10 * US, LAUNCH), (begin + 11 * US, begin + 38 * US, SYNCHRONIZE)]
    first, *_ = find(tmp_path, calls, kernels)
    assert first.title == "Hosts wait in cudaStreamSynchronize"
    assert first.share == pytest.approx(0.5, abs=0.1)


def make_states(*changes: tuple[int, int, int], state: int | None = None) -> list[Row]:
    """Return changes of states: when (ns), whether the thread gets on the CPU, its number."""
    threads = [{"globalTid": make_global_tid(thread)} for _, _, thread in changes]
    states = [{"threadState": None if into else state} for _, into, _ in changes]
    rows = [{"start": at, "cpu": 0, "isSchedIn": into} for at, into, _ in changes]
    return [one | two | three for one, two, three in zip(rows, threads, states, strict=True)]


@pytest.mark.parametrize("tid", [PID, PID + 9])
def test_states_of_the_thread_or_of_another(tid: int, tmp_path: Path) -> None:
    """The thread leaves the CPU at 20 ms and does not return."""
    rows = make_states((0, 1, tid), (20 * MS, 0, tid), (100 * MS, 0, PID + 10))
    calls = [(99 * MS, 99 * MS + 10 * US, LAUNCH)]
    more = {"SCHED_EVENTS": rows, "NVTX_EVENTS": [make_nvtx_range(0, MS, "epoch", eventType=60)]}
    (startup,) = find(tmp_path, calls, {0: (99 * MS + 20 * US, 100 * MS)}, more)
    assert "NVTX" not in startup.advice
    is_own = tid == PID
    assert ("80% off the CPU, 20% computing" in startup.evidence[0]) is is_own
    assert ("100% outside recorded calls" in startup.evidence[0]) is not is_own


@pytest.mark.parametrize("end", [100, 200])
@pytest.mark.parametrize("state", [None, 2, 5])
def test_a_thread_without_further_events(state: int | None, end: int, tmp_path: Path) -> None:
    """The thread waits for 10 ms, leaves the CPU at 20 ms for good, while another goes on to 100 ms. A
    metric of a GPU is sampled at `end`.
    """
    own = ((0, 1, PID), (5 * MS, 0, PID), (15 * MS, 1, PID), (20 * MS, 0, PID))
    rows = make_states(*own, (100 * MS, 0, PID + 10), state=state)
    metric = {"typeId": 1, "metricId": 1}
    more = {
        "SCHED_EVENTS": rows,
        "GPU_METRICS": [metric | {"timestamp": end * MS, "value": 7}],
        "TARGET_INFO_GPU_METRICS": [metric | {"metricName": "SMs Active [Throughput %]"}],
    }
    findings = find(tmp_path, [(MS, MS + 10 * US, LAUNCH)], {0: (MS + 20 * US, 5 * MS)}, more)
    (shutdown,) = (one for one in findings if one.kind == "shutdown")
    is_off = state != 5 and end == 100
    assert f"{8000 // (end - 5)}% before its first or after its" in shutdown.evidence[0].replace(
        ".", ""
    )
    assert ("11% off the CPU" in shutdown.evidence[0]) is is_off
    assert shutdown.share == pytest.approx(95 / end, abs=0.01)


def test_what_a_process_leaves_is_no_gain(tmp_path: Path) -> None:
    """Its threads end together, except one that frees the memory of the process."""
    ends = [20 * MS, 20 * MS + US, 20 * MS + US, 100 * MS]
    changes = [(at, at == 0, PID + number) for number, end in enumerate(ends) for at in (0, end)]
    rows = make_states(*sorted(changes))
    findings = find(tmp_path, [(0, US, LAUNCH)], {0: (2 * US, 5 * MS)}, {"SCHED_EVENTS": rows})
    (shutdown,) = (one for one in findings if one.kind == "shutdown")
    assert shutdown.share == pytest.approx(0.15, abs=0.001)


def test_nothing_is_said_of_gpus_whose_work_is_lost(tmp_path: Path) -> None:
    """Kernels are launched, and only copies are recorded."""
    calls = [(number * MS, number * MS + 10 * US, LAUNCH) for number in range(50)]
    calls.append((80 * MS, 90 * MS, SYNCHRONIZE))
    copy = make_copy(30 * MS, 31 * MS, 1000, 900, 0)
    assert find(tmp_path, calls, {}, {MEMCPY: [copy]}) == []
    with nsys2prv.open(tmp_path / "one.sqlite", quiet=True, jobs=1) as job:
        result, time = job.analyse("findings", "time").values()
        assert 'id="big"' not in make_job_page(job)
    assert not any("idle" in note for note in result.notes)
    assert "is missing" in result.missing[0]
    assert time.tables["lanes"].frame["idle_unknown_ns"].to_list() == [None]


def test_what_a_host_does_between_calls_is_that_of_the_thread_that_pauses(tmp_path: Path) -> None:
    """A thread computes between its calls; so does another one that is off the CPU then."""
    rows, kernels = [], {}
    launches = [
        *((at * MS, PID) for at in range(0, 200, 10)),
        *((at * MS, PID + 1) for at in (5, 105)),
    ]
    for begin, thread in sorted(launches):
        kernels[len(rows)] = (begin + 20 * US, begin + MS)
        tid = make_global_tid(thread)
        for at, end, name in ((0, 10 * US, LAUNCH), (15 * US, MS + 5 * US, SYNCHRONIZE)):
            rows.append(make_call(begin + at, begin + end, len(rows), nameId=name, globalTid=tid))
    states = ((0, 1, PID), (6 * MS, 0, PID + 1), (105 * MS, 1, PID + 1), (201 * MS, 0, PID))
    more = {
        RUNTIME: rows,
        "SCHED_EVENTS": [
            {"start": at, "cpu": 0, "isSchedIn": into, "globalTid": make_global_tid(thread)}
            for at, into, thread in states
        ],
    }
    (pause,) = (one for one in find(tmp_path, [], kernels, more) if one.kind == "host_work")
    assert "host: 100% computing" in pause.evidence


@pytest.mark.parametrize("steps", [100, 1500])
def test_what_happens_once_comes_last_beside_much_that_repeats(steps: int, tmp_path: Path) -> None:
    """Run a kernel, 30 ms of pinning memory, then steps of 60 us, which take less, or more, than
    half of that in total.
    """
    calls = [(0, 5 * US, LAUNCH), (20 * US, 30 * MS, len(NAMES) + 1)]
    kernels = {0: (6 * US, 9 * US)}
    for begin in range(31 * MS, 31 * MS + steps * 60 * US, 60 * US):
        kernels[len(calls)] = (begin + 6 * US, begin + 16 * US)
        calls += [(begin, begin + 5 * US, LAUNCH), (begin + 6 * US, begin + 20 * US, SYNCHRONIZE)]
    findings = find(tmp_path, calls, kernels, names=["cudaHostAlloc_v3020"])
    edge = next(one for one in findings if one.kind == "startup")
    assert re.search(r"ms before the steady state, GPUs are idle; .*\(cudaHostAlloc 30", edge.title)
    assert findings[0 if steps == 100 else -1] is edge
    assert edge.share > (0.8 if steps == 100 else 0.2)


def test_a_thread_that_waits_for_calls_of_others(tmp_path: Path) -> None:
    """Two others allocate at once."""
    calls = [(0, 1 * MS, SYNCHRONIZE), (800 * MS, 801 * MS, LAUNCH)]
    rows = [make_call(begin, end, at, nameId=name) for at, (begin, end, name) in enumerate(calls)]
    for tid in map(make_global_tid, (PID + 1, PID + 2)):
        rows.append(make_call(10 * MS, 790 * MS, 9, nameId=MALLOC, globalTid=tid))
    (finding, *_) = find(tmp_path, calls, {1: (801 * MS, 802 * MS)}, {RUNTIME: rows})
    assert "mostly in CUDA API calls (cudaMalloc 780 ms" in finding.title


def test_one_launch_is_not_to_be_made_less_often(tmp_path: Path) -> None:
    calls = [(0, 5 * US, LAUNCH), (10 * US, 700 * MS, LAUNCH)]
    kernels = {0: (6 * US, 9 * US), 1: (700 * MS, 701 * MS)}
    (finding, *_) = find(tmp_path, calls, kernels)
    assert "launch less often" not in finding.advice
    assert "700 ms" in " ".join(finding.evidence)


def test_a_host_that_waits_for_another_thread(tmp_path: Path) -> None:
    calls, kernels, waits = [], {}, []
    for begin in range(0, 200 * MS, 10 * MS):
        kernels[len(calls)] = (begin + 20 * US, begin + MS)
        calls += [(begin, begin + 10 * US, LAUNCH), (begin + 20 * US, begin + MS, SYNCHRONIZE)]
        waits.append(make_os_call(begin + MS, begin + 9 * MS, len(NAMES) + 1))
    findings = find(tmp_path, calls, kernels, {"OSRT_API": waits}, ["sem_timedwait"])
    assert "another thread" in findings[0].advice


@pytest.mark.parametrize("kind", [59, 60])
@pytest.mark.parametrize("layers", [1, 8])
def test_ranges_name_pauses(layers: int, kind: int, tmp_path: Path) -> None:
    """A host pauses before each launch, in push/pop or start/end ranges. Ranges that differ only in
    their number share the pauses.
    """
    calls, kernels, ranges = [], {}, []
    for number in range(64):
        begin = MS + number * 5 * MS
        kernels[len(calls)] = (begin + 10 * US, begin + MS)
        calls += [(begin, begin + 5 * US, LAUNCH), (begin + 6 * US, begin + MS, SYNCHRONIZE)]
        name = f"layer_{number % layers}"
        ranges.append(make_nvtx_range(begin + MS + US, begin + 5 * MS - US, name, kind))
    findings = find(tmp_path, calls, kernels, {"NVTX_EVENTS": ranges})
    (pause,) = (one for one in findings if one.kind == "host_work")
    assert pause.share > 0.7
    if layers == 1:
        assert "100% of this time is in NVTX range layer_0" in " ".join(pause.evidence)


@pytest.mark.parametrize("late", [3, 5, 20])
def test_equal_runs_have_the_same_first_finding(late: int, tmp_path: Path) -> None:
    """However late kernels begin for a reason that is not recorded: about 3, 5 and 17% of the time."""
    calls, kernels = [], {}
    for number in range(200):
        begin = MS + number * 100 * US
        at = begin + 10 * US + (late * US if number % 2 else 0)
        kernels[len(calls)] = (at, at + 10 * US)
        calls += [(begin, begin + 8 * US, LAUNCH), (begin + 9 * US, at + 12 * US, SYNCHRONIZE)]
    first, *_ = find(tmp_path, calls, kernels)
    assert (first.kind, first.is_limit) == ("host_work", False)
    assert first.share > 0.5


def test_copies_after_the_steady_state_are_told(tmp_path: Path) -> None:
    """A copy of 30 ms follows 100 steps of 1 ms."""
    calls, kernels = [], {}
    for begin in range(0, 100 * MS, MS):
        kernels[len(calls)] = (begin + 10 * US, begin + 990 * US)
        calls.append((begin, begin + 5 * US, LAUNCH))
    copy = make_copy(101 * MS, 131 * MS, 60_000_000, len(calls), 0)
    calls.append((100 * MS, 131 * MS, len(NAMES) + 1))
    findings = find(tmp_path, calls, kernels, {MEMCPY: [copy]}, ["cudaMemcpy_v3020"])
    (end,) = (one for one in findings if one.kind == "shutdown")
    assert (
        "after the steady state, GPUs run no kernels; 30.0 ms of this are exposed memory operations"
        in end.title
    )
    assert end.share == pytest.approx(30 / 131, abs=0.02)
    assert "pinned memory" in end.advice
