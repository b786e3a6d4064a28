"""The whole road: reports in, one trace out."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

import numpy as np

from nsys2prv import align, causality, extract, relate, write
from nsys2prv.catalogue import catalogue, domain_numbers
from nsys2prv.catalogue.counters import Metric, counter_codes
from nsys2prv.clock.maps import ClockMap
from nsys2prv.clock.placement import UNPLACED, Placement, ReportClock, place
from nsys2prv.clock.record import ClockRecord
from nsys2prv.clock_text import comments
from nsys2prv.errors import NothingToWrite, Nsys2prvError, UsageError
from nsys2prv.events.extraction import Settings
from nsys2prv.events.kind import EventKind
from nsys2prv.executor import available_cpus, in_order, make_executor
from nsys2prv.facts import FactBook
from nsys2prv.model import devices as device_model
from nsys2prv.model import names as name_model
from nsys2prv.model import objects as object_model
from nsys2prv.model.types import counter_types, event_types
from nsys2prv.naming.classes import load_rules
from nsys2prv.paraver.output import PartWriter, join, trace_paths
from nsys2prv.paraver.pcf import write_pcf
from nsys2prv.progress import Progress
from nsys2prv.relations import all_relations
from nsys2prv.report.info import ReportInfo, inspect
from nsys2prv.report.prepare import prepared
from nsys2prv.selection import Selection, least_durations, select
from nsys2prv.store.lanes import separate_overlaps
from nsys2prv.store.runs import COUNTER
from nsys2prv.summary import Summary
from nsys2prv.timeline import Timeline, begun, settled, timeline

#: Reports with fewer rows than this together are not worth starting processes for.
SMALL_JOB_ROWS = 400_000


@dataclass(frozen=True)
class Options:
    """How to convert. kinds: names as -t takes them, empty for all. jobs: processes, 0 for one per CPU (a script that asks for more
    than one needs the usual `if __name__ == "__main__":`). tmp: folder for temporary files, by default the output's.
    min_duration: such names -> ns; shorter ranges of these kinds are dropped. kernel_rules: a file of rules of kernel classes that
    come before nsys2prv's own. align: how to align the clocks of hosts, one of align.METHODS or a clock file. causal: move ranks where
    their events still contradict each other."""

    kinds: tuple[str, ...] = ()
    compress: bool = False
    full_kernel_names: bool = False
    jobs: int = 1
    tmp: Path | None = None
    quiet: bool = True
    min_duration: Mapping[str, int] = field(default_factory=dict)
    kernel_rules: Path | None = None
    align: str = align.AUTO
    causal: bool = False


@dataclass
class _Job:
    """What the stages hand on."""

    infos: list[ReportInfo]
    placements: list[Placement]
    selection: Selection
    executor: Executor
    jobs: int
    folder: Path
    progress: Progress
    settings: Settings
    results: list[extract.Extracted] = field(default_factory=list)

    def run(self, function: Callable, tasks: Sequence, ahead: int | None = None) -> Iterator:
        return in_order(self.executor, function, tasks, 2 * self.jobs if ahead is None else ahead)


def convert(reports: Sequence[str | Path], output: str | Path, options: Options = Options()) -> Summary:
    """Write the trace of these reports to `output` (.prv or .prv.gz, with .pcf and .row beside it).

    Raises Nsys2prvError with one line for people when a report cannot be read or the trace cannot be written, NothingToWrite
    when there is no event of the kinds asked for. Files under the final names are replaced only by complete ones.
    """
    selection = select(options.kinds)
    settings = Settings(least=least_durations(options.min_duration), rules=load_rules(options.kernel_rules))
    method = align.asked(options.align)
    if options.causal and method == align.NONE:
        raise UsageError("--causal moves ranks against each other, --align none leaves them as they are: give one of them")
    prv, pcf, row = trace_paths(output, options.compress)
    clock = pcf.with_suffix(".clock.yaml")
    _check_outputs(output, (prv, pcf, row, clock), options.tmp)
    progress = Progress(options.quiet)
    try:
        with _folder(options.tmp or prv.parent, prv.name) as folder:
            paths, warnings = _distinct(reports)
            opened = progress.over(prepared(paths, folder), "opening reports", len(paths))
            infos = object_model.order_reports([inspect(path, source) for path, source in opened])
            rows = sum(part.last - part.first + 1 for info in infos for part in _wanted_parts(info, selection.kinds))
            jobs = 1 if rows < SMALL_JOB_ROWS else options.jobs or available_cpus()
            with make_executor(jobs) as executor:
                clocks = [ReportClock(info.host, info.utc_ns, info.system_ns, info.absolute) for info in infos]
                job = _Job(infos, place(clocks), selection, executor, jobs, folder, progress, settings)
                summary = _convert(job, (prv, pcf, row, clock), options, method)
            summary.warnings[:0] = [*warnings, *selection.warnings]
            return summary
    except OSError as error:
        inside = str(error.filename or "").startswith(str((options.tmp or prv.parent) / f".{prv.name}."))
        raise Nsys2prvError(f"{prv if inside or not error.filename else error.filename}: {error.strerror or error}") from error


def _convert(job: _Job, outputs: tuple[Path, Path, Path, Path], options: Options, method: str | ClockRecord) -> Summary:
    _extract(job)
    if not any(result.runs for result in job.results):
        raise NothingToWrite(_nothing(job))
    job.results = separate_overlaps(job.results, partial(job.run, ahead=job.jobs))
    model = object_model.build(job.infos, [placement.machine for placement in job.placements],
                               [(result.report, key) for result in job.results for key in result.objects])
    job.results, notes = device_model.written_once(job.results, model.rows)
    sets = catalogue().name_sets
    labellers = {} if options.full_kernel_names else {"kernels": name_model.readable_kernels, "nccl_kernels": name_model.readable_kernels}
    met: dict[str, dict[int, name_model.NameFile]] = {}
    for result in job.results:
        for name_set, found in result.names.items():
            met.setdefault(name_set, {})[result.task] = name_model.NameFile(found, result.domains)
    values = name_model.assign(sets, met, labellers)
    domains = domain_numbers({domain for result in job.results for domain in result.domains})
    placed = _align(job, model, method)
    if options.causal:
        placed = _move(job, model, placed)
    hosts = [placement.machine for placement in placed.placements]
    job.results += job.run(relate.run_task, relate.plan(_facts(job, model, placed.clocks, hosts), job.folder))
    metrics = _metrics(job)
    manifest = _manifest(job, model, placed.clocks, values, domains, metrics)

    prv, pcf, row, clock = (path.with_name(f".{path.name}.{job.folder.name[-8:]}.new") for path in outputs)
    try:
        head = model.tree.header(_date(placed), manifest.duration) + comments(placed.record)
        lines = _write(job, manifest, head, prv, options.compress or outputs[0].suffix == ".gz")
        present = {run.shape.name for result in job.results for run in result.runs}
        kinds = [kind for kind in (*job.selection.kinds, *all_relations()) if present & set(kind.layouts)]
        types = event_types([layout for kind in kinds for layout in kind.layouts], values, domains,
                            counter_types(metrics, manifest.counter_codes))
        with pcf.open("wb") as file:
            write_pcf(types, file)
        row.write_bytes(model.tree.row_file().encode())
        if placed.record:
            clock.write_text(placed.record.text(), encoding="utf-8")
        else:
            outputs[3].unlink(missing_ok=True)
        for temporary, final in zip((clock, row, pcf, prv), reversed(outputs), strict=True):
            if temporary.exists():
                temporary.replace(final)
    finally:
        for temporary in (prv, pcf, row, clock):
            temporary.unlink(missing_ok=True)
    summary = Summary.of(job.infos, placed, job.selection, job.results, model, manifest.duration, lines,
                         [path for path in outputs if path != outputs[3] or placed.record])
    summary.notes += notes
    return summary


def _extract(job: _Job) -> None:
    first, second = extract.plan(job.infos, job.selection.kinds, job.folder, job.settings)
    with job.progress.bar("reading", sum(task.rows for task in first + second), "rows") as bar:
        for stage in (first, second):
            tasks = extract.with_launches(stage, job.results) if stage is second else stage
            for result in job.run(extract.run_task, tasks):
                job.results.append(result)
                bar.update(result.rows)


def _align(job: _Job, model: object_model.ObjectModel, method: str | ClockRecord) -> Timeline:
    """The timeline, on which hosts are aligned as asked for."""
    placements = settled(job.placements, job.results, method)
    record = method if isinstance(method, ClockRecord) else None
    if record is None and method not in (align.UTC, align.NONE):
        clocks, names = align.host_clocks(job.infos, job.placements)
        if len(names) > 1:
            book = _facts(job, model, [placement.map for placement in placements], clocks)
            found = next(iter(job.run(align.run_task, [align.plan(book, method, len(names))])))
            record = align.recorded(found, names, [f"rank {process.rank}" if process.rank is not None else job.infos[process.report].name
                                                   for process in model.processes])
    return timeline(placements, job.infos, job.results, record)


def _move(job: _Job, model: object_model.ObjectModel, placed: Timeline) -> Timeline:
    """The timeline with ranks moved so that no event contradicts another's."""
    reports = range(len(job.infos))
    book = _facts(job, model, [placement.map for placement in placed.placements], reports)
    order = next(iter(job.run(causality.run_task, [causality.plan(book, len(reports))])))
    clocks, hosts = align.host_clocks(job.infos, job.placements)
    names = causality.report_names(job.infos, model.processes)
    return begun(causality.moved(placed, order, names, [hosts[clock] for clock in clocks]), job.results)


def _facts(job: _Job, model: object_model.ObjectModel, clocks: Sequence[ClockMap], hosts: Sequence[int]) -> FactBook:
    threads = {result.task: _threads(result, model) for result in job.results if result.facts}
    return FactBook(job.results, clocks, hosts, threads,
                    {(process.report, process.pid): number for number, process in enumerate(model.processes)})


def _threads(result: extract.Extracted, model: object_model.ObjectModel) -> np.ndarray:
    """The thread index of each local object of a result."""
    if result.report == relate.TRACE:
        return np.arange(model.tree.threads)
    return np.array([model.rows[result.report, key] for key in result.objects], np.int64)


def _metrics(job: _Job) -> dict[str, set[Metric]]:
    """The sampled numbers met, by layout."""
    found: dict[str, set[Metric]] = {}
    for shape in {run.shape for result in job.results for run in result.runs if run.shape.stream == COUNTER}:
        found.setdefault(shape.name, set()).update(shape.metrics)
    return found


def _closings(job: _Job, model: object_model.ObjectModel, codes: dict[tuple[str, str], int]) -> list[tuple[int, tuple[int, ...]]]:
    """Each thread with samples, and the event types of all of them."""
    found: dict[int, set[int]] = {}
    for result in job.results:
        for run in result.runs:
            if run.shape.stream == COUNTER:
                thread = model.rows[result.report, result.objects[run.object]]
                found.setdefault(thread, set()).update(codes[run.shape.name, metric.name] for metric in run.shape.metrics)
    return [(thread, tuple(sorted(found[thread]))) for thread in sorted(found)]


def _manifest(job: _Job, model: object_model.ObjectModel, clocks: list[ClockMap], values: dict[str, name_model.NameValues],
              domains: dict[str, int], metrics: dict[str, set[Metric]]) -> write.Manifest:
    """The windows' common data."""
    by_task = sorted(job.results, key=lambda result: result.task)
    numbers = {result.task: index for index, result in enumerate(by_task)}
    runs = [replace(run, source=numbers[run.source]) for result in job.results for run in result.runs]
    duration = max(int(clocks[run.report].to_global(np.int64(run.last))) for run in runs)
    domain_codes = sorted(domains.items())
    sampled = counter_codes({layout: [metric.name for metric in met] for layout, met in metrics.items()})
    domain_index = {name: index for index, (name, _) in enumerate(domain_codes)}

    def lookup(column: Callable[[extract.Extracted], Sequence | np.ndarray]) -> write.Lookup:
        return write.Lookup.of([np.array(column(result), np.int64) for result in by_task])

    return write.Manifest(
        runs, clocks, model.tree.addresses, duration,
        lookup(lambda result: _threads(result, model)),
        lookup(lambda result: [domain_index[domain] for domain in result.domains]),
        {name: lookup(lambda result, found=found: found.by_task.get(result.task, ())) for name, found in values.items()},
        domain_codes, sampled, _closings(job, model, sampled), write.window_bounds(runs, clocks))


def _write(job: _Job, manifest: write.Manifest, head: str, prv: Path, compress: bool) -> int:
    """Write the .prv under a temporary name; returns its number of lines."""
    with PartWriter(prv, compress) as writer:
        writer.write(head.encode())
    saved = job.folder / "manifest"
    manifest.save(saved)
    windows = range(len(manifest.bounds))
    function = partial(_write_window, saved, job.folder, compress)
    lines = 0
    with job.progress.bar("writing", sum(run.rows for run in manifest.runs), "lines") as bar:
        def parts() -> Iterator[Path]:
            nonlocal lines
            for result in job.run(function, windows):
                lines += result.lines
                bar.update(result.lines)
                yield result.path

        try:
            join(parts(), prv)
        finally:
            write.forget(saved)
    return lines


def _write_window(saved: Path, folder: Path, compress: bool, number: int) -> write.WindowResult:
    return write.write_window(saved, number, folder / f"window-{number}", compress)


def _date(placed: Timeline) -> str:
    """When the trace began, in UTC: from the reports, so that the same reports always give the same bytes."""
    known = any(placement.method != UNPLACED for placement in placed.placements)
    seconds = placed.epoch // 1_000_000_000 if known and 0 <= placed.epoch < 250_000_000_000_000_000_000 else 0
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%d/%m/%Y at %H:%M")


def _wanted_parts(info: ReportInfo, kinds: Sequence[EventKind]) -> Iterator:
    tables = {table for kind in kinds for table in kind.tables}
    return (part for table, part in info.parts.items() if table in tables)


def _check_outputs(output: str | Path, paths: tuple[Path, ...], tmp: Path | None) -> None:
    """Raise one clear line where the trace could not be written."""
    if str(output).endswith(("/", os.sep)) or Path(output).name in ("", ".", ".."):
        raise UsageError(f"{output or '(empty)'}: is a folder; give the name of the trace to write, as in {Path(output) / 'out.prv'}")
    for path in paths:
        if path.is_dir():
            raise Nsys2prvError(f"{path}: is a folder; remove it or give another output")
    for folder in (paths[0].parent, *([tmp] if tmp else [])):
        if not folder.is_dir():
            raise Nsys2prvError(f"{folder}: no such folder; create it or give another one")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise Nsys2prvError(f"{folder}: no permission to write there; give another folder")


def _distinct(reports: Sequence[str | Path]) -> tuple[list[Path], list[str]]:
    """The reports without repetitions, and a warning for each of those."""
    paths: dict[Path, Path] = {}
    warnings = []
    for report in map(Path, reports):
        try:
            real = report.resolve()
        except (OSError, RuntimeError):
            raise Nsys2prvError(f"{report}: is a link that leads nowhere") from None
        if real in paths:
            warnings.append(f"{report}: given twice, read once")
        paths.setdefault(real, report)
    if not paths:
        raise Nsys2prvError("no report given")
    return list(paths.values()), warnings


def _nothing(job: _Job) -> str:
    names = ", ".join(info.name for info in job.infos[:3]) + (", …" if len(job.infos) > 3 else "")
    lost: Counter[str] = Counter()
    for result in job.results:
        for (_, reason), count in result.dropped.items():
            lost[reason] += count
    why = f" ({', '.join(f'{count} {reason}' for reason, count in lost.items())})" if lost else ""
    return f"{names}: nothing to write: no events of the kinds asked for{why}; see what the reports hold with --list"


@contextmanager
def _folder(parent: Path, name: str) -> Iterator[Path]:
    """A folder for temporary files, removed whatever happens."""
    folder = Path(tempfile.mkdtemp(prefix=f".{name}.", suffix=".tmp", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
