"""Write Paraver traces: .prv, .pcf and .row.

Input: the content of a trace and the records of its windows. Output: the three files. Start in :mod:`prv`,
then read :mod:`pcf` (event types and labels). `cfg` contains views, :mod:`views` writes those for a trace,
and `check` finds faults in any trace.
"""
