"""Programs: the fixed sequences of host operations that a rank performs in the phases of the job,
with their NVTX ranges; and the modelled job's three.

The job is the training of a transformer language model with sharded data parallelism. Parameters
are gathered and gradients scattered within a host, gradients are summed across hosts, and the loss
and the gradient norm over all ranks.

All ranks run the same program; :mod:`timeline` gives its operations times. Control passes from
thread to thread (the main thread waits while autograd's works), so that one sequence is enough.
Durations and gaps are typical ones in ns. API functions are spelled as the RUNTIME table spells
them: runtime calls with a version suffix, driver calls without.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from typing import Any

from .cluster import Cluster, Group, Stream, Team, Thread
from .data import D2D, D2H, DATA, H2D_PAGEABLE, H2D_PINNED, KERNELS, LAUNCHES, P2P
from .mpi import Message, MpiCall, MpiJob
from .options import Options

FP32 = "gemm_fp32"  # the kernel that computes in single precision, without tensor cores
PAD_NS = 130  # between the edges of nested NVTX ranges
GRAPH_BEGIN, GRAPH_END = "cudaStreamBeginCapture_v10010", "cudaStreamEndCapture_v10000"
GRAPH_INSTANTIATE, GRAPH_LAUNCH = "cudaGraphInstantiateWithFlags_v11040", "cudaGraphLaunch_v10000"


class Kind(IntEnum):
    """The sort of an operation."""

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
    """The form in which a range's text is exported."""

    INLINE = 0  # in ``text``
    REGISTERED = 1  # in StringIds, through ``textId``
    OP_ID = 2  # inline, with PyTorch's ", op_id = n" behind it: another text for every instance
    NUMBERED = 3  # inline, with the step's number behind it


BYTES_PER_NS = {1: 45, 2: 45, 8: 2_200, 10: 350}  # by copyKind


@dataclass(frozen=True)
class Payload:
    """The payload of an NCCL call."""

    function: str  # such as "AllReduce"
    group: Group  # of its communicator
    bytes: int = 0
    peer: int = 0  # distance to the peer, in ranks of the communicator
    reduction: int = 0  # ncclRedOp_t
    four_byte: bool = False  # elements are of float32, not bfloat16
    root: int = -1  # a rank in the communicator, modulo its size; -1: the function has none

    def passes_on(self, rank: int, size: int) -> bool:
        """Return whether a rank of a communicator of ``size`` sends to the next in the ring: a broadcast ends
        before its root, a reduction at it.
        """
        last = {"Broadcast": self.root - 1, "Reduce": self.root}.get(self.function)
        return last is None or rank != last % size

    def count_bus_bytes(self, size: int) -> float:
        """Return the bytes per rank that cross the bus in a call among ``size`` ranks."""
        factor = {"AllReduce": 2 * (size - 1) / size}
        factor |= dict.fromkeys(("AllGather", "ReduceScatter"), size - 1)
        return self.bytes * factor.get(self.function, 1)


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
    """Operations, and their subjects."""

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

    def list_mpi(self) -> list[tuple[int, MpiCall]]:
        """List the calls of MPI, each with the index of its operation, in program order."""
        return [(index, op.mpi) for index, op in enumerate(self.ops) if op.mpi]

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
        """Open a push/pop range around the block's operations. columns: of :class:`Range`."""
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
        """Delay the host by ``cause`` before the next operation."""
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
        """Call MPI for ``ns``, and for ``cost_ns`` after the awaited ranks have arrived."""
        return self._add(Kind.MPI, "", ns, work_ns=cost_ns, bytes=call.sent or 0, mpi=call)

    def message(
        self,
        send: int,
        receive: int,
        team: Team,
        tag: int,
        size: int,
        to: list[int],
        buffer: int = 0,
    ) -> None:
        """Let operations ``send`` and ``receive`` be the ends of a message (see :class:`Message`)."""
        sent = Message(send, receive, team, tag, size, buffer or size, tuple(to))
        self.program.messages.append(sent)

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
        """Write an NCCL call on its communicator's stream, after the current work of the compute stream;
        return the event for its end.

        ``SendRecv`` is a group of ncclSend and ncclRecv: its kernel is launched by ncclGroupEnd, which has no
        payload.
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


SUM, AVG = 0, 4  # ncclRedOp_t
CATEGORIES = {1: "phase", 2: "data", 3: "communication"}  # NVTX categories of the job's own domain
PHASE, LOADING = (1, 0xFF76B900), (2, 0xFF2196F3)  # category and color of ranges
#: Whose buffers the others of its communicator get, and who gets the metric.
BUFFERS_ROOT, METRIC_ROOT = 1, 2
LAYER_BYTES = 25_165_824  # parameters of one layer (bf16)


class Job:
    """The programs for given options on a given cluster."""

    def __init__(self, options: Options, cluster: Cluster) -> None:
        self.options, self.layers = options, options.layers
        self.graphs, self.startup = options.graphs != "none", options.startup
        sizes = cluster.sizes()
        self.several = sizes[Group.WORLD] > 1
        self.shard = Group.SHARD if sizes[Group.SHARD] > 1 else Group.WORLD
        self.shard_size, self.replicas = sizes[self.shard], sizes[Group.REPLICA]
        self.groups = [group for group in Group if sizes[group] > 1]
        self.grid = cluster.grid

    def initial(self) -> Program:
        """Build the start of the process: CUDA, NCCL, the model, capture of graphs."""
        b = Builder(self.options.advanced, self.options.operators)
        with b.phase("init", *PHASE):
            if self.options.mpi:
                MpiJob(b, self.grid).start()
            b.call("cuModuleGetLoadingMode", 3_100)
            b.call("cudaGetDeviceProperties_v12000", 9_000)
            for _ in range(3):
                b.call("cudaStreamCreateWithPriority_v5050", 31_000)
            with b.range("init_process_group"):
                b.host(50_000)
                for group in self.groups:
                    with self._nccl(b, "ncclCommInitRankConfig", Payload("Init", group)):
                        b.meet(group, 38_000_000 * self.startup)
                        b.call("cudaMalloc_v3020", 420_000)
            with b.range("build_model"):
                for layer in range(min(self.layers, 8)):
                    b.call("cudaMalloc_v3020", 310_000)
                    b.copy(H2D_PAGEABLE, LAYER_BYTES // self.shard_size + 4_096 * layer)
                    b.kernel("fill")
                b.call("cudaHostAlloc_v3020", 850_000)
            if self.graphs:
                with b.range("capture_graphs"):
                    self._capture(b)
            b.sync_device()
        return b.program

    def _capture(self, b: Builder) -> None:
        """Capture the layers' forward parts, then their backward parts."""
        step = self.step()
        for number, nodes in sorted(step.graphs.items()):
            b.call(GRAPH_BEGIN, 8_000)
            for node in nodes:
                b.call(KERNELS[step.ops[node].kernel].api, 4_100)
            b.call(GRAPH_END, 400 * len(nodes) + 9_000)
            b.call(GRAPH_INSTANTIATE, 2_500 * len(nodes) + 60_000, launches=number)

    def _nccl(self, b: Builder, function: str, payload: Payload) -> AbstractContextManager[None]:
        """Open NCCL's range around the creation and destruction of communicators; none in the advanced
        trace."""
        return nullcontext() if b.advanced else b.nccl(function, payload=payload)

    def step(self) -> Program:
        """Build one training step."""
        b = Builder(self.options.advanced, self.options.operators)
        with b.range("iteration", Style.NUMBERED):
            self._load(b)
            if self.options.mpi:
                MpiJob(b, self.grid).exchange()
            with b.phase("forward", *PHASE):
                if self.options.nccl_rooted and self.several:
                    buffers = Payload("Broadcast", self.shard, 3_145_728, root=BUFFERS_ROOT)
                    b.wait(Stream.COMPUTE, b.collective(buffers, "nccl_broadcast"))
                self._forward(b)
            with b.phase("backward", *PHASE):
                self._backward(b)
            with b.phase("optimizer", *PHASE):
                self._optimize(b)
            if self.options.mpi:
                MpiJob(b, self.grid).reduce()
        return b.program

    def final(self) -> Program:
        """Build the end of the process."""
        b = Builder(self.options.advanced, self.options.operators)
        with b.phase("shutdown", *PHASE):
            b.sync_device()
            for group in self.groups:
                with self._nccl(b, "ncclCommFinalize", Payload("Finalize", group)):
                    b.host(120_000)
            for _ in range(min(self.layers, 8)):
                b.call("cudaFree_v3020", 95_000)
            if self.options.mpi:
                MpiJob(b, self.grid).stop()
        return b.program

    def _load(self, b: Builder) -> None:
        with b.phase("load_batch", *LOADING):
            b.copy(H2D_PINNED, 262_144, Stream.COPY)
            b.mark("late")
            b.copy(H2D_PINNED, 524_288, Stream.COPY)
            if self.options.visible == "all" and self.options.gpus_per_host > 1:
                b.copy(P2P, 8_388_608, Stream.COPY)
            b.wait(Stream.COMPUTE, b.record(Stream.COPY))
        with b.range("zero_grad"):
            b.memset(LAYER_BYTES)
            b.memset(4)

    def _forward(self, b: Builder) -> None:
        b.aten("aten::embedding", "aten::index_select", kernel="embedding")
        b.aten("aten::add", kernel="add")
        ready = self._gather(b)
        for layer in range(self.layers):
            ready = self._next_parameters(b, ready, layer < self.layers - 1)
            with b.range(f"layer_{layer:02d}"):
                self._run_layer(b, layer, DATA["forward"])
        b.aten("aten::layer_norm", "aten::native_layer_norm", kernel="layer_norm")
        b.aten("aten::linear", "aten::matmul", "aten::mm", kernel="gemm_head")
        with b.range("loss"):
            b.aten("aten::to", "aten::_to_copy", "aten::copy_", kernel="cast")
            b.aten("aten::log_softmax", "aten::_log_softmax", kernel="softmax")
            b.aten("aten::nll_loss_nd", "aten::nll_loss", "aten::nll_loss_forward", kernel="loss")

    def _run_layer(self, b: Builder, graph: int, operators: list[list[str]]) -> None:
        """Run the operators of a layer; their kernels are nodes of a graph if the job uses graphs."""
        with b.graph(graph) if self.graphs else nullcontext():
            for *stack, kernel in operators:
                b.aten(*stack, kernel=kernel)

    def _gather(self, b: Builder) -> int:
        """Ask for a layer's parameters; return the event of their arrival (-1: a single rank)."""
        gathered = Payload("AllGather", self.shard, LAYER_BYTES // self.shard_size)
        return b.collective(gathered, "nccl_all_gather") if self.several else -1

    def _next_parameters(self, b: Builder, ready: int, more: bool) -> int:
        """Wait for this layer's parameters; the next layer's are transferred while this one computes."""
        following = self._gather(b) if more else -1
        if ready >= 0:
            b.wait(Stream.COMPUTE, ready)
        return following

    def _backward(self, b: Builder) -> None:
        with b.on(Thread.AUTOGRAD):
            b.aten(*_stack_autograd("NllLoss", "nll_loss_backward"), kernel="mul")
            softmax = _stack_autograd("LogSoftmax", "_log_softmax_backward_data")
            b.aten(*softmax, kernel="softmax_bwd")
            b.aten(*_stack_autograd("Mm", "mm"), kernel="gemm_wgrad", times=1.7)
            b.mark("hiccup")
            pending = []
            ready = self._gather(b)
            for layer in reversed(range(self.layers)):
                ready = self._next_parameters(b, ready, layer > 0)
                with b.range(f"layer_{layer:02d}.backward"):
                    self._run_layer(b, self.layers + layer, DATA["backward"])
                pending += self._reduce(b)
            embedding = _stack_autograd("Embedding", "embedding_dense_backward")
            b.aten(*embedding, kernel="embedding_bwd")
            b.copy(D2D, LAYER_BYTES // 4)
        for event in pending:
            b.wait(Stream.COMPUTE, event)

    def _reduce(self, b: Builder) -> list[int]:
        """Sum a layer's gradients, overlapping with the next layer; return the events to wait for."""
        if not self.several:
            return []
        size = LAYER_BYTES // self.shard_size
        within = Payload("ReduceScatter", self.shard, size, reduction=AVG)
        done = b.collective(within, "nccl_reduce_scatter")
        if self.replicas > 1:
            b.wait(Stream.NCCL_REPLICA, done)
            across = Payload("AllReduce", Group.REPLICA, size, reduction=AVG)
            done = b.collective(across, "nccl_all_reduce")
        return [done]

    def _optimize(self, b: Builder) -> None:
        after, world = partial(b.wait, Stream.COMPUTE), Group.WORLD
        if self.several:
            b.aten("pack_gradients", kernel="pack")
            after(b.collective(Payload("SendRecv", world, 4_194_304, peer=1), "nccl_send_recv"))
            if self.options.nccl_groups:
                sizes = 6_291_456, 2_097_152
                parts = [Payload("AllReduce", world, size, reduction=SUM) for size in sizes]
                after(b.collective_group(parts, "nccl_all_reduce", times=0.6))
        with b.range("clip_grad_norm_"):
            b.aten("aten::_foreach_norm", kernel="norm")
            b.aten("aten::mean", kernel="mean")
            if self.several:
                norm = Payload("AllReduce", world, 4, reduction=SUM, four_byte=True)
                after(b.collective(norm, "nccl_all_reduce_f32"))
            b.aten("aten::_foreach_mul_", kernel="mul")
        if self.options.nccl_rooted and self.several:
            metric = Payload("Reduce", world, 8_192, 0, SUM, True, METRIC_ROOT)
            after(b.collective(metric, "nccl_reduce"))
        with b.range("Optimizer.step#AdamW.step"):
            for part in range(1 + self.layers // 4):
                b.aten("aten::_fused_adamw_", kernel="adam", times=1.0 + 0.1 * part)
        b.aten("aten::mm", kernel=FP32)
        b.call("cudaStreamIsCapturing_v10000", 550)
        with b.range("aten::item", Style.OP_ID):
            b.copy(D2H, 4)
            b.sync(Stream.COMPUTE)
        b.sync_event(b.record(Stream.COMPUTE))
        b.call("cudaEventDestroy_v3020", 900)


def _stack_autograd(name: str, operator: str) -> tuple[str, str, str]:
    """Return the ranges of an operator of autograd, one inside the other."""
    function = f"{name}Backward0"
    return f"autograd::engine::evaluate_function: {function}", function, f"aten::{operator}"
