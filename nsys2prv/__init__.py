"""Nsight Systems exports of a parallel GPU job, one report per rank, written as one Paraver trace.

    from nsys2prv import convert, Options
    summary = convert(["rank0.sqlite", "rank1.sqlite"], "out.prv", Options())

    with nsys2prv.open("run/rank*.sqlite") as job:                # files, folders of reports, patterns
        kernels = job.frame("cuda_kernel")                        # polars; begin and end in ns, int64
        results = job.analyse("efficiencies", "overlap")          # name -> Result with tables

A trace flows one way through eight rooms: :mod:`nsys2prv.report` opens an export, :mod:`nsys2prv.events` reads one kind of event into the
normal form, :mod:`nsys2prv.relations` compares the ranks, :mod:`nsys2prv.states` makes states of ranges, :mod:`nsys2prv.clock` places the
reports on one timeline, :mod:`nsys2prv.cut` leaves out what is not wanted, :mod:`nsys2prv.model` numbers objects and names, and
:mod:`nsys2prv.paraver` knows the trace's formats. :mod:`nsys2prv.preparation` is the road up to what is written,
:mod:`nsys2prv.conversion` the whole of it; :mod:`nsys2prv.analysis` takes what is prepared and writes no trace.
All times are nanoseconds.
"""

from __future__ import annotations

#: For type checkers; to import `typing` for it would make a fourth of the time until the command can be interrupted.
TYPE_CHECKING = False
__version__ = "1.0.0.dev0"
__all__ = ["Finding", "Opened", "Options", "Summary", "__version__", "convert"]

if TYPE_CHECKING:
    from nsys2prv.analysis.findings.finding import Finding
    from nsys2prv.analysis.opened import Opened
    from nsys2prv.analysis.opened import open_job as open  # noqa: F401  what __getattr__ gives; not for `import *`
    from nsys2prv.conversion import Options, Summary, convert


def __dir__() -> list[str]:
    """What completion offers: also what is imported on first use."""
    return sorted({*globals(), *__all__, "open"})


def __getattr__(name: str) -> object:
    """Imported on first use, so that ``nsys2prv --help`` does not wait for polars."""
    if name in {"Options", "Summary", "convert"}:
        from nsys2prv import conversion

        return getattr(conversion, name)
    if name in {"Opened", "open"}:
        from nsys2prv.analysis import opened

        return opened.Opened if name == "Opened" else opened.open_job
    if name == "Finding":
        from nsys2prv.analysis.findings.finding import Finding

        return Finding
    raise AttributeError(f"module 'nsys2prv' has no attribute {name!r}")
