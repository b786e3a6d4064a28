"""Read call stacks: the program locations of calls and samples.

Callers are numbered as in Extrae's traces; 1 is the innermost. Only functions of the program count,
unless there are none. ``catalogue/frames.yaml`` assigns frames to owners. No table of stacks
contains a file or a line. In real exports, the frames of a stack are in any order, depth 0 is the
innermost, and a frame without a name has its address as name. Stacks are numbered from 1, and 0
means none; but CUDA API calls in exports of nsys 2022 count from 0.
"""

from __future__ import annotations

import re
import threading
from functools import cache
from itertools import chain, islice
from weakref import proxy

import numpy as np
import polars as pl

from nsys2prv._util.budget import DISTINCT_STACKS, LEAST_NAMES, NAMES_PER_BYTE
from nsys2prv._util.columns import (
    ABSENT,
    cut_texts,
    factorize,
    factorize_together,
    find_bounds,
    find_places,
    mask_changes,
    measure_texts,
    take_rows,
)
from nsys2prv._util.files import load_shipped_file
from nsys2prv.events.catalogue import CALLER_LEVELS, CALLERS, load_catalogue, map_labels
from nsys2prv.events.extraction import Extraction, Numbering
from nsys2prv.events.kind import Rows
from nsys2prv.export.database import Database
from nsys2prv.export.source import FRAME_COLUMNS, NULL, StackRows

CUDA_CALLS, CUDA_STACKS = "CUPTI_ACTIVITY_KIND_RUNTIME", "CUDA_CALLCHAINS"
#: Number of calls from which the numbering of stacks is recognized.
LOOKED_AT = 200
#: Column of calls with the number of their stack.
CHAIN = "callchainId"
#: Behind the module of a frame without a name.
NO_SYMBOLS = " (no symbols)"
#: Between the functions of a folded stack.
SEPARATOR = ";"
#: Layouts of events with stacks: samples are the last two.
STACK_LAYOUTS = ("cuda_api", "osrt", "pthread", "syscalls", "cpu_sample", "cpu_sample_stack")
#: Facts: the stack of each call and sample that has one, and the texts of stacks.
STACKS, STACK_TEXTS = "stacks", "stack_texts"
PROGRAM, DRIVER, SYSTEM = "the program", "the CUDA driver", "the system"
LIBRARIES = ("a library", "MPI", "a CUDA library")
#: Owners whose functions are callers if no function of the program is known: first functions with
#: names, then others, finally libraries by their names alone.
CALLERS_TOO = ((LIBRARIES, True), (("the interpreter",), True), (LIBRARIES, False))
#: Number of stacks before and after the stacks of some rows that are read too, for rows of other
#: kinds.
NEAR_STACKS = 64
#: The greatest number of a stack before which there is room for these.
GREATEST = np.iinfo(np.int64).max - NEAR_STACKS
#: The distinct stacks that each thread met last.
_MET = threading.local()
#: Text after a function's name without meaning, such as the hash that Rust adds.
_BEHIND = re.compile(r"(?:::h[0-9a-f]{16})?(?: const)?(?: \[clone .*\])?$")
_BARE_NAME = re.compile(r"(\w+)(?:<.*)?$", re.DOTALL)
_VERSION = re.compile(r"_v\d{4,}$")
_BRACKET_OR_BLANK = re.compile("[()<> ]")
_UNNAMED_SPACE = "(anonymous namespace)::"
#: A lambda belongs to the function that contains it; arguments of that function.
LAMBDA = "::{lambda"
_OUTER_ARGUMENTS = re.compile(r"\((?:[^()]|\([^()]*\))*\)(?: const)?::")


#: Folded stacks if there are none.
_NO_TEXTS = pl.Series(dtype=pl.String)


class DistinctStacks:
    """The distinct call stacks that a worker found in a table, each described once."""

    def __init__(self, depth: int, folds: bool, most_text: int) -> None:
        #: True if folded stacks are wanted.
        self._folds = folds
        #: Bytes of the texts of all folded stacks, about: functions with longer names are cut.
        self._text_left = most_text
        #: Keys of stacks, as in `Rows.stack`, and their ascending order.
        self.keys, self._order = np.zeros((2, 0), np.int64)
        #: Owner of the running code: values of the set `code_owner`.
        self.owners = np.zeros(0, np.int64)
        #: Callers by level: indices into `labels`; ABSENT after the last one.
        self.callers = np.zeros((0, CALLER_LEVELS), np.int64)
        self.labels = Numbering()
        #: Labels of callers without a name.
        self.unnamed: set[str] = set()
        #: Stack and label of all its frames that count as callers, also beyond these levels.
        self.labelled = np.zeros((2, 0), np.int64)
        #: Ids of function and module of this many frames, from the innermost; NULL if there is
        #: none.
        self.frames = np.zeros((0, depth, 2), np.int64)
        #: Folded stacks, if requested.
        self.texts = _NO_TEXTS
        #: Stacks that were read last, for several kinds: ids, ascending, all from `_low` to `_high`,
        #: and their numbers.
        self._ids, self._numbers = np.zeros((2, 0), np.int64)
        self._low, self._high = 0, -1
        #: False if the rows of the table are known not to be in the order of the ids.
        self._in_order: bool | None = None

    def find(self, ids: np.ndarray, table: str, extraction: Extraction) -> np.ndarray:
        """Return the number of the distinct stack for each of these stack ids in a table, or -1."""
        low, high = int(ids.min()), int(ids.max())
        if low < self._low or high > self._high:
            self._low, self._high = low - NEAR_STACKS, min(high, GREATEST) + NEAR_STACKS
            self._read(table, extraction)
        numbers = np.append(self._numbers, -1)[find_places(self._ids, ids)]
        if self._in_order is None and (numbers < 0).any():
            self._in_order = _is_ascending(extraction.database, table)
            if not self._in_order:
                self._read(table, extraction)
                return self.find(ids, table, extraction)
        return numbers

    def _read(self, table: str, extraction: Extraction) -> None:
        of_all = self._in_order is False
        read = extraction.database.read_stacks(table, self._low, self._high, of_all)
        self._ids, self._numbers = read.ids, self._number(read, extraction)

    def _number(self, read: StackRows, extraction: Extraction) -> np.ndarray:
        """Return the number of each stack that was read, and describe new stacks."""
        numbers = self._look_up(read.sums)
        new = np.flatnonzero(numbers < 0)
        if len(new):
            stack = np.repeat(np.where(numbers < 0, np.cumsum(numbers < 0) - 1, -1), read.lengths)
            kept = np.flatnonzero(stack >= 0)
            stack, (depth, symbol, module) = stack[kept], read.frames[kept].T
            order = np.lexsort((depth, stack))
            stack, depth, symbol, module = (one[order] for one in (stack, depth, symbol, module))
            (symbols, modules), code = factorize_together(symbol, module)
            frames = list(zip(*map(extraction.read_strings, (symbols, modules)), strict=True))
            self._describe(np.searchsorted(stack, np.arange(len(new))), stack, code, frames)
            first = np.full((len(new), *self.frames.shape[1:]), NULL)
            shown = np.flatnonzero((depth >= 0) & (depth < first.shape[1]))[::-1]
            first[stack[shown], depth[shown]] = np.stack([symbol[shown], module[shown]], axis=1)
            self.frames = np.concatenate([self.frames, first])
            self.keys = np.append(self.keys, read.sums[new])
            self._order = np.argsort(self.keys)
            numbers = self._look_up(read.sums)
        return numbers[read.codes]

    def _look_up(self, keys: np.ndarray) -> np.ndarray:
        """Return the numbers of the stacks with these keys, or -1 for new ones."""
        return np.append(self._order, -1)[find_places(self.keys[self._order], keys)]

    def _describe(
        self, first: np.ndarray, stack: np.ndarray, code: np.ndarray, frames: list[tuple[str, str]]
    ) -> None:
        """Describe new stacks. first: index of the innermost frame of each stack. stack: stack of
        each frame. code: index of each frame in `frames`, the distinct (function, module).
        """
        values = map_labels("code_owner")
        owner = [find_owner(name if _is_named(name) else "", path) for name, path in frames]
        value = np.array([values[one.lower()] for one in owner])[code]
        not_system = np.where(value == values[SYSTEM], len(value), np.arange(len(value)))
        innermost = np.minimum.reduceat(not_system, first)
        innermost = np.where(innermost == len(value), first, innermost)
        self.owners = np.append(self.owners, value[innermost])
        whose = np.array(owner)
        named = np.array([_is_named(name) for name, _ in frames])[code]
        counted = (whose == PROGRAM)[code]
        for others, are_named in CALLERS_TOO:
            also = np.isin(whose, others)[code] & (named if are_named else True)
            counted = counted | (also & ~np.logical_or.reduceat(counted, first)[stack])
        counts = np.flatnonzero(counted)
        callers = np.full((len(first), CALLER_LEVELS), ABSENT)
        if len(counts):
            used, place = np.unique(code[counts], return_inverse=True)
            texts = {one: label_frame(*frames[one]) for one in used.tolist()}
            self.unnamed |= {text for one, text in texts.items() if not _is_named(frames[one][0])}
            label = self.labels.number(texts.values())
            caller, label = stack[counts], label[place]
            new = mask_changes(caller, label)
            caller, label = caller[new], label[new]
            labelled = np.stack([caller + len(self.callers), label])
            self.labelled = np.concatenate([self.labelled, labelled], axis=1)
            level = np.arange(len(caller)) - np.searchsorted(caller, caller)
            caller, label, level = (one[level < CALLER_LEVELS] for one in (caller, label, level))
            callers[caller, level] = label
        self.callers = np.concatenate([self.callers, callers])
        if self._folds:
            texts = _fold(stack, code, frames, self._text_left)
            self._text_left -= measure_texts(texts)
            self.texts = pl.concat([self.texts, texts])


class Stacks:
    """The call stacks of a table, as one extraction uses them."""

    def __init__(self, extraction: Extraction, table: str, depth: int = 0) -> None:
        # A weak reference, because the extraction owns these stacks; a cycle would keep its data in
        # memory.
        self._extraction, self._table = proxy(extraction), table
        #: The export may have none.
        self._is_there = extraction.database.has(table, *FRAME_COLUMNS)
        self._shift = _find_shift(extraction, table) if self._is_there else 0
        self._distinct = _find_distinct(extraction, table, depth)
        #: For each distinct stack its callers, as in `Rows.columns`; ABSENT for stacks of other
        #: extractions.
        self._callers = np.zeros(0, np.int64)

    def find(self, ids: np.ndarray, least: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Find the rows that have stacks. Return their indices, and the numbers of their distinct
        stacks. ids: stack ids of the rows. least: lowest id of a stack.
        """
        rows = np.flatnonzero((ids >= least - self._shift) & self._is_there)
        if not len(rows):
            return rows, rows
        numbers = self._distinct.find(ids[rows] + self._shift, self._table, self._extraction)
        rows, numbers = rows[numbers >= 0], numbers[numbers >= 0]
        self._take(numbers)
        return rows, numbers

    def take_owners(self, numbers: np.ndarray) -> np.ndarray:
        """Return the owner of the running code of each row (a value of the set `code_owner`), from
        the innermost frame outside the system; ABSENT for rows without a stack. numbers: of stacks.
        """
        return np.append(self._distinct.owners, ABSENT)[numbers]

    def take_frames(self, numbers: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray]:
        """Return two arrays: the ids of function and module of each row's frame at this depth, or
        NULL. numbers: of stacks.
        """
        frames = np.vstack([self._distinct.frames[:, depth], np.full((1, 2), NULL)])[numbers]
        return frames[:, 0], frames[:, 1]

    def complete(self, rows: Rows, held: np.ndarray, numbers: np.ndarray) -> Rows:
        """Add the callers to rows. held, numbers: result of :meth:`find`."""
        if len(held):
            rows.columns[CALLERS] = np.zeros(len(rows.begin), np.int64)
            rows.columns[CALLERS][held] = self._callers[numbers]
        if self._extraction.settings.stacks and self._is_there:
            rows.stack = np.zeros(len(rows.begin), np.int64)
            rows.stack[held] = self._distinct.keys[numbers]
        return rows

    def _take(self, numbers: np.ndarray) -> None:
        """Keep the descriptions of new stacks with these numbers."""
        distinct = self._distinct
        lacking = np.full(len(distinct.keys) - len(self._callers), ABSENT)
        self._callers = np.append(self._callers, lacking)
        met = np.zeros(len(distinct.keys), bool)
        met[numbers] = True
        new = np.flatnonzero(met & (self._callers == ABSENT))
        stack, label = distinct.labelled
        used = np.unique(label[np.isin(stack, new)])
        names = np.full(len(distinct.labels) + 1, ABSENT)  # the last one is that of no caller
        if len(used):
            labels = list(distinct.labels)
            texts = [labels[one] for one in used.tolist()]
            names[used] = self._extraction.intern_names("caller", np.arange(len(used)), text=texts)
            self._extraction.unnamed |= distinct.unnamed
        callers = names[distinct.callers[new]]
        own = sum(map(len, self._extraction.callers)) + np.arange(len(new))
        self._callers[new] = np.where(callers[:, 0] == ABSENT, 0, own)
        self._extraction.callers.append(callers)
        if self._extraction.settings.stacks and len(new):
            texts = {"stack": distinct.keys[new], "text": distinct.texts.gather(new)}
            self._extraction.add_fact(STACK_TEXTS, texts)


def _find_distinct(extraction: Extraction, table: str, depth: int) -> DistinctStacks:
    """Return the distinct stacks of a table that this thread found in recent tasks of the report."""
    path, folds = extraction.database.path, extraction.settings.stacks
    of_report = vars(_MET)
    if of_report.get("report") != (report := (path, path.stat().st_mtime_ns)):
        of_report.clear()
        of_report["report"] = report
    key = f"{table}, {depth}, {folds}"
    if key not in of_report or len(of_report[key].keys) > DISTINCT_STACKS:
        most_text = max(LEAST_NAMES, NAMES_PER_BYTE * extraction.database.size)
        of_report[key] = DistinctStacks(depth, folds, most_text)
    return of_report[key]


def _fold(
    stack: np.ndarray, code: np.ndarray, frames: list[tuple[str, str]], allowed: int
) -> pl.Series:
    """Return the texts of stacks, outermost function first.

    stack: stack of each frame. code: index of each frame in `frames`, innermost first. Equal
    neighbors are merged, except the two outermost frames. allowed: approximate limit for the bytes
    of all texts.
    """
    distinct, numbers = np.unique([fold_frame(*one) for one in frames], return_inverse=True)
    stack, code = stack[::-1], numbers[code[::-1]]
    new = mask_changes(stack, code)
    new[1:] |= mask_changes(stack)[:-1]
    texts = cut_texts(pl.Series(distinct, dtype=pl.String).gather(code[new]), allowed)
    rows = pl.DataFrame({"stack": stack[new], "text": texts})
    rows = rows.group_by("stack", maintain_order=True).agg(pl.col("text").str.join(SEPARATOR))
    return rows["text"].reverse()


def open_stacks(extraction: Extraction, table: str, depth: int = 0) -> Stacks:
    """Return the call stacks of a table. depth: number of frames to keep, as in `Stacks.frames`."""
    return extraction.find_once(table, lambda: Stacks(extraction, table, depth))


def add_callers(extraction: Extraction, table: str, ids: np.ndarray, rows: Rows) -> Rows:
    """Add the callers to rows, if they are wanted. ids: ids of the rows' stacks in this table (NULL
    or 0 for none).
    """
    stacks = open_stacks(extraction, table)
    return stacks.complete(rows, *stacks.find(ids))


def name_lines(extraction: Extraction, files: np.ndarray, lines: np.ndarray) -> np.ndarray:
    """Name source lines as Extrae does: `120 (jacobi.f90)`. Return local indices of names of the
    set `caller_line`; ABSENT without a file (id of a string) or a line (from 1).
    """

    def make_texts(*distinct: np.ndarray) -> list[str]:
        names = map(take_file_name, extraction.read_strings(distinct[0]))
        return [f"{line} ({name})" for name, line in zip(names, distinct[1].tolist(), strict=True)]

    distinct, codes = factorize(files)
    has_name = np.array([bool(name) for name in extraction.read_strings(distinct)], bool)
    known = has_name[codes] & (lines > 0)
    return extraction.name_rows("caller_line", [files, lines], make_texts, known)


def name_sources(
    extraction: Extraction,
    name_set: str,
    files: np.ndarray,
    lines: np.ndarray,
    names: np.ndarray | None = None,
) -> np.ndarray:
    """Name source locations: `file:line`, or `name@file:line` with a name. Return local indices of
    names. Without a file, the name is used; ABSENT without both. files, names: ids of strings.
    """

    def make_texts(files: np.ndarray, lines: np.ndarray, *names: np.ndarray) -> list[str]:
        places = [
            f"{file}:{line}" if file and line > 0 else file
            for file, line in zip(extraction.read_strings(files), lines.tolist(), strict=True)
        ]
        if not names:
            return places
        pairs = zip(extraction.read_strings(*names), places, strict=True)
        return [f"{name}@{place}" if place else name for name, place in pairs]

    if names is None:
        return extraction.name_rows(name_set, [files, lines], make_texts, files >= 0)
    return extraction.name_rows(name_set, [files, lines, names], make_texts)


def set_stacks_aside(extraction: Extraction, rows: Rows) -> None:
    """Store the stack of each row as a fact, for analyses that need whole stacks."""
    if rows.stack is None:
        return
    held = np.flatnonzero(rows.stack)
    if len(held):
        columns = {"time_begin": rows.begin, "time_end": rows.end, "object_thread": rows.object}
        facts = take_rows(columns, held)
        layout = np.full(len(held), STACK_LAYOUTS.index(rows.layout))
        extraction.add_fact(STACKS, {**facts, "stack": rows.stack[held], "layout": layout})


def _is_ascending(database: Database, table: str) -> bool:
    """Return True if the rows of a table of stacks are sorted by id."""
    last = NULL
    for piece in database.read_pieces(table, ("id",)):
        ids = np.append(last, piece["id"][piece["id"] != NULL])
        if (ids[1:] < ids[:-1]).any():
            return False
        last = ids[-1]
    return True


def _find_extremes(database: Database, table: str, column: str) -> tuple[int, int]:
    """Return the smallest and the largest integer in a column, or NULL for both."""
    pieces = (piece[column] for piece in database.read_pieces(table, (column,)))
    bounds = [find_bounds(known) for one in pieces if len(known := one[one != NULL])]
    least, greatest = zip(*bounds, strict=True) if bounds else ((NULL,), (NULL,))
    return min(least), max(greatest)


def _find_shift(extraction: Extraction, table: str) -> int:
    """Return the offset of the stack numbers of CUDA API calls.

    It is 1 if three conditions hold: the first number is 0, the last is below the largest stack
    number, and the stacks found in this way contain their calls.
    """
    database = extraction.database
    if table != CUDA_STACKS or not database.has(CUDA_CALLS, CHAIN, "nameId"):
        return 0
    first, last = _find_extremes(database, CUDA_CALLS, CHAIN)
    # Only if a long table of stacks makes it necessary, because each task asks.
    if first != 0 or _find_extremes(database, table, "id") != (1, last + 1):
        return 0
    pieces = database.read_pieces(CUDA_CALLS, (CHAIN, "nameId"))
    named = (piece.where((piece[CHAIN] >= 0) & (piece["nameId"] != NULL)) for piece in pieces)
    pairs = (zip(one[CHAIN].tolist(), one["nameId"].tolist(), strict=True) for one in named)
    chosen = list(islice(chain.from_iterable(pairs), LOOKED_AT))
    if not chosen:
        return 0
    chains = [number for number, _ in chosen]
    stacks = database.read_stacks(table, min(chains), max(chains) + 1)
    symbols = np.split(stacks.frames[:, 1], np.cumsum(stacks.lengths)[:-1])
    functions = [set(map(find_bare_name, extraction.read_strings(one))) for one in symbols]
    of_id = {
        id_: functions[code]
        for id_, code in zip(stacks.ids.tolist(), stacks.codes.tolist(), strict=True)
    }
    called = [*map(strip_version, extraction.read_strings(np.array([name for _, name in chosen])))]
    fits = [
        sum(
            name in of_id.get(number + more, ())
            for number, name in zip(chains, called, strict=True)
        )
        for more in (0, 1)
    ]
    return int(fits[1] > 0 and fits[1] >= fits[0])


@cache
def find_owner(name: str, path: str) -> str:
    """Return the owner of a frame, a label of the value set `code_owner`. name: of its function.
    path: of its module.
    """
    owner = _match("modules", path) or _match("functions", strip_arguments(name))
    if owner:
        return owner
    cuda = load_catalogue().name_sets["cuda_api"].list_known_values()
    return DRIVER if find_bare_name(name) in cuda else PROGRAM


@cache
def _match(section: str, text: str) -> str:
    """Return the owner with a pattern in this section that matches a text, or ""."""
    rules = _load_patterns(section)
    return next((owner for owner, pattern in rules if pattern.search(text)), "")


@cache
def _load_patterns(section: str) -> list[tuple[str, re.Pattern[str]]]:
    rules = load_shipped_file("nsys2prv.events.catalogue", "frames.yaml")[section]
    return [(owner, re.compile(pattern)) for owner, pattern in rules.items()]


@cache
def strip_arguments(name: str) -> str:
    """Return the name of a function without its type and arguments: `setup` for `void
    setup(Grid&)`.
    """
    name = _BEHIND.sub("", name.replace(_UNNAMED_SPACE, ""))
    if LAMBDA in name:
        name = _OUTER_ARGUMENTS.sub("::", name).partition(LAMBDA)[0]
    depth, end = 0, len(name)
    for place in [found.start() for found in _BRACKET_OR_BLANK.finditer(name)][::-1]:
        letter = name[place]
        depth += {")": 1, ">": 1, "(": -1, "<": -1}.get(letter, 0)
        if letter == "(" and not depth and end == len(name) and name.endswith(")"):
            end = end if name[:place].endswith("operator") else place
        elif letter == " " and not depth and not name[:place].endswith("operator"):
            return name[place + 1 : end]
    return name[:end] or name


def strip_version(symbol: str) -> str:
    """Return the name of a function without its interface version: `cudaLaunchKernel` for
    `cudaLaunchKernel_v7000`.
    """
    return _VERSION.sub("", symbol)


def find_bare_name(name: str) -> str:
    """Return the name of a function without type, namespaces and arguments: `cudaMalloc` for
    `cudaError cudaMalloc<double>(double**, unsigned long)`.
    """
    bare = _BARE_NAME.search(strip_arguments(name))
    return bare[1] if bare else name


def _is_named(name: str) -> bool:
    return bool(name) and not name.startswith("0x")


def take_file_name(module: str) -> str:
    """Return the file name of a module without its folders, which differ between machines."""
    return module.replace("\\", "/").rstrip("/").rpartition("/")[2] or "a module without a name"


def label_frame(name: str, path: str) -> str:
    """Return the name of a stack frame in a trace: `setup (jacobi)`, or only the module for a frame
    without a name. name: of its function. path: of its module.
    """
    module = take_file_name(path)
    return f"{strip_arguments(name)} ({module})" if _is_named(name) else f"{module}{NO_SYMBOLS}"


def fold_frame(name: str, path: str) -> str:
    """Return the name of a stack frame in folded stacks: `setup`, or the module `[libc.so.6]` for a
    frame without a name. name: of its function. path: of its module.
    """
    if name.startswith("["):  # that a stack is not whole
        return name
    frame = strip_arguments(name) if _is_named(name) else f"[{take_file_name(path).strip('[]')}]"
    return frame.replace(SEPARATOR, ":")
