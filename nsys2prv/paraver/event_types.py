"""The event types of a trace for its .pcf, from the declarations of the kinds it holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import polars as pl
from msgspec.structs import replace

from nsys2prv.events.catalogue import DomainCode, Field, NameSet, ValueSet, load_catalogue
from nsys2prv.events.catalogue.counters import Metric
from nsys2prv.paraver.pcf import LONGEST, EventType, clean_label
from nsys2prv.paraver.values import NameValues

DEFAULT_DOMAIN = "default domain"
#: Labels write out what fractions are multiplied by up to so many zeros, then as a power of ten.
MOST_ZEROS = 6
#: Layouts of work on GPUs, and the event types that are declared beside it even where the trace has
#: none of them: POP's BasicAnalysis knows by their labels which traces it can read so, and nsys2prv
#: of BSC declares them beside every kernel.
ON_GPU = frozenset(("cuda_kernel", "cuda_graph"))
BESIDE_IT = (("memory_operation", "operation"), ("nccl_kernel", "kernel"))
#: The event type whose labels name what views compute, and the layouts from which they do: it is
#: declared with these even where a trace has no kernels.
NAMES_OF_VIEWS = ("cuda_kernel", "tensor_cores")
COMPUTED_FROM = ON_GPU | {
    *("cuda_api", "memory_operation", "nccl_kernel", "device_state", "mpi_point_to_point"),
    *("mpi_collective", "mpi_other", "mpi_one_sided", "mpi_io"),
}


def make_event_types(
    layouts: Sequence[str],
    values: Mapping[str, NameValues],
    domains: Mapping[str, int],
    counters: Sequence[EventType] = (),
) -> list[EventType]:
    """Return every event type of these layouts, and the counters, by code. A type that several
    layouts share is listed once.
    """
    types = {event_type.code: event_type for event_type in counters}
    fields = [field for layout in layouts for field in load_catalogue().layouts[layout].fields]
    beside = [] if ON_GPU.isdisjoint(layouts) else [*BESIDE_IT]
    beside += [] if COMPUTED_FROM.isdisjoint(layouts) else [NAMES_OF_VIEWS]
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


def list_codes(layouts: Iterable[str], domains: Mapping[str, int]) -> set[int]:
    """Return the event types that all records of these layouts have; `domains`: the numbers of the
    NVTX domains of the trace.
    """
    codes: set[int] = set()
    for field in (field for layout in layouts for field in load_catalogue().layouts[layout].fields):
        if isinstance(field.code, DomainCode) and not field.optional:
            codes.update(field.code.code_of(*domain) for domain in domains.items())
        elif not field.optional:
            codes.add(field.code)
    return codes


def _make_labels_unique(types: list[EventType]) -> list[EventType]:
    """Return the types with their code behind a label that an earlier one has: views look types up
    by label, too.
    """
    taken: set[str] = set()
    result = []
    for event_type in types:
        label = clean_label(event_type.label)
        if label in taken:
            label = f"{label[: LONGEST // 2]} ({event_type.code})"
        taken.add(label)
        result.append(replace(event_type, label=label))
    return result


def _format_scale(decimals: int) -> str:
    """Return the end of a label that tells what its numbers are multiplied by."""
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
        return [EventType(field.code, field.label, _find_labels(field, values, None))]
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
        return pl.DataFrame(
            field.values.labels, schema={"value": pl.Int64, "label": pl.String}, orient="row"
        )
    if not isinstance(field.values, NameSet):
        return None
    names = values[field.values.name]
    return names.labels if domain is None else names.labels_in(domain)
