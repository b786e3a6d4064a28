"""Event values of names: the same for the same name in every trace, as far as that can be.

Names come in columns (a frame per reading task) and stay there: a PyTorch run can make a million different range names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from nsys2prv.catalogue import NameSet
from nsys2prv.columns import read_frame
from nsys2prv.naming.kernels import disambiguate, readable_kernel_name
from nsys2prv.paraver.pcf import safe_labels

#: A set's distinct names (text and short form, in order of value) -> their labels.
Labeller = Callable[[list[str], list[str]], list[str]]
#: Names handled together: more would cost memory, fewer time.
BATCH_ROWS = 1_000_000


@dataclass(frozen=True)
class NameFile:
    """The names that one reading task met of one set, in the order of their local indices (Arrow IPC).

    Columns: text; where any name has one, short and domain, an index into `domains`.
    """

    path: Path
    domains: Sequence[str] = ()


@dataclass
class NameValues:
    """Values of one set's names. labels: frame of `value` and (safe) `label`. by_task: reading task -> value of each local index.

    domains: NVTX domain -> frame of the values met in it.
    """

    labels: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema={"value": pl.Int64, "label": pl.String}))
    by_task: dict[int, np.ndarray] = field(default_factory=dict)
    domains: dict[str, pl.DataFrame] = field(default_factory=dict)

    def labels_in(self, domain: str) -> pl.DataFrame:
        """The labels of the values met in one NVTX domain."""
        met = self.domains.get(domain)
        return self.labels.clear() if met is None else self.labels.join(met, on="value", how="semi")


def readable_kernels(texts: list[str], shorts: list[str]) -> list[str]:
    """Short kernel names that still tell: the functor stays where the short name alone is useless."""
    return disambiguate([readable_kernel_name(text, short) for text, short in zip(texts, shorts, strict=True)], texts)


def assign(sets: Mapping[str, NameSet], met: Mapping[str, Mapping[int, NameFile]],
           labellers: Mapping[str, Labeller]) -> dict[str, NameValues]:
    """Give every name met its value. met: set -> reading task -> file of its names.

    Known names have the value of the catalogue. The others are numbered in the order of their texts, from their set's first
    value on; sets of one space follow each other without overlap.
    """
    result = {}
    following: dict[str, int] = {}
    for name_set in sorted(sets.values(), key=lambda item: (item.space, item.first)):
        first = max(name_set.first, following.get(name_set.space, 0))
        result[name_set.name], following[name_set.space] = _assign_set(
            name_set, first, met.get(name_set.name, {}), labellers.get(name_set.name))
    return result


def _assign_set(name_set: NameSet, first: int, files: Mapping[int, NameFile], labeller: Labeller | None) -> tuple[NameValues, int]:
    """The values of one set, and the first value after them."""
    if not files:
        return NameValues(), first
    distinct = _distinct(files, labeller is not None)
    known = pl.DataFrame(list(name_set.known_values().items()), schema={"text": pl.String, "known": pl.Int64}, orient="row")
    distinct = distinct.join(known, on="text", how="left", maintain_order="left") if known.height else \
        distinct.with_columns(known=pl.lit(None, pl.Int64))
    distinct = distinct.with_columns(value=pl.coalesce("known", first - 1 + pl.col("known").is_null().cum_sum().cast(pl.Int64)))
    following = first + distinct["known"].null_count()
    values = NameValues()
    _look_up(values, files, distinct.select("text", "value"))
    labels = distinct["text"] if labeller is None else pl.Series(labeller(distinct["text"].to_list(), distinct["short"].to_list()),
                                                                 dtype=pl.String)
    values.labels = safe_labels(distinct.select("value").with_columns(label=labels))
    return values, following


def _distinct(files: Mapping[int, NameFile], shorts: bool) -> pl.DataFrame:
    """The distinct texts in order, each with the least of its short forms if those are wanted."""
    found = pl.DataFrame(schema={"text": pl.String, "short": pl.String} if shorts else {"text": pl.String})
    for batch in _batches(files):
        texts = pl.concat([found, *(_with_short(frame) if shorts else frame.select("text") for _, _, frame in batch)])
        found = texts.group_by("text").agg(pl.col("short").min()) if shorts else texts.unique()
    return found.sort("text")


def _with_short(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.select("text", "short" if "short" in frame.columns else pl.lit("").alias("short"))


def _look_up(values: NameValues, files: Mapping[int, NameFile], distinct: pl.DataFrame) -> None:
    """Fill in every task's values, and the values met per domain."""
    met: dict[str, list[pl.DataFrame]] = {}
    for batch in _batches(files):
        texts = pl.concat([frame.select("text") for _, _, frame in batch])
        column = texts.join(distinct, on="text", how="left", maintain_order="left")["value"]
        start = 0
        for task, file, frame in batch:
            part = column.slice(start, frame.height)
            start += frame.height
            values.by_task[task] = part.to_numpy()
            if "domain" not in frame.columns:
                met.setdefault("", []).append(part.to_frame("value"))
                continue
            for (domain,), rows in frame.select("domain").with_columns(value=part).partition_by("domain", as_dict=True).items():
                met.setdefault(file.domains[domain], []).append(rows.select("value"))
    values.domains = {domain: pl.concat(frames).unique() for domain, frames in met.items()}


def _batches(files: Mapping[int, NameFile]) -> Iterator[list[tuple[int, NameFile, pl.DataFrame]]]:
    """The tasks' names, a bounded number of rows at a time."""
    batch: list[tuple[int, NameFile, pl.DataFrame]] = []
    for task, file in sorted(files.items()):
        batch.append((task, file, read_frame(file.path)))
        if sum(frame.height for _, _, frame in batch) >= BATCH_ROWS:
            yield batch
            batch = []
    if batch:
        yield batch
