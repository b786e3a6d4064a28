"""Write Paraver traces: .prv, .pcf and .row.

In: the content of a trace and the records of its windows. Out: the three files. Start in :mod:`prv`,
then :mod:`pcf` (event types and labels). `cfg` has views, :mod:`views` writes those for a trace, and
`check` finds faults in any trace.
"""
