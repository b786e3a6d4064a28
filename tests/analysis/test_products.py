"""Matrix products: their operations by the shapes in NVTX texts, and what that is of the GPU's peak."""

from __future__ import annotations

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
from nsys2prv.figures.products import find_data_type, find_peak

#: Text of a range -> operations of its product, counted by hand.
PRODUCTS = {
    "aten::mm, seq = 5, op_id = 7, sizes = [[2, 3], [3, 4]]": 2 * 2 * 3 * 4,
    "aten::mm, seq = 5, sizes = [[4096, 8192], [8192, 1024]]": 2 * 4096 * 8192 * 1024,
    "aten::mm, op_id = 2, sizes = [[1, 1], [1, 1]], input_op_ids = [(1,0), (0,-1)]": 2,
    "aten::addmm, seq = 1, sizes = [[5], [2, 3], [3, 5], [], []]": 2 * 2 * 3 * 5,
    "aten::addmm, sizes = [[2, 5], [2, 3], [3, 5], [], []]": 2 * 2 * 3 * 5,
    "aten::bmm, sizes = [[8, 2, 3], [8, 3, 4]]": 8 * 2 * 2 * 3 * 4,
    "aten::baddbmm, seq = 2, sizes = [[1], [8, 2, 3], [8, 3, 4], [], []]": 8 * 2 * 2 * 3 * 4,
    "aten::_scaled_mm, sizes = [[16, 32], [32, 8], [], []]": 2 * 16 * 32 * 8,
    "{'Module': 'm.down', 'TrainableParams': {'weight': [4096, 1792]}, 'Inputs': [[512, 1792]]}": (
        2 * 512 * 1792 * 4096
    ),
    "{'Module': 'm.up', 'TrainableParams': {'weight': [8, 4], 'bias': [8]}, 'Inputs': [[2, 3, 4]]}": (
        2 * 2 * 3 * 4 * 8
    ),
    # No product, no shapes, or shapes that do not fit each other.
    "aten::mm": ABSENT,
    "aten::mm, seq = 3, op_id = 4": ABSENT,
    "aten::mm, sizes = [[2, 3], [4, 4]]": ABSENT,
    "aten::mm, sizes = [[], []]": ABSENT,
    "aten::add, sizes = [[2, 3], [2, 3]]": ABSENT,
    "aten::linear, sizes = [[2, 3], [4, 3], []]": ABSENT,
    "aten::matmul, sizes = [[2, 3], [3, 4]]": ABSENT,
    "{'Module': 'embed', 'TrainableParams': {'weight': [512, 4096]}, 'Inputs': [[4096]]}": ABSENT,
    "{'Module': 'm.down', 'TrainableParams': {'weight': [4096, 1792]}, 'Outputs': [[512, 4096]]}": ABSENT,
    "aten::mm, sizes = [[999999999999, 999999999999], [999999999999, 9999999999]]": ABSENT,
}


def test_operations_follow_from_shapes() -> None:
    assert read_facts_of(list(PRODUCTS))[0].tolist() == list(PRODUCTS.values())


@pytest.mark.parametrize(
    ("kernel", "data_type"),
    [
        ("nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NTT", "fp16"),
        ("nvjet_sm100_tst_128x256_64x4_2x1_v_bz_NTN", "bf16"),
        ("nvjet_sss_tf32_64x32_32x4_1x1_v_bz_NNN", "tf32"),
        ("nvjet_qqtst_128x128_128x4_2x1_v_bz_TNT", "fp8"),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x256x8_stage3_ffma_kernel", "fp32"),
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", "bf16"),
        ("ampere_sgemm_128x64_tn", "fp32"),
        ("cutlass_80_tensorop_d884gemm_64x32_16x4_nn_align1", "fp64_tensor"),
        ("void at::native::vectorized_elementwise_kernel<4>", None),
    ],
)
def test_data_types_are_in_names(kernel: str, data_type: str | None) -> None:
    assert find_data_type(kernel) == data_type


def test_peaks_are_by_model() -> None:
    assert find_peak("NVIDIA H100 80GB HBM3", "bf16") == 989
    assert find_peak("NVIDIA H100 PCIe", "bf16") == 756
    assert find_peak("Tesla V100-SXM2-32GB", "bf16") is None
    assert find_peak("NVIDIA RTX A4000", "fp16") is None
    assert find_peak("NVIDIA A30 MIG 2g.12gb", "fp16") is None


def test_products_have_speeds(tmp_path: Path) -> None:
    """Two products of 1.1 and 0.55 * 10^12 operations, and one without a shape."""
    shapes = ["[[8192, 8192], [8192, 8192]]", "[[4096, 8192], [8192, 8192]]"]
    texts = [f"aten::mm, seq = {at}, op_id = {at}, sizes = {one}" for at, one in enumerate(shapes)]
    nvtx, calls, kernels = [], [], []
    for at, text in enumerate([*texts, "aten::mm"]):
        launch, begin = 1_000 * (at + 1), 10_000_000 * (at + 1)
        nvtx.append(make_nvtx_range(launch, launch + 500, text))
        calls.append(make_call(launch + 100, launch + 200, at + 1))
        columns = {"demangledName": 1, "shortName": 1}
        kernels.append(make_kernel(begin, begin + 2_000_000, correlationId=at + 1, **columns))
    report = make_export(
        tmp_path / "r.sqlite",
        {
            "StringIds": make_strings("nvjet_tst_256x128_64x4_1x2_h_bz_coopA_NTT"),
            "NVTX_EVENTS": nvtx,
            RUNTIME: calls,
            KERNEL: kernels,
            "TARGET_INFO_GPU": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "uuid": "u"}],
        },
    )
    with nsys2prv.open(report, jobs=1) as job:
        tables = job.analyse("products", whole=True)["products"].tables
    flop = [2 * 8192**3, 8192**3]
    products = tables["products"].frame
    assert products["flop"].sort(descending=True).to_list() == flop
    assert products["tflop_s"].sort().to_list() == pytest.approx(
        [one / 2e-3 / 1e12 for one in flop[::-1]]
    )
    assert products["peak_share"].max() == pytest.approx(flop[0] / 2e-3 / 989e12)
    device = tables["devices"].frame.row(0, named=True)
    assert device["of_matrix_products"] == pytest.approx(2 / 3)
    assert device["peak_share"] == pytest.approx(sum(flop) / 4e-3 / 989e12)
