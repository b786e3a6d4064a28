"""Helpers of every room that know nothing of profiles: files, text, progress, signals, workers,
frames, the compiled core.
"""
