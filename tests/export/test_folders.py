"""Test that exports as folders of Parquet files give the same bytes as the SQLite exports of the
same reports.
"""

import random
import shutil
from pathlib import Path

import polars as pl
import pytest
from tools.commands import measure_command, read_error
from tools.conversions import convert_to_bytes
from tools.corpus import EXPORTS, NO_CORPUS
from tools.exports import make_global_tid
from tools.folders import convert_export_folder, write_by_polars

from nsys2prv import Options, convert
from nsys2prv._util.errors import Nsys2prvError
from nsys2prv.cli import main

SAMPLES = Path(__file__).parents[2] / "sample_reports"
SETS = sorted(path.parent.name for path in SAMPLES.glob("*/truth.json"))
#: Every so many exports of the corpus are compared: each has its own tables and versions.
EVERY = 6


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_same_bytes_as_sqlite(name: str, tmp_path: Path) -> None:
    reports = sorted((SAMPLES / name).glob("rank*.sqlite"))
    folders = [
        convert_export_folder(report, tmp_path / "in" / f"{report.stem}.dir") for report in reports
    ]
    compressed = convert_export_folder(reports[0], tmp_path / "compressed", write_by_polars)
    expected = convert_to_bytes(reports, tmp_path / "expected", callstack=3)
    assert len(expected) >= 3
    assert convert_to_bytes(folders, tmp_path / "folders", callstack=3) == expected
    assert convert_to_bytes([compressed, *reports[1:]], tmp_path / "mixed", callstack=3) == expected


@pytest.mark.skipif(not EXPORTS, reason=NO_CORPUS)
@pytest.mark.parametrize("report", EXPORTS[::EVERY], ids=lambda path: path.stem[:40])
def test_same_bytes_as_real_exports(report: Path, tmp_path: Path) -> None:
    folder = convert_export_folder(report, tmp_path / f"{report.stem}.parquetdir")
    assert convert_to_bytes([folder], tmp_path / "folder") == convert_to_bytes(
        [report], tmp_path / "expected"
    )


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


def test_a_folder_whose_folders_have_the_reports(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(SAMPLES)]) == 1
    line = read_one_line(capsys)
    assert "no reports in this folder itself" in line
    assert line.endswith(f"such as {SAMPLES / 'cluster'}")


def test_a_folder_is_no_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(SAMPLES / "graphs" / "rank0.sqlite"), str(tmp_path / "rank1.parquetdir")]) == 2
    assert "the last argument must be the output trace" in read_one_line(capsys)


def test_arrow_folders_are_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """nsys writes Arrow's stream format, which polars can only read whole."""
    folder = tmp_path / "rank0_arwdir"
    folder.mkdir()
    (folder / "StringIds.arrow").write_bytes(b"")
    for words in (["-q", str(folder), str(tmp_path / "out.prv")], ["report", "-q", str(folder)]):
        assert main(words) == 1
        line = read_one_line(capsys)
        assert "rank0_arwdir: contains Arrow tables, which nsys2prv does not support;" in line
        assert "nsys export --type sqlite --force-overwrite true rank0.nsys-rep" in line


def write_marks(folder: Path, texts: pl.Series) -> Path:
    """Write a folder of NVTX ranges with these texts."""
    numbers = pl.int_range(len(texts), eager=True)
    ranges = pl.DataFrame({"start": 10 * numbers, "end": 10 * numbers + 5, "text": texts})
    thread = pl.lit(make_global_tid(4242)).alias("globalTid")
    folder.mkdir()
    ranges.with_columns(thread, eventType=59).write_parquet(
        folder / "NVTX_EVENTS.parquet", statistics=False
    )
    return folder


@pytest.mark.slow
def test_a_small_file_of_large_texts(tmp_path: Path) -> None:
    """Names that rows share are in memory once; rows of small tables are read one by one."""
    megabytes = pl.Series(["x" * 1_000_000]).new_from_index(0, 5000)
    names = write_marks(tmp_path / "names.parquetdir", megabytes)
    done, kilobytes = measure_command("-q", "-j", "1", names, tmp_path / "out.prv")
    assert done.returncode == 0, done.stderr
    assert kilobytes < 1 << 19
    settings = pl.DataFrame({"name": megabytes, "value": megabytes})
    settings.write_parquet(names / "META_DATA_CAPTURE.parquet", statistics=False)
    refused, kilobytes = measure_command("-q", "-j", "1", names, tmp_path / "out.prv")
    assert "more bytes of texts than files of their size" in read_error(refused)
    assert kilobytes < 1 << 20
