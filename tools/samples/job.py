"""The modelled job: training of a transformer language model with sharded data parallelism, as
three programs.

Parameters are gathered and gradients scattered within a host, gradients are summed across hosts,
and the loss and the gradient norm over all ranks.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from .cluster import Cluster, Group, Stream, Thread
from .data import DATA, KERNELS
from .mpi import build_grid
from .mpi_job import MpiJob
from .options import Options
from .program import (
    D2D,
    D2H,
    GRAPH_BEGIN,
    GRAPH_END,
    GRAPH_INSTANTIATE,
    H2D_PAGEABLE,
    H2D_PINNED,
    P2P,
    Builder,
    Payload,
    Program,
    Style,
)

SUM, AVG = 0, 4  # ncclRedOp_t
CATEGORIES = {1: "phase", 2: "data", 3: "communication"}  # NVTX categories of the job's own domain
PHASE, LOADING = (1, 0xFF76B900), (2, 0xFF2196F3)  # category and color
#: Whose buffers the others of its communicator get, and who gets the metric.
BUFFERS_ROOT, METRIC_ROOT = 1, 2
LAYER_BYTES = 25_165_824  # parameters of one layer (bf16)


class Job:
    """The programs for given options on a given cluster."""

    def __init__(self, options: Options, cluster: Cluster) -> None:
        self.layers, self.graphs = options.layers, options.graphs != "none"
        self.operators, self.startup = options.operators, options.startup
        sizes = cluster.sizes()
        self.world = sizes[Group.WORLD]
        self.shard = Group.SHARD if sizes[Group.SHARD] > 1 else Group.WORLD
        self.shard_size, self.replicas = sizes[self.shard], sizes[Group.REPLICA]
        self.groups = [group for group in Group if sizes[group] > 1]
        self.peers = options.visible == "all" and options.gpus_per_host > 1
        self.mpi = MpiJob(build_grid(options.ranks, options.lonely_ranks)) if options.mpi else None
        self.advanced, self.grouped = options.advanced, options.nccl_groups
        self.rooted = options.nccl_rooted

    def initial(self) -> Program:
        """Start of the process: CUDA, NCCL, the model, capture of graphs."""
        b = Builder(self.advanced, self.operators)
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
        """NCCL's range around what makes and ends communicators; the advanced trace has none."""
        return nullcontext() if self.advanced else b.nccl(function, payload=payload)

    def step(self) -> Program:
        """One training step."""
        b = Builder(self.advanced, self.operators)
        with b.range("iteration", Style.NUMBERED):
            self._load(b)
            if self.mpi:
                self.mpi.exchange(b)
            with b.phase("forward", *PHASE):
                if self.rooted and self.world > 1:
                    buffers = Payload("Broadcast", self.shard, 3_145_728, root=BUFFERS_ROOT)
                    b.wait(Stream.COMPUTE, b.collective(buffers, "nccl_broadcast"))
                self._forward(b)
            with b.phase("backward", *PHASE):
                self._backward(b)
            with b.phase("optimizer", *PHASE):
                self._optimizer(b)
            if self.mpi:
                self.mpi.reduce(b)
        return b.program

    def final(self) -> Program:
        """End of the process."""
        b = Builder(self.advanced, self.operators)
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
            if self.peers:
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
                self._layer(b, layer, DATA["forward"])
        b.aten("aten::layer_norm", "aten::native_layer_norm", kernel="layer_norm")
        b.aten("aten::linear", "aten::matmul", "aten::mm", kernel="gemm_head")
        with b.range("loss"):
            b.aten("aten::to", "aten::_to_copy", "aten::copy_", kernel="cast")
            b.aten("aten::log_softmax", "aten::_log_softmax", kernel="softmax")
            b.aten("aten::nll_loss_nd", "aten::nll_loss", "aten::nll_loss_forward", kernel="loss")

    def _layer(self, b: Builder, graph: int, operators: list[list[str]]) -> None:
        """The operators of a layer; their kernels are nodes of a graph if the job uses graphs."""
        with b.graph(graph) if self.graphs else nullcontext():
            for *stack, kernel in operators:
                b.aten(*stack, kernel=kernel)

    def _gather(self, b: Builder) -> int:
        """Ask for a layer's parameters from all shards; the event of their arrival (-1 with a
        single rank).
        """
        if self.world == 1:
            return -1
        gathered = Payload("AllGather", self.shard, LAYER_BYTES // self.shard_size)
        return b.collective(gathered, "nccl_all_gather")

    def _next_parameters(self, b: Builder, ready: int, more: bool) -> int:
        """Wait for the parameters of this layer, having asked for the next one's: those travel
        while this one computes.
        """
        following = self._gather(b) if more else -1
        if ready >= 0:
            b.wait(Stream.COMPUTE, ready)
        return following

    def _backward(self, b: Builder) -> None:
        with b.on(Thread.AUTOGRAD):
            b.aten(*_stack("NllLoss", "nll_loss_backward"), kernel="mul")
            b.aten(*_stack("LogSoftmax", "_log_softmax_backward_data"), kernel="softmax_bwd")
            b.aten(*_stack("Mm", "mm"), kernel="gemm_wgrad", times=1.7)
            b.mark("hiccup")
            pending = []
            ready = self._gather(b)
            for layer in reversed(range(self.layers)):
                ready = self._next_parameters(b, ready, layer > 0)
                with b.range(f"layer_{layer:02d}.backward"):
                    self._layer(b, self.layers + layer, DATA["backward"])
                pending += self._reduce(b)
            b.aten(*_stack("Embedding", "embedding_dense_backward"), kernel="embedding_bwd")
            b.copy(D2D, LAYER_BYTES // 4)
        for event in pending:
            b.wait(Stream.COMPUTE, event)

    def _reduce(self, b: Builder) -> list[int]:
        """Sum of a layer's gradients, overlapping with the next layer; the events to wait for."""
        if self.world == 1:
            return []
        size = LAYER_BYTES // self.shard_size
        within = Payload("ReduceScatter", self.shard, size, reduction=AVG)
        done = b.collective(within, "nccl_reduce_scatter")
        if self.replicas > 1:
            b.wait(Stream.NCCL_REPLICA, done)
            across = Payload("AllReduce", Group.REPLICA, size, reduction=AVG)
            done = b.collective(across, "nccl_all_reduce")
        return [done]

    def _optimizer(self, b: Builder) -> None:
        def after(event: int) -> None:
            b.wait(Stream.COMPUTE, event)

        if self.world > 1:
            b.aten("pack_gradients", kernel="pack")
            ring = Payload("SendRecv", Group.WORLD, 4_194_304, peer=1)
            after(b.collective(ring, "nccl_send_recv"))
            if self.grouped:
                parts = [
                    Payload("AllReduce", Group.WORLD, size, reduction=SUM)
                    for size in (6_291_456, 2_097_152)
                ]
                after(b.collective_group(parts, "nccl_all_reduce", times=0.6))
        with b.range("clip_grad_norm_"):
            b.aten("aten::_foreach_norm", kernel="norm")
            b.aten("aten::mean", kernel="mean")
            if self.world > 1:
                norm = Payload("AllReduce", Group.WORLD, 4, reduction=SUM, four_byte=True)
                after(b.collective(norm, "nccl_all_reduce_f32"))
            b.aten("aten::_foreach_mul_", kernel="mul")
        if self.rooted and self.world > 1:
            metric = Payload("Reduce", Group.WORLD, 8_192, 0, SUM, True, METRIC_ROOT)
            after(b.collective(metric, "nccl_reduce"))
        with b.range("Optimizer.step#AdamW.step"):
            for part in range(1 + self.layers // 4):
                b.aten("aten::_fused_adamw_", kernel="adam", times=1.0 + 0.1 * part)
        b.aten("aten::mm", kernel="gemm_fp32")
        b.call("cudaStreamIsCapturing_v10000", 550)
        with b.range("aten::item", Style.OP_ID):
            b.copy(D2H, 4)
            b.sync(Stream.COMPUTE)
        b.sync_event(b.record(Stream.COMPUTE))
        b.call("cudaEventDestroy_v3020", 900)


def _stack(name: str, operator: str) -> tuple[str, str, str]:
    """The ranges of an operator of autograd, one inside the other."""
    function = f"{name}Backward0"
    return f"autograd::engine::evaluate_function: {function}", function, f"aten::{operator}"
