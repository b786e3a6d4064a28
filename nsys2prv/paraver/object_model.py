"""Nodes, tasks and threads of the trace, from the objects that the reports' events sit on.

One task per process that has events, in rank order; within a task the main thread comes first, then
one thread per (device, stream), then one per GPU and sort of other work, then the other host
threads, then further rows of host threads for ranges that overlap, then GPUs with samples. A
process is known by its machine, its report and its pid: pids repeat between hosts and containers. A
device is one row of the trace whatever reports have samples of it: a GPU's is in the first task
that works on it, those of all others are in a task of their host behind all processes, a switch's
in the first of these: POP's BasicAnalysis takes every row of a task with streams that is neither a
stream nor a GPU for a host thread.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from nsys2prv._util.errors import Nsys2prvError
from nsys2prv._util.text import make_natural_key
from nsys2prv.events.extraction import (
    GPU,
    DeviceKey,
    ObjectKey,
    QueueKey,
    StreamKey,
    ThreadKey,
)
from nsys2prv.nsight.info import PROCESS_MASK, ReportInfo, choose_launcher_ranks, pid_of, tid_of
from nsys2prv.paraver.tree import (
    NO_PROCESS,
    OF_GPU,
    Device,
    GpuNumbers,
    ObjectTree,
    RankedProcess,
    Task,
    make_device_sort_key,
    place_devices,
)


class ObjectModel(Struct):
    """Objects of the trace."""

    #: Tree of nodes, tasks and threads.
    tree: ObjectTree
    #: (report, object key) -> index of its thread in the tree.
    rows: dict[tuple[int, ObjectKey], int]
    #: Process of each task.
    processes: list[RankedProcess]
    #: Number of GPUs with work.
    devices: int
    #: How the order of the tasks was found.
    ranked: str

    @property
    def ranks(self) -> int:
        """Return the number of tasks that are processes, not devices of a host."""
        return sum(process.pid != NO_PROCESS for process in self.processes)


def order_reports(infos: list[ReportInfo]) -> list[ReportInfo]:
    """Return reports by rank where every one has a rank of its own, else by natural order of their
    paths.
    """
    by_name = sorted(infos, key=lambda info: make_natural_key(str(info.given)))
    ranks = [min(info.ranks.values(), default=None) for info in by_name]
    if None in ranks or len(set(ranks)) < len(ranks):
        ranks = choose_launcher_ranks([info.launcher_ranks for info in by_name])
    if ranks is None:
        return by_name
    return [info for _, info in sorted(zip(ranks, by_name, strict=True), key=lambda pair: pair[0])]


def build_object_model(
    infos: list[ReportInfo], machines: list[int], seen: list[tuple[int, ObjectKey]]
) -> ObjectModel:
    """Return the tree of all objects seen; `machines` numbers each report's machine.

    Raises Nsys2prvError when there are more objects than Paraver can hold.
    """
    by_process: dict[tuple[int, int], list[ObjectKey]] = defaultdict(list)
    devices: list[tuple[int, DeviceKey]] = []
    for report, key in set(seen):
        if isinstance(key, DeviceKey):
            devices.append((report, key))
            continue
        pid = key.tid & PROCESS_MASK if isinstance(key, ThreadKey) else key.pid
        by_process[report, pid].append(key)
    devices.sort(
        key=lambda process_keys: (process_keys[0], *make_device_sort_key(process_keys[1], 0))
    )
    peopled = {machines[report] for report, _ in by_process}
    apart = {machines[report] for report, pid in by_process if pid == NO_PROCESS}
    for report, key in devices:
        machine = machines[report]
        if machine not in apart and (key.kind != GPU or machine not in peopled):
            apart.add(machine)
            by_process.setdefault((report, NO_PROCESS), [])
    processes, ranked = _order_processes(infos, by_process)
    node_of, nodes = _order_nodes(infos, machines, processes)
    gpus = GpuNumbers(infos, machines)
    placed = place_devices(devices, processes, by_process, machines, gpus)

    tasks, rows, threads = [], {}, 0
    ambiguous = _find_names_on_several_hosts(by_process, placed, infos, gpus)
    for process in processes:
        info = infos[process.report]
        process_keys = by_process[process.report, process.pid]
        main = _find_main_thread(process_keys, process, info)
        keys = sorted(
            process_keys, key=lambda key: _make_thread_sort_key(key, main, process, info, gpus)
        )
        for position, key in enumerate(keys):
            rows[process.report, key] = threads + position
        task = len(tasks) + 1
        names = [
            _name_thread_row(key, info, task, position + 1, gpus.number(process.report, key))
            for position, key in enumerate(keys)
        ]
        for device in placed.get((process.report, process.pid), ()):
            rows.update({process_keys: threads + len(names) for process_keys in device.found})
            names.append(device.name)
        if info.host:
            names = [f"{name}-{info.host}" if name in ambiguous else name for name in names]
        threads += len(names)
        tasks.append(Task(_name_task(process, info), node_of[process.report], tuple(names)))
    tree = ObjectTree(tuple(nodes), tuple(tasks))
    if tree.threads > ObjectTree.LIMIT:
        raise Nsys2prvError(
            f"the reports hold {tree.threads} threads and streams, but Paraver can show {ObjectTree.LIMIT}; "
            "convert fewer reports at a time, or leave kinds out with -t"
        )
    return ObjectModel(tree, rows, processes, gpus.used, ranked)


def _order_processes(
    infos: list[ReportInfo], by_process: dict[tuple[int, int], list[ObjectKey]]
) -> tuple[list[RankedProcess], str]:
    """Return the processes by rank, then by report; within a report those with GPU work first, then
    by pid; tasks for devices behind all.
    """
    own = {(report, pid): infos[report].ranks.get(pid) for report, pid in by_process}
    method = "MPI ranks" if any(rank is not None for rank in own.values()) else ""
    launcher = choose_launcher_ranks([info.launcher_ranks for info in infos])
    if not method and launcher is not None:
        method = "launcher's environment"
        own = {
            (report, pid): launcher[report] if pid != NO_PROCESS else None
            for report, pid in by_process
        }

    def key(process: tuple[int, int]) -> tuple:
        report, pid = process
        rank = own[process]
        has_gpu = any(isinstance(item, StreamKey) for item in by_process[process])
        return (pid == NO_PROCESS, rank is None, rank or 0, report, not has_gpu, pid & (2**64 - 1))

    processes = [
        RankedProcess(report, pid, own[report, pid]) for report, pid in sorted(by_process, key=key)
    ]
    return processes, method or "file names"


def _order_nodes(
    infos: list[ReportInfo], machines: list[int], processes: list[RankedProcess]
) -> tuple[dict[int, int], list[str]]:
    """Return the nodes in the order in which the tasks first need them: report -> node index, and
    the nodes.
    """
    index: dict[int, int] = {}
    names: list[str] = []
    for process in processes:
        machine = machines[process.report]
        if machine not in index:
            index[machine] = len(names)
            host = infos[process.report].host or "unknown-host"
            taken = sum(name == host or name.startswith(host + "#") for name in names)
            names.append(f"{host}#{taken + 1}" if taken else host)
    return {process.report: index[machines[process.report]] for process in processes}, names


def _find_main_thread(
    keys: Iterable[ObjectKey], process: RankedProcess, info: ReportInfo
) -> int | None:
    """Return the globalTid of the thread that stands for its process: the main one, or the first of
    those with a row.
    """
    threads = {key.tid for key in keys if isinstance(key, ThreadKey)}
    return min(
        threads,
        key=lambda tid: (tid_of(tid) != pid_of(process.pid), *_make_name_sort_key(tid, info)),
        default=None,
    )


def _make_name_sort_key(tid: int, info: ReportInfo) -> tuple:
    return make_natural_key(info.threads.get(tid, "")), tid_of(tid), tid


def _make_thread_sort_key(
    key: ObjectKey, main: int | None, process: RankedProcess, info: ReportInfo, gpus: GpuNumbers
) -> tuple:
    """Return the place of a row in its task: the main thread, streams, other work on GPUs, other
    threads, and last the further rows of threads.
    """
    if isinstance(key, ThreadKey):
        group = 4 if key.lane else 0 if key.tid == main else 3
        return (group, key.tid != main, *_make_name_sort_key(key.tid, info), key.lane)
    if isinstance(key, QueueKey):
        return (2, key.queue, gpus.number(process.report, key), key.gpu, key.lane)
    return (1, gpus.number(process.report, key), key.device, key.stream, key.lane)


def _find_names_on_several_hosts(
    by_process: Mapping[tuple[int, int], Iterable[ObjectKey]],
    placed: Mapping[tuple[int, int], Iterable[Device]],
    infos: Sequence[ReportInfo],
    gpus: GpuNumbers,
) -> set[str]:
    """Return names that rows of streams, queues and devices of several hosts would have, but for
    those that POP's BasicAnalysis parses whole. The host alone may follow such a name:
    BasicAnalysis takes what follows a stream's for the node of the GPU.
    """
    hosts: dict[str, set[str]] = defaultdict(set)
    for (report, _), keys in by_process.items():
        for key in keys:
            if isinstance(key, StreamKey | QueueKey):
                hosts[_name_work_row(key, gpus.number(report, key))].add(infos[report].host or "")
    for (report, _), devices in placed.items():
        for device in devices:
            if not device.name.startswith(OF_GPU[GPU].format("")):
                hosts[device.name].add(infos[report].host or "")
    return {name for name, name_hosts in hosts.items() if len(name_hosts) > 1}


def _name_work_row(key: StreamKey | QueueKey, device: int) -> str:
    """Return the name of a row for work on a GPU; POP's BasicAnalysis parses those of streams."""
    if isinstance(key, StreamKey):
        return f"CUDA-D{device}.S{key.stream}"
    return f"{key.queue} GPU{device}" if device >= 0 else f"{key.queue} GPU"


def _name_thread_row(key: ObjectKey, info: ReportInfo, task: int, thread: int, device: int) -> str:
    """Return the name of a row. Further rows of a thread, for ranges that overlap, are numbered:
    `+1`, `+2`.
    """
    if isinstance(key, StreamKey | QueueKey):
        return _name_work_row(key, device)
    name = info.threads.get(key.tid) or info.processes.get(key.tid & PROCESS_MASK) or ""
    label = f"THREAD 1.{task}.{thread}"
    further = [f"+{key.lane}"] if key.lane else []
    return " ".join([label, *([name] if name else []), *further, str(tid_of(key.tid))])


def _name_task(process: RankedProcess, info: ReportInfo) -> str:
    if process.pid == NO_PROCESS and not info.processes.get(NO_PROCESS):
        return f"devices of {info.host or 'unknown-host'}"
    name = info.processes.get(process.pid, "")
    who = f"{name} {pid_of(process.pid)}".strip()
    return f"rank {process.rank} {who}" if process.rank is not None else who
