"""The tables that say where, when and how a report was made; one function per family, plain rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

import numpy as np

from .cluster import OTHER_THREADS, THREAD_NAMES, VM_ID, Group, Stream
from .metrics.devices import nics_as_json
from .metrics.gpus import model_of
from .nccl_trace import thread_names
from .rows import Report
from .write import Column

SECRET = "planted-secret-do-not-leak"
"""Stands in the environment of every process, where real exports keep it. It must never reach any output."""

_SESSION_PID = -144_115_188_075_855_872
"""The process of messages that belong to none."""

DEVICE = "Local (CLI)"


def environment(report: Report) -> dict[str, str]:
    """The process's environment: launcher variables as torchrun under Slurm sets them, and the planted secret."""
    rank, options = report.rank, report.options
    shown = {"isolated": str(rank.gpu), "cgroup": "0"}.get(
        options.visible, ",".join(map(str, range(options.gpus_per_host)))
    )
    launcher = {"PMI_RANK": str(rank.rank), "PMI_SIZE": str(options.ranks)} if options.mpi else {}
    return {
        "PATH": "/usr/local/cuda/bin:/usr/local/bin:/usr/bin:/bin",
        "HOME": "/home/user",
        "LANG": "C.UTF-8",
        "SHLVL": "2",
        "HOSTNAME": rank.host.name,
        "CUDA_VISIBLE_DEVICES": shown,
        "OMP_NUM_THREADS": "8",
        "NCCL_DEBUG": "WARN",
        "RANK": str(rank.rank),
        "LOCAL_RANK": str(rank.gpu),
        "WORLD_SIZE": str(options.ranks),
        "LOCAL_WORLD_SIZE": str(options.gpus_per_host),
        "MASTER_ADDR": report.cluster.hosts[0].name,
        "MASTER_PORT": "29500",
        "SLURM_JOB_ID": "4242",
        "SLURM_PROCID": str(rank.rank),
        "SLURM_LOCALID": str(rank.gpu),
        "SLURM_NODEID": str(rank.host_index),
        "SLURM_NTASKS": str(options.ranks),
        "SLURM_NNODES": str(options.hosts),
        **launcher,
        "API_TOKEN": SECRET,
    }


def write_target(report: Report, duration: int) -> None:
    """Everything about the target and the session; ``duration`` of the capture in ns."""
    _write_session(report, duration)
    _write_system(report)
    _write_gpus(report)
    _write_processes(report)
    _write_messages(report, duration)
    if report.missing.whole:
        _write_overhead(report)


def insert(report: Report, table: str, names: str, rows: Sequence[Sequence[Any]]) -> None:
    columns: dict[str, Column] = {
        name: list(values) for name, values in zip(names.split(), zip(*rows, strict=True), strict=True)
    }
    report.export.insert(table, columns)


def utc(ns: int) -> str:
    return datetime.fromtimestamp(ns // 1_000_000_000, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")


def _write_session(report: Report, duration: int) -> None:
    rank = report.rank
    string = report.export.string
    base = f"/tmp/nvidia/nsight_systems/quadd_session_{rank.pid}/streams/pid_{rank.pid}_"
    files = [
        (index, base + kind, string(""), rank.global_pid) for index, kind in enumerate(("stdout.log", "stderr.log"))
    ]
    insert(report, "ANALYSIS_FILE", "id filename contentId globalPid", files)
    insert(
        report,
        "ProcessStreams",
        "globalPid filenameId contentId",
        [(rank.global_pid, string(name), content) for _, name, content, _ in files],
    )
    string("\0".join(f"{name}={value}" for name, value in environment(report).items()))  # real exports keep a copy here
    when = utc(rank.start_utc)
    insert(
        report,
        "TARGET_INFO_SESSION_START_TIME",
        "utcEpochNs utcTime localTime systemClockNs",
        [(rank.start_utc, when, when, rank.start_clock)],
    )
    insert(
        report,
        "ANALYSIS_DETAILS",
        "globalVid duration startTime stopTime",
        [(VM_ID, duration, rank.start_clock, rank.start_clock + duration)],
    )


def _write_system(report: Report) -> None:
    rank = report.rank
    whole_environment = "\n".join(f"{name}={value}" for name, value in environment(report).items())
    facts = [
        ("CpuCores", 1, "64"),
        ("CpuSpeedMhz", 2, "3700"),
        ("CpuArchitecture", 3, "x86_64"),
        ("SupportedABIs", 5, "x86_64,"),
        ("Supported64BitABIs", 7, "x86_64"),
        ("CpuDescription", 13, "AMD EPYC 9354 32-Core Processor"),
        ("TargetInstallDir", 170, "/opt/nvidia/nsight-systems-cli/2026.2.1/target-linux-x64"),
        ("HasDiscreteGpu", 203, "0"),
        ("NvDriverVersion", 205, "580.95.05"),
        ("IsX86BasedDevice", 506, "1"),
        ("HardwarePlatform", 600, "x86_64"),
        ("SoftwarePlatform", 601, "L4X"),
        ("OsDescription", 605, "Ubuntu 24.04.3 LTS"),
        ("DeviceEnvironment", 610, whole_environment),
        ("CudaDriverVersion", 611, "13000"),
        ("SoftwareReleaseVersion", 618, "6.8.0-60-generic"),
        ("Hostname", 619, rank.host.name),
        ("IsPersistentDevice", 703, "1"),
        ("NamespacePID", 722, "pid:[4026531836]"),
        ("HasNvtxEvents", 809, "1"),
        ("HasCudaEvents", 812, "1"),
        ("HasOSRuntimeEvents", 815, "1"),
        ("SupportsMPI", 846, "1"),
        ("SupportsGpuMetrics", 849, "1"),
        ("KernelVersion", 882, "#63-Ubuntu SMP PREEMPT_DYNAMIC"),
        ("GpuInfo", 897, _gpu_info(report)),
        ("ExportLevel", 904, "0"),
        ("NicInfo", 910, nics_as_json(report)),
        ("SupportsNicMetrics", 914, "1"),
        ("SupportsNCCL", 925, "1"),
    ]
    insert(
        report,
        "TARGET_INFO_SYSTEM_ENV",
        "globalVid devStateName name nameEnum value",
        [(VM_ID, DEVICE, name, number, value) for name, number, value in facts],
    )


def listed_gpus(report: Report) -> list[tuple[int, int, int | None]]:
    """The GPUs the report knows: id in the report, index on the host, CUDA ordinal in the process."""
    visible, own = report.options.visible, report.rank.gpu
    if visible == "cgroup":
        return [(0, own, 0)]
    everything = range(report.options.gpus_per_host)
    if visible == "all":
        return [(gpu, gpu, gpu) for gpu in everything]
    return [(gpu, gpu, 0 if gpu == own else None) for gpu in everything]


def _gpu_info(report: Report) -> str:
    gpus, model = report.rank.host.gpus, model_of(report.options, report.rank.host_index)
    return json.dumps(
        {
            "Gpus": [
                {
                    "Id": number,
                    "Name": model.name,
                    "BusLocation": gpus[gpu].bus,
                    "IsDiscrete": True,
                    "Uuid": gpus[gpu].uuid,
                    "ChipName": model.chip,
                    "SmCount": model.numbers["smCount"],
                    "TotalMemory": str(model.numbers["totalMemory"]),
                }
                for number, gpu, _ in listed_gpus(report)
            ]
        },
        separators=(",", ":"),
    )


def _write_gpus(report: Report) -> None:
    rank, listed = report.rank, listed_gpus(report)
    model = model_of(report.options, rank.host_index)
    report.export.insert(
        "TARGET_INFO_GPU",
        {
            "vmId": VM_ID,
            "id": [number for number, _, _ in listed],
            "name": model.name,
            "busLocation": [rank.host.gpus[gpu].bus for _, gpu, _ in listed],
            "pwGpuId": [number for number, _, _ in listed],
            "uuid": [rank.host.gpus[gpu].uuid for _, gpu, _ in listed],
            "luid": 0,
            "chipName": model.chip,
            "cuDevice": [ordinal for _, _, ordinal in listed],
            "ctxswDevPath": "",
            "ctrlDevPath": "",
            **model.numbers,
        },
    )
    seen = [
        (number, ordinal, rank.pid, rank.host.gpus[gpu].uuid, model.numbers["smCount"])
        for number, gpu, ordinal in listed
        if ordinal is not None
    ]
    insert(report, "TARGET_INFO_CUDA_DEVICE", "gpuId cudaId pid uuid numMultiprocessors", seen)
    insert(
        report,
        "TARGET_INFO_CUDA_CONTEXT_INFO",
        "nullStreamId hwId vmId processId deviceId contextId parentContextId isGreenContext numMultiprocessors",
        [(rank.stream(Stream.COMPUTE), 0, 1, rank.pid, rank.device, rank.context, 0, 0, 0)],
    )
    streams = {Group.SHARD: Stream.NCCL_SHARD, Group.REPLICA: Stream.NCCL_REPLICA, Group.WORLD: Stream.NCCL_WORLD}
    used = [streams[group] for group, size in report.cluster.sizes().items() if size > 1]
    high_priority = 4_294_967_291  # -5, stored unsigned
    insert(
        report,
        "TARGET_INFO_CUDA_STREAM",
        "streamId hwId vmId processId contextId priority flag",
        [
            (
                rank.stream(stream),
                0,
                1,
                rank.pid,
                rank.context,
                high_priority if stream in used else 0,
                3 if stream is Stream.COMPUTE else 2,
            )
            for stream in (Stream.COMPUTE, Stream.COPY, *used)
        ],
    )


def _write_processes(report: Report) -> None:
    rank, string = report.rank, report.export.string
    others = [(1, "systemd"), (rank.pid - 3, "slurmstepd"), (rank.pid - 2, "bash"), (rank.pid - 1, "nsys")]
    insert(
        report,
        "PROCESSES",
        "globalPid pid name",
        [(VM_ID | pid << 24, pid, name) for pid, name in others] + [(rank.global_pid, rank.pid, "python3")],
    )
    threads = {int(thread): name for thread, name in THREAD_NAMES.items()} | OTHER_THREADS
    if report.options.nccl_trace == "advanced":
        threads |= thread_names(report)
    insert(
        report,
        "ThreadNames",
        "nameId priority globalTid",
        [(string(name), 20, rank.global_tid(offset)) for offset, name in sorted(threads.items())],
    )


def _write_messages(report: Report, duration: int) -> None:
    rank = report.rank
    cuda = sum(rows for table, rows in report.export.rows.items() if table.startswith("CUPTI_"))
    messages: list[tuple[int, int, int, int, str, int]] = [
        (-45_950_596, 1, 2, 1, "Dwarf backtraces collected.", VM_ID),
        (0, 1, 3, 1, "Profiling has started.", _SESSION_PID),
        (61_377, 1, 2, 1, "Process was launched by the profiler", rank.global_pid),
        (95_429_194, 1, 1, 1, "Common injection library initialized successfully.", rank.global_pid),
        (127_905_171, 1, 1, 1, "CUDA injection initialized successfully.", rank.global_pid),
        (duration - 900_000, 2, 3, 1, f"Number of CUDA events collected: \t{cuda}.", rank.global_pid),
        (
            duration - 800_000,
            2,
            3,
            1,
            f"Number of NVTX events collected: \t{report.export.rows.get('NVTX_EVENTS', 0)}.",
            rank.global_pid,
        ),
        (duration, 1, 3, 1, "Profiling has stopped.", _SESSION_PID),
    ]
    insert(report, "DIAGNOSTIC_EVENT", "timestamp timestampType source severity text globalPid", messages)


def _write_overhead(report: Report) -> None:
    """What the profiler cost before the process began its work, and what loading the first kernel did."""
    rank, string = report.rank, report.export.string
    main, worker = rank.global_tid(0), rank.global_tid(6)
    profiler = [
        (96_100_000, 127_900_000, main, "CUDA profiling initialization", 0),
        (97_000_000, 97_300_000, main, "TLS allocation", 0),
        (131_000_000, 131_120_000, main, "CUPTI Instrumentation", 4),
        (131_200_000, 133_900_000, main, "CUPTI Resource Management", 5),
        (140_000_000, 140_250_000, worker, "CUPTI Buffer flush", 3),
    ]
    insert(
        report,
        "PROFILER_OVERHEAD",
        "start end globalTid nameId overheadType",
        [(begin, end, thread, string(name), kind) for begin, end, thread, name, kind in profiler],
    )
    assert report.first_launch is not None
    correlation, first, last = report.first_launch
    middle = (first + last) // 2
    cuda = [
        (first + 400, middle, "Runtime Triggered Module Loading", 6),
        (middle + 100, last - 100, "Lazy Function Loading", 7),
    ]
    insert(
        report,
        "CUPTI_ACTIVITY_KIND_OVERHEAD",
        "start end eventClass globalTid correlationId nameId overheadType",
        [(begin, end, 103, main, correlation, string(name), kind) for begin, end, name, kind in cuda],
    )
    for table, rows in (
        ("PROFILER_OVERHEAD", [row[:2] for row in profiler]),
        ("CUPTI_ACTIVITY_KIND_OVERHEAD", [row[:2] for row in cuda]),
    ):
        report.tally.add(table, ["all"] * len(rows), np.array([[end - begin for begin, end in rows]], dtype=np.int64))
