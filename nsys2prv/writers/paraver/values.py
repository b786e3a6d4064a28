"""Event types of a trace for its .pcf, from the declarations of the kinds it holds, and event values
of names: the same value for the same name in every trace, as far as that can be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.columns import StoredFrame, join_pieces, read_columns
from nsys2prv.events.catalogue import (
    DomainCode,
    Field,
    Metric,
    NameSet,
    ValueSet,
    assign_counter_codes,
    load_catalogue,
)
from nsys2prv.events.kernel_names import make_kernel_label, make_labels_unique
from nsys2prv.store.runs import list_present_fields
from nsys2prv.writers.paraver.pcf import (
    LONGEST_LABEL,
    NO_NAMES,
    EventType,
    clean_label,
    count_families,
    make_labels_safe,
)
from nsys2prv.writers.writer import NO_LABELS, NameValues

#: A set's distinct names (text and short form, in order of value) -> their labels.
Labeller = Callable[[list[str], list[str]], list[str]]
#: Names of some reading tasks, by the number of each.
Batch = list[tuple[int, dict[str, Any]]]
TEXTS = {"text": pl.String, "short": pl.String}
#: Names handled together: more would cost memory, fewer time.
BATCH_ROWS = 1_000_000
DEFAULT_DOMAIN = "default domain"
#: Labels write the factor of fractions with up to so many zeros, then as a power of ten.
MOST_ZEROS = 6
#: Layouts of work on GPUs, and the event types that are declared beside it even where the trace has
#: none of them: POP's BasicAnalysis knows by their labels which traces it can read so, and nsys2prv
#: of BSC declares them beside every kernel.
GPU_LAYOUTS = frozenset(("cuda_kernel", "cuda_graph"))
DECLARED_BESIDE_GPU_WORK = (("memory_operation", "operation"), ("nccl_kernel", "kernel"))
#: The event type whose labels name what views compute, and the layouts from which they do: it is
#: declared with these even where a trace has no kernels.
TYPE_OF_VIEW_NAMES = ("cuda_kernel", "tensor_cores")
LAYOUTS_THAT_VIEWS_COMPUTE_FROM = GPU_LAYOUTS | {
    *("cuda_api", "memory_operation", "nccl_kernel", "device_state", "mpi_point_to_point"),
    *("mpi_collective", "mpi_other", "mpi_one_sided", "mpi_io"),
}


class NameFile(Struct, frozen=True):
    """The names that one reading task met of one set, in the order of their local indices."""

    #: Columns text, and where any name has one short and domain, an index into `domains`.
    frame: StoredFrame
    #: Names of NVTX domains that the column domain indexes.
    domains: Sequence[str] = ()


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
    result: dict[str, NameValues] = {}
    following: dict[str, int] = {}
    for name_set in sorted(sets.values(), key=lambda item: (item.space, item.first)):
        values = result[name_set.name] = NameValues()
        if not (files := met.get(name_set.name)):
            continue
        first = max(name_set.first, following.get(name_set.space, 0))
        labeller = labellers.get(name_set.name)
        distinct = _number_names(name_set, first, _find_distinct(files))
        end = first + distinct["known"].null_count()
        labels = distinct["text"]
        if labeller:
            made = labeller(labels.to_list(), distinct["short"].to_list())
            labels = pl.Series(made, dtype=pl.String)
        values.labels = make_labels_safe(
            pl.DataFrame({"value": distinct["value"], "label": labels})
        )
        if base:
            before = base.get(name_set.name, NO_NAMES)
            used = _list_used_values(sets, base, name_set.space)
            distinct, end = _reuse_values(values, distinct, name_set, before, first, used)
        following[name_set.space] = end
        _look_up(values, files, distinct)
    return result


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


def describe_reused_values(values: Iterable[NameValues]) -> str:
    """Return a note on how many names have the values of an earlier trace."""
    counts = [(item.kept, item.ambiguous, item.labels.height) for item in values]
    kept, ambiguous, names = map(sum, zip(*counts, strict=True)) if counts else (0, 0, 0)
    new = f"; {ambiguous:,} with new ones, for several share their labels" if ambiguous else ""
    return f"names with the values of earlier traces: {kept:,} of {names:,}{new}"


def _list_used_values(
    sets: Mapping[str, NameSet], base: Mapping[str, pl.DataFrame], space: str
) -> np.ndarray:
    """Return the values that the base has in a space, in order."""
    names = [name for name, name_set in sets.items() if name_set.space == space and name in base]
    return np.unique(
        np.concatenate([np.zeros(0, np.int64), *(base[name]["value"] for name in names)])
    )


def _number_names(name_set: NameSet, first: int, distinct: pl.DataFrame) -> pl.DataFrame:
    """Return the distinct names with `value`, and `known`: the value that the catalogue fixes, null for
    others.
    """
    known = pl.LazyFrame(
        list(name_set.list_known_values().items()),
        schema={"text": pl.String, "known": pl.Int64},
        orient="row",
    )
    numbers = first - 1 + pl.col("known").is_null().cum_sum().cast(pl.Int64)
    return (
        distinct.lazy()
        .join(known, on="text", how="left", maintain_order="left")
        .with_columns(value=pl.coalesce("known", numbers))
        .collect()
    )


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


def _find_distinct(files: Mapping[int, NameFile]) -> pl.DataFrame:
    """Return the distinct texts in order, each with the least of its short forms."""
    distinct = pl.DataFrame(schema=TEXTS)
    for batch in _read_batches(files):
        texts = pl.concat([distinct, _join_names([names for _, names in batch])]).lazy()
        grouped = texts.group_by("text").agg(pl.col("short").min())
        distinct = grouped.sort("text").collect()
    return distinct


def _join_names(batch: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Return the texts and short forms, "" where there are none, of the names of some tasks."""
    shorts = (names.get("short", [""] * len(names["text"])) for names in batch)
    columns = {"text": [names["text"] for names in batch], "short": list(shorts)}
    return pl.DataFrame({name: join_pieces(pieces) for name, pieces in columns.items()}, TEXTS)


def _look_up(values: NameValues, files: Mapping[int, NameFile], distinct: pl.DataFrame) -> None:
    """Fill in every task's values, and the values met per domain."""
    by_domain: dict[str, list[np.ndarray]] = {}
    for batch in _read_batches(files):
        column = (
            _join_names([names for _, names in batch])
            .join(distinct, on="text", how="left", maintain_order="left")["value"]
            .to_numpy()
        )
        start = 0
        for task, names in batch:
            part = values.by_task[task] = column[start : start + len(names["text"])]
            start += len(part)
            if "domain" not in names:
                by_domain.setdefault("", []).append(part)
                continue
            for domain in np.unique(names["domain"]).tolist():
                own = part[names["domain"] == domain]
                by_domain.setdefault(files[task].domains[domain], []).append(own)
    values.domains = {
        domain: pl.DataFrame({"value": np.unique(np.concatenate(domain_values))})
        for domain, domain_values in by_domain.items()
    }


def _read_batches(files: Mapping[int, NameFile]) -> Iterator[Batch]:
    """Yield the tasks' names, a bounded number of rows at a time."""
    batch: Batch = []
    rows = 0
    for task, file in sorted(files.items()):
        batch.append((task, read_columns(file.frame)))
        rows += len(batch[-1][1]["text"])
        if rows >= BATCH_ROWS:
            yield batch
            batch, rows = [], 0
    if batch:
        yield batch


def make_event_types(
    layouts: Mapping[str, int],
    values: Mapping[str, NameValues],
    domains: Mapping[str, int],
    counters: Sequence[EventType] = (),
) -> list[EventType]:
    """Return every event type of these layouts (with the bits of the fields that are written), and
    the counters, by code. A type that several layouts share is listed once.
    """
    types = {event_type.code: event_type for event_type in counters}
    fields = _list_fields(layouts)
    beside = [] if GPU_LAYOUTS.isdisjoint(layouts) else [*DECLARED_BESIDE_GPU_WORK]
    beside += [] if LAYOUTS_THAT_VIEWS_COMPUTE_FROM.isdisjoint(layouts) else [TYPE_OF_VIEW_NAMES]
    fields += [
        field
        for layout, name in beside
        for field in load_catalogue().layouts[layout].fields
        if field.name == name
    ]
    for field in fields:
        for event_type in _make_field_types(field, values, domains):
            types.setdefault(event_type.code, event_type)
    return _make_labels_unique([types[code] for code in sorted(types)])


def _list_fields(layouts: Mapping[str, int]) -> list[Field]:
    """Return the fields of these layouts whose bits are set."""
    known = load_catalogue().layouts
    return [one for name, mask in layouts.items() for one in list_present_fields(known[name], mask)]


def list_codes(layouts: Mapping[str, int], domains: Mapping[str, int]) -> set[int]:
    """Return the event types that all records of these layouts have, of fields with these bits;
    `domains`: the numbers of the NVTX domains of the trace.
    """
    codes: set[int] = set()
    for field in _list_fields(layouts):
        if isinstance(field.code, DomainCode) and not field.optional:
            codes.update(field.code.code_of(*domain) for domain in domains.items())
        elif not field.optional:
            codes.add(field.code)
    return codes


def number_metrics(metrics: Mapping[str, Iterable[Metric]]) -> dict[tuple[str, str], int]:
    """Return the event type of each metric, by layout and label."""
    labels = {layout: [one.name for one in found] for layout, found in metrics.items()}
    codes = assign_counter_codes(labels)
    return {(layout, name): codes[layout, name] for layout in labels for name in labels[layout]}


def _make_labels_unique(types: list[EventType]) -> list[EventType]:
    """Return the types with their code behind a label that an earlier one has: views look types up
    by label, too.
    """
    taken: set[str] = set()
    result = []
    for event_type in types:
        label = clean_label(event_type.label)
        if label in taken:
            label = f"{label[: LONGEST_LABEL // 2]} ({event_type.code})"
        taken.add(label)
        result.append(replace(event_type, label=label))
    return result


def _format_scale(decimals: int) -> str:
    """Return the end of a label that gives the factor of its numbers."""
    if not decimals:
        return ""
    return f" (x {10**decimals})" if decimals <= MOST_ZEROS else f" (x 10^{decimals})"


def make_counter_types(
    metrics: Mapping[str, Iterable[Metric]], codes: Mapping[tuple[str, str], int]
) -> list[EventType]:
    """Return the event types of the metrics met, by layout. Labels tell what fractions are
    multiplied by: `PRECISION`, with which Paraver would show them as they are, is more than other
    readers of .pcf files know.
    """
    return [
        EventType(codes[layout, metric.name], metric.name + _format_scale(metric.precision))
        for layout, layout_metrics in metrics.items()
        for metric in sorted(layout_metrics)
    ]


def _make_field_types(
    field: Field, values: Mapping[str, NameValues], domains: Mapping[str, int]
) -> list[EventType]:
    if not isinstance(field.code, DomainCode):
        labels = _find_labels(field, values, None)
        if isinstance(field.values, NameSet) and field.optional and not labels.height:
            return []  # no record has it
        return [EventType(field.code, field.label, labels)]
    return [
        EventType(
            field.code.code_of(domain, number),
            field.label.format(domain=domain or DEFAULT_DOMAIN),
            _find_labels(field, values, domain),
        )
        for domain, number in domains.items()
        if not field.code.only_named or domain in dict(field.code.named)
    ]


def _find_labels(
    field: Field, values: Mapping[str, NameValues], domain: str | None
) -> pl.DataFrame | None:
    if isinstance(field.values, ValueSet):
        return pl.DataFrame(field.values.labels, schema=NO_LABELS.schema, orient="row")
    if not isinstance(field.values, NameSet):
        return None
    names = values[field.values.name]
    return names.labels if domain is None else names.select_labels(domain)
