"""Exports as folders of tables give the bytes of the SQLite exports of the same reports, and mean
the same in SQL.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tools.conversions import convert_to_bytes
from tools.corpus import EXPORTS, NO_CORPUS
from tools.exports import make_export
from tools.folders import convert_export_folder

from nsys2prv import Options, convert
from nsys2prv._util.errors import Nsys2prvError
from nsys2prv.cli import main
from nsys2prv.nsight import open_source
from nsys2prv.nsight.source import NULL, Part

SAMPLES = Path(__file__).parents[2] / "sample_reports"
SETS = sorted(path.name for path in SAMPLES.iterdir() if path.is_dir())
#: Every so many exports of the corpus are compared: each has its own tables and versions.
EVERY = 6


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("narrow", [True, False])
def test_same_bytes_as_sqlite(name: str, narrow: bool, tmp_path: Path) -> None:
    reports = sorted((SAMPLES / name).glob("rank*.sqlite"))
    folders = [
        convert_export_folder(report, tmp_path / "in" / f"{report.stem}.dir", narrow)
        for report in reports
    ]
    expected = convert_to_bytes(reports, tmp_path / "expected", callstack=3)
    assert len(expected) >= 3
    assert convert_to_bytes(folders, tmp_path / "folders", callstack=3) == expected
    assert (
        convert_to_bytes([*folders[:1], *reports[1:]], tmp_path / "mixed", callstack=3) == expected
    )


@pytest.mark.skipif(not EXPORTS, reason=NO_CORPUS)
@pytest.mark.parametrize("report", EXPORTS[::EVERY], ids=lambda path: path.stem[:40])
def test_same_bytes_as_real_exports(report: Path, tmp_path: Path) -> None:
    folder = convert_export_folder(report, tmp_path / f"{report.stem}.parquetdir")
    assert convert_to_bytes([folder], tmp_path / "folder") == convert_to_bytes(
        [report], tmp_path / "expected"
    )


def test_arrow_folders_are_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """nsys writes Arrow's stream format, whose files polars can only read whole."""
    folder = tmp_path / "rank0_arwdir"
    folder.mkdir()
    pl.DataFrame({"id": [1]}).write_ipc_stream(folder / "StringIds.arrow")
    for words in (["-q", str(folder), str(tmp_path / "out.prv")], ["report", "-q", str(folder)]):
        assert main(words) == 1
        line = capsys.readouterr().err
        assert "rank0_arwdir: holds Arrow tables, which nsys2prv does not read;" in line
        assert "nsys export --type parquetdir --force-overwrite true rank0.nsys-rep" in line


def test_listed_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = SAMPLES / "machine" / "rank0.sqlite"
    folder = convert_export_folder(report, tmp_path / "rank0.parquetdir")
    listed = []
    for path in (report, folder):
        assert main(["--list", str(path)]) == 0
        text = capsys.readouterr().out
        assert path.name in text
        listed.append(" ".join(text.replace(path.name, "").split()))
    assert listed[0] == listed[1]


#: Values that conditions have trouble with: NULL, 0, negative numbers, ids that fill all 64 bits.
ROWS = [
    {
        "start": number,
        "kind": [None, 0, 59, 60, -1][number % 5],
        "thread": [None, 5 << 56 | number, -1, 7][number % 4],
        "name": [None, 1, 2, 3, 9][number % 5],
        "text": [None, "", "a'b", "ü", "x"][number % 5],
    }
    for number in range(1000)
]
CONDITIONS = [
    "{kind} IN (59, 60)",
    "NOT {kind} IN (59, 60)",
    "coalesce({kind}, 59) = 59",
    "{absent} IS NULL",
    "{absent} = 1",
    "0",
    "1",
    "(coalesce({thread}, 0) & -16777216, coalesce({kind}, 0)) IN (VALUES (360287970189639680, 59), (0, 0))",
    "{kind} = 59 AND NOT (coalesce({thread}, 0) & -16777216, coalesce({kind}, 0)) IN (VALUES (360287970189639680, 59))",
    "coalesce({name} IN (SELECT id FROM StringIds WHERE value GLOB 'pthread*'), 0)",
    "{text} IS NOT NULL OR {kind} > 59",
    "{start} - coalesce({kind}, 0) BETWEEN 0 AND 100",
    "{thread} >> 56 = 5",
    "typeof({text}) = 'text' AND {text} LIKE 'A%'",
]
STRINGS = [
    {"id": 1, "value": "pthread_join"},
    {"id": 2, "value": "write"},
    {"id": 3, "value": "pthread*"},
]


@pytest.mark.parametrize("condition", CONDITIONS)
def test_conditions_mean_what_they_mean_in_sqlite(condition: str, tmp_path: Path) -> None:
    report = make_export(tmp_path / "r.sqlite", {"T": ROWS, "StringIds": STRINGS})
    with closing(sqlite3.connect(report)) as connection:
        where = condition.format_map({name: name for name in ROWS[0]} | {"absent": "NULL"})
        expected = connection.execute(
            f"SELECT start, coalesce(thread, {NULL}), coalesce(text, '') FROM T "
            f"WHERE rowid BETWEEN 101 AND 900 AND ({where})"
        ).fetchall()
        count = connection.execute(f"SELECT count(*) FROM T WHERE {where}").fetchone()[0]
    with open_source(convert_export_folder(report, tmp_path / "folder")) as source:
        actual = source.read(
            Part("T", 101, 900), ("start", "thread", "absent"), ("text",), f"({condition})"
        )
        codes, distinct = actual.texts["text"][0], actual.texts["text"][1].series
        texts = [distinct[int(code)].decode() for code in codes]
        assert (
            list(zip(actual["start"].tolist(), actual["thread"].tolist(), texts, strict=True))
            == expected
        )
        assert (actual["absent"] == NULL).all()
        assert source.count("T", condition) == count
        rows = source.select(
            f"SELECT start FROM {source.select_rows(Part('T', 101, 900), condition)} ORDER BY 1"
        )
        assert rows["start"].to_list() == [row[0] for row in expected]


def test_values_that_are_no_integers_are_counted(tmp_path: Path) -> None:
    report = make_export(
        tmp_path / "r.sqlite", {"T": [{"a": 1.5, "b": 1}, {"a": None, "b": None}]}, {"a": "REAL"}
    )
    with open_source(convert_export_folder(report, tmp_path / "folder")) as source:
        result = source.read(source.get_whole_table("T"), ("a", "b"))
    assert result.damaged == 1
    assert np.array_equal(result["a"], [NULL, NULL])
    assert np.array_equal(result["b"], [1, NULL])


def read_one_line(capsys: pytest.CaptureFixture[str]) -> str:
    lines = [
        line for line in capsys.readouterr().err.splitlines() if line.startswith("nsys2prv: error:")
    ]
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(b""), "cannot be read as a table"),
        (lambda path: path.write_bytes(path.read_bytes()[:-100]), "cannot be read as a table"),
        (lambda path: path.write_bytes(b"no table at all" * 100), "cannot be read as a table"),
    ],
)
def test_damaged_tables_end_in_one_line(
    damage, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = convert_export_folder(
        SAMPLES / "graphs" / "rank0.sqlite", tmp_path / "rank0.parquetdir"
    )
    table = folder / "CUPTI_ACTIVITY_KIND_KERNEL.parquet"
    damage(table)
    assert main([str(folder), str(tmp_path / "out.prv")]) == 1
    line = read_one_line(capsys)
    assert message in line
    assert str(table) in line
    assert not list(tmp_path.glob("out*"))


@pytest.mark.slow
def test_whatever_bytes_a_table_has(tmp_path: Path) -> None:
    sound = convert_export_folder(SAMPLES / "graphs" / "rank0.sqlite", tmp_path / "sound")
    content = (sound / "CUPTI_ACTIVITY_KIND_RUNTIME.parquet").read_bytes()
    dice = random.Random(7)
    refused: list[str] = []
    for number in range(25):
        folder = tmp_path / f"{number}.parquetdir"
        shutil.copytree(sound, folder)
        bytes_of = bytearray(content)
        for _ in range(8):
            bytes_of[dice.randrange(len(bytes_of))] = dice.randrange(256)
        (folder / "CUPTI_ACTIVITY_KIND_RUNTIME.parquet").write_bytes(bytes_of)
        try:
            convert([folder], tmp_path / "out.prv", Options(kinds=("cuda_api_trace", "kernels")))
        except Nsys2prvError as error:
            refused.append(str(error))
    assert len(refused) > 5
    assert all(
        "CUPTI_ACTIVITY_KIND_RUNTIME.parquet: cannot be read as a table" in message
        for message in refused
    )
    assert not [message for message in refused if "\n" in message]


def test_a_folder_without_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert main([str(tmp_path / "empty"), str(tmp_path / "out.prv")]) == 1
    assert "no reports in this folder" in read_one_line(capsys)


def test_a_folder_is_no_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(SAMPLES / "graphs" / "rank0.sqlite"), str(tmp_path / "rank1.parquetdir")]) == 2
    assert "the last argument is the trace to write" in read_one_line(capsys)
