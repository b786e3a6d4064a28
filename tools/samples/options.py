"""Define the options of a generated job. Each field is also an option of the command line, under its name;
``data.yaml`` describes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Options:
    """The properties of a job and of its reports."""

    ranks: int = 4
    hosts: int = 2
    steps: int = 4
    layers: int = 4
    seed: int = 1
    graphs: str = "none"
    visible: str = "isolated"
    payload: str = "both"
    row_order: str = "time"
    events_per_rank: int | None = None
    clock_offsets_ms: tuple[float, ...] = (0.0, 3.7)
    clock_drifts_ppm: tuple[float, ...] = (0.0, 12.5)
    skew_us: float = 250.0
    truth_collectives: int = 20_000
    page_size: int = 4096
    nccl: bool = True
    clock_offset_range_ms: float | None = None
    clock_drift_range_ppm: float | None = None
    pace_ms: float = 0.0
    end_jitter_us: float | None = None
    waited_us: tuple[float, ...] | None = None
    mpi: bool = False
    mpi_teams: bool = False
    osrt: int = 0
    osrt_callchains: bool = False
    gpu_metrics: float = 0.0
    gpu_metric_devices: str = "own"
    gpu_models: str = "same"
    nic_metrics: float = 0.0
    switch_metrics: float = 0.0
    switch_congestion: bool = False
    storage_metrics: float = 0.0
    efa_metrics: float = 0.0
    nccl_trace: str = "legacy"
    nccl_groups: bool = False
    nccl_rooted: bool = False
    nccl_channels: int = 0
    nccl_proxy: bool = False
    bandwidth_truth: bool = False
    additions: tuple[str, ...] = ()
    operators: bool = True
    startup: float = 1.0
    work: float = 1.0
    fp32_work: float = 1.0
    gpu_metric_set: str = "full"
    late_rank: int | None = None
    late_us: float = 500.0
    hiccup_rank: int | None = None
    hiccup_step: int = 0
    hiccup_us: float = 5_000.0

    def __post_init__(self) -> None:
        for wrong, message in self._list_mistakes():
            if wrong:
                raise ValueError(message)

    def _list_mistakes(self) -> Iterator[tuple[object, str]]:
        """Yield whether options contradict each other, and a message."""
        yield min(self.ranks, self.hosts, self.steps, self.layers) < 1, "a job cannot be empty"
        yield self.ranks % max(1, self.hosts), "ranks must be a multiple of hosts"
        yield max(self.late_rank or 0, self.hiccup_rank or 0) >= self.ranks, "no such rank"

    @property
    def gpus_per_host(self) -> int:
        return self.ranks // self.hosts

    @property
    def has_causes(self) -> bool:
        """True if the job has an artificial delay, which the truth describes."""
        return self.late_rank is not None or self.hiccup_rank is not None

    @property
    def advanced(self) -> bool:
        return self.nccl_trace == "advanced"

    def payload_of(self, rank: int) -> str:
        """The form of payloads in a rank's report; never "mixed"."""
        return ("dynamic" if rank % 2 else "both") if self.payload == "mixed" else self.payload

    def graph_level(self, rank: int) -> str:
        """The level of CUDA graph tracing in a rank's report: "none", "graph" or "node"."""
        return ("node" if rank % 2 else "graph") if self.graphs == "mixed" else self.graphs

    def describe(self) -> dict[str, object]:
        """The options for the truth: the first ones, and others that differ from the default."""
        names = [one.name for one in fields(self)]
        first = names.index("page_size")
        asked = [one.name for one in fields(self)[first:] if getattr(self, one.name) != one.default]
        return {name: getattr(self, name) for name in (*names[:first], *asked)}
