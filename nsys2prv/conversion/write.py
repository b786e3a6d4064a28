"""Write the trace of a job, window by window, and the files beside it.

Input: an aligned job. Output: the files, and a `Summary`. One file is the metadata,
`out.nsys2prv.json`: inputs, options, clocks, and an account of every row and record, written or
discarded, with the reason. It does not depend on when, where or by how many processes the trace was
written, and contains nothing from a job's environment. Its only paths are those of the reports as
given by the user; with `--no-paths`, only their names.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from msgspec import Struct, to_builtins
from msgspec.structs import asdict, replace

from nsys2prv._util import __version__
from nsys2prv._util.files import name_beside
from nsys2prv._util.stored_columns import load_object, save_object
from nsys2prv.conversion.clocks import make_comment_lines
from nsys2prv.conversion.job import Job
from nsys2prv.conversion.options import DEFAULTS, Options
from nsys2prv.conversion.summary import Summary
from nsys2prv.events import all_kinds
from nsys2prv.events.catalogue import Metric, load_catalogue
from nsys2prv.events.kind import EventKind, Reason, describe_reason, explain_unread_table
from nsys2prv.match import Relation, all_relations
from nsys2prv.table.runs import COUNTER, LINE, STATE, Run
from nsys2prv.table.slices import GlobalIds
from nsys2prv.table.windows import WindowReader, choose_window_bounds, join_small_runs
from nsys2prv.writers import TraceContent, Writer
from nsys2prv.writers.paraver.pcf import list_codes, number_metrics
from nsys2prv.writers.paraver.prv import ParaverWriter
from nsys2prv.writers.perfetto import PerfettoWriter

#: Larger writes cost more per byte on common kernels.
WRITE_BYTES = 1 << 20
GZIP_LEVEL = 1
#: Ending of the file of metadata.
ENDING = ".nsys2prv.json"
#: Bytes at each end of a file that its checksum is of: whole reports would take longer to read than
#: to convert.
CHECKED_BYTES = 1 << 20
#: Description of the checksums, for readers of the file.
CHECKSUM = (
    "blake2b (16 bytes) of the file's size (8 bytes, little-endian), its first MiB and its last MiB"
)
#: Options that do not change the trace, or are places of the machine.
UNRECORDED = frozenset(
    {"jobs", "tmp", "quiet", "engine", "scheduler", "metadata", "compress", "without_paths"}
)
#: Ending of a trace -> its writer; the first is used for a name without any of them.
WRITERS: dict[str, type[Writer]] = {".prv": ParaverWriter, ".pftrace": PerfettoWriter}


def write_job(job: Job, output: str | Path, keep_runs: bool = True) -> Summary:
    """Write the trace of a job, and the files beside it; return the summary. keep_runs: the runs
    are needed afterwards. Raise OSError if a file cannot be written.
    """
    job, options = _leave_out_launches(job), job.plan.options
    *outputs, clock, metadata_file = list_outputs(output, options.compress)
    writer = choose_writer(output, options.compress)[0]()
    runs = join_small_runs(job.runs, job.ids, job.folder, job.run)
    bounds = choose_window_bounds(runs, job.clocks, ends=True)
    content = _describe_content(job, runs)
    head = writer.begin(content)
    parts = None if job.pool.shares_memory else job.folder
    is_packed = outputs[0].suffix == ".gz"
    plan = WindowPlan(writer, runs, job.ids, bounds, is_packed, parts)
    count, repeated = _write_windows(job, plan, head, outputs[0], keep_runs)
    writer.end(content, outputs[0])
    record = job.clock_record
    if record:
        clock.write_text(record.format(), encoding="utf-8")
    events = job.written - repeated
    known = load_catalogue().layouts.keys() & events.keys()
    masks = {name: job.plan.cut.field_masks[name] for name in known}
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
        text = _make_metadata(job, summary, clock.name if record else None)
        metadata_file.write_text(text, encoding="ascii")
        summary.sizes[metadata_file] = metadata_file.stat().st_size
    return summary


def _leave_out_launches(job: Job) -> Job:
    """Return the job without launch lines that were stored only for analyses."""
    masks = job.plan.cut.field_masks
    runs = [run for run in job.runs if run.shape.stream != LINE or masks[run.shape.name]]
    lost = {run.shape.name for run in job.runs} - {run.shape.name for run in runs}
    if not lost:
        return job
    written = Counter({name: count for name, count in job.written.items() if name not in lost})
    left_out = Counter({(name, Reason.LAUNCH_LEFT_OUT): job.written[name] for name in lost})
    return replace(job, runs=runs, written=written, left_out=job.left_out + left_out)


def choose_writer(output: str | Path, compress: bool = False) -> tuple[type[Writer], Path]:
    """Return the writer class for an output given as `out`, `out.prv` or `out.prv.gz`, and the path
    of the trace. compress: add .gz.
    """
    endings = "|".join(map(re.escape, WRITERS))
    match = re.fullmatch(rf"(?s)(.*?)({endings})?(\.gz)?", Path(output).name)
    name, ending, packed = match.groups() if match and match[2] else (Path(output).name, None, None)
    ending = ending or next(iter(WRITERS))
    trace = f"{name}{ending}.gz" if compress or packed else f"{name}{ending}"
    return WRITERS[ending], Path(output).parent / trace


def list_outputs(output: str | Path, compress: bool) -> tuple[Path, ...]:
    """Return the paths of all files that a conversion to `output` writes: the trace, the further
    files of its format, the clock file, and the metadata. compress: add .gz to the trace.
    """
    writer, trace = choose_writer(output, compress)
    endings = (*writer.beside, ".clock.yaml", ENDING)
    return trace, *(name_beside(trace, ending) for ending in endings)


def _describe_content(job: Job, runs: Sequence[Run]) -> TraceContent:
    """Return the description of the trace for its writer. runs: the records to write."""
    present = {run.shape.name for run in job.runs}
    sources: tuple[EventKind | Relation, ...] = (*job.selection.kinds, *all_relations())
    sampled: dict[int, set[tuple[str, str]]] = defaultdict(set)
    metrics: dict[str, set[Metric]] = defaultdict(set)
    for run in job.runs:
        if run.shape.stream == COUNTER:
            row = int(job.ids.objects.get_table(run.task)[run.object])
            sampled[row] |= {(run.shape.name, metric.name) for metric in run.shape.metrics}
            metrics[run.shape.name].update(run.shape.metrics)
    streams = {run.shape.stream for run in job.runs}
    return TraceContent(
        model=job.model,
        values=job.values,
        domain_codes=job.domain_codes,
        runs=runs,
        global_ids=job.ids,
        layouts={
            layout: job.plan.cut.field_masks[layout]
            for source in sources
            for layout in source.layouts
            if layout in present
        },
        metrics=metrics,
        sampled=sampled,
        lines=frozenset(run.shape.name for run in job.runs if run.shape.stream == LINE),
        has_states=STATE in streams,
        duration=job.duration,
        begin_utc=job.begin_utc,
        comments=make_comment_lines(job.clock_record),
        full_kernel_names=job.plan.options.full_kernel_names,
    )


def _write_windows(
    job: Job, plan: WindowPlan, head: bytes, trace: Path, keep_runs: bool
) -> tuple[int, Counter[str]]:
    """Write the trace under a temporary name, with `head` first. Return the number of lines, and
    layout -> number of samples dropped because another one has the same time.
    """
    saved = job.folder / "windows"
    save_object(plan, saved)
    if not keep_runs:
        # Joined runs are not read again.
        read = {run.path for result in job.results for run in result.runs}
        for path in read - {run.path for run in plan.runs}:
            path.unlink(missing_ok=True)
    lines = 0
    repeated: Counter[str] = Counter()
    number = len(plan.bounds)
    windows = job.run(partial(make_window, saved), range(number))
    try:
        with trace.open("wb") as out, job.progress.show_phase("writing", number) as advance:
            append_window(out, prepare_pieces([head], plan.compress))
            for made, count, double in windows:
                append_window(out, made)
                lines += count
                repeated += double
                advance(1)
    finally:
        # Let go of the files that windows made in this process keep open.
        for key in [key for key in list(_OPEN_PLANS) if key[0] == saved]:
            _OPEN_PLANS.pop(key)[1].close()
    return lines, repeated


class WindowPlan(Struct):
    """Data that workers need to write any time window of the trace."""

    #: Writer, after its `begin`.
    writer: Writer
    #: Runs of records of the whole job.
    runs: list[Run]
    #: Maps local indices of the runs to numbers of the trace.
    global_ids: GlobalIds
    #: Times, ns: window k is bounds[k] <= time < bounds[k + 1], the last one open.
    bounds: list[int]
    #: Each window is a gzip member of its own; Paraver and Perfetto read files of many.
    compress: bool
    #: Folder for a file per window, from workers in other processes; None if windows stay in memory
    #: until they are written.
    parts: Path | None


def make_window(plan_path: Path, number: int) -> tuple[list[memoryview] | Path, int, Counter[str]]:
    """Make the bytes of a window of the trace. Return these (or a file with them), the number of
    lines, and layout -> number of dropped samples. plan_path: file with the :class:`WindowPlan`.
    """
    plan, reader = _open_plan(plan_path)
    last = plan.bounds[number + 1] if number + 1 < len(plan.bounds) else None
    window = reader.read(plan.bounds[number], last)
    pieces, count, repeated = plan.writer.window(window, number, last is None)
    made: list[memoryview] | Path = prepare_pieces(pieces, plan.compress)
    if plan.parts is not None:
        path = plan.parts / f"part-{number}"
        with path.open("wb") as out:
            append_window(out, made)
        made = path
    return made, count, repeated


def prepare_pieces(pieces: Iterable[np.ndarray | bytes], compress: bool) -> list[memoryview]:
    """Return pieces of the trace as bytes to write, compressed if requested."""
    views = [memoryview(piece).cast("B") for piece in pieces if len(piece)]
    if not compress:
        return views
    from isal import isal_zlib

    gzip = isal_zlib.compressobj(GZIP_LEVEL, isal_zlib.DEFLATED, 31)
    return [memoryview(data) for data in (*map(gzip.compress, views), gzip.flush()) if data]


def append_window(out: BinaryIO, made: list[memoryview] | Path) -> None:
    """Append the bytes of a window, from :func:`make_window`, to the trace. A file with them is
    then deleted.
    """
    if isinstance(made, Path):
        with made.open("rb") as source:
            shutil.copyfileobj(source, out, WRITE_BYTES)
        made.unlink()
        return
    for piece in made:
        for start in range(0, len(piece), WRITE_BYTES):
            out.write(piece[start : start + WRITE_BYTES])


#: The plan that each thread used last, with the reader of its runs.
_OPEN_PLANS: dict[tuple[Path, int], tuple[WindowPlan, WindowReader]] = {}


def _open_plan(path: Path) -> tuple[WindowPlan, WindowReader]:
    key = path, threading.get_ident()
    if key not in _OPEN_PLANS:
        for other in [other for other in list(_OPEN_PLANS) if other[1] == key[1]]:
            _OPEN_PLANS.pop(other)[1].close()
        plan = load_object(path)
        _OPEN_PLANS[key] = plan, WindowReader(plan.runs, plan.global_ids, ends=True)
    return _OPEN_PLANS[key]


def _make_metadata(job: Job, summary: Summary, clock: str | None) -> str:
    """Return the text of the metadata file. clock: name of the clock file beside the trace, if
    there is one.
    """
    options, ledger = job.plan.options, summary.ledger
    inputs = job.run_small(describe_input, [info.given for info in job.infos])
    content = {
        "nsys2prv": __version__,
        "trace": {
            "files": {path.name: size for path, size in summary.sizes.items()},
            "lines": summary.lines,
            "duration_ns": summary.duration,
            "begins_utc_ns": job.epoch,
            "tasks": summary.ranks,
            "hosts": summary.hosts,
            "gpus": summary.devices,
            "rows": summary.threads,
            "ranks_by": summary.ranks_by,
        },
        "options": _describe_options(options),
        "checksum": CHECKSUM,
        "inputs": [
            {
                "name": info.alias or (info.name if options.without_paths else str(info.given)),
                **files,
                "host": info.host,
                "schema": info.schema,
                "recorded_by": info.recorder,
                "exported_by": info.exporter,
                # trace time = local + offset + drift * (local - pivot)
                "clock": {
                    "method": placement.method,
                    "offset_ns": int(clock_map.offset),
                    "drift": float(clock_map.drift),
                    "pivot_ns": int(clock_map.pivot),
                },
            }
            for info, files, placement, clock_map in zip(
                job.infos, inputs, job.placements, job.clocks, strict=False
            )
        ],
        "clock_file": clock,
        "ledger": {
            "kinds": {
                kind: {
                    "rows": one.rows,
                    "records": one.records,
                    **{
                        fate: dict(sorted(getattr(one, fate).items()))
                        for fate in ("dropped", "skipped", "synthesized")
                    },
                    "missing": one.missing,
                }
                for kind, one in ledger.kinds.items()
            },
            **{
                part: {
                    name: {**asdict(balance), "missing": balance.missing}
                    for name, balance in balances.items()
                }
                for part, balances in (("records", ledger.records), ("lines", ledger.lines))
            },
            "tables": ledger.tables,
            "tables_not_read": _list_not_read(job),
        },
        "repaired": {
            kind: dict(sorted(one.repaired.items()))
            for kind, one in ledger.kinds.items()
            if one.repaired
        },
        "reasons": _describe_reasons(summary),
        "quality": to_builtins(summary.quality),
        "notes": _describe_notes(job, summary.notes),
        "warnings": _describe_notes(job, summary.warnings),
    }
    return json.dumps(content, indent=1, ensure_ascii=True) + "\n"


def _describe_options(options: Options) -> dict[str, Any]:
    """Return the options that differ from their defaults. Files are given by name."""
    named = replace(
        options,
        align=Path(options.align).name,
        nvtx_rules=options.nvtx_rules and Path(options.nvtx_rules).name,
    )
    if options.anonymous:
        named = replace(named, cut=replace(options.cut, region="", hosts=()))
    given, usual = (to_builtins(one, enc_hook=lambda path: path.name) for one in (named, DEFAULTS))
    return _find_changes(
        {name: value for name, value in given.items() if name not in UNRECORDED}, usual
    )


def _find_changes(given: dict[str, Any], usual: dict[str, Any]) -> dict[str, Any]:
    """Return the values that differ from the usual ones, recursively."""
    return {
        name: _find_changes(value, usual[name] or {}) if isinstance(value, dict) else value
        for name, value in given.items()
        if name not in usual or value != usual[name]
    }


def _list_not_read(job: Job) -> dict[str, dict[str, Any]]:
    """Return the tables that no selected kind reads -> the maximum number of rows, and the reason."""
    read, translated = (
        {table for kind in kinds for table in (*kind.tables, *kind.lookup_tables)}
        for kinds in (job.selection.kinds, all_kinds())
    )
    rows: Counter[str] = Counter()
    for info in job.infos:
        for table, part in info.parts.items():
            if table not in read and not table.startswith("ENUM_"):
                rows[table] += part.rows
    return {
        table: {
            "rows": count,
            "why": "not asked for" if table in translated else str(explain_unread_table(table)),
        }
        for table, count in sorted(rows.items())
    }


def _describe_reasons(summary: Summary) -> dict[str, str]:
    """Return reason -> text for every reason in the account."""
    ledger = summary.ledger
    keys = {key for _, key in summary.repaired}.union(
        *((*one.dropped, *one.skipped, *one.synthesized) for one in ledger.kinds.values()),
        *(one.left_out for one in (*ledger.records.values(), *ledger.lines.values())),
        *ledger.tables.values(),
    )
    return {key: describe_reason(key) for key in sorted(keys - {"rows"})}


def _describe_notes(job: Job, lines: Sequence[str]) -> list[str]:
    """Return the lines, without the folders of reports if paths are not wanted."""
    notes = list(map(str, lines))
    if job.plan.options.without_paths:
        folders = {f"{info.given.parent}/" for info in job.infos}
        for folder in sorted(folders, key=len, reverse=True):
            notes = [line.replace(folder, "") for line in notes]
    return notes


def describe_input(path: Path) -> dict[str, Any]:
    """Return the size in `bytes` and the `checksum` of a report or, for a folder, the `checksums`
    of its files by name.
    """
    if path.is_file():
        return {"bytes": path.stat().st_size, "checksum": _compute_checksum(path)}
    files = sorted(member for member in path.iterdir() if member.is_file())
    return {
        "bytes": sum(member.stat().st_size for member in files),
        "checksums": {member.name: _compute_checksum(member) for member in files},
    }


def _compute_checksum(path: Path) -> str:
    """Return the checksum (see :data:`CHECKSUM`) in hexadecimal. The first bytes of the file
    contain SQLite's change counter.
    """
    size = path.stat().st_size
    digest = hashlib.blake2b(size.to_bytes(8, "little"), digest_size=16)
    with path.open("rb") as file:
        digest.update(file.read(CHECKED_BYTES))
        file.seek(max(0, size - CHECKED_BYTES))
        digest.update(file.read(CHECKED_BYTES))
    return digest.hexdigest()
