"""Cut a job to a part, between aligning and writing.

Input: a job that was aligned with all its events, and a plan. Output: a job whose runs are
rewritten in the time of the cut trace. Ranges are clipped; states and counters in force at the
start of the cut are repeated there.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

import numpy as np
import polars as pl
from msgspec.structs import replace

from nsys2prv._util.columns import ABSENT
from nsys2prv._util.errors import NothingToWrite, Nsys2prvError
from nsys2prv._util.stored_columns import save_object
from nsys2prv._util.text import Note, format_seconds, list_some, suggest_range
from nsys2prv.conversion.cut_runs import CutTask, CutWindow, cut_task
from nsys2prv.conversion.job import Job, group_by_report, sum_counters
from nsys2prv.conversion.options import MOST_LISTED, CutPlan, Region, choose_reports, make_error
from nsys2prv.events.catalogue import NameSet, load_catalogue
from nsys2prv.events.extraction import DeviceKey, ObjectKey
from nsys2prv.events.kind import describe_reason
from nsys2prv.events.name_rules import NamePattern
from nsys2prv.table.event_reader import CutEdges, EventReader
from nsys2prv.table.slices import IdTable
from nsys2prv.writers.rows import ObjectModel, build_object_model, find_process

#: The name set of NVTX ranges, and the layout with such names that does not last.
NAMES, MARKS = "nvtx", "nvtx_mark"
#: A number without a unit in a time range; the hint if such a range keeps everything or nothing.
BARE_NUMBER, SECONDS = re.compile(r"\d *(:|$)"), "numbers without a unit are seconds"


def cut_job(job: Job, plan: CutPlan) -> Job:
    """Cut a job: return it with only the time, rows and fields that the plan selects. Raise
    NothingToWrite if nothing remains, Nsys2prvError if the plan names something that the job does
    not have.
    """
    model, objects = _choose_rows(plan, job)
    if model is job.model and not plan.changes_runs:
        return job
    (first, last), notes = _find_window(job, plan), []
    smaller, clipped = _cut_runs(job, first, last, model, objects, plan)
    whole = format_seconds(job.duration)
    if (first, last) != (0, job.duration):
        notes.append(f"{format_seconds(first)} to {format_seconds(last)} of {whole}")
    elif BARE_NUMBER.search(plan.options.time):
        notes.append(f"--time {plan.options.time} selects the whole trace; {SECONDS}")
    if left_out := (smaller.left_out - job.left_out).total():
        notes.append(f"{left_out:,} records discarded")
    if job.read_part:
        unread = sum(rest for _, rest in job.read_part.unread.values())
        notes.append(f"{unread:,} rows outside it not read")
    if clipped:
        notes.append(f"{clipped:,} ranges clipped")
    cut = [Note(f"cut: {'; '.join(notes)}")] if notes else []
    return replace(smaller, notes=[*job.notes, *cut])


def _find_window(job: Job, plan: CutPlan) -> tuple[int, int]:
    """Return start and end (ns of the trace) of the part that the plan keeps."""
    duration, options = job.duration, plan.options
    first, last = _find_region_span(plan.region, job) if plan.region else (0, duration)
    first = max(first, plan.first.resolve(duration) if plan.first else 0)
    last = min(last, duration, plan.last.resolve(duration) if plan.last else duration)
    if last <= first and (options.time or plan.region):
        given = (("--time", options.time), ("--region", options.region))
        where = " ".join(f"{option} {text}" for option, text in given if text)
        hint = f"; {SECONDS}, so append ns to nanoseconds"
        words = {"where": where, "duration": format_seconds(duration)}
        words["hint"] = hint if BARE_NUMBER.search(options.time) else ""
        raise make_error("cut_outside", NothingToWrite, **words)
    return first, last


def _cut_runs(
    job: Job, first: int, last: int, model: ObjectModel, objects: IdTable, plan: CutPlan
) -> tuple[Job, int]:
    """Return the job with its runs cut to a span (ns of the trace), and the number of clipped
    ranges.
    """
    origin = 0 if plan.options.keep_time else first
    clocks = [clock.delay(-origin) for clock in job.clocks]
    # Events end at the same time as in the whole trace. Names keep the numbers of the tasks.
    times = {"clocks": clocks, "duration": job.duration - origin}
    ids = replace(job.ids, objects=objects, names={}, **times)
    saved = job.folder / "ids-of-cut"
    save_object(ids, saved)
    window = CutWindow(first - origin, last - origin, last == job.duration, -origin)
    tasks = []
    for report, runs in sorted(group_by_report(job.runs).items()):
        ends = np.array([one.end for one in job.damaged if one.report == report], np.int64)
        damaged = clocks[report].to_global(ends)
        spill_file = job.folder / f"cut-{report}.bin"
        tasks.append(CutTask(tuple(runs), saved, plan, window, spill_file, damaged))
    cut = list(job.run(cut_task, tasks))
    parts = [part.result for part in cut]
    left_out = sum_counters(part.left_out for part in parts)
    if not any(part.runs for part in parts):
        lost: Counter[str] = Counter()
        for (_, reason), count in left_out.items():
            lost[reason] += count
        reasons = ", ".join(f"{count:,} {describe_reason(why)}" for why, count in (+lost).items())
        raise make_error("cut_empty", NothingToWrite, reasons=reasons)
    # A report of several ranks has all lines of its threads.
    carried = {thread: until for part in cut for thread, until in part.carried.items()}
    pending = {thread: since for part in cut for thread, since in part.pending.items()}
    sides = first > 0, last < job.duration
    # Runs of a cut job are in its time.
    clocks = [*clocks[:-1], job.clocks[-1]]
    smaller = replace(
        job,
        uncut=job,
        edges=CutEdges(first - origin, *sides, carried, pending),
        model=model,
        runs=[run for part in parts for run in part.runs],
        ids=replace(ids, names=job.ids.names, clocks=clocks, duration=last - origin),
        epoch=job.epoch + origin,
        clocks=clocks,
        written=+sum_counters(part.events for part in parts),
        left_out=+sum_counters([job.left_out, left_out]),
    )
    return smaller, sum(part.clipped for part in cut)


def _choose_rows(plan: CutPlan, job: Job) -> tuple[ObjectModel, IdTable]:
    """Return the object model of the selected rows (the job's own if all are selected), and the row
    of each local object, or -1. Raise Nsys2prvError if no row remains.
    """
    model, cut, machines = job.model, plan.options, job.machines
    if not (cut.ranks or cut.hosts or cut.keep_rows):
        return model, job.ids.objects
    keys, wanted = list(model.rows), set(choose_reports(job.infos, plan))
    if plan.ranks:
        ranks = [process.rank for process in model.processes]
        known = sorted({rank for rank in ranks if rank is not None})
        kept: set[int | None] = set()
        for word, wanted_ranks in plan.ranks.items():
            found = {rank for rank in known if rank in wanted_ranks}
            if not found:
                there = list_some([*map(str, known)], MOST_LISTED) or "none"
                raise make_error("ranks_absent", Nsys2prvError, word=word, there=there)
            kept |= found
        keys = [
            (report, key)
            for report, key in keys
            if isinstance(key, DeviceKey) or ranks[model.tasks[report, find_process(key)]] in kept
        ]
        wanted &= {report for report, key in keys if not isinstance(key, DeviceKey)}
        if not wanted:
            raise make_error("ranks_elsewhere", Nsys2prvError)
    # Samples of a machine may be in any of its reports.
    near = {machines[report] for report in wanted}
    keys = [
        (report, key)
        for report, key in keys
        if report in wanted or (isinstance(key, DeviceKey) and machines[report] in near)
    ]
    if cut.keep_rows:
        keys = _keep_named(keys, model, cut.keep_rows)
    if len(keys) == len(model.rows):
        return model, job.ids.objects
    if not keys:
        raise make_error("ranks_without_rows", Nsys2prvError)
    smaller = build_object_model(
        job.infos, machines, keys, job.captures.firsts, lambda *_: model.roles
    )
    place = np.full(model.tree.threads, -1)
    for key, row in smaller.rows.items():
        place[model.rows[key]] = row
    objects = job.ids.objects
    return smaller, replace(objects, table=place[objects.table])


def _keep_named(
    keys: Sequence[tuple[int, ObjectKey]], model: ObjectModel, patterns: Sequence[str]
) -> list[tuple[int, ObjectKey]]:
    """Return the objects with rows that any pattern matches. Raise Nsys2prvError for a pattern that
    matches no row.
    """
    words = model.list_row_words()
    known = {word: None for of_row in words for word in of_row}
    chosen: set[str] = set()
    for pattern in patterns:
        found = {word for word in known if fnmatchcase(word, pattern)}
        if not found:
            there = list_some(list(known), MOST_LISTED)
            raise make_error("keep_rows", Nsys2prvError, word=pattern, there=there)
        chosen |= found
    return [key for key in keys if not chosen.isdisjoint(words[model.rows[key]])]


def _find_region_span(region: Region, job: Job) -> tuple[int, int]:
    """Return start and end (ns of the trace) of a region. Raise Nsys2prvError if no range matches."""
    labels = pl.DataFrame(schema={"value": pl.Int64, "label": pl.String})
    if NAMES in job.values:
        labels = job.values[NAMES].labels
    pieces = _read_ranges(job, NamePattern.from_glob(region.pattern, labels))
    ranges = pl.concat(pieces).sort("thread", "begin", -pl.col("end"))
    if ranges.is_empty():
        hint = suggest_range(region.pattern, labels["label"].to_list())
        raise make_error("region_unknown", Nsys2prvError, pattern=region.pattern, hint=hint)
    place = pl.int_range(1, pl.len() + 1).over("thread")
    ranges = ranges.with_columns(place=place)
    last = ranges["place"].max() if region.last is None else region.last
    chosen = ranges.filter(pl.col("place").is_between(region.first, last))
    if chosen.is_empty():
        most = ranges["place"].max()
        words = {"pattern": region.pattern, "first": region.first, "most": most}
        raise make_error("region_beyond", Nsys2prvError, **words)
    return chosen["begin"].min(), chosen["end"].max()


def _read_ranges(job: Job, pattern: NamePattern) -> Iterator[pl.DataFrame]:
    """Yield thread, start and end of the ranges with matching names. Ranges that overlap are on
    additional rows of their thread.
    """
    # Not before it is needed.
    from nsys2prv.conversion.job_reader import make_row_table

    rows = make_row_table(job)
    reader = EventReader(job.runs, job.ids, rows)
    for name, layout in load_catalogue().layouts.items():
        values = layout.fields[0].values if layout.fields else None
        if name == MARKS or not isinstance(values, NameSet) or values.name != NAMES:
            continue
        fields = [one for one in (layout.fields[0].name, "number") if one in layout.by_name]

        def find_matches(
            columns: Mapping[str, np.ndarray], fields: list[str] = fields
        ) -> np.ndarray:
            numbers = columns.get("number", np.full(len(columns["begin"]), ABSENT))
            return pattern.find_matches(columns[fields[0]], numbers)

        found = reader.read_begins(name, fields, keep=find_matches)
        main = rows.main_rows[found["thread"].to_numpy()]
        yield found.select("begin", "end", pl.Series("thread", main))
