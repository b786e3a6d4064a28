"""Test kernel classes derived from names: real names, rules of users, malicious names, and every
name in the corpus.
"""

import random
import sqlite3
from collections import Counter
from pathlib import Path

import pytest
from events.test_nccl_names import NOT_OF_NCCL, OF_NCCL
from tools.conversions import EVERY_ATTRIBUTE
from tools.corpus import read_rows_from_corpus
from tools.exports import KERNEL, make_export, make_kernel, make_strings
from tools.tables import read_table
from tools.trace_reader import Trace, read_trace

from nsys2prv import Options, convert
from nsys2prv._util.errors import Nsys2prvError
from nsys2prv.cli import main
from nsys2prv.conversion.options import CutOptions
from nsys2prv.events.catalogue import load_catalogue
from nsys2prv.events.name_rules import (
    Classifier,
    load_class_rules,
    normalize_name,
    read_class_rules,
)

SAMPLES = Path(__file__).parents[2] / "sample_reports"
KERNEL_TYPES, CLASS, TENSOR, SHAPE = (63000006, 63000007), 63000060, 63000061, 63000062
LABELS = {
    code: dict(load_catalogue().value_sets[name].labels)
    for code, name in ((CLASS, "kernel_class"), (TENSOR, "tensor_cores"))
}
SHIPPED = Classifier(load_class_rules())

GEMM, ATTENTION, CONVOLUTION, NORM = "GEMM", "Attention", "Convolution", "Normalisation"
COMMUNICATION, OPTIMIZER, OTHER = "Communication", "Optimizer", "Other"
YES, NO, UNKNOWN = "Yes", "No", "Unknown"


#: Name -> class, whether it runs on tensor cores, and shape.
NAMED = {
    name: tuple(expected)
    for *expected, name in read_table(Path(__file__).with_name("kernel_classes.tsv"))
}


def classify(name: str, classifier: Classifier = SHIPPED) -> tuple[str, str, str]:
    kernel_class = classifier.classify([name])[0]
    return (
        LABELS[CLASS][kernel_class.kind],
        LABELS[TENSOR][kernel_class.tensor_cores],
        kernel_class.shape,
    )


@pytest.mark.parametrize(("name", "expected"), NAMED.items())
def test_class(name: str, expected: tuple[str, str, str]) -> None:
    assert classify(name) == expected


def test_kernels_of_nccl_communicate_and_no_others_for_their_name() -> None:
    assert {classify(name)[0] for name in OF_NCCL} == {COMMUNICATION}
    others = {name for name in NOT_OF_NCCL if classify(name)[0] == COMMUNICATION}
    assert others == {
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, (int)2>(vllm::RankData *)"
    }


def test_the_own_name_of_a_kernel() -> None:
    for name, own in {
        "void <unnamed>::f<a<b>>(int)": "f",
        "void (anonymous namespace)::N::F<a>(int)": "n::f",
        "std::enable_if<!(false), void>::type internal::gemvx::kernel<int>(int)": "internal::gemvx::kernel",
        "nvjet_TNN": "nvjet_tnn",
        "f(int)": "f",
    }.items():
        assert normalize_name(name)[1] == own


# ---- names that mean harm --------------------------------------------------------------------------------------------------------------

PIECES = (
    "gemm_",
    "cutlass_",
    "tensorop_",
    "1x1x1_",
    "1x1_",
    "_nt_",
    "a",
    "(",
    "<",
    "_fusion",
    "triton_poi_fused",
    "_copy",
    "std::enable_if<",
    "cute::tuple<cute::C<1>, ",
    "CollectiveMma<",
    "loop",
    "_reduce",
    "sm80_xmma_",
    "volta_",
    "884",
    "cudnn",
    "nvjet_a_1x1_1x1_",
    "\n",
    "\ud800",
)
HOSTILE = [piece * (1_000_000 // len(piece)) for piece in PIECES] + [
    head + piece * 400_000
    for head in (
        "nvjet_tst_1x1_1x1",
        "volta_",
        "sm80_xmma_gemm",
        "void cutlass::Kernel<cutlass_",
        "void cutlass::device_kernel<CollectiveMma<",
        "triton_poi_fused",
        "loop",
        "input_",
        "cupy_",
        "void cutlass::Kernel<cutlass::gemm::GemmShape<1, 1, ",
        "fmha_cutlassF_f32_",
    )
    for piece in ("_1x1", "_copy", "gemm_", "_a", "1", ", ")
]


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: ascii(name[:24] + name[-6:]))
def test_no_rule_backtracks_without_end(name: str) -> None:
    """A rule that backtracks would take years on these names."""
    assert isinstance(classify(name, Classifier(load_class_rules()))[0], str)


def test_damaged_names_have_a_class() -> None:
    chance = random.Random(1)
    names = list(NAMED)
    for _ in range(5_000):
        name = chance.choice(names)
        at = chance.randrange(len(name) + 1)
        assert classify(
            name[:at]
            + chance.choice(("", *"<>()_: x8", chance.choice(names)[:40]))
            + name[at + 3 :]
        )[0]


# ---- rules of users ---------------------------------------------------------------------------------------------------------------------


def test_rules_of_users_come_first(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("""
rules:
  - {class: gemm, name: ^my_product_, tensor_cores: yes, shape: '_(?P<layout>[nt]+)_T(?P<m>[0-9]+)x(?P<n>[0-9]+)'}
  - {class: Attention, name: '^Jacobi', full: 'float \\*, const'}
  - {class: Other, name: saxpy}
""")
    classifier = Classifier(load_class_rules(rules))
    assert classify("my_product_tn_t64x32(float *)", classifier) == (GEMM, YES, "tn 64x32")
    assert classify("my_product_plain(float *)", classifier) == (GEMM, YES, "")
    assert classify("jacobi_kernel(float *, const float *)", classifier) == (ATTENTION, UNKNOWN, "")
    assert classify("jacobi_kernel(int)", classifier) == (OTHER, UNKNOWN, "")
    assert classify("saxpy(double *, double *)", classifier) == (OTHER, UNKNOWN, "")
    assert classify("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNN", classifier) == (
        GEMM,
        YES,
        "tnn 192x192x64",
    )


def test_the_example_of_the_documentation_is_valid() -> None:
    page = (SAMPLES.parent / "docs" / "kernel-classes.md").read_text(encoding="utf-8")
    classifier = Classifier(
        read_class_rules(page.partition("```yaml\n")[2].partition("```")[0], "kernel-classes.md")
    )
    assert classify("my_product_nt_tile64x64x16(float *)", classifier) == (GEMM, YES, "nt 64x64x16")
    assert classify("void launch<MyAttention<float>>(float *)", classifier) == (
        ATTENTION,
        UNKNOWN,
        "",
    )
    assert classify("void ns::apply_stencil<2>(float *)", classifier) == (CONVOLUTION, UNKNOWN, "")


def test_case_does_not_count_and_escapes_are_kept() -> None:
    classifier = Classifier(
        read_class_rules(
            r"""rules: [{class: GEMM, name: '^[A-F]\D+\SX$', shape: '(?P<m>\d+)(?P<LAYOUT>)'}]""",
            "rules",
        )
    )
    assert classify("Abcx", classifier)[0] == classify("ABCX", classifier)[0] == GEMM
    assert classify("A1CX", classifier)[0] == OTHER


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rules: [", "not YAML in line"),
        ("", "kernel rules are a list under the one key `rules`"),
        ("rules: [x]", "rule 1: a rule has keys class, name"),
        ("rules: [{class: GEMM, name: x}, {class: GEMM}]", "rule 2: lacks the key name or full"),
        ("rules: [{class: Gem, name: x}]", "rule 1: class 'Gem' is not one of GEMM, Attention"),
        (
            "rules: [{class: GEMM, name: '(x'}]",
            "rule 1: name: '(x' is not a regular expression: missing )",
        ),
        (
            "rules: [{class: GEMM, name: 12}]",
            "rule 1: name: '12' is not a regular expression; put it in quotes",
        ),
        ("rules: [{class: GEMM, names: x}]", "rule 1: unknown key 'names'"),
        (
            "rules: [{class: GEMM, name: x, tensor_cores: maybe}]",
            "rule 1: tensor_cores 'maybe' is not one of yes, no, unknown",
        ),
        (
            "rules: [{class: Other, name: x, tensor_cores: yes}]",
            "rule 1: tensor_cores: yes is only for GEMM, Attention and Convolution, not Other",
        ),
        (
            "rules: [{class: GEMM, name: x, shape: '[0-9]+'}]",
            "rule 1: shape needs a group named layout, m, n or k",
        ),
        ("[" * 10_000, "not YAML"),
    ],
)
def test_a_bad_file_of_rules_is_one_line(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(text)
    reports = sorted(map(str, (SAMPLES / "graphs").glob("rank*.sqlite")))
    assert main(["--kernel-rules", str(rules), *reports, str(tmp_path / "out.prv")]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"error: {rules}: {message}" in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rules.yaml"]


def test_a_file_of_rules_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(Nsys2prvError, match=r"nowhere\.yaml: No such file"):
        load_class_rules(tmp_path / "nowhere.yaml")
    with pytest.raises(Nsys2prvError, match="Is a directory"):
        load_class_rules(tmp_path)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"rules: \xff\xfe")
    with pytest.raises(Nsys2prvError, match="must be UTF-8"):
        load_class_rules(binary)


# ---- in a trace -----------------------------------------------------------------------------------------------------------------------


def sum_by_class(trace: Trace) -> Counter[tuple[str, str, str]]:
    """Return the time of kernels by class, tensor cores and shape, "" for what is not written."""
    total: Counter[tuple[str, str, str]] = Counter()
    for code in KERNEL_TYPES:
        # A graph traced as a whole is a kernel without a class.
        for interval in (one for one in trace.list_intervals(code) if CLASS in one.others):
            kind, tensor, shape = (
                trace.get_label(one, interval.others[one]) if one in interval.others else ""
                for one in (CLASS, TENSOR, SHAPE)
            )
            total[kind, tensor, shape] += interval.end - interval.begin
    return total


def leave_out_tensor_cores(kernel: tuple[str, str, str]) -> tuple[str, str, str]:
    """Return class, tensor cores and shape as a trace has them: tensor cores only of products."""
    kind, tensor, shape = kernel
    return kind, tensor if kind in (GEMM, ATTENTION, CONVOLUTION) else "", shape


def sum_by_class_in_sql(reports: list[Path]) -> Counter[tuple[str, str, str]]:
    """Return the same time, from SQL."""
    total: Counter[tuple[str, str, str]] = Counter()
    for path in reports:
        connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
        query = (
            "SELECT coalesce(nullif(long.value, ''), short.value, ''), sum(max(end - start, 1)) FROM CUPTI_ACTIVITY_KIND_KERNEL"
            " LEFT JOIN StringIds AS long ON long.id = demangledName LEFT JOIN StringIds AS short ON short.id = shortName GROUP BY 1"
        )
        for name, duration in connection.execute(query):
            total[leave_out_tensor_cores(classify(name))] += duration
        connection.close()
    return total


@pytest.mark.parametrize("sample", ["graphs", "training"])
def test_time_by_class_is_that_of_the_reports(sample: str, tmp_path: Path) -> None:
    reports = sorted((SAMPLES / sample).glob("rank*.sqlite"))
    convert(reports, tmp_path / "out.prv", Options(align="utc", cut=EVERY_ATTRIBUTE))
    trace = read_trace(tmp_path / "out.prv")
    assert not trace.violations, str(trace.violations)
    result = sum_by_class(trace)
    assert result == sum_by_class_in_sql(reports)
    assert {GEMM, ATTENTION, NORM, COMMUNICATION} <= {kind for kind, _, _ in result}
    # The class itself is a range that lasts as long as its kernel.
    by_class: Counter[str] = Counter()
    for (kind, _, _), duration in result.items():
        by_class[kind] += duration
    ranges: Counter[str] = Counter()
    for interval in trace.list_intervals(CLASS):
        ranges[trace.get_label(CLASS, interval.value)] += interval.end - interval.begin
    assert by_class == ranges


def test_each_kernel_has_its_own_class_and_users_rules_reach_the_workers(tmp_path: Path) -> None:
    names = list(NAMED)[:-1]
    report = make_export(
        tmp_path / "report.sqlite",
        {
            "StringIds": make_strings(*names),
            KERNEL: [
                make_kernel(
                    100 * number, 100 * number + number, demangledName=number, shortName=number
                )
                for number in range(1, len(names) + 1)
            ],
        },
    )
    rules = tmp_path / "rules.yaml"
    rules.write_text("rules: [{class: Optimizer, name: ^jacobi_kernel$, tensor_cores: no}]")
    for options, jacobi in (
        (Options(full_kernel_names=True, cut=EVERY_ATTRIBUTE), (OTHER, UNKNOWN, "")),
        (
            Options(full_kernel_names=True, jobs=2, kernel_rules=rules, cut=EVERY_ATTRIBUTE),
            (OPTIMIZER, NO, ""),
        ),
    ):
        convert([report], tmp_path / "out.prv", options)
        trace = read_trace(tmp_path / "out.prv")
        assert not trace.violations, str(trace.violations)
        expected = Counter()
        for number, name in enumerate(names, 1):
            kernel = jacobi if name.startswith("jacobi") else NAMED[name]
            expected[leave_out_tensor_cores(kernel)] += number
        assert sum_by_class(trace) == expected


def test_only_products_have_a_use_of_tensor_cores(tmp_path: Path) -> None:
    """Check that this does not depend on whether their class is written."""
    reports = sorted((SAMPLES / "graphs").glob("rank*.sqlite"))
    cut = CutOptions(fields={"kernels": ("tensor_cores",)})
    convert(reports, tmp_path / "out.prv", Options(align="utc", cut=cut))
    trace = read_trace(tmp_path / "out.prv")
    kernels = [one for code in KERNEL_TYPES for one in trace.list_intervals(code)]
    assert not any(CLASS in one.others for one in kernels)
    times: Counter[str] = Counter()
    for kernel in (one for one in kernels if TENSOR in one.others):
        times[trace.get_label(TENSOR, kernel.others[TENSOR])] += kernel.end - kernel.begin
    expected: Counter[str] = Counter()
    for (_, tensor, _), time in sum_by_class_in_sql(reports).items():
        expected[tensor] += time
    assert times == Counter({name: time for name, time in expected.items() if name})


# ---- the corpus -----------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def corpus() -> dict[str, int]:
    """Return every kernel of the corpus by name, and how often it ran."""
    query = (
        "SELECT coalesce(nullif(long.value, ''), short.value, ''), count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL"
        " LEFT JOIN StringIds AS long ON long.id = demangledName LEFT JOIN StringIds AS short ON short.id = shortName GROUP BY 1"
    )
    result: Counter[str] = Counter()
    for name, runs in read_rows_from_corpus(query):
        result[name] += runs
    return result


OF_LIBRARIES = (
    "at::",
    "at_cuda",
    "cub::",
    "thrust::",
    "cudnn",
    "cublas",
    "cutlass",
    "nccl",
    "nvjet",
    "triton",
    "sm80_",
    "sm90_",
    "ampere_",
    "volta_",
)


def test_no_kernel_of_a_library_is_left_over(corpus: dict[str, int]) -> None:
    """Of the libraries whose names mean something. There is no class of pooling."""
    others = [normalize_name(name)[0] for name in corpus if classify(name)[0] == OTHER]
    assert [name for name in others if name.startswith(OF_LIBRARIES) and "pool" not in name] == []
