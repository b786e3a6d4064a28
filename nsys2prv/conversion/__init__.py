"""Take reports through the stages of a conversion: open, read, align, write.

In: paths of reports and `Options`. Out: a trace and its `Summary`, or a prepared `Job` for the
analyses. Start in :mod:`convert`, which runs the stages; each has the module of its name and
completes one :class:`nsys2prv.conversion.job.Job`.
"""
