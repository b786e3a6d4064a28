"""Generates sets of Nsight Systems SQLite exports (one per rank) of an imagined training job, and the truth about them.

>>> from samples import Options, generate
>>> truth = generate("out", Options(ranks=4, hosts=2, steps=3))  # writes out/rank0.sqlite ... and out/truth.json

The exports look like real ones of nsys 2026.2 (schema 3.25.0); the same options give the same bytes. What was put in
- clock errors, counts, durations, when each collective really began and ended - is in ``truth.json``.

:mod:`job` says what the ranks do, :mod:`timeline` when, :mod:`cluster` where and by which clock, :mod:`rows`,
:mod:`nvtx`, :mod:`background`, :mod:`graphs` and :mod:`target` turn that into table rows, :mod:`write` puts them into
SQLite. What is off unless asked for: MPI (:mod:`mpi`), OS runtime calls in volume (:mod:`osrt`), sampled metrics of
GPUs, network and storage (:mod:`metrics`), nsys's advanced NCCL trace (:mod:`nccl_trace`), and what each NCCL collective
cost (:mod:`recorder`).
"""

from __future__ import annotations

from .options import Options
from .sets import generate

__all__ = ["Options", "generate"]
