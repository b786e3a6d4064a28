"""Write Paraver traces: .prv, .pcf and .row.

In: the content of a trace and the records of its windows. Out: the three files; `cfg` has views of
them, and `check` finds what is wrong in any trace. Start in :mod:`prv`, then :mod:`values` (the
numbers of names).
"""
