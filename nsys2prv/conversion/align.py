"""Align the clocks of hosts by what their processes did together."""

from __future__ import annotations

import pickle
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from nsys2prv._util.text import list_some
from nsys2prv.clock import NOTE_KINDS
from nsys2prv.clock.maps import ClockRecord
from nsys2prv.clock.observations import ClockFinding, Messages
from nsys2prv.clock.solve import Alignment, solve_clocks
from nsys2prv.conversion.timeline import AUTO
from nsys2prv.export.info import ReportInfo
from nsys2prv.relations import DEVICES, Observed, RelationContext, RunTasks, all_relations
from nsys2prv.relations.blocks import CallPortion, MessageFile
from nsys2prv.store.work_result import FactBook
from nsys2prv.writers.rows import RankedProcess

T = TypeVar("T")
#: Hosts and ranks named in one line.
MOST_NAMED = 6


def run_alignment_step(step: Callable[[], T]) -> T:
    """Run a step of aligning clocks. The time that it takes is told as that of clocks, by the name
    of this function.
    """
    return step()


def align_hosts(
    book: FactBook,
    method: str,
    names: Sequence[str],
    span: tuple[int, int],
    folder: Path,
    run_tasks: RunTasks,
) -> Alignment:
    """Align the clocks of these hosts by `method`; corrections are of times as the book's maps
    place them. span: of the trace.
    """
    observed, pivot = collect_observations(book, method, folder, run_tasks)
    steps = [
        partial(_gather_calls, portion, pivot, folder / f"gathered-{number}.pickle")
        for number, portion in enumerate(observed.calls)
    ]
    gathered = list(run_tasks(run_alignment_step, steps))
    step = partial(_solve_gathered, tuple(names), gathered, observed.messages, pivot, span)
    return next(iter(run_tasks(run_alignment_step, [step])))


def collect_observations(
    book: FactBook, method: str, folder: Path, run_tasks: RunTasks
) -> tuple[Observed, int]:
    """Return all observations of clocks for `method`, calls in portions ascending by source and
    group, and the instant amid all times (ns). folder: new, for files between steps.
    """
    folder.mkdir()
    observations = []
    for relation in all_relations():
        wanted = relation.observe and method in (AUTO, relation.model)
        files = book.list_files(relation.facts) if wanted else {}
        if files and files[relation.facts[0]]:
            observations.append(
                relation.observe(RelationContext(files, book.tasks, folder, 0, run_tasks))
            )
    calls = [portion for observed in observations for portion in observed.calls]
    messages = [file for observed in observations for file in observed.messages]
    times = [time for part in (*calls, *messages) for time in part.times]
    pivot = (min(times) + max(times)) // 2 if times else 0
    return Observed(sorted(calls, key=lambda portion: portion.noise_kind), messages), pivot


def _gather_calls(portion: CallPortion, pivot: int, path: Path) -> Path:
    """Store a portion's calls, gathered per host."""
    path.write_bytes(pickle.dumps(portion.gather(pivot)))
    return path


def _solve_gathered(
    names: Sequence[str],
    parts: Sequence[Path],
    messages: Sequence[MessageFile],
    pivot: int,
    span: tuple[int, int],
) -> Alignment:
    """Solve for the corrections from the gathered observations."""
    gathered = [pickle.loads(part.read_bytes()) for part in parts]
    return solve_clocks(names, gathered, _read_messages(messages), pivot, span)


def _read_messages(files: Sequence[MessageFile]) -> Messages:
    return Messages.concat([Messages.make_empty(), *(file.read() for file in files)])


def to_record(
    alignment: Alignment,
    names: Sequence[str],
    infos: Sequence[ReportInfo],
    processes: Sequence[RankedProcess],
) -> ClockRecord:
    """Return the result of the alignment, keyed by the names of the clocks. processes: of the tasks
    of the trace.
    """
    owners = [
        infos[process.report].name if process.rank is None else f"rank {process.rank}"
        for process in processes
    ]
    # One line for each reason.
    notes: dict[str, Counter[str]] = defaultdict(Counter)
    warnings: dict[str, Counter[str]] = defaultdict(Counter)
    for finding in alignment.findings:
        reasons = notes if finding.kind in NOTE_KINDS else warnings
        reasons[finding.reason][_describe_owner(finding, names, owners)] += finding.count
    return ClockRecord(
        dict(zip(names, alignment.corrections, strict=True)),
        alignment.verdict,
        notes=tuple(_describe_finding(*reason) for reason in notes.items()),
        warnings=tuple(_describe_finding(*reason) for reason in warnings.items()),
    )


def _describe_owner(finding: ClockFinding, names: Sequence[str], owners: Sequence[str]) -> str:
    if finding.member >= 0:
        task, device = divmod(finding.member, DEVICES)
        owner = owners[task] if task < len(owners) else f"task {task + 1}"
        return f"{owner} device {device}" if device else owner
    return names[finding.clock] if finding.clock >= 0 else ""


def _describe_finding(reason: str, whose: Mapping[str, int]) -> str:
    owners_text = [
        f"{who} ({count:,})" if count else who
        for who, count in sorted(whose.items(), key=lambda item: -item[1])
        if who
    ]
    count = "" if owners_text or not sum(whose.values()) else f" ({sum(whose.values()):,})"
    return f"{reason}{count}" + (f": {list_some(owners_text, MOST_NAMED)}" if owners_text else "")
