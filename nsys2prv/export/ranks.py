"""Find how the reports of a job belong together: the rank of each process, by NCCL's payloads, by
MPI, by the launcher's environment, or by the order of the reports' names; whether they are of one
job; and which were recorded together.

Ranks count from 0. The first of these that tells all processes of the job apart is taken; where
none does, each process has its rank from the first that tells it.

A process may be recorded several times (`--capture-range-end=repeat`), and runs after each other
are no ranks of one job. Reports are captures of one process where machine, process id, name and
ranks are the same, their times do not meet and CUDA's numbers of calls go on. Captures of different
processes belong together by time, or by order where their clocks do not agree.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path

import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.text import format_count, list_some, make_natural_key
from nsys2prv.export.info import (
    PROCESS_MASK,
    RANK_VARIABLES,
    SIZE_VARIABLES,
    GlobalPid,
    ReportInfo,
    pid_of,
)
from nsys2prv.export.recording import NO_PROCESSES, Capture
from nsys2prv.export.source import name_rows
from nsys2prv.export.sqlite import Database

#: What tells ranks, in the order of trust.
NCCL_RANKS, MPI_RANKS = "NCCL's payloads", "MPI"
LAUNCHER, FILE_NAMES = "the launcher's environment", "file names"
#: A rank in the name of a report.
_RANK_IN_NAME = re.compile(r"rank[-_.=]?(\d{1,9})", re.IGNORECASE)
#: Reports of one job overlap in time, but for clocks of hosts that differ; those further apart (ns)
#: were recorded one after the other.
GAP = 60 * 1_000_000_000
#: Jobs of more ranks than anybody runs are not counted through.
MOST_RANKS = 10_000_000

#: Processes of one machine that are less than this apart (ns) may be ranks of one job that were not
#: captured at the same moment.
LEAST_GAP = 100_000_000
#: The table of CUDA calls, whose numbers go on as long as their process runs.
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
#: A process of a report: index of the report, and globalPid.
ProcessKey = tuple[int, int]


class Rank(Struct, frozen=True):
    """The rank of a process."""

    #: Its number in the job, from 0.
    number: int
    #: Its source; "" for the only process of a job without a recorded rank.
    source: str


def describe_processes(processes: int, ranks: int) -> str:
    """Return how many processes and ranks a job has, as "4 ranks" or "6 processes of 4 ranks"."""
    if processes == ranks:
        return format_count(ranks, "rank")
    how_many = f"{processes:,} process{'' if processes == 1 else 'es'}"
    return f"{how_many} of {format_count(ranks, 'rank')}" if ranks else how_many


def choose_launcher_ranks(ranks: Sequence[Mapping[str, int]]) -> list[int] | None:
    """Return one rank per report, by the first variable that all of them have with distinct values;
    None if there is none.
    """
    for name in RANK_VARIABLES:
        values = [report.get(name) for report in ranks]
        if None not in values and len(set(values)) == len(values):
            return values
    return None


def find_ranks(
    infos: Sequence[ReportInfo],
    with_gpu: Mapping[ProcessKey, bool],
    nccl: pl.DataFrame | None = None,
    is_one_job: bool = True,
) -> dict[ProcessKey, Rank]:
    """Return the ranks of processes. with_gpu: all of them, and whether they work on a GPU. nccl:
    report, process, communicator, ranks and rank of what NCCL's payloads tell of communicators.
    is_one_job: whether names of reports may tell ranks, which they do of one process each.

    A process that is none of a report's ranks (a shell, a worker that loads data) has the rank of
    the report's only one.
    """
    owners = _find_owners(infos, with_gpu)
    reports = {report: keys for report, keys in _group_by_report(owners).items() if len(keys) == 1}
    launched = choose_launcher_ranks([infos[report].launcher_ranks for report in reports])
    sources = {
        MPI_RANKS: {
            (report, pid): infos[report].ranks[pid]
            for report, pid in owners
            if pid in infos[report].ranks
        },
        LAUNCHER: dict(zip((keys[0] for keys in reports.values()), launched or (), strict=False)),
    }
    known = max((1 + max(ranks.values()) for ranks in sources.values() if ranks), default=0)
    sizes = {size for info in infos for size in info.launcher_sizes.values()}
    least = max(known, len(owners), *(sizes if len(sizes) == 1 else ()), 0)
    sources = {NCCL_RANKS: _read_nccl_ranks(nccl, owners, least), **sources}
    found = _choose_ranks(sources, owners)
    left = [key for key in owners if key not in found]
    if left and len(owners) == 1:
        found[left[0]] = Rank(0, "")
    elif left and is_one_job and all(report in reports for report, _ in left):
        found |= _number_by_names(infos, left, {rank.number for rank in found.values()})
    for key in with_gpu.keys() - set(owners):
        if key[0] in reports and reports[key[0]][0] in found:
            found[key] = found[reports[key[0]][0]]
    return found


def _find_owners(
    infos: Sequence[ReportInfo], with_gpu: Mapping[ProcessKey, bool]
) -> list[ProcessKey]:
    """Return the processes that are ranks: of each report those of MPI, else those with work on
    GPUs, else all; in the order of the reports.
    """
    owners = []
    for report, keys in _group_by_report(with_gpu).items():
        of_mpi = [key for key in keys if key[1] in infos[report].ranks]
        owners += of_mpi or [key for key in keys if with_gpu[key]] or keys
    return owners


def _group_by_report(keys: Iterable[ProcessKey]) -> dict[int, list[ProcessKey]]:
    grouped: dict[int, list[ProcessKey]] = defaultdict(list)
    for key in sorted(keys, key=lambda key: (key[0], key[1] & (2**64 - 1))):
        grouped[key[0]].append(key)
    return grouped


def _read_nccl_ranks(
    told: pl.DataFrame | None, owners: Sequence[ProcessKey], least: int
) -> dict[ProcessKey, int]:
    """Return the ranks in the largest NCCL communicator that gives each process a rank of its own;
    nothing if it has fewer than `least` ranks, as it is not the job's.
    """
    if told is None or not told.height:
        return {}
    known, wanted = told.filter((pl.col("communicator") != 0) & (pl.col("rank") >= 0)), set(owners)
    members: dict[tuple[int, int], dict[ProcessKey, set[int]]] = defaultdict(
        lambda: defaultdict(set)
    )
    for report, process, communicator, size, rank in known.select(
        "report", "process", "communicator", "ranks", "rank"
    ).iter_rows():
        if (report, process) in wanted:
            members[size, communicator][report, process].add(rank)
    everyone = set().union(*members.values())
    for (size, _), ranks in sorted(members.items(), reverse=True):
        numbers = {next(iter(of_process)) for of_process in ranks.values()}
        alone = all(len(of_process) == 1 for of_process in ranks.values())
        if size >= least and alone and ranks.keys() == everyone and len(numbers) == len(ranks):
            return {key: next(iter(of_process)) for key, of_process in ranks.items()}
    return {}


def _choose_ranks(
    sources: Mapping[str, Mapping[ProcessKey, int]], owners: Sequence[ProcessKey]
) -> dict[ProcessKey, Rank]:
    """Return ranks by the first source that tells all processes apart, else each process's by the
    first that tells it a number that no other has.
    """
    for source, ranks in sources.items():
        if owners and len(set(ranks.values())) == len(ranks) == len(owners):
            return {key: Rank(number, source) for key, number in ranks.items()}
    found: dict[ProcessKey, Rank] = {}
    for source, ranks in sources.items():
        taken = {rank.number for rank in found.values()}
        found |= {
            key: Rank(number, source)
            for key, number in ranks.items()
            if key not in found and number not in taken
        }
    return found


def _number_by_names(
    infos: Sequence[ReportInfo], left: Sequence[ProcessKey], taken: set[int]
) -> dict[ProcessKey, Rank]:
    """Return ranks of processes by the numbers behind "rank" in the names of their reports, else by
    the natural order of names, without numbers that are taken.
    """
    names = [_RANK_IN_NAME.search(infos[report].name) for report, _ in left]
    numbers = [int(name[1]) for name in names if name]
    if len(set(numbers)) < len(left) or taken & set(numbers):
        free = (number for number in range(len(left) + len(taken)) if number not in taken)
        left = sorted(left, key=lambda key: make_natural_key(str(infos[key[0]].given)))
        numbers = [number for number, _ in zip(free, left, strict=False)]
    return {key: Rank(number, FILE_NAMES) for key, number in zip(left, numbers, strict=True)}


def check_job(infos: Sequence[ReportInfo]) -> list[str]:
    """Return the doubts about the job, one line each."""
    return [
        *_find_copies(infos),
        *_check_jobs(infos),
        *_check_overlap(infos),
        *(_check_ranks(infos) or _check_launched_ranks(infos)),
    ]


def check_missing_ranks(infos: Sequence[ReportInfo]) -> list[str]:
    """Return a warning where the launcher started more ranks than there are reports of. infos: all
    that were given.
    """
    for name, size_name in SIZE_VARIABLES.items():
        sizes = {info.launcher_sizes.get(size_name) for info in infos}
        if len(sizes) != 1 or (size := sizes.pop()) is None:
            continue
        # Ranks of MPI where they are known, as a report may hold several processes.
        ranks = [set(info.ranks.values()) or {info.launcher_ranks.get(name)} for info in infos]
        present = set().union(*ranks)
        if (
            None in present
            or len(present) < len(infos)
            or not 0 < size <= MOST_RANKS
            or max(present) >= size
        ):
            continue
        missing = sorted(set(range(size)) - present)
        if not missing:
            return []
        named = f"rank{'s' if len(missing) > 1 else ''} {list_some(list(map(str, missing)))}"
        return [
            f"the job has {size} ranks ({size_name}), and there is no report of {named}: collectives and "
            "messages with other ranks are incomplete"
        ]
    return []


def _find_copies(infos: Sequence[ReportInfo]) -> list[str]:
    """Return reports with the same sessions, processes and rows."""
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
                f"{info.given}: is the same report as {first.given} (session, processes and rows): its events are "
                "in the trace twice"
            )
        else:
            seen |= {(content, folder, rows): info}
            seen.setdefault((content, folder, tables), info)
    return copies


def _describe_content(info: ReportInfo) -> str:
    """Return all that copies of a report share, but for their rows."""
    bare = replace(info, path=Path(), given_path=None, parts={}, capture=Capture())
    values = (getattr(bare, name) for name in bare.__struct_fields__)
    return repr([sorted(one.items()) if isinstance(one, dict) else one for one in values])


def make_session_key(info: ReportInfo) -> Hashable | None:
    """Return a key that copies of a report share and few other reports do; None if nothing
    identifies a copy.
    """
    if info.utc_ns is None or not info.processes:
        return None
    return info.utc_ns, tuple(info.processes)


def _check_jobs(infos: Sequence[ReportInfo]) -> list[str]:
    by_job: dict[str, str] = {}
    for info in infos:
        if info.job:
            by_job.setdefault(info.job, info.name)
    if len(by_job) < 2:
        return []
    return [
        f"the reports are of {len(by_job)} jobs by the launcher's job id ({list_some(list(by_job.values()))}): "
        "do they belong together?"
    ]


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
                f"{later} begins {(start - last) / 1e9:,.0f} s after {name} and all before it ended: are they of one run?"
            ]
    return []


def _check_ranks(infos: Sequence[ReportInfo]) -> list[str]:
    """Return the MPI ranks that two processes claim."""
    claims = (
        (rank, (info.host, process), info) for info in infos for process, rank in info.ranks.items()
    )
    return [
        f"MPI rank {rank} is in {reports}, as different processes: are they of one job?"
        for rank, reports in _find_claimed_twice(claims)
    ]


def _find_claimed_twice(
    claims: Iterable[tuple[int, Hashable, ReportInfo]],
) -> Iterator[tuple[int, str]]:
    """Yield the first rank that two claim, with the names of their reports: by their paths where
    they have the same name. claims: rank, claimant and report.
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
    """Return ranks by the launcher's environment that several reports claim, where no variable
    tells all reports apart. Of reports of one session one counts.
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
                return [f"rank {rank} ({name}) is in {reports}: are they of one job?"]
    return []


class Captures(Struct, frozen=True):
    """Processes and captures that several reports of a job have in common."""

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
        """Return a process as its first capture has it."""
        return self.firsts.get((report, process), (report, process))

    def describe_gaps(self) -> list[str]:
        """Return a line for people where processes were captured several times."""
        if not self.chains:
            return []
        most = max(map(len, self.chains))
        return [
            f"{len(self.chains):,} of the reports' processes were captured up to {most} times: what happened between "
            "captures is not recorded, and counts neither as work nor as idle time"
        ]

    def describe_runs(self, infos: Sequence[ReportInfo]) -> str:
        """Return a line for people where the reports are of separate runs, else nothing."""
        if len(self.runs) < 2:
            return ""
        names = [list_some([infos[at].name for at in run]) for run in self.runs]
        return (
            f"{list_some(names, separator='; ')}: {len(self.runs)} runs after each other ({self.gap / 1e9:,.1f} s "
            "apart, in different processes of one host), not ranks of one job"
        )


def find_captures(
    infos: Sequence[ReportInfo],
    machines: Sequence[int],
    events: Mapping[int, Span],
    recorded: Mapping[int, Span],
) -> Captures:
    """Find the processes and captures that reports have in common. machines: number of each
    report's machine; events: when the events of each report are, recorded: when it was recorded, of
    those whose clock is known.
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
    """Return the processes that several of one machine's reports (by time) have captures of."""
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
    """Return the processes that a report profiles (globalPid) with the least number of their CUDA
    calls and how many of these there are, (0, 0) where there are none.
    """
    with Database(info.path) as database:
        processes = dict.fromkeys(list_profiled_processes(database), (0, 0))
        if database.has(CALLS, "globalTid", "correlationId"):
            for process, least, count in database.query(
                f"SELECT globalTid & {PROCESS_MASK}, min(correlationId), count(*) FROM {name_rows(CALLS)} "
                "WHERE typeof(correlationId) = 'integer' GROUP BY 1"
            ):
                processes[process] = (least, count)
    return processes


def list_profiled_processes(database: Database) -> frozenset[int]:
    """Return globalPid of every process that the report profiles; none where it does not tell.

    In exports as Nsight Systems 2021.2 to 2026.2 wrote them every process with rows in tables of
    traced calls is among these.
    """
    return frozenset(
        number & PROCESS_MASK
        for table, column in PROFILED_PROCESS_TABLES
        for (number,) in database.read_small_table(table, column, types=(int,))
        if pid_of(number) not in NO_PROCESSES
    )


def _goes_on(before: tuple[int, int], after: tuple[int, int]) -> bool:
    """True unless the numbers of a process's calls show that it began anew in between: then they
    begin where they began before.
    """
    return 0 in (before[1], after[1]) or after[0] > before[0] + before[1] // 2


def _number_runs(
    by_machine: Mapping[int, Sequence[int]], chains: Sequence[Chain], recorded: Mapping[int, Span]
) -> tuple[dict[int, int], int]:
    """Return the run that each report is of, and the shortest time between two."""
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
    """Return the capture that each report is of, by the longest chain."""
    if not chains:
        return {}
    base = [events[at] for at in max(chains, key=len)]
    chained = {at for chain in chains for at in chain}
    numbers = {}
    for chain in (*chains, *((at,) for at in events if at not in chained)):
        numbers |= zip(chain, _match_spans([events[at] for at in chain], base), strict=True)
    return numbers


def _match_spans(spans: Sequence[Span], base: Sequence[Span]) -> list[int]:
    """Return for each span the place of the one in `base` that it meets for longest. Where that
    gives several the same place: by order.
    """
    places = []
    for begin, end in spans:
        together = [min(end, last) - max(begin, first) for first, last in base]
        places.append(max(range(len(base)), key=together.__getitem__))
    return places if len(set(places)) == len(places) else list(range(len(spans)))
