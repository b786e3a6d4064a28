"""The Paraver views that come with the package."""

from __future__ import annotations

import shutil
from pathlib import Path

from nsys2prv.errors import Nsys2prvError

#: View -> record layouts of which it needs one, in the order in which to open them.
FIRST = (
    ("views/cuda_activities.cfg", ("cuda_kernel", "nccl_kernel", "cuda_api", "memory_operation")),
    ("views/mpi_messages.cfg", ("mpi_point_to_point", "mpi_collective")),
    ("basics/cuda_kernels.cfg", ("cuda_kernel",)),
    ("basics/memory_operations.cfg", ("memory_operation",)),
    ("views/nvtx_ranges.cfg", ("nvtx_pushpop",)),
    ("views/nvtx_startend.cfg", ("nvtx_startend",)),
    ("basics/cuda_graphs.cfg", ("cuda_graph",)),
    ("basics/cuda_api.cfg", ("cuda_api",)),
)


def folder() -> Path:
    """Where the views lie: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).parent
    for candidate in (package / "cfgs", package.parent / "cfgs"):
        if candidate.is_dir():
            return candidate
    raise Nsys2prvError(f"{package}: the views are missing from this installation; install nsys2prv again")


def views() -> list[str]:
    """Every view, as a path below :func:`folder`."""
    root = folder()
    return sorted(str(path.relative_to(root)) for path in root.rglob("*.cfg"))


def copy_to(target: Path) -> list[str]:
    """Copy all views into a folder, which is made; returns what was copied."""
    root, copied = folder(), views()
    try:
        for view in copied:
            (target / view).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / view, target / view)
    except OSError as error:
        raise Nsys2prvError(f"{error.filename or target}: {error.strerror or error}") from None
    return copied


def first_views(present: set[str]) -> list[str]:
    """Up to three views worth opening first on a trace with these record layouts."""
    return [view for view, layouts in FIRST if present & set(layouts)][:3]
