"""Test `nsys2prv quality`: missing data of a capture, and the command that records it."""

import json
import shutil
import sqlite3
from pathlib import Path

import pytest
from tools.commands import run_command
from tools.exports import make_export, make_os_call, make_strings
from tools.folders import convert_export_folder

import nsys2prv
from nsys2prv._util.files import load_shipped_file
from nsys2prv._util.text import capitalize

SAMPLES = Path(__file__).parents[2] / "sample_reports"


def test_a_capture_without_kernels_of_graphs_lacks_something(tmp_path: Path) -> None:
    answer = tmp_path / "quality.json"
    done = run_command("quality", "-q", str(SAMPLES / "graphs"), "--json", str(answer))
    assert done.returncode == 6
    facts = json.loads(answer.read_text())
    assert [note["kind"] for note in facts["lacking"]] == ["graphs_as_a_whole"]
    assert facts["command"] in done.stdout
    assert "--cuda-graph-trace=node" in facts["command"].split()
    # The program and its arguments are those of the report, also of a folder of tables.
    assert facts["command"].endswith(" --output=rank%q{RANK} python3 train.py")
    folder = convert_export_folder(SAMPLES / "graphs" / "rank0.sqlite", tmp_path / "rank0")
    alone = facts["command"].replace("--output=rank%q{RANK} ", "")
    assert alone in run_command("quality", "-q", str(folder)).stdout


def test_a_capture_with_all_that_figures_need() -> None:
    done = run_command("quality", "-q", str(SAMPLES / "training"))
    assert done.returncode == 0
    assert "No required data is missing" in done.stdout
    # Metrics of GPUs are in it, thread states are not.
    assert "--gpu-metrics-devices" not in done.stdout
    assert "--cpuctxsw=process-tree" in done.stdout


def test_missing_and_mixed_reports_are_missing_data(tmp_path: Path) -> None:
    reports = [str(SAMPLES / "training" / f"rank{rank}.sqlite") for rank in (0, 1, 3)]
    other = str(SAMPLES / "graphs" / "rank0.sqlite")
    answer = tmp_path / "quality.json"
    for given, kind in ((reports, "ranks_missing"), ([*reports[:1], other], "reports_mixed")):
        done = run_command("quality", "-q", *given, "--json", str(answer))
        assert done.returncode == 6
        assert "No required data is missing" not in done.stdout
        (note,) = [one for one in json.loads(answer.read_text())["lacking"] if one["kind"] == kind]
        assert f"  {note['text']}" in done.stdout.splitlines()


def test_what_is_recorded_is_not_asked_for_again(tmp_path: Path) -> None:
    report = tmp_path / "rank0.sqlite"
    shutil.copy(SAMPLES / "training" / "rank0.sqlite", report)
    with sqlite3.connect(report) as connection:
        connection.execute("DROP TABLE OSRT_API")
    done = run_command("quality", "-q", str(report))
    traced = next(word for word in done.stdout.split() if word.startswith("--trace=cuda"))
    assert traced == "--trace=cuda,nvtx,osrt"
    assert "--trace=osrt identifies" in done.stdout
    assert "planted-secret" not in done.stdout


@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_RANK", "PMI_RANK"])
def test_command_records_required_mpi(variable: str, tmp_path: Path) -> None:
    """The MPI library is named if its launcher identifies it."""
    tables = {
        "META_DATA_CAPTURE": [
            {"name": "MPI_TRACE_OPTIONS:COLLECT_MPI_TRACE", "value": "true"},
            {"name": "PROCESS_0:ENVIRONMENT_VARIABLE", "value": f'{variable}="0"'},
        ],
        "OSRT_API": [make_os_call(0, 40_000_000, 1)],
        "StringIds": make_strings("read"),
    }
    done = run_command("quality", "-q", str(make_export(tmp_path / "r.sqlite", tables)))
    assert done.returncode == 6
    title, command = done.stdout.splitlines()[-2:]
    assert title == "To record all of this"
    traced = next(word for word in command.split() if word.startswith("--trace="))
    assert "mpi" in traced.removeprefix("--trace=").split(",")
    assert ("--mpi-impl=openmpi" in command.split()) == variable.startswith("OMPI")


def test_command_does_not_promise_what_no_option_records() -> None:
    """Nsight Systems lost events of this job; no option brings them back."""
    done = run_command("quality", "-q", str(SAMPLES / "machine"))
    assert done.returncode == 6
    title, command = done.stdout.splitlines()[-2:]
    assert title == "To record all of this, follow the advice above and use"
    # Everything that was traced is traced again.
    traced = next(word for word in command.split() if word.startswith("--trace="))
    assert {"openacc", "opengl", "openmp"} <= {*traced.removeprefix("--trace=").split(",")}


def test_reports_and_quality_give_the_same_advice() -> None:
    """Every note of a report is in `quality`, with the same advice."""
    done = run_command("quality", "-q", str(SAMPLES / "machine"))
    with nsys2prv.open(SAMPLES / "machine", quiet=True) as job:
        notes = [note for note in job.quality if note.kind != "not_recorded"]
    assert any(note.kind == "nsight_warning" for note in notes)
    lines = done.stdout.splitlines()
    for note in notes:
        advice = lines[lines.index(f"  {note.text}") + 1]
        assert advice == f"    Try  {capitalize(note.advice)}"
    assert "No action needed" not in done.stdout
    # A fallback method does not miss data.
    assert "Required data is missing or unreliable" in done.stdout


def test_advice_to_trace_is_in_the_command() -> None:
    notes = load_shipped_file("nsys2prv.conversion", "quality.yaml")["notes"]
    required = {name: note for name, note in notes.items() if not note.get("minor")}
    advised = {
        name
        for name, note in required.items()
        if "--trace=" in note["advice"] or name == "mpi_not_recorded"
    }
    assert advised <= {name for name, note in required.items() if "option" in note}


@pytest.mark.parametrize("argument", ["missing.sqlite", "job.prv"])
def test_what_is_no_report(argument: str) -> None:
    done = run_command("quality", argument)
    assert (done.returncode, done.stdout) in [(1, ""), (2, "")]
    assert done.stderr.count("\n") == 1
