"""Test tasks, nodes and rows: their order, names and CPUs."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from tools.conversions import convert_and_read
from tools.exports import (
    KERNEL,
    RUNTIME,
    make_call,
    make_export,
    make_global_pid,
    make_global_tid,
    make_kernel,
    make_strings,
)

from nsys2prv._util.text import make_natural_key
from nsys2prv.events.extraction import StreamKey, ThreadKey
from nsys2prv.export.info import RANK_VARIABLES, Gpu, ReportInfo, find_numbers, read_environment
from nsys2prv.export.ranks import choose_launcher_ranks
from nsys2prv.export.sqlite import open_database
from nsys2prv.writers.rows import build_object_model, order_reports


def make_info(name: str, **more: object) -> ReportInfo:
    return replace(ReportInfo(Path(name)), **more)


def list_rows(model) -> list[tuple[str, list[str]]]:
    labels = iter(model.tree.labels)
    return [(task.name, [next(labels) for _ in task.threads]) for task in model.tree.tasks]


def test_natural_order() -> None:
    assert sorted(["rank10", "rank2", "rank1", "a"], key=make_natural_key) == [
        "a",
        "rank1",
        "rank2",
        "rank10",
    ]


def test_reports_without_ranks_go_by_name() -> None:
    assert [
        report.name
        for report in order_reports([make_info("rank10.sqlite"), make_info("rank2.sqlite")])
    ] == ["rank2.sqlite", "rank10.sqlite"]


def test_ranks_go_before_names_unless_they_repeat() -> None:
    ranked = [
        make_info("a.sqlite", launcher_ranks={"RANK": 1}),
        make_info("b.sqlite", launcher_ranks={"RANK": 0}),
    ]
    assert [report.name for report in order_reports(ranked)] == ["b.sqlite", "a.sqlite"]
    repeated = [
        make_info("b.sqlite", launcher_ranks={"RANK": 0}),
        make_info("a.sqlite", launcher_ranks={"RANK": 0}),
    ]
    assert [report.name for report in order_reports(repeated)] == ["a.sqlite", "b.sqlite"]


@pytest.mark.parametrize(
    ("rows", "rank"),
    [
        (['RANK="3"', 'SLURM_PROCID="0"', 'SECRET="RANK=9"'], 3),
        (['SLURM_PROCID="0"', 'OMPI_COMM_WORLD_RANK="5"'], 5),
        (["PMI_RANK=7"], 7),
        (['RANK="x"', 'RANK=""'], None),
        (['LOCAL_RANK="2"', 'MY_RANK="4"'], None),
    ],
)
def test_rank_from_the_launchers_environment(
    rows: list[str], rank: int | None, tmp_path: Path
) -> None:
    capture = [{"name": "PROCESS_0:ENVIRONMENT_VARIABLE", "value": row} for row in rows]
    capture.append({"name": "COMMAND", "value": "RANK=1"})
    with open_database(
        make_export(tmp_path / "r.sqlite", {"META_DATA_CAPTURE": capture})
    ) as database:
        ranks = find_numbers(read_environment(database), RANK_VARIABLES)
    assert choose_launcher_ranks([ranks]) == (None if rank is None else [rank])


def test_the_variable_that_tells_reports_apart_counts() -> None:
    reports = [
        make_info(f"{name}.sqlite", launcher_ranks={"RANK": 0, "OMPI_COMM_WORLD_RANK": rank})
        for name, rank in (("a", 1), ("b", 0))
    ]
    assert [report.name for report in order_reports(reports)] == ["b.sqlite", "a.sqlite"]


def test_same_pid_on_two_hosts_gives_two_tasks_on_two_nodes() -> None:
    pid = make_global_pid(111)
    model = build_object_model(
        [make_info("r0", host="a"), make_info("r1", host="b")],
        [0, 1],
        [(0, ThreadKey(pid | 111)), (1, ThreadKey(pid | 111))],
    )
    assert [(task.node, len(task.threads)) for task in model.tree.tasks] == [(0, 1), (1, 1)]
    assert model.tree.addresses == ["1:1:1:1", "2:1:2:1"]


def test_a_stream_that_several_hosts_have_is_named_with_its_host() -> None:
    pid = make_global_pid(111)
    streams = [StreamKey(pid, 0, 7), StreamKey(pid, 0, 8)]
    model = build_object_model(
        [make_info("r0", host="a"), make_info("r1", host="b")],
        [0, 1],
        [(0, streams[0]), (0, streams[1]), (1, streams[0])],
    )
    assert [names for _, names in list_rows(model)] == [
        ["CUDA-D0.S7-a", "CUDA-D0.S8"],
        ["CUDA-D0.S7-b"],
    ]
    alone = build_object_model(
        [make_info("r0", host="a"), make_info("r1", host="a")],
        [0, 0],
        [(0, streams[0]), (1, streams[0])],
    )
    assert [names for _, names in list_rows(alone)] == [["CUDA-D0.S7"]] * 2, (
        "a host behind it means another node to BasicAnalysis"
    )


def test_further_rows_of_a_thread_are_numbered_before_its_id() -> None:
    pid = make_global_pid(100)
    model = build_object_model(
        [make_info("r", processes={pid: "app"})],
        [0],
        [(0, ThreadKey(pid | 100, lane)) for lane in (2, 0, 1)],
    )
    assert list_rows(model) == [
        ("app 100", ["THREAD 1.1.1 app 100", "THREAD 1.1.2 app +1 100", "THREAD 1.1.3 app +2 100"])
    ]


def test_mpi_ranks_of_one_report_order_its_processes() -> None:
    first, second = make_global_pid(200), make_global_pid(100)
    report = make_info("r", ranks={first: 0, second: 1}, processes={first: "app", second: "app"})
    model = build_object_model(
        [report], [0], [(0, ThreadKey(second | 100)), (0, ThreadKey(first | 200))]
    )
    assert list_rows(model) == [
        ("rank 0 app 200", ["THREAD 1.1.1 rank 0 app 200"]),
        ("rank 1 app 100", ["THREAD 1.2.1 rank 1 app 100"]),
    ]


def test_isolated_ranks_have_the_physical_gpus_numbers() -> None:
    gpus = {number: Gpu(number, uuid=f"u{number}") for number in range(4)}
    reports = [
        make_info(f"r{rank}", host="a", gpus=gpus, cuda_gpus={(10 + rank, 0): rank})
        for rank in range(4)
    ]
    model = build_object_model(
        reports, [0] * 4, [(rank, StreamKey(make_global_pid(10 + rank), 0, 7)) for rank in range(4)]
    )
    assert [task.threads[0].name for task in model.tree.tasks] == [
        f"CUDA-D{rank}.S7" for rank in range(4)
    ]
    assert model.devices == 4


@pytest.mark.slow
def test_two_gpus_of_one_process_have_rows_of_their_own(tmp_path: Path) -> None:
    report = make_export(
        tmp_path / "r.sqlite",
        {
            KERNEL: [
                make_kernel(0, 10),
                make_kernel(5, 20, deviceId=1),
                make_kernel(30, 40, globalPid=make_global_pid(77), correlationId=1),
            ],
            RUNTIME: [make_call(1, 2, 1), make_call(25, 28, 1, globalTid=make_global_tid(77, 77))],
            "StringIds": make_strings("k", "cudaLaunchKernel"),
        },
    )
    trace, _ = convert_and_read([report], tmp_path / "o.prv")
    # The process of the lower pid is task 1.
    (own, first), (second,) = trace.find_rows("CUDA-D0"), trace.find_rows("CUDA-D1")
    assert (own[0], first[0], second[0]) == (1, 2, 2)
    assert sorted(
        (interval.row, interval.begin) for interval in trace.list_intervals(63000006)
    ) == sorted([(own, 30), (first, 0), (second, 5)])
    # Both processes have a call with correlation id 1; only the second's launched the kernel.
    assert [(comm.sender, comm.receiver, comm.send) for comm in trace.comms] == [
        (trace.find_rows(" 77")[0], own, 25)
    ]
