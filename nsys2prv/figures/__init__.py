"""Make tables of a job from frames of its events: efficiencies, overlap, iterations, collectives,
kernels, ranges.

Input: a `DeviceGroup` (:mod:`device_group`), the events of some devices and their ranks. Output: a
`Result` (:mod:`result`) with tables for each analysis. analyses.yaml declares the analyses: names,
contents, and two functions. The first yields partial frames of each device group, in worker
processes. The second makes tables from these and adds them to its result. Start in
:mod:`device_time`.
"""
