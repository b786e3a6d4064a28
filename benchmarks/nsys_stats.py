"""A stand-in for `nsys stats`, for peers that ask it for the calls of CUDA's API: the report
`cuda_api_trace` as CSV, by SQL.

nsys_stats.py stats -r cuda_api_trace --timeunit nsec -f csv -o BASE FILE.sqlite      writes
BASE_cuda_api_trace.csv
"""

from __future__ import annotations

import argparse
import csv
import sqlite3
import sys
from pathlib import Path

CALLS = """
    SELECT call.start, call."end" - call.start, name.value, call.returnValue, call.correlationId,
           call.globalTid >> 24 & 0xffffff, call.globalTid & 0xffffff, NULL, thread.value
    FROM CUPTI_ACTIVITY_KIND_RUNTIME AS call
    LEFT JOIN StringIds AS name ON name.id = call.nameId
    LEFT JOIN ThreadNames AS of ON of.globalTid = call.globalTid
    LEFT JOIN StringIds AS thread ON thread.id = of.nameId
    ORDER BY call.start
"""
HEAD = (
    "Start (ns)",
    "Duration (ns)",
    "Name",
    "Result",
    "CorrID",
    "Pid",
    "Tid",
    "T-Pri",
    "Thread Name",
)


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("command", choices=["stats"])
    options.add_argument("-r", dest="reports", required=True)
    options.add_argument("--timeunit", choices=["nsec"])
    options.add_argument("-f", dest="format", choices=["csv"])
    options.add_argument("-o", dest="base", required=True)
    options.add_argument("file", type=Path)
    asked = options.parse_args()
    if set(asked.reports.split(",")) - {"cuda_api_trace"}:
        sys.exit(f"nsys_stats: no other report than cuda_api_trace: {asked.reports}")
    database = sqlite3.connect(f"file:{asked.file}?mode=ro", uri=True)
    with open(f"{asked.base}_cuda_api_trace.csv", "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(HEAD)
        table.writerows(database.execute(CALLS))


if __name__ == "__main__":
    main()
