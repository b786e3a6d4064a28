"""Test counters: metrics of GPUs and networks, and numbers of plugins, on exports made by hand,
against plain SQL.
"""

import json
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from tools.conversions import convert_and_read
from tools.exports import (
    KERNEL,
    Row,
    make_export,
    make_global_pid,
    make_gpus,
    make_host,
    make_kernel,
    make_metrics,
    make_rows,
    make_sample,
    make_strings,
)
from tools.trace_reader import Trace

from nsys2prv.conversion.summary import Summary
from nsys2prv.events import metrics
from nsys2prv.events.catalogue import find_known_label
from nsys2prv.events.kind import Reason

SMS, ISSUE, CLOCK, DRAM_READ = 9403, 9404, 9400, 9418
CLOCKS = 1_700_000_000_000_000_000, 10**12


def make_type_id(gpu: int, host: int = 1, kind: int = 2) -> int:
    """Return a typeId of GPU_METRICS: hardware id, virtual machine id, source, event tag, GPU."""
    return host << 56 | 1 << 48 | kind << 32 | 7 << 8 | gpu


def make_gpu_metrics(gpu: int, names: Sequence[str], kind: int = 2, first: int = 0) -> list[Row]:
    """Return rows that name the metrics of a GPU, numbered from `first`."""
    return make_metrics(make_type_id(gpu, kind=kind), names, first)


def make_gpu_sample(
    gpu: int, time: int | None, values: Mapping[int, int | None], kind: int = 2
) -> list[Row]:
    """Return the rows of one sample of a GPU: metric -> value."""
    return make_sample(make_type_id(gpu, kind=kind), time, values)


def convert_tables(
    folder: Path, *reports: Mapping[str, Sequence[Row]], **options: object
) -> tuple[Trace, Summary, list[Path]]:
    """Convert reports rank0, rank1... made of these tables."""
    paths = [
        make_export(folder / f"rank{number}.sqlite", tables)
        for number, tables in enumerate(reports)
    ]
    return *convert_and_read(paths, folder / "out.prv", **options), paths


def read_series(trace: Trace, code: int) -> dict[str, list[tuple[int, int]]]:
    """Return row name -> times and values of a type, in order."""
    result: dict[str, list[tuple[int, int]]] = {}
    for record in trace.samples:
        if code in record.numbers:
            result.setdefault(trace.get_row_name(record.row), []).append(
                (record.time, record.numbers[code])
            )
    return result


def test_a_name_means_the_same_whatever_its_spelling() -> None:
    for name in (
        "SMs Active [Throughput %]",
        "SM Active",
        "sms  active",
        "SMs Active [throughput%]",
    ):
        assert find_known_label("gpu_metric", name) == "SMs Active [Throughput %]"
    assert find_known_label("gpu_metric", "GPC Clock Frequency [MHz]") == "GPC Clock Frequency [Hz]"
    assert (
        find_known_label("gpu_metric", "VRAM Read Bandwidth")
        == "DRAM Read Bandwidth [Throughput %]"
    )
    assert find_known_label("gpu_metric", "Compute Warps in Flight [Avg]") != find_known_label(
        "gpu_metric", "Compute Warps In Flight"
    )
    assert find_known_label("gpu_metric", "SMs Active [Cycles]") is None


# ---------------------------------------------------------------------------------------------------------------- GPU metrics
@pytest.fixture
def two_gpus() -> dict[str, list[Row]]:
    """Return one process on two GPUs, with other metric ids on each."""
    return {
        KERNEL: [make_kernel(100, 200), make_kernel(150, 250, deviceId=1)],
        "StringIds": make_strings("k"),
        "TARGET_INFO_GPU": make_gpus("a", "b"),
        "TARGET_INFO_GPU_METRICS": make_gpu_metrics(
            0, ["SMs Active [Throughput %]", "DRAM Read Bandwidth [Throughput %]"]
        )
        + make_gpu_metrics(
            1, ["GPC Clock Frequency [MHz]", "Tensor Active", "SMs Active [Throughput %]"]
        ),
        "GPU_METRICS": [
            *make_gpu_sample(0, 50, {0: 5, 1: 6}),
            *make_gpu_sample(1, 60, {0: 1_980_000_000, 1: 3, 2: 7}),
            *make_gpu_sample(0, 150, {0: 0, 1: 9}),
            *make_gpu_sample(1, 160, {0: 1_990_000_000, 1: 0, 2: 100}),
        ],
    }


def test_one_record_an_instant_with_types_by_name(two_gpus: dict, tmp_path: Path) -> None:
    trace, summary, _ = convert_tables(tmp_path, two_gpus, kinds=("-device_state",))
    assert [(record.time, dict(record.numbers)) for record in trace.samples] == [
        (0, {SMS: 5, DRAM_READ: 6}),
        (10, {CLOCK: 1_980_000_000, SMS: 7, 9405: 3}),
        (100, {SMS: 0, DRAM_READ: 9}),
        (110, {CLOCK: 1_990_000_000, SMS: 100, 9405: 0}),
        (200, {CLOCK: 0, SMS: 0, 9405: 0}),
        (200, {SMS: 0, DRAM_READ: 0}),
    ]
    assert trace.names["THREAD"] == ["CUDA-D0.S7", "CUDA-D1.S7", "Metrics GPU0", "Metrics GPU1"]
    assert {trace.get_row_name(record.row) for record in trace.samples} == {
        "Metrics GPU0",
        "Metrics GPU1",
    }
    assert trace.labels.types[CLOCK] == "GPC Clock Frequency [Hz]"
    assert not {CLOCK, SMS} & set(trace.labels.values)
    assert set(trace.labels.types) & set(range(9400, 9500)) == {CLOCK, SMS, 9405, DRAM_READ}
    assert summary.events["gpu_metric"] == 10
    assert not summary.dropped
    assert not summary.repaired


def test_counts_and_sums_are_those_of_sql(tmp_path: Path) -> None:
    """Check random samples of two metric sets per GPU, in random order, read in small parts."""
    random = np.random.default_rng(3)
    names = ["SMs Active", "SM Issue", "Tensor Active", "Unheard Of [Throughput %]"]
    rows = []
    for gpu, kind, time in product(range(3), (2, 3), range(0, 3000, 10)):
        values = {
            number: int(random.integers(0, 101)) for number in range(4) if random.random() < 0.9
        }
        rows += make_gpu_sample(gpu, time + kind, values, kind)
    random.shuffle(rows)
    named = [
        row
        for gpu in range(3)
        for kind in (2, 3)
        for row in make_gpu_metrics(gpu, names[::-1] if gpu == 1 else names, kind)
    ]
    trace, summary, (path,) = convert_tables(
        tmp_path, {"GPU_METRICS": rows, "TARGET_INFO_GPU_METRICS": named}
    )
    with sqlite3.connect(path) as connection:
        truth = {
            (name, gpu): (count, total)
            for name, gpu, count, total in connection.execute(
                "SELECT metricName, typeId & 255, count(*), sum(value) FROM GPU_METRICS JOIN TARGET_INFO_GPU_METRICS USING (typeId, metricId) "
                "GROUP BY 1, 2"
            )
        }
    result: dict[tuple[str, int], tuple[int, int]] = {}
    codes = {label: code for code, label in trace.labels.types.items()}
    for name in names:
        for row, values in read_series(
            trace, codes[find_known_label("gpu_metric", name) or name]
        ).items():
            values_before_end = values[:-1]  # the zero at the end
            result[name, int(row.removeprefix("Metrics GPU"))] = (
                len(values_before_end),
                sum(value for _, value in values_before_end),
            )
    assert result == truth
    assert summary.events["gpu_metric"] == len(rows)
    assert len(trace.samples) == len({(row["typeId"], row["timestamp"]) for row in rows}) + 3


def test_instants_that_lack_metrics_have_records_without_them(tmp_path: Path) -> None:
    tables = {
        "GPU_METRICS": [
            *make_gpu_sample(0, 0, {0: 1, 1: 2, 2: 3}),
            *make_gpu_sample(0, 10, {1: 4}),
            *make_gpu_sample(0, 20, {2: 5, 0: 0}),
            *make_gpu_sample(0, 30, {1: 0}),
            *make_gpu_sample(0, 40, {0: None}),
        ],
        "TARGET_INFO_GPU_METRICS": make_gpu_metrics(
            0, ["SMs Active", "SM Issue", "Tensor Active", "never sampled"]
        ),
    }
    trace, summary, _ = convert_tables(tmp_path, tables)
    assert [(record.time, dict(record.numbers)) for record in trace.samples] == [
        (0, {SMS: 1, ISSUE: 2, 9405: 3}),
        (10, {ISSUE: 4}),
        (20, {SMS: 0, 9405: 5}),
        (30, {ISSUE: 0}),
        (30, {SMS: 0, ISSUE: 0, 9405: 0}),
    ]
    assert summary.dropped == {("gpu_metrics", Reason.SAMPLE_WITHOUT_VALUE): 1}
    assert "never sampled" not in trace.labels.types.values()


def test_numbers_are_made_what_they_were(tmp_path: Path) -> None:
    """Clocks of more than 2^31 Hz stand as negative numbers, a few exports have MHz; percentages
    are never negative.
    """
    tables = {
        "GPU_METRICS": [
            *make_gpu_sample(0, 0, {0: -1_768_172_296, 1: -5, 2: -1}),
            *make_gpu_sample(0, 10, {0: 1980, 1: 50, 2: 7}),
            *make_gpu_sample(0, 20, {0: 0}),
        ],
        "TARGET_INFO_GPU_METRICS": make_gpu_metrics(
            0, ["GPC Clock Frequency [MHz]", "SMs Active", "PCIe Read Requests to BAR1 [Requests]"]
        ),
    }
    trace, summary, _ = convert_tables(tmp_path, tables)
    assert read_series(trace, CLOCK)["Metrics GPU0"] == [
        (0, 2_526_795_000),
        (10, 1_980_000_000),
        (20, 0),
        (20, 0),
    ]
    assert read_series(trace, SMS)["Metrics GPU0"] == [(0, 0), (10, 50), (20, 0)]
    assert read_series(trace, 9430)["Metrics GPU0"] == [(0, 2**32 - 1), (10, 7), (20, 0)]
    assert summary.repaired == {("gpu_metrics", Reason.NEGATIVE_SAMPLE): 1}


def test_bits_of_floating_point_are_decoded(tmp_path: Path) -> None:
    bits = int(np.array([31.25], np.float32).view(np.int32)[0])
    tables = {
        "GPU_METRICS": make_gpu_sample(0, 0, {0: bits, 1: 3})
        + make_gpu_sample(0, 10, {0: 0, 1: 0}),
        "TARGET_INFO_GPU_METRICS": make_gpu_metrics(
            0, ["Threads Launched Per Warp [Threads/Warp]", "SMs Active"]
        ),
        "GENERIC_EVENT_TYPE_FIELDS": make_rows(
            "typeId fieldIdx fieldNameId offset size type",
            (make_type_id(0), 0, 1, 0, 4, 2),
            (make_type_id(0), 1, 2, 4, 1, 1),
        ),
    }
    trace, _, _ = convert_tables(tmp_path, tables)
    assert read_series(trace, 90032)["Metrics GPU0"][0] == (0, 31_250)
    assert trace.labels.precision == {90032: 3}
    assert read_series(trace, SMS)["Metrics GPU0"][0] == (0, 3)


def test_samples_without_a_time_are_counted(tmp_path: Path) -> None:
    tables = {
        "GPU_METRICS": [
            *make_gpu_sample(0, 0, {0: 1, 1: 2}),
            *make_gpu_sample(0, None, {0: 1, 1: 2}),
            *make_gpu_sample(0, 2**62 + 1, {0: 1}),
        ]
    }
    trace, summary, _ = convert_tables(tmp_path, tables)
    assert summary.dropped == {("gpu_metrics", Reason.SAMPLE_WITHOUT_TIME): 3}
    assert trace.duration == 0 or len(trace.samples) == 2


def test_a_gpu_in_several_reports_is_written_once_on_the_row_of_its_first_user(
    tmp_path: Path,
) -> None:
    """Two ranks on one host, each on its own GPU, each recording both."""

    def rank(number: int) -> dict[str, list[Row]]:
        pid = 100 + number
        return {
            **make_host("node", *CLOCKS),
            "StringIds": make_strings("k"),
            "TARGET_INFO_GPU": make_gpus("a", "b"),
            KERNEL: [make_kernel(10, 20, globalPid=make_global_pid(pid))],
            "TARGET_INFO_CUDA_DEVICE": [
                {"gpuId": number, "cudaId": 0, "pid": pid, "uuid": "ab"[number]}
            ],
            "TARGET_INFO_GPU_METRICS": make_gpu_metrics(0, ["SMs Active"])
            + make_gpu_metrics(1, ["SMs Active"]),
            "GPU_METRICS": [
                row
                for time in (0, 100, 200)
                for gpu in (0, 1)
                for row in make_gpu_sample(gpu, time + number, {0: 10 * gpu + 1})
            ],
        }

    trace, summary, _ = convert_tables(tmp_path, rank(0), rank(1))
    assert trace.names["THREAD"] == ["CUDA-D0.S7", "Metrics GPU0", "CUDA-D1.S7", "Metrics GPU1"]
    assert read_series(trace, SMS) == {
        "Metrics GPU0": [(0, 1), (100, 1), (200, 1), (201, 0)],
        "Metrics GPU1": [(0, 11), (100, 11), (200, 11), (201, 0)],
    }
    assert summary.events["gpu_metric"] == 6
    assert any(note.startswith("6 samples of ") for note in summary.notes), summary.notes


def test_a_gpu_that_no_rank_uses_is_in_the_first_task_of_its_host(tmp_path: Path) -> None:
    first = {
        **make_host("a", *CLOCKS),
        KERNEL: [make_kernel(10, 20)],
        "StringIds": make_strings("k"),
        "TARGET_INFO_GPU": make_gpus("u0"),
    }
    second = {
        **make_host("b", *CLOCKS),
        KERNEL: [make_kernel(10, 20)],
        "StringIds": make_strings("k"),
        "TARGET_INFO_GPU": make_gpus("u1", "u2"),
        "TARGET_INFO_GPU_METRICS": make_gpu_metrics(1, ["SMs Active"]),
        "GPU_METRICS": make_gpu_sample(1, 5, {0: 30}),
    }
    third = {
        **make_host("c", *CLOCKS),
        "TARGET_INFO_GPU_METRICS": make_gpu_metrics(0, ["SMs Active"]),
        "GPU_METRICS": make_gpu_sample(0, 5, {0: 40}),
    }
    trace, _, _ = convert_tables(tmp_path, first, second, third)
    assert trace.tasks == [(1, 1), (2, 2), (1, 3)]
    assert trace.names["THREAD"] == ["CUDA-D0.S7-a", "CUDA-D0.S7-b", "Metrics GPU1", "Metrics GPU0"]
    assert trace.names["TASK"][2] == "devices of c"


# ------------------------------------------------------------------------------------------------------------- network metrics
def make_nic_sample(
    start: int, end: int, value: int, index: int = 6, device: int = 1 << 48, port: int = 1
) -> Row:
    return {
        "start": start,
        "end": end,
        "globalId": device,
        "portId": port,
        "metricsListId": 0,
        "metricsIdx": index,
        "value": value,
    }


NETWORK = {
    "TARGET_INFO_NETWORK_METRICS": make_rows(
        "metricsListId metricsIdx name description unit",
        (0, 6, "IB: Bytes sent", "", "bytes/ms"),
        (0, 10, "IB: Send waits", "", "ticks/ms"),
    ),
    "TARGET_INFO_NIC_INFO": make_rows(
        "GUID stateName nicId name", (-5, "Local (CLI)", 3, "mlx5_0")
    ),
    "NIC_ID_MAP": make_rows("nicId globalId", (3, 1 << 48)),
}


def test_a_rate_stands_from_its_start_to_its_end(tmp_path: Path) -> None:
    tables = {
        **make_host("n", *CLOCKS),
        **NETWORK,
        KERNEL: [make_kernel(0, 1000)],
        "StringIds": make_strings("k"),
        "NET_NIC_METRIC": [
            make_nic_sample(100, 200, 7),
            make_nic_sample(100, 200, 1, 10),
            make_nic_sample(200, 300, 8),
            make_nic_sample(400, 500, 9),
            make_nic_sample(200, 300, 0, 10),
        ],
    }
    trace, _, _ = convert_tables(tmp_path, tables)
    assert trace.names["THREAD"] == ["CUDA-D0.S7", "NIC mlx5_0 port 1"]
    assert read_series(trace, 91006)["NIC mlx5_0 port 1"] == [
        (100, 7),
        (200, 8),
        (300, 0),
        (400, 9),
        (500, 0),
        (1000, 0),
    ]
    assert read_series(trace, 91010)["NIC mlx5_0 port 1"] == [
        (100, 1),
        (200, 0),
        (300, 0),
        (1000, 0),
    ]
    assert trace.labels.types[91006] == "IB: Bytes sent [bytes/ms]"


def test_what_was_before_the_capture_is_left_out(tmp_path: Path) -> None:
    """The first sample of each metric is about all the time before."""
    tables = {
        **NETWORK,
        "NET_NIC_METRIC": [
            make_nic_sample(-5 * 10**12, 50, 4),
            make_nic_sample(50, 100, 7),
            make_nic_sample(-100, -50, 3, 10),
            make_nic_sample(100, 150, 2),
        ],
    }
    trace, summary, _ = convert_tables(tmp_path, tables)
    assert read_series(trace, 91006) == {
        "NIC mlx5_0 port 1": [(0, 4), (50, 7), (100, 2), (150, 0), (150, 0)]
    }
    assert trace.duration == 150
    assert summary.dropped == {("nic_metrics", Reason.SAMPLE_BEFORE_CAPTURE): 1}


def test_networks_are_written_once_a_host_and_switches_once(tmp_path: Path) -> None:
    def rank(name: str, pid: int) -> dict[str, list[Row]]:
        return {
            **make_host(name, *CLOCKS),
            **NETWORK,
            KERNEL: [make_kernel(0, 1000, globalPid=make_global_pid(pid))],
            "StringIds": make_strings("k"),
            "NET_NIC_METRIC": [
                make_nic_sample(100, 200, 7),
                make_nic_sample(100, 200, 7, device=9),
            ],
            "NET_IB_SWITCH_METRIC": [make_nic_sample(100, 200, 5, device=77, port=3)],
            "NET_IB_DEVICE_INFO": make_rows("networkId guid name des lid", (1, 77, "leaf1", "", 4)),
            "NET_IB_SWITCH_CONGESTION_EVENT": make_rows(
                "start globalId congestionType packetSLID switchEgressPort", (150, 77, 1, 4, 3)
            ),
        }

    trace, summary, _ = convert_tables(tmp_path, rank("a", 1), rank("a", 2), rank("b", 3))
    assert trace.names["TASK"][3:] == ["devices of a", "devices of b"]
    assert trace.tasks == [(1, 1), (1, 1), (1, 2), (4, 1), (2, 2)]
    assert trace.names["THREAD"] == [
        "CUDA-D0.S7-a",
        "CUDA-D0.S7-a",
        "CUDA-D0.S7-b",
        "NIC 0x9 port 1-a",
        "NIC mlx5_0 port 1-a",
        "Switch leaf1",
        "Switch leaf1 port 3",
        "NIC 0x9 port 1-b",
        "NIC mlx5_0 port 1-b",
    ]
    counts = Counter(record.row for record in trace.samples)
    assert counts == {(4, 1): 3, (4, 2): 3, (4, 4): 3, (5, 1): 3, (5, 2): 3}
    assert [
        (interval.row, interval.begin, interval.others[91901], interval.others[91908])
        for interval in trace.list_intervals(91900)
    ] == [((4, 3), 150, 4, 3)]
    assert summary.events["switch_congestion"] == 1
    assert summary.ranks == 3
    assert any("several reports contain them" in note for note in summary.notes)


# ------------------------------------------------------------------------------------------------------------- generic events
@pytest.mark.parametrize("data", [None, "", "[", "[" * 100_000 + "]" * 100_000, '{"Name": 1}', "7"])
def test_a_source_whose_json_names_nothing_has_no_name(data: str | None) -> None:
    assert metrics._find_name(None, None, data) == ""


def test_fields_of_generic_events_are_counters_of_their_source(tmp_path: Path) -> None:
    tables = {
        **make_host("n", *CLOCKS),
        "StringIds": make_strings("EFA", "rdmap0", "rx_bytes", "load", "sched_switch", "rdmap1"),
        "GENERIC_EVENT_SOURCES": make_rows("sourceId nameId sourceGroupId", (1, 1, 0), (2, 5, 1)),
        "GENERIC_EVENT_TYPES": make_rows(
            "typeId sourceId nameId", (10, 1, 2), (11, 2, 5), (12, 1, 6)
        ),
        "GENERIC_EVENT_TYPE_FIELDS": make_rows(
            "typeId fieldIdx fieldNameId type", (10, 0, 3, 1), (10, 1, 4, 3), (12, 0, 3, 1)
        ),
        "GENERIC_EVENTS": make_rows(
            "genericEventId timestamp typeId", (0, 0, 10), (1, 100, 10), (2, 200, 11), (3, 300, 12)
        ),
        "GENERIC_EVENT_DATA": make_rows(
            "genericEventId fieldIdx intVal uintVal doubleVal floatVal",
            (0, 0, None, 5, None, None),
            (0, 1, None, None, 0.125, None),
            (1, 0, None, 6, None, None),
            (1, 1, None, None, -1.0, None),
            (2, 0, 3, None, None, None),
            (3, 0, None, 9, None, None),
        ),
    }
    trace, summary, _ = convert_tables(tmp_path, tables)
    codes = {label: code for code, label in trace.labels.types.items()}
    assert set(codes) == {"EFA: rx_bytes", "EFA: load"}
    assert all(92000 <= code <= 98999 for code in codes.values())
    assert read_series(trace, codes["EFA: rx_bytes"]) == {
        "EFA rdmap0": [(0, 5), (100, 6), (300, 0)],
        "EFA rdmap1": [(300, 9), (300, 0)],
    }
    assert read_series(trace, codes["EFA: load"]) == {"EFA rdmap0": [(0, 125), (100, 0), (300, 0)]}
    assert trace.labels.precision == {codes["EFA: load"]: 3}
    assert sum(summary.dropped.values()) == 1
    assert sum(summary.repaired.values()) == 1


def test_generic_events_in_json(tmp_path: Path) -> None:
    data = [{"read": 5, "busy": 0.5, "name": "disk"}, {"read": "7", "busy": 1}, {}]
    tables = {
        "GENERIC_EVENT_SOURCES": [{"sourceId": 1, "data": json.dumps({"Name": "Storage"})}],
        "GENERIC_EVENT_TYPES": [
            {"typeId": 10, "sourceId": 1, "data": json.dumps({"Name": "Storage", "Fields": []})}
        ],
        "GENERIC_EVENTS": [
            {"rawTimestamp": 1, "timestamp": 100 * number, "typeId": 10, "data": json.dumps(row)}
            for number, row in enumerate(data)
        ]
        + [{"timestamp": 5, "typeId": 10, "data": "no json"}],
    }
    trace, _, _ = convert_tables(tmp_path, tables)
    codes = {label: code for code, label in trace.labels.types.items()}
    assert set(codes) == {"Storage: read", "Storage: busy"}
    assert read_series(trace, codes["Storage: read"]) == {
        "Storage": [(0, 5000), (100, 7000), (100, 0)]
    }
    assert read_series(trace, codes["Storage: busy"]) == {
        "Storage": [(0, 500), (100, 1000), (100, 0)]
    }


def test_numbers_beyond_what_a_trace_holds(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """The greatest that it holds, not 0; and no noise from fractions beyond all measure."""
    huge = {
        "GENERIC_EVENTS": [
            {"timestamp": time, "typeId": 10, "data": '{"big": 1e308}'} for time in (1, 2)
        ]
    }
    gpu = {
        "TARGET_INFO_GPU_METRICS": make_gpu_metrics(0, ["SMs Active [Throughput %]"]),
        "GPU_METRICS": make_gpu_sample(0, 1, {0: 2**63 - 1}) + make_gpu_sample(0, 2, {0: 3}),
    }
    trace, summary, _ = convert_tables(tmp_path, gpu | huge)
    assert [value for _, value in read_series(trace, SMS)["Metrics GPU0"]][:2] == [2**63 - 2, 3]
    assert sum(count for (kind, _), count in summary.repaired.items() if kind == "gpu_metrics") == 1
    assert not recwarn.list, [str(item.message) for item in recwarn.list]


def test_gpu_metrics_of_old_exports(tmp_path: Path) -> None:
    """Before they had tables of their own, GPU metrics were generic events."""
    data = [
        {"SM Active": "45", "GPC Clock Frequency": 1_410_000_000, "odd one": 3},
        {"SM Active": "50", "GPC Clock Frequency": 0},
    ]
    tables = {
        "GENERIC_EVENTS": [
            {
                "rawTimestamp": 1,
                "timestamp": 100 * number,
                "typeId": make_type_id(3),
                "data": json.dumps(row),
            }
            for number, row in enumerate(data)
        ]
    }
    trace, _, _ = convert_tables(tmp_path, tables)
    assert read_series(trace, SMS) == {"Metrics GPU3": [(0, 45), (100, 50), (100, 0)]}
    assert read_series(trace, CLOCK) == {"Metrics GPU3": [(0, 1_410_000_000), (100, 0), (100, 0)]}
