"""Which reports a cut wants: by rank and by host."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from nsys2prv.cut.asked import Cut, numbers
from nsys2prv.errors import Nsys2prvError
from nsys2prv.report.info import ReportInfo
from nsys2prv.report.launcher import distinguishing

#: So many are told where none of them was meant.
MOST_TOLD = 8


def ranks_of(infos: Sequence[ReportInfo]) -> list[set[int]]:
    """The ranks of each report (in rank order): MPI's where any report tells them, else the launcher's, else their places from 0 on."""
    if any(info.ranks for info in infos):
        return [set(info.ranks.values()) for info in infos]
    launched = distinguishing([info.launcher_ranks for info in infos])
    return [{rank} for rank in (range(len(infos)) if launched is None else launched)]


def is_among(rank: int | None, wanted: Sequence[tuple[int, int]]) -> bool:
    """Whether a rank is in one of the ranges."""
    return rank is not None and any(first <= rank <= last for first, last in wanted)


def wanted_reports(infos: list[ReportInfo], cut: Cut) -> list[int]:
    """The numbers (in rank order) of the reports that may hold something wanted. Raises Nsys2prvError where that is none, or a rank or host
    asked for is in none."""
    if cut.ranks:
        wanted = numbers("--ranks", cut.ranks)
        ranks = ranks_of(infos)
        known = set().union(*ranks)
        for word, pair in zip(cut.ranks, wanted, strict=True):
            if not any(is_among(rank, [pair]) for rank in known):
                raise Nsys2prvError(f"--ranks {word}: no report is of such a rank; there are: {_told(map(str, sorted(known)))}")
        chosen = [index for index, own in enumerate(ranks) if any(is_among(rank, wanted) for rank in own)]
    else:
        chosen = list(range(len(infos)))
    if cut.hosts:
        hosts = sorted({info.host or "unknown-host" for info in infos})
        for pattern in cut.hosts:
            if not any(fnmatchcase(host, pattern) for host in hosts):
                raise Nsys2prvError(f"--hosts {pattern}: no report is of such a host; there are: {_told(hosts)}")
        chosen = [index for index in chosen if any(fnmatchcase(infos[index].host or "unknown-host", pattern) for pattern in cut.hosts)]
    if not chosen:
        raise Nsys2prvError(f"none of the {len(infos)} reports is of both a rank and a host asked for")
    return chosen


def _told(names: Sequence[str]) -> str:
    names = list(names)
    return ", ".join(names[:MOST_TOLD]) + (f" and {len(names) - MOST_TOLD} more" if len(names) > MOST_TOLD else "")
