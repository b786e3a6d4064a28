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
    """Of one kind of event. rows: that were read; records: made of them. dropped: rows that are
    lost, by reason; aside: rows that are no record by design; beyond: records that no row of its
    own stands for. repaired: rows that were changed, whatever became of them.

    rows + beyond = records + dropped + aside.
    """

    rows: int = 0
    records: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    aside: Counter[str] = field(default_factory=Counter)
    beyond: Counter[str] = field(default_factory=Counter)
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
    """Communication records: sent by an object at a time, received by an object at a time (local
    ns), with a size.

    receiver, receive and until: object, begin and end of the row that the line leads to. tag: of
    each, for kinds without one in the catalogue.
    """

    kind: str
    send: np.ndarray
    sender: np.ndarray
    receive: np.ndarray
    receiver: np.ndarray
    until: np.ndarray
    size: np.ndarray
    tag: np.ndarray | None = None


@dataclass
class Rows:
    """The normal form: events of one layout.

    begin, end: local ns (end may be NULL or OPEN where the layout's kind allows it; it says nothing
    where the layout holds). object: index into the extraction's objects. owner: ranges of one owner
    on one object belong together; those of several get rows of their own where they cross (derived
    events only). columns: one int64 column per field of the layout: a number (ABSENT where an
    optional one is lacking), a value of a closed set, or an index into the extraction's names of
    that set. domain: index into the extraction's NVTX domains, for layouts whose event types depend
    on it. chosen: indices of the rows that are meant, ascending; None for all. All columns have all
    rows, so that those in question are copied but once, when they are stored.
    """

    layout: str
    begin: np.ndarray
    end: np.ndarray
    object: np.ndarray
    columns: dict[str, np.ndarray]
    domain: np.ndarray | None = None
    lines: Lines | None = None
    owner: np.ndarray | None = None
    chosen: np.ndarray | None = None

    def where(self, keep: np.ndarray) -> Rows:
        """The rows for which `keep` is true, with all lines."""
        return self if keep.all() else replace(self, chosen=np.flatnonzero(keep))


@dataclass
class Counters:
    """The normal form of numbers sampled over time on one object: at each time one record with all
    of them.

    A value holds until the object's next record with that number. time: local ns, not more than
    once the same. object: index into the extraction's objects. metrics: what the columns of
    `values` (int64) are; ABSENT where an instant lacks one. Records of equal time and object, from
    whatever part of the export, are joined when the trace is written.
    """

    layout: str
    time: np.ndarray
    object: int
    metrics: tuple[Metric, ...]
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
        """Whether a command-line name means it, by itself or as one of a group."""
        return name in (ALL, self.name, *self.groups)

    def condition(self, info: ReportInfo) -> str:
        """Which rows of its tables it translates in a report, as in `where`; "" for all."""
        return self.where if isinstance(self.where, str) else self.where(info)
