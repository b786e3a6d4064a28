"""Write traces for Perfetto (https://perfetto.dev): a .pftrace, packets of the protobuf message `Trace`.

In: the content of a trace and the records of its windows. Out: one file. Start in :mod:`pftrace`, the
writer; :mod:`names` numbers and writes all names, :mod:`protobuf` encodes messages.

A process of Perfetto is a task of the trace, numbered as Paraver does. A host thread has a track for
each layout of its events, a GPU's stream one for all of its work. Layouts whose ranges may overlap
share a track only where `store/overlaps.py` has moved what overlaps to lanes: tracks of the same name,
which Perfetto draws as one. Arrows (flows) lead from the call that launched work to the work, through
all ranks of a collective, and from sends to receives.
"""
