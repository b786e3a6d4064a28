"""Make tables of a job from frames of its events: efficiencies, overlap, iterations, collectives, kernels, ranges.

In: a `DeviceGroup` (:mod:`device_group`), the events of some devices and their ranks. Out: a `Result`
(:mod:`result`) with tables for each analysis. analyses.yaml declares the analyses: what they are called,
what they show, and their two functions: one yields partial frames of each group in worker processes, the
other adds tables from them to its result. Start in :mod:`device_time`.
"""
