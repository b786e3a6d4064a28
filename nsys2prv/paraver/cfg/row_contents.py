"""Collect the contents of each row of a trace: what is found of its threads, and of its tasks."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nsys2prv.paraver.cfg.contents import (
    COLON,
    DIGITS,
    EVENT,
    FIRST_TYPE,
    LONGEST_LINE,
    NEWLINE,
    STATE,
    STATE_VALUE,
    VALUE_BITS,
    ZERO,
    Contents,
    opened,
    scan_contents,
    small_values,
    whole_lines,
)
from nsys2prv.paraver.check import Findings
from nsys2prv.paraver.check.header import Header, read_header

#: Fields of a record: the application, the task and the thread.
OBJECT = (2, 3, 4)
#: Bits of an event type or state above those of its value, and digits of an object's number.
TYPE_BITS, OBJECT_DIGITS = 32, 5


def scan_rows(path: Path) -> dict[str, list[Contents]]:
    """Return level (`thread`, `task`) -> contents of each of its rows, in Paraver's order; empty for
    a trace whose header is damaged. Lines count for every row. Raises Nsys2prvError as
    :func:`scan_contents` does.
    """
    whole = scan_contents(path)
    with opened(path) as file:
        header = read_header(
            file.readline(LONGEST_LINE).decode("latin-1").rstrip("\r\n"), path.name, Findings()
        )
        if header is None:
            return {}
        empty = np.empty(0, np.int64)
        pairs, states = empty, empty
        for block in whole_lines(file, path):
            for_pairs, for_states = _of_block(block, header)
            pairs = np.unique(np.concatenate((pairs, for_pairs)))
            states = np.unique(np.concatenate((states, for_states)))
    tasks = np.repeat(np.arange(len(header.tasks)), [threads for threads, _ in header.tasks])
    return {
        "thread": _by_row(pairs, states, np.arange(header.threads), whole),
        "task": _by_row(pairs, states, tasks, whole),
    }


def _by_row(
    pairs: np.ndarray, states: np.ndarray, groups: np.ndarray, whole: Contents
) -> list[Contents]:
    """Return the contents of each group of threads; `groups` gives that of each thread."""
    count = int(groups[-1]) + 1 if len(groups) else 0
    values: list[set[tuple[int, int]]] = [set() for _ in range(count)]
    found_states: list[set[int]] = [set() for _ in range(count)]
    low = (1 << VALUE_BITS) - 1
    for group, code, value in zip(
        groups[pairs >> (TYPE_BITS + VALUE_BITS)].tolist(),
        (pairs >> VALUE_BITS & ((1 << TYPE_BITS) - 1)).tolist(),
        (pairs & low).tolist(),
        strict=True,
    ):
        values[group].add((code, value))
    for group, state in zip(
        groups[states >> TYPE_BITS].tolist(),
        (states & ((1 << TYPE_BITS) - 1)).tolist(),
        strict=True,
    ):
        found_states[group].add(state)
    return [
        Contents(
            frozenset(code for code, _ in held),
            frozenset(code for code, value in held if value),
            whole.tags,
            frozenset(state),
            frozenset(held),
        )
        for held, state in zip(values, found_states, strict=True)
    ]


def _of_block(block: np.ndarray, header: Header) -> tuple[np.ndarray, np.ndarray]:
    """Return distinct threads above the TYPE_BITS and VALUE_BITS of their event types and values,
    and above the TYPE_BITS of their states.
    """
    ends = np.flatnonzero((block == COLON) | (block == NEWLINE))
    last = np.flatnonzero(block[ends] == NEWLINE)
    first = np.concatenate(([0], last[:-1] + 1))
    kinds = block[np.concatenate(([0], ends[last[:-1]] + 1))]
    fields = last - first + 1
    records = np.flatnonzero((kinds == STATE) & (fields > STATE_VALUE))
    rows = _rows(block, ends, first[records], header)
    numbers = _numbers(block, ends, first[records] + STATE_VALUE, DIGITS)
    sound = (rows >= 0) & (numbers >= 0) & (numbers < 1 << TYPE_BITS)
    states = np.unique(rows[sound] << TYPE_BITS | numbers[sound])
    records = np.flatnonzero((kinds == EVENT) & (fields > FIRST_TYPE + 1))
    rows = _rows(block, ends, first[records], header)
    pairs = (fields[records] - FIRST_TYPE) // 2
    before = np.cumsum(pairs) - pairs
    places = np.repeat(first[records] + FIRST_TYPE - 2 * before, pairs) + 2 * np.arange(pairs.sum())
    rows = np.repeat(rows, pairs)
    numbers = _numbers(block, ends, places, DIGITS)
    values = small_values(block, ends[places] + 1, ends[places + 1])
    sound = (rows >= 0) & (numbers >= 0) & (numbers < 1 << TYPE_BITS)
    keys = (rows << TYPE_BITS | numbers) << VALUE_BITS | values
    return np.unique(keys[sound]), states


def _rows(block: np.ndarray, ends: np.ndarray, first: np.ndarray, header: Header) -> np.ndarray:
    """Return the thread of each record, in the order of rows; -1 where there is none such."""
    application, task, thread = (
        _numbers(block, ends, first + field, OBJECT_DIGITS) for field in OBJECT
    )
    first_task, tasks, first_row, threads, *_ = header.tables
    known = (application > 0) & (application <= len(tasks)) & (task > 0) & (thread > 0)
    application = np.where(known, application, 1) - 1
    known &= task <= tasks[application]
    task = np.where(known, first_task[application] + task - 1, 0)
    known &= thread <= threads[task]
    return np.where(known, first_row[task] + thread - 1, -1)


def _numbers(block: np.ndarray, ends: np.ndarray, places: np.ndarray, digits: int) -> np.ndarray:
    """Return the number of each of these fields (i64); -1 for one that is none or has more digits."""
    begins = np.where(places > 0, ends[places - 1] + 1, 0)
    widths = ends[places] - begins
    sound = (widths > 0) & (widths <= digits)
    numbers = np.zeros(len(places), np.int64)
    for place in range(digits):
        digit = block.take(begins + place, mode="clip") - np.uint8(ZERO)
        inside = place < widths
        numbers = np.where(inside, numbers * 10 + digit, numbers)
        sound &= ~inside | (digit < 10)
    return np.where(sound, numbers, -1)
