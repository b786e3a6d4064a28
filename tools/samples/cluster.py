"""The machine the job runs on: hosts with wrong clocks, GPUs, processes with threads and streams,
communicators of NCCL and MPI.

*True time* is ns since the job's beginning on a perfect clock. What a report says is true time seen
through its host's clock:

* system clock = uptime + t + drift * t; at the capture start it is
  TARGET_INFO_SESSION_START_TIME.systemClockNs;
* UTC clock = EPOCH_NS + offset + t + drift * t; at the capture start it is utcEpochNs;
* event times = system clock now - system clock at the report's own capture start.

MPI's handles are like MPICH's: the predefined ones are the same in every process, the others count
up in each process for itself, and the number of a freed communicator is used again. Odd ranks have
one communicator more (their own copy of MPI_COMM_SELF), so that one and the same handle is the
row's communicator in some processes and the column's in others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .options import Options

Ints = NDArray[np.int64]
FIRST_EPOCH_NS = 600_000_000  # true time at which processes begin; every capture runs by then
EPOCH_NS = 1_780_000_000_000_000_000  # true UTC at true time 0, ns since 1970
#: HW id 0, VM id 1: the upper bytes of globalPid and globalTid (HW 8 bits, VM 8, pid 24, tid 24).
VM_ID = 1 << 48
DEVICE = "Local (CLI)"  # what reports call the machine
WORLD_HANDLE, SELF_HANDLE, FIRST_HANDLE = 0x4400_0000, 0x4400_0001, 0x8400_0000


class Thread(IntEnum):
    """Threads of a rank that have events; the value is its distance from the pid."""

    MAIN = 0
    AUTOGRAD = 9
    WATCHDOG = 14
    PIN_MEMORY = 17
    LOADER_0 = 20
    LOADER_1 = 21
    FORWARD = 40  # of ranges as PyTorch makes them
    BACKWARD = 41


class Stream(IntEnum):
    """CUDA streams of a rank; the value is the stream id on a process's first device."""

    COMPUTE = 7  # the null stream
    COPY = 13
    NCCL_SHARD = 17
    NCCL_REPLICA = 21
    NCCL_WORLD = 25


class Group(IntEnum):
    """Kinds of communicators. Of each kind, every rank belongs to one."""

    SHARD = 0  # the ranks of one host
    REPLICA = 1  # the ranks with one local rank
    WORLD = 2

    @property
    def stream(self) -> Stream:
        return (Stream.NCCL_SHARD, Stream.NCCL_REPLICA, Stream.NCCL_WORLD)[self]


@dataclass(frozen=True)
class Gpu:
    """A GPU of a host."""

    uuid: str
    bus: str


@dataclass(frozen=True)
class Host:
    """A host and its clock."""

    name: str
    offset_ns: int  # by which its UTC is wrong at true time 0
    drift_ppm: float
    uptime_ns: int  # at true time 0
    gpus: tuple[Gpu, ...] = field(repr=False)

    def system_clock(self, true_ns: Ints) -> Ints:
        """Read the system clock at true times."""
        gained = np.rint(true_ns * (self.drift_ppm * 1e-6)).astype(np.int64)
        return true_ns + gained + self.uptime_ns

    @property
    def utc_minus_system(self) -> int:
        return EPOCH_NS + self.offset_ns - self.uptime_ns


@dataclass(frozen=True)
class Rank:
    """One process of the job, and its report."""

    rank: int
    host: Host
    host_index: int
    gpu: int  # index on the host
    device: int  # CUDA ordinal that it uses
    pid: int
    capture_start_ns: int  # true time

    @property
    def global_pid(self) -> int:
        return VM_ID | self.pid << 24

    def global_tid(self, offset: int) -> int:
        """Return the globalTid of a thread, by its distance from the pid."""
        return self.global_pid | self.pid + offset

    @property
    def context(self) -> int:
        """The context: as with PyTorch, a process that uses device d has touched device 0 before."""
        return self.device + 1

    @property
    def columns(self) -> dict[str, Any]:
        """The columns that say where work on the GPU is done."""
        place = {"deviceId": self.device, "contextId": self.context, "globalPid": self.global_pid}
        return {**place, "greenContextId": 0}

    def stream(self, stream: Stream) -> int:
        """Return the id of a stream."""
        return stream + (8 if stream is Stream.COMPUTE else 32) * self.device

    @cached_property
    def start_clock(self) -> int:
        """Reading of the system clock at the capture start, ns."""
        return int(self.host.system_clock(np.asarray(self.capture_start_ns)))

    @property
    def start_utc(self) -> int:
        """Reading of the (wrong) UTC clock at the capture start, ns since 1970."""
        return self.start_clock + self.host.utc_minus_system

    def local(self, true_ns: Any) -> Any:
        """Return event times (ns since this report's capture start) of moments in true time."""
        return self.host.system_clock(true_ns) - self.start_clock

    def local_time(self, true_ns: int) -> int:
        """Return the event time of one moment."""
        return int(self.local(np.array(true_ns)))


@dataclass(frozen=True)
class Communicator:
    """An NCCL communicator."""

    hash: int  # what the payloads call "NCCL communicator ID" (unsigned 64 bit)
    group: Group
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Cluster:
    """Hosts, ranks and communicators of a job."""

    hosts: tuple[Host, ...]
    ranks: tuple[Rank, ...]
    communicators: tuple[Communicator, ...]

    @cached_property
    def grid(self) -> Grid:
        """The grid of ranks from which MPI's communicators are made."""
        return build_grid(len(self.ranks))

    def all_of(self, group: Group) -> list[Communicator]:
        """Return the communicators of a kind."""
        return [comm for comm in self.communicators if comm.group is group]

    def communicator(self, group: Group, rank: int) -> Communicator:
        """Return the communicator of a kind to which a rank belongs."""
        return next(comm for comm in self.all_of(group) if rank in comm.ranks)

    def sizes(self) -> dict[Group, int]:
        """Return the ranks in the largest communicator of each kind; 1 where there is none."""
        return {
            group: max([1, *(len(comm.ranks) for comm in self.all_of(group))]) for group in Group
        }


def draw_uuid(rng: np.random.Generator) -> str:
    """Draw a UUID."""
    text = rng.bytes(16).hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def build_cluster(options: Options) -> Cluster:
    """Lay ranks out over the hosts block by block; draw clocks, GPUs and ids by the seed."""
    rng, per_host = np.random.default_rng([options.seed, 0]), options.gpus_per_host
    hosts, ranks = [], []
    for index in range(options.hosts):
        offset = _draw_clock(
            rng, options.clock_offset_range_ms, 8.0, options.clock_offsets_ms[index:]
        )
        drift = _draw_clock(
            rng, options.clock_drift_range_ppm, 25.0, options.clock_drifts_ppm[index:]
        )
        uptime = int(rng.integers(3_600, 9_000_000)) * 1_000_000_000
        uptime += int(rng.integers(1_000_000_000))
        buses = [f"0000:{0x1B + 0x10 * gpu & 0xFF:02x}:00.0" for gpu in range(per_host)]
        gpus = tuple(Gpu(draw_uuid(rng), bus) for bus in buses)
        hosts.append(
            Host(f"node{index + 1:02d}", round(offset * 1e6), round(drift, 6), uptime, gpus)
        )
    for rank in range(options.ranks):
        host, gpu = divmod(rank, per_host)
        pid = 4242 + 64 * gpu  # the same on every host, as in containers
        device = gpu if options.visible == "all" else 0
        before = FIRST_EPOCH_NS - int(rng.integers(0, 400_000_000))
        start = FIRST_EPOCH_NS - round(before * options.startup)
        ranks.append(Rank(rank, hosts[host], host, gpu, device, pid, start))
    communicators = _build_communicators(options, rng) if options.nccl else []
    return Cluster(tuple(hosts), tuple(ranks), tuple(communicators))


def _draw_clock(
    rng: np.random.Generator, wide: float | None, usual: float, given: tuple[float, ...]
) -> float:
    """Draw an error within a range; without one, take the first that is given."""
    drawn = rng.uniform(-(usual if wide is None else wide), usual if wide is None else wide)
    return given[0] if given and wide is None else drawn


def _build_communicators(options: Options, rng: np.random.Generator) -> list[Communicator]:
    """Build one of all ranks, one for each host, one for each local rank; none of one rank, or of
    all a second time.
    """
    per_host, everyone = options.gpus_per_host, range(options.ranks)
    hosts = [
        (Group.SHARD, tuple(everyone[first : first + per_host])) for first in everyone[::per_host]
    ]
    replicas = [(Group.REPLICA, tuple(everyone[local::per_host])) for local in range(per_host)]
    found = []
    for group, ranks in ((Group.WORLD, tuple(everyone)), *hosts, *replicas):
        world = group is Group.WORLD
        low, high = (1 << 62, 1 << 63) if world else (1 << 60, 1 << 62)
        number = int(rng.integers(low, high)) * (1 + world) + world
        if len(ranks) > 1 and (world or len(ranks) < options.ranks):
            found.append(Communicator(number, group, ranks))
    return found


class Team(IntEnum):
    """Kinds of MPI's communicators, one of each for every rank; the value is its number at its root."""

    WORLD = 1
    SELF = 2
    TEMPORARY = 3  # a copy of the world (or part), freed before the columns' communicators are made
    ROW = 4
    COLUMN = 5
    OWN = 6  # odd ranks' copy of MPI_COMM_SELF


@dataclass(frozen=True)
class Grid:
    """A torus of ``rows`` x ``columns`` processes, numbered row by row."""

    rows: int
    columns: int
    #: Every communicator of each kind: world ranks by their rank in it.
    teams: dict[Team, list[tuple[int, ...]]]

    @property
    def size(self) -> int:
        return self.rows * self.columns

    def find_parent(self, team: Team) -> Team | None:
        """Find the parent of a communicator of this kind; MPI_Init makes those without one."""
        known = {Team.WORLD: None, Team.SELF: None, Team.OWN: Team.SELF}
        return known.get(team, Team.WORLD)

    def members(self, team: Team, rank: int) -> tuple[int, ...]:
        """Return the communicator of this kind that ``rank`` belongs to."""
        return next(ranks for ranks in self.teams[team] if rank in ranks)

    def find_neighbor(self, rank: int, team: Team, places: int) -> int:
        """Find the world rank so many places further in the communicator, going round."""
        members = self.members(team, rank)
        return members[(members.index(rank) + places) % len(members)]

    def find_partner(self, team: Team, rank: int) -> int:
        """Find the world rank of the other of a pair in the communicator; -1 for one left over."""
        members = self.members(team, rank)
        other = members.index(rank) ^ 1
        return members[other] if other < len(members) else -1


def build_grid(size: int) -> Grid:
    """Build the most nearly square grid of ``size`` processes."""
    rows = next(number for number in range(math.isqrt(size), 0, -1) if size % number == 0)
    every, columns = tuple(range(size)), size // rows
    alone = [(rank,) for rank in every]
    teams = {
        Team.WORLD: [every],
        Team.SELF: alone,
        Team.OWN: alone,
        Team.TEMPORARY: [every],
        Team.ROW: [every[at : at + columns] for at in range(0, size, columns)],
        Team.COLUMN: [every[at::columns] for at in range(columns)],
    }
    return Grid(rows, columns, teams)


def make_handle(team: Team, rank: int) -> int:
    """Return the handle of the process ``rank`` for its communicator of this kind."""
    if team in (Team.WORLD, Team.SELF):
        return WORLD_HANDLE if team is Team.WORLD else SELF_HANDLE
    own = rank % 2
    places = {Team.OWN: 0, Team.TEMPORARY: own, Team.ROW: own + 1, Team.COLUMN: own}
    return FIRST_HANDLE + places[team]


def make_uid(members: tuple[int, ...], team: Team) -> int:
    """Return the globally unique id: the root's world rank and its number for the communicator."""
    return members[0] << 32 | team
