"""The sample set of a cluster: NCCL, MPI, and every table's rows, as truth.json says that they were
put in.

The committed set has clocks that err; what its trace must show follows from the truth's times and
clocks. A second set has clocks that do not err: its trace must show the truth's own figures.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from samples import Options as SampleOptions
from samples import generate
from tools.sample_truth import SampleSet, open_sample_set
from tools.slow import mark_slow_except
from tools.sql_truth import make_label

SAMPLE = Path(__file__).parents[2] / "sample_reports" / "cluster"
TRUE_CLOCKS = SampleOptions(
    ranks=6,
    hosts=2,
    steps=2,
    layers=2,
    seed=9,
    clock_offsets_ms=(0.0, 0.0),
    clock_drifts_ppm=(0.0, 0.0),
    mpi=True,
    nccl_trace="advanced",
    nccl_groups=True,
    nccl_rooted=True,
    nccl_proxy=True,
    bandwidth_truth=True,
)
NCCL_KERNEL, BYTES, ROOT, PEER, RANKS, RANK, COMMUNICATOR, OPERATION, FUSED = (
    63000007,
    9501,
    9503,
    9504,
    9505,
    9506,
    9507,
    9508,
    9509,
)
COLLECTIVE, NUMBER, LATE, WAIT, TRANSFER, ALGORITHM, BUS, TRANSFERS = range(9540, 9548)
NCCL_MESSAGE = 55010
MPI_CODES = range(50000001, 50000006)
MPI_COLLECTIVE, SENT, RECEIVED, MPI_ROOT, MPI_COMMUNICATOR = (
    50000002,
    50100001,
    50100002,
    50100013,
    50100015,
)
GROUPED = "Several operations in a group"
#: Bandwidths are whole MB/s; 'bus_gb_per_s' of the truth has six decimals.
ROUNDING = 2e-4


@pytest.fixture(scope="module", params=mark_slow_except(["committed", "true clocks"], "committed"))
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SampleSet:
    folder = tmp_path_factory.mktemp("cluster")
    if request.param == "true clocks":
        generate(folder / "set", TRUE_CLOCKS)
    return open_sample_set(
        SAMPLE if request.param == "committed" else folder / "set", folder / "out.prv"
    )


# ---- NCCL -------------------------------------------------------------------------------------------------------------


def list_true_collectives(cluster: SampleSet) -> list[dict]:
    """Return the true collectives that are matched across ranks: rings of sends and receives are
    messages.
    """
    return [item for item in cluster.truth["collectives"] if item["function"] != "SendRecv"]


def name_operation(item: dict) -> str:
    """Return the operation that the trace names."""
    kinds = {member["function"] for member in item.get("members", [item])}
    return kinds.pop() if len(kinds) == 1 else GROUPED


@pytest.mark.slow
def test_the_set_has_what_it_is_to_test(cluster: SampleSet) -> None:
    assert cluster.truth["collectives_total"] == len(cluster.truth["collectives"])
    assert {item["function"] for item in cluster.truth["collectives"]} == {
        "AllGather",
        "ReduceScatter",
        "AllReduce",
        "Group",
        "SendRecv",
        "Broadcast",
        "Reduce",
    }
    assert {item["root"] for item in list_true_collectives(cluster) if "root" in item} == {1, 2}


def test_kernels_of_collectives_say_what_the_calls_did(cluster: SampleSet) -> None:
    """Stream, operation, bytes, root, communicator, ranks, own rank and number of operations, at
    their times.
    """
    expected = Counter()
    for item in cluster.truth["collectives"]:
        for place, (rank, stream, begin, end) in enumerate(
            zip(*(item[key] for key in ("ranks", "streams", "begin", "end")), strict=True)
        ):
            ring = item["function"] == "SendRecv"
            expected[
                rank,
                f"S{stream}",
                cluster.to_trace_time(rank, begin),
                cluster.to_trace_time(rank, end),
                GROUPED if ring else name_operation(item),
                item["bytes"] * (2 if ring else 1),
                item.get("root"),
                f"{item['communicator']:#018x}",
                len(item["ranks"]),
                place,
                2 if ring else len(item.get("members", [0])),
            ] += 1
    trace, actual = cluster.trace, Counter()
    for item in trace.list_intervals(NCCL_KERNEL):
        attributes = item.others
        stream = re.split(r"[.-]", trace.get_row_name(item.row))[2]
        actual[
            item.row[0] - 1,
            stream,
            item.begin,
            item.end,
            trace.get_label(OPERATION, attributes[OPERATION]),
            attributes[BYTES],
            attributes.get(ROOT),
            trace.get_label(COMMUNICATOR, attributes[COMMUNICATOR]),
            attributes[RANKS],
            attributes[RANK],
            attributes[FUSED],
        ] += 1
    assert actual == expected


def test_late_wait_transfer_and_bandwidths_of_collectives(cluster: SampleSet) -> None:
    """From the truth's times as the ranks' clocks show them."""
    expected = []
    for item in list_true_collectives(cluster):
        ranks = item["ranks"]
        begin, end = (
            [
                cluster.to_trace_time(rank, time)
                for rank, time in zip(ranks, item[edge], strict=True)
            ]
            for edge in ("begin", "end")
        )
        last, shares = (
            max(begin),
            len(ranks) if item["function"] in ("AllGather", "ReduceScatter") else 1,
        )
        records = []
        for rank, first, done in zip(ranks, begin, end, strict=True):
            transfer = max(done - last, 0)
            speeds = [
                round(moved * 10**9 / transfer) if transfer else None
                for moved in (item["bytes"] * shares, item["bus_bytes"])
            ]
            records.append(
                (
                    rank,
                    first,
                    done,
                    first - min(begin),
                    min(last - first, done - first),
                    transfer,
                    *speeds,
                )
            )
        expected.append((name_operation(item), sorted(records)))
    assert sorted(list_traced_collectives(cluster)) == sorted(expected)


def list_traced_collectives(cluster: SampleSet) -> list[tuple[str, list[tuple]]]:
    """Return operation, and each rank's record."""
    collectives: dict[int, tuple[str, list[tuple]]] = {}
    speeds = {
        (item.row, item.begin, item.end): (item.others[ALGORITHM], item.others[BUS])
        for item in cluster.trace.list_intervals(TRANSFERS)
        if cluster.trace.get_label(TRANSFERS, item.value) != "SendRecv"
    }
    for item in cluster.trace.list_intervals(COLLECTIVE):
        if NUMBER not in item.others:
            continue  # a kernel that sends and receives
        label = cluster.trace.get_label(COLLECTIVE, item.value)
        collectives.setdefault(item.others[NUMBER], (label, []))[1].append(
            (
                item.row[0] - 1,
                item.begin,
                item.end,
                *(item.others.get(code, 0) for code in (LATE, WAIT, TRANSFER)),
                *speeds.pop(
                    (item.row, item.begin + item.others.get(WAIT, 0), item.end), (None, None)
                ),
            )
        )
    assert not speeds
    return [(label, sorted(records)) for label, records in collectives.values()]


def test_the_truth_s_own_figures_of_collectives(cluster: SampleSet) -> None:
    """Where clocks do not err: what the truth says itself of lateness, waits, transfers and bus
    bandwidths.
    """
    if any(host["offset_ns"] or host["drift_ppm"] for host in cluster.truth["hosts"]):
        assert "the clocks of the reports do not agree" in cluster.summary.text()
        return
    expected = {
        (rank, cluster.to_trace_time(rank, begin)): (late, wait, transfer, speed)
        for item in list_true_collectives(cluster)
        for rank, begin, late, wait, transfer, speed in zip(
            *(item[key] for key in ("ranks", "begin", "late", "wait", "transfer", "bus_gb_per_s")),
            strict=True,
        )
    }
    actual = {
        record[:2]: record[3:]
        for _, records in list_traced_collectives(cluster)
        for record in records
    }
    assert actual.keys() == expected.keys()
    for key, (late, wait, transfer, speed) in expected.items():
        assert actual[key][:3] == (late, wait, transfer)
        assert actual[key][4] == pytest.approx(speed * 10**9, rel=ROUNDING, abs=500)
    assert "the clocks of the reports do not agree" not in cluster.summary.text()


def test_bus_bytes_of_the_truth_are_those_of_nccl_tests(cluster: SampleSet) -> None:
    factors = {
        "AllReduce": lambda ranks: 2 * (ranks - 1) / ranks,
        "AllGather": lambda ranks: ranks - 1,
        "SendRecv": lambda _: 1,
        "ReduceScatter": lambda ranks: ranks - 1,
        "Broadcast": lambda _: 1,
        "Reduce": lambda _: 1,
    }
    for item in cluster.truth["collectives"]:
        parts = item.get("members", [item])
        assert item["bus_bytes"] == pytest.approx(
            sum(part["bytes"] * factors[part["function"]](len(item["ranks"])) for part in parts)
        )


def test_pairs_of_a_ring_are_lines(cluster: SampleSet) -> None:
    """From the begin of the sender's kernel to the end of the receiver's; none where clocks that
    err show that before it is sent.
    """
    expected = Counter()
    for item in cluster.truth["collectives"]:
        for pair in item.get("pairs", []):
            sender, receiver = item["ranks"][pair["from"]], item["ranks"][pair["to"]]
            assert pair["end"] == item["end"][pair["to"]]
            assert pair["ready"] == max(item["begin"][pair["from"]], item["begin"][pair["to"]])
            assert pair["gb_per_s"] == pytest.approx(
                pair["bytes"] / (pair["end"] - pair["ready"]), rel=1e-5
            )
            sent, received = (
                cluster.to_trace_time(sender, item["begin"][pair["from"]]),
                cluster.to_trace_time(receiver, pair["end"]),
            )
            expected[sender, sent, receiver, received, pair["bytes"]] += received >= sent
    expected += Counter()  # without zeros
    assert expected
    assert (
        Counter(
            (line.sender[0] - 1, line.send, line.receiver[0] - 1, line.receive, line.size)
            for line in cluster.trace.comms
            if line.tag == NCCL_MESSAGE
        )
        == expected
    )


def test_collectives_of_the_advanced_trace_have_the_truth_s_numbers(cluster: SampleSet) -> None:
    """The sequence numbers by which they are matched, and the ids, which stand in the reports only:
    by SQL on those.
    """
    for item in list_true_collectives(cluster):
        functions = [member["function"] for member in item.get("members", [item])]
        for rank in item["ranks"]:
            rows = cluster.query(
                rank,
                """
                SELECT value, json_extract(jsonText, '$.seqNumber'), json_extract(jsonText, '$.apiId'), json_extract(jsonText, '$.root')
                FROM NVTX_EVENTS JOIN StringIds ON id = textId WHERE eventType = 59 AND json_extract(jsonText, '$.apiId') IN ("""
                + ",".join(map(str, item["api_ids"]))
                + ") ORDER BY start",
            )
            root = item.get("root")
            assert rows == [
                (*row, root)
                for row in zip(functions, item["sequence_numbers"], item["api_ids"], strict=True)
            ]


# ---- MPI --------------------------------------------------------------------------------------------------------------


def test_messages_are_lines(cluster: SampleSet) -> None:
    truth = cluster.truth["mpi"]
    assert truth["messages_total"] == len(truth["messages"])
    expected = Counter()
    for message in truth["messages"]:
        sender, receiver = message["sender"], message["receiver"]
        end = (
            message["completed"]
            if message["functions"][1] == "MPI_Irecv"
            else message["receive"][1]
        )
        begin, end = (
            cluster.to_trace_time(sender, message["send"][0]),
            cluster.to_trace_time(receiver, end),
        )
        expected[sender, begin, receiver, end, message["bytes"], message["tag"]] += 1
    others = {55001, 55002, NCCL_MESSAGE}
    assert (
        Counter(
            (line.sender[0] - 1, line.send, line.receiver[0] - 1, line.receive, line.size, line.tag)
            for line in cluster.trace.comms
            if line.tag not in others
        )
        == expected
    )
    assert (
        f"MPI messages: {truth['unmatched_total']:,} sends without a partner"
        in cluster.summary.notes
    )
    assert truth["unmatched_total"] == len(truth["unmatched"])


def test_mpi_calls_of_each_rank(cluster: SampleSet) -> None:
    for rank, rank_truth in enumerate(cluster.truth["ranks"]):
        assert cluster.sum_by_label(rank, *MPI_CODES) == {
            name: (call["calls"], call["ns"]) for name, call in rank_truth["mpi_calls"].items()
        }


def test_mpi_collectives(cluster: SampleSet) -> None:
    """Function, times, root, bytes sent and received; and one number for each communicator."""
    truth = cluster.truth["mpi"]["collectives"]
    assert cluster.truth["mpi"]["collectives_total"] == len(truth)
    expected, uids, numbers = Counter(), {}, {}
    for item in truth:
        root = None if item["root"] is None else item["root"] + 1
        for rank, begin, end in zip(item["ranks"], item["begin"], item["end"], strict=True):
            sent, received = item["size"], item["recv_size"]
            if item["function"] == "MPI_Reduce":
                received = received if rank == item["root"] else None
            elif item["function"] == "MPI_Bcast":
                sent, received = sent if rank == item["root"] else None, sent
            blocking = (
                cluster.to_trace_time(rank, end) if item["function"] != "MPI_Iallreduce" else None
            )
            expected[
                rank,
                item["function"],
                cluster.to_trace_time(rank, begin),
                blocking,
                root,
                sent or 0,
                received or 0,
            ] += 1
            uids[rank, cluster.to_trace_time(rank, begin)] = item["communicator"]
    actual = Counter()
    for rank in range(len(cluster.exports)):
        for name, item in cluster.list_intervals(rank, MPI_COLLECTIVE):
            actual[
                rank,
                name,
                item.begin,
                item.end if name != "MPI_Iallreduce" else None,
                item.others.get(MPI_ROOT),
                item.others[SENT],
                item.others[RECEIVED],
            ] += 1
            numbers[rank, item.begin] = item.others[MPI_COMMUNICATOR]
    assert actual == expected
    pairs = {(uids[key], numbers[key]) for key in uids}
    assert len(pairs) == len({uid for uid, _ in pairs}) == len({number for _, number in pairs})


# ---- rows of the tables -----------------------------------------------------------------------------------------------


def api(name: str) -> str:
    return re.sub(r"_v\d{4,}$", "", name)


#: What OSRT_API holds of another event class than calls.
NO_CALL = "[Unknown]"
#: Table -> event types of its rows, and what the truth's names are in the trace.
TRANSLATED = {
    "CUPTI_ACTIVITY_KIND_KERNEL": ((63000006, 63000007), make_label),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ((63000000,), api),
    "CUPTI_ACTIVITY_KIND_MEMCPY": ((63000001,), lambda name: f"CUDA memcpy {name}"),
    "CUPTI_ACTIVITY_KIND_MEMSET": ((63000001,), lambda name: "CUDA memset"),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": (
        (63000030,),
        {
            "Event sync": "Event synchronize",
            "Stream wait sync": "Stream wait event",
            "Stream sync": "Stream synchronize",
            "Context sync": "Context synchronize",
        }.__getitem__,
    ),
    "OSRT_API": ((66400000, 61000000), str),
}
MPI_TABLES = (
    "MPI_P2P_EVENTS",
    "MPI_COLLECTIVES_EVENTS",
    "MPI_START_WAIT_EVENTS",
    "MPI_OTHER_EVENTS",
)
OF_DEVICES = (
    "GPU_METRICS",
    "NET_NIC_METRIC",
    "NET_IB_SWITCH_METRIC",
    "NET_IB_SWITCH_CONGESTION_EVENT",
    "GENERIC_EVENTS",
)
OF_THE_PROFILER = ("CUPTI_ACTIVITY_KIND_OVERHEAD", "PROFILER_OVERHEAD")


def test_no_table_of_the_truth_is_passed_over(cluster: SampleSet) -> None:
    """Those of MPI have a test above, those of devices in ``test_truth_cluster_metrics``, those of
    the profiler in ``test_truth_profiler``, those of NVTX and CUDA events below.
    """
    tested = {
        *TRANSLATED,
        *MPI_TABLES,
        *OF_DEVICES,
        *OF_THE_PROFILER,
        "NVTX_EVENTS",
        "CUPTI_ACTIVITY_KIND_CUDA_EVENT",
    }
    for rank in cluster.truth["ranks"]:
        assert not rank["tables"].keys() - tested
        assert rank["event_rows"] == sum(table["rows"] for table in rank["tables"].values())


@pytest.mark.parametrize("table", TRANSLATED)
def test_rows_and_durations_by_name(cluster: SampleSet, table: str) -> None:
    """What lasts nothing lasts 1 ns in the trace."""
    codes, named = TRANSLATED[table]
    for rank, rank_truth in enumerate(cluster.truth["ranks"]):
        expected = {
            named(name): (entry["rows"], entry["ns"] or entry["rows"])
            for name, entry in rank_truth["tables"][table]["by_name"].items()
            if name != NO_CALL
        }
        actual = cluster.sum_by_label(rank, *codes)
        if table in ("CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"):
            actual = {
                name: entry
                for name, entry in actual.items()
                if name.startswith("CUDA memset") == table.endswith("MEMSET")
            }
        assert actual == expected


def test_bytes_of_memory_operations(cluster: SampleSet) -> None:
    for rank, rank_truth in enumerate(cluster.truth["ranks"]):
        result = Counter()
        for name, item in cluster.list_intervals(rank, 63000001):
            result["MEMSET" if name == "CUDA memset" else "MEMCPY"] += item.others[63000002]
        assert result == {
            kind: rank_truth["tables"][f"CUPTI_ACTIVITY_KIND_{kind}"]["bytes"]
            for kind in ("MEMCPY", "MEMSET")
        }


def test_cuda_events(cluster: SampleSet) -> None:
    for rank, rank_truth in enumerate(cluster.truth["ranks"]):
        assert (
            len(cluster.list_intervals(rank, 63000050))
            == rank_truth["tables"]["CUPTI_ACTIVITY_KIND_CUDA_EVENT"]["rows"]
        )


def test_ranges_of_the_nccl_domain_and_of_the_job(cluster: SampleSet) -> None:
    """By domain and name: calls are push/pop ranges, work on the GPU and of the proxy start/end
    ranges.
    """
    codes = {label: code for code, label in cluster.trace.labels.types.items()}
    every = [
        code
        for label, code in codes.items()
        if re.match(r"NCCL regions$|NVTX (pushpop ranges|startend ranges|marks) ", label)
    ]
    for rank, rank_truth in enumerate(cluster.truth["ranks"]):
        by_name = {
            name: (entry["rows"], entry["ns"])
            for name, entry in rank_truth["tables"]["NVTX_EVENTS"]["by_name"].items()
        }
        assert (
            len(cluster.list_intervals(rank, *every))
            == rank_truth["tables"]["NVTX_EVENTS"]["rows"] - by_name["definitions"][0]
        )
        calls, operations, marks = ({}, {}, {})
        for name, entry in by_name.items():
            if not name.startswith("NCCL/"):
                continue
            text = name.removeprefix("NCCL/")
            where = (
                operations
                if text.startswith(("GPU ", "proxy "))
                else marks
                if text == "CommInit"
                else calls
            )
            where[text.removeprefix("GPU ").removeprefix("proxy ")] = entry
        assert cluster.sum_by_label(rank, 9500) == calls
        assert cluster.sum_by_label(rank, codes["NVTX startend ranges NCCL"]) == operations
        assert {
            name: (count, 0)
            for name, (count, _) in cluster.sum_by_label(rank, codes["NVTX marks NCCL"]).items()
        } == marks
        own = {
            name.removeprefix("trainer/"): entry
            for name, entry in by_name.items()
            if name.startswith("trainer/")
        }
        assert (
            own.items() <= cluster.sum_by_label(rank, codes["NVTX pushpop ranges trainer"]).items()
        )
        default = Counter()
        for name, item in cluster.list_intervals(rank, codes["NVTX pushpop ranges default domain"]):
            plain = re.sub(r"(, op_id = .*| \d+)$", "", name)
            default[plain] += item.end - item.begin
        assert {
            name: ns for name, (_, ns) in by_name.items() if name.startswith("default/")
        }.items() <= {f"default/{name}": ns for name, ns in default.items()}.items()
