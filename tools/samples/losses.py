"""Which collectives' rows get lost in whose report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .missing import Bools, Part
from .mpi.calls import Table
from .mpi.teams import Grid, build_grid, uid
from .program import Domain, Kind, Program

if TYPE_CHECKING:
    from .cluster import Cluster, Ints
    from .options import Options
    from .rows import Report
    from .timeline import Block

ABOUT = (
    "lost: 'rows' of a collective that are missing in the report of 'rank' ('range': NCCL's NVTX ranges, 'call': the launch "
    "call, 'kernel'; 'mpi': the call's row); function, communicator and ordinal as in the lists of collectives; 'begin' and "
    "'end' (true) of what was recorded nowhere. extra: collectives that only the report of 'rank' has; likewise."
)

_NCCL_ROWS = ((Part.RANGE,), (Part.CALL,), (Part.KERNEL,))


@dataclass(frozen=True)
class Collective:
    """A collective of a program: its operation, who takes part, and its place among those of one communicator: ``ordinal``
    in the first step, ``per_step`` more in each that follows.
    """

    library: str
    operation: int
    function: str
    communicator: int
    ranks: tuple[int, ...]
    ordinal: int
    per_step: int

    def told(self, step: int, rank: int) -> dict[str, Any]:
        """What the truth says of it."""
        ordinal = self.ordinal + self.per_step * step
        return {"library": self.library, "step": step, "rank": rank, "function": self.function,
                "communicator": self.communicator, "ordinal": ordinal}  # fmt: skip


def collectives(step: Program, before: Program, cluster: Cluster) -> list[Collective]:
    """All of NCCL and MPI in a step; ``before`` is what ran before the first."""
    grid = build_grid(len(cluster.ranks), cluster.lonely)
    earlier = [(number, ranks) for _, _, number, ranks in _mpi(before, grid)]
    found = []
    for library, listed in (("NCCL", _nccl(step, cluster)), ("MPI", _mpi(step, grid))):
        numbers = [number for _, _, number, _ in listed]
        for place, (operation, function, number, ranks) in enumerate(listed):
            ahead = earlier.count((number, ranks)) if library == "MPI" else 0
            found.append(
                Collective(library, operation, function, number, ranks, ahead + numbers[:place].count(number), numbers.count(number))
            )
    return found


_Listed = list[tuple[int, str, int, tuple[int, ...]]]
"""Operation, function, communicator and ranks."""


def _nccl(program: Program, cluster: Cluster) -> _Listed:
    """Collectives of one group (one kernel) count once for each call in it, as the reports' ranges do."""
    found: _Listed = []
    for index, op in enumerate(program.ops):
        if op.kind is Kind.COLLECTIVE and op.payload is not None:
            calls = len(op.calls) if op.payload.function == "Group" else 1
            comms = [comm for comm in cluster.communicators if comm.group is op.payload.group]
            found += [(index, op.payload.function, comm.hash, comm.ranks) for comm in comms for _ in range(calls)]
    return found


def _mpi(program: Program, grid: Grid) -> _Listed:
    found: _Listed = []
    for index, op in enumerate(program.ops):
        if op.kind is Kind.MPI and op.mpi is not None and op.mpi.table is Table.COLLECTIVES:
            team = op.mpi.team
            found += [(index, op.mpi.function, uid(ranks, team), ranks) for ranks in grid.all_of(team)]
    return found


def collective_of_ranges(program: Program) -> Ints:
    """For every range of the program the collective's operation it is about, -1 for none."""
    works = [index for index, op in enumerate(program.ops) if op.kind is Kind.COLLECTIVE]
    following = [next((work for work in works if work >= found.last), -1) for found in program.ranges]
    return np.array([work if found.domain is Domain.NCCL and (found.payload or found.trace or found.text.startswith("ncclGroup")) else -1
                     for found, work in zip(program.ranges, following, strict=True)], dtype=np.int64)  # fmt: skip


class Losses:
    """Draws what gets lost, step by step, and tells the reports."""

    def __init__(self, step: Program, before: Program, cluster: Cluster, options: Options) -> None:
        self.options = options
        every = collectives(step, before, cluster) if options.lost_collectives else []
        self.known = list({(one.operation, one.communicator): one for one in reversed(every)}.values())[::-1]
        self.operations = len(step.ops)
        self.found: list[dict[str, Any]] = []

    def begin(self, reports: Sequence[Report], block: Block, epochs: Ints, first: int) -> None:
        """Before the runs of a block are written, the first of which is step ``first``."""
        if not self.known:
            return
        drawn = [(run, *loss) for run in range(len(epochs)) for loss in self._draw(first + run)]
        for run, one, rank, parts in drawn:
            begin, end = (block.gpu_begin, block.gpu_end) if one.library == "NCCL" else (block.host_begin, block.host_end)
            times = [int(epochs[run] + round(float(edge[run, rank, one.operation]))) for edge in (begin, end)]
            rows = [part.value for part in parts]
            self.found.append({**one.told(first + run, rank), "rows": rows, "begin": times[0], "end": times[1]})
        for report in reports:
            own = [(run, one.operation, parts) for run, one, rank, parts in drawn if rank == report.rank.rank]
            report.missing.lost = self._masks(own, len(epochs))

    def _draw(self, step: int) -> Iterable[tuple[Collective, int, tuple[Part, ...]]]:
        """The losses of one step: half of NCCL's are of all rows, the others of one kind of row."""
        rng = np.random.default_rng([self.options.seed, 17, step])
        coins, members, kinds = rng.random((3, len(self.known)))
        for place in np.flatnonzero(coins < self.options.lost_collectives).tolist():
            one = self.known[place]
            rank = one.ranks[int(members[place] * len(one.ranks))]
            single = _NCCL_ROWS[int(kinds[place] * 6) % 3]
            whole = (Part.RANGE, Part.CALL, Part.KERNEL)
            yield one, rank, ((Part.MPI,) if one.library == "MPI" else whole if kinds[place] < 0.5 else single)

    def _masks(self, losses: Iterable[tuple[int, int, tuple[Part, ...]]], runs: int) -> dict[Part, Bools]:
        masks: dict[Part, Bools] = {}
        for run, operation, parts in losses:
            for part in parts:
                masks.setdefault(part, np.zeros((runs, self.operations), dtype=np.bool_))[run, operation] = True
        return masks

    @staticmethod
    def end(reports: Sequence[Report]) -> None:
        """After the runs are written."""
        for report in reports:
            report.missing.lost = {}
