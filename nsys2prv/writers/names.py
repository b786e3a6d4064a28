"""Assign values and labels to names of events, for traces of any format. If possible, a name has
the same value in every trace. A label is one line that is safe for any reader.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.budget import NAME_BYTES, NAME_ROWS
from nsys2prv._util.columns import factorize, join_pieces
from nsys2prv._util.stored_columns import read_columns
from nsys2prv.events.catalogue import NameSet
from nsys2prv.events.kernel_names import make_kernel_label, make_labels_unique
from nsys2prv.table.task_result import TaskResult

#: Characters that break lines or reorder text: control characters, Unicode's line ends and marks of
#: direction (a regex that Python and Rust both read).
CONTROL_PATTERN = "[\\x00-\\x1f\\x7f-\\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]+"
_CONTROL = re.compile(CONTROL_PATTERN)
#: Longer labels are cut: Paraver draws the first few dozen characters.
LONGEST_LABEL = 1000
NO_NAME = "(no name)"
_IN_BRACKETS = re.compile(r"\[[^\[\]]*\]")
END_LABEL = "End"
NO_LABELS = pl.DataFrame(schema={"value": pl.Int64, "label": pl.String})
#: A set's distinct names (text and short form, in order of value) -> their labels.
Labeller = Callable[[list[str], list[str]], list[str]]
#: Results of some reading tasks, each with its names.
Piece = list[tuple[TaskResult, dict[str, Any]]]
TEXTS = {"text": pl.String, "short": pl.String}


class NameValues(Struct):
    """Numbers (values) for the names of one name set, with their labels."""

    #: Frame of `value` and (safe) `label`.
    labels: pl.DataFrame = NO_LABELS
    #: Reading task -> value of each local index.
    by_task: dict[int, np.ndarray] = {}
    #: NVTX domain -> frame of the values that occur in it.
    domains: dict[str, pl.DataFrame] = {}

    def select_labels(self, domain: str) -> pl.DataFrame:
        """Return the values and labels that are used in one NVTX domain, as a frame."""
        values = self.domains.get(domain)
        if values is None:
            return self.labels.clear()
        if values.height == self.labels.height:
            return self.labels
        return self.labels.join(values, on="value", how="semi")


def assign_values(
    sets: Mapping[str, NameSet], results: Sequence[TaskResult], labellers: Mapping[str, Labeller]
) -> dict[str, NameValues]:
    """Give every name found in the reports a number (value). Return name set -> its values.

    Known names have the catalogue's value. Others are numbered in alphabetical order from the first
    value of their set. Sets that share a range of values do not overlap. labellers: name set ->
    function that makes labels.
    """
    result: dict[str, NameValues] = {}
    following: dict[str, int] = {}
    for name_set in sorted(sets.values(), key=lambda item: (item.space, item.first)):
        values = result[name_set.name] = NameValues()
        named = [result for result in results if name_set.name in result.names]
        if not named:
            continue
        first = max(name_set.first, following.get(name_set.space, 0))
        read = partial(_read_pieces, name_set.name, named)
        if sum(result.names[name_set.name].size for result in named) <= NAME_BYTES:
            pieces = list(read())
            read = partial(iter, pieces)
        distinct = _number_names(name_set, first, _find_distinct(read()))
        following[name_set.space] = first + distinct["known"].null_count()
        labels = distinct["text"]
        if labeller := labellers.get(name_set.name):
            made = labeller(labels.to_list(), distinct["short"].to_list())
            labels = pl.Series(made, dtype=pl.String)
        labelled = pl.DataFrame({"value": distinct["value"], "label": labels})
        values.labels = make_labels_safe(labelled)
        _look_up(values, read(), distinct)
    return result


def make_kernel_labels(texts: list[str], shorts: list[str]) -> list[str]:
    """Return short, distinctive labels of kernels. The functor is included if the short name alone
    is useless. texts: demangled names. shorts: short names from the report.
    """
    return make_labels_unique(list(map(make_kernel_label, texts, shorts)), texts)


def strip_folders(texts: list[str], _: list[str]) -> list[str]:
    """Return the last part of each path."""
    return [text.rstrip("/").rsplit("/", 1)[-1] or text for text in texts]


def _number_names(name_set: NameSet, first: int, distinct: pl.DataFrame) -> pl.DataFrame:
    """Return the distinct names with `value`, and `known`: the value fixed by the catalogue, null
    for other names.
    """
    pairs = list(name_set.list_known_values().items())
    known = pl.DataFrame(pairs, {"text": pl.String, "known": pl.Int64}, orient="row")
    numbers = first - 1 + pl.col("known").is_null().cum_sum().cast(pl.Int64)
    joined = distinct.join(known, on="text", how="left", maintain_order="left")
    return joined.with_columns(value=pl.coalesce("known", numbers))


def _find_distinct(pieces: Iterable[Piece]) -> pl.DataFrame:
    """Return the sorted distinct texts, each with the smallest of its short forms."""
    distinct = pl.DataFrame(schema=TEXTS)
    for piece in pieces:
        texts = pl.concat([distinct, _join_names([names for _, names in piece])]).lazy()
        grouped = texts.group_by("text").agg(pl.col("short").min())
        distinct = grouped.sort("text").collect()
    return distinct


def _join_names(piece: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Return the texts of the names of some tasks, with their short forms or ""."""
    shorts = (names.get("short", [""] * len(names["text"])) for names in piece)
    columns = {"text": [names["text"] for names in piece], "short": list(shorts)}
    return pl.DataFrame({name: join_pieces(pieces) for name, pieces in columns.items()}, TEXTS)


def _look_up(values: NameValues, pieces: Iterable[Piece], distinct: pl.DataFrame) -> None:
    """Set the values of all tasks' names, and collect the values used per domain."""
    by_domain: dict[str, list[np.ndarray]] = {}
    for piece in pieces:
        texts = _join_names([names for _, names in piece])
        joined = texts.join(distinct, on="text", how="left", maintain_order="left")
        column = joined["value"].to_numpy()
        start = 0
        for result, names in piece:
            part = values.by_task[result.task] = column[start : start + len(names["text"])]
            start += len(part)
            if "domain" not in names:
                by_domain.setdefault("", []).append(part)
                continue
            for domain in np.unique(names["domain"]).tolist():
                own = part[names["domain"] == domain]
                by_domain.setdefault(result.domains[domain], []).append(own)
    met = {domain: factorize(np.concatenate(parts))[0] for domain, parts in by_domain.items()}
    values.domains = {domain: pl.DataFrame({"value": column}) for domain, column in met.items()}


def _read_pieces(name: str, results: Sequence[TaskResult]) -> Iterator[Piece]:
    """Yield the names of a set found by each task, in the order of their local indices, a limited
    number of rows at a time.
    """
    piece, rows = [], 0
    for result in results:
        piece.append((result, read_columns(result.names[name])))
        rows += len(piece[-1][1]["text"])
        if rows >= NAME_ROWS:
            yield piece
            piece, rows = [], 0
    if piece:
        yield piece


def clean_label(text: str) -> str:
    """Return one line of valid text without control characters. It is never empty, and never
    completely in brackets.
    """
    line = _CONTROL.sub(" ", text.encode("utf-8", "replace").decode("utf-8")).strip()
    if len(line) > LONGEST_LABEL:
        line = line[: LONGEST_LABEL - 3].rstrip() + "..."
    if _IN_BRACKETS.fullmatch(line):
        line = f"({line[1:-1]})"
    return NO_NAME if line in ("", "()") else line


def make_labels_safe(labels: pl.DataFrame) -> pl.DataFrame:
    """Return labels that Paraver's files can hold: single lines of valid text. None is empty, too
    long, in brackets or repeated. labels: frame of value and label.
    """
    checked = labels.select(
        odd=pl.col("label").str.contains(rf"{CONTROL_PATTERN}|^\s|\s$|^\[|^\(\)$|^$")
        | (pl.col("label").str.len_bytes() > LONGEST_LABEL),
        bracket=pl.col("label").str.contains("[", literal=True),
    )
    if checked["odd"].any():
        odd = labels.filter(checked["odd"])
        labels = _rename(labels, {value: clean_label(label) for value, label in odd.iter_rows()})
    if checked["bracket"].any():
        labels = _replace_brackets(labels)
    return _make_unique(labels if labels["value"].is_sorted() else labels.sort("value"))


def _replace_brackets(labels: pl.DataFrame) -> pl.DataFrame:
    """Return the labels with braces instead of brackets.

    Paraver's short names (column headings, text under the mouse) omit everything from the first [ to the last
    ]: `step [1]` and `step [2]` would both be `step`. A label with only one of the two is kept.
    """
    label = pl.col("label")
    cut = label.str.contains("[", literal=True) & label.str.contains("]", literal=True)
    braces = label.str.replace_all("[", "{", literal=True).str.replace_all("]", "}", literal=True)
    return labels.with_columns(label=pl.when(cut).then(braces).otherwise(label))


def _make_unique(labels: pl.DataFrame) -> pl.DataFrame:
    """Append a number to labels that are equal to End or to the label of an earlier value."""
    texts = labels["label"]
    if texts.n_unique() == len(texts) and not (texts == END_LABEL).any():
        return labels
    repeated = labels.filter(pl.col("label").is_duplicated() | (pl.col("label") == END_LABEL))
    taken = set(labels["label"]) | {END_LABEL}
    counts: dict[str, int] = {END_LABEL: 1}
    renamed = {}
    for value, label in repeated.iter_rows():
        counts[label] = counts.get(label, 0) + 1
        if counts[label] > 1:
            while (candidate := f"{label} #{counts[label]}") in taken:
                counts[label] += 1
            taken.add(candidate)
            renamed[value] = candidate
    return _rename(labels, renamed)


def _rename(labels: pl.DataFrame, renamed: dict[int, str]) -> pl.DataFrame:
    """Return the labels with new texts for some values. renamed: value -> text."""
    label = pl.col("value").replace_strict(renamed, default=pl.col("label"), return_dtype=pl.String)
    return labels.with_columns(label=label)
