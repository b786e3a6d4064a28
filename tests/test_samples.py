"""The sample reports: what was put in comes out, and nothing that must not."""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from samples import Options as SampleOptions
from samples import generate
from samples.__main__ import main as write_sample
from tools.sql_truth import make_label
from tools.trace_reader import read_trace

from nsys2prv import Options, convert
from nsys2prv.nsight.sqlite import Database

SAMPLES = Path(__file__).parent.parent / "sample_reports"
SECRET = b"planted-secret"
KERNEL_TYPES = (63000006, 63000007)


def list_reports(name: str) -> list[Path]:
    return sorted((SAMPLES / name).glob("rank*.sqlite"))


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("training") / "out.prv"
    convert(list_reports("training"), output, Options(full_kernel_names=True, align="utc"))
    return output


@pytest.mark.slow
def test_kernels_are_those_put_in(training: Path) -> None:
    trace = read_trace(training)
    assert not trace.violations, trace.violations
    for number, rank in enumerate(
        json.loads((SAMPLES / "training" / "truth.json").read_text())["ranks"], 1
    ):
        expected = {
            make_label(name): (kernel["rows"], kernel["ns"])
            for name, kernel in rank["tables"]["CUPTI_ACTIVITY_KIND_KERNEL"]["by_name"].items()
        }
        count: Counter[str] = Counter()
        time: Counter[str] = Counter()
        for code in KERNEL_TYPES:
            for interval in trace.list_intervals(code):
                if interval.row[0] == number:
                    count[trace.get_label(code, interval.value)] += 1
                    time[trace.get_label(code, interval.value)] += interval.end - interval.begin
        assert {name: (count[name], time[name]) for name in count} == expected


@pytest.mark.slow
def test_ranks_of_one_host_keep_their_true_distance(training: Path) -> None:
    """Each rank's first kernel, against the true capture starts: exact within a host but for its
    drift.
    """
    truth = json.loads((SAMPLES / "training" / "truth.json").read_text())
    trace = read_trace(training)
    starts = {}
    for number, rank in enumerate(truth["ranks"], 1):
        with Database(SAMPLES / "training" / rank["report"]) as report:
            local = report.query("SELECT min(start) FROM CUPTI_ACTIVITY_KIND_KERNEL")[0][0]
        first = min(
            interval.begin
            for code in KERNEL_TYPES
            for interval in trace.list_intervals(code)
            if interval.row[0] == number
        )
        starts[rank["host"], number] = first - local - rank["capture_start_true_ns"]
    for host, drift in ((host["name"], host["drift_ppm"]) for host in truth["hosts"]):
        errors = [error for (name, _), error in starts.items() if name == host]
        assert max(errors) - min(errors) <= abs(drift) * 1e-6 * 1e9 + 1


@pytest.mark.parametrize("name", ["training", "graphs"])
def test_no_secret_of_the_environment_leaks(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from nsys2prv.cli import main

    assert any(SECRET in path.read_bytes() for path in list_reports(name)), (
        "the sample must hold the secret"
    )
    assert main(["-v", *map(str, list_reports(name)), str(tmp_path / "out.prv")]) == 0
    assert main(["--list", *map(str, list_reports(name))]) == 0
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert SECRET not in written
    captured = capsys.readouterr()
    assert SECRET.decode() not in captured.out + captured.err


@pytest.mark.slow
def test_the_form_of_payloads_changes_nothing(tmp_path: Path) -> None:
    """Each form is compared with the truth in the tests of collectives."""
    for form in ("json", "binary", "dynamic", "mixed"):
        generate(
            tmp_path / form,
            SampleOptions(
                ranks=2,
                hosts=1,
                steps=2,
                layers=1,
                payload=form,
                nccl_rooted=True,
                nccl_groups=True,
            ),
        )
        convert(sorted((tmp_path / form).glob("rank*.sqlite")), tmp_path / f"{form}.prv")
    with Database(tmp_path / "dynamic" / "rank1.sqlite") as report:
        assert report.query("SELECT count(jsonText), count(binaryData) FROM NVTX_EVENTS") == [
            (0, 0)
        ]
    for ending in (".prv", ".pcf"):
        assert (
            len(
                {
                    (tmp_path / f"{form}{ending}").read_bytes()
                    for form in ("json", "binary", "dynamic", "mixed")
                }
            )
            == 1
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.parent.name for path in SAMPLES.glob("*/truth.json")))
def test_committed_samples_come_out_of_the_generator(name: str, tmp_path: Path) -> None:
    """By the commands of their README; the header of a SQLite file has the version of the library
    that wrote it.
    """
    command = re.search(
        rf"`python -m tools\.samples sample_reports/{name} (.*?)`",
        (SAMPLES / "README.md").read_text(encoding="utf-8"),
    )
    assert command
    write_sample([str(tmp_path), *command[1].split()])
    assert (tmp_path / "truth.json").read_bytes() == (SAMPLES / name / "truth.json").read_bytes()
    for report in list_reports(name):
        with (
            closing(sqlite3.connect(tmp_path / report.name)) as generated,
            closing(sqlite3.connect(report)) as committed,
        ):
            assert list(generated.iterdump()) == list(committed.iterdump())


def test_generator_repeats_itself(tmp_path: Path) -> None:
    options = SampleOptions(ranks=2, hosts=1, events_per_rank=100)
    for folder in ("a", "b"):
        generate(tmp_path / folder, options)
    for path in sorted((tmp_path / "a").iterdir()):
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()
