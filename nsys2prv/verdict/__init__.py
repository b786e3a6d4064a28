"""Conclude why a job is slow: causes, and findings with evidence and advice.

Input: a replayed job (:mod:`nsys2prv.replay`) and host activity
(:mod:`nsys2prv.figures.host_time`). Output: findings. Start in :mod:`findings`.
"""
