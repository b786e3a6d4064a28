"""Test CUDA events against plain SQL, on samples and on real exports."""

import sqlite3
from collections import Counter
from pathlib import Path

import pytest
from tools.conversions import EVERY_ATTRIBUTE, convert_and_read, find_time_zero
from tools.corpus import EXPORTS

SAMPLES = sorted((Path(__file__).parents[2] / "sample_reports").glob("*/rank0.sqlite"))
CALL, COMPLETION, EVENT, STREAM = 63000050, 63000051, 9301, 9303
RECORDED = """SELECT r.start, r.end, e.eventId, e.streamId, s.value FROM CUPTI_ACTIVITY_KIND_CUDA_EVENT e
              JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON r.correlationId = e.correlationId AND (r.globalTid & ~0xFFFFFF) = e.globalPid
              JOIN StringIds s ON s.id = r.nameId"""


def find_exports_with_events() -> list[Path]:
    """Return exports with CUDA events and their calls."""
    result = list(SAMPLES)
    for path in EXPORTS:
        with sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True) as connection:
            if (
                connection.execute(
                    "SELECT count(*) FROM sqlite_master WHERE name = 'CUPTI_ACTIVITY_KIND_CUDA_EVENT'"
                ).fetchone()[0]
                and connection.execute(
                    "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_CUDA_EVENT"
                ).fetchone()[0]
            ):
                result.append(path)
    return result


@pytest.mark.parametrize(
    "report", find_exports_with_events(), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_events_equal_sql(report: Path, tmp_path: Path) -> None:
    kinds = ("cuda_events", "cuda_api_trace")
    short, _ = convert_and_read([report], tmp_path / "short.prv", kinds=kinds)
    assert not any(item.others.keys() - {EVENT} for item in short.list_intervals(CALL))
    trace, _ = convert_and_read([report], tmp_path / "o.prv", kinds=kinds, cut=EVERY_ATTRIBUTE)
    connection = sqlite3.connect(f"file:{report}?mode=ro&immutable=1", uri=True)
    rows = connection.execute(RECORDED).fetchall()
    origin = find_time_zero(tmp_path / "o.prv", report)
    columns = [
        row[1] for row in connection.execute("PRAGMA table_info(CUPTI_ACTIVITY_KIND_CUDA_EVENT)")
    ]
    times = (
        []
        if "timestamp" not in columns
        else connection.execute(
            "SELECT timestamp, eventId FROM CUPTI_ACTIVITY_KIND_CUDA_EVENT WHERE timestamp > 0"
        ).fetchall()
    )
    connection.close()
    expected = Counter(
        (begin - origin, end - origin, event, stream, name.split("_v")[0])
        for begin, end, event, stream, name in rows
    )
    actual = Counter(
        (
            item.begin,
            item.end,
            item.others[EVENT],
            item.others[STREAM],
            trace.get_label(CALL, item.value),
        )
        for item in trace.list_intervals(CALL)
    )
    assert actual == expected
    completed = Counter(
        (item.begin, item.others[EVENT]) for item in trace.list_intervals(COMPLETION)
    )
    assert completed == Counter((time - origin, event) for time, event in times)
