"""Take reports through the stages of a conversion: open, read, align, write.

Input: paths of reports and `Options`. Output: a trace and its `Summary`, or an aligned `Job` for the
analyses. Start in :mod:`convert`, which opens the reports and runs the other stages, each a module;
:mod:`job` declares the data passed between stages.
"""
