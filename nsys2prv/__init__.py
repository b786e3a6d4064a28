"""Merge the Nsight Systems exports of a parallel GPU job, one report per rank, into one Paraver
trace.

    from nsys2prv import convert, Options
    summary = convert(["rank0.sqlite", "rank1.sqlite"], "out.prv", Options())

    with nsys2prv.open("run/rank*.sqlite") as job:  # files, folders of reports, patterns
        kernels = job.frame("kernels")  # polars; begin and end in ns, int64
        results = job.analyse("efficiencies", "overlap")  # name -> Result with tables
        findings = job.findings()  # the bottlenecks by group, most expensive first in each

    nsys2prv.study(["4gpu/", "8gpu/", "16gpu/"])  # how the job scales: a Study

All times are nanoseconds. docs/notebook.ipynb has more examples; docs/development.md describes the
code.
"""

from __future__ import annotations

from nsys2prv._util import __version__

#: For type checkers; to import `typing` for it would make a fourth of the time until the command
#: can be interrupted.
TYPE_CHECKING = False
__all__ = [
    "Finding",
    "Nsys2prvError",
    "OpenJob",
    "Options",
    "Study",
    "Summary",
    "__version__",
    "convert",
]

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from nsys2prv._util.errors import Nsys2prvError
    from nsys2prv.conversion.options import Options
    from nsys2prv.conversion.summary import Summary
    from nsys2prv.figures.result import Finding
    from nsys2prv.open_job import OpenJob, open_job
    from nsys2prv.show.study.formats import Study
    from nsys2prv.study_runs import make_study

    # Not in __all__: `import *` would hide Python's own.
    open, study = open_job, make_study


def convert(
    reports: Sequence[str | Path] | str | Path,
    output: str | Path,
    options: Options | None = None,
    **asked: object,
) -> Summary:
    """Write one trace of these reports, and return its summary.

    reports: files, folders of reports, or patterns such as "run/rank*.sqlite"; one or many. output: the
    trace, .prv (with .pcf and .row beside it) for Paraver or .pftrace for Perfetto, either with .gz; existing
    files are replaced only by complete ones. options: as on the command line; see Options. asked: single
    fields of Options by name, such as compress=True or kinds=("kernels", "nccl").

    print(summary.text()) prints the output of the command; summary.warnings lists the warnings.

    Raise Nsys2prvError, in one line, when a report cannot be read or the trace cannot be written, and its
    subclass NothingToWrite when there are no events of the requested kinds.
    """
    from nsys2prv.conversion.convert import convert
    from nsys2prv.conversion.options import choose_options

    options = choose_options(options, asked)
    if not options.report:
        return convert(reports, output, options)
    from nsys2prv.cli.report import write_report_files

    return convert(reports, output, options, write_report_files)


def __dir__() -> list[str]:
    """Return the names for completion: the public ones, imported on first use."""
    return sorted(
        {*(name for name in globals() if name[:2] == "__" == name[-2:]), *__all__, "open", "study"}
    )


def __getattr__(name: str) -> object:
    """Import a public name on first use, so that ``nsys2prv --help`` need not load polars."""
    if name in {"Options", "Summary", "convert"}:
        from nsys2prv.conversion import convert as conversion

        return getattr(conversion, name)
    if name in {"OpenJob", "open"}:
        from nsys2prv import open_job as job

        return job.OpenJob if name == "OpenJob" else job.open_job
    if name == "Nsys2prvError":
        from nsys2prv._util.errors import Nsys2prvError

        return Nsys2prvError
    if name == "Finding":
        from nsys2prv.figures.result import Finding

        return Finding
    if name == "study":
        from nsys2prv.study_runs import make_study

        return make_study
    if name == "Study":
        from nsys2prv.show.study.formats import Study

        return Study
    raise AttributeError(f"module 'nsys2prv' has no attribute {name!r}")
