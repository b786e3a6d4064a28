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
    _write_session(report, duration, facts)
    table, names = "TARGET_INFO_SYSTEM_ENV", "globalVid devStateName nameEnum name value"
    rows = _list_rows(table, facts)
    report.add(table, names, [(VM_ID, DEVICE, int(number), *row) for number, *row in rows])
    _write_gpus(report)
    _write_processes(report)
    _write_messages(report, duration)
    if report.facts.get("cut", {}).get("lacks") != "begin":
        _write_overhead(report)
    for table in ("META_DATA_CAPTURE", "META_DATA_EXPORT"):
        each = [
            (name, one)
            for _, name, value in _list_rows(table, facts | {"each variable": "*"})
            for one in (facts["variables"] if value == "*" else [value])
        ]
        report.add(table, "name value", each)


def _collect_facts(report: Report, duration: int) -> dict[str, Any]:
    """Collect what is filled into the rows of ``system.tsv``."""
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


def _write_session(report: Report, duration: int, facts: dict[str, Any]) -> None:
    rank = report.rank
    base = f"/tmp/nvidia/nsight_systems/quadd_session_{rank.pid}/streams/pid_{rank.pid}_"
    paths = [base + kind for kind in ("stdout.log", "stderr.log")]
    files = [(index, path, "", rank.global_pid) for index, path in enumerate(paths)]
    report.add("ANALYSIS_FILE", "id filename contentId globalPid", files)
    streams = [(rank.global_pid, path, "") for path in paths]
    report.add("ProcessStreams", "globalPid filenameId contentId", streams)
    report.export.string(facts["environment"].replace("\n", "\0"))  # real exports keep a copy here
    when, start = _format_utc(rank.start_utc), rank.start_clock
    names = "utcEpochNs utcTime localTime systemClockNs"
    report.add("TARGET_INFO_SESSION_START_TIME", names, [(rank.start_utc, when, when, start)])
    details = VM_ID, duration, start, start + duration
    report.add("ANALYSIS_DETAILS", "globalVid duration startTime stopTime", [details])


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


def _write_messages(report: Report, duration: int) -> None:
    own, rows = report.rank.global_pid, report.export.rows
    cuda = sum(number for table, number in rows.items() if table.startswith("CUPTI_"))
    nvtx = rows.get("NVTX_EVENTS", 0)
    messages = [
        (-45_950_596, 1, 2, 1, "Dwarf backtraces collected.", VM_ID),
        (0, 1, 3, 1, "Profiling has started.", SESSION_PID),
        (61_377, 1, 2, 1, "Process was launched by the profiler", own),
        (95_429_194, 1, 1, 1, "Common injection library initialized successfully.", own),
        (127_905_171, 1, 1, 1, "CUDA injection initialized successfully.", own),
        (duration - 900_000, 2, 3, 1, f"Number of CUDA events collected: \t{cuda}.", own),
        (duration - 800_000, 2, 3, 1, f"Number of NVTX events collected: \t{nvtx}.", own),
        (duration, 1, 3, 1, "Profiling has stopped.", SESSION_PID),
    ]
    names = "timestamp timestampType source severity text globalPid"
    report.add("DIAGNOSTIC_EVENT", names, messages)


def _write_overhead(report: Report) -> None:
    """Write what the profiler cost, and what loading the first kernel did."""
    main, worker = report.rank.global_tid(0), report.rank.global_tid(6)
    correlation, first, last = report.first_launch
    middle = (first + last) // 2
    rows = [
        (96_100_000, 127_900_000, main, "CUDA profiling initialization", 0),
        (97_000_000, 97_300_000, main, "TLS allocation", 0),
        (131_000_000, 131_120_000, main, "CUPTI Instrumentation", 4),
        (131_200_000, 133_900_000, main, "CUPTI Resource Management", 5),
        (140_000_000, 140_250_000, worker, "CUPTI Buffer flush", 3),
    ]
    report.add("PROFILER_OVERHEAD", "start end globalTid nameId overheadType", rows)
    loading = [
        (first + 400, middle, "Runtime Triggered Module Loading", 6),
        (middle + 100, last - 100, "Lazy Function Loading", 7),
    ]
    names = "start end nameId overheadType eventClass globalTid correlationId"
    rows = [(*known, 103, main, correlation) for known in loading]
    report.add("CUPTI_ACTIVITY_KIND_OVERHEAD", names, rows)
