"""When MPI calls end.

Axes are (run, rank), times ns since the run's epoch in true time. A message of at most ``EAGER`` bytes travels as soon
as it is sent; a larger one when the receive is posted too, and then its sender waits as well. Data cross the network
in ``latency + size / bandwidth``, within a host faster than between hosts. Hence no message arrives before it was sent,
and no rank leaves a collective before those it needs have come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..ends import WAITED_FROM_NS, Noise
from .calls import Meeting, Message

if TYPE_CHECKING:
    from ..cluster import Cluster
    from ..program import Op, Program
    from ..timeline import Block
    from .teams import Grid

Floats = NDArray[np.float64]

EAGER = 8_192
"""Bytes; larger messages wait for their receiver."""

BANDWIDTH = (24.0, 11.5)
"""Bytes per ns within a host and between hosts."""

_LATENCY = (700.0, 1_900.0)
_COPY, _START, _WAKE = 30.0, 450.0, 350.0


class MpiTiming:
    """Ends of the MPI calls of one run of a program (for many runs at once).

    ``arrival`` (run, receiving rank, message) is when the data of each message were at the receiver.
    """

    def __init__(self, program: Program, cluster: Cluster, grid: Grid, shape: tuple[int, int], noise: Noise) -> None:
        self.program, self.grid, self.noise = program, grid, noise
        hosts = np.array([rank.host_index for rank in cluster.ranks])
        self.far = (hosts[:, None] != hosts[None, :]).astype(np.int64)
        self.arrival = np.full((*shape, len(program.messages)), np.nan)
        self.left: dict[int, Floats] = {}  # when the data of a large message have left its sender, by message
        self.met: dict[int, Floats] = {}  # when a collective that was only started is complete, by operation

    def end(self, block: Block, index: int, api: Floats, cost: Floats, rng: np.random.Generator) -> Floats:
        """When every rank leaves the call that is operation ``index``; ``api`` and ``cost`` are as drawn, in ns."""
        op = self.program.ops[index]
        assert op.mpi is not None
        begin = block.host_begin[..., index]
        end = begin + api
        for number, message in enumerate(self.program.messages):
            if max(message.send, message.receive) == index and message.receive >= 0:
                self._deliver(block, number, message, rng)
        if op.mpi.meeting is not Meeting.NONE:
            met = self._meet(op, begin, end, cost, rng)
            if op.mpi.request < 0:
                return met
            self.met[index] = met
        elif op.mpi.waits and op.mpi.blocks:
            wake = self._wake(end, rng)
            for waited in op.mpi.waits:
                end = np.fmax(end, self._complete(block, waited) + wake)
        elif op.mpi.request < 0:
            end = np.fmax(end, self._complete(block, index) + self._wake(end, rng))
        return end

    def _wake(self, end: Floats, rng: np.random.Generator) -> Floats | float:
        """From the completion of what a call waits for to its end."""
        return _WAKE + rng.random(end.shape) * self.noise.message_ns if self.noise.message_ns else _WAKE

    def _meet(self, op: Op, begin: Floats, end: Floats, cost: Floats, rng: np.random.Generator) -> Floats:
        """Ends of a collective whose calls begin at ``begin`` and, if nobody had to wait, end at ``end``."""
        assert op.mpi is not None
        spread = self.noise.mpi.spread(begin.shape, rng)
        met, until = end.copy(), begin.copy()  # until: when those a rank waits for have come
        for members in self.grid.all_of(op.mpi.team):
            ranks = list(members)
            price = cost[:, ranks[:1]] + spread[:, ranks]
            last = begin[:, ranks].max(axis=1, keepdims=True)
            root = ranks[op.mpi.root % len(ranks)] if op.mpi.root >= 0 else ranks[0]
            if op.mpi.meeting is Meeting.ALL:
                met[:, ranks] = np.maximum(end[:, ranks], last + price)
                until[:, ranks] = last
            elif op.mpi.meeting is Meeting.FROM_ROOT:
                others = [rank for rank in ranks if rank != root]
                met[:, others] = np.maximum(end[:, others], begin[:, [root]] + price[:, : len(others)])
                until[:, others] = begin[:, [root]]
            else:
                met[:, root] = np.maximum(end[:, root], (last + price).max(axis=1))
                until[:, root] = last[:, 0]
        return met + self.noise.mpi.lateness(until - begin > WAITED_FROM_NS, rng)

    def _deliver(self, block: Block, number: int, message: Message, rng: np.random.Generator) -> None:
        """Arrival of a message, once both its calls have begun."""
        sources = message.sources()
        receivers = [rank for rank, source in enumerate(sources) if source >= 0]
        senders = [sources[rank] for rank in receivers]
        far = self.far[senders, receivers]
        latency, bandwidth = np.array(_LATENCY)[far], np.array(BANDWIDTH)[far]
        ready = block.host_begin[:, senders, message.send] + _START
        posted = block.host_begin[:, receivers, message.receive]
        way = latency + message.size / bandwidth * (1.0 + 0.08 * rng.random(ready.shape))
        if message.size > EAGER:
            arrived = np.maximum(ready, posted) + latency + way
            left = np.full(block.host_begin.shape[:2], np.nan)
            left[:, senders] = arrived - latency
            self.left[number] = left
        else:
            arrived = ready + way
        self.arrival[:, receivers, number] = arrived

    def _complete(self, block: Block, index: int) -> Floats:
        """When what operation ``index`` sends and receives is done with; NaN on ranks where nothing is."""
        done = self.met.get(index, np.full(block.host_begin.shape[:2], np.nan))
        for number, message in enumerate(self.program.messages):
            if message.receive == index:
                eager = message.size / _COPY if message.size <= EAGER else 0.0
                posted = block.host_begin[..., index]
                taken = np.maximum(self.arrival[..., number], posted) + eager
                done = np.fmax(done, np.where(np.isnan(self.arrival[..., number]), np.nan, taken))
            if message.send == index and number in self.left:
                done = np.fmax(done, self.left[number])
        return done
