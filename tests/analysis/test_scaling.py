"""Compare values of runs: the factors of scalability, and runs that are not comparable."""

import sqlite3
import statistics
import tarfile
from pathlib import Path
from typing import Any

import pytest
from msgspec import convert
from tools.commands import SAMPLES
from tools.studies import make_run

from nsys2prv import study
from nsys2prv.figures.study_model import Run
from nsys2prv.show.study.compare import compare_runs
from nsys2prv.show.study.formats import Style, format_study
from nsys2prv.show.study.summary import summarise_study, write_title


def make_runs(*changes: dict[str, Any]) -> list[Run]:
    """Return runs on 2, 4, ... devices with changes of their data."""
    runs = []
    for number, one in enumerate(changes):
        run = make_run(2 << number, 0.9, 1.0)
        run["sums"] |= {
            "found_by": "NVTX ranges it",
            "iterations_of_job": 10,
            **one.pop("sums", {}),
        }
        runs.append(run | one)
    return convert(runs, list[Run])


def make_mpi_run(elapsed: float, useful: float, on_cpu: float, parallel: float) -> dict[str, Any]:
    """Return the data of a run without GPUs; times of an iteration (ns)."""
    return {
        "devices": 0,
        "gpu_models": {},
        "regions": {},
        "metrics": {"elapsed_ns": elapsed, "mpi": {"parallel": parallel}, "host": {"cpu": on_cpu}},
        "sums": {
            "elapsed_ns": elapsed,
            "host_useful_ns": useful,
            "host_cpu_ns": useful * on_cpu,
            "useful_ns": None,
        },
    }


def test_scalability_of_mpi_alone_is_divided_by_cpus() -> None:
    """2 ranks compute 8 ms each of 10 ms; 4 ranks take 6 ms, 5 of them outside of MPI, 4 on a CPU."""
    first, last = make_mpi_run(10e6, 16e6, 1.0, 0.8), make_mpi_run(6e6, 20e6, 0.8, 5 / 6)
    made = compare_runs(make_runs(first, last))
    figures = {row.path: values[1] for row, values in made.list_figures()}
    assert figures["host.computation_scalability"] == pytest.approx(0.8)
    assert figures["host.cpu_time_scalability"] == pytest.approx(1.0)
    assert figures["host.cpu_scalability"] == pytest.approx(0.8)
    assert figures["host.global"] == pytest.approx(0.8 * 5 / 6)
    assert figures["efficiency"] == pytest.approx(figures["host.global"] / 0.8)
    assert made.scaling.detected == "strong", "the time on CPUs does not grow"
    text = format_study(made, Style(width=100))
    assert "GPU" not in text
    assert "Global efficiency" in text
    assert "Host global" not in text


def test_mixed_scaling_has_no_title_of_one() -> None:
    works = [{"sums": {"useful_ns": work}} for work in (1e6, 1e6, 4e6)]
    made = compare_runs(make_runs(*works))
    assert write_title(made) == "POP study of 3 runs on 2 to 8 GPUs"
    assert any("strong and weak scaling" in line for line in made.warnings)


@pytest.mark.parametrize(("count", "compared"), [(10, True), (871, False)])
def test_unlike_periods_are_not_compared(count: int, compared: bool) -> None:
    other = {"found_by": "kernel k once in each", "iterations_of_job": count}
    made = compare_runs(make_runs({}, {"sums": other}))
    assert ("speedup" in made.runs[1].metrics) == compared


def test_kernels_and_communication_of_an_iteration() -> None:
    made = study([SAMPLES / "graphs"])
    iterations, count, lasts = 2, 0, 0
    for report in sorted((SAMPLES / "graphs").glob("*.sqlite")):
        with sqlite3.connect(report) as database:
            (own,) = database.execute(
                "SELECT count(*), sum(end - start) FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds"
                " ON id = shortName WHERE value LIKE '%ReduceScatter%'"
            )
            count, lasts = count + own[0], lasts + own[1]
    work = dict(made.list_work("communication"))["NCCL ReduceScatter"][0]
    assert work is not None
    assert (work.count, work.time_ns) == (count / iterations, lasts / iterations)
    assert "Communication" not in dict(made.list_work("kernels"))
    for sort, own in made.runs[0].work.items():
        assert [*own] == [name for name, _ in made.list_work(sort)], "JSON has one order"
    assert "| NCCL ReduceScatter | " in made.markdown()


def test_computation_that_does_not_scale_is_told_by_class() -> None:
    slow = {"kernels": {"GEMM": {"count": 4, "time_ns": 4e5}, "Copy": {"count": 1, "time_ns": 2e5}}}
    quick = {
        "kernels": {"GEMM": {"count": 4, "time_ns": 2e5}, "Copy": {"count": 1, "time_ns": 2e5}}
    }
    runs = make_runs({"work": quick}, {"work": slow, "sums": {"useful_ns": 12e6}})
    text = summarise_study(compare_runs(runs, "strong"))
    assert (
        "Kernels of class GEMM cause most of the additional computation time per iteration: 200 us in 4 kernels → 400 us in 4 kernels"
        in text
    )


def test_two_programs_are_not_compared_without_a_word() -> None:
    made = compare_runs(make_runs({"programs": ["solver"]}, {"programs": ["train"]}, {}))
    assert any("different programs (job_2: solver; job_4: train)" in one for one in made.warnings)


def test_one_run_has_no_scalability() -> None:
    made = compare_runs(make_runs({}))
    assert write_title(made) == "POP assessment of one run on 2 GPUs"
    assert {"speedup", "efficiency"}.isdisjoint(made.runs[0].metrics)
    assert "Speed-up" not in format_study(made, Style(width=100))


def test_balance_of_a_program_of_mpi_alone(tmp_path: Path) -> None:
    """Compare the time of each rank outside MPI with SQL; plots show it."""
    with tarfile.open(
        SAMPLES.parent / "tests" / "mpi_patterns" / "recordings.tar.xz"
    ) as recordings:
        members = [one for one in recordings if one.name.startswith("alltoall/")]
        recordings.extractall(tmp_path, members, filter="data")
    made = study([tmp_path / "alltoall"])
    (run,) = made.runs
    assert statistics.fmean(run.balance.values()) == pytest.approx(run.metrics["mpi"]["parallel"])
    calls = """SELECT end - start FROM MPI_COLLECTIVES_EVENTS JOIN StringIds ON id = textId
        WHERE value = 'MPI_Alltoall' ORDER BY start DESC LIMIT ?"""
    length = run.interval.end_ns - run.interval.begin_ns
    for number, (rank, outside) in enumerate(run.balance.items()):
        assert rank == f"rank {number}"
        with sqlite3.connect(tmp_path / "alltoall" / f"rank{number}.sqlite") as database:
            inside = sum(time for (time,) in database.execute(calls, [run.interval.iterations]))
        assert outside == pytest.approx(1 - inside / length, abs=2e-3)
    assert {"runs", "balance_1"} <= made.pictures().keys()


def test_hosts_of_a_region_are_those_of_its_thread() -> None:
    """Check that the backward pass belongs to autograd's thread, not to the thread with the
    iterations.
    """
    made = study([SAMPLES / "graphs"], regions=("layer_00.backward",))
    run = made.runs[0]
    outside = whole = 0
    for report in sorted((SAMPLES / "graphs").glob("*.sqlite")):
        with sqlite3.connect(report) as database:
            rows = database.execute(
                "SELECT start, end, globalTid FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId"
                " WHERE coalesce(text, value) = 'layer_00.backward' ORDER BY start"
            ).fetchall()
            for begin, end, thread in rows[-run.interval.iterations :]:
                calls = database.execute(
                    "SELECT max(start, ?), min(end, ?) FROM CUPTI_ACTIVITY_KIND_RUNTIME"
                    " WHERE globalTid = ? AND start < ? AND end > ?",
                    (begin, end, thread, end, begin),
                ).fetchall()
                whole += end - begin
                outside += end - begin - sum(last - first for first, last in calls)
    assert run.regions["layer_00.backward"]["host"]["offload"] == pytest.approx(outside / whole)
