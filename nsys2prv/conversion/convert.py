"""Convert reports to a trace, from the options to the files: the trace, its labels, rows and clocks,
and what it was made of (:mod:`nsys2prv.conversion.metadata`).
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from nsys2prv._util import errors
from nsys2prv._util.errors import Nsys2prvError, UsageError
from nsys2prv._util.files import check_not_read, is_one_of, put_in_place
from nsys2prv.conversion.job import Job, open_workplace, plan_windows
from nsys2prv.conversion.metadata import ENDING, describe_inputs, make_metadata
from nsys2prv.conversion.options import DEFAULTS, Options, Plan
from nsys2prv.conversion.prepare import prepare
from nsys2prv.conversion.summary import Summary
from nsys2prv.conversion.timeline import make_comment_lines
from nsys2prv.events.catalogue import assign_counter_codes, load_catalogue
from nsys2prv.events.kind import EventKind, Reason
from nsys2prv.export.report_files import find_reports
from nsys2prv.relations import Relation, all_relations
from nsys2prv.store.runs import COUNTER, STATE
from nsys2prv.writers.paraver.pcf import EventType, StateLabel, write_pcf
from nsys2prv.writers.paraver.prv import (
    Manifest,
    PartFilesOutput,
    SharedFileOutput,
    close_formatter,
    derive_trace_paths,
    write_window,
)
from nsys2prv.writers.paraver.values import list_codes, make_counter_types, make_event_types

#: Endings of the files beside the trace for what --report finds.
REPORT, PAGE = ".report.json", ".report.html"


def convert(
    reports: Sequence[str | Path] | str | Path,
    output: str | Path,
    options: Options = DEFAULTS,
    write_report: Callable[..., str] | None = None,
) -> Summary:
    """Write the trace of these reports (files, folders of reports, patterns) to `output` (.prv or
    .prv.gz, with .pcf and .row beside it).

    Raises Nsys2prvError with one line for people when a report cannot be read or the trace cannot
    be written, NothingToWrite when there is no event of the kinds asked for. Files under the final
    names are replaced only by complete ones.

    write_report: writes what options.report asks for, as
    :func:`nsys2prv.cli.report.write_report_files` does.
    """
    plan = Plan.from_options(options)
    reports = find_reports([reports] if isinstance(reports, str | Path) else reports)
    outputs = _list_outputs(output, options.compress)
    prv = outputs[0]
    further = [outputs[1].with_suffix(ending) for ending in (REPORT, PAGE)]
    # The trace with compression, of one without, and the other way round: beside new labels an
    # earlier one would show wrong names.
    other_form = prv.with_suffix("") if prv.suffix == ".gz" else prv.with_name(f"{prv.name}.gz")
    if other_form.is_file():
        further.append(other_form)
    rules = [path for path in (options.kernel_rules, options.nvtx_rules) if path]
    check_not_read([*outputs, *further], [*reports, *rules])
    # A clock file that is given, of an earlier trace of the same name, stays as it is.
    everything = [path for path in (*outputs, *further) if not is_one_of(path, [options.align])]
    _check_outputs(output, outputs)
    with open_workplace(options, len(reports), prv) as (pool, staging, folder):
        job = prepare(reports, plan, folder, pool, options.quiet)
        summary = write_job(job, staging / prv.name, options, keep_runs=options.report)
        if options.report and write_report:
            report_file = staging / outputs[1].with_suffix(REPORT).name
            summary.report = write_report(
                job, reports, report_file, paths=not options.without_paths
            )
        put_in_place(staging, everything)
        errors.ignore_signals()
        summary.sizes = {
            path: summary.sizes[staging / path.name]
            for path in everything
            if staging / path.name in summary.sizes
        }
        return summary


def write_job(
    job: Job, output: str | Path, options: Options = DEFAULTS, keep_runs: bool = True
) -> Summary:
    """Write the trace of a job that is prepared by these options, straight to its files. keep_runs:
    whether the job, with its runs, is still needed then. Raises OSError where that
    cannot be.
    """
    outputs = prv, pcf, row, clock, metadata_file = _list_outputs(output, options.compress)
    timeline, tree = job.timeline, job.model.tree
    manifest = _make_manifest(job)
    # From the reports, so that the same reports always give the same bytes.
    date = timeline.begin_utc or datetime.fromtimestamp(0, timezone.utc)
    head = tree.format_header(date.strftime("%d/%m/%Y at %H:%M"), job.duration)
    head += make_comment_lines(timeline.record)
    inputs = describe_inputs(job) if options.metadata else []
    lines, repeated = _write_prv(job, manifest, head, prv, keep_runs)
    counters = make_counter_types(job.collect_metrics(), manifest.counter_codes)
    _write_labels(job, counters, pcf)
    row.write_bytes(tree.format_row_file().encode())
    if timeline.record:
        clock.write_text(timeline.record.format(), encoding="utf-8")
    events = job.written - repeated
    codes = list_codes(load_catalogue().layouts.keys() & events.keys(), dict(job.domain_codes))
    repeats = {(name, Reason.SAMPLE_REPEATED): count for name, count in repeated.items()}
    summary = Summary.from_job(
        job,
        events,
        job.left_out + Counter(repeats),
        lines=lines,
        types=frozenset(codes | {counter.code for counter in counters}),
        sizes={path: path.stat().st_size for path in outputs[:4] if path.exists()},
    )
    if options.metadata:
        clock_name = clock.name if timeline.record else None
        text = make_metadata(job, inputs, summary, options, clock_name)
        metadata_file.write_text(text, encoding="ascii")
        summary.sizes[metadata_file] = metadata_file.stat().st_size
    return summary


def _list_outputs(output: str | Path, compress: bool) -> tuple[Path, ...]:
    """Return the trace, its labels, its rows, the clocks of its hosts, and of what it was made."""
    prv, pcf, row = derive_trace_paths(output, compress)
    return prv, pcf, row, pcf.with_suffix(".clock.yaml"), pcf.with_suffix(ENDING)


def _check_outputs(output: str | Path, paths: tuple[Path, ...]) -> None:
    """Raise one clear line where the trace could not be written."""
    path = Path(output)
    if str(output).endswith(("/", os.sep)) or path.name in ("", ".", ".."):
        raise UsageError(
            f"{output or '(empty)'}: is a folder; give the name of the trace to write, as in {path / 'out.prv'}"
        )
    if str(output) == "-" or (path.exists() and not path.is_file() and not path.is_dir()):
        raise UsageError(f"{output}: a trace is several files; give its name, as in out.prv")
    for path in paths:
        if path.is_dir():
            raise Nsys2prvError(f"{path}: is a folder; remove it or give another output")


def _write_labels(job: Job, counters: Sequence[EventType], path: Path) -> None:
    """Write the .pcf: the event types of the trace with their values, and its states."""
    present = {run.shape.name for run in job.runs}
    sources: tuple[EventKind | Relation, ...] = (*job.selection.kinds, *all_relations())
    layouts = [layout for source in sources for layout in source.layouts if layout in present]
    types = make_event_types(layouts, job.values, dict(job.domain_codes), counters)
    states = load_catalogue().states if any(run.shape.stream == STATE for run in job.runs) else ()
    labels = [StateLabel(state.value, state.label, state.color) for state in states]
    with path.open("wb") as file:
        write_pcf(types, file, labels)


def _make_manifest(job: Job) -> Manifest:
    """Return the windows' common data, small runs joined."""
    codes = assign_counter_codes(
        {
            layout: [metric.name for metric in metrics]
            for layout, metrics in job.collect_metrics().items()
        }
    )
    # Each thread with samples, and the event types of all of them.
    closings: dict[int, set[int]] = defaultdict(set)
    for run in job.runs:
        if run.shape.stream == COUNTER:
            thread = int(job.threads[run.task][run.object])
            closings[thread] |= {codes[run.shape.name, metric.name] for metric in run.shape.metrics}
    runs, global_ids, bounds = plan_windows(job)
    return Manifest(
        runs,
        global_ids,
        job.model.tree.addresses,
        job.domain_codes,
        codes,
        [(thread, tuple(sorted(types))) for thread, types in sorted(closings.items())],
        bounds,
    )


def _write_prv(
    job: Job, manifest: Manifest, head: str, prv: Path, keep_runs: bool
) -> tuple[int, Counter[str]]:
    """Write the .prv under a temporary name; returns its number of lines, and by layout how many
    sampled numbers were one of several of the same time.
    """
    saved = job.folder / "manifest"
    manifest.save(saved)
    output = (SharedFileOutput if job.workers.pool.one_machine else PartFilesOutput)(
        prv, job.folder, prv.suffix == ".gz"
    )
    output.begin(head.encode(), len(manifest.bounds))
    if not keep_runs:
        # What was joined is not read again.
        read = {run.path for result in job.results for run in result.runs}
        for path in read - {run.path for run in manifest.runs}:
            path.unlink(missing_ok=True)
    lines = 0
    repeated: Counter[int] = Counter()
    rows = sum(run.rows for run in manifest.runs)
    try:
        with job.workers.progress.show_bar("writing", rows, "lines") as bar:
            write = partial(write_window, saved, output)
            written = job.workers.run(write, range(len(manifest.bounds)), lambda _: str(prv))
            for number, (count, double) in enumerate(written):
                output.collect(number)
                lines += count
                repeated += double
                bar.update(count)
    except BaseException:
        output.abandon()
        raise
    finally:
        close_formatter(saved)
    by_layout: Counter[str] = Counter()
    for (layout, _), code in manifest.counter_codes.items():
        by_layout[layout] += repeated[code]
    return lines, +by_layout
