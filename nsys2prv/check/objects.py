"""The objects and CPUs that records name."""

from __future__ import annotations

import numpy as np

from nsys2prv.check.header import MOST_OBJECTS, Header
from nsys2prv.check.place import Place


class Objects:
    """Numbers the rows (threads over all tasks, from 0) of a trace, and keeps what its records say of CPUs."""

    def __init__(self, header: Header) -> None:
        self._tables = header.tables
        self._cpus = header.cpus
        self._row_of_cpu = np.full(header.cpus + 1, -1, np.int64)
        self.with_cpu = 0

    def rows(self, place: Place, lines: np.ndarray, at: int) -> np.ndarray:
        """The row of `cpu:appl:task:thread` from this field of each line on; -1 where Paraver would skip the record."""
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
        self._check_cpus(place, lines, cpu, rows, (cpu >= first_cpu[own]) & (cpu <= last_cpu[own]))
        rows[(cpu != 0) & ~((cpu >= first_cpu[own]) & (cpu <= last_cpu[own]))] = -1
        return rows

    def _check_cpus(self, place: Place, lines: np.ndarray, cpu: np.ndarray, rows: np.ndarray, on_node: np.ndarray) -> None:
        absent = (cpu < 0) | (cpu > self._cpus)
        place.report("cpu-absent", lines[absent])
        place.report("cpu-on-other-node", lines[(rows >= 0) & (cpu != 0) & ~on_node & ~absent])
        used = (rows >= 0) & on_node
        cpu, rows = cpu[used], rows[used]
        new = self._row_of_cpu[cpu] < 0
        self._row_of_cpu[cpu[new]] = rows[new]
        place.report("cpu-shared", lines[used][self._row_of_cpu[cpu] != rows])
