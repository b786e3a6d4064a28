"""Check that reports given together are of one job, and find the processes that a report profiles."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path

from msgspec.structs import replace

from nsys2prv._util.text import list_some
from nsys2prv.export.info import (
    PROCESS_MASK,
    RANK_VARIABLES,
    SIZE_VARIABLES,
    Capture,
    ReportInfo,
    pid_of,
)
from nsys2prv.export.messages import NO_PROCESSES
from nsys2prv.export.ranks import choose_launcher_ranks
from nsys2prv.export.sqlite import Database

#: Reports of one job overlap in time, but for clocks of hosts that differ; those further apart (ns)
#: were recorded one after the other.
GAP = 60 * 1_000_000_000
#: Jobs of more ranks than anybody runs are not counted through.
MOST_RANKS = 10_000_000


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


#: Small tables with rows of the processes that Nsight Systems was loaded into, and their columns of
#: global ids.
PROFILED_PROCESS_TABLES = (
    ("PROFILER_OVERHEAD", "globalTid"),
    ("ProcessStreams", "globalPid"),
    ("DIAGNOSTIC_EVENT", "globalPid"),
    ("MPI_RANKS", "globalTid"),
)


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
