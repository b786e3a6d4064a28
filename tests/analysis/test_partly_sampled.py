"""GPUs whose metrics stop or begin late are reported, and compared only over common time."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import pytest
from tools.exports import (
    KERNEL,
    PID,
    make_export,
    make_global_pid,
    make_kernel,
    make_metrics,
    make_sample,
    make_strings,
)

import nsys2prv
from nsys2prv.open_job import OpenJob

PERIOD, COUNT = 1_000_000, 100
METRICS = ("GR Active [Throughput %]", "SM Issue [Throughput %]", "GPC Clock Frequency [MHz]")


def open_job(folder: Path, *sampled: Sequence[range]) -> OpenJob:
    """Open a job whose GPUs work for 100 ms, each sampled in some periods: active for the number of a
    period (%).
    """
    reports = []
    for gpu, periods in enumerate(sampled):
        type_id = 1 << 56 | 1 << 48 | 2 << 32 | gpu
        place = {"globalPid": make_global_pid(PID + gpu)}
        tables = {
            "StringIds": make_strings("gemm"),
            "TARGET_INFO_GPU": [{"id": gpu, "name": "H100", "uuid": f"u{gpu}"}],
            KERNEL: [
                make_kernel(PERIOD * at, PERIOD * (at + 5), **place) for at in range(0, COUNT, 5)
            ],
            "GPU_METRICS": [
                row
                for number in chain(*periods)
                for row in make_sample(type_id, PERIOD * (number + 1), {0: number, 1: 50, 2: 1000})
            ],
            "TARGET_INFO_GPU_METRICS": make_metrics(type_id, METRICS),
        }
        reports.append(make_export(folder / f"rank{gpu}.sqlite", tables))
    return nsys2prv.open(reports, align="none", jobs=1)


def list_means(job: OpenJob, table: str = "means") -> list[float | None]:
    frame = job.analyse("metrics")["metrics"].tables[table].frame
    return frame.filter(metric=METRICS[0])["mean"].to_list()


def list_lacking(job: OpenJob) -> list[str]:
    return [note.text for note in job.quality if note.kind == "partly_sampled"]


def mean(first: int, last: int) -> float:
    """Return the mean of some periods. If sampling begins late, the first sample has no time of its
    own.
    """
    return (first + last - 1) / 2


def test_metrics_of_the_same_time(tmp_path: Path) -> None:
    with open_job(tmp_path, [range(COUNT)], [range(2, COUNT - 2)]) as job:
        assert not list_lacking(job)
        assert list_means(job) == pytest.approx([mean(1, COUNT), mean(2, COUNT - 2)])
        assert len(job.analyse("metrics")["metrics"].notes) == 1
        instructions = job.analyse("efficiencies")["efficiencies"].tables["instructions"]
        assert instructions.frame["devices"].to_list() == [2]


def test_metrics_that_stop_are_compared_until_then(tmp_path: Path) -> None:
    with open_job(tmp_path, [range(COUNT)], [range(70)]) as job:
        (text,) = list_lacking(job)
        assert "GPU 1 of rank1.sqlite has none after 0.070 s" in text
        assert "rank0" not in text
        assert list_means(job) == pytest.approx([mean(1, 70)] * 2)
        assert list_means(job, "metrics") == pytest.approx([mean(1, 70)])
        (said, _) = job.analyse("metrics")["metrics"].notes
        assert said == "metrics are compared over the time in which all are sampled (0.001-0.070 s)"
        # What is not sampled has no instructions.
        instructions = job.analyse("efficiencies")["efficiencies"].tables["instructions"]
        assert instructions.frame["devices"].to_list() == [1]


def test_metrics_that_begin_late(tmp_path: Path) -> None:
    with open_job(tmp_path, [range(COUNT)], [range(30, COUNT)]) as job:
        (text,) = list_lacking(job)
        assert "GPU 1 of rank1.sqlite has none before 0.031 s" in text
        assert list_means(job) == pytest.approx([mean(30, COUNT)] * 2)


def test_metrics_of_little_time_are_not_compared(tmp_path: Path) -> None:
    with open_job(tmp_path, [range(COUNT)], [range(COUNT)], [range(20)]) as job:
        assert "GPU 2 of rank2.sqlite has none after 0.020 s" in list_lacking(job)[0]
        whole = mean(1, COUNT)
        assert list_means(job) == [pytest.approx(whole), pytest.approx(whole), None]
        notes = job.analyse("metrics")["metrics"].notes
        assert "is sampled for too short a time to be compared (0.001-0.020 s)" in notes[0]
        frame = job.analyse("metrics")["metrics"].tables["metrics"].frame
        assert frame["devices"].to_list() == [2] * len(METRICS)
