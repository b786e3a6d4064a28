"""Add families of further tables: of the machine (threads on CPUs, CPU samples and counters, file accesses,
GPU contexts, memory, messages of the profiler), of programming models, libraries and frameworks (OpenACC,
OpenMP, cuBLAS and cuDNN, graphics, PyTorch's ranges).

Much is declared in ``data.yaml``: events in every step, and their places in the step (shares from 0 to 1).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .cluster import VM_ID, Ints, Thread
from .data import DATA, enums, find_enum_label
from .nvtx import MARK, PUSH_POP
from .report import Report, Scene, Truth, count, sum_events

#: Turns on a CPU, per thread.
CPU_TURNS = {Thread[name]: number for name, number in DATA["cpu_turns"].items()}
ENDING = (Thread.LOADER_0, Thread.LOADER_1)  # threads whose end is recorded
CPUS, SAMPLES_PER_THREAD = 8, 30
OTHER_TID, OTHER_NAME, OTHER_TURNS = VM_ID | 1_777 << 24 | 1_777, "irqbalance", 7
RUNNING, INTERRUPTIBLE, UNINTERRUPTIBLE, TERMINATED = 1, 2, 3, 5  # states of threads
BLOCKS = np.array([0, 6, 7])  # not blocked, mutex, condition variable
LIBRARY = "/usr/lib/x86_64-linux-gnu/"
CORES, INTERVALS = 4, 25
#: Table (behind PERF_EVENT_SOC_OR_CPU_), columns of number and value, name, unit, name for people.
CPU_METRICS = DATA["cpu_metrics"]


def add_cpu(scene: Scene) -> Truth:
    """Add threads put on CPUs and taken off, samples of their activity, and counters, recorded by the first
    rank of each host.

    As in real exports rows of the scheduler are almost in order of time, and functions without a symbol have
    their address as name. Truth: by thread id; by component and metric.
    """
    truth: Truth = {"threads": {}, "others": OTHER_TURNS * 2}
    moments = np.arange(int(scene.steps[0, 0]) + 1, scene.duration - 1, 3)
    turns = {
        thread: np.sort(scene.random.choice(moments, 2 * number, replace=False)).reshape(number, 2)
        for thread, number in CPU_TURNS.items()
    }
    _add_scheduling(scene, turns, truth["threads"])
    _add_samples(scene, turns, truth["threads"])
    if scene.report.rank.gpu == 0:
        truth["counters"] = _add_counters(scene)
    return truth


def _count(values: Any) -> dict[str, int]:
    return dict(sorted(Counter(map(str, values)).items()))


def _add_scheduling(scene: Scene, turns: dict[Thread, Ints], truth: Truth) -> None:
    """Add the threads' turns. Ranks of odd number record why their threads are off the CPU, as some
    systems do; a running one is only out of turn.
    """
    rank, random = scene.report.rank, scene.random
    reasons = rank.rank % 2 == 1
    rows: list[tuple[Any, ...]] = []
    for thread, edges in turns.items():
        tid, size = rank.global_tid(thread), len(edges)
        cpus, states, blocks = random.integers(0, CPUS, size).tolist(), [0] * size, [None] * size
        if reasons:
            known = np.array([INTERRUPTIBLE, UNINTERRUPTIBLE, RUNNING])
            states, blocks = (random.choice(of, size).tolist() for of in (known, BLOCKS))
        if thread in ENDING:
            states[-1] = TERMINATED
        for (begin, end), cpu, *off in zip(edges.tolist(), cpus, states, blocks, strict=True):
            rows += [(begin, cpu, 1, tid, 0, 0 if reasons else None), (end, cpu, 0, tid, *off)]
        truth[str(rank.pid + thread)] = {
            "turns": size,
            "running_ns": int((edges[:, 1] - edges[:, 0]).sum()),
            "ends": thread in ENDING,
            "off_by_state": _count(states),
            "off_by_reason": _count(blocks) if reasons else {},
            "on_cpu": _count(cpus),
        }
    for at in turns[Thread.MAIN][:OTHER_TURNS, 0].tolist():
        rows += [(at + 1, 0, 1, OTHER_TID, 0, None), (at + 2, 0, 0, OTHER_TID, 0, None)]
    named = [(OTHER_NAME, 10, OTHER_TID)]
    scene.report.add("ThreadNames", "nameId priority globalTid", named)
    rows.sort()
    for place in range(10, len(rows) - 1, 37):
        rows[place], rows[place + 1] = rows[place + 1], rows[place]
    scene.report.add("SCHED_EVENTS", "start cpu isSchedIn globalTid threadState threadBlock", rows)


def _add_samples(scene: Scene, turns: dict[Thread, Ints], truth: Truth) -> None:
    """Add samples at moments of the threads' turns, with their call chains."""
    rank, random = scene.report.rank, scene.random
    samples: list[tuple[int, ...]] = []
    frames: list[tuple[int, ...]] = []
    for thread, edges in turns.items():
        begin, end = edges[np.sort(random.integers(0, len(edges), SAMPLES_PER_THREAD))].T
        times = begin + ((end - begin) * ((np.arange(SAMPLES_PER_THREAD) % 7 + 1) / 9)).astype(
            np.int64
        )
        stacks = random.integers(0, len(DATA["cpu_stacks"]), SAMPLES_PER_THREAD).tolist()
        seen: dict[str, list[str]] = {"functions": [], "callers": [], "modules": []}
        for at, number in zip(np.unique(times).tolist(), stacks, strict=False):
            cpu, tid = int(random.integers(0, CPUS)), rank.global_tid(thread)
            samples.append((len(samples) + 1, at, cpu, tid, RUNNING, 1))
            for depth, (function, module) in enumerate(DATA["cpu_stacks"][number]):
                address = 0x7F00_0000_0000 + 0x10_0000 * number + 0x1234 * depth
                address += 16 * int(random.integers(0, 50))
                path = module if module.startswith("[") or module == "python3" else LIBRARY + module
                texts = function or hex(address), path
                in_kernel, special = module == "[kernel.kallsyms]", (function or "")[:1] == "["
                flags = int(in_kernel), int(function is None), int(special)
                frames.append((len(samples), *texts, *flags, address, depth, 0, 1))
                if depth < 2:
                    name = function or f"unresolved in {module}"
                    seen["callers" if depth else "functions"].append(name)
            seen["modules"].append(DATA["cpu_stacks"][number][0][1])
        counted = {name: _count(values) for name, values in seen.items()}
        truth[str(rank.pid + thread)]["samples"] = counted
    scene.report.add("COMPOSITE_EVENTS", "id start cpu globalTid threadState cpuCycles", samples)
    names = "id symbol module kernelMode unresolved specialEntry originalIP stackDepth thumbCode unwindMethod"
    scene.report.add("SAMPLING_CALLCHAINS", names, frames)


def _add_counters(scene: Scene) -> Truth:
    """Add counters in intervals, one left out. Truth: component -> metric -> samples and sum."""
    report, random = scene.report, scene.random
    components = [(1, "Socket", 0, None), *((100 + core, "Core", core, 1) for core in range(CORES))]
    report.add("TARGET_INFO_COMPONENT", "componentId name instance parentId", components)
    described = [
        (number, name, "of a core", unit, shown)
        for number, (*_, name, unit, shown) in CPU_METRICS.items()
    ]
    report.add("TARGET_INFO_PERF_METRIC", "id name description unit displayName", described)
    edges = np.linspace(0, scene.duration, INTERVALS + 2).astype(np.int64)
    kept = np.delete(np.arange(INTERVALS), INTERVALS // 2)
    truth: Truth = {}
    for core in range(CORES):
        cycles = random.integers(10_000_000, 30_000_000, len(kept))
        instructions = (cycles * random.uniform(0.5, 3.0, len(kept))).astype(np.int64)
        told = truth[f"CPU Socket 0 Core {core}"] = {}
        found = cycles, instructions, instructions / cycles
        for (number, metric), values in zip(CPU_METRICS.items(), found, strict=True):
            table, key, column, _, unit, shown = metric
            named = {key: number, column: values, "vmId": VM_ID, "componentId": 100 + core}
            name = f"PERF_EVENT_SOC_OR_CPU_{table}"
            scene.insert(name, edges[kept], edges[kept + 1], **named)
            told[f"{shown} [{unit}]"] = {"samples": len(kept), "sum": values.sum().item()}
    return truth


OPEN, CLOSE, READ, WRITE = 1, 2, 3, 4
FILES = (
    ("/data/train/shard-0000{step}.bin", Thread.LOADER_0, "open64", "read", READ, 1 << 20),
    ("/scratch/checkpoint.pt", Thread.LOADER_1, "fopen", "fwrite", WRITE, 4096),
)
REQUEST, SAVE_END, RESTORE_START, CONTEXT_START = 1, 7, 8, 9
SWITCH_NS = 30_000  # from a step's begin to the switch to another process's context


def add_system(scene: Scene) -> Truth:
    """Add accesses to files by the data loaders, and switches of contexts on the rank's GPU."""
    return {"file_accesses": _add_files(scene), "gpu_contexts": _add_contexts(scene)}


def _add_files(scene: Scene) -> Truth:
    """Add accesses to files. Truth: accesses by thread and call; bytes by file."""
    rank = scene.report.rank
    events: list[tuple[Any, ...]] = []
    files: list[tuple[Any, ...]] = []
    found: list[tuple[str, str, int, int]] = []
    moved: Counter[str] = Counter()
    for step, begin in enumerate(scene.steps[:, 0].tolist()):
        for path, thread, opens, moves, action, size in FILES:
            name, at = path.format(step=step), begin + 1_000 * int(thread)
            moved_twice = (moves, action, size), (moves, action, size // 2)
            for call, kind, bytes_ in ((opens, OPEN, 0), *moved_twice, ("close", CLOSE, 0)):
                end = at + 20_000 + int(scene.random.integers(5_000))
                who = len(files), rank.pid + thread
                events.append((*who, at, end, kind, call, bytes_, ""))
                found.append((str(int(thread)), call, at, end))
                moved[name] += bytes_
                at = end + 5_000
            files.append((len(files), rank.pid, begin, at, name))
    names = "fileAccessId threadId startedAt endedAt eventType apiCallId bytesProcessed context"
    scene.report.add("OSRT_FILE_ACCESS_EVENTS", names, events)
    names = "fileAccessId processId openedAt closedAt filePath"
    scene.report.add("OSRT_FILE_ACCESS_DESCRIPTORS", names, files)
    return {"by_thread": sum_events(found), "bytes_by_file": dict(moved)}


def _add_contexts(scene: Scene) -> Truth:
    """Give a second process (bash) the GPU for a while in every step. The first switch out has no
    switch in (that was before the capture), one switch out is lost, and the last context stays on
    the GPU.
    """
    rank = scene.report.rank
    own, other = (rank.global_pid, 1), (VM_ID | rank.pid - 2 << 24, 2)
    rows: list[tuple[int, ...]] = []
    held: list[tuple[str, str, int, int]] = []
    since = None
    for step, (begin, end) in enumerate(scene.steps.tolist()):
        out, back = begin + SWITCH_NS, (begin + end) // 2
        switches = [(REQUEST, own, out - 500), (SAVE_END, own, out)]
        switches += [(RESTORE_START, other, out + 10), (CONTEXT_START, other, out + 700)]
        switches += [(SAVE_END, other, back)] if step else []
        switches += [(RESTORE_START, own, back + 10)]
        for tag, (process, context), at in switches:
            rows.append((tag, 1, len(rows), context, at, process, rank.gpu))
        if since is not None:
            held.append(("GPU", str(rank.pid), since, out))
        held.append(("GPU", str(rank.pid - 2), out + 10, back if step else back + 10))
        since = back + 10
    names = "tag vmId seqNo contextId timestamp globalPid gpuId"
    scene.report.add("GPU_CONTEXT_SWITCH_EVENTS", names, rows)
    opened = {str(rank.pid): since}
    return {"by_process": sum_events(held)["GPU"], "before": 1, "lost": 1, "open": opened}


def add_profiler(scene: Scene) -> Truth:
    """Add messages of Nsight Systems about losses, fallbacks and failures."""
    end, process = scene.duration - 2_000_000, scene.report.rank.global_pid
    rows, messages = [], []
    for place, (severity, source, clock, tells, text) in enumerate(DATA["profiler_messages"]):
        of = VM_ID if source == 2 else process
        rows.append((end + 1_000 * place, clock, source, severity, text, of))
        begins = re.split("[\t\n/]", text)[0]
        messages.append({"severity": severity, "begins": begins, "tells": tells})
    names = "timestamp timestampType source severity text globalPid"
    scene.report.add("DIAGNOSTIC_EVENT", names, rows)
    return {"messages": messages}


KINDS = [label.capitalize() for _, _, label in enums()["ENUM_CUDA_MEM_KIND"][1]]
PAGEABLE, PINNED, DEVICE, ARRAY, MANAGED, STATIC, MANAGED_STATIC, UNKNOWN = KINDS
ONCE = (PAGEABLE, ARRAY, MANAGED_STATIC, UNKNOWN)  # allocated once
ALLOCATED, FREED = 0, 1
MEMORY_CALLS = {DEVICE: ("cudaMalloc", "cudaFree"), PINNED: ("cudaMallocHost", "cudaFreeHost")}
BASE, MIB = 0x7F40_0000_0000, 1 << 20


def add_memory(scene: Scene) -> Truth:
    """Make a data loader allocate and free device memory (at one address, of changing size) and pinned memory
    in every step. Memory allocated at the beginning is kept; one release belongs to memory from before the
    capture, and one release is missing.

    Truth: bytes allocated and freed by kind, according to the rows; peak bytes in use by kind; page faults.
    """
    first, length = scene.steps[:, 0], scene.steps[:, 1] - scene.steps[:, 0]
    early, size = first[:1] // 2, (1 + np.arange(len(first)) % 5) * 16 * MIB
    eighth, tenth, quarter, third, half = (first + length // part for part in (8, 10, 4, 3, 2))
    late = first + length * 3 // 4
    pool = {"localMemoryPoolAddress": BASE, "localMemoryPoolSize": 32 * MIB}
    pool |= {"localMemoryPoolReleaseThreshold": 0, "localMemoryPoolUtilizedSize": 0}
    used_pool = pool | {"localMemoryPoolUtilizedSize": 2 * MIB}
    called = {"correlationId": None}  # by a call of CUDA's API; None is filled in
    events: list[Any] = [  # times, address, bytes, kind, operation, more columns
        (early, 0x100, 64 * MIB, STATIC, ALLOCATED, {"name": "lookup_table"}),
        (early + 10, 0x200, 512 * MIB, MANAGED, ALLOCATED, {}),
        *(
            (early + 10 + number, 0x200 + number, number * 4096, kind, ALLOCATED, {})
            for number, kind in enumerate(ONCE, 1)
        ),
        (early + 20, 0x300, 3 * MIB, DEVICE, FREED, {}),  # from before the capture
        (early + 30, 0x400, 8 * MIB, DEVICE, ALLOCATED, {}),
        (tenth, 0x1000, size, DEVICE, ALLOCATED, called),
        (eighth, 0x2000, MIB, PINNED, ALLOCATED, called),
        (quarter, 0x3000, 2 * MIB, DEVICE, ALLOCATED, used_pool),
        (third, 0x3000, 2 * MIB, DEVICE, FREED, pool),
        (half, 0x2000, MIB, PINNED, FREED, called),
        # The last step's release is lost, and its address is taken again after all.
        (late[:-1], 0x1000, size[:-1], DEVICE, FREED, called),
        (late[-1:], 0x1000, 4 * MIB, DEVICE, ALLOCATED, {}),
    ]
    bytes_of: tuple[Counter[str], Counter[str]] = Counter(), Counter()  # allocated, freed
    rank = scene.report.rank
    where = {"globalPid": rank.global_pid, "deviceId": rank.device, "contextId": rank.context}
    for start, address, taken, kind, operation, more in events:
        columns = where | {"streamId": 7, "pc": 0, "correlationId": 0} | more
        columns |= {"memKind": KINDS.index(kind), "memoryOperationType": operation}
        if more is called:
            columns["correlationId"] = _add_calls(scene, MEMORY_CALLS[kind][operation], start)
        columns |= {"address": BASE + address, "bytes": taken}
        scene.insert("CUDA_GPU_MEMORY_USAGE_EVENTS", start, **columns)
        bytes_of[operation][kind] += int(np.broadcast_to(taken, start.shape).sum())
    most = {kind: number * 4096 for number, kind in enumerate(ONCE, 1)}
    most |= {PINNED: MIB, DEVICE: 8 * MIB + int(size.max()) + 2 * MIB}
    most |= {MANAGED: 512 * MIB, STATIC: 64 * MIB}
    told = {"allocated": dict(bytes_of[ALLOCATED]), "freed": dict(bytes_of[FREED])}
    told |= {"unknown_releases": 1, "missing_releases": 1, "most_in_use": most}
    _add_pool(scene)
    told["pool"] = {"Created": 1, "Trimmed": 1, "Destroyed": 1}
    return told | {"cpu_faults": _add_cpu_faults(scene), "gpu_faults": _add_gpu_faults(scene)}


def _add_calls(scene: Scene, function: str, around: Ints) -> Ints:
    """Add calls of CUDA's API by a data loader around these times; return their correlation ids."""
    report = scene.report
    correlation = report.correlation + 1 + np.arange(len(around))
    report.correlation += len(around) + 1
    begin, end = (around[:, None] + shift for shift in (-2_000, 3_000))
    columns = {"thread": Thread.LOADER_0, "correlationId": correlation[:, None]}
    report.insert_calls(begin, end, [function], **columns)
    return correlation


def _add_pool(scene: Scene) -> None:
    """Add a pool that is created, trimmed and destroyed."""
    begin, end, rank = int(scene.steps[0, 0]) // 3, int(scene.steps[-1, 1]), scene.report.rank
    created, trimmed, destroyed = (begin, 1, 0, 0), (end, 3, MIB, 32 * MIB), (end + 500, 2, 0, 0)
    rows = [
        (start, rank.global_pid, rank.device, BASE, operation, 1, 0, keep, 0, size, 0)
        for start, operation, keep, size in (created, trimmed, destroyed)
    ]
    names = "start globalPid deviceId address operationType poolType correlationId minBytesToKeep"
    sizes = (f"localMemoryPool{what}" for what in ("ReleaseThreshold", "Size", "UtilizedSize"))
    scene.report.add("CUDA_GPU_MEMORY_POOL_EVENTS", " ".join((names, *sizes)), rows)


def _add_cpu_faults(scene: Scene) -> Truth:
    """Add page faults of the CPU. Truth: number by function; the second one has no source."""
    string, process = scene.report.export.string, scene.report.rank.global_pid
    edges = int(scene.steps[0, 0]), int(scene.steps[-1, 1])
    times = np.sort(scene.random.integers(*edges, 12)).tolist()
    source = string("/home/user/app/field.cpp")
    names = [string(name) for name in ("fill_field", "check_result")]
    module = string("/home/user/app/solver")
    rows = []
    for number, at in enumerate(times):
        name, where = (names[1], (None, None)) if number % 3 == 2 else (names[0], (source, 17))
        rows.append((at, process, BASE + 0x200 + 4096 * number, 0x401000, name, module, 0, *where))
    columns = "start globalPid address originalFaultPc CpuInstruction module unresolvedFaultPc sourceFile sourceLine"
    scene.report.add("CUDA_UM_CPU_PAGE_FAULT_EVENTS", columns, rows)
    return {"fill_field": 8, "check_result": 4}


def _add_gpu_faults(scene: Scene) -> Truth:
    """Add page faults of the GPU. Truth: of each access rows, ns and faults."""
    rank, truth = scene.report.rank, {}
    columns = {"globalPid": rank.global_pid, "deviceId": rank.device, "address": BASE + 0x200}
    for access, label, offset, length, faults in (
        (1, "Read", 1_000, 20_000, 3),
        (2, "Write", 31_000, 15_000, 8),
        (3, "Atomic", 36_000, 5_000, 1),
    ):
        begin = scene.steps[:, 0] + offset
        columns |= {"numberOfPageFaults": faults, "faultAccessType": access}
        rows, ns = scene.insert("CUDA_UM_GPU_PAGE_FAULT_EVENTS", begin, begin + length, **columns)
        truth[label] = {"rows": rows, "ns": ns, "faults": faults * rows}
    return truth


FIRST_DOMAIN = 21  # of libraries


def add_libraries(scene: Scene) -> Truth:
    """Add calls of libraries. Truth: table, or NVTX domain -> function, or text -> rows and ns."""
    truth: Truth = {}
    for table, event_class, function, low, high in DATA["library_calls"]:
        named = {"eventClass": event_class, "nameId": function}
        added = scene.insert(table, scene.at(low), scene.at(high), thread=0, **named)
        count(truth.setdefault(table, {}), function, *added)
    first = scene.steps[:1, 0] // 2
    for name, event_class in (("cuDNN", 33), ("cuBLAS", 35)):
        started = {"eventClass": event_class, "nameId": f"{name} profiling started"}
        process = scene.report.rank.global_pid
        scene.insert(f"{name.upper()}_EVENTS", first, first, globalTid=process, **started)
    for number, (domain, ranges) in enumerate(DATA["library_ranges"].items(), FIRST_DOMAIN):
        defined = {"eventType": 75, "textId": domain, "domainId": number, "thread": 0}
        scene.insert("NVTX_EVENTS", first, **defined)
        for text, low, high in ranges:
            given = {"eventType": PUSH_POP, "textId": text, "domainId": number, "thread": 0}
            added = scene.insert("NVTX_EVENTS", scene.at(low), scene.at(high), **given)
            count(truth.setdefault(domain, {}), text, *added)
    return truth


ACC_SOURCE, ACC_FUNCTION = "/home/user/app/solver.f90", "relax"


def add_openacc(scene: Scene) -> Truth:
    """Add constructs of OpenACC. Truth: end of the table's name -> by_source (`name@file:line`) and
    by_construct -> rows, ns and bytes.
    """
    truth: Truth = {}
    rank = scene.report.rank
    for table, kind, name, line, low, high, columns in DATA["openacc"]:
        steps = slice(None if line else 1)
        given = {**columns, "nameId": name, "eventKind": kind, "lineNo": line, "cuStreamId": 7}
        given |= {"cuDeviceId": rank.device, "cuContextId": rank.context}
        given |= {"srcFile": ACC_SOURCE, "funcName": ACC_FUNCTION} if line else {}
        given["DeviceType"] = 4 if line else 2
        begin, end = scene.at(low)[steps], scene.at(high)[steps]
        added = scene.insert(f"CUPTI_ACTIVITY_KIND_OPENACC_{table}", begin, end, thread=0, **given)
        found = truth.setdefault(table, {"by_source": {}, "by_construct": {}})
        source = f"{name}@{ACC_SOURCE}:{line}" if line else name
        construct = find_enum_label("ENUM_OPENACC_EVENT_KIND", kind)
        for way, label in (("by_source", source), ("by_construct", construct)):
            entry = count(found[way], label, *added)
            entry["bytes"] = entry.get("bytes", 0) + added[0] * (columns.get("bytes") or 0)
    return truth


OPENMP = 78  # event class
TEAM = (0, 40, 41, 42)  # distances of thread ids from the pid
REGION_END = 0.80  # where in the step the parallel region ends


def add_openmp(scene: Scene) -> Truth:
    """Add a parallel region of four threads in every step, with every kind of event. A last region stays
    unfinished, and two workers' events of the last finished one have wrong ends: on another clock, or 0.

    Truth: closed: record layout -> value -> rows and ns; open: begins of events without an end.
    """
    closed: Truth = {}
    number = np.arange(1, len(scene.steps) + 1)
    ids = {"region": number, "first": 4 * number, "second": 4 * number + 1}
    ids |= {"task": 1000 + number, "subtask": 2000 + number}

    def insert(table: str, begin: Ints, end: Ints, thread: int, **more: Any) -> None:
        columns = {"eventClass": OPENMP, "nameId": f"OpenMP {table.replace('_', ' ').lower()}"}
        scene.insert(f"OPENMP_EVENT_KIND_{table}", begin, end, thread=thread, **columns | more)

    def write(event: Sequence[Any], lost: int | None = None) -> None:
        """Add an event of every step; ``lost`` replaces the last step's end."""
        place, layout, value, table, low, high, columns = event
        begin = scene.at(low)
        end = begin if high is None else scene.at(high)
        length = np.ones(len(begin), np.int64) if high is None else end - begin
        if lost is not None:
            end[-1], length[-1] = lost, scene.at(REGION_END)[-1] - begin[-1]
        named = {key: ids.get(one, one) for key, one in columns.items()}
        insert(table, begin, end, TEAM[place], **named)
        found = closed.setdefault(f"openmp_{layout}", {})
        count(found, str(value), len(begin), int(length.sum()))

    region, *events = DATA["openmp_events"]
    write(region)
    ends = {3: scene.report.rank.start_clock + int(scene.steps[-1, 1]), 2: 0}
    for place in range(len(TEAM)):
        ids["own"] = ids["first"] + place
        for layout, value, table, low, high, special, columns in DATA["openmp_team"]:
            begin = low + place / 200 if "late" in special else low
            lost = ends.get(place) if "lost" in special else None
            write((place, layout, value, table, begin, high, columns), lost)
    for event in events:
        write(event)
    begin, last = scene.steps[-1:, 1], len(number) + 1
    insert("PARALLEL", begin, 0 * begin, 0, parallelId=last)
    task = {"parallelId": last, "taskId": 10_000, "kind": 2, "nameId": "OpenMP parallel"}
    insert("TASK", begin + 1000, 0 * begin, TEAM[1], **task)
    insert("THREAD", begin // 2, begin, TEAM[1], threadId=2, threadType=2)
    end = int(begin[0])
    closed["openmp_thread"] = {"2": {"rows": 1, "ns": end - end // 2}}
    opened = {"openmp_parallel": end, "openmp_implicit_task": end + 1000}
    return {"closed": closed, "open": opened}


FRAMES, FRAME_NS, CALLS_PER_FRAME = 3, 1_000_000, 7  # frames of a step; calls of a frame


def add_graphics(scene: Scene) -> Truth:
    """Draw a few frames in every step, encode and decode. OpenGL's rows are as nsys 2024.2 writes
    them: one context, frames counted from 1, workloads from the first to the last call they serve.
    Truth: table -> thread (distance from the pid) or queue -> name -> rows and ns.
    """
    rank, encode = scene.report.rank, scene.report.export.encode
    rows: dict[str, list[dict[str, Any]]] = {}
    found: dict[str, list[tuple[str, str, int, int]]] = {}  # by table: place, name, begin, end

    def draw(section: str, at: int, ids: dict[str, int]) -> None:
        """Add the events of a section that is drawn at ``at``."""
        for table, name, place, after, lasts, columns in DATA[section]:
            begin, end = at + after, None if lasts is None else at + after + lasts
            thread = Thread[place] if place in Thread.__members__ else Thread.LOADER_1
            row = {"start": begin, "end": end, "globalTid": rank.global_tid(thread)}
            row |= DATA["graphics_columns"][table]
            for column, value in columns.items():
                row[column] = encode(table, column, ids.get(value, value))
            rows.setdefault(table, []).append(row)
            told = place if place not in Thread.__members__ else str(int(thread))
            found.setdefault(table, []).append((told, name, begin, end or begin + 1))

    begins = [
        begin + frame * FRAME_NS for begin in scene.steps[:, 0].tolist() for frame in range(FRAMES)
    ]
    for frame, at in enumerate(begins):
        ids = {"number": frame + 1, "gpu": rank.gpu}
        ids |= {
            f"call {number}": CALLS_PER_FRAME * frame + number
            for number in range(1, CALLS_PER_FRAME + 1)
        }
        draw("opengl_frame", at + int(scene.random.integers(10_000)), ids)
        draw("vulkan_frame", at + 500_000 + int(scene.random.integers(10_000)), ids)
    for at in begins[::FRAMES]:
        draw("video_calls", at, {})
    for table, listed in rows.items():
        scene.report.add(table, " ".join(listed[0]), [list(row.values()) for row in listed])
    summed = {table: sum_events(events) for table, events in sorted(found.items())}
    return {"tables": summed, "frames": len(begins)}


DEPTH, OPERATORS, OPERATOR_STREAM = 24, 4, 31
FORWARD, BACKWARD = Thread.FORWARD, Thread.BACKWARD
LEAD_NS, SPAN_NS, LAUNCHED_NS, KERNEL_NS, PACE_NS = 1_000, 20_000, 30_000, 1_500, 2_000
OPERATOR_BEGINS = range(1_000, 1_000 + 4_000 * OPERATORS, 4_000)  # when operators begin, ns
FIRST_CORRELATION = 1 << 24  # far from those of the job


class _Range(NamedTuple):
    """A range of a step."""

    name: str  # in the trace
    tail: str  # the end of the text, which differs from call to call ({seq} and {op} are filled in)
    thread: int
    begin: int  # ns since the step's ranges begin
    end: int


def _list_ranges() -> list[_Range]:
    levels = [(f"Module.{level}", 10 * level) for level in range(DEPTH)]
    found = [_Range(name, "", FORWARD, edge, SPAN_NS - edge) for name, edge in levels]
    found.append(_Range("backward", "", BACKWARD, 0, SPAN_NS))
    for at in OPERATOR_BEGINS:
        for name, tail, thread, begin, end in DATA["pytorch_operator"]:
            found.append(_Range(name, tail, Thread[thread], at + begin, at + end))
    return found


def add_pytorch_ranges(scene: Scene) -> Truth:
    """After every step run an operator four times within modules of depth DEPTH, and on another thread its
    backward pass; all their kernels run on one stream, in turns.
    """
    report, epochs, made = scene.report, scene.steps[:, 1] + LEAD_NS, _list_ranges()
    steps, whole = len(epochs), KERNEL_NS + (2 * OPERATORS - 2) * PACE_NS
    texts, numbers = _write_texts(steps, made)
    ranges = {"eventType": PUSH_POP, "thread": [one.thread for one in made]}
    ranges |= {"domainId": 0, "text": texts}
    ranges["int64Value"] = np.array([1] + [None] * (len(made) - 1), object)
    begin, end = (
        epochs[:, None] + np.array([getattr(one, edge) for one in made])
        for edge in ("begin", "end")
    )
    report.insert("NVTX_EVENTS", begin, end, **ranges)
    _add_kernels(report, epochs)
    mark = {"eventType": MARK, "thread": FORWARD, "domainId": 0}
    mark |= {"text": "loss", "floatValue": np.full(1, 0.5)}
    report.insert("NVTX_EVENTS", epochs + SPAN_NS + 500, **mark)
    host: dict[str, list[int]] = {}
    for one in made:
        rows, ns = host.get(one.name, (0, 0))
        host[one.name] = [rows + steps, ns + steps * (one.end - one.begin)]
    inner = [OPERATORS * steps, OPERATORS * steps * KERNEL_NS]
    on_gpu = {
        one.name: inner if "::" in one.name or "Addmm" in one.name else [steps, steps * whole]
        for one in made
    }
    return {
        "host": host,
        "sequence_numbers": numbers,
        "on_gpu": on_gpu,
        "stream": OPERATOR_STREAM,
        "threads": [report.rank.pid + FORWARD, report.rank.pid + BACKWARD],
        "payloads": {"int64Value": steps, "floatValue": steps},
    }


def _write_texts(steps: int, made: list[_Range]) -> tuple[Any, list[int]]:
    """Write the texts of all ranges (step, range); also return the sequence numbers in them."""
    texts, used = np.empty((steps, len(made)), object), []
    for step in range(steps):
        seen = {FORWARD: 0, BACKWARD: 0}
        for place, one in enumerate(made):
            sequence, operator = 100 * step + seen[one.thread], 1 + step * len(made) + place
            if "{seq}" in one.tail:
                seen[one.thread] += 1
                used.append(sequence)
            texts[step, place] = one.name + one.tail.format(seq=sequence, op=operator)
    return texts, sorted(used)


def _add_kernels(report: Report, epochs: Ints) -> None:
    """Add the launching calls of both threads, and their kernels by turns."""
    threads = [FORWARD, BACKWARD] * OPERATORS
    called = epochs[:, None] + np.array([at + 800 for at in OPERATOR_BEGINS for _ in range(2)])
    begun = epochs[:, None] + LAUNCHED_NS + PACE_NS * np.arange(2 * OPERATORS)
    correlation = FIRST_CORRELATION + np.arange(called.size).reshape(called.shape)
    launches = ["cudaLaunchKernel_v7000"] * len(threads)
    report.insert_calls(called, called + 400, launches, thread=threads, correlationId=correlation)
    names = ["addmm_forward", "addmm_backward"] * OPERATORS
    columns = report.rank.columns | {"streamId": OPERATOR_STREAM, "correlationId": correlation}
    named = ("demangledName", "shortName", "mangledName")
    columns |= dict.fromkeys(named, names)
    columns |= DATA["pytorch_kernel"] | {"gridId": correlation}
    report.insert("CUPTI_ACTIVITY_KIND_KERNEL", begun, begun + KERNEL_NS, **columns)


#: By the name with which they are asked for.
ADDITIONS: dict[str, Callable[[Scene], Truth]] = {
    "cpu": add_cpu,
    "graphics": add_graphics,
    "libraries": add_libraries,
    "memory": add_memory,
    "openacc": add_openacc,
    "openmp": add_openmp,
    "profiler": add_profiler,
    "pytorch_ranges": add_pytorch_ranges,
    "system": add_system,
}
