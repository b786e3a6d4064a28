"""Other converters beside this one, on the same report, each in an environment of its own."""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import sys
import venv
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from inputs import Job
from measure import floor
from processes import Taken, take

NSYS2PRV = "nsys2prv==0.5.8"
#: nCompass' converter to Chrome traces is a program inside of this package.
NCOMPASS = "ncompass==0.1.15"
#: Kinds of events that all converters know, as each calls them. NCCL is left out: nsys2prv's search
#: there is quadratic.
OURS = ("-t", "kernels,memory,cuda_api_trace,nvtx_pushpop_trace,gpu_metrics")
THEIRS = "cuda_api_trace,nvtx_pushpop_trace,gpu_metrics"
#: Tables that hold these kinds, and those of them that nsys-chrome reads.
CHROME = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS")
ALL = (*CHROME, "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET", "GPU_METRICS")
_KERNEL = re.compile(rb":6300000[67]:")
_CALL = b":63000000:"


@dataclass(frozen=True)
class Peer:
    """A converter's runs on a report. rows: that it reads. kernel_bytes: see below; None where it
    writes no Paraver trace.
    """

    name: str
    runs: list[Taken]
    rows: int
    kernel_bytes: tuple[float, float] | None = None
    #: Runs of paramedir on the trace: loading it, and a view of one event type.
    loads: Sequence[Taken] = ()

    def median(self, name: str) -> float:
        """The median over the runs: of `wall` or `cpu` (seconds) or `peak` (bytes)."""
        return statistics.median(getattr(run, name) for run in self.runs)


@dataclass(frozen=True)
class Comparison:
    """Converters on one report. floors: CPU and wall seconds of reading its bytes and of writing
    those of our trace, of each round.
    """

    job: Job
    peers: list[Peer]
    floors: list[tuple[float, float]]


def installed(folder: Path) -> tuple[Path, Path | None]:
    """Commands nsys2prv and nsys-chrome (None where the package has no program for this machine),
    from the package index.
    """
    home = folder / "peers"
    command = home / "bin" / "nsys2prv"
    if not command.exists():
        venv.create(home, with_pip=True)
        subprocess.run([home / "bin" / "pip", "install", "-q", NSYS2PRV], check=True)
    program = home / "ncompass" / "bin" / "nsys-chrome"
    if not program.exists():
        wheels = home / "wheels"
        subprocess.run(
            [home / "bin" / "pip", "download", "-q", "--no-deps", "-d", str(wheels), NCOMPASS],
            check=True,
        )
        with zipfile.ZipFile(next(wheels.glob("*.whl"))) as wheel:
            wheel.extract("ncompass/bin/nsys-chrome", home)
        program.chmod(0o755)
    works = subprocess.run([program, "--version"], capture_output=True, check=False).returncode == 0
    return command, program if works else None


def kernel_bytes(prv: Path, job: Job) -> tuple[float, float]:
    """Bytes of a kernel's own records, and together with the call that launched it and the line
    from this to that (means).
    """
    sizes, lines = [0, 0, 0], 0
    with prv.open("rb") as file:
        for line in file:
            which = (
                2
                if line.startswith(b"3:")
                else 0
                if _KERNEL.search(line)
                else 1
                if _CALL in line
                else None
            )
            if which is not None:
                sizes[which] += len(line)
                lines += which == 2
    own = sizes[0] / job.kernels
    return own, own + sizes[1] / job.calls + sizes[2] / max(1, lines)


def measure(job: Job, folder: Path, runs: int) -> Comparison:
    """Convert one report with ours (`-j 1` and the default), nsys2prv and nsys-chrome, one after
    the other in each round.
    """
    nsys2prv, chrome = installed(folder)
    (report,) = job.reports
    nsys = folder / "nsys" / "bin" / "nsys"
    nsys.parent.mkdir(parents=True, exist_ok=True)
    nsys.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__).with_name("nsys_stats.py")}" "$@"\n'
    )
    nsys.chmod(0o755)
    work = folder / "peer"
    work.mkdir(exist_ok=True)
    link = work / report.name
    link.unlink(missing_ok=True)
    os.link(report, link)
    ours = [sys.executable, "-m", "nsys2prv", "-q", *OURS]
    commands = {
        "nsys2prv 0.5.8": [nsys2prv, "-t", THEIRS, report.with_suffix(".nsys-rep").name, "theirs"],
        "ours -j 1": [*ours, "-j", "1", report.resolve(), "ours"],
        "ours": [*ours, report.resolve(), "ours"],
    }
    if chrome is not None:
        types = [word for kind in ("kernel", "nvtx", "cuda-api") for word in ("-t", kind)]
        commands["nsys-chrome"] = [chrome, *types, "-o", "trace.json", report.resolve()]
    root = str(Path(__file__).parents[1])
    taken: dict[str, list[Taken]] = {name: [] for name in commands}
    floors = []
    for _ in range(runs):
        for name, command in commands.items():
            # Where PYTHONPATH leads here, the peer of the same name would find this package in the
            # place of its own.
            environment = (
                {"NSYS_HOME": str(nsys.parents[1]), "PYTHONPATH": ""}
                if name.startswith("nsys2prv")
                else {"PYTHONPATH": root}
            )
            taken[name].append(take(command, work, environment))
        parts = (
            floor("read", report),
            floor("write", (work / "ours.prv").stat().st_size, work / "floor"),
        )
        (work / "floor").unlink()
        floors.append(tuple(map(sum, zip(*parts, strict=True))))
    sizes = {"nsys2prv 0.5.8": "theirs.prv", "ours -j 1": "ours.prv", "ours": "ours.prv"}
    view = Path(__file__).parents[1] / "cfgs" / "basics" / "kernel_class.cfg"
    paramedir = shutil.which("paramedir")
    loads = {
        name: [take([paramedir, work / name, view, work / "out"]) for _ in range(runs)]
        for name in (set(sizes.values()) if paramedir else ())
    }
    found = [
        Peer(
            name,
            runs,
            sum(job.counts[table] for table in (ALL if name in sizes else CHROME)),
            kernel_bytes(work / sizes[name], job) if name in sizes else None,
            loads.get(sizes.get(name, ""), ()),
        )
        for name, runs in taken.items()
    ]
    return Comparison(job, found, floors)
