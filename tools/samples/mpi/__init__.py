"""MPI in the modelled job.

:mod:`calls` says what calls and messages are, :mod:`teams` who talks to whom, :mod:`work` what the job does with MPI,
:mod:`timing` when calls end, :mod:`rows` what a report records of them, and :mod:`truth` what was put in.
"""
