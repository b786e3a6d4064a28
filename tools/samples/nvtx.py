"""NVTX rows of one report: push/pop ranges of programs, and definitions (domains, categories, threads, payloads).

Event types (ENUM_NSYS_EVENT_TYPE): 33 category, 34 mark, 39 thread name, 59 push/pop range, 60 start/end range, 75
domain.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import dynamic, nccl
from .cluster import Ints, Thread
from .job import CATEGORIES
from .losses import collective_of_ranges
from .missing import Part
from .nccl_fields import Fields, category
from .program import PAD_NS, Domain, Program, Range, Style
from .rows import Report
from .timeline import Block
from .write import Column

CATEGORY, MARK, THREAD, PUSH_POP, START_END, DOMAIN = 33, 34, 39, 59, 60, 75
DEFINITIONS = "definitions"
DOMAIN_NAMES = {Domain.NCCL: "NCCL", Domain.JOB: "trainer"}


def label(domain: int, text: str) -> str:
    """The name under which ranges are tallied: domain and text without its varying end."""
    return f"{DOMAIN_NAMES.get(Domain(domain), 'default')}/{text}"


class RangeRows:
    """Writes the push/pop ranges of one program's runs."""

    def __init__(self, program: Program, report: Report) -> None:
        self.program, self.ranges, self.report = program, program.ranges, report
        self.first = np.array([found.first for found in self.ranges])
        self.last = np.array([found.last for found in self.ranges])
        self.lead = np.array([found.lead for found in self.ranges]) * float(PAD_NS)
        self.trail = np.array([found.trail for found in self.ranges]) * float(PAD_NS)
        self.operators = [index for index, found in enumerate(self.ranges) if found.style is Style.OP_ID]
        self.numbered = [index for index, found in enumerate(self.ranges) if found.style is Style.NUMBERED]
        self.collectives = collective_of_ranges(program)
        self.labels = [label(found.domain, found.text) for found in self.ranges]
        self.columns: dict[str, Column] = {
            "eventType": PUSH_POP,
            "category": self._objects([self._category(found) for found in self.ranges]),
            "color": self._objects([found.color for found in self.ranges]),
            "globalTid": np.array([report.rank.global_tid(found.thread) for found in self.ranges]),
            "textId": self._objects(
                [report.export.string(found.text) if found.style is Style.REGISTERED else None for found in self.ranges]
            ),
            "domainId": np.array([int(found.domain) for found in self.ranges]),
        }
        if any(found.payload for found in self.ranges):
            self._payload_columns()
        self.traced = [index for index, found in enumerate(self.ranges) if found.trace]
        self.fields = Fields(program, report.cluster, report.rank.rank) if self.traced else None

    def _category(self, found: Range) -> int | None:
        """That of the range, or the communicator's for those of the advanced NCCL trace."""
        if found.trace is None:
            return found.category
        call = self.program.nccl_calls[found.trace.calls[0]]
        return category(self.report.cluster.communicator(call.group, self.report.rank.rank))

    @staticmethod
    def _objects(values: list[Any]) -> NDArray[Any]:
        array = np.empty(len(values), dtype=object)
        array[:] = values
        return array

    def _payload_columns(self) -> None:
        rank, cluster, wanted = self.report.rank, self.report.cluster, self.report.payload

        def encode(found: Range, how: Any) -> Any:
            return how(found.payload, rank, cluster) if found.payload else None

        if wanted in ("both", "json"):
            self.columns["jsonText"] = self._objects([encode(found, nccl.as_json) for found in self.ranges])
        if wanted in ("both", "binary"):
            self.columns["binaryData"] = self._objects([encode(found, nccl.as_binary) for found in self.ranges])

    def _texts(self, runs: int, first_run: int) -> NDArray[Any]:
        texts = np.empty((runs, len(self.ranges)), dtype=object)
        texts[:] = self._objects([None if found.style is Style.REGISTERED else found.text for found in self.ranges])
        number = self.report.operator
        for run in range(runs):
            row = texts[run]
            for index in self.operators:
                row[index] = f"{row[index]}, op_id = {number}"
                number += 1
            for index in self.numbered:
                row[index] = f"{row[index]} {first_run + run}"
        self.report.operator = number
        return texts

    def _traces(self, fields: Fields, runs: int, first_run: int) -> NDArray[Any]:
        """The JSON of the advanced NCCL trace's ranges, which differs from run to run."""
        texts = np.empty((runs, len(self.ranges)), dtype=object)
        for index in self.traced:
            trace = self.ranges[index].trace
            assert trace is not None
            texts[:, index] = [fields.of_range(trace, first_run + run) for run in range(runs)]
        return texts

    def write(self, block: Block, epochs: Ints, first_run: int) -> None:
        """Write the ranges of runs that begin at ``epochs`` (true time, ns); the first is run number ``first_run``."""
        rank = self.report.rank
        begin = block.host_begin[:, rank.rank, self.first] - self.lead
        end = block.host_end[:, rank.rank, self.last] + self.trail
        local = [rank.local(epochs[:, None] + np.rint(edge).astype(np.int64)) for edge in (begin, end)]
        columns = {**self.columns, "text": self._texts(len(epochs), first_run)}
        if self.fields and self.report.includes_json:
            columns["jsonText"] = self._traces(self.fields, len(epochs), first_run)
        lost = self.report.missing.of(Part.RANGE, self.collectives)
        if self.report.payload == "dynamic":
            columns["eventId"] = ids = dynamic.next_ids(self.report, local[0])
            dynamic.write_payloads(self.report, self.ranges, ids)
        self.report.insert("NVTX_EVENTS", self.labels, columns, local[0], local[1], lost=lost)


def write_points(report: Report, rows: list[dict[str, Any]], name: str) -> None:
    """Add NVTX rows given one by one (marks, definitions, start/end ranges), tallied together as ``name``. Definitions are
    in a report wherever it is cut.
    """
    rows = rows if name == DEFINITIONS else report.missing.points(rows)
    if not rows:
        return
    keys = sorted({key for row in rows for key in row} - {"start", "end"})
    begin = np.array([[row["start"] for row in rows]], dtype=np.int64)
    columns: dict[str, Column] = {key: [row.get(key) for row in rows] for key in keys}
    if any("end" in row for row in rows):
        columns["end"] = [row.get("end") for row in rows]
    report.export.insert("NVTX_EVENTS", {"start": begin.ravel(), **columns}, report.order(begin.ravel()))
    ends = np.array([[row.get("end") or row["start"] for row in rows]], dtype=np.int64)
    report.tally.add("NVTX_EVENTS", [name] * len(rows), ends - begin)


def write_definitions(report: Report, at: int, more: Sequence[dict[str, Any]] = ()) -> None:
    """Domains, categories and thread names, created at local time ``at`` (ns), ``more`` of them behind; and the payload
    schemas of NCCL.

    The job's domain is named through a registered string and is created on two threads; NCCL's by inline text.
    """
    rank = report.rank
    if report.payload == "dynamic":
        dynamic.prepare(report)
    job_name = report.export.string(DOMAIN_NAMES[Domain.JOB])
    main, autograd = rank.global_tid(Thread.MAIN), rank.global_tid(Thread.AUTOGRAD)
    rows: list[dict[str, Any]] = [
        {"eventType": DOMAIN, "text": DOMAIN_NAMES[Domain.NCCL], "globalTid": main, "domainId": int(Domain.NCCL)},
        {"eventType": DOMAIN, "textId": job_name, "globalTid": main, "domainId": int(Domain.JOB)},
        {"eventType": DOMAIN, "textId": job_name, "globalTid": autograd, "domainId": int(Domain.JOB)},
    ]
    rows += [
        {"eventType": CATEGORY, "category": number, "text": name, "globalTid": main, "domainId": int(Domain.JOB)}
        for number, name in CATEGORIES.items()
    ]
    rows += [
        {"eventType": THREAD, "text": name, "globalTid": rank.global_tid(thread), "domainId": 0}
        for thread, name in (
            (Thread.MAIN, "trainer"),
            (Thread.LOADER_0, "data loader 0"),
            (Thread.LOADER_1, "data loader 1"),
        )
    ]
    rows += more
    for index, row in enumerate(rows):
        row["start"] = at + 2_000 * index
    write_points(report, rows, DEFINITIONS)
    if report.payload != "none" and report.cluster.communicators and report.options.nccl_trace == "legacy":
        _write_schemas(report)


def _write_schemas(report: Report) -> None:
    """Schema and enumeration rows as real exports have them: zero offsets, flags and names are NULL."""
    domain, insert = int(Domain.NCCL), report.export.insert
    rooted = report.options.nccl_rooted
    shapes = [shape for function, shape in nccl.SCHEMAS.items() if rooted or function not in nccl.ROOTED]
    if report.payload == "dynamic":
        dynamic.write_translation(report, shapes)
    entries = [(shape.id, index, *entry) for shape in shapes for index, entry in enumerate(shape.entries)]
    insert(
        "NVTX_PAYLOAD_SCHEMAS",
        {
            "domainId": domain,
            "schemaId": [shape.id for shape in shapes],
            "type": 1,
            "numEntries": [len(shape.entries) for shape in shapes],
            "payloadSize": [shape.size for shape in shapes],
        },
    )
    insert(
        "NVTX_PAYLOAD_SCHEMA_ENTRIES",
        {
            "domainId": domain,
            "schemaId": [entry[0] for entry in entries],
            "idx": [entry[1] for entry in entries],
            "type": [entry[3] for entry in entries],
            "name": [entry[2] for entry in entries],
            "offset": [entry[4] or None for entry in entries],
        },
    )
    insert(
        "NVTX_PAYLOAD_ENUMS",
        {"domainId": domain, "schemaId": [nccl.REDUCTION_ID], "numEntries": len(nccl.REDUCTIONS), "size": 4},
    )
    insert(
        "NVTX_PAYLOAD_ENUM_ENTRIES",
        {
            "domainId": domain,
            "schemaId": nccl.REDUCTION_ID,
            "idx": list(range(len(nccl.REDUCTIONS))),
            "name": list(nccl.REDUCTIONS),
            "value": list(range(len(nccl.REDUCTIONS))),
        },
    )
