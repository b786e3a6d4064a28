"""The sample set of a cluster: what was sampled of GPUs, networks, storage and plugins, as
truth.json says.

Several reports hold the samples of a device; the trace has those of the first report that does.
Values below 0 are set to 0.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
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
CONGESTION, SOURCE_LID, TARGET_LID, INGRESS, EGRESS = 91900, 91901, 91902, 91907, 91908
NS_PER_MS = 1_000_000
LARGEST_DRIFT = 20e-6


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


def test_rows_of_several_hosts_have_names_of_their_own(cluster: SampleSet) -> None:
    """But for those of GPUs, which POP's BasicAnalysis looks for by name."""
    names = [name for name in cluster.trace.names["THREAD"] if not name.startswith("Metrics GPU")]
    assert len(names) == len(set(names))
    assert f"NIC mlx5_0 port 0-{cluster.truth['hosts'][0]['name']}" in names


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


def test_sums_and_means_of_gpus(cluster: SampleSet) -> None:
    """Of all samples in any report: the trace has them all where the first report does."""
    result, rows, complete = read_series(cluster), find_gpu_rows(cluster), 0
    for uuid, gpu in cluster.truth["gpus"].items():
        held = [
            (number, own)
            for number, rank in enumerate(cluster.truth["ranks"])
            for own in rank["gpu_metrics"]
            if own["uuid"] == uuid
        ]
        number, first = held[0]
        assert gpu["samples"] >= max(own["samples"] for _, own in held)
        if first["samples"] < gpu["samples"]:
            continue
        complete += 1
        node, row = rows[uuid]
        for name, total in gpu["sums"].items():
            ((below,),) = cluster.query(
                number,
                """
                SELECT -coalesce(sum(value), 0) FROM GPU_METRICS JOIN TARGET_INFO_GPU_METRICS USING (typeId, metricId)
                WHERE typeId = ? AND metricName = ? AND value < 0""",
                first["type_id"],
                name,
            )
            values = [value for _, value in result[node, row, RENAMED.get(name, name)]][
                -1 - gpu["samples"] : -1
            ]
            assert sum(values) - below == total
            assert (sum(values) - below) / len(values) == pytest.approx(
                gpu["means"][name], abs=1e-6
            )
        times = [time for time, _ in result[node, row, "GPC Clock Frequency [Hz]"]][:-1]
        assert (
            max(abs(later - time - gpu["period_ns"]) for time, later in pairwise(times))
            <= gpu["period_ns"] * LARGEST_DRIFT + 2
        )
    assert complete


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


def test_bytes_through_network_interfaces(cluster: SampleSet) -> None:
    """Rates, of whole bytes per ms, over the time for which they stand; clocks that drift stretch
    it.
    """
    hosts = [host["name"] for host in cluster.truth["hosts"]]
    for name, truth in cluster.truth["nics"].items():
        host, nic = name.split()
        for way in ("received", "sent"):
            times = read_rates(cluster, hosts.index(host), f"NIC {nic} port 0")[f"IB: Bytes {way}"]
            total = (
                sum(value * (later - time) for (time, value), (later, _) in pairwise(times))
                / NS_PER_MS
            )
            drift = cluster.truth["hosts"][hosts.index(host)]["drift_ppm"] * 1e-6
            margin = (
                0.5 * (times[-1][0] - times[0][0]) / NS_PER_MS
                + truth[f"bytes_{way}"] * (drift + 1e-6)
                + 1
            )
            assert truth[f"bytes_{way}"] > 100 * margin
            assert total == pytest.approx(truth[f"bytes_{way}"], abs=margin)


def test_congestion_of_the_switch(cluster: SampleSet) -> None:
    """From which interface to which, by their local identifiers, and when."""
    ((name, truth),) = cluster.truth["switches"].items()
    lids = dict(cluster.query(0, "SELECT name, lid FROM NET_IB_DEVICE_INFO"))
    expected = Counter()
    for pair, count in cluster.truth["ranks"][0]["congestion"].items():
        source, target = pair.split(" -> ")
        expected[lids[source], lids[target]] += count
    events = cluster.trace.list_intervals(CONGESTION)
    assert {
        (cluster.trace.get_row_name(item.row), cluster.trace.get_label(CONGESTION, item.value))
        for item in events
    } == {(f"Switch {name}", "Egress port queue size")}
    assert (
        Counter((item.others[SOURCE_LID], item.others[TARGET_LID]) for item in events) == expected
    )
    assert truth["congestion"] == cluster.truth["ranks"][0]["congestion"]
    rows = cluster.query(
        0,
        "SELECT start, globalId, switchIngressPort, switchEgressPort FROM NET_IB_SWITCH_CONGESTION_EVENT",
    )
    assert {guid for _, guid, _, _ in rows} == {truth["guid"]}
    start = cluster.truth["ranks"][0]["utcEpochNs"] - cluster.zero
    assert Counter(
        (item.begin, item.others[INGRESS], item.others[EGRESS]) for item in events
    ) == Counter((start + time, ingress, egress) for time, _, ingress, egress in rows)
    assert (
        len(rows) == cluster.truth["ranks"][0]["tables"]["NET_IB_SWITCH_CONGESTION_EVENT"]["rows"]
    )


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


def test_bytes_of_storage(cluster: SampleSet) -> None:
    """What applications read and wrote on a host, over all volumes; samples are of whole bytes."""
    hosts, result = [host["name"] for host in cluster.truth["hosts"]], read_series(cluster)
    for name, truth in cluster.truth["storage"].items():
        for field, total in (("Read", truth["bytes_read"]), ("Write", truth["bytes_written"])):
            each = [
                [value for _, value in times]
                for (node, _, metric), times in result.items()
                if (node, metric)
                == (hosts.index(name), f"storage_metrics: Application {field} Bytes")
            ]
            assert total > 0
            assert sum(map(sum, each)) == pytest.approx(total, abs=0.5 * sum(map(len, each)))


def test_samples_by_table(cluster: SampleSet) -> None:
    """What the truth says of each device adds up to the rows of the tables."""
    for rank in cluster.truth["ranks"]:
        tables = {name: table["rows"] for name, table in rank["tables"].items()}
        assert (
            sum(gpu["samples"] * len(gpu["sums"]) for gpu in rank["gpu_metrics"])
            == tables["GPU_METRICS"]
        )
        counts = {
            name: counters["samples"] * (len(counters) - 1)
            for name, counters in rank["network"].items()
        }
        assert (
            sum(count for name, count in counts.items() if name.startswith("switch"))
            == tables["NET_IB_SWITCH_METRIC"]
        )
        assert (
            sum(count for name, count in counts.items() if not name.startswith("switch"))
            == tables["NET_NIC_METRIC"]
        )
        assert (
            sum(counters["events"] for counters in rank["generic_events"].values())
            == tables["GENERIC_EVENTS"]
        )
        assert sum(rank["congestion"].values()) == tables["NET_IB_SWITCH_CONGESTION_EVENT"]
