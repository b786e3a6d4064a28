"""Run the commands `nsys2prv report`, `diff` and `study`.

Input: parsed options. Output: text, and the requested files: JSON and pages
(:mod:`nsys2prv.show.page`); for a study also Markdown, CSV, TALP files and traces.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any

from msgspec import structs

from nsys2prv._util.errors import Nsys2prvError
from nsys2prv._util.files import (
    check_folder,
    make_temporary_folder,
    put_in_place,
    write_complete_files,
)
from nsys2prv._util.text import format_count, format_nanoseconds
from nsys2prv.analyses import ON_DEMAND
from nsys2prv.cli.arguments import make_cut_options, parse_kinds, refuse
from nsys2prv.conversion.anonymous import make_pseudonym
from nsys2prv.conversion.convert import REPORT, convert
from nsys2prv.conversion.job import Job
from nsys2prv.conversion.options import CutOptions, Options
from nsys2prv.conversion.quality import QualityNote, format_quality
from nsys2prv.conversion.summary import Summary
from nsys2prv.conversion.write import list_outputs, write_job
from nsys2prv.export.report_files import find_reports
from nsys2prv.export.roles import FILE_NAMES, describe_processes
from nsys2prv.figures.result import Finding, Result, format_numbers
from nsys2prv.open_job import OpenJob, open_job
from nsys2prv.replay.questions import parse_what_ifs
from nsys2prv.show.difference.limits import check_limits, compare_sides, find_jump
from nsys2prv.show.difference.pictures import draw_bars, list_bars
from nsys2prv.show.difference.runs import NOT_COMPARABLE
from nsys2prv.show.finished_job import JSON, FinishedJob
from nsys2prv.show.first_screen import format_first_screen
from nsys2prv.show.text import (
    Style,
    count_gpus,
    format_gpu_models,
    format_recording,
    format_results,
)

if TYPE_CHECKING:
    from nsys2prv.show.study.formats import Study

#: Analyses of the first screen.
FIRST = ("findings", "efficiencies")
#: Default selection of options: the whole job.
WHOLE_JOB = {"kinds": (), "cut": CutOptions()}
#: Options of all that reads reports.
RUNNING = ("kernel_rules", "nvtx_rules", "align", "jobs", "tmp", "quiet", "anonymous")
#: Exit status of a difference that exceeds a limit, and of limits of runs that cannot be compared.
SLOWER, INCOMPARABLE = 4, 5


#: What a command prints: its text, warnings, and its exit status.
Answer = tuple[str, list[str], int]


def run_report(options: argparse.Namespace) -> Answer:
    """Run `nsys2prv report`. Return its output, warnings and exit status."""
    if options.moment:
        # Before the job is analyzed.
        _parse_moment(options)
    asks_findings = parse_what_ifs(options.what_if) or options.paraver_tutorial or options.moment
    if asks_findings and options.only and "findings" not in options.only:
        options.only.append("findings")
    style = Style.for_output(options.full, options.rows, bool(options.only))
    job = _analyse_reports(options)
    if options.title:
        job.description["title"] = options.title
    cuts = {}
    if options.moment and options.html:
        number, trace = _parse_moment(options)
        cuts[number] = Path(os.path.relpath(trace, options.html.parent)).as_posix()
    _write_files(options, json=job.to_json, html=lambda: _import_page().make_page(job, cuts))
    text = _format_job(job, style)
    if options.paraver_tutorial:
        # Not before it is needed.
        from nsys2prv.show.tutorial import describe_opening, write_tutorial

        page = write_tutorial(job, _find_trace(options), _choose_tutorial(options))
        text += f"\n\nstep through the findings in Paraver: {describe_opening(page)}"
    if options.moment:
        text += f"\n\n{_write_moment(job.findings, options).text()}"
    return text, list(map(str, job.description["warnings"])), 0


def _write_moment(findings: Sequence[Finding], options: argparse.Namespace) -> Summary:
    """Write the trace of a finding's first moment, in times of the whole job."""
    number, trace = _parse_moment(options)
    spans = {place: one.span for place, one in enumerate(findings, 1) if one.span}
    if number not in spans:
        refuse("no_such_moment", number=number, known=format_numbers([*spans]) or "none")
    begin, end = spans[number]
    cut = CutOptions(time=f"{begin}ns:{end}ns", keep_time=True)
    return convert(options.reports, trace, Options(cut=cut, **_choose(options, *RUNNING)))


def _parse_moment(options: argparse.Namespace) -> tuple[int, str]:
    """Return the number of a finding, and the trace to write. Raise UsageError if one is missing."""
    number, _, trace = options.moment.partition("=")
    if not (number.isdigit() and trace):
        refuse("moment_of_no_trace", text=options.moment)
    if Path(options.reports[0]).suffix == JSON:
        refuse("moment_of_finished_report", path=options.reports[0])
    return int(number), trace


def _choose_tutorial(options: argparse.Namespace) -> Path:
    """Return the folder of the tutorial: as given, or in Paraver's folder, named after the first
    report.
    """
    from nsys2prv.show.tutorial import find_tutorials_folder

    if isinstance(options.paraver_tutorial, Path):
        return options.paraver_tutorial
    given = Path(options.reports[0]).resolve().name.removesuffix(REPORT)
    name = re.sub(r"\W+", "_", Path(given).stem).strip("_")
    return find_tutorials_folder() / (name or "job")


def _find_trace(options: argparse.Namespace) -> Path:
    """Return the trace that a tutorial opens: beside a finished report, otherwise in the tutorial's
    folder. Raise UsageError for a finished report without a trace beside it.
    """
    first = Path(options.reports[0])
    if first.suffix != JSON:
        return _choose_tutorial(options) / "job.prv"
    trace = Path(f"{str(first).removesuffix(REPORT)}.prv")
    for path in (trace, trace.with_name(f"{trace.name}.gz")):
        if path.is_file():
            return path
    refuse("no_trace_beside", path=first, trace=trace.name)


def _write_trace(job: Job, trace: Path) -> None:
    """Write the trace of a job, and the files beside it, to a folder, which is created."""
    trace.parent.mkdir(parents=True, exist_ok=True)
    with make_temporary_folder(trace.parent) as staging:
        write_job(job, staging / trace.name)
        put_in_place(staging, list_outputs(trace, False))


def _write_files(
    options: argparse.Namespace,
    more: Mapping[Path, str] = MappingProxyType({}),
    **contents: Callable[[], str],
) -> None:
    """Write the requested files, all or none. contents: option -> function that makes the text of
    its file. more: further files.
    """
    chosen = {path: make for name, make in contents.items() if (path := vars(options)[name])}
    write_complete_files({path: make_text() for path, make_text in chosen.items()} | {**more})


def _import_page() -> ModuleType:
    """Import and return the module of pages. Its templates take time to import."""
    from nsys2prv.show import page

    return page


def choose_running(options: argparse.Namespace) -> dict[str, Any]:
    """Return the given options that apply to all commands that read reports."""
    return _choose(options, *RUNNING)


def _choose(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return name -> value for the given options with these names."""
    return {name: value for name in names if (value := vars(options).get(name)) is not None}


def _select_part(options: argparse.Namespace) -> dict[str, Any]:
    """Return the given options that select a part of the job; `study` has none."""
    if "region" not in options:
        return {}
    return {"kinds": parse_kinds(options.trace), "cut": make_cut_options(options)}


def _format_job(job: FinishedJob, style: Style, is_headed: bool = True) -> str:
    """Return the first screen, or everything that was requested, as text. is_headed: include the
    heading.
    """
    results, heading, notes = [*job.results.values()], list[str](), list[str]()
    if is_headed:
        told = [QualityNote(**note) for note in job.description.get("quality", ())]
        quality = format_notes(format_quality(told, style.full))
        if quality and style.full:
            quality.insert(0, "Capture quality")
        heading = make_heading(job.description)
        notes = format_notes(job.description["notes"]) + quality
    if style.full or style.chosen or "findings" not in job.results:
        return format_results(results, heading + notes, style, job.whole[0])
    return format_first_screen(results, heading, notes, style, job.whole[0])


def _analyse_reports(options: argparse.Namespace) -> FinishedJob:
    """Return the analyzed job; by default, only with the analyses of the first screen."""
    names = options.only
    first = Path(options.reports[0])
    if first.suffix != JSON:
        with _open_reports(options.reports, options) as job:
            if options.paraver_tutorial:
                _write_trace(job.prepared, _find_trace(options))
            if names or options.full or options.json or options.html:
                results = _analyse_job(job, names, options)
                return _finish_job(job, results, bool(options.html), options.reports)
            results = _analyse_job(job, FIRST, options, divided=False)
            return FinishedJob(job.describe(options.reports), results)
    if options.paraver_tutorial:
        _find_trace(options)
    if (
        len(options.reports) > 1
        or options.iterations
        or options.what_if
        or options.mesh
        or options.useful not in (None, "compute")
        or _select_part(options) != WHOLE_JOB
    ):
        refuse("options_for_finished_report", path=first)
    job = _load_job_file(first)
    if unknown := set(names) - set(job.results):
        absent, known = ", ".join(sorted(unknown)), ", ".join(job.results)
        refuse("not_in_finished_report", names=absent, path=first, known=known)
    return structs.replace(job, results={name: job.results[name] for name in names or job.results})


def _load_job_file(path: Path) -> FinishedJob:
    """Read the file that `report --json` wrote."""
    job = FinishedJob.read(path)
    if "records" not in job.description:
        raise Nsys2prvError(f"{path}: contains the difference of two jobs, not one job")
    return job


def _finish_job(
    job: OpenJob,
    results: Mapping[str, Result],
    is_drawn: bool,
    reports: Sequence[str | Path],
    name: str = "",
    typical: bool = False,
) -> FinishedJob:
    """Return the finished job. is_drawn: include the events for a page."""
    if not is_drawn:
        return FinishedJob(job.describe(reports, name), results)
    with job.prepared.progress.show_phase("page", 1):
        excerpts = _import_page().choose_excerpts(job, results, typical=typical)
    return FinishedJob(job.describe(reports, name), results, excerpts)


def run_diff(options: argparse.Namespace) -> Answer:
    """Run `nsys2prv diff`. Return its output, warnings and exit status."""
    given = [options.runs, options.versus] if options.versus else [[one] for one in options.runs]
    if len(given) < 2:
        refuse("one_side", path=options.runs[0])
    sides = [[load_job(one, options) for one in side] for side in given]
    shown, names, series = [sides[0], sides[-1]], ("A", "B"), None
    if len(sides) > 2:
        at, series = find_jump([side[0] for side in sides])
        shown = sides[at - 1], sides[at]
        names = tuple(side[0].description["name"] for side in shown)
    comparison, difference, jobs = compare_sides(shown, names)
    # In a series the last run is compared with the first.
    checked = check_limits([sides[0], sides[-1]], comparison, options.fail_above)
    comparison = structs.replace(comparison, checked=checked)
    headline = comparison.headline
    if series is not None:
        result = Result(difference.name, difference.title, notes=difference.notes)
        result.add("series", series)
        difference = structs.replace(result, tables=result.tables | difference.tables)
        headline = (
            f"Of {len(sides)} runs, {names[1]} differs most from the one before it. {headline}"
        )
    name = ", ".join(_name_run(one, options) for side in given for one in side)
    described = {"name": name, "comparison": comparison.to_dict() | {"headline": headline}}
    compared = FinishedJob(described, {"difference": difference})
    _write_files(
        options,
        json=compared.to_json,
        html=lambda: _import_page().make_difference_page(
            name, comparison, headline, difference, jobs
        ),
    )
    status = SLOWER if any(one.is_exceeded for one in checked) else 0
    if options.fail_above and comparison.verdict == NOT_COMPARABLE:
        status = INCOMPARABLE
    warnings = [
        f"{job.description['name'] if len(sides) > 2 else letter}: {line}"
        for letter, side in zip("AB", shown, strict=True)
        for job in side
        for line in job.description.get("warnings", ())
    ]
    style = Style.for_output(options.full, options.rows)
    bars = draw_bars(list_bars(comparison, difference), style.text_width)
    if comparison.verdict == NOT_COMPARABLE:
        bars = []
    head = [headline, *map(str, checked), *bars]
    text = format_results([difference], head, style)
    return text, warnings, status


def write_report_files(
    job: Job, reports: Sequence[str | Path], path: Path, trace: Path, paths: bool = True
) -> str:
    """Return all analyses of a converted job as text. Also write them as JSON to the new file
    `path`, as a page beside it, and into its trace if this is a Perfetto trace. paths: write the
    paths of reports, not only their names.
    """
    if not paths:
        reports = [Path(report).name for report in reports]
    with OpenJob(job) as opened:
        finished = _finish_job(opened, opened.analyse(), True, reports)
    page = _import_page().make_page(finished)
    path.write_text(finished.to_json(), encoding="utf-8")
    path.with_suffix(".html").write_text(page, encoding="utf-8")
    if ".pftrace" in trace.suffixes:
        from nsys2prv.show.perfetto import append_report

        append_report(trace, finished)
    style = Style.for_output()
    return _format_job(finished, style, is_headed=False)


def _open_reports(reports: Sequence[str | Path], options: argparse.Namespace) -> OpenJob:
    has_tutorial = bool(vars(options).get("paraver_tutorial"))
    return open_job(
        reports,
        page=bool(options.html),
        # A tutorial's trace also contains the waits in MPI.
        demanded=(*({ON_DEMAND} & {*options.only}), *(["mpi_waiting"] * has_tutorial)),
        **_choose(options, *RUNNING),
        **_select_part(options),
    )


def _analyse_job(
    job: OpenJob, names: Sequence[str], options: argparse.Namespace, **more: bool
) -> dict[str, Result]:
    chosen = _choose(options, "useful", "iterations", "bins", "what_if", "mesh")
    return job.analyse(*names, **chosen, **more)


def load_job(name: str, options: argparse.Namespace) -> FinishedJob:
    """Return the analyzed job for an argument of `diff`: a report that is analyzed now, or a file
    of `report --json`.
    """
    path = Path(name)
    if path.suffix == JSON:
        if options.iterations or _select_part(options) != WHOLE_JOB:
            refuse("options_for_finished_report", path=path)
        return _load_job_file(path)
    reports = find_reports([name])
    with _open_reports([name], options) as job:
        results = _analyse_job(job, (), options)
        name = _name_run(name, options)
        return _finish_job(job, results, bool(options.html), reports, name, typical=True)


def _name_run(given: str, options: argparse.Namespace) -> str:
    """Return the name of a run in outputs: its path, or a pseudonym."""
    return make_pseudonym("run", given) if options.anonymous else given


def make_heading(job: Mapping[str, Any]) -> list[str]:
    """Return the lines of a report's heading. job: from :meth:`nsys2prv.open_job.OpenJob.describe`."""
    gpus = f", {count_gpus(job)}" if job["devices"] else ", no GPU work"
    if models := format_gpu_models(job):
        gpus += f" ({models})"
    sources = job.get("ranks_by", ())
    return [
        *([str(job["title"])] if job.get("title") else []),
        f"{describe_processes(job.get('processes', job['ranks']), job['ranks'])} on {format_count(len(job['nodes']), 'node')}{gpus}; "
        f"{format_nanoseconds(job['duration_ns'])}; {sum(job['records'].values()):,} events"
        + (f"; rank numbers from {' and '.join(sources)}" if FILE_NAMES in sources else ""),
        *filter(None, [format_recording(job)]),
    ]


def format_notes(notes: Iterable[str]) -> list[str]:
    """Return notes as lines below the heading of a report."""
    return [f"  {note}" for note in notes]


def run_study(options: argparse.Namespace) -> Answer:
    """Run `nsys2prv study`. Return its output, warnings and exit status."""
    # Not before they are needed.
    from nsys2prv.show.study.formats import (
        format_csv,
        format_study,
        make_talp_files,
    )
    from nsys2prv.show.study.markdown import format_markdown
    from nsys2prv.study_runs import make_study

    _check_runs(options)
    chosen = "scaling", "reference", "iterations", "whole", "host_threads", "useful"
    drawn: dict[str, FinishedJob] | None = {} if options.html else None
    labels = _parse_labels(options)
    if options.anonymous:
        labels = {run: _name_run(run, options) for run in options.runs} | labels
    regions = [name for name in (options.regions or "").split(",") if name]
    study = make_study(
        options.runs,
        regions=regions,
        labels=labels,
        drawn=drawn,
        history=options.history,
        **_choose(options, *chosen, *RUNNING),
    )
    paths = [run.name for run in study.runs]
    if options.anonymous:
        drawn = _hide_given(study, drawn, regions)
    more = make_talp_files(study, options.talp) if options.talp else {}
    pictures = study.pictures() if options.svg else {}
    plots = {options.svg / f"{name}.svg": text for name, text in pictures.items()}
    beside = (options.md or Path()).absolute().parent
    shown = {path.stem: Path(os.path.relpath(path, beside)).as_posix() for path in plots}
    _write_files(
        options,
        json=lambda: f"{json.dumps(study.to_dict(), indent=1, allow_nan=False)}\n",
        html=lambda: _import_page().make_study_page(study, options.html, drawn),
        md=lambda: format_markdown(study, shown),
        csv=lambda: format_csv(study),
        more=more | plots,
    )
    text = format_study(study, Style.for_output())
    if options.cut:
        _cut_runs(study, paths, options)
        text += f"\n\ntraces of the focus of analysis: {options.cut}; modelfactors.py -s {study.scaling.used} {options.cut}/*.prv"
    return text, [], 0


def _check_runs(options: argparse.Namespace) -> None:
    """Raise UsageError if runs or output folders cannot be used."""
    paths = [Path(run) for run in options.runs]
    if options.whole and options.iterations:
        refuse("whole_and_iterations")
    for name in ("talp", "cut", "svg"):
        if folder := getattr(options, name):
            if folder.exists() and not folder.is_dir():
                refuse("file_for_output_folder", option=name, path=folder)
            check_folder(folder.parent)
    if options.cut and (made := [path for path in paths if path.suffix == JSON]):
        refuse("cut_of_finished_study", path=made[0])


def _parse_labels(options: argparse.Namespace) -> dict[str, str]:
    """Return run -> label."""
    labels: dict[str, str] = {}
    for text in options.label:
        run = next((run for run in options.runs if text.endswith(f"={run}")), None)
        label = text[: -len(run) - 1].strip() if run else ""
        if not (run and label):
            refuse("label_of_no_run", text=text, run=options.runs[0])
        if label in labels.values():
            refuse("same_labels", text=text, label=label)
        labels[run] = label
    return labels


def _hide_given(
    study: Study, drawn: Mapping[str, FinishedJob] | None, regions: Sequence[str]
) -> dict[str, FinishedJob] | None:
    """Rename the runs of a study to their labels, and requested regions to pseudonyms. Return the
    drawn jobs under the new names.
    """
    names = {run.name: run.label for run in study.runs}
    hidden = {name: make_pseudonym("range", name) for name in regions}
    for run in study.runs:
        run.name = names[run.name]
        run.regions = {hidden.get(name, name): one for name, one in run.regions.items()}
        if of_regions := run.sums.get("regions"):
            run.sums["regions"] = {hidden.get(name, name): one for name, one in of_regions.items()}
    study.reference = names[study.reference]
    study.regions = [hidden.get(name, name) for name in study.regions]
    return drawn and {names[name]: job for name, job in drawn.items()}


def _cut_runs(study: Study, paths: Sequence[str], options: argparse.Namespace) -> None:
    """Write a trace of each run's focus of analysis. paths: of the runs."""
    from nsys2prv.show.study.formats import name_file

    options.cut.mkdir(exist_ok=True)
    for number, (run, path) in enumerate(zip(study.runs, paths, strict=True), 1):
        cut = CutOptions(time=f"{run.interval.begin_ns}ns:{run.interval.end_ns}ns")
        trace = options.cut / f"{name_file(number, run)}.prv"
        convert(path, trace, Options(cut=cut, **_choose(options, *RUNNING)))
