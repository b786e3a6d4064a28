"""Write traces, one folder or module per format, behind one interface.

In: `TraceContent` and the records of each window. Out: the bytes of the trace and the files beside
it. Start in :mod:`writer`, the interface; :mod:`rows` and :mod:`names` have the rows and names of a
trace in any format. The ending of the output chooses the writer.
"""

#: Paraver counts objects of each sort in 16 bits.
MOST_OBJECTS = 65_535
