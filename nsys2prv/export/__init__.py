"""Nsight Systems reports: their files, and the contents of their tables.

All differences between schema versions end in this room, by capability (is the column there?),
never by version number.
"""
