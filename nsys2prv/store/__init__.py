"""The store between reading and writing: sorted runs of records on disk, and windows of them in
trace time.
"""
