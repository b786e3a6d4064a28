"""Prepare one Nsight Systems report for reading (:func:`prepare_export`): it is exported with `nsys`,
and an export that cannot be opened read-only is copied.

All differences between schema versions end in this room, by capability (is the column there?),
never by version number.
"""

from __future__ import annotations

import os
import shlex
import shutil
from functools import cache
from pathlib import Path

from nsys2prv._util.errors import Nsys2prvError
from nsys2prv._util.files import NOT_EXPORTED, describe_missing_file
from nsys2prv.nsight.report_files import (
    check_file,
    has_journal,
    has_log,
    is_export_folder,
    make_file_signature,
)

#: How often an export in use is copied, until nothing was written meanwhile.
ATTEMPTS = 5


def find_nsys() -> str | None:
    """Return the `nsys` of NSYS_HOME (the installation or its bin folder), else of the PATH."""
    home = os.environ.get("NSYS_HOME")
    if home:
        for candidate in (Path(home) / "nsys", Path(home) / "bin" / "nsys"):
            if os.access(candidate, os.X_OK) and candidate.is_file():
                return str(candidate)
    return shutil.which("nsys")


def make_export_command(nsys: str, report: Path, target: Path, *more: str) -> list[str]:
    """Return the command that exports a report, with more options."""
    options = shlex.split("--type sqlite --force-overwrite true --output")
    return [nsys, "export", *more, *options, str(target), str(report)]


@cache
def _list_export_options(nsys: str) -> tuple[str, ...]:
    """Return the options for NVTX payloads, if this nsys has them: old ones refuse them."""
    _, said = _run_nsys(nsys, "export", "--help")
    return ("--include-json", "true") if "--include-json" in said else ()


def _run_nsys(*command: str) -> tuple[int, str]:
    """Run a command of nsys; returns its exit status and what it said."""
    # Few commands export: the module is not loaded at every start.
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
    """Export a report into a new folder; returns the export. Where there is no nsys raises
    Nsys2prvError with what to do: give an export that lies beside the report, or the command to
    run.
    """
    nsys = find_nsys()
    beside = report.with_suffix(".sqlite")
    if nsys is None:
        command = shlex.join(make_export_command("nsys", report, beside))
        advice = f"export it where nsys is installed (with --include-json true if nsys has it): {command}"
        if beside.is_file():
            advice = f"give {beside}, which lies beside it"
        raise Nsys2prvError(
            f"{report}: needs the nsys program, which is neither on the PATH nor in NSYS_HOME; {advice}"
        )
    folder.mkdir()
    target = folder / f"{report.stem}.sqlite"
    status, text = _run_nsys(
        *make_export_command(nsys, report, target, *_list_export_options(nsys))
    )
    if status or not target.exists():
        said = list(filter(None, map(str.strip, text.splitlines())))
        last = said[-1] if said else f"exit status {status}"
        raise Nsys2prvError(f"{report}: nsys export failed: {last}")
    return target


def prepare_export(path: Path, folder: Path) -> tuple[Path, Path]:
    """Return the SQLite file to read, and the path itself.

    A report of nsys is exported into the new folder `folder`. An export with a write-ahead log is
    copied there with its log: reading it in place would make SQLite write beside it. A folder of
    tables is loaded into a file there when that is first read (:func:`nsys2prv.nsight.info.read_report_info`).
    """
    if path.suffix.lower() in NOT_EXPORTED:
        if not path.is_file():
            raise Nsys2prvError(describe_missing_file(path))
        return export_report(path, folder), path
    if is_export_folder(path):
        folder.mkdir()
        return folder / f"{path.stem}.sqlite", path
    if has_journal(path):
        # Not rolled back here: a journal can name other files, which SQLite then deletes.
        raise Nsys2prvError(
            f"{path}: is being written, or its writer was killed ({path.name}-journal is beside it); wait, or export again"
        )
    return (_copy_export(path, folder), path) if has_log(path) else (path, path)


def _copy_export(path: Path, folder: Path) -> Path:
    """Return a copy of an export and its log, as they were at one time."""
    check_file(path)
    folder.mkdir()
    files = [path, path.with_name(path.name + "-wal")]
    for _ in range(ATTEMPTS):
        before = [make_file_signature(file) for file in files]
        for file in files:
            shutil.copyfile(file, folder / file.name)
        if before == [make_file_signature(file) for file in files]:
            return folder / path.name
    raise Nsys2prvError(f"{path}: is still being written; convert it when that is done")
