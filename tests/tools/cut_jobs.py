"""Make a small job with everything that cuts treat differently.

Two ranks on two hosts repeat a step of 1000 ns with nested ranges that end together. GPUs lag half
a step behind their hosts. Ranks send each other messages, threads change state and are sampled with
stacks, and samples of a GPU have a hole.
"""

from pathlib import Path

from tools.exports import (
    KERNEL,
    MEMCPY,
    RUNTIME,
    Row,
    make_call,
    make_export,
    make_global_pid,
    make_global_tid,
    make_host,
    make_kernel,
    make_nvtx_range,
)

STEPS, STEP = 10, 1000
NAMES = ["gemm", "cudaLaunchKernel", "add", "MPI_Send", "MPI_Recv", "main", "solve", "/home/u/app"]
NAMES += ["cudaMemcpyAsync"]
GEMM, LAUNCH, ADD, SEND, RECEIVE, MAIN, SOLVE, APP, COPY = range(1, len(NAMES) + 1)
#: Of GPU metrics; the period of their samples (ns).
METRIC, PERIOD = "SMs Active [Throughput %]", 50


def write_small_job(folder: Path, lag: int = 37, hosts: int = 2) -> list[Path]:
    """Write the reports of the job. lag: of rank 1 behind rank 0 (ns). hosts: 2, or 1 for both ranks."""
    return [
        _write_rank(folder / f"rank{rank}.sqlite", rank, lag * rank, rank * (hosts - 1))
        for rank in range(2)
    ]


def _write_rank(path: Path, rank: int, lag: int, node: int) -> Path:
    pid, host = 100 + rank, 1 + node
    process, thread = make_global_pid(pid, host), make_global_tid(pid, pid, host)
    ranges: list[Row] = []
    calls: list[Row] = []
    kernels: list[Row] = []
    copies: list[Row] = []
    messages: list[Row] = []
    for step in range(STEPS):
        # Rank 1 is later, and slower now and then.
        at = STEP * step + lag + (11 * step % 7) * rank
        own = {"globalTid": thread}
        ranges += [
            make_nvtx_range(at, at + 900, f"step {step}", **own),
            make_nvtx_range(at + 20, at + 800, "forward", **own),
            make_nvtx_range(at + 40, at + 800, "layer", **own),
            make_nvtx_range(at + 60, at + 800, "kernel", **own),
            make_nvtx_range(at + 820, at + 1150, f"load {step % 3}", kind=60, **own),
        ]
        first = 10 * step + 1
        for number, begin, name in (
            (first, 80, LAUNCH),
            (first + 1, 200, LAUNCH),
            (first + 2, 600, COPY),
        ):
            call = make_call(at + begin, at + begin + 30, number, nameId=name, globalTid=thread)
            calls.append(call | {"callchainId": 1 if number % 2 else None})
        more = {"globalPid": process}
        kernels += [
            make_kernel(at + 550, at + 950, correlationId=first, **more),
            make_kernel(at + 950, at + 1150 - 90 * rank, correlationId=first + 1, **more)
            | {"demangledName": ADD, "shortName": ADD},
        ]
        copies.append(
            make_kernel(at + 1180, at + 1300, correlationId=first + 2, **more)
            | {"bytes": 4096, "copyKind": 1, "srcKind": 1, "dstKind": 2, "streamId": 13}
        )
        message = {"globalTid": thread, "commHandle": 7, "remoteRank": 1 - rank, "size": 64}
        name, begin, end = (SEND, 300, 320) if step % 2 == rank else (RECEIVE, 310, 450)
        message |= {"start": at + begin, "end": at + end, "textId": name, "tag": step}
        messages.append(message)
    states = [
        {"start": time, "cpu": rank, "isSchedIn": number % 2, "globalTid": thread}
        for number, time in enumerate(range(5, STEPS * STEP, 170))
    ]
    samples = [
        {"id": number, "start": 90 * number, "globalTid": thread, "cpuCycles": 1}
        for number in range(1, STEPS * STEP // 90)
    ]
    chains = [
        {"id": number, "symbol": symbol, "module": APP, "stackDepth": depth}
        for number in range(1, STEPS * STEP // 90)
        for depth, symbol in enumerate((SOLVE, MAIN))
    ]
    metrics = [
        {"timestamp": time, "typeId": 1, "metricId": 1, "value": time // PERIOD % 100}
        for time in range(500, STEPS * STEP, PERIOD)
        if not 4000 <= time < 6000
    ]
    tables = {
        "StringIds": [{"id": number, "value": text} for number, text in enumerate(NAMES, 1)],
        "NVTX_EVENTS": ranges,
        RUNTIME: calls,
        KERNEL: kernels,
        MEMCPY: copies,
        "MPI_RANKS": [{"globalTid": thread, "rank": rank}],
        "MPI_P2P_EVENTS": messages,
        "MPI_COMMUNICATORS": [
            {
                "rank": rank,
                "timestamp": 0,
                "commHandle": 7,
                "members": "0,1",
                "localRank": rank,
                "size": 2,
            }
        ],
        "SCHED_EVENTS": states,
        "COMPOSITE_EVENTS": samples,
        "SAMPLING_CALLCHAINS": chains,
        "CUDA_CALLCHAINS": chains[:2],
        "GPU_METRICS": metrics,
        "TARGET_INFO_GPU_METRICS": [{"typeId": 1, "metricId": 1, "metricName": METRIC}],
        **make_host(f"node{node}", 10**18),
        "TARGET_INFO_GPU": [
            {"id": 0, "name": "GPU", "uuid": f"{rank:032x}", "busLocation": "0000:01:00.0"}
        ],
    }
    return make_export(path, tables)
