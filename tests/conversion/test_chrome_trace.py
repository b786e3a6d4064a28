"""Another output format is one small module: Chrome's trace JSON, from the windows that the .prv is
written from.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from pathlib import Path

import numpy as np

from nsys2prv._util.workers import make_serial_pool
from nsys2prv.conversion.job import plan_windows
from nsys2prv.conversion.options import Options, Plan
from nsys2prv.conversion.prepare import prepare
from nsys2prv.events.catalogue import load_catalogue
from nsys2prv.store.runs import BEGIN
from nsys2prv.store.windows import WindowReader

SAMPLES = sorted((Path(__file__).parents[2] / "sample_reports" / "training").glob("rank*.sqlite"))


def write_chrome_trace(reports: list[Path], path: Path, folder: Path) -> None:
    """Write the ranges of these reports as complete events; times in microseconds, a process for
    each row of the trace.
    """
    job = prepare(reports, Plan.from_options(Options()), folder, make_serial_pool(), quiet=True)
    runs, global_ids, bounds = plan_windows(job)
    reader = WindowReader(runs, global_ids)
    labels = {
        name: dict(values.labels.select("value", "label").iter_rows())
        for name, values in job.values.items()
    }
    with path.open("w") as file:
        file.write("[\n")
        for first, last in zip(bounds, [*bounds[1:], None], strict=True):
            for shape, records in reader.read(first, last).items():
                if shape.stream != BEGIN:
                    continue
                field = load_catalogue().layouts[shape.name].fields[0]
                named = labels.get(getattr(field.values, "name", ""), {})
                columns = (
                    records.times,
                    np.minimum(records.column("end"), job.duration),
                    records.column("object"),
                    records.column(field.name),
                )
                for begin, end, row, value in zip(
                    *(column.tolist() for column in columns), strict=True
                ):
                    json.dump(
                        {
                            "ph": "X",
                            "cat": shape.name,
                            "name": named.get(value, str(value)),
                            "ts": begin / 1000,
                            "dur": (end - begin) / 1000,
                            "pid": row,
                            "tid": 0,
                        },
                        file,
                    )
                    file.write(",\n")
        file.write("{}]\n")
    reader.close()


def test_every_kernel_is_in_the_chrome_trace(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    write_chrome_trace(SAMPLES, tmp_path / "out.json", tmp_path / "work")
    events = json.loads((tmp_path / "out.json").read_text())[:-1]
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
