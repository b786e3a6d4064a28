"""Test GPUs of one process that are NCCL ranks: each with its own thread, or all with one thread."""

from pathlib import Path

import polars as pl
import pytest
from samples.options import Options
from samples.simulate import generate
from tools.exports import make_call, make_nvtx_range
from tools.merged_processes import merge_processes
from tools.nccl_exports import COMM, Rank, format_payload

import nsys2prv
from nsys2prv._util.errors import UsageError
from nsys2prv.show.page.excerpts import choose_excerpts

GPUS, STEPS, LAYERS = 2, 12, 4
ADD, SYNCHRONIZE = 5, 6
#: How long a layer takes a GPU, and a slow one, and how long a late host waits at a step (ns).
LAYER, SLOW, LATE = 40_000, 52_000, 150_000


def read_table(job: nsys2prv.OpenJob, analysis: str, name: str) -> pl.DataFrame:
    return job.analyse(analysis)[analysis].tables[name].frame


@pytest.mark.slow
def test_gpus_with_threads_of_their_own_are_as_processes(tmp_path: Path) -> None:
    options = Options(
        ranks=4,
        hosts=1,
        steps=8,
        layers=2,
        visible="all",
        osrt=0,
        mpi=False,
        late_rank=3,
        late_us=800,
    )
    generate(tmp_path / "apart", options)
    reports = sorted((tmp_path / "apart").glob("*.sqlite"))
    merged = merge_processes(reports, tmp_path / "merged.sqlite")
    tables, gains = [], []
    for inputs, who in ((reports, "rank 3"), (merged, "gpu 3")):
        with nsys2prv.open(inputs) as job:
            tables.append(read_table(job, "collectives", "stragglers"))
            gains.append(job.what_if(f"{who}: host as others")["gain_share"][-1])
            if inputs is merged:
                first, *_ = job.findings()
                assert first.title.startswith("GPU3 (NCCL rank 3): load_batch takes")
                assert (first.devices, first.what_if) == (("node01 GPU3",), "gpu 3: host as others")
                of_all = read_table(job, "collectives", "nccl")
                assert set(of_all["communicator"]) == {"world (GPU0-3)"}
                with pytest.raises(UsageError, match="no such GPU; there are gpu0, gpu1"):
                    job.what_if("gpu 4: host as others")
                moments = choose_excerpts(job, job.analyse()).moments
                assert {one.report for one in moments if one} == {"merged.sqlite"}
    apart, together = tables
    assert together["rank"].to_list() == [f"GPU{who[-1]}" for who in apart["rank"]]
    assert together.drop("rank").equals(apart.drop("rank"))
    assert gains[0] == pytest.approx(gains[1], abs=0.003)
    assert gains[0] > 0.1


def write_processes(
    folder: Path, late: int = -1, slow: int = -1, is_told: bool = True
) -> list[Path]:
    """Write two processes whose only thread drives two GPUs each: in each step layers of a kernel and a
    reduction in which all GPUs meet. late: process whose host is late; slow: GPU of all whose kernels
    last longer; is_told: by payloads.
    """
    ranks = [
        Rank(10 + number, names=(*Rank().names, "add_one", "cudaDeviceSynchronize_v3020"))
        for number in range(2)
    ]
    host = [1_000, 1_000]
    free = [10_000] * 2 * GPUS
    for number, rank in enumerate(ranks):
        for gpu in range(GPUS) if is_told else ():
            of_all = number * GPUS + gpu
            told = f'{{"{COMM}":7,"No. of ranks":4,"Rank":{of_all},"CUDA device":{of_all}}}'
            rank.add_range(10 * gpu, 10 * gpu + 9, "ncclCommInitRank", jsonText=told)
    for step in range(STEPS):
        begins = [*host]
        if late >= 0:
            host[late] += LATE
        for _ in range(LAYERS):
            ready, launched = [], []
            for number, rank in enumerate(ranks):
                for gpu in range(number * GPUS, (number + 1) * GPUS):
                    begin = max(host[number] + 2_000, free[gpu] + 1_000)
                    free[gpu] = begin + (SLOW if gpu == slow else LAYER)
                    rank.add_kernel(
                        host[number], begin, free[gpu], ADD, deviceId=gpu, streamId=7 + gpu
                    )
                    host[number] += 1_000
                rank.add_range(host[number], host[number] + 10, "ncclGroupStart")
                for _ in range(GPUS):
                    host[number] += 20
                    payload = format_payload(7, 1 << 20) if is_told else None
                    rank.add_range(
                        host[number], host[number] + 10, "ncclAllReduce", jsonText=payload
                    )
                host[number] += 20
                launched.append(host[number])
                host[number] += 3_000
                rank.add_range(launched[-1], host[number] - 100, "ncclGroupEnd")
                for gpu in range(number * GPUS, (number + 1) * GPUS):
                    ready.append(max(launched[-1] + 2_000, free[gpu] + 1_000))
            end = max(ready) + 10_000
            for gpu, begin in enumerate(ready):
                number, place = divmod(gpu, GPUS)
                ranks[number].add_kernel(
                    launched[number] + 10 + 100 * place, begin, end, deviceId=gpu, streamId=7 + gpu
                )
                free[gpu] = end
        for number, rank in enumerate(ranks):
            end, main = free[number * GPUS] + 1_000, rank.nvtx[0]["globalTid"]
            rank.calls.append(
                make_call(host[number], end, 1_000 + step, nameId=SYNCHRONIZE, globalTid=main)
            )
            rank.nvtx.append(make_nvtx_range(begins[number], end, f"step {step}", globalTid=main))
            host[number] = end + 1_000
    return [rank.write(folder / f"process{number}.sqlite") for number, rank in enumerate(ranks)]


@pytest.mark.parametrize("is_told", [True, False], ids=["payloads", "no payloads"])
@pytest.mark.parametrize(
    ("fault", "who", "share"),
    [
        ({"late": 1}, "Rank 1 (by file name) (node0 GPU2, node0 GPU3): ", LATE),
        ({"slow": 2}, "Rank 1 GPU2 (", (SLOW - LAYER) * LAYERS),
    ],
    ids=["host", "GPU"],
)
def test_one_thread_is_the_host_of_all_its_gpus(
    fault: dict[str, int], who: str, share: int, is_told: bool, tmp_path: Path
) -> None:
    reports = write_processes(tmp_path, is_told=is_told, **fault)
    with nsys2prv.open(reports, align="none", jobs=1) as job:
        first, *others = job.findings()
        names = job.devices["label"].to_list()
        told = job.analyse("collectives")["collectives"].tables.get("stragglers")
        length = job.steady.end - job.steady.begin
        steps = job.steady.count
    assert first.title.startswith(who)
    assert first.share == pytest.approx(share * steps / length, rel=0.1)
    assert names == [f"node0 GPU{gpu}" for gpu in range(4)]
    if is_told:
        ranks = ["rank 0 GPU0", "rank 0 GPU1", "rank 1 GPU2", "rank 1 GPU3"]
        assert told.frame["rank"].sort().to_list() == ranks
    assert not any(one.devices for one in others)
