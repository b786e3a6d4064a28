"""Check the first line of a .prv: the objects of the trace, its CPUs and its duration."""

from __future__ import annotations

import re
from functools import cached_property

import numpy as np
from msgspec import Struct

from nsys2prv.paraver.check import CheckFindings
from nsys2prv.paraver.check.lines import BlockReporter

MAGIC = "#Paraver"
#: Paraver counts objects in 16 bits.
MOST_OBJECTS = 65_535
#: Date, duration, unit, nodes, their CPUs, number of applications, these. (Nodes that begin with 0
#: are none for Paraver.)
_HEAD = re.compile(
    r"#Paraver \(([^)]*)\):\s*(-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)([^:]*):"
    r"\s*(0|[1-9]\d*)(?:\(([^)]*)\))?:\s*(\d+):(.*)",
    re.DOTALL,
)
_APPLICATION = re.compile(r"\s*(\d+):?\(([^)]*)\)?")
_COMMUNICATORS = re.compile(r"[,:]\s*(\d+)\s*")
_DATE = re.compile(
    r"(\d{1,2}/(\d{1,2}|[A-Z][a-z]{2})/\d{4}|\d{4}/(\d{1,2}|[A-Z][a-z]{2})/\d{1,2}|[A-Z][a-z]{2}/\d{1,2}/\d{4})"
    r"( (at )?\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?)?"
)


class Header(Struct, frozen=True, dict=True):
    """The objects of a trace."""

    #: As written.
    date: str
    #: In the trace's unit.
    duration: float
    #: `ns` or `us`.
    unit: str
    #: The CPUs of each.
    nodes: tuple[int, ...]
    #: For each, (threads, node from 1) of its tasks.
    applications: tuple[tuple[tuple[int, int], ...], ...]
    #: Lines of them behind the header.
    communicators: int

    @cached_property
    def tasks(self) -> list[tuple[int, int]]:
        return [task for tasks in self.applications for task in tasks]

    @cached_property
    def threads(self) -> int:
        return sum(threads for threads, _ in self.tasks)

    @property
    def cpus(self) -> int:
        return sum(self.nodes)

    def sizes(self) -> dict[str, int]:
        """Return level of the .row file -> its objects."""
        return {
            "WORKLOAD": 1,
            "APPL": len(self.applications),
            "TASK": len(self.tasks),
            "THREAD": self.threads,
            "SYSTEM": 1,
            "NODE": len(self.nodes),
            "CPU": self.cpus,
        }

    @cached_property
    def tables(self) -> tuple[np.ndarray, ...]:
        """First task and number of tasks of each application; first row, number of threads, first
        and last CPU of each task (i64).
        """
        counts = np.array([len(tasks) for tasks in self.applications], np.int64)
        threads = np.array([threads for threads, _ in self.tasks], np.int64)
        bounds = np.concatenate(([0], np.cumsum(np.array(self.nodes, np.int64))))
        nodes = np.array(
            [node if 1 <= node <= len(self.nodes) else 0 for _, node in self.tasks], np.int64
        )
        first = np.where(nodes > 0, bounds[nodes - 1] + 1, 1)
        return (
            np.cumsum(counts) - counts,
            counts,
            np.cumsum(threads) - threads,
            threads,
            first,
            np.where(nodes > 0, bounds[nodes], 0),
        )


def read_header(line: str, findings: CheckFindings) -> Header | None:
    """Return the header, or None where what follows cannot be understood without it; what is wrong
    goes to the findings.
    """
    if line.split(" ", 1)[0] != MAGIC:
        findings.add("not-a-trace", 1, line)
        return None
    match = _HEAD.fullmatch(line)
    if match is None:
        findings.add("header-syntax", 1, line)
        return None
    date, duration, unit, count, cpus, applications, rest = match.groups()
    try:
        tasks, communicators = _read_applications(rest, int(applications), findings)
        nodes = _read_nodes(int(count), cpus, findings)
        header = Header(date, float(duration), unit, nodes, tasks, communicators)
    except ValueError as error:
        findings.add("header-syntax", 1, error)
        return None
    _judge_header(header, findings)
    return None if max(header.threads, header.cpus, len(header.tasks)) > MOST_OBJECTS else header


def _read_nodes(count: int, cpus: str | None, findings: CheckFindings) -> tuple[int, ...]:
    if cpus is None:
        if count > MOST_OBJECTS:
            findings.add("too-many-objects", 1, f"{count} nodes")
            raise ValueError(f"{count} nodes")
        return (1,) * count
    numbers = [_read_number(text, "CPUs of a node") for text in cpus.split(",")] if count else []
    if len(numbers) < count:
        raise ValueError(f"{count} nodes, but the CPUs of {len(numbers)}")
    if len(numbers) > count:
        example = f"{count} nodes, the CPUs of {len(numbers)}"
        findings.add("nodes-beyond", 1, example, count=len(numbers) - count)
    return tuple(numbers[:count])


def _read_applications(
    rest: str, count: int, findings: CheckFindings
) -> tuple[tuple[tuple[tuple[int, int], ...], ...], int]:
    """Return tasks of each application, and the number of communicators."""
    if not count:
        raise ValueError("no application")
    applications = []
    for number in range(1, count + 1):
        if number > 1:
            if rest[:1] not in (",", ":"):
                raise ValueError(f"{count} applications, but the tasks of {number - 1}")
            rest = rest[1:]
        match = _APPLICATION.match(rest)
        if match is None:
            raise ValueError(f"application {number} is not tasks(threads:node,...)")
        rest = rest[match.end() :]
        announced = int(match[1])
        tasks = [_read_task(text) for text in match[2].split(",")]
        if not 0 < announced <= len(tasks):
            raise ValueError(
                f"application {number} announces {announced} tasks and has {len(tasks)}"
            )
        if announced < len(tasks):
            example = f"application {number}: {announced} announced, {len(tasks)} listed"
            findings.add("tasks-beyond", 1, example)
        applications.append(tuple(tasks[:announced]))
    if not rest:
        return tuple(applications), 0
    communicators = _COMMUNICATORS.fullmatch(rest)
    if communicators is None:
        raise ValueError(f"behind the applications stands {rest!r}")
    return tuple(applications), int(communicators[1])


def _read_task(text: str) -> tuple[int, int]:
    threads, colon, node = text.partition(":")
    if not colon:
        raise ValueError(f"a task is {text!r}, not threads:node")
    count = _read_number(threads, "threads of a task")
    if not count:
        raise ValueError("a task without threads")
    return count, _read_number(node, "node of a task")


def _read_number(text: str, noun: str) -> int:
    if not re.fullmatch(r"\s*\d{1,18}\s*", text):
        raise ValueError(f"{noun}: {text!r} is no number")
    return int(text)


def _judge_header(header: Header, findings: CheckFindings) -> None:
    if not _DATE.fullmatch(header.date):
        findings.add("date", 1, header.date or "empty")
    if not header.unit:
        findings.add("no-unit", 1)
    elif header.unit not in ("_ns", "_ms", "_us"):
        findings.add("unit", 1, header.unit)
    for noun, count in (
        ("applications", len(header.applications)),
        ("tasks", len(header.tasks)),
        ("threads", header.threads),
        ("nodes", len(header.nodes)),
        ("CPUs", header.cpus),
    ):
        if count > MOST_OBJECTS:
            findings.add("too-many-objects", 1, f"{count} {noun}")
    if not header.nodes:
        findings.add("no-resources", 1)
        return
    for number, cpus in enumerate(header.nodes, 1):
        if not cpus:
            findings.add("node-without-cpus", 1, f"node {number}")
    for number, (_, node) in enumerate(header.tasks, 1):
        if not node:
            findings.add("task-on-node-0", 1, f"task {number}")
        elif node > len(header.nodes):
            example = f"task {number} on node {node} of {len(header.nodes)}"
            findings.add("task-on-absent-node", 1, example)


class Objects:
    """Numbers the rows (threads over all tasks, from 0) of a trace, and keeps what its records say
    of CPUs.
    """

    def __init__(self, header: Header) -> None:
        self._tables = header.tables
        self._cpus = header.cpus
        self._row_of_cpu = np.full(header.cpus + 1, -1, np.int64)
        self.with_cpu = 0

    def rows(self, place: BlockReporter, lines: np.ndarray, at: int) -> np.ndarray:
        """Return the row of `cpu:appl:task:thread` from this field of each line on; -1 where
        Paraver would skip the record.
        """
        numbers, first = place.lines.numbers, place.lines.first[lines] + at
        cpu, appl, task, thread = (numbers[first + field] for field in range(4))
        first_task, tasks, first_row, threads, first_cpu, last_cpu = self._tables
        wraps = (appl > MOST_OBJECTS) | (task > MOST_OBJECTS) | (thread > MOST_OBJECTS)
        sound = (appl >= 1) & (appl <= len(tasks))
        own = np.where(sound, appl - 1, 0)
        sound &= (task >= 1) & (task <= tasks[own])
        own = np.where(sound, first_task[own] + task - 1, 0)
        sound &= (thread >= 1) & (thread <= threads[own])
        rows = np.where(sound, first_row[own] + thread - 1, -1)
        if not sound.all():
            place.report("object-wraps", lines[wraps])
            place.report("object-absent", lines[~sound & ~wraps])
        self.with_cpu += int(np.count_nonzero(cpu))
        on_node = (cpu >= first_cpu[own]) & (cpu <= last_cpu[own])
        elsewhere = (cpu != 0) & ~on_node
        absent = (cpu < 0) | (cpu > self._cpus)
        place.report("cpu-absent", lines[absent])
        place.report("cpu-on-other-node", lines[(rows >= 0) & elsewhere & ~absent])
        used = (rows >= 0) & on_node
        self._check_shared(place, lines[used], cpu[used], rows[used])
        rows[elsewhere] = -1
        return rows

    def _check_shared(
        self, place: BlockReporter, lines: np.ndarray, cpu: np.ndarray, rows: np.ndarray
    ) -> None:
        """Report CPUs that several rows use."""
        new = self._row_of_cpu[cpu] < 0
        self._row_of_cpu[cpu[new]] = rows[new]
        place.report("cpu-shared", lines[self._row_of_cpu[cpu] != rows])
