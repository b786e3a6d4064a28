"""Find the rank of each process: by NCCL's payloads, by MPI, by the launcher's environment, or by
the order of the reports' names.

Ranks count from 0. The first of these that tells all processes of the job apart is taken; where
none does, each process has its rank from the first that tells it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import polars as pl
from msgspec import Struct

from nsys2prv._util.text import format_count, make_natural_key
from nsys2prv.export.info import RANK_VARIABLES, ReportInfo

#: What tells ranks, in the order of trust.
NCCL_RANKS, MPI_RANKS, LAUNCHER, FILE_NAMES = (
    "NCCL's payloads",
    "MPI",
    "the launcher's environment",
    "file names",
)
#: A rank in the name of a report.
_RANK_IN_NAME = re.compile(r"rank[-_.=]?(\d{1,9})", re.IGNORECASE)

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
