"""Test that all engines give the same bytes, and that a lost worker ends the run in one line."""

import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import (
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from tools.commands import ENVIRONMENT, wait_for

from nsys2prv import Options, convert
from nsys2prv._util import workers
from nsys2prv._util.errors import Nsys2prvError, UsageError
from nsys2prv._util.workers import MOST_REPORTS_OF_THREADS, MOST_THREADS, Pool, count_available_cpus
from nsys2prv.conversion import convert as opening
from nsys2prv.conversion.write import append_window, prepare_pieces

SAMPLES = sorted((Path(__file__).parents[2] / "sample_reports" / "training").glob("rank*.sqlite"))


@pytest.fixture
def every_job_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "SMALL_JOB_ROWS", 0)


def read_trace_bytes(folder: Path, **options: object) -> list[bytes]:
    folder.mkdir()
    convert(SAMPLES, folder / "out.prv", Options(**options))
    return [path.read_bytes() for path in sorted(folder.iterdir())]


@pytest.mark.slow
@pytest.mark.usefixtures("every_job_is_large")
def test_engines_give_the_same_bytes(tmp_path: Path) -> None:
    alone = read_trace_bytes(tmp_path / "alone")
    assert len(alone) == 5
    for name, options in {
        "processes": {"engine": "processes", "jobs": 3},
        "threads": {"engine": "threads", "jobs": 3},
        "dask": {"engine": "dask", "jobs": 2},
    }.items():
        assert read_trace_bytes(tmp_path / name, **options) == alone, name


@pytest.mark.slow
@pytest.mark.usefixtures("every_job_is_large")
def test_a_running_dask_cluster(tmp_path: Path) -> None:
    from distributed import LocalCluster

    log = logging.getLogger("tornado.application")
    level = log.level
    alone = read_trace_bytes(tmp_path / "alone")
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        assert (
            read_trace_bytes(
                tmp_path / "cluster", engine="dask", scheduler=cluster.scheduler_address
            )
            == alone
        )
    assert not list(tmp_path.glob("*/.*"))
    assert log.level == level


@pytest.mark.slow
def test_workers_that_do_not_see_the_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distributed = pytest.importorskip("distributed")
    for report in SAMPLES:
        shutil.copy(report, tmp_path)
    monkeypatch.chdir(tmp_path)
    names = [report.name for report in SAMPLES]
    cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
    with cluster, distributed.Client(cluster) as client:
        client.run(os.chdir, "/")
        options = Options(engine="dask", scheduler=cluster.scheduler_address)
        with pytest.raises(
            Nsys2prvError, match=r"rank0\.sqlite: not found by the worker on .*share"
        ):
            convert(names, tmp_path / "out.prv", options)
        assert set(client.run(lambda: os.environ["POLARS_MAX_THREADS"]).values()) == {"1"}
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


def test_folders_that_a_worker_does_not_see(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as executor:
        pool = Pool(executor, 2, is_remote=True)
        pool.check_shared([tmp_path])
        with pytest.raises(Nsys2prvError, match=r"local: not found by the worker on"):
            pool.check_shared([tmp_path, tmp_path / "local"])
        # Workers of this machine are not asked.
        Pool(executor, 2).check_shared([tmp_path / "local"])


def test_no_dask_scheduler_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "SCHEDULER_TIMEOUT", "0.2s")
    with pytest.raises(Nsys2prvError, match="no Dask scheduler answers there"):
        convert(
            SAMPLES, tmp_path / "out.prv", Options(engine="dask", scheduler="tcp://127.0.0.1:9")
        )


@pytest.mark.skipif(shutil.which("mpiexec") is None, reason="no MPI here")
def test_ranks_of_an_mpi_job(tmp_path: Path) -> None:
    pytest.importorskip(
        "mpi4py.MPI", reason="no mpi4py that fits the MPI here", exc_type=ImportError
    )
    alone = read_trace_bytes(tmp_path / "alone")
    program = (
        "import nsys2prv.conversion.convert as p; p.SMALL_JOB_ROWS = 0; import sys; from nsys2prv.cli import main; "
        "sys.exit(main(['-q', '--engine', 'mpi', '-m', *sys.argv[1:]]))"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
    }
    (tmp_path / "ranks").mkdir()
    subprocess.run(
        [
            "mpiexec",
            "-n",
            "3",
            sys.executable,
            "-c",
            program,
            *map(str, SAMPLES),
            str(tmp_path / "ranks" / "out.prv"),
        ],
        env=environment,
        check=True,
        timeout=120,
        capture_output=True,
    )
    assert [path.read_bytes() for path in sorted((tmp_path / "ranks").iterdir())] == alone


@pytest.mark.parametrize(
    ("engine", "scheduler", "problem"),
    [
        (
            "spark",
            None,
            "unknown engine; give one of local, processes, threads, dask, mpi",
        ),
        ("threads", "tcp://here:1", "--scheduler is for Dask only"),
    ],
)
def test_engines_that_there_are_not(
    engine: str, scheduler: str | None, problem: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=problem):
        convert(SAMPLES, tmp_path / "out.prv", Options(engine=engine, scheduler=scheduler))


def test_an_engine_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UsageError, match="pip install distributed"):
        workers.make_pool("dask", 1)


def die(task: int) -> int:
    if task == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return task


def test_what_fails_ends_threads_after_their_work() -> None:
    """Check that running tasks end before the temporary folder is removed, and waiting tasks do not
    start.
    """
    begun, go_on, over = threading.Event(), threading.Event(), []

    def work() -> None:
        begun.set()
        assert go_on.wait(60)
        over.append(True)

    with suppress(ZeroDivisionError), workers.make_pool("threads", 1) as pool, pool.ensure_end():
        futures = [pool.executor.submit(work) for _ in range(3)]
        assert begun.wait(60)
        threading.Timer(0.1, go_on.set).start()
        raise ZeroDivisionError
    assert over == [True]
    assert [future.cancelled() for future in futures] == [False, True, True]


@pytest.mark.parametrize("jobs", [1, 2])
def test_no_exception_of_a_task_ends_the_work_unnoticed(jobs: int) -> None:
    with (
        workers.make_pool("local", jobs) as pool,
        pytest.raises((RuntimeError, StopIteration)),
    ):
        list(pool.run_in_order(next, [iter([1]), iter([])]))


def test_few_workers_are_threads_and_many_are_processes() -> None:
    kinds = {
        1: type(None),
        2: ThreadPoolExecutor,
        MOST_THREADS: ThreadPoolExecutor,
        MOST_THREADS + 1: ProcessPoolExecutor,
    }
    for jobs, kind in kinds.items():
        with workers.make_pool("local", jobs) as pool:
            assert isinstance(pool.executor, kind)
    with workers.make_pool("local", 2, reports=MOST_REPORTS_OF_THREADS + 1) as pool:
        assert isinstance(pool.executor, ProcessPoolExecutor)


@pytest.mark.slow
def test_what_fails_ends_workers_at_their_work(tmp_path: Path) -> None:
    """Check that all users of the temporary folder end before it is removed."""
    with suppress(ZeroDivisionError), workers.make_pool("processes", 2) as pool, pool.ensure_end():
        for _ in range(3):
            pool.executor.submit(work_for_ever, tmp_path)
        wait_for(lambda: len(list(tmp_path.iterdir())) == 2, "no workers")
        raise ZeroDivisionError
    assert not any(Path("/proc", path.name).exists() for path in tmp_path.iterdir())


def work_for_ever(marks: Path) -> None:
    (marks / str(os.getpid())).touch()
    time.sleep(3600)


def die_within_result(task: int) -> int:
    """Send the start of a result, then die."""
    if task == 2:
        frame = sys._getframe()
        while "result_queue" not in frame.f_locals:
            frame = frame.f_back
        os.write(frame.f_locals["result_queue"]._writer.fileno(), b"\0\0\1\0begin")
        os.kill(os.getpid(), signal.SIGKILL)
    return task


@pytest.mark.slow
@pytest.mark.parametrize("task", [die, die_within_result])
def test_a_lost_worker_ends_the_work(task: Callable[[int], int]) -> None:
    with (
        workers.make_pool("processes", 2) as pool,
        pytest.raises(Nsys2prvError, match=r"^a worker process was killed, .* \(-j 1\)$"),
    ):
        list(pool.run_in_order(task, range(8)))


@pytest.mark.slow
def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    program = (
        "from concurrent.futures import wait\nfrom pathlib import Path\nimport sys\n"
        f"sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
        "from nsys2prv._util import workers\nfrom _util.test_workers import work_for_ever\n"
        "with workers.make_pool('processes', 2) as pool:\n"
        f"    wait([pool.executor.submit(work_for_ever, Path({str(tmp_path)!r})) for _ in range(2)])\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program], env=ENVIRONMENT)
    wait_for(lambda: len(list(tmp_path.iterdir())) == 2, "no workers")
    child.kill()
    child.wait()
    wait_for(
        lambda: not any(Path("/proc", path.name).exists() for path in tmp_path.iterdir()),
        "workers that stay",
    )


class Failing(Executor):
    """Executor that cannot start a worker, or accepts no task, like one with a dead worker."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def submit(self, function: object, /, *args: object, **kwargs: object) -> Future:
        raise self.error


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (
            BlockingIOError(11, "Resource temporarily unavailable"),
            r"temporarily unavailable\); try fewer \(-j 1\)$",
        ),
        (BrokenExecutor(), "a worker process was killed"),
    ],
)
def test_workers_that_cannot_be_started(error: Exception, problem: str) -> None:
    with pytest.raises(Nsys2prvError, match=problem):
        list(Pool(Failing(error), 2).run_in_order(abs, range(3)))


@pytest.mark.parametrize("in_files", [True, False])
@pytest.mark.parametrize("compress", [False, True])
def test_windows_follow_one_another(in_files: bool, compress: bool, tmp_path: Path) -> None:
    import gzip

    parts = [[b"head\n"], *([b"part %d\n" % n * 100_000, np.empty(0), b"."] for n in range(3))]
    with (tmp_path / "file").open("wb") as out:
        for number, part in enumerate(parts):
            made = prepare_pieces(part, compress)
            if in_files:
                with (tmp_path / f"part-{number}").open("wb") as file:
                    append_window(file, made)
            append_window(out, tmp_path / f"part-{number}" if in_files else made)
    result = (tmp_path / "file").read_bytes()
    assert (gzip.decompress(result) if compress else result) == b"head\n" + b"".join(
        b"part %d\n" % n * 100_000 + b"." for n in range(3)
    )
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("membership", "files", "most"),
    [
        (
            "0::/job/step\n",
            {"job/cpu.max": "150000 100000\n", "job/step/cpu.max": "max 100000\n"},
            1,
        ),
        ("0::/job\n", {"job/cpu.max": "50000 100000\n"}, 1),
        (
            "4:cpu,cpuacct:/job\n",
            {"cpu/job/cpu.cfs_quota_us": "100000\n", "cpu/job/cpu.cfs_period_us": "100000\n"},
            1,
        ),
        (
            "4:cpu,cpuacct:/job\n",
            {"cpu/job/cpu.cfs_quota_us": "-1\n", "cpu/job/cpu.cfs_period_us": "100000\n"},
            10_000,
        ),
        ("0::/\n", {}, 10_000),
    ],
)
def test_processors_of_a_control_group(
    membership: str, files: dict[str, str], most: int, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(text)
    (tmp_path / "self").write_text(membership)
    expected = min(len(os.sched_getaffinity(0)), most)
    assert count_available_cpus(tmp_path / "self", tmp_path / "groups") == expected
