"""Read one Nsight Systems report: its files, tables, strings, processes and GPUs.

In: an .nsys-rep file, an SQLite export or a folder of Parquet files. Out: columns of a table, and a
`ReportInfo` of all small tables. Start in :mod:`report_files`, then :mod:`database`
and :mod:`info`. Of several reports,
:mod:`roles` tells ranks from helpers, and :mod:`ranks` what belongs together.

All differences between schema versions end in this room, by capability (is the column there?),
never by version number.
"""
