"""Test labels of CUDA kernels."""

import random
import time
from pathlib import Path

import pytest
from tools.tables import read_table

from nsys2prv.events.kernel_names import make_kernel_label, make_labels_unique

# demangled name -> label
LABELS = {name: label for label, name in read_table(Path(__file__).with_name("kernel_labels.tsv"))}

HOSTILE = [
    "",
    " ",
    "\n",
    "\t<\n>",
    "<",
    ">",
    "((((",
    "))))",
    "::",
    "[",
    "[]",
    "[[x]]",
    "[CUDA memcpy]",
    "<unnamed>",
    "(anonymous namespace)::",
    "operator()",
    "operator<<(int)",
    "f\nbar<int>(\tint)",
    "line\u2028separator\x85",
    "\ud800\udfff\x00<a>(",
    "[lambda() (instance 99999999999999999999)]",
    "f(a)::'lambda99999999999999999999'(int)",
    "$_" + "9" * 10_000,
    "a" * 1_000_000,
    "a<" * 500_000,
    "a<b,(" * 200_000,
    "<(" * 500_000,
    "(" * 1_000_000,
    ")" * 1_000_000,
    "f<int>::" * 100_000 + "g",
    "(w)" * 300_000 + "1",
    "(w w" * 250_000,
    "operator" + " " * 1_000_000,
    "cutlass::Kernel<>()",
    "cutlass::Kernel<void>(x)",
    "cub::Policy<int>()",
    "Eigen::TensorCwiseUnaryOp<>()",
    "std::integral_constant<int>()",
    "__nv_dl_wrapper_t<__nv_dl_tag<a, b, c>>()",
]


def is_label(label: str) -> bool:
    return (
        0 < len(label) <= 120
        and label.isprintable()
        and label == label.strip()
        and not (label.startswith("[") and label.endswith("]"))
    )


@pytest.mark.parametrize(("demangled", "label"), LABELS.items())
def test_label(demangled: str, label: str) -> None:
    assert make_kernel_label(demangled, "short") == label


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: ascii(name[:24]))
def test_odd_names_have_a_label_soon(name: str) -> None:
    begin = time.process_time()
    labels = [make_kernel_label(name, short) for short in ("", "short", name)]
    assert time.process_time() - begin < 1
    assert all(is_label(label) for label in labels)


def test_damaged_names_have_a_label() -> None:
    chance = random.Random(1)
    names = list(LABELS)
    for _ in range(5_000):
        name = chance.choice(names)
        for _ in range(chance.randint(1, 5)):
            at = chance.randrange(len(name) + 1)
            name = (
                name[:at]
                + chance.choice(("", *"<>()[]{}:,*& #'$", chance.choice(names)[:40]))
                + name[at + 3 :]
            )
        assert is_label(make_kernel_label(name, "")), name


def test_without_demangled_name_the_short_one_serves() -> None:
    assert make_kernel_label("", "saxpy") == "saxpy"
    assert make_kernel_label("", "") == "unnamed kernel"


def test_the_whole_name_goes_before_a_short_one_that_was_cut() -> None:
    name = "_ZN10tensorflow67_GLOBAL__N__c6b73f6f_27_check_numerics_op_gpu_cu_cc_020c7bc0_10225319CheckNumericsKernelIfEEvPKT_iPi"
    assert make_kernel_label(name, "_ZN10tensorflow67_GLOBAL__N__c_3...") == name


def test_long_names_end_in_an_ellipsis() -> None:
    name = "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x32_stage4_warpsize2x2x1_g1_"
    label = make_kernel_label(name + "tensor16x8x16_t1r1s1_kernel_cudnn", "")
    assert label == name + "tensor16x..."


def test_long_template_arguments_are_told_in_outline() -> None:
    inner = "std::map<unsigned long long, std::vector<std::complex<double>, my_allocator<double>>, comparator<int>>"
    label = make_kernel_label(f"void k<{inner}, {inner}, (int)3>(int)", "k")
    assert (
        label
        == "k<map<unsigned long long,vector,comparator>,map<unsigned long long,vector,comparator>,3>"
    )


ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<(int){width}, at::native::FillFunctor<{type}>, "
    "{array}<char *, (int)1>>(int, T2, T3)"
)


def number_equal_names(*names: str) -> list[str]:
    return make_labels_unique([make_kernel_label(name, "") for name in names], names)


def test_collisions_get_the_arguments_that_differ() -> None:
    first = ELEMENTWISE.format(width=4, type="float", array="std::array")
    wider = ELEMENTWISE.format(width=8, type="float", array="std::array")
    older = ELEMENTWISE.format(width=4, type="float", array="at::detail::Array")
    label = "vectorized_elementwise_kernel<FillFunctor<float>>"
    assert number_equal_names(first, wider) == [f"{label} <4>", f"{label} <8>"]
    assert number_equal_names(older, first) == [
        f"{label} <Array<char*,1>>",
        f"{label} <array<char*,1>>",
    ]
    assert make_labels_unique(["k", "k"], ["void k<float>(T1)", "void k<double>(T1)"]) == [
        "k <float>",
        "k <double>",
    ]


def test_collisions_get_parameters_or_namespaces_if_those_differ() -> None:
    assert number_equal_names(
        "add(float *, float *, float *, int)", "add(int, float *, float *)"
    ) == ["add (float*,float*,float*,int)", "add (int,float*,float*)"]
    assert number_equal_names("ours::step(int)", "theirs::step(int)") == [
        "step <ours>",
        "step <theirs>",
    ]
    assert number_equal_names("step(float *)", "step(double *)") == [
        "step <float*>",
        "step <double*>",
    ]


def test_collisions_without_a_telling_difference_are_numbered() -> None:
    names = ["k<<", "k<", "k<<<"]
    assert make_labels_unique(["k"] * 3, names) == ["k #2", "k #1", "k #3"]


def test_the_same_kernel_twice_has_one_label() -> None:
    assert make_labels_unique(["k", "k", "k"], ["k(int)", "k(float)", "k(int)"]) == [
        "k <int>",
        "k <float>",
        "k <int>",
    ]


def test_order_does_not_matter() -> None:
    names = [
        ELEMENTWISE.format(width=width, type=kind, array=array)
        for width in (2, 4, 8)
        for kind in ("float", "c10::Half")
        for array in ("std::array", "at::detail::Array")
    ]
    expected = dict(zip(names, make_labels_unique(["k"] * len(names), names), strict=True))
    assert len(set(expected.values())) == len(names)
    chance = random.Random(2)
    for _ in range(20):
        chance.shuffle(names)
        assert make_labels_unique(["k"] * len(names), names) == [expected[name] for name in names]
