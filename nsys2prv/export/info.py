"""Read basic facts of a report into :class:`ReportInfo`, which is small and picklable.

It contains versions, host, clocks, processes, threads, ranks (also from the launcher's
environment), GPUs, and names of NVTX domains and categories.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NewType

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from nsys2prv._util.budget import OBJECT_NAME
from nsys2prv.clock.maps import ReportClock
from nsys2prv.export.communicators import Communicator, read_communicators
from nsys2prv.export.database import Database
from nsys2prv.export.outlines import (
    IS_NAME,
    NVTX_CATEGORY,
    NVTX_DOMAIN_CREATE,
    NVTX_TABLE,
    TRAITS,
    Outline,
    list_blocks,
)
from nsys2prv.export.recording import (
    Capture,
    Message,
    find_capture_span,
    is_setting_on,
    list_messages,
    read_capture,
    read_diagnostics,
    read_duration,
    was_cuda_traced,
    was_launched,
)
from nsys2prv.export.report_files import check_tables
from nsys2prv.export.source import TIME_LIMIT, Part, zero_nulls
from nsys2prv.export.sqlite import open_database

#: Variable with a rank -> variable with the number of ranks ("" if none), the most reliable first.
#: Inside a batch step that starts mpirun, SLURM_PROCID is 0 for every rank.
SIZE_VARIABLES = {
    "RANK": "WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE",
    "PMIX_RANK": "",
    "PMI_RANK": "PMI_SIZE",
    "SLURM_PROCID": "SLURM_NTASKS",
}
RANK_VARIABLES = tuple(SIZE_VARIABLES)
#: Ids of a job. A heterogeneous job has one for all its parts.
JOB_VARIABLES = (
    *("SLURM_HET_JOB_ID", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"),
    *("FLUX_JOB_ID", "PJM_JOBID", "COBALT_JOBID"),
)
#: Part of a machine, as text -> its name in TARGET_INFO_SYSTEM_ENV.
MACHINE = {
    "CPU": "CpuDescription",
    "CPUs of a node": "CpuCores",
    "operating system": "OsDescription",
    "kernel": "SoftwareReleaseVersion",
}
#: A version. Nothing else of a report's environment may get into an output.
_VERSION = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6}){1,3}", re.ASCII)
PROCESS_MASK = ~0xFFFFFF
NVTX_NAMES = f"{{eventType}} IN ({NVTX_CATEGORY}, {NVTX_DOMAIN_CREATE})"
#: Nsight's id of a process: hardware id, virtual machine id and process id in bits 24 to 63.
GlobalPid = NewType("GlobalPid", int)
#: Nsight's id of a thread: the GlobalPid of its process, and its thread id in the lower 24 bits.
GlobalTid = NewType("GlobalTid", int)
#: Number that a process gives to an NVTX domain.
DomainId = NewType("DomainId", int)


#: Number that a report gives to a GPU.
GpuNumber = NewType("GpuNumber", int)
#: Text before the UUID of a GPU or MIG instance in CUDA_VISIBLE_DEVICES.
_UUID_PREFIX = re.compile(r"(?:MIG-)?(?:GPU-)?", re.IGNORECASE)
MIG = "MIG-"
#: Nsight Systems and its version, in the name of a folder or of two.
_NSIGHT_SYSTEMS = re.compile(
    r"nsight[-_ ]?systems(?:-cli)?[-/\\ ](20\d\d(?:\.\d+)+)", re.IGNORECASE
)
#: Tables with a row for each CUDA context or stream of a process.
CONTEXT_TABLES = tuple(
    f"TARGET_INFO_CUDA_{name}" for name in ("CONTEXT_INFO", "NULL_STREAM", "STREAM")
)


class GpuLimits(Struct, frozen=True, order=True):
    """Limits of a GPU on concurrent work (multiprocessors, warps, registers, ...), its memory and
    clock; 0 if unknown.
    """

    #: Its multiprocessors.
    processors: int = 0
    #: Capacity of each multiprocessor: warps, blocks, registers, bytes of shared memory.
    warps: int = 0
    blocks: int = 0
    registers: int = 0
    shared: int = 0
    #: Bandwidth of its memory (B/s), its clock (Hz), and what it can compute (8 and 6 of 8.6).
    memory: int = 0
    clock: int = 0
    major: int = 0
    minor: int = 0


UNKNOWN = GpuLimits()


class Gpu(Struct, frozen=True):
    """A GPU, or a MIG instance of a partitioned GPU."""

    #: As the report numbers it; of an instance a free number.
    number: GpuNumber
    #: The model; empty if unknown.
    name: str = ""
    #: Identifies it among all GPUs; empty if unknown.
    uuid: str = ""
    #: PCI location; empty if unknown.
    bus: str = ""
    #: Its capacity for concurrent work.
    limits: GpuLimits = UNKNOWN

    @property
    def key(self) -> str:
        """Text that identifies the GPU on its host, or ""."""
        return self.uuid or self.bus


def read_environment(database: Database) -> dict[str, set[str]]:
    """Return variable -> distinct settings (`NAME="text"`) in the launch environment of the
    report's processes.

    META_DATA_CAPTURE contains one row per variable, named `PROCESS_0:ENVIRONMENT_VARIABLE`.
    """
    rows = database.read_small_table("META_DATA_CAPTURE", "value", "name", types=(str, str))
    settings: dict[str, set[str]] = {}
    for setting, name in rows:
        if name.upper().endswith("ENVIRONMENT_VARIABLE"):
            settings.setdefault(setting.partition("=")[0], set()).add(setting)
    return settings


def read_program(database: Database) -> list[str]:
    """Return the program started by the capture and its arguments, or []."""
    rows = database.read_small_table("META_DATA_CAPTURE", "name", "value", types=(str, str))
    values = {name.upper(): value for name, value in rows}
    command = values.get("PROCESS_0:COMMAND")
    if not command:
        return []
    words = [command]
    while (word := values.get(f"PROCESS_0:ARGUMENT_{len(words) - 1}")) is not None:
        words.append(word)
    return words


def find_numbers(environment: Mapping[str, set[str]], names: Iterable[str]) -> dict[str, int]:
    """Return the numeric environment variables among these names, as name -> value, in this order.
    A variable with several values (several launched processes) is ambiguous and excluded.
    environment: from :func:`read_environment`.
    """
    numbers = {}
    for name in names:
        settings = environment.get(name, ())
        matches = (re.fullmatch(r'\w+="?([0-9]{1,9})"?\s*', setting) for setting in settings)
        values = {int(match[1]) for match in matches if match}
        if len(values) == 1:
            numbers[name] = values.pop()
    return numbers


def _find_recorder(folder: str) -> str:
    """Return the Nsight Systems version in the name of its installation folder, or ""."""
    found = _NSIGHT_SYSTEMS.search(folder)
    return found[1] if found else ""


def _find_job(environment: Mapping[str, set[str]]) -> str:
    """Return a digest of the first of :data:`JOB_VARIABLES` with exactly one value, or "". It
    identifies the launcher's job without revealing the value.
    """
    for name in JOB_VARIABLES:
        if len(settings := environment.get(name, ())) == 1:
            return hashlib.sha256(min(settings).encode("utf-8", "replace")).hexdigest()[:16]
    return ""


class ReportInfo(Struct, frozen=True):
    """Basic facts about one report, from its small tables. Times in nanoseconds; process and thread
    ids are Nsight's globalPid and globalTid.
    """

    #: The SQLite file or folder of tables that is read.
    path: Path
    #: The report as given by the user, if this is another file.
    given_path: Path | None = None
    #: Pseudonym of the file's name; empty if the name is shown.
    alias: str = ""
    #: Version of the export's schema, empty before 2.7.
    schema: str = ""
    #: Version of the Nsight Systems that exported the report.
    exporter: str = ""
    #: Version of nsys that recorded it, from its folder; empty if unknown.
    recorder: str = ""
    #: Name of the machine.
    host: str = ""
    #: UTC (Unix epoch) at the start of the capture; None if not exported.
    utc_ns: int | None = None
    #: The host's monotonic clock when the capture began.
    system_ns: int | None = None
    #: Event times already are UTC (exported with --ts-normalize).
    absolute: bool = False
    #: Time that was added to all event times (ns, exported with --ts-shift).
    time_shift: int = 0
    #: Length of the capture as the report states it.
    duration_ns: int | None = None
    #: The times that rows may have.
    capture: Capture = field(default_factory=Capture)
    #: Start and stop of the capture (local ns) as stated in the report; None if not stated.
    stated_span: tuple[int, int] | None = None
    #: The processes were launched after the capture had started: they did nothing before.
    launched: bool = False
    #: CUDA was traced, though nothing of it may have been recorded.
    traces_cuda: bool = False
    #: MPI was to be traced, though no call may have been recorded.
    traces_mpi: bool = False
    #: Only ranges of the capture were exported (--times).
    is_part: bool = False
    #: The rows of every table that has any.
    parts: dict[str, Part] = field(default_factory=dict)
    #: Name of each process.
    processes: dict[GlobalPid, str] = field(default_factory=dict)
    #: Name of each thread.
    threads: dict[GlobalTid, str] = field(default_factory=dict)
    #: MPI rank of a process.
    ranks: dict[GlobalPid, int] = field(default_factory=dict)
    #: MPI communicators in the order of their times.
    communicators: tuple[Communicator, ...] = ()
    #: Rank by each variable of the launcher's environment.
    launcher_ranks: dict[str, int] = field(default_factory=dict)
    #: GPUs by their numbers.
    gpus: dict[GpuNumber, Gpu] = field(default_factory=dict)
    #: (pid, CUDA ordinal) -> GPU number, if exported.
    cuda_gpus: dict[tuple[int, int], GpuNumber] = field(default_factory=dict)
    #: GPU number of each CUDA ordinal in all processes, if not exported otherwise.
    visible_gpus: tuple[GpuNumber, ...] = ()
    #: Process ids (of the operating system) with CUDA contexts.
    cuda_processes: tuple[int, ...] = ()
    #: Name of each NVTX domain.
    domains: dict[tuple[GlobalPid, DomainId], str] = field(default_factory=dict)
    #: Name of each category, a number of its domain.
    categories: dict[tuple[GlobalPid, DomainId, int], str] = field(default_factory=dict)
    #: Of Nsight Systems about losses and the like.
    messages: tuple[Message, ...] = ()
    #: Tells the launcher's jobs apart.
    job: str = ""
    #: Outlines of tables that were asked for.
    outlines: dict[str, Outline] = {}
    #: Number of ranks by each variable of that environment.
    launcher_sizes: dict[str, int] = field(default_factory=dict)
    #: Version of NVIDIA's driver, empty if unknown.
    driver: str = ""
    #: Part of the machine (MACHINE) -> its description in the report.
    machine: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the report's file, or its pseudonym."""
        return self.alias or self.given.name

    @property
    def given(self) -> Path:
        """Return the path of the report as the user gave it."""
        return self.given_path or self.path

    @property
    def begin_ns(self) -> int | None:
        """Return the start of the capture (local ns), or None if unknown."""
        if not self.absolute:
            return self.time_shift
        return None if self.utc_ns is None else self.utc_ns + self.time_shift

    @property
    def clock(self) -> ReportClock:
        """Return the report's clock, without the shift that the export added to all times."""
        begin, gpus = self.begin_ns, frozenset(gpu.uuid for gpu in self.gpus.values() if gpu.uuid)
        if begin is None:
            return ReportClock(self.host, -self.time_shift, None, gpus)
        utc, system = (
            None if time is None else time - begin for time in (self.utc_ns, self.system_ns)
        )
        return ReportClock(self.host, utc, system, gpus)

    def find_gpu(self, pid: int, ordinal: int) -> int | None:
        """Return the number of the GPU that a process (globalPid) uses under this CUDA ordinal, or
        None if unknown.

        If the report does not relate ordinals to GPUs and has one GPU, ordinal 0 is this GPU. A
        higher ordinal shows that there are GPUs that the report does not name.
        """
        number = self.cuda_gpus.get((pid_of(pid), ordinal))
        if number is None and 0 <= ordinal < len(self.visible_gpus):
            number = self.visible_gpus[ordinal]
        if number is None and ordinal == 0 and len(self.gpus) == 1:
            (number,) = self.gpus
        return number

    def list_gpus(self, pid: int) -> list[GpuNumber]:
        """Return the numbers of the GPUs visible to a process (globalPid)."""
        own = {gpu for (process, _), gpu in self.cuda_gpus.items() if process == pid_of(pid)}
        return sorted(own or {*self.visible_gpus} or {*self.gpus})

    def find_gpu_or_ordinal(self, pid: int, ordinal: int) -> int:
        """Return the number of the GPU that a process (globalPid) uses under this CUDA ordinal, or
        the ordinal itself if the GPU is unknown.
        """
        number = self.find_gpu(pid, ordinal)
        return ordinal if number is None else number


def find_processes(global_ids: np.ndarray) -> np.ndarray:
    """Return the process (globalPid) of each globalPid or globalTid (int64, shape (n,)); 0 for
    NULL.
    """
    return zero_nulls(global_ids) & PROCESS_MASK


def pid_of(global_id: int) -> int:
    """Return the operating system's process ID in a globalPid or globalTid."""
    return (global_id >> 24) & 0xFFFFFF


def tid_of(global_tid: int) -> int:
    """Return the operating system's thread ID in a globalTid."""
    return global_tid & 0xFFFFFF


def read_report_info(
    path: str | Path, given_path: Path | None = None, outlined: bool = False
) -> ReportInfo:
    """Read the small tables of an export: facts about the report. given_path: the .nsys-rep file
    from which it was made, if any. outlined: whether to add bounds of the times in its tables.
    """
    with open_database(path) as database:
        check_tables(given_path or database.path, database.tables)
        database.check(outlined)
        info = _inspect_database(database, given_path)
        if not outlined:
            return info
        outlines = ((name, table.outline) for name, table in database.tables.items())
        return replace(info, outlines={name: one for name, one in outlines if one})


def _inspect_database(database: Database, given_path: Path | None) -> ReportInfo:
    parts = {name: one.whole for name, one in database.tables.items() if one.whole.rows}
    if not database.has("StringIds", "id", "value"):
        parts.pop("StringIds", None)  # conditions look strings up, in both columns
    read = database.read_small_table
    export = dict(
        read("META_DATA_EXPORT", "name", "value") or read("EXPORT_META_DATA", "name", "value")
    )
    starts = [
        (_to_utc(utc), _to_integer(system))
        for utc, system in read("TARGET_INFO_SESSION_START_TIME", "utcEpochNs", "systemClockNs")
    ]
    utc_ns, system_ns = min(
        starts, key=lambda start: (start[0] is None, start[0] or 0), default=(None, None)
    )
    system: dict[str, str] = {}
    for name, value in read("TARGET_INFO_SYSTEM_ENV", "name", "value"):
        if value and name in ("Hostname", "NvDriverVersion", "TargetInstallDir", *MACHINE.values()):
            system.setdefault(name, str(value))
    details = read("ANALYSIS_DETAILS", "duration")
    normalized = str(export.get("EXPORT_PARAM_TIME_NORMALIZE") or "").lower()
    is_absolute = normalized in {"1", "true", "yes"}
    time_shift = _parse_shift(export.get("EXPORT_PARAM_TIME_SHIFT"))
    begin = time_shift + (utc_ns or 0 if is_absolute else 0)
    environment = read_environment(database)
    gpus, by_ordinal, visible = read_gpus(
        database, environment.get("CUDA_VISIBLE_DEVICES", ()) if environment else None
    )
    diagnostics, duration = read_diagnostics(database), read_duration(database)
    stated_span = None
    if duration is not None:
        stated_span = find_capture_span(diagnostics, begin, begin + duration)
    domains, categories = _read_nvtx_names(database)
    return ReportInfo(
        path=database.path,
        given_path=given_path,
        schema=str(export.get("EXPORT_SCHEMA_VERSION") or ""),
        exporter=str(export.get("EXPORT_PRODUCT_VERSION") or ""),
        recorder=_find_recorder(system.get("TargetInstallDir", "")),
        host=system.get("Hostname", ""),
        driver=parse_driver_version(system.get("NvDriverVersion", "")),
        machine={part: system[name] for part, name in MACHINE.items() if name in system},
        utc_ns=utc_ns,
        system_ns=system_ns,
        absolute=is_absolute,
        time_shift=time_shift,
        duration_ns=_to_integer(details[0][0]) if details else None,
        capture=read_capture(database, list(dict.fromkeys((begin, 0, utc_ns or 0))), duration),
        stated_span=stated_span,
        launched=was_launched(diagnostics, stated_span),
        traces_cuda=was_cuda_traced(database, parts),
        traces_mpi=is_setting_on(database, "COLLECT_MPI_TRACE"),
        is_part=bool(export.get("EXPORT_PARAM_TIMES_TO_EXPORT")),
        parts=parts,
        processes={
            pid: Path(name).name[:OBJECT_NAME] if isinstance(name, str) and name else ""
            for pid, name in read("PROCESSES", "globalPid", "name", types=(int,))
        },
        threads=_read_thread_names(database),
        ranks={
            tid & PROCESS_MASK: rank
            for tid, rank in read("MPI_RANKS", "globalTid", "rank", types=(int, int))
        },
        communicators=read_communicators(database),
        launcher_ranks=find_numbers(environment, RANK_VARIABLES),
        launcher_sizes=find_numbers(environment, SIZE_VARIABLES.values()),
        gpus=gpus,
        cuda_gpus=by_ordinal,
        visible_gpus=visible,
        cuda_processes=tuple(
            sorted(
                {pid for one in CONTEXT_TABLES for (pid,) in read(one, "processId", types=(int,))}
            )
        ),
        domains=domains,
        categories=categories,
        messages=list_messages(diagnostics),
        job=_find_job(environment),
    )


def parse_driver_version(text: str) -> str:
    """Return an NVIDIA driver version in its usual form, `515.65.01`, or "".

    Older reports write it as one number, 5156501, and write 0 without a driver.
    """
    if not text.isdecimal():
        return text if _VERSION.fullmatch(text) else ""
    return f"{text[:3]}.{text[3:-2]}.{text[-2:]}" if len(text) >= 7 else ""


def _parse_shift(value: object) -> int:
    """Return the number of ns in an export setting, or 0."""
    match = re.fullmatch(r"[+-]?[0-9]{1,18}", str(value).strip())
    return int(match[0]) if match else 0


def _to_integer(value: object) -> int | None:
    """Return a value as an integer if it is a possible clock time, otherwise None."""
    return value if isinstance(value, int) and abs(value) < TIME_LIMIT else None


def _to_utc(value: object) -> int | None:
    """Return a UTC time (ns), or None if it is impossible. A time before 1970 comes from a clock
    that was never set, and would stretch the trace over half a century.
    """
    number = _to_integer(value)
    return number if number is not None and number > 0 else None


def _read_thread_names(database: Database) -> dict[GlobalTid, str]:
    """Return globalTid -> the thread name of highest priority."""
    best: dict[int, tuple[int, int]] = {}
    columns = ("globalTid", "nameId", "priority")
    for tid, *values in database.read_small_table("ThreadNames", *columns, types=(int,)):
        name, priority = (value if isinstance(value, int) else 0 for value in values)
        best[tid] = max(best.get(tid, (priority, name)), (priority, name))
    texts = database.read_strings(sorted({name for _, name in best.values()}))
    return {tid: texts[name][:OBJECT_NAME] for tid, (_, name) in best.items() if texts.get(name)}


def _read_nvtx_names(
    database: Database,
) -> tuple[dict[tuple[GlobalPid, DomainId], str], dict[tuple[GlobalPid, DomainId, int], str]]:
    """Return names of NVTX domains by (globalPid, domainId), and of categories by (globalPid,
    domainId, category).

    If a process has several rows for one domain, from several threads, any of them is used.
    """
    columns = ("eventType", "globalTid", "domainId", "category", "text", "textId")
    parts = ()
    if NVTX_TABLE in database.tables and (outline := database.tables[NVTX_TABLE].outline):
        naming = (outline.bounds[TRAITS] & IS_NAME) != 0
        parts = tuple(list_blocks(database.tables[NVTX_TABLE].whole, naming, outline.block_rows))
        if not parts:
            return {}, {}
    rows = database.read_small_table(NVTX_TABLE, *columns, where=NVTX_NAMES, parts=parts)
    texts = database.read_strings(sorted({row[5] for row in rows if isinstance(row[5], int)}))
    domains, categories = {}, {}
    for kind, tid, domain, category, text, text_id in rows:
        # Only numbers, because they are used in SQL conditions. 0 is the default domain, which has
        # no name.
        domain = domain if isinstance(domain, int) else 0
        name = text if isinstance(text, str) and text else texts.get(text_id, "")
        name = name[:OBJECT_NAME]
        process = tid & PROCESS_MASK if isinstance(tid, int) else 0
        if name and domain and kind == NVTX_DOMAIN_CREATE:
            domains.setdefault((process, domain), name)
        elif name and kind == NVTX_CATEGORY and isinstance(category, int):
            categories.setdefault((process, domain, category), name)
    return domains, categories


#: Columns of what a multiprocessor holds, and of memory and clock, in the order of GpuLimits.
LIMITS = (
    "maxWarpsPerSm",
    "maxBlocksPerSm",
    "maxRegistersPerSm",
    "maxShmemPerSm",
    "memoryBandwidth",
    "clockRate",
    "computeMajor",
    "computeMinor",
)
#: GPUs by number; (pid, CUDA ordinal) -> GPU, if the report states it; and the GPU of each ordinal
#: in all processes from CUDA_VISIBLE_DEVICES, empty if unknown.
GpuTable = tuple[dict[GpuNumber, Gpu], dict[tuple[int, int], GpuNumber], tuple[GpuNumber, ...]]


def read_gpus(database: Database, visible: Collection[str] | None) -> GpuTable:
    """Return the GPUs of a report. visible: settings of CUDA_VISIBLE_DEVICES, or None if no
    environment was recorded.
    """
    columns = ("id", "name", "uuid", "busLocation", "smCount", "cuDevice")
    rows = database.read_small_table("TARGET_INFO_GPU", *columns, *LIMITS, types=(int,))
    found = [
        Gpu(
            number,
            str(name or ""),
            # 0 means unknown.
            _blank_zeros(uuid, "0-"),
            _blank_zeros(bus, "0:."),
            GpuLimits(*(max(one, 0) if isinstance(one, int) else 0 for one in (count, *limits))),
        )
        for number, name, uuid, bus, count, _, *limits in rows
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
        return gpus, by_ordinal, ()
    order = _order_as_cuda(gpus, {row[0]: row[5] for row in rows})
    return gpus, by_ordinal, _find_visible(database, gpus, order, *devices)


def _blank_zeros(value: object, zeros: str) -> str:
    text = str(value or "")
    return text if text.strip(zeros) else ""


def _read_cuda_devices(
    database: Database, gpus: dict[GpuNumber, Gpu], processors: dict[GpuNumber, object]
) -> dict[tuple[int, int], GpuNumber]:
    """Return (pid, CUDA ordinal) -> GPU. MIG instances, which CUDA lists with their own UUIDs and
    fewer processors, are added to `gpus`.
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
        is_other = bool(uuid) and gpu is not None and _trim_uuid(uuid) != _trim_uuid(gpu.uuid)
        if is_other and (is_part or len(uuids[number]) > 1):
            if uuid not in instances:
                part = replace(gpu.limits, processors=own) if is_part else UNKNOWN
                instances[uuid] = _add_instance(gpus, uuid, part)
            number = instances[uuid]
        by_ordinal[pid, ordinal] = number
    return by_ordinal


def _trim_uuid(uuid: str) -> str:
    """Return a UUID without the prefix that some tables add."""
    return _UUID_PREFIX.sub("", uuid, count=1).lower()


def _add_instance(gpus: dict[GpuNumber, Gpu], uuid: str, limits: GpuLimits = UNKNOWN) -> GpuNumber:
    """Add a MIG instance to `gpus` and return its number."""
    number = GpuNumber(max(gpus, default=-1) + 1)
    gpus[number] = Gpu(number, uuid=uuid, limits=limits)
    return number


def _find_visible(
    database: Database, gpus: dict[GpuNumber, Gpu], order: tuple[GpuNumber, ...], setting: str = ""
) -> tuple[GpuNumber, ...]:
    """Return the GPU of each CUDA ordinal, from CUDA_VISIBLE_DEVICES at the start of the program.
    Return nothing if a process may have changed this variable.

    order: the GPUs in CUDA's order. MIG instances in the setting are added to `gpus`.
    """
    visible = _parse_visible_devices(setting, order, gpus) if setting else order
    used: dict[int, set[int]] = defaultdict(set)
    for table in CONTEXT_TABLES:
        for pid, device in database.read_small_table(table, "processId", "deviceId"):
            used[pid] |= {device} if isinstance(device, int) else set()
    # Several processes use only ordinal 0: a launcher may have given each its own GPU.
    apart = len(used) > 1 and max(map(max, filter(None, used.values())), default=0) == 0
    return () if apart and len(visible) > 1 else visible


def _order_as_cuda(
    gpus: dict[GpuNumber, Gpu], ordinals: dict[GpuNumber, object]
) -> tuple[GpuNumber, ...]:
    """Return all GPUs in CUDA's order: as in the report or, for GPUs of one model, by PCI location.
    Return None if neither determines the order.
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
    """Return the GPUs listed in CUDA_VISIBLE_DEVICES. As in CUDA, the list ends at the first
    invalid entry.
    """
    visible = []
    for entry in map(str.strip, settings.split(",")):
        uuid = _trim_uuid(entry)
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
