"""Test MPI calls and messages with hand-made exports of two or three ranks, one case each."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from tools.conversions import convert_and_read
from tools.exports import Row, make_export, make_global_tid, make_host, make_strings
from tools.trace_reader import Trace

import nsys2prv
from nsys2prv import match
from nsys2prv.conversion import read as reading
from nsys2prv.conversion.summary import Summary
from nsys2prv.events.catalogue import load_catalogue
from nsys2prv.events.mpi import MPI_LAYOUTS, normalize_function_name

P2P, COLLECTIVES, WAITS, OTHER = (
    "MPI_P2P_EVENTS",
    "MPI_COLLECTIVES_EVENTS",
    "MPI_START_WAIT_EVENTS",
    "MPI_OTHER_EVENTS",
)
COMMUNICATORS, RANKS = "MPI_COMMUNICATORS", "MPI_RANKS"
POINT_TO_POINT, COLLECTIVE, OTHERS, ONE_SIDED, FILES = range(50000001, 50000006)
SENT, RECEIVED = 50100001, 50100002
TAG, PARTNER, ROOT, SIZE, COMMUNICATOR = range(50100011, 50100016)
WORLD, MPICH_WORLD = 7000, 0x44000000

Call = tuple[str, Row]


@pytest.fixture(autouse=True, params=["at once", "in small steps"])
def steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Match messages at once and in small steps."""
    if request.param == "in small steps":
        monkeypatch.setattr(match, "FACT_BYTES", 1)
        monkeypatch.setattr(match, "BUCKET_BYTES", 100)
        monkeypatch.setattr(match, "LINE_ROWS", 1)


def make_mpi_call(
    table: str, name: str, start: int, end: int | None, pid: int = 1, **columns: object
) -> Call:
    """Return a call by the main thread of a process, as (table, row with the name in it)."""
    return table, {
        "start": start,
        "end": end,
        "globalTid": make_global_tid(pid, pid),
        "name": name,
        **columns,
    }


def make_p2p_call(
    name: str,
    start: int,
    end: int | None,
    partner: int,
    tag: int = 5,
    size: int = 64,
    **columns: object,
) -> Call:
    """Return a call that sends to a partner or receives from it."""
    return make_mpi_call(
        P2P,
        name,
        start,
        end,
        commHandle=columns.pop("comm", WORLD),
        tag=tag,
        remoteRank=partner,
        size=size,
        **columns,
    )


def make_init_call(pid: int = 1, name: str = "MPI_Init") -> Call:
    """Return the call of MPI_Init, from 0 to 10."""
    return make_mpi_call(OTHER, name, 0, 10, pid)


def make_communicator(
    rank: int, members: Sequence[int] | str, handle: int = WORLD, time: int = 0, **columns: object
) -> Call:
    """Return a row of a rank's communicator."""
    local = (
        {}
        if isinstance(members, str)
        else {"localRank": list(members).index(rank), "size": len(members)}
    )
    text = members if isinstance(members, str) else ",".join(map(str, members))
    return COMMUNICATORS, {
        "rank": rank,
        "timestamp": time,
        "commHandle": handle,
        "members": text,
        **local,
        **columns,
    }


def write_rank(
    path: Path,
    rank: int,
    calls: Iterable[Call],
    members: Sequence[int] = (0, 1),
    ranks: dict[int, int] | None = None,
    leave_out: Sequence[str] = (),
) -> Path:
    """Write the report of one rank, whose process is 1, or of the processes of `ranks`, all in the
    world communicator `members` and on one host.
    """
    ranks = {1: rank} if ranks is None else ranks
    tables: dict[str, list[Row]] = {}
    for table, row in [*(make_communicator(number, members) for number in ranks.values()), *calls]:
        tables.setdefault(table, []).append(dict(row))
    named = [row for rows in tables.values() for row in rows if {"name", "start"} <= row.keys()]
    names = list(dict.fromkeys(row["name"] for row in named))
    for row in named:
        row["textId"] = names.index(row.pop("name")) + 1
    tables |= {
        **make_host("node1"),
        "StringIds": make_strings(*names),
        RANKS: [
            {"globalTid": make_global_tid(pid, pid), "rank": number}
            for pid, number in ranks.items()
        ],
    }
    return make_export(
        path, {table: rows for table, rows in tables.items() if table not in leave_out}
    )


def convert_reports(folder: Path, *reports: Path) -> tuple[Trace, Summary]:
    """Convert reports of ranks."""
    return convert_and_read(reports, folder / "o.prv")


def convert_two_ranks(
    folder: Path, first: Iterable[Call], second: Iterable[Call], **options: object
) -> tuple[Trace, Summary]:
    """Convert two ranks recorded from MPI_Init on, which begins at 0, trace time 0."""
    return convert_reports(
        folder,
        *(
            write_rank(folder / f"{rank}.sqlite", rank, [make_init_call(), *calls], **options)
            for rank, calls in enumerate((first, second))
        ),
    )


def list_intervals(trace: Trace, code: int) -> list[tuple[int, str, int, int]]:
    """Return (task, label, begin, end) of the ranges of a type."""
    return sorted(
        (item.row[0], trace.get_label(code, item.value), item.begin, item.end)
        for item in trace.list_intervals(code)
    )


def list_messages(trace: Trace) -> list[tuple[int, int, int, int, int, int]]:
    """Return (sending task, begin of the send, receiving task, end of the receive, size, tag)."""
    return sorted(
        (line.sender[0], line.send, line.receiver[0], line.receive, line.size, line.tag)
        for line in trace.comms
    )


@pytest.mark.slow
@pytest.mark.parametrize("known", [True, False])
def test_reports_without_ranks_and_communicators(known: bool, tmp_path: Path) -> None:
    """The launcher may still give the ranks, and MPICH's world has a known handle."""
    send, receive = (
        make_p2p_call("MPI_Send", 20, 30, 1, comm=MPICH_WORLD),
        make_p2p_call("MPI_Recv", 25, 40, 0, comm=MPICH_WORLD),
    )
    launcher_rows = [
        (
            "META_DATA_CAPTURE",
            {"name": "PROCESS_0:ENVIRONMENT_VARIABLE", "value": f'PMI_RANK="{rank}"'},
        )
        for rank in (0, 1)
    ]
    trace, _ = convert_reports(
        tmp_path,
        *(
            write_rank(
                tmp_path / f"{rank}.sqlite",
                rank,
                [make_init_call(), own, *([launcher_rows[rank]] if known else [])],
                leave_out=(RANKS, COMMUNICATORS),
            )
            for rank, own in enumerate((send, receive))
        ),
    )
    assert list_messages(trace) == ([(1, 20, 2, 40, 64, 5)] if known else [])
    assert [label for _, label, _, _ in list_intervals(trace, POINT_TO_POINT)] == [
        "MPI_Send",
        "MPI_Recv",
    ]


def test_tags_and_partners_are_one_higher_in_the_trace_alone(tmp_path: Path) -> None:
    """A 0 ends an event in Paraver; frames have MPI's own numbers."""
    send, receive = (
        make_p2p_call("MPI_Send", 20, 30, 1, tag=0),
        make_p2p_call("MPI_Recv", 25, 40, 0, tag=0),
    )
    trace, _ = convert_two_ranks(tmp_path, [send], [receive])
    for code, values in ((TAG, [1, 1]), (PARTNER, [1, 2])):
        calls = trace.list_intervals(POINT_TO_POINT)
        assert sorted(item.others[code] for item in calls) == values
    with nsys2prv.open([tmp_path / "0.sqlite", tmp_path / "1.sqlite"], jobs=1) as job:
        frame = job.frame("mpi_point_to_point", "tag", "partner")
    assert frame["tag"].to_list() == [0, 0]
    assert frame["partner"].to_list() == [1, 0]


# ---- functions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("MPI_Send", "MPI_Send"),
        ("PMPI_Send", "MPI_Send"),
        ("mpi_send_", "MPI_Send"),
        ("mpi_send__", "MPI_Send"),
        ("MPI_SEND", "MPI_Send"),
        ("pmpi_isend", "MPI_Isend"),
        ("MPI_Send_c", "MPI_Send"),
        ("mpi_send_f08_", "MPI_Send"),
        ("PMPI_Isend_f08ts", "MPI_Isend"),
        ("mpi_send_c_f08_", "MPI_Send"),
        ("MPI_Status_f2c", "MPI_Status_f2c"),
        ("MPI_COMM_SPLIT_TYPE", "MPI_Comm_split_type"),
        ("mpi_type_create_f90_real_", "MPI_Type_create_f90_real"),
        ("MPI_Initialized", "MPI_Initialized"),
        ("mpi_init_", "MPI_Init"),
        ("mpi_brand_new_", "MPI_Brand_new"),
        ("MPIX_Query_cuda_support", "MPIX_Query_cuda_support"),
        ("string 12", "string 12"),
    ],
)
def test_one_spelling_for_every_function(text: str, name: str) -> None:
    assert normalize_function_name(text) == name


def test_values_of_extrae_and_no_value_twice() -> None:
    sets = [load_catalogue().name_sets[layout] for layout in MPI_LAYOUTS]
    values = [
        (name, value) for name_set in sets for name, value in name_set.list_known_values().items()
    ]
    assert len({value for _, value in values}) == len({name for name, _ in values}) == len(values)
    assert max(value for _, value in values) < min(name_set.first for name_set in sets)
    expected = {
        "MPI_Send": 1,
        "MPI_Waitall": 6,
        "MPI_Barrier": 8,
        "MPI_Allreduce": 10,
        "MPI_Init": 31,
        "MPI_Finalize": 32,
        "MPI_Sendrecv": 41,
        "MPI_Put": 65,
        "MPI_Win_start": 69,
        "MPI_Win_complete": 70,
        "MPI_Initialized": 108,
        "MPI_File_open": 141,
        "MPI_Ireduce_scatter": 166,
        "MPI_Iexscan": 215,
    }
    assert expected.items() <= dict(values).items()


# ---- calls ------------------------------------------------------------------------------------------------------------


def test_every_call_stands_under_the_type_of_its_kind(tmp_path: Path) -> None:
    names = (
        "MPI_Init_thread",
        "mpi_initialized_",
        "PMPI_Win_fence",
        "MPI_Get",
        "MPI_Get_count",
        "MPI_File_open",
        "MPI_Probe",
        "MPI_Foo",
    )
    calls = [
        make_mpi_call(OTHER, name, 20 * number, 20 * number + 10)
        for number, name in enumerate(names)
    ]
    calls += [
        make_mpi_call(COLLECTIVES, "MPI_File_read_all", 200, 210, size=4),
        make_mpi_call(COLLECTIVES, "MPI_Barrier", 220, 230),
    ]
    trace, summary = convert_reports(tmp_path, write_rank(tmp_path / "r.sqlite", 0, calls))
    assert list_intervals(trace, OTHERS) == [
        (1, "MPI_Foo", 140, 150),
        (1, "MPI_Get_count", 80, 90),
        (1, "MPI_Init_thread", 0, 10),
        (1, "MPI_Initialized", 20, 30),
    ]
    assert list_intervals(trace, ONE_SIDED) == [
        (1, "MPI_Get", 60, 70),
        (1, "MPI_Win_fence", 40, 50),
    ]
    assert list_intervals(trace, FILES) == [
        (1, "MPI_File_open", 100, 110),
        (1, "MPI_File_read_all", 200, 210),
    ]
    assert list_intervals(trace, POINT_TO_POINT) == [(1, "MPI_Probe", 120, 130)]
    assert list_intervals(trace, COLLECTIVE) == [(1, "MPI_Barrier", 220, 230)]
    assert {trace.get_label(OTHERS, value): value for value in trace.labels.values[OTHERS]} == {
        "End": 0,
        "MPI_Init_thread": 500,
        "MPI_Initialized": 108,
        "MPI_Get_count": 118,
        "MPI_Foo": 1400,
    }
    assert not summary.dropped
    assert not summary.notes


#: Collective, what Nsight 2023.4 records of it as size and recvSize on rank 1 of 4, which is the
#: root, and the bytes by its counts. Those in place have parts of 1 byte more.
SIZES = {
    "MPI_Barrier": ((None, None), (0, 0)),
    "MPI_Bcast": ((40, 10), (10, 10)),
    "MPI_Reduce": ((10, 40), (10, 10)),
    "MPI_Igather in place": ((None, 33), (0, 11)),
    "MPI_Scatter": ((40, 10), (10, 10)),
    "MPI_Scatter in place": ((36, None), (12, 0)),
    "MPI_Allreduce": ((40, 40), (10, 10)),
    "MPI_Allreduce in place": ((33, 33), (11, 11)),
    "MPI_Alltoall": ((40, 40), (10, 10)),
    "MPI_Scan": ((30, 20), (10, 10)),
    "MPI_Exscan": ((20, 10), (10, 10)),
    "MPI_Gatherv": ((10, 46), (10, 46)),
    "MPI_Allgatherv": ((40, 46), (10, 46)),
    "MPI_Reduce_scatter": ((46, 40), (46, 10)),
}


def test_sizes_of_collectives_are_those_of_one_members_counts(tmp_path: Path) -> None:
    calls = [
        make_mpi_call(
            COLLECTIVES,
            name.partition(" ")[0],
            10 * at,
            10 * at + 5,
            commHandle=WORLD,
            rootRank=1,
            size=sizes[0],
            recvSize=sizes[1],
        )
        for at, (name, (sizes, _)) in enumerate(SIZES.items())
    ]
    unknown = make_mpi_call(
        COLLECTIVES, "MPI_Allreduce", 900, 910, commHandle=4711, size=40, recvSize=40
    )
    reports = write_rank(tmp_path / "r.sqlite", 1, [*calls, unknown], range(4))
    trace, _ = convert_reports(tmp_path, reports)
    found = [
        (item.others[SENT], item.others[RECEIVED]) for item in trace.list_intervals(COLLECTIVE)
    ]
    assert found == [*(sizes for _, sizes in SIZES.values()), (0, 0)]


@pytest.mark.slow
@pytest.mark.parametrize("missing", [P2P, COLLECTIVES, WAITS, OTHER, COMMUNICATORS, RANKS])
def test_any_table_may_be_missing_or_empty(tmp_path: Path, missing: str) -> None:
    calls = [
        make_init_call(),
        make_p2p_call("MPI_Isend", 20, 30, 1, requestHandle=3),
        make_mpi_call(WAITS, "MPI_Wait", 40, 50, requestHandle=3),
        make_mpi_call(COLLECTIVES, "MPI_Barrier", 60, 70),
    ]
    convert_reports(tmp_path, write_rank(tmp_path / "r.sqlite", 0, calls, leave_out=[missing]))
    kept = [item for item in calls if item[0] != missing]
    report = write_rank(tmp_path / "r.sqlite", 0, kept, leave_out=[missing])
    codes = {P2P: POINT_TO_POINT, WAITS: POINT_TO_POINT, COLLECTIVES: COLLECTIVE, OTHER: OTHERS}
    trace, _ = convert_reports(tmp_path, report)
    result = sum(len(trace.list_intervals(code)) for code in set(codes.values()))
    assert result == len(kept)


def test_a_call_without_an_end_lasts_to_the_end_of_the_trace(tmp_path: Path) -> None:
    trace, summary = convert_two_ranks(
        tmp_path,
        [make_p2p_call("MPI_Send", 20, 30, 1)],
        [make_p2p_call("MPI_Recv", 15, None, 0), make_mpi_call(OTHER, "MPI_Wtime", 90, 100)],
    )
    assert (2, "MPI_Recv", 15, 100) in list_intervals(trace, POINT_TO_POINT)
    assert list_messages(trace) == []
    assert "MPI messages: 1 incomplete at the end of the report" in summary.notes


def test_requests_of_a_wait_are_one_call(tmp_path: Path) -> None:
    calls = [
        make_mpi_call(WAITS, "MPI_Waitall", 20, 30, requestHandle=number) for number in range(5)
    ]
    trace, _ = convert_reports(
        tmp_path,
        write_rank(
            tmp_path / "r.sqlite",
            0,
            [make_init_call(), *calls, make_mpi_call(WAITS, "MPI_Waitall", 40, 50)],
        ),
    )
    assert list_intervals(trace, POINT_TO_POINT) == [
        (1, "MPI_Waitall", 20, 30),
        (1, "MPI_Waitall", 40, 50),
    ]


# ---- messages -----------------------------------------------------------------------------------------------------------


def test_messages_of_a_stream_keep_their_order(tmp_path: Path) -> None:
    trace, summary = convert_two_ranks(
        tmp_path,
        [
            make_p2p_call("MPI_Send", 20, 30, 1, size=8),
            make_p2p_call("MPI_Bsend", 40, 50, 1, size=16),
            make_p2p_call("MPI_Ssend", 60, 70, 1, tag=6, size=24),
        ],
        [
            make_p2p_call("MPI_Recv", 25, 35, 0, tag=6),
            make_p2p_call("MPI_Recv", 45, 55, 0, size=1000),
            make_p2p_call("MPI_Recv", 65, 75, 0),
        ],
    )
    assert list_messages(trace) == [
        (1, 20, 2, 55, 8, 5),
        (1, 40, 2, 75, 16, 5),
        (1, 60, 2, 35, 24, 6),
    ]
    assert summary.notes == [
        "MPI messages: 3 lines for 3 sends and 3 receives",
        "MPI messages: 1 received before being sent within one node, which has one clock, "
        "so some recorded calls are missing or wrong",
    ]


def test_what_mprobe_found_is_received_from_where_receives_lack(tmp_path: Path) -> None:
    """Mrecv names no communicator, Imrecv nothing at all; both are in the way of others else."""
    sends = [make_p2p_call("MPI_Send", 20 + 10 * at, 25 + 10 * at, 1, at, at) for at in range(3)]
    receives = [
        make_p2p_call("MPI_Recv", 30, 40, 0, tag=0),
        make_p2p_call("MPI_Mrecv", 50, 60, 0, tag=1, comm=None),
        make_p2p_call("MPI_Imrecv", 70, 80, None, tag=None, comm=None),
    ]
    assert list_messages(convert_two_ranks(tmp_path, sends, receives)[0]) == [
        (1, 20, 2, 40, 0, 0),
        (1, 30, 2, 60, 1, 1),
        (1, 40, 2, 80, 2, 2),
    ]
    trace, _ = convert_two_ranks(tmp_path, sends, [receives[2], receives[0]])
    assert list_messages(trace) == [(1, 20, 2, 40, 0, 0)]


def test_rows_of_one_sendrecv_as_nsight_ends_them(tmp_path: Path) -> None:
    """The row of the message sent ends when it begins; of MPI_PROC_NULL there is no partner. Here
    rank 0 sends to rank 1 and both have nobody on their other side; the rows are out of order.
    """
    calls = [
        [
            make_p2p_call("MPI_Sendrecv", 40, 50, None, tag=None, size=0),
            make_p2p_call("MPI_Sendrecv", 40, 40, 1, size=8),
            make_p2p_call("MPI_Sendrecv", 20, 30, 1, size=16),
        ],
        [
            make_p2p_call("MPI_Sendrecv", 45, 55, 0, size=8),
            make_p2p_call("MPI_Sendrecv", 45, 45, None, tag=None, size=0),
            make_p2p_call("MPI_Sendrecv", 25, 35, 0, size=16),
        ],
    ]
    trace, _ = convert_two_ranks(tmp_path, *calls)
    assert list_intervals(trace, POINT_TO_POINT) == [
        (rank, "MPI_Sendrecv", begin, begin + 10)
        for rank, begin in ((1, 20), (1, 40), (2, 25), (2, 45))
    ]
    assert list_messages(trace) == [
        (1, 20, 2, 35, 16, 5),
        (1, 40, 2, 55, 8, 5),
        (2, 25, 1, 30, 16, 5),
    ]


def test_a_handle_that_came_again_is_not_what_it_was_prepared_for(tmp_path: Path) -> None:
    """As MPICH gives the handle of a freed request to one of which nothing is recorded but its
    starts.
    """
    trace, summary = convert_two_ranks(
        tmp_path,
        [
            make_p2p_call("MPI_Send_init", 10, 11, 1, requestHandle=3),
            make_mpi_call(WAITS, "MPI_Start", 20, 21, requestHandle=3),
            make_mpi_call(COLLECTIVES, "MPI_Ibarrier", 30, 31, commHandle=WORLD, requestHandle=3),
            make_mpi_call(WAITS, "MPI_Start", 40, 41, requestHandle=3),
        ],
        [make_p2p_call("MPI_Recv", 15, 35, 0)],
    )
    assert list_messages(trace) == [(1, 20, 2, 35, 64, 5)]
    assert (
        "MPI messages: 1 starts of requests of unrecorded purpose, such as partitioned communication"
        in summary.notes
    )


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 2, 3, 200_000])
def test_sendrecv_is_one_call_and_two_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """Two rows where partners differ, wherever a part of the table may end; one where all is the
    same.
    """
    monkeypatch.setattr(reading, "PART_ROWS", rows)
    reports = []
    for rank in range(3):
        after, before = (rank + 1) % 3, (rank - 1) % 3
        calls = [
            make_init_call(),
            make_p2p_call("MPI_Sendrecv", 20, 30 + rank, after, size=8),
            make_p2p_call("MPI_Sendrecv", 20, 30 + rank, before, size=8),
        ]
        if rank < 2:
            calls.append(make_p2p_call("MPI_Sendrecv_replace", 40, 50 + rank, 1 - rank, size=16))
        reports.append(write_rank(tmp_path / f"{rank}.sqlite", rank, calls, members=range(3)))
    trace, _ = convert_reports(tmp_path, *reports)
    assert list_intervals(trace, POINT_TO_POINT) == [
        (1, "MPI_Sendrecv", 20, 30),
        (1, "MPI_Sendrecv_replace", 40, 50),
        (2, "MPI_Sendrecv", 20, 31),
        (2, "MPI_Sendrecv_replace", 40, 51),
        (3, "MPI_Sendrecv", 20, 32),
    ]
    assert list_messages(trace) == [
        (1, 20, 2, 31, 8, 5),
        (1, 40, 2, 51, 16, 5),
        (2, 20, 3, 32, 8, 5),
        (2, 40, 1, 50, 16, 5),
        (3, 20, 1, 30, 8, 5),
    ]


def test_a_receive_through_a_request_ends_with_the_call_that_completes_it(tmp_path: Path) -> None:
    """The first Wait, else the last Test before the handle is used again, else the receive call."""

    def received(start: int, handle: int) -> Call:
        return make_p2p_call("MPI_Irecv", start, start + 5, 0, requestHandle=handle)

    def asked(name: str, start: int, handle: int) -> Call:
        return make_mpi_call(WAITS, name, start, start + 5, requestHandle=handle)

    trace, _ = convert_two_ranks(
        tmp_path,
        [
            make_p2p_call("MPI_Isend", 20 + number, 1000, 1, size=number, requestHandle=9)
            for number in range(5)
        ],
        [
            received(100, 1),
            asked("MPI_Test", 110, 1),
            asked("MPI_Waitall", 120, 1),
            received(130, 1),
            asked("MPI_Testany", 140, 1),
            asked("MPI_Testsome", 150, 1),
            make_mpi_call(COLLECTIVES, "MPI_Ibarrier", 160, 161, requestHandle=1),
            asked("MPI_Wait", 170, 1),
            received(200, 1),
            make_p2p_call("MPI_Isend", 210, 211, 0, requestHandle=1),
            asked("MPI_Wait", 220, 1),
            received(300, 2),
            asked("MPI_Wait", 310, 1),
            asked("MPI_Waitany", 320, 2),
            asked("MPI_Waitany", 330, 2),
            received(400, 2),
        ],
    )
    assert [(size, end) for _, _, task, end, size, _ in list_messages(trace) if task == 2] == [
        (0, 125),
        (1, 155),
        (2, 205),
        (3, 335),
        (4, 405),
    ]
    # BSC's Dimemas takes the logical receive for the call that posts it.
    [path] = tmp_path.glob("*.prv")
    lines = [line.split(":") for line in path.read_text().splitlines() if line.startswith("3:")]
    assert [int(line[11]) for line in lines if line[9] == "2"] == [100, 130, 200, 300, 400]


def test_starts_of_persistent_requests_are_messages(tmp_path: Path) -> None:
    def rounds(prepare: Call, start: str, handle: int, first: int) -> list[Call]:
        begun = [
            make_mpi_call(WAITS, start, time, time + 5, requestHandle=handle)
            for time in range(first, first + 300, 100)
        ]
        waited = [
            make_mpi_call(WAITS, "MPI_Wait", time + 50, time + 60, requestHandle=handle)
            for time in range(first, first + 300, 100)
        ]
        return [prepare, *begun, *waited]

    trace, _ = convert_two_ranks(
        tmp_path,
        rounds(
            make_p2p_call("MPI_Send_init", 20, 25, 1, size=8, requestHandle=3), "MPI_Start", 3, 100
        ),
        rounds(make_p2p_call("MPI_Recv_init", 20, 25, 0, requestHandle=4), "MPI_Startall", 4, 110),
    )
    assert list_messages(trace) == [
        (1, 100 * number, 2, 100 * number + 70, 8, 5) for number in (1, 2, 3)
    ]


@pytest.mark.parametrize("others", [0, 1])
def test_receives_from_any_source_make_what_follows_uncertain(tmp_path: Path, others: int) -> None:
    """Unless all that lacks receives is of one sender."""
    reports = [
        write_rank(tmp_path / f"{rank}.sqlite", rank, [make_init_call(), *calls], range(3))
        for rank, calls in enumerate(
            (
                [
                    make_p2p_call("MPI_Send", 20 + 10 * at, 25 + 10 * at, 1, size=at)
                    for at in range(3)
                ],
                [
                    make_p2p_call("MPI_Recv", 30, 40, 0),
                    make_p2p_call("MPI_Recv", 50, 60, -2),
                    make_p2p_call("MPI_Recv", 70, 80, 0),
                    *([make_p2p_call("MPI_Recv", 90, 95, -2)] * others),
                ],
                [make_p2p_call("MPI_Send", 20, 25, 1)] * others,
            )
        )
    ]
    trace, summary = convert_reports(tmp_path, *reports)
    if not others:
        assert list_messages(trace) == [
            (1, 20, 2, 40, 0, 5),
            (1, 30, 2, 60, 1, 5),
            (1, 40, 2, 80, 2, 5),
        ]
        return
    assert list_messages(trace) == [(1, 20, 2, 40, 0, 5)]
    assert summary.notes == [
        "MPI messages: 1 line for 4 sends and 4 receives",
        "MPI messages: 1 send in uncertain order",
        "MPI messages: 2 sends without a partner",
        "MPI messages: 2 receives from any source or with any tag (the report does not identify the received message)",
        "MPI messages: 1 receive in uncertain order",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "tag", "takes"), [(-2, 6, False), (0, -1, True), (-1, -1, True), (1, -1, False)]
)
def test_receives_from_anywhere_concern_what_they_might_take(
    tmp_path: Path, source: int, tag: int, takes: bool
) -> None:
    trace, _ = convert_two_ranks(
        tmp_path,
        [make_p2p_call("MPI_Send", 20, 30, 1), make_p2p_call("MPI_Send", 40, 50, 1)],
        [make_p2p_call("MPI_Recv", 30, 35, source, tag=tag), make_p2p_call("MPI_Recv", 40, 60, 0)],
    )
    # What can only be the one message that is left is certain, as messages do not overtake each other.
    both = [(1, 20, 2, 35, 64, 5), (1, 40, 2, 60, 64, 5)]
    assert list_messages(trace) == (both if takes else [(1, 20, 2, 60, 64, 5)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sends", "receives", "lines"),
    [((100, 200), (150, 250), 2), ((100, 200, 300), (150, 250), 0), ((200, 300), (150, 250), 0)],
)
def test_reports_that_begin_later_are_matched_if_their_numbers_agree(
    tmp_path: Path, sends: tuple[int, ...], receives: tuple[int, ...], lines: int
) -> None:
    trace, _ = convert_reports(
        tmp_path,
        write_rank(
            tmp_path / "0.sqlite",
            0,
            [make_p2p_call("MPI_Send", time, time + 5, 1) for time in sends]
            + [make_mpi_call(OTHER, "MPI_Initialized", 0, 5)],
        ),
        write_rank(
            tmp_path / "1.sqlite",
            1,
            [make_p2p_call("MPI_Recv", time - 10, time, 0) for time in receives]
            + [make_mpi_call(OTHER, "MPI_Wtime", 0, 5)],
        ),
    )
    assert len(list_messages(trace)) == lines


@pytest.mark.parametrize("ended", [(True, True), (True, False), (False, True), (False, False)])
def test_reports_that_begin_later_are_matched_from_the_end_only_if_both_have_it(
    tmp_path: Path, ended: tuple[bool, bool]
) -> None:
    """Messages do not overtake each other, so that the last sent is the last received, where nothing
    is cut off at the end.
    """
    calls = [
        [make_p2p_call("MPI_Send", time, time + 5, 1) for time in (100, 200, 300)],
        [make_p2p_call("MPI_Recv", time - 10, time, 0) for time in (250, 350)],
    ]
    reports = [
        write_rank(
            tmp_path / f"{rank}.sqlite",
            rank,
            [
                make_mpi_call(OTHER, "MPI_Initialized", 0, 5),
                *own,
                *([make_mpi_call(OTHER, "MPI_Finalize", 400, 410)] if has_end else []),
            ],
        )
        for rank, (own, has_end) in enumerate(zip(calls, ended, strict=True))
    ]
    trace, _ = convert_reports(tmp_path, *reports)
    both = [(1, 200, 2, 250, 64, 5), (1, 300, 2, 350, 64, 5)]
    assert list_messages(trace) == (both if all(ended) else [])


def test_ranks_without_a_report(tmp_path: Path) -> None:
    calls = [
        make_init_call(),
        make_p2p_call("MPI_Send", 20, 30, 1),
        make_p2p_call("MPI_Send", 40, 50, 2),
    ]
    trace, summary = convert_reports(
        tmp_path,
        write_rank(tmp_path / "0.sqlite", 0, calls, members=range(3)),
        write_rank(
            tmp_path / "1.sqlite",
            1,
            [make_init_call(), make_p2p_call("MPI_Recv", 20, 40, 0)],
            members=range(3),
        ),
    )
    assert list_messages(trace) == [(1, 20, 2, 40, 64, 5)]
    assert "MPI messages: 1 send with a rank without a report" in summary.notes


def test_ranks_that_two_processes_claim_are_not_matched(tmp_path: Path) -> None:
    calls = [
        make_init_call(),
        make_p2p_call("MPI_Send", 20, 30, 1),
        make_p2p_call("MPI_Recv", 40, 50, 1),
    ]
    reports = [write_rank(tmp_path / f"{rank}.sqlite", rank, calls) for rank in (0, 1)]
    again = write_rank(
        tmp_path / "again.sqlite", 1, [make_init_call(), make_p2p_call("MPI_Recv", 20, 40, 0)]
    )
    trace, summary = convert_reports(tmp_path, *reports, again)
    assert list_messages(trace) == []
    assert any("of a rank that several processes claim" in note for note in summary.notes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tag", "written"),
    [
        (0, 0),
        (54_999, 54_999),
        (55_001, 1_000_055_001),
        (55_999, 1_000_055_999),
        (56_000, 56_000),
        (2**31 - 1, 2**31 - 1),
    ],
)
def test_tags_of_messages_are_never_those_of_other_lines(
    tmp_path: Path, tag: int, written: int
) -> None:
    trace, _ = convert_two_ranks(
        tmp_path,
        [make_p2p_call("MPI_Send", 20, 30, 1, tag=tag)],
        [make_p2p_call("MPI_Recv", 40, 60, 0, tag=tag)],
    )
    assert list_messages(trace) == [(1, 20, 2, 60, 64, written)]


# ---- communicators ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("known", ["commUid", "groupRootUid", "members"])
def test_a_communicator_is_the_same_on_all_ranks_whatever_its_handle(
    tmp_path: Path, known: str
) -> None:
    """Two communicators of the same ranks, in reverse order, that have each other's handles on the
    other rank.
    """
    reports = []
    for rank, handles in ((0, (11, 12)), (1, (12, 11))):
        calls = [make_init_call()]
        for number, handle in enumerate(handles):
            named = {
                "commUid": {"commUid": 77 + number},
                "groupRootUid": {"groupRoot": 1, "groupRootUid": 3 + number},
            }.get(known, {})
            calls.append(
                make_communicator(rank, (1, 0), handle, 10 + number, parentHandle=WORLD, **named)
            )
            uid = {"commUid": 77 + number} if known == "commUid" else {}
            name = "MPI_Send" if rank == 0 else "MPI_Recv"
            calls.append(
                make_p2p_call(
                    name,
                    100 + 50 * number,
                    200 - 50 * number,
                    0 if rank == 0 else 1,
                    size=number,
                    comm=handle,
                    **uid,
                )
            )
        reports.append(write_rank(tmp_path / f"{rank}.sqlite", rank, calls))
    trace, _ = convert_reports(tmp_path, *reports)
    assert list_messages(trace) == [(1, 100, 2, 200, 0, 5), (1, 150, 2, 150, 1, 5)]
    numbers = {
        (item.row[0], item.begin): item.others[COMMUNICATOR]
        for item in trace.list_intervals(POINT_TO_POINT)
    }
    assert numbers == {(1, 100): 3, (2, 100): 3, (1, 150): 4, (2, 150): 4}
    assert all(
        item.others[PARTNER] == 3 - item.row[0] for item in trace.list_intervals(POINT_TO_POINT)
    )


@pytest.mark.parametrize(("handle", "lines"), [(MPICH_WORLD, 1), (WORLD, 0)])
def test_without_communicators_only_mpich_s_world_is_known(
    tmp_path: Path, handle: int, lines: int
) -> None:
    trace, summary = convert_two_ranks(
        tmp_path,
        [make_p2p_call("MPI_Send", 20, 30, 1, comm=handle)],
        [make_p2p_call("MPI_Recv", 40, 60, 0, comm=handle)],
        leave_out=[COMMUNICATORS],
    )
    assert len(list_messages(trace)) == lines
    if not lines:
        assert (
            "MPI messages: 1 send whose communicator is not in the reports, such as an intercommunicator"
            in summary.notes
        )


def test_a_handle_that_came_again_for_what_is_not_recorded_makes_no_lines(tmp_path: Path) -> None:
    """An intercommunicator between ranks 0, 2 and 1, 3 has the handle of a duplicate of the world
    that was freed: partners are ranks in the other group, and rank 0 does not send to itself.
    """
    reports = []
    for rank in range(4):
        calls = [
            make_init_call(),
            (
                COMMUNICATORS,
                {"rank": rank, "timestamp": 15, "commHandle": 11, "parentHandle": WORLD},
            ),
            make_p2p_call("MPI_Sendrecv", 20, 30, rank ^ 1, comm=11, tag=1),
            *(make_p2p_call("MPI_Sendrecv", at, at + 5, rank // 2, comm=11) for at in (40, 50)),
            make_mpi_call(OTHER, "MPI_Finalize", 90, 95),
        ]
        reports.append(write_rank(tmp_path / f"{rank}.sqlite", rank, calls, range(4)))
    trace, summary = convert_reports(tmp_path, *reports)
    assert {(sender, receiver, tag) for sender, _, receiver, _, _, tag in list_messages(trace)} == {
        (sender, receiver, 1) for sender, receiver in ((1, 2), (2, 1), (3, 4), (4, 3))
    }
    assert any("whose communicator handle was reused" in note for note in summary.notes)
