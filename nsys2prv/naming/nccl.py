"""Which GPU kernels belong to NCCL itself; its operations, and which of them are alike."""

from __future__ import annotations

import re

from nsys2prv.catalogue.lookup import values_of

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


_VALUES = values_of("nccl_operation")
#: Of several operations: of one kernel, and of calls between GroupStart and GroupEnd.
GROUP = _VALUES["several operations in a group"]
ALL_REDUCE, SEND, RECEIVE, SEND_RECEIVE, GROUP_START, GROUP_END = (
    _VALUES[name] for name in ("allreduce", "send", "recv", "sendrecv", "groupstart", "groupend"))
#: Operations that move data up to this one.
LAST_OPERATION = _VALUES["waitsignal"]
#: The first and the last operation that makes communicators.
FIRST_MAKING, LAST_MAKING = _VALUES["comminitrank"], _VALUES["commgrow"]
#: Operations in which all wait for all, all for the root, the root for all.
ALL_WAIT = tuple(_VALUES[name] for name in ("allreduce", "allgather", "reducescatter", "alltoall"))
WAIT_FOR_ROOT = _VALUES["broadcast"], _VALUES["scatter"]
ROOT_WAITS = _VALUES["reduce"], _VALUES["gather"]
#: Operations whose bytes are one rank's share.
SHARES = tuple(_VALUES[name] for name in ("allgather", "reducescatter", "alltoall", "gather", "scatter"))
#: Operations and other functions in lower case -> value of nccl_operation in the catalogue.
OPERATIONS = {name: value for name, value in _VALUES.items() if value != GROUP} | {"bcast": _VALUES["broadcast"]}
_COLLECTIVE = re.compile(r"(AllReduce|AllGather|ReduceScatter|SendRecv|AlltoAll|Broadcast|Reduce|Gather|Scatter)")


def operation_of(name: str) -> int:
    """The nccl_operation of a range: of a C function (``ncclAllReduce``) or of the advanced trace (``AllReduce``); 0 for none."""
    return OPERATIONS.get(name.removeprefix("nccl").lower(), 0)


def kernel_operation(name: str) -> int:
    """The nccl_operation that a kernel's name tells, 0 for none (``ncclDevKernel_Generic``)."""
    found = _COLLECTIVE.search(name)
    return OPERATIONS[found.group(1).lower()] if found else 0
