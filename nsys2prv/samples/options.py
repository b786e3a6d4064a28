"""What can be asked of the generator."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

Graphs = Literal["none", "graph", "node", "mixed"]
Visible = Literal["isolated", "cgroup", "all"]
Payload = Literal["both", "json", "binary", "none"]
RowOrder = Literal["time", "issue", "shuffled"]


@dataclass(frozen=True)
class Options:
    """Options of one generated set.

    Attributes:
        ranks: processes of the job, one report each; a multiple of ``hosts``.
        hosts: machines, each with its own clock.
        steps: training steps.
        layers: transformer layers of the model.
        seed: everything random follows from it.
        graphs: CUDA graphs: none; every rank at "graph" or at "node" granularity; "mixed" = even ranks graph, odd
            ranks node.
        visible: what a process sees of its host's GPUs. "isolated": CUDA_VISIBLE_DEVICES names one, CUDA calls it
            device 0, the report lists all; "cgroup": only its own exists; "all": it sees every one and uses device =
            local rank.
        payload: how NCCL's NVTX payloads are exported.
        row_order: order of the rows in a table: by time, as issued (stream after stream), or shuffled (within a block
            of steps).
        events_per_rank: wanted number of event rows in each report; overrides ``steps``, and ``layers`` where too many.
        clock_offsets_ms: error of each host's clock at the beginning of the job; hosts not listed get one from the
            seed.
        clock_drifts_ppm: by how much each host's clock runs fast; hosts not listed get one from the seed.
        skew_us: mean lateness of a rank at the beginning of a step.
        truth_collectives: at most so many collectives are written to the truth (then only those of every n-th step).
        jobs: processes to write with. The result does not depend on it.
    """

    ranks: int = 4
    hosts: int = 2
    steps: int = 4
    layers: int = 4
    seed: int = 1
    graphs: Graphs = "none"
    visible: Visible = "isolated"
    payload: Payload = "both"
    row_order: RowOrder = "time"
    events_per_rank: int | None = None
    clock_offsets_ms: tuple[float, ...] = (0.0, 3.7)
    clock_drifts_ppm: tuple[float, ...] = (0.0, 12.5)
    skew_us: float = 250.0
    truth_collectives: int = 20_000
    jobs: int = 1

    def __post_init__(self) -> None:
        for name in ("ranks", "hosts", "steps", "layers", "jobs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.ranks % self.hosts:
            raise ValueError(f"{self.ranks} ranks cannot be spread evenly over {self.hosts} hosts")
        if self.events_per_rank is not None and self.events_per_rank < 1:
            raise ValueError("events_per_rank must be at least 1")

    @property
    def gpus_per_host(self) -> int:
        return self.ranks // self.hosts

    def described(self) -> dict[str, object]:
        """The options that shape the set, for the record (``jobs`` does not)."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "jobs"}
