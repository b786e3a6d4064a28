"""The step of --causal: ranks moved so that what they did together happens in an order that can be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from nsys2prv.clock.bindings import bound
from nsys2prv.clock.causal import CausalOrder, restored
from nsys2prv.clock.observations import Messages
from nsys2prv.clock.record import CausalRecord, ClockRecord, HostClock, RankMove
from nsys2prv.conversion import align
from nsys2prv.conversion.timeline import AUTO, Timeline
from nsys2prv.nsight.info import ReportInfo
from nsys2prv.paraver.object_model import NO_PROCESS, RankedProcess
from nsys2prv.relations.kind import ObservationChunk
from nsys2prv.store.facts import FactBook


def restored_order(book: FactBook, reports: int, folder: Path, run: align.Run) -> CausalOrder:
    """Return the order restored by all that the ranks did together; the book's hosts are the
    reports themselves. Shifts are of times as the book's maps place them.
    """
    found = align.collect_observations(book, AUTO, folder, run)
    return next(iter(run(run_step, [OrderStep(reports, tuple(found), align.pivot_of(found))])))


class OrderStep(Struct, frozen=True):
    """Restores the order by what was observed."""

    reports: int
    portions: tuple[ObservationChunk, ...]
    pivot: int

    def run(self) -> CausalOrder:
        parts, messages = [], []
        for portion in self.portions:
            seen = portion.observed()
            parts.append(bound(seen.calls, self.pivot))
            messages.append(seen.messages)
        return restored(
            self.reports, parts, align.concat_observations(Messages, messages), self.pivot
        )


def run_step(step: OrderStep) -> CausalOrder:
    return step.run()


def moved(
    placed: Timeline, order: CausalOrder, names: Sequence[str], hosts: Sequence[str]
) -> Timeline:
    """Return the timeline with the reports moved, but for its epoch and clocks; the record says how
    far. names, hosts: of the reports.
    """
    placements = [
        replace(placement, map=placement.map.moved(order.shifts.get(report)))
        for report, placement in enumerate(placed.placements)
    ]
    moves = {
        names[move.report]: RankMove(move.largest, round(move.mean), move.at)
        for move in order.moves
    }
    causal = CausalRecord(len(placements), order.before.counts(), order.after.counts(), moves)
    record = placed.record
    if order.moves:
        unknown = {
            host: HostClock(method=placement.method)
            for host, placement in zip(hosts, placed.placements, strict=True)
        }
        record = replace(record or ClockRecord(unknown), causal=causal)
    told = tuple(
        f"--causal: {finding.reason} ({finding.count:,})"
        if finding.count
        else f"--causal: {finding.reason}"
        for finding in order.findings
        if finding.kind in ("torn", "set aside", "given up")
    )
    return replace(
        placed,
        placements=placements,
        record=record,
        causal=causal,
        warnings=(*placed.warnings, *told),
    )


def report_names(infos: Sequence[ReportInfo], processes: Sequence[RankedProcess]) -> list[str]:
    """Return a distinct label for each report: the rank of its only process, else its name."""
    ranks: list[list[int | None]] = [[] for _ in infos]
    for process in processes:
        if process.pid != NO_PROCESS:
            ranks[process.report].append(process.rank)
    names = [
        f"rank {rank[0]}" if len(rank) == 1 and rank[0] is not None else info.name
        for info, rank in zip(infos, ranks, strict=True)
    ]
    return [
        name if names.count(name) == 1 else str(info.given)
        for name, info in zip(names, infos, strict=True)
    ]
