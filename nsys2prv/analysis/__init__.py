"""Insight without Paraver: analyses of a job's aligned events, in columns. Reading is
nsys2prv.conversion.prepare's; nothing here writes a trace.

:mod:`job` has what users hold; each analysis is one module (efficiencies, overlap, ...) that
declares what it needs, collects partial frames of each unit of the job in worker processes and
concludes tables from them; :mod:`text` prints them.
"""
