"""Make the objects of a trace from the objects of events: nodes, and one application with tasks and
threads. Every thread has its own CPU on its node.

There is one task per process with events, in rank order; helpers of hosts are last. Within a task,
the order is: the main thread; one thread per (device, stream); one per GPU and sort of other work;
the other host threads; additional rows of host threads for overlapping ranges; the threads of the
process's helpers; GPUs with samples. A process is identified by machine, report and pid, because
pids repeat between hosts and containers. A device is one row of the trace, however many reports
have samples of it. A GPU's row is in the first task that uses it. Rows of all other devices are in
a separate task of their host, after all processes; a switch's row is in the first of these. The
reason is that POP's BasicAnalysis takes every row of a task with streams that is neither a stream
nor a GPU for a host thread.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.text import list_some, make_natural_key
from nsys2prv.events.extraction import (
    DEVICE_KINDS,
    GPU,
    GPU_CONTEXTS,
    SWITCH,
    DeviceKey,
    ObjectKey,
    QueueKey,
    StreamKey,
    ThreadKey,
    identify_gpu,
)
from nsys2prv.export.info import PROCESS_MASK, ReportInfo, pid_of, tid_of
from nsys2prv.export.roles import (
    FILE_NAMES,
    Evidence,
    ProcessKey,
    Roles,
    choose_launcher_ranks,
    describe_processes,
    find_program,
    find_roles,
)

#: Follows a rank that is known only by the order or the numbers of file names.
BY_FILE_NAME = " (by file name)"
#: Pid of the task of a host for the rows of its devices.
NO_PROCESS = 0
#: Kinds of rows of physical GPUs -> their names; POP's BasicAnalysis parses "Metrics GPU0".
GPU_ROW_NAMES = {GPU: "Metrics GPU{}", GPU_CONTEXTS: "Contexts GPU{}"}


#: Words that choose rows: the main thread of each process; streams, other GPU work, and GPUs.
MAIN_ROWS, GPU_ROWS = "main", "gpu"
#: Behind a thread's name: the number of a further row, and the thread ID.
_FURTHER = re.compile(r"( \+\d+)? \d+$")
#: Behind the name of a host that several nodes have.
_COPY = re.compile(r"#\d+$")
#: Maximum number of named processes that share a GPU.
MOST_SHARING = 8
#: Returns the roles of processes.
FindRoles = Callable[[Sequence[ReportInfo], Evidence], Roles]


class TraceRow(Struct, frozen=True):
    """A row of the trace (a thread, stream or device), which Paraver calls a thread."""

    #: For people, without its address.
    name: str
    #: True for a host thread. Its label begins with its address.
    is_host: bool = False
    #: Number of its GPU on its machine; None if it has none.
    gpu: int | None = None


class Task(Struct, frozen=True):
    """A task of the application: a process, or a device of a host, with its rows."""

    #: Name of its row.
    name: str
    #: Index of its node, from 0.
    node: int
    #: Its rows, in Paraver's order.
    threads: tuple[TraceRow, ...]
    #: `rank 0 `, "" without a rank.
    rank: str = ""


class ObjectTree(Struct, frozen=True, dict=True):
    """All nodes, tasks and threads (rows) of a trace. Threads are numbered from 0 over all tasks in
    order.
    """

    #: Names of the nodes.
    nodes: tuple[str, ...]
    #: Tasks in Paraver's order.
    tasks: tuple[Task, ...]

    @cached_property
    def threads(self) -> int:
        """Return the number of threads of all tasks."""
        return sum(len(task.threads) for task in self.tasks)

    @property
    def labels(self) -> list[str]:
        """Return the labels of all rows. Host threads include their address, `THREAD 1.1.2 name`,
        and the first one of a rank includes the rank, `THREAD 1.1.1 rank 0 name`.
        """
        return [
            f"THREAD 1.{task}.{thread} {one.rank * (thread == 1)}{row.name}"
            if row.is_host
            else row.name
            for task, one in enumerate(self.tasks, 1)
            for thread, row in enumerate(one.threads, 1)
        ]

    @cached_property
    def cpus_per_node(self) -> list[int]:
        """Return the number of CPUs of each node in the trace's header: one for each of its
        threads.
        """
        counts = [0] * len(self.nodes)
        for task in self.tasks:
            counts[task.node] += len(task.threads)
        return counts

    @cached_property
    def addresses(self) -> list[str]:
        """Return the address of every thread as records contain it: `cpu:application:task:thread`.
        CPUs are numbered from 1 over all nodes.
        """
        following, free = [], 1
        for count in self.cpus_per_node:
            following.append(free)
            free += count
        result = []
        for number, task in enumerate(self.tasks, 1):
            for thread in range(1, len(task.threads) + 1):
                result.append(f"{following[task.node]}:1:{number}:{thread}")
                following[task.node] += 1
        return result


class RankedProcess(Struct, frozen=True):
    """A process of a report with its rank and whether it only helps other processes."""

    #: Index of the report.
    report: int
    #: Process id with its machine (globalPid of the report).
    pid: int
    #: Rank in the job; None if it has none.
    rank: int | None
    #: Source of the rank.
    source: str = ""
    #: Whether it is no rank, and counts nowhere.
    is_helper: bool = False

    @property
    def rank_label(self) -> str:
        """Return the rank as text, or ""."""
        if self.rank is None:
            return ""
        return f"rank {self.rank}{BY_FILE_NAME if self.is_by_name else ''}"

    @property
    def is_by_name(self) -> bool:
        """Return True if the rank is known only from the name of a file."""
        return self.source == FILE_NAMES


class ObjectModel(Struct):
    """All objects of a trace (nodes, tasks, rows) and the processes and GPUs that they stand for."""

    #: Tree of nodes, tasks and threads.
    tree: ObjectTree
    #: (report, object key) -> index of its thread in the tree.
    rows: dict[tuple[int, ObjectKey], int]
    #: Process of each task, in the first of its reports.
    processes: list[RankedProcess]
    #: (report, globalPid) -> 0-based task; helpers of a process share its task.
    tasks: dict[tuple[int, int], int]
    #: Number of GPUs with work.
    devices: int
    #: Name of each GPU that several processes use -> their tasks.
    shared_gpus: Mapping[str, Sequence[int]] = MappingProxyType({})
    #: The roles of the processes.
    roles: Roles = Roles()
    #: Threads of helpers.
    helper_rows: frozenset[int] = frozenset()
    #: Programs and process ids of the helpers, as text.
    helpers: tuple[str, ...] = ()

    @property
    def rank_sources(self) -> list[str]:
        """Return texts that say from what the ranks are known."""
        return list(dict.fromkeys(one.source for one in self.processes if one.source))

    @property
    def labels(self) -> list[str]:
        """Return the label of each task: its rank, or the name of its row if it has no rank or
        shares it.
        """
        labels: dict[str, None] = {}
        for process, task in zip(self.processes, self.tree.tasks, strict=True):
            where = f"{task.name} on {self.tree.nodes[task.node]}"
            names = (process.rank_label or task.name, task.name, where, f"{where} ({len(labels)})")
            labels[next(name for name in names if name not in labels)] = None
        return list(labels)

    @property
    def count(self) -> int:
        """Return the number of tasks that are processes other than helpers. Tasks for devices of a
        host do not count.
        """
        return len(self.members)

    @property
    def members(self) -> list[int]:
        """Return the numbers (from 1) of the tasks that are processes other than helpers."""
        return [
            task
            for task, one in enumerate(self.processes, 1)
            if one.pid != NO_PROCESS and not one.is_helper
        ]

    def list_row_words(self) -> list[tuple[str, ...]]:
        """Return for each row the words that select it: MAIN_ROWS or GPU_ROWS if it is such a row,
        and its name without the host, the number of an additional row, and the thread ID.
        """
        words: list[tuple[str, ...]] = []
        for process, task in zip(self.processes, self.tree.tasks, strict=True):
            host = "-" + _COPY.sub("", self.tree.nodes[task.node])
            main = None
            if task.threads and task.threads[0].is_host and not process.is_helper:
                main = _find_thread_id(task.threads[0])
            for row in task.threads:
                if not row.is_host:
                    sort = () if row.gpu is None else (GPU_ROWS,)
                    words.append((*sort, row.name.removesuffix(host)))
                    continue
                sort = (MAIN_ROWS,) if _find_thread_id(row) == main else ()
                words.append((*sort, _FURTHER.sub("", row.name)))
        return words

    def describe_processes(self) -> str:
        """Return a text with the number of processes and ranks."""
        ranks = {process.rank for process in self.processes} - {None}
        return describe_processes(self.count, len(ranks))

    def _name_tasks(self, tasks: Sequence[int]) -> str:
        ranks = [self.processes[task].rank for task in tasks]
        if None in ranks or len(set(ranks)) < len(ranks):
            labels = self.labels
            return list_some([labels[task] for task in tasks], MOST_SHARING)
        return f"ranks {list_some(list(map(str, ranks)), MOST_SHARING)}"

    def describe_shared_gpus(self) -> str:
        """Return a line about GPUs that several processes use, or ""."""
        shared = [
            f"{gpu} ({self._name_tasks(tasks)})"
            for gpu, tasks in sorted(self.shared_gpus.items(), key=lambda item: item[1])
        ]
        if not shared:
            return ""
        return f"processes share GPUs, and each GPU counts once: {list_some(shared)}"


def _find_thread_id(row: TraceRow) -> str:
    """Return the thread ID at the end of the name of a host thread's row."""
    return row.name.rpartition(" ")[2]


def order_reports(infos: list[ReportInfo]) -> list[ReportInfo]:
    """Return the reports by rank if each has its own rank, otherwise in natural order of their
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
    infos: list[ReportInfo],
    machines: list[int],
    seen: list[tuple[int, ObjectKey]],
    firsts: Mapping[ProcessKey, ProcessKey] = MappingProxyType({}),
    find: FindRoles = find_roles,
) -> ObjectModel:
    """Build the tree of all objects with events. machines: number of each report's machine. seen:
    (report, key) of these objects. firsts: see `Captures` in export/ranks.py. find: function that
    returns the roles of processes.
    """
    by_process: dict[ProcessKey, set[ObjectKey]] = defaultdict(set)
    devices: list[tuple[int, DeviceKey]] = []
    homes: dict[tuple[int, ObjectKey], ProcessKey] = {}
    for report, key in set(seen):
        if isinstance(key, DeviceKey):
            devices.append((report, key))
            continue
        own = report, find_process(key)
        homes[report, key] = home = firsts.get(own, own)
        by_process[home].add(key)
    roles = find(infos, gather_evidence(infos, by_process))
    for helper, owner in roles.helpers.items():
        if owner in by_process:
            by_process[owner] |= by_process.pop(helper)
    devices.sort(key=lambda device: (device[0], *_make_device_sort_key(device[1], 0)))
    peopled = {machines[report] for report, _ in by_process}
    apart = {machines[report] for report, pid in by_process if pid == NO_PROCESS}
    for report, key in devices:
        machine = machines[report]
        if machine not in apart and (key.kind != GPU or machine not in peopled):
            apart.add(machine)
            by_process.setdefault((report, NO_PROCESS), set())
    processes = _order_processes(by_process, roles)
    node_of, nodes = _order_nodes(infos, machines, processes)
    gpus = GpuNumbers(infos, machines)
    placed = _place_devices(devices, processes, by_process, gpus)

    tasks, rows, threads = [], {}, 0
    helper_rows: set[int] = set()
    ambiguous = _find_names_on_several_hosts(by_process, placed, gpus)
    for process in processes:
        info = infos[process.report]
        process_keys = by_process[process.report, process.pid]
        main = _find_main_thread(process_keys, process, info)
        keys = sorted(process_keys, key=lambda key: _make_thread_sort_key(key, main, process, gpus))
        own: list[TraceRow] = []
        for key in keys:
            rows[process.report, key] = threads + len(own)
            is_of_helper = find_process(key) != process.pid
            if is_of_helper or process.is_helper:
                helper_rows.add(rows[process.report, key])
            number = gpus.find_number(process.report, key)
            own.append(_make_row(key, info, is_of_helper, number))
        for device in placed.get((process.report, process.pid), ()):
            rows.update(dict.fromkeys(device.found, threads + len(own)))
            own.append(TraceRow(device.name, gpu=device.gpu))
        if info.host:
            own = [
                replace(row, name=f"{row.name}-{info.host}") if row.name in ambiguous else row
                for row in own
            ]
        threads += len(own)
        rank = f"rank {process.rank} " if process.source else ""
        tasks.append(Task(_name_task(process, info), node_of[process.report], tuple(own), rank))
    rows |= {(report, key): rows[home, key] for (report, key), (home, _) in homes.items()}
    tree = ObjectTree(tuple(nodes), tuple(tasks))
    numbers = {(one.report, one.pid): number for number, one in enumerate(processes)}
    numbers |= {key: numbers[one] for key, one in roles.helpers.items() if one in numbers}
    for (report, key), home in homes.items():
        numbers.setdefault((report, find_process(key)), numbers[home])
    shared = {
        f"{nodes[node_of[users[0][0]]]} GPU{number}": [numbers[one] for one in users]
        for number, users in gpus.list_shared()
    }
    return ObjectModel(
        tree,
        rows,
        processes,
        numbers,
        gpus.used,
        shared,
        roles,
        frozenset(helper_rows),
        tuple(
            _name_helper(infos[report], pid)
            for report, pid in sorted(roles.helpers)
            if (report, pid) in numbers
        ),
    )


def gather_evidence(
    infos: Sequence[ReportInfo], by_process: Mapping[ProcessKey, Iterable[ObjectKey]]
) -> Evidence:
    """Return the evidence about the work of processes, such as GPU use, from their rows.
    by_process: process -> its objects with events.
    """
    processes = {one: keys for one, keys in by_process.items() if one[1] != NO_PROCESS}
    streams, queues = (
        {one for one, keys in processes.items() if any(isinstance(key, kind) for key in keys)}
        for kind in (StreamKey, QueueKey)
    )
    ready = {one for one in processes if pid_of(one[1]) in infos[one[0]].cuda_processes}
    # If no GPU work was read, contexts show it.
    working = streams or queues or ready
    return Evidence(
        {one: one in working for one in processes},
        {one: sum(isinstance(key, ThreadKey) for key in keys) for one, keys in processes.items()},
        ready=ready,
        also_busy=queues,
    )


def find_process(key: ThreadKey | StreamKey | QueueKey) -> int:
    """Return the globalPid of the process to which a thread, stream or queue belongs."""
    return key.tid & PROCESS_MASK if isinstance(key, ThreadKey) else key.pid


def _order_processes(
    by_process: Mapping[ProcessKey, Iterable[ObjectKey]], roles: Roles
) -> list[RankedProcess]:
    """Return the processes by rank, then by report. Within a report, processes with GPU work come
    first, then by pid. Helpers come after all ranks, tasks for devices last.
    """

    def key(process: ProcessKey) -> tuple:
        report, pid = process
        rank = roles.ranks.get(process)
        has_gpu = any(isinstance(key, StreamKey) for key in by_process[process])
        number = 0 if rank is None else rank.number
        is_helper = process in roles.helpers
        place = (rank is None, number, report, not has_gpu, pid & (2**64 - 1))
        return (pid == NO_PROCESS, is_helper, *place)

    return [
        RankedProcess(
            *process,
            *((rank.number, rank.source) if (rank := roles.ranks.get(process)) else (None, "")),
            process in roles.helpers,
        )
        for process in sorted(by_process, key=key)
    ]


def _order_nodes(
    infos: list[ReportInfo], machines: list[int], processes: list[RankedProcess]
) -> tuple[dict[int, int], list[str]]:
    """Return report -> node index, and the nodes in the order in which tasks first need them."""
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
    """Return the globalTid of the process's main thread, or of the first thread with a row."""
    own = (key for key in keys if isinstance(key, ThreadKey))
    threads = {key.tid for key in own if find_process(key) == process.pid}
    return min(
        threads,
        key=lambda tid: (tid_of(tid) != pid_of(process.pid), *_make_name_sort_key(tid, info)),
        default=None,
    )


def _make_name_sort_key(tid: int, info: ReportInfo) -> tuple:
    return make_natural_key(info.threads.get(tid, "")), tid_of(tid), tid


def _make_thread_sort_key(
    key: ObjectKey, main: int | None, process: RankedProcess, gpus: GpuNumbers
) -> tuple:
    """Return the sort key of a row in its task: main thread, streams, other GPU work, other
    threads, additional rows of threads, and threads of helpers by process.
    """
    report, pid = process.report, find_process(key)
    if pid != process.pid:
        is_main = isinstance(key, ThreadKey) and tid_of(key.tid) == pid_of(pid)
        return (5, pid & (2**64 - 1), not is_main, str(key))
    if isinstance(key, ThreadKey):
        group = 4 if key.lane else 0 if key.tid == main else 3
        name = _make_name_sort_key(key.tid, gpus.infos[report])
        return (group, key.tid != main, *name, key.lane)
    if isinstance(key, QueueKey):
        return (2, key.queue, gpus.find_number(report, key), key.gpu, key.lane)
    return (1, gpus.find_number(report, key), key.device, key.stream, key.lane)


def _find_names_on_several_hosts(
    by_process: Mapping[ProcessKey, Iterable[ObjectKey]],
    placed: Mapping[tuple[int, int], Iterable[Device]],
    gpus: GpuNumbers,
) -> set[str]:
    """Return the names that rows of streams, queues and devices have on several hosts, except names
    that POP's BasicAnalysis parses completely. Only the host may follow such a name, because
    BasicAnalysis takes text after a stream's name for the node of the GPU.
    """
    hosts: dict[str, set[str]] = defaultdict(set)
    for (report, _), keys in by_process.items():
        for key in keys:
            if isinstance(key, StreamKey | QueueKey):
                name = _name_work_row(key, gpus.find_number(report, key))
                hosts[name].add(gpus.infos[report].host)
    for (report, _), devices in placed.items():
        for device in devices:
            if device.found[0][1].kind != GPU:
                hosts[device.name].add(gpus.infos[report].host)
    return {name for name, name_hosts in hosts.items() if len(name_hosts) > 1}


def _name_work_row(key: StreamKey | QueueKey, device: int) -> str:
    """Return the name of a row for GPU work; POP's BasicAnalysis parses stream names."""
    if isinstance(key, StreamKey):
        return f"CUDA-D{device}.S{key.stream}"
    return f"{key.queue} GPU{device}" if device >= 0 else f"{key.queue} GPU"


def _make_row(key: ObjectKey, info: ReportInfo, is_of_helper: bool, device: int) -> TraceRow:
    """Return the row of a thread, stream or queue. device: GPU number of a stream or queue.
    Additional rows of a thread, for overlapping ranges, are numbered `+1`, `+2`.
    """
    if isinstance(key, StreamKey | QueueKey):
        return TraceRow(_name_work_row(key, device), gpu=device)
    name = info.threads.get(key.tid) or info.processes.get(find_process(key)) or ""
    further = f"+{key.lane}" if key.lane else ""
    parts = ("helper" * is_of_helper, name, further, str(tid_of(key.tid)))
    return TraceRow(" ".join(filter(None, parts)), is_host=True)


def _name_helper(info: ReportInfo, pid: int) -> str:
    """Return the program of a helper, or the name of its main thread, and its process ID."""
    name = find_program(info, pid) or info.threads.get(pid | pid_of(pid)) or "process"
    return f"{name} {pid_of(pid)}"


def _name_task(process: RankedProcess, info: ReportInfo) -> str:
    if process.pid == NO_PROCESS and not info.processes.get(NO_PROCESS):
        return f"devices of {info.host or 'unknown-host'}"
    name = find_program(info, process.pid)
    who = f"{name} {pid_of(process.pid)}".strip()
    if process.is_helper:
        return f"helper {who}"
    return f"{process.rank_label} {who}" if process.source else who


class Device(Struct):
    """A device (such as a GPU) with a row of the trace: its name, and its key in each report that
    has it.
    """

    #: Name of the row, and number of the GPU on its machine, None of other devices.
    name: str
    gpu: int | None
    #: (report, key) of each report that has it.
    found: list[tuple[int, DeviceKey]]


def _place_devices(
    devices: list[tuple[int, DeviceKey]],
    processes: list[RankedProcess],
    by_process: Mapping[ProcessKey, Iterable[ObjectKey]],
    gpus: GpuNumbers,
) -> dict[tuple[int, int], list[Device]]:
    """Return (report, pid) of a process -> the rows of devices in its task, in order."""
    first_on: dict[int, RankedProcess] = {}
    apart_on: dict[int, RankedProcess] = {}
    users: dict[tuple, tuple[RankedProcess, int]] = {}
    for process in processes:
        machine = gpus.machines[process.report]
        first_on.setdefault(machine, process)
        if process.pid == NO_PROCESS:
            apart_on.setdefault(machine, process)
        streams = [
            key for key in by_process[process.report, process.pid] if isinstance(key, StreamKey)
        ]
        for key in sorted(streams):
            user = process, gpus.find_number(process.report, key)
            # If the report does not state the GPU's number, the ordinal replaces it.
            number = gpus.infos[process.report].find_gpu_or_ordinal(key.pid, key.device)
            for gpu in (DeviceKey(GPU, number=number), DeviceKey(GPU, str(key.pid), key.device)):
                users.setdefault(gpus.identify(process.report, gpu), user)
    by_identity: dict[tuple, Device] = {}
    placed: dict[tuple[int, int], list[tuple[tuple, Device]]] = defaultdict(list)
    for report, key in devices:
        machine = gpus.machines[report]
        gpu = gpus.identify(report, key._replace(kind=GPU)) if key.kind in GPU_ROW_NAMES else None
        if gpu is not None:
            identity = (key.kind, *gpu)
        else:
            identity = (None if key.kind == SWITCH else machine, *key)
        if identity not in by_identity:
            user, number = users.get(gpu, (first_on[machine], None))
            if number is None:
                number = 0 if gpu is None else gpus.find_gpu_number(report, key.number)
            if key.kind == GPU:
                owner = user
            else:
                owner = next(iter(apart_on.values())) if key.kind == SWITCH else apart_on[machine]
            name = key.name if gpu is None else GPU_ROW_NAMES[key.kind].format(number)
            by_identity[identity] = Device(name, None if gpu is None else number, [])
            place = _make_device_sort_key(key, number)
            placed[owner.report, owner.pid].append((place, by_identity[identity]))
        by_identity[identity].found.append((report, key))
    return {
        owner: [device for _, device in sorted(task_devices, key=lambda item: item[0])]
        for owner, task_devices in placed.items()
    }


def _make_device_sort_key(key: DeviceKey, number: int) -> tuple:
    """Return the sort key of a device in its task. number: number of its GPU on the machine."""
    return DEVICE_KINDS.index(key.kind), number, make_natural_key(key.name), key.number


class GpuNumbers:
    """Numbers of physical GPUs on their machines, for the names of rows.

    With CUDA_VISIBLE_DEVICES, the same CUDA ordinal means another GPU in every process. If the
    report identifies the GPU, its number on the machine is used, otherwise the ordinal.
    """

    def __init__(self, infos: list[ReportInfo], machines: list[int]) -> None:
        self.infos, self.machines = infos, machines
        #: Identity of each GPU with work -> the processes that use it.
        self._users: dict[tuple, set[ProcessKey]] = defaultdict(set)
        keys: dict[int, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
        for info, machine in zip(infos, machines, strict=True):
            for gpu in info.gpus.values():
                if gpu.key:
                    keys[machine][gpu.key].add(gpu.number)
        self._numbers = {machine: _number_gpus(gpus) for machine, gpus in keys.items()}

    def find_number(self, report: int, key: ObjectKey) -> int:
        """Return the number of the GPU on which a stream or queue runs; 0 for a host thread.
        report: its report. key: of the object.
        """
        if isinstance(key, QueueKey):
            return key.gpu if key.gpu < 0 else self.find_gpu_number(report, key.gpu)
        if not isinstance(key, StreamKey):
            return 0
        machine, info = self.machines[report], self.infos[report]
        number = info.find_gpu(key.pid, key.device)
        gpu = None if number is None else info.gpus.get(number)
        if gpu is not None:
            self._users[machine, gpu.key or gpu.number].add((report, key.pid))
            return self.find_gpu_number(report, gpu.number)
        self._users[machine, report, key.pid, key.device].add((report, key.pid))
        return key.device

    def identify(self, report: int, key: DeviceKey) -> tuple:
        """Return a key that identifies a GPU among all GPUs of the trace. key: the GPU in this
        report.
        """
        return identify_gpu(self.infos, self.machines, report, key)

    def find_gpu_number(self, report: int, number: int) -> int:
        """Return the number that a GPU has on its machine. number: of the GPU in the report."""
        gpu = self.infos[report].gpus.get(number)
        gpu_key = gpu is not None and gpu.key
        return self._numbers[self.machines[report]][gpu.key] if gpu_key else number

    @property
    def used(self) -> int:
        """Return the number of GPUs with work. GPUs that are known only by CUDA ordinal count once
        per process.
        """
        return len(self._users)

    def list_shared(self) -> Iterator[tuple[int, list[ProcessKey]]]:
        """Yield the number of each GPU that several processes share, and these processes."""
        for (machine, gpu, *_), users in self._users.items():
            if len(users) > 1:
                yield self._numbers.get(machine, {}).get(gpu, gpu), sorted(users)


def _number_gpus(gpus: dict[str, set[int]]) -> dict[str, int]:
    """Return the number of each GPU of a machine: as reported, if all reports agree and numbers are
    unique; otherwise by key.
    """
    reported = {key: next(iter(numbers)) for key, numbers in gpus.items() if len(numbers) == 1}
    if len(reported) == len(gpus) and len(set(reported.values())) == len(gpus):
        return reported
    return {key: number for number, key in enumerate(sorted(gpus))}
