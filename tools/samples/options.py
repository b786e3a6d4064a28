"""Options of a generated job. Each field is an option of the command line too, under its name; its
help stands beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any


def option(default: Any, text: str, *, choices: str = "", flag: float | None = None) -> Any:
    """A field with help. choices: words with spaces between. flag: the value of an option that is
    given without one.
    """
    metadata = {"help": text, "choices": choices.split(), "flag": flag}
    return field(default=default, metadata=metadata)


def choice(words: str, text: str) -> Any:
    """A field of one of these words; the first is the default."""
    return option(words.split()[0], text, choices=words)


@dataclass(frozen=True)
class Options:
    """What a job is, and what its reports have."""

    ranks: int = option(4, "processes, one GPU and one report each; a multiple of hosts")
    hosts: int = option(2, "machines, each with its own clock")
    steps: int = option(4, "training steps")
    layers: int = option(4, "transformer layers of the model")
    seed: int = option(1, "everything random follows from it")
    graphs: str = choice(
        "none graph node mixed",
        "CUDA graphs: traced as graphs, as nodes, or mixed (even ranks graph, odd ranks node)",
    )
    visible: str = choice(
        "isolated all", "what a process sees: its GPU as device 0, or all GPUs of the host"
    )
    payload: str = choice(
        "both json binary dynamic none mixed",
        "how NCCL's NVTX payloads are exported: JSON, bytes, both, a table for each schema "
        "(dynamic), or not; mixed: even ranks both, odd ranks dynamic",
    )
    row_order: str = choice("time shuffled", "order of the rows in the tables")
    events_per_rank: int | None = option(
        None,
        "as many steps (or, if one is too much, fewer layers) as give about so many rows per report",
    )
    clock_offsets_ms: tuple[float, ...] = option(
        (0.0, 3.7), "clock error of each host at the beginning; others get one by the seed"
    )
    clock_drifts_ppm: tuple[float, ...] = option(
        (0.0, 12.5), "by how much each host's clock runs fast; likewise"
    )
    skew_us: float = option(250.0, "mean lateness of a rank at a step's beginning")
    truth_collectives: int = option(
        20_000, "at most so many collectives in the truth (then those of every n-th step)"
    )
    page_size: int = option(
        4096, "bytes of a page of the SQLite files; small pages make small sets smaller"
    )
    nccl: bool = option(True, "the job uses NCCL; without, hosts meet in MPI calls only")
    clock_offset_range_ms: float | None = option(
        None, "clock error of every host by the seed, within so much to both sides"
    )
    clock_drift_range_ppm: float | None = option(None, "drift of every host's clock, likewise")
    pace_ms: float = option(0.0, "idle time between steps")
    end_jitter_us: float | None = option(
        None, "ranks leave a collective later by up to so much (by default 2.5 in NCCL, 0.9 in MPI)"
    )
    waited_us: tuple[float, ...] | None = option(
        None, "those who waited for others later still by (one of) this (by default 4 in NCCL)"
    )
    gpu_lag_us: float = option(0.0, "a constant lag of each GPU, up to so much")
    lost_collectives: float = option(
        0.0, "share of the collectives of which one report lacks rows: all, or one kind of them"
    )
    extra_collectives: float = option(
        0.0, "share of steps, for each kind of collective, after which one report has one more"
    )
    cut_report: str = choice("none begin end", "one report lacks all rows before or after a moment")
    cut_rank: int = option(0, "whose report that is")
    cut_at: float = option(0.5, "the moment, as a share of the steps")
    lonely_host: bool = option(False, "ranks of the last host communicate only among themselves")
    same_host_name: bool = option(
        False, "all hosts have one name; only their clocks tell them apart"
    )
    mpi: bool = option(
        False,
        "the job uses MPI too: halo exchange, messages and collectives on several communicators",
    )
    mpi_comm_uids: bool = option(
        True,
        "MPI rows name their communicator by commUid; else by its handle alone, as in older exports",
    )
    osrt: int = option(
        0, "so many more OS runtime calls per step and process, on several threads, some nested"
    )
    osrt_callchains: bool = option(False, "OS runtime calls of more than 80 us have call chains")
    gpu_metrics: float = option(0.0, "samples of GPU metrics per second", flag=1000.0)
    gpu_metric_devices: str = choice(
        "own host", "whose GPUs a report samples: its process's, or all of its host's"
    )
    gpu_models: str = choice(
        "same mixed", "mixed: hosts of odd number have another model, with other metrics"
    )
    nic_metrics: float = option(
        0.0, "samples of network interfaces per second, in every report of a host", flag=1000.0
    )
    switch_metrics: float = option(
        0.0, "samples of an InfiniBand switch per second, in every report", flag=1000.0
    )
    switch_congestion: bool = option(False, "the switch reports congestion, in every report")
    storage_metrics: float = option(
        0.0, "samples of storage volumes per second (generic events)", flag=1000.0
    )
    efa_metrics: float = option(
        0.0, "samples of EFA devices per second (generic events)", flag=1000.0
    )
    nccl_trace: str = choice(
        "legacy advanced", "NCCL's own NVTX ranges, or those of nsys's advanced NCCL trace"
    )
    nccl_groups: bool = option(
        False, "steps also have two collectives in one NCCL group, hence one kernel"
    )
    nccl_rooted: bool = option(
        False, "steps also have a broadcast within hosts and a reduction to one rank"
    )
    nccl_channels: int = option(0, "NCCL uses at most so many channels (0: as many as it likes)")
    nccl_proxy: bool = option(False, "the advanced NCCL trace has the proxy's operations too")
    bandwidth_truth: bool = option(
        False, "waits, transfers and bus bandwidths of NCCL's collectives in the truth"
    )
    additions: tuple[str, ...] = option((), "families of further tables, by name; or all")
    operators: bool = option(True, "the ranges of PyTorch's operators are recorded")
    startup: float = option(1.0, "how long the start takes, as a multiple")
    work: float = option(1.0, "how long kernels that compute last, as a multiple")
    fp32_work: float = option(1.0, "how long the GEMM in single precision lasts, as a multiple")
    gpu_metric_set: str = choice(
        "full main", "which GPU metrics are sampled: all of a model, or the main ones"
    )
    late_rank: int | None = option(None, "a rank that loads its batch more slowly in every step")
    late_us: float = option(500.0, "by how much more slowly, in the mean")
    hiccup_rank: int | None = option(None, "a rank whose host stops once, in a backward pass")
    hiccup_step: int = option(0, "the step in which that happens, from 0")
    hiccup_us: float = option(5_000.0, "for how long")

    def __post_init__(self) -> None:
        for wrong, message in self._list_mistakes():
            if wrong:
                raise ValueError(message)

    def _list_mistakes(self) -> Iterator[tuple[object, str]]:
        """Yield what options must not be, whether they are, and a message."""
        for name in ("ranks", "hosts", "steps", "layers"):
            yield getattr(self, name) < 1, f"{name} must be at least 1"
        for name in (one.name for one in fields(self)):
            signed = name in ("clock_offsets_ms", "clock_drifts_ppm")
            yield not signed and _below_0(getattr(self, name)), f"{name} must not be negative"
        for name in ("lost_collectives", "extra_collectives", "cut_at"):
            yield getattr(self, name) > 1, f"{name} must be from 0 to 1"
        yield self.ranks % max(1, self.hosts), "ranks must be a multiple of hosts"
        yield self.events_per_rank == 0, "events_per_rank must be at least 1"
        yield self.waited_us == (), "waited_us must be one or more numbers"
        for name in ("cut_rank", "late_rank", "hiccup_rank"):
            yield (getattr(self, name) or 0) >= self.ranks, f"{name} must be one of the ranks"
        late = self.events_per_rank is None and self.hiccup_step >= self.steps
        yield self.hiccup_rank is not None and late, "hiccup_step must be one of the steps"
        ranges = self.clock_offset_range_ms, self.clock_drift_range_ppm
        given = self.clock_offsets_ms != (0.0, 3.7), self.clock_drifts_ppm != (0.0, 12.5)
        both = any(wide is not None and one for wide, one in zip(ranges, given, strict=True))
        yield both, "clocks by number and clocks from a range exclude each other"
        sampled = self.nic_metrics or self.switch_metrics or self.storage_metrics
        sampled = sampled or self.efa_metrics
        if self.cut_report != "none":
            whole = self.gpu_metrics or sampled or self.graphs != "none"
            yield whole, "a report with sampled metrics or CUDA graphs cannot be cut"
        if self.same_host_name:
            yield sampled, "the truth about network and storage needs hosts with names of their own"
        if self.lonely_host:
            yield self.hosts < 2, "a host can be lonely only beside others"
            yield (
                self.nccl_rooted,
                "collectives with a root are over all hosts, which a lonely host has no part in",
            )
        if not self.nccl:
            yield (
                self.nccl_trace != "legacy" or self.nccl_groups or self.nccl_rooted,
                "a job without NCCL has no NCCL trace, no NCCL groups and no collectives of it",
            )
        if self.payload in ("dynamic", "mixed"):
            faulty = self.lost_collectives or self.extra_collectives or self.cut_report != "none"
            yield faulty, "rows beside their payload's tables cannot be lost, cut or added"
        if self.nccl_proxy:
            legacy = self.nccl_trace != "advanced"
            yield legacy, "the proxy's operations are part of the advanced NCCL trace"
        alone = self.osrt_callchains and not self.osrt
        yield alone, "call chains need OS runtime calls (osrt)"

    @property
    def gpus_per_host(self) -> int:
        return self.ranks // self.hosts

    @property
    def has_causes(self) -> bool:
        """Whether something is put in that holds the job back, and is told in the truth."""
        return self.late_rank is not None or self.hiccup_rank is not None

    @property
    def lonely_ranks(self) -> int:
        """How many ranks, the last ones, communicate only among themselves."""
        return self.gpus_per_host if self.lonely_host else 0

    @property
    def advanced(self) -> bool:
        return self.nccl_trace == "advanced"

    def payload_of(self, rank: int) -> str:
        """How a rank's report has payloads; never "mixed"."""
        return ("dynamic" if rank % 2 else "both") if self.payload == "mixed" else self.payload

    def graph_level(self, rank: int) -> str:
        """How a rank's report traces CUDA graphs: "none", "graph" or "node"."""
        return ("node" if rank % 2 else "graph") if self.graphs == "mixed" else self.graphs

    def described(self) -> dict[str, object]:
        """For the truth: the options up to `truth_collectives`, and of the others those that are
        not at their default.
        """
        names = [one.name for one in fields(self)]
        first = names.index("page_size")
        changed = [
            one.name for one in fields(self)[first:] if getattr(self, one.name) != one.default
        ]
        return {name: getattr(self, name) for name in (*names[:first], *changed)}


def _below_0(value: Any) -> bool:
    values = value if isinstance(value, tuple) else (value,)
    return any(isinstance(one, int | float) and one < 0 for one in values)
