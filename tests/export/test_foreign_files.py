"""Test that other files are identified by content, with advice, and that they are skipped with a
line in a folder of reports.
"""

import gzip
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tools.commands import GRAPHS, read_error_line, run_main

CHROME = json.dumps({"schemaVersion": 1, "traceEvents": [{"ph": "X", "name": "k"}]}).encode()
#: Name, content, and words of the message.
FILES = [
    ("x.sqlite", b"NVR\x00" * 9, ["a report of Nsight Compute", "nsys profile"]),
    ("traces.otf2", b"OTF2" * 9, ["an OTF2 trace"]),
    ("x.h5", b"\x89HDF\r\n\x1a\n" + bytes(90), ["HDF5", "nsys export --type sqlite"]),
    ("k.parquet", b"PAR1" * 9, ["one Parquet table", "folder"]),
    ("rank0.pt.trace.json", CHROME, ["PyTorch profiler", "Perfetto"]),
    ("rank0.pt.trace.json.gz", gzip.compress(CHROME), ["PyTorch profiler"]),
    ("r.sqlite.gz", gzip.compress(b"SQLite format 3\x00"), ["compressed", "gunzip -k r.sqlite.gz"]),
    ("r.qdstrm", b"qd" * 9, ["unfinished", "QdstrmImporter --input-file r.qdstrm"]),
    ("r.prof.pb", b"\n\x04test", ["XLA"]),
    ("app", b"\x7fELF" * 9, ["a program", "nsys profile"]),
]
#: Name, declarations of tables, and words of the message.
DATABASES = [
    ("1_results.db", ["rocpd_kernel_dispatch_x (id, start, end)"], ["rocpd", "ROCm"]),
    (
        "p.sqlite",
        ["CUPTI_ACTIVITY_KIND_RUNTIME (_id_, start, end)", "StringTable (_id_, value)"],
        ["nvprof", "nsys profile"],
    ),
    ("b.sqlite", ["bookmarks (url)", "tags (tag)"], ["another program", "bookmarks, tags"]),
]


def make_database(path: Path, tables: list[str]) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        for table in tables:
            connection.execute(f"CREATE TABLE {table}")
        connection.commit()
    return path


@pytest.mark.parametrize(("name", "content", "words"), FILES, ids=[one[0] for one in FILES])
def test_the_kind_of_file_is_named(
    name: str, content: bytes, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(content)
    for arguments in (("-q", tmp_path / name, tmp_path / "out.prv"), ("report", tmp_path / name)):
        assert run_main(*arguments) == 1
        line = read_error_line(capsys)
        assert f"{tmp_path / name}: this is " in line
        assert not [word for word in words if word not in line]


@pytest.mark.parametrize(("name", "tables", "words"), DATABASES, ids=[one[0] for one in DATABASES])
def test_the_kind_of_database_is_named(
    name: str,
    tables: list[str],
    words: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = make_database(tmp_path / name, tables)
    for arguments in ((report, tmp_path / "out.prv"), ("--list", report), ("report", report)):
        assert run_main(*arguments) == 1
        line = read_error_line(capsys)
        assert f"{report}: this is " in line
        assert not [word for word in words if word not in line]


def test_what_is_foreign_in_a_folder_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(GRAPHS, tmp_path / "rank0.sqlite")
    (tmp_path / "rank1.qdstrm").write_bytes(b"qd" * 9)
    (tmp_path / "log.txt").write_text("nothing")
    foreign = make_database(tmp_path / "a.sqlite", DATABASES[1][1])
    (tmp_path / "out").mkdir()
    for arguments in (
        ("-q", tmp_path, tmp_path / "out" / "out.prv"),
        ("--list", tmp_path),
        ("report", tmp_path),
    ):
        assert run_main(*arguments) == 0
        lines = [line for line in capsys.readouterr().err.splitlines() if "skipped: " in line]
        assert [line.partition("skipped: ")[2].partition(": this is ")[0] for line in lines] == [
            str(tmp_path / "rank1.qdstrm"),
            str(foreign),
        ]
    assert run_main("-q", tmp_path, foreign, tmp_path / "out" / "out.prv") == 1


def test_a_folder_of_traces_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main("-q", GRAPHS, tmp_path / "out.prv") == 0
    capsys.readouterr()
    assert run_main("report", tmp_path) == 1
    line = read_error_line(capsys)
    assert "out.nsys2prv.json: this is the summary of a trace that nsys2prv wrote" in line


def test_a_folder_of_foreign_files_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_database(tmp_path / "1_results.db", DATABASES[0][1])
    assert run_main("report", tmp_path) == 1
    assert "1_results.db: this is a rocpd database" in read_error_line(capsys)


@pytest.mark.parametrize("url", ["s3://bucket/r.sqlite", "http://x/r.sqlite", "gs://b/run"])
def test_a_url_is_no_file(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        (url, "out.prv"),
        ("--list", url),
        ("report", url),
        ("diff", url, url),
        ("study", url, GRAPHS),
    ):
        assert run_main(*arguments) == 1
        line = read_error_line(capsys)
        assert f"{url}: this is a URL" in line
        assert "download" in line
