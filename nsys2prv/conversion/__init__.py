"""Take reports through the stages of a conversion: open, read, align, write.

In: paths of reports and `Options`. Out: a trace and its `Summary`, or a prepared `Job` for the
analyses. Start in :mod:`convert`, which opens the reports and runs the other stages, each a module;
they complete one :class:`nsys2prv.conversion.job.Job`.
"""
