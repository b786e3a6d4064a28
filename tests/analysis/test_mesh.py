"""Test parallel groups: their names by their communication, and by `--mesh`."""

from collections import Counter
from pathlib import Path

import polars as pl
import pytest
from tools.conversions import convert_and_read, list_labelled_intervals
from tools.exports import make_nvtx_range
from tools.nccl_exports import COMM, Rank, format_payload

import nsys2prv
from nsys2prv._util.errors import UsageError
from nsys2prv.match.groups import find_divisions, find_pipeline, name_groups, parse_mesh

RANKS, STEPS, LAYERS = 8, 5, 12
TENSOR, DATA, WORLD = 100, 200, 300
ALL_REDUCE, SEND_RECV, ADD = 1, 3, 5
#: Event types: dimension of a kernel, and place of a rank in its tensor parallel group.
DIMENSION, PLACE_TP = 69201113, 69201115
NAMES = (*Rank().names, "add_one")


class Member:
    """A rank on its way: when its host launches, and when its GPU is free (ns)."""

    def __init__(self, number: int) -> None:
        self.number, self.launch, self.free = number, 1_000, 10_000
        self.rank = Rank(10 + number, names=NAMES)

    def call(self, text: str, communicator: int, size: int, name: int, **more: int) -> None:
        payload = format_payload(communicator, size, **more)
        self.rank.add_collective(self.launch, self.free, self.free + 5_000, payload, text)
        self.rank.kernels[-1] |= {"demangledName": name, "shortName": name}
        self.launch += 1_000
        self.free += 6_000

    def work_on_layer(self, communicator: int, is_overlapped: bool) -> None:
        self.rank.add_kernel(self.launch, self.free, self.free + 20_000, ADD)
        self.launch += 1_000
        self.free += 1_000 if is_overlapped else 21_000
        self.call("ncclAllReduce", communicator, 1 << 20, ALL_REDUCE)
        self.free += 20_000 * is_overlapped


def write_mesh(folder: Path, is_overlapped: bool = False) -> list[Path]:
    """Write a job of 2 (tensor) x 2 (data) x 2 (pipeline) ranks: in each step twelve reductions of
    one size within layers, a message to the next stage, and one reduction of gradients.
    """
    reports = []
    for number in range(RANKS):
        member = Member(number)
        tensor, data = TENSOR + number // 2, DATA + number % 2 + number // 4 * 2
        places = (tensor, 2, number % 2), (data, 2, number // 2 % 2), (WORLD, RANKS, number)
        for communicator, size, place in places:
            told = f'{{"{COMM}":{communicator},"No. of ranks":{size},"Rank":{place}}}'
            member.rank.add_range(
                member.launch, member.launch + 1, "ncclCommInitRank", jsonText=told
            )
            member.launch += 10
        for step in range(STEPS):
            begin = member.launch
            for _ in range(LAYERS):
                member.work_on_layer(tensor, is_overlapped)
            text, peer = ("ncclSend", number + 4) if number < 4 else ("ncclRecv", number - 4)
            member.call(text, WORLD, 1 << 16, SEND_RECV, **{"Peer rank": peer})
            member.call("ncclAllReduce", data, 1 << 24, ALL_REDUCE)
            member.call("ncclAllReduce", WORLD, 4, ALL_REDUCE)
            member.launch = member.free + 1_000
            main = member.rank.nvtx[0]["globalTid"]
            member.rank.nvtx.append(
                make_nvtx_range(begin, member.launch, f"step {step}", globalTid=main)
            )
            member.launch += 1_000
            member.free = member.launch + 1_000
        reports.append(member.rank.write(folder / f"rank{number}.sqlite"))
    return reports


def test_ranks_have_places_and_waits_of_dimensions(tmp_path: Path) -> None:
    with nsys2prv.open(write_mesh(tmp_path), align="none", jobs=1) as job:
        results = job.analyse("time", "collectives")
    by_rank = results["time"].tables["by_dimension"].frame
    assert by_rank.filter(rank="rank 6")["place"].item() == "tp 0 dp 1 pp 1"
    assert {"tensor_ns", "tensor_waiting_ns", "pipeline_waiting_ns"} <= {*by_rank.columns}
    tables = results["collectives"].tables
    named = tables["nccl"].frame.select("dimension", "operation").unique().rows()
    assert {("tensor", "AllReduce"), ("pipeline", "Send"), ("world", "AllReduce")} <= {*named}
    stragglers = tables["stragglers"].frame
    assert {*stragglers["place"]} == {*by_rank["place"]}


@pytest.mark.parametrize(
    ("asked", "of_all"),
    [({"demanded": ("parallel_groups",)}, "world"), ({"mesh": "tp=2,dp=2,pp=2"}, "other groups")],
    ids=["found", "given"],
)
def test_traces_have_dimensions_and_places(
    asked: dict[str, object], of_all: str, tmp_path: Path
) -> None:
    reports = write_mesh(tmp_path)
    trace, _ = convert_and_read(reports, tmp_path / "o.prv", align="none", **asked)
    counts = Counter(label for label, _, _ in list_labelled_intervals(trace, DIMENSION))
    each = RANKS * STEPS
    assert counts == {"tensor": LAYERS * each, "data": each, "pipeline": each, of_all: each}
    (place,) = (one for one in trace.samples if one.row == (7, 1) and one.time == 0)
    assert place.numbers == {PLACE_TP: 1, PLACE_TP + 1: 2, PLACE_TP + 2: 2}
    assert "\nrank 6 16 tp 0 dp 1 pp 1\n" in (tmp_path / "o.row").read_text()


def list_dimensions(reports: list[Path], mesh: str = "") -> tuple[dict[str, str], pl.DataFrame]:
    """Return the names of dimensions with their groups, and where ranks are in them."""
    with nsys2prv.open(reports, align="none", jobs=1) as job:
        tables = job.analyse("groups", mesh=mesh)["groups"].tables
    rows = tables["dimensions"].frame.select("dimension", "groups").rows()
    return dict(rows), tables["coordinates"].frame


def test_groups_are_named_by_what_they_do(tmp_path: Path) -> None:
    named, places = list_dimensions(write_mesh(tmp_path))
    assert named == {
        "tensor": "0,1; 2,3; 4,5; 6,7",
        "data": "0,2; 1,3; 4,6; 5,7",
        "pipeline": "0,4; 1,5; 2,6; 3,7",
        "world": "0-7",
    }
    assert places.filter(rank=6).row(0, named=True) == {
        "rank": 6, "tensor": 0, "data": 1, "pipeline": 1
    }  # fmt: skip


def test_stages_replicas_and_groups_have_names(tmp_path: Path) -> None:
    with nsys2prv.open(write_mesh(tmp_path), align="none", jobs=1) as job:
        span = 0, job.duration
        pipeline = find_pipeline(job.reader, *span, ())
        named = name_groups(find_divisions(job.reader, pipeline, *span), pipeline)
    assert named[0, 1, 2, 3] == ("stage", 1, 2)
    assert named[2, 3, 6, 7] == ("replica", 2, 2)
    assert named[4, 5] == ("group", 3, 4)
    assert (0, 2, 4, 6) not in named


def test_reductions_beside_computation_are_not_of_tensor_parallelism(tmp_path: Path) -> None:
    with nsys2prv.open(write_mesh(tmp_path, True), align="none", jobs=1) as job:
        frame = job.analyse("groups")["groups"].tables["dimensions"].frame
    assert frame["dimension"].to_list() == ["data", "data", "pipeline", "world"]


def test_a_mesh_that_is_given_names_the_groups(tmp_path: Path) -> None:
    reports = write_mesh(tmp_path)
    named, places = list_dimensions(reports, "tp=2,dp=2,pp=2")
    assert list(named) == ["tp", "dp", "pp", "tp-dp-pp"]
    assert places.columns == ["rank", "tp", "dp", "pp"]
    with pytest.raises(UsageError, match="these are 4 ranks, but the job has 8"):
        list_dimensions(reports, "tp=2,dp=2")


@pytest.mark.parametrize("text", ["tp", "tp=0", "=2", "tp=2,tp=4", "tp=x"])
def test_what_is_no_mesh_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--mesh"):
        parse_mesh(text, 8)
