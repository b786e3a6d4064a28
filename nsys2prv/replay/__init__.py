"""Replay a job with other durations: what would it gain if some of its work took less time?

In: the aligned events of a prepared job (:class:`~nsys2prv.table.event_reader.EventReader`). Out: the
critical path, and what each change would save. Open :mod:`~nsys2prv.replay.job_graph` first, which
builds the graph: of each unit its events (`events`), what they wait for (`unit_graph`), and the
meetings of ranks (`meetings`). Then :mod:`~nsys2prv.replay.whatif`, the changes and their gains. On
these stand `suspects` and `causes`, which find what holds a job back and read `--what-if`, and
`path`.

Nodes of the graph (:mod:`~nsys2prv.replay.graph`) are moments: begins and ends of calls and of
operations on devices, and meetings of several ranks. An edge says "not before that node, plus a
weight". One pass over the nodes in the order of their dependencies gives all times; a what-if is
the same pass with other weights. Waiting is not stored: it follows from the times.
"""
