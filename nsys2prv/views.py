"""The Paraver views that come with the package."""

from __future__ import annotations

import shutil
from pathlib import Path

from nsys2prv.errors import Nsys2prvError

#: View -> record layouts of which it needs one, in the order in which to open them: first what happens when, on all rows; then
#: what the job waits for; then where its time goes.
FIRST = (
    ("views/cuda_activities.cfg", ("cuda_kernel", "nccl_kernel", "cuda_api", "memory_operation", "cuda_graph")),
    ("views/nvtx_ranges.cfg", ("nvtx_pushpop",)),
    ("views/nccl_wait.cfg", ("nccl_collective",)),
    ("views/mpi_messages.cfg", ("mpi_point_to_point", "mpi_collective", "mpi_other", "mpi_one_sided", "mpi_io")),
    ("analysis/kernel_time_2dh.cfg", ("cuda_kernel", "cuda_graph")),
    ("basics/memory_operations.cfg", ("memory_operation",)),
    ("basics/nccl_kernels.cfg", ("nccl_kernel",)),
    ("views/nvtx_startend.cfg", ("nvtx_startend",)),
    ("analysis/api_time_2dh.cfg", ("cuda_api",)),
    ("basics/cuda_synchronization.cfg", ("cuda_synchronization",)),
    ("views/nvtx_marks.cfg", ("nvtx_mark",)),
    ("basics/cuda_event_calls.cfg", ("cuda_event",)),
    ("views/osrt_calls.cfg", ("osrt",)),
    ("views/pthreads.cfg", ("pthread",)),
    ("basics/openacc_constructs.cfg", ("openacc_other", "openacc_data", "openacc_launch")),
    ("basics/openmp.cfg", ("openmp_parallel", "openmp_implicit_task", "openmp_barrier")),
)
MOST_FIRST = 5
WORKSPACES = "workspaces"


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


def copy_to(target: Path) -> tuple[list[str], list[str]]:
    """Copy all views into a folder, which is made, with workspaces that make Paraver offer them; returns what was written."""
    root, copied, written = folder(), views(), []
    try:
        for view in copied:
            (target / view).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / view, target / view)
        for name, text in workspaces().items():
            written.append(f"{WORKSPACES}/{name}")
            (target / WORKSPACES).mkdir(exist_ok=True)
            (target / written[-1]).write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise Nsys2prvError(f"{error.filename or target}: {error.strerror or error}") from None
    return copied, written


def workspaces() -> dict[str, str]:
    """Name -> text of files that Paraver imports: one for the views to open first and one for each folder of views."""
    from nsys2prv.paraver.cfg.catalogue import FILE, codes_of, load
    from nsys2prv.paraver.cfg.workspace import SUFFIX, workspace, workspace_text

    catalogue = folder() / FILE
    known = frozenset(code for codes in codes_of(catalogue).values() for code in codes)
    found = {view.path: view for view in load(catalogue)}
    groups = {"nsys2prv": [found[path] for path, _ in FIRST]}
    for path, view in found.items():
        groups.setdefault(f"nsys2prv {path.partition('/')[0]}", []).append(view)
    return {name.replace(" ", "-") + SUFFIX: workspace_text(workspace(name, group, known)) for name, group in groups.items()}


def fitting(trace: Path) -> list[tuple[str, str, str]]:
    """Path, title, and why it shows nothing of a trace (empty: it does) of every view, in the catalogue's order."""
    from nsys2prv.paraver.cfg.catalogue import FILE, codes_of, load
    from nsys2prv.paraver.cfg.fits import why_empty
    from nsys2prv.paraver.contents import contents

    catalogue, held = folder() / FILE, contents(trace)
    by_breadth = sorted(codes_of(catalogue).items(), key=lambda entry: -len(entry[1]))
    names = {code: name for name, codes in by_breadth for code in codes}
    return [(view.path, view.title, why_empty(view.cfg, held, names)) for view in load(catalogue)]


def first_views(present: set[str]) -> list[str]:
    """Up to five views worth opening first on a trace with these record layouts."""
    return [view for view, layouts in FIRST if present & set(layouts)][:MOST_FIRST]


def listed(trace: Path, found: list[tuple[str, str, str]]) -> list[str]:
    """What :func:`fitting` found, for people."""
    shown = [(path, title) for path, title, reason in found if not reason]
    empty = [(path, reason) for path, _, reason in found if reason]
    width = max(len(path) for path, _, _ in found)
    lines = [f"{len(shown)} of {len(found)} views show something of {trace}:", *(f"  {path:<{width}}  {title}" for path, title in shown)]
    return [*lines, *([f"{len(empty)} do not:"] if empty else []), *(f"  {path:<{width}}  {reason}" for path, reason in empty)]
