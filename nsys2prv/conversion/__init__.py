"""Take reports through the stages of a conversion: open, read, align, relate, cut, write.

In: paths of reports and `Options`. Out: a trace and its `Summary`, or a prepared `Job` for the
analyses. Start in :mod:`prepare`, which has all stages but the last in their order, then
:mod:`convert`, which writes.
"""
