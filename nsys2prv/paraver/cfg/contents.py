"""Collect the event types, small values of them, communication tags and states of a trace, and of
each of its rows, in one pass over its lines.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nsys2prv._util.errors import Nsys2prvError
from nsys2prv.paraver.cfg.fits import LARGE, Contents
from nsys2prv.paraver.check import CheckFindings
from nsys2prv.paraver.check.header import MAGIC, Objects, read_header
from nsys2prv.paraver.check.lines import BlockReporter, check_lines, split_lines, split_opening
from nsys2prv.paraver.check.records import STATE_VALUE

#: Bits that hold a value up to LARGE, and the place of a row's number above them and an event type
#: or state.
VALUE_BITS, ROW = 7, 39
LAST_TYPE = 2**32 - 1
#: Place of the tag among the fields of a communication.
TAG = 14
#: Numbers that are collected before they are brought together.
MANY = 1_000_000


class TraceContents:
    """Contents of a .prv or .prv.gz, of all of it and of each of its rows. Raises Nsys2prvError, in
    one line, for anything else.
    """

    def __init__(self, path: Path) -> None:
        if path.exists() and not path.is_file():
            raise Nsys2prvError(f"{path}: is not a regular file; give the name of a trace")
        findings = CheckFindings(path.name)
        self._pairs, self._states, self._tags = _Distinct(), _Distinct(), _Distinct()
        opening, blocks = split_opening(path, findings)
        _check_whole(path, findings)
        if not opening.startswith(MAGIC.encode()):
            raise Nsys2prvError(f"{path}: not a Paraver trace: it does not begin with {MAGIC}")
        header = read_header(opening.decode("latin-1"), CheckFindings(path.name))
        objects = Objects(header) if header else None
        tasks = header.tasks if header else []
        #: Task of each thread; empty where the header is damaged.
        self._tasks = np.repeat(np.arange(len(tasks)), [threads for threads, _ in tasks])
        for block in blocks:
            self._add(BlockReporter(split_lines(block), 2, CheckFindings(path.name)), objects)
        _check_whole(path, findings)

    def _add(self, place: BlockReporter, objects: Objects | None) -> None:
        """Add the lines of a block; the first row is 1, and 0 stands for an unknown one."""
        sound, first, numbers = check_lines(place, 0), place.lines.first, place.lines.numbers
        rows_of_states, rows_of_events = (
            objects.rows(place, lines, 1) + 1 if objects else np.zeros(len(lines), np.int64)
            for lines in (sound.states, sound.events)
        )
        self._tags.add(numbers[first[sound.comms] + TAG])
        states = numbers[first[sound.states] + STATE_VALUE]
        self._states.add(
            (rows_of_states << ROW | states << VALUE_BITS)[_mask_representable(states)]
        )
        record, at = place.lines.find_pairs(sound.events)
        types, values = numbers[at], numbers[at + 1]
        values = np.where((values < 0) | (values > LARGE), LARGE, values)
        keys = rows_of_events[record] << ROW | types << VALUE_BITS | values
        self._pairs.add(keys[_mask_representable(types)])

    @property
    def whole(self) -> Contents:
        """All contents."""
        return self._group_contents(np.zeros(len(self._tasks) + 1, np.int64), 1)[0]

    @property
    def rows(self) -> dict[str, list[Contents]]:
        """Level (`thread`, `task`) -> contents of each of its rows, in Paraver's order; empty for a
        trace whose header is damaged. Lines count for every row.
        """
        threads = len(self._tasks)
        if not threads:
            return {}
        return {
            "thread": self._group_contents(np.arange(-1, threads), threads),
            "task": self._group_contents(np.append(-1, self._tasks), int(self._tasks[-1]) + 1),
        }

    def _group_contents(self, groups: np.ndarray, count: int) -> list[Contents]:
        """Return the contents of each group of rows. groups: that of unknown rows, then that of
        each row; -1 for none.
        """
        pairs = [set[tuple[int, int]]() for _ in range(count)]
        states = [set[tuple[int, int]]() for _ in range(count)]
        for numbers, distinct in ((pairs, self._pairs), (states, self._states)):
            keys = distinct.values()
            keys = np.unique(groups[keys >> ROW] << ROW | keys & (1 << ROW) - 1)
            keys = keys[keys >= 0]
            for group, code, value in zip(
                (keys >> ROW).tolist(),
                (keys >> VALUE_BITS & LAST_TYPE).tolist(),
                (keys & (1 << VALUE_BITS) - 1).tolist(),
                strict=True,
            ):
                numbers[group].add((code, value))
        tags = frozenset(self._tags.values().tolist())
        return [
            Contents(
                frozenset(code for code, _ in of_types),
                frozenset(code for code, value in of_types if value),
                tags,
                frozenset(state for state, _ in of_states),
                frozenset(of_types),
            )
            for of_types, of_states in zip(pairs, states, strict=True)
        ]


def _check_whole(path: Path, findings: CheckFindings) -> None:
    """Raise Nsys2prvError for a compressed file that was found to be damaged."""
    if damaged := findings.by_rule.get("damaged-gzip"):
        raise Nsys2prvError(f"{path}: the compressed file is damaged: {damaged.examples[0]}")


def _mask_representable(numbers: np.ndarray) -> np.ndarray:
    """Return which numbers of event types or states Paraver can keep."""
    return (numbers >= 0) & (numbers <= LAST_TYPE)


class _Distinct:
    """Collects distinct numbers."""

    def __init__(self) -> None:
        self._known, self._new, self._count = np.empty(0, np.int64), list[np.ndarray](), 0

    def add(self, numbers: np.ndarray) -> None:
        self._new.append(np.unique(numbers))
        self._count += len(self._new[-1])
        if self._count > max(MANY, len(self._known)):
            self.values()

    def values(self) -> np.ndarray:
        """Return them, ascending (i64)."""
        self._known = np.unique(np.concatenate((self._known, *self._new)))
        self._new, self._count = [], 0
        return self._known
