"""Reports that are not exported yet: .nsys-rep and .qdrep go through the `nsys` program where there is one."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

from nsys2prv.errors import Nsys2prvError


def find_nsys() -> str | None:
    """The `nsys` of NSYS_HOME (the installation or its bin folder), else of the PATH."""
    home = os.environ.get("NSYS_HOME")
    if home:
        for candidate in (Path(home) / "nsys", Path(home) / "bin" / "nsys"):
            if os.access(candidate, os.X_OK) and candidate.is_file():
                return str(candidate)
    return shutil.which("nsys")


def export_command(nsys: str, report: Path, target: Path) -> list[str]:
    """The command that exports a report with everything the converter reads, NVTX payloads included."""
    return [nsys, "export", "--type", "sqlite", "--include-json", "true", "--force-overwrite", "true", "--output", str(target),
            str(report)]


def export(report: Path, folder: Path) -> Path:
    """Export a report into a new folder; returns the export. Where there is no nsys raises Nsys2prvError with what to do: give an export
    that lies beside the report, or the command to run."""
    nsys = find_nsys()
    beside = report.with_suffix(".sqlite")
    if nsys is None and beside.is_file():
        raise Nsys2prvError(f"{report}: needs the nsys program, which is neither on the PATH nor in NSYS_HOME; "
                            f"give {beside}, which lies beside it")
    if nsys is None:
        command = shlex.join(export_command("nsys", report, beside))
        raise Nsys2prvError(f"{report}: needs the nsys program, which is neither on the PATH nor in NSYS_HOME; "
                            f"export it where nsys is installed: {command}")
    folder.mkdir()
    target = folder / f"{report.stem}.sqlite"
    run = subprocess.run(export_command(nsys, report, target), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
    if run.returncode or not target.exists():
        last = next((line.strip() for line in reversed(run.stdout.splitlines()) if line.strip()), f"exit status {run.returncode}")
        raise Nsys2prvError(f"{report}: nsys export failed: {last}")
    return target
