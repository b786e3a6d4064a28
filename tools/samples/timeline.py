"""Times for a program: many runs (steps) of it on all ranks at once.

Arrays have the axes (run, rank, operation). Within a run, times are float64 ns since the run's
epoch, in true time; host and GPU start drained, so runs do not depend on one another. The rules:

* the host performs operations one after the other; a synchronisation lasts until the stream has
  finished;
* GPU work begins when its launch has arrived, what is before it on its stream has finished, and the
  events its stream waits for have happened;
* a collective begins on each rank as soon as it can there, and ends on all ranks of its
  communicator together, a transfer after the last one has begun - but for some microseconds: who
  has waited ends later. (Measured on two H100 in one report: the difference of the two ends has two
  modes about 20 us apart, by which of the two had waited.)
* a message of at most ``EAGER`` bytes travels as soon as it is sent; a larger one when the receive
  is posted too, and then its sender waits as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .cluster import Cluster, Stream
from .mpi import Meeting, Message
from .options import Options
from .program import FP32, PAD_NS, Kind, Op, Program

Floats = NDArray[np.float64]
Random = np.random.Generator

LAUNCH_NS = 5_100  # least time from a launch call's begin to the work's (measured on H100)
WAKE_NS = 2_600  # from the end of the work to the return of the call that waited for it
#: A rank has waited if it has begun so much before the last that matters to it.
WAITED_FROM_NS = 20_000.0
EAGER = 8_192  # bytes; larger messages wait for their receiver
BANDWIDTH = (24.0, 11.5)  # of MPI, bytes per ns within a host and between hosts
LATENCY = (700.0, 1_900.0)  # likewise, ns
COPY_BYTES_PER_NS, SEND_NS, MPI_WAKE_NS = 30.0, 450.0, 350.0
GPU_WORK = (Kind.KERNEL, Kind.COPY, Kind.SET)


@dataclass
class Block:
    """Times of consecutive runs; axes (run, rank, operation). NaN without GPU work."""

    host_begin: Floats
    host_end: Floats
    gpu_begin: Floats
    gpu_end: Floats
    event_time: Floats  # when each recorded event happened on the GPU; axes (run, rank, event)
    arrival: Floats  # of MPI messages' data; axes (run, receiving rank, message)

    def find_ends(self) -> Floats:
        """Find the end of each run on each rank: of the host's last operation and of all work."""
        worked = np.fmax.reduce(self.gpu_end, axis=-1, initial=0.0)
        return np.maximum(self.host_end[..., -1], worked)

    @property
    def host(self) -> tuple[Floats, Floats]:
        """Begins and ends of operations on the host."""
        return self.host_begin, self.host_end

    @property
    def gpu(self) -> tuple[Floats, Floats]:
        """Begins and ends of their work on the GPU."""
        return self.gpu_begin, self.gpu_end


class Noise:
    """Scatter of the times (ns) at which ranks leave a collective or a message."""

    def __init__(self, options: Options) -> None:
        jitter, waited = options.end_jitter_us, [us * 1e3 for us in options.waited_us or ()]
        #: Ends are late by up to so much, evenly; by kind of operation.
        self.spread_ns = {Kind.COLLECTIVE: 2_500.0, Kind.MPI: 900.0}
        if jitter is not None:
            self.spread_ns = dict.fromkeys(self.spread_ns, jitter * 1e3)
        self.message_ns = (jitter or 0.0) * 1e3
        #: The ends of those who waited, by one of these more.
        self.waited_ns = {Kind.COLLECTIVE: waited or [4_000.0], Kind.MPI: waited or [0.0]}

    def draw_lateness(self, kind: Kind, waited: NDArray[np.bool_], rng: Random) -> Floats:
        """Draw the delay of the ends of waiting ranks; 0 for the others."""
        times = np.array(self.waited_ns[kind])
        drawn = times[0] if len(times) == 1 else times[rng.integers(0, len(times), waited.shape)]
        return drawn * waited


class Timeline:
    """Simulates one program on a cluster."""

    def __init__(self, program: Program, cluster: Cluster, options: Options) -> None:
        self.program, self.cluster, self.noise = program, cluster, Noise(options)
        rng = np.random.default_rng([options.seed, 1])
        count = len(cluster.ranks)
        self.host_speed = rng.uniform(0.97, 1.05, count)[None, :, None]
        self.gpu_speed = rng.uniform(0.98, 1.04, count)[None, :, None]
        self.gap = np.array([op.gap_ns for op in program.ops])
        self.pads = np.array([PAD_NS * op.edges if op.graph < 0 else 0.0 for op in program.ops])
        self.api = np.array([op.api_ns for op in program.ops])
        self.work = np.array([op.work_ns for op in program.ops])
        for index in program.all_of(Kind.KERNEL):
            single = program.ops[index].kernel == FP32
            self.work[index] *= options.fp32_work if single else options.work
        self.sections = list(_cut_into_sections(program.ops))

    def run(self, rng: Random, begin: Floats, delays: Mapping[str, Floats] | None = None) -> Block:
        """Simulate ``len(begin)`` runs; ``begin`` (run, rank) is when each rank's host begins, ns
        since the run's epoch. delays: for how long hosts are held up at the program's marks.
        """
        run = _Run(self, rng, begin)
        for cause, held in (delays or {}).items():
            run.gap[..., self.program.marks[cause]] += held
        mpi = _MpiTiming(self.program, self.cluster, self.noise, run.block, rng)
        for kind, first, last in self.sections:
            run.time_host(slice(first, last))
            if kind is None:
                run.time_launches(range(first, last))
            elif kind is Kind.COLLECTIVE:
                run.time_collective(first)
            elif kind is Kind.MPI:
                run.host = mpi.time_call(first, run.api[..., first], run.work[..., first])
                run.block.host_end[..., first] = run.host
            else:
                run.time_order(first)
        return run.block

    def transfer_times(self, op: Op, transfer: Floats) -> Floats:
        """Return how long an NCCL operation transfers: as drawn, unless a link is slow."""
        return transfer


class _Run:
    """Runs in simulation: drawn durations (run, rank, operation), and the current times of host and streams
    (run, rank); ns.
    """

    def __init__(self, timeline: Timeline, rng: Random, begin: Floats) -> None:
        self.timeline, self.program, self.cluster = timeline, timeline.program, timeline.cluster
        self.noise, self.rng = timeline.noise, rng
        shape = (*begin.shape, len(self.program.ops))
        luck, noise = rng.random(shape), rng.random(shape)
        self.launch = LAUNCH_NS + 1_400.0 * noise
        self.pause = 0.18 * self.launch
        factor = 0.85 + 0.4 * luck + 6.0 * luck**40
        self.gap = timeline.pads + timeline.gap * factor * timeline.host_speed
        self.api = timeline.api * (0.8 + 0.5 * rng.random(shape)) * timeline.host_speed
        self.work = timeline.work * (0.97 + 0.06 * noise) * timeline.gpu_speed
        self.host = begin.copy()  # end of its last operation
        self.tail = {stream: np.zeros(begin.shape) for stream in Stream}  # end of its last work
        self.block = Block(
            *(np.full(shape, np.nan) for _ in range(4)),
            event_time=np.zeros((*begin.shape, max(self.program.events, 1))),
            arrival=np.full((*begin.shape, len(self.program.messages)), np.nan),
        )

    def time_host(self, span: slice) -> None:
        """Time host operations one after the other."""
        api = self.api[..., span]
        begin = self.host[..., None] + np.cumsum(self.gap[..., span] + api, axis=-1) - api
        self.block.host_begin[..., span], self.block.host_end[..., span] = begin, begin + api
        self.host = self.block.host_end[..., span.stop - 1].copy()

    def time_launches(self, span: range) -> None:
        """Time launched work: begin at max(arrival_i, end_{i-1} + pause_i), a running maximum."""
        ops = self.program.ops
        works = [index for index in span if ops[index].kind in GPU_WORK]
        for stream in sorted({ops[index].stream for index in works}):
            which = np.array([index for index in works if ops[index].stream is stream])
            arrival = self.block.host_begin[..., which] + self.launch[..., which]
            work = self.work[..., which]
            before = np.cumsum(self.pause[..., which] + work, axis=-1) - work
            ready = np.maximum.accumulate(arrival - before, axis=-1)
            begin = before + np.maximum(ready, self.tail[stream][..., None])
            self.block.gpu_begin[..., which] = begin
            self.block.gpu_end[..., which] = begin + work
            self.tail[stream] = self.block.gpu_end[..., which[-1]].copy()

    def time_order(self, index: int) -> None:
        """Time the operations that order host, streams and ranks: events, waits and synchronizations."""
        op, tail, events = self.program.ops[index], self.tail, self.block.event_time
        if op.kind is Kind.RECORD:
            arrival = self.block.host_begin[..., index] + self.launch[..., index]
            events[..., op.event] = np.maximum(tail[op.stream], arrival)
        elif op.kind is Kind.WAIT:
            tail[op.stream] = np.maximum(tail[op.stream], events[..., op.event])
        elif op.kind is Kind.MEET:
            for comm in self.cluster.all_of(op.payload.group):
                ranks = list(comm.ranks)
                last = self.block.host_begin[:, ranks, index].max(axis=1, keepdims=True)
                self.host[:, ranks] = last + self.api[:, ranks, index]
        elif op.kind is Kind.SYNC_EVENT:
            self.host = np.maximum(self.host, events[..., op.event] + WAKE_NS)
        else:
            waited = [op.stream] if op.kind is Kind.SYNC_STREAM else Stream
            done = np.maximum.reduce([tail[stream] for stream in waited])
            self.host = np.maximum(self.host, done + WAKE_NS)
        self.block.host_end[..., index] = self.host

    def time_collective(self, index: int) -> None:
        """Time a collective of NCCL on all its communicators."""
        op = self.program.ops[index]
        transfer = self.timeline.transfer_times(op, self.work[..., index])
        arrival = self.block.host_begin[..., index] + self.launch[..., index]
        begin = np.maximum(self.tail[op.stream] + 700.0, arrival)
        last, end = begin.copy(), begin + transfer  # last: when the last that matters has begun
        for comm in self.cluster.all_of(op.payload.group):
            ranks = list(comm.ranks)
            own = begin[:, ranks]
            if op.payload.function == "SendRecv":  # a ring: only the neighbours matter
                neighbours = np.maximum(np.roll(own, 1, axis=1), np.roll(own, -1, axis=1))
                last[:, ranks] = np.maximum(own, neighbours)
            else:
                last[:, ranks] = own.max(axis=1, keepdims=True)
            end[:, ranks] = last[:, ranks] + transfer[:, ranks[:1]]
        end += self.rng.random(begin.shape) * self.noise.spread_ns[Kind.COLLECTIVE]
        waited = last - begin > WAITED_FROM_NS
        end += self.noise.draw_lateness(Kind.COLLECTIVE, waited, self.rng)
        self.block.gpu_begin[..., index], self.block.gpu_end[..., index] = begin, end
        self.tail[op.stream] = end


def _cut_into_sections(ops: list[Op]) -> Iterator[tuple[Kind | None, int, int]]:
    """Cut a program into stretches of launches (kind None) and single special operations."""
    first = 0
    for index, op in enumerate(ops):
        if op.kind not in (Kind.HOST, *GPU_WORK):
            if first < index:
                yield None, first, index
            yield op.kind, index, index + 1
            first = index + 1
    if first < len(ops):
        yield None, first, len(ops)


class _MpiTiming:
    """Ends of the MPI calls of runs of a program; axes are (run, rank)."""

    def __init__(
        self, program: Program, cluster: Cluster, noise: Noise, block: Block, rng: Random
    ) -> None:
        self.program, self.noise, self.block, self.rng = program, noise, block, rng
        self.grid = cluster.grid
        hosts = np.array([rank.host_index for rank in cluster.ranks])
        self.far = (hosts[:, None] != hosts[None, :]).astype(np.int64)
        self.left: dict[int, Floats] = {}  # when large messages' data have left their sender
        self.met: dict[int, Floats] = {}  # when collectives only started are complete

    def time_call(self, index: int, api: Floats, cost: Floats) -> Floats:
        """Return the time when every rank leaves operation ``index``; ``api`` and ``cost`` as drawn (ns)."""
        op = self.program.ops[index]
        begin = self.block.host_begin[..., index]
        end = begin + api
        for number, message in enumerate(self.program.messages):
            if max(message.send, message.receive) == index and message.receive >= 0:
                self._deliver(number, message)
        if op.mpi.meeting is not Meeting.NONE:
            met = self._meet(op, begin, end, cost)
            if op.mpi.request < 0:
                return met
            self.met[index] = met
        elif op.mpi.waits and op.mpi.blocks:
            wake = self._draw_wake(end)
            for waited in op.mpi.waits:
                end = np.fmax(end, self._complete(waited) + wake)
        elif op.mpi.request < 0:
            end = np.fmax(end, self._complete(index) + self._draw_wake(end))
        return end

    def _draw_wake(self, end: Floats) -> Floats | float:
        """Draw the time from the completion of the awaited operation to the end of the call."""
        noise = self.noise.message_ns
        return MPI_WAKE_NS + (self.rng.random(end.shape) * noise if noise else 0.0)

    def _meet(self, op: Op, begin: Floats, end: Floats, cost: Floats) -> Floats:
        """End a collective that begins at ``begin`` and, if nobody had to wait, ends at ``end``."""
        spread = self.rng.random(begin.shape) * self.noise.spread_ns[Kind.MPI]
        met, until = end.copy(), begin.copy()  # until: when those a rank waits for have come
        for members in self.grid.teams[op.mpi.team]:
            ranks = list(members)
            price = cost[:, ranks[:1]] + spread[:, ranks]
            last = begin[:, ranks].max(axis=1, keepdims=True)
            root = ranks[op.mpi.root % len(ranks)] if op.mpi.root >= 0 else ranks[0]
            if op.mpi.meeting is Meeting.ALL:
                met[:, ranks], until[:, ranks] = np.maximum(end[:, ranks], last + price), last
            elif op.mpi.meeting is Meeting.FROM_ROOT:
                others = [rank for rank in ranks if rank != root]
                told = begin[:, [root]] + price[:, : len(others)]
                met[:, others] = np.maximum(end[:, others], told)
                until[:, others] = begin[:, [root]]
            else:
                met[:, root] = np.maximum(end[:, root], (last + price).max(axis=1))
                until[:, root] = last[:, 0]
        return met + self.noise.draw_lateness(Kind.MPI, until - begin > WAITED_FROM_NS, self.rng)

    def _deliver(self, number: int, message: Message) -> None:
        """Let a message arrive, once both its calls have begun."""
        sources = message.find_sources()
        receivers = [rank for rank, source in enumerate(sources) if source >= 0]
        senders = [sources[rank] for rank in receivers]
        far = self.far[senders, receivers]
        latency, bandwidth = np.array(LATENCY)[far], np.array(BANDWIDTH)[far]
        ready = self.block.host_begin[:, senders, message.send] + SEND_NS
        way = latency + message.size / bandwidth * (1.0 + 0.08 * self.rng.random(ready.shape))
        arrived = ready + way
        if message.size > EAGER:
            posted = self.block.host_begin[:, receivers, message.receive]
            arrived = np.maximum(ready, posted) + latency + way
            self.left[number] = np.full(self.block.host_begin.shape[:2], np.nan)
            self.left[number][:, senders] = arrived - latency
        self.block.arrival[:, receivers, number] = arrived

    def _complete(self, index: int) -> Floats:
        """Return the completion time of the sends and receives of operation ``index``, or NaN."""
        done = self.met.get(index, np.full(self.block.host_begin.shape[:2], np.nan))
        for number, message in enumerate(self.program.messages):
            if message.receive == index:
                arrival = self.block.arrival[..., number]
                copied = (message.size <= EAGER) * message.size / COPY_BYTES_PER_NS
                taken = np.maximum(arrival, self.block.host_begin[..., index]) + copied
                done = np.fmax(done, np.where(np.isnan(arrival), np.nan, taken))
            if message.send == index and number in self.left:
                done = np.fmax(done, self.left[number])
        return done
