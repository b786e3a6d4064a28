"""Opening one Nsight Systems export: its tables, columns, strings, host, processes and devices.

All differences between schema versions end in this room, by capability (is the column there?),
never by version number.
"""
