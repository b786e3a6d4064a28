"""Read a set of sample reports with its ground truth, and convert between true time and trace time."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.trace_reader import Interval, Trace, read_trace

from nsys2prv import Options, convert
from nsys2prv.conversion.summary import Summary

KERNELS = (63000006, 63000007)


@dataclass
class SampleSet:
    """A converted set of samples with its ground truth.

    zero: UTC of the trace's time 0 by the hosts' clocks, ns since 1970. Ranks count from 0, tasks
    of the trace from 1.
    """

    truth: dict[str, Any]
    trace: Trace
    summary: Summary
    exports: list[sqlite3.Connection]
    zero: int = 0

    def __post_init__(self) -> None:
        first = min(
            export.execute("SELECT min(start) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone()[0]
            + rank["utcEpochNs"]
            for export, rank in zip(self.exports, self.truth["ranks"], strict=True)
        )
        self.zero = first - min(
            item.begin for code in KERNELS for item in self.trace.list_intervals(code)
        )

    def find_host(self, rank: int) -> dict[str, Any]:
        """Return the truth of a rank's host."""
        (matching,) = [
            host
            for host in self.truth["hosts"]
            if host["name"] == self.truth["ranks"][rank]["host"]
        ]
        return matching

    def to_trace_time(self, rank: int, true_ns: int) -> int:
        """Return the trace's time of a moment in true time, by the clock of the rank's host."""
        host = self.find_host(rank)
        return (
            self.truth["epoch_utc_ns"]
            + host["offset_ns"]
            + true_ns
            + round(true_ns * (host["drift_ppm"] * 1e-6))
            - self.zero
        )

    def list_intervals(self, rank: int, *codes: int) -> list[tuple[str, Interval]]:
        """Return the ranges of a rank with their labels."""
        return [
            (self.trace.get_label(code, item.value), item)
            for code in codes
            for item in self.trace.list_intervals(code)
            if item.row[0] == rank + 1
        ]

    def sum_by_label(self, rank: int, *codes: int) -> dict[str, tuple[int, int]]:
        """Return label -> count and total duration of a rank's ranges."""
        count, total = Counter[str](), Counter[str]()
        for label, item in self.list_intervals(rank, *codes):
            count[label] += 1
            total[label] += item.end - item.begin
        return {label: (count[label], total[label]) for label in count}

    def query(self, rank: int, query: str, *values: object) -> list[tuple]:
        """Return the rows of a query on a rank's export."""
        return self.exports[rank].execute(query, values).fetchall()


def open_sample_set(folder: Path, output: Path) -> SampleSet:
    """Convert the reports of a folder into the trace `output`, with all kinds of events and whole
    names of kernels, and read it back.
    """
    truth = json.loads((folder / "truth.json").read_text())
    reports = [folder / rank["report"] for rank in truth["ranks"]]
    summary = convert(reports, output, Options(full_kernel_names=True, align="utc"))
    trace = read_trace(output)
    assert not trace.violations, str(trace.violations)
    return SampleSet(
        truth,
        trace,
        summary,
        [sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True) for path in reports],
    )
