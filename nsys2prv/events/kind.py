"""Declare event kinds (:class:`EventKind`), the normal form of their events, and the account of
their rows.

Also declares the reasons why rows and records are dropped, changed or counted separately, and why
tables are not read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from msgspec import Struct, convert, field
from msgspec.structs import replace

from nsys2prv._util.files import load_shipped_file
from nsys2prv.events.catalogue import Metric, load_catalogue, name_entry

if TYPE_CHECKING:
    from nsys2prv.events.extraction import Extraction
    from nsys2prv.export.info import ReportInfo
    from nsys2prv.export.source import Part

#: Between a key and its detail.
SEPARATOR = ": "
#: Indexes that some kinds fill while they are read, and that others use: of launching calls
#: (launches.py), and of NCCL calls.
LAUNCHES, NCCL_CALLS = "launches", "nccl_calls"
#: An SQL condition that no row meets.
NEVER = "0"
#: The command-line name of all kinds.
ALL = "all"


class Derived(Struct, frozen=True, forbid_unknown_fields=True):
    """Says how the events of a kind are computed from facts that other kinds stored."""

    #: Facts that it stores while reading.
    collects: tuple[str, ...]
    #: `module.function` of this package, which translates the facts of one report into `Rows` or
    #: `Counters`.
    derive: str


class EventKind(Struct, frozen=True, forbid_unknown_fields=True):
    """Declaration of an event kind: eight fields, and further ones that few kinds need.

    This example translates the calls of class 7 in a table. The layout `io_call` is in the
    catalogue, and ``extract_io_calls`` in a module ``io`` of this package:

    >>> def extract_io_calls(extraction, part):
    ...     columns = extraction.read(part, ("start", "end", "globalTid", "nameId"))
    ...     ids = [columns["nameId"]]
    ...     names = extraction.name_rows("io_call", ids, extraction.read_strings)
    ...     threads = extraction.intern_threads(columns["globalTid"])
    ...     yield Rows("io_call", columns["start"], columns["end"], threads, {"call": names})
    >>> kind = EventKind(
    ...     name="io_calls",
    ...     title="I/O calls",
    ...     row="host thread",
    ...     tables=("IO_EVENTS",),
    ...     layouts=("io_call",),
    ...     read="io.extract_io_calls",
    ...     groups=("io",),
    ...     where="{eventClass} = 7",
    ...     open_ended=True,
    ... )
    >>> kind.is_called("io"), kind.is_called("all"), kind.is_called("mpi")
    (True, True, False)
    """

    #: Name on the command line.
    name: str
    #: Title in texts for users.
    title: str
    #: Title of the row that its events are on.
    row: str
    #: Tables that its rows come from, each read in parts; none if it follows from the rows of other
    #: kinds.
    tables: tuple[str, ...]
    #: Record layouts that it yields, names in the catalogue.
    layouts: tuple[str, ...]
    #: `module.function` of this package, which translates a part of a table.
    read: str = "attributes.extract_declared"
    #: Object of its rows: their "thread", the "main thread" of their process, the thread of their
    #: "caller" (the launching call), their "stream", or "gpu".
    place: str = "thread"
    #: Kind of communication lines from the launching calls to its rows, "" for none.
    lines: str = ""
    #: Column of the sizes of these lines (bytes), "" for 0.
    line_sizes: str = ""
    #: Further command-line names that include it.
    groups: tuple[str, ...] = ()
    #: Condition on the rows of its tables: SQL with columns in braces; "" for all rows.
    where: str = ""
    #: Replaces `where`: `module.function` that returns it for a report (`ReportInfo`).
    where_in_report: str = ""

    #: Command-line names that include it, but not for exclusions and minimum durations.
    implied_by: tuple[str, ...] = ()
    #: Reports of nsys stats with its rows, if the most similar kind name would mislead.
    stats: tuple[str, ...] = ()
    #: Command-line option that asks for it: ``-t all`` does not include it. "" for none.
    opt_in: str = ""

    #: False for points in time, and for events derived from other kinds; --min-duration ignores
    #: these.
    has_duration: bool = True
    #: A range without an end lasts to the end of the trace.
    open_ended: bool = False
    #: If not empty, overlapping rows of one object, over all kinds of this group, get separate
    #: rows, because Paraver shows one value at a time.
    overlap_group: str = ""
    #: Its rows may make the trace longer. False for rows about the profiler, see
    #: :mod:`nsys2prv.table.samples`.
    extends_trace: bool = True
    #: True if its rows on a device describe the device and are the same in all reports, so that
    #: only one report's rows are written. False if they describe the report's own processes.
    device_wide: bool = True

    #: Integer columns that it reads of its one table, if several kinds read it: one statement then
    #: serves all, see :mod:`nsys2prv.conversion.read`.
    columns: tuple[str, ...] = ()
    #: Text columns that it reads of such a table.
    texts: tuple[str, ...] = ()
    #: Further tables, in which references of its rows are looked up.
    lookup_tables: tuple[str, ...] = ()
    #: True if its rows are also rows of other kinds, with additional information.
    rereads_rows: bool = False
    #: True if each of its rows is translated without other rows, except for the launching call: for
    #: a time range, only the rows in it are read. By default, true if the kind has no `read`.
    separable: bool = False
    #: For kinds that are not: the reason for which outlines note all of their rows
    #: (:data:`nsys2prv.export.outlines.REASONS`), or the name of their NVTX domain, so that of the rows outside a
    #: part in time only these are read.
    noted: str = ""

    #: Indexes that it fills: LAUNCHES or NCCL_CALLS.
    provides: tuple[str, ...] = ()
    #: Indexes that it uses. Kinds that fill them are read before it.
    needs: tuple[str, ...] = ()
    #: True if its rows are GPU work. If all such rows are missing or excluded, there is a warning.
    gpu_work: bool = False
    #: For reports without such rows: `module.function` that returns the kind that a report
    #: (`Database`) has instead, or "".
    hint_when_missing: str = ""
    #: None: all of its events come from rows of its tables.
    derived: Derived | None = None

    def is_called(self, name: str) -> bool:
        """Return True if a name given with `-t` selects this kind, by its own name or a group."""
        return name in (ALL, self.name, *self.groups)

    def make_condition(self, info: ReportInfo) -> str:
        """Return the SQL condition for the rows of its tables that this kind translates (see
        :attr:`where`); "" for all rows.
        """
        return find_function(self.where_in_report)(info) if self.where_in_report else self.where

    def extract(self, extraction: Extraction, part: Part) -> Iterator[Rows | Counters]:
        """Convert a part of a table to records in normal form: yield :class:`Rows` or
        :class:`Counters`.
        """
        extraction.kind = self
        return find_function(self.read)(extraction, part)


@cache
def find_function(name: str, package: str = __package__) -> Callable[..., Any]:
    """Return a function by its name in a package, `module.function`."""
    module, _, function = name.rpartition(".")
    return getattr(import_module(f"{package}.{module}"), function)


def declare_kind(name: str) -> EventKind:
    """Return the event kind with this name, as the catalogue declares it."""
    catalogue = load_catalogue()
    with name_entry(catalogue.files.get(("kinds", name), ""), "kinds", name):
        own = catalogue.kinds[name]
        separable = "read" not in own and not own.get("opt_in")
        spec = {
            "row": "host thread",
            "layouts": [name],
            "name": name,
            "separable": separable,
            **own,
        }
        if isinstance(tables := spec.get("tables"), dict):
            spec["tables"] = list(tables)
            spec["layouts"] = list(chain.from_iterable(tables.values()))
        return convert(spec, EventKind)


class Rows(Struct):
    """Records of one layout in normal form: start, end, object and fields. All arrays have one
    element per row.
    """

    #: Name of the layout in the catalogue.
    layout: str
    #: Begin, local ns.
    begin: np.ndarray
    #: End, local ns; NULL or OPEN if the kind allows it; ignored if the layout is a state.
    end: np.ndarray
    #: Index into the extraction's objects.
    object: np.ndarray
    #: Field -> int64: a number, a value of a value set, or an index into the extraction's names;
    #: CALLERS -> an index into its callers, 0 for none. ABSENT if a row lacks an optional field, or
    #: if a number is unknown. In other fields, nothing refuses ABSENT, and it is taken for the
    #: first name.
    columns: dict[str, np.ndarray]
    #: Index into the extraction's NVTX domains, for layouts with event types that depend on the
    #: domain.
    domain: np.ndarray | None = None
    #: Communication lines that lead to these rows.
    lines: CommunicationLines | None = None
    #: Ranges of one owner on one object nest; ranges of several owners get separate rows if they
    #: cross (derived events only).
    nesting_owner: np.ndarray | None = None
    #: Key of each row's call stack in its report, 0 for none.
    stack: np.ndarray | None = None
    #: Sorted indices of the rows to store, None for all. The arrays contain all rows, so that
    #: selected rows are copied only once.
    selection: np.ndarray | None = None

    def get_chosen(self, column: np.ndarray) -> np.ndarray:
        """Return the values of a column for the rows that are selected (:attr:`selection`)."""
        return column if self.selection is None else column[self.selection]

    def where(self, keep: np.ndarray) -> Rows:
        """Return these rows without the selected rows for which `keep` is False. Communication
        lines are all kept. keep: one bool for each selected row.
        """
        if np.count_nonzero(keep) == len(keep):
            return self
        rows = np.flatnonzero(keep) if self.selection is None else self.selection
        return replace(self, selection=rows[keep[rows]])


class CommunicationLines(Struct):
    """Communication lines of one kind, each from a sender to a receiver. All arrays have one
    element per line.
    """

    #: Kind of lines, a name in the catalogue.
    kind: str
    #: Time of sending, local ns.
    send: np.ndarray
    #: Object that sends.
    sender: np.ndarray
    #: Begin of the row that the line leads to, local ns.
    receive: np.ndarray
    #: Object that receives.
    receiver: np.ndarray
    #: End of the row that the line leads to, local ns.
    until: np.ndarray
    #: Size, bytes.
    size: np.ndarray
    #: Tag of each line, for kinds without one in the catalogue.
    tag: np.ndarray | None = None
    #: For MPI messages: when the receive was posted, and when the call ended that completed the
    #: send (local ns).
    posted: np.ndarray | None = None
    released: np.ndarray | None = None


class Counters(Struct):
    """Numbers sampled over time on one object, in the form in which all kinds return them.

    A value is valid until the object's next record with the same number. Records with equal time
    and object, from any part of the export, are merged when the trace is written.
    """

    #: Name of the layout in the catalogue.
    layout: str
    #: Local ns, without duplicates, shape (n,).
    time: np.ndarray
    #: Index into the extraction's objects.
    object: int
    #: Metric of each column of `values`.
    metrics: tuple[Metric, ...]
    #: int64, shape (n, len(metrics)); ABSENT if a time lacks a metric.
    values: np.ndarray


#: Make an empty Counter without the usual processing of arguments, because accounts have many.
make_counter = partial(Counter.__new__, Counter)


class Account(Struct):
    """Counts that show what became of the rows of one event kind: rows + synthesized = records +
    dropped + skipped.
    """

    #: Rows read.
    rows: int = 0
    #: Records made.
    records: int = 0
    #: Rows dropped, by reason.
    dropped: Counter[str] = field(default_factory=make_counter)
    #: Rows that intentionally make no record, by reason.
    skipped: Counter[str] = field(default_factory=make_counter)
    #: Records that do not come from a row, by reason.
    synthesized: Counter[str] = field(default_factory=make_counter)
    #: Rows that were changed, kept or not, by reason.
    repaired: Counter[str] = field(default_factory=make_counter)

    @property
    def missing(self) -> int:
        """Number of rows whose fate is unknown; must be 0."""
        accounted = self.records + self.dropped.total() + self.skipped.total()
        return self.rows + self.synthesized.total() - accounted

    def add(self, other: Account) -> None:
        """Add the counts of another account."""
        self.rows += other.rows
        self.records += other.records
        for name in self.__struct_fields__[2:]:
            # Most are empty.
            if counts := getattr(other, name):
                own = getattr(self, name)
                for key, count in counts.items():
                    if count > 0:
                        own[key] += count


#: Key -> text, of routine reasons and of other reasons.
_TEXTS: dict[str, dict[str, str]] = load_shipped_file(__package__, "reasons.yaml")


class Reason(str):
    """A reason why rows are dropped, changed or counted separately: a key in ``reasons.yaml``. The
    class has an attribute per key, in capital letters.

    Keys are short and do not change between versions, because scripts find them in
    ``out.nsys2prv.json``. Texts are for display. Some keys are followed by a detail: ``too-short: 5
    us``.

        >>> Reason.TOO_SHORT.with_detail("5 us")
        'too-short: 5 us'
        >>> describe_reason("too-short: 5 us"), is_routine("too-short: 5 us")
        ('shorter than 5 us', False)
    """

    def with_detail(self, detail: str) -> str:
        """Return the key with a detail."""
        return f"{self}{SEPARATOR}{detail}"

    @property
    def text(self) -> str:
        """The text, with "{}" for the detail."""
        return _TEXTS["routine"].get(self) or _TEXTS["unusual"][self]


for _key in chain(*_TEXTS.values()):
    setattr(Reason, _key.upper().replace("-", "_"), Reason(_key))


def describe_reason(key: str) -> str:
    """Return the text of a reason, for display. key: with or without a detail. Raise KeyError for
    an unknown key.
    """
    reason, _, detail = key.partition(SEPARATOR)
    return Reason(reason).text.replace("{}", detail)


def is_routine(key: str) -> bool:
    """Return True if rows dropped or changed for this reason (`key`) need no attention: the reason
    occurs in every capture, or has a separate warning.
    """
    return key.partition(SEPARATOR)[0] in _TEXTS["routine"]


class UnreadTable(NamedTuple):
    """The reason why a table that no event kind reads is not translated, and what it contains."""

    #: Its contents: `no_events`; if it has events, `not_used` or `unknown_table`.
    has: str
    reason: str

    def __str__(self) -> str:
        return f"not used: {self.reason}" if self.has == "not_used" else self.reason


#: Of tables that ``tables.yaml`` does not know.
UNKNOWN_TABLE = UnreadTable("unknown_table", "unknown to this version")


@cache
def _load_unread_tables() -> dict[UnreadTable, list[str]]:
    """Return reason -> names of tables. A name may be a prefix followed by a star."""
    declared = load_shipped_file(__package__, "tables.yaml").items()
    return {UnreadTable(has, why): names for has, of in declared for why, names in of.items()}


@cache
def explain_unread_table(table: str) -> UnreadTable:
    """Return the reason why a table that no event kind reads is not translated, from the longest
    matching name or prefix.
    """
    fitting = {
        len(name.rstrip("*")): reason
        for reason, names in _load_unread_tables().items()
        for name in names
        if table == name or (name.endswith("*") and table.startswith(name[:-1]))
    }
    return fitting[max(fitting)] if fitting else UNKNOWN_TABLE


def rank_reason(reason: UnreadTable) -> int:
    """Return a sort key that puts the most important reasons first: unknown tables, then the
    entries of ``tables.yaml`` in reverse order, so that tables with events come first.
    """
    reasons = list(_load_unread_tables())
    return -reasons.index(reason) if reason in reasons else -len(reasons)
