"""The dependency replay of a job: what would it gain if some of its work took less time?

In come the aligned events of a prepared job (:class:`~nsys2prv.store.event_reader.EventReader`).
They become a graph (:mod:`~nsys2prv.replay.graph`): nodes are moments, begins and ends of calls and of
operations on devices, and meetings of several ranks; an edge says "not before that node, plus a
weight". One pass over the nodes in the order of their dependencies gives all times; what-ifs
(:mod:`~nsys2prv.replay.whatif`) are the same pass with other weights. Waits need not be written down:
they come out.

Open :mod:`~nsys2prv.replay.job_graph` first, which builds the graph of a job.
"""
