"""Make tables of a job from frames of its events: efficiencies, overlap, iterations, collectives, kernels,
ranges.

Input: a `DeviceGroup` (:mod:`device_group`), the events of some devices and their ranks. Output: a `Result`
(:mod:`result`) with tables for each analysis. analyses.yaml declares the analyses: their names, their
contents, and two functions. One yields partial frames of each group in worker processes; the other adds
tables made from them to its result. Start in :mod:`device_time`.
"""
