"""Represent a Paraver trace as :mod:`tools.trace_reader` reads it. Times are in ns."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

#: Task and thread, both from 1.
Row = tuple[int, int]


class Interval(NamedTuple):
    """A range of one event type.

    others: the remaining type -> value pairs of the record that began it.
    """

    row: Row
    value: int
    begin: int
    end: int
    others: dict[int, int]


class Comm(NamedTuple):
    """A line from one row to another."""

    sender: Row
    send: int
    receiver: Row
    receive: int
    size: int
    tag: int


class State(NamedTuple):
    row: Row
    begin: int
    end: int
    value: int


class Sample(NamedTuple):
    """A record of plain numbers, by type."""

    row: Row
    time: int
    numbers: dict[int, int]


class Violations(Counter[str]):
    """Counts of violations; `first` has the place of the first of each."""

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[str, str] = {}

    def add(self, what: str, where: object) -> None:
        """Count a violation."""
        self[what] += 1
        self.first.setdefault(what, str(where)[:200])

    def __str__(self) -> str:
        return (
            "\n".join(
                f"{count} x {what}; first: {self.first[what]}" for what, count in self.items()
            )
            or "none"
        )


@dataclass
class Labels:
    """The contents of a .pcf: type -> label, type -> value -> label (absent for plain numbers),
    state -> label, type -> decimals.
    """

    types: dict[int, str] = field(default_factory=dict)
    values: dict[int, dict[int, str]] = field(default_factory=dict)
    states: dict[int, str] | None = None
    precision: dict[int, int] = field(default_factory=dict)


@dataclass
class Trace:
    """A trace as read.

    nodes: the CPUs of each node. tasks: (threads, node from 1) of each task. names: level -> names
    of its objects. deepest: type -> how many of its ranges were open at once on one row. samples:
    records of nothing but plain numbers. owners: thread id -> process id, of threads of helpers,
    which are in the tasks of their ranks.
    """

    duration: int = 0
    owners: dict[int, int] = field(default_factory=dict)
    nodes: list[int] = field(default_factory=list)
    tasks: list[tuple[int, int]] = field(default_factory=list)
    labels: Labels = field(default_factory=Labels)
    names: dict[str, list[str]] = field(default_factory=dict)
    events: dict[int, list[Interval]] = field(default_factory=lambda: defaultdict(list))
    comms: list[Comm] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    deepest: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    lines: int = 0
    violations: Violations = field(default_factory=Violations)

    def list_intervals(self, code: int) -> list[Interval]:
        """Return the ranges of a type, in the order in which they end."""
        return self.events.get(code, [])

    def get_label(self, code: int, value: int) -> str:
        """Return the label of a value, or its digits if it has none."""
        return self.labels.values.get(code, {}).get(value, str(value))

    def find_rows(self, text: str) -> list[Row]:
        """Return the rows whose names contain a text, wherever they are."""
        rows = [
            (task, thread)
            for task, (threads, _) in enumerate(self.tasks, 1)
            for thread in range(1, threads + 1)
        ]
        return [row for row in rows if text in self.get_row_name(row)]

    def get_row_name(self, row: Row) -> str:
        """Return the name of a row in the .row file."""
        before = sum(threads for threads, _ in self.tasks[: row[0] - 1])
        return self.names["THREAD"][before + row[1] - 1]

    def find_process(self, row: Row) -> int:
        """Return the process id of a row: its task's, or of a helper's thread its owner's."""
        name = self.get_row_name(row)
        if " helper " in name:
            return self.owners[int(name.split()[-1])]
        return int(self.get_task_name(row).split()[-1])

    def get_task_name(self, row: Row) -> str:
        """Return the name of a row's task."""
        return self.names["TASK"][row[0] - 1]
