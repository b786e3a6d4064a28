"""Test waits for CPUs: the ranks that wait, the cost, and other waits that do not count."""

from pathlib import Path

import pytest
from tools.exports import make_export, make_global_pid, make_global_tid, make_rows, make_strings

import nsys2prv

MS = 1_000_000
STEPS, SLICE, SLICES = 30, 3 * MS, 4
#: What all ranks meet after: as long as all of their slices one after the other.
STEP = 2 * SLICE * SLICES + MS
NAMES = ("MPI_Init", "MPI_Finalize", "MPI_Allreduce", "program", "nanosleep", "node1")


def write_job(
    folder: Path,
    cpus: tuple[int, int],
    sleeps: bool = False,
    short: bool = False,
    system: bool = True,
) -> list[Path]:
    """Write reports of two ranks that run in turns, four slices a step each, on these CPUs, and meet.
    sleeps: calls of the system say that a rank sleeps in turns. short: it runs for 20 us in its turns,
    the other one for the rest. system: calls of the system are recorded.
    """
    reports = []
    for rank, cpu in enumerate(cpus):
        thread, runs, sleeping, meets = make_global_tid(7 + rank, 7 + rank), [], [], []
        for step in range(STEPS):
            begin = MS + step * STEP
            turns = [begin + (2 * turn + rank) * SLICE for turn in range(SLICES)]
            ends = [turn + (20_000 if short and not rank else SLICE) for turn in turns]
            starts = [turn - SLICE + 20_000 if short and rank else turn for turn in turns]
            runs += [*zip(starts, ends, strict=True), (begin + STEP - MS, begin + STEP - MS // 2)]
            sleeping += zip([begin, *ends[:-1]], turns, strict=True)
            meets.append((ends[-1], begin + STEP - MS // 2))
        last = MS + STEPS * STEP
        calls = make_rows(
            "start end globalTid textId", *((start, end, thread, 3) for start, end in meets)
        )
        others = make_rows(
            "start end globalTid textId", (0, MS, thread, 1), (last, last + MS, thread, 2)
        )
        runs += [(last, last + MS)]
        tables = {
            "StringIds": make_strings(*NAMES),
            "MPI_RANKS": make_rows("globalTid rank", (thread, rank)),
            "PROCESSES": make_rows("globalPid name", (make_global_pid(7 + rank), "program")),
            "MPI_OTHER_EVENTS": others,
            "MPI_COLLECTIVES_EVENTS": calls,
            "SCHED_EVENTS": make_rows(
                "start cpu isSchedIn globalTid",
                *(
                    (time, cpu, runs_now, thread)
                    for run in runs
                    for time, runs_now in zip(run, (1, 0), strict=True)
                ),
            ),
            "TARGET_INFO_SYSTEM_ENV": make_rows("name nameEnum value", ("Hostname", 1, "node1")),
        }
        if system:
            columns = "start end eventClass globalTid nameId returnValue nestingLevel"
            rows = (
                (start, end, 27, thread, 5, 0, 0)
                for start, end in (sleeping if sleeps else [(10, 20)])
            )
            tables["OSRT_API"] = make_rows(columns, *rows)
        reports.append(make_export(folder / f"rank{rank}.sqlite", tables))
    return reports


@pytest.mark.parametrize("system", [True, False])
def test_ranks_that_share_a_cpu(system: bool, tmp_path: Path) -> None:
    with nsys2prv.open(write_job(tmp_path, (0, 0), system=system), quiet=True) as job:
        first, *others = job.findings()
        host = job.analyse("efficiencies")["efficiencies"].tables["host"]
        efficiency = host.frame["cpu_efficiency"]
    assert (first.kind, first.title) == ("cpu_waits", "Ranks 0, 1 (node1) share CPU 0")
    assert first.ranks == (0, 1)
    # On a CPU of its own each has done its slices in half of the time.
    assert first.share == pytest.approx(SLICE * SLICES / STEP, rel=0.1)
    assert not [one for one in others if one.ranks]
    assert efficiency[0] == pytest.approx(SLICES / (2 * SLICES - 0.5), rel=0.05)


@pytest.mark.parametrize(
    ("cpus", "how"),
    [
        ((0, 1), {"sleeps": True}),
        ((0, 0), {"sleeps": True}),
        # A CPU that is free is waited for by nobody.
        ((0, 1), {"system": False}),
        # What runs so shortly has gone to sleep, whoever runs meanwhile.
        ((0, 0), {"system": False, "short": True}),
    ],
)
def test_threads_that_sleep(cpus: tuple[int, int], how: dict[str, bool], tmp_path: Path) -> None:
    with nsys2prv.open(write_job(tmp_path, cpus, **how), quiet=True) as job:
        assert "cpu_waits" not in [one.kind for one in job.findings()]
