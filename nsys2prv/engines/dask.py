"""Workers of a Dask cluster: one that runs already, by its scheduler's address, or processes of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from distributed import Client, LocalCluster
from distributed.scheduler import KilledWorker

from nsys2prv.engines.pool import Pool
from nsys2prv.errors import Nsys2prvError

#: How long to wait for a scheduler, in seconds.
TIMEOUT = "10s"


@contextmanager
def workers(jobs: int, scheduler: str | None = None) -> Iterator[Pool]:
    """The cluster's workers; without a scheduler's address a cluster of `jobs` processes is made and ended."""
    if scheduler is None:
        with (LocalCluster(n_workers=max(1, jobs), threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client):
            yield _pool(client, one_machine=True)
        return
    try:
        client = Client(scheduler, timeout=TIMEOUT)
    except (OSError, ValueError) as error:
        raise Nsys2prvError(f"--scheduler {scheduler}: no Dask scheduler answers there ({error})") from None
    with client:
        yield _pool(client, one_machine=False)


def _pool(client: Client, one_machine: bool) -> Pool:
    jobs = max(1, sum(client.nthreads().values()))
    # Dask itself gives a lost worker's tasks to others, and names those at which several workers were lost.
    return Pool(client.get_executor(pure=False), jobs, one_machine, lost=(KilledWorker,))
