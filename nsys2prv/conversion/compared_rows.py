"""Choose the rows by which reports are compared: clocks are aligned, and collectives matched, by the
NCCL kernels of the whole job, even if only a part of it is converted.

Input: maps of the tables. Output: rows of each table, and the processes and GPUs that use NCCL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
from msgspec import Struct

from nsys2prv._util.budget import PART_ROWS
from nsys2prv._util.columns import factorize, factorize_together
from nsys2prv.conversion.cut_rows import NONE, find_runs, list_tables
from nsys2prv.conversion.table_maps import TableMap, choose_by_rowid, find_noted
from nsys2prv.events import all_kinds
from nsys2prv.events.cuda import KERNEL_NAMES, KERNEL_TABLE
from nsys2prv.events.extraction import STREAM_COLUMNS
from nsys2prv.events.kind import LAUNCHES, NCCL_CALLS
from nsys2prv.events.nccl import is_nccl_kernel
from nsys2prv.export.database import Database
from nsys2prv.export.info import ReportInfo
from nsys2prv.export.outlines import CORRELATION, NVTX_TABLE
from nsys2prv.export.source import Columns, Part, SomeRows
from nsys2prv.export.sqlite import open_database

#: How the names of NCCL's kernels begin; rows of kernels in which its members are looked for.
NCCL, LOOKED_AT = "nccl", 100_000
#: Columns that tell a member's process and GPU.
MEMBER_COLUMNS = STREAM_COLUMNS[:2]
#: Path of a report, process (globalPid), and GPU (deviceId).
MemberKey = tuple[Path, int, int]


class Members(Struct, frozen=True):
    """The rows of a report by which it is compared with others: table -> rows. Other tables are
    compared completely.
    """

    #: All NCCL kernels, the calls that launched them, and NCCL calls.
    parts: dict[str, tuple[Part, ...]]
    #: Processes and GPUs with NCCL kernels, as (path of the report, process, GPU).
    keys: frozenset[MemberKey]


def choose_members(database: Database, info: ReportInfo, maps: Mapping[str, TableMap]) -> Members:
    """Choose the rows by which a report is compared with others."""
    calls = maps.keys() & list_tables(lambda kind: LAUNCHES in kind.provides)
    parts: dict[str, tuple[Part, ...]] = dict.fromkeys(maps.keys() & {KERNEL_TABLE, *calls}, ())
    if NVTX_TABLE in maps:
        kinds = [kind for kind in all_kinds() if NCCL_CALLS in kind.provides]
        parts[NVTX_TABLE] = find_noted(info, kinds, maps[NVTX_TABLE].noted)
    if KERNEL_TABLE not in maps or not _names_nccl(database, info):
        return Members(parts, frozenset())
    parts[KERNEL_TABLE] = tuple(_select_kernels(database, maps[KERNEL_TABLE]))
    read = [database.read(part, (CORRELATION, *MEMBER_COLUMNS)) for part in parts[KERNEL_TABLE]]
    keys = frozenset().union(*(_list_keys(info, columns) for columns in read))
    ids = np.unique(np.concatenate([NONE, *(columns[CORRELATION] for columns in read)]))
    for table in calls:
        parts[table] = tuple(_select_calls(database, maps[table], ids))
    return Members(parts, keys)


def _names_nccl(database: Database, info: ReportInfo) -> bool:
    """Return True if NCCL kernels may be among the kernels."""
    return "StringIds" in info.parts and bool(
        database.make_condition(KERNEL_TABLE, f"{{strings:{NCCL}}}")
    )


def _select_kernels(database: Database, one: TableMap) -> Iterator[Part]:
    """Yield the NCCL kernels."""

    def is_of_nccl(rows: Columns) -> np.ndarray:
        names = [rows[name] for name in KERNEL_NAMES]
        ids = np.unique(np.concatenate([factorize(one)[0] for one in names]))
        texts = database.read_strings(ids)
        known = [number for number, text in texts.items() if is_nccl_kernel(text)]
        return np.logical_or.reduce([np.isin(one, known) for one in names])

    yield from _select(database, one.part, [one.part], KERNEL_NAMES, is_of_nccl)


def _select_calls(database: Database, one: TableMap, ids: np.ndarray) -> Iterator[Part]:
    """Yield the calls with these ids. ids: ascending."""
    blocks = one.list_parts(find_runs(ids).find(*one.bounds[2:4]))

    def has_id(rows: Columns) -> np.ndarray:
        return np.isin(rows[CORRELATION], ids)

    yield from _select(database, one.part, blocks, (CORRELATION,), has_id)


def _select(
    database: Database,
    whole: Part,
    parts: Iterable[Part],
    columns: tuple[str, ...],
    select: Callable[[Columns], np.ndarray],
) -> Iterator[Part]:
    """Yield the rows in parts of a table that `select` chooses from these columns. If rows are
    missing or have no rowids, yield all rows of their piece.
    """
    rowids = [NONE]
    for piece in (piece for part in parts for piece in part.split(PART_ROWS)):
        rows = database.read(piece, columns)
        if rows.rows == piece.rows and piece.rowid:
            rowids.append(piece.first + np.flatnonzero(select(rows)))
        else:
            yield piece
    yield from choose_by_rowid(whole, np.concatenate(rowids))


def list_members(info: ReportInfo) -> set[MemberKey]:
    """Return the processes and GPUs of a report that may take part in NCCL collectives, from a
    sample of kernel rows. This depends only on files.
    """
    part = info.parts.get(KERNEL_TABLE)
    if part is None:
        return set()
    with open_database(info.path) as database:
        if not _names_nccl(database, info):
            return set()
        rowids = np.arange(part.first, part.last + 1, 1 + part.rows // LOOKED_AT)
        rows = SomeRows.choose(part, rowids) if part.rowid else part
        return _list_keys(info, database.read(rows, MEMBER_COLUMNS))


def _list_keys(info: ReportInfo, kernels: Columns) -> set[MemberKey]:
    """Return the processes and GPUs of some kernels of a report."""
    distinct, _ = factorize_together(*(kernels[name] for name in MEMBER_COLUMNS))
    return {(info.path, *pair) for pair in zip(*(one.tolist() for one in distinct), strict=True)}
