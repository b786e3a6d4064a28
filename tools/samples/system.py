"""The tables that say where, when and how a report was made: environment, GPUs, processes,
messages, the capture and the export.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import numpy as np

from .cluster import DEVICE, VM_ID, Stream, draw_uuid
from .data import DATA, as_json, read_rows
from .network import describe_nics
from .nvtx import name_threads
from .report import Report
from .sampling import MODELS, find_model

#: Stands in the environment of every process, where real exports keep it. It must never reach any
#: output.
SECRET = "planted-secret-do-not-leak"
SESSION_PID = -144_115_188_075_855_872  # the process of messages that belong to none
#: Schema, product, its date; with dynamic tables.
USUAL, DYNAMIC = (("3.25.0", "2026.2.1.210", "2026.2"), ("3.28.1", "2026.4.1.0", "2026.4"))


def _list_rows(table: str, facts: dict[str, Any]) -> list[tuple[str, str, str]]:
    """List number, name and value of the rows of one table."""
    return [
        (number, name, value.format_map(facts))
        for one, need, number, name, value in read_rows("system.tsv")
        if one == table and (need == "-" or facts[need])
    ]


def write_system(report: Report, duration: int) -> None:
    """Write everything about the target and the session; ``duration`` of the capture in ns."""
    facts = _collect_facts(report, duration)
    _add_listed(report, "session_tables", facts)
    report.export.string(facts["environment"].replace("\n", "\0"))  # real exports keep a copy here
    table, names = "TARGET_INFO_SYSTEM_ENV", "globalVid devStateName nameEnum name value"
    rows = _list_rows(table, facts)
    report.add(table, names, [(VM_ID, DEVICE, int(number), *row) for number, *row in rows])
    _write_gpus(report)
    _write_processes(report)
    _add_listed(report, "message_tables", facts)
    if report.facts.get("cut", {}).get("lacks") != "begin":
        _add_listed(report, "overhead_tables", facts)
        _write_loading(report)
    for table in ("META_DATA_CAPTURE", "META_DATA_EXPORT"):
        each = [
            (name, one)
            for _, name, value in _list_rows(table, facts | {"each variable": "*"})
            for one in (facts["variables"] if value == "*" else [value])
        ]
        report.add(table, "name value", each)


def _collect_facts(report: Report, duration: int) -> dict[str, Any]:
    """Collect the facts to fill into the rows of ``system.tsv``."""
    rank, options = report.rank, report.options
    model, gpus = find_model(options, rank.host_index), rank.host.gpus
    same = {"ChipName": model.chip, "SmCount": model.numbers["smCount"]}
    same["TotalMemory"] = str(model.numbers["totalMemory"])
    listed = [
        {"Id": gpu, "Name": model.name, "BusLocation": gpus[gpu].bus, "IsDiscrete": True}
        | {"Uuid": gpus[gpu].uuid, **same}
        for gpu, _ in _list_gpus(report)
    ]
    visible = [str(gpu) for gpu, ordinal in _list_gpus(report) if ordinal is not None]
    version, product, date = DYNAMIC if report.payload == "dynamic" else USUAL
    facts = vars(options) | dict(zip(("major", "minor", "micro"), version.split("."), strict=True))
    facts |= {"version": version, "product": product, "date": date, "usual": version == USUAL[0]}
    facts |= {"rank": rank.rank, "gpu": rank.gpu, "host": rank.host.name}
    facts |= {"host_index": rank.host_index, "first_host": report.cluster.hosts[0].name}
    facts |= {"secret": SECRET, "device": DEVICE, "gpus_per_host": options.gpus_per_host}
    facts |= {"visible": ",".join(visible), "gpu_info": as_json({"Gpus": listed})}
    facts |= {"nic_info": describe_nics(report), "duration_ms": duration // 1_000_000}
    facts |= {"duration": duration, "start": rank.start_clock, "stop": rank.start_clock + duration}
    facts |= {"start_utc": rank.start_utc, "when": _format_utc(rank.start_utc), "vm": VM_ID}
    facts |= {"process": rank.global_pid, "main": rank.global_tid(0), "pid": rank.pid}
    facts |= {"worker": rank.global_tid(6), "no_process": SESSION_PID}
    facts |= {"before_end": duration - 900_000, "nearly_end": duration - 800_000}
    rows = report.export.rows
    facts["cuda_rows"] = sum(number for table, number in rows.items() if table.startswith("CUPTI_"))
    facts["nvtx_rows"] = rows.get("NVTX_EVENTS", 0)
    facts["graph_mode"] = "Node" if options.graph_level(rank.rank) == "node" else "Graph"
    facts["session"] = draw_uuid(np.random.default_rng([options.seed, 3, rank.rank]))
    facts["exported"] = _format_utc(rank.start_utc + duration + 5_000_000_000)
    facts["json"] = str(report.includes_json).lower()
    facts["blobs"] = str(report.payload in ("both", "binary")).lower()
    variables = [(name, value) for _, name, value in _list_rows("ENVIRONMENT", facts)]
    facts["environment"] = "\n".join(f"{name}={value}" for name, value in variables)
    return facts | {"variables": [f'{name}="{value}"' for name, value in variables]}


def _format_utc(ns: int) -> str:
    return datetime.fromtimestamp(ns // 1_000_000_000, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")


def _add_listed(report: Report, section: str, facts: dict[str, Any]) -> None:
    """Add the rows of the tables listed in a section of ``data.yaml``. A text in braces alone is replaced by
    a fact; within a text the fact is filled in.
    """

    def fill(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        name = value.removeprefix("{").removesuffix("}")
        return facts[name] if name in facts else value.format_map(facts)

    for table, (names, *rows) in DATA[section].items():
        report.add(table, names, [[fill(value) for value in row] for row in rows])


def _list_gpus(report: Report) -> list[tuple[int, int | None]]:
    """List the GPUs the report knows: index on the host, CUDA ordinal in the process."""
    own, gpus = report.rank.gpu, range(report.options.gpus_per_host)
    if report.options.visible == "all":
        return [(gpu, gpu) for gpu in gpus]
    return [(gpu, 0 if gpu == own else None) for gpu in gpus]


def _write_gpus(report: Report) -> None:
    rank, listed = report.rank, _list_gpus(report)
    model, gpus = find_model(report.options, rank.host_index), rank.host.gpus
    numbers = [model.numbers[name] for name in MODELS[0].numbers]
    rows, visible = [], []
    for gpu, ordinal in listed:
        known = gpu, model.name, gpus[gpu].bus, gpu, gpus[gpu].uuid
        rows.append((VM_ID, *known, 0, model.chip, ordinal, "", "", *numbers))
        if ordinal is not None:
            visible.append((gpu, ordinal, rank.pid, gpus[gpu].uuid, model.numbers["smCount"]))
    names = "vmId id name busLocation pwGpuId uuid luid chipName cuDevice ctxswDevPath ctrlDevPath"
    report.add("TARGET_INFO_GPU", " ".join((names, *MODELS[0].numbers)), rows)
    names = "gpuId cudaId pid uuid numMultiprocessors"
    report.add("TARGET_INFO_CUDA_DEVICE", names, visible)
    names = "nullStreamId hwId vmId processId deviceId contextId parentContextId isGreenContext numMultiprocessors"
    context = rank.stream(Stream.COMPUTE), 0, 1, rank.pid, rank.device, rank.context, 0, 0, 0
    report.add("TARGET_INFO_CUDA_CONTEXT_INFO", names, [context])
    used = [group.stream for group, size in report.cluster.sizes().items() if size > 1]
    high_priority = 4_294_967_291  # -5, stored unsigned
    streams = [(Stream.COMPUTE, 0, 3), (Stream.COPY, 0, 2)]
    streams += [(stream, high_priority, 2) for stream in used]
    rows = [
        (rank.stream(stream), 0, 1, rank.pid, rank.context, priority, flag)
        for stream, priority, flag in streams
    ]
    names = "streamId hwId vmId processId contextId priority flag"
    report.add("TARGET_INFO_CUDA_STREAM", names, rows)


def _write_processes(report: Report) -> None:
    rank = report.rank
    others = enumerate(("slurmstepd", "bash", "nsys", "python3"), rank.pid - 3)
    rows = [(VM_ID | pid << 24, pid, name) for pid, name in ((1, "systemd"), *others)]
    report.add("PROCESSES", "globalPid pid name", rows)
    threads = DATA["thread_names"] | (name_threads(report) if report.options.advanced else {})
    named = [(name, 20, rank.global_tid(offset)) for offset, name in sorted(threads.items())]
    report.add("ThreadNames", "nameId priority globalTid", named)


def _write_loading(report: Report) -> None:
    """Write the events of loading the first kernel."""
    correlation, first, last = report.first_launch
    middle = (first + last) // 2
    loading = [
        (first + 400, middle, "Runtime Triggered Module Loading", 6),
        (middle + 100, last - 100, "Lazy Function Loading", 7),
    ]
    names = "start end nameId overheadType eventClass globalTid correlationId"
    main = report.rank.global_tid(0)
    rows = [(*known, 103, main, correlation) for known in loading]
    report.add("CUPTI_ACTIVITY_KIND_OVERHEAD", names, rows)
