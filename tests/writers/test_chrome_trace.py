"""Another output format is one small class: Chrome's trace JSON, written by the recipe in
docs/development.md.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from msgspec import Struct, field

from nsys2prv import Options, convert
from nsys2prv._util.files import name_beside
from nsys2prv.conversion.write import WRITERS
from nsys2prv.events.catalogue import load_catalogue
from nsys2prv.store.runs import BEGIN, RecordFormat
from nsys2prv.store.windows import WindowRecords
from nsys2prv.writers.writer import TraceContent, WindowBytes

SAMPLES = sorted((Path(__file__).parents[2] / "sample_reports" / "training").glob("rank*.sqlite"))


class ChromeWriter(Struct):
    """Writes ranges as complete events; times in microseconds, a process for each row."""

    unit: ClassVar[str] = "events"
    beside: ClassVar[tuple[str, ...]] = (".rows",)
    opening: ClassVar[str] = "in Chrome: load {trace} at chrome://tracing"

    labels: dict[str, dict[int, str]] = field(default_factory=dict)
    duration: int = 0

    def begin(self, content: TraceContent) -> bytes:
        self.duration = content.duration
        self.labels = {
            name: dict(values.labels.select("value", "label").iter_rows())
            for name, values in content.values.items()
        }
        return b"[\n"

    def window(
        self, records: dict[RecordFormat, WindowRecords], number: int, is_last: bool
    ) -> WindowBytes:
        events = [
            event
            for shape, found in records.items()
            if shape.stream == BEGIN
            for event in self._make_events(shape.name, found)
        ]
        lines = [json.dumps(event).encode() + b",\n" for event in events]
        return WindowBytes([*lines, b"{}]\n" if is_last else b""], len(lines), Counter())

    def end(self, content: TraceContent, trace: Path) -> None:
        rows = [name for task in content.model.tree.tasks for name in task.threads]
        name_beside(trace, ".rows").write_text("\n".join(rows))

    def _make_events(self, layout: str, records: WindowRecords) -> list[dict[str, object]]:
        names = load_catalogue().layouts[layout].fields[0]
        labels = self.labels.get(getattr(names.values, "name", ""), {})
        ends = np.minimum(records.column("end"), self.duration)
        columns = records.times, ends, records.column("object"), records.column(names.name)
        return [
            {
                "ph": "X",
                "cat": layout,
                "name": labels.get(value, str(value)),
                "ts": begin / 1000,
                "dur": (end - begin) / 1000,
                "pid": row,
                "tid": 0,
            }
            for begin, end, row, value in zip(*(one.tolist() for one in columns), strict=True)
        ]


def test_every_kernel_is_in_the_chrome_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(WRITERS, ".chrome", ChromeWriter)
    summary = convert(SAMPLES, tmp_path / "out.chrome", Options(jobs=1))
    assert f"load {tmp_path / 'out.chrome'} at chrome://tracing" in summary.text()
    assert (tmp_path / "out.rows").is_file()
    events = json.loads((tmp_path / "out.chrome").read_text())[:-1]
    result = Counter(event["cat"] for event in events)
    kernels, time = 0, 0
    for report in SAMPLES:
        with sqlite3.connect(report) as connection:
            count, length = connection.execute(
                "SELECT count(*), sum(end - start) FROM CUPTI_ACTIVITY_KIND_KERNEL"
            ).fetchone()
            kernels, time = kernels + count, time + length
    assert result["cuda_kernel"] + result["nccl_kernel"] == kernels
    length = sum(event["dur"] for event in events if event["cat"] in ("cuda_kernel", "nccl_kernel"))
    assert abs(length * 1000 - time) < kernels * 10
    assert any("gemm" in event["name"].lower() for event in events)
