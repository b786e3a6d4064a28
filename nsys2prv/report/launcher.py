"""The rank that a launcher gave a process, from the environment rows of a report.

Those rows hold the whole environment of the user's job, secrets included. Only the rows of the five variables below are ever
selected, so that no other value enters this program, let alone its output.
"""

from __future__ import annotations

import re

from nsys2prv.report.sqlite import Database

#: In the order of trust: inside a batch step that starts mpirun, SLURM_PROCID is 0 for every rank.
RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")


def launcher_rank(database: Database) -> int | None:
    """The rank by the first of :data:`RANK_VARIABLES` that the report's launch environment holds, else None.

    META_DATA_CAPTURE holds one row a variable, named `PROCESS_0:ENVIRONMENT_VARIABLE`, with a value `NAME="text"`.
    """
    if not database.has("META_DATA_CAPTURE", "name", "value"):
        return None
    wanted = " OR ".join(f"value GLOB '{name}=*'" for name in RANK_VARIABLES)
    rows = database.query(f"SELECT value FROM META_DATA_CAPTURE WHERE name LIKE '%ENVIRONMENT_VARIABLE' AND ({wanted})")
    found: dict[str, set[int]] = {}
    for (value,) in rows:
        match = re.fullmatch(r'(\w+)="?(\d{1,9})"?\s*', str(value))
        if match:
            found.setdefault(match[1], set()).add(int(match[2]))
    return next((found[name].pop() for name in RANK_VARIABLES if len(found.get(name, ())) == 1), None)
