"""Select the reports (ranks, hosts), rows and spans of time (regions) that a cut keeps."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase, translate

import numpy as np
import polars as pl

from nsys2prv._util.columns import ABSENT, factorize
from nsys2prv._util.errors import Nsys2prvError
from nsys2prv._util.text import list_some, suggest_range
from nsys2prv.conversion.cut_plan import CutOptions, Region, parse_numbers
from nsys2prv.conversion.job import Job
from nsys2prv.events.catalogue import NameSet, load_catalogue
from nsys2prv.events.extraction import DeviceKey, ObjectKey, ThreadKey
from nsys2prv.events.names.nvtx import load_rules, rename_ranges
from nsys2prv.nsight.info import PROCESS_MASK, ReportInfo, choose_launcher_ranks
from nsys2prv.paraver.object_model import ObjectModel, build_object_model
from nsys2prv.paraver.tree import OF_GPU, GpuNumbers
from nsys2prv.store import windows
from nsys2prv.store.runs import BEGIN, SpillReader, take_records

#: So many are told where none of them was meant.
MOST_TOLD = 8


def find_ranks(infos: Sequence[ReportInfo]) -> list[set[int]]:
    """Return the ranks of each report (in rank order): MPI's where any report tells them, else the
    launcher's, else their places from 0 on.
    """
    if any(info.ranks for info in infos):
        return [set(info.ranks.values()) for info in infos]
    launched = choose_launcher_ranks([info.launcher_ranks for info in infos])
    return [{rank} for rank in (range(len(infos)) if launched is None else launched)]


def is_in_ranges(rank: int | None, wanted: Sequence[tuple[int, int]]) -> bool:
    """True if a rank is in one of the ranges."""
    return rank is not None and any(first <= rank <= last for first, last in wanted)


def choose_reports(infos: list[ReportInfo], cut: CutOptions) -> list[int]:
    """Return the numbers (in rank order) of the reports that may hold something wanted. Raises
    Nsys2prvError where that is none, or a rank or host asked for is in none.
    """
    chosen = list(range(len(infos)))
    if cut.ranks:
        wanted, ranks = parse_numbers("--ranks", cut.ranks), find_ranks(infos)
        all_ranks = sorted(set().union(*ranks))
        for word, pair in zip(cut.ranks, wanted, strict=True):
            if not any(is_in_ranges(rank, [pair]) for rank in all_ranks):
                known_ranks = list_some([*map(str, all_ranks)], MOST_TOLD)
                raise Nsys2prvError(
                    f"--ranks {word}: no report has this rank; the reports have {known_ranks}"
                )
        chosen = [at for at in chosen if any(is_in_ranges(rank, wanted) for rank in ranks[at])]
    if cut.hosts:
        hosts = [info.host or "unknown-host" for info in infos]
        for pattern in cut.hosts:
            if not any(fnmatchcase(host, pattern) for host in hosts):
                known_ranks = list_some(sorted(set(hosts)), MOST_TOLD)
                raise Nsys2prvError(
                    f"--hosts {pattern}: no report is from this host; the reports are from {known_ranks}"
                )
        chosen = [
            at for at in chosen if any(fnmatchcase(hosts[at], pattern) for pattern in cut.hosts)
        ]
    if not chosen:
        raise Nsys2prvError(
            "no report has one of these ranks and is from one of these hosts (--ranks, --hosts)"
        )
    return chosen


#: Fewer characters of a UUID could be a number.
LEAST_UUID = 6


def choose_rows(cut: CutOptions, job: Job) -> tuple[ObjectModel, list[np.ndarray]]:
    """Return the object model of the rows that stay, the job's own where these are all, and for
    each source the row of each local object, -1 for one that goes. Raises Nsys2prvError where none
    stays.
    """
    infos, model = job.infos, job.model
    if not (cut.ranks or cut.hosts or cut.devices):
        return model, job.threads
    machines = [placement.machine for placement in job.timeline.placements]
    keys = _keep_reports(list(model.rows), set(choose_reports(infos, cut)), machines)
    if cut.ranks:
        keys = _keep_ranks(keys, infos, model, parse_numbers("--ranks", cut.ranks))
    if cut.devices:
        keys = _keep_devices(keys, infos, machines, cut.devices)
    if len(keys) == len(model.rows):
        return model, job.threads
    if not keys:
        raise Nsys2prvError(
            "nothing to write: these ranks have no rows on these devices (--ranks, --devices)"
        )
    smaller = build_object_model(infos, machines, keys)
    place = np.full(model.tree.threads, -1)
    for key, row in smaller.rows.items():
        place[model.rows[key]] = row
    return smaller, [place[of_source] for of_source in job.threads]


def _keep_reports(
    keys: list[tuple[int, ObjectKey]], wanted: set[int], machines: list[int]
) -> list[tuple[int, ObjectKey]]:
    """Return the selection without the rows of other reports. What is sampled of a machine may be
    in any of its reports.
    """
    near = {machines[report] for report in wanted}
    return [
        (report, key)
        for report, key in keys
        if report in wanted or (isinstance(key, DeviceKey) and machines[report] in near)
    ]


def _keep_ranks(
    keys: list[tuple[int, ObjectKey]],
    infos: list[ReportInfo],
    model: ObjectModel,
    wanted: Sequence[tuple[int, int]],
) -> list[tuple[int, ObjectKey]]:
    """Return the selection without the other processes of reports that hold several ranks. Devices
    stay.
    """
    several = {report for report, info in enumerate(infos) if info.ranks}
    away = {
        (process.report, process.pid)
        for process in model.processes
        if process.report in several and not is_in_ranges(process.rank, wanted)
    }
    return [
        (report, key)
        for report, key in keys
        if isinstance(key, DeviceKey) or (report, _find_process(key)) not in away
    ]


def _find_process(key: ObjectKey) -> int:
    return key.tid & PROCESS_MASK if isinstance(key, ThreadKey) else key.pid


def _keep_devices(
    keys: list[tuple[int, ObjectKey]],
    infos: list[ReportInfo],
    machines: list[int],
    words: Sequence[str],
) -> list[tuple[int, ObjectKey]]:
    """Return the selection without the rows of other GPUs."""
    gpus = GpuNumbers(infos, machines)
    matched_words: set[str] = set()

    def wanted(report: int, key: ObjectKey) -> bool:
        if isinstance(key, ThreadKey) or (isinstance(key, DeviceKey) and key.kind not in OF_GPU):
            return True
        number = (
            gpus.find_gpu_number(report, key.number)
            if isinstance(key, DeviceKey)
            else gpus.number(report, key)
        )
        gpu = gpus.gpu(report, key)
        uuid = _normalize_uuid(gpu.uuid) if gpu is not None else ""
        matching = [
            word
            for word in words
            if word == str(number)
            or (len(word) >= LEAST_UUID and uuid.startswith(_normalize_uuid(word)))
        ]
        matched_words.update(matching)
        return bool(matching)

    kept = [(report, key) for report, key in keys if wanted(report, key)]
    for word in words:
        if word not in matched_words:
            raise Nsys2prvError(
                f"--devices {word}: there is no such GPU in the trace; give its number as in the names of rows, or "
                f"{LEAST_UUID} characters or more of the beginning of its UUID"
            )
    return kept


def _normalize_uuid(uuid: str) -> str:
    return uuid.lower().removeprefix("gpu-").replace("-", "")


#: The name set of NVTX ranges, and the layout with such names that does not last.
NAMES, MARKS = "nvtx", "nvtx_mark"


def find_region_layouts() -> frozenset[str]:
    """Return the layouts of NVTX ranges."""
    layouts = []
    for name, layout in load_catalogue().layouts.items():
        values = layout.fields[0].values if layout.fields else None
        if name != MARKS and isinstance(values, NameSet) and values.name == NAMES:
            layouts.append(name)
    return frozenset(layouts)


def find_region_span(region: Region, job: Job) -> tuple[int, int]:
    """Begin and end (ns of the trace) of the region. Raises Nsys2prvError where there is no such
    range.
    """
    labels = (
        job.values[NAMES].labels
        if NAMES in job.values
        else pl.DataFrame(schema={"value": pl.Int64, "label": pl.String})
    )
    ranges = list(_read_ranges(job, _find_matching_values(labels, region.pattern)))
    if not ranges:
        # "iteration 3" is the range "iteration" of number 3.
        folded = rename_ranges(pl.Series([region.pattern]), None, load_rules())
        if folded.numbers[0] != ABSENT:
            values = _find_matching_values(labels, folded.texts[0])
            ranges = list(_read_ranges(job, values, int(folded.numbers[0])))
    if not ranges:
        raise Nsys2prvError(
            f"--region {region.pattern}: no NVTX range of the reports has such a name; "
            + suggest_range(region.pattern, labels["label"].to_list())
        )
    thread, begin, end = (np.concatenate(column) for column in zip(*ranges, strict=True))
    order = np.lexsort((-end, begin, thread))
    _, codes = factorize(thread[order])
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order)) - np.searchsorted(codes, codes) + 1
    chosen = (place >= region.first) & (place <= (region.last or len(place)))
    if not chosen.any():
        raise Nsys2prvError(
            f"--region {region.pattern}:{region.first}: a thread has at most {int(place.max())} of these ranges; give a number from 1 to {int(place.max())}"
        )
    return int(begin[chosen].min()), int(end[chosen].max())


def _find_matching_values(labels: pl.DataFrame, pattern: str) -> np.ndarray:
    """Return the values of the labels that a glob pattern matches."""
    wanted = re.compile(translate(pattern))
    matching = [bool(wanted.match(label)) for label in labels["label"]]
    return labels.filter(pl.Series(matching, dtype=pl.Boolean))["value"].to_numpy()


def _read_ranges(
    job: Job, values: np.ndarray, number: int | None = None
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield thread, begin and end of the ranges with these names, and with the number, if any."""
    layouts = find_region_layouts()
    threads: dict[tuple[int, int], int] = {}
    by_task = sorted(job.results, key=lambda result: result.task)
    reader = SpillReader()
    try:
        for run in job.runs:
            if run.shape.stream != BEGIN or run.shape.name not in layouts:
                continue
            of_name = np.flatnonzero(np.isin(job.names[NAMES][run.source], values))
            if not len(of_name):
                continue
            records = reader.read_between(run, run.first, None)
            named = load_catalogue().layouts[run.shape.name].fields[0].name
            wanted = np.isin(records[named], of_name)
            if number is not None:
                # Ranges without a number count as 0.
                numbered = "number" in (records.dtype.names or ())
                wanted &= (np.maximum(records["number"], 0) if numbered else 0) == number
            records = take_records(records, wanted)
            if not len(records):
                continue
            # Ranges that overlap are on further rows of their thread.
            keys = by_task[run.source].objects
            own = np.array(
                [
                    threads.setdefault(
                        (run.report, key.tid if isinstance(key, ThreadKey) else -1), len(threads)
                    )
                    for key in keys
                ]
            )
            clock = job.clocks[run.report]
            yield (
                own[records["object"]],
                windows.to_begin_times(records, clock),
                windows.to_end_times(records, clock, job.duration),
            )
    finally:
        reader.close()
