"""Names of calls: what CUDA and OS calls do to their thread, MPI functions in one spelling, NCCL
operations and kernels.
"""

from __future__ import annotations

import re
from functools import cache

import polars as pl

from nsys2prv.events.catalogue import load_catalogue
from nsys2prv.events.catalogue.counters import map_labels

#: Calls that wait until the device has done something.
SYNCHRONISING = r"(?i)^cu(?:da)?(?:Device|Stream|Event|Ctx|Thread|Context)_?Synchronize|^cu(?:da)?Ctx.*Synchronize"
#: Calls that copy or set memory, and those of them that return at once.
COPYING, SETTING, ASYNCHRONOUS = r"(?i)^cu(?:da)?Memcpy", r"(?i)^cu(?:da)?Memset", r"(?i)Async"
#: Calls that may wait for files or the network; locks and timers are no I/O.
IO = (
    r"^(?:p?readv?2?(?:64)?|p?writev?2?(?:64)?|f?read|f?write|fgets?|fputs?|getc|getline|open(?:at)?(?:64)?|f?open(?:64)?|f?close|"
    r"f(?:data)?sync|sendfile(?:64)?|splice|send(?:m?msg|to)?|recv(?:m?msg|from)?|connect|accept4?|poll|ppoll|select|pselect|"
    r"epoll_p?wait|io_(?:submit|getevents)|fflush|fscanf|fprintf|ioctl)$"
)


def select_matching(labels: pl.DataFrame, pattern: str) -> tuple[int, ...]:
    """Return the values of labels that match. labels: value and label."""
    return tuple(labels.filter(pl.col("label").str.contains(pattern))["value"].to_list())


def select_synchronising_calls(labels: pl.DataFrame) -> tuple[int, ...]:
    return select_matching(labels, SYNCHRONISING)


def select_io_calls(labels: pl.DataFrame) -> tuple[int, ...]:
    return select_matching(labels, IO)


#: Layouts of the catalogue; the set of names of each is called the same.
LAYOUTS = ("mpi_point_to_point", "mpi_collective", "mpi_other", "mpi_one_sided", "mpi_io")
_FUNCTION = re.compile(r"p?mpi(x?)_(\w+)", re.IGNORECASE)
#: Suffixes of Fortran interfaces (mpif.h, mpi_f08 with and without descriptors) and of the
#: large-count interface of MPI 4.
_SUFFIX = re.compile(r"(_f08ts|_f08|_fts|_f|_c)+$")
_ONE_SIDED = re.compile(
    r"MPI_(Win_|R?put$|R?get$|R?accumulate$|R?get_accumulate$|Fetch_and_op$|Compare_and_swap$)"
)


@cache
def _map_known_names() -> dict[str, tuple[str, str]]:
    """Name in small letters -> its spelling, and the layout that it belongs to."""
    sets = load_catalogue().name_sets
    return {
        name.lower(): (name, layout)
        for layout in LAYOUTS
        for name in sets[layout].list_known_values()
    }


def normalize_function_name(text: str) -> str:
    """Return the name of an MPI function as the standard spells it for C: MPI_Send for `mpi_send_`,
    `PMPI_Send` and `MPI_Send_c`.

    A text that is no name of an MPI function stays as it is.
    """
    match = _FUNCTION.fullmatch(text.strip())
    if match is None:
        return text
    prefix, rest = f"MPI{match[1].upper()}_", match[2].lower().rstrip("_")
    for candidate in (rest, _SUFFIX.sub("", rest)):
        if (prefix + candidate).lower() in _map_known_names():
            return _map_known_names()[(prefix + candidate).lower()][0]
    return prefix + (_SUFFIX.sub("", rest) or rest).capitalize()


def find_layout(function: str, otherwise: str) -> str:
    """Return the layout of a function by its name; `otherwise` for names that tell nothing."""
    if function.lower() in _map_known_names():
        return _map_known_names()[function.lower()][1]
    if function.startswith("MPI_File_"):
        return "mpi_io"
    return "mpi_one_sided" if _ONE_SIDED.match(function) else otherwise


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


_VALUES = map_labels("nccl_operation")
#: Of several operations: of one kernel, and of calls between GroupStart and GroupEnd.
GROUP = _VALUES["several operations in a group"]
ALL_REDUCE, SEND, RECEIVE, SEND_RECEIVE, GROUP_START, GROUP_END = (
    _VALUES[name] for name in ("allreduce", "send", "recv", "sendrecv", "groupstart", "groupend")
)
#: Operations that move data up to this one.
LAST_OPERATION = _VALUES["waitsignal"]
#: The first and the last operation that makes communicators.
FIRST_MAKING, LAST_MAKING = _VALUES["comminitrank"], _VALUES["commgrow"]
#: Operations in which all wait for all, all for the root, the root for all.
ALL_WAIT = tuple(_VALUES[name] for name in ("allreduce", "allgather", "reducescatter", "alltoall"))
WAIT_FOR_ROOT = _VALUES["broadcast"], _VALUES["scatter"]
ROOT_WAITS = _VALUES["reduce"], _VALUES["gather"]
#: Operations whose bytes are one rank's share.
SHARES = tuple(
    _VALUES[name] for name in ("allgather", "reducescatter", "alltoall", "gather", "scatter")
)
#: Operations and other functions in lower case -> value of nccl_operation in the catalogue.
OPERATIONS = {name: value for name, value in _VALUES.items() if value != GROUP} | {
    "bcast": _VALUES["broadcast"]
}
_COLLECTIVE = re.compile(
    r"(AllReduce|AllGather|ReduceScatter|SendRecv|AlltoAll|Broadcast|Reduce|Gather|Scatter)"
)


def find_operation(name: str) -> int:
    """Return the nccl_operation of a range: of a C function (``ncclAllReduce``) or of the advanced
    trace (``AllReduce``); 0 for none.
    """
    return OPERATIONS.get(name.removeprefix("nccl").lower(), 0)


def find_kernel_operation(name: str) -> int:
    """Return the nccl_operation that a kernel's name tells, 0 for none (``ncclDevKernel_Generic``)."""
    match = _COLLECTIVE.search(name)
    return OPERATIONS[match.group(1).lower()] if match else 0
