"""Test reports that begin late, end early, or contain only ranges: time that is not covered is not
idle time. All values are computed here from the definitions, for jobs made by hand.
"""

from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest
from tools.exports import (
    KERNEL,
    PID,
    Row,
    make_export,
    make_global_tid,
    make_host,
    make_kernel,
    make_strings,
)

import nsys2prv
from nsys2prv.cli import main

UTC, US = 1_780_000_000_000_000_000, 1000
GEMM, BARRIER = 1, 2


def export_rank(
    folder: Path,
    rank: int,
    busy: Sequence[tuple[int, int]],
    session: tuple[int, int] | None = (0, 1000),
    launched: int | None = 0,
    barriers: Sequence[int] = (),
    times: str = "",
) -> Path:
    """Write a report of a rank whose GPU computes at these times of the job (us). session: start
    and stop of its capture. launched: time when the profiler launched the process. barriers: begins
    of calls of 1 us. times: argument of `nsys export --times`.
    """
    begin, end = session or (0, 1000)

    def place(time: int) -> int:
        return (time - begin) * US

    def make_barrier(time: int) -> Row:
        thread = {"globalTid": make_global_tid(PID + rank, PID + rank), "commHandle": 1}
        return {"start": place(time), "end": place(time + 1), "textId": BARRIER, **thread}

    kernels = [
        make_kernel(place(first), place(last), globalPid=make_global_tid(0, PID + rank))
        for first, last in busy
    ]
    messages = [(begin, "Profiling has started."), (end, "Profiling has stopped.")]
    messages += [] if launched is None else [(launched, "Process was launched by the profiler")]
    return make_export(
        folder / f"rank{rank}.sqlite",
        {
            "StringIds": make_strings("gemm", "MPI_Barrier"),
            KERNEL: kernels,
            "MPI_COLLECTIVES_EVENTS": [make_barrier(time) for time in barriers],
            "META_DATA_EXPORT": [{"name": "EXPORT_PARAM_TIMES_TO_EXPORT", "value": times}],
            **make_host("node", UTC + begin * US, 500 + begin * US),
            **(
                {
                    "ANALYSIS_DETAILS": [{"duration": (end - begin) * US}],
                    "DIAGNOSTIC_EVENT": [
                        {"timestamp": place(time), "text": text, "severity": 1}
                        for time, text in messages
                    ],
                }
                if session
                else {}
            ),
        },
    )


#: The other rank computes 0-300, 400-500, 700-1000 us; this one is what a rank looks like.
OTHER = [(0, 300), (400, 500), (700, 1000)]
LATE = [(600, 700), (800, 1000)]
CALLS = (20, 120, 220, 320)
CASES = {
    "its capture begins late": ({"session": (400, 1000), "launched": None}, 400, 1000),
    "launched before the capture": ({"session": (400, 1000), "launched": -50}, 400, 1000),
    "launched late": ({"session": (400, 1000), "launched": 410}, 0, 1000),
    "launched late by its messages, but others called": (
        {"session": (400, 1000), "launched": 410, "barriers": (900,), "of_other": CALLS},
        400,
        1000,
    ),
    "its capture ends early": ({"session": (0, 800), "busy": [(0, 100), (700, 800)]}, 0, 800),
    "rows before its first": ({"barriers": (900,), "of_other": (*CALLS, 900)}, 600, 1000),
    "rows after its last": ({"busy": [(0, 80)], "barriers": (100,), "of_other": CALLS}, 0, 101),
    "it is idle, for all that is known": ({"busy": [(0, 100)]}, 0, 1000),
    "a range of its times": ({"times": "0.0006/"}, 600, 1000),
    "nothing at the begin of its capture": ({"session": (-500, 1000)}, 0, 1000),
    "no word of its capture": ({"session": None}, 0, 1000),
}


@pytest.mark.parametrize("case", CASES)
def test_efficiencies_are_of_the_time_that_all_reports_cover(case: str, tmp_path: Path) -> None:
    options, begin, end = CASES[case]
    options = {"busy": LATE, **options}
    calls = options.pop("of_other", ())
    reports = [export_rank(tmp_path, 0, OTHER, barriers=calls), export_rank(tmp_path, 1, **options)]
    useful = [
        sum(max(min(last, end) - max(first, begin), 0) for first, last in busy)
        for busy in (OTHER, options["busy"])
    ]
    with nsys2prv.open(reports) as job:
        results, notes = job.analyse(), job.notes
    rows = results["efficiencies"].tables["device"].frame
    row = rows.row(by_predicate=pl.col("part") == "whole job", named=True)
    assert row["elapsed_ns"] == (end - begin) * US
    assert row["useful_ns"] == sum(useful) * US
    assert row["parallel_efficiency"] == pytest.approx(sum(useful) / (2 * (end - begin)))
    assert row["load_balance_efficiency"] == pytest.approx(sum(useful) / 2 / max(useful))
    gaps = results["idle"].tables["gaps"].frame
    assert gaps["time_ns"].sum() == (2 * (end - begin) - sum(useful)) * US
    assert any("efficiencies, overlap" in line for line in notes) == (end - begin < 1000)
    unseen = any("nsys started 500 us before the first program event" in line for line in notes)
    assert unseen == case.startswith("nothing")


def test_reports_that_never_overlap_have_no_efficiencies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export_rank(tmp_path, 0, [(0, 300)], session=(0, 400))
    export_rank(tmp_path, 1, [(700, 900)], session=(600, 1000), launched=None)
    assert main(["report", "-q", "--full", str(tmp_path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "the reports of the processes have no common time" in shown
    assert "No bottleneck found" not in shown
    assert "nan" not in shown


def test_what_only_helpers_have_is_no_time_of_the_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A launcher that is recorded before and after its ranks changes none of their figures."""
    for folder, names in ((tmp_path / "bare", ()), (tmp_path / "launched", ("mpirun",))):
        folder.mkdir()
        for rank in range(2):
            export_rank(folder, rank, [(300, 420), (440, 500)])
        thread = {"globalTid": make_global_tid(900, 900), "nameId": 1}
        for name in names:
            make_export(
                folder / f"{name}.sqlite",
                {
                    "StringIds": make_strings("poll"),
                    "OSRT_API": [
                        {"start": at * US, "end": (at + 50) * US, **thread} for at in (0, 400, 950)
                    ],
                    **make_host("node", UTC, 500),
                },
            )
    figures = []
    for name in ("bare", "launched"):
        with nsys2prv.open(tmp_path / name) as job:
            tables = job.analyse("efficiencies", "idle")
            told = job.describe()
            figures.append((tables["efficiencies"].tables["devices"].frame, told["processes"]))
            assert told["covered_ns"] == 200 * US
            if name == "launched":
                assert (told["job_ns"], told["duration_ns"]) == (200 * US, 1000 * US)
    assert figures[0][0].equals(figures[1][0])
    assert figures[0][1] == figures[1][1]
    for more in ((), ("--ranks", "0")):
        assert main(["report", "--full", str(tmp_path / "launched"), *more]) == 0
        text = " ".join(capsys.readouterr().out.split())
        assert "the time in which ranks have events (0.0003" in text
        assert "excluded from all figures: mpirun.sqlite" in text
