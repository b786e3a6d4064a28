"""Insight without Paraver: analyses of a job's aligned events, in columns. Reading is
nsys2prv.conversion.prepare's; nothing here writes a trace.

:mod:`job` has what users hold; each analysis is one module (efficiencies, overlap, ...) that
declares what it needs, yields partial frames of each unit of the job in worker processes and adds
tables from them to its result; :mod:`text` prints them.
"""
