"""Run `nsys2prv quality`: check a capture, such as a short trial run, before the long run.

Input: parsed options. Output: data missing for the figures, further data that can be recorded, and
the command that would record it, with the options and the program of the first report.
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Collection, Iterable, Sequence

from msgspec import structs

from nsys2prv._util.files import write_complete_files
from nsys2prv._util.text import capitalize
from nsys2prv.cli.report import Answer, choose_running, format_notes, make_heading
from nsys2prv.conversion.quality import (
    WOULD_TELL,
    QualityNote,
    assess_report_set,
    is_minor,
    list_options,
    list_unrecorded,
)
from nsys2prv.export.info import RANK_VARIABLES, ReportInfo, read_program
from nsys2prv.export.sqlite import open_database
from nsys2prv.open_job import open_job

#: Exit status if data required for figures is missing.
LACKING = 6
#: Tables with rows -> what --trace= traces.
TRACED = {
    "CUPTI_ACTIVITY_KIND_": "cuda",
    "CUPTI_ACTIVITY_KIND_OPENACC": "openacc",
    "CUBLAS_": "cublas",
    "CUDNN_": "cudnn",
    "OPENGL_": "opengl",
    "VULKAN_": "vulkan",
    "NVTX_EVENTS": "nvtx",
    "OSRT_API": "osrt",
    "MPI_": "mpi",
    "UCX_": "ucx",
    "OPENMP_": "openmp",
    "CUDA_GRAPH": "cuda",
}
TRACE = "--trace="
#: Variable that only one MPI library sets -> the option that names this library.
LIBRARIES = {"OMPI_COMM_WORLD_RANK": "--mpi-impl=openmpi"}
#: Table that only jobs with GPUs can have.
GPU_METRICS = "GPU_METRICS"


def run_quality(options: argparse.Namespace) -> Answer:
    """Run `nsys2prv quality`. Return its output, warnings and exit status."""
    with open_job(options.reports, **choose_running(options)) as job:
        described = job.describe(options.reports)
        notes = [*assess_report_set(job.prepared)]
        notes += [note for note in job.quality if note.kind != "not_recorded"]
        infos = job.prepared.infos
        program = [] if options.anonymous else _read_program(infos[0])
    lacking = [note for note in notes if not is_minor(note)]
    tables = {table for info in infos for table in info.parts}
    unrecorded = list_unrecorded(tables if described["devices"] else {*tables, GPU_METRICS})
    wanted = [*list_options(lacking), *(WOULD_TELL[what]["option"] for what in unrecorded)]
    common = [name for name in RANK_VARIABLES if all(name in one.launcher_ranks for one in infos)]
    if any(note.kind == "mpi_not_recorded" for note in lacking):
        wanted += [LIBRARIES[name] for name in common if name in LIBRARIES]
    output = [f"--output=rank%q{{{name}}}" for name in common[: len(infos) > 1]]
    command = _make_command(tables, [*wanted, *output], program)
    lines = [*make_heading(described), *format_notes(described["notes"]), ""]
    if lacking:
        lines += ["Required data is missing or unreliable", *_format_notes(lacking)]
    else:
        lines.append("No required data is missing")
    if unrecorded:
        lines += ["", "Optional data would explain more"]
        lines += [f"  {how} (no {what} were recorded)" for what, how in unrecorded.items()]
    if minor := [note for note in notes if is_minor(note)]:
        lines += ["", "Other notes", *_format_notes(minor)]
    if wanted:
        is_all = len(list_options(lacking)) == len(lacking)
        title = (
            "To record all of this"
            if is_all
            else "To record all of this, follow the advice above and use"
        )
        lines += ["", title, f"  {command}"]
    facts = {
        "lacking": [structs.asdict(note) for note in lacking],
        "possible": unrecorded,
        "command": command if wanted else "",
    }
    if options.json:
        write_complete_files({options.json: f"{json.dumps(facts, indent=1)}\n"})
    return "\n".join(lines), list(map(str, described["warnings"])), LACKING if lacking else 0


def _format_notes(notes: Iterable[QualityNote]) -> list[str]:
    """Return the lines of notes with their advice, which reports repeat."""
    return [
        line for note in notes for line in (f"  {note.text}", f"    Try  {capitalize(note.advice)}")
    ]


def _make_command(tables: Collection[str], wanted: Iterable[str], program: Sequence[str]) -> str:
    """Return the nsys command that records the contents of these tables, with additional options."""
    traced = [
        what for prefix, what in TRACED.items() if any(table.startswith(prefix) for table in tables)
    ]
    further = []
    for word in " ".join(wanted).split():
        if word.startswith(TRACE):
            traced += word.removeprefix(TRACE).split(",")
        else:
            further.append(word)
    traces = ",".join(dict.fromkeys(traced or ["cuda", "nvtx"]))
    shown = shlex.join(program) if program else "PROGRAM"
    return " ".join(["nsys profile", f"{TRACE}{traces}", *dict.fromkeys(further), shown])


def _read_program(first: ReportInfo) -> list[str]:
    """Return the program and arguments that the first report started; [] if not recorded."""
    with open_database(first.path) as database:
        return read_program(database)
