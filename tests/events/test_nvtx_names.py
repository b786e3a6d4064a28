"""Test rules for NVTX names: PyTorch's suffixes, rules of users, mistakes in them, and names
counted by Python on real exports.
"""

import re
from pathlib import Path

import polars as pl
import pytest
from tools.conversions import convert_and_read, list_labelled_intervals
from tools.exports import Row, make_export, make_nvtx_range

from nsys2prv._util.columns import ABSENT
from nsys2prv._util.errors import Nsys2prvError
from nsys2prv.cli import main
from nsys2prv.events.kind import Reason
from nsys2prv.events.name_rules import load_nvtx_rules, read_nvtx_rules, rename_ranges, select_rules

PUSHPOP, NUMBER, STARTEND, MARK = 9600, 9602, 9610, 9620

PYTORCH = {
    "aten::mm": ("aten::mm", ABSENT),
    "aten::mm, op_id = 7": ("aten::mm", ABSENT),
    "aten::mm, seq = 5": ("aten::mm", 5),
    "aten::mm, seq = 5, op_id = 7": ("aten::mm", 5),
    "aten::mm, seq = 5, op_id = 7, sizes = [[2, 3], [3, 4], []]": ("aten::mm", 5),
    "aten::mm, seq = 12, sizes = [[2, 3]], input_op_ids = [(3,0), (4,1)]": ("aten::mm", 12),
    "aten::mm, op_id = 7, seq = 9": ("aten::mm", 9),
    "autograd::engine::evaluate_function: AddmmBackward0, op_id = 8": (
        "autograd::engine::evaluate_function: AddmmBackward0",
        ABSENT,
    ),
    "AddmmBackward, stashed seq=4": ("AddmmBackward", 4),
    "aten::relu, seq = -1": ("aten::relu", ABSENT),
    "FSDP::post_forward (encoder.block.0.layer.1), op_id = 3": (
        "FSDP::post_forward (encoder.block.0.layer.1)",
        ABSENT,
    ),
    "my range, seq = 5 and more": ("my range, seq = 5 and more", ABSENT),
    "f(a, op_id = 3)": ("f(a, op_id = 3)", ABSENT),
    "": ("", ABSENT),
}
COUNTED = {
    "iteration 17": ("iteration", 17),
    "iteration 0": ("iteration", 0),
    "Epoch 1 Batch 7": ("Epoch 1 Batch", 7),
    "ProfilerStep#12": ("ProfilerStep", 12),
    "Compute & Residual 90": ("Compute & Residual", 90),
    "Step 0 to 10": ("Step", 0),
    "batch 3/100": ("batch", 3),
    "batch [3 of 100]": ("batch", 3),
    "layer: 4": ("layer", 4),
    "token (5)": ("token", 5),
    "a\nb 5": ("a\nb", 5),
    "train_step_5": ("train_step", 5),
    "Micro_Batch-6": ("Micro_Batch", 6),
    "step 4, seq = 9": ("step 4", 9),
    "fc_1": ("fc_1", ABSENT),
    "laststep_1": ("laststep_1", ABSENT),
    "sm-90": ("sm-90", ABSENT),
    "conv2d": ("conv2d", ABSENT),
    "Module.10": ("Module.10", ABSENT),
    "x = -3": ("x = -3", ABSENT),
    "17": ("17", ABSENT),
    "# 17": ("# 17", ABSENT),
    "from 3 to here": ("from 3 to here", ABSENT),
    "id 123456789012345678901": ("id 123456789012345678901", ABSENT),
}
#: Steps of vLLM, and names that are dictionaries or end in one.
SERVING = {
    "execute_context_2(1024)_generation_30(30)": ("execute_context_generation", ABSENT),
    "execute_context_0(0)_generation_1(1)": ("execute_context_generation", ABSENT),
    "{'mod': 'torch.nn.functional', 'op': 'conv2d', 'args': [{'shape': (1, 3)}]}": (
        "torch.nn.functional.conv2d",
        ABSENT,
    ),
    "{'Module': 'model.layers.0.mlp', 'Inputs': [[1, 4096]]}": ("model.layers.0.mlp", ABSENT),
    '{"op": "prefill", "tokens": 17}': ("prefill", ABSENT),
    "forward {'batch': 3, 'seqlen': 128}": ("forward", ABSENT),
    "decode({'tokens': 17})": ("decode", ABSENT),
    "run: {batch=3}": ("run", ABSENT),
    "lambda {x}": ("lambda {x}", ABSENT),
    "{1, 2}": ("{1, 2}", ABSENT),
}


def apply_rules(text: str, *names: str, domain: str = "") -> list[tuple[str | None, int]]:
    """Apply the rules to names, and return the results and the kept numbers; None for a dropped
    name."""
    (rules,) = select_rules(tuple(read_nvtx_rules(text, "rules")), (domain,))
    result = rename_ranges(pl.Series(names, dtype=pl.String), rules)
    return [(name if wanted else None, number) for name, wanted, number in result.iter_rows()]


@pytest.mark.parametrize("expected", [PYTORCH, COUNTED, SERVING])
def test_names_by_the_rules_that_come_with_nsys2prv(expected: dict[str, tuple[str, int]]) -> None:
    names = list(expected)
    assert apply_rules("rules: []", *names) == list(expected.values())
    assert apply_rules("rules: []\nbuiltin: no", *names) == [(name, ABSENT) for name in names]
    assert load_nvtx_rules("none") == ()


def test_rules_of_users_come_first_and_each_sees_what_those_before_left() -> None:
    text = r"""
rules:
  - {match: '^iteration (?<number>\d+)$', replace: iteration}
  - {match: '^.*layer\.(\d+)\.(?<part>\w+).*$', replace: 'layer ${1} $part'}
  - {match: a, replace: b}
  - {match: '^bb', replace: 'c$$'}
  - {match: noise, drop: yes}
  - {match: noise, replace: never}
"""
    assert apply_rules(
        text, "iteration 17", "model.layer.3.mlp.x, op_id = 4", "aa, seq = 2", "some noise", "ok"
    ) == [("iterbtion", 17), ("lbyer 3 mlp", ABSENT), ("c$", 2), (None, ABSENT), ("ok", ABSENT)]


def test_rules_of_one_domain() -> None:
    text = "rules: [{match: x, replace: y, domain: ^lib$}, {match: z, drop: yes, domain: ^default domain$}]"
    assert apply_rules(text, "x", "z", domain="lib") == [("y", ABSENT), ("z", ABSENT)]
    assert apply_rules(text, "x", "z") == [("x", ABSENT), (None, ABSENT)]


def make_event(name: str, start: int, kind: int = 59) -> Row:
    return make_nvtx_range(start, start + 5, name, kind)


def test_all_sources_of_names_are_renamed_and_dropped_ones_counted(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "rules: [{match: ' [0-9]+$', replace: ''}, {match: ^gone, drop: yes}, {match: '^lost$', replace: ''}]"
    )
    rows = [
        make_event(f"{name} {number}", 10 * (10 * kind + number), kind)
        for kind in (59, 60, 34)
        for number in range(3)
        for name in ("a", "gone")
    ]
    report = make_export(tmp_path / "r.sqlite", {"NVTX_EVENTS": [*rows, make_event("lost", 9000)]})
    trace, summary = convert_and_read([report], tmp_path / "o.prv", nvtx_rules=rules)
    for code in (PUSHPOP, STARTEND, MARK):
        assert [name for name, *_ in list_labelled_intervals(trace, code)] == ["a"] * 3 + [
            "(no text)"
        ] * (code == PUSHPOP)
    assert {
        kind: count
        for (kind, reason), count in summary.dropped.items()
        if reason == Reason.NVTX_RULE
    } == {"nvtx_pushpop_trace": 3, "nvtx_startend_trace": 3, "nvtx_marks": 3}


def test_the_number_of_a_name_stays_on_its_range(tmp_path: Path) -> None:
    rows = [make_event("aten::mm, seq = 5, op_id = 1", 0), make_event("aten::mm, op_id = 2", 10)]
    report = make_export(tmp_path / "r.sqlite", {"NVTX_EVENTS": rows})
    trace, _ = convert_and_read([report], tmp_path / "o.prv")
    assert list_labelled_intervals(trace, PUSHPOP) == [("aten::mm", 0, 5), ("aten::mm", 10, 15)]
    assert [item.others.get(NUMBER) for item in trace.list_intervals(PUSHPOP)] == [5, None]


def test_examples_of_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "nvtx.md").read_text()
    first, second = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    name = "aten::mm, seq = 5, op_id = 7, sizes = [[2, 3], []], input_op_ids = [(1,0)]"
    assert apply_rules(
        first, "iteration 3", "model.layers.3.mlp.x", name, "nvtx_noise", "a [b]"
    ) == [
        ("iteration", 3),
        ("layer 3 mlp", ABSENT),
        ("aten::mm", 5),
        (None, ABSENT),
        ("a [b]", ABSENT),
    ]
    assert apply_rules(first, "a [b]", domain="trainer") == [("a", ABSENT)]
    assert apply_rules(second, name) == [("aten::mm, sizes = [[2, 3], []]", 5)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rules: 3", "list under the one key `rules`"),
        ("rules: [3]", "rule 1: a rule has keys match, replace, drop, domain"),
        ("rules: [{match: a}]", "rule 1: needs either `replace` or `drop: yes`"),
        ("rules: [{replace: b}]", "lacks the key match"),
        ("rules: [{match: '(', replace: b}]", "is not a regular expression"),
        ("rules: [{match: 3, replace: b}]", "put it in quotes"),
        ("rules: [{match: a, replace: 3}]", "'3' is not text"),
        ("rules: [{match: a, replace: $1}]", "is not a group"),
        ("rules: [{match: (a), replace: '$1b'}]", "write ${1} before"),
        ("rules: [{match: a, drop: maybe}]", "drop must be yes or no"),
        ("rules: [{match: a, drop: yes, domain: '['}]", "rule 1: domain"),
        ("rules: [{match: a, drop: yes, dmain: a}]", "unknown key 'dmain'"),
        ("rules: []\nbuiltin: 3", "builtin must be yes or no"),
        ("rules: [", "not YAML"),
    ],
)
def test_what_is_wrong_is_one_line(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Nsys2prvError, match=re.escape(message)):
        read_nvtx_rules(text, "rules.yaml")
    rules = tmp_path / "rules.yaml"
    rules.write_text(text)
    assert main(["--nvtx-rules", str(rules), "none.sqlite", str(tmp_path / "out.prv")]) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "status", "why"), [("absent.yaml", 1, "No such file"), ("-", 2, "give the name of a ")]
)
def test_no_file(name: str, status: int, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--nvtx-rules", "--kernel-rules"):
        assert main([option, name, "none.sqlite", "out.prv"]) == status
        assert f"{option} {name}: {why}" in capsys.readouterr().err
