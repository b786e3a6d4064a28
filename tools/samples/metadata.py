"""META_DATA_CAPTURE and META_DATA_EXPORT: how the capture and the export were made."""

from __future__ import annotations

import numpy as np

from . import schema
from .job import node_level
from .rows import Report
from .target import DEVICE, environment, insert, utc


def write_metadata(report: Report, duration: int) -> None:
    rank, options = report.rank, report.options
    mode = "Node" if node_level(options, rank.rank) else "Graph"
    seed = np.random.default_rng([options.seed, 3, rank.rank]).bytes(16).hex()
    session = "-".join((seed[:8], seed[8:12], seed[12:16], seed[16:20], seed[20:]))
    capture = [
        ("DEVICE_ID", DEVICE),
        ("CAPTURE_EVENT_TYPE", "OSRuntime"),
        ("CAPTURE_EVENT_TYPE", "NvtxEvents"),
        ("CAPTURE_EVENT_TYPE", "Cuda"),
        ("START_TRIGGER", "Immediate"),
        ("STOP_TRIGGER", "Delayed"),
        ("DEVICE_TYPE", "Unix"),
        ("DEVICE_DISPLAY_NAME", rank.host.name),
        ("CUDA_GRAPH_TRACE_OPTIONS:MODE", mode),
        ("CUDA_GRAPH_TRACE_OPTIONS:TRACEDEVICE_GRAPH_LAUNCH", "true"),
        ("CUDA_FLUSH_PERIODICALLY", "true"),
        ("CUDA_SKIP_SOME_API_CALLS", "true"),
        ("CUDA_TRACE_SCOPE", "ProcessTree"),
        ("PROCESS_0:HOW_TO_ATTACH", "LaunchAnother"),
        ("PROCESS_0:COMMAND", "python3"),
        ("PROCESS_0:ARGUMENT_0", "train.py"),
        ("PROCESS_0:WORKING_DIR", "/home/user/train"),
        ("PROCESS_0:PID", "0"),
        ("PROCESS_0:COLLECT_NVTX_TRACE", "true"),
        *(("PROCESS_0:ENVIRONMENT_VARIABLE", f'{name}="{value}"') for name, value in environment(report).items()),
        ("PROFILING_SESSION_ID", ""),
        ("PROFILING_SESSION_UUID", session),
        ("APPLICATION_PID", "0"),
        ("START_DELAY_MS", "0"),
        ("RUN_DURATION_MS", str(duration // 1_000_000)),
        ("INCLUDE_CHILDREN", "true"),
        ("DISABLE_TIME_SYNC", "false"),
    ]
    if options.osrt_callchains:
        capture.append(("OS_RUNTIME_OPTIONS:COLLECT_BACKTRACES", "true"))
        capture.append(("OS_RUNTIME_OPTIONS:BACKTRACES_THRESHOLD_NS", "80000"))
    insert(report, "META_DATA_CAPTURE", "name value", capture)
    version, product, date = schema.DYNAMIC if report.payload == "dynamic" else schema.USUAL
    major, minor, micro = version.split(".")
    name, when = f"rank{rank.rank}", utc(rank.start_utc + duration + 5_000_000_000)
    export = [
        ("EXPORT_PRODUCT_NAME", "NVIDIA Nsight Systems"),
        ("EXPORT_PRODUCT_VERSION", product),
        ("EXPORT_PRODUCT_DATE", date),
        ("EXPORT_SCHEMA_VERSION", version),
        ("EXPORT_SCHEMA_VERSION_MAJOR", major),
        ("EXPORT_SCHEMA_VERSION_MINOR", minor),
        ("EXPORT_SCHEMA_VERSION_MICRO", micro),
        *((("EXPORT_SCHEMA_VERSION_CKSUM", schema.SCHEMA_CHECKSUM),) if version == schema.USUAL[0] else ()),
        ("EXPORT_PLATFORM", "linux-desktop"),
        ("EXPORT_ARCH", "x64"),
        ("EXPORT_TIME_UTC", when),
        ("EXPORT_TIME_LOCAL", when),
        ("EXPORT_HOST", rank.host.name),
        ("EXPORT_USER", "user"),
        ("EXPORT_PARAM_EXPORT_TYPE", "SQLite"),
        ("EXPORT_PARAM_INPUT_FILE", f"{name}.nsys-rep"),
        ("EXPORT_PARAM_OUTPUT_FILE", f"{name}.sqlite"),
        ("EXPORT_PARAM_LAZY", "true"),
        ("EXPORT_PARAM_USE_SHUFFLE", "true"),
        ("EXPORT_PARAM_INCLUDE_JSON", str(report.includes_json).lower()),
        ("EXPORT_PARAM_INCLUDE_BLOBS", str(report.payload in ("both", "binary")).lower()),
        ("EXPORT_PARAM_TIME_NORMALIZE", "false"),
        ("EXPORT_PARAM_TIME_SHIFT", "0"),
        ("EXPORT_PARAM_TABLES_TO_EXPORT", ""),
        ("EXPORT_PARAM_TIMES_TO_EXPORT", ""),
        ("EXPORT_CONFIG_TIME_SHIFT", "0"),
        ("GENERATED_BY", "nsys2prv.samples"),
    ]
    insert(report, "META_DATA_EXPORT", "name value", export)
