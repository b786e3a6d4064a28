"""Generates sets of Nsight Systems SQLite exports (one per rank) of an imagined training job, and
the truth about them.

>>> from samples import Options, generate
>>> truth = generate("out", Options(ranks=4, hosts=2, steps=3))  # writes out/rank0.sqlite ... and out/truth.json

The exports look like real ones of nsys 2026.2 (schema 3.25.0); the same options give the same
bytes. What was put in - clock errors, counts, durations, when each collective really began and
ended - is in ``truth.json``.

A job is made in three stages. Its *programs* say what every rank does, operation by operation: at
the start, in a step, at the end. A *timeline* runs a program many times on all ranks at once and
finds when each operation begins and ends. Writers put those times into the *reports*, as rows of
tables. ``simulate`` goes through the stages; the modules, in the order of imports:

* ``data``: the files of data, with most that is a plain table. ``options``: what can be asked for.
  ``cluster``: hosts with their clocks, GPUs, ranks, communicators.
* ``program``: programs, and those of the job; ``mpi``: what they do with MPI, and its rows.
  ``timeline``: their times.
* ``report``: one report, as tables in SQLite. ``cuda``, ``nvtx``: a program's rows in it.
  ``background``: what goes on beside the programs. ``sampling``, ``network``: what is sampled.
  ``additions``: families of further tables. ``system``: what a report says of itself.
* ``faults``: what holds the job back. ``truth``: what is true of collectives, messages and reports.

To add a table to a sample: put its CREATE TABLE statement into ``schema.sql``; write a function
that takes a :class:`~.report.Scene` (a report and its steps), adds rows with ``scene.insert`` or
``report.add`` and returns what is true of them, as ``add_libraries`` in ``additions`` does; name it
in ``ADDITIONS`` there. ``python -m tools.samples out --additions NAME`` then writes it. A text in a
column of whole numbers becomes its id in StringIds by itself.
"""

from __future__ import annotations

from .options import Options
from .simulate import generate

__all__ = ["Options", "generate"]
