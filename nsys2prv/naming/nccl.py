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
