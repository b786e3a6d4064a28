"""Write a job in which two processes share a GPU, one of them also uses a second GPU, and a third
process has its own GPU on another host.

The activity of each GPU is kept for every nanosecond, so that any value can be counted.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tools.exports import (
    KERNEL,
    MEMCPY,
    Row,
    make_export,
    make_global_pid,
    make_host,
    make_kernel,
    make_strings,
)

GRAPHS, MEMSET = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "CUPTI_ACTIVITY_KIND_MEMSET"
#: Bits of what is under way on a GPU.
NCCL, MEMORY, COMPUTE = 1, 2, 4
LENGTH = 20_000
EPOCH = 1_700_000_000_000_000_000
#: Rank -> host, by how much its report begins later (ns), and by CUDA ordinal the number and UUID
#: of its GPUs.
RANKS = {
    0: ("node1", 0, {0: (1, "11111111-aaaa")}),
    1: ("node1", 700, {0: (0, "22222222-bbbb"), 1: (1, "11111111-aaaa")}),
    2: ("node2", 1300, {0: (1, "11111111-cccc")}),
}


@dataclass(frozen=True)
class SharedGpus:
    """The exports of the job and what its GPUs do.

    exports: by rank. doing: host and UUID of each GPU -> the bits of its activity at every ns after
    the first report's begin.
    """

    exports: list[Path]
    doing: dict[tuple[str, str], np.ndarray]

    @property
    def first(self) -> int:
        """Begin of the first operation, which is time 0 of the trace."""
        return min(int(np.flatnonzero(bits)[0]) for bits in self.doing.values())

    @property
    def duration(self) -> int:
        """Time from the first operation's begin to the last one's end."""
        return max(int(np.flatnonzero(bits)[-1]) + 1 for bits in self.doing.values()) - self.first


def make_shared_gpus(folder: Path) -> SharedGpus:
    """Write the job's exports, always the same ones."""
    random = np.random.default_rng(63)
    doing = {
        (host, uuid): np.zeros(LENGTH, np.int64)
        for host, _, gpus in RANKS.values()
        for _, uuid in gpus.values()
    }
    exports = []
    for rank, (host, late, gpus) in RANKS.items():
        pid = 100 + rank
        tables: dict[str, list[Row]] = {
            "StringIds": make_strings("work", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"),
            KERNEL: [],
            GRAPHS: [],
            MEMCPY: [],
            MEMSET: [],
            **make_host(host, EPOCH + late, 5_000 + late),
            "TARGET_INFO_GPU": [
                {"id": number, "name": "H200", "uuid": uuid, "busLocation": f"0000:0{number}:00.0"}
                for number, uuid in gpus.values()
            ],
            "TARGET_INFO_CUDA_DEVICE": [
                {"pid": pid, "cudaId": ordinal, "gpuId": number}
                for ordinal, (number, _) in gpus.items()
            ],
            "META_DATA_CAPTURE": [
                {"name": "PROCESS_0:ENVIRONMENT_VARIABLE", "value": f"RANK={rank}"}
            ],
        }
        for ordinal, (_, uuid) in gpus.items():
            for stream, table, bit, name in (
                (7, KERNEL, COMPUTE, 1),
                (8, KERNEL, COMPUTE, 1),
                (13, KERNEL, NCCL, 2),
                (14, MEMCPY, MEMORY, 0),
                (15, MEMSET, MEMORY, 0),
                (16, GRAPHS, COMPUTE, 0),
            ):
                begins = np.sort(random.integers(1_000, LENGTH - 5_000, 12))
                for begin in map(int, begins):
                    end = begin + int(random.choice([1, 2, 40, 300]))
                    # Work of one stream in a row without gaps, and at the same time as that of
                    # others.
                    begin, end = (
                        (begin // 10 * 10, end // 10 * 10 + 10) if begin % 3 else (begin, end)
                    )
                    row = dict(
                        make_kernel(
                            begin,
                            end,
                            deviceId=ordinal,
                            streamId=stream,
                            globalPid=make_global_pid(pid),
                        ),
                        demangledName=name,
                        shortName=name,
                    )
                    more = {
                        MEMCPY: {"copyKind": 1, "bytes": 8},
                        MEMSET: {"bytes": 8},
                        GRAPHS: {"graphId": 3, "graphExecId": 4},
                    }
                    tables[table].append({**row, **more.get(table, {})})
                    doing[host, uuid][begin + late : end + late] |= bit
        exports.append(make_export(folder / f"rank{rank}.sqlite", tables))
    return SharedGpus(exports, doing)
