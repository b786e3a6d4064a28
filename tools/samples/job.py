"""The modelled job: training of a transformer language model with sharded data parallelism, as
three programs.

Parameters are gathered and gradients scattered within a host, gradients are summed across hosts,
and the loss and the gradient norm over all ranks. With MPI it starts up, exchanges halos and
reduces in every step, and ends; small messages are sent at once ("eager"), large ones when the
receiver has come (see :mod:`timeline`).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial

from .cluster import Cluster, Grid, Group, Stream, Team, Thread
from .data import DATA, KERNELS
from .options import Options
from .program import (
    D2D,
    D2H,
    FP32,
    GRAPH_BEGIN,
    GRAPH_END,
    GRAPH_INSTANTIATE,
    H2D_PAGEABLE,
    H2D_PINNED,
    LEAKED,
    P2P,
    Builder,
    Meeting,
    Message,
    MpiCall,
    Payload,
    Program,
    Style,
    Table,
)

SUM, AVG = 0, 4  # ncclRedOp_t
CATEGORIES = {1: "phase", 2: "data", 3: "communication"}  # NVTX categories of the job's own domain
PHASE, LOADING, MPI_PHASE = (1, 0xFF76B900), (2, 0xFF2196F3), (3, 0xFFFF9800)  # category and color
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
        self.mpi = MpiJob(cluster.grid) if options.mpi else None

    def initial(self) -> Program:
        """Build the start of the process: CUDA, NCCL, the model, capture of graphs."""
        b = Builder(self.options.advanced, self.options.operators)
        with b.phase("init", *PHASE):
            if self.mpi:
                self.mpi.start(b)
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
        """Open NCCL's range around what makes and ends communicators; none in the advanced trace."""
        return nullcontext() if b.advanced else b.nccl(function, payload=payload)

    def step(self) -> Program:
        """Build one training step."""
        b = Builder(self.options.advanced, self.options.operators)
        with b.range("iteration", Style.NUMBERED):
            self._load(b)
            if self.mpi:
                self.mpi.exchange(b)
            with b.phase("forward", *PHASE):
                if self.options.nccl_rooted and self.several:
                    buffers = Payload("Broadcast", self.shard, 3_145_728, root=BUFFERS_ROOT)
                    b.wait(Stream.COMPUTE, b.collective(buffers, "nccl_broadcast"))
                self._forward(b)
            with b.phase("backward", *PHASE):
                self._backward(b)
            with b.phase("optimizer", *PHASE):
                self._optimize(b)
            if self.mpi:
                self.mpi.reduce(b)
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
            if self.mpi:
                self.mpi.stop(b)
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
        """Wait for this layer's parameters; the next one's travel while this one computes."""
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


FACE, EDGE = 65_536, 2_048  # bytes of a halo to the neighbours left and right, and up and down
UNRECEIVED_TAG = 999  # the tag of messages that are never received


class MpiJob:
    """Writes the MPI parts of the job's programs."""

    def __init__(self, grid: Grid) -> None:
        self.grid, self.everyone, self.all = grid, range(grid.size), grid.everyone

    def start(self, b: Builder) -> None:
        """Write from MPI_Init_thread to the communicators, a window and a file."""
        odd = [rank for rank in self.everyone if rank % 2]
        with b.phase("mpi_startup", *MPI_PHASE):
            self._other(b, "MPI_Initialized", 700)
            self._other(b, "MPI_Init_thread", 24_000_000, 3_000_000, creates=Team.WORLD)
            self._other(b, "MPI_Initialized", 600)
            if self.grid.lonely:
                self._other(b, "MPI_Comm_split", 170_000, 60_000, creates=Team.PART)
            if odd:
                call = MpiCall("MPI_Comm_dup", Table.OTHER, Team.SELF, creates=Team.OWN)
                b.mpi(replace(call, by_rank=self._only("MPI_Comm_dup", odd)), 45_000)
            self._other(b, "MPI_Comm_dup", 90_000, 40_000, creates=Team.TEMPORARY)
            self._collective(b, "MPI_Barrier", Team.TEMPORARY)
            self._collective(b, "MPI_Bcast", Team.TEMPORARY, 128, meeting=Meeting.FROM_ROOT, root=0)
            self._other(b, "MPI_Comm_split", 160_000, 60_000, creates=Team.ROW)
            self._other(b, "MPI_Comm_free", 21_000)
            self._other(b, "MPI_Comm_split", 150_000, 60_000, creates=Team.COLUMN)
            self._other(b, "MPI_Win_create", 210_000, 80_000)
            self._other(b, "MPI_File_open", 900_000, 500_000)
            self._collective(b, "MPI_Barrier", self.all)

    def exchange(self, b: Builder) -> None:
        """Write a step's messages: halos along the grid, a ring along the rows, pairs."""
        with b.phase("halo_exchange", *MPI_PHASE):
            b.kernel("pack")
            b.copy(D2H, 2 * (FACE + EDGE))
            b.sync_event(b.record(Stream.COMPUTE))
            self._exchange_halos(b)
            b.copy(H2D_PINNED, 2 * (FACE + EDGE))
        if self.grid.columns > 1:
            # Everybody sends to the next of its row and takes from the one before, into a buffer
            # larger than needed.
            call = b.mpi(MpiCall("MPI_Sendrecv", Table.P2P, Team.ROW), 1_900)
            self._message(b, call, call, Team.ROW, 21, 4_096, self._neighbors(Team.ROW, 1), 8_192)
        if self.grid.rows > 1:  # pairs of a column swap equally large pieces: one row says both
            to = [self.grid.find_partner(Team.COLUMN, rank) for rank in self.everyone]
            calls = self._only("MPI_Sendrecv", [rank for rank in self.everyone if to[rank] >= 0])
            call = b.mpi(MpiCall("MPI_Sendrecv", Table.P2P, Team.COLUMN, by_rank=calls), 2_100)
            self._message(b, call, call, Team.COLUMN, 31, 32_768, to)
        if self.grid.size > 1:
            self._send_in_pairs(b)
            self._send_unreceived(b)

    def reduce(self, b: Builder) -> None:
        """Write a step's collectives, one-sided communication and file access."""
        with b.phase("reductions", *MPI_PHASE):
            started = self._collective(b, "MPI_Iallreduce", self.all, 16, 16, request=0)
            self._collective(b, "MPI_Allreduce", self.all, 8, 8)
            self._collective(b, "MPI_Bcast", Team.ROW, 1_024, meeting=Meeting.FROM_ROOT, root=0)
            rooted = {"meeting": Meeting.TO_ROOT, "root": self.grid.rows - 1}
            self._collective(b, "MPI_Reduce", Team.COLUMN, 4_096, 4_096, **rooted)
            b.mpi(MpiCall("MPI_Wait", Table.START_WAIT, waits=(started,)), 800)
            self._collective(b, "MPI_Allgather", Team.ROW, 512, 512 * self.grid.columns)
            whole = 2_048 * self.grid.rows
            self._collective(b, "MPI_Alltoall", Team.COLUMN, whole, whole)
        with b.phase("one_sided", *MPI_PHASE):
            self._other(b, "MPI_Win_fence", 3_000, 4_000)
            self._other(b, "MPI_Put", 2_200)
            self._other(b, "MPI_Win_fence", 3_000, 4_000)
        self._other(b, "MPI_File_write_at_all", 60_000, 90_000)
        self._collective(b, "MPI_Barrier", self.all)

    def stop(self, b: Builder) -> None:
        """Write to MPI_Finalize."""
        with b.phase("mpi_shutdown", *MPI_PHASE):
            if self.grid.size > 1:
                self._send_unreceived(b)
            self._other(b, "MPI_File_close", 300_000, 100_000)
            self._other(b, "MPI_Win_free", 60_000, 30_000)
            self._other(b, "MPI_Finalize", 2_000_000, 1_000_000)

    def _exchange_halos(self, b: Builder) -> None:
        """Post receives first; ask for one in vain, wait for all together."""
        # Along, places, bytes, tag.
        ways = [(Team.ROW, 1, FACE, 101), (Team.ROW, -1, FACE, 102)] * (self.grid.columns > 1)
        ways += [(Team.COLUMN, 1, EDGE, 103), (Team.COLUMN, -1, EDGE, 104)] * (self.grid.rows > 1)
        numbers = range(len(ways))
        receive, send = (MpiCall(name, Table.P2P, self.all) for name in ("MPI_Irecv", "MPI_Isend"))
        receives = [b.mpi(replace(receive, request=one), 900) for one in numbers]
        sends = [b.mpi(replace(send, request=len(ways) + one), 1_400) for one in numbers]
        for (team, places, size, tag), send, receive in zip(ways, sends, receives, strict=True):
            self._message(b, send, receive, self.all, tag, size, self._neighbors(team, places))
        if ways:
            b.mpi(MpiCall("MPI_Test", Table.START_WAIT, waits=(receives[0],), blocks=False), 500)
            b.mpi(MpiCall("MPI_Waitall", Table.START_WAIT, waits=(*receives, *sends)), 1_500)

    def _send_in_pairs(self, b: Builder) -> None:
        """Call blocking: the even rank of a pair sends much, then the odd one answers with little."""
        partners = [self.grid.find_partner(self.all, rank) for rank in self.everyone]
        for tag, size, sender in ((41, 262_144, 0), (42, 512, 1)):
            to = [partner if rank % 2 == sender else -1 for rank, partner in enumerate(partners)]
            calls = tuple(
                "MPI_Send" if to[rank] >= 0 else "MPI_Recv" if partner >= 0 else ""
                for rank, partner in enumerate(partners)
            )
            call = b.mpi(MpiCall("MPI_Send", Table.P2P, self.all, by_rank=calls), 1_600)
            self._message(b, call, call, self.all, tag, size, to)

    def _send_unreceived(self, b: Builder) -> None:
        """Send from the first rank to the last (that is not lonely), which never receives it."""
        only = self._only("MPI_Isend", [0])
        send = b.mpi(MpiCall("MPI_Isend", Table.P2P, self.all, request=LEAKED, by_rank=only), 1_400)
        last = self.grid.size - self.grid.lonely - 1
        to = [-1 if rank else last for rank in self.everyone]
        self._message(b, send, -1, self.all, UNRECEIVED_TAG, 256, to)

    def _neighbors(self, team: Team, places: int) -> list[int]:
        return [self.grid.find_neighbor(rank, team, places) for rank in self.everyone]

    def _only(self, function: str, ranks: list[int]) -> tuple[str, ...]:
        return tuple(function if rank in ranks else "" for rank in self.everyone)

    def _message(
        self,
        b: Builder,
        send: int,
        receive: int,
        team: Team,
        tag: int,
        size: int,
        to: list[int],
        capacity: int = 0,
    ) -> None:
        message = Message(send, receive, team, tag, size, capacity or size, tuple(to))
        b.program.messages.append(message)

    def _collective(
        self,
        b: Builder,
        function: str,
        team: Team,
        sent: int | None = None,
        received: int | None = None,
        meeting: Meeting = Meeting.ALL,
        root: int = -1,
        request: int = -1,
    ) -> int:
        call = MpiCall(function, Table.COLLECTIVES, team, meeting, sent, received, root, request)
        cost = 2_500 + 1_800 * len(self.grid.members(team, 0)).bit_length() + (sent or 0) / 8
        return b.mpi(call, 1_700 if request < 0 else 1_100, cost)

    def _other(
        self,
        b: Builder,
        function: str,
        ns: float,
        cost_ns: float = 0.0,
        creates: Team | None = None,
    ) -> None:
        """Write a call that takes ``ns``; with ``cost_ns`` all wait for each other in it."""
        meeting = Meeting.ALL if cost_ns else Meeting.NONE
        b.mpi(MpiCall(function, Table.OTHER, self.all, meeting, creates=creates), ns, cost_ns)
