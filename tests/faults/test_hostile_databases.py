"""Test that databases are only data: no code in them is run, and nothing from the user's
environment is revealed.
"""

import gzip
import re
import shutil
import sqlite3
import zipfile
from contextlib import closing
from pathlib import Path

import pytest
from fuzz import bases
from tools.commands import GRAPHS, SAMPLES, measure_command, read_error, run_command
from tools.exports import KERNEL, make_export, make_global_tid, make_host, make_kernel, make_strings

from nsys2prv.export.info import JOB_VARIABLES, RANK_VARIABLES, read_report_info

TOKEN = "pl4nt3d5ecret"
PLANTED = "planted-secret-do-not-leak"


def plant_secrets(source: Path, target: Path) -> Path:
    """Write a report whose environment is full of tokens: every text of both tables that the tool
    is not to read, and every variable.
    """
    shutil.copy(source, target)
    with closing(sqlite3.connect(target)) as connection:
        assert connection.execute(
            "SELECT count(*) FROM TARGET_INFO_SYSTEM_ENV WHERE value LIKE ?", (f"%{PLANTED}%",)
        ).fetchone()[0]
        bases.plant_secrets(connection, TOKEN)
        for name in (*RANK_VARIABLES, *JOB_VARIABLES, "API_TOKEN", TOKEN):
            for value in (f"{TOKEN}", f"0{TOKEN}", f'0" {TOKEN}', f"0\n{TOKEN}"):
                connection.execute(
                    "INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:ENVIRONMENT_VARIABLE', ?)",
                    (f'{name}="{value}"',),
                )
        connection.commit()
    return target


@pytest.mark.slow
def test_nothing_of_the_environment_reaches_any_output(tmp_path: Path) -> None:
    reports = [
        plant_secrets(path, tmp_path / path.name)
        for path in sorted((SAMPLES / "cluster").glob("rank[02].sqlite"))
    ]
    out = tmp_path / "out"
    out.mkdir()
    runs = [
        run_command("-v", "--report", "--states", *reports, out / "a.prv"),
        run_command("--list", *reports),
        run_command("-z", "-t", "all", "--kernel-names", "full", *reports, out / "b.prv.gz"),
        run_command("report", "--json", out / "report.json", *reports),
        run_command("check", out / "a.prv"),
    ]
    assert [run.returncode for run in runs] == [0] * len(runs), [run.stderr for run in runs]
    with closing(sqlite3.connect(reports[0])) as connection:
        connection.execute("DROP TABLE META_DATA_EXPORT")
        connection.commit()
    damaged = tmp_path / "damaged.sqlite"
    data = bytearray(reports[0].read_bytes())
    for start in range(4096, len(data), 4096):
        data[start : start + 8] = b"\xff" * 8
    damaged.write_bytes(data)
    runs += [
        run_command("-q", damaged, out / "d.prv"),
        run_command("--list", damaged),
        run_command("-q", "-t", "openacc", reports[0], out / "e"),
    ]
    texts = {f"{' '.join(map(str, run.args[3:5]))}": run.stdout + run.stderr for run in runs}
    for path in out.iterdir():
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                texts |= {
                    f"{path.name}/{name}": archive.read(name).decode("latin-1")
                    for name in archive.namelist()
                }
        else:
            data = path.read_bytes()
            texts[path.name] = (gzip.decompress(data) if path.suffix == ".gz" else data).decode(
                "latin-1"
            )
    assert {"a.prv", "a.pcf", "a.row", "a.report.json", "report.json"} <= texts.keys()
    result = [name for name, text in texts.items() if TOKEN in text or PLANTED in text]
    assert not result


def test_what_is_kept_of_a_report_has_nothing_of_the_environment(tmp_path: Path) -> None:
    info = read_report_info(
        plant_secrets(SAMPLES / "training" / "rank0.sqlite", tmp_path / "r.sqlite")
    )
    assert info.host
    assert TOKEN not in repr(info)
    assert PLANTED not in repr(info)
    assert re.fullmatch(r"[0-9a-f]{16}|", info.job)


VIEWS = (
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS id, 'x' AS value, i AS start, i AS end FROM n",
    "SELECT hex(zeroblob(400000000)) AS value, 1 AS id, zeroblob(900000000) AS start",
)


@pytest.mark.slow
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("table", ["StringIds", "META_DATA_EXPORT", "MPI_RANKS", "OSRT_API"])
def test_views_are_not_read(table: str, view: str, tmp_path: Path) -> None:
    report = tmp_path / "r.sqlite"
    make_export(
        report,
        {
            KERNEL: [make_kernel(1, 5)],
            **({} if table == "StringIds" else {"StringIds": make_strings("k")}),
        },
    )
    with closing(sqlite3.connect(report)) as connection:
        connection.execute(f"CREATE VIEW {table} AS {view}")
        connection.commit()
    process = run_command("-q", report, tmp_path / "out.prv")
    assert process.returncode == 0, process.stderr
    assert run_command("--list", report).returncode == 0


@pytest.mark.slow
def test_nothing_is_written_by_triggers_and_no_extension_is_loaded(tmp_path: Path) -> None:
    report = Path(shutil.copy(GRAPHS, tmp_path / "r.sqlite"))
    with closing(sqlite3.connect(report)) as connection:
        for event in ("INSERT", "UPDATE", "DELETE"):
            connection.execute(
                f"CREATE TRIGGER t{event} AFTER {event} ON {KERNEL} BEGIN SELECT load_extension('{tmp_path}/x.so'); END"
            )
        connection.execute(f"CREATE INDEX slow ON {KERNEL} (start || hex(start))")
        connection.execute(
            f"ALTER TABLE {KERNEL} ADD COLUMN computed AS (hex(zeroblob(400000000)))"
        )
        connection.commit()
    before = report.read_bytes()
    assert run_command("-q", report, tmp_path / "out.prv").returncode == 0
    assert run_command("-q", GRAPHS, tmp_path / "whole.prv").returncode == 0
    assert report.read_bytes() == before
    assert (tmp_path / "out.prv").read_bytes() == (tmp_path / "whole.prv").read_bytes()


@pytest.mark.slow
def test_names_of_text_that_terminals_obey(tmp_path: Path) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\u202e\x9b31m"
    report = make_export(
        tmp_path / "r.sqlite",
        {
            "StringIds": make_strings(evil),
            KERNEL: [make_kernel(1, 5)],
            "PROCESSES": [{"globalPid": make_kernel(1, 2)["globalPid"], "name": evil}],
            **make_host(evil),
            "META_DATA_EXPORT": [{"name": "EXPORT_PRODUCT_VERSION", "value": evil}],
            "TARGET_INFO_GPU": [{"id": 0, "name": evil}],
            "DIAGNOSTIC_EVENT": [{"severity": 3, "text": f"lost {evil}"}],
            evil: [{"start": 1}],
        },
    )
    for arguments in (
        ["-v", report, tmp_path / "out.prv"],
        ["--list", report],
        ["report", report],
        ["-t", "osrt", report, tmp_path / "out.prv"],
    ):
        process = run_command(*arguments)
        assert not re.search(
            "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", process.stdout + process.stderr
        ), arguments
        assert process.returncode in (0, 3)


@pytest.mark.slow
def test_a_report_of_100_000_names_takes_less_than_a_gigabyte(tmp_path: Path) -> None:
    names = 100_000
    report = tmp_path / "r.sqlite"
    make_export(report, {KERNEL: [make_kernel(1, 5)], "StringIds": [], "NVTX_EVENTS": []})
    with closing(sqlite3.connect(report)) as connection:
        connection.execute("DROP TABLE StringIds")
        connection.execute("DROP TABLE NVTX_EVENTS")
        connection.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        connection.execute(
            "CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, globalTid INTEGER, text TEXT, "
            "textId INTEGER)"
        )
        # Of a hundred characters or more, as kernels of templates have.
        connection.executemany(
            "INSERT INTO StringIds VALUES (?, ?)",
            ((number, f"name {number} " + "of a range " * 9) for number in range(names)),
        )
        connection.executemany(
            "INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, ?, NULL, ?)",
            (
                (10 * number, 10 * number + 9, make_global_tid(4242), number)
                for number in range(names)
            ),
        )
        connection.commit()
    done, kilobytes = measure_command("-q", "-j", "1", report, tmp_path / "out.prv")
    assert done.returncode == 0, done.stderr
    assert kilobytes < 1 << 20
    assert (
        len(set(re.findall(r"name \d+ of a range ", (tmp_path / "out.pcf").read_text()))) == names
    )


@pytest.mark.slow
def test_what_sqlite_quotes_of_a_damaged_schema_is_not_told(tmp_path: Path) -> None:
    report = Path(shutil.copy(GRAPHS, tmp_path / "r.sqlite"))
    with closing(sqlite3.connect(report)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_master SET name = ?, sql = ? WHERE name = 'OSRT_API'",
            (TOKEN, f"CREATE TABLE {TOKEN} nonsense"),
        )
        connection.commit()
    message = read_error(run_command("-q", report, tmp_path / "out.prv"))
    assert "malformed database schema" in message
    assert TOKEN not in message
