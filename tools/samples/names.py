"""Names: the API functions of the RUNTIME table, and the kernels (from ``kernels.tsv``) with their shapes.

Names, grids, registers and shared memory of the GEMM (nvjet, XMMA), elementwise, softmax, reduce and cat kernels were
seen in public exports of H100 and H200 runs; those of flash attention, CUTLASS, layer norm, Adam, embedding, Triton
and NCCL follow the same style. Durations are typical, not measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources

# API functions, spelled as the RUNTIME table spells them: runtime calls with a version suffix, driver calls without.
LAUNCH_RUNTIME = "cudaLaunchKernel_v7000"
LAUNCH_RUNTIME_EX = "cudaLaunchKernelExC_v11060"
LAUNCH_DRIVER = "cuLaunchKernel"
LAUNCH_DRIVER_EX = "cuLaunchKernelEx"
COPY_ASYNC = "cudaMemcpyAsync_v3020"
COPY_PEER = "cudaMemcpyPeerAsync_v4000"
SET_ASYNC = "cudaMemsetAsync_v3020"
EVENT_CREATE = "cudaEventCreateWithFlags_v3020"
EVENT_RECORD = "cudaEventRecordWithFlags_v11010"
EVENT_QUERY = "cudaEventQuery_v3020"
EVENT_SYNC = "cudaEventSynchronize_v3020"
EVENT_DESTROY = "cudaEventDestroy_v3020"
STREAM_WAIT = "cudaStreamWaitEvent_v3020"
STREAM_SYNC = "cudaStreamSynchronize_v3020"
STREAM_CREATE = "cudaStreamCreateWithPriority_v5050"
STREAM_CAPTURING = "cudaStreamIsCapturing_v10000"
DEVICE_SYNC = "cudaDeviceSynchronize_v3020"
MALLOC = "cudaMalloc_v3020"
FREE = "cudaFree_v3020"
HOST_ALLOC = "cudaHostAlloc_v3020"
PROPERTIES = "cudaGetDeviceProperties_v12000"
MODULE_MODE = "cuModuleGetLoadingMode"
GRAPH_BEGIN = "cudaStreamBeginCapture_v10010"
GRAPH_END = "cudaStreamEndCapture_v10000"
GRAPH_INSTANTIATE = "cudaGraphInstantiateWithFlags_v11040"
GRAPH_LAUNCH = "cudaGraphLaunch_v10000"

Dim = tuple[int, int, int]


@dataclass(frozen=True)
class Kernel:
    """One kernel function as the KERNEL table describes it; shared memory in bytes, ``mean_ns`` in ns."""

    short: str
    grid: Dim
    block: Dim
    registers: int
    static_shared: int
    dynamic_shared: int
    shared_executed: int
    cluster: Dim
    mean_ns: float
    api: str
    demangled: str
    mangled: str


_LAUNCHES = {
    "runtime": LAUNCH_RUNTIME,
    "runtime_ex": LAUNCH_RUNTIME_EX,
    "driver": LAUNCH_DRIVER,
    "driver_ex": LAUNCH_DRIVER_EX,
}


def _dim(text: str) -> Dim:
    x, y, z = map(int, text.split("x"))
    return x, y, z


def _kernels() -> dict[str, Kernel]:
    text = resources.files(__package__).joinpath("kernels.tsv").read_text(encoding="utf-8")
    _, *rows = (line.split("\t") for line in text.splitlines() if not line.startswith("#"))
    found = {}
    for key, short, grid, block, registers, static, dynamic, executed, cluster, mean, api, demangled, mangled in rows:
        found[key] = Kernel(
            short=short,
            grid=_dim(grid),
            block=_dim(block),
            registers=int(registers),
            static_shared=int(static),
            dynamic_shared=int(dynamic),
            shared_executed=int(executed),
            cluster=_dim(cluster),
            mean_ns=float(mean),
            api=_LAUNCHES[api],
            demangled=short if demangled == "=" else demangled,
            mangled=short if mangled == "=" else mangled,
        )
    return found


KERNELS = _kernels()
"""The kernels of the job by the key the programs use."""
