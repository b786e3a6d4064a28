"""Count the operations of matrix products that the texts of NVTX ranges have the shapes of.

* PyTorch's emit_nvtx with record_shapes: `aten::mm, seq = 5, op_id = 7, sizes = [[2, 3], [3, 4]]`, a list
  for each argument. `addmm` and `baddbmm` have the products' operands behind what is added. Operators that call
  these (`aten::linear`, `aten::matmul`) are not counted, so that no product counts twice.
* Hooks of modules (vLLM, SGLang, TensorRT-LLM) put a dictionary in the place of a name: `{'Module': 'model.layers.0.mlp',
  'TrainableParams': {'weight': [n, k]}, 'Inputs': [[m, k]]}` of a linear layer.

A product of an m x k and a k x n matrix takes 2 m n k operations, those of a batch as many times.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from nsys2prv._util.columns import ABSENT
from nsys2prv.export.source import FEW_TEXTS, DistinctTexts, decode_texts

#: Texts that may have shapes of a product, as bytes of them show.
_MAY_BE_PRODUCT = r"^aten::(?:_scaled_mm|addmm|baddbmm|bmm|mm),.*\bsizes = \[\[|^\{'Module': .*'weight': \[\d+, \d+\].*'Inputs': \["
#: The operator, and the shapes of its first three arguments.
_OPERATOR = r"^aten::(?<op>_scaled_mm|addmm|baddbmm|bmm|mm),.*?\bsizes = \[\[(?<a>[\d, ]*)\](?:, \[(?<b>[\d, ]*)\])?(?:, \[(?<c>[\d, ]*)\])?"
#: Weights of a linear layer, n x k, and its first input, whose last size is k.
_LINEAR = r"'weight': \[(?<n>\d+), (?<k>\d+)\].*?'Inputs': \[\[(?<input>[\d, ]*)\]"
#: Operators whose first argument is added to the product of the others.
_ADDING = ("addmm", "baddbmm")
#: More operations come from a damaged text.
_MOST = 1 << 60


def count_operations(texts: DistinctTexts) -> np.ndarray:
    """Return the operations of the product that each text has the shapes of (int64), ABSENT for others. Of
    many texts only the templates are looked at first.
    """
    templates = texts.templates if len(texts) > FEW_TEXTS else None
    if templates is None:
        return count_of_texts(decode_texts(texts.series))
    is_product = decode_texts(templates.firsts).str.contains(_MAY_BE_PRODUCT).to_numpy()
    rows = np.flatnonzero(is_product[templates.codes])
    counts = np.full(len(texts), ABSENT)
    if len(rows):
        counts[rows] = count_of_texts(decode_texts(texts.take(rows)))
    return counts


def count_of_texts(texts: pl.Series) -> np.ndarray:
    """Return the operations of the product that each text has the shapes of, ABSENT for others."""
    rows = np.flatnonzero(texts.str.contains(_MAY_BE_PRODUCT).to_numpy())
    counts = np.full(len(texts), ABSENT)
    if len(rows):
        counts[rows] = _count_of_products(texts.gather(rows)).to_numpy()
    return counts


def _count_of_products(texts: pl.Series) -> pl.Series:
    """Return the operations of products, ABSENT where the shapes are of none."""
    frame = texts.to_frame("text").with_columns(
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
    return frame.select(operations=whole.fill_null(ABSENT))["operations"]


def _parse_sizes(sizes: pl.Expr) -> pl.Expr:
    """Return the numbers of a list such as `2, 3`."""
    return sizes.str.extract_all(r"\d+").cast(pl.List(pl.Int64))


def _multiply(sizes: pl.Expr) -> pl.Expr:
    """Return the product of the numbers of a list."""
    return sizes.list.eval(pl.element().cast(pl.Float64).product()).list.first()
