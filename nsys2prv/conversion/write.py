"""Write the trace of a job, window by window, with the files beside it.

In: a job that is aligned. Out: the files, and a `Summary`.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from nsys2prv._util.files import name_beside
from nsys2prv.conversion.job import Job, plan_windows
from nsys2prv.conversion.metadata import ENDING, describe_inputs, make_metadata
from nsys2prv.conversion.options import DEFAULTS, Options
from nsys2prv.conversion.summary import Summary, make_comment_lines
from nsys2prv.events.kind import EventKind, Reason
from nsys2prv.relations import Relation, all_relations
from nsys2prv.store.runs import COUNTER, LINE, STATE, Run
from nsys2prv.store.windows import GlobalIds
from nsys2prv.writers.paraver.pcf import list_codes, number_metrics
from nsys2prv.writers.paraver.prv import ParaverWriter
from nsys2prv.writers.perfetto import PerfettoWriter
from nsys2prv.writers.writer import (
    TraceContent,
    WindowPlan,
    Writer,
    append_window,
    close_plan,
    make_window,
    prepare_pieces,
)

#: Ending of a trace -> what writes it; the first is that of a name without any of them.
WRITERS: dict[str, type[Writer]] = {".prv": ParaverWriter, ".pftrace": PerfettoWriter}


def write_job(
    job: Job, output: str | Path, options: Options = DEFAULTS, keep_runs: bool = True
) -> Summary:
    """Write the trace of a job, and the files beside it. keep_runs: the runs of the job are needed
    afterwards. Raises OSError where a file cannot be written.
    """
    *outputs, clock, metadata_file = list_outputs(output, options.compress)
    writer = choose_writer(output, options.compress)[0]()
    runs, global_ids, bounds = plan_windows(job)
    content = _describe_content(job, runs, global_ids)
    inputs = describe_inputs(job) if options.metadata else []
    head = writer.begin(content)
    parts = None if job.pool.shares_memory else job.folder
    is_packed = outputs[0].suffix == ".gz"
    plan = WindowPlan(writer, runs, global_ids, bounds, is_packed, parts)
    count, repeated = _write_windows(job, plan, head, outputs[0], keep_runs)
    writer.end(content, outputs[0])
    record = job.clock_record
    if record:
        clock.write_text(record.format(), encoding="utf-8")
    events = job.written - repeated
    masks = {name: mask for name, mask in job.plan.cut.field_masks.items() if name in events}
    codes = list_codes(masks, dict(job.domain_codes))
    repeats = {(name, Reason.SAMPLE_REPEATED): count for name, count in repeated.items()}
    summary = Summary.from_job(
        job,
        events,
        job.left_out + Counter(repeats),
        writer=writer,
        lines=count,
        types=frozenset(codes.union(number_metrics(content.metrics).values())),
        sizes={path: path.stat().st_size for path in (*outputs, clock) if path.exists()},
    )
    if options.metadata:
        clock_name = clock.name if record else None
        text = make_metadata(job, inputs, summary, options, clock_name)
        metadata_file.write_text(text, encoding="ascii")
        summary.sizes[metadata_file] = metadata_file.stat().st_size
    return summary


def choose_writer(output: str | Path, compress: bool = False) -> tuple[type[Writer], Path]:
    """Return the writer for an output given as `out`, `out.prv` or `out.prv.gz`, and the name of
    the trace.
    """
    endings = "|".join(map(re.escape, WRITERS))
    match = re.fullmatch(rf"(?s)(.*?)({endings})?(\.gz)?", Path(output).name)
    name, ending, packed = match.groups() if match and match[2] else (Path(output).name, None, None)
    ending = ending or next(iter(WRITERS))
    trace = f"{name}{ending}.gz" if compress or packed else f"{name}{ending}"
    return WRITERS[ending], Path(output).parent / trace


def list_outputs(output: str | Path, compress: bool) -> tuple[Path, ...]:
    """Return the paths of the trace, of its format's files, of the clocks and of the metadata."""
    writer, trace = choose_writer(output, compress)
    endings = (*writer.beside, ".clock.yaml", ENDING)
    return trace, *(name_beside(trace, ending) for ending in endings)


def _describe_content(job: Job, runs: Sequence[Run], global_ids: GlobalIds) -> TraceContent:
    """Return the description of the trace for its writer. runs: hold its records."""
    present = {run.shape.name for run in job.runs}
    sources: tuple[EventKind | Relation, ...] = (*job.selection.kinds, *all_relations())
    sampled: dict[int, set[tuple[str, str]]] = defaultdict(set)
    for run in job.runs:
        if run.shape.stream == COUNTER:
            row = int(job.threads[run.task][run.object])
            sampled[row] |= {(run.shape.name, metric.name) for metric in run.shape.metrics}
    streams = {run.shape.stream for run in job.runs}
    return TraceContent(
        model=job.model,
        values=job.values,
        domain_codes=job.domain_codes,
        runs=runs,
        global_ids=global_ids,
        layouts={
            layout: job.plan.cut.field_masks[layout]
            for source in sources
            for layout in source.layouts
            if layout in present
        },
        metrics=job.collect_metrics(),
        sampled=sampled,
        lines=frozenset(run.shape.name for run in job.runs if run.shape.stream == LINE),
        has_states=STATE in streams,
        duration=job.duration,
        begin_utc=job.begin_utc,
        comments=make_comment_lines(job.clock_record),
    )


def _write_windows(
    job: Job, plan: WindowPlan, head: bytes, trace: Path, keep_runs: bool
) -> tuple[int, Counter[str]]:
    """Write the trace under a temporary name, `head` first. Returns the number of lines, and, by
    layout, how many samples were dropped because another one has the same time.
    """
    saved = job.folder / "windows"
    plan.save(saved)
    if not keep_runs:
        # What was joined is not read again.
        read = {run.path for result in job.results for run in result.runs}
        for path in read - {run.path for run in plan.runs}:
            path.unlink(missing_ok=True)
    lines = 0
    repeated: Counter[str] = Counter()
    number = len(plan.bounds)
    windows = job.run(partial(make_window, saved), range(number), lambda _: str(trace))
    try:
        with trace.open("wb") as out, job.progress.show_phase("writing", number) as advance:
            append_window(out, prepare_pieces([head], plan.compress))
            for made, count, double in windows:
                append_window(out, made)
                lines += count
                repeated += double
                advance(1)
    finally:
        close_plan(saved)
    return lines, repeated
