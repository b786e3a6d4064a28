"""Replay a job with other durations: how much time would be saved if some of its work took less
time?

Input: the aligned events of a prepared job (:class:`~nsys2prv.table.event_reader.EventReader`).
Output: the critical path, and the savings of each change. Open :mod:`~nsys2prv.replay.job_graph`
first, which builds the graph: for each unit its events (`events`) and dependencies (`unit_graph`),
and the meetings of ranks (`meetings`). Then read :mod:`~nsys2prv.replay.whatif` about changes and
their savings. `suspects` and `causes`, which find the causes of lost time and parse `--what-if`,
and `path` are based on them.

Nodes of the graph (:mod:`~nsys2prv.replay.graph`) are times: starts and ends of calls and device
operations, and meetings of several ranks. An edge means "not before that node, plus a weight". One
pass over the nodes in dependency order computes all times; a what-if is the same pass with other
weights. Waiting is not stored, because it follows from the times.
"""
