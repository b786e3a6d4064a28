"""Whether reports given together are of one run of one job: by their sessions, hosts, times and the launcher's job."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

from nsys2prv.report.capture import Capture
from nsys2prv.report.info import ReportInfo

#: Reports of one job overlap in time, but for clocks of hosts that differ; those further apart (ns) were recorded one after the other.
GAP = 60 * 1_000_000_000
FEW = 3


def warnings(infos: Sequence[ReportInfo]) -> list[str]:
    """What makes it doubtful, each in one line."""
    return [*_copies(infos), *_jobs(infos), *_one_after_the_other(infos), *_ranks(infos)]


def _copies(infos: Sequence[ReportInfo]) -> list[str]:
    """Reports whose sessions, processes and rows are the same."""
    found = []
    seen: dict[Hashable, list[ReportInfo]] = {}
    for info in infos:
        if (begun := session(info)) is None:
            continue
        alike = seen.setdefault(begun, [])
        if (first := next((other for other in alike if same(other, info)), None)) is not None:
            found.append(f"{info.given}: is the same report as {first.given} (session, processes and rows): its events are "
                         "in the trace twice")
        else:
            alike.append(info)
    return found


def session(info: ReportInfo) -> Hashable | None:
    """What copies of a report have in common and few other reports; None where nothing tells a copy."""
    return (info.utc_ns, tuple(info.processes)) if info.utc_ns is not None and info.processes else None


def same(one: ReportInfo, other: ReportInfo) -> bool:
    """Whether two reports of one session are one: an SQLite export numbers its rows with gaps, tables of a folder without."""
    def bare(info: ReportInfo) -> ReportInfo:
        return replace(info, path=Path(), source=None, parts={}, capture=Capture())

    forms_differ = one.path.is_dir() != other.path.is_dir()
    return bare(one) == bare(other) and (one.parts.keys() == other.parts.keys() if forms_differ else one.parts == other.parts)


def _jobs(infos: Sequence[ReportInfo]) -> list[str]:
    by_job: dict[str, ReportInfo] = {}
    for info in infos:
        if info.job:
            by_job.setdefault(info.job, info)
    if len(by_job) < 2:
        return []
    return [f"the reports are of {len(by_job)} jobs by the launcher's job id ({_some([info.name for info in by_job.values()])}): "
            "do they belong together?"]


def _one_after_the_other(infos: Sequence[ReportInfo]) -> list[str]:
    spans = sorted((info.utc_ns, info.utc_ns + info.duration_ns, info.name) for info in infos
                   if info.utc_ns is not None and info.duration_ns is not None)
    lasts = accumulate((end for _, end, _ in spans), max)
    for last, (_, _, name), (start, _, later) in zip(lasts, spans, spans[1:], strict=False):
        if start - last > GAP:
            return [f"{later} begins {(start - last) / 1e9:,.0f} s after {name} and all before it ended: are they of one run?"]
    return []


def _ranks(infos: Sequence[ReportInfo]) -> list[str]:
    """MPI ranks that two processes claim."""
    seen: dict[int, tuple[tuple[str, int], str]] = {}
    for info in infos:
        for process, rank in info.ranks.items():
            who = (info.host, process)
            known = seen.setdefault(rank, (who, info.name))
            if known[0] != who:
                return [f"MPI rank {rank} is in {known[1]} and in {info.name}, as different processes: are they of one job?"]
    return []


def missing_ranks(ranks: Sequence[set[int]]) -> list[str]:
    """A warning where a few ranks between 0 and the last have no report. ranks: of each report."""
    found = set().union(*ranks)
    lacking = max(found, default=-1) + 1 - len(found)
    # Where most are missing they were left out on purpose: one rank of each host, for instance.
    if len(ranks) < 2 or not 0 < lacking < len(found):
        return []
    names = _some([str(rank) for rank in range(max(found)) if rank not in found])
    have, them = (f"ranks {names} have", "they take") if lacking > 1 else (f"rank {names} has", "it takes")
    return [f"{have} no report: collectives that {them} part in are incomplete in the trace"]


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:FEW]) + (f" and {len(names) - FEW} more" if len(names) > FEW else "")
