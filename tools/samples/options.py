"""What can be asked of the generator."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

Graphs = Literal["none", "graph", "node", "mixed"]
Visible = Literal["isolated", "cgroup", "all"]
Payload = Literal["both", "json", "binary", "dynamic", "none", "mixed"]
RowOrder = Literal["time", "issue", "shuffled"]
NcclTrace = Literal["legacy", "advanced"]
MetricDevices = Literal["own", "host", "first"]
GpuModels = Literal["same", "mixed"]
ClockUnit = Literal["hz", "mhz"]
CutReport = Literal["none", "begin", "end"]


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
        payload: how NCCL's NVTX payloads are exported: as JSON text, as bytes, both, in a table for each schema
            ("dynamic"), or not at all; "mixed" = even ranks both, odd ranks dynamic.
        row_order: order of the rows in a table: by time, as issued (stream after stream), or shuffled (within a block
            of steps).
        events_per_rank: wanted number of event rows in each report; overrides ``steps``, and ``layers`` where too many.
        clock_offsets_ms: error of each host's clock at the beginning of the job; hosts not listed get one from the
            seed.
        clock_drifts_ppm: by how much each host's clock runs fast; hosts not listed get one from the seed.
        skew_us: mean lateness of a rank at the beginning of a step.
        truth_collectives: at most so many collectives are written to the truth (then only those of every n-th step).
        jobs: processes to write with. The result does not depend on it.
        page_size: bytes of a page of the SQLite files; real exports have 4096, small pages make small sets smaller.
        nccl: the job uses NCCL; without, its hosts meet in MPI calls only (or not at all).
        clock_offset_range_ms: every host's offset is drawn from the seed, evenly within so much to both sides;
            ``clock_offsets_ms`` then does not count.
        clock_drift_range_ppm: likewise every host's drift.
        pace_ms: idle time between steps.
        end_jitter_us: each rank leaves a collective (NCCL's kernels, MPI's calls) later by up to so much, evenly; None:
            2.5 us in NCCL, 0.9 us in MPI collectives, nothing in MPI messages.
        waited_us: a rank that waited for the others in a collective ends later by this; of several numbers by one drawn
            for each rank and collective. None: 4 us in NCCL, nothing in MPI.
        gpu_lag_us: the work of each GPU begins, and its collectives end, later by a constant of up to so much.
        lost_collectives: of so large a share of the steps' collectives (0 to 1) one rank's report lacks the rows: all of
            them, or just NCCL's ranges, the launch call or the kernel.
        extra_collectives: with this probability, for each kind of collective of each step, one rank's report has one more
            after the step's end, of which the others know nothing.
        cut_report: one report lacks all rows before ("begin") or after ("end") a moment.
        cut_rank: whose report that is.
        cut_at: the moment, as a share of the steps.
        lonely_host: the ranks of the last host communicate only among themselves.
        same_host_name: all hosts have one name, as containers may; only their clocks tell them apart.
        mpi: the job uses MPI too: halo exchange, messages and collectives on several communicators.
        mpi_comm_uids: MPI rows name their communicator by commUid; else only by commHandle, as in older exports.
        osrt: so many more OS runtime calls per step and process, on several threads, nested and long ones among them.
        osrt_callchains: OS runtime calls of more than 80 us have call chains.
        gpu_metrics: samples of GPU metrics per second; 0 for none.
        gpu_metric_devices: whose GPUs a report samples: that of its process; all of its host's ("host": every GPU's
            samples are then in every report of the host); "first": all of the host's, but in one report per host only.
        gpu_models: "mixed": the hosts of odd number have another model, with other metrics and other metric ids.
        gpu_clock_unit: what the clock metrics hold. Real exports hold Hz, although the names say "[MHz]".
        nic_metrics: samples of network interfaces per second; every report of a host records all of its interfaces.
        switch_metrics: samples of the InfiniBand switch per second, in every report of the job.
        switch_congestion: the switch reports congestion, in every report of the job.
        storage_metrics: samples of storage volumes per second (generic events), in every report of a host.
        efa_metrics: samples of EFA devices per second (generic events), in every report of a host.
        nccl_trace: NCCL's own NVTX ranges, or those of nsys's advanced NCCL trace (2025.6 and later).
        nccl_groups: steps also have two collectives in one NCCL group, hence one kernel.
        nccl_rooted: steps also have collectives with a root: buffers are broadcast within a host, a metric is reduced to
            one rank.
        nccl_channels: NCCL uses at most so many channels (blocks of its kernels, rows per operation in the advanced
            trace); 0: as many as it likes.
        nccl_proxy: the advanced NCCL trace has the proxy's operations too.
        bandwidth_truth: the truth also says how long each rank waited in each NCCL collective, how late it came, how
            long the transfer took, and the bus bandwidth.
        additions: names of modules in ``additions`` whose tables the reports have too.
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
    page_size: int = 4096
    nccl: bool = True
    clock_offset_range_ms: float | None = None
    clock_drift_range_ppm: float | None = None
    pace_ms: float = 0.0
    end_jitter_us: float | None = None
    waited_us: tuple[float, ...] | None = None
    gpu_lag_us: float = 0.0
    lost_collectives: float = 0.0
    extra_collectives: float = 0.0
    cut_report: CutReport = "none"
    cut_rank: int = 0
    cut_at: float = 0.5
    lonely_host: bool = False
    same_host_name: bool = False
    mpi: bool = False
    mpi_comm_uids: bool = True
    osrt: int = 0
    osrt_callchains: bool = False
    gpu_metrics: float = 0.0
    gpu_metric_devices: MetricDevices = "own"
    gpu_models: GpuModels = "same"
    gpu_clock_unit: ClockUnit = "hz"
    nic_metrics: float = 0.0
    switch_metrics: float = 0.0
    switch_congestion: bool = False
    storage_metrics: float = 0.0
    efa_metrics: float = 0.0
    nccl_trace: NcclTrace = "legacy"
    nccl_groups: bool = False
    nccl_rooted: bool = False
    nccl_channels: int = 0
    nccl_proxy: bool = False
    bandwidth_truth: bool = False
    additions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("ranks", "hosts", "steps", "layers", "jobs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.ranks % self.hosts:
            raise ValueError(f"{self.ranks} ranks cannot be spread evenly over {self.hosts} hosts")
        if self.events_per_rank is not None and self.events_per_rank < 1:
            raise ValueError("events_per_rank must be at least 1")
        numbers = ("osrt", "gpu_metrics", "nic_metrics", "switch_metrics", "storage_metrics", "efa_metrics", "nccl_channels")
        for name in numbers:
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")
        self._check_clocks()
        self._check_faults()
        if self.nccl_proxy and self.nccl_trace != "advanced":
            raise ValueError("the proxy's operations are part of the advanced NCCL trace")
        if self.osrt_callchains and not self.osrt:
            raise ValueError("call chains need OS runtime calls (osrt)")

    def _check_clocks(self) -> None:
        for given, chosen in (("clock_offsets_ms", "clock_offset_range_ms"), ("clock_drifts_ppm", "clock_drift_range_ppm")):
            default = type(self).__dataclass_fields__[given].default
            if getattr(self, chosen) is not None and getattr(self, given) != default:
                raise ValueError(f"{given} and {chosen} exclude each other")
        for name in ("clock_offset_range_ms", "clock_drift_range_ppm", "pace_ms", "end_jitter_us", "gpu_lag_us"):
            if (getattr(self, name) or 0.0) < 0:
                raise ValueError(f"{name} must not be negative")
        if self.waited_us is not None and (not self.waited_us or min(self.waited_us) < 0):
            raise ValueError("waited_us must be one or more numbers that are not negative")

    def _check_faults(self) -> None:
        for name in ("lost_collectives", "extra_collectives"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be from 0 to 1")
        if not 0 <= self.cut_at < 1 or not 0 <= self.cut_rank < self.ranks:
            raise ValueError("cut_at must be at least 0 and below 1, cut_rank one of the ranks")
        sampled = self.gpu_metrics or self.nic_metrics or self.switch_metrics or self.storage_metrics or self.efa_metrics
        if self.cut_report != "none" and (sampled or self.graphs != "none"):
            raise ValueError("a report with sampled metrics or CUDA graphs cannot be cut")
        if self.same_host_name and (self.nic_metrics or self.switch_metrics or self.storage_metrics or self.efa_metrics):
            raise ValueError("the truth about network and storage needs hosts with names of their own")
        if self.lonely_host and self.hosts < 2:
            raise ValueError("a host can be lonely only beside others")
        if not self.nccl and (self.nccl_trace != "legacy" or self.nccl_groups or self.nccl_rooted):
            raise ValueError("a job without NCCL has no NCCL trace, no NCCL groups and no collectives of it")
        if self.lonely_host and self.nccl_rooted:
            raise ValueError("collectives with a root are over all hosts, which a lonely host has no part in")
        if self.payload in ("dynamic", "mixed") and (self.lost_collectives or self.extra_collectives or self.cut_report != "none"):
            raise ValueError("rows beside their payload's tables cannot be lost, cut or added")

    @property
    def lonely_ranks(self) -> int:
        """How many ranks, the last ones, communicate only among themselves."""
        return self.gpus_per_host if self.lonely_host else 0

    @property
    def gpus_per_host(self) -> int:
        return self.ranks // self.hosts

    def payload_of(self, rank: int) -> Payload:
        """How a rank's report has payloads; never "mixed"."""
        if self.payload == "mixed":
            return "dynamic" if rank % 2 else "both"
        return self.payload

    def described(self) -> dict[str, object]:
        """The options that shape the set, for the record: those before ``jobs``, which does not, and of those after it
        the ones that are not at their default.
        """
        names = [option.name for option in fields(self)]
        first, later = names[: names.index("jobs")], fields(self)[names.index("jobs") + 1 :]
        changed = [option.name for option in later if getattr(self, option.name) != option.default]
        return {name: getattr(self, name) for name in (*first, *changed)}
