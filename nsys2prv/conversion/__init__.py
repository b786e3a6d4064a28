"""Convert reports in stages: open, read, align, write.

Input: paths of reports and `Options`. Output: a trace and its `Summary`, or an aligned `Job` for
analyses. Start in :mod:`convert`, which opens the reports and runs the other stages, each in its
own module. :mod:`job` declares the data passed between stages.
"""
