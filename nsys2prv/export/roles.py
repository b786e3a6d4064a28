"""Find the processes of a job that are ranks, with their numbers, and those that are helpers.

Ranks count from 0. A process is a rank if it works on a GPU, calls MPI or NCCL, or if the launcher
or the name of its report gives it a unique number. Numbers come from the first source that
distinguishes all working processes: NCCL payloads, MPI, the launcher's environment. If no source
does, each process gets the number from its own best source, and the remaining processes are
numbered by report names.

If a job has working processes, all others are helpers: shells, launchers, daemons, data loaders. A
helper belongs to the only rank of its report, otherwise to its host.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain

import polars as pl
from msgspec import Struct, field

from nsys2prv._util.text import format_count, list_some, make_natural_key
from nsys2prv.export.info import RANK_VARIABLES, SIZE_VARIABLES, ReportInfo, pid_of

#: Sources of ranks, the most reliable first.
NCCL_RANKS, MPI_RANKS = "NCCL payloads", "MPI"
LAUNCHER, FILE_NAMES = "the launcher's environment", "file names"
#: A rank in the name of a report.
_RANK_IN_NAME = re.compile(r"rank[-_.=]?(\d{1,9})", re.IGNORECASE)
#: Names of programs that start others.
_STARTERS = re.compile(
    r"(?:(?:ba|da|z|k|c|tc)?sh|env|time|timeout|numactl|taskset|nsys(?:-launcher)?|ssh|torchrun"
    r"|srun|jsrun|aprun|mpi(?:run|exec)\S*|orterun|prte\S*|orted|hydra_\S+)"
)
#: Name that MPI's tracer gives to main threads.
_MPI_THREAD = "MPI Rank "

#: A process of a report: index of the report, and globalPid.
ProcessKey = tuple[int, int]


class Rank(Struct, frozen=True):
    """The rank of a process, and from what it is known."""

    #: Its number in the job, from 0.
    number: int
    #: Its source; "" for the only process of a job without a recorded rank.
    source: str


class Roles(Struct, frozen=True):
    """The ranks of all processes of a job, and the processes that only help others."""

    #: Rank of each process that has one.
    ranks: Mapping[ProcessKey, Rank] = {}
    #: Helper -> the process that it belongs to, None for one of a host.
    helpers: Mapping[ProcessKey, ProcessKey | None] = {}
    #: Numbers that sources contradict, one line each.
    conflicts: tuple[str, ...] = ()


class Evidence(Struct, frozen=True):
    """Evidence of the work of a job's processes: GPU use, threads, NCCL and launches."""

    #: All processes, and whether they work on a GPU.
    with_gpu: Mapping[ProcessKey, bool]
    #: Process -> number of its threads with events, if known.
    threads: Mapping[ProcessKey, int] = field(default_factory=dict)
    #: Of NCCL's payloads: report, process, communicator, ranks and rank; None without any.
    nccl: pl.DataFrame | None = None
    #: Processes with NCCL kernels that have no payload.
    silent: Collection[ProcessKey] = ()
    #: Processes that launch work without any recorded row.
    launching: Collection[ProcessKey] = ()
    #: Processes with CUDA contexts. They are ranks if nothing in their report works.
    ready: Collection[ProcessKey] = ()
    #: Processes with other GPU work, as of graphics: no helpers.
    also_busy: Collection[ProcessKey] = ()
    #: True if the reports are of one job, so that their names may contain ranks.
    is_one_job: bool = True


def describe_processes(processes: int, ranks: int) -> str:
    """Describe the processes and ranks of a job: "4 ranks", "1 process" or "6 processes of 4 ranks"."""
    if processes == ranks > 1:
        return format_count(ranks, "rank")
    how_many = f"{processes:,} process{'' if processes == 1 else 'es'}"
    return f"{how_many} of {format_count(ranks, 'rank')}" if ranks and processes > 1 else how_many


def choose_launcher_ranks(ranks: Sequence[Mapping[str, int]]) -> list[int] | None:
    """Return one rank per report, from the first environment variable of launchers with distinct
    values in all reports; None if there is no such variable. ranks: variable -> value for each
    report.
    """
    for name in RANK_VARIABLES:
        values = [report.get(name) for report in ranks]
        if None not in values and len(set(values)) == len(values):
            return values
    return None


def find_program(info: ReportInfo, pid: int) -> str:
    """Return the name of a process (globalPid), or "".

    If the process started as a program that only starts others, return the name of its main thread,
    which is the name of the program that it became.
    """
    name, thread = info.processes.get(pid, ""), info.threads.get(pid | pid_of(pid), "")
    if thread and not thread.startswith(_MPI_THREAD) and _STARTERS.fullmatch(name):
        return thread
    return name


def find_launched_size(infos: Iterable[ReportInfo]) -> int | None:
    """Return the number of ranks that the launcher started, from its environment; None if it is
    missing or contradictory.
    """
    sizes = {size for info in infos for size in info.launcher_sizes.values()}
    return sizes.pop() if len(sizes) == 1 else None


def find_roles(infos: Sequence[ReportInfo], evidence: Evidence) -> Roles:
    """Decide for each process of a job whether it is a rank (and which), or a helper of another
    process.
    """
    by_report = _group_by_report(evidence.with_gpu)
    owners = _find_owners(infos, by_report, evidence)
    has_work = bool(owners)
    if not has_work:
        owners = _find_owners_without_work(infos, by_report, evidence)
    alone = {at: keys[0] for at, keys in _group_by_report(owners).items() if len(keys) == 1}
    sources, size = _list_sources(infos, owners, alone, evidence)
    found = _choose_ranks(sources, owners)
    left = [key for key in owners if key not in found]
    is_complete = size is not None and len(found) >= size
    if left and len(owners) == 1:
        found[left[0]] = Rank(0, "")
    elif left and evidence.is_one_job and not is_complete and all(key[0] in alone for key in left):
        found |= _number_by_names(infos, left, {rank.number for rank in found.values()})
    if has_work:
        claims = _find_claims(infos, by_report.keys() - {at for at, _ in owners}, found, size)
        for report, rank in claims.items():
            alone[report] = _choose_main(infos[report], by_report[report], evidence)
            found[alone[report]] = rank
    helpers: dict[ProcessKey, ProcessKey | None] = {}
    for key in evidence.with_gpu.keys() - {*owners, *alone.values()}:
        owner = alone.get(key[0])
        if not evidence.with_gpu[key] and key not in evidence.also_busy:
            helpers[key] = owner
        elif owner in found:
            found[key] = found[owner]
    return Roles(found, helpers, tuple(_describe_conflicts(sources, found)))


def _group_by_report(keys: Iterable[ProcessKey]) -> dict[int, list[ProcessKey]]:
    grouped: dict[int, list[ProcessKey]] = defaultdict(list)
    for key in sorted(keys, key=lambda key: (key[0], key[1] & (2**64 - 1))):
        grouped[key[0]].append(key)
    return grouped


def _find_owners(
    infos: Sequence[ReportInfo],
    by_report: Mapping[int, Sequence[ProcessKey]],
    evidence: Evidence,
) -> list[ProcessKey]:
    """Return report -> working processes: those with MPI calls; otherwise those that use GPUs or
    NCCL; otherwise those that may be ranks.
    """
    told = [] if evidence.nccl is None else evidence.nccl.select("report", "process").rows()
    working = {key for key, uses_gpu in evidence.with_gpu.items() if uses_gpu}
    working |= {*told, *evidence.silent, *evidence.launching}
    owners = []
    for report, keys in by_report.items():
        of_mpi = [key for key in keys if key[1] in infos[report].ranks]
        owners += (
            of_mpi
            or [key for key in keys if key in working]
            or [key for key in keys if key in evidence.ready]
        )
    return owners


def _find_owners_without_work(
    infos: Sequence[ReportInfo],
    by_report: Mapping[int, Sequence[ProcessKey]],
    evidence: Evidence,
) -> list[ProcessKey]:
    """Return the ranks of a job without recorded work.

    If the launcher or the file names distinguish the reports, there is one rank per report.
    Otherwise every process is a rank.
    """
    launched = [infos[report] for report in by_report]
    has_several = any(size > 1 for info in launched for size in info.launcher_sizes.values())
    is_told = has_several and choose_launcher_ranks([one.launcher_ranks for one in launched])
    named = {int(name[1]) for one in launched if (name := _RANK_IN_NAME.search(one.name))}
    if not is_told and not 1 < len(named) == len(launched):
        return [*chain.from_iterable(by_report.values())]
    return [_choose_main(infos[at], keys, evidence) for at, keys in by_report.items()]


def _choose_main(info: ReportInfo, keys: Sequence[ProcessKey], evidence: Evidence) -> ProcessKey:
    """Return the main process of a report: preferably one that does not only start others, then one
    with a name, then the one with the most threads.
    """

    def rate(key: ProcessKey) -> tuple:
        name = find_program(info, key[1])
        return (not _STARTERS.fullmatch(name), bool(name), evidence.threads.get(key, 0))

    return max(keys, key=rate)


def _list_sources(
    infos: Sequence[ReportInfo],
    owners: Sequence[ProcessKey],
    alone: Mapping[int, ProcessKey],
    evidence: Evidence,
) -> tuple[dict[str, dict[ProcessKey, int]], int | None]:
    """Return source -> rank numbers of processes, and the number of ranks of the job (None if
    unknown).
    """
    sources = {
        MPI_RANKS: {
            key: infos[key[0]].ranks[key[1]] for key in owners if key[1] in infos[key[0]].ranks
        },
        LAUNCHER: _read_launched_ranks({key: infos[at] for at, key in alone.items()}),
    }
    size = find_launched_size(infos[report] for report, _ in owners)
    known = max((1 + max(ranks.values()) for ranks in sources.values() if ranks), default=0)
    of_nccl, members = _read_nccl_ranks(evidence, owners, max(known, size or 0))
    return {NCCL_RANKS: of_nccl, **sources}, members or size


def _read_launched_ranks(infos: Mapping[ProcessKey, ReportInfo]) -> dict[ProcessKey, int]:
    """Return the ranks from the variable that distinguishes the most processes; of several, the
    most reliable variable.
    """
    by_name = (
        {
            key: rank
            for key, one in infos.items()
            if (rank := one.launcher_ranks.get(name)) is not None
        }
        for name in RANK_VARIABLES
    )
    return max((one for one in by_name if len(set(one.values())) == len(one)), key=len)


def _read_nccl_ranks(
    evidence: Evidence, owners: Sequence[ProcessKey], least: int
) -> tuple[dict[ProcessKey, int], int]:
    """Return the ranks in the largest NCCL communicator with a distinct rank for each process, and
    its size.

    Return nothing if its size is below `least` or below the number of processes that use NCCL,
    because it then does not span the job.
    """
    told = evidence.nccl
    if told is None or not told.height:
        return {}, 0
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
    least = max(least, len(everyone | (wanted & {*evidence.silent})))
    for (size, _), ranks in sorted(members.items(), reverse=True):
        numbers = {next(iter(of_process)) for of_process in ranks.values()}
        alone = all(len(of_process) == 1 for of_process in ranks.values())
        if size >= least and alone and ranks.keys() == everyone and len(numbers) == len(ranks):
            return {key: next(iter(of_process)) for key, of_process in ranks.items()}, size
    return {}, 0


def _choose_ranks(
    sources: Mapping[str, Mapping[ProcessKey, int]], owners: Sequence[ProcessKey]
) -> dict[ProcessKey, Rank]:
    """Return ranks from the first source that distinguishes all processes; otherwise each from the
    first source that gives this process a unique number.
    """
    for source, ranks in sources.items():
        if owners and len(set(ranks.values())) == len(ranks) == len(owners):
            return {key: Rank(number, source) for key, number in ranks.items()}
    found: dict[ProcessKey, Rank] = {}
    for source, ranks in sources.items():
        taken = {rank.number for rank in found.values()}
        for key, number in ranks.items():
            if key not in found and number not in taken:
                found[key] = Rank(number, source)
                taken.add(number)
    return found


def _number_by_names(
    infos: Sequence[ReportInfo], left: Sequence[ProcessKey], taken: set[int]
) -> dict[ProcessKey, Rank]:
    """Return ranks of processes by the number after "rank" in their report names, otherwise by the
    natural order of names. Numbers in `taken` are not used.
    """
    names = [_RANK_IN_NAME.search(infos[report].name) for report, _ in left]
    numbers = [int(name[1]) for name in names if name]
    if len(set(numbers)) < len(left) or taken & set(numbers):
        free = (number for number in range(len(left) + len(taken)) if number not in taken)
        left = sorted(left, key=lambda key: make_natural_key(str(infos[key[0]].given)))
        numbers = [number for number, _ in zip(free, left, strict=False)]
    return {key: Rank(number, FILE_NAMES) for key, number in zip(left, numbers, strict=True)}


def _find_claims(
    infos: Sequence[ReportInfo],
    reports: Iterable[int],
    found: Mapping[ProcessKey, Rank],
    size: int | None,
) -> dict[int, Rank]:
    """Return the ranks of reports without any work.

    The number, from the launcher or the report name, must belong to the job and must not be the
    rank of a working process. Daemons inherit the variables of their parent process, so launcher
    numbers count only if ranks are missing.
    """
    taken, claims = {rank.number for rank in found.values()}, {}
    for report in sorted(reports):
        info, name = infos[report], _RANK_IN_NAME.search(infos[report].name)
        stated = [
            (Rank(info.launcher_ranks[variable], LAUNCHER), info.launcher_sizes.get(of_size, size))
            for variable, of_size in SIZE_VARIABLES.items()
            if variable in info.launcher_ranks
        ]
        stated += [(Rank(int(name[1]), FILE_NAMES), size)] if name else []
        for rank, of in stated:
            is_there = of is None or (rank.number < of and len(taken) < of)
            if is_there and rank.number not in taken:
                claims[report] = rank
                taken.add(rank.number)
                break
    return claims


def _describe_conflicts(
    sources: Mapping[str, Mapping[ProcessKey, int]], found: Mapping[ProcessKey, Rank]
) -> Iterable[str]:
    """Yield a line for each source that numbers processes differently from the chosen one."""
    for source, ranks in sources.items():
        other = [
            f"rank {found[key].number} is its {number}"
            for key, number in sorted(ranks.items(), key=lambda item: item[1])
            if key in found and found[key].number != number
        ]
        if other:
            yield f"{source} numbers {format_count(len(other), 'rank')} otherwise: {list_some(other, 4)}"
