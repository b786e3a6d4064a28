"""Generates sets of Nsight Systems SQLite exports (one per rank) of an imagined training job, and
the truth about them.

>>> from samples import Options, generate
>>> truth = generate("out", Options(ranks=4, hosts=2, steps=3))  # writes out/rank0.sqlite ... and out/truth.json

The exports look like real ones of nsys 2026.2 (schema 3.25.0); the same options give the same
bytes. What was put in - clock errors, counts, durations, when each collective really began and
ended - is in ``truth.json``. Modules, in the order of imports:

* ``data``: the files of data. ``options``: what can be asked for. ``cluster``: hosts with their
  clocks, GPUs, ranks, communicators.
* ``program``: what a rank does, as a sequence of operations; the training job's. ``mpi``: its calls
  of MPI, and their rows in a report.
* ``timeline``: when each operation happens on each rank. ``report``: one report, as tables in
  SQLite.
* ``cuda``, ``nvtx``: a program's rows in a report.
* ``background``: data loading, marks, calls into the OS runtime. ``sampling``, ``network``:
  what is sampled.
* ``additions``: families of further tables. ``faults``: what holds the job back, and
  what is missing in reports, or too much. ``truth``: what is true of collectives, messages, reports.
* ``system``: what a report says of itself. ``simulate``: runs all of that and writes
  ``truth.json``.

To add a table to a sample: put its CREATE TABLE statement into ``schema.sql``; write a function
that takes a :class:`~.report.Scene` (a report and its steps), adds rows with ``scene.insert`` or
``report.add`` and returns what is true of them, as ``add_libraries`` in ``additions`` does; name it in
``ADDITIONS`` there. ``python -m tools.samples out --additions NAME`` then writes it.
"""

from __future__ import annotations

from .options import Options
from .simulate import generate

__all__ = ["Options", "generate"]
