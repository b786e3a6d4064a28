"""Test NCCL calls, their payloads in every form, and the kernels that do their work."""

import json
from pathlib import Path

import pytest
from tools.exports import make_global_pid
from tools.nccl_exports import (
    COMM,
    DOMAIN,
    ENTRIES,
    ENUMS,
    OP,
    SIZE,
    Rank,
    convert_ranks,
    format_payload,
    make_group_on_two_gpus,
    make_schema_entries,
    pack_payload,
)
from tools.trace_reader import Interval, Trace

SAMPLES = Path(__file__).parents[2] / "sample_reports"
CALL, NCCL_KERNEL = 9500, 63000007
BYTES, REDUCTION, RANKS, RANK, COMMUNICATOR, OPERATION, FUSED = (
    9501,
    9502,
    9505,
    9506,
    9507,
    9508,
    9509,
)
BIG = 0xFEDC_BA98_7654_3210
REDUCE_ENTRIES = make_schema_entries(77, (COMM, 18, 0), (SIZE, 22, 8), (OP, 1 << 24 | 24, 16))
REDUCE_NAMES = [
    {"domainId": DOMAIN, "schemaId": 1 << 24 | 24, "idx": value, "name": name, "value": value}
    for value, name in enumerate(("Sum", "Product", "Max", "Min", "Avg"))
]


def read_payload(trace: Trace, item: Interval) -> dict[int, str | int]:
    """Return the payload of a record, with values as labels if they have one."""
    return {
        code: trace.get_label(code, value)
        if code in (REDUCTION, COMMUNICATOR, OPERATION)
        else value
        for code, value in item.others.items()
        if 9501 <= code <= 9510
    }


def read_payloads(trace: Trace, code: int) -> list[dict[int, str | int]]:
    """Return the payloads of the records of a type, by begin."""
    return [
        read_payload(trace, item)
        for item in sorted(trace.list_intervals(code), key=lambda item: item.begin)
    ]


WANTED = {BYTES: 4096, REDUCTION: "Max", COMMUNICATOR: f"{BIG:#x}", OPERATION: "AllReduce"}


def make_rank_with_json(text: str) -> Rank:
    """Return a rank whose collective has a JSON payload."""
    return Rank().add_collective(100, 130, 200, text)


def make_rank_with_bytes(content: bytes, **tables: object) -> Rank:
    """Return a rank whose collective has a binary payload."""
    rank = Rank().add_collective(100, 130, 200, binaryData=content)
    rank.more |= {ENTRIES: REDUCE_ENTRIES, ENUMS: REDUCE_NAMES} | tables
    return rank


def make_rank_with_table(event: int = 9) -> Rank:
    """Return a rank whose collective has its payload in a table of its own."""
    rank = Rank().add_collective(100, 130, 200, eventId=9)
    rank.more[f"DYNAMIC_NVTXPAYLOAD_DATATYPE_{make_global_pid(4242)}_{DOMAIN}_77"] = [
        {"eventId": 3, COMM: 5, SIZE: 6, OP: 0},
        {"eventId": event, COMM: BIG - (1 << 64), SIZE: 4096, OP: "Max"},
    ]
    return rank


@pytest.mark.parametrize(
    "rank",
    [
        make_rank_with_json(format_payload(BIG, 4096, **{OP: "Max"})),
        make_rank_with_json(f' {{ "{COMM}" : {BIG}, "{SIZE}": 4096 , "{OP}" : 2 }} '),
        make_rank_with_json(
            f'{{"{COMM}":{{"uint64":{BIG}}},"{SIZE}":{{"uint64":4096}},"{OP}":{{"enum":"Max"}}}}'
        ),
        make_rank_with_json(
            f'{{"commHash":"{BIG:#x}","count":1024,"dataType":"ncclFloat32","redOp":"ncclMax"}}'
        ),
        make_rank_with_bytes(pack_payload(77, "QQi4x", BIG, 4096, 2)),
        make_rank_with_bytes(pack_payload(77, "QQi4x", BIG, 4096, 2), **{ENUMS: []}),
        make_rank_with_table(),
    ],
    ids=[
        "flat",
        "spaced",
        "typed",
        "advanced",
        "binary",
        "binary without enumeration",
        "dynamic table",
    ],
)
def test_payload_forms(tmp_path: Path, rank: Rank) -> None:
    trace, _ = convert_ranks(tmp_path, rank)
    assert read_payloads(trace, CALL) == [WANTED]
    assert read_payloads(trace, NCCL_KERNEL) == [WANTED | {FUSED: 1}]


@pytest.mark.parametrize(
    ("kind", "label", "size"),
    [
        ('"ncclInt8"', "Int8", 1),
        ('"ncclBfloat16"', "Bfloat16", 2),
        ('"float8_e5m2"', "Float8e5m2", 1),
        ("8", "Float64", 8),
        ("99", None, None),
    ],
)
def test_what_else_calls_say(
    kind: str, label: str | None, size: int | None, tmp_path: Path
) -> None:
    text = f'{{"commHash":7,"count":10,"dataType":{kind},"CUDA device":3,"seqNumber":12,"channelId":2}}'
    trace, _ = convert_ranks(tmp_path, make_rank_with_json(text))
    [item] = trace.list_intervals(CALL)
    more = {code: value for code, value in item.others.items() if 9511 <= code <= 9514}
    if label:
        assert trace.get_label(9513, more.pop(9513)) == label
    assert more == {9511: 3, 9512: 12, 9514: 2}
    assert item.others.get(BYTES) == (size and 10 * size)


@pytest.mark.parametrize(
    "rank",
    [
        make_rank_with_json('{"NCCL communicator ID":12,"Message siz'),
        make_rank_with_json("[1, 2]"),
        make_rank_with_bytes(b"short"),
        make_rank_with_bytes(pack_payload(78, "QQ", 1, 2)),
        make_rank_with_bytes(pack_payload(77, "Q", 1)[:36]),
        make_rank_with_bytes(
            pack_payload(77, "QQi4x", 1, 2, 3),
            **{ENTRIES: [*REDUCE_ENTRIES, *make_schema_entries(77, (SIZE, 22, 0))]},
        ),
    ],
    ids=["cut", "list", "no header", "unknown schema", "cut body", "clashing schemas"],
)
def test_damaged_payloads_are_counted_and_the_calls_stay(tmp_path: Path, rank: Rank) -> None:
    trace, summary = convert_ranks(tmp_path, rank)
    assert read_payloads(trace, CALL) == [{OPERATION: "AllReduce"}]
    assert read_payloads(trace, NCCL_KERNEL) == [{OPERATION: "AllReduce", FUSED: 1}]
    assert "1 row of nccl changed: unreadable NCCL payloads" in summary.text()


def test_no_payloads_at_all(tmp_path: Path) -> None:
    trace, summary = convert_ranks(tmp_path, Rank().add_collective(100, 130, 200))
    assert read_payloads(trace, CALL) == [{OPERATION: "AllReduce"}]
    assert "changed" not in summary.text()


def test_group_with_several_operations_is_one_kernel(tmp_path: Path) -> None:
    rank = Rank().add_range(90, 92, "ncclGroupStart")
    for number, size in enumerate((100, 28)):
        rank.add_range(
            100 + 10 * number,
            105 + 10 * number,
            "ncclAllReduce",
            jsonText=format_payload(7, size, **{OP: "Sum"}),
        )
    rank.add_range(130, 190, "ncclGroupEnd").add_kernel(140, 150, 300).add_collective(
        200, 310, 400, format_payload(7, 50, **{OP: "Avg"})
    )
    trace, _ = convert_ranks(tmp_path, rank)
    common = {COMMUNICATOR: "0x0000000000000007", OPERATION: "AllReduce"}
    assert read_payloads(trace, NCCL_KERNEL) == [
        {BYTES: 128, REDUCTION: "Sum", FUSED: 2, **common},
        {BYTES: 50, REDUCTION: "Avg", FUSED: 1, **common},
    ]


def test_one_process_with_two_gpus_shares_the_group(tmp_path: Path) -> None:
    trace, summary = convert_ranks(tmp_path, make_group_on_two_gpus())
    assert [(item[BYTES], item[FUSED]) for item in read_payloads(trace, NCCL_KERNEL)] == [
        (100, 1)
    ] * 2
    assert "communicator and order of launches: 1" in summary.text(verbose=True)


def test_same_correlation_ids_and_pid_on_two_hosts(tmp_path: Path) -> None:
    ranks = [
        Rank(host=f"node{number}").add_collective(100, 130, 200, format_payload(7, 10 + number))
        for number in range(2)
    ]
    trace, _ = convert_ranks(tmp_path, *ranks)
    result = {item.row[0]: item.others[BYTES] for item in trace.list_intervals(NCCL_KERNEL)}
    assert len(trace.list_intervals(NCCL_KERNEL)) == 2
    assert result == {1: 10, 2: 11}


@pytest.mark.parametrize(
    ("kinds", "calls"),
    [
        ((), 1),
        (("nccl",), 1),
        (("nvtx",), 1),
        (("nvtx_pushpop_trace",), 1),
        (("kernels",), 0),
        (("-nccl",), 0),
    ],
)
def test_calls_are_written_once_whatever_is_asked_for(
    tmp_path: Path, kinds: tuple[str, ...], calls: int
) -> None:
    trace, _ = convert_ranks(
        tmp_path, Rank().add_collective(100, 130, 200, format_payload(7, 10)), kinds=kinds
    )
    assert len(trace.list_intervals(CALL)) == calls
    assert len(trace.list_intervals(NCCL_KERNEL)) == (0 if kinds and "nvtx" in kinds[0] else 1)


def test_advanced_trace_calls_and_launch_in_an_api_group(tmp_path: Path) -> None:
    """Ranges of nsys 2025.6 and later: elements of a type, the launch in a range beside the calls';
    operations on the GPU.
    """

    def of(**more: object) -> str:
        return json.dumps({"commHash": BIG, "commRank": 1, "nRanks": 4, "apiGroupId": 3, **more})

    rank = Rank().add_range(100, 200, "API Group", jsonText='{"apiGroupId":3}')
    for number, (count, kind) in enumerate(((10, "ncclBfloat16"), (3, "ncclFloat64"))):
        rank.add_range(
            110 + 10 * number,
            115 + 10 * number,
            "AllReduce",
            jsonText=of(count=count, dataType=kind, seqNumber=number),
        )
    rank.add_range(140, 190, "GroupLaunch").add_range(150, 180, "KernelLaunch").add_kernel(
        160, 170, 300
    )
    rank.add_range(
        175,
        290,
        "AllReduce",
        eventType=60,
        jsonText=of(count=10, dataType="ncclBfloat16", channelId=0),
    )
    trace, _ = convert_ranks(tmp_path, rank)
    own = {COMMUNICATOR: f"{BIG:#x}", RANK: 1, RANKS: 4, OPERATION: "AllReduce"}
    assert read_payloads(trace, NCCL_KERNEL) == [{BYTES: 44, FUSED: 2, 9510: 3, **own}]
    assert [item[BYTES] for item in read_payloads(trace, CALL) if BYTES in item] == [20, 24]
    assert read_payloads(trace, 9710) == [{BYTES: 20, 9510: 3, **own}]
    assert trace.labels.types[CALL] == "NCCL regions"


def test_calls_left_out_for_their_least_duration_still_tell_of_their_kernels(
    tmp_path: Path,
) -> None:
    trace, _ = convert_ranks(
        tmp_path,
        Rank().add_collective(100, 130, 200, format_payload(7, 10)),
        min_duration={"nccl": 50},
    )
    assert not trace.list_intervals(CALL)
    assert [item[BYTES] for item in read_payloads(trace, NCCL_KERNEL)] == [10]


def test_kernels_have_the_sequence_number_and_type_of_their_one_call(tmp_path: Path) -> None:
    def said_of(number: int) -> str:
        return json.dumps(
            {
                "commHash": BIG,
                "nRanks": 2,
                "commRank": 0,
                "count": 4,
                "dataType": "ncclFloat32",
                "seqNumber": number,
            }
        )

    rank = Rank().add_range(100, 120, "AllReduce", jsonText=said_of(7)).add_kernel(105, 110, 300)
    rank.add_range(400, 500, "API Group", jsonText='{"apiGroupId":3}').add_range(
        410, 415, "AllReduce", jsonText=said_of(8)
    )
    rank.add_range(420, 425, "AllReduce", jsonText=said_of(9)).add_range(
        440, 490, "GroupLaunch"
    ).add_kernel(460, 470, 600)
    trace, _ = convert_ranks(tmp_path, rank)
    kernels = sorted(trace.list_intervals(NCCL_KERNEL), key=lambda item: item.begin)
    assert [
        (item.others.get(9512), trace.get_label(9513, item.others[9513]), item.others[FUSED])
        for item in kernels
    ] == [(7, "Float32", 1), (None, "Float32", 2)]
