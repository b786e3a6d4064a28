"""Engines that run pure functions over files on any :class:`concurrent.futures.Executor`.

An engine is a function of a module here, ``workers(jobs, scheduler)``, whose context gives a
:class:`Pool`.
Those of other packages (Dask, mpi4py) are imported when they are asked for. All workers read the
reports and the temporary folder by the same paths: on several machines both are on a file system
that they share.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from importlib import import_module

from nsys2prv._util.engines.local import available_cpus
from nsys2prv._util.engines.pool import Pool
from nsys2prv._util.errors import UsageError

#: Engine -> its module here, the function, and the package that it needs.
ENGINES = {
    "local": ("local", "workers", ""),
    "processes": ("processes", "workers", ""),
    "threads": ("local", "threads", ""),
    "dask": ("dask", "workers", "distributed"),
    "mpi": ("mpi", "workers", "mpi4py"),
}
DEFAULT = "local"


def check(engine: str, scheduler: str | None) -> None:
    """Check that there is such an engine and that it takes these options. Raises UsageError
    otherwise.
    """
    if engine not in ENGINES:
        raise UsageError(f"--engine {engine}: none of {', '.join(ENGINES)}")
    if scheduler and engine != "dask":
        raise UsageError("--scheduler is where --engine dask finds its cluster")


def workers(engine: str, jobs: int, scheduler: str | None = None) -> AbstractContextManager[Pool]:
    """Return the workers of an engine. Raises UsageError where its packages are not installed."""
    check(engine, scheduler)
    name, function, package = ENGINES[engine]
    try:
        module = import_module(f"{__name__}.{name}")
    except ImportError as error:
        raise UsageError(
            f"--engine {engine} needs the package {error.name}: pip install {package}"
        ) from None
    return getattr(module, function)(jobs or available_cpus(), scheduler)


def alone() -> Pool:
    """Return this process, for jobs that are not worth more."""
    from nsys2prv._util.engines.local import SerialExecutor

    return Pool(SerialExecutor(), 1)
