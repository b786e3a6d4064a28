"""Times for a program: many runs (steps) of it on all ranks at once.

Arrays have the axes (run, rank, operation). Within a run, times are float64 ns since the run's epoch, in true time;
host and GPU start drained, so runs do not depend on one another. The rules:

* the host performs operations one after the other; a synchronisation lasts until the stream has finished;
* GPU work begins when its launch has arrived (after the launch call's beginning), what is before it on its stream has
  finished, and the events its stream waits for have happened;
* a collective begins on each rank as soon as it can there, and ends on all ranks of its communicator together, a
  transfer after the last one has begun - but for some microseconds;
* MPI calls end when those they wait for let them (:mod:`.mpi.timing`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .cluster import Cluster, Stream
from .ends import WAITED_FROM_NS, Noise
from .mpi.teams import build_grid
from .mpi.timing import MpiTiming
from .program import PAD_NS, Kind, Op, Program

Floats = NDArray[np.float64]

LAUNCH_NS = 5_100
"""Least time from the beginning of a launch call to the beginning of the work (measured on H100)."""

_WAKE_NS = 2_600
"""From the end of the work to the return of the call that waited for it."""

_GPU_WORK = (Kind.KERNEL, Kind.COPY, Kind.SET)


@dataclass
class Block:
    """Times of consecutive runs; axes (run, rank, operation). NaN where an operation starts no GPU work."""

    host_begin: Floats
    host_end: Floats
    gpu_begin: Floats
    gpu_end: Floats
    event_time: Floats
    """When each event recorded by the program happened on the GPU; axes (run, rank, event)."""
    arrival: Floats
    """When each MPI message's data were at the receiver; axes (run, receiving rank, message)."""

    def ends(self) -> Floats:
        """End of each run on each rank: of the host's last operation and of all work."""
        return np.maximum(self.host_end[..., -1], np.fmax.reduce(self.gpu_end, axis=-1, initial=0.0))


class Timeline:
    """Simulates one program on a cluster."""

    def __init__(self, program: Program, cluster: Cluster, seed: int, noise: Noise) -> None:
        self.program, self.cluster, self.noise = program, cluster, noise
        rng = np.random.default_rng([seed, 1])
        count = len(cluster.ranks)
        self.host_speed = rng.uniform(0.97, 1.05, count)[None, :, None]
        self.gpu_speed = rng.uniform(0.98, 1.04, count)[None, :, None]
        self.gap = np.array([op.gap_ns for op in program.ops])
        self.pads = np.array([PAD_NS * op.edges if op.graph < 0 else 0.0 for op in program.ops])
        self.api = np.array([op.api_ns for op in program.ops])
        self.work = np.array([op.work_ns for op in program.ops])
        self.sections = list(_sections(program.ops))
        self.grid = build_grid(count, cluster.lonely)
        self.lag = np.array(noise.gpu_lag_ns, dtype=np.float64)

    def run(self, rng: np.random.Generator, begin: Floats) -> Block:
        """Simulate ``len(begin)`` runs; ``begin`` (run, rank) is when each rank's host begins, ns since the run's
        epoch.
        """
        shape = (*begin.shape, len(self.program.ops))
        luck, noise = rng.random(shape), rng.random(shape)
        latency = LAUNCH_NS + 1_400.0 * noise
        drawn = _Drawn(
            gap=self.pads + self.gap * (0.85 + 0.4 * luck + 6.0 * luck**40) * self.host_speed,
            api=self.api * (0.8 + 0.5 * rng.random(shape)) * self.host_speed,
            work=self.work * (0.97 + 0.06 * noise) * self.gpu_speed,
            launch=latency + self.lag[None, :, None],
            pause=0.18 * latency,
        )
        unknown = np.full(shape, np.nan)
        mpi = MpiTiming(self.program, self.cluster, self.grid, begin.shape, self.noise)
        block = Block(
            host_begin=unknown,
            host_end=unknown.copy(),
            gpu_begin=unknown.copy(),
            gpu_end=unknown.copy(),
            event_time=np.zeros((*begin.shape, max(self.program.events, 1))),
            arrival=mpi.arrival,
        )
        state = _State(begin.copy(), {stream: np.zeros(begin.shape) for stream in Stream})
        for section, first, last in self.sections:
            self._host(block, state, slice(first, last), drawn)
            if section is None:
                self._launches(block, state, range(first, last), drawn)
            elif section is Kind.COLLECTIVE:
                self._collective(block, state, first, drawn, rng)
            elif section is Kind.MPI:
                state.host = mpi.end(block, first, drawn.api[..., first], drawn.work[..., first], rng)
                block.host_end[..., first] = state.host
            else:
                self._order(block, state, first, drawn)
        return block

    def _host(self, block: Block, state: _State, span: slice, drawn: _Drawn) -> None:
        """Host operations one after the other."""
        api = drawn.api[..., span]
        begin = state.host[..., None] + np.cumsum(drawn.gap[..., span] + api, axis=-1) - api
        block.host_begin[..., span] = begin
        block.host_end[..., span] = begin + api
        state.host = block.host_end[..., span.stop - 1].copy()

    def _launches(self, block: Block, state: _State, span: range, drawn: _Drawn) -> None:
        """The i-th work of a stream begins at max(arrival_i, end_{i-1} + pause_i), as a running maximum of sums."""
        work = [index for index in span if self.program.ops[index].kind in _GPU_WORK]
        for stream in sorted({self.program.ops[index].stream for index in work}):
            which = np.array([index for index in work if self.program.ops[index].stream is stream])
            arrival = block.host_begin[..., which] + drawn.launch[..., which]
            pause = drawn.pause[..., which]
            before = np.cumsum(pause + drawn.work[..., which], axis=-1) - drawn.work[..., which]
            ready = np.maximum.accumulate(arrival - before, axis=-1)
            begin = before + np.maximum(ready, state.tail[stream][..., None])
            block.gpu_begin[..., which] = begin
            block.gpu_end[..., which] = begin + drawn.work[..., which]
            state.tail[stream] = block.gpu_end[..., which[-1]].copy()

    def _order(self, block: Block, state: _State, index: int, drawn: _Drawn) -> None:
        """What puts host, streams and ranks in order: events, waits and synchronisations."""
        op, tail = self.program.ops[index], state.tail
        if op.kind is Kind.RECORD:
            arrival = block.host_begin[..., index] + drawn.launch[..., index]
            block.event_time[..., op.event] = np.maximum(tail[op.stream], arrival)
        elif op.kind is Kind.WAIT:
            tail[op.stream] = np.maximum(tail[op.stream], block.event_time[..., op.event])
        elif op.kind is Kind.MEET:
            assert op.payload is not None
            for ranks in self.cluster.members(op.payload.group):
                last = block.host_begin[:, ranks, index].max(axis=1, keepdims=True)
                state.host[:, ranks] = last + drawn.api[:, ranks, index]
        elif op.kind is Kind.SYNC_STREAM:
            state.host = np.maximum(state.host, tail[op.stream] + _WAKE_NS)
        elif op.kind is Kind.SYNC_EVENT:
            state.host = np.maximum(state.host, block.event_time[..., op.event] + _WAKE_NS)
        elif op.kind is Kind.SYNC_DEVICE:
            state.host = np.maximum(state.host, np.maximum.reduce(list(tail.values())) + _WAKE_NS)
        block.host_end[..., index] = state.host

    def _collective(self, block: Block, state: _State, index: int, drawn: _Drawn, rng: np.random.Generator) -> None:
        op = self.program.ops[index]
        arrival = block.host_begin[..., index] + drawn.launch[..., index]
        begin = np.maximum(state.tail[op.stream] + 700.0, arrival)
        end = self._collective_end(op, begin, drawn.work[..., index], rng)
        block.gpu_begin[..., index], block.gpu_end[..., index] = begin, end
        state.tail[op.stream] = end

    def _collective_end(self, op: Op, begin: Floats, transfer: Floats, rng: np.random.Generator) -> Floats:
        assert op.payload is not None
        last = begin.copy()  # when the last rank that matters has begun
        end = begin + transfer
        for ranks in self.cluster.members(op.payload.group):
            own = begin[:, ranks]
            if op.payload.function == "SendRecv":  # a ring: only the neighbours matter
                last[:, ranks] = np.maximum(np.maximum(own, np.roll(own, 1, axis=1)), np.roll(own, -1, axis=1))
            else:
                last[:, ranks] = own.max(axis=1, keepdims=True)
            end[:, ranks] = last[:, ranks] + transfer[:, ranks[:1]]
        noise = self.noise.nccl
        end += noise.spread(begin.shape, rng)
        end += noise.lateness(last - begin > WAITED_FROM_NS, rng)
        return end + self.lag


@dataclass
class _Drawn:
    """Durations of every operation as the dice gave them, ns; axes (run, rank, operation)."""

    gap: Floats
    api: Floats
    work: Floats
    launch: Floats
    pause: Floats


@dataclass
class _State:
    """Where host and streams stand: end of the host's last operation, end of each stream's last work; axes (run,
    rank).
    """

    host: Floats
    tail: dict[Stream, Floats]


def _sections(ops: list[Op]) -> Iterator[tuple[Kind | None, int, int]]:
    """Cut a program into stretches of plain launches (None, first, last + 1) and single special operations."""
    special = set(Kind) - {Kind.HOST, *_GPU_WORK}
    first = 0
    for index, op in enumerate(ops):
        if op.kind in special:
            if first < index:
                yield None, first, index
            yield op.kind, index, index + 1
            first = index + 1
    if first < len(ops):
        yield None, first, len(ops)
