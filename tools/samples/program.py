"""A program: the fixed sequence of host operations a rank performs in one phase of the job, with
their NVTX ranges.

All ranks run the same program; :mod:`timeline` gives its operations times. Control passes from
thread to thread (the main thread waits while autograd's works), so that one sequence is enough.
Durations and gaps are typical ones in ns. API functions are spelled as the RUNTIME table spells
them: runtime calls with a version suffix, driver calls without.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any

from .cluster import Group, Stream, Team, Thread
from .data import DATA, KERNELS, LAUNCHES

FP32 = "gemm_fp32"  # the kernel that computes in single precision, without tensor cores
PAD_NS = 130  # between the edges of nested NVTX ranges
GRAPH_BEGIN, GRAPH_END = "cudaStreamBeginCapture_v10010", "cudaStreamEndCapture_v10000"
GRAPH_INSTANTIATE, GRAPH_LAUNCH = "cudaGraphInstantiateWithFlags_v11040", "cudaGraphLaunch_v10000"


class Kind(IntEnum):
    """What an operation does."""

    HOST = 0  # host work; with an API row if the operation names one
    KERNEL = 1
    COLLECTIVE = 2
    COPY = 3
    SET = 4
    RECORD = 5  # cudaEventRecord
    WAIT = 6  # cudaStreamWaitEvent
    SYNC_STREAM = 7
    SYNC_EVENT = 8
    SYNC_DEVICE = 9
    MEET = 10  # host work that ends on all ranks of a communicator together
    MPI = 11  # an MPI call


class Domain(IntEnum):
    """NVTX domain ids of a process."""

    DEFAULT = 0
    NCCL = 1
    JOB = 2


class Style(IntEnum):
    """How a range's text is exported."""

    INLINE = 0  # in ``text``
    REGISTERED = 1  # in StringIds, through ``textId``
    OP_ID = 2  # inline, with PyTorch's ", op_id = n" behind it: another text for every instance
    NUMBERED = 3  # inline, with the step's number behind it


# copyKind, srcKind and dstKind of a MEMCPY row (ENUM_CUDA_MEMCPY_OPER, ENUM_CUDA_MEM_KIND)
H2D_PINNED, H2D_PAGEABLE, D2H, D2D, P2P = (1, 1, 2), (1, 0, 2), (2, 2, 0), (8, 2, 2), (10, 2, 2)
BYTES_PER_NS = {1: 45, 2: 45, 8: 2_200, 10: 350}  # by copyKind


@dataclass(frozen=True)
class Payload:
    """What an NCCL call says about itself."""

    function: str  # such as "AllReduce"
    group: Group  # of its communicator
    bytes: int = 0
    peer: int = 0  # distance to the peer, in ranks of the communicator
    reduction: int = 0  # ncclRedOp_t
    four_byte: bool = False  # elements are of float32, not bfloat16
    root: int = -1  # a rank in the communicator, modulo its size; -1: the function has none

    def passes_on(self, rank: int, size: int) -> bool:
        """Tell whether a rank of a communicator of ``size`` sends to the next in the ring: a
        broadcast ends before its root, a reduction at it.
        """
        last = {"Broadcast": self.root - 1, "Reduce": self.root}.get(self.function)
        return last is None or rank != last % size

    def count_bus_bytes(self, size: int) -> float:
        """Return the bytes per rank that cross the bus in a call among ``size`` ranks."""
        factor = {"AllReduce": 2 * (size - 1) / size}
        factor |= dict.fromkeys(("AllGather", "ReduceScatter"), size - 1)
        return self.bytes * factor.get(self.function, 1)


LEAKED = 64  # the MPI request never waited for: every instance has a handle of its own


class Table(str, Enum):
    """The table that has a call's row."""

    P2P = "MPI_P2P_EVENTS"
    COLLECTIVES = "MPI_COLLECTIVES_EVENTS"
    START_WAIT = "MPI_START_WAIT_EVENTS"
    OTHER = "MPI_OTHER_EVENTS"


class Meeting(IntEnum):
    """Direction of waiting among the members of a communicator in a call."""

    NONE = 0
    ALL = 1  # everybody for the last
    FROM_ROOT = 2  # everybody for the root
    TO_ROOT = 3  # the root for the last


@dataclass(frozen=True)
class MpiCall:
    """One MPI call of a program, as every rank makes it (but for ``by_rank``)."""

    function: str
    table: Table
    team: Team = Team.WORLD  # its communicator
    meeting: Meeting = Meeting.NONE
    sent: int | None = None  # bytes a rank gives, as the row says; None for a call without
    received: int | None = None  # bytes a rank takes, likewise
    root: int = -1  # the root's rank in the communicator
    request: int = -1  # number of the request it starts; -1 for a blocking call
    #: The operations whose requests it ends (or asks about, if it does not wait).
    waits: tuple[int, ...] = ()
    blocks: bool = True  # whether it waits for those
    #: The function every world rank calls instead, "" for none; None if all call the same.
    by_rank: tuple[str, ...] | None = None
    creates: Team | None = None  # the communicator that exists from its end on

    def function_of(self, rank: int) -> str:
        """Return the function this world rank calls, "" for none."""
        return self.function if self.by_rank is None else self.by_rank[rank]


@dataclass(frozen=True)
class Message:
    """A message that every rank sends, by one operation, and receives by another."""

    send: int
    receive: int  # -1: nobody ever receives it
    team: Team
    tag: int
    size: int
    capacity: int  # of the buffer it is received in, which is what the receiving call's row says
    to: tuple[int, ...]  # for every world rank the world rank it sends to (-1: none)

    def find_sources(self) -> list[int]:
        """Find for every world rank the world rank it receives from (-1: none)."""
        return [self.to.index(rank) if rank in self.to else -1 for rank in range(len(self.to))]


@dataclass
class Op:
    """One host operation, and the GPU work it starts (``work_ns``) on ``stream``."""

    kind: Kind
    thread: Thread
    api: str = ""
    api_ns: float = 0.0
    gap_ns: float = 900.0  # since the operation before
    edges: int = 1  # NVTX range edges between the operation before and this one, and one more
    stream: Stream = Stream.COMPUTE
    work_ns: float = 0.0
    kernel: str = ""
    bytes: int = 0
    copy: tuple[int, int, int] | None = None
    event: int = -1
    payload: Payload | None = None
    graph: int = -1  # a node of this graph: no API row of its own
    launches: int = -1  # the launch (or the making) of this graph
    mpi: MpiCall | None = None
    calls: tuple[int, ...] = ()  # NCCL calls whose work this is, by their numbers in the program


@dataclass
class Range:
    """A push/pop range around operations; ``lead`` and ``trail`` count edges between."""

    thread: Thread
    text: str
    style: Style
    domain: Domain
    first: int
    category: int | None = None
    color: int | None = None
    payload: Payload | None = None
    #: Of the advanced NCCL trace: number of its group, numbers of the calls.
    trace: tuple[int, tuple[int, ...]] | None = None
    last: int = -1
    lead: int = 0
    trail: int = 0


@dataclass
class Program:
    """Operations, and what they are about."""

    ops: list[Op] = field(default_factory=list)
    ranges: list[Range] = field(default_factory=list)
    events: int = 0
    #: The kernel nodes of each graph launched here, as indices into ``ops``.
    graphs: dict[int, list[int]] = field(default_factory=dict)
    nccl_calls: list[Payload] = field(default_factory=list)
    nccl_groups: int = 0
    messages: list[Message] = field(default_factory=list)
    #: Operations before which the host of a rank may be held up, by what holds it up.
    marks: dict[str, int] = field(default_factory=dict)

    def all_of(self, *kinds: Kind) -> list[int]:
        """Return the operations of these kinds, in program order."""
        return [index for index, op in enumerate(self.ops) if op.kind in kinds]

    def count_rows(self, graph_level: bool) -> int:
        """Count the event rows that one run of the program leaves in a report."""
        api = sum(bool(op.api) for op in self.ops)
        gpu = sum(
            op.kind not in (Kind.HOST, Kind.MEET) and not (graph_level and op.graph >= 0)
            for op in self.ops
        )
        return api + gpu + len(self.ranges) + (len(self.graphs) if graph_level else 0)


class Builder:
    """Writes a :class:`Program`, with ranges of the advanced NCCL trace and of operators."""

    def __init__(self, advanced: bool = False, operators: bool = True) -> None:
        self.program, self.thread, self.advanced = Program(), Thread.MAIN, advanced
        self.operators = operators
        self._opening: list[Range] = []  # ranges opened since the last operation
        self._closed = 0  # ranges closed since the last operation
        self._graph = -1

    def _add(self, kind: Kind, api: str = "", api_ns: float = 0.0, **more: Any) -> int:
        """Add an operation of this thread; return its index."""
        return self._append(Op(kind, self.thread, api, api_ns, **more))

    def _append(self, op: Op) -> int:
        if self._graph < 0:
            op.edges = self._closed + len(self._opening) + 1
            for above, opened in enumerate(self._opening):
                opened.lead = len(self._opening) - above
            self._opening, self._closed = [], 0
        self.program.ops.append(op)
        return len(self.program.ops) - 1

    @contextmanager
    def on(self, thread: Thread) -> Iterator[None]:
        """Let another thread do operations and ranges, while this one waits."""
        before, self.thread = self.thread, thread
        yield
        self.thread = before

    @contextmanager
    def range(
        self,
        text: str,
        style: Style = Style.INLINE,
        domain: Domain = Domain.DEFAULT,
        **columns: Any,
    ) -> Iterator[None]:
        """Open a push/pop range around what is written inside. columns: of :class:`Range`."""
        opened = Range(self.thread, text, style, domain, len(self.program.ops), **columns)
        self._opening.append(opened)
        self.program.ranges.append(opened)
        yield
        opened.last = len(self.program.ops) - 1
        if opened.last < opened.first:
            raise ValueError(f"NVTX range {text!r} contains nothing")
        self._closed += 1
        opened.trail = self._closed

    def phase(self, text: str, category: int, color: int) -> AbstractContextManager[None]:
        """Open a range of the job's own domain."""
        return self.range(text, Style.REGISTERED, Domain.JOB, category=category, color=color)

    @contextmanager
    def graph(self, number: int) -> Iterator[None]:
        """Launch CUDA graph ``number``; the kernels written inside are its nodes."""
        self.call(GRAPH_LAUNCH, 9_500, number)
        first, self._graph = len(self.program.ops), number
        yield
        self._graph = -1
        self.program.graphs[number] = list(range(first, len(self.program.ops)))

    def mark(self, cause: str) -> None:
        """Let ``cause`` hold up the host before the next operation."""
        self.program.marks[cause] = len(self.program.ops)

    def host(self, ns: float) -> None:
        """Work on the host without an API row."""
        self._add(Kind.HOST, "", ns, gap_ns=0)

    def meet(self, group: Group, ns: float) -> None:
        """Work on the host until ``ns`` after all ranks of a communicator have begun to."""
        self._add(Kind.MEET, "", ns, payload=Payload("Init", group))

    def call(self, api: str, ns: float, launches: int = -1) -> None:
        """Call CUDA's API without starting work."""
        self._add(Kind.HOST, api, ns, launches=launches)

    def mpi(self, call: MpiCall, ns: float, cost_ns: float = 0.0) -> int:
        """Call MPI for ``ns``, and ``cost_ns`` from the moment those it waits for are there."""
        return self._add(Kind.MPI, "", ns, work_ns=cost_ns, bytes=call.sent or 0, mpi=call)

    def kernel(self, key: str, times: float = 1.0) -> None:
        """Launch a kernel that lasts ``times`` its mean."""
        shape = KERNELS[key]
        work: dict[str, Any] = {"kernel": key, "work_ns": shape.mean_ns * times}
        if self._graph >= 0:
            self._add(Kind.KERNEL, gap_ns=0, edges=0, graph=self._graph, **work)
        else:
            ns = 5_600 if shape.api == LAUNCHES["runtime"] else 4_400
            self._add(Kind.KERNEL, shape.api, ns, gap_ns=2_600, **work)

    def aten(self, *stack: str, kernel: str, times: float = 1.0) -> None:
        """Run operators inside each other, and a kernel; a replayed graph runs no operators."""
        if not stack or self._graph >= 0 or not self.operators:
            self.kernel(kernel, times)
        else:
            with self.range(stack[0], Style.OP_ID):
                self.aten(*stack[1:], kernel=kernel, times=times)

    def copy(self, kind: tuple[int, int, int], size: int, stream: Stream = Stream.COMPUTE) -> None:
        api = "cudaMemcpyPeerAsync_v4000" if kind is P2P else "cudaMemcpyAsync_v3020"
        work_ns = 1_300 + size / BYTES_PER_NS[kind[0]]
        self._add(Kind.COPY, api, 7_200, stream=stream, work_ns=work_ns, bytes=size, copy=kind)

    def memset(self, size: int) -> None:
        work_ns = 1_100 + size / 2_500
        self._add(Kind.SET, "cudaMemsetAsync_v3020", 6_100, work_ns=work_ns, bytes=size)

    def record(self, stream: Stream) -> int:
        """Record an event; return its number."""
        self.program.events += 1
        event = self.program.events - 1
        api = "cudaEventRecordWithFlags_v11010"
        self._add(Kind.RECORD, api, 2_400, stream=stream, event=event)
        return event

    def wait(self, stream: Stream, event: int) -> None:
        self._add(Kind.WAIT, "cudaStreamWaitEvent_v3020", 1_900, stream=stream, event=event)

    def sync(self, stream: Stream) -> None:
        self._add(Kind.SYNC_STREAM, "cudaStreamSynchronize_v3020", 4_900, stream=stream)

    def sync_event(self, event: int) -> None:
        self._add(Kind.SYNC_EVENT, "cudaEventSynchronize_v3020", 3_900, event=event)

    def sync_device(self) -> None:
        self._add(Kind.SYNC_DEVICE, "cudaDeviceSynchronize_v3020", 5_200)

    def collective(self, payload: Payload, kernel: str) -> int:
        """Write an NCCL call on its communicator's stream, after what the compute stream has to do
        so far; return the event that tells its end.

        ``SendRecv`` is a group of ncclSend and ncclRecv: its kernel is launched by ncclGroupEnd,
        which has no payload.
        """
        if payload.function != "SendRecv":
            return self._launch([payload], payload, kernel)
        ways = ("Send", payload.peer), ("Recv", -payload.peer)
        ends = [Payload(name, payload.group, payload.bytes, peer) for name, peer in ways]
        return self._launch(ends, payload, kernel)

    def collective_group(self, payloads: list[Payload], kernel: str, times: float) -> int:
        """Write collectives of one communicator in a group, done by one kernel one after the other."""
        size = sum(payload.bytes for payload in payloads)
        return self._launch(payloads, Payload("Group", payloads[0].group, size), kernel, times)

    def _launch(self, calls: list[Payload], whole: Payload, kernel: str, times: float = 1.0) -> int:
        """Write calls, in a group if there are several, and the kernel that does them."""
        where, shape, first = whole.group.stream, KERNELS[kernel], len(self.program.nccl_calls)
        launch = Op(Kind.COLLECTIVE, self.thread, shape.api, 7_800, 3_100, stream=where)
        launch.kernel, launch.payload, launch.bytes = kernel, whole, whole.bytes
        launch.work_ns = shape.mean_ns * times
        launch.calls = tuple(range(first, first + len(calls)))
        self.program.nccl_calls += calls
        self.program.nccl_groups += 1
        self.call("cudaEventCreateWithFlags_v3020", 1_700)
        self.wait(where, self.record(Stream.COMPUTE))
        with self.range(f"nccl:{DATA['torch_names'][whole.function]}"):
            (self._add_advanced if self.advanced else self._add_plain)(calls, launch)
        return self.record(where)

    def nccl(self, text: str, **columns: Any) -> AbstractContextManager[None]:
        """Open a range of NCCL's domain."""
        return self.range(text, Style.REGISTERED, Domain.NCCL, **columns)

    def _add_plain(self, calls: list[Payload], launch: Op) -> None:
        """Add the ranges NCCL itself makes."""
        if len(calls) == 1:
            with self.nccl(f"nccl{calls[0].function}", payload=calls[0]):
                self._append(launch)
            return
        with self.nccl("ncclGroupStart"):
            self.host(400)
        for call in calls:
            with self.nccl(f"nccl{call.function}", payload=call):
                self.host(900)
        with self.nccl("ncclGroupEnd"):
            self._append(launch)

    def _add_advanced(self, calls: list[Payload], launch: Op) -> None:
        """Add the ranges of the advanced NCCL trace; a single call is a group too."""
        group = self.program.nccl_groups - 1
        with self.nccl("API Group", trace=(group, launch.calls)):
            for number, call in zip(launch.calls, calls, strict=True):
                with self.nccl(call.function, trace=(group, (number,))):
                    self.host(600)
            with self.nccl("GroupLaunch", trace=(group, launch.calls)):
                with self.nccl("GroupRuntime", trace=(group, launch.calls)):
                    self.host(1_100)
                with self.nccl("KernelLaunch", trace=(group, launch.calls)):
                    self._append(launch)
