"""The objects of a trace: nodes, and one application of tasks and threads. Every thread has a CPU
of its own on its node.
"""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

from msgspec import Struct

from nsys2prv.paraver.pcf import clean_label


class Task(Struct, frozen=True):
    """A task of the application."""

    #: For the .row file.
    name: str
    #: Index of its node, from 0.
    node: int
    #: Names of its threads.
    threads: tuple[str, ...]


class ObjectTree(Struct, frozen=True, dict=True):
    """All objects; threads are numbered 0.. over all tasks in order."""

    #: Names of the nodes.
    nodes: tuple[str, ...]
    #: In Paraver's order.
    tasks: tuple[Task, ...]
    #: Paraver counts threads and CPUs in 16 bits.
    LIMIT: ClassVar[int] = 65_535

    @cached_property
    def threads(self) -> int:
        return sum(len(task.threads) for task in self.tasks)

    @cached_property
    def cpus_per_node(self) -> list[int]:
        counts = [0] * len(self.nodes)
        for task in self.tasks:
            counts[task.node] += len(task.threads)
        return counts

    @cached_property
    def addresses(self) -> list[str]:
        """Return `cpu:application:task:thread` of every thread, as records name it; CPUs are
        numbered over all nodes from 1.
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

    def header(self, date: str, duration: int) -> str:
        """Return the first line of the .prv: `date` as dd/mm/yyyy at hh:mm, `duration` in ns."""
        cpus = ",".join(map(str, self.cpus_per_node))
        tasks = ",".join(f"{len(task.threads)}:{task.node + 1}" for task in self.tasks)
        return f"#Paraver ({date}):{duration}_ns:{len(self.nodes)}({cpus}):1:{len(self.tasks)}({tasks})\n"

    def format_row_file(self) -> str:
        """Return the text of the .row file."""
        nodes = zip(self.nodes, self.cpus_per_node, strict=True)
        levels = {
            "CPU": [f"{cpu}.{name}" for name, count in nodes for cpu in range(1, count + 1)],
            "NODE": list(self.nodes),
            "APPL": ["Application"],
            "TASK": [task.name for task in self.tasks],
            "THREAD": [name for task in self.tasks for name in task.threads],
        }
        sections = (
            f"LEVEL {level} SIZE {len(names)}\n"
            + "".join(f"{clean_label(name).replace('LEVEL ', 'LEVEL_', 1)}\n" for name in names)
            for level, names in levels.items()
        )
        return "\n".join(sections)


#: Stands for the pid of the task that a host gets for the rows of its devices.
NO_PROCESS = 0


class RankedProcess(Struct, frozen=True):
    """A process in its place: report index, globalPid, rank (None where nothing tells)."""

    #: Index of the report.
    report: int
    #: globalPid.
    pid: int
    #: None where nothing tells.
    rank: int | None
