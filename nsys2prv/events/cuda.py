"""Read CUDA events.

On host threads: API calls, event records and synchronizations. On streams: kernels, graphs and
memory operations, with lines from the launching calls. Also memory allocations and pools
(``--cuda-memory-usage``), page faults of unified memory, and the number of running blocks, warps
and busy SMs on each GPU (``-t gpu_blocks``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import polars as pl
from msgspec.structs import replace

from nsys2prv._util.columns import (
    ABSENT,
    blank_negative,
    blank_nonpositive,
    factorize,
    factorize_together,
    fill_with_zero,
    sum_changes,
)
from nsys2prv.events.attributes import (
    list_columns,
    list_row_columns,
    make_launch_lines,
    make_rows,
    name_texts,
    read_fields,
    select_labels,
)
from nsys2prv.events.captures import find_captures
from nsys2prv.events.catalogue import Metric, load_catalogue, load_counter_tables, map_labels
from nsys2prv.events.extraction import Extraction
from nsys2prv.events.kind import Counters, Reason, Rows
from nsys2prv.events.launches import Launches
from nsys2prv.events.nccl import attach_payloads, is_nccl_kernel
from nsys2prv.events.stacks import (
    CHAIN,
    CUDA_STACKS,
    add_callers,
    name_lines,
    name_sources,
    strip_version,
)
from nsys2prv.export.database import Database
from nsys2prv.export.source import NULL, Columns, Part, mask_empty, mask_usable

#: Class of rows that repeat a call. The call also has a row of its own, with its stack. Reports
#: with backtraces contain such rows.
BACKTRACE_CLASS = 67
#: Columns of API calls in the order of `Launches`, and the columns that distinguish calls.
CALL_COLUMNS = ("correlationId", "start", "end", "globalTid", "nameId", "returnValue")
CALL_KEY = ("correlationId", "globalTid")
#: Number of rows before and after a part of a table that are searched for rows that repeat its
#: calls.
NEAR_ROWS = 1000
#: Calls that wait for the device.
SYNCHRONISING = r"(?i)^cu(?:da)?(?:Device|Stream|Event|Ctx|Thread|Context)_?Synchronize|^cu(?:da)?Ctx.*Synchronize"
#: Label of a synchronization in the catalogue, in one word, or another part of the calling
#: function's name -> its value.
SYNCHRONIZATIONS = {
    label.replace(" ", ""): value for label, value in map_labels("synchronization").items()
}
UNKNOWN_SYNCHRONIZATION = SYNCHRONIZATIONS.pop("synchronizationofunknowntype")
SYNCHRONIZATIONS |= dict.fromkeys(
    ("devicesynchronize", "ctxsynchronize", "threadsynchronize"),
    SYNCHRONIZATIONS["contextsynchronize"],
)
#: streamId and eventId if there is none.
NO_ID = 0xFFFFFFFF
#: Values of the catalogue's set held_by_host.
HOST_LAUNCH, HOST_NODE = 1, 2
#: Columns of every operation of a stream.
OPERATION = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
#: Columns that a launch configuration sums up, and the bit of its field (the only one that sums
#: up).
CONFIGURATION = (
    *("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"),
    *("registersPerThread", "staticSharedMemory", "dynamicSharedMemory"),
)
CONFIGURED = ~load_catalogue().layouts["cuda_kernel"].every_mask
KERNEL_TABLE = "CUPTI_ACTIVITY_KIND_KERNEL"
#: Columns with the ids of a kernel's names, the full one first.
KERNEL_NAMES = ("demangledName", "shortName")
GRAPH_TABLE = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
HOST_NODES = "CUPTI_ACTIVITY_KIND_GRAPH_HOST_NODE_AND_HOST_LAUNCH"
DECOMPRESSIONS = "CUPTI_ACTIVITY_KIND_MEM_DECOMPRESS"
COPIES, SETS = "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"
_OPERATIONS = map_labels("memory_operation")
#: Values of the catalogue's set `memory_operation`; a copy from device to device is within a GPU.
UNKNOWN_OPERATION, MEMSET = _OPERATIONS["cuda memcpy of unknown kind"], _OPERATIONS["cuda memset"]
DEVICE_TO_DEVICE = _OPERATIONS["cuda memcpy device-to-device"]
PEER_TO_PEER = _OPERATIONS["cuda memcpy peer-to-peer"]
#: Nsight's ENUM_CUDA_MEMCPY_OPER (by index) -> value of that set.
OPERATIONS = np.array(
    [UNKNOWN_OPERATION, 5, 4, 7, 8, 9, 10, 11, DEVICE_TO_DEVICE, 12, PEER_TO_PEER, 14, 15, 16]
)
#: memoryOperationType, ENUM_CUDA_DEV_MEM_EVENT_OPER.
ALLOCATION, RELEASE = 0, 1
#: Values of the catalogue's memory_kind, Nsight's plus one: memory of the host.
HOST_KINDS = (1, 2)
#: Facts on each allocation and release; their `memory` is a memory_kind of the catalogue.
GPU_MEMORY = "gpu_memory"
#: Layout and facts of blocks and warps inside of kernels, and event types of the catalogue.
BLOCKS_LAYOUT = "gpu_blocks"
BLOCKS, WARPS, MULTIPROCESSORS = 69200701, 69200702, 69200703


def select_synchronising_calls(labels: pl.DataFrame) -> tuple[int, ...]:
    """Return the event values of CUDA API calls that wait for the device. labels: value and label
    of all calls.
    """
    return select_labels(labels, SYNCHRONISING)


def label_calls(extraction: Extraction, ids: np.ndarray, unnamed: str = "") -> np.ndarray:
    """Give calls the names of their functions. Return the local index of each name. ids: string ids
    of the functions (nameId). unnamed: name for missing ids.
    """

    def make_texts(met: np.ndarray) -> list[str]:
        return [strip_version(symbol) or unnamed for symbol in extraction.read_strings(met)]

    return extraction.name_rows("cuda_api", [ids], make_texts)


def extract_api_calls(extraction: Extraction, part: Part) -> Iterator[Rows]:
    """Yield CUDA API calls, and store the calls that launch work so that the work can be related to
    them.
    """
    columns = extraction.read(part, (*CALL_COLUMNS, CHAIN, "eventClass"), short=True)
    repeated = columns["eventClass"] == BACKTRACE_CLASS
    repeating = columns.where(repeated)
    columns = extraction.drop_rows(columns, repeated, Reason.REPEATED_FOR_BACKTRACE)
    extraction.launched.append(Launches(*(columns[name] for name in CALL_COLUMNS)))
    repetitions = [*_read_repeating_nearby(extraction, part), repeating]
    columns.integers[CHAIN] = _take_stacks(columns, repetitions)
    columns = extraction.drop_short(columns)
    fields = {}
    if extraction.stores:
        fields["call"] = label_calls(extraction, columns["nameId"])
        fields["error"] = blank_nonpositive(columns["returnValue"])
    rows = make_rows(extraction, "cuda_api", columns, fields)
    yield add_callers(extraction, CUDA_STACKS, columns[CHAIN], rows)


def _read_repeating_nearby(extraction: Extraction, part: Part) -> Iterator[Columns]:
    """Yield rows before and after a part that may repeat its calls."""
    if extraction.stores and extraction.database.has(CUDA_STACKS, "id"):
        whole = extraction.database.tables[part.table].whole
        for first in (part.first - NEAR_ROWS, part.last + 1):
            last = min(first + NEAR_ROWS - 1, whole.last)
            near = Part(part.table, max(first, whole.first), last, part.rowid)
            if near.rows:
                rows = extraction.database.read(near, (*CALL_KEY, CHAIN, "eventClass"))
                yield rows.where(rows["eventClass"] == BACKTRACE_CLASS)


def _take_stacks(calls: Columns, repeating: Sequence[Columns]) -> np.ndarray:
    """Return the stack id of each call: from rows that repeat the call, otherwise its own."""
    count = sum(one.rows for one in repeating)
    if not count:
        return calls[CHAIN]
    names = (*CALL_KEY, CHAIN)
    *key, chain = (np.concatenate([one[name] for one in (*repeating, calls)]) for name in names)
    distinct, codes = factorize_together(*key)
    stacks = np.full(len(distinct[0]), NULL)
    stacks[codes[:count]] = chain[:count]
    found = stacks[codes[count:]]
    return np.where(found == NULL, calls[CHAIN], found)


def extract_event_records(extraction: Extraction, part: Part) -> Iterator[Rows]:
    """Yield calls that record CUDA events, and the completion of these events.

    The table has no start and end, so the times of the recording call are used. `timestamp`, in
    exports since 3.23, is the completion time of the event on the GPU (local ns). If it was not
    collected, it is 0, or the offset that the export adds to all times.
    """
    wanted = ("timestamp", "correlationId", "globalPid", *list_columns("cuda_event"))
    columns = extraction.read(part, wanted)
    moment, begin = columns["timestamp"], extraction.report.begin_ns
    complete = columns.where((moment > 0) & (moment != begin))
    if complete.rows:
        extraction.account.synthesized[Reason.COMPLETION_ON_GPU] += complete.rows
        complete.integers["start"] = complete["timestamp"]
        streams = extraction.intern_streams(complete)
        yield make_rows(extraction, "cuda_event_completion", complete, objects=streams)

    launches = extraction.find_launches(columns)
    times = {"start": launches.begin, "end": launches.end}
    call = {"nameId": launches.name, "returnValue": launches.result}
    columns = replace(columns, integers={**columns.integers, **times, **call})
    columns.integers["globalTid"] = extraction.find_callers(launches, columns["globalPid"])
    columns = extraction.drop_short(columns)
    fields = {
        "call": label_calls(extraction, columns["nameId"], "unknown call"),
        "result": blank_nonpositive(columns["returnValue"]),
    }
    yield make_rows(extraction, "cuda_event", columns, fields)


def find_synchronization_type(function: str) -> int:
    """Return the value of the synchronization type of a CUDA function, by its name."""
    fitting = (value for part, value in SYNCHRONIZATIONS.items() if part in function.lower())
    return next(fitting, UNKNOWN_SYNCHRONIZATION)


def extract_synchronizations(extraction: Extraction, part: Part) -> Iterator[Rows]:
    """Yield times in which CUDA synchronizes, with the type of synchronization.

    The type comes from the calling function, not from syncType: exports 3.13 to 3.24 number the
    types in three different ways, although ENUM_CUPTI_SYNC_TYPE stays the same
    (cudaDeviceSynchronize is 1, then 0, then 4). Without a call, the type is unknown.
    """
    wanted = ("start", "end", "streamId", "correlationId", "globalPid", "eventId")
    columns = extraction.read(part, wanted)
    launches = extraction.find_launches(columns)
    names, codes = factorize(launches.name)
    met = list(map(find_synchronization_type, extraction.read_strings(names)))
    fields = {"type": np.array(met, np.int64)[codes]}
    for field in ("stream", "event"):
        ids = columns[f"{field}Id"]
        concerned = [value for part, value in SYNCHRONIZATIONS.items() if field in part]
        has_id = np.isin(fields["type"], concerned) & (ids != NO_ID)
        fields[field] = np.where(has_id, blank_negative(ids), ABSENT)
    columns.integers["globalTid"] = extraction.find_callers(launches, columns["globalPid"])
    yield make_rows(extraction, "cuda_synchronization", columns, fields)


def extract_kernels(extraction: Extraction, part: Part) -> Iterator[Rows]:
    """Yield kernels on their streams. NCCL kernels have a separate layout."""
    wanted = extraction.settings.field_masks.get("cuda_kernel", -1)
    integers = (*OPERATION, *KERNEL_NAMES, "graphNodeId", *list_columns("cuda_kernel", mask=wanted))
    has_configuration = wanted & CONFIGURED
    columns = extraction.read(part, integers + CONFIGURATION if has_configuration else integers)
    ids, codes = factorize_together(*(columns[name] for name in KERNEL_NAMES))
    full, shorts = (np.array(extraction.read_strings(one), object) for one in ids)
    names = np.where(full == "", shorts, full)
    of_nccl = np.fromiter(map(is_nccl_kernel, names), bool, len(names))
    objects = extraction.intern_streams(columns)
    captures = find_captures(extraction, columns)
    fields = read_fields(extraction, "cuda_kernel", columns, wanted)
    fields |= _classify(extraction, names, codes)
    if has_configuration:
        fields["launch"] = extraction.name_rows(
            "launch_configuration",
            [columns[name] for name in CONFIGURATION],
            _describe_configurations,
            np.maximum(columns["gridX"], columns["blockX"]) >= 0,
        )
    is_asked = extraction.settings.lines or of_nccl.any()
    launches = extraction.find_launches(columns) if is_asked else None
    lines = make_launch_lines(extraction, "launch", columns, objects, launches=launches)
    kinds = ("cuda_kernel", "kernels", ~of_nccl), ("nccl_kernel", "nccl_kernels", of_nccl)
    for layout, name_set, is_own in kinds:
        if not is_own.any():
            continue
        # For other names, the index of the text means nothing.
        texts = {"text": names[is_own].tolist(), "short": shorts[is_own].tolist()}
        label = extraction.intern_names(name_set, np.cumsum(is_own) - 1, **texts)[codes]
        rows = Rows(layout, columns["start"], columns["end"], objects, {**fields, "kernel": label})
        own = is_own[codes]
        if is_own is of_nccl:
            told = columns.where(own), launches[own], captures[:, own], objects[own]
            for name, values in attach_payloads(extraction, *told, names, codes[own]).items():
                rows.columns[name] = np.full(columns.rows, ABSENT)
                rows.columns[name][own] = values
        yield replace(rows, lines=lines).where(own)
        lines = None


def _describe_configurations(*columns: np.ndarray) -> list[str]:
    """Return texts of launch configurations, with "?" for unknown parts."""
    texts = "grid {}x{}x{}, block {}x{}x{}, {} registers, {} + {} bytes of shared memory"
    return [
        texts.format(*("?" if number < 0 else number for number in numbers))
        for numbers in zip(*(column.tolist() for column in columns), strict=True)
    ]


def _classify(
    extraction: Extraction, names: np.ndarray, codes: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the fields that are derived from kernel names: class, Tensor Cores, and layout and
    tile (a name index). codes: index of each kernel's name.
    """
    classes = extraction.classifier.classify(names)
    kinds, tensor_cores = np.array([one[:2] for one in classes], np.int64).reshape(-1, 2).T
    shape = name_texts(extraction, "gemm", codes, [one.shape for one in classes])
    return {"class": kinds[codes], "tensor_cores": tensor_cores[codes], "gemm": shape}


def extract_host_nodes(extraction: Extraction, part: Part) -> Iterator[Rows]:
    """Yield the times in which a host function of a CUDA graph blocks a stream."""
    columns = extraction.read(part, list_row_columns(extraction.kind, "graph_host_node"))
    fields = {"held": np.where(columns["graphNodeId"] != NULL, HOST_NODE, HOST_LAUNCH)}
    yield make_rows(extraction, "graph_host_node", columns, fields)


def hint_at_node_tracing(source: Database) -> str:
    """Return a hint that the work of these CUDA graphs is among the kernels, because they were
    traced node by node; "" if there are none.
    """
    if source.has(KERNEL_TABLE, "graphNodeId") and source.count_rows(
        source.tables[KERNEL_TABLE].whole, "{graphNodeId} > 0"
    ):
        return "graphs were traced node by node, and their nodes are rows of `kernels`"
    return ""


def extract_memory_operations(extraction: Extraction, part: Part) -> Iterator[Rows]:
    """Yield memory copies and memory sets on their streams."""
    copies = part.table == COPIES
    further = ("copyKind", "srcDeviceId", "dstDeviceId") if copies else ("memKind",)
    wanted = (*list_row_columns(extraction.kind, "memory_operation"), *further)
    columns = extraction.read(part, wanted)
    if copies:
        operation = find_copy_operations(*(columns[name] for name in further))
    else:
        operation = np.full(columns.rows, MEMSET)
        columns.integers["dstKind"] = columns["memKind"]
    find_captures(extraction, columns)
    yield make_rows(extraction, "memory_operation", columns, {"operation": operation})


def find_copy_operations(
    kind: np.ndarray, source: np.ndarray, destination: np.ndarray
) -> np.ndarray:
    """Return the value of the set `memory_operation` for each copy. A copy between two different
    devices is a peer-to-peer copy. kind: as CUPTI records it. source, destination: device of each
    side.
    """
    # The first is unknown.
    operations = OPERATIONS[np.where((kind > 0) & (kind < len(OPERATIONS)), kind, 0)]
    between = (source != destination) & (source != NULL) & (destination != NULL)
    return np.where(between & (operations == DEVICE_TO_DEVICE), PEER_TO_PEER, operations)


def extract_usage(extraction: Extraction, part: Part) -> Iterator[Rows]:
    """Yield memory allocations and releases, and store them to add up the memory in use on each
    GPU.
    """
    wanted = (*list_row_columns(extraction.kind, "memory_usage"), "address", "bytes")
    columns = extraction.read(part, wanted, ("name",))
    memory = read_fields(extraction, "memory_usage", columns)["memory"]
    operation, size = columns["memoryOperationType"], fill_with_zero(columns["bytes"])
    is_known = (operation == ALLOCATION) | (operation == RELEASE)
    extraction.add_fact(
        GPU_MEMORY,
        {
            "time_at": columns["start"],
            "object_gpu": extraction.number_gpus(columns),
            "process": columns["globalPid"],
            "address": columns["address"],
            "bytes": size,
            "memory": memory.astype(np.int8),
            "operation": np.where(is_known, operation, -1).astype(np.int8),
        },
    )
    codes, names = columns.texts["name"]
    texts = names.decode()
    named = ~mask_empty(texts)[codes]
    if named.any():
        codes = extraction.intern_names("memory_variable", codes, text=texts)
    fields = {"variable": np.where(named, codes, ABSENT)}
    on_host = np.isin(memory, HOST_KINDS)
    for where, is_there in (("", ~on_host), ("host_", on_host)):
        for what, changes in (("allocated", ALLOCATION), ("freed", RELEASE)):
            fields[where + what] = np.where(is_there & (operation == changes), size, ABSENT)
    yield make_rows(extraction, "memory_usage", columns, fields)


def extract_cpu_faults(extraction: Extraction, part: Part) -> Iterator[Rows]:
    """Yield page faults of CPUs on unified memory."""
    wanted = list_row_columns(extraction.kind, "cpu_page_fault")
    columns = extraction.read(part, (*wanted, "sourceFile", "sourceLine"))
    place = columns["sourceFile"], columns["sourceLine"]
    fields = {
        "source": name_sources(extraction, "page_fault_source", *place),
        "caller_line": name_lines(extraction, *place),
    }
    yield make_rows(extraction, "cpu_page_fault", columns, fields)


def extract_blocks(extraction: Extraction, part: Part) -> Iterator[Rows]:
    """Store when and where thread blocks (or warps) run, as facts. Yield no rows."""
    columns = extraction.read(part, ("start", "end", "globalPid", "deviceId", "SMId"))
    timed = mask_usable(columns["start"]) & mask_usable(columns["end"])
    columns = extraction.drop_rows(columns, ~timed, Reason.NO_TIME)
    facts = {
        "time_begin": columns["start"],
        "time_end": np.maximum(columns["end"], columns["start"]),
        "object_gpu": extraction.number_gpus(columns),
        "processor": blank_negative(columns["SMId"]),
        "type": np.full(columns.rows, WARPS if "_WARP_" in part.table else BLOCKS),
    }
    extraction.add_fact(BLOCKS_LAYOUT, facts)
    yield from ()


def count_running_blocks(facts: Mapping[str, pl.DataFrame]) -> Iterator[Counters]:
    """Yield, for each GPU, how many blocks, warps and SMs are busy over time. facts: from
    :func:`extract_blocks`.
    """
    rows = facts[BLOCKS_LAYOUT]
    begin, end = pl.col("time_begin"), pl.col("time_end")
    by = ["object_gpu", "processor"]
    known = rows.filter(pl.col("processor") != ABSENT).sort(*by, "time_begin")
    begins = (begin > end.cum_max().shift().over(by)).fill_null(True)
    busy = known.group_by("object_gpu", begins.cum_sum().alias("busy"), maintain_order=True).agg(
        begin.min(), end.max(), type=pl.lit(MULTIPROCESSORS, pl.Int64)
    )
    labels = load_counter_tables()[BLOCKS_LAYOUT].labels
    of_type = ["object_gpu", "type"]
    ranges = [frame.select(*of_type, begin, end) for frame in (rows, busy)]
    for (gpu, type_), own in pl.concat(ranges).group_by(of_type, maintain_order=True):
        times = np.concatenate([own["time_begin"].to_numpy(), own["time_end"].to_numpy()])
        time, count = sum_changes(times, np.repeat([1, -1], own.height))
        metric = Metric(labels[int(type_)])
        yield Counters(BLOCKS_LAYOUT, time, int(gpu), (metric,), count[:, None])
