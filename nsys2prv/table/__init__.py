"""Keep events on disk as columns sorted by time, between reading and writing.

Input: the rows of a part of a table, in the report's own time (:mod:`task_result`). Output: slices
of a window, in trace time (:mod:`windows`, :mod:`slices`), or a frame of events
(:mod:`event_reader`). Start in :mod:`runs`, which defines the columns.
"""
