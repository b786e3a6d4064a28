"""Read one Nsight Systems report: its files, tables, strings, processes and GPUs.

Input: an .nsys-rep file, an SQLite export or a folder of Parquet files. Output: columns of a table, and a
`ReportInfo` with all small tables. Start in :mod:`report_files`, then read :mod:`database` and :mod:`info`.
For several reports, :mod:`roles` separates ranks from helpers, and :mod:`ranks` finds reports that belong
together.

All differences between schema versions are handled here, by capability (does the column exist?), never by
version number.
"""
