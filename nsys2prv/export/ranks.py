"""Relate the reports of a job: do they belong to one job, are ranks missing, which were recorded
together?

A process may be recorded several times (`--capture-range-end=repeat`), and consecutive runs are not
ranks of one job. Reports are captures of one process if machine, process ID, name and ranks are
equal, their times do not overlap, and CUDA's call numbers continue. Captures of different processes
belong together by time, or by order if their clocks differ.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path

import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.text import format_nanoseconds, inflect, list_some
from nsys2prv.export.communicators import MOST_RANKS
from nsys2prv.export.database import Database
from nsys2prv.export.info import (
    PROCESS_MASK,
    RANK_VARIABLES,
    SIZE_VARIABLES,
    GlobalPid,
    ReportInfo,
    pid_of,
)
from nsys2prv.export.recording import NO_PROCESSES, Capture
from nsys2prv.export.roles import ProcessKey, choose_launcher_ranks
from nsys2prv.export.source import NULL
from nsys2prv.export.sqlite import open_database

#: Reports of one job overlap in time, unless host clocks differ. Reports that are further apart
#: (ns) were recorded one after another.
GAP = 60 * 1_000_000_000

#: Processes of one machine that are less than this apart (ns) may be ranks of one job that were not
#: captured at the same moment.
LEAST_GAP = 100_000_000
#: The table of CUDA calls. Their numbers increase while their process runs.
CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
#: Small tables with rows of the processes that Nsight Systems was loaded into, and their columns of
#: global ids.
PROFILED_PROCESS_TABLES = (
    ("PROFILER_OVERHEAD", "globalTid"),
    ("ProcessStreams", "globalPid"),
    ("DIAGNOSTIC_EVENT", "globalPid"),
    ("MPI_RANKS", "globalTid"),
)

#: First and last time, UTC in ns.
Span = tuple[int, int]
#: Reports of one process, in the order of time.
Chain = tuple[int, ...]


def check_job(infos: Sequence[ReportInfo]) -> list[str]:
    """Return warnings that the reports may not belong to one job, one line each; empty if they do."""
    return [*_find_copies(infos), *_check_jobs(infos), *_check_overlap(infos)]


def check_claims(infos: Sequence[ReportInfo]) -> list[str]:
    """Return a warning if two processes have the same rank, otherwise nothing."""
    return _check_ranks(infos) or _check_launched_ranks(infos)


def check_missing_ranks(
    infos: Sequence[ReportInfo],
    ranks: Sequence[int | None] | None = None,
    communicates: bool = True,
) -> list[str]:
    """Return a warning if the launcher started more ranks than there are reports.

    infos: of all given ranks. ranks: of their processes, with None for unknown numbers (default:
    from the reports). communicates: True if communication between ranks was recorded.
    """
    # A variable may count pods or nodes with several processes each.
    count = _count_processes(infos) if ranks is None else len(ranks)
    for name, size_name in SIZE_VARIABLES.items():
        told = [info for info in infos if size_name in info.launcher_sizes]
        sizes = {info.launcher_sizes[size_name] for info in told}
        if len(sizes) != 1 or not 0 < (size := sizes.pop()) <= MOST_RANKS:
            continue
        stated = [info.launcher_ranks.get(name) for info in told]
        # All that runs in a batch script has this, whether it is parallel or not.
        if name == "SLURM_PROCID" and set(stated) == {0} and not communicates:
            continue
        present = _list_ranks(infos, stated) if ranks is None else ranks
        known = {rank for rank in present if rank is not None}
        if known and max(known) >= size:
            continue
        if count >= size:
            return []
        which = f"there are reports of only {count}"
        if len(known) == count:
            missing = list(map(str, sorted(set(range(size)) - known)))
            which = f"there is no report of {inflect('rank', len(missing))} {list_some(missing)}"
        return [
            f"the job has {size} ranks ({size_name}), but {which}, so collectives and messages with other "
            "ranks are incomplete, and late ranks may not be named"
        ]
    return []


def _count_processes(infos: Iterable[ReportInfo]) -> int:
    """Count the ranks in reports: MPI processes, otherwise processes with CUDA contexts, otherwise
    one.
    """
    return sum(max(len(info.ranks) or len(info.cuda_processes), 1) for info in infos)


def _list_ranks(infos: Sequence[ReportInfo], stated: Sequence[int | None]) -> Sequence[int | None]:
    """Return the rank of each report: from MPI, otherwise from the launcher if its ranks are
    distinct.
    """
    of_mpi = [rank for info in infos for rank in info.ranks.values()]
    return of_mpi or (stated if len(set(stated)) == len(stated) == _count_processes(infos) else [])


def _find_copies(infos: Sequence[ReportInfo]) -> list[str]:
    """Return a warning for reports that have the same sessions, processes and rows."""
    copies = []
    seen: dict[tuple[str, bool, str], ReportInfo] = {}
    for info in infos:
        if make_session_key(info) is None:
            continue
        content, folder = _describe_content(info), (info.given_path or info.path).is_dir()
        # An SQLite export numbers its rows with gaps, tables of a folder without.
        rows, tables = repr(sorted(info.parts.items())), repr(sorted(info.parts))
        first = seen.get((content, folder, rows)) or seen.get((content, not folder, tables))
        if first is not None:
            copies.append(
                f"{info.given}: this is the same report as {first.given} (equal session, processes and rows). Both are "
                "read, so the trace contains its events twice"
            )
        else:
            seen |= {(content, folder, rows): info}
            seen.setdefault((content, folder, tables), info)
    return copies


def _describe_content(info: ReportInfo) -> str:
    """Return a text with everything that copies of a report have in common, except the number of
    rows.
    """
    bare = replace(info, path=Path(), given_path=None, parts={}, capture=Capture())
    values = (getattr(bare, name) for name in bare.__struct_fields__)
    return repr([sorted(one.items()) if isinstance(one, dict) else one for one in values])


def make_session_key(info: ReportInfo) -> Hashable | None:
    """Return a key that is equal for copies of a report and usually different for other reports;
    None if the report has nothing to identify it.
    """
    if info.utc_ns is None or not info.processes:
        return None
    return info.utc_ns, tuple(info.processes)


def _check_jobs(infos: Sequence[ReportInfo]) -> list[str]:
    """Return a warning if job IDs or rank counts in the launcher's environment belong to several
    jobs.
    """
    kinds = {"the launcher's job ID": [(info.job, info) for info in infos if info.job]}
    # Steps of one job of SLURM have sizes of their own.
    for name in (one for one in SIZE_VARIABLES.values() if one and not one.startswith("SLURM")):
        known = [info for info in infos if name in info.launcher_sizes]
        kinds[f"their {name}"] = [(info.launcher_sizes[name], info) for info in known]
    for what, told in kinds.items():
        # The first report of each.
        by_job = {job: info.name for job, info in reversed(told)}
        if len(by_job) > 1:
            return [
                f"the reports come from {len(by_job)} jobs according to {what} ({list_some(list(by_job.values())[::-1])}); "
                "do they belong together?"
            ]
    return []


def _check_overlap(infos: Sequence[ReportInfo]) -> list[str]:
    spans = sorted(
        (info.utc_ns, info.utc_ns + info.duration_ns, info.name)
        for info in infos
        if info.utc_ns is not None and info.duration_ns is not None
    )
    lasts = accumulate((end for _, end, _ in spans), max)
    for last, (_, _, name), (start, _, later) in zip(lasts, spans, spans[1:], strict=False):
        if start - last > GAP:
            return [
                f"{later} starts {format_nanoseconds(start - last)} after the end of {name} and of all earlier reports; do they belong to one run?"
            ]
    return []


def _check_ranks(infos: Sequence[ReportInfo]) -> list[str]:
    """Return a warning about MPI ranks that two processes claim."""
    claims = (
        (rank, (info.host, process), info) for info in infos for process, rank in info.ranks.items()
    )
    return [
        f"MPI rank {rank} is in {reports}, as different processes; do they belong to one job?"
        for rank, reports in _find_claimed_twice(claims)
    ]


def _find_claimed_twice(
    claims: Iterable[tuple[int, Hashable, ReportInfo]],
) -> Iterator[tuple[int, str]]:
    """Yield each rank that is claimed twice, with the names of the two reports (their paths if the
    names are equal). claims: (rank, claimant, report).
    """
    seen: dict[int, tuple[Hashable, ReportInfo]] = {}
    for rank, who, info in claims:
        claimant, first = seen.setdefault(rank, (who, info))
        if claimant != who:
            names = (
                (first.given, info.given) if first.name == info.name else (first.name, info.name)
            )
            yield rank, "{} and in {}".format(*names)
            return


def _check_launched_ranks(infos: Sequence[ReportInfo]) -> list[str]:
    """Return a warning about launcher ranks that several reports claim, if no variable
    distinguishes all reports. Reports of one session count once.
    """
    sessions: dict[Hashable, ReportInfo] = {}
    for info in infos:
        sessions.setdefault(make_session_key(info) or info.given, info)
    ranks = [info.launcher_ranks for info in sessions.values()]
    if any(info.ranks for info in infos) or choose_launcher_ranks(ranks) is not None:
        return []
    for name in RANK_VARIABLES:
        values = [of_report.get(name) for of_report in ranks]
        # Inside of a batch step that starts mpirun it is 0 for all.
        if None not in values and not (name == "SLURM_PROCID" and set(values) == {0}):
            claims = zip(values, sessions, sessions.values(), strict=True)
            for rank, reports in _find_claimed_twice(claims):
                return [f"rank {rank} ({name}) is in {reports}; do they belong to one job?"]
    return []


class Captures(Struct, frozen=True):
    """Processes that were captured several times, and captures that consist of several reports."""

    #: Number of each report's capture: reports of one number were recorded at the same time.
    numbers: tuple[int, ...]
    #: Process in a later capture -> the same process in its first one.
    firsts: Mapping[ProcessKey, ProcessKey]
    #: Reports of the captures of each process that was captured several times.
    chains: tuple[Chain, ...] = ()
    #: Reports of each run; one for a job.
    runs: tuple[tuple[int, ...], ...] = ()
    #: Shortest time between two runs, ns.
    gap: int = 0

    def find_first(self, report: int, process: int) -> ProcessKey:
        """Return the key of a process in the first report that captured it."""
        return self.firsts.get((report, process), (report, process))

    def describe_gaps(self) -> list[str]:
        """Return a note if processes were captured several times."""
        if not self.chains:
            return []
        most = max(map(len, self.chains))
        count = len(self.chains)
        whose = "one process was" if count == 1 else f"{count:,} processes were"
        times = f"{most} captures" if count == 1 else f"up to {most} captures each"
        return [
            f"{whose} captured several times ({times}). The time between captures is not "
            "recorded and counts neither as work nor as idle time"
        ]

    def describe_runs(self, infos: Sequence[ReportInfo]) -> str:
        """Return a message if the reports come from separate runs, otherwise ""."""
        if len(self.runs) < 2:
            return ""
        names = [list_some([infos[at].name for at in run]) for run in self.runs]
        return (
            f"{list_some(names, separator='; ')}: {len(self.runs)} consecutive runs ({format_nanoseconds(self.gap)} "
            "apart, in different processes of one node), not ranks of one job"
        )


def find_captures(
    infos: Sequence[ReportInfo],
    machines: Sequence[int],
    events: Mapping[int, Span],
    recorded: Mapping[int, Span],
) -> Captures:
    """Find processes and captures that occur in several reports.

    machines: number of the machine of each report. events: report -> time span of its events.
    recorded: report -> time span of its capture, for reports with known clocks.
    """
    by_machine: dict[int, list[int]] = defaultdict(list)
    for report in sorted(events, key=lambda report: events[report]):
        if infos[report].host and report in recorded:
            by_machine[machines[report]].append(report)
    chains, firsts = [], {}
    for reports in by_machine.values():
        if min(events[at][1] for at in reports) < max(events[at][0] for at in reports):
            for process, chain in _find_chains(infos, reports, events):
                firsts |= {(report, process): (chain[0], process) for report in chain[1:]}
                chains.append(chain)
    chains = list(dict.fromkeys(chains))
    in_run, gap = _number_runs(by_machine, chains, recorded)
    in_chain = _number_captures(chains, events)
    keys = [(in_run.get(at, 0), in_chain.get(at, 0)) for at in range(len(infos))]
    places = {key: number for number, key in enumerate(sorted(set(keys)))}
    runs = [
        tuple(at for at in range(len(infos)) if in_run.get(at, 0) == run)
        for run in sorted(set(in_run.values()))
    ]
    return Captures(tuple(places[key] for key in keys), firsts, tuple(chains), tuple(runs), gap)


def _find_chains(
    infos: Sequence[ReportInfo], reports: Sequence[int], events: Mapping[int, Span]
) -> list[tuple[GlobalPid, Chain]]:
    """Return the processes that have captures in several reports of one machine. reports: sorted by
    time.
    """
    found: dict[tuple, list[int]] = defaultdict(list)
    for report in reports:
        info = infos[report]
        for process, name in info.processes.items():
            own = tuple(sorted(info.launcher_ranks.items()))
            found[process, name, info.ranks.get(process), own, info.job].append(report)
    evidence: dict[int, dict[int, tuple[int, int]]] = {}
    chains = []
    for (process, *_), chain in found.items():
        if len(chain) < 2 or any(events[a][1] >= events[b][0] for a, b in pairwise(chain)):
            continue
        for report in chain:
            if report not in evidence:
                evidence[report] = _read_processes(infos[report])
        calls = [evidence[report].get(process) for report in chain]
        if None not in calls and all(_goes_on(a, b) for a, b in pairwise(calls)):
            chains.append((process, tuple(chain)))
    return chains


def _read_processes(info: ReportInfo) -> dict[int, tuple[int, int]]:
    """Return globalPid -> (lowest number of its CUDA calls, their count), or (0, 0), for the
    processes that a report profiled.
    """
    with open_database(info.path) as database:
        processes = dict.fromkeys(list_profiled_processes(database), (0, 0))
        if not database.has(CALLS, "globalTid", "correlationId"):
            return processes
        calls = [
            pl.DataFrame({"call": piece["correlationId"], "process": piece["globalTid"]})
            .filter(pl.all_horizontal(pl.all() != NULL))
            .group_by(pl.col("process") & PROCESS_MASK)
            .agg(least=pl.min("call"), count=pl.len())
            for piece in database.read_pieces(CALLS, ("globalTid", "correlationId"))
        ]
    for of_process in calls:
        for process, least, count in of_process.iter_rows():
            first, before = processes.get(process, (0, 0))
            processes[process] = min(first, least) if before else least, before + count
    return processes


def list_profiled_processes(database: Database) -> frozenset[int]:
    """Return the globalPid of every process profiled by the report; empty if unknown.

    In exports of Nsight Systems 2021.2 to 2026.2, every process with traced calls is included.
    """
    return frozenset(
        number & PROCESS_MASK
        for table, column in PROFILED_PROCESS_TABLES
        for (number,) in database.read_small_table(table, column, types=(int,))
        if pid_of(number) not in NO_PROCESSES
    )


def _goes_on(before: tuple[int, int], after: tuple[int, int]) -> bool:
    """Return False if the call numbers show that a process restarted between two captures: they
    then start again at the number where they started before.
    """
    return 0 in (before[1], after[1]) or after[0] > before[0] + before[1] // 2


def _number_runs(
    by_machine: Mapping[int, Sequence[int]], chains: Sequence[Chain], recorded: Mapping[int, Span]
) -> tuple[dict[int, int], int]:
    """Return the run number of each report, and the shortest time between two runs (ns)."""
    whole = {}
    for chain in chains:
        hull = recorded[chain[0]][0], max(recorded[one][1] for one in chain)
        whole |= dict.fromkeys(chain, hull)
    gaps, clusters = [], []
    for reports in by_machine.values():
        own: list[list[int]] = []
        end = 0
        for report in sorted(reports, key=lambda at: whole.get(at, recorded[at])):
            begin, last = whole.get(report, recorded[report])
            if not own or begin - end > LEAST_GAP:
                gaps += [begin - end] if own else []
                own.append([])
            own[-1].append(report)
            end = max(end, last)
        clusters.append(own)
    clusters.sort(key=len, reverse=True)
    hulls = [
        [(min(recorded[at][0] for at in one), max(recorded[at][1] for at in one)) for one in own]
        for own in clusters
    ]
    numbers = {}
    for own, hull in zip(clusters, hulls, strict=True):
        for one, number in zip(own, _match_spans(hull, hulls[0]), strict=True):
            numbers |= dict.fromkeys(one, number)
    return numbers, min(gaps, default=0)


def _number_captures(chains: Sequence[Chain], events: Mapping[int, Span]) -> dict[int, int]:
    """Number the captures by the process with the most captures, and match captures of other
    processes to these by time.
    """
    if not chains:
        return {}
    base = [events[at] for at in max(chains, key=len)]
    chained = {at for chain in chains for at in chain}
    numbers = {}
    for chain in (*chains, *((at,) for at in events if at not in chained)):
        numbers |= zip(chain, _match_spans([events[at] for at in chain], base), strict=True)
    return numbers


def _match_spans(spans: Sequence[Span], base: Sequence[Span]) -> list[int]:
    """Return for each span the index of the span in `base` with the longest overlap. If several
    spans have the same index, match them by order.
    """
    places = []
    for begin, end in spans:
        together = [min(end, last) - max(begin, first) for first, last in base]
        places.append(max(range(len(base)), key=together.__getitem__))
    return places if len(set(places)) == len(places) else list(range(len(spans)))
