"""Values of names in earlier traces, as their .pcf files have them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from nsys2prv.events.catalogue import LAST_HASHED_DOMAIN, DomainCode, Field, NameSet, load_catalogue
from nsys2prv.paraver.pcf import PcfType, read_pcf, replace_brackets

#: Greater values are none of ours, and leave no room behind them.
GREATEST = 10**9
NO_NAMES = pl.DataFrame(schema={"label": pl.String, "value": pl.Int64, "sure": pl.Boolean})


def read_base_names(paths: Sequence[Path]) -> dict[str, pl.DataFrame]:
    """Return name set -> frame of `label`, `value` (each only once) and `sure`: whether the label
    means this value and no other. The earlier file decides.
    """
    by_set: dict[str, list[pl.DataFrame]] = {}
    for path in paths:
        for name_set, frame in _read_file(read_pcf(path)).items():
            by_set.setdefault(name_set, []).append(frame)
    return {
        name_set: pl.concat(frames)
        .unique("value", keep="first", maintain_order=True)
        .with_columns(pl.col("sure") & pl.col("label").is_first_distinct())
        for name_set, frames in by_set.items()
    }


def _read_file(types: Sequence[PcfType]) -> dict[str, pl.DataFrame]:
    """Return the names of one file by set."""
    fields = [
        field
        for layout in load_catalogue().layouts.values()
        for field in layout.fields
        if isinstance(field.values, NameSet)
    ]
    by_set: dict[str, list[pl.DataFrame]] = {}
    for pcf_type in sorted(types, key=lambda item: item.code):
        labels = pl.DataFrame(
            list(pcf_type.labels.items()),
            schema={"value": pl.Int64, "label": pl.String},
            orient="row",
        )
        labels = replace_brackets(
            labels.filter(pl.col("value").is_between(1, GREATEST)).select("label", "value")
        )
        for name_set in {
            shown.values.name for shown in fields if _is_type_of_field(pcf_type, shown)
        }:
            by_set.setdefault(name_set, []).append(labels)
    return {
        name_set: pl.concat(frames)
        .unique(maintain_order=True)
        .with_columns(sure=~pl.col("label").is_duplicated())
        for name_set, frames in by_set.items()
    }


def _is_type_of_field(pcf_type: PcfType, field: Field) -> bool:
    """True if a type of the file is that of a field, in any NVTX domain."""
    if not isinstance(field.code, DomainCode):
        return pcf_type.code == field.code
    if pcf_type.code in dict(field.code.named).values():
        return True
    number, rest = divmod(
        pcf_type.code - field.code.base, field.code.code_of("", 1) - field.code.code_of("", 0)
    )
    return (
        rest == 0
        and 0 <= number <= LAST_HASHED_DOMAIN
        and pcf_type.label.startswith(field.label.partition("{domain}")[0])
    )


def count_families(names: pl.DataFrame) -> pl.DataFrame:
    """Return the labels with `members`: how many share each but for the number behind it."""
    bare = pl.col("label").str.extract(r"(?s)^(.*) #\d+$", 1)
    family = pl.when(bare.is_in(names["label"].implode())).then(bare).otherwise("label")
    return (
        names.with_columns(family=family)
        .with_columns(members=pl.len().over("family"))
        .drop("family")
    )
