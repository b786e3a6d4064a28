"""The store between reading and writing: sorted runs of records on disk.

It is what keeps memory bounded whatever the input, and what lets readers and writers be pure functions over files, run by any
``concurrent.futures.Executor``.
"""
