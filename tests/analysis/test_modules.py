"""Test modules: work by the ranges of a model, passes by the sequence numbers of operators. Layers
and ranks are compared with each other.
"""

from pathlib import Path

import polars as pl
import pytest
from tools.commands import SAMPLES
from tools.exports import (
    KERNEL,
    PID,
    RUNTIME,
    make_call,
    make_export,
    make_global_tid,
    make_kernel,
    make_nvtx_range,
    make_strings,
)
from tools.nccl_exports import Rank

import nsys2prv
from nsys2prv.show.difference.comparison import compare_jobs
from nsys2prv.show.finished_job import FinishedJob

LAYERS, STEPS, SLOW_LAYER, SLOW_RANK = 3, 4, 1, 1


def test_the_slowest_layer_and_rank_are_named(tmp_path: Path) -> None:
    """Kernels of a layer last 10 us, of the slow one 15, on the slow rank a fifth longer."""
    reports = []
    for number in range(3):
        rank, launch, free = Rank(10 + number), 1_000, 100_000
        for _ in range(STEPS):
            for layer in range(LAYERS):
                begin, lasts = launch, 15_000 if layer == SLOW_LAYER else 10_000
                lasts += lasts // 5 if number == SLOW_RANK else 0
                rank.add_kernel(launch + 100, free, free + lasts)
                launch, free = launch + 1_000, free + 20_000
                main = rank.nvtx[0]["globalTid"]
                rank.nvtx.append(make_nvtx_range(begin, launch, f"layer_{layer}", globalTid=main))
        reports.append(rank.write(tmp_path / f"rank{number}.sqlite"))
    with nsys2prv.open(reports, align="none", jobs=1) as job:
        row = job.analyse("modules")["modules"].tables["layers"].frame.row(0, named=True)
    assert (row["operation"], row["layers"], row["calls"]) == ("layer_*", LAYERS, 36)
    assert (row["slowest"], row["slowest_share"]) == (f"layer_{SLOW_LAYER}", pytest.approx(1.5))
    assert row["slowest_rank"] == f"rank {SLOW_RANK} (by file name)"
    assert row["slowest_rank_share"] == pytest.approx(1.2)
    assert (row["worst_rank"], row["worst_share"]) == (row["slowest_rank"], pytest.approx(1.2))


#: Nested ranges of a thread: text, and those within it, or how long a kernel is that is launched there (us).
Nested = list[tuple[str, "Nested"] | int]
MODULE = "{{'Module': 'net.{}', 'TrainableParams': {{'weight': [8, 4]}}, 'Inputs': [[2, 4]]}}"


class Program:
    """A process with threads that push ranges and launch kernels, one after another."""

    def __init__(self) -> None:
        self.nvtx, self.calls, self.kernels = [], [], []
        self.time = 0

    def run(self, nested: Nested, tid: int = PID) -> None:
        for one in nested:
            begin = self.time = self.time + 10
            if isinstance(one, int):
                number = len(self.calls) + 1
                self.calls.append(
                    make_call(begin, begin + 5, number, globalTid=make_global_tid(tid))
                )
                start = 10_000_000 + 1_000_000 * number
                names = {"demangledName": 1, "shortName": 1}
                self.kernels.append(
                    make_kernel(start, start + 1_000 * one, correlationId=number, **names)
                )
            else:
                self.run(one[1], tid)
                self.time += 10
                self.nvtx.append(
                    make_nvtx_range(begin, self.time, one[0], globalTid=make_global_tid(tid))
                )

    def write(self, path: Path) -> Path:
        tables = {"NVTX_EVENTS": self.nvtx, RUNTIME: self.calls, KERNEL: self.kernels}
        return make_export(path, {"StringIds": make_strings("k", "cudaLaunchKernel"), **tables})


def make_node(name: str, seq: int, within: Nested) -> tuple[str, Nested]:
    """Return the range that autograd's engine pushes for an operator."""
    inner = (f"{name}, seq = {seq}, op_id = 2", within)
    return f"autograd::engine::evaluate_function: {name}, op_id = 1", [inner]


def make_training() -> Program:
    """Two layers: attention (5 and 7 us, backward 10), an MLP that is checkpointed (2 us, again 2, backward 3)."""
    program = Program()
    for layer in (0, 1):
        attention = (
            f"aten::mm, seq = {10 + layer}, op_id = 3, sizes = [[2, 4], [4, 8]]",
            [5 + 2 * layer],
        )
        program.run(
            [
                (
                    MODULE.format(f"layers.{layer}"),
                    [(MODULE.format(f"layers.{layer}.attn"), [attention])],
                )
            ]
        )
        mlp = (MODULE.format(f"layers.{layer}.mlp"), [("aten::add, op_id = 4", [2])])
        program.run([("CheckpointFunction, seq = " + str(20 + layer), [mlp])])
        # A number that comes again is that of the last operator.
        program.run([("aten::view, seq = 20", [])] if not layer else [])
    for layer in (1, 0):
        again = (
            MODULE.format(f"layers.{layer}.mlp"),
            [(f"aten::add, seq = {30 + layer}, op_id = 5", [2])],
        )
        own = make_node("AddBackward0", 30 + layer, [3])
        program.run([make_node("CheckpointFunctionBackward", 20 + layer, [again, own])], PID + 1)
        program.run(
            [make_node("MmBackward0", 10 + layer, [("aten::mm, op_id = 6", [10])])], PID + 1
        )
    return program


def test_backward_operators_have_the_module_of_their_forward(tmp_path: Path) -> None:
    with nsys2prv.open(make_training().write(tmp_path / "r.sqlite"), jobs=1) as job:
        tables = job.analyse("modules")["modules"].tables
    columns = (
        "gpu_ns",
        "gpu_exclusive_ns",
        "backward_gpu_ns",
        "recomputed_gpu_ns",
        "calls",
        "layers",
    )
    tree = {
        path: figures for path, *figures in tables["modules"].frame.select("path", *columns).rows()
    }
    us = 1_000
    assert tree["net"] == [46 * us, 0, 26 * us, 4 * us, None, None]
    assert tree["net / layers.*"] == [46 * us, 0, 26 * us, 4 * us, 2, 2]
    assert tree["net / layers.* / attn"] == [32 * us, 0, 20 * us, 0, 2, 2]
    assert tree["net / layers.* / attn / aten::mm"][0] == 12 * us
    assert tree["net / layers.* / attn / MmBackward0"][:3] == [20 * us, 20 * us, 20 * us]
    assert tree["net / layers.* / mlp"] == [14 * us, 0, 6 * us, 4 * us, 2, 2]
    layers = tables["layers"].frame.filter(pl.col("operation") == "net / layers.* / attn")
    assert layers.select("slowest", "calls", "gpu_ns").row(0) == ("layers.1", 2, 32 * us)


@pytest.mark.parametrize(("elsewhere", "path"), [(False, "forward / layer_*"), (True, "layer_*")])
def test_ranges_of_the_backward_pass_join_those_of_their_name(
    tmp_path: Path, elsewhere: bool, path: str
) -> None:
    """If a name is in several places of the forward pass, its place is unknown."""
    program = Program()
    program.run([("forward", [(f"layer_{layer}", [5]) for layer in (0, 1)])])
    program.run([("evaluate", [(f"layer_{layer}", [1]) for layer in (0, 1)])] if elsewhere else [])
    program.run([(f"layer_{layer}.backward", [7]) for layer in (1, 0)], PID + 1)
    with nsys2prv.open(program.write(tmp_path / "r.sqlite"), jobs=1) as job:
        frame = job.analyse("modules")["modules"].tables["modules"].frame
    (row,) = frame.filter(path=path).iter_rows(named=True)
    assert row["backward_gpu_ns"] == 14_000
    assert row["gpu_ns"] == (14_000 if elsewhere else 24_000)


HOOKS = ("FSDP::{}_forward (enc.block.{}.layer.{}), op_id = {}", "aten::to, op_id = 9")


@pytest.mark.parametrize(
    ("texts", "path"),
    [
        (["enc.block.0.attn", "enc.block.1.attn"], "enc / block.* / attn"),
        (["XlaModule:#hlo_module=jit_step,program_id=1#", "Thunk:#name=dot,hlo_op=fusion.4,unique_hlo_op_id=9#"], "jit_step / fusion"),
        (["megatron.core.transformer.attention.forward.qkv"] * 2, "transformer.attention.forward.qkv / transformer.attention.forward.qkv"),
        (["forward", "layer_3f"], "forward / layer_3"),
        (["step 5", "net.layers.2.mlp"], "net / layers.* / mlp"),
    ],
)  # fmt: skip
def test_names_of_frameworks_are_paths(tmp_path: Path, texts: list[str], path: str) -> None:
    program = Program()
    outer, inner = texts
    program.run([(outer, [(inner, [4])])])
    with nsys2prv.open(program.write(tmp_path / "r.sqlite"), jobs=1) as job:
        paths = job.analyse("modules")["modules"].tables["modules"].frame["path"]
    assert path in paths.to_list()


def test_fsdp_hooks_enclose_a_module(tmp_path: Path) -> None:
    """Work between the hooks is the module's, theirs too; other work is not."""
    program = Program()
    for block in range(6):
        for part in (0, 1):
            before, after = (HOOKS[0].format(when, block, part, 7) for when in ("pre", "post"))
            program.run([(before, [1]), (HOOKS[1], [4 + part]), (after, [])])
    program.run([(HOOKS[1], [50])])
    with nsys2prv.open(program.write(tmp_path / "r.sqlite"), jobs=1) as job:
        frame = job.analyse("modules")["modules"].tables["modules"].frame
    tree = {row["path"]: row for row in frame.iter_rows(named=True)}
    assert tree["enc / block.* / layer.1"]["gpu_ns"] == 6 * 6_000
    assert tree["enc / block.* / layer.1"]["gpu_exclusive_ns"] == 6 * 1_000
    assert tree["enc / block.*"]["gpu_ns"] == 6 * 11_000
    assert tree["enc / block.*"]["layers"] == 6
    assert tree["aten::to"]["gpu_ns"] == 50_000


def test_what_runs_beside_other_work_overlaps(tmp_path: Path) -> None:
    program = Program()
    program.run([("model", [("compute", [10]), ("send", [4])])])
    program.kernels[1] |= {"start": 11_002_000, "end": 11_006_000, "streamId": 8}
    with nsys2prv.open(program.write(tmp_path / "r.sqlite"), jobs=1) as job:
        frame = job.analyse("modules")["modules"].tables["modules"].frame
    overlapped = dict(frame.select("path", "overlapped_ns").rows())
    assert overlapped == {"model": 8_000, "model / compute": 4_000, "model / send": 4_000}


def test_gpu_time_of_a_range_with_and_without_its_backward_pass() -> None:
    """Ranges have the work that their thread launches in them; modules also the backward pass, which others launch:
    a difference of two jobs has both.
    """
    with nsys2prv.open(sorted((SAMPLES / "training").glob("*.sqlite"))) as job:
        results = job.analyse("operations", "modules")
        finished = FinishedJob(job.describe(), results)
    ranges = dict(
        results["operations"].tables["operations"].frame.select("operation", "gpu_ns").rows()
    )
    modules = results["modules"].tables["modules"].frame.filter(path="iteration").row(0, named=True)
    assert modules["backward_gpu_ns"] > 0
    assert modules["gpu_ns"] - modules["backward_gpu_ns"] == ranges["iteration"]
    every = results["modules"].tables["modules"].frame.select("path", "gpu_ns").rows()
    compared = compare_jobs(finished, finished)[1].tables["modules_modules"].frame
    assert sorted(compared.select("path", "a_ns").rows()) == sorted(every)
