"""Place all reports in trace time: align host clocks by common events of their processes, and
estimate the error.

Input: a job whose reports are placed by their own clocks, and facts about calls of several ranks.
Output: maps from the times of each report to trace time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from msgspec.structs import replace

from nsys2prv._util.text import format_bound, format_count, format_nanoseconds, list_some
from nsys2prv.clock import ALIGNED_ERROR, MESSAGES, NOTE_KINDS
from nsys2prv.clock.maps import (
    UNPLACED,
    ClockMap,
    ClockRecord,
    HostClock,
    Placement,
    find_coarse_shifts,
)
from nsys2prv.conversion.job import Numbered, Opened, Placed, Read, complete
from nsys2prv.conversion.options import AUTO, NONE
from nsys2prv.match import (
    DEVICES,
    Block,
    FactFile,
    Observed,
    RelationContext,
    all_relations,
    run_task,
)
from nsys2prv.table.runs import Span

if TYPE_CHECKING:
    from nsys2prv.clock import ClockFinding
    from nsys2prv.clock.solve import Alignment

#: The method of a host without alignment (as in nsys2prv.clock.adjust, which is not imported for a job of one
#: host).
PLACED_BY_UTC = "UTC"
#: The method for reports if clocks are ignored.
AS_THEY_ARE = "local times as they are"
#: Hosts and ranks named in one line, and hosts listed in a summary.
MOST_NAMED, MOST_HOSTS = 6, 8
#: Violations of causality below this (ns) are within the precision of aligned clocks.
SLIGHT = 1_000
#: The error in the whole trace is shown in addition to the error at the observations if it is
#: larger by this factor.
NOTICEABLE_RATIO = 1.2
#: Use of observations in the clock file -> its description.
_USES = {
    "used": "among the observations used for the alignment",
    "held back": "among the observations excluded as a test",
}


def find_host_clocks(job: Opened) -> tuple[list[int], list[str]]:
    """Return the number of the clock of each report, and the names of the clocks. A clock belongs
    to a host, or to a single report if it recorded no clock that places it. Hosts with equal names
    are numbered, in rank order.
    """
    keys: dict[tuple[int, int], int] = {}
    used: Counter[str] = Counter()
    numbers, names = [], []
    for report, (info, placement) in enumerate(zip(job.infos, job.placements, strict=True)):
        alone = placement.method == UNPLACED
        key = (placement.machine, report if alone else -1)
        if key not in keys:
            keys[key] = len(names)
            name = info.host or "unknown node"
            unnamed = not info.host and info.system_ns is None
            if (alone or unnamed) and len(job.infos) > 1:
                name += f" {info.name}"
            used[name] += 1
            names.append(f"{name} ({used[name]})" if used[name] > 1 else name)
        numbers.append(keys[key])
    return numbers, names


def find_clock_corrections(job: Numbered) -> ClockRecord | None:
    """Compute or read the corrections of host clocks that the plan requests; None for no
    corrections.
    """
    method = job.plan.method
    if isinstance(method, ClockRecord):
        return method
    clocks, names = find_host_clocks(job)
    if not job.plan.observes_clocks or len(names) < 2:
        return None
    maps = [placement.map for placement in _place_all(job)]
    spans = np.full((len(names), 2), np.nan)
    for report, span in job.spans.items():
        (first, last), known = maps[report].to_global(np.array(span)), spans[clocks[report]]
        spans[clocks[report]] = np.fmin(known[0], first), np.fmax(known[1], last)
    shifts = find_coarse_shifts(spans)
    spans += shifts[:, None]
    maps = [one.delay(int(shifts[clock])) for one, clock in zip(maps, clocks, strict=True)]
    folder = job.folder / "clocks"
    folder.mkdir()
    observed = _observe_clocks(job, gather_facts(job, folder, maps, clocks))
    messages = pl.concat([pl.DataFrame(schema=MESSAGES), *map(Block.read, observed.messages)])
    times = [time for piece in observed.calls for time in piece.times]
    ends = messages.select("begin", "end").to_numpy()
    times += [int(ends.min()), int(ends.max())] if ends.size else []
    pivot = (min(times) + max(times)) // 2 if times else 0
    tasks = [partial(piece.gather, pivot) for piece in observed.calls]
    gathered = list(job.run(run_task, tasks))
    # Imported on demand, because most jobs have one host.
    from nsys2prv.clock.solve import solve_clocks
    from nsys2prv.match.gathering import merge_observations

    merged = merge_observations(gathered, messages, len(names))
    return _make_record(solve_clocks(names, merged, pivot, spans, shifts), names, job)


def _observe_clocks(job: Numbered, context: RelationContext) -> Observed:
    """Collect the clock observations from the relations that the plan selects: calls, in pieces
    sorted by source and group, and messages.
    """
    observed = []
    for relation in all_relations():
        wanted = relation.observe and job.plan.method in (AUTO, relation.model)
        if wanted and (own := context.select_facts(relation, 0)):
            observed.append(relation.call(relation.observe, own))
    calls = [piece for one in observed for piece in one.calls]
    messages = [block for one in observed for block in one.messages]
    return Observed(sorted(calls, key=lambda piece: piece.noise_kind), messages)


def gather_facts(
    job: Numbered,
    folder: Path,
    clocks: Sequence[ClockMap],
    hosts: Sequence[int],
    clock_groups: Sequence[int] = (),
    clock_error: int = ALIGNED_ERROR,
) -> RelationContext:
    """Collect all facts of a job for relations between reports. folder: for their files. clocks:
    map from each report's time to the time that relations use. hosts, clock_groups: of each report
    (default: one group). clock_error: largest error within a group (ns).
    """
    files: dict[str, tuple[FactFile, ...]] = defaultdict(tuple)
    captures = job.captures.numbers
    for result in job.ordered_results:
        report = result.report
        group = clock_groups[report] if clock_groups else 0
        threads = job.find_threads(result) if result.facts else None
        capture = captures[report] if captures else 0
        of_report = report, clocks[report], hosts[report], threads, group, capture
        for name, frame in result.facts.items():
            files[name] += (FactFile(frame, *of_report),)
    span = job.read_part.span if job.read_part else None
    more = job.next_task, job.run, clock_error, span
    return RelationContext(files, job.model.tasks, folder, *more)


def place_reports_in_trace(job: Numbered, record: ClockRecord | None) -> Placed:
    """Return the job with a map from the time of each report to trace time. record: corrections of
    host clocks, None for none.
    """
    placements, warnings = _correct(_place_all(job), job, record), [*job.warnings]
    if record is not None:
        names = find_host_clocks(job)[1]
        hosts = {name: record.hosts[name] for name in names if name in record.hosts}
        if unknown := [name for name in names if name not in hosts]:
            warnings.append(f"{list_some(unknown)}: not in the clock file, so placed by UTC")
        warnings += [f"clocks: {line}" for line in record.warnings]
        record = replace(record, hosts=hosts) if len(names) > 1 else None
    epoch = _find_epoch(placements, job.spans)
    clocks = [*(placement.map.delay(-epoch) for placement in placements), ClockMap()]
    return complete(
        Placed,
        job,
        placements=placements,
        warnings=warnings,
        clock_record=record,
        clocks=clocks,
        epoch=epoch,
    )


def find_placements(job: Read, record: ClockRecord | None) -> tuple[list[Placement], int]:
    """Return the placement of each report on UTC, and the time (ns) that becomes time 0 of the
    trace. record: corrections of host clocks, None for none.
    """
    placements = _correct(_place_all(job), job, record)
    return placements, _find_epoch(placements, job.spans)


def _correct(
    placements: Sequence[Placement], job: Opened, record: ClockRecord | None
) -> list[Placement]:
    """Return the placements with the corrections of their host clocks."""
    if record is None:
        return [*placements]
    numbers, names = find_host_clocks(job)
    clocks = [record.hosts.get(names[number]) for number in numbers]
    return [
        replace(placement, map=clock.correct(placement.map)) if clock else placement
        for placement, clock in zip(placements, clocks, strict=True)
    ]


def _find_epoch(placements: Sequence[Placement], spans: Mapping[int, Span]) -> int:
    """Return the start of the first event of all reports (UTC, ns)."""
    epoch = min(_find_first_times(placements, spans).values())
    # Where a slowed clock shrinks a range of 1 ns to nothing, the writer begins it 1 ns earlier; this
    # may be the very first one.
    return epoch - any(
        (clock.to_global(clock.to_local(epoch) + np.arange(-4, 5)) == epoch).sum() > 1
        for clock in (placement.map for placement in placements)
        if clock.slack
    )


def _place_all(job: Read) -> list[Placement]:
    """Return the placements. Reports without any clock are placed at the first event of the others."""
    placements = job.placements
    if job.plan.method == NONE:
        return [replace(placement, map=ClockMap(0), method=AS_THEY_ARE) for placement in placements]
    firsts = _find_first_times(placements, job.spans)
    placed = [time for report, time in firsts.items() if placements[report].method != UNPLACED]
    start = ClockMap(min(placed, default=0))
    return [
        replace(placement, map=start) if placement.method == UNPLACED else placement
        for placement in placements
    ]


def _find_first_times(placements: Sequence[Placement], spans: Mapping[int, Span]) -> dict[int, int]:
    """Return report -> time of its first event with these placements."""
    return {
        report: int(placements[report].map.to_global(np.array([first]))[0])
        for report, (first, _) in spans.items()
    }


def group_comparable_reports(job: Placed, surely: bool = True) -> list[int]:
    """Return a group number for each report: times of reports in one group can be compared. Without
    observations, all reports are in one group.

    surely: exclude hosts whose clocks are placed only by an assumption: that calls are in order, or
    that messages in one direction arrive at once.
    """
    if job.clock_record is None or not job.clock_record.hosts:
        return [0] * len(job.infos)
    numbers, names = find_host_clocks(job)
    hosts = job.clock_record.hosts
    references = [
        hosts[name].reference or None
        if name in hosts and (hosts[name].sure or not surely)
        else name
        for name in names
    ]
    # A reference that is not sure of itself is one all the same; clocks of a file without
    # references are all to be believed.
    group_numbers = {name: number for number, name in enumerate(dict.fromkeys(references))}
    return [group_numbers[references[number]] for number in numbers]


def find_clock_error(job: Placed) -> int:
    """Return the largest error (ns) when times of comparable reports are compared."""
    if len(set(find_host_clocks(job)[0])) == 1:
        return 0
    hosts = job.clock_record.hosts.values() if job.clock_record else ()
    bounds = [clock.bound_ns for clock in hosts if is_aligned(clock)]
    if len(bounds) < 2 or None in bounds:
        return ALIGNED_ERROR
    return min(sum(sorted(bounds)[-2:]), ALIGNED_ERROR)


def is_aligned(clock: HostClock) -> bool:
    """Return True if observations or a clock file determine how this host's clock differs from
    others.
    """
    return (
        clock.sure
        and clock.method != PLACED_BY_UTC
        and (not clock.method or clock.observations > 0 or clock.bound_ns is not None)
    )


def _make_record(alignment: Alignment, names: Sequence[str], job: Numbered) -> ClockRecord:
    """Return the result of the alignment, by name of the clock."""
    owners = [
        job.infos[process.report].name if process.rank is None else f"rank {process.rank}"
        for process in job.model.processes
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


def describe_clocks(
    record: ClockRecord | None, placements: Sequence[Placement], hosts: int
) -> list[str]:
    """Return lines about the alignment of clocks: the number of aligned hosts, method and error,
    then problems. record: corrections; None for none. hosts: number of clocks from
    :func:`find_host_clocks`.
    """
    if any(placement.method == AS_THEY_ARE for placement in placements):
        return ["not aligned; every report keeps its own time (--align none)"]
    if hosts < 2:
        one = "1 report" if len(placements) == 1 else "1 node"
        return [f"{one}, so no clock alignment is needed"]
    if record is None:
        return [f"{hosts:,} nodes placed by UTC only, which may be wrong by milliseconds"]
    alone = [name for name, clock in record.hosts.items() if not is_aligned(clock)]
    aligned = [clock for name, clock in record.hosts.items() if name not in alone]
    lines = _describe_aligned(aligned, hosts)
    if alone:
        state = "not aligned with the others" if aligned else "not aligned"
        lines.append(
            f"{format_count(len(alone), 'node')} {state} ({list_some(alone)}): placed by UTC, "
            "which may be wrong by milliseconds"
        )
    return [*lines, *_describe_remaining_violations(record)]


def _describe_aligned(clocks: Sequence[HostClock], hosts: int) -> list[str]:
    if clocks and not any(clock.method for clock in clocks):
        return [f"{format_count(len(clocks), 'node')} corrected by the given clock file"]
    if len(clocks) < 2:
        return []
    how_many = f"{len(clocks):,}" + (f" of {hosts:,}" if len(clocks) < hosts else "")
    by_messages = any("causality" in clock.method for clock in clocks)
    evidence = "messages and collectives" if by_messages else "collectives"
    observed = max(clock.observations for clock in clocks)
    bounds = [clock.bound_ns for clock in clocks if clock.bound_ns is not None]
    error = f"below {format_bound(max(bounds))}" if bounds else "unknown"
    return [f"{how_many} nodes aligned by {observed:,} {evidence}; error {error}"]


def _describe_remaining_violations(record: ClockRecord) -> Iterator[str]:
    after = [
        times["after"]
        for times in record.causality.values()
        if times.get("after", {}).get("largest_ns", 0) >= SLIGHT
    ]
    if after and record.hosts:
        yield (
            f"{sum(counts.get('violated', 0) for counts in after):,} messages or collectives still violate causality, by up to "
            f"{format_bound(max(counts['largest_ns'] for counts in after))}"
        )


def describe_hosts(record: ClockRecord) -> list[str]:
    """Return a line for each host about its clock (of many hosts, only for those with the largest
    errors), then lines about violations of causality, and notes.
    """
    shown = hosts = list(record.hosts.items())
    if len(hosts) > MOST_HOSTS:
        shown = sorted(hosts, key=lambda item: -(item[1].bound_ns or 0))[:MOST_HOSTS]
    width = max((len(name) for name, _ in shown), default=0)
    lines = [f"{name:<{width}}  {_describe_host(clock)}" for name, clock in shown]
    if len(shown) < len(hosts):
        lines.append(f"and {len(hosts) - len(shown)} more with smaller errors")
    return [*lines, *_describe_causality(record), *record.notes]


def _describe_host(clock: HostClock) -> str:
    if clock.method == "reference":
        return f"reference; {clock.observations:,} observations"
    moved = f"{clock.offset_ns:+,} ns, {clock.drift_ppm:+.3f} ppm"
    if clock.bound_ns is None:
        return f"{moved} ({clock.method or 'from a clock file'})"
    spread = "" if clock.spread_ns is None else f", spread {format_nanoseconds(clock.spread_ns)}"
    near = clock.bound_ns if clock.observed_bound_ns is None else clock.observed_bound_ns
    below = format_nanoseconds(clock.bound_ns)
    if clock.bound_ns > NOTICEABLE_RATIO * near:
        below = f"{format_nanoseconds(near)} between the first and last observation, {below} in the whole trace"
    return (
        f"{moved} against {clock.reference} ({clock.method}), {clock.observations:,} observations{spread}, "
        f"error below {below}"
    )


def _describe_causality(record: ClockRecord) -> Iterable[str]:
    for used, times in record.causality.items():
        before, after = times.get("before", {}), times.get("after", {})
        if before.get("checked"):
            yield (
                f"event orders that the clocks violate, {_USES.get(used, used)}: {_describe_violations(before)} before the alignment, {_describe_violations(after)} after it"
            )


def _describe_violations(counts: Mapping[str, int]) -> str:
    violated, largest = counts.get("violated", 0), counts.get("largest_ns", 0)
    far = f" (by up to {format_nanoseconds(largest)})" if violated else ""
    return f"{violated:,} of {counts.get('checked', 0):,}{far}"


def make_comment_lines(record: ClockRecord | None) -> str:
    """Return the comment lines about clocks for the .prv; "" without corrections."""
    if record is None:
        return ""
    hosts = (f"clock of {name}  {_describe_host(clock)}" for name, clock in record.hosts.items())
    lines = [*hosts, *_describe_causality(record)]
    # Paraver searches comments with colons for keywords.
    safe = (
        "".join(one if one.isprintable() and one != ":" else " " for one in line) for line in lines
    )
    return "".join(f"# {line}\n" for line in safe)
