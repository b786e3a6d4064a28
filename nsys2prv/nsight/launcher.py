"""What the launcher of a job says of its ranks in their environment: rank, number of ranks, job."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence

from nsys2prv.nsight.source import Source

#: In the order of trust: inside a batch step that starts mpirun, SLURM_PROCID is 0 for every rank.
RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
#: Variable of ranks -> that of their number.
SIZE_VARIABLES = {
    "RANK": "WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE",
    "PMI_RANK": "PMI_SIZE",
    "SLURM_PROCID": "SLURM_NTASKS",
}
#: Ids of a job. A heterogeneous job has one for all its parts.
JOB_VARIABLES = (
    "SLURM_HET_JOB_ID",
    "SLURM_JOB_ID",
    "PBS_JOBID",
    "LSB_JOBID",
    "FLUX_JOB_ID",
    "PJM_JOBID",
    "COBALT_JOBID",
)


def read_launcher_ranks(database: Source) -> dict[str, int]:
    """Return the rank by each of :data:`RANK_VARIABLES` that the report's launch environment holds,
    in their order.

    META_DATA_CAPTURE holds one row a variable, named `PROCESS_0:ENVIRONMENT_VARIABLE`, with a value
    `NAME="text"`. A variable with several values (several processes launched) tells nothing.
    """
    return _read_numbers(database, RANK_VARIABLES)


def read_launcher_sizes(database: Source) -> dict[str, int]:
    """Return the number of ranks by each of :data:`SIZE_VARIABLES` that the launch environment
    holds.
    """
    return _read_numbers(database, tuple(SIZE_VARIABLES.values()))


def _read_numbers(database: Source, names: Sequence[str]) -> dict[str, int]:
    """Return the values of variables that are numbers, in the order of their names; a variable with
    several values is left out.
    """
    if not database.has("META_DATA_CAPTURE", "name", "value"):
        return {}
    wanted = " OR ".join(f"value GLOB '{name}=*'" for name in names)
    rows = database.query(
        f"SELECT value FROM META_DATA_CAPTURE WHERE name LIKE '%ENVIRONMENT_VARIABLE' AND ({wanted})"
    )
    numbers: dict[str, set[int]] = {}
    for (value,) in rows:
        match = re.fullmatch(r'(\w+)="?([0-9]{1,9})"?\s*', str(value))
        if match:
            numbers.setdefault(match[1], set()).add(int(match[2]))
    return {name: numbers[name].pop() for name in names if len(numbers.get(name, ())) == 1}


def read_launcher_job(database: Source) -> str:
    """Return a digest of the first of :data:`JOB_VARIABLES`, which tells the launcher's jobs apart
    and reveals nothing else; "" without one.
    """
    if not database.has("META_DATA_CAPTURE", "name", "value"):
        return ""
    for name in JOB_VARIABLES:
        rows = database.query(
            f"SELECT DISTINCT value FROM META_DATA_CAPTURE WHERE name LIKE '%ENVIRONMENT_VARIABLE' "
            f"AND typeof(value) = 'text' AND value GLOB '{name}=*' LIMIT 2"
        )
        if len(rows) == 1:
            return hashlib.sha256(rows[0][0].encode("utf-8", "replace")).hexdigest()[:16]
    return ""


def choose_launcher_ranks(ranks: Sequence[Mapping[str, int]]) -> list[int] | None:
    """Return one rank per report, by the first variable that all of them have with distinct values;
    None if there is none.
    """
    for name in RANK_VARIABLES:
        values = [report.get(name) for report in ranks]
        if None not in values and len(set(values)) == len(values):
            return values
    return None
