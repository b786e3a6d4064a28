"""Test phases of serving: the texts of steps, and their durations."""

from pathlib import Path

import pytest
from tools.exports import (
    KERNEL,
    RUNTIME,
    make_call,
    make_export,
    make_kernel,
    make_nvtx_range,
    make_strings,
)

import nsys2prv
from nsys2prv._util.columns import ABSENT
from nsys2prv.events.range_texts import read_facts_of

PREFILL, DECODE, MIXED = 1, 2, 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("execute_context_2(1024)_generation_30(31)", (MIXED, 32, 1055)),
        ("execute_context_0(0)_generation_34(34)", (DECODE, 34, 34)),
        ("execute_12_context_1(100)_generation_0(0)", (PREFILL, 1, 100)),
        (
            "[Executor] _forward_step 812: 3 ctx reqs, 2048 ctx tokens, 30 gen reqs",
            (MIXED, 33, 2078),
        ),
        ("[Executor] _forward_step: 0 ctx reqs, 31 gen reqs", (DECODE, 31, 31)),
        ("[Executor] _forward_step 5: 2 ctx reqs, 0 gen reqs", (PREFILL, 2, ABSENT)),
        ("step[EXTEND bs=2 toks=900]", (PREFILL, 2, 900)),
        ("step[DECODE bs=64]", (DECODE, 64, 64)),
        ("step[MIXED]", (MIXED, ABSENT, ABSENT)),
        ("execute_model", (ABSENT, ABSENT, ABSENT)),
        ("step 12", (ABSENT, ABSENT, ABSENT)),
    ],
)
def test_texts_of_steps(text: str, said: tuple[int, int, int]) -> None:
    assert tuple(read_facts_of([text])[1:4, 0].tolist()) == said


def test_steps_are_summed_by_phase(tmp_path: Path) -> None:
    """Two prefills of 3 ms, and four steps of decoding of 1 ms, each with one name and its number."""
    steps = ["2 ctx reqs, 64 ctx tokens, 0 gen reqs", *["0 ctx reqs, 0 ctx tokens, 2 gen reqs"] * 2]
    nvtx, calls, kernels = [], [], []
    for at, step in enumerate(steps * 2):
        launch, lasts = 10_000_000 * (at + 1), 3_000_000 if "0 gen" in step else 1_000_000
        nvtx.append(
            make_nvtx_range(launch, launch + 5_000_000, f"[Executor] _forward_step {at}: {step}")
        )
        nvtx.append(
            make_nvtx_range(launch + 50, launch + 500, "aten::mm, sizes = [[512, 512], [512, 512]]")
        )
        calls.append(make_call(launch + 100, launch + 200, at + 1))
        names = {"demangledName": 1, "shortName": 1}
        kernels.append(
            make_kernel(launch + 1_000, launch + 1_000 + lasts, correlationId=at + 1, **names)
        )
    tables = {"StringIds": make_strings("k"), "NVTX_EVENTS": nvtx, RUNTIME: calls, KERNEL: kernels}
    with nsys2prv.open(make_export(tmp_path / "r.sqlite", tables), jobs=1) as job:
        found = job.analyse("serving")["serving"].tables
        names = ()
    rows = {row["phase"]: row for row in found["phases"].frame.iter_rows(named=True)}
    assert {*rows} == {"prefill", "decode"}
    assert (rows["prefill"]["steps"], rows["prefill"]["kernel_ns"]) == (2, 6_000_000)
    assert (rows["decode"]["steps"], rows["decode"]["kernel_ns"]) == (4, 4_000_000)
    assert (rows["prefill"]["tokens"], rows["decode"]["tokens"]) == (128, 8)
    # A product of 512 x 512 x 512 in each step.
    assert rows["prefill"]["tflop_s"] == pytest.approx(2 * 512**3 / 3e9)
    assert rows["decode"]["tflop_s"] == pytest.approx(2 * 512**3 / 1e9)
    assert found["batches"].frame["up_to_requests"].to_list() == [2, 2]
