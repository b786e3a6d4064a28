"""The ranks of an MPI job, such as ``srun -n 64 nsys2prv --engine mpi ...``: rank 0 leads, the
others work for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mpi4py import MPI
from mpi4py.futures import MPICommExecutor

from nsys2prv._util.engines.pool import Pool


@contextmanager
def workers(jobs: int, scheduler: str | None = None) -> Iterator[Pool]:
    """Return the other ranks of the job, or this one where there is no other. On them it raises
    SystemExit once rank 0 is done.
    """
    others = MPI.COMM_WORLD.Get_size() - 1
    with MPICommExecutor(MPI.COMM_WORLD, root=0) as executor:
        if executor is not None:
            yield Pool(executor, max(1, others), one_machine=not others)
            return
    raise SystemExit(0)
