"""Read what the texts of NVTX ranges say beside the name: the operations of matrix products, by their
shapes, and the phase, requests and tokens of steps of serving.

Shapes:

* PyTorch's emit_nvtx with record_shapes: `aten::mm, seq = 5, op_id = 7, sizes = [[2, 3], [3, 4]]`, a list
  for each argument. `addmm` and `baddbmm` have the products' operands behind what is added. Operators that call
  these (`aten::linear`, `aten::matmul`) are not counted, so that no product counts twice.
* Hooks of modules (vLLM, SGLang, TensorRT-LLM) put a dictionary in the place of a name: `{'Module': 'model.layers.0.mlp',
  'TrainableParams': {'weight': [n, k]}, 'Inputs': [[m, k]]}` of a linear layer.

A product of an m x k and a k x n matrix takes 2 m n k operations, those of a batch as many times.

Steps of serving: `execute_context_2(1024)_generation_30(30)` of vLLM (requests, and their tokens, that begin and
that go on), `[Executor] _forward_step 812: 1 ctx reqs, 2048 ctx tokens, 31 gen reqs` of TensorRT-LLM,
`step[EXTEND bs=2 toks=900]` of SGLang.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from nsys2prv._util.columns import ABSENT
from nsys2prv.events.catalogue import map_labels
from nsys2prv.export.source import FEW_TEXTS, DistinctTexts, Texts, decode_texts

#: What is read of a text: columns (int64), ABSENT where it does not say so.
FACTS = ("operations", "phase", "requests", "tokens")
#: Texts that may have shapes of a product, or are of a step.
_PRODUCT = r"^aten::(?:_scaled_mm|addmm|baddbmm|bmm|mm),.*\bsizes = \[\[|^\{'Module': .*'weight': \[\d+, \d+\].*'Inputs': \["
_STEP = (
    r"^(?:execute_(?:\d+_)?context_\d|\[Executor\] _forward_step|step\[(?:EXTEND|DECODE|MIXED)\b)"
)
#: How such texts begin, those of steps among them, and what is in all that have shapes.
_OF_STEPS = ("execute_", "[Executor]", "step[")
_BEGINNINGS, _SHAPES = ("aten::", "{'Module'", *_OF_STEPS), "[["
#: The operator, and the shapes of its first three arguments.
_OPERATOR = r"^aten::(?<op>_scaled_mm|addmm|baddbmm|bmm|mm),.*?\bsizes = \[\[(?<a>[\d, ]*)\](?:, \[(?<b>[\d, ]*)\])?(?:, \[(?<c>[\d, ]*)\])?"
#: Weights of a linear layer, n x k, and its first input, whose last size is k.
_LINEAR = r"'weight': \[(?<n>\d+), (?<k>\d+)\].*?'Inputs': \[\[(?<input>[\d, ]*)\]"
#: Operators whose first argument is added to the product of the others.
_ADDING = ("addmm", "baddbmm")
#: Requests and tokens of a step that begin, and that go on.
_COUNTS = (
    r"^execute_(?:\d+_)?context_(?<begin>\d+)\((?<begin_tokens>\d+)\)_generation_(?<go_on>\d+)\((?<go_on_tokens>\d+)\)$",
    r"_forward_step(?: \d+)?: (?<begin>\d+) ctx reqs, (?:(?<begin_tokens>\d+) ctx tokens, )?(?<go_on>\d+) gen reqs$",
)
#: The word for the phase of a step, its requests and its tokens.
_WORDS = (
    r"^step\[(?<word>EXTEND|DECODE|MIXED)\b(?:.*\bbs=(?<requests>\d+))?(?:.*\btoks=(?<tokens>\d+))?"
)
_PHASES = map_labels("serving_phase")
_PHASE_OF = {
    "EXTEND": _PHASES["prefill"], "DECODE": _PHASES["decode"], "MIXED": _PHASES["mixed"]
}  # fmt: skip
#: More operations come from a damaged text.
_MOST = 1 << 60


def read_facts(texts: DistinctTexts) -> np.ndarray:
    """Return what each text says: a row for each of FACTS (int64). Of many texts only the templates are
    looked at first.
    """
    templates = texts.templates if len(texts) > FEW_TEXTS else None
    if templates is None:
        return read_facts_of(texts.decode())
    says = np.array(list(map(_may_say, decode_texts(templates.firsts).to_list())), bool)
    rows = np.flatnonzero(says[templates.codes])
    facts = np.full((len(FACTS), len(texts)), ABSENT)
    if len(rows):
        facts[:, rows] = read_facts_of(decode_texts(texts.take(rows)).to_list())
    return facts


def read_facts_of(texts: Texts) -> np.ndarray:
    """Return what each text says: a row for each of FACTS (int64)."""
    facts = np.full((len(FACTS), len(texts)), ABSENT)
    rows = np.flatnonzero(np.array(list(map(_may_say, texts)), bool))
    if not len(rows):
        return facts
    chosen = pl.Series("text", [texts[row] for row in rows.tolist()], dtype=pl.String)
    for pattern, places, read in (
        (_PRODUCT, [0], _count_operations),
        (_STEP, [1, 2, 3], _read_steps),
    ):
        own = np.flatnonzero(chosen.str.contains(pattern).to_numpy())
        if len(own):
            found = read(chosen.gather(own)).fill_null(ABSENT).to_numpy()
            facts[np.ix_(places, rows[own])] = found.T
    return facts


def _may_say(text: str) -> bool:
    """Return whether a text may say something, which is quicker told than by patterns."""
    return text.startswith(_BEGINNINGS) and (_SHAPES in text or text.startswith(_OF_STEPS))


def _read_steps(texts: pl.Series) -> pl.DataFrame:
    """Return `phase`, `requests` and `tokens` of steps, null where they are not told."""
    frame = texts.to_frame().with_columns(
        *(pl.col("text").str.extract_groups(one).alias(f"{at}") for at, one in enumerate(_COUNTS)),
        said=pl.col("text").str.extract_groups(_WORDS),
    )

    def take(name: str) -> pl.Expr:
        counts = (pl.col(str(at)).struct.field(name) for at in range(len(_COUNTS)))
        return pl.coalesce(*counts).cast(pl.Int64, strict=False)

    begin, go_on = take("begin"), take("go_on")
    phase = (
        pl.when(begin > 0, go_on > 0).then(_PHASES["mixed"]).when(begin > 0).then(_PHASES["prefill"])
        .when(go_on > 0).then(_PHASES["decode"])
    )  # fmt: skip
    said = pl.col("said").struct
    requests, tokens = (
        said.field(name).cast(pl.Int64, strict=False) for name in ("requests", "tokens")
    )
    # Without a number each request that goes on gets one token, and those that do not begin have none.
    beginning = pl.coalesce(take("begin_tokens"), pl.when(begin == 0).then(0))
    going_on = pl.coalesce(
        pl.col("0").struct.field("go_on_tokens").cast(pl.Int64, strict=False), go_on
    )
    one_each = pl.when(said.field("word") == "DECODE").then(requests)
    of_word = said.field("word").replace_strict(_PHASE_OF, default=None, return_dtype=pl.Int64)
    return frame.select(
        phase=pl.coalesce(phase, of_word),
        requests=pl.coalesce(begin + go_on, requests),
        tokens=pl.coalesce(beginning + going_on, tokens, one_each),
    ).cast(pl.Int64)


def _count_operations(texts: pl.Series) -> pl.DataFrame:
    """Return the operations of products, null where the shapes are of none."""
    frame = texts.to_frame().with_columns(
        operator=pl.col("text").str.extract_groups(_OPERATOR),
        linear=pl.col("text").str.extract_groups(_LINEAR),
    )
    operator, linear = pl.col("operator").struct, pl.col("linear").struct
    adds = operator.field("op").is_in(_ADDING)
    first, second = (
        pl.when(adds).then(operator.field(behind)).otherwise(operator.field(before))
        for before, behind in (("a", "b"), ("b", "c"))
    )
    left, right, given = map(_parse_sizes, (first, second, linear.field("input")))
    # The operands of a batch of products are alike but for their last two sizes.
    fits = (left.list.len() == right.list.len()) & (
        left.list.last() == right.list.get(-2, null_on_oob=True)
    )
    of_operator = pl.when(fits, left.list.len() >= 2).then(
        _multiply(left) * right.list.last().cast(pl.Float64)
    )
    n, k = (linear.field(name).cast(pl.Int64, strict=False) for name in ("n", "k"))
    of_linear = pl.when(given.list.last() == k, given.list.len() >= 2).then(
        _multiply(given) * n.cast(pl.Float64)
    )
    operations = 2 * pl.coalesce(of_operator, of_linear)
    whole = pl.when(operations < _MOST).then(operations).cast(pl.Int64)
    return frame.select(operations=whole)


def _parse_sizes(sizes: pl.Expr) -> pl.Expr:
    """Return the numbers of a list such as `2, 3`."""
    return sizes.str.extract_all(r"\d+").cast(pl.List(pl.Int64))


def _multiply(sizes: pl.Expr) -> pl.Expr:
    """Return the product of the numbers of a list."""
    return sizes.list.eval(pl.element().cast(pl.Float64).product()).list.first()
