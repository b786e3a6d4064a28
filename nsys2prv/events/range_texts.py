"""Read facts other than the name from the texts of ranges: operations of GEMMs, attention and
convolutions, from their shapes; and phase, requests and tokens of serving steps.

Shapes:

* PyTorch's emit_nvtx with record_shapes writes a list for each argument: `aten::mm, seq = 5, op_id
  = 7, sizes = [[2, 3], [3, 4]]`. Some operators have an argument before their operands, such as an
  addend or a gradient. Operators that call these (`aten::linear`, `aten::matmul`) are not counted,
  so that no product counts twice.
* Hooks of modules (vLLM, SGLang, TensorRT-LLM) write a dictionary instead of a name. Linear layers:
  `{'Module': 'model.layers.0.mlp', 'TrainableParams': {'weight': [n, k]}, 'Inputs': [[m, k]]}`.
  Convolutions also have stride, padding and dilation. PyProf writes a dictionary for functions:
  `{'mod': 'torch.nn.functional', 'op': 'linear', 'args': [...]}`.

Operations:

* The product of an m x k and a k x n matrix takes 2 m n k operations; a batch of products takes
  this times its size.
* Attention with h heads, s queries and t keys takes 2 h s t (d + v), where d and v are the numbers
  in a key and a value. Its backward pass takes 2.5 times as many, because fused kernels compute the
  scores again. A causal mask halves this if s = t; otherwise s t - s (s - 1) / 2 of s t pairs
  remain. Packed sequences of different lengths are not counted, because no text contains their
  lengths.
* A convolution takes 2 operations for each output, input channel of its group, and element of the
  kernel. The backward pass, for input and weight, takes twice as many. The operator of the forward
  pass has no stride and is not counted.

Serving steps: `execute_context_2(1024)_generation_30(30)` in vLLM (requests and tokens that begin,
and that continue); `[Executor] _forward_step 812: 1 ctx reqs, 2048 ctx tokens, 31 gen reqs` in
TensorRT-LLM; `step[EXTEND bs=2 toks=900]` in SGLang.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from nsys2prv._util.columns import ABSENT
from nsys2prv.events.catalogue import map_labels
from nsys2prv.export.source import FEW_TEXTS, DistinctTexts, Texts, decode_texts

#: Facts read from a text: columns (int64), ABSENT if the text does not state it. Of a product: its
#: operations, its operations with a causal mask if it is attention, and the number of elements in
#: its operands and results.
FACTS = ("operations", "phase", "requests", "tokens", "masked", "elements")
#: Operators with shapes that define a product: GEMMs, attention, the backward pass of a
#: convolution.
_OPERATOR = (
    r"^(?:aten|flash_attn\w*)::(_scaled_mm|addmm|baddbmm|bmm|mm|convolution_backward|_flash_attn_(?:forward|backward)"
    r"|_scaled_dot_product_(?:flash|efficient|cudnn)_attention(?:_backward)?),"
)
#: Those with an argument before the operands, those of attention, and those of it with heads behind sequences.
_LATER, _ATTENTION, _HEADS_LAST = (
    "^b?addb?mm$|att(n|ention)_backward$",
    "att(n|ention)",
    "^_flash_attn",
)
#: Texts that may have shapes of a product, or are of a step.
_PRODUCT = (
    _OPERATOR
    + r".*\bsizes = \[\[|^\{'Module': .*'weight': \[\d+, \d+.*'Inputs': \[|^\{'mod': '[^']*', 'op': 'linear', "
)
_STEP = (
    r"^(?:execute_(?:\d+_)?context_\d|\[Executor\] _forward_step|step\[(?:EXTEND|DECODE|MIXED)\b)"
)
#: Starts of such texts, and text that all others with shapes contain.
_WITHOUT = ("execute_", "[Executor]", "step[", "{'mod': ")
_BEGINNINGS, _SHAPES = ("aten::", "flash_attn", "{'Module'", *_WITHOUT), "[["
#: The shapes of all arguments; weights of a module and its first input, and the same of PyProf.
_SIZES = r"\bsizes = \[(\[.*?\])\](?:,|$)"
_MODULE = r"'weight': \[(?<weight>[\d, ]+)\].*?'Inputs': \[\[(?<input>[\d, ]*)\]"
_PYPROF = r"'shape': \((?<input>[\d, ]*)\).*?'shape': \((?<weight>[\d, ]*)\)"
#: Other facts about a convolution.
_STEPS = ("stride", "padding", "dilation")
#: Operations of the backward pass of attention, relative to its forward pass.
_OF_BACKWARD = 2.5
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
    """Read facts such as shapes and numbers of tokens from the texts of NVTX ranges. Return a row
    per entry of FACTS (int64) with the value in each text. If there are many texts, their templates
    are examined first.
    """
    templates = None if len(texts) <= FEW_TEXTS else texts.templates
    if templates is None:
        return read_facts_of(texts.decode())
    says = np.array(list(map(_may_say, decode_texts(templates.firsts).to_list())), bool)
    rows = np.flatnonzero(says[templates.codes])
    facts = np.full((len(FACTS), len(texts)), ABSENT)
    if len(rows):
        facts[:, rows] = read_facts_of(decode_texts(texts.take(rows)).to_list())
    return facts


def read_facts_of(texts: Texts) -> np.ndarray:
    """Read the same facts as :func:`read_facts` from decoded texts. Return a row per entry of FACTS
    (int64).
    """
    facts = np.full((len(FACTS), len(texts)), ABSENT)
    if isinstance(texts, list):
        # Most reports have none such, which is quicker told of all texts at once.
        together = "\n".join(texts)
        if not any(one in together for one in _BEGINNINGS):
            return facts
    rows = np.flatnonzero(np.array(list(map(_may_say, texts)), bool))
    if not len(rows):
        return facts
    chosen = pl.Series("text", [texts[row] for row in rows.tolist()], dtype=pl.String)
    for pattern, places, read in (
        (_PRODUCT, [0, 4, 5], _count_operations),
        (_STEP, [1, 2, 3], _read_steps),
    ):
        own = np.flatnonzero(chosen.str.contains(pattern).to_numpy())
        if len(own):
            found = read(chosen.gather(own)).fill_null(ABSENT).to_numpy()
            facts[np.ix_(places, rows[own])] = found.T
    return facts


def _may_say(text: str) -> bool:
    """Return True if a text may contain a fact. This is faster than matching patterns."""
    return text.startswith(_BEGINNINGS) and (_SHAPES in text or text.startswith(_WITHOUT))


def _read_steps(texts: pl.Series) -> pl.DataFrame:
    """Return `phase`, `requests` and `tokens` of serving steps, null if missing."""
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
    # Without a number, each continuing request gets one token. Without starting requests, their
    # tokens are 0.
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
    """Return `operations`, `masked` and `elements` of products; null if a text has no shapes of a
    product.
    """
    text = pl.col("text")
    frame = texts.to_frame().with_columns(
        operator=text.str.extract(_OPERATOR),
        shapes=text.str.extract(_SIZES).str.extract_all(r"\[[\d, ]*\]"),
        module=text.str.extract_groups(_MODULE),
        pyprof=text.str.extract_groups(_PYPROF),
        **{name: _parse_sizes(text.str.extract(rf"'{name}': \(([\d, ]+)\)")) for name in _STEPS},
    )
    first = pl.col("operator").str.contains(_LATER).cast(pl.Int64)
    both = pl.col("module").struct, pl.col("pyprof").struct
    frame = frame.with_columns(
        *(
            _parse_sizes(pl.col("shapes").list.get(first + at, null_on_oob=True)).alias(name)
            for at, name in enumerate("abc")
        ),
        *(
            _parse_sizes(pl.coalesce(one.field(name) for one in both)).alias(name)
            for name in ("weight", "input")
        ),
    )
    operations, masked, elements = zip(
        _count_matrices(), _count_attention(), _count_convolutions(), *_count_modules(), strict=True
    )
    counts = {
        name: pl.coalesce(one)
        for name, one in (("operations", operations), ("masked", masked), ("elements", elements))
    }
    is_possible = counts["operations"] < _MOST
    return frame.select(
        pl.when(is_possible).then(one).cast(pl.Int64).alias(name) for name, one in counts.items()
    )


#: Operations of a product, operations with a causal mask, and number of elements in its operands
#: and results: null for other texts.
_Counts = tuple[pl.Expr, pl.Expr, pl.Expr]


def _count_matrices() -> _Counts:
    a, b = pl.col("a"), pl.col("b")
    # The operands of a batch of products are equal except for their last two sizes.
    fits = (a.list.len() >= 2) & (a.list.len() == b.list.len())
    fits &= ~pl.col("operator").str.contains(f"{_ATTENTION}|convolution")
    inner, columns = a.list.last(), b.list.last()
    fits &= inner == b.list.get(-2, null_on_oob=True)
    results = _multiply(a) / inner * columns
    elements = _multiply(a) + _multiply(b) + results
    return _where(fits, 2 * results * inner, None, elements)


def _count_attention() -> _Counts:
    q, k, v = (pl.col(name) for name in "abc")
    operator = pl.col("operator")
    sequence = pl.when(operator.str.contains(_HEADS_LAST)).then(1).otherwise(2)
    queries, keys, values = (one.list.get(sequence, null_on_oob=True) for one in (q, k, v))
    fits = operator.str.contains(_ATTENTION) & (values == keys)
    for one in (q, k, v):
        fits &= (one.list.len() == 4) & (one.list.first() == q.list.first())
    depth = q.list.last()
    fits &= k.list.last() == depth
    results = _multiply(q) / depth * v.list.last()
    # Each query meets each key, as a number in q and one in the result do.
    operations = 2 * keys * (_multiply(q) + results)
    elements = _multiply(q) + _multiply(k) + _multiply(v) + results
    hidden = pl.when(queries == keys).then(keys / 2).otherwise((queries - 1) / 2)
    # Later queries than keys see none of these.
    seen = pl.when(queries <= keys).then(1 - hidden / keys).otherwise((keys + 1) / (2 * queries))
    is_backward = operator.str.contains("backward")
    operations *= pl.when(is_backward).then(_OF_BACKWARD).otherwise(1.0)
    elements *= pl.when(is_backward).then(2).otherwise(1)
    return _where(fits, operations, operations * seen, elements)


def _count_convolutions() -> _Counts:
    """Return the counts for the backward pass of convolutions. a: gradient of the output; b: input;
    c: weight.
    """
    gradient, given, weight = (pl.col(name) for name in "abc")
    fits = pl.col("operator").str.contains("convolution") & (weight.list.len() >= 3)
    for one in (gradient, given):
        fits &= one.list.len() == weight.list.len()
    outputs, inputs, kernel = map(_multiply, (gradient, given, weight))
    filters, of_group = weight.list.first(), weight.list.get(1, null_on_oob=True)
    ends = {
        name: one.list.get(1, null_on_oob=True) for name, one in (("in", given), ("out", gradient))
    }
    is_plain = (filters == ends["out"]) & (ends["in"] % of_group == 0)
    # A transposed one, whose weight has the input's channels first, makes more outputs than inputs.
    is_transposed = (filters == ends["in"]) & (ends["out"] % of_group == 0)
    is_plain &= ~is_transposed | (outputs <= inputs)
    each = pl.when(is_plain).then(outputs).when(is_transposed).then(inputs) * kernel / filters
    return _where(fits, 2 * 2 * each, None, outputs + 2 * inputs + 2 * kernel)


def _count_modules() -> tuple[_Counts, _Counts]:
    """Return the counts for linear layers and for convolutions, from their weights and first
    inputs.
    """
    weight, given = pl.col("weight"), pl.col("input")
    inputs, numbers = _multiply(given), _multiply(weight)
    inner = given.list.last()
    is_linear = (weight.list.len() == 2) & (given.list.len() >= 2) & (weight.list.last() == inner)
    results = inputs / inner * weight.list.first()
    linear = _where(is_linear, 2 * results * inner, None, inputs + numbers + results)
    stride, padding, dilation = (pl.col(name) for name in _STEPS)
    reach = dilation * (weight.list.slice(2) - 1)
    spatial = (given.list.slice(2) + 2 * padding - reach - 1) // stride + 1
    fits = (weight.list.len() >= 3) & (given.list.len() == weight.list.len())
    fits &= ~pl.col("text").str.contains("'transposed': True", literal=True)
    outputs = given.list.first() * weight.list.first() * _multiply(spatial)
    operations = 2 * outputs * numbers / weight.list.first()
    return linear, _where(fits, operations, None, inputs + numbers + outputs)


def _where(
    fits: pl.Expr, operations: pl.Expr, masked: pl.Expr | None, elements: pl.Expr
) -> _Counts:
    """Return counts where shapes fit each other, otherwise nulls."""
    lacks = pl.lit(None, pl.Float64)
    counts = (operations, lacks if masked is None else masked, elements)
    operations, masked, elements = (pl.when(fits).then(one) for one in counts)
    return operations, masked, elements


def _parse_sizes(sizes: pl.Expr) -> pl.Expr:
    """Return the numbers of a list such as `2, 3`."""
    return sizes.str.extract_all(r"\d+").cast(pl.List(pl.Float64))


def _multiply(sizes: pl.Expr) -> pl.Expr:
    """Return the product of the numbers of a list."""
    return sizes.list.eval(pl.element().cast(pl.Float64).product()).list.first()
