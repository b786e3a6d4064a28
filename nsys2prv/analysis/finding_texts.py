"""Texts of findings that the replay gives: of each kind of cause its kind of finding, title, advice and
views; what helps against calls; and what is advised for what hosts do.
"""

from __future__ import annotations

from nsys2prv.events.mpi import MPI_LAYOUTS
from nsys2prv.replay.suspects import LINK_TO_OTHERS, LINK_WITHIN

_ON_HOSTS = ("views/nvtx_ranges.cfg", "views/cuda_activities.cfg", "analysis/mpi_time_2dh.cfg")
_LINKS = ("analysis/nccl_bw_mbs.cfg", "views/mpi_messages.cfg")
_MESSAGES = ("views/nccl_wait.cfg", "views/mpi_messages.cfg")
_GAPS = ("views/idle_gaps.cfg", "views/cuda_activities.cfg")
_API = ("views/cuda_activities.cfg", "analysis/api_time_2dh.cfg")
_COPIES = ("basics/memory_operations.cfg", "analysis/memory_bytes_2dh.cfg")
_IMBALANCE = ("views/nccl_wait.cfg", "views/kernel_duration.cfg", "model/host_outside_mpi_2dh.cfg")
_MPI = ("analysis/mpi_time_2dh.cfg", "views/mpi_messages.cfg")
_TRANSFERS = ("analysis/nccl-exposed-2dh.cfg", "views/mpi_messages.cfg", _MPI[0])
#: Kind of cause -> kind of finding, and views that show it: the first of them with something to show.
KINDS = {
    "gpu": ("straggler", ("views/kernel_duration.cfg", "views/nccl_wait.cfg")),
    "host": ("straggler", _ON_HOSTS),
    "copies": ("straggler", _COPIES),
    LINK_WITHIN: ("slow_link", _LINKS),
    LINK_TO_OTHERS: ("slow_link", _LINKS),
    "hiccup": ("hiccup", _ON_HOSTS),
    "imbalance": ("imbalance", _IMBALANCE),
    "transfers": ("exposed_communication", _TRANSFERS),
    "pipeline": ("pipeline_bubble", _MESSAGES),
    "messages": ("serialisation", _MESSAGES),
    "host_time": ("host_bound", _GAPS),
    "launching": ("host_bound", _GAPS),
    "call": ("blocked_by_call", _API),
    "mpi_call": ("blocked_by_call", _MPI),
    "gap": ("host_work", (_GAPS[0], "views/nvtx_ranges.cfg", _MPI[0])),
    "pageable": ("exposed_copies", _COPIES),
    "allocation": ("blocked_by_call", _API),
    "module_loading": ("blocked_by_call", _API),
    "tensor_cores": ("no_tensor_cores", ("analysis/gemm_without_tensor_cores_2dh.cfg",)),
}
#: Kind of cause of the whole job -> title; {waiting}: GPUs or Ranks.
TITLES = {
    "imbalance": "Ranks have unequal work, and not always the same ones have most.",
    "host_time": "{waiting} wait for their hosts.",
    "launching": "{waiting} wait for their hosts, most of the time for launches.",
    "pageable": "Copies of pageable memory are slow, and block their callers.",
    "allocation": "Hosts allocate and free memory while {waiting} wait.",
    "module_loading": "Hosts load code for GPUs again and again while these wait.",
    "tensor_cores": "Matrix products run without tensor cores.",
    "transfers": "Ranks wait while data moves between them.",
    "messages": "{waiting} wait for messages that other ranks could not send earlier.",
}
#: Kind of cause, or of what is found of it -> what helps.
ADVICE = {
    "gpu": "compare clocks, temperature and power with those of the other GPUs (nvidia-smi -q -d CLOCK,PERFORMANCE), and what else runs there",
    "stage": "give the stages equal work (move layers to others), unless these GPUs are slower",
    "gpu_more": "give the ranks equal work",
    "host": "look at what this rank's host does there that the others' do not",
    "copies": "compare bytes and PCIe with those of the other GPUs",
    LINK_WITHIN: "check the link's speed and errors (nvidia-smi nvlink, ibstat), and what else uses it",
    LINK_TO_OTHERS: "check the link's speed and errors (nvidia-smi nvlink, ibstat), and what else uses it",
    "hiccup": "look at this moment: garbage collection, a checkpoint, another process, or a slow file",
    "imbalance": "balance the work of each iteration among the ranks (sort or bucket by size)",
    "pipeline": "more micro-batches in an iteration, or an interleaved schedule, in which each rank has several stages",
    "messages": "send earlier: first compute what others wait for, or let them do other work meanwhile",
    "transfers": "overlap communication with computation, communicate less or in larger pieces",
    "launching": "launch less often (CUDA graphs, fused kernels, larger batches)",
    "little_data": "see whether all processes run: more of them than cores, other work on the host, or how they are bound",
    "files": "read and write less or in larger pieces, or beside other work",
    "host_time": "launch less often (CUDA graphs, fused kernels, larger batches), and move the host's work out of the loop",
    "gap": "shorten what the host does there, do it ahead or in another thread, and launch more work before it",
    "waits": "see what the host waits for there: requests that have not come are no loss, another process is looked at next",
    "off_cpu": "look at what the host waits for there: a device, a lock, or another process",
    "once": "it happens once: do it ahead, or beside other work, if the job is short",
    "startup": "it counts once: judge by the rest, and capture that alone (--capture-range)",
    "pageable": "use pinned memory (pin_memory=True, cudaHostAlloc) and copies that do not block",
    "allocation": "allocate once before the loop, or use a caching allocator",
    "module_loading": "load modules before the loop (CUDA_MODULE_LOADING=EAGER), or warm up",
    "tensor_cores": "use half precision or TF32 (torch.set_float32_matmul_precision), and sizes that are multiples of 8",
}
#: Synchronising calls and others, by what their names contain -> what helps.
CALLS = {
    "Synchronize": "wait later, or for an event rather than for all work: what follows is launched only after the wait",
    "lloc": "allocate once, or use a caching allocator",
    "Free": "free outside of the loop, or use a caching allocator",
    "Memcpy": "copy from and to pinned memory without blocking, and fewer times",
    "Launch": "launch less often: CUDA graphs, fused kernels, larger batches",
    "MPI_": "find which rank is late in MPI, or overlap MPI with other work",
    "": "call it less often",
}
#: Part of the time of hosts (host_time.py) -> what to do about it, where it is most of what a host does.
HOST_ADVICE = {
    "mpi": "look at what MPI waits for there, on the other ranks too",
    "ucx": "look at what UCX waits for there, on the other ranks too",
    "shmem": "look at what is waited for there, on the other ranks too",
    "callback": "shorten what callbacks do (cudaLaunchHostFunc, host nodes of graphs), or take them out of streams",
    "jit": "build for these GPUs (-arch), or keep the cache of compiled code (~/.nv/ComputeCache)",
    "cuda": "look at what these calls wait for",
    "profiler": "this is Nsight Systems' own work and not the program's: judge by the rest",
    "io": "read and write less, ahead, in other threads, or on faster storage",
    "os": "look at what the program waits for there",
    "off_cpu": "look at what the program waits for there",
    "computing": "do this once, in parallel, or on the GPU",
    "ended": "this thread has ended, or waits: look at what others do then",
    "unknown": "look at what the program does there",
}
#: Layout of what host threads do -> the view that shows it.
HOST_VIEWS = {
    "nvtx_pushpop": "views/nvtx_ranges.cfg",
    "osrt": "views/osrt_calls.cfg",
    "thread_state": "basics/thread_states.cfg",
}
#: Part of the name of a view -> the layouts of which it must show something; else those of CUDA.
VIEW_NEEDS = {"nccl": ("nccl_kernel",), "mpi": MPI_LAYOUTS, "nvtx": ("nvtx_pushpop",)}
