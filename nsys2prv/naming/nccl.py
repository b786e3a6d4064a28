"""Which GPU kernels belong to NCCL itself."""

from __future__ import annotations

import re

# One spelling per era of NCCL:
#   2.3 - 2.7   ncclAllReduceRingLLKernel_sum_f32, ncclSendRecvKernel_copy_i8, ncclMultiOpKernel
#   2.8 - 2.18  ncclKernel_AllReduce_RING_LL_Sum_float
#   2.19 -      ncclDevKernel_AllReduce_Sum_f32_RING_LL, ncclDevKernel_Generic, oneRankReduce<...>
#   2.27        ncclSymDevKernel_AllReduce_RSxLD_AGxST_Sum_f32
#   2.28 -      ncclSymkDevKernel_..., and from 2.29 ncclDevKernelGinResetSignalsAndCounters
# Nothing but a return type, an anonymous namespace or the start of a mangled name may stand before
# the name: "nccl" further on is an argument, or somebody's helper.
_KERNEL = re.compile(
    r"""(?:void\s+)?
        (?:<unnamed>::|\(anonymous\ namespace\)::|_ZL?\d+)?
        (?: ncclDevKernel(?:_|Gin)\w
          | ncclKernel_\w
          | ncclSymDevKernel_\w
          | ncclSymk\w
          | ncclMultiOpKernel\b
          | nccl(?:AllReduce|AllGather|ReduceScatter|Reduce|Broadcast|SendRecv)
            (?:Ring|Tree|CollNet)?(?:LL128|LL)?Kernel_\w
          | oneRankReduce(?:[<(]|$)
        )""",
    re.VERBOSE,
)


def is_nccl_kernel(name: str) -> bool:
    """Say whether ``name``, demangled, mangled or short, is a device kernel of NCCL."""
    return _KERNEL.match(name) is not None


#: Operations and other functions -> value of nccl_operation in the catalogue. Fixed for ever.
OPERATIONS = {
    "allreduce": 1, "broadcast": 2, "bcast": 2, "reduce": 3, "allgather": 4, "reducescatter": 5, "send": 6, "recv": 7, "alltoall": 8,
    "gather": 9, "scatter": 10, "putsignal": 11, "signal": 12, "waitsignal": 13,
    "sendrecv": 15, "groupstart": 21, "groupend": 22,
    "comminitrank": 30, "comminitall": 31, "comminitrankconfig": 32, "comminitrankscalable": 33, "commsplit": 34, "commshrink": 35,
    "commgrow": 36, "commfinalize": 37, "commdestroy": 38, "commabort": 39, "commrevoke": 40,
}
GROUP, SEND, RECEIVE, GROUP_START, GROUP_END = 20, 6, 7, 21, 22
#: Operations that move data up to this one.
LAST_OPERATION = 13
_COLLECTIVE = re.compile(r"(AllReduce|AllGather|ReduceScatter|SendRecv|AlltoAll|Broadcast|Reduce|Gather|Scatter)")


def operation_of(name: str) -> int:
    """The nccl_operation of a range: of a C function (``ncclAllReduce``) or of the advanced trace (``AllReduce``); 0 for none."""
    return OPERATIONS.get(name.removeprefix("nccl").lower(), 0)


def kernel_operation(name: str) -> int:
    """The nccl_operation that a kernel's name tells, 0 for none (``ncclDevKernel_Generic``)."""
    found = _COLLECTIVE.search(name)
    return OPERATIONS[found.group(1).lower()] if found else 0
