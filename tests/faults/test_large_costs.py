"""Test that small inputs do not cost much: results grow in proportion, not with the square."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tools.conversions import convert_and_read
from tools.exports import (
    KERNEL,
    RUNTIME,
    make_call,
    make_export,
    make_global_pid,
    make_global_tid,
    make_kernel,
    make_nvtx_range,
    make_strings,
)

from nsys2prv._util.errors import Nsys2prvError
from nsys2prv._util.stored_columns import FrameWriter
from nsys2prv.events.attributes import MOST_METRICS, MOST_SOURCES
from nsys2prv.events.catalogue import hash_to_numbers
from nsys2prv.events.kind import Reason
from nsys2prv.events.launches import Launches, find_launches, save_launches
from nsys2prv.events.name_rules import load_class_rules
from nsys2prv.figures.device_group import find_rows
from nsys2prv.open_job import open_job


def test_launches_of_many_processes_take_space_in_proportion(tmp_path: Path) -> None:
    sizes = []
    for count in (1_000, 8_000):
        numbers = np.arange(count, dtype=np.int64)
        threads = [make_global_tid(pid, pid) for pid in range(1, count + 1)]
        times = numbers * 10, numbers * 10 + 5
        calls = Launches(numbers + 1, *times, np.array(threads), numbers, numbers)
        with FrameWriter(tmp_path / str(count)) as frames:
            segments = save_launches(calls, frames)
        sizes.append(frames.path.stat().st_size)
        processes = np.array([make_global_pid(pid) for pid in range(count, 0, -1)])
        found = find_launches(segments, processes, numbers[::-1] + 1)
        assert found.begin.tolist() == (numbers[::-1] * 10).tolist()
        assert found.thread.tolist() == threads[::-1]
    assert sizes[1] < 9 * sizes[0]


def test_report_of_many_processes_takes_work_in_proportion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts, plain = [0], pl.DataFrame.filter

    def count_rows(frame: pl.DataFrame, *args: Any, **more: Any) -> pl.DataFrame:
        counts[-1] += frame.height
        return plain(frame, *args, **more)

    monkeypatch.setattr(pl.DataFrame, "filter", count_rows)
    for processes in (4, 40):
        own = [(n, make_global_tid(1, n % processes + 1)) for n in range(processes * 50)]
        tables = {
            "StringIds": make_strings("kern", "cudaLaunchKernel", "step"),
            "TARGET_INFO_GPU": [{"id": 0, "name": "GPU", "uuid": "0"}],
            RUNTIME: [make_call(9 * n, 9 * n + 1, n, globalTid=tid) for n, tid in own],
            KERNEL: [
                make_kernel(9 * n + 2, 9 * n + 7, correlationId=n, globalPid=tid - 1)
                for n, tid in own
            ],
            "NVTX_EVENTS": [make_nvtx_range(9 * n, 9 * n + 8, "step", globalTid=t) for n, t in own],
        }
        with open_job(make_export(tmp_path / "r.sqlite", tables), jobs=1, quiet=True) as job:
            job.analyse("findings")
        counts.append(0)
    assert 0 < counts[1] < 15 * counts[0]


def test_rows_that_all_have_one_time_are_found_at_once() -> None:
    thread, time = np.arange(200_000) % 8, np.zeros(200_000)
    assert (find_rows(thread, time, thread, time) == thread).all()
    assert (find_rows(thread, time, thread, time + 1) == -1).all()


def test_metrics_that_a_program_makes_up(tmp_path: Path) -> None:
    count = MOST_METRICS + 500
    report = make_export(
        tmp_path / "r.sqlite",
        {
            "GPU_METRICS": [
                {"timestamp": 10 * n, "typeId": 1 << 56, "metricId": n // 2 % count, "value": 1 + n}
                for n in range(2 * count + 2)
            ]
        },
    )
    _, summary = convert_and_read([report], tmp_path / "out.prv")
    dropped = summary.dropped["gpu_metrics", Reason.RARE_METRIC]
    assert dropped == 2 * 500


def test_sources_of_metrics_that_no_machine_has(tmp_path: Path) -> None:
    count = MOST_SOURCES + 300
    report = make_export(
        tmp_path / "r.sqlite",
        {
            "GPU_METRICS": [
                {"timestamp": 10 * n, "typeId": 1 + n % count << 8, "metricId": 0, "value": 1 + n}
                for n in range(count + MOST_SOURCES)
            ]
        },
    )
    _, summary = convert_and_read([report], tmp_path / "out.prv")
    assert summary.dropped["gpu_metrics", Reason.RARE_METRIC] == 300
    assert sum(summary.dropped.values()) == 300


def test_metrics_that_all_have_one_name(tmp_path: Path) -> None:
    report = make_export(
        tmp_path / "r.sqlite",
        {
            "GPU_METRICS": [
                {"timestamp": 5, "typeId": 1 << 56, "metricId": n, "value": 1 + n}
                for n in range(40)
            ],
            "TARGET_INFO_GPU_METRICS": [
                {"typeId": 1 << 56, "metricId": n, "metricName": "same"} for n in range(4_000)
            ],
        },
    )
    trace, _ = convert_and_read([report], tmp_path / "out.prv")
    assert {f"same #{n}" for n in range(2, 41)} < {*trace.labels.types.values()}


def probe_one_by_one(names: list[str], first: int, last: int, forbidden: set[int]) -> dict:
    taken, numbers = set(forbidden), {}
    for name, wanted in sorted(hash_each(names, first, last).items()):
        number = wanted
        while number in taken:
            number = number + 1 if len(taken) > last - first or number < last else first
        taken.add(number)
        numbers[name] = number
    return numbers


def hash_each(names: list[str], first: int, last: int) -> dict[str, int]:
    return {name: hash_to_numbers([name], first, last)[name] for name in names}


@pytest.mark.parametrize("count", [3, 45, 50, 130])
@pytest.mark.parametrize("forbidden", [set(), {102, 103}])
def test_numbers_are_those_of_the_next_free_place(count: int, forbidden: set[int]) -> None:
    names = [f"domain {number}" for number in range(count)]
    expected = probe_one_by_one(names, 100, 149, forbidden)
    assert hash_to_numbers(names, 100, 149, forbidden) == expected


def test_a_rule_that_would_take_for_ever_on_some_names(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("rules: [{name: '(?:[a-z]+_?)*!', class: GEMM}]")
    with pytest.raises(
        Nsys2prvError, match="nested repetitions, which take too long for some names"
    ):
        load_class_rules(rules)
