"""Event values of names: the same value for the same name in every trace, as far as that can be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import polars as pl
from msgspec import Struct, field

from nsys2prv._util.columns import StoredFrame, read_frame
from nsys2prv.events.catalogue import NameSet
from nsys2prv.events.names.kernels import make_kernel_label, make_labels_unique
from nsys2prv.paraver.pcf import NO_NAMES, count_families, make_labels_safe

#: A set's distinct names (text and short form, in order of value) -> their labels.
Labeller = Callable[[list[str], list[str]], list[str]]
#: Names of some reading tasks, by the number of each.
Batch = list[tuple[int, "NameFile", pl.DataFrame]]
#: Names handled together: more would cost memory, fewer time.
BATCH_ROWS = 1_000_000


class NameFile(Struct, frozen=True):
    """The names that one reading task met of one set, in the order of their local indices.

    Columns: text; where any name has one, short and domain, an index into `domains`.
    """

    #: Columns text, and where any name has one short and domain.
    frame: StoredFrame
    #: Names of NVTX domains that the column domain indexes.
    domains: Sequence[str] = ()


class NameValues(Struct):
    """Values of the names of one set."""

    #: Frame of `value` and (safe) `label`.
    labels: pl.DataFrame = field(
        default_factory=lambda: pl.DataFrame(schema={"value": pl.Int64, "label": pl.String})
    )
    #: Reading task -> value of each local index.
    by_task: dict[int, np.ndarray] = field(default_factory=dict)
    #: NVTX domain -> frame of the values that occur in it.
    domains: dict[str, pl.DataFrame] = field(default_factory=dict)
    #: Names with their value of an earlier trace.
    kept: int = 0
    #: Names whose labels in the earlier trace fit several of them.
    ambiguous: int = 0

    def labels_in(self, domain: str) -> pl.DataFrame:
        """Return the labels of the values met in one NVTX domain."""
        values = self.domains.get(domain)
        if values is None:
            return self.labels.clear()
        if values.height == self.labels.height:
            return self.labels
        return self.labels.join(values, on="value", how="semi")


def make_kernel_labels(texts: list[str], shorts: list[str]) -> list[str]:
    """Return short kernel names that are still distinctive: the functor stays where the short name
    alone is useless.
    """
    return make_labels_unique(
        [make_kernel_label(text, short) for text, short in zip(texts, shorts, strict=True)],
        texts,
    )


def strip_folders(texts: list[str], _: list[str]) -> list[str]:
    """Return the last parts of paths."""
    return [text.rstrip("/").rsplit("/", 1)[-1] or text for text in texts]


def assign_values(
    sets: Mapping[str, NameSet],
    met: Mapping[str, Mapping[int, NameFile]],
    labellers: Mapping[str, Labeller],
    base: Mapping[str, pl.DataFrame] = MappingProxyType({}),
) -> dict[str, NameValues]:
    """Give every name met its value. met: set -> reading task -> file of its names. base: set ->
    label and value of earlier traces.

    Known names have the value of the catalogue, others whose label is in the base have that of the
    base. The rest are numbered in the order of their texts, from their set's first value on, or
    behind those of the base; sets of one space do not overlap.
    """
    result = {}
    following: dict[str, int] = {}
    used = {
        space: _list_used_values(sets, base, space)
        for space in {item.space for item in sets.values()}
    }
    for name_set in sorted(sets.values(), key=lambda item: (item.space, item.first)):
        first = max(name_set.first, following.get(name_set.space, 0))
        result[name_set.name], following[name_set.space] = _assign_set(
            name_set,
            first,
            met.get(name_set.name, {}),
            labellers.get(name_set.name),
            base.get(name_set.name, NO_NAMES) if base else None,
            used[name_set.space],
        )
    return result


def describe_reused_values(values: Iterable[NameValues]) -> str:
    """Return a note on how many names have the values of an earlier trace."""
    all_values = list(values)
    kept, ambiguous = (
        sum(item.kept for item in all_values),
        sum(item.ambiguous for item in all_values),
    )
    return (
        f"names with the values of earlier traces: {kept:,} of {sum(item.labels.height for item in all_values):,}"
        + (f"; {ambiguous:,} with new ones, for several share their labels" if ambiguous else "")
    )


def _list_used_values(
    sets: Mapping[str, NameSet], base: Mapping[str, pl.DataFrame], space: str
) -> np.ndarray:
    """Return the values that the base has in a space, in order."""
    return np.unique(
        np.concatenate(
            [
                np.zeros(0, np.int64),
                *(
                    base[name]["value"].to_numpy()
                    for name, name_set in sets.items()
                    if name_set.space == space and name in base
                ),
            ]
        )
    )


def _assign_set(
    name_set: NameSet,
    first: int,
    files: Mapping[int, NameFile],
    labeller: Labeller | None,
    base: pl.DataFrame | None,
    used: np.ndarray,
) -> tuple[NameValues, int]:
    """Return the values of one set, and the first value after them. used: values of the base in the
    set's space.
    """
    if not files:
        return NameValues(), first
    batches = _Batches(files)
    fixed_values = pl.LazyFrame(
        list(name_set.list_known_values().items()),
        schema={"text": pl.String, "known": pl.Int64},
        orient="row",
    )
    distinct = (
        _find_distinct(batches, labeller is not None)
        .lazy()
        .join(fixed_values, on="text", how="left", maintain_order="left")
        .with_columns(
            value=pl.coalesce(
                "known", first - 1 + pl.col("known").is_null().cum_sum().cast(pl.Int64)
            )
        )
        .collect()
    )
    following = first + distinct["known"].null_count()
    values = NameValues()
    labels = (
        distinct["text"]
        if labeller is None
        else pl.Series(
            labeller(distinct["text"].to_list(), distinct["short"].to_list()), dtype=pl.String
        )
    )
    values.labels = make_labels_safe(pl.DataFrame({"value": distinct["value"], "label": labels}))
    if base is not None:
        distinct, following = _reuse_values(values, distinct, name_set, base, first, used)
    _look_up(values, batches, distinct)
    return values, following


def _reuse_values(
    values: NameValues,
    distinct: pl.DataFrame,
    name_set: NameSet,
    base: pl.DataFrame,
    first: int,
    used: np.ndarray,
) -> tuple[pl.DataFrame, int]:
    """Return the names with the values of the base where their labels are there, and the first
    value after the new ones.
    """
    fixed = name_set.list_known_values()
    base = base.filter(
        ~pl.col("value").is_in(list(fixed.values())) & ~pl.col("label").is_in(list(fixed))
    )
    used_values = distinct.select("value", "known")
    names = count_families(values.labels).join(
        used_values, on="value", how="left", maintain_order="left"
    )
    before = count_families(base.filter("sure")).select(
        "label", before="value", members_before="members"
    )
    names = names.join(before, on="label", how="left", maintain_order="left")
    same = pl.col("known").is_null() & (pl.col("members") == pl.col("members_before"))
    names = names.with_columns(kept=pl.coalesce("known", pl.when(same).then("before")))
    values.kept = names.select(
        (pl.col("known").is_null() & pl.col("kept").is_not_null()).sum()
    ).item()
    values.ambiguous = names.filter(
        pl.col("kept").is_null() & pl.col("label").is_in(base["label"].implode())
    ).height
    new = names["kept"].null_count()
    start = max(first, int(base["value"].max() or 0) + 1)
    if len(used) and np.searchsorted(used, start) != np.searchsorted(used, start + new):
        start = max(start, int(used[-1]) + 1)
    names = names.with_columns(
        now=pl.coalesce("kept", start - 1 + pl.col("kept").is_null().cum_sum().cast(pl.Int64))
    )
    values.labels = names.select("label", value="now").select("value", "label").sort("value")
    distinct = distinct.join(
        names.select("value", "now"), on="value", how="left", maintain_order="left"
    )
    return distinct.with_columns(value="now"), max(first, start + new if new else 0)


def _find_distinct(batches: Iterable[Batch], shorts: bool) -> pl.DataFrame:
    """Return the distinct texts in order, each with the least of its short forms if those are
    wanted.
    """
    distinct = pl.DataFrame(
        schema={"text": pl.String, "short": pl.String} if shorts else {"text": pl.String}
    )
    for batch in batches:
        texts = pl.concat(
            [
                distinct,
                *(
                    _add_short_column(frame) if shorts else frame["text"].to_frame()
                    for _, _, frame in batch
                ),
            ]
        )
        lazy_texts = texts.lazy()
        distinct = (
            (
                lazy_texts.group_by("text").agg(pl.col("short").min())
                if shorts
                else lazy_texts.unique()
            )
            .sort("text")
            .collect()
        )
    return distinct


def _add_short_column(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.select("text", "short" if "short" in frame.columns else pl.lit("").alias("short"))


def _look_up(values: NameValues, batches: Iterable[Batch], distinct: pl.DataFrame) -> None:
    """Fill in every task's values, and the values met per domain."""
    by_domain: dict[str, list[np.ndarray]] = {}
    for batch in batches:
        texts = pl.concat([frame["text"] for _, _, frame in batch])
        column = (
            texts.to_frame()
            .join(distinct, on="text", how="left", maintain_order="left")["value"]
            .to_numpy()
        )
        start = 0
        for task, file, frame in batch:
            part = values.by_task[task] = column[start : start + frame.height]
            start += frame.height
            if "domain" not in frame.columns:
                by_domain.setdefault("", []).append(part)
                continue
            domains = frame["domain"].to_numpy()
            for domain in np.unique(domains).tolist():
                by_domain.setdefault(file.domains[domain], []).append(part[domains == domain])
    values.domains = {
        domain: pl.DataFrame({"value": np.unique(np.concatenate(domain_values))})
        for domain, domain_values in by_domain.items()
    }


class _Batches:
    """The tasks' names, a bounded number of rows at a time; read once if that is all of them."""

    def __init__(self, files: Mapping[int, NameFile]) -> None:
        self._files = files
        self._all: list[Batch] = []

    def __iter__(self) -> Iterator[Batch]:
        if self._all:
            yield from self._all
            return
        batch: Batch = []
        rows = yielded = 0
        for task, file in sorted(self._files.items()):
            batch.append((task, file, read_frame(file.frame)))
            rows += batch[-1][2].height
            if rows >= BATCH_ROWS:
                yield batch
                yielded += 1
                batch, rows = [], 0
        if batch and not yielded:
            self._all = [batch]
        if batch:
            yield batch
