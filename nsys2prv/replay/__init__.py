"""Replay a job with other durations: how much time would it save if some of its work took less time?

Input: the aligned events of a prepared job (:class:`~nsys2prv.table.event_reader.EventReader`). Output: the
critical path, and the savings of each change. Open :mod:`~nsys2prv.replay.job_graph` first, which builds the
graph: for each unit its events (`events`) and their dependencies (`unit_graph`), and the meetings of ranks
(`meetings`). Then read :mod:`~nsys2prv.replay.whatif`, the changes and their savings. They are the basis of
`suspects` and `causes`, which find the causes of lost time and parse `--what-if`, and of `path`.

Nodes of the graph (:mod:`~nsys2prv.replay.graph`) are moments: begins and ends of calls and of operations on
devices, and meetings of several ranks. An edge means "not before that node, plus a weight". One pass over the
nodes in dependency order gives all times; a what-if is the same pass with other weights. Waiting is not
stored: it follows from the times.
"""
