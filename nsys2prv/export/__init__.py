"""Nsight Systems reports: their files, and what the tables of one export say.

All differences between schema versions end in this room, by capability (is the column there?),
never by version number.
"""
