"""Write small exports with NCCL calls: a call, the launch inside it, and the kernel."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

from tools.conversions import convert_and_read
from tools.exports import (
    KERNEL,
    RUNTIME,
    Row,
    make_call,
    make_export,
    make_global_pid,
    make_global_tid,
    make_host,
    make_kernel,
    make_nvtx_range,
    make_strings,
)
from tools.trace import Trace

from nsys2prv import Summary

NVTX = "NVTX_EVENTS"
ENTRIES, ENUMS = "NVTX_PAYLOAD_SCHEMA_ENTRIES", "NVTX_PAYLOAD_ENUM_ENTRIES"
COMM, SIZE, OP = "NCCL communicator ID", "Message size [bytes]", "Reduction operation"
DOMAIN = 3


@dataclass
class Rank:
    """The tables of one process, by default on host node0; times in ns."""

    pid: int = 4242
    host: str = "node0"
    names: tuple[str, ...] = (
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096>)",
        "cudaLaunchKernel_v7000",
        "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096>)",
        "cudaGraphLaunch_v10000",
    )
    nvtx: list[Row] = field(default_factory=list)
    calls: list[Row] = field(default_factory=list)
    kernels: list[Row] = field(default_factory=list)
    more: dict[str, list[Row]] = field(default_factory=dict)
    correlation: int = 0

    def __post_init__(self) -> None:
        self.add_range(0, 0, "NCCL", eventType=75)

    def add_range(self, start: int, end: int | None, text: str, **columns: object) -> Rank:
        """Add an NVTX row of the NCCL domain on the main thread."""
        row = make_nvtx_range(start, end, text, domainId=DOMAIN)
        self.nvtx.append({**row, "globalTid": make_global_tid(self.pid, self.pid), **columns})
        return self

    def add_kernel(
        self, launch: int, begin: int, end: int, name: int = 1, **columns: object
    ) -> Rank:
        """Add a launching call at `launch`, and its kernel."""
        self.correlation += 1
        self.calls.append(
            make_call(
                launch, launch + 5, self.correlation, globalTid=make_global_tid(self.pid, self.pid)
            )
        )
        self.kernels.append(
            make_kernel(
                begin,
                end,
                correlationId=self.correlation,
                globalPid=make_global_pid(self.pid),
                demangledName=name,
                shortName=name,
                **columns,
            )
        )
        return self

    def add_collective(
        self,
        start: int,
        begin: int,
        end: int,
        payload: str | None = None,
        text: str = "ncclAllReduce",
        **columns: object,
    ) -> Rank:
        """Add a call of 20 ns, and its kernel."""
        return self.add_range(start, start + 20, text, jsonText=payload, **columns).add_kernel(
            start + 8, begin, end
        )

    def write(self, path: Path) -> Path:
        """Write the tables as an export."""
        path.parent.mkdir(parents=True, exist_ok=True)
        return make_export(
            path,
            {
                NVTX: self.nvtx,
                RUNTIME: self.calls,
                KERNEL: self.kernels,
                "StringIds": make_strings(*self.names),
                **self.more,
                **make_host(self.host, 1_780_000_000_000_000_000, 1_000_000),
            },
        )


def convert_ranks(folder: Path, *ranks: Rank, **options: object) -> tuple[Trace, Summary]:
    """Convert these ranks, check that the trace has no violations, and return it with the summary."""
    reports = [
        rank.write(folder / f"r{number}" / f"rank{number}.sqlite")
        for number, rank in enumerate(ranks)
    ]
    return convert_and_read(reports, folder / "o.prv", **options)


def make_group_on_two_gpus() -> Rank:
    """Return a process that calls AllReduce for each of its two GPUs in one group, with both
    kernels.
    """
    rank = Rank().add_range(90, 92, "ncclGroupStart")
    for number in range(2):
        rank.add_range(
            100 + 10 * number, 105 + 10 * number, "ncclAllReduce", jsonText=format_payload(7, 100)
        )
    return (
        rank.add_range(130, 190, "ncclGroupEnd")
        .add_kernel(140, 150, 300)
        .add_kernel(150, 160, 300, deviceId=1)
    )


def format_payload(communicator: int, size: int, **fields: object) -> str:
    """Return a payload as JSON, as NCCL's own ranges have it."""
    pairs = {COMM: communicator, SIZE: size, **fields}
    return (
        "{"
        + ",".join(
            f'"{name}":' + (f'"{value}"' if isinstance(value, str) else str(value))
            for name, value in pairs.items()
        )
        + "}"
    )


def pack_payload(schema: int, layout: str, *values: int, domain: int = DOMAIN) -> bytes:
    """Return a payload as bytes behind the header of nsys."""
    body = struct.pack("<" + layout, *values)
    return struct.pack("<4Q", domain, schema, len(body), 32) + body


def make_schema_entries(schema: int, *fields: tuple[str, int, int]) -> list[Row]:
    """Return the rows of a schema with these fields: (name, entry type, offset in bytes)."""
    return [
        {
            "domainId": DOMAIN,
            "schemaId": schema,
            "idx": index,
            "type": kind,
            "name": name,
            "offset": offset or None,
        }
        for index, (name, kind, offset) in enumerate(fields)
    ]
