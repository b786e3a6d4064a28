"""Test the critical path: it is exact on a job of two ranks made by hand, and its shares add up to
the duration of a sample.
"""

from pathlib import Path

import polars as pl
import pytest
from tools.exports import make_call, make_global_tid
from tools.nccl_exports import Rank, format_payload
from tools.view_answers import SAMPLES

from nsys2prv.cli import main
from nsys2prv.figures.device_group import Steady
from nsys2prv.figures.result import Result
from nsys2prv.open_job import open_job

GEMM, ELEMENTWISE = 5, 6
NAMES = (
    *Rank.names,
    "cublasSgemm_kernel_gemm",
    "vectorized_elementwise_kernel",
    "cudaDeviceSynchronize_v3020",
)


def make_two_ranks(folder: Path) -> list[Path]:
    """Return two ranks that compute, then reduce together.

    The second one's kernel takes longer. Then the first one waits for its device and launches
    another kernel, whose end is the job's.
    """
    first, second = (Rank(pid=pid, names=NAMES) for pid in (10, 11))
    first.add_kernel(100, 150, 300, GEMM).add_collective(192, 310, 1_000, format_payload(7, 8000))
    first.calls.append(make_call(400, 1_050, 99, nameId=7, globalTid=make_global_tid(10, 10)))
    first.add_kernel(1_100, 1_150, 2_000, ELEMENTWISE)
    second.add_kernel(100, 160, 800, GEMM).add_collective(192, 802, 1_001, format_payload(7, 8000))
    return [
        rank.write(folder / f"rank{number}.sqlite") for number, rank in enumerate((first, second))
    ]


def analyze(reports: list[Path]) -> tuple[Result, int]:
    with open_job(reports, align="utc", jobs=1, quiet=True, demanded=("critical_path",)) as job:
        return job.analyse("critical_path")["critical_path"], job.duration


def test_two_ranks_made_by_hand(tmp_path: Path) -> None:
    """Check that the path crosses from the second rank to the first at the start of the second
    rank's collective, which arrived last. Times count from the first launch, at 100.
    """
    result, duration = analyze(make_two_ranks(tmp_path))
    assert duration == 1_900
    tables = {name: table.frame for name, table in result.tables.items()}
    causes = dict(tables["causes"].select("cause", "time_ns").rows())
    assert causes == {
        # 60 to 700 on the second rank, 1,050 to 1,900 on the first.
        "Kernel": 640 + 850,
        # From 702, when the second rank's began, to 900.
        "NCCL kernel, after the last rank came": 198,
        "Queued on the device": 2,
        "Launch latency": 55 + 45,
        "CUDA call": 5 + 5,
        # Of the synchronisation 900 to 950, then 50 to the next call.
        "Return from synchronisation": 50,
        "Host between calls": 50,
    }
    assert sum(causes.values()) == duration
    assert tables["ranks"].select(
        "rank", "time_ns", "kernels_ns", "nccl_ns", "other_ns"
    ).rows() == [
        ("rank 0 (by file name)", 198 + 50 + 50 + 5 + 45 + 850, 850, 198, 150),
        ("rank 1 (by file name)", 702, 640, 0, 62),
    ]
    kernels = dict(tables["by_kernel"].select("kernel", "time_ns").rows())
    assert [kernels[name] for name in NAMES[4:6]] == [640, 850]
    assert tables["causes"]["share"].sum() == pytest.approx(1)
    assert tables["by_kernel"]["share"].sum() == pytest.approx((640 + 850 + 198) / duration)
    assert "all GPUs are idle for 11.2% of it" in result.tables["causes"].title


def test_figures_of_the_steady_state(tmp_path: Path) -> None:
    """The tables have both; each piece counts within the steady state, here 500 to 1,500."""
    with open_job(
        make_two_ranks(tmp_path), align="utc", jobs=1, quiet=True, demanded=("critical_path",)
    ) as job:
        job._steady[""] = Steady(500, 1_500, (500, 1_000), "made by hand"), None
        result = job.analyse("critical_path")["critical_path"]
    causes = result.tables["causes"].frame
    assert causes["time_ns"].sum() == 1_900
    assert dict(causes.select("cause", "steady_ns").rows()) == {
        # 500 to 700, and 1,050 to 1,500.
        "Kernel": 200 + 450,
        "NCCL kernel, after the last rank came": 198,
        "Queued on the device": 2,
        "Launch latency": 45,
        "CUDA call": 5,
        "Return from synchronisation": 50,
        "Host between calls": 50,
    }
    for table in ("causes", "ranks"):
        assert result.tables[table].frame["steady_share"].sum() == pytest.approx(1)
    title = result.tables["causes"].title
    assert title.endswith("all GPUs are idle for 11.2% of it, in the steady state for 15.2%")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["training", "graphs"])
def test_shares_of_samples_add_up(name: str) -> None:
    result, duration = analyze(SAMPLES[name])
    tables = {name: table.frame for name, table in result.tables.items()}
    for key in ("causes", "ranks"):
        assert tables[key]["time_ns"].sum() == duration
        assert tables[key]["share"].sum() == pytest.approx(1)
    on_devices = tables["causes"].filter(pl.col("cause").str.contains("ernel"))
    assert tables["by_kernel"]["time_ns"].sum() == on_devices["time_ns"].sum()
    assert tables["classes"]["time_ns"].sum() == on_devices["time_ns"].sum()


def test_it_is_made_on_demand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reports = [str(report) for report in make_two_ranks(tmp_path)]
    assert main(["report", *reports, "-q", "--align", "utc", "-j", "1"]) == 0
    assert "critical path" not in capsys.readouterr().out.lower()
    assert (
        main(["report", *reports, "-q", "--align", "utc", "-j", "1", "--only", "critical_path"])
        == 0
    )
    assert "The critical path by rank" in capsys.readouterr().out
