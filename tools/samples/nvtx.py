"""NVTX rows of one report: push/pop ranges of programs, definitions, the payloads of NCCL's ranges,
and what nsys's advanced NCCL trace has besides: work on the GPU, the proxy's operations.

Payload schemas' ids are 2**24 plus NCCL's number for the function, the reduction is an enumeration
of its own (ids as in NCCL 2.29); offsets and entry types are those of real exports. ``binaryData``
is a header of four little-endian 64-bit numbers (domain id, schema id, payload size, payload
offset) and then the payload.

``nsys export --dynamic-tables=all`` (2026.4, schema 3.28.1) writes payloads into a table for each
schema, with a column for each entry: NVTX_EVENTS then has a primary key, ``eventId``;
NVTX_EVENTS_PAYLOAD_SCHEMAS says which schema an event's payload is of. Unsigned numbers are stored
as signed ones. Names of columns are sanitized and NVTX_EXPORT_TRANSLATION tells from what; how is
not documented: here everything but letters and digits becomes an underscore. The value of an
enumeration is its number (inferred).

nsys's advanced NCCL trace (2025.6 and later) has other ranges, with JSON. NCCL counts the calls of
each function on a communicator ("seqNumber"). nsys gives every call an "apiId" - the same on all
ranks for a collective, one of the rank's own for a send or receive - and every group an
"apiGroupId" of its thread. How nsys makes these ids is not documented; here they follow from the
communicator, or the rank, and a count. Operations on the GPU have one range per channel, lasting as
long as the kernel does their work; they, and the proxy's operations, overlap, so they are start/end
ranges, on the communicator's progress thread. Categories are communicators; "CommInit" marks tell
of their creation. Of real reports only what NVIDIA's user guide says is known: the names of ranges
and of some fields. Inferred are the event types, the thread of GPU operations, the fields "nRanks",
"peer", "root", "channelId", "rank", and the ids' values.
"""

from __future__ import annotations

import re
import struct
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .cluster import Cluster, Communicator, Ints, Rank, Thread
from .cuda import count_blocks
from .data import DATA, as_json, tables
from .program import CATEGORIES, PAD_NS, Domain, Kind, Op, Payload, Program, Range, Style
from .report import Column, Report
from .timeline import Block, Floats

CATEGORY, MARK, THREAD, PUSH_POP, START_END, DOMAIN = 33, 34, 39, 59, 60, 75  # event types
DOMAIN_NAMES = {Domain.DEFAULT: "default", Domain.NCCL: "NCCL", Domain.JOB: "trainer"}
FIRST_SCHEMA = 1 << 24
REDUCTION = FIRST_SCHEMA + 24
REDUCTIONS = ("Sum", "Product", "Max", "Min", "Avg")
PAIRWISE = ("Send", "Recv")
ELEMENTS = {False: (2, "ncclBfloat16"), True: (4, "ncclFloat32")}
STAGES = ("GroupLaunch", "GroupRuntime", "KernelLaunch")


def _read_schemas() -> dict[str, tuple[int, int, list[tuple[str, int, int]]]]:
    """Read payload schemas by function: id, bytes, entries (name, type or schema, offset)."""
    found = {}
    for function, (number, size, keys) in DATA["payload_schemas"].items():
        entries = [DATA["payload_entries"][key] for key in keys]
        typed = [(name, REDUCTION if kind == 24 else kind, at) for name, kind, at in entries]
        found[function] = (FIRST_SCHEMA + number, size, typed)
    return found


SCHEMAS = _read_schemas()


def list_payload_values(payload: Payload, rank: Rank, cluster: Cluster) -> dict[str, int]:
    """Return the payload of one rank's NCCL call, by entry name."""
    comm = cluster.communicator(payload.group, rank.rank)
    size, own = len(comm.ranks), comm.ranks.index(rank.rank)
    fields = {
        "NCCL communicator ID": comm.hash,
        "Message size [bytes]": payload.bytes,
        "No. of ranks": size,
        "Rank": own,
        "CUDA device": rank.device,
        "Reduction operation": payload.reduction,
        "Peer rank": (own + payload.peer) % size,
        "Root": payload.root % size,
    }
    return {name: fields[name] for name, _, _ in SCHEMAS[payload.function][2]}


def write_payload_json(values: dict[str, int]) -> str:
    """Write a flat object; the reduction by its name."""
    key = "Reduction operation"
    return as_json(values | ({key: REDUCTIONS[values[key]]} if key in values else {}))


def write_payload_bytes(function: str, values: dict[str, int]) -> bytes:
    """Write a payload as ``binaryData`` has it."""
    number, size, entries = SCHEMAS[function]
    body = bytearray(size)
    for name, kind, offset in entries:
        struct.pack_into("<Q" if kind in (18, 22) else "<i", body, offset, values[name])
    return struct.pack("<4Q", Domain.NCCL, number, size, 32) + bytes(body)


def find_category(comm: Communicator) -> int:
    """Return the NVTX category of a communicator's ranges."""
    return int(comm.group) + 1


class CallNumbers:
    """The numbers of a program's NCCL calls on one rank, run after run."""

    def __init__(self, program: Program, cluster: Cluster, rank: int) -> None:
        self.program, self.rank = program, rank
        self.calls = program.nccl_calls
        self.comms = [cluster.communicator(call.group, rank) for call in self.calls]
        pairs = zip(self.comms, self.calls, strict=True)
        self._by_function = [(comm.hash, call.function) for comm, call in pairs]
        self._by_kind = [-1 if name in PAIRWISE else comm for comm, name in self._by_function]

    @staticmethod
    def _count(keys: list[Any], call: int, run: int) -> int:
        """Count the calls with the key of this one that there were before it."""
        return run * keys.count(keys[call]) + keys[:call].count(keys[call])

    def sequence(self, call: int, run: int) -> int:
        """Count the calls of this function that the communicator has had before."""
        return self._count(self._by_function, call, run)

    def api_id(self, call: int, run: int) -> int:
        """Return the id of a call."""
        count = self._count(self._by_kind, call, run)
        if self.calls[call].function in PAIRWISE:
            return (self.rank + 1) << 48 | count
        return self.comms[call].hash >> 20 << 20 & (1 << 62) - 1 | count

    def call_fields(self, number: int, run: int) -> dict[str, Any]:
        """Return the fields of one call wherever it appears."""
        call, comm = self.calls[number], self.comms[number]
        size, kind = ELEMENTS[call.four_byte]
        own = comm.ranks.index(self.rank)
        fields = {"commHash": comm.hash, "commRank": own, "nRanks": len(comm.ranks)}
        fields |= {"count": call.bytes // size, "dataType": kind}
        fields["apiId"] = self.api_id(number, run)
        if call.function in PAIRWISE:
            return fields | {"peer": (own + call.peer) % len(comm.ranks)}
        root = {"root": call.root % len(comm.ranks)} if call.root >= 0 else {}
        return fields | root | {"seqNumber": self.sequence(number, run)}


def write_range_json(text: str, trace: Any, numbers: CallNumbers, run: int) -> str:
    """Write the JSON of a range of the advanced trace: of a group, its stage, or a call."""
    group, calls = trace
    number = 1 + run * numbers.program.nccl_groups + group
    if text == "API Group":
        return as_json({"apiGroupId": number})
    if text in STAGES:
        comm = numbers.comms[calls[0]]
        fields = {"commHash": comm.hash, "commRank": comm.ranks.index(numbers.rank)}
        return as_json({**fields, "apiGroupId": number, "group": number})
    fields = numbers.call_fields(calls[0], run)
    return as_json(fields | {"apiGroupId": number, "rank": fields["commRank"]})


def _sanitized(name: str) -> str:
    return re.sub(r"\W", "_", name)


class RangeRows:
    """Writes the push/pop ranges of one program's runs."""

    def __init__(self, program: Program, report: Report) -> None:
        self.program, self.ranges, self.report = program, program.ranges, report
        self.first, self.last, lead, trail = np.array(
            [(one.first, one.last, one.lead, one.trail) for one in self.ranges]
        ).T
        self.lead, self.trail = lead * float(PAD_NS), trail * float(PAD_NS)
        self.operators, self.numbered = (
            [index for index, one in enumerate(self.ranges) if one.style is style]
            for style in (Style.OP_ID, Style.NUMBERED)
        )
        self.numbers = CallNumbers(program, report.cluster, report.rank.rank)
        self.payloads = [
            one.payload and list_payload_values(one.payload, report.rank, report.cluster)
            for one in self.ranges
        ]
        registered = [one.style is Style.REGISTERED for one in self.ranges]
        pairs = [*zip(self.ranges, registered, strict=True)]
        self.texts = [None if known else one.text for one, known in pairs]
        ids = [one.text if known else None for one, known in pairs]
        self.columns: dict[str, Column] = {"eventType": PUSH_POP}
        self.columns["textId"] = report.encode("NVTX_EVENTS", "textId", ids)
        self.columns["category"] = [self._category(one) for one in self.ranges]
        self.columns["color"] = [one.color for one in self.ranges]
        self.columns["globalTid"] = report.tids([one.thread for one in self.ranges])
        self.columns["domainId"] = [int(one.domain) for one in self.ranges]
        if any(self.payloads) and report.includes_json:
            self.columns["jsonText"] = [one and write_payload_json(one) for one in self.payloads]
        if any(self.payloads) and report.payload in ("both", "binary"):
            self.columns["binaryData"] = [
                fields and write_payload_bytes(one.payload.function, fields)
                for one, fields in zip(self.ranges, self.payloads, strict=True)
            ]

    def _category(self, one: Range) -> int | None:
        """Return that of the range; of the advanced NCCL trace the communicator's."""
        return find_category(self.numbers.comms[one.trace[1][0]]) if one.trace else one.category

    def _write_texts(self, runs: int, first_run: int) -> NDArray[Any]:
        texts = np.tile(np.array(self.texts, dtype=object), (runs, 1))
        for run, row in enumerate(texts, first_run):
            for index in self.operators:
                row[index] = f"{row[index]}, op_id = {self.report.operator}"
                self.report.operator += 1
            for index in self.numbered:
                row[index] = f"{row[index]} {run}"
        return texts

    def write(self, block: Block, epochs: Ints, first_run: int) -> None:
        """Write the ranges of runs that begin at ``epochs``; the first is run ``first_run``."""
        report, rank = self.report, self.report.rank.rank
        begin = report.local(epochs, block.host_begin[:, rank, self.first] - self.lead)
        end = report.local(epochs, block.host_end[:, rank, self.last] + self.trail)
        columns = {**self.columns, "text": self._write_texts(len(epochs), first_run)}
        traced = [(index, one) for index, one in enumerate(self.ranges) if one.trace]
        if report.includes_json and traced:  # differs from run to run
            columns["jsonText"] = texts = np.empty(begin.shape, dtype=object)
            for index, one in traced:
                for run in range(len(epochs)):
                    known = one.trace, self.numbers, first_run + run
                    texts[run, index] = write_range_json(one.text, *known)
        if report.payload == "dynamic":
            columns["eventId"] = ids = self._next_ids(begin)
            self._write_payload_tables(ids)
        report.insert("NVTX_EVENTS", begin, end, **columns)

    def _next_ids(self, begin: Ints) -> Ints:
        """Return the ``eventId`` of the next rows, in their order in the table."""
        ids, first = np.empty(begin.size, np.int64), self.report.export.rows["NVTX_EVENTS"] + 1
        ids[self.report.order(begin.ravel())] = first + np.arange(begin.size)
        return ids.reshape(begin.shape)

    def _write_payload_tables(self, ids: Ints) -> None:
        """Write payloads of ranges with rows ``ids`` (run, range), a table for each function."""
        export, process = self.report.export, self.report.rank.global_pid
        for function in sorted({one.payload.function for one in self.ranges if one.payload}):
            number, _, entries = SCHEMAS[function]
            payloads = enumerate(one.payload for one in self.ranges)
            which = [index for index, one in payloads if one and one.function == function]
            table = f"DYNAMIC_NVTXPAYLOAD_DATATYPE_{process}_{int(Domain.NCCL)}_{number}"
            columns = "".join(f",\n    {_sanitized(name):<27} INTEGER" for name, _, _ in entries)
            key = "eventId                     INTEGER   NOT NULL"
            export.create(table, f"CREATE TABLE {table} (\n    {key}{columns}\n)")
            rows: dict[str, Any] = {"eventId": ids[:, which].ravel()}
            schema = {"globalPid": process, "domainId": int(Domain.NCCL), "payloadSchemaID": number}
            schema |= rows
            for name, _, _ in entries:
                values = np.array([self.payloads[index][name] for index in which], np.uint64)
                rows[_sanitized(name)] = np.tile(values.astype(np.int64), len(ids))
            export.insert(table, rows)
            export.insert("NVTX_EVENTS_PAYLOAD_SCHEMAS", schema)


def make_row(
    report: Report, kind: int, thread: int, domain: Domain = Domain.DEFAULT, **columns: Any
) -> dict[str, Any]:
    """Make a row of a thread (distance from the pid) for :func:`write_points`."""
    tid = report.rank.global_tid(thread)
    return {"eventType": kind, "globalTid": tid, "domainId": int(domain), **columns}


def write_points(report: Report, rows: list[dict[str, Any]]) -> None:
    """Add NVTX rows given one by one: marks, definitions, start/end ranges."""
    if rows:
        keys = sorted({key for row in rows for key in row})
        columns = {key: [row.get(key) for row in rows] for key in keys}
        report.export.insert("NVTX_EVENTS", columns, report.order(np.array(columns["start"])))


def write_definitions(report: Report, at: int) -> None:
    """Write domains, categories and thread names, created at local time ``at`` (ns); and the payload
    schemas of NCCL.

    The job's domain is named through a registered string and is created on two threads; NCCL's by
    inline text.
    """
    if report.payload == "dynamic":
        last = "binaryData                  TEXT"
        columns = tables()["NVTX_EVENTS"].replace(f"{last} ", f"{last},").removesuffix(")")
        report.export.create(
            "NVTX_EVENTS",
            f"{columns}    eventId                     INTEGER   NOT NULL   PRIMARY KEY       "
            "-- Unique NVTX event row identifier.\n)",
        )
    name = report.export.string(DOMAIN_NAMES[Domain.JOB])
    job, main = partial(make_row, report, domain=Domain.JOB), Thread.MAIN
    threads = {main: "trainer", Thread.LOADER_0: "data loader 0", Thread.LOADER_1: "data loader 1"}
    rows = [
        make_row(report, DOMAIN, main, Domain.NCCL, text=DOMAIN_NAMES[Domain.NCCL]),
        *(job(DOMAIN, thread, textId=name) for thread in (main, Thread.AUTOGRAD)),
        *(job(CATEGORY, main, category=number, text=text) for number, text in CATEGORIES.items()),
        *(make_row(report, THREAD, thread, text=text) for thread, text in threads.items()),
        *(_list_nccl_definitions(report) if report.options.advanced else ()),
    ]
    rows = [row | {"start": at + 2_000 * index} for index, row in enumerate(rows)]
    write_points(report, rows)
    if report.payload != "none" and report.cluster.communicators and not report.options.advanced:
        _write_schemas(report)


def _write_schemas(report: Report) -> None:
    """Write schema and enumeration rows as real exports have them: zero offsets are NULL."""
    domain, unused = int(Domain.NCCL), () if report.options.nccl_rooted else ("Broadcast", "Reduce")
    shapes = [shape for function, shape in SCHEMAS.items() if function not in unused]
    if report.payload == "dynamic":
        names = sorted({name for _, _, entries in shapes for name, _, _ in entries})
        pairs = [(name, _sanitized(name)) for name in names if _sanitized(name) != name]
        report.add("NVTX_EXPORT_TRANSLATION", "originalName sanitizedName", pairs)
    schemas = [(domain, number, 1, len(entries), size) for number, size, entries in shapes]
    report.add("NVTX_PAYLOAD_SCHEMAS", "domainId schemaId type numEntries payloadSize", schemas)
    rows = [
        (domain, number, index, kind, name, offset or None)
        for number, _, entries in shapes
        for index, (name, kind, offset) in enumerate(entries)
    ]
    report.add("NVTX_PAYLOAD_SCHEMA_ENTRIES", "domainId schemaId idx type name offset", rows)
    enums = [(domain, REDUCTION, len(REDUCTIONS), 4)]
    report.add("NVTX_PAYLOAD_ENUMS", "domainId schemaId numEntries size", enums)
    values = [(domain, REDUCTION, index, name, index) for index, name in enumerate(REDUCTIONS)]
    report.add("NVTX_PAYLOAD_ENUM_ENTRIES", "domainId schemaId idx name value", values)


#: Distances from the pid; a communicator's progress thread has its kind's number added.
PROGRESS_THREAD, INIT_THREAD = (30, 29)
PROXY_CHANNELS = 2
CHANNEL_SPREAD_NS = 700.0


def list_communicators(report: Report) -> list[tuple[Communicator, int]]:
    """List the rank's communicators, each with its progress thread (distance from the pid)."""
    own = [comm for comm in report.cluster.communicators if report.rank.rank in comm.ranks]
    return [(comm, PROGRESS_THREAD + int(comm.group)) for comm in own]


def _list_nccl_definitions(report: Report) -> list[dict[str, Any]]:
    """List NVTX rows: the communicators as categories, and the names of NCCL's threads."""
    rank, rows = report.rank.rank, []
    for comm, thread in list_communicators(report):
        text, number = f"Communicator {comm.hash:#x}", find_category(comm)
        name = f"NCCL Progress [{comm.ranks.index(rank)}/{len(comm.ranks)}]: {comm.hash:#x}"
        rows.append(make_row(report, CATEGORY, 0, Domain.NCCL, category=number, text=text))
        rows.append(make_row(report, THREAD, thread, text=name))
    return rows


def name_threads(report: Report) -> dict[int, str]:
    """Name NCCL's threads as the OS knows them, by their distance from the pid."""
    named = {thread: "NCCL Progress" for _, thread in list_communicators(report)}
    return {INIT_THREAD: "NCCL CommInit"} | named


class TraceRows:
    """Writes the ranges of the advanced trace outside the calling threads, for one program."""

    def __init__(self, program: Program, report: Report) -> None:
        self.program, self.report = program, report
        self.numbers = CallNumbers(program, report.cluster, report.rank.rank)
        self.epochs = np.empty(0, np.int64)  # of the runs being written, and the first one's number
        self.first_run = 0

    def write(self, block: Block, epochs: Ints, first_run: int) -> None:
        """Write the rows of runs that begin at ``epochs``; the first is run ``first_run``."""
        self.epochs, self.first_run = epochs, first_run
        self._write_marks(block)
        for index in self.program.all_of(Kind.COLLECTIVE):
            begin, end = (
                times[:, self.report.rank.rank, index] for times in (block.gpu_begin, block.gpu_end)
            )
            self._write_operation(self.program.ops[index], begin, end)
            if self.report.options.nccl_proxy:
                self._write_proxy(self.program.ops[index], begin, end)

    def _write_marks(self, block: Block) -> None:
        """Write a mark for each communicator made."""
        report, rank, rows = self.report, self.report.rank, []
        for index in self.program.all_of(Kind.MEET):
            comm = report.cluster.communicator(self.program.ops[index].payload.group, rank.rank)
            at = report.local(self.epochs[:1], block.host_end[:1, rank.rank, index])
            mark = make_row(report, MARK, INIT_THREAD, Domain.NCCL, text="CommInit")
            mark |= {"start": int(at[0]), "category": find_category(comm)}
            if report.includes_json:
                fields = {"commHash": comm.hash, "commRank": comm.ranks.index(rank.rank)}
                mark["jsonText"] = as_json({**fields, "nRanks": len(comm.ranks)})
            rows.append(mark)
        write_points(report, rows)

    def _write_operation(self, op: Op, begin: Floats, end: Floats) -> None:
        """Write a range per call and channel. Several collectives share the channels one after the
        other; a send and a receive take half of the channels each.
        """
        calls = [self.program.nccl_calls[number] for number in op.calls]
        options, rank = self.report.options, self.report.rank.rank
        channels = range(count_blocks(op, options))
        rng = np.random.default_rng([options.seed, 13, rank, self.first_run, op.calls[0]])
        if calls[0].function in PAIRWISE:
            half = len(channels) // 2
            parts = [(0.0, 1.0, channels[:half] or channels), (0.0, 1.0, channels[half:])]
        else:
            sizes = np.cumsum([0.0, *(call.bytes for call in calls)])
            edges = (sizes / sizes[-1]).tolist()
            parts = [(low, high, channels) for low, high in pairwise(edges)]
        for number, (low, high, where) in zip(op.calls, parts, strict=True):
            late = rng.random((len(begin), len(where), 2)) * CHANNEL_SPREAD_NS
            late[:, 0] = 0.0  # one channel is there from first to last
            starts = (begin + low * (end - begin))[:, None] + late[..., 0]
            stops = (begin + high * (end - begin))[:, None] - late[..., 1]
            function = self.program.nccl_calls[number].function
            self._insert(function, number, where, starts, stops)

    def _write_proxy(self, op: Op, begin: Floats, end: Floats) -> None:
        """Write the proxy's sends to and receives from ranks on other hosts, along the ring."""
        rank, ranks = self.report.rank, self.report.cluster.ranks
        for number in op.calls:
            call, comm = self.program.nccl_calls[number], self.numbers.comms[number]
            own, size = comm.ranks.index(rank.rank), len(comm.ranks)
            for function, step in (("Send", 1), ("Recv", -1)):
                peer = (own + step) % size
                if (
                    (call.function in PAIRWISE and function != call.function)
                    or not call.passes_on(own if step == 1 else peer, size)
                    or ranks[comm.ranks[peer]].host_index == rank.host_index
                ):
                    continue
                starts = begin[:, None] + 1_500.0 + 400.0 * np.arange(PROXY_CHANNELS)
                stops = np.maximum(starts + 100.0, end[:, None] - 900.0 + 0.0 * starts)
                where = number, range(PROXY_CHANNELS)
                self._insert(f"ProxyOp{function}", *where, starts, stops, peer=peer)

    def _insert(
        self, text: str, number: int, channels: range, starts: Floats, stops: Floats, **more: int
    ) -> None:
        """Write ranges of a call on channels, with the axes (run, channel)."""
        report, comm = self.report, self.numbers.comms[number]
        begin, end = report.local(self.epochs, starts), report.local(self.epochs, stops)
        thread = report.rank.global_tid(PROGRESS_THREAD + int(comm.group))
        columns: dict[str, Any] = {"eventType": START_END, "domainId": int(Domain.NCCL)}
        columns["rangeId"] = report.range_id + np.arange(begin.size).reshape(begin.shape)
        columns |= {"globalTid": thread, "endGlobalTid": thread, "category": find_category(comm)}
        columns["textId"] = text
        report.range_id += begin.size
        if report.includes_json:
            columns["jsonText"] = np.empty(begin.shape, dtype=object)
            for run in range(len(begin)):
                fields = self.numbers.call_fields(number, self.first_run + run) | more
                texts = [as_json(fields | {"channelId": channel}) for channel in channels]
                columns["jsonText"][run] = texts
        report.insert("NVTX_EVENTS", begin, end, **columns)
