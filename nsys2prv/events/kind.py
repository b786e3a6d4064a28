"""What a kind of event declares, the normal form it returns, and the account of its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from nsys2prv.events.catalogue.counters import Metric

if TYPE_CHECKING:
    from nsys2prv.events.extraction import Extraction
    from nsys2prv.nsight.info import ReportInfo
    from nsys2prv.nsight.source import Part, Source


@dataclass
class Account:
    """Account of the rows of one kind of event: rows + beyond = records + dropped + aside."""

    #: Rows read.
    rows: int = 0
    #: Records made.
    records: int = 0
    #: Rows lost, by reason.
    dropped: Counter[str] = field(default_factory=Counter)
    #: Rows that are no records by design, by reason.
    aside: Counter[str] = field(default_factory=Counter)
    #: Records that no row of their own stands for, by reason.
    beyond: Counter[str] = field(default_factory=Counter)
    #: Rows that were changed, whatever became of them, by reason.
    repaired: Counter[str] = field(default_factory=Counter)

    @property
    def missing(self) -> int:
        """Rows that nothing accounts for: 0."""
        return (
            self.rows
            + self.beyond.total()
            - self.records
            - self.dropped.total()
            - self.aside.total()
        )

    def __add__(self, other: Account) -> Account:
        return Account(
            *(getattr(self, part.name) + getattr(other, part.name) for part in fields(self))
        )


#: The command-line name of all kinds.
ALL = "all"


@dataclass
class Lines:
    """Communication records. All arrays have one element per line."""

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


@dataclass
class Rows:
    """Normal form of events of one layout. All arrays have one element per row."""

    #: Name of the layout in the catalogue.
    layout: str
    #: Begin, local ns.
    begin: np.ndarray
    #: End, local ns; NULL or OPEN where the kind allows it; ignored where the layout holds.
    end: np.ndarray
    #: Index into the extraction's objects.
    object: np.ndarray
    #: Field -> int64: a number (ABSENT where an optional one is lacking), a value of a closed set,
    #: or an index into the extraction's names of that set.
    columns: dict[str, np.ndarray]
    #: Index into the extraction's NVTX domains, for layouts whose event types depend on it.
    domain: np.ndarray | None = None
    #: Communication lines that lead to these rows.
    lines: Lines | None = None
    #: Ranges of one owner on one object belong together; those of several get rows of their own
    #: where they cross (derived events only).
    owner: np.ndarray | None = None
    #: Ascending indices of the rows to store, None for all; the arrays have all rows, so that the
    #: chosen ones are copied only once.
    chosen: np.ndarray | None = None

    def where(self, keep: np.ndarray) -> Rows:
        """The rows for which `keep` is true, with all lines."""
        return self if keep.all() else replace(self, chosen=np.flatnonzero(keep))


@dataclass
class Counters:
    """Normal form of numbers sampled over time on one object.

    A value holds until the object's next record with that number. Records of equal time and object,
    from whatever part of the export, are joined when the trace is written.
    """

    #: Name of the layout in the catalogue.
    layout: str
    #: Local ns, each time at most once, shape (n,).
    time: np.ndarray
    #: Index into the extraction's objects.
    object: int
    #: Metric of each column of `values`.
    metrics: tuple[Metric, ...]
    #: int64, shape (n, len(metrics)); ABSENT where an instant lacks a metric.
    values: np.ndarray


@dataclass(frozen=True)
class EventKind:
    """The declaration of a kind of event.

    name: on the command line. title: for people. row: whose row it sits on, for people. tables:
    where its rows come from, each read in parts, or none where it follows from the rows of other
    kinds; where: which of their rows, if not all, in SQL with their columns in braces; beside:
    further tables, in which what these refer to is looked up. layouts: the record layouts it yields
    (catalogue). extract: a part of a table -> normal form. columns, texts: those of integers and of
    texts that it reads of its one table, where several kinds do: one statement then serves them
    all, see :mod:`nsys2prv.conversion.reading`. groups: further command-line names that include it;
    along: names that bring it along, but do not mean it where something is left out or given a
    least duration. open_ended: a range without an end lasts to the end of the trace. lanes: set
    where its rows may overlap on one object though Paraver shows one value at a time: overlapping
    rows of all kinds with the same word get rows of their own. lasting: its rows last; False for
    points in time, and for what follows from other kinds, which take no least duration. on_gpu: its
    rows are work on a GPU; where all such are lacking, or left out, people are told. elsewhere:
    where no report holds any: which rows of other kinds a report has in its place, for people, or
    "". sampled: its rows on a device tell of the device, the same in all reports that have them, so
    one report's are written; False: they tell of the report's own processes. extends: its rows may
    make the trace longer; those of False tell of the profiler, see
    :mod:`nsys2prv.store.corrections`. reads_again: its rows are rows of other kinds too, of which
    it tells something more. provides_launches / needs_launches: fills or asks the index of
    launching calls, see :mod:`nsys2prv.events.launches`. provides_regions / needs_regions: fills
    (where it is selected) or asks the index of NCCL calls, see :mod:`nsys2prv.events.nccl_regions`.
    gathers, derive: facts that it sets aside while reading, and what follows from those of one
    report taken together, see :mod:`nsys2prv.conversion.derive`. on_demand: an option of the
    command line to ask for it by; -t all does not mean it.
    """

    name: str
    title: str
    row: str
    tables: tuple[str, ...]
    layouts: tuple[str, ...]
    extract: Callable[[Extraction, Part], Iterator[Rows | Counters]]
    columns: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    along: tuple[str, ...] = ()
    where: str | Callable[[ReportInfo], str] = ""
    open_ended: bool = False
    lanes: str = ""
    lasting: bool = True
    on_gpu: bool = False
    elsewhere: Callable[[Source], str] | None = None
    sampled: bool = True
    extends: bool = True
    provides_launches: bool = False
    needs_launches: bool = False
    reads_again: bool = False
    provides_regions: bool = False
    needs_regions: bool = False
    gathers: tuple[str, ...] = ()
    derive: Callable[[Mapping[str, pl.DataFrame]], Iterator[Rows]] | None = None
    on_demand: str = ""

    def called(self, name: str) -> bool:
        """True if a command-line name means this kind, by itself or as part of a group."""
        return name in (ALL, self.name, *self.groups)

    def condition(self, info: ReportInfo) -> str:
        """Return the SQL condition on the rows of its tables that it translates in a report, as in
        `where`; "" for all.
        """
        return self.where if isinstance(self.where, str) else self.where(info)
