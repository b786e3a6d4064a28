"""Keep records on disk, sorted by time, between reading and writing.

In: the rows of a part of a table, in the report's own time (:mod:`work_result`). Out: the records of a
window in trace time (:mod:`windows`), or a frame of events (:mod:`event_reader`). Start in
:mod:`runs`, which has the format of the files.
"""
