"""What holds a job back: one cause each, with who, what it costs, the evidence, and what to do.

:mod:`device_time` divides the time of each
device, :mod:`waiting` tells for whom ranks wait, :mod:`causes` what else costs time,
:mod:`rank_wise` names who is at fault, and :mod:`analysis` puts all together. Findings share out
the time of the devices, so that no time is told twice: what is a straggler's is no longer an
imbalance, and so on.
"""
