"""Make a study: analyze each run in its focus of analysis (:mod:`nsys2prv.show.study.run`), then
compare the runs (:mod:`nsys2prv.show.study.compare`).
"""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from nsys2prv._util.errors import UsageError
from nsys2prv._util.text import list_some
from nsys2prv.conversion.options import Options
from nsys2prv.figures.device_group import ALL
from nsys2prv.figures.study_model import (
    Past,
    Run,
)
from nsys2prv.open_job import open_job
from nsys2prv.show.finished_job import JSON, FinishedJob
from nsys2prv.show.page.excerpts import choose_excerpts
from nsys2prv.show.study.compare import compare_runs
from nsys2prv.show.study.formats import Study
from nsys2prv.show.study.run import BEGIN, make_run, read_earlier
from nsys2prv.show.thresholds import LARGE_REGION

#: Analyses that a study shows of each run.
WANTED = ("efficiencies", "findings", "kernels", "collectives", "metrics", "clocks")


def make_study(
    runs: Sequence[str | Path | Sequence[str | Path]],
    scaling: str | None = None,
    regions: Sequence[str] = (),
    reference: str | None = None,
    iterations: str = "",
    whole: bool = False,
    labels: Mapping[str, str] | None = None,
    host_threads: str = "main",
    useful: str = "compute",
    options: Options | None = None,
    drawn: dict[str, FinishedJob] | None = None,
    history: Sequence[str | Path] = (),
    **fields: object,
) -> Study:
    """Return a study that compares several runs of one program.

    runs: each a folder of reports, a report, a pattern, a list of these, or the JSON of an earlier
    study, which contributes all its runs. scaling: `strong` or `weak`, None to detect it. regions:
    names or glob patterns of NVTX ranges, or ("all",). reference: the run with which the others are
    compared, None for the smallest. iterations: pattern of the NVTX ranges that are iterations, ""
    to detect iterations. whole: analyze whole captures. labels: run -> label. host_threads: `main`
    or `all`. useful: see OpenJob.analyse. drawn: a mapping to fill with run -> drawing of its job,
    for a page. history: JSON of earlier studies of the program, the oldest first. options, fields:
    see nsys2prv.open.

    Raise Nsys2prvError if a run cannot be read, UsageError for a region that no run has.
    """
    if scaling not in (None, "strong", "weak"):
        raise UsageError(f"scaling: {scaling} is neither strong nor weak")
    if not runs:
        raise UsageError("a study needs a run: reports, a folder, or the JSON of an earlier study")
    asked = {"regions": tuple(regions), "iterations": iterations, "whole": whole}
    asked |= {"host_threads": host_threads, "useful": useful}
    given = [[one] if isinstance(one, str | Path) else [*one] for one in runs]
    if not all(given):
        raise UsageError("a run has no reports")
    names = [str(paths[0]) for paths in given]
    earlier = {name: read_earlier(Path(name)) for name in names if Path(name).suffix == JSON}
    _distinguish_runs(names, earlier)
    read: list[Run] = []
    for name, paths in zip(names, given, strict=True):
        if name in earlier:
            read += earlier[name]
            continue
        with open_job(paths, options, **fields) as job:
            wanted = [*WANTED] + ["time"] * (drawn is not None)
            try:
                results = job.analyse(*wanted, **asked)
            except UsageError as error:
                raise UsageError(f"{name}: {error}") from error
            finished = FinishedJob(job.describe(), results)
            run = make_run(name, finished)
            run.findings = [one.as_dict() for one in finished.findings]
            if drawn is not None:
                excerpts = choose_excerpts(job, results, typical=True)
                drawn[name] = replace(finished, excerpts=excerpts)
        read.append(run)
    _label_runs(read, labels or {})
    study = compare_runs(read, scaling, reference)
    names = _choose_regions(study.runs, regions)
    if unknown := [one for one in regions if one not in (*names, ALL)]:
        raise UsageError(
            f"--regions {unknown[0]}: no run has NVTX ranges of this name; --regions {ALL} shows all"
        )
    for run in (run for of_file in earlier.values() for run in of_file):
        lacking = list_some([name for name in names if name not in run.regions])
        line = f"regions: {lacking} not measured in its JSON; give its reports"
        if lacking and line not in run.missing:
            run.missing.append(line)
    study.regions = names
    study.history = [_read_past(Path(path)) for path in history]
    return study


def _read_past(path: Path) -> Past:
    """Return an earlier study of the program."""
    runs = read_earlier(path)
    begins = min((begin for run in runs if (begin := run.environment.get(BEGIN))), default="")
    return Past(path.stem, begins, {run.shape: run.metrics for run in reversed(runs)})


def _distinguish_runs(given: Sequence[str], earlier: Mapping[str, Sequence[Run]]) -> None:
    """Rename runs with equal names after the files that contain them. Raise UsageError if a run is
    given twice, also through an earlier study.
    """
    seen: dict[Path, Run | None] = {}
    for name in given:
        for run in earlier.get(name, (None,)):
            place = Path(run.name if run else name).absolute()
            other = seen.get(place)
            if place in seen and not (run and other and run.interval != other.interval):
                of = f"{name}: {run.name}" if run else f"{name}:"
                raise UsageError(f"{of} given twice; give each run once")
            if run and place in seen:
                run.name, run.label = f"{name}: {run.name}", ""
            seen[place] = run


def _choose_regions(runs: Sequence[Run], asked: Sequence[str]) -> list[str]:
    """Return the regions to show, those with the most time in the last run first.

    These are the requested regions, or by default the regions with a large share of the time, or of
    the lost time, in some run.
    """
    largest: dict[str, float] = {}
    for run in reversed(runs):
        for name, figures in run.regions.items():
            lost = (figures.get("lost_ns") or 0.0) / max(run.lost_ns or 0.0, 1.0)
            share = max(figures.get("share") or 0.0, lost)
            largest[name] = max(largest.get(name, 0.0), share)
    others = [
        name for name, share in largest.items() if name not in asked and share >= LARGE_REGION
    ]
    return [*(name for name in asked if name in largest), *others]


def _label_runs(runs: Sequence[Run], labels: Mapping[str, str]) -> None:
    """Label the runs by their folders, with as many parts of the path as are needed to distinguish
    them.
    """
    asked = {Path(name): label for name, label in labels.items()}
    parts = {run.name: _split_path(Path(run.name)) for run in runs}
    named = {run.name: asked.get(Path(run.name)) or run.label for run in runs}
    for depth in range(1, max(map(len, parts.values())) + 1):
        chosen = {name: named[name] or "/".join(parts[name][-depth:]) for name in parts}
        if len(set(chosen.values())) == len(chosen):
            break
    for run in runs:
        run.label = chosen[run.name]


def _split_path(path: Path) -> list[str]:
    """Return the parts of a path that can label a run: of a pattern, the parts of its folder; of a
    file, without the ending.
    """
    if glob.has_magic(path.name) and not path.exists() and path.parent.name:
        path = path.parent
    path = path.absolute()
    return [*path.parent.parts[1:], path.stem if path.is_file() else path.name]
