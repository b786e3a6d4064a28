"""Convert reports to a trace, from the options to the files: the trace, its labels, rows and clocks, and
`out.nsys2prv.json`, which tells of what the trace was made, how, and the account of every row that was
read, and of every record made of them.

Nothing in that file depends on when, where or by how many processes the trace was written. It holds
nothing of a job's environment. The only paths in it are those of the reports, as they were given;
with `--no-paths` only their names.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import asdict

from nsys2prv._util import errors
from nsys2prv._util.errors import Nsys2prvError, UsageError
from nsys2prv._util.files import check_not_read, is_one_of, put_in_place
from nsys2prv._util.version import __version__
from nsys2prv.clock.maps import ClockMap
from nsys2prv.conversion.job import (
    Job,
    RecordBalance,
    collect_metrics,
    group_by_name,
    open_workplace,
    plan_windows,
)
from nsys2prv.conversion.options import DEFAULTS, Options, Plan
from nsys2prv.conversion.prepare import prepare
from nsys2prv.conversion.summary import Summary
from nsys2prv.conversion.timeline import make_comment_lines
from nsys2prv.events import all_kinds
from nsys2prv.events.catalogue import Metric, assign_counter_codes, load_catalogue
from nsys2prv.events.kind import Account, EventKind, Reason, describe_reason, explain_unread_table
from nsys2prv.nsight.report_files import find_reports
from nsys2prv.paraver import window_writer
from nsys2prv.paraver.pcf import EventType, StateLabel, write_pcf
from nsys2prv.paraver.values import list_codes, make_counter_types, make_event_types
from nsys2prv.paraver.window_writer import PartFilesOutput, SharedFileOutput, derive_trace_paths
from nsys2prv.relations import Relation, all_relations
from nsys2prv.store.runs import COUNTER, STATE

#: Records of a trace that is large: people are told of options that would make it smaller.
LARGE_TRACE = 1_000_000
#: Endings of the files beside the trace for what --report finds.
REPORT, PAGE = ".report.json", ".report.html"
#: Ending of the file that tells of what the trace was made.
METADATA_ENDING = ".nsys2prv.json"
#: Bytes at each end of a file that its checksum is of: whole reports would take longer to read than
#: to convert.
CHECKED_BYTES = 1 << 20
#: Reports whose checksums one task takes.
REPORTS_OF_TASK = 16
#: How the checksums are made, for readers of the file.
CHECKSUM = (
    "blake2b (16 bytes) of the file's size (8 bytes, little-endian), its first MiB and its last MiB"
)
#: Options that do not change the trace, or are places of the machine.
NOT_TOLD = frozenset(
    {"jobs", "tmp", "quiet", "engine", "scheduler", "metadata", "compress", "without_paths"}
)


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
    check_not_read(
        [*outputs, *further],
        [*reports, *(path for path in (options.kernel_rules, options.nvtx_rules) if path)],
    )
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
    metrics = collect_metrics(job)
    manifest = _make_manifest(job, metrics)
    timeline, model = job.timeline, job.model

    # From the reports, so that the same reports always give the same bytes.
    date = timeline.begin_utc or datetime.fromtimestamp(0, timezone.utc)
    head = model.tree.format_header(date.strftime("%d/%m/%Y at %H:%M"), job.duration)
    head += make_comment_lines(timeline.record)
    inputs = describe_inputs(job) if options.metadata else []
    smaller = _describe_smaller_traces(job)
    lines, repeated = _write_prv(job, manifest, head, prv, keep_runs)
    counters = make_counter_types(metrics, manifest.counter_codes)
    _write_labels(job, counters, pcf)
    row.write_bytes(model.tree.format_row_file().encode())
    if timeline.record:
        clock.write_text(timeline.record.format(), encoding="utf-8")
    sizes = {path: path.stat().st_size for path in outputs[:4] if path.exists()}
    events = job.written - repeated
    repeats: Counter[tuple[str, str]] = Counter(
        {(name, Reason.SAMPLE_REPEATED): count for name, count in repeated.items()}
    )
    codes = list_codes(load_catalogue().layouts.keys() & events.keys(), dict(job.domain_codes))
    summary = Summary.from_job(
        job,
        events,
        job.left_out + repeats,
        lines=lines,
        types=frozenset(codes | {counter.code for counter in counters}),
        sizes=sizes,
        smaller=smaller,
    )
    if options.metadata:
        metadata_file.write_text(
            make_metadata(job, inputs, summary, options, clock.name if timeline.record else None),
            encoding="ascii",
        )
        summary.sizes[metadata_file] = metadata_file.stat().st_size
    return summary


def _write_labels(job: Job, counters: Sequence[EventType], path: Path) -> None:
    """Write the .pcf: the event types of the trace with their values, and its states."""
    present = {run.shape.name for run in job.runs}
    sources: tuple[EventKind | Relation, ...] = (*job.selection.kinds, *all_relations())
    layouts = [layout for source in sources for layout in source.layouts if layout in present]
    types = make_event_types(layouts, job.values, dict(job.domain_codes), counters)
    has_states = any(run.shape.stream == STATE for run in job.runs)
    states = [
        StateLabel(state.value, state.label, state.color)
        for state in (load_catalogue().states if has_states else ())
    ]
    with path.open("wb") as file:
        write_pcf(types, file, states)


def _describe_smaller_traces(job: Job) -> str:
    """Return what options would make of a trace that takes Paraver long to open, for people."""
    if sum(run.rows for run in job.runs) < LARGE_TRACE:
        return ""
    from nsys2prv.conversion.cut_size import describe_smaller_traces

    return describe_smaller_traces(job)


def _list_outputs(output: str | Path, compress: bool) -> tuple[Path, ...]:
    """Return the trace, its labels, its rows, the clocks of its hosts, and of what it was made."""
    prv, pcf, row = derive_trace_paths(output, compress)
    return prv, pcf, row, pcf.with_suffix(".clock.yaml"), pcf.with_suffix(METADATA_ENDING)


def _find_closings(
    job: Job, codes: dict[tuple[str, str], int]
) -> list[tuple[int, tuple[int, ...]]]:
    """Return each thread with samples, and the event types of all of them."""
    closings: dict[int, set[int]] = defaultdict(set)
    for run in job.runs:
        if run.shape.stream == COUNTER:
            thread = int(job.threads[run.task][run.object])
            closings[thread] |= {codes[run.shape.name, metric.name] for metric in run.shape.metrics}
    return [(thread, tuple(sorted(closings[thread]))) for thread in sorted(closings)]


def _make_manifest(job: Job, metrics: dict[str, set[Metric]]) -> window_writer.Manifest:
    """Return the windows' common data, small runs joined."""
    sampled = assign_counter_codes(
        {layout: [metric.name for metric in of_layout] for layout, of_layout in metrics.items()}
    )
    runs, global_ids, bounds = plan_windows(job)
    addresses, closings = job.model.tree.addresses, _find_closings(job, sampled)
    return window_writer.Manifest(
        runs, global_ids, addresses, job.domain_codes, sampled, closings, bounds
    )


def _write_prv(
    job: Job, manifest: window_writer.Manifest, head: str, prv: Path, keep_runs: bool
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
    with job.workers.progress.show_bar(
        "writing", sum(run.rows for run in manifest.runs), "lines"
    ) as bar:
        try:
            written = job.workers.run(
                partial(window_writer.write_window, saved, output),
                range(len(manifest.bounds)),
                what=lambda _: str(prv),
            )
            for number, (count, double) in enumerate(written):
                output.collect(number)
                lines += count
                repeated += double
                bar.update(count)
        except BaseException:
            output.abandon()
            raise
        finally:
            window_writer.close_formatter(saved)
    by_layout: Counter[str] = Counter()
    for (layout, _), code in manifest.counter_codes.items():
        by_layout[layout] += repeated[code]
    return lines, +by_layout


def _check_outputs(output: str | Path, paths: tuple[Path, ...]) -> None:
    """Raise one clear line where the trace could not be written."""
    if str(output).endswith(("/", os.sep)) or Path(output).name in ("", ".", ".."):
        raise UsageError(
            f"{output or '(empty)'}: is a folder; give the name of the trace to write, as in {Path(output) / 'out.prv'}"
        )
    if str(output) == "-" or (
        Path(output).exists() and not Path(output).is_file() and not Path(output).is_dir()
    ):
        raise UsageError(f"{output}: a trace is several files; give its name, as in out.prv")
    for path in paths:
        if path.is_dir():
            raise Nsys2prvError(f"{path}: is a folder; remove it or give another output")


def make_metadata(
    job: Job,
    inputs: Sequence[dict[str, Any]],
    summary: Summary,
    options: Options,
    clock: str | None,
) -> str:
    """Return the content of the file. inputs: as :func:`describe_inputs` finds them. clock: name of
    the clock file beside the trace, if there is one.
    """
    content = {
        "nsys2prv": __version__,
        "trace": {
            "files": {path.name: size for path, size in summary.sizes.items()},
            "lines": summary.lines,
            "duration_ns": summary.duration,
            "begins_utc_ns": job.timeline.epoch,
            "tasks": summary.ranks,
            "hosts": summary.hosts,
            "gpus": summary.devices,
            "rows": summary.threads,
            "ranks_by": summary.ranks_by,
        },
        # Those that are not what they are by default; of files the names.
        "options": {
            name: told for name, told in _to_plain(options).items() if name not in NOT_TOLD
        },
        "checksum": CHECKSUM,
        "inputs": [
            {
                "name": info.given.name if options.without_paths else str(info.given),
                **files,
                "host": info.host,
                "schema": info.schema,
                "nsys": info.product,
                "clock": {"method": placement.method, **_describe_clock(to_trace)},
            }
            for info, files, placement, to_trace in zip(
                job.infos, inputs, job.timeline.placements, job.clocks, strict=False
            )
        ],
        "clock_file": clock,
        "ledger": {
            "kinds": {
                kind: _describe_account(account) for kind, account in summary.ledger.kinds.items()
            },
            "records": _describe_balances(summary.ledger.records),
            "lines": _describe_balances(summary.ledger.lines),
            "tables": summary.ledger.tables,
            "tables_not_read": _list_not_read(job),
        },
        "repaired": group_by_name(summary.repaired),
        "reasons": _describe_reasons(summary),
        "quality": to_builtins(summary.quality),
        "notes": _describe_notes(job, summary.notes, options),
        "warnings": _describe_notes(job, summary.warnings, options),
    }
    return json.dumps(content, indent=1, ensure_ascii=True) + "\n"


def describe_inputs(job: Job) -> list[dict[str, Any]]:
    """Return for each report what :func:`checksum_task` finds."""
    paths = [info.given for info in job.infos]
    tasks = [
        paths[first : first + REPORTS_OF_TASK] for first in range(0, len(paths), REPORTS_OF_TASK)
    ]
    return list(chain.from_iterable(job.workers.run(checksum_task, tasks)))


def checksum_task(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Return sizes and checksums of some reports."""
    return [_describe_file(path) for path in paths]


def compute_checksum(path: Path) -> str:
    """Return the checksum that :data:`CHECKSUM` names, in hexadecimal digits. SQLite counts changes
    in the first bytes of a database.
    """
    size = path.stat().st_size
    digest = hashlib.blake2b(size.to_bytes(8, "little"), digest_size=16)
    with path.open("rb") as file:
        digest.update(file.read(CHECKED_BYTES))
        file.seek(max(0, size - CHECKED_BYTES))
        digest.update(file.read(CHECKED_BYTES))
    return digest.hexdigest()


def _describe_notes(job: Job, lines: Sequence[str], options: Options) -> list[str]:
    """Return the notes and warnings, without the folders of the reports if these are not wanted."""
    notes = list(map(str, lines))
    if options.without_paths:
        folders = {f"{info.given.parent}/" for info in job.infos}
        for folder in sorted(folders, key=len, reverse=True):
            notes = [line.replace(folder, "") for line in notes]
    return notes


def _to_plain(value: object) -> Any:
    if isinstance(value, Path):
        return value.name
    if isinstance(value, Struct):
        return {
            name: _to_plain(getattr(value, name))
            for name in value.__struct_fields__
            if getattr(value, name) != getattr(type(value)(), name)
        }
    if isinstance(value, Mapping):
        return {str(key): _to_plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_to_plain(item) for item in value]
    if isinstance(value, str) and "/" in value and value.endswith((".yaml", ".yml")):
        # A clock file is given in place of a method.
        return Path(value).name
    return value


def _describe_file(path: Path) -> dict[str, Any]:
    """Return size and checksum of a file, or of the files of a folder; nothing for one that stayed
    where a store was made.
    """
    if not path.exists():
        return {}
    if path.is_file():
        return {"bytes": path.stat().st_size, "checksum": compute_checksum(path)}
    files = sorted(member for member in path.iterdir() if member.is_file())
    return {
        "bytes": sum(member.stat().st_size for member in files),
        "checksums": {member.name: compute_checksum(member) for member in files},
    }


def _describe_clock(clock: ClockMap) -> dict[str, Any]:
    """Return the report's clock map: trace time = local + offset + drift * (local - pivot)."""
    return {
        "offset_ns": int(clock.offset),
        "drift": float(clock.drift),
        "pivot_ns": int(clock.pivot),
    }


def _describe_reasons(summary: Summary) -> dict[str, str]:
    """Return the text of every reason that the account names."""
    ledger = summary.ledger
    accounts, balances = ledger.kinds.values(), (*ledger.records.values(), *ledger.lines.values())
    keys = {key for _, key in summary.repaired}.union(
        *((*account.dropped, *account.skipped, *account.synthesized) for account in accounts),
        *(balance.left_out for balance in balances),
        *ledger.tables.values(),
    )
    return {key: describe_reason(key) for key in sorted(keys - {"rows"})}


def _describe_account(account: Account) -> dict[str, Any]:
    reasons = {
        name: dict(sorted(getattr(account, name).items()))
        for name in ("dropped", "skipped", "synthesized")
    }
    return {"rows": account.rows, "records": account.records, **reasons, "missing": account.missing}


def _describe_balances(balances: Mapping[str, RecordBalance]) -> dict[str, dict[str, Any]]:
    return {
        name: {**asdict(balance), "missing": balance.missing} for name, balance in balances.items()
    }


def _list_not_read(job: Job) -> dict[str, dict[str, Any]]:
    """Return the tables with rows that none of the selected kinds reads: how many rows at most, and
    why.
    """
    read, translated = (
        {table for kind in kinds for table in (*kind.tables, *kind.reads.lookup_tables)}
        for kinds in (job.selection.kinds, all_kinds())
    )
    rows: Counter[str] = Counter()
    for info in job.infos:
        for table, part in info.parts.items():
            if table not in read and not table.startswith("ENUM_"):
                rows[table] += part.last - part.first + 1
    return {
        table: {
            "rows": count,
            "why": "not asked for" if table in translated else explain_unread_table(table),
        }
        for table, count in sorted(rows.items())
    }
