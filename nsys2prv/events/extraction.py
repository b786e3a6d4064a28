"""Keep the state of reading one report (:class:`Extraction`).

Event kinds use it to read the export and to number objects and names. This module also defines the
keys of objects, and finds their physical GPUs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from msgspec import Struct, field
from msgspec.structs import replace

from nsys2prv._util.budget import (
    LEAST_NAMES,
    NAMES_PER_BYTE,
)
from nsys2prv._util.columns import (
    ABSENT,
    OPEN,
    blank_negative,
    cut_texts,
    factorize_together,
    join_pieces,
    measure_texts,
)
from nsys2prv._util.stored_columns import FrameWriter, StoredFrame
from nsys2prv._util.text import format_duration
from nsys2prv.events.catalogue import CALLER_LEVELS
from nsys2prv.events.kind import Account, Counters, EventKind, Reason, Rows
from nsys2prv.events.launches import Launches, Segment, find_launches
from nsys2prv.events.name_rules import (
    Classifier,
    ClassRule,
    NvtxRule,
    get_classifier,
    load_class_rules,
    load_nvtx_rules,
)
from nsys2prv.export.database import Database
from nsys2prv.export.info import ReportInfo, find_processes
from nsys2prv.export.outlines import ENDS, TIMES
from nsys2prv.export.source import (
    NULL,
    Columns,
    Part,
    Shared,
    are_all_usable,
    mask_usable,
    zero_nulls,
)

#: Tables of GPU work. This work is recorded completely.
GPU_TABLES = frozenset(
    f"CUPTI_ACTIVITY_KIND_{name}" for name in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")
)


class ThreadKey(NamedTuple):
    """Identifies a host thread of the report, by Nsight's globalTid. `lane` > 0: an additional row
    for ranges that overlap others.
    """

    #: globalTid.
    tid: int
    #: Above 0 for an additional row of ranges that overlap others.
    lane: int = 0


class StreamKey(NamedTuple):
    """Identifies a CUDA stream of a process. `lane` > 0: an additional row for work that overlaps
    other work.
    """

    #: globalPid.
    pid: int
    #: CUDA ordinal.
    device: int
    #: Id of the stream.
    stream: int
    #: Above 0 for an additional row of work that overlaps other work of the stream.
    lane: int = 0


class QueueKey(NamedTuple):
    """Identifies GPU work of a process outside CUDA streams, by a name for such work and the GPU."""

    #: globalPid.
    pid: int
    #: Name of such work for users.
    queue: str
    #: The GPU as the report numbers it, or ABSENT.
    gpu: int
    #: Above 0 for an additional row of work that overlaps other work.
    lane: int = 0


class DeviceKey(NamedTuple):
    """Identifies a device outside any process, which has samples."""

    #: One of DEVICE_KINDS.
    kind: str
    #: Name for users, which distinguishes it from others of its kind on its machine. For a GPU: "",
    #: or the globalPid of the only process if only a CUDA ordinal identifies it.
    name: str = ""
    #: Number of the GPU in the report, that ordinal, or the number of the port.
    number: int = 0


#: Kinds of devices in the order of their rows; "source": other sources of samples, such as CPUs and
#: plugins. A switch belongs to the whole job, all others to their machine.
DEVICE_KINDS = ("gpu", "gpu_contexts", "nic", "switch", "source")
GPU, GPU_CONTEXTS, NIC, SWITCH, SOURCE = DEVICE_KINDS
ObjectKey = ThreadKey | StreamKey | QueueKey | DeviceKey
#: Columns that identify a stream.
STREAM_COLUMNS = ("globalPid", "deviceId", "streamId")
#: Facts in columns with these prefixes contain local times, local objects, and local names of the
#: set that follows the prefix. DOMAIN is the column of local domains. See
#: :meth:`Extraction.add_fact`.
TIME, OBJECT, NAME, DOMAIN = "time_", "object_", "name_", "domain"


def find_stream_device(info: ReportInfo, key: StreamKey) -> DeviceKey:
    """Return the key of the GPU on which a stream runs."""
    number = info.find_gpu(key.pid, key.device)
    if number is None:
        return DeviceKey(GPU, str(key.pid), key.device)
    return DeviceKey(GPU, number=number)


def identify_gpu(
    infos: Sequence[ReportInfo], machines: Sequence[int], report: int, key: DeviceKey
) -> tuple:
    """Return a key that identifies a report's GPU among all GPUs of the trace. machines: number of
    the machine of each report. report: number of the report. key: the GPU in the report.
    """
    if key.name:
        return (machines[report], report, key.name, key.number)
    gpu = infos[report].gpus.get(key.number)
    return (machines[report], gpu.key if gpu is not None and gpu.key else key.number)


class Names:
    """Names of one name set found by a task, in columns: text and, if given, short (the report's
    short form) and domain (index of an NVTX domain).

    A name may appear several times; then several local indices mean the same name.
    """

    def __init__(self) -> None:
        self._pieces: defaultdict[str, list[Sequence[str] | pl.Series | np.ndarray]] = defaultdict(
            list
        )
        self._count = 0

    def append(self, columns: Mapping[str, Sequence[str] | pl.Series | np.ndarray]) -> int:
        """Add names and return the index of the first one."""
        for name, values in columns.items():
            self._pieces[name].append(values)
        first = self._count
        self._count += len(columns["text"])
        return first

    def save(self, frames: FrameWriter) -> StoredFrame:
        """Store all names in a file, and return where they are."""
        return frames.append_frame(
            {name: join_pieces(pieces) for name, pieces in self._pieces.items()}
        )


class Numbering(dict):
    """Numbers for keys (from 0), in the order in which they are first requested."""

    def number(self, keys: Iterable[Hashable]) -> np.ndarray:
        """Return the number of each key; new keys get the next numbers."""
        return np.array([self.setdefault(key, len(self)) for key in keys], np.int64)


class ReadingSettings(Struct, frozen=True):
    """Settings for reading reports, from the options."""

    #: True if the trace contains the calls at which lines start.
    lines: bool = True
    #: True if the trace contains NCCL calls. Their kernels then have the facts from the calls.
    nccl_calls: bool = True
    #: Kind -> ns; shorter ranges of it are dropped.
    min_durations: Mapping[str, int] = field(default_factory=dict)
    #: Rules of kernel classes; None for the rules of nsys2prv.
    kernel_rules: tuple[ClassRule, ...] | None = None
    #: Layout -> bits of the fields to store; kind of lines -> 0 for none. Missing keys mean
    #: everything.
    field_masks: Mapping[str, int] = field(default_factory=dict)
    #: Number of stack frames of each CPU sample.
    callstack: int = 1
    #: True if whole stacks are stored, for analyses.
    stacks: bool = False
    #: Rules of NVTX names; None for the rules of nsys2prv.
    nvtx_rules: tuple[NvtxRule, ...] | None = None


_USUAL = ReadingSettings()


class Extraction:
    """The state while one report is read. Event kinds use it to read tables, and to give names and
    objects (rows) numbers.

    nccl_calls: NCCL calls that kinds may look up.
    """

    def __init__(
        self,
        report: ReportInfo,
        database: Database,
        launches: Sequence[Segment] = (),
        settings: ReadingSettings = _USUAL,
        nccl_calls: Sequence[StoredFrame] = (),
    ) -> None:
        self.report = report
        self.database = database
        self.settings = settings
        #: Keys of objects and of NVTX domains -> local index.
        self.objects = Numbering()
        self.domains = Numbering()
        #: Names by name set.
        self.names: dict[str, Names] = {}
        #: Callers of call stacks by level, names of the set `caller`; the first are none.
        self.callers = [np.full((1, CALLER_LEVELS), ABSENT)]
        #: Launching calls to look up, and launching calls that this extraction finds.
        self.launches = launches
        self.launched: list[Launches] = []
        #: NCCL calls to look up, and NCCL calls that this extraction finds.
        self.nccl_calls = nccl_calls
        self.found_nccl_calls: list[dict[str, np.ndarray]] = []
        #: Operations and groups of these calls, if they were found before, or found by this extraction.
        self.nccl_groups: Sequence[StoredFrame] = ()
        self.found_nccl_groups: tuple[Mapping[str, np.ndarray], ...] = ()
        self._found: dict[str, Any] = {}
        self._facts: dict[str, list[dict[str, np.ndarray | pl.Series]]] = {}
        #: Names of facts that are not stored.
        self.unwanted_facts: Collection[str] = ()
        #: Account of the rows of the kind: each becomes a record, or is counted with a reason.
        self.account = Account()
        #: Kind of events that is being read.
        self.kind: EventKind | None = None
        #: Condition on the rows that the kind translates, in SQL.
        self.condition = ""
        #: Columns that were read for this kind and others together, and the number of this kind's
        #: condition.
        self.shared: tuple[Shared, int] | None = None
        #: False if rows are read only for the indexes.
        self.stores = True
        #: Ranges shorter than this (ns) are not wanted.
        self.min_duration = 0
        self._strings: dict[int, str] = {NULL: ""}
        #: Texts that replace names missing from the report.
        self.unnamed: set[str] = set()
        self._name_bytes = 0

    def read(
        self,
        part: Part,
        integers: tuple[str, ...],
        texts: tuple[str, ...] = (),
        where: str | None = None,
        short: bool = False,
        times: tuple[str, ...] = (*TIMES, *ENDS),
    ) -> Columns:
        """Return columns of the rows of a part that the kind translates, or that meet `where`. The
        caller counts the rows.

        Values of a wrong type read as NULL and are counted. Rows far outside the capture (by one of
        the columns `times`), and GPU work outside the capture, are removed and counted.

        Rows with a duration below :attr:`min_duration` are removed and counted, unless `short` is
        set. The caller then gets all rows, for example to use other columns before
        :meth:`mask_long_enough`.
        """
        integers = tuple(dict.fromkeys(integers))
        shared, number = self.shared or (None, 0)
        if where is None and shared is not None and shared.holds(part, integers, texts):
            columns = shared.select_meeting(number, integers, texts)
        else:
            condition = self.condition if where is None else where
            columns = self.database.read(part, integers, texts, condition)
        if where is None:
            self.account.rows += columns.rows
        if columns.damaged:
            self.account.repaired[Reason.NOT_INTEGER] += columns.damaged
        capture, known = self.report.capture, columns.integers
        ranges = [known[name] for name in ("start", "end") if name in known]
        present = (known[name] for name in times if name in known)
        far = [capture.mask_far(column) for column in present if not capture.holds(column)]
        is_work = len(ranges) == 2 and part.table in GPU_TABLES
        if is_work and not all(capture.holds(column, capture.gpu) for column in ranges):
            far.append(capture.mask_far_work(*ranges))
        if far and where is None:
            columns = self.drop_rows(columns, np.logical_or.reduce(far), Reason.FAR_FROM_CAPTURE)
        elif far:
            columns = columns.where(~np.logical_or.reduce(far))
        return columns if short or len(ranges) < 2 else self.drop_short(columns)

    def drop_rows(self, columns: Columns, unusable: np.ndarray, reason: Reason) -> Columns:
        """Return the rows outside the mask `unusable`. The others are counted as dropped for this
        reason.
        """
        self.account.dropped[reason] += int(unusable.sum())
        return columns.where(~unusable)

    def drop_short(self, columns: Columns, begin: str = "start", end: str = "end") -> Columns:
        """Return the rows that last long enough (:meth:`mask_long_enough`). begin, end: names of
        the time columns.
        """
        if not self.min_duration:
            return columns
        return columns.where(self.mask_long_enough(columns[begin], columns[end]))

    def mask_long_enough(self, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Return a mask of the ranges that last at least :attr:`min_duration` ns or have no end.
        The others are counted as dropped. begin, end: times of the ranges.
        """
        if not self.min_duration:
            return np.ones(len(begin), bool)
        # Unsigned differences are right for all times, also NULL.
        closed = (begin != NULL) & (end != NULL)
        short = closed & (
            (end < begin) | ((end - begin).view(np.uint64) < np.uint64(self.min_duration))
        )
        reason = Reason.TOO_SHORT.with_detail(format_duration(self.min_duration))
        self.account.dropped[reason] += int(short.sum())
        return ~short

    def drop_far_rows(self, rows: Rows | Counters) -> Rows | Counters:
        """Remove and count rows or samples far outside the capture."""
        capture, mask_far = self.report.capture, self.report.capture.mask_far
        if isinstance(rows, Counters):
            if capture.holds(rows.time):
                return rows
            far = mask_far(rows.time)
            self.account.dropped[Reason.FAR_FROM_CAPTURE] += int(
                np.count_nonzero(rows.values[far] != ABSENT)
            )
            return replace(rows, time=rows.time[~far], values=rows.values[~far])
        if capture.holds(rows.begin) and capture.holds(rows.end):
            return rows
        far = mask_far(rows.begin) | mask_far(rows.end)
        self.account.dropped[Reason.FAR_FROM_CAPTURE] += int(rows.get_chosen(far).sum())
        return rows.where(~far)

    def find_once(self, name: str, find: Callable[[], Any]) -> Any:
        """Return `find()`, which is called only once for each event kind and name."""
        if name not in self._found:
            self._found[name] = find()
        return self._found[name]

    @cached_property
    def classifier(self) -> Classifier:
        """The rules that find the class of a kernel from its name."""
        rules = self.settings.kernel_rules
        return get_classifier(load_class_rules() if rules is None else rules)

    @cached_property
    def nvtx_rules(self) -> tuple[NvtxRule, ...]:
        """The rules for NVTX names."""
        rules = self.settings.nvtx_rules
        return load_nvtx_rules() if rules is None else rules

    def read_strings(self, ids: np.ndarray) -> list[str]:
        """Return the texts with these ids of StringIds. An id without a text reads as `string
        <id>`.
        """
        numbers = ids.tolist()
        if new := [number for number in numbers if number not in self._strings]:
            known = self.database.read_strings(new)
            lacking = {number: f"string {number}" for number in new if number not in known}
            self.unnamed.update(lacking.values())
            self._strings |= known | lacking
        return [self._strings[number] for number in numbers]

    def number_objects(
        self, make_key: Callable[..., ObjectKey], *columns: np.ndarray
    ) -> np.ndarray:
        """Return the number of the object (row of the trace) to which each row belongs. make_key:
        makes the key of an object from the values of the columns, with 0 for NULL.
        """
        distinct, codes = factorize_together(*columns)
        keys = map(make_key, *(zero_nulls(column).tolist() for column in distinct))
        return self.objects.number(keys)[codes]

    def intern_threads(self, tids: np.ndarray) -> np.ndarray:
        """Return for each row the number of the object that stands for its host thread. tids:
        globalTid; NULL means the main thread of process 0.
        """
        return self.number_objects(ThreadKey, tids)

    def find_main_threads(self, pids: np.ndarray) -> np.ndarray:
        """Return the globalTid of the main thread of each process, whose thread ID is the process
        ID. pids: globalPid.
        """
        return find_processes(pids) | (zero_nulls(pids) >> 24 & 0xFFFFFF)

    def find_launches(self, columns: Columns) -> Launches:
        """Find the calls that launched the work in these rows. columns: with globalPid and
        correlationId.
        """
        return find_launches(self.launches, columns["globalPid"], columns["correlationId"])

    def find_callers(self, launches: Launches, pids: np.ndarray) -> np.ndarray:
        """Return the globalTid of the host thread of each call. Rows without a call get the main
        thread of their process. launches: the calls. pids: globalPid of each row.
        """
        return np.where(launches.hit, launches.thread, self.find_main_threads(pids))

    def intern_streams(self, columns: Columns | Mapping[str, np.ndarray]) -> np.ndarray:
        """Return for each row the number of the object that stands for its CUDA stream. columns:
        must include STREAM_COLUMNS.
        """
        return self.number_objects(StreamKey, *(columns[name] for name in STREAM_COLUMNS))

    def number_gpus(self, columns: Columns) -> np.ndarray:
        """Return for each row the number of the object that stands for its physical GPU. columns:
        globalPid and CUDA ordinal (deviceId). If the report does not contain the GPU's number, the
        ordinal is used.
        """

        def make_key(pid: int, ordinal: int) -> DeviceKey:
            return DeviceKey(GPU, number=self.report.find_gpu_or_ordinal(pid, ordinal))

        return self.number_objects(make_key, columns["globalPid"], columns["deviceId"])

    def number_queues(self, ids: np.ndarray, queue: str, gpus: np.ndarray) -> np.ndarray:
        """Return for each row the number of the object that stands for its work queue on a GPU.
        ids: globalPid or globalTid. queue: name of the queue. gpus: numbers of the GPUs.
        """
        keys = find_processes(ids), blank_negative(gpus)
        return self.number_objects(lambda pid, gpu: QueueKey(pid, queue, gpu), *keys)

    def number_device(self, key: DeviceKey) -> int:
        """Return the number of the object that stands for a device."""
        return self.objects.setdefault(key, len(self.objects))

    def add_fact(self, name: str, columns: Mapping[str, np.ndarray | pl.Series]) -> None:
        """Store a fact: columns of equal length, for relations between reports, or for `derive` of
        a `Derived` kind.

        Columns listed in TIME contain local times (NULL and OPEN allowed; times that do not fit a
        trace become NULL). Columns in OBJECT, NAME and DOMAIN contain objects, names and domains;
        `process` contains the globalPid. Relations get trace times and rows instead of local times
        and objects. They get names and domains unchanged, which are valid only within one reading
        task. `derive` gets times unchanged, and the others as common numbers of the report.
        """
        if name in self.unwanted_facts:
            return
        self._facts.setdefault(name, []).append(
            {
                column: _convert_times(np.asarray(values)) if column.startswith(TIME) else values
                for column, values in columns.items()
            }
        )

    def save_facts(self, frames: FrameWriter) -> dict[str, StoredFrame]:
        """Store all facts and return name -> stored frame."""
        return {
            name: frames.append_frame(join_facts(pieces)) for name, pieces in self._facts.items()
        }

    def intern_names(
        self, name_set: str, codes: np.ndarray, **columns: Sequence[str] | pl.Series | np.ndarray
    ) -> np.ndarray:
        """Give each row a name of a name set. Return the local index of each name. codes: index of
        the name in the columns `text` (and `short`, `domain`).
        """
        left = LEAST_NAMES + NAMES_PER_BYTE * self.database.size - self._name_bytes
        texts = {name: columns[name] for name in ("text", "short") if name in columns}
        size = sum(map(measure_texts, texts.values()))
        if size > left:
            texts = {name: cut_texts(column, left // len(texts)) for name, column in texts.items()}
            self.account.repaired[Reason.NAME_CUT] += len(columns["text"])
            size = sum(map(measure_texts, texts.values()))
        self._name_bytes += size
        return codes + self.names.setdefault(name_set, Names()).append({**columns, **texts})

    def name_rows(
        self,
        name_set: str,
        columns: Sequence[np.ndarray],
        make_texts: Callable[..., Sequence[str]],
        named: np.ndarray | None = None,
        domain: int | None = None,
    ) -> np.ndarray:
        """Give rows names that are made from their values in some columns. Return the local index
        of each name, ABSENT for rows outside the mask `named`.

        make_texts: makes names from the distinct values of the columns. domain: index of the column
        with the NVTX domain of the names, if any.
        """
        rows = slice(None) if named is None or named.all() else np.flatnonzero(named)
        result = np.full(len(columns[0]), ABSENT)
        if len(result[rows]):
            distinct, codes = factorize_together(*(column[rows] for column in columns))
            of_domain = {} if domain is None else {"domain": distinct[domain]}
            texts = make_texts(*distinct)
            result[rows] = self.intern_names(name_set, codes, text=texts, **of_domain)
        return result


def join_facts(pieces: Sequence[Mapping[str, np.ndarray | pl.Series]]) -> Mapping[str, Any]:
    """Concatenate the rows of all pieces of a fact, given as columns by name. Values of missing
    columns are null.
    """
    first = pieces[0]
    if all(piece.keys() == first.keys() for piece in pieces):
        return {name: join_pieces([piece[name] for piece in pieces]) for name in first}
    return pl.concat(map(pl.DataFrame, pieces), how="diagonal").to_dict()


def _convert_times(column: np.ndarray) -> np.ndarray:
    if are_all_usable(column):
        return column
    return np.where(mask_usable(column) | (column == OPEN), column, NULL)
