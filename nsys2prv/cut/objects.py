"""Which rows of the trace a cut wants: those of its ranks' processes, and of GPUs those asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nsys2prv.cut.asked import Cut, numbers
from nsys2prv.cut.reports import is_among, wanted_reports
from nsys2prv.errors import Nsys2prvError
from nsys2prv.events.extraction import DeviceKey, ObjectKey, ThreadKey
from nsys2prv.model.objects import OF_GPU, GpuNumbers, ObjectModel, build
from nsys2prv.report.info import PROCESS_MASK, ReportInfo

#: Fewer characters of a UUID could be a number.
LEAST_UUID = 6


@dataclass(frozen=True)
class Kept:
    """model: of the rows that stay. place: for every row (thread index) of the whole model its row there, -1 for one that goes."""

    model: ObjectModel
    place: np.ndarray


def kept_rows(cut: Cut, infos: list[ReportInfo], machines: list[int], model: ObjectModel) -> Kept | None:
    """The rows that stay; None where these are all. Raises Nsys2prvError where none does."""
    if not (cut.ranks or cut.hosts or cut.devices):
        return None
    keys = _of_reports(list(model.rows), set(wanted_reports(infos, cut)), machines)
    if cut.ranks:
        keys = _of_ranks(keys, infos, model, numbers("--ranks", cut.ranks))
    if cut.devices:
        keys = _of_devices(keys, infos, machines, cut.devices)
    if len(keys) == len(model.rows):
        return None
    if not keys:
        raise Nsys2prvError("nothing to write: no row of the trace is of the ranks and devices asked for")
    smaller = build(infos, machines, keys)
    place = np.full(model.tree.threads, -1)
    for key, row in smaller.rows.items():
        place[model.rows[key]] = row
    return Kept(smaller, place)


def _of_reports(keys: list[tuple[int, ObjectKey]], wanted: set[int], machines: list[int]) -> list[tuple[int, ObjectKey]]:
    """Without the rows of other reports. What is sampled of a machine may stand in any of its reports."""
    near = {machines[report] for report in wanted}
    return [(report, key) for report, key in keys
            if report in wanted or (isinstance(key, DeviceKey) and machines[report] in near)]


def _of_ranks(keys: list[tuple[int, ObjectKey]], infos: list[ReportInfo], model: ObjectModel,
              wanted: Sequence[tuple[int, int]]) -> list[tuple[int, ObjectKey]]:
    """Without the other processes of reports that hold several ranks. Devices stay."""
    several = {report for report, info in enumerate(infos) if info.ranks}
    away = {(process.report, process.pid) for process in model.processes
            if process.report in several and not is_among(process.rank, wanted)}
    return [(report, key) for report, key in keys if isinstance(key, DeviceKey) or (report, _pid(key)) not in away]


def _pid(key: ObjectKey) -> int:
    return key.tid & PROCESS_MASK if isinstance(key, ThreadKey) else key.pid


def _of_devices(keys: list[tuple[int, ObjectKey]], infos: list[ReportInfo], machines: list[int],
                asked: Sequence[str]) -> list[tuple[int, ObjectKey]]:
    """Without the rows of other GPUs."""
    gpus = GpuNumbers(infos, machines)
    met: set[str] = set()

    def wanted(report: int, key: ObjectKey) -> bool:
        if isinstance(key, ThreadKey) or (isinstance(key, DeviceKey) and key.kind not in OF_GPU):
            return True
        number = gpus.number_of(report, key.number) if isinstance(key, DeviceKey) else gpus.number(report, key)
        gpu = gpus.gpu(report, key)
        uuid = _plain(gpu.uuid) if gpu is not None else ""
        found = [word for word in asked if word == str(number) or (len(word) >= LEAST_UUID and uuid.startswith(_plain(word)))]
        met.update(found)
        return bool(found)

    kept = [(report, key) for report, key in keys if wanted(report, key)]
    for word in asked:
        if word not in met:
            raise Nsys2prvError(f"--devices {word}: no row of the trace is of such a GPU; give its number as in the names of rows, or "
                                f"{LEAST_UUID} characters or more of the beginning of its UUID")
    return kept


def _plain(uuid: str) -> str:
    return uuid.lower().removeprefix("gpu-").replace("-", "")


