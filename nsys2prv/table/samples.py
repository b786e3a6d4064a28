"""Correct samples and ranges of reports, counting corrections in the account, and read the samples
of a window.

Corrections: unsampled time is marked; fractions get the same scale on all ranks; open ranges are
closed; profiler events are clipped to the time of the program; devices sampled by several reports
are kept once; samples with the same time are merged.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.columns import ABSENT, OPEN, find_bounds, group_rows, mask_changes, take_rows
from nsys2prv._util.intervals import order_ranges
from nsys2prv._util.text import Note
from nsys2prv.clock.maps import ClockMap
from nsys2prv.events import all_kinds
from nsys2prv.events.attributes import GREATEST
from nsys2prv.events.catalogue import UNSCALED, Metric, load_catalogue
from nsys2prv.events.extraction import DeviceKey, ObjectKey
from nsys2prv.events.kind import Account, EventKind, Reason
from nsys2prv.table.range_index import index_ends
from nsys2prv.table.runs import (
    BLOCK_ROWS,
    Run,
    Span,
    SpillReader,
    SpillWriter,
    read_run,
    rewrite_column,
)
from nsys2prv.table.slices import Slice
from nsys2prv.table.task_result import TaskResult, append_samples

#: Layout of the samples of GPUs.
LAYOUT = "gpu_metric"
#: Samples that are further apart than this many periods have a hole between them.
HOLE_PERIODS = 4
#: Samples that the period is found from.
PERIOD_SAMPLES = 4096
#: Decimals of the smallest fractions.
MOST_DECIMALS = 30
#: The greatest floating point number that an integer of 64 bits holds.
_LIMIT = np.nextafter(2.0**63, 0)
_POWERS = 10.0 ** np.arange(MOST_DECIMALS + 1)


def mark_unsampled(
    results: Sequence[TaskResult],
    spans: Mapping[int, Span],
    folder: Path,
    clocks: Sequence[ClockMap],
) -> None:
    """Add zeros to the samples of GPUs for times without sampling, because a value lasts until the
    next one.

    They are stored in this folder, added to the first result with samples of the GPU, and counted
    in the account. spans: report -> time span of its events (local ns). clocks: from each report's
    time to a common time.
    """
    begin = min((clocks[report].to_global(time) for report, (time, _) in spans.items()), default=0)
    for number, ((report, _), held) in enumerate(_group_by_gpu(results).items()):
        held.sort(key=lambda one: one[0].first_time)
        runs = [run for run, _ in held]
        times = _find_zero_times(runs, clocks[report], begin)
        if len(times):
            _add_zeros(held[0][1], runs, times, folder / f"unsampled-{number}.bin")


def _group_by_gpu(
    results: Sequence[TaskResult],
) -> dict[tuple[int, ObjectKey], list[tuple[Run, TaskResult]]]:
    """Return (report, GPU) -> the runs with its samples, and their results."""
    held: dict[tuple[int, ObjectKey], list[tuple[Run, TaskResult]]] = defaultdict(list)
    for result in results:
        for run in result.runs:
            if run.shape.name == LAYOUT and not run.filler:
                held[result.report, result.objects[run.object]].append((run, result))
    return held


def list_partly_sampled(
    results: Sequence[TaskResult], clocks: Sequence[ClockMap], duration: int
) -> Iterator[tuple[int, ObjectKey, int | None, int | None]]:
    """Find GPUs whose sampling started late or stopped early. Yield (report, GPU, start, end):
    start and end of its metrics (ns of the trace), None if nothing is missing there.

    Their metrics are missing for more than a few periods at the start or end of the time in which
    their report has GPU work, or metrics of other GPUs. clocks: from each report's time to trace
    time. duration: of the trace (ns).
    """
    layouts = {name for kind in all_kinds() if kind.gpu_work for name in kind.layouts}
    work: dict[int, list[Run]] = defaultdict(list)
    for result in results:
        work[result.report] += [
            run for run in result.runs if run.index and run.shape.name in layouts
        ]
    gpus = _group_by_gpu(results)
    for (report, gpu), held in sorted(gpus.items(), key=lambda item: item[0][0]):
        runs, begins = [run for run, _ in held], [run.first_time for run in work[report]]
        ends = [run.greatest_time for run in work[report]]
        ends += [run.last_time for one in gpus if one[0] == report for run, _ in gpus[one]]
        period = max((run.last_time - run.first_time) // max(run.rows - 1, 1) for run in runs)
        first, last = min(run.first_time for run in runs), max(run.last_time for run in runs)
        begin, end = clocks[report].to_global(np.array([first, last])).tolist()
        # A part of the job may be within a hole.
        is_late = first > min(begins, default=first) + HOLE_PERIODS * period and begin > 0
        stops = last < max(ends) - HOLE_PERIODS * period and end < duration
        if is_late or stops:
            yield report, gpu, begin if is_late else None, end if stops else None


def _add_zeros(result: TaskResult, runs: Sequence[Run], times: np.ndarray, path: Path) -> None:
    """Add a run of zeros for the metrics in all these runs. The first run belongs to the result."""
    first = runs[0]
    metrics = sorted({metric for run in runs for metric in run.shape.metrics})
    with SpillWriter(path, first.report, first.task) as writer:
        zeros = dict.fromkeys(metrics, np.zeros(len(times), np.int64))
        run = append_samples(writer, LAYOUT, zeros, first.object, times)
    result.runs.append(replace(run, filler=True))
    result.events[LAYOUT] += run.values
    synthesized = Counter({Reason.ZERO_UNSAMPLED: run.values})
    result.add(_find_kind(result, LAYOUT), Account(records=run.values, synthesized=synthesized))


def _find_kind(result: TaskResult, layout: str) -> str:
    """Return the event kind that owns the layout in this result, otherwise the kind that also uses
    it.
    """
    kinds = [one for one in all_kinds() if layout in one.layouts and one.name in result.accounts]
    return min(kinds, key=lambda kind: kind.layouts.index(layout)).name


def _find_zero_times(runs: Sequence[Run], clock: ClockMap, begin: int) -> np.ndarray:
    """Return the times at which zeros are needed in the runs of one GPU, which are sorted by first
    time (local ns). begin: start of the job on the shared clock.
    """
    of_runs = [read_run(run, "time")["time"] for run in runs]
    times = np.concatenate(of_runs)
    if all(one.last_time < other.first_time for one, other in pairwise(runs)):
        # Of consecutive samples, those of the longest run.
        period = _find_period(max(of_runs, key=len)[:PERIOD_SAMPLES])
    else:
        times = np.unique(times)
        period = _find_period(times)
    if not period:
        return np.zeros(0, np.int64)
    zero_times = times[1:][np.diff(times) > HOLE_PERIODS * period] - period
    early = runs[0].first_time - period
    # The first one is omitted if it would make the trace longer: nothing is shown before the start.
    return np.append(early, zero_times) if clock.to_global(early) > begin else zero_times


def _find_period(times: np.ndarray) -> int:
    """Return the usual time between samples (ns), or 0. If two sets of metrics alternate, return
    the longer time.
    """
    return int(np.quantile(np.diff(times), 0.75, method="lower")) if len(times) > 1 else 0


class _ValueStatistics(Struct):
    """Statistics of the values with one name."""

    #: Greatest finite value.
    greatest: float = 0.0
    #: Most decimals of the shortest forms of values as 64-bit numbers.
    decimals: int = 0
    #: Maximum number of decimals in their shortest forms as 32-bit numbers; -1 if a value is not
    #: such a number.
    single: int = 0

    def add(self, values: np.ndarray) -> None:
        """Include further values."""
        values = np.unique(values[np.isfinite(values) & (values > 0)])
        if not len(values):
            return
        self.greatest = max(self.greatest, float(values[-1]))
        self.decimals = max(self.decimals, _count_decimals(values, np.float64))
        if self.single >= 0:
            with np.errstate(over="ignore"):
                narrow = (values.astype(np.float32) == values).all()
            self.single = max(self.single, _count_decimals(values, np.float32)) if narrow else -1

    def choose_scale(self) -> int:
        """Return the number of decimals for the integers."""
        wanted = self.single if self.single >= 0 else self.decimals
        if not self.greatest:
            return wanted
        # Numbers that are hardly more than 0 have more decimals than there are powers.
        with np.errstate(over="ignore"):
            most = int(np.searchsorted(_POWERS, _LIMIT / self.greatest, "right")) - 1
        return min(wanted, max(most, 0))


def scale_fractions(results: Sequence[TaskResult], folder: Path) -> list[str]:
    """Convert sampled fractions in the results to integers, because traces contain only these. They
    are stored in this folder. Return warnings about fractions that became 0.
    """
    statistics: dict[tuple[str, str], _ValueStatistics] = defaultdict(_ValueStatistics)
    lost: Counter[str] = Counter()
    with SpillReader() as reader, SpillWriter(folder / "fractions.bin", 0, 0) as writer:
        for run in (run for result in results for run in result.runs if _has_fractions(run)):
            for metric, column in _read_samples(run, reader)[1].items():
                if metric.precision == UNSCALED:
                    known = column[column != ABSENT].view(np.float64)
                    statistics[run.shape.name, metric.name].add(known)
        scales = {key: of_name.choose_scale() for key, of_name in statistics.items()}
        for result in results:
            writer.report, writer.task = result.report, result.task
            for place, run in enumerate(result.runs):
                if _has_fractions(run):
                    samples = _read_samples(run, reader)
                    result.runs[place] = _scale_run(run, samples, result, scales, writer, lost)
    return [
        f"{name}: {count:,} small numbers are written as 0, because they are below 10^-{MOST_DECIMALS} or too small relative to others of this name"
        for name, count in sorted((+lost).items())
    ]


def _scale_run(
    run: Run,
    samples: tuple[np.ndarray, dict[Metric, np.ndarray]],
    result: TaskResult,
    scales: dict[tuple[str, str], int],
    writer: SpillWriter,
    lost: Counter[str],
) -> Run:
    """Return a run with its fractions as integers. samples: its times and values. scales: (layout,
    name) -> decimals. lost: counts values that become 0, by name.
    """
    name, scaled, repaired = run.shape.name, {}, Counter()
    time, numbers = samples
    for metric, column in numbers.items():
        if metric.precision != UNSCALED:
            scaled[metric] = column
            continue
        there = column != ABSENT
        exact = np.where(there, column, 0).view(np.float64)
        scale = scales[name, metric.name]
        product = np.rint(exact * _POWERS[scale])
        repaired[Reason.SAMPLE_TOO_GREAT] += int(np.count_nonzero(there & (product > _LIMIT)))
        small = int(np.count_nonzero(there & (product == 0) & (exact > 0)))
        repaired[Reason.FRACTION_TOO_SMALL] += small
        lost[metric.name] += small
        whole = np.minimum(np.minimum(product, _LIMIT).astype(np.int64), GREATEST)
        scaled[Metric(metric.name, scale)] = np.where(there, whole, ABSENT)
    result.add(_find_kind(result, name), Account(repaired=+repaired))
    return append_samples(writer, name, scaled, run.object, time)


def _has_fractions(run: Run) -> bool:
    return any(metric.precision == UNSCALED for metric in run.shape.metrics)


def _read_samples(run: Run, reader: SpillReader) -> tuple[np.ndarray, dict[Metric, np.ndarray]]:
    """Return times and metric -> values of samples, or ABSENT."""
    columns = reader.read_local(run)
    metrics = enumerate(run.shape.metrics)
    return columns["time"], {metric: columns[str(place)] for place, metric in metrics}


def _count_decimals(values: np.ndarray, kind: type[np.floating]) -> int:
    """Return the largest number of decimals in the shortest decimal forms of the values;
    MOST_DECIMALS if there are more.
    """
    for decimals, power in enumerate(_POWERS):
        with np.errstate(over="ignore"):
            product = np.rint(values * power)
            values = values[
                np.isfinite(product) & ((product / power).astype(kind) != values.astype(kind))
            ]
        if not len(values):
            return decimals
    return MOST_DECIMALS


def close_open_ranges(results: Sequence[TaskResult], lasts: Mapping[int, int]) -> None:
    """Give ranges without an end, and states that last, the end of their report. lasts: last time
    (local ns) of reports whose processes are captured again later.
    """
    for result in results:
        if result.report in lasts:
            result.runs = [_close_run(run, lasts[result.report]) for run in result.runs]


def _close_run(run: Run, last: int) -> Run:
    if run.index is None or not run.index.is_open:
        return run
    begin, end = read_run(run, "begin", "end").values()
    times, objects = run.index.closings
    is_open = times == OPEN
    closed = max(last, int(times[~is_open].max(initial=last)))
    greatest = max(run.greatest_time, closed) if len(times) else run.greatest_time
    if run.index.opened.any():
        end = np.where(end == OPEN, np.maximum(begin + 1, last), end)
        rewrite_column(run, "end", end)
        greatest = max(greatest, int(end.max()))
    ends, opened, late = index_ends(begin, end, BLOCK_ROWS, find_bounds(end))
    closings = np.stack([np.where(is_open, closed, times), objects])
    index = replace(run.index, ends=ends, opened=opened, late=late, closings=closings)
    return replace(run, greatest_time=greatest, index=index)


def clip_profiler_events(
    results: Sequence[TaskResult], spans: Mapping[int, Span], folder: Path
) -> None:
    """Clip records of event kinds that must not lengthen the trace, such as profiler overhead, to
    the time span of all other records. spans: report -> this span (local ns).
    """
    kinds = {
        layout: kind for kind in all_kinds() if not kind.extends_trace for layout in kind.layouts
    }
    with SpillReader() as reader, SpillWriter(folder / "within-span.bin", 0, 0) as writer:
        for result in results:
            if result.report in spans:
                writer.report, writer.task = result.report, result.task
                _clip_result(result, kinds, spans[result.report], reader, writer)


def _clip_result(
    result: TaskResult,
    kinds: dict[str, EventKind],
    span: Span,
    reader: SpillReader,
    writer: SpillWriter,
) -> None:
    outside = {
        run
        for run in result.runs
        if run.shape.name in kinds
        and run.index is not None
        and (run.first_time < span[0] or run.greatest_time > span[1])
    }
    if not outside:
        return
    runs: list[Run] = []
    for run in result.runs:
        if run not in outside:
            runs.append(run)
            continue
        kind = kinds[run.shape.name]
        kept, changed = _clip_ranges(reader.read_local(run), span, kind.has_duration)
        count = len(kept["begin"])
        if count:
            runs.append(writer.append_ranges(load_catalogue().layouts[run.shape.name], kept))
        gone = run.rows - count
        result.events[run.shape.name] -= gone
        dropped = Counter({Reason.OUTSIDE_PROGRAM: gone})
        reason = Reason.CUT_TO_PROGRAM if kind.has_duration else Reason.MOVED_TO_PROGRAM
        repaired = Counter({reason: changed})
        result.add(kind.name, Account(records=-gone, dropped=dropped, repaired=repaired))
    result.runs = runs


def _clip_ranges(
    columns: dict[str, np.ndarray], span: Span, has_duration: bool
) -> tuple[dict[str, np.ndarray], int]:
    """Clip ranges to a span (ns), and drop those outside it. Move points outside the span to its
    start or end. Return also the number of changed rows.
    """
    first, last = span
    if has_duration:
        columns = take_rows(columns, (columns["end"] > first) & (columns["begin"] < last))
    begin = np.clip(columns["begin"], first, max(first, last - 1))
    end = np.maximum(np.minimum(columns["end"], last), begin + 1)
    changed = np.count_nonzero((begin != columns["begin"]) | (end != columns["end"]))
    order = order_ranges(begin, end)
    return take_rows({**columns, "begin": begin, "end": end}, order), int(changed)


def deduplicate_device_samples(
    results: Sequence[TaskResult],
    rows: Mapping[tuple[int, object], int],
    clocks: Sequence[ClockMap],
) -> list[Note]:
    """Remove samples that an earlier report also has, for the same device, layout and time, and
    count them in the results. Return a note about them, or none.

    rows: (report, object key) -> thread of the trace, which is equal for one device in several
    reports. clocks: from each report's time to a common time. Reports are in rank order.
    """
    own = {layout for kind in all_kinds() if not kind.device_wide for layout in kind.layouts}
    # Thread and layout -> report -> its runs, with the results that hold them.
    held: dict = defaultdict(lambda: defaultdict(list))
    for result in results:
        keys = dict(enumerate(result.objects))
        for run in result.runs:
            key = keys.get(run.object)
            if isinstance(key, DeviceKey) and run.shape.name not in own:
                held[rows[result.report, key], run.shape.name][result.report].append((run, result))
    left_out, devices = 0, set()
    for (thread, name), of_reports in held.items():
        told: list[Span] = []
        for report, of_report in sorted(of_reports.items()):
            bounds = [time for run, _ in of_report for time in (run.first_time, run.greatest_time)]
            times = np.array([min(bounds), max(bounds)])
            first, last = clocks[report].to_global(times).tolist()
            if all(last < begin or end < first for begin, end in told):
                told.append((first, last))
                continue
            devices.add(thread)
            for run, result in of_report:
                result.runs.remove(run)
                result.events -= Counter({name: run.count})
                result.leave_out(name, Reason.IN_OTHER_REPORT, run.count)
                left_out += run.count
    text = f"{left_out:,} samples of {len(devices)} devices discarded, because several reports contain them; those of the first report are written"
    return [Note(text, is_routine=True)] if devices else []


def read_samples(
    samples: Sequence[Slice], numbers: Mapping[tuple[str, str], int]
) -> tuple[list[pl.DataFrame], Counter[str]]:
    """Return the samples of a window as frames, and layout -> number of values dropped because a
    larger value has the same time.

    Frames have the columns time, row, and one per event type, named after it and sorted. Within a
    frame, every row has a value for each type. numbers: (layout, label) -> event type.
    """
    frames = []
    for one in samples:
        shape = one.run.shape
        types = [numbers[shape.name, metric.name] for metric in shape.metrics]
        frame = one.make_frame([*map(str, types)])
        frames.append(frame[["time", "row", *map(str, sorted(types))]])
    joined = join_samples(frames)
    repeated = Counter[str]()
    if joined is not frames:
        less = _count_samples(frames) - _count_samples(joined)
        for (layout, _), number in numbers.items():
            repeated[layout] += less[str(number)]
    return [part for frame in joined for part in _split_at_holes(frame)], +repeated


def join_samples(frames: list[pl.DataFrame]) -> list[pl.DataFrame]:
    """Merge rows with the same time and row; of two values of one type, the larger is kept. Return
    the merged frames; the frames themselves if there are no such rows.

    Times that occur once keep their place, so sorted samples need only a check.
    """
    if not frames:
        return frames
    time, row = (
        np.concatenate([one[name].to_numpy() for one in frames]) for name in ("time", "row")
    )
    order = np.lexsort((row, time))
    same = ~mask_changes(time[order], row[order])[1:]
    if not same.any():
        return frames
    repeated = np.zeros(len(time), bool)
    repeated[order[1:][same]] = repeated[order[:-1][same]] = True
    alone, several, start = [], [], 0
    for frame in frames:
        own = repeated[start:][: frame.height]
        alone.append(frame.filter(~own))
        several.append(frame.filter(own))
        start += frame.height
    joined = pl.concat(several, how="diagonal").group_by("time", "row").max().sort("time", "row")
    types = sorted(joined.columns[2:], key=int)
    return [frame for frame in (*alone, joined.select("time", "row", *types)) if frame.height]


def _count_samples(frames: Sequence[pl.DataFrame]) -> Counter[str]:
    """Return the number of samples of each event type."""
    counts: Counter[str] = Counter()
    for frame in frames:
        counts.update({one.name: one.count() for one in frame.get_columns()[2:]})
    return counts


def _split_at_holes(frame: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Split a frame so that within each part every row has all types."""
    time, row, *numbers = frame.get_columns()
    if not any(one.has_nulls() for one in numbers):
        yield frame
        return
    has = np.stack([one.is_not_null().to_numpy() for one in numbers], axis=1)
    _, patterns = np.unique(np.packbits(has, axis=1), axis=0, return_inverse=True)
    for _, rows in group_rows(patterns.reshape(-1)):
        carried = [one for one, there in zip(numbers, has[rows][0], strict=True) if there]
        if carried:
            yield pl.DataFrame([one[rows] for one in (time, row, *carried)])
