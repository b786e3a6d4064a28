"""Align clocks of hosts in generated jobs with known clocks, through the whole conversion; and
check what must stay unchanged.
"""

import shutil
import sqlite3
from fractions import Fraction
from pathlib import Path

import pytest
import yaml
from samples import Options as Job
from samples import generate
from tools.conversions import convert_and_read
from tools.slow import mark_slow_except
from tools.trace_reader import read_trace

from nsys2prv import Options, Summary, convert
from nsys2prv.cli import main

RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
MPI_TABLES = [f"MPI_{name}_EVENTS" for name in ("P2P", "COLLECTIVES", "START_WAIT", "OTHER")]
SAMPLES = Path(__file__).parents[2] / "sample_reports"
#: Events of NCCL collectives: operation, number, and what compares times on several ranks.
COLLECTIVE, NUMBER, TIMES = 9540, 9541, (9542, 9543, 9544, 9545, 9546)
NOISE: dict[str, object] = {
    "clock_offset_range_ms": 50.0,
    "clock_drift_range_ppm": 50.0,
    "end_jitter_us": 3.0,
    "waited_us": (0.0, 17.0),
}
JOBS = {
    "two hosts": Job(ranks=4, hosts=2, steps=20, layers=1, pace_ms=500, seed=11, **NOISE),
    "MPI": Job(
        ranks=8, hosts=4, steps=30, layers=1, pace_ms=400, seed=13, mpi=True, nccl=False, **NOISE
    ),
    "no payloads": Job(
        ranks=4, hosts=4, steps=20, layers=1, pace_ms=500, seed=21, payload="none", **NOISE
    ),
    "advanced trace": Job(
        ranks=4, hosts=4, steps=20, layers=1, pace_ms=500, seed=22, nccl_trace="advanced", **NOISE
    ),
}
#: What alignment must reach, ns.
GOOD = 10_000


class AlignedJob:
    """A generated job, its truth and its conversion."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name, self.folder = name, folder
        self.truth = generate(folder, JOBS[name])
        self.reports = sorted(folder.glob("rank*.sqlite"), key=lambda path: int(path.stem[4:]))
        self.summary = self.convert("out.prv")
        self.clocks = yaml.safe_load((folder / "out.clock.yaml").read_text())

    def convert(self, name: str, align: str = "auto", **options: object) -> Summary:
        return convert(self.reports, self.folder / name, Options(align=align, jobs=1, **options))

    def measure_error(self, host: int, name: str, true: float) -> float:
        """Return the error (ns) of a corrected clock at a true time (ns since the job's begin), in
        exact arithmetic.
        """
        clock, known = self.truth["hosts"][host], self.clocks["hosts"][name]
        shown = (
            Fraction(true) * (1 + Fraction(str(clock["drift_ppm"])) / 10**6) + clock["offset_ns"]
        )
        at = known["at_utc_ns"] - self.truth["epoch_utc_ns"]
        return float(
            shown
            + known["offset_ns"]
            + Fraction(known["drift_ppm"]) / 10**6 * (shown - at)
            - Fraction(true)
        )


@pytest.fixture(scope="module", params=mark_slow_except(JOBS, "two hosts"), ids=list(JOBS))
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AlignedJob:
    return AlignedJob(tmp_path_factory.mktemp("job"), request.param)


@pytest.mark.slow
def test_every_host_is_right_to_ten_microseconds_at_every_instant(job: AlignedJob) -> None:
    names = list(job.clocks["hosts"])
    assert len(names) == len(job.truth["hosts"])
    span = max(rank["capture_end_true_ns"] for rank in job.truth["ranks"])
    first = min(rank["capture_start_true_ns"] for rank in job.truth["ranks"])
    for host, name in enumerate(names):
        known = job.clocks["hosts"][name]
        reference = names.index(known["reference"])
        if host == reference:
            assert (known["offset_ns"], known["drift_ppm"]) == (0, 0.0)
            continue
        errors = [
            abs(
                job.measure_error(host, name, true)
                - job.measure_error(reference, names[reference], true)
            )
            for true in range(first, span, (span - first) // 50)
        ]
        assert max(errors) < GOOD
        assert max(errors) <= known["bound_ns"]
        shown = job.truth["hosts"]
        assert abs(shown[host]["offset_ns"] - shown[reference]["offset_ns"]) > 5 * GOOD, (
            "nothing to align"
        )


def find_anchor(job: AlignedJob, host: int) -> dict:
    """Return the report that ties a host's monotonic clock to UTC: its first."""
    names = [item["name"] for item in job.truth["hosts"]]
    return next(rank for rank in job.truth["ranks"] if names.index(rank["host"]) == host)


@pytest.mark.slow
def test_a_clock_file_gives_the_same_trace_again(job: AlignedJob) -> None:
    job.convert("again.prv", str(job.folder / "out.clock.yaml"))
    assert (job.folder / "again.prv").read_bytes() == (job.folder / "out.prv").read_bytes()
    assert (job.folder / "again.clock.yaml").read_bytes() == (
        job.folder / "out.clock.yaml"
    ).read_bytes()


@pytest.mark.slow
def test_utc_alone_and_no_clock_at_all(job: AlignedJob) -> None:
    """Return where the first API call of each report is relative to the first report's: by UTC and
    the hosts' own clocks, or by local times.
    """
    expected: dict[str, list[int]] = {"utc": [], "none": []}
    names = [host["name"] for host in job.truth["hosts"]]
    for report, rank in zip(job.reports, job.truth["ranks"], strict=True):
        first = find_anchor(job, names.index(rank["host"]))
        with sqlite3.connect(f"file:{report}?mode=ro&immutable=1", uri=True) as connection:
            local = connection.execute(f"SELECT min(start) FROM {RUNTIME}").fetchone()[0]
        expected["none"].append(local)
        expected["utc"].append(
            local + first["utcEpochNs"] + rank["systemClockNs"] - first["systemClockNs"]
        )
    for align, times in expected.items():
        job.convert(f"{align}.prv", align)
        assert not (job.folder / f"{align}.clock.yaml").exists()
        shown: dict[int, int] = {}
        for item in read_trace(job.folder / f"{align}.prv").list_intervals(63000000):
            shown[item.row[0]] = min(item.begin, shown.get(item.row[0], item.begin))
        assert [shown[task] - shown[1] for task in sorted(shown)] == [
            time - times[0] for time in times
        ]


@pytest.mark.slow
def test_of_hosts_that_are_not_placed_nobody_is_said_to_be_late(tmp_path: Path) -> None:
    """There is no MPI to align by: collectives across hosts have numbers, but nothing that compares
    times; those within a host have all.
    """
    truth = generate(tmp_path, Job(ranks=4, hosts=2, steps=3, layers=1, seed=24, **NOISE))
    across = {
        len(item["ranks"])
        for item in truth["collectives"]
        if len({rank // 2 for rank in item["ranks"]}) > 1
    }
    assert across
    timed = {}
    for method in ("mpi", "nccl"):
        trace, summary = convert_and_read(
            sorted(tmp_path.glob("rank*.sqlite")), tmp_path / f"{method}.prv", align=method
        )
        tasks: dict[int, set[int]] = {}
        late: dict[int, int] = {}
        for item in trace.list_intervals(COLLECTIVE):
            if NUMBER not in item.others:
                # Of sends and receives alone.
                continue
            number = item.others[NUMBER]
            tasks.setdefault(number, set()).add(item.row[0])
            late[number] = late.get(number, 0) + sum(item.others.get(code, 0) for code in TIMES)
        timed[method] = [
            any(
                late[number]
                for number in tasks
                if (len({(task - 1) // 2 for task in tasks[number]}) > 1) == wanted
            )
            for wanted in (False, True)
        ]
        lines = [line for line in summary.notes if "without late arrivals" in line]
        assert bool(lines) == (method == "mpi")
        assert not [line for line in summary.notes if "ends before the last one starts" in line]
    assert timed == {"mpi": [True, False], "nccl": [True, True]}


@pytest.mark.slow
def test_messages_of_a_report_that_begins_late_are_settled_by_the_end_of_their_streams(
    tmp_path: Path,
) -> None:
    truth = generate(
        tmp_path,
        Job(
            ranks=4,
            hosts=2,
            steps=6,
            layers=1,
            pace_ms=20,
            seed=5,
            mpi=True,
            clock_offset_range_ms=20.0,
            clock_drift_range_ppm=30.0,
        ),
    )
    with sqlite3.connect(tmp_path / "rank1.sqlite") as connection:
        ((first, last),) = connection.execute(f"SELECT min(start), max(start) FROM {RUNTIME}")
        begin = first + 2 * (last - first) // 3
        for table in (RUNTIME, *MPI_TABLES):
            connection.execute(f"DELETE FROM {table} WHERE start < {begin}")
    connection.close()
    trace, summary = convert_and_read(sorted(tmp_path.glob("rank*.sqlite")), tmp_path / "o.prv")
    assert not [line for line in summary.notes if "in uncertain order" in line]
    cut = truth["ranks"][1]["capture_start_true_ns"] + begin
    known = [
        message
        for message in truth["mpi"]["messages"]
        if not (message["sender"] == 1 and message["send"][0] < cut)
        and not (message["receiver"] == 1 and message["completed"] < cut)
    ]
    lines = [line for line in trace.comms if not 55_000 <= line.tag <= 55_999]
    assert 0.9 * len(known) <= len(lines) <= len(known)
    # Every line is one of the messages: of these ranks, and as long from send to receive.
    expected = sorted((m["sender"], m["receiver"], m["completed"] - m["send"][0]) for m in known)
    for line in lines:
        sender, receiver, took = line.sender[0] - 1, line.receiver[0] - 1, line.receive - line.send
        assert (
            min(abs(took - true) for s, r, true in expected if (s, r) == (sender, receiver))
            < 100_000
        )


@pytest.mark.slow
def test_one_host_alone_is_left_alone_and_an_old_clock_file_goes(tmp_path: Path) -> None:
    generate(tmp_path, Job(ranks=2, hosts=1, steps=2, layers=1, seed=18))
    reports = sorted(tmp_path.glob("rank*.sqlite"))
    (tmp_path / "auto.clock.yaml").write_text("of an earlier trace")
    convert(reports, tmp_path / "auto.prv", Options(jobs=1))
    convert(reports, tmp_path / "utc.prv", Options(align="utc", jobs=1))
    assert (tmp_path / "auto.prv").read_bytes() == (tmp_path / "utc.prv").read_bytes()
    assert not (tmp_path / "auto.clock.yaml").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "this is not a clock file"),
        ("a: [", "not YAML"),
        (
            "hosts: {n1: {offset_ns: much}}",
            "n1: not a valid clock file: Expected `int`, got `str` - at `$.offset_ns`",
        ),
        (
            "hosts: {n1: {offset_ns: 1, drift_ppm: 1.0e+9, at_utc_ns: 5}}",
            "Expected `float` <= 10000.0 - at `$.drift_ppm`",
        ),
        ("hosts: {n1: {offset_ns: 1, drift_ppm: 2.5}}", "needs at_utc_ns"),
        (
            "hosts: {n1: {offset: 5}}",
            "n1: not a valid clock file: Object contains unknown field `offset`",
        ),
        (
            "hosts: {n1: {drift_ppm: 0}}",
            "n1: not a valid clock file: Object missing required field `offset_ns`",
        ),
    ],
)
def test_what_is_no_clock_file_is_one_line(
    text: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "my.clock.yaml"
    if text is not None:
        file.write_text(text)
    assert main(["--align", str(file), str(tmp_path / "r.sqlite"), str(tmp_path / "o.prv")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("nsys2prv: error: ")
    assert message in error
    assert error.count("\n") == 1


def test_hosts_that_a_clock_file_does_not_know_are_said(tmp_path: Path) -> None:
    generate(tmp_path, Job(ranks=2, hosts=2, steps=2, layers=1, seed=19))
    (tmp_path / "my.yaml").write_text("hosts: {node02: {offset_ns: 1000}}")
    summary = convert(
        sorted(tmp_path.glob("rank*.sqlite")),
        tmp_path / "o.prv",
        Options(align=str(tmp_path / "my.yaml"), jobs=1),
    )
    assert any("node01: not in the clock file" in warning for warning in summary.warnings)
    assert list(yaml.safe_load((tmp_path / "o.clock.yaml").read_text())["hosts"]) == ["node02"]


def test_reports_that_name_no_host_have_clocks_of_their_own(tmp_path: Path) -> None:
    truth = generate(
        tmp_path, Job(ranks=3, hosts=3, steps=12, layers=1, pace_ms=100, seed=23, **NOISE)
    )
    reports = sorted(tmp_path.glob("rank*.sqlite"))
    for report in reports:
        with sqlite3.connect(report) as connection:
            connection.execute("DELETE FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'Hostname'")
            connection.execute("UPDATE TARGET_INFO_SESSION_START_TIME SET systemClockNs = NULL")
        connection.close()
    convert(reports, tmp_path / "o.prv", Options(jobs=1))
    clocks = yaml.safe_load((tmp_path / "o.clock.yaml").read_text())["hosts"]
    assert list(clocks) == [f"unknown node {report.name}" for report in reports]
    first = truth["hosts"][0]
    for host, clock in list(zip(truth["hosts"], clocks.values(), strict=True))[1:]:
        assert clock["offset_ns"] == pytest.approx(
            first["offset_ns"] - host["offset_ns"], abs=2_000_000
        )
        assert abs(first["offset_ns"] - host["offset_ns"]) > 3_000_000


@pytest.mark.parametrize("days", [190, -10_000])
def test_a_clock_that_is_any_time_off_gives_the_same_trace(days: int, tmp_path: Path) -> None:
    """The clock of the second host is set back or forward; only the correction shows it."""
    lines, clocks, off = [], [], days * 86_400 * 10**9
    for by in (0, off):
        folder = tmp_path / str(by)
        shutil.copytree(SAMPLES / "training", folder)
        for rank in (2, 3) if by else ():
            with sqlite3.connect(folder / f"rank{rank}.sqlite") as connection:
                connection.execute(
                    "UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = utcEpochNs + ?", (by,)
                )
        convert(sorted(folder.glob("rank*.sqlite")), folder / "out.prv")
        text = (folder / "out.prv").read_text()
        lines.append([line for line in text.splitlines() if not line.startswith("#")])
        clocks.append(yaml.safe_load((folder / "out.clock.yaml").read_text())["hosts"]["node02"])
    assert lines[0] == lines[1]
    moved = {
        name: clocks[0][name] + sign * off for name, sign in (("offset_ns", -1), ("at_utc_ns", 1))
    }
    assert clocks[1] == {**clocks[0], **moved}
