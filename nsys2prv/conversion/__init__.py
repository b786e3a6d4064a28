"""Take reports through the stages of a conversion: open, read, align, write.

In: paths of reports and `Options`. Out: a trace and its `Summary`, or an aligned `Job` for the
analyses. Start in :mod:`convert`, which opens the reports and runs the other stages, each a module;
:mod:`job` says what each stage hands to the next.
"""
