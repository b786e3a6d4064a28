"""Make the event types of a trace from the declarations of its kinds, and write the files beside
it: types with their values to the .pcf, names of rows to the .row.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from typing import BinaryIO

import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.budget import LABELS_AT_ONCE
from nsys2prv._util.files import read_data_text
from nsys2prv.events.catalogue import (
    DomainCode,
    Field,
    Metric,
    NameSet,
    State,
    ValueSet,
    assign_counter_codes,
    load_catalogue,
)
from nsys2prv.events.kernel_names import abbreviate_labels
from nsys2prv.events.mpi import MPI_LAYOUTS
from nsys2prv.events.name_rules import DEFAULT_DOMAIN
from nsys2prv.table.runs import find_present_fields
from nsys2prv.writers.names import END_LABEL, LONGEST_LABEL, NO_LABELS, NameValues, clean_label
from nsys2prv.writers.rows import ObjectTree

#: Characters that are written as escapes.
_NOT_ASCII = re.compile(r"[^\x00-\x7f]|\\(?=u[0-9a-f]{4}|U[0-9a-f]{8})")
#: Paraver's initial display of a trace: the head of every .pcf.
OPTIONS = read_data_text(__package__, "options.txt")
#: Factors of fractions with more zeros than this are written as a power of ten in labels.
MOST_ZEROS = 6
#: Layouts of GPU work, and the event types that are declared with it even if the trace has none of
#: them. POP's BasicAnalysis recognizes traces by their labels, and BSC's nsys2prv declares them
#: with every kernel.
GPU_LAYOUTS = frozenset(("cuda_kernel", "cuda_graph"))
DECLARED_BESIDE_GPU_WORK = (("memory_operation", "operation"), ("nccl_kernel", "kernel"))
#: The value set with the names of what views compute, a field whose type has them, and the layouts from
#: which views compute: without that field the last of their types has the names, for Paraver takes a
#: name from any type that is declared. A view of MPI calls takes them from MPI's types alone.
NAMES_OF_VIEWS, FIELD_WITH_NAMES = "names_of_views", ("cuda_kernel", "tensor_cores")
LAYOUTS_THAT_VIEWS_COMPUTE_FROM = GPU_LAYOUTS | {
    *("cuda_api", "memory_operation", "nccl_kernel", "device_state", *MPI_LAYOUTS)
}
#: Unit of numbers that are ranks.
RANK = "rank"
#: Name sets of kernels.
KERNEL_NAMES = ("kernels", "nccl_kernels")
#: Text between the color, the number and the label of a type: of BSC's nsys2prv, and of Extrae.
#: From Extrae's blanks, POP's BasicAnalysis finds MPI, OpenMP and CUDA in other traces.
BLANKS, BLANKS_OF_EXTRAE = " ", "   "


class EventType(Struct, frozen=True):
    """An event type. If its values have names, `labels` is a frame of `value` and `label` from
    :func:`nsys2prv.writers.names.make_labels_safe`; 0 is always End.
    """

    #: Number of the type.
    code: int
    #: Label of the type, one line.
    label: str
    #: Frame of `value` and `label`; None if values have no names.
    labels: pl.DataFrame | None = None


def write_pcf(types: Iterable[EventType], file: BinaryIO, states: Sequence[State] = ()) -> None:
    """Write a .pcf file in ASCII (:func:`nsys2prv.writers.paraver.pcf.to_ascii`).

    Without states in the trace, there is no STATES section, because POP's BasicAnalysis looks for
    it. The color column is 0 for types with named values and 7 for counters. Consecutive types with
    the same frame of labels share its lines.
    """
    types = list(types)
    of_nsys2prv = {field.code for field in _list_fields_beside_gpu_work()}
    is_of_nsys2prv = not states and not of_nsys2prv.isdisjoint(one.code for one in types)
    blanks = BLANKS if is_of_nsys2prv else BLANKS_OF_EXTRAE
    file.write(OPTIONS.encode())
    if states:
        labels = "".join(f"{state.value} {_to_line(state.label)}\n" for state in states)
        colors = "".join(
            f"{state.value} {{{','.join(map(str, state.color))}}}\n" for state in states
        )
        file.write(f"\nSTATES\n{labels}\n\nSTATES_COLOR\n{colors}\n".encode())
    for _, alike in groupby(
        types, key=lambda one: id(one.labels) if one.labels is not None else -one.code
    ):
        group = list(alike)
        labels = group[0].labels
        color = 7 if labels is None else 0
        heads = "".join(
            f"{color}{blanks}{one.code}{blanks}{_to_line(one.label)}\n" for one in group
        )
        file.write(f"\nEVENT_TYPE\n{heads}".encode())
        if labels is None:
            continue
        file.write(f"VALUES\n0 {END_LABEL}\n".encode())
        for piece in labels.select("value", "label").iter_slices(LABELS_AT_ONCE):
            lines = "".join(f"{value} {label}\n" for value, label in piece.iter_rows())
            file.write(to_ascii(lines).encode())


def _to_line(label: str) -> str:
    return to_ascii(clean_label(label))


def to_ascii(text: str) -> str:
    """Return the text with `\u00e9` or `\U0001f600` for characters that are not ASCII, which some
    readers of .pcf files refuse.

    A backslash that would read as such an escape is written as one, so no two texts become alike.
    """
    if text.isascii() and "\\" not in text:
        return text
    return _NOT_ASCII.sub(
        lambda found: (
            f"\\u{ord(found[0]):04x}" if ord(found[0]) < 0x10000 else f"\\U{ord(found[0]):08x}"
        ),
        text,
    )


def abbreviate_kernels(values: Mapping[str, NameValues]) -> dict[str, NameValues]:
    """Return the kernel names, by name set, with labels that fit the columns of Paraver's tables."""
    sets = {name: values[name] for name in KERNEL_NAMES if name in values}
    labels = [label for one in sets.values() for label in one.labels["label"].to_list()]
    short = dict(zip(labels, abbreviate_labels(labels), strict=True))
    return {
        name: replace(
            one, labels=one.labels.with_columns(pl.col("label").replace(short)), domains={}
        )
        for name, one in sets.items()
    }


def make_event_types(
    layouts: Mapping[str, int],
    values: Mapping[str, NameValues],
    domains: Mapping[str, int],
    counters: Sequence[EventType] = (),
    ranks: Sequence[int] = (),
) -> list[EventType]:
    """Return the event types of the fields written in these layouts, and of the counters, sorted by
    code. A type that several layouts share is listed once.

    layouts: layout -> bits of the written fields. values: name set -> its names with their values.
    domains: NVTX domain -> its number. counters: their event types. ranks: rank numbers that fields
    may name.
    """
    types = {event_type.code: event_type for event_type in counters}
    fields = _list_fields(layouts)
    fields += [] if GPU_LAYOUTS.isdisjoint(layouts) else _list_fields_beside_gpu_work()
    for field in fields:
        of_field = _make_field_types(field, values, domains)
        if field.unit == RANK and ranks:
            names = [(rank + field.offset, f"{RANK} {rank}") for rank in ranks]
            labels = pl.DataFrame(names, schema=NO_LABELS.schema, orient="row")
            of_field = [replace(one, labels=labels) for one in of_field]
        for event_type in of_field:
            known = types.setdefault(event_type.code, event_type)
            # From several name sets with disjoint values.
            if known.labels is not None and event_type.labels is not None:
                further = event_type.labels.join(known.labels, "value", how="anti")
                if further.height:
                    labels = pl.concat([known.labels, further])
                    types[known.code] = replace(known, labels=labels)
    _add_names_of_views(types, layouts)
    return _make_labels_unique([types[code] for code in sorted(types)])


def _list_fields_beside_gpu_work() -> list[Field]:
    return [
        load_catalogue().layouts[layout].by_name[name] for layout, name in DECLARED_BESIDE_GPU_WORK
    ]


def _add_names_of_views(types: dict[int, EventType], layouts: Collection[str]) -> None:
    """Add the names of values that views compute to one of their source types, if no type has them.
    A separate type would be declared without records.
    """
    known, (layout, name) = load_catalogue(), FIELD_WITH_NAMES
    has_names = known.layouts[layout].by_name[name].code in types
    needed = [{*MPI_LAYOUTS}, set() if has_names else LAYOUTS_THAT_VIEWS_COMPUTE_FROM]
    present = [one.intersection(layouts) for one in needed]
    names = known.value_sets[NAMES_OF_VIEWS].labels
    further = pl.DataFrame(names, schema=NO_LABELS.schema, orient="row")
    for code in {
        max(known.layouts[one].fields[0].code for one in group) for group in present if group
    }:
        types[code] = replace(types[code], labels=pl.concat([types[code].labels, further]))


def _list_fields(layouts: Mapping[str, int]) -> list[Field]:
    """Return the fields of these layouts with their bits set."""
    return [one for layout in layouts.items() for one in find_present_fields(*layout).values()]


def list_codes(layouts: Mapping[str, int], domains: Mapping[str, int]) -> set[int]:
    """Return the event types that records of these layouts contain. layouts: layout -> bits of the
    written fields. domains: NVTX domain -> its number.
    """
    codes: set[int] = set()
    for field in _list_fields(layouts):
        if isinstance(field.code, DomainCode) and not field.optional:
            codes.update(field.code.code_of(*domain) for domain in domains.items())
        elif not field.optional:
            codes.add(field.code)
    return codes


def number_metrics(metrics: Mapping[str, Iterable[Metric]]) -> dict[tuple[str, str], int]:
    """Return an event type for each metric, as (layout, label) -> event type. metrics: layout ->
    its metrics.
    """
    labels = {layout: [one.name for one in found] for layout, found in metrics.items()}
    codes = assign_counter_codes(labels)
    return {(layout, name): codes[layout, name] for layout in labels for name in labels[layout]}


def _make_labels_unique(types: list[EventType]) -> list[EventType]:
    """Append the event type to labels that an earlier type also has, because views look up types by
    label, too.
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
    """Return the end of a label, with the factor of its numbers."""
    if not decimals:
        return ""
    return f" (x {10**decimals})" if decimals <= MOST_ZEROS else f" (x 10^{decimals})"


def make_counter_types(
    metrics: Mapping[str, Iterable[Metric]], codes: Mapping[tuple[str, str], int]
) -> list[EventType]:
    """Return the event types of sampled metrics, by layout. Labels contain the factors of
    fractions, because only Paraver reads `PRECISION`. codes: from :func:`number_metrics`.
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


def format_row_file(tree: ObjectTree) -> str:
    """Return the text of the .row file, which names all objects. tree: these objects."""
    nodes = zip(tree.nodes, tree.cpus_per_node, strict=True)
    levels = {
        "CPU": [f"{cpu}.{name}" for name, count in nodes for cpu in range(1, count + 1)],
        "NODE": list(tree.nodes),
        "APPL": ["Application"],
        "TASK": [task.name for task in tree.tasks],
        "THREAD": tree.labels,
    }
    sections = (
        f"LEVEL {level} SIZE {len(names)}\n"
        + "".join(f"{clean_label(name).replace('LEVEL ', 'LEVEL_', 1)}\n" for name in names)
        for level, names in levels.items()
    )
    return "\n".join(sections)
