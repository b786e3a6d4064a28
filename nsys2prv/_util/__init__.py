"""Help every room, and know nothing of profiles: files, text, progress, workers, columns.

Modules stand alone: open the one that you need. `native` is the compiled core; :mod:`workers` runs
functions in other processes.
"""
