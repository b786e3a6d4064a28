"""Analyse a job without Paraver: tables, and findings that say what holds it back.

In: a `Job` that :mod:`nsys2prv.conversion.convert` prepared. Out: a `Result` with tables for each
analysis; nothing here writes a trace. Start in :mod:`job`, which has what users hold.

Each analysis is one module (efficiencies, overlap, ...): it declares what it needs, yields partial
frames of each unit of the job in worker processes, and adds tables from them to its result;
:mod:`analyses` runs them. :mod:`text` prints them, `page` makes the HTML page, `study` compares several
runs.
"""
