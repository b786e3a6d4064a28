"""The sample set of a cluster: what was sampled of GPUs, networks, storage and plugins, as
truth.json says.

Several reports hold the samples of a device; the trace has those of the first report that does.
Values below 0 are set to 0.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from samples import Options as SampleOptions
from samples import generate
from tools.sample_truth import SampleSet, open_sample_set
from tools.slow import mark_slow_except

from nsys2prv.events.kind import Reason

SAMPLE = Path(__file__).parents[2] / "sample_reports" / "cluster"
BUSY = SampleOptions(
    ranks=4,
    hosts=2,
    steps=12,
    layers=2,
    seed=3,
    gpu_metrics=1000,
    nic_metrics=500,
    switch_metrics=500,
    switch_congestion=True,
    storage_metrics=500,
    efa_metrics=250,
    nccl_rooted=True,
    mpi=True,
)
#: What the trace calls a metric otherwise than the truth, which has the export's names.
RENAMED = {
    "GPC Clock Frequency [MHz]": "GPC Clock Frequency [Hz]",
    "SYS Clock Frequency [MHz]": "SYS Clock Frequency [Hz]",
    "NVLink RX Bandwidth [Throughput %]": "NVLink bytes received [Throughput %]",
    "NVLink TX Bandwidth [Throughput %]": "NVLink bytes transmitted [Throughput %]",
}


@pytest.fixture(scope="module", params=mark_slow_except(["committed", "busy"], "committed"))
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SampleSet:
    folder = tmp_path_factory.mktemp("cluster")
    if request.param == "busy":
        generate(folder / "set", BUSY)
    return open_sample_set(
        SAMPLE if request.param == "committed" else folder / "set", folder / "out.prv"
    )


def read_series(cluster: SampleSet) -> dict[tuple[int, str, str], list[tuple[int, int]]]:
    """Return node from 0, row without its host, and metric -> times and values of its records."""
    result: dict[tuple[int, str, str], list[tuple[int, int]]] = {}
    hosts = [host["name"] for host in cluster.truth["hosts"]]
    for record in cluster.trace.samples:
        node = cluster.trace.tasks[record.row[0] - 1][1] - 1
        row = cluster.trace.get_row_name(record.row).removesuffix(f"-{hosts[node]}")
        for code, value in record.numbers.items():
            result.setdefault((node, row, cluster.trace.labels.types[code]), []).append(
                (record.time, value)
            )
    return result


def find_first_ranks(cluster: SampleSet) -> dict[int, int]:
    """Return host from 0 -> its first rank."""
    hosts = [host["name"] for host in cluster.truth["hosts"]]
    return {
        number: next(rank["rank"] for rank in cluster.truth["ranks"] if rank["host"] == name)
        for number, name in enumerate(hosts)
    }


def find_gpu_rows(cluster: SampleSet) -> dict[str, tuple[int, str]]:
    """Return UUID -> node from 0 and name of the row; a GPU is named by its ordinal in the process
    that uses it.
    """
    hosts = [host["name"] for host in cluster.truth["hosts"]]
    return {
        rank["gpu_uuid"]: (hosts.index(rank["host"]), f"Metrics GPU{rank['gpu_index_on_host']}")
        for rank in cluster.truth["ranks"]
    }


# ---- GPUs -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_samples_of_gpus(cluster: SampleSet) -> None:
    """Number and sum of each metric on each GPU, of the first report that has it."""
    result, rows, sampled_rows, zeros = read_series(cluster), find_gpu_rows(cluster), set(), 0
    for number, rank in enumerate(cluster.truth["ranks"]):
        for gpu in rank["gpu_metrics"]:
            if gpu["uuid"] in sampled_rows:
                continue
            sampled_rows.add(gpu["uuid"])
            below = dict(
                cluster.query(
                    number,
                    """
                SELECT metricName, -sum(value) FROM GPU_METRICS JOIN TARGET_INFO_GPU_METRICS USING (typeId, metricId)
                WHERE typeId = ? AND value < 0 GROUP BY 1""",
                    gpu["type_id"],
                )
            )
            expected = {
                RENAMED.get(name, name): (gpu["samples"], total + below.get(name, 0))
                for name, total in gpu["sums"].items()
            }
            values = {
                metric: [value for _, value in times]
                for (node, row, metric), times in result.items()
                if (node, row) == rows[gpu["uuid"]]
            }
            # With a zero behind the last sample, and one a period before the first, but where the
            # trace begins within it.
            [early] = {len(each) - 1 - gpu["samples"] for each in values.values()}
            zeros += early * len(values)
            assert early in (0, 1)
            assert {
                metric: (len(each) - 1 - early, sum(each)) for metric, each in values.items()
            } == expected
            assert all(not any(each[:early]) and each[-1] == 0 for each in values.values())
    assert zeros == cluster.summary.ledger.kinds["gpu_metrics"].synthesized[Reason.ZERO_UNSAMPLED]
    assert sampled_rows == cluster.truth["gpus"].keys() == rows.keys()


# ---- networks ---------------------------------------------------------------------------------------------------------


def read_rates(cluster: SampleSet, node: int, row: str) -> dict[str, list[tuple[int, int]]]:
    """Return metric without its unit -> times and values."""
    return {
        metric.rsplit(" [", 1)[0]: times
        for (number, name, metric), times in read_series(cluster).items()
        if (number, name) == (node, row)
    }


def test_counters_of_network_interfaces(cluster: SampleSet) -> None:
    for host, rank in find_first_ranks(cluster).items():
        ports = {
            name: counters
            for name, counters in cluster.truth["ranks"][rank]["network"].items()
            if not name.startswith("switch")
        }
        assert ports
        for name, counters in ports.items():
            check_counters(read_rates(cluster, host, f"NIC {name} port 0"), counters)


def test_counters_of_the_switch(cluster: SampleSet) -> None:
    """In every report; the first rank's are written."""
    (switch,) = cluster.truth["switches"]
    ports = {
        name.removeprefix("switch "): counters
        for name, counters in cluster.truth["ranks"][0]["network"].items()
        if name.startswith("switch")
    }
    assert len(ports) == sum("mlx5" in nic for nic in cluster.truth["nics"])
    for name, counters in ports.items():
        check_counters(read_rates(cluster, 0, f"Switch {switch} {name}"), counters)


def check_counters(found: dict[str, list[tuple[int, int]]], truth: dict[str, int]) -> None:
    """Check samples and sums of values; a counter has two zeros behind its last sample: at its end,
    and at the trace's.
    """
    expected = {
        counter: (truth["samples"], total)
        for counter, total in truth.items()
        if counter != "samples"
    }
    assert {
        counter: (len(times) - 2, sum(value for _, value in times))
        for counter, times in found.items()
    } == expected


# ---- plugins ----------------------------------------------------------------------------------------------------------


def test_samples_of_plugins(cluster: SampleSet) -> None:
    """Number and sum of each field of each device; numbers in floating point have three decimals."""
    result, codes = (
        read_series(cluster),
        {label: code for code, label in cluster.trace.labels.types.items()},
    )
    for host, rank in find_first_ranks(cluster).items():
        below = {
            (device, field): -total
            for device, field, total in cluster.query(
                rank,
                """
            SELECT t.value, f.value, sum(coalesce(intVal, uintVal, floatVal, doubleVal)) FROM GENERIC_EVENT_DATA
            JOIN GENERIC_EVENTS USING (genericEventId) JOIN GENERIC_EVENT_TYPES AS type USING (typeId)
            JOIN GENERIC_EVENT_TYPE_FIELDS AS field USING (typeId, fieldIdx)
            JOIN StringIds AS t ON t.id = type.nameId JOIN StringIds AS f ON f.id = field.fieldNameId
            WHERE coalesce(intVal, uintVal, floatVal, doubleVal) < 0 GROUP BY 1, 2""",
            )
        }
        for device, truth in cluster.truth["ranks"][rank]["generic_events"].items():
            source = "efa_metrics" if device.startswith("rdmap") else "storage_metrics"
            for field, total in truth["sums"].items():
                label = f"{source}: {field}"
                values = [value for _, value in result[host, f"{source} {device}", label]]
                assert (len(values) - 1, values[-1]) == (truth["events"], 0)
                decimals = cluster.trace.labels.precision.get(codes[label], 0)
                assert sum(values) / 10**decimals == pytest.approx(
                    total + below.get((device, field), 0), abs=0.001 * len(values)
                )
