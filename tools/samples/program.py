"""A program: the fixed sequence of host operations a rank performs in one phase of the job, with their NVTX ranges.

All ranks run the same program; :mod:`timeline` gives its operations times. Control passes from thread to thread (the
main thread waits while autograd's thread works), so that one sequence is enough. Durations and gaps are typical ones
in ns.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from enum import IntEnum

from . import names
from .cluster import Group, Stream, Thread
from .mpi.calls import Message, MpiCall
from .names import KERNELS

PAD_NS = 130
"""Time between the edges of nested NVTX ranges."""


class Kind(IntEnum):
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
    """NVTX domain ids of a process; 0 is the default domain."""

    DEFAULT = 0
    NCCL = 1
    JOB = 2


class Style(IntEnum):
    """How a range's text is exported."""

    INLINE = 0  # in ``text``
    REGISTERED = 1  # in StringIds, through ``textId``
    OP_ID = 2  # inline, with PyTorch's ", op_id = n" behind it: another text for every instance
    NUMBERED = 3  # inline, with the step's number behind it


@dataclass(frozen=True)
class Copy:
    """copyKind, srcKind and dstKind of a MEMCPY row (ENUM_CUDA_MEMCPY_OPER, ENUM_CUDA_MEM_KIND)."""

    copy_kind: int
    src_kind: int
    dst_kind: int


H2D_PINNED, H2D_PAGEABLE = Copy(1, 1, 2), Copy(1, 0, 2)
D2H, D2D, P2P = Copy(2, 2, 0), Copy(8, 2, 2), Copy(10, 2, 2)


@dataclass(frozen=True)
class Payload:
    """What an NCCL call says about itself: function (``AllReduce``...), communicator kind, bytes, distance to the
    peer, root (a rank in the communicator, modulo its size; -1 for a function without one).
    """

    function: str
    group: Group
    bytes: int = 0
    peer: int = 0
    reduction: int = 0
    four_byte: bool = False
    """Elements are of float32, not bfloat16."""

    root: int = -1

    def passes_on(self, rank: int, size: int) -> bool:
        """Whether a rank of a communicator of ``size`` sends to the next in the ring: a broadcast ends before its root,
        a reduction at it.
        """
        last = {"Broadcast": self.root - 1, "Reduce": self.root}.get(self.function)
        return last is None or rank != last % size


class Stage(IntEnum):
    """What a range of the advanced NCCL trace is about."""

    GROUP = 0  # "API Group"
    API = 1
    LAUNCH = 2  # "GroupLaunch"
    RUNTIME = 3  # "GroupRuntime"
    KERNEL = 4  # "KernelLaunch"


@dataclass(frozen=True)
class Trace:
    """A range of the advanced NCCL trace: its stage, the group it belongs to and that group's calls, by their numbers
    in the program.
    """

    stage: Stage
    group: int
    calls: tuple[int, ...]


@dataclass
class Op:
    """One host operation, and the GPU work it starts (``work_ns``) on ``stream``."""

    kind: Kind
    thread: Thread
    api: str = ""
    api_ns: float = 0.0
    gap_ns: float = 900.0
    edges: int = 1  # NVTX range edges between the operation before and this one, and one more
    stream: Stream = Stream.COMPUTE
    work_ns: float = 0.0
    kernel: str = ""
    bytes: int = 0
    copy: Copy | None = None
    event: int = -1
    payload: Payload | None = None
    graph: int = -1  # a node of this graph: no API row of its own
    launches: int = -1  # the launch of this graph
    mpi: MpiCall | None = None
    calls: tuple[int, ...] = ()  # NCCL calls whose work this is, by their numbers in the program


@dataclass
class Range:
    """A push/pop range around operations ``first`` to ``last``; ``lead`` and ``trail`` count edges between it and
    them.
    """

    thread: Thread
    text: str
    style: Style
    domain: Domain
    first: int
    last: int
    lead: int
    trail: int = 0
    category: int | None = None
    color: int | None = None
    payload: Payload | None = None
    trace: Trace | None = None


@dataclass
class Program:
    ops: list[Op] = field(default_factory=list)
    ranges: list[Range] = field(default_factory=list)
    events: int = 0
    graphs: dict[int, list[int]] = field(default_factory=dict)
    """The kernel nodes of each graph launched here, as indices into ``ops``."""
    nccl_calls: list[Payload] = field(default_factory=list)
    nccl_groups: int = 0
    messages: list[Message] = field(default_factory=list)

    def rows(self, graph_level: bool) -> int:
        """Number of event rows that one run of the program leaves in a report."""
        no_row = (Kind.HOST, Kind.MEET)
        api = sum(bool(op.api) for op in self.ops)
        gpu = sum(op.kind not in no_row and not (graph_level and op.graph >= 0) for op in self.ops)
        return api + gpu + len(self.ranges) + (len(self.graphs) if graph_level else 0)


class Builder:
    """Writes a :class:`Program`; ``advanced``: with the ranges of the advanced NCCL trace, not NCCL's own."""

    def __init__(self, advanced: bool = False) -> None:
        self.program = Program()
        self.thread = Thread.MAIN
        self.advanced = advanced
        self._opening: list[Range] = []  # ranges opened since the last operation
        self._closed = 0  # ranges closed since the last operation
        self._graph = -1

    def _add(self, op: Op) -> int:
        if self._graph < 0:
            op.edges = self._closed + len(self._opening) + 1
            for above, opened in enumerate(self._opening):
                opened.lead = len(self._opening) - above
            self._opening, self._closed = [], 0
        self.program.ops.append(op)
        return len(self.program.ops) - 1

    @contextmanager
    def on(self, thread: Thread) -> Iterator[None]:
        """Operations and ranges of another thread, while this one waits."""
        before, self.thread = self.thread, thread
        yield
        self.thread = before

    @contextmanager
    def range(
        self,
        text: str,
        style: Style = Style.INLINE,
        domain: Domain = Domain.DEFAULT,
        *,
        category: int | None = None,
        color: int | None = None,
        payload: Payload | None = None,
        trace: Trace | None = None,
    ) -> Iterator[None]:
        """A push/pop range around the operations written inside (at least one)."""
        first = len(self.program.ops)
        opened = Range(self.thread, text, style, domain, first, -1, 0, 0, category, color, payload, trace)
        self._opening.append(opened)
        self.program.ranges.append(opened)
        yield
        opened.last = len(self.program.ops) - 1
        if opened.last < opened.first:
            raise ValueError(f"NVTX range {text!r} contains nothing")
        self._closed += 1
        opened.trail = self._closed

    @contextmanager
    def graph(self, number: int) -> Iterator[None]:
        """Launch of CUDA graph ``number``; the kernels written inside are its nodes."""
        self._add(Op(Kind.HOST, self.thread, names.GRAPH_LAUNCH, 9_500, launches=number))
        first = len(self.program.ops)
        self._graph = number
        yield
        self._graph = -1
        self.program.graphs[number] = list(range(first, len(self.program.ops)))

    def host(self, ns: float) -> None:
        """Host work without an API row."""
        self._add(Op(Kind.HOST, self.thread, "", ns, 0))

    def meet(self, group: Group, ns: float) -> None:
        """Host work that ends on all ranks of a communicator together, ``ns`` after the last has begun it."""
        self._add(Op(Kind.MEET, self.thread, "", ns, payload=Payload("Init", group)))

    def call(self, api: str, ns: float) -> int:
        return self._add(Op(Kind.HOST, self.thread, api, ns))

    def mpi(self, call: MpiCall, ns: float, cost_ns: float = 0.0) -> int:
        """An MPI call that takes ``ns``, and ``cost_ns`` from the moment those it waits for are there."""
        return self._add(Op(Kind.MPI, self.thread, "", ns, work_ns=cost_ns, bytes=call.sent or 0, mpi=call))

    def kernel(self, key: str, times: float = 1.0) -> None:
        shape = KERNELS[key]
        if self._graph >= 0:
            node = Op(Kind.KERNEL, self.thread, "", 0, 0, 0, kernel=key, graph=self._graph)
        else:
            api_ns = 5_600 if shape.api == names.LAUNCH_RUNTIME else 4_400
            node = Op(Kind.KERNEL, self.thread, shape.api, api_ns, 2_600, kernel=key)
        node.work_ns = shape.mean_ns * times
        self._add(node)

    def aten(self, *stack: str, kernel: str = "", times: float = 1.0) -> None:
        """PyTorch operators, one inside the other, and the kernel the innermost launches (if any)."""
        if not stack:
            self.kernel(kernel, times) if kernel else self.host(700)
        elif self._graph >= 0:
            self.kernel(kernel, times)  # a replayed graph runs no operators
        else:
            with self.range(stack[0], Style.OP_ID):
                self.aten(*stack[1:], kernel=kernel, times=times)

    def copy(self, kind: Copy, size: int, stream: Stream = Stream.COMPUTE) -> None:
        bytes_per_ns = {1: 45, 2: 45, 8: 2_200, 10: 350}[kind.copy_kind]
        api = names.COPY_PEER if kind is P2P else names.COPY_ASYNC
        work_ns = 1_300 + size / bytes_per_ns
        self._add(Op(Kind.COPY, self.thread, api, 7_200, stream=stream, work_ns=work_ns, bytes=size, copy=kind))

    def memset(self, size: int) -> None:
        self._add(Op(Kind.SET, self.thread, names.SET_ASYNC, 6_100, work_ns=1_100 + size / 2_500, bytes=size))

    def record(self, stream: Stream) -> int:
        event = self.program.events
        self.program.events += 1
        self._add(Op(Kind.RECORD, self.thread, names.EVENT_RECORD, 2_400, stream=stream, event=event))
        return event

    def wait(self, stream: Stream, event: int) -> None:
        self._add(Op(Kind.WAIT, self.thread, names.STREAM_WAIT, 1_900, stream=stream, event=event))

    def sync(self, stream: Stream) -> None:
        self._add(Op(Kind.SYNC_STREAM, self.thread, names.STREAM_SYNC, 4_900, stream=stream))

    def sync_event(self, event: int) -> None:
        self._add(Op(Kind.SYNC_EVENT, self.thread, names.EVENT_SYNC, 3_900, event=event))

    def sync_device(self) -> None:
        self._add(Op(Kind.SYNC_DEVICE, self.thread, names.DEVICE_SYNC, 5_200))

    def collective(self, payload: Payload, kernel: str, times: float = 1.0) -> int:
        """An NCCL call on its communicator's stream, after what the compute stream has to do so far.

        Returns the event that tells its end. ``SendRecv`` is a group of ncclSend and ncclRecv: its kernel is launched
        by ncclGroupEnd, which has no payload.
        """
        if payload.function != "SendRecv":
            return self._launch([payload], payload, kernel, times)
        send = Payload("Send", payload.group, payload.bytes, payload.peer)
        return self._launch([send, Payload("Recv", payload.group, payload.bytes, -payload.peer)], payload, kernel, times)

    def collective_group(self, payloads: list[Payload], kernel: str, times: float = 1.0) -> int:
        """Several collectives of one communicator in a group, done by one kernel one after the other."""
        whole = Payload("Group", payloads[0].group, sum(payload.bytes for payload in payloads))
        return self._launch(payloads, whole, kernel, times)

    def _launch(self, calls: list[Payload], whole: Payload, kernel: str, times: float) -> int:
        """Calls in a group (an explicit one if it is more than one call), and the kernel that does them."""
        stream = {Group.SHARD: Stream.NCCL_SHARD, Group.REPLICA: Stream.NCCL_REPLICA, Group.WORLD: Stream.NCCL_WORLD}
        where = stream[whole.group]
        shape = KERNELS[kernel]
        launch = Op(Kind.COLLECTIVE, self.thread, shape.api, 7_800, 3_100, stream=where, kernel=kernel, payload=whole)
        launch.work_ns, launch.bytes = shape.mean_ns * times, whole.bytes
        first = len(self.program.nccl_calls)
        launch.calls = tuple(range(first, first + len(calls)))
        self.program.nccl_calls += calls
        self.program.nccl_groups += 1

        self.call(names.EVENT_CREATE, 1_700)
        self.wait(where, self.record(Stream.COMPUTE))
        with self.range(f"nccl:{_torch_name(whole.function)}"):
            if self.advanced:
                self._advanced_ranges(calls, launch)
            else:
                self._own_ranges(calls, launch)
        return self.record(where)

    def _own_ranges(self, calls: list[Payload], launch: Op) -> None:
        """The ranges NCCL itself makes."""

        def nccl(function: str, said: Payload | None = None) -> AbstractContextManager[None]:
            return self.range(f"nccl{function}", Style.REGISTERED, Domain.NCCL, payload=said)

        if len(calls) == 1:
            with nccl(calls[0].function, calls[0]):
                self._add(launch)
            return
        with nccl("GroupStart"):
            self.host(400)
        for call in calls:
            with nccl(call.function, call):
                self.host(900)
        with nccl("GroupEnd"):
            self._add(launch)

    def _advanced_ranges(self, calls: list[Payload], launch: Op) -> None:
        """The ranges of nsys's advanced NCCL trace; a single call is a group too, an implicit one."""
        group = self.program.nccl_groups - 1

        def traced(text: str, stage: Stage, which: tuple[int, ...]) -> AbstractContextManager[None]:
            return self.range(text, Style.REGISTERED, Domain.NCCL, trace=Trace(stage, group, which))

        with traced("API Group", Stage.GROUP, launch.calls):
            for number, call in zip(launch.calls, calls, strict=True):
                with traced(call.function, Stage.API, (number,)):
                    self.host(600)
            with traced("GroupLaunch", Stage.LAUNCH, launch.calls):
                with traced("GroupRuntime", Stage.RUNTIME, launch.calls):
                    self.host(1_100)
                with traced("KernelLaunch", Stage.KERNEL, launch.calls):
                    self._add(launch)


def _torch_name(function: str) -> str:
    return {
        "AllGather": "_all_gather_base",
        "ReduceScatter": "_reduce_scatter_base",
        "AllReduce": "all_reduce",
        "Broadcast": "broadcast",
        "Reduce": "reduce",
        "SendRecv": "coalesced",
        "Group": "allreduce_coalesced",
    }[function]
