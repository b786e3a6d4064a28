"""Workers of a Dask cluster: one that runs already, by its scheduler's address, or processes of
this machine.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker

from distributed import Client, LocalCluster
from distributed.scheduler import KilledWorker

from nsys2prv._util.engines.pool import Pool
from nsys2prv._util.errors import Nsys2prvError

#: How long to wait for a scheduler, in seconds.
TIMEOUT = "10s"


@contextmanager
def workers(jobs: int, scheduler: str | None = None) -> Iterator[Pool]:
    """Return the cluster's workers; without a scheduler's address a cluster of `jobs` processes is
    made and ended.
    """
    if scheduler is None:
        with ExitStack() as stack:
            with _interruptions_later():
                cluster = stack.enter_context(
                    LocalCluster(
                        n_workers=max(1, jobs),
                        threads_per_worker=1,
                        dashboard_address=None,
                        silence_logs=logging.CRITICAL,
                    )
                )
                client = stack.enter_context(Client(cluster))
            yield _pool(client, one_machine=True)
        return
    try:
        client = Client(scheduler, timeout=TIMEOUT)
    except (OSError, ValueError) as error:
        raise Nsys2prvError(
            f"--scheduler {scheduler}: no Dask scheduler answers there ({error})"
        ) from None
    with client:
        yield _pool(client, one_machine=False)


@contextmanager
def _interruptions_later() -> Iterator[None]:
    """Delay interruptions until the block is left: a cluster half made cannot be ended. Processes
    started within are not interrupted at all, as a terminal would do: this one ends them.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # Starting it would let interruptions through again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _pool(client: Client, one_machine: bool) -> Pool:
    jobs = max(1, sum(client.nthreads().values()))
    # Dask itself gives a lost worker's tasks to others, and names those at which several workers
    # were lost.
    return Pool(client.get_executor(pure=False), jobs, one_machine, lost=(KilledWorker,))
