"""Counters: metrics of GPUs and networks, numbers of plugins; on exports made by hand, against
plain SQL on them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from tools.conversions import convert_and_read
from tools.exports import KERNEL, Row, make_export, make_global_pid, make_kernel, make_strings
from tools.installed_views import find_view_file
from tools.trace_reader import Trace

from nsys2prv.conversion.summary import Summary
from nsys2prv.events import metrics
from nsys2prv.events.catalogue import (
    assign_counter_codes,
    find_hashed_types,
    find_known_label,
    hash_to_numbers,
    label_metrics,
    load_catalogue,
    load_counter_tables,
)
from nsys2prv.events.kind import Reason
from nsys2prv.store import runs

SMS, ISSUE, CLOCK, DRAM_READ = 9403, 9404, 9400, 9418
HOST_CLOCK = 1_700_000_000_000_000_000


def make_type_id(gpu: int, host: int = 1, kind: int = 2) -> int:
    """Return a typeId of GPU_METRICS: hardware id, virtual machine id, source, event tag, GPU."""
    return host << 56 | 1 << 48 | kind << 32 | 7 << 8 | gpu


def make_metrics(gpu: int, names: Sequence[str], kind: int = 2, first: int = 0) -> list[Row]:
    """Return rows that name the metrics of a GPU, numbered from `first`."""
    return [
        {
            "typeId": make_type_id(gpu, kind=kind),
            "sourceId": 1,
            "typeName": "GPU Metrics",
            "metricId": number,
            "metricName": name,
        }
        for number, name in enumerate(names, first)
    ]


def make_sample(
    gpu: int, time: int | None, values: Mapping[int, int | None], kind: int = 2
) -> list[Row]:
    """Return the rows of one sample of a GPU: metric -> value."""
    return [
        {
            "rawTimestamp": 10**15,
            "timestamp": time,
            "typeId": make_type_id(gpu, kind=kind),
            "metricId": number,
            "value": value,
        }
        for number, value in values.items()
    ]


def make_host(name: str) -> dict[str, list[Row]]:
    """Return the tables that describe a host."""
    return {
        "TARGET_INFO_SYSTEM_ENV": [{"name": "Hostname", "value": name}],
        "TARGET_INFO_SESSION_START_TIME": [{"utcEpochNs": HOST_CLOCK, "systemClockNs": 10**12}],
    }


def make_gpus(*uuids: str, first: int = 0) -> list[Row]:
    """Return the rows of GPUs with these UUIDs."""
    return [
        {"id": number, "name": "H100", "uuid": uuid, "busLocation": ""}
        for number, uuid in enumerate(uuids, first)
    ]


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


# ------------------------------------------------------------------------------------------------------------------ catalogue
def test_numbers_of_counters_are_free_and_their_labels_unique() -> None:
    tables = load_counter_tables()
    codes = [code for table in tables.values() for code in table.labels]
    labels = [label for table in tables.values() for label in table.labels.values()]
    others = {
        field.code
        for layout in load_catalogue().layouts.values()
        for field in layout.fields
        if isinstance(field.code, int)
    }
    assert len(set(codes)) == len(codes)
    assert len(set(labels)) == len(labels)
    assert not others & set(codes)
    # Those of layouts that topics list lie among the numbers of their topic.
    for code in (
        code
        for layout in ("gpu_metric", "network_metric", "generic_counter", "nvtx_payload")
        for code in tables[layout].labels
    ):
        assert 9400 <= code <= 9499 or 90000 <= code <= 91899
        assert not any(first <= code <= last for first, last in find_hashed_types().values())


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


def test_labels_of_one_set_are_never_the_same() -> None:
    assert label_metrics(
        "gpu_metric", ["SM Active", "SMs Active [Throughput %]", "odd [GB/s]", "odd [GB/s]", ""]
    ) == [
        "SMs Active [Throughput %]",
        "SMs Active [Throughput %] #2",
        "odd [B/s]",
        "odd [B/s] #2",
        "metric without a name",
    ]


def test_numbers_of_unlisted_names_depend_on_nothing_else() -> None:
    alone = assign_counter_codes({"gpu_metric": ["Quantum Active [%]"]})[
        "gpu_metric", "Quantum Active [%]"
    ]
    crowd = assign_counter_codes(
        {"gpu_metric": [f"metric {number}" for number in range(20)] + ["Quantum Active [%]"]}
    )
    assert 99000 <= alone <= 99999
    assert crowd["gpu_metric", "Quantum Active [%]"] == alone
    assert len(set(crowd.values())) == len(crowd)
    many = hash_to_numbers([str(number) for number in range(900)], 1, 1000)
    assert len(set(many.values())) == 900
    assert len(set(hash_to_numbers([str(number) for number in range(30)], 1, 10).values())) == 30


# ---------------------------------------------------------------------------------------------------------------- GPU metrics
@pytest.fixture
def two_gpus() -> dict[str, list[Row]]:
    """Return one process on two GPUs, with other metric ids on each."""
    return {
        KERNEL: [make_kernel(100, 200), make_kernel(150, 250, deviceId=1)],
        "StringIds": make_strings("k"),
        "TARGET_INFO_GPU": make_gpus("a", "b"),
        "TARGET_INFO_GPU_METRICS": make_metrics(
            0, ["SMs Active [Throughput %]", "DRAM Read Bandwidth [Throughput %]"]
        )
        + make_metrics(
            1, ["GPC Clock Frequency [MHz]", "Tensor Active", "SMs Active [Throughput %]"]
        ),
        "GPU_METRICS": [
            *make_sample(0, 50, {0: 5, 1: 6}),
            *make_sample(1, 60, {0: 1_980_000_000, 1: 3, 2: 7}),
            *make_sample(0, 150, {0: 0, 1: 9}),
            *make_sample(1, 160, {0: 1_990_000_000, 1: 0, 2: 100}),
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
    """Random samples of two metric sets a GPU, in no order at all, read in small parts."""
    random = np.random.default_rng(3)
    names = ["SMs Active", "SM Issue", "Tensor Active", "Unheard Of [Throughput %]"]
    rows = []
    for gpu, kind, time in product(range(3), (2, 3), range(0, 3000, 10)):
        values = {
            number: int(random.integers(0, 101)) for number in range(4) if random.random() < 0.9
        }
        rows += make_sample(gpu, time + kind, values, kind)
    random.shuffle(rows)
    named = [
        row
        for gpu in range(3)
        for kind in (2, 3)
        for row in make_metrics(gpu, names[::-1] if gpu == 1 else names, kind)
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


def test_order_and_parts_do_not_matter(
    two_gpus: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert_tables(tmp_path, two_gpus)
    expected = (tmp_path / "out.prv").read_bytes()
    monkeypatch.setattr("nsys2prv.conversion.reading.PART_ROWS", 3)
    convert_tables(tmp_path, two_gpus)
    assert (tmp_path / "out.prv").read_bytes() == expected
    two_gpus["GPU_METRICS"].reverse()
    convert_tables(tmp_path, two_gpus)
    assert (tmp_path / "out.prv").read_bytes() == expected


@pytest.mark.slow
def test_windows_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = {
        "GPU_METRICS": [
            row for time in range(20_000) for row in make_sample(time % 2, time, {0: time % 101})
        ],
        "TARGET_INFO_GPU_METRICS": make_metrics(0, ["SMs Active"])
        + make_metrics(1, ["SMs Active"]),
    }
    convert_tables(tmp_path, tables)
    expected = (tmp_path / "out.prv").read_bytes()
    monkeypatch.setattr("nsys2prv.store.windows.WINDOW_RECORDS", 1000)
    convert_tables(tmp_path, tables)
    assert (tmp_path / "out.prv").read_bytes() == expected


def test_instants_that_lack_metrics_have_records_without_them(tmp_path: Path) -> None:
    tables = {
        "GPU_METRICS": [
            *make_sample(0, 0, {0: 1, 1: 2, 2: 3}),
            *make_sample(0, 10, {1: 4}),
            *make_sample(0, 20, {2: 5, 0: 0}),
            *make_sample(0, 30, {1: 0}),
            *make_sample(0, 40, {0: None}),
        ],
        "TARGET_INFO_GPU_METRICS": make_metrics(
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
            *make_sample(0, 0, {0: -1_768_172_296, 1: -5, 2: -1}),
            *make_sample(0, 10, {0: 1980, 1: 50, 2: 7}),
            *make_sample(0, 20, {0: 0}),
        ],
        "TARGET_INFO_GPU_METRICS": make_metrics(
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
        "GPU_METRICS": make_sample(0, 0, {0: bits, 1: 3}) + make_sample(0, 10, {0: 0, 1: 0}),
        "TARGET_INFO_GPU_METRICS": make_metrics(
            0, ["Threads Launched Per Warp [Threads/Warp]", "SMs Active"]
        ),
        "GENERIC_EVENT_TYPE_FIELDS": [
            {
                "typeId": make_type_id(0),
                "fieldIdx": 0,
                "fieldNameId": 1,
                "offset": 0,
                "size": 4,
                "type": 2,
            },
            {
                "typeId": make_type_id(0),
                "fieldIdx": 1,
                "fieldNameId": 2,
                "offset": 4,
                "size": 1,
                "type": 1,
            },
        ],
    }
    trace, _, _ = convert_tables(tmp_path, tables)
    assert read_series(trace, 90032)["Metrics GPU0"][0] == (0, 31_250)
    assert trace.labels.precision == {90032: 3}
    assert read_series(trace, SMS)["Metrics GPU0"][0] == (0, 3)


def test_the_same_name_twice_and_the_same_sample_twice(tmp_path: Path) -> None:
    tables = {
        "GPU_METRICS": [
            *make_sample(0, 0, {0: 1, 1: 2}),
            *make_sample(0, 0, {0: 1}),
            *make_sample(0, 10, {0: 3}),
        ],
        "TARGET_INFO_GPU_METRICS": make_metrics(0, ["SMs Active", "SM Active"]),
    }
    trace, summary, _ = convert_tables(tmp_path, tables)
    assert read_series(trace, SMS)["Metrics GPU0"] == [(0, 1), (10, 3), (10, 0)]
    other = next(code for code, label in trace.labels.types.items() if label == "SM Active")
    assert read_series(trace, other)["Metrics GPU0"] == [(0, 2), (10, 0)]
    assert sum(summary.dropped.values()) == 1


def test_without_names_the_numbers_name_the_metrics(tmp_path: Path) -> None:
    trace, _, _ = convert_tables(
        tmp_path,
        {"GPU_METRICS": make_sample(2, 5, {0: 1, 7: 2}) + make_sample(2, 15, {0: 3, 7: 4})},
    )
    assert sorted(trace.labels.types.values()) == ["GPU metric 0", "GPU metric 7"]
    assert trace.names["THREAD"] == ["Metrics GPU2"]
    assert trace.names["TASK"] == ["devices of unknown-host"]


def test_samples_without_a_time_are_counted(tmp_path: Path) -> None:
    tables = {
        "GPU_METRICS": [
            *make_sample(0, 0, {0: 1, 1: 2}),
            *make_sample(0, None, {0: 1, 1: 2}),
            *make_sample(0, 2**62 + 1, {0: 1}),
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
            **make_host("node"),
            "StringIds": make_strings("k"),
            "TARGET_INFO_GPU": make_gpus("a", "b"),
            KERNEL: [make_kernel(10, 20, globalPid=make_global_pid(pid))],
            "TARGET_INFO_CUDA_DEVICE": [
                {"gpuId": number, "cudaId": 0, "pid": pid, "uuid": "ab"[number]}
            ],
            "TARGET_INFO_GPU_METRICS": make_metrics(0, ["SMs Active"])
            + make_metrics(1, ["SMs Active"]),
            "GPU_METRICS": [
                row
                for time in (0, 100, 200)
                for gpu in (0, 1)
                for row in make_sample(gpu, time + number, {0: 10 * gpu + 1})
            ],
        }

    trace, summary, _ = convert_tables(tmp_path, rank(0), rank(1))
    assert trace.names["THREAD"] == ["CUDA-D0.S7", "Metrics GPU0", "CUDA-D1.S7", "Metrics GPU1"]
    assert read_series(trace, SMS) == {
        "Metrics GPU0": [(0, 1), (100, 1), (200, 1), (201, 0)],
        "Metrics GPU1": [(0, 11), (100, 11), (200, 11), (201, 0)],
    }
    assert summary.events["gpu_metric"] == 6
    assert any(note.startswith("6 samples left out") for note in summary.notes), summary.notes


def test_reports_that_follow_one_another_each_tell_of_a_gpu(tmp_path: Path) -> None:
    """Captures one after the other on a host: none holds what another one does. A fourth report
    holds what the first does.
    """

    def capture(begin: int) -> dict[str, list[Row]]:
        return {
            **make_host("node"),
            "StringIds": make_strings("k"),
            KERNEL: [make_kernel(begin, begin + 5)],
            "TARGET_INFO_GPU": make_gpus("a"),
            "TARGET_INFO_GPU_METRICS": make_metrics(0, ["SMs Active"]),
            "GPU_METRICS": [
                row
                for time in range(3)
                for row in make_sample(0, begin + 10 * time, {0: begin + time})
            ],
        }

    trace, summary, _ = convert_tables(
        tmp_path, capture(1_000), capture(2_000), capture(500), capture(1_020)
    )
    expected = [
        (begin + 10 * time - 500, begin + time)
        for begin in (500, 1_000, 2_000)
        for time in range(3)
    ]
    between = [(490, 0), (1490, 0)]
    assert read_series(trace, SMS)["Metrics GPU0"][:-1] == sorted([*expected, *between])
    assert summary.events["gpu_metric"] == 9 + len(between)
    assert [note.split(" ")[:2] for note in summary.notes if "several reports" in note] == [
        ["3", "samples"]
    ]


def test_every_rank_sees_device_0(tmp_path: Path) -> None:
    """Ranks that are shown one GPU each number it 0; its identity tells them apart, and their rows
    get numbers of their own. Exports before 2025 do not tie ordinals to GPUs.
    """

    def rank(number: int) -> dict[str, list[Row]]:
        return {
            **make_host("node"),
            "StringIds": make_strings("k"),
            "TARGET_INFO_GPU": make_gpus("ab"[number]),
            KERNEL: [make_kernel(10, 20, globalPid=make_global_pid(100 + number))],
            "TARGET_INFO_GPU_METRICS": make_metrics(0, ["SMs Active"]),
            "GPU_METRICS": make_sample(0, 5, {0: 30 + number}),
        }

    trace, summary, _ = convert_tables(tmp_path, rank(0), rank(1))
    assert trace.names["THREAD"] == ["CUDA-D0.S7", "Metrics GPU0", "CUDA-D1.S7", "Metrics GPU1"]
    assert [(record.row, dict(record.numbers)) for record in trace.samples][:2] == [
        ((1, 2), {SMS: 30}),
        ((2, 2), {SMS: 31}),
    ]
    assert summary.events["gpu_metric"] == 2
    assert not summary.notes


def test_a_gpu_that_no_rank_uses_is_in_the_first_task_of_its_host(tmp_path: Path) -> None:
    first = {
        **make_host("a"),
        KERNEL: [make_kernel(10, 20)],
        "StringIds": make_strings("k"),
        "TARGET_INFO_GPU": make_gpus("u0"),
    }
    second = {
        **make_host("b"),
        KERNEL: [make_kernel(10, 20)],
        "StringIds": make_strings("k"),
        "TARGET_INFO_GPU": make_gpus("u1", "u2"),
        "TARGET_INFO_GPU_METRICS": make_metrics(1, ["SMs Active"]),
        "GPU_METRICS": make_sample(1, 5, {0: 30}),
    }
    third = {
        **make_host("c"),
        "TARGET_INFO_GPU_METRICS": make_metrics(0, ["SMs Active"]),
        "GPU_METRICS": make_sample(0, 5, {0: 40}),
    }
    trace, _, _ = convert_tables(tmp_path, first, second, third)
    assert trace.tasks == [(1, 1), (2, 2), (1, 3)]
    assert trace.names["THREAD"] == ["CUDA-D0.S7-a", "CUDA-D0.S7-b", "Metrics GPU1", "Metrics GPU0"]
    assert trace.names["TASK"][2] == "devices of c"


def test_the_kind_is_chosen_by_name(two_gpus: dict, tmp_path: Path) -> None:
    trace, summary, _ = convert_tables(tmp_path, two_gpus, kinds=("gpu_metrics",))
    assert trace.names["THREAD"] == ["Metrics GPU0", "Metrics GPU1"]
    assert not summary.warnings or all("translate" not in warning for warning in summary.warnings)
    trace, _, _ = convert_tables(tmp_path, two_gpus, kinds=("-metrics",))
    assert not [record for record in trace.samples if SMS in record.numbers]


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
    "TARGET_INFO_NETWORK_METRICS": [
        {
            "metricsListId": 0,
            "metricsIdx": 6,
            "name": "IB: Bytes sent",
            "description": "",
            "unit": "bytes/ms",
        },
        {
            "metricsListId": 0,
            "metricsIdx": 10,
            "name": "IB: Send waits",
            "description": "",
            "unit": "ticks/ms",
        },
    ],
    "TARGET_INFO_NIC_INFO": [
        {"GUID": -5, "stateName": "Local (CLI)", "nicId": 3, "name": "mlx5_0"}
    ],
    "NIC_ID_MAP": [{"nicId": 3, "globalId": 1 << 48}],
}


def test_a_rate_stands_from_its_start_to_its_end(tmp_path: Path) -> None:
    tables = {
        **make_host("n"),
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
            **make_host(name),
            **NETWORK,
            KERNEL: [make_kernel(0, 1000, globalPid=make_global_pid(pid))],
            "StringIds": make_strings("k"),
            "NET_NIC_METRIC": [
                make_nic_sample(100, 200, 7),
                make_nic_sample(100, 200, 7, device=9),
            ],
            "NET_IB_SWITCH_METRIC": [make_nic_sample(100, 200, 5, device=77, port=3)],
            "NET_IB_DEVICE_INFO": [
                {"networkId": 1, "guid": 77, "name": "leaf1", "des": "", "lid": 4}
            ],
            "NET_IB_SWITCH_CONGESTION_EVENT": [
                {
                    "start": 150,
                    "globalId": 77,
                    "congestionType": 1,
                    "packetSLID": 4,
                    "switchEgressPort": 3,
                }
            ],
        }

    trace, summary, _ = convert_tables(tmp_path, rank("a", 1), rank("a", 2), rank("b", 3))
    assert trace.names["TASK"] == ["1", "2", "3", "devices of a", "devices of b"]
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
    assert any("left out" in note for note in summary.notes)


# ------------------------------------------------------------------------------------------------------------- generic events
@pytest.mark.parametrize("data", [None, "", "[", "[" * 100_000 + "]" * 100_000, '{"Name": 1}', "7"])
def test_a_source_whose_json_names_nothing_has_no_name(data: str | None) -> None:
    assert metrics._find_name(None, None, data) == ""


def test_fields_of_generic_events_are_counters_of_their_source(tmp_path: Path) -> None:
    tables = {
        **make_host("n"),
        "StringIds": make_strings("EFA", "rdmap0", "rx_bytes", "load", "sched_switch", "rdmap1"),
        "GENERIC_EVENT_SOURCES": [
            {"sourceId": 1, "nameId": 1, "sourceGroupId": 0},
            {"sourceId": 2, "nameId": 5, "sourceGroupId": 1},
        ],
        "GENERIC_EVENT_TYPES": [
            {"typeId": 10, "sourceId": 1, "nameId": 2},
            {"typeId": 11, "sourceId": 2, "nameId": 5},
            {"typeId": 12, "sourceId": 1, "nameId": 6},
        ],
        "GENERIC_EVENT_TYPE_FIELDS": [
            {"typeId": 10, "fieldIdx": 0, "fieldNameId": 3, "type": 1},
            {"typeId": 10, "fieldIdx": 1, "fieldNameId": 4, "type": 3},
            {"typeId": 12, "fieldIdx": 0, "fieldNameId": 3, "type": 1},
        ],
        "GENERIC_EVENTS": [
            {"genericEventId": number, "timestamp": 100 * number, "typeId": source_}
            for number, source_ in enumerate((10, 10, 11, 12))
        ],
        "GENERIC_EVENT_DATA": [
            {
                "genericEventId": 0,
                "fieldIdx": 0,
                "intVal": None,
                "uintVal": 5,
                "floatVal": None,
                "doubleVal": None,
            },
            {
                "genericEventId": 0,
                "fieldIdx": 1,
                "intVal": None,
                "uintVal": None,
                "floatVal": None,
                "doubleVal": 0.125,
            },
            {
                "genericEventId": 1,
                "fieldIdx": 0,
                "intVal": None,
                "uintVal": 6,
                "floatVal": None,
                "doubleVal": None,
            },
            {
                "genericEventId": 1,
                "fieldIdx": 1,
                "intVal": None,
                "uintVal": None,
                "floatVal": None,
                "doubleVal": -1.0,
            },
            {
                "genericEventId": 2,
                "fieldIdx": 0,
                "intVal": 3,
                "uintVal": None,
                "floatVal": None,
                "doubleVal": None,
            },
            {
                "genericEventId": 3,
                "fieldIdx": 0,
                "intVal": None,
                "uintVal": 9,
                "floatVal": None,
                "doubleVal": None,
            },
        ],
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


def test_names_in_json_that_are_no_utf8(tmp_path: Path) -> None:
    tables = {
        "GENERIC_EVENTS": [
            {"timestamp": time, "typeId": 10, "data": b'{"r\xff\xfe": 5}'} for time in (1, 2)
        ]
    }
    path = make_export(tmp_path / "r.sqlite", tables)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE GENERIC_EVENTS SET data = CAST(data AS TEXT)")
    trace, _ = convert_and_read([path], tmp_path / "o.prv")
    [(code, label)] = trace.labels.types.items()
    assert label.endswith("r\ufffd\ufffd")
    assert next(sample.numbers[code] for sample in trace.samples) == 5000


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
        "TARGET_INFO_GPU_METRICS": make_metrics(0, ["SMs Active [Throughput %]"]),
        "GPU_METRICS": make_sample(0, 1, {0: 2**63 - 1}) + make_sample(0, 2, {0: 3}),
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


def test_wide_numbers_are_stored_wide(tmp_path: Path) -> None:
    tables = {"GPU_METRICS": make_sample(0, 0, {0: 2**33}) + make_sample(0, 10, {0: 2**62})}
    trace, _, _ = convert_tables(tmp_path, tables)
    (values,) = [
        numbers for code in trace.labels.types for numbers in read_series(trace, code).values()
    ]
    assert values == [(0, 2**33), (10, 2**62), (10, 0)]
    assert runs.Shape(runs.COUNTER, "gpu_metric", 8, ((),)).dtype.itemsize == 20


# ------------------------------------------------------------------------------------------------------------------- views
def run_views(folder: Path, views: Sequence[str]) -> dict[str, str]:
    """Return what paramedir makes of views of the trace in the folder."""
    command = ["paramedir", str(folder / "out.prv")]
    for number, view in enumerate(views):
        command += [str(find_view_file(f"{view}.cfg")), str(folder / f"view{number:03d}")]
    process = subprocess.run(
        command,
        env={**os.environ, "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert not re.search(
        r"rror|Cannot load|aborted|Unkwnown|None of|Some of", process.stdout + process.stderr
    ), process.stdout + process.stderr
    result = {}
    for number, view in enumerate(views):
        table = folder / f"view{number:03d}"
        result[view] = (table if table.exists() else table.with_suffix(".csv")).read_text()
    return result


def list_bursts(text: str, row: str) -> list[tuple[float, float, float]]:
    """Return begin, length and value of the bursts of a timeline on a row."""
    lines = (line.split("\t") for line in text.splitlines())
    return [
        (float(begin), float(length), float(value))
        for item, begin, length, value in lines
        if item == row and float(length)
    ]


@pytest.mark.skipif(
    shutil.which("paramedir") is None,
    reason="paramedir, Paraver's command line program, is not on the PATH",
)
def test_paraver_shows_what_was_sampled(tmp_path: Path) -> None:
    names = [
        "SMs Active [Throughput %]",
        "Tensor Active [Throughput %]",
        "DRAM Read Bandwidth [Throughput %]",
        "DRAM Write Bandwidth [Throughput %]",
        "GPC Clock Frequency [MHz]",
        "SM Issue",
        "Compute Warps in Flight [Throughput %]",
        "PCIe RX Throughput",
        "PCIe TX Throughput",
    ]
    tables = {
        **make_host("n"),
        **NETWORK,
        "StringIds": make_strings("k", "cudaLaunchKernel", "l"),
        "TARGET_INFO_GPU": make_gpus("a"),
        KERNEL: [make_kernel(1000, 2000), make_kernel(3000, 3500, demangledName=3, shortName=3)],
        "NET_NIC_METRIC": [
            make_nic_sample(1000, 2000, 70),
            make_nic_sample(2000, 3000, 80),
            make_nic_sample(1000, 2000, 3, 10),
        ],
        "TARGET_INFO_GPU_METRICS": make_metrics(0, names),
        "GPU_METRICS": [
            row
            for time, value in ((0, 0), (1000, 10), (1500, 20), (2000, 40), (3000, 50), (4000, 60))
            for row in make_sample(
                0,
                time,
                {number: 1_000_000_000 if number == 4 else value for number in range(len(names))},
            )
        ],
    }
    convert_tables(tmp_path, tables)
    tables_of_views = run_views(
        tmp_path,
        [
            f"hwcounters/{name}"
            for name in (
                "sm_active",
                "tensor_active",
                "dram_bw_throughput",
                "gpc_clock",
                "PCIe-throughput-added",
                "nic/ib-send-waits",
                "nic_bytes_sent",
                "sm_issue_rate",
                "warps_in_flight",
                "tensor_util_per_kernel-2dh",
                "sm_active_per_kernel-2dh",
            )
        ],
    )
    before = [(0, 1000, 10), (1000, 500, 20), (1500, 500, 40), (2000, 1000, 50), (3000, 1000, 60)]
    assert list_bursts(tables_of_views["hwcounters/sm_active"], "1.1.2") == before
    assert list_bursts(tables_of_views["hwcounters/dram_bw_throughput"], "1.1.2") == [
        (begin, length, 2 * value) for begin, length, value in before
    ]
    assert list_bursts(tables_of_views["hwcounters/gpc_clock"], "1.1.2")[-1][2] == 1000
    assert list_bursts(tables_of_views["hwcounters/nic/ib-send-waits"], "1.2.1") == [
        (0, 1000, 0),
        (1000, 1000, 3),
        (2000, 2000, 0),
    ]
    assert list_bursts(tables_of_views["hwcounters/nic_bytes_sent"], "1.2.1") == [
        (0, 1000, 0),
        (1000, 1000, 70),
        (2000, 1000, 80),
        (3000, 1000, 0),
    ]
    head, row = tables_of_views["hwcounters/tensor_util_per_kernel-2dh"].splitlines()[:2]
    assert dict(
        zip(head.split("\t")[1:], map(float, filter(None, row.split("\t")[1:])), strict=False)
    ) == {"k": 30.0, "l": 60.0}
