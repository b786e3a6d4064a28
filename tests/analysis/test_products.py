"""Test products: their operations from the shapes in NVTX texts, and their share of what the GPU
can do.
"""

from pathlib import Path

import polars as pl
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
from nsys2prv.export.info import GpuLimits
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
    # The weights of a linear layer in PyTorch are output x input.
    "{'mod': 'torch.nn.functional', 'op': 'linear', 'args': [{'type': 'tensor', 'shape': (32, 400)}, {'type': 'tensor', 'shape': (120, 400)}]}": (
        2 * 32 * 400 * 120
    ),
    # A padding of 1 and a stride of 2 make 112 x 112 outputs of 224 x 224.
    "{'Module': 'conv', 'TrainableParams': {'weight': [8, 3, 3, 3]}, 'StaticParams': {'stride': (2, 2), 'padding': (1, 1), 'dilation': (1, 1), 'transposed': False}, 'Inputs': [[4, 3, 224, 224]]}": (
        2 * 4 * 8 * 112 * 112 * 3 * 3 * 3
    ),
    # Of two groups; then a transposed one, each input of which meets 16 channels of 2 x 2.
    "aten::convolution_backward, sizes = [[4, 8, 10, 10], [4, 6, 12, 12], [8, 3, 3, 3], [], []]": (
        2 * 2 * 4 * 8 * 10 * 10 * 3 * 3 * 3
    ),
    "aten::convolution_backward, sizes = [[4, 16, 20, 20], [4, 8, 10, 10], [8, 16, 2, 2], []]": (
        2 * 2 * 4 * 8 * 10 * 10 * 16 * 2 * 2
    ),
    # Grouped queries change nothing.
    "aten::_scaled_dot_product_flash_attention, seq = 3, sizes = [[2, 8, 128, 64], [2, 2, 128, 64], [2, 2, 128, 64], [], []]": (
        2 * 2 * 8 * 128 * 128 * (64 + 64)
    ),
    "aten::_scaled_dot_product_efficient_attention_backward, sizes = [[2, 8, 16, 32], [2, 8, 16, 64], [2, 8, 24, 64], [2, 8, 24, 32], []]": (
        5 * 2 * 8 * 16 * 24 * (64 + 32)
    ),
    "flash_attn::_flash_attn_forward, op_id = 9, sizes = [[1, 4096, 16, 128], [1, 4096, 16, 128], [1, 4096, 16, 128], []]": (
        2 * 16 * 4096 * 4096 * 256
    ),
    # Sequences that are packed into one, a composite operator, a stride that is not known.
    "flash_attn::_flash_attn_varlen_forward, sizes = [[4096, 16, 128], [4096, 16, 128], [4096, 16, 128]]": ABSENT,
    "aten::scaled_dot_product_attention, sizes = [[2, 8, 128, 64], [2, 8, 128, 64], [2, 8, 128, 64]]": ABSENT,
    "aten::cudnn_convolution, sizes = [[4, 3, 12, 12], [8, 3, 3, 3], [], [], []]": ABSENT,
    "aten::convolution_backward, sizes = [[4, 8, 10, 10], [4, 5, 12, 12], [8, 3, 3, 3]]": ABSENT,
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
    ("model", "able", "processors", "mhz", "data_type", "peak"),
    [
        # As NVIDIA's data sheets have them.
        ("NVIDIA GeForce RTX 3080", (8, 6), 68, 1710, "fp16", 59.5),
        ("NVIDIA GeForce RTX 4070", (8, 9), 46, 2475, "bf16", 58.3),
        ("NVIDIA GeForce RTX 2080 Ti", (7, 5), 68, 1545, "fp16", 53.8),
        ("Quadro RTX 6000", (7, 5), 72, 1770, "fp16", 130.5),
        ("NVIDIA RTX A2000 12GB", (8, 6), 26, 1200, "fp32", 8.0),
        ("NVIDIA GeForce RTX 3080", (8, 6), 68, 1710, "tf32", 29.8),
        ("Quadro RTX 6000", (7, 5), 72, 1770, "bf16", None),
        ("NVIDIA GeForce RTX 3080", (8, 6), 68, 1710, "fp8", None),
        ("Quadro GP100", (6, 0), 56, 1442, "fp16", None),
        ("Orin", (8, 7), 8, 1020, "fp16", None),
    ],
)
def test_peaks_of_other_models(
    model: str, able: tuple[int, int], processors: int, mhz: int, data_type: str, peak: float | None
) -> None:
    limits = GpuLimits(processors, clock=mhz * 1_000_000, major=able[0], minor=able[1])
    found = find_peak(model, data_type, limits)
    assert found == (None if peak is None else pytest.approx(peak, rel=0.015))


def test_attention_with_a_causal_mask() -> None:
    """Half of equal lengths; else each query meets one key more than the one before it, the last one all."""
    text = "aten::_scaled_dot_product_flash_attention, sizes = [[2, 8, {}, 64], [2, 8, {}, 64], [2, 8, {}, 64]]"
    lengths = [(128, 128), (4, 7), (7, 4)]
    pairs = [128 * 128 // 2, 4 + 5 + 6 + 7, 1 + 2 + 3 + 4]
    facts = read_facts_of([text.format(one, other, other) for one, other in lengths])
    assert facts[4].tolist() == [4 * 2 * 8 * 64 * one for one in pairs]
    # Queries, keys, values and results.
    assert facts[5].tolist() == [2 * 2 * 8 * 64 * (one + other) for one, other in lengths]


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


FLASH = "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<(int)128, cutlass::bfloat16_t>, (bool)0, (bool){}, (bool)0>(flash::Flash_fwd_params)"
NAMES = ("nvjet_tst_256x128_64x4_1x2_h_bz_coopA_NTT", FLASH.format(1), FLASH.format(0))
ATTENTION = "aten::_scaled_dot_product_flash_attention, sizes = [[2, 16, 4096, 128], [2, 16, 4096, 128], [2, 16, 4096, 128]]"
#: Text of a range, how long its kernel lasts (ns), and the number of its name.
RANGES = [
    ("aten::mm, seq = 0, op_id = 0, sizes = [[8192, 8192], [8192, 8192]]", 2_000_000, 1),
    ("aten::mm, seq = 1, op_id = 1, sizes = [[4096, 8192], [8192, 8192]]", 2_000_000, 1),
    ("aten::mm, seq = 2, op_id = 2, sizes = [[1, 8192], [8192, 8192]]", 100_000, 1),
    ("aten::mm", 2_000_000, 1),
    (ATTENTION, 1_000_000, 2),
    (ATTENTION, 1_000_000, 3),
]
H100 = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "uuid": "u", "memoryBandwidth": 3_352_000_000_000}


def make_report(folder: Path, ranges: list[tuple[str, int, int]]) -> Path:
    """Return a report whose ranges each launch a kernel, one after another."""
    nvtx, calls, kernels = [], [], []
    for at, (text, lasts, name) in enumerate(ranges):
        launch, begin = 1_000 * (at + 1), 10_000_000 * (at + 1)
        nvtx.append(make_nvtx_range(launch, launch + 500, text))
        calls.append(make_call(launch + 100, launch + 200, at + 1))
        columns = {"demangledName": name, "shortName": name}
        kernels.append(make_kernel(begin, begin + lasts, correlationId=at + 1, **columns))
    tables = {"NVTX_EVENTS": nvtx, RUNTIME: calls, KERNEL: kernels, "TARGET_INFO_GPU": [H100]}
    return make_export(folder / "r.sqlite", {"StringIds": make_strings(*NAMES), **tables})


def test_products_have_speeds(tmp_path: Path) -> None:
    """Two products of 1.1 and 0.55 * 10^12 operations, one that reads much for few operations, one without a
    shape, and attention with and without a mask.
    """
    with nsys2prv.open(make_report(tmp_path, RANGES), jobs=1) as job:
        tables = job.analyse("products", whole=True)["products"].tables
    products = tables["products"].frame
    matrices = products.filter(pl.col("mask").is_null()).sort("flop", descending=True)
    flop = [2 * 8192**3, 8192**3, 2 * 8192**2]
    assert matrices["flop"].to_list() == flop
    assert matrices["tflop_s"].to_list() == pytest.approx(
        [flop[0] / 2e9, flop[1] / 2e9, flop[2] / 1e8]
    )
    assert matrices["peak_share"][0] == pytest.approx(flop[0] / 2e-3 / 989e12)
    # What large ones may do is the peak; the small one is bound by the 2 bytes of each number.
    moved = 2 * (8192**2 + 2 * 8192)
    assert matrices["flop_per_byte"][2] == pytest.approx(flop[2] / moved)
    assert matrices["allowed_tflop_s"].to_list() == pytest.approx(
        [989, 989, flop[2] / moved * 3.352]
    )
    assert matrices["roofline_share"][2] == pytest.approx(moved / 3.352e12 / 1e-4)
    attention = dict(products.filter(pl.col("mask").is_not_null()).select("mask", "flop").rows())
    whole = 2 * 2 * 16 * 4096**2 * 256
    assert attention == {"causal": whole // 2, "none": whole}
    device = tables["devices"].frame.row(0, named=True)
    done, lasts = sum(flop) + 1.5 * whole, 6.1e-3
    assert device["of_all_products"] == pytest.approx(lasts / 8.1e-3)
    assert device["peak_share"] == pytest.approx(done / lasts / 989e12)


def test_a_product_far_below_its_shape_is_a_finding(tmp_path: Path) -> None:
    """A product takes 10 times as long as its shape allows, the others 1.25 times: the savings
    assume that rate."""
    ideal = [flop / 989e3 for flop in (2 * 8192**3, 8192**3)]
    texts = [text for text, _, _ in RANGES[:2]]
    lasts = [int(1.25 * ideal[0]), int(10 * ideal[1])]
    nvtx, calls, kernels, time = [], [], [], 1_000_000
    for at in range(24):
        launch = 10_000 * (at + 1)
        nvtx.append(make_nvtx_range(launch, launch + 5_000, texts[at % 2]))
        calls.append(make_call(launch + 100, launch + 2_000, at + 1))
        names = {"demangledName": 1 + 3 * (at % 2), "shortName": 1 + 3 * (at % 2)}
        kernels.append(make_kernel(time, time + lasts[at % 2], correlationId=at + 1, **names))
        time += lasts[at % 2] + 1_000
    strings = make_strings(*NAMES, NAMES[0].replace("256x128", "64x32"))
    tables = {"NVTX_EVENTS": nvtx, RUNTIME: calls, KERNEL: kernels, "TARGET_INFO_GPU": [H100]}
    report = make_export(tmp_path / "r.sqlite", {"StringIds": strings, **tables})
    with nsys2prv.open(report, jobs=1) as job:
        (finding,) = (one for one in job.findings() if one.kind == "slow_products")
        gained = job.analyse("findings", what_if=("products as others",), whole=True)
    saved = 12 * (10 - 1.25) * ideal[1]
    assert finding.share == pytest.approx(saved / (time - 1_000_000), rel=0.02)
    assert gained["findings"].tables["what_if"].frame["gain_share"].max() == pytest.approx(
        finding.share, rel=0.02
    )
    assert "98.9 of the 989.0 TFLOP/s" in finding.evidence[0]
    assert "Other kernels reach 80%" in finding.evidence[0]
