"""What every room uses and that knows nothing of profiles: files, text, progress, signals, workers,
frames, the compiled core.
"""
