"""Test that names of kernels fit the columns of Paraver's tables."""

from pathlib import Path

import pytest
from tools.conversions import convert_and_read

from nsys2prv.events.kernel_names import abbreviate_labels

SAMPLES = Path(__file__).parents[2] / "sample_reports"
GEMM = "sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x{}_stage4_warpsize2x2x1_tensor16x8x16_kernel"


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["short<int>"], ["short<int>"]),
        (["softmax_warp_forward<float,float,float,10,1,0>"], ["softmax_warp_forward<..>"]),
        (
            [GEMM.format(32), GEMM.format(64)],
            [
                "sm80_xmma_gem..8x32_stage4_warpsize2x2x1_t",
                "sm80_xmma_gem..8x64_stage4_warpsize2x2x1_t",
            ],
        ),
        (["a" * 50 + "b" * 50 + "c" * 50, "a" * 50 + "d" * 50 + "c" * 50], None),
        (["a" * 150, "a" * 151, "a" * 26 + ".." + "a" * 14], None),
    ],
)
def test_long_labels_are_short_and_differ(labels: list[str], expected: list[str] | None) -> None:
    short = abbreviate_labels(labels)
    assert expected in (None, short)
    assert max(map(len, short)) <= 42
    assert len({*short}) == len({*labels})
    again = labels[::-1]
    by_label = dict(zip(again, abbreviate_labels(again), strict=True))
    assert [by_label[one] for one in labels] == short


def test_kernels_of_a_trace_are_short_unless_full_names_are_asked_for(tmp_path: Path) -> None:
    reports = sorted((SAMPLES / "cluster").glob("*.sqlite"))
    lengths = {}
    for full in (False, True):
        trace, _ = convert_and_read(
            reports, tmp_path / f"{full}.prv", kinds=("kernels",), full_kernel_names=full
        )
        labels = trace.labels.values[63000006]
        assert len({*labels.values()}) == len(labels)
        lengths[full] = max(map(len, labels.values()))
    assert lengths[False] <= 42 < 120 < lengths[True]
