"""Analyse a job without Paraver: tables, and findings that say what holds it back.

In: a `Job` that :mod:`nsys2prv.conversion.convert` prepared. Out: a `Result` with tables for each
analysis; nothing here writes a trace. Start in :mod:`job`, which has what users hold.

:mod:`analyses` lists all analyses and runs them; analyses.yaml has what they are called, what they show
and their tables. Each has two functions: one yields partial frames of each unit of the job in worker
processes, the other adds tables from them to its result. :mod:`text` prints them, `page` makes the HTML
page, :mod:`comparison` compares two jobs, and `study` several runs.
"""
