"""The modelled job: training of a transformer language model with sharded data parallelism, as three programs.

Parameters are gathered and gradients scattered within a host, gradients are summed across hosts, and the loss and the
gradient norm over all ranks.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from . import names
from .cluster import Cluster, Group, Stream, Thread
from .mpi.teams import build_grid
from .mpi.work import Work
from .options import Options
from .program import D2D, D2H, H2D_PAGEABLE, H2D_PINNED, P2P, Builder, Domain, Kind, Payload, Program, Style

SUM, AVG = 0, 4
"""Values of ncclRedOp_t."""

CATEGORIES = {1: "phase", 2: "data", 3: "communication"}
"""NVTX categories of the job's own domain."""

PHASE_COLOR, DATA_COLOR = 0xFF76B900, 0xFF2196F3
BUFFERS_ROOT, METRIC_ROOT = 1, 2
"""Whose buffers the others of its communicator get, and who gets the metric: ranks in the communicator, modulo its size."""

LAYER_BYTES = 25_165_824
"""Parameters of one layer, bytes (bf16)."""

LAYER_FORWARD = (
    "layer_norm",
    "gemm_qkv",
    "flash_fwd",
    "gemm_proj",
    "add",
    "triton_norm",
    "gemm_up",
    "gelu",
    "gemm_up",
    "add",
)


class Job:
    """The programs for given options on a given cluster."""

    def __init__(self, options: Options, cluster: Cluster) -> None:
        self.layers, self.graphs = options.layers, options.graphs != "none"
        sizes = cluster.sizes()
        self.world = sizes[Group.WORLD]
        self.shard = Group.SHARD if sizes[Group.SHARD] > 1 else Group.WORLD
        self.shard_size = sizes[self.shard]
        self.replicas = sizes[Group.REPLICA]
        self.groups = [group for group in Group if sizes[group] > 1]
        self.peers = options.visible == "all" and options.gpus_per_host > 1
        self.mpi = Work(build_grid(options.ranks, options.lonely_ranks)) if options.mpi else None
        self.advanced, self.grouped, self.rooted = options.nccl_trace == "advanced", options.nccl_groups, options.nccl_rooted

    def initial(self) -> Program:
        """Start of the process: CUDA, NCCL, the model, capture of graphs."""
        b = self._builder()
        with b.range("init", Style.REGISTERED, Domain.JOB, category=1, color=PHASE_COLOR):
            if self.mpi:
                self.mpi.start(b)
            b.call(names.MODULE_MODE, 3_100)
            b.call(names.PROPERTIES, 9_000)
            for _ in range(3):
                b.call(names.STREAM_CREATE, 31_000)
            with b.range("init_process_group"):
                b.host(50_000)
                for group in self.groups:
                    with self._nccl(b, "ncclCommInitRankConfig", Payload("Init", group)):
                        b.meet(group, 38_000_000)
                        b.call(names.MALLOC, 420_000)
            with b.range("build_model"):
                for layer in range(min(self.layers, 8)):
                    b.call(names.MALLOC, 310_000)
                    b.copy(H2D_PAGEABLE, LAYER_BYTES // self.shard_size + 4_096 * layer)
                    b.kernel("fill")
                b.call(names.HOST_ALLOC, 850_000)
            if self.graphs:
                with b.range("capture_graphs"):
                    for number, kernels in enumerate(self._graph_kernels()):
                        b.call(names.GRAPH_BEGIN, 8_000)
                        for kernel in kernels:
                            b.call(names.KERNELS[kernel].api, 4_100)
                        b.call(names.GRAPH_END, 400 * len(kernels) + 9_000)
                        b.program.ops[b.call(names.GRAPH_INSTANTIATE, 2_500 * len(kernels) + 60_000)].launches = number
            b.sync_device()
        return b.program

    def _graph_kernels(self) -> list[list[str]]:
        """The kernels of every graph: the layers' forward parts, then their backward parts."""
        step = self.step()
        return [[step.ops[op].kernel for op in nodes] for _, nodes in sorted(step.graphs.items())]

    def _builder(self) -> Builder:
        return Builder(self.advanced)

    def _nccl(self, b: Builder, function: str, payload: Payload) -> AbstractContextManager[None]:
        """NCCL's range around what makes and ends communicators; the advanced trace has none."""
        if self.advanced:
            return nullcontext()
        return b.range(function, Style.REGISTERED, Domain.NCCL, payload=payload)

    def step(self) -> Program:
        b = self._builder()
        with b.range("iteration", Style.NUMBERED):
            self._load(b)
            if self.mpi:
                self.mpi.exchange(b)
            with b.range("forward", Style.REGISTERED, Domain.JOB, category=1, color=PHASE_COLOR):
                if self.rooted and self.world > 1:
                    buffers = Payload("Broadcast", self.shard, 3_145_728, root=BUFFERS_ROOT)
                    b.wait(Stream.COMPUTE, b.collective(buffers, "nccl_broadcast"))
                self._forward(b)
            with b.range("backward", Style.REGISTERED, Domain.JOB, category=1, color=PHASE_COLOR):
                self._backward(b)
            with b.range("optimizer", Style.REGISTERED, Domain.JOB, category=1, color=PHASE_COLOR):
                self._optimizer(b)
            if self.mpi:
                self.mpi.reduce(b)
        return b.program

    def final(self) -> Program:
        """End of the process."""
        b = self._builder()
        with b.range("shutdown", Style.REGISTERED, Domain.JOB, category=1, color=PHASE_COLOR):
            b.sync_device()
            for group in self.groups:
                with self._nccl(b, "ncclCommFinalize", Payload("Finalize", group)):
                    b.host(120_000)
            for _ in range(min(self.layers, 8)):
                b.call(names.FREE, 95_000)
            if self.mpi:
                self.mpi.stop(b)
        return b.program

    def _load(self, b: Builder) -> None:
        with b.range("load_batch", Style.REGISTERED, Domain.JOB, category=2, color=DATA_COLOR):
            b.copy(H2D_PINNED, 262_144, Stream.COPY)
            b.copy(H2D_PINNED, 524_288, Stream.COPY)
            if self.peers:
                b.copy(P2P, 8_388_608, Stream.COPY)
            b.wait(Stream.COMPUTE, b.record(Stream.COPY))
        with b.range("zero_grad", Style.INLINE):
            b.memset(LAYER_BYTES)
            b.memset(4)

    def _forward(self, b: Builder) -> None:
        b.aten("aten::embedding", "aten::index_select", kernel="embedding")
        b.aten("aten::add", kernel="add")
        ready = self._gather(b)
        for layer in range(self.layers):
            ready = self._use(b, ready, layer < self.layers - 1)
            with b.range(f"layer_{layer:02d}"):
                if self.graphs:
                    with b.graph(layer):
                        self._layer_forward(b)
                else:
                    self._layer_forward(b)
        b.aten("aten::layer_norm", "aten::native_layer_norm", kernel="layer_norm")
        b.aten("aten::linear", "aten::matmul", "aten::mm", kernel="gemm_head")
        with b.range("loss"):
            b.aten("aten::to", "aten::_to_copy", "aten::copy_", kernel="cast")
            b.aten("aten::log_softmax", "aten::_log_softmax", kernel="softmax")
            b.aten("aten::nll_loss_nd", "aten::nll_loss", "aten::nll_loss_forward", kernel="loss")

    def _gather(self, b: Builder) -> int:
        """Ask for a layer's parameters from all shards; the event of their arrival (-1 with a single rank)."""
        if self.world == 1:
            return -1
        return b.collective(Payload("AllGather", self.shard, LAYER_BYTES // self.shard_size), "nccl_all_gather")

    def _use(self, b: Builder, ready: int, more: bool) -> int:
        """Wait for the parameters of this layer, having asked for the next one's first: those travel while this one
        computes.
        """
        following = self._gather(b) if more else -1
        if ready >= 0:
            b.wait(Stream.COMPUTE, ready)
        return following

    def _layer_forward(self, b: Builder) -> None:
        operators = (
            ("aten::layer_norm", "aten::native_layer_norm"),
            ("aten::linear", "aten::addmm"),
            (
                "aten::scaled_dot_product_attention",
                "aten::_scaled_dot_product_flash_attention",
                "aten::_flash_attention_forward",
            ),
            ("aten::linear", "aten::addmm"),
            ("aten::add",),
            ("CompiledFunction",),
            ("aten::linear", "aten::addmm"),
            ("aten::gelu",),
            ("aten::linear", "aten::addmm"),
            ("aten::add",),
        )
        for stack, kernel in zip(operators, LAYER_FORWARD, strict=True):
            b.aten(*stack, kernel=kernel)

    def _backward(self, b: Builder) -> None:
        with b.on(Thread.AUTOGRAD):
            engine = "autograd::engine::evaluate_function: "
            b.aten(engine + "NllLossBackward0", "NllLossBackward0", "aten::nll_loss_backward", kernel="mul")
            b.aten(
                engine + "LogSoftmaxBackward0",
                "LogSoftmaxBackward0",
                "aten::_log_softmax_backward_data",
                kernel="softmax_bwd",
            )
            b.aten(engine + "MmBackward0", "MmBackward0", "aten::mm", kernel="gemm_wgrad", times=1.7)
            pending = []
            ready = self._gather(b)
            for layer in reversed(range(self.layers)):
                ready = self._use(b, ready, layer > 0)
                with b.range(f"layer_{layer:02d}.backward"):
                    if self.graphs:
                        with b.graph(self.layers + layer):
                            self._layer_backward(b)
                    else:
                        self._layer_backward(b)
                pending += self._reduce(b)
            b.aten(
                engine + "EmbeddingBackward0",
                "EmbeddingBackward0",
                "aten::embedding_dense_backward",
                kernel="embedding_bwd",
            )
            b.copy(D2D, LAYER_BYTES // 4)
        for event in pending:
            b.wait(Stream.COMPUTE, event)

    def _layer_backward(self, b: Builder) -> None:
        operators = (
            (("AddBackward0",), "add"),
            (("AddmmBackward0", "aten::mm"), "gemm_dgrad"),
            (("AddmmBackward0", "aten::mm"), "gemm_wgrad"),
            (("AddmmBackward0", "aten::sum"), "sum"),
            (("GeluBackward0", "aten::gelu_backward"), "gelu_bwd"),
            (("AddmmBackward0", "aten::mm"), "gemm_dgrad"),
            (("AddmmBackward0", "aten::mm"), "gemm_wgrad"),
            (("CompiledFunctionBackward",), "triton_silu"),
            (("AddmmBackward0", "aten::mm"), "gemm_proj_bwd"),
            (("ScaledDotProductFlashAttentionBackward0", "aten::_flash_attention_backward"), "flash_bwd_dot"),
            (("aten::_flash_attention_backward",), "flash_bwd"),
            (("aten::_flash_attention_backward",), "flash_bwd_dq"),
            (("SplitBackward0", "aten::cat"), "cat"),
            (("AddmmBackward0", "aten::mm"), "gemm_proj_bwd"),
            (("NativeLayerNormBackward0", "aten::native_layer_norm_backward"), "layer_norm_bwd"),
            (("aten::native_layer_norm_backward",), "layer_norm_gamma"),
            (("torch::autograd::AccumulateGrad",), "add"),
        )
        for stack, kernel in operators:
            b.aten(*stack, kernel=kernel)

    def _reduce(self, b: Builder) -> list[int]:
        """Sum of a layer's gradients, overlapping with the next layer; the events to wait for."""
        if self.world == 1:
            return []
        scatter = Payload("ReduceScatter", self.shard, LAYER_BYTES // self.shard_size, reduction=AVG)
        done = b.collective(scatter, "nccl_reduce_scatter")
        if self.replicas > 1:
            b.wait(Stream.NCCL_REPLICA, done)
            across = Payload("AllReduce", Group.REPLICA, LAYER_BYTES // self.shard_size, reduction=AVG)
            done = b.collective(across, "nccl_all_reduce")
        return [done]

    def _optimizer(self, b: Builder) -> None:
        if self.world > 1:
            b.aten("pack_gradients", kernel="pack")
            around = Payload("SendRecv", Group.WORLD, 4_194_304, peer=1)
            b.wait(Stream.COMPUTE, b.collective(around, "nccl_send_recv"))
            if self.grouped:
                parts = [Payload("AllReduce", Group.WORLD, size, reduction=SUM) for size in (6_291_456, 2_097_152)]
                b.wait(Stream.COMPUTE, b.collective_group(parts, "nccl_all_reduce", times=0.6))
        with b.range("clip_grad_norm_"):
            b.aten("aten::_foreach_norm", kernel="norm")
            b.aten("aten::mean", kernel="mean")
            if self.world > 1:
                norm = Payload("AllReduce", Group.WORLD, 4, reduction=SUM, four_byte=True)
                b.wait(Stream.COMPUTE, b.collective(norm, "nccl_all_reduce_f32"))
            b.aten("aten::_foreach_mul_", kernel="mul")
        if self.rooted and self.world > 1:
            metric = Payload("Reduce", Group.WORLD, 8_192, reduction=SUM, four_byte=True, root=METRIC_ROOT)
            b.wait(Stream.COMPUTE, b.collective(metric, "nccl_reduce"))
        with b.range("Optimizer.step#AdamW.step"):
            for part in range(1 + self.layers // 4):
                b.aten("aten::_fused_adamw_", kernel="adam", times=1.0 + 0.1 * part)
        b.aten("aten::mm", kernel="gemm_fp32")
        b.call(names.STREAM_CAPTURING, 550)
        with b.range("aten::item", Style.OP_ID):
            b.copy(D2H, 4)
            b.sync(Stream.COMPUTE)
        b.sync_event(b.record(Stream.COMPUTE))
        b.call(names.EVENT_DESTROY, 900)


def graph_level(options: Options, rank: int) -> bool:
    """Whether this rank's report traces CUDA graphs as a whole (and not their nodes)."""
    return options.graphs == "graph" or (options.graphs == "mixed" and rank % 2 == 0)


def node_level(options: Options, rank: int) -> bool:
    return options.graphs == "node" or (options.graphs == "mixed" and rank % 2 == 1)


def collectives(program: Program) -> list[int]:
    """The operations that are collectives, in program order."""
    return [index for index, op in enumerate(program.ops) if op.kind is Kind.COLLECTIVE]
