"""Generates sets of Nsight Systems SQLite exports (one per rank) of an imagined training job, and the truth about them.

>>> from samples import Options, generate >>> truth = generate("out", Options(ranks=4, hosts=2, steps=3))  # writes out/rank0.sqlite ...
and out/truth.json

The exports look like real ones of nsys 2026.2 (schema 3.25.0); the same options give the same bytes. What was put in - clock errors,
counts, durations, when each collective really began and ended - is in ``truth.json``.

=============  ======================================================================================================================
options        what can be asked for; every field is an option of the command line too cluster        hosts and their clocks, GPUs, ranks
with threads and streams, NCCL communicators program        what a rank does, as a sequence of operations, and the builder that writes such
sequences job, mpi_job   the training job's three programs (start, step, end); what they do with MPI, whose terms are in mpi timeline
when each operation happens on each rank report         one report: tables in SQLite, strings, the tally of all rows cuda, nvtx     a
program's rows in a report: CUDA; NVTX ranges and payloads nccl, mpi_rows ... nsys's advanced NCCL trace; MPI; and the truth about both
background     data loading, marks, calls into the OS runtime sampling       what is sampled: storage and EFA devices; gpu_metrics; network
machine        further tables of the machine, memory and the profiler models         ... of programming models, libraries and frameworks
faults         rows that are lost, collectives that one report alone has, a report that is cut system         what a report says of itself:
environment, GPUs, processes, capture, export simulate       runs all of that and writes truth.json =============
======================================================================================================================

To add a table to a sample: put its CREATE TABLE statement into ``schema.sql``, write a function that takes a :class:`~.report.Scene` (a
report and its steps), adds rows with ``scene.insert`` or ``report.add`` and returns what is true of them, as ``add_libraries`` in
:mod:`models` does, and name it in ``ADDITIONS`` of :mod:`simulate`. ``python -m tools.samples out --additions NAME`` then has the table.
"""

from __future__ import annotations

from .options import Options
from .simulate import generate

__all__ = ["Options", "generate"]
