"""Read the data files beside the modules: ``data.yaml``, tables with tabs between columns, the kernels of
``kernels.tsv``, the tables of an export: ``schema.sql`` has a CREATE TABLE statement for each, ``enums.tsv``
the rows of the ``ENUM_*`` tables.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ENUM_STATEMENT = """CREATE TABLE {table} (
    -- {comment}

    id                          INTEGER   NOT NULL   PRIMARY KEY,      -- Enum numerical value.
    name                        TEXT,                                  -- Enum symbol name.
    label                       TEXT                                   -- Enum human name.
)"""
LAUNCHES = {
    "runtime": "cudaLaunchKernel_v7000",
    "runtime_ex": "cudaLaunchKernelExC_v11060",
    "driver": "cuLaunchKernel",
    "driver_ex": "cuLaunchKernelEx",
}
# copyKind, srcKind and dstKind of a MEMCPY row (ENUM_CUDA_MEMCPY_OPER, ENUM_CUDA_MEM_KIND)
H2D_PINNED, H2D_PAGEABLE, D2H, D2D, P2P = (1, 1, 2), (1, 0, 2), (2, 2, 0), (8, 2, 2), (10, 2, 2)


def read_text(name: str) -> str:
    """Read a file of data."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


@cache
def read_rows(name: str) -> list[list[str]]:
    """Read the rows of a table, without comments."""
    return [line.split("\t") for line in read_text(name).splitlines() if not line.startswith("#")]


def as_json(value: Any) -> str:
    """Write JSON as exports have it: without spaces."""
    return json.dumps(value, separators=(",", ":"))


DATA: dict[str, Any] = yaml.load(
    read_text("data.yaml"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)
)


@dataclass(frozen=True)
class Kernel:
    """A kernel function."""

    api: str  # that launches it
    mean_ns: float
    columns: dict[str, Any]  # of the KERNEL table


def _read_kernels() -> dict[str, Kernel]:
    """Read the kernels of the job by the key the programs use.

    Names, grids, registers and shared memory of the GEMM (nvjet, XMMA), elementwise, softmax,
    reduce and cat kernels were seen in public exports of H100 and H200 runs; those of the others
    follow the same style.
    """
    (_, _, _, *shapes), *rows = read_rows("kernels.tsv")
    found = {}
    for key, api, mean, *values in rows:
        given = dict(zip(shapes, values, strict=True))
        columns: dict[str, Any] = {}
        for name, value in given.items():
            if name in ("grid", "block", "cluster"):
                axes = (f"{name}{axis}" for axis in "XYZ")
                columns |= zip(axes, map(int, value.split("x")), strict=True)
            elif name.endswith("Name"):
                columns[name] = given["shortName"] if value == "=" else value
            else:
                columns[name] = int(value)
        clustered = columns["clusterX"] > 0
        columns |= {"cacheConfig": 1 + clustered, "maxPotentialClusterSize": 8 * clustered}
        columns["maxActiveClusters"] = 66 * clustered
        columns["sharedMemoryLimitConfig"] = int(columns["dynamicSharedMemory"] > 48 * 1024)
        found[key] = Kernel(LAUNCHES[api], float(mean), columns)
    return found


KERNELS = _read_kernels()


@cache
def tables() -> dict[str, str]:
    """Read the CREATE TABLE statements by table name (the ENUM_* tables apart)."""
    found = re.finditer(r"^CREATE TABLE (\w+) \(\n.*?^\)$", read_text("schema.sql"), re.M | re.S)
    return {one[1]: one[0] for one in found}


@cache
def read_columns(table: str) -> dict[str, str]:
    """Read the columns of a table, and their types; none for a table outside the schema."""
    return dict(re.findall(r"^    (\w+) +(INTEGER|TEXT|REAL)", tables().get(table, ""), re.M))


@cache
def enums() -> dict[str, tuple[str, list[tuple[int, str, str]], str]]:
    """Read the ENUM_* tables: statement, rows, and the table they accompany, if any."""
    found: dict[str, tuple[str, list[tuple[int, str, str]], str]] = {}
    for first, *others in read_rows("enums.tsv"):
        if first.startswith("> "):
            table, (comment, *owner) = first[2:], others
            found[table] = ENUM_STATEMENT.format(table=table, comment=comment), [], "".join(owner)
        else:
            found[table][1].append((int(first), *others))
    return found


@cache
def find_enum_label(enum: str, value: int) -> str:
    """Return the human name of one value of an ENUM_* table, such as 'Host-to-Device'."""
    return next(label for number, _, label in enums()[enum][1] if number == value)
