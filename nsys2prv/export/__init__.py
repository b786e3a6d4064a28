"""Read one Nsight Systems report: its files, tables, strings, processes and GPUs.

In: an .nsys-rep file, an SQLite export or a folder of Parquet files. Out: columns of a table, and a
`ReportInfo` of all small tables. Start in :mod:`report_files`, then :mod:`info`.

All differences between schema versions end in this room, by capability (is the column there?),
never by version number.
"""
