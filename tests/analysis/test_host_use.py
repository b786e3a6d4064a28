"""Test that advice follows from facts by declared rules, and not from texts."""

from pathlib import Path

import polars as pl
import pytest
from msgspec.structs import replace
from tools.exports import make_call
from tools.nccl_exports import Rank
from tools.view_answers import SAMPLES

import nsys2prv
from nsys2prv import analyses, open_job
from nsys2prv.figures.host_time import PARTS, WAITING
from nsys2prv.figures.result import DECLARED, Analysis
from nsys2prv.figures.stacks import Place
from nsys2prv.figures.time_division import PARTS as PICTURE
from nsys2prv.verdict import findings
from nsys2prv.verdict.host_use import HostUse, NamedTime, Pauses
from nsys2prv.verdict.words import ADVICE, RULES, TEXTS, choose_advice, say

S = 1_000_000_000


def make_use(
    when: str, *calls: NamedTime, place: Place | None = None, lacking: str = ""
) -> HostUse:
    """Return that hosts spend ten seconds in the part of the first call; without one, computing."""
    parts = dict.fromkeys(PARTS, 0)
    parts[calls[0].part if calls else "computing"] = 10 * S
    return HostUse(when, 10 * S, (0, 10 * S), parts, calls, None, place, "", lacking, True)


def call_for(part: str, name: str, seconds: float = 8, longest: float = 1) -> NamedTime:
    names = "mpi_other" if name.startswith("MPI") else "cuda_api" if name[:2] == "cu" else "osrt"
    return NamedTime(part, names, name, int(seconds * S), int(longest * S), seconds / 10)


DRIVER = Place(0.9, "load (app), there in the CUDA driver", "the cuda driver", False)


@pytest.mark.parametrize(
    ("use", "advice"),
    [
        (make_use("idle", call_for("cuda", "cudaMalloc", longest=7)), "single_call"),
        (make_use("before", call_for("cuda", "cudaMalloc", longest=7)), "before_work"),
        (make_use("all", call_for("io", "read", longest=7)), "single_read"),
        (make_use("after", call_for("cuda", "cudaFreeHost")), "freed"),
        (make_use("idle", call_for("cuda", "cudaHostAlloc")), "pinning"),
        (make_use("all", call_for("os", "pthread_cond_wait")), "threads"),
        (make_use("all", call_for("os", "clock_nanosleep")), "sleep"),
        (make_use("after"), "end"),
        (make_use("before", place=DRIVER), "set_up"),
        (make_use("all", place=Place(0.9, "solve (app)", "mpi", True)), "traced_mpi"),
        (
            make_use("idle", call_for("mpi", "MPI_Send", 5), call_for("mpi", "cudaMemcpy", 3)),
            "mpi_copies",
        ),
    ],
)
def test_what_hosts_do_decides_what_is_advised(use: HostUse, advice: str) -> None:
    assert use.advice == ADVICE[advice]


def test_calls_within_mpi_and_names_of_places_mislead_nobody() -> None:
    alone = make_use("idle", call_for("mpi", "MPI_Send"))
    assert alone.advice == "Check what MPI waits for there, on all ranks"
    named = Place(0.9, "add mpi to --trace; MPI_Send 3; cu (app)", "the program", False)
    assert (
        make_use("idle", place=named).advice
        == "Run this host code once, in parallel, or on the GPU"
    )


def test_the_first_call_sets_cuda_up_if_it_is_most() -> None:
    first = replace(call_for("cuda", "cudaMalloc", longest=7), is_first=True)
    assert str(first) == "cudaMalloc 8.00 s, which includes CUDA initialization"
    assert make_use("before", first).advice == ADVICE["set_up"]
    short = replace(first, longest=S)
    assert make_use("before", short).advice == ADVICE["before_work"]


@pytest.mark.parametrize(
    ("name", "share", "advice"),
    [
        ("poll", 0.3, "waits"),
        ("futex", 0.7, "threads"),
        ("futex", 0.5, "off_cpu"),
        ("pollute", 0.9, "off_cpu"),
        ("", 0.0, "off_cpu"),
    ],
)
def test_pauses_are_told_by_call_and_share(name: str, share: float, advice: str) -> None:
    parts = {**dict.fromkeys(PARTS, 0), "off_cpu": 9 * S, "computing": S}
    call = NamedTime("os", "osrt", name, int(10 * S * share), S, share) if name else None
    assert Pauses(parts, None, call).advice == advice


def test_calls_of_nccl_are_calls_in_sentences_and_on_pictures(tmp_path: Path) -> None:
    """A communicator is set up for 90 ms before any work, by calls of CUDA among other things."""
    rank = Rank(names=(*Rank().names, "cudaMalloc_v3020"))
    rank.add_range(5 * S // 1000, 95 * S // 1000, "ncclCommInitRank")
    thread = {"globalTid": rank.nvtx[0]["globalTid"]}
    rank.calls.append(make_call(20 * S // 1000, 30 * S // 1000, 99, nameId=5, **thread))
    rank.add_collective(100 * S // 1000, 101 * S // 1000, 110 * S // 1000)
    with nsys2prv.open(rank.write(tmp_path / "r.sqlite"), quiet=True) as job:
        (startup,) = (one for one in job.findings() if one.kind == "startup")
        lanes = job.analyse("time")["time"].tables["lanes"].frame
    assert "the host is mostly in NCCL calls (ncclCommInitRank 90.0 ms)" in startup.title
    assert startup.advice.startswith("NCCL creates communicators once per job")
    assert lanes["idle_nccl_ns"].to_list() == pytest.approx([90 * S // 1000], rel=1e-6)
    assert PICTURE["idle_nccl"][0] == f"idle: host {PARTS['nccl']}"


def test_picture_table_and_sentence_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """While GPUs are idle, hosts are as long in each part by the picture, the table of gaps and findings."""
    kept = {}

    def keep(frames: dict[str, pl.DataFrame], context: object, result: object) -> None:
        kept.update(frames)

    said = Analysis("said", "", "verdict.frames.collect", "verdict.findings.keep_frames")
    monkeypatch.setattr(findings, "keep_frames", keep, raising=False)
    monkeypatch.setitem(DECLARED, "said", said)
    for module in (open_job, analyses):
        monkeypatch.setattr(module, "ANALYSES", (*analyses.ANALYSES, said))
    with nsys2prv.open(SAMPLES["machine"], quiet=True, jobs=1) as job:
        results = job.analyse("said", "time", "idle", whole=True)
    lanes, gaps = (
        results[name].tables[table].frame for name, table in (("time", "lanes"), ("idle", "gaps"))
    )
    uses = kept["uses"].select(*PARTS).sum().row(0, named=True)
    assert sum(time > 0 for time in uses.values()) > 8
    for frame, begin in ((lanes, "idle_"), (gaps, "")):
        sums = dict.fromkeys((*PARTS, WAITING), 0)
        for part in sums:
            if (column := f"{begin}{part}_ns") in frame.columns:
                sums[part] = frame[column].sum()
        sums["cuda"] += sums.pop(WAITING)
        assert sums == uses


def test_what_a_program_does_is_not_advised() -> None:
    assert "CUDA graphs" not in ADVICE[choose_advice("calls", call="cudaGraphLaunch")]
    assert choose_advice("calls", call="cuLibraryLoadData") == "module_loading"
    launches = choose_advice("calls", call="cudaLaunchKernel")
    for key in (launches, "launching", "latency"):
        assert "CUDA graphs" in ADVICE[key]
        assert "CUDA graphs" not in ADVICE[TEXTS["already"][key]["graphs"]]
    assert "no copy here uses pageable" in ADVICE[TEXTS["already"]["pageable_copies"]["pinned"]]


def test_what_is_not_known_is_not_said() -> None:
    assert (
        str(say("pause", waiting="GPUs", where="in a", others=False)) == "GPUs wait for hosts in a"
    )
    more = str(say("pause", waiting="GPUs", where="in {a} [b]", others=True))
    assert more == "GPUs wait for hosts in {a} [b], and elsewhere"
    assert (
        str(say("calls", name="cudaFree", time=1_500_000.0, count=1))
        == "cudaFree: 1.50 ms in 1 call"
    )


def test_rules_name_known_advice() -> None:
    assert {rule.do for rules in RULES.values() for rule in rules} <= set(ADVICE)
