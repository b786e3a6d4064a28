"""Stragglers, what hosts do in gaps, and metrics, recomputed event by event from the frames or the
exports of samples.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

import polars as pl
import pytest
from tools.view_answers import SAMPLES

import nsys2prv
from nsys2prv.analysis.job import OpenJob

SYNCHRONISING = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
#: Of the OS calls in the samples; the others are about locks, memory and time.
IO = (
    "open64",
    "fopen",
    "close",
    "read",
    "fread",
    "write",
    "fwrite",
    "writev",
    "pwrite64",
    "poll",
    "epoll_wait",
    "accept",
    "ioctl",
)
Interval = tuple[int, int]


@pytest.fixture(scope="module", params=["cluster", "training"])
def job(request: pytest.FixtureRequest) -> Iterator[OpenJob]:
    with nsys2prv.open(SAMPLES[request.param]) as opened:
        yield opened


def list_pairs(frame: pl.DataFrame) -> list[Interval]:
    return list(frame.select("begin", "end").rows())


def list_device_work(job: OpenJob) -> dict[int, dict[str, list[Interval]]]:
    result: dict[int, dict[str, list[Interval]]] = defaultdict(dict)
    for layout in ("cuda_kernel", "nccl_kernel", "memory_operation"):
        frame = job.frame(layout, "kernel" if "kernel" in layout else "operation")
        for (device,), rows in frame.partition_by("device", as_dict=True).items():
            result[device][layout] = list_pairs(rows)
    return result


def list_host_calls(job: OpenJob, device: int) -> dict[str, list[Interval]]:
    """Return the calls of the main thread of the device's one task and of the threads that launch
    on it.
    """
    task = job.rows.filter((pl.col("device") == device) & (pl.col("kind") == "stream"))["rank"][0]
    threads = job.rows.filter((pl.col("rank") == task) & (pl.col("kind") == "host"))
    lines = pl.concat([job.lines("launch"), job.lines("memory")])
    senders = set(lines["sender"].to_list()) | {threads["thread"].min()}
    rows = threads.filter(pl.col("thread").is_in(sorted(senders)))["row"].to_list()

    def of(layout: str, *fields: str) -> pl.DataFrame:
        return job.frame(layout, *fields).filter(
            (pl.col("rank") == task) & pl.col("row").cast(str).is_in(rows)
        )

    api = of("cuda_api", "call").with_columns(pl.col("call").cast(str))
    waits = pl.col("call").is_in(SYNCHRONISING)
    return {
        "mpi": [
            item
            for layout in (
                "mpi_point_to_point",
                "mpi_collective",
                "mpi_other",
                "mpi_one_sided",
                "mpi_io",
            )
            if layout in job.layouts
            for item in list_pairs(of(layout, "call"))
        ],
        "nccl": list_pairs(of("nccl_call", "range")),
        "io": list_pairs(of("osrt", "call").filter(pl.col("call").cast(str).is_in(IO))),
        "synchronisation": list_pairs(api.filter(waits)),
        "launch": list_pairs(api.filter(~waits)),
    }


def split_times(kinds: dict[str, list[Interval]], since: int, until: int) -> dict[str, int]:
    """Return how long within [since, until) each kind is the first that is open."""
    edges = sorted(
        {
            since,
            until,
            *(
                time
                for item in kinds.values()
                for stretch in item
                for time in stretch
                if since < time < until
            ),
        }
    )
    times: dict[str, int] = defaultdict(int)
    near = {
        name: [stretch for stretch in item if stretch[0] < until and stretch[1] > since]
        for name, item in kinds.items()
    }
    for begin, end in pairwise(edges):
        name = next(
            (
                name
                for name, item in near.items()
                if any(first <= begin < last for first, last in item)
            ),
            "unknown",
        )
        times[name] += end - begin
    return times


@pytest.mark.slow
def test_what_hosts_do_in_gaps(job: OpenJob) -> None:
    long = job.analyse("idle")["idle"].tables["long_gaps"].frame
    labels = dict(job.devices.select("label", "device").rows())
    for row in long.head(6).rows(named=True):
        times = split_times(
            list_host_calls(job, labels[row["device"]]),
            row["begin_ns"],
            row["begin_ns"] + row["time_ns"],
        )
        for name in ("mpi", "nccl", "io", "synchronisation", "launch", "unknown"):
            assert row[f"{name}_ns"] == times[name], (row["device"], row["begin_ns"], name)


def test_stragglers(job: OpenJob) -> None:
    records = job.frame("nccl_collective", "collective", "late", "wait")
    work = list_device_work(job)
    last, late, made, own = (defaultdict(int) for _ in range(4))
    computing: dict[int, int] = defaultdict(int)
    for rows in records.partition_by("collective"):
        result = rows.rows(named=True)
        latest = max(row["late"] for row in result)
        for row in result:
            own[row["rank"]] += row["wait"]
            if row["late"] == latest > 0:
                last[row["rank"]] += 1
                late[row["rank"]] += row["late"]
                made[row["rank"]] += sum(other["wait"] for other in result)
                kernels = {"compute": work[row["device"]]["cuda_kernel"]}
                computing[row["rank"]] += split_times(
                    kernels, row["begin"] - row["late"], row["begin"]
                )["compute"]
    tables = job.analyse("collectives")["collectives"].tables
    ranks = {f"rank {rank}": rank for rank in job.rows["rank"].unique()}
    for row in tables["stragglers"].frame.rows(named=True):
        task = ranks[row["rank"]]
        assert [
            row["times_last"],
            row["total_late_ns"],
            row["others_waited_ns"],
            row["waited_ns"],
        ] == [
            last[task],
            late[task],
            made[task],
            own[task],
        ]
    for row in tables["meanwhile"].frame.rows(named=True):
        assert row["computing_ns"] == computing[ranks[row["rank"]]]


def test_use_of_devices_over_time(job: OpenJob) -> None:
    use = job.analyse("metrics", bins=7)["metrics"].tables["use"].frame
    labels = dict(job.devices.select("device", "label").rows())
    edges = [number * job.duration // 7 for number in range(8)]
    for device, item in list_device_work(job).items():
        rows = use.filter(pl.col("device") == labels[device]).sort("bin")
        for number, (begin, end) in enumerate(pairwise(edges)):
            times = split_times({"compute": item["cuda_kernel"]}, begin, end)
            assert rows["compute_share"][number] == pytest.approx(
                times["compute"] / (end - begin), rel=1e-9
            )


def test_launches(job: OpenJob) -> None:
    """Kernels in flight and launch latencies, from the lines between calls and work."""
    lines = job.lines("launch").join(
        job.rows.select("thread", "rank"), left_on="sender", right_on="thread"
    )
    ranks = {f"rank {rank}": rank for rank in job.rows["rank"].unique()}
    results = job.analyse("overlap", "idle")
    flight = {
        ranks[row["rank"]]: row
        for row in results["overlap"].tables["in_flight"].frame.rows(named=True)
    }
    latencies = {
        ranks[row["rank"]]: row
        for row in results["idle"].tables["latencies"].frame.rows(named=True)
    }
    for (task,), rows in lines.partition_by("rank", as_dict=True).items():
        waiting = [
            (sent, begin) for sent, begin in rows.select("sent", "begin").rows() if begin > sent
        ]
        steps = sorted([(sent, 1) for sent, _ in waiting] + [(begin, -1) for _, begin in waiting])
        count = most = 0
        for _, step in steps:
            count += step
            most = max(most, count)
        assert flight[task]["launched"] == rows.height == latencies[task]["count"]
        assert flight[task]["max_in_flight"] == most
        assert flight[task]["mean_in_flight"] == pytest.approx(
            sum(begin - sent for sent, begin in waiting) / job.duration, rel=1e-9
        )
        durations = [begin - sent for sent, begin in rows.select("sent", "begin").rows()]
        assert latencies[task]["mean_ns"] == pytest.approx(
            sum(durations) / len(durations), rel=1e-9
        )
        assert (latencies[task]["min_ns"], latencies[task]["max_ns"]) == (
            min(durations),
            max(durations),
        )
