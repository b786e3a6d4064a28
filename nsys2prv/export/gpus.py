"""The GPUs of a report, and which of them CUDA's ordinals mean in its processes."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from typing import NewType

from msgspec import Struct
from msgspec.structs import replace

from nsys2prv.export.sqlite import Database

#: Number that a report gives to a GPU.
GpuNumber = NewType("GpuNumber", int)
#: What stands before the UUID of a GPU or of a MIG instance in CUDA_VISIBLE_DEVICES.
_UUID_PREFIX = re.compile(r"(?:MIG-)?(?:GPU-)?", re.IGNORECASE)
MIG = "MIG-"
#: Tables with a row for each CUDA context or stream of a process.
CONTEXT_TABLES = (
    "TARGET_INFO_CUDA_CONTEXT_INFO",
    "TARGET_INFO_CUDA_NULL_STREAM",
    "TARGET_INFO_CUDA_STREAM",
)


class Gpu(Struct, frozen=True):
    """A GPU, or an instance of one that is partitioned (MIG)."""

    #: As the report numbers it; of an instance a free number.
    number: GpuNumber
    #: The model, empty where not known.
    name: str = ""
    #: Tells it from all others, empty where not known.
    uuid: str = ""
    #: PCI location, empty where not known.
    bus: str = ""

    @property
    def key(self) -> str:
        """Text that identifies the GPU on its host, "" if there is none."""
        return self.uuid or self.bus


class GpuTable(Struct, frozen=True):
    """The GPUs of a report."""

    #: By number.
    gpus: dict[GpuNumber, Gpu]
    #: (pid, CUDA ordinal) -> GPU, where the report ties them: ordinals differ by process.
    by_ordinal: dict[tuple[int, int], GpuNumber]
    #: GPU of each CUDA ordinal, as CUDA_VISIBLE_DEVICES has them; empty where it does not tell.
    visible: tuple[GpuNumber, ...] = ()


def read_gpus(database: Database, visible: Collection[str] | None) -> GpuTable:
    """Return the GPUs of a report. visible: settings of CUDA_VISIBLE_DEVICES, None where no
    environment was recorded.
    """
    columns = ("id", "name", "uuid", "busLocation", "smCount", "cuDevice")
    rows = database.read_small_table("TARGET_INFO_GPU", *columns, types=(int,))
    found = [
        # 0 means unknown.
        Gpu(number, str(name or ""), _blank_zeros(uuid, "0-"), _blank_zeros(bus, "0:."))
        for number, name, uuid, bus, *_ in rows
    ]
    shared = Counter(gpu.key for gpu in found)
    gpus = {
        gpu.number: replace(gpu, uuid=f"{gpu.key}/{gpu.number}")
        if gpu.key and shared[gpu.key] > 1
        else gpu
        for gpu in found
    }
    processors = {row[0]: row[4] for row in rows}
    by_ordinal = _read_cuda_devices(database, gpus, processors)
    devices = {setting.partition("=")[2].strip().strip('"') for setting in visible or ()}
    if by_ordinal or visible is None or len(devices) > 1:
        return GpuTable(gpus, by_ordinal)
    order = _order_as_cuda(gpus, {row[0]: row[5] for row in rows})
    return GpuTable(gpus, by_ordinal, _find_visible(database, gpus, order, *devices))


def _blank_zeros(value: object, zeros: str) -> str:
    text = str(value or "")
    return text if text.strip(zeros) else ""


def _read_cuda_devices(
    database: Database, gpus: dict[GpuNumber, Gpu], processors: dict[GpuNumber, object]
) -> dict[tuple[int, int], GpuNumber]:
    """Return (pid, CUDA ordinal) -> GPU. Instances of GPUs are added to these: CUDA gives them
    UUIDs of their own, and fewer processors.
    """
    columns = ("pid", "cudaId", "gpuId", "uuid", "numMultiprocessors")
    rows = [
        (*row[:3], _blank_zeros(row[3], "0-"), row[4])
        for row in database.read_small_table(
            "TARGET_INFO_CUDA_DEVICE", *columns, types=(int, int, int)
        )
    ]
    uuids: dict[int, set[str]] = defaultdict(set)
    for _, _, number, uuid, _ in rows:
        uuids[number] |= {uuid} if uuid else set()
    by_ordinal = {}
    instances: dict[str, GpuNumber] = {}
    for pid, ordinal, number, uuid, own in rows:
        gpu, all_processors = gpus.get(number), processors.get(number)
        is_part = isinstance(own, int) and isinstance(all_processors, int) and own < all_processors
        is_other = bool(uuid) and gpu is not None and uuid != gpu.uuid
        if is_other and (is_part or len(uuids[number]) > 1):
            if uuid not in instances:
                instances[uuid] = _add_instance(gpus, uuid)
            number = instances[uuid]
        by_ordinal[pid, ordinal] = number
    return by_ordinal


def _add_instance(gpus: dict[GpuNumber, Gpu], uuid: str) -> GpuNumber:
    """Add an instance of a GPU, whose model counts once; returns its number."""
    number = GpuNumber(max(gpus, default=-1) + 1)
    gpus[number] = Gpu(number, uuid=uuid)
    return number


def _find_visible(
    database: Database,
    gpus: dict[GpuNumber, Gpu],
    order: tuple[GpuNumber, ...],
    setting: str = "",
) -> tuple[GpuNumber, ...]:
    """Return the GPU of each CUDA ordinal, from the order of GPUs and CUDA_VISIBLE_DEVICES at the
    program's start; nothing if a process may have changed that variable. An instance that it names
    is added to the GPUs.
    """
    visible = _parse_visible_devices(setting, order, gpus) if setting else order
    used: dict[int, set[int]] = defaultdict(set)
    for table in CONTEXT_TABLES:
        for pid, device in database.read_small_table(table, "processId", "deviceId"):
            used[pid] |= {device} if isinstance(device, int) else set()
    # Several processes that all use ordinal 0 alone: a launcher may have given each its own GPU.
    apart = len(used) > 1 and max(map(max, filter(None, used.values())), default=0) == 0
    return () if apart and len(visible) > 1 else visible


def _order_as_cuda(
    gpus: dict[GpuNumber, Gpu], ordinals: dict[GpuNumber, object]
) -> tuple[GpuNumber, ...]:
    """Return the GPUs as CUDA numbers them where all are visible: as the report says, else those of
    one model by their PCI location. None where neither tells.
    """
    own = [number for number, gpu in gpus.items() if gpu.key]
    known = {number: ordinals.get(number) for number in own}
    distinct = {ordinal for ordinal in known.values() if isinstance(ordinal, int)}
    if len(distinct) == len(own):
        return tuple(sorted(own, key=lambda number: known[number]))
    if len({gpus[number].name for number in own}) == 1 and all(gpus[one].bus for one in own):
        return tuple(sorted(own, key=lambda number: gpus[number].bus.lower()))
    return ()


def _parse_visible_devices(
    settings: str, order: Sequence[GpuNumber], gpus: dict[GpuNumber, Gpu]
) -> tuple[GpuNumber, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES lists; as for CUDA, the list ends where an entry is
    none.
    """
    visible = []
    for entry in map(str.strip, settings.split(",")):
        uuid = _UUID_PREFIX.sub("", entry, count=1).lower()
        alike = [number for number, gpu in gpus.items() if uuid and gpu.uuid.startswith(uuid)]
        if entry.isascii() and entry.isdecimal():
            if int(entry) >= len(order):
                break
            visible.append(order[int(entry)])
        elif len(alike) == 1:
            visible += alike
        elif entry.upper().startswith(MIG) and not alike:
            visible.append(_add_instance(gpus, uuid))
        else:
            break
    return tuple(visible)
