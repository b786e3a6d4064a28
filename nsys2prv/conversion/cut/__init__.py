"""Cutting a job to size: what is asked for, which reports and rows that means, and the runs made
so.

A cut takes the job as it is without one, aligned and related by all its events, and rewrites its
runs in trace time: what straddles the cut is clipped, what was in force at its begin is told there.
"""
