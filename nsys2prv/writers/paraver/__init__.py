"""Paraver's formats: .prv, .pcf and .row, the objects and values of a trace, its views (`cfg`) and
checks (`check`).
"""
