"""Call stacks: where in the program calls are made and samples taken. Callers are numbered as in
Extrae's traces, 1 is the innermost; but only functions of the program count, unless it has none.

Whose code a frame is stands in ``catalogue/frames.yaml``. No table of stacks has a file or a line.
As seen in real exports, the frames of a stack stand in any order, depth 0 is the innermost, and a
frame without a name has its address for one. Stacks are numbered from 1, and 0 is none; but calls
of CUDA in exports of nsys 2022 count from 0.
"""

from __future__ import annotations

import re
from functools import cache

import numpy as np
from msgspec import Struct

from nsys2prv._util.columns import ABSENT, factorize_together
from nsys2prv._util.data_files import load_shipped_file
from nsys2prv.events.catalogue import CALLER_LEVELS, load_catalogue, map_labels
from nsys2prv.events.extraction import Extraction
from nsys2prv.export.source import NULL

CUDA_CALLS, CUDA_STACKS = "CUPTI_ACTIVITY_KIND_RUNTIME", "CUDA_CALLCHAINS"
#: Calls that tell how stacks are numbered.
LOOKED_AT = 200
#: Column of calls with the number of their stack.
CHAIN = "callchainId"
FRAME_COLUMNS = ("id", "stackDepth", "symbol", "module")
PROGRAM, DRIVER, SYSTEM = "the program", "the CUDA driver", "the system"
#: Whose functions are callers where no function of the program is known.
CALLERS_TOO = ("a library", "MPI", "a CUDA library", "the interpreter")
_BEHIND = re.compile(r"(?: const)?(?: \[clone .*\])?$")
_BARE_NAME = re.compile(r"(\w+)(?:<.*)?$", re.DOTALL)
_VERSION = re.compile(r"_v\d{4,}$")
_UNNAMED_SPACE = "(anonymous namespace)::"


class Frames(Struct):
    """The frames of some stacks, each stack together and from the innermost outwards."""

    #: Ids of the stacks, ascending.
    stacks: np.ndarray
    #: Index of the first frame of each stack.
    first: np.ndarray
    #: What each frame is: index into the columns below.
    code: np.ndarray
    #: Whose code: labels of the value set `code_owner`.
    owner: list[str]
    #: What a trace calls it.
    label: list[str]
    #: It has a name.
    named: list[bool]
    #: Columns of each frame: its depth (0 is the innermost), ids of its function and its module.
    depth: np.ndarray
    symbol: np.ndarray
    module: np.ndarray

    @property
    def stack(self) -> np.ndarray:
        """Return the index of each frame's stack."""
        lengths = np.diff(self.first, append=len(self.code))
        return np.repeat(np.arange(len(self.stacks)), lengths)

    def find_rows(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return which rows have one of the stacks, and the index of it, by the ids of theirs."""
        rows = np.flatnonzero(ids >= 0)
        place = np.minimum(np.searchsorted(self.stacks, ids[rows]), len(self.stacks) - 1)
        found = self.stacks[place] == ids[rows]
        return rows[found], place[found]

    def read_depth(self, ids: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of function and module at a depth of the stacks of rows; NULL where there is
        no frame.
        """
        at_depth = np.flatnonzero(self.depth == depth)[::-1]
        frame = np.full(len(self.stacks), -1)
        frame[self.stack[at_depth]] = at_depth
        rows, place = self.find_rows(ids)
        rows, place = rows[frame[place] >= 0], frame[place][frame[place] >= 0]
        function, module = np.full((2, len(ids)), NULL)
        function[rows], module[rows] = self.symbol[place], self.module[place]
        return function, module


def read_callers(extraction: Extraction, table: str, ids: np.ndarray) -> dict[str, np.ndarray]:
    """Return the fields `caller_1` (the innermost) to `caller_3` of rows by the ids of their
    stacks, those that any row has: names of the set `caller`, ABSENT where a row has none.

    table: that of the stacks. ids: shape (n,), NULL or 0 for none.
    """
    frames = read_frames(extraction, table, ids)
    return {} if frames is None else find_callers(extraction, frames, ids)


def find_callers(
    extraction: Extraction, frames: Frames, ids: np.ndarray, field: str = "caller_{}"
) -> dict[str, np.ndarray]:
    """Return the callers of :func:`read_callers` of frames that have been read, as fields named by
    their level.
    """
    owner = np.array(frames.owner)
    own = (owner == PROGRAM)[frames.code]
    library = (np.isin(owner, CALLERS_TOO) & np.array(frames.named))[frames.code]
    stack = frames.stack
    counts = np.flatnonzero(own | (library & ~np.logical_or.reduceat(own, frames.first)[stack]))
    used, code = np.unique(frames.code[counts], return_inverse=True)
    labels, label = np.unique([frames.label[one] for one in used], return_inverse=True)
    stack, label = stack[counts], label[code]
    new = np.append(True, (stack[1:] != stack[:-1]) | (label[1:] != label[:-1]))[: len(stack)]
    stack, label = stack[new], label[new]
    level = np.arange(len(stack)) - np.searchsorted(stack, stack)
    rows, place = frames.find_rows(ids)
    if not len(labels):
        return {}
    fields, name = {}, extraction.intern_names("caller", np.arange(len(labels)), text=labels)
    for number in range(min(CALLER_LEVELS, int(level.max(initial=-1)) + 1)):
        of_stack = np.full(len(frames.stacks), ABSENT)
        of_stack[stack[level == number]] = name[label[level == number]]
        fields[field.format(number + 1)] = np.full(len(ids), ABSENT)
        fields[field.format(number + 1)][rows] = of_stack[place]
    return fields


def find_owners(frames: Frames, ids: np.ndarray) -> np.ndarray:
    """Return whose code runs in stacks, by the innermost frame that is none of the system: values
    of the set `code_owner`, ABSENT where there is no frame.
    """
    values = map_labels("code_owner")
    value = np.array([values[owner.lower()] for owner in frames.owner])[frames.code]
    not_system = np.where(value == values[SYSTEM], len(value), np.arange(len(value)))
    innermost = np.minimum.reduceat(not_system, frames.first)
    innermost = np.where(innermost == len(value), frames.first, innermost)
    owners, (rows, place) = np.full(len(ids), ABSENT), frames.find_rows(ids)
    owners[rows] = value[innermost][place]
    return owners


def read_frames(
    extraction: Extraction, table: str, ids: np.ndarray, least: int = 1
) -> Frames | None:
    """Return the frames of the stacks of rows, None where there are none. least: of their ids."""
    if not extraction.database.has(table, *FRAME_COLUMNS):
        return None
    shift = extraction.find_once(f"shift of {table}", lambda: _find_shift(extraction, table))
    wanted = np.unique(ids[ids >= least - shift])
    if not len(wanted):
        return None
    rows = extraction.database.read_by_key(table, "id", wanted + shift, FRAME_COLUMNS)
    if not rows.rows:
        return None
    stack, depth, symbol, module = (rows[name] for name in FRAME_COLUMNS)
    step = np.diff(stack)
    if ((step < 0) | ((step == 0) & (np.diff(depth) < 0))).any():
        order = np.lexsort((depth, stack))
        stack, depth, symbol, module = (one[order] for one in (stack, depth, symbol, module))
    (symbols, modules), code = factorize_together(symbol, module)
    names, paths = extraction.read_strings(symbols), extraction.read_strings(modules)
    first = np.flatnonzero(np.append(True, stack[1:] != stack[:-1]))
    return Frames(
        stack[first] - shift,
        first,
        code,
        list(map(find_owner, names, paths)),
        list(map(label_frame, names, paths)),
        list(map(_is_named, names)),
        depth,
        symbol,
        module,
    )


def _find_shift(extraction: Extraction, table: str) -> int:
    """Return what is to be added to the numbers of stacks that calls of CUDA have: 1 where the
    first is 0, the last one less than that of a stack, and stacks so found name their calls.
    """
    database = extraction.database
    if table != CUDA_STACKS or not database.has(CUDA_CALLS, CHAIN, "nameId"):
        return 0
    ((first, last),) = database.query(f"SELECT min({CHAIN}), max({CHAIN}) FROM {CUDA_CALLS}")
    ((first_stack, last_stack),) = database.query(f"SELECT min(id), max(id) FROM {table}")
    if (first, first_stack) != (0, 1) or last + 1 != last_stack:
        return 0
    calls = database.query(
        f"SELECT {CHAIN}, nameId FROM {CUDA_CALLS} WHERE {CHAIN} >= 0 LIMIT {LOOKED_AT}"
    )
    wanted = np.unique([chain + more for chain, _ in calls for more in (0, 1)])
    rows = database.read_by_key(table, "id", wanted, FRAME_COLUMNS)
    names = extraction.read_strings(rows["symbol"])
    frames = set(zip(rows["id"].tolist(), map(find_bare_name, names), strict=True))
    called = extraction.read_strings(np.array([name for _, name in calls]))
    fits = [
        sum(
            (chain + more, strip_version(name)) in frames
            for (chain, _), name in zip(calls, called, strict=True)
        )
        for more in (0, 1)
    ]
    return int(fits[1] > 0 and fits[1] >= fits[0])


@cache
def find_owner(name: str, path: str) -> str:
    """Return whose code a frame is by its function's name and its module's path: a label of the
    value set `code_owner`.
    """
    for owner, pattern in _load_patterns("modules"):
        if pattern.search(path):
            return owner
    function = strip_arguments(name)
    for owner, pattern in _load_patterns("functions"):
        if pattern.search(function):
            return owner
    cuda = load_catalogue().name_sets["cuda_api"].list_known_values()
    return DRIVER if find_bare_name(name) in cuda else PROGRAM


@cache
def _load_patterns(section: str) -> list[tuple[str, re.Pattern[str]]]:
    rules = load_shipped_file("nsys2prv.events.catalogue", "frames.yaml")[section]
    return [(owner, re.compile(pattern)) for owner, pattern in rules.items()]


def strip_arguments(name: str) -> str:
    """Return a function's name without its type and its arguments: `setup` of `void setup(Grid&)`."""
    name = _BEHIND.sub("", name.replace(_UNNAMED_SPACE, ""))
    depth, end = 0, len(name)
    for place in range(len(name) - 1, -1, -1):
        letter = name[place]
        depth += {")": 1, ">": 1, "(": -1, "<": -1}.get(letter, 0)
        if letter == "(" and not depth and end == len(name) and name.endswith(")"):
            end = end if name[:place].endswith("operator") else place
        elif letter == " " and not depth and not name[:place].endswith("operator"):
            return name[place + 1 : end]
    return name[:end] or name


def strip_version(symbol: str) -> str:
    """Return the function's name without the version of its interface: `cudaLaunchKernel_v7000` is
    `cudaLaunchKernel`.
    """
    return _VERSION.sub("", symbol)


def find_bare_name(name: str) -> str:
    """Return a function's name without type, namespaces and arguments: `cudaMalloc` of
    `cudaError cudaMalloc<double>(double**, unsigned long)`.
    """
    bare = _BARE_NAME.search(strip_arguments(name))
    return bare[1] if bare else name


def _is_named(name: str) -> bool:
    return bool(name) and not name.startswith("0x")


def take_file_name(module: str) -> str:
    """Return a module's file name; the folders before it differ from machine to machine."""
    return module.replace("\\", "/").rstrip("/").rpartition("/")[2] or "a module without a name"


def label_frame(name: str, path: str) -> str:
    """Return what a trace calls a frame: `setup (jacobi)`; without a name, its module alone."""
    module = take_file_name(path)
    return f"{strip_arguments(name)} ({module})" if _is_named(name) else f"{module} (no symbols)"
