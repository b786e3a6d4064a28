"""Test GPU metrics without samples: before the first sample, and in holes."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from tools.conversions import convert_and_read
from tools.exports import (
    KERNEL,
    Row,
    make_export,
    make_host,
    make_kernel,
    make_metrics,
    make_sample,
    make_strings,
)

from nsys2prv.events.kind import Reason
from nsys2prv.open_job import open_job
from nsys2prv.table.runs import BLOCK_ROWS

SMS, PERIOD, GPU = 9403, 100, 0x10000
NAMES = ["SMs Active [Throughput %]", "SM Issue [Throughput %]"]
#: Times of samples: from 2000 to 3000, from 6000 to 7000; 50 % all the time.
TIMES = (*range(2000, 3001, PERIOD), *range(6000, 7001, PERIOD))
ZEROS = (1900, 5900)


def make_report(
    path: Path, times: Sequence[int] = TIMES, begin: int = 0, **more: list[Row]
) -> Path:
    """Write a report of a kernel from `begin` to 10 us and of a GPU's samples of 50 %."""
    samples = (make_sample(GPU, time, dict.fromkeys(range(len(NAMES)), 50)) for time in times)
    return make_export(
        path,
        {
            KERNEL: [make_kernel(begin, 10_000)],
            "StringIds": make_strings("k"),
            "GPU_METRICS": [*chain.from_iterable(samples)],
            "TARGET_INFO_GPU_METRICS": make_metrics(GPU, NAMES),
            **more,
        },
    )


def list_numbers(trace: object) -> list[tuple[int, int]]:
    return [(record.time, record.numbers[SMS]) for record in trace.samples if SMS in record.numbers]


def test_zeros_a_period_before_the_first_sample_and_behind_a_hole(tmp_path: Path) -> None:
    trace, summary = convert_and_read(
        [make_report(tmp_path / "r.sqlite")], tmp_path / "o.prv", kinds=("-device_state",)
    )
    expected = sorted([*((time, 50) for time in TIMES), *((time, 0) for time in ZEROS)])
    assert [number for number in list_numbers(trace) if number[0] < trace.duration] == expected
    assert summary.ledger.kinds["gpu_metrics"].synthesized[Reason.ZERO_UNSAMPLED] == len(
        ZEROS
    ) * len(NAMES)
    assert not summary.ledger.missing


def test_holes_between_stored_times_are_found(tmp_path: Path) -> None:
    """In runs of many blocks only blocks that last too long are read."""
    times = [*range(2000, 202_000, PERIOD), *range(202_700, 500_000, PERIOD)]
    times = [time for time in times if time not in (300_000, 300_100)]
    assert len(times) > 10 * BLOCK_ROWS
    trace, _ = convert_and_read(
        [make_report(tmp_path / "r.sqlite", times)], tmp_path / "o.prv", kinds=("-device_state",)
    )
    assert [time for time, value in list_numbers(trace) if not value] == [
        1900,
        202_600,
        trace.duration,
    ]


def test_the_sample_with_which_a_trace_begins_needs_none(tmp_path: Path) -> None:
    report = make_report(tmp_path / "r.sqlite", range(0, 2000, PERIOD), begin=50)
    trace, _ = convert_and_read([report], tmp_path / "o.prv", kinds=("-device_state",))
    assert list_numbers(trace)[0] == (0, 50)


def test_of_several_reports_each_has_its_zero(tmp_path: Path) -> None:
    """Another report may begin before the one that begins with a sample."""

    def made(name: str, times: range, begin: int) -> Path:
        return make_report(
            tmp_path / f"{name}.sqlite", times, begin, **make_host(name, 1_780_000_000_000_000_000)
        )

    reports = [
        made("a", range(2000, 3000, PERIOD), 2000),
        made("b", range(5000, 7000, PERIOD), 5000),
    ]
    trace, _ = convert_and_read(reports, tmp_path / "o.prv", align="utc", kinds=("-device_state",))
    assert [time for time, value in list_numbers(trace) if not value and time < trace.duration] == [
        2900
    ]


def test_analyses_take_no_zero_for_a_sample(tmp_path: Path) -> None:
    with open_job([make_report(tmp_path / "r.sqlite")]) as job:
        (row,) = (
            job.analyse("metrics")["metrics"]
            .tables["metrics"]
            .frame.filter(metric=NAMES[0])
            .rows(named=True)
        )
        (samples,) = job.samples("gpu_metric")
    assert row["mean"] == row["min_mean"] == 50
    assert samples.time.tolist() == list(TIMES)
