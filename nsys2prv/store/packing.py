"""Pack the result of a reading task into a few small files, and unpack it elsewhere.

Runs become columns, compressed, whose times are differences: of a record's begin to the one before,
of its other times to its begin. Ends follow from begins and are left out.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.columns import FrameWriter, read_frame
from nsys2prv._util.foreign_data import panics_unseen
from nsys2prv._util.store_file import check_unpacked, from_json, to_json
from nsys2prv.events.catalogue import NameSet, load_catalogue
from nsys2prv.store.runs import (
    BEGIN,
    END,
    Run,
    Shape,
    SpillWriter,
    list_present_fields,
    pair_runs,
    read_run,
)
from nsys2prv.store.spilling import make_end_records
from nsys2prv.store.task_result import TaskResult

ENTRY = "result.json"
NO_FILE = -1
#: Times that are stored as the difference to another.
RELATIVE = {"end": "time", "receive": "time", "until": "receive"}
#: How a zstd frame begins; no buffer that is made has so many bytes.
ZSTD_MAGIC, MOST_BUFFER = b"\x28\xb5\x2f\xfd", 1 << 40
INDICES = {"object": "objects", "sender": "objects", "receiver": "objects", "domain": "domains"}


class PackedRun(Struct, frozen=True):
    """Packed form of a :class:`nsys2prv.store.runs.Run`."""

    #: Format of the records.
    shape: Shape
    #: Number of the file with its rows; NO_FILE for ends.
    file: int
    #: Index of its first row in the file.
    first: int
    #: Number of records.
    rows: int
    #: As of Run.
    last: int
    #: As of Run.
    object: int
    #: As of Run.
    values: int


class PackedResult(Struct, frozen=True):
    """A result without its files."""

    #: The result.
    result: TaskResult
    #: In the order of the result's.
    runs: list[PackedRun]
    #: `names` and `facts`: what there are files of.
    names: list[str]
    #: Names of the facts.
    facts: list[str]


def pack_result(result: TaskResult, folder: Path) -> None:
    """Write a result to files in a new folder."""
    folder.mkdir()
    numbers: dict[np.dtype, int] = {}
    columns: dict[int, list[pl.DataFrame]] = {}
    filled: Counter[int] = Counter()
    runs = []
    for run in result.runs:
        number = NO_FILE
        if run.shape.stream != END:
            number = numbers.setdefault(run.shape.dtype, len(numbers))
            columns.setdefault(number, []).append(_to_columns(run))
        first = filled[number] if number != NO_FILE else 0
        runs.append(PackedRun(run.shape, number, first, run.rows, run.last, run.object, run.values))
        filled[number] += run.rows
    for number, frames in columns.items():
        _write_frame(pl.concat(frames), folder / f"runs-{number}.arrow")
    for kind, files in (("names", result.names), ("facts", result.facts)):
        for number, frame in enumerate(files.values()):
            _write_frame(read_frame(frame), folder / f"{kind}-{number}.arrow")
    bare = replace(result, runs=[], names={}, facts={}, launches=[], regions=[])
    entry = PackedResult(bare, runs, list(result.names), list(result.facts))
    (folder / ENTRY).write_text(json.dumps(to_json(entry, PackedResult)), encoding="ascii")


def unpack_result(
    opened: Callable[[str], BinaryIO], spill: Path, number: int, report: int
) -> TaskResult:
    """Return the result whose files `opened` gives, as task `number` of this report; its own files
    are in the folder `spill`.

    Raises an exception of its own choice for files that :func:`pack_result` did not write.
    """
    with opened(ENTRY) as file:
        entry = from_json(json.load(file), PackedResult)
    result = replace(entry.result, task=number, report=report)
    with FrameWriter(spill / f"frames-{number}.arrows") as stored:
        for kind, names, target in (
            ("names", entry.names, result.names),
            ("facts", entry.facts, result.facts),
        ):
            for index, name in enumerate(names):
                target[name] = stored.append(_read_frame(opened, f"{kind}-{index}.arrow"))
    limits = {
        "objects": len(result.objects),
        "domains": len(result.domains),
        **{
            name: _read_frame(opened, f"names-{index}.arrow").height
            for index, name in enumerate(entry.names)
        },
    }
    frames: dict[int, pl.DataFrame] = {}
    writer = SpillWriter(spill / f"runs-{number}.bin", report, number)
    try:
        for run, ends in pair_runs(entry.runs):
            if run.file not in frames:
                frames[run.file] = _read_frame(opened, f"runs-{run.file}.arrow")
            records = _to_records(run, frames[run.file].slice(run.first, run.rows))
            _check_records(run.shape, records, limits)
            result.runs.append(_append_records(writer, run, records))
            if ends is not None:
                layout = load_catalogue().layouts[run.shape.name]
                closing = make_end_records(records, records["end"], layout)
                result.runs.append(_append_records(writer, ends, closing))
    finally:
        writer.close()
    return result


def _append_records(writer: SpillWriter, packed: PackedRun, records: np.ndarray) -> Run:
    if len(records) != packed.rows:
        raise ValueError("rows are missing")
    return writer.append(packed.shape, records, packed.last, packed.object, packed.values)


def _to_columns(run: Run) -> pl.DataFrame:
    """Return the records of a run in columns."""
    records = read_run(run)
    columns = {"time": np.diff(records["time"], prepend=0)}
    for name in records.dtype.names[1:]:
        if name == "values":
            columns |= {f"value {index}": column for index, column in enumerate(records[name].T)}
        else:
            columns[name] = (
                records[name] - records[RELATIVE[name]] if name in RELATIVE else records[name]
            )
    return pl.DataFrame({name: np.ascontiguousarray(column) for name, column in columns.items()})


def _to_records(run: PackedRun, columns: pl.DataFrame) -> np.ndarray:
    """Return the records of a run from their columns."""
    records = np.empty(columns.height, run.shape.dtype)
    records["time"] = np.cumsum(columns["time"].to_numpy())
    for name in records.dtype.names[1:]:
        if name == "values":
            for index in range(len(run.shape.metrics)):
                records[name][:, index] = columns[f"value {index}"].to_numpy()
        else:
            # In the records' order: a time may be relative to one that is.
            column = columns[name].to_numpy()
            records[name] = column + records[RELATIVE[name]] if name in RELATIVE else column
    return records


def _check_records(shape: Shape, records: np.ndarray, limits: Mapping[str, int]) -> None:
    """Raise ValueError where records do not ascend by time, or refer to what is not there."""
    if (np.diff(records["time"]) < 0).any():
        raise ValueError("times are out of order")
    fields = (
        list_present_fields(load_catalogue().layouts[shape.name], shape.present)
        if shape.stream == BEGIN
        else []
    )
    named = {field.name: field.values.name for field in fields if isinstance(field.values, NameSet)}
    for name in records.dtype.names:
        limit = limits.get(INDICES.get(name) or named.get(name, ""))
        if limit is not None and len(records) and int(records[name].max()) >= limit:
            raise ValueError(f"{name} is not there")


def find_unpacked_size(content: bytes) -> int:
    """Return the bytes that the zstd buffers of an Arrow file will take, as far as they tell.

    Each buffer begins with its unpacked size (int64, at a multiple of 8 bytes), then a zstd frame,
    whose head mostly has the size too.
    """
    total = 0
    for match in re.finditer(re.escape(ZSTD_MAGIC), content):
        at = match.start()
        size = int.from_bytes(content[max(at - 8, 0) : at], "little")
        if (
            at % 8 == 0
            and size < MOST_BUFFER
            and at + 4 < len(content)
            and not content[at + 4] & 0b11000
        ):
            total += size
    return total


def _write_frame(frame: pl.DataFrame, path: Path) -> None:
    with path.open("wb") as file:
        frame.write_ipc(file, compression="zstd")


def _read_frame(opened: Callable[[str], BinaryIO], name: str) -> pl.DataFrame:
    with opened(name) as file:
        content = file.read()
    check_unpacked(find_unpacked_size(content), len(content), name)
    try:
        with panics_unseen():
            return pl.read_ipc(content)
    except OSError as error:
        # Of the content, for all of it was read.
        raise ValueError(str(error)) from None
