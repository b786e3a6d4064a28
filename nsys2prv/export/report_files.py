"""Find the files of reports, prepare them for reading, and check that they do not change meanwhile.

:func:`prepare_export` runs `nsys` to export a .nsys-rep, and copies an export that cannot be opened
read-only. Files of other kinds are identified by content, with advice (:class:`ForeignFile`). This
module imports neither polars nor numpy.
"""

from __future__ import annotations

import glob
import os
import re
import shlex
import shutil
import sqlite3
import zlib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote

from nsys2prv._util.errors import Nsys2prvError, Unreadable
from nsys2prv._util.files import (
    FILE_ENDINGS,
    NOT_EXPORTED,
    TABLE_ENDINGS,
    describe_missing_file,
    load_shipped_file,
)
from nsys2prv._util.text import list_some
from nsys2prv._util.workers import is_worth_parallelizing

#: Name, device, inode, size and time of change (ns) of each file.
Signature = tuple[tuple[str, int, int, int, int], ...]
#: The first bytes of a rollback journal that has something to roll back.
JOURNAL = bytes.fromhex("d9d505f920a163d7")
#: Errors of reading a damaged database; SQLite's messages quote its content, which may be no text.
DAMAGE = (sqlite3.Error, UnicodeError)
_KNOWN = re.compile(
    "malformed database schema|database disk image is malformed|file is not a database|unsupported file format"
    "|disk I/O error|string or blob too big|out of memory|columns of mixed types|table [A-Z_]+"
)
#: Reports of fewer bytes are read by one process sooner than others would have started.
SMALL_JOB_BYTES = 14_000_000
#: Bytes that are as much work as opening a report and each of its tables, however small they are.
REPORT_BYTES = 2_200_000
#: How often an export in use is copied, until nothing was written meanwhile.
ATTEMPTS = 5

#: Bytes at the begin of a file that are looked at; unpacked ones as well.
LOOKED_AT = 1 << 16
#: Columns of a database that are looked at.
MOST_COLUMNS = 10_000
#: Starts of gzip files, and zlib's number of their format; start of SQLite databases.
GZIP, GZIP_WINDOW, SQLITE = b"\x1f\x8b", 31, b"SQLite format 3\x00"
#: Addresses of other machines.
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+[^/]")


class ForeignFile(Nsys2prvError):
    """Raised if a file is not an Nsight Systems export."""


@cache
def _load_kinds() -> dict[str, Any]:
    return load_shipped_file(__package__, "foreign.yaml")


def explain_foreign_file(path: Path) -> ForeignFile | None:
    """Return the error for a file that belongs to another program; None for exports and
    unrecognized files.
    """
    head, kinds = _read_head(path), _load_kinds()
    if head.startswith(SQLITE):
        try:
            check_tables(path, _read_tables(path))
        except ForeignFile as error:
            return error
        return None
    inner = b""
    if head.startswith(GZIP):
        with suppress(zlib.error):
            inner = zlib.decompressobj(GZIP_WINDOW).decompress(head, LOOKED_AT)
    for kind in kinds["content"]:
        begins, text = bytes.fromhex(kind.get("begins", "")), kind.get("text", "").encode()
        if any(one and one.startswith(begins) and text in one for one in (head, inner)):
            return _make_error(path, kind)
    for begins, command in kinds["packed"].items():
        if head.startswith(bytes.fromhex(begins)):
            return ForeignFile(
                f"{path}: this is a compressed file; unpack it with {command} {path.name}"
            )
    name = path.name.lower().removesuffix(".gz")
    found = (kind for kind in kinds["names"] if name.endswith(tuple(kind["ends"])))
    return next((_make_error(path, kind) for kind in found), None)


def _read_head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(LOOKED_AT)
    except OSError:
        return b""


def _read_tables(path: Path) -> dict[str, list[str]]:
    """Return table -> columns of a database; empty if it is damaged."""
    try:
        with closing(connect_read_only(path)) as connection:
            rows = connection.execute(
                "SELECT t.name, c.name FROM sqlite_master t, pragma_table_info(t.name) c WHERE t.type = 'table'"
            ).fetchmany(MOST_COLUMNS)
    except (sqlite3.Error, UnicodeError):
        return {}
    tables: dict[str, list[str]] = {}
    for table, column in rows:
        tables.setdefault(table, []).append(column)
    return tables


def has_foreign_name(path: Path) -> bool:
    """Return True if the name suggests a file of another profiler, or an unfinished file."""
    return path.name.lower().endswith((".qdstrm", ".ncu-rep", ".otf2", ".nvvp", ".nvprof", ".db"))


def check_tables(path: Path, tables: Mapping[str, Container[str]]) -> None:
    """Raise ForeignFile unless a database has a table of Nsight Systems. tables: name -> columns."""
    kinds = _load_kinds()
    if "StringIds" in tables:
        return
    for kind in kinds["tables"]:
        for table, columns in tables.items():
            is_named_so = table.startswith(kind["begins"])
            if is_named_so and ("column" not in kind or kind["column"] in columns):
                raise _make_error(path, kind)
    if tables and not any(re.match(kinds["own"], table) for table in tables):
        plain = [table for table in tables if re.fullmatch(r"\w{1,40}", table, re.ASCII)]
        named = f" (it has {list_some(plain, 3)})" if plain else ""
        raise ForeignFile(
            f"{path}: this is an SQLite database of another program, without Nsight Systems tables{named}; give reports "
            "exported with: nsys export --type sqlite REPORT.nsys-rep"
        )


def check_no_url(path: str) -> None:
    """Raise Nsys2prvError for a path on another machine."""
    url = _URL.match(path)
    if url and not Path(path).exists():
        raise Nsys2prvError(
            f"{path}: this is a URL ({url[1]}), but nsys2prv reads files; download the file"
        )


def _make_error(path: Path, kind: Mapping[str, str]) -> ForeignFile:
    return ForeignFile(f"{path}: this is {kind['what']}; {kind['do'].replace('FILE', path.name)}")


def find_reports(paths: Iterable[str | Path], left_out: list[str] | None = None) -> list[Path]:
    """Return the reports at these paths: files in folders, matches of patterns, and all other paths
    unchanged, whether or not they exist.

    left_out: gets a line for each skipped file in a folder, which belongs to another profiler or is
    unfinished. Raise Nsys2prvError for a folder without reports, or a pattern without matches.
    """
    paths = list(paths)
    if "" in paths:
        raise Nsys2prvError(
            "an argument is empty (an unset variable?); give the name of a report or folder"
        )
    for path in map(str, paths):
        check_no_url(path)
    found = [_list_reports_at(Path(path)) for path in paths]
    if left_out is not None:
        folders = [
            path for path in map(Path, paths) if path.is_dir() and not is_export_folder(path)
        ]
        files = chain.from_iterable(sorted(folder.iterdir()) for folder in folders)
        foreign = (explain_foreign_file(file) for file in files if has_foreign_name(file))
        left_out += [f"skipped: {error}" for error in foreign if error]
    return list(chain.from_iterable(found))


def _list_reports_at(path: Path) -> list[Path]:
    try:
        if path.is_dir() and not is_export_folder(path):
            return _list_reports_in(path)
        if path.exists() or not glob.has_magic(str(path)):
            return [path]
    except OSError:
        return [path]
    paths = sorted(map(Path, glob.glob(str(path), recursive=True)))
    if not paths:
        raise Nsys2prvError(f"{path}: no file matches this pattern")
    lists = (_list_reports_at(one) if one.is_dir() else [one] for one in paths)
    return list(chain.from_iterable(lists))


def _find_folder_with_reports(folder: Path) -> Path | None:
    """Return the first folder in a folder that contains reports; None without one."""
    for inner in sorted(folder.iterdir()):
        with suppress(OSError):
            if inner.is_dir() and any(map(is_report, inner.iterdir())):
                return inner
    return None


def _list_reports_in(folder: Path) -> list[Path]:
    """Return the reports of a folder. If a report exists as .nsys-rep and as export, return the
    export.
    """
    paths = [path for path in sorted(folder.iterdir()) if is_report(path)]
    exported = {
        path.stem.removesuffix("_pqtdir")
        for path in paths
        if path.suffix.lower() not in NOT_EXPORTED
    }
    paths = [
        path
        for path in paths
        if path.suffix.lower() not in NOT_EXPORTED or path.stem not in exported
    ]
    if not paths:
        for file in sorted(folder.iterdir()):
            if file.is_file() and (foreign := explain_foreign_file(file)):
                raise ForeignFile(f"{folder}: no reports in this folder; {foreign}")
        if inner := _find_folder_with_reports(folder):
            raise Nsys2prvError(
                f"{folder}: no reports in this folder itself; give a folder in it, such as {inner}"
            )
        raise Nsys2prvError(
            f"{folder}: no reports in this folder; reports are .sqlite files, folders of Parquet files or .nsys-rep files"
        )
    return paths


def is_export_folder(path: Path) -> bool:
    """Return True if this is a readable folder with one Parquet file per table, which is one
    report.
    """
    try:
        if not path.is_dir():
            return False
        with os.scandir(path) as found:
            return any(
                os.path.splitext(file.name)[1] in TABLE_ENDINGS and file.is_file() for file in found
            )
    except OSError:
        return False


def is_report(path: Path) -> bool:
    """Return True if this path looks like a report: a file with the ending of one, or a folder of
    Parquet files.
    """
    return is_export_folder(path) or (path.suffix.lower() in FILE_ENDINGS and not path.is_dir())


def make_file_signature(path: Path) -> Signature:
    """Return a signature (size and time) of a file, or of all files in a folder; empty if there are
    none.
    """
    try:
        files = sorted(entry.path for entry in os.scandir(path)) if path.is_dir() else [str(path)]
        states = [(file, os.stat(file)) for file in files]
    except OSError:
        return ()
    return tuple(
        (file, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        for file, status in states
    )


@contextmanager
def ensure_unchanged(paths: Sequence[Path]) -> Iterator[None]:
    """Check that no report is replaced, changed or truncated during a `with` block. Otherwise raise
    Unreadable, instead of any error that resulted.
    """
    before = {path: make_file_signature(path) for path in paths}
    try:
        yield
    except Exception:
        # If a report changed meanwhile, this explains any error.
        _check_unchanged(before)
        raise
    _check_unchanged(before)


def _check_unchanged(before: dict[Path, Signature]) -> None:
    for path, seen in before.items():
        now = make_file_signature(path)
        if seen and now != seen:
            change = "was replaced or changed" if now else "was removed"
            raise Unreadable(
                f"{path}: {change} while it was read; convert it again once it is complete", path
            ) from None


def connect_read_only(path: Path) -> sqlite3.Connection:
    """Open a database read-only, without its log. No code in the database is run."""
    uri = f"file:{quote(os.fsencode(path.absolute()))}?mode=ro&immutable=1"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None)
    connection.execute("PRAGMA trusted_schema = OFF")
    if hasattr(connection, "setconfig"):
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)
    return connection


def has_log(path: Path) -> bool:
    """Return True if a write-ahead log next to the database contains part of its data."""
    try:
        return Path(f"{path}-wal").stat().st_size > 0
    except OSError:
        return False


def has_journal(path: Path) -> bool:
    """Return True if a rollback journal next to the database shows an unfinished change."""
    try:
        with Path(f"{path}-journal").open("rb") as file:
            return file.read(len(JOURNAL)) == JOURNAL
    except OSError:
        return False


def remove_quoted_content(error: Exception) -> str:
    """Return SQLite's error message without quoted content, because in a damaged database the
    content may be anything, including secrets.
    """
    text = str(error)
    if match := _KNOWN.search(text):
        return match[0]
    return re.split(r"[(:\"'\n]", text, maxsplit=1)[0].strip() or type(error).__name__


def check_file(path: Path) -> int:
    """Return the size of an SQLite file in bytes. Raise Nsys2prvError if it cannot be read as one."""
    try:
        if path.is_dir():
            raise Nsys2prvError(
                f"{path}: this is a folder without tables; give .sqlite exports, or folders of nsys export --type parquetdir"
            )
        if path.is_symlink() and not path.exists():
            raise Nsys2prvError(f"{path}: this is a broken link")
        if not path.exists():
            raise Nsys2prvError(describe_missing_file(path))
        if not path.is_file():
            raise Nsys2prvError(f"{path}: this is not a regular file")
        with path.open("rb") as file:
            head, size = file.read(16), os.fstat(file.fileno()).st_size
    except OSError as error:
        raise Nsys2prvError(f"{path}: cannot be read ({error.strerror or error})") from None
    if head != SQLITE:
        if foreign := explain_foreign_file(path):
            raise foreign
        defect = "this file is empty" if not head else "this is not an SQLite database"
        raise Nsys2prvError(
            f"{path}: {defect}; make one with: nsys export --type sqlite REPORT.nsys-rep"
        )
    return size


def should_parallelize(paths: Sequence[Path], jobs: int) -> bool:
    """Return True if reading these reports is enough work for `jobs` workers."""
    sizes = (size for path in paths for _, _, _, size, _ in make_file_signature(path))
    return is_worth_parallelizing(jobs, sum(sizes) + REPORT_BYTES * len(paths), SMALL_JOB_BYTES)


def find_nsys() -> str | None:
    """Return the path of `nsys`: in NSYS_HOME (the installation or its bin folder), otherwise on
    the PATH; None if not found.
    """
    home = os.environ.get("NSYS_HOME")
    if home:
        for candidate in (Path(home) / "nsys", Path(home) / "bin" / "nsys"):
            if os.access(candidate, os.X_OK) and candidate.is_file():
                return str(candidate)
    return shutil.which("nsys")


def make_export_command(nsys: str, report: Path, target: Path, *more: str) -> list[str]:
    """Return the command that exports a report to `target`. nsys: path of the program. more:
    further options.
    """
    options = shlex.split("--type sqlite --force-overwrite true --output")
    return [nsys, "export", *more, *options, str(target), str(report)]


@cache
def _list_export_options(nsys: str) -> tuple[str, ...]:
    """Return the options for NVTX payloads that this nsys supports; old versions refuse them."""
    _, text = _run_nsys(nsys, "export", "--help")
    return ("--include-json", "true") if "--include-json" in text else ()


def _run_nsys(*command: str) -> tuple[int, str]:
    """Run a command of nsys; return its exit status and output."""
    # Few commands export, so this module is not loaded at every start.
    import subprocess

    run = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    return run.returncode, run.stdout


def export_report(report: Path, folder: Path) -> Path:
    """Export a report into a new folder and return the path of the export.

    Raise Nsys2prvError, with advice, if nsys fails or is not found.
    """
    nsys = find_nsys()
    beside = report.with_suffix(".sqlite")
    if nsys is None:
        command = shlex.join(make_export_command("nsys", report, beside))
        advice = f"export it where nsys is installed (with --include-json true if nsys has it): {command}"
        if beside.is_file():
            advice = f"give {beside}, which is in the same folder"
        raise Nsys2prvError(
            f"{report}: needs the nsys program, which is neither on the PATH nor in NSYS_HOME; {advice}"
        )
    folder.mkdir()
    target = folder / f"{report.stem}.sqlite"
    status, text = _run_nsys(
        *make_export_command(nsys, report, target, *_list_export_options(nsys))
    )
    if status or not target.exists():
        lines = list(filter(None, map(str.strip, text.splitlines())))
        last = lines[-1] if lines else f"exit status {status}"
        raise Nsys2prvError(f"{report}: nsys export failed: {last}")
    return target


def prepare_export(path: Path, folder: Path) -> tuple[Path, Path]:
    """Make a report ready to read. Return (SQLite file or folder to read, the path itself).

    A .nsys-rep is exported into the new folder `folder`. An export with a write-ahead log is copied
    there and merged with the log, because SQLite would write to the original.
    """
    if path.suffix.lower() in NOT_EXPORTED:
        if not path.is_file():
            raise Nsys2prvError(describe_missing_file(path))
        return export_report(path, folder), path
    if is_export_folder(path):
        return path, path
    if has_journal(path):
        # The journal is not rolled back here: it can name other files, which SQLite would then
        # delete.
        raise Nsys2prvError(
            f"{path}: this file is being written, or its writer was killed ({path.name}-journal is beside it); wait, or export again"
        )
    return (_copy_export(path, folder), path) if has_log(path) else (path, path)


def _copy_export(path: Path, folder: Path) -> Path:
    """Return a copy of an export, merged with its log. Both are copied in the same state."""
    check_file(path)
    folder.mkdir()
    files = [path, path.with_name(path.name + "-wal")]
    for _ in range(ATTEMPTS):
        before = [make_file_signature(file) for file in files]
        for file in files:
            shutil.copyfile(file, folder / file.name)
        if before == [make_file_signature(file) for file in files]:
            return _take_log(folder / path.name, path)
    raise Nsys2prvError(f"{path}: this file is still being written; convert it once it is complete")


def _take_log(copy: Path, path: Path) -> Path:
    """Merge the log of a copied database into the copy, and return the copy."""
    try:
        with closing(sqlite3.connect(copy)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except DAMAGE as error:
        reason = remove_quoted_content(error)
        raise Nsys2prvError(
            f"{path}: cannot be read with its write-ahead log ({reason}); export the report again"
        ) from None
    return copy
