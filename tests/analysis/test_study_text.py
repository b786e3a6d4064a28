"""Test that a study as text, table, page and TALP files describes its values completely and
correctly.
"""

import csv
import json
import re
from pathlib import Path

import pytest
from msgspec import convert
from msgspec.structs import replace
from tools.studies import make_run, make_study_data

from nsys2prv.figures.study_model import ROW_OF, Run
from nsys2prv.show.page import make_study_page
from nsys2prv.show.study import formats
from nsys2prv.show.study.formats import Study, format_markdown, format_study
from nsys2prv.show.study.summary import summarise_study
from nsys2prv.show.text import COLOURS, Style, make_figure_column

HOSTILE = "</style><script>alert(1)</script>|\x1b[31m"


@pytest.fixture
def study() -> Study:
    return Study.from_dict(make_study_data())


def test_growth_of_work_is_the_measured_one(study: Study) -> None:
    """Weak scaling is a choice; the work may grow by less than the number of GPUs."""
    why = "the work of an iteration grows as GPUs^0.65"
    study.scaling = replace(study.scaling, used="weak", why=why)
    text = summarise_study(study)
    assert text.startswith(f"From 4 to 16 GPUs, {why}, and an iteration ")
    assert "As weak scaling, this is a speed-up of" in text
    study.scaling = replace(study.scaling, why="")
    for said in (text, summarise_study(study)):
        assert "in proportion" not in said


def test_figures_beside_each_other_with_marks(study: Study) -> None:
    lines = format_study(study, Style(width=80)).splitlines()
    assert max(map(len, lines)) <= 80
    row = next(line for line in lines if "Device parallel efficiency" in line)
    # 79.96% is printed as 80.0%, which is not below it.
    assert " ".join(row.split()) == "Device parallel efficiency 95.0% 80.0% 55.0%!"
    figures = [(ROW_OF["device.parallel"], 0.7994), (ROW_OF["speedup"], 0.5), (None, None)]
    column = make_figure_column("", figures, Style(colours=True))
    assert column.cells == ["79.9%-", "0.50 ", ""]
    assert column.colours == [COLOURS["fair"], "", ""]
    assert not [line for line in lines if "MPI" in line], "what is not known has no row"


def test_four_runs_beside_each_other_and_more_below(study: Study) -> None:
    study.runs += convert([make_run(32, 0.5, 0.7), make_run(64, 0.4, 0.6)], list[Run])
    text = format_study(study, Style(width=80))
    rows = [line for line in text.splitlines() if "Device orchestration efficiency" in line]
    assert [row.count("98.0%") for row in rows[:2]] == [4, 1]
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("scaling", ["strong", "weak"])
def test_the_paragraph_has_the_figures_of_the_table(study: Study, scaling: str) -> None:
    study.scaling = replace(study.scaling, used=scaling)
    text = summarise_study(study).replace(" us", " µs")
    printed = re.findall(r"\d+\.\d%", text)
    table = format_markdown(study)
    assert len(printed) >= 6
    assert [figure for figure in printed if figure not in table.replace(text, "")] == []
    assert text.startswith("From 4 to 16 GPUs")
    assert "device communication efficiency 96.9% → 56.1%" in text
    assert "Region backward loses the most time" in text


def test_a_run_that_is_not_compared(study: Study) -> None:
    last = study.runs[-1]
    last.interval = replace(last.interval, iterations=0)
    for name in ("speedup", "efficiency"):
        del last.metrics[name]
    text = format_study(study, Style(width=80))
    assert "16 GPUs is not compared with 4 GPUs" in text
    elapsed = next(line for line in text.splitlines() if "Elapsed time" in line)
    assert elapsed.endswith("-"), "the time of all of it is not that of an iteration"


def test_csv_and_markdown(study: Study) -> None:
    study.runs[1].label = HOSTILE
    rows = {row[0]: row[1:] for row in csv.reader(formats.format_csv(study).splitlines())}
    assert rows["device.parallel"] == ["0.95", "0.7996", "0.55"]
    assert rows["region backward: elapsed_ns"] == [
        f"{run.metrics['elapsed_ns'] * 0.6:.6g}" for run in study.runs
    ]
    tables = [line for line in format_markdown(study).splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in tables} == {5}


def test_the_page_of_a_study_is_alone(study: Study, tmp_path: Path) -> None:
    study.runs[1].label = study.regions[0] = HOSTILE
    report = tmp_path / "runs" / "job_4"
    report.mkdir(parents=True)
    (report / "job.html").write_text("<title>x - nsys2prv report</title>")
    study.reference = study.runs[0].name = str(report)
    page = make_study_page(study, tmp_path / "study.html")
    assert " style=" not in page, "the policy refuses it"
    assert re.findall(r'(?:src|href)="([^"#]+)"', page) == ["data:,", "runs/job_4/job.html"]


def test_files_of_talp(study: Study, tmp_path: Path) -> None:
    del study.runs[0].regions["forward"]
    paths = formats.write_talp_files(study, tmp_path)
    names = [path.relative_to(tmp_path).as_posix() for path in paths]
    assert names == ["strong/1_job_4.json", "strong/2_job_8.json", "strong/3_job_16.json"]
    last = json.loads(paths[-1].read_text())["Application"]
    assert [*last] == ["Global", "backward"], "TALP-Pages stops where a run lacks a region"
    assert last["Global"]["gpuParallelEfficiency"] == 0.55
    elapsed = study.runs[-1].metrics["elapsed_ns"] * 9
    assert last["Global"]["elapsedTime"] == round(elapsed)
    assert last["Global"]["gpuUsefulTime"] == round(0.55 * 16 * elapsed)


def test_names_in_markdown_and_csv_mean_nothing_there(study: Study) -> None:
    study.runs[1].label = "=cmd|' /C calc'!A0"
    study.runs[2].label = "void gemm<float, *T*>(a | b) & __c__"
    text = format_markdown(study)
    assert r"void gemm&lt;float, \*T\*&gt;(a \| b) &amp; \_\_c\_\_" in text
    assert "<float" not in text
    heads = next(csv.reader(formats.format_csv(study).splitlines()))
    assert heads[2] == "'=cmd|' /C calc'!A0"
    for name in ("=1+1", "+1", "-1", "@SUM(A1)"):
        study.runs[0].label = name
        assert next(csv.reader(formats.format_csv(study).splitlines()))[1] == f"'{name}"
    assert formats._write_number(-1.5) == "-1.5"
