"""GPU models of the cluster: what reports say of them, and the metrics they have."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources

from ..options import Options

CHANNELS = ("gr", "compute", "sm", "issue", "tensor", "warps", "dram_read", "dram_write", "nvlink_rx", "nvlink_tx",
            "pcie_rx", "pcie_tx", "copy_in", "copy_out")  # fmt: skip
"""What is integrated: shares of the time, or of the peak rate."""

_NUMBERS = {  # of a real H100, in the column order of TARGET_INFO_GPU
    "isDiscrete": 1,
    "l2CacheSize": 52_428_800,
    "totalMemory": 84_942_979_072,
    "memoryBandwidth": 3_352_320_000_000,
    "clockRate": 1_980_000_000,
    "smCount": 132,
    "revision": 161,
    "nodeMask": 0,
    "constantMemory": 65_536,
    "maxIPC": 0,
    "maxRegistersPerBlock": 65_536,
    "maxShmemPerBlock": 49_152,
    "maxShmemPerBlockOptin": 232_448,
    "maxShmemPerSm": 233_472,
    "maxRegistersPerSm": 65_536,
    "threadsPerWarp": 32,
    "asyncEngines": 3,
    "maxWarpsPerSm": 64,
    "maxBlocksPerSm": 32,
    "maxThreadsPerBlock": 1_024,
    "maxBlockDimX": 1_024,
    "maxBlockDimY": 1_024,
    "maxBlockDimZ": 64,
    "maxGridDimX": 2_147_483_647,
    "maxGridDimY": 65_535,
    "maxGridDimZ": 65_535,
    "computeMajor": 9,
    "computeMinor": 0,
    "smMajor": 9,
    "smMinor": 0,
}


@dataclass(frozen=True)
class Model:
    """A GPU model; ``numbers`` by their column in TARGET_INFO_GPU."""

    name: str
    chip: str
    numbers: dict[str, int]


_H100 = Model("NVIDIA H100 80GB HBM3", "GH100", _NUMBERS)
_A100 = Model(
    "NVIDIA A100-SXM4-80GB",
    "GA100",
    _NUMBERS
    | {
        "l2CacheSize": 41_943_040,
        "totalMemory": 85_094_825_984,
        "memoryBandwidth": 2_039_000_000_000,
        "clockRate": 1_410_000_000,
        "smCount": 108,
        "maxShmemPerBlockOptin": 166_912,
        "maxShmemPerSm": 167_936,
        "computeMajor": 8,
        "smMajor": 8,
    },
)


def model_of(options: Options, host: int) -> Model:
    """The model of a host's GPUs. The kernels stay those of the H100."""
    return _A100 if options.gpu_models == "mixed" and host % 2 else _H100


@dataclass(frozen=True)
class Metric:
    """A metric of a model: its number there, its name, and how its value follows from channels."""

    number: int
    name: str
    kind: str
    channel: str
    factor: float


@cache
def metrics(chip: str) -> tuple[Metric, ...]:
    """The metric set of a chip, by number."""
    column = {"GH100": 4, "GA100": 5}[chip]
    text = resources.files(__package__).joinpath("gpus.tsv").read_text(encoding="utf-8")
    rows = [line.split("\t") for line in text.splitlines() if not line.startswith("#")]
    found = [Metric(int(row[column]), row[0], row[1], row[2], float(row[3])) for row in rows if row[column] != "-"]
    return tuple(sorted(found, key=lambda metric: metric.number))
