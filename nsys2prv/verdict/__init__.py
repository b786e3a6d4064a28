"""Conclude what holds a job back: causes, and findings with their evidence and advice.

In: a replayed job (:mod:`nsys2prv.replay`) and what hosts do (:mod:`nsys2prv.figures.host_time`). Out:
findings. Start in :mod:`findings`.
"""
