"""What a conversion did, for people."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from nsys2prv.catalogue import catalogue
from nsys2prv.clock.placement import UNPLACED
from nsys2prv.sizes import plural, some
from nsys2prv.telling import absent
from nsys2prv.telling.clock_summary import clock_lines
from nsys2prv.telling.clock_text import MOST, causal_lines, table
from nsys2prv.telling.closing import closing_html, closing_text
from nsys2prv.telling.diagnostics_text import lost, said
from nsys2prv.telling.ledger import Ledger, accounts, ledger
from nsys2prv.telling.loading import Load

if TYPE_CHECKING:
    from nsys2prv.clock.placement import Placement
    from nsys2prv.job import Job
    from nsys2prv.reading.extracted import Extracted
    from nsys2prv.report.info import ReportInfo
    from nsys2prv.selection import Selection


#: Reports that begin further apart than this (ns: one day) are hardly of one job.
FAR_APART = 86_400 * 1_000_000_000
#: Paraver keeps times as doubles, exact up to this (ns).
EXACT_TIMES = 2**53


@dataclass(frozen=True)
class Written:
    """What the files of a trace hold. lines: of the .prv. events: records and sampled numbers by layout, lines by kind; left_out: those
    that were made and are not written, by (layout or kind of lines, reason). types: event types. load: what Paraver has to open. sizes:
    bytes of every file."""

    lines: int
    events: Counter[str]
    left_out: Counter[tuple[str, str]]
    types: frozenset[int]
    load: Load
    sizes: dict[Path, int]


@dataclass
class Summary:
    """clock_lines: how the clocks of hosts were brought together, in a line or two; clocks: the same for each host. is_cut: whether only
    a part of the job was wanted. notes: what was noticed; those that are :class:`nsys2prv.notes.Detail` ask nobody to do anything.
    events: written, by layout. dropped, repaired: rows by (kind, reason). left_out: records by (layout or kind of lines, reason).
    ledger: what became of all rows and records. sizes: bytes of every file. duration in ns. types: event types in the trace. report: of
    the analyses, "" where they were not asked for. load: what Paraver has to open. cpu: seconds by stage, in one line. unread: what is
    wrong with reports that could not be read, with keep_going."""

    ranks: int
    hosts: int
    devices: int
    threads: int
    duration: int
    lines: int
    order: str
    clock_lines: list[str]
    events: dict[str, int]
    dropped: dict[tuple[str, str], int]
    repaired: dict[tuple[str, str], int]
    sizes: dict[Path, int]
    left_out: dict[tuple[str, str], int] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)
    notes: list[str] = field(default_factory=list)
    placed: list[str] = field(default_factory=list)
    clocks: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    types: frozenset[int] = frozenset()
    report: str = ""
    load: Load = field(default_factory=Load)
    cpu: str = ""
    unread: list[str] = field(default_factory=list)
    is_cut: bool = False

    @cached_property
    def views(self) -> dict[str, str]:
        """Views to be opened first, and what each shows in a sentence."""
        from nsys2prv.views import first_views, shown_by

        return {view: shown_by(view) for view in first_views(self.types)}

    @property
    def load_lines(self) -> list[str]:
        """What Paraver needs to open the trace, where that is worth telling."""
        return list(filter(None, [self.load.text()]))

    @classmethod
    def of(cls, job: Job, written: Written) -> Summary:
        infos, placed, results, model = job.infos, job.placed, job.results, job.model
        kinds = accounts(results)
        balance = ledger(kinds, results, written.events, written.left_out)
        dropped, repaired = ({(kind, reason): count for kind, account in kinds.items()
                              for reason, count in getattr(account, name).items()} for name in ("dropped", "repaired"))
        placements = placed.placements
        return cls(
            ranks=model.ranks, hosts=len(model.tree.nodes), devices=model.devices, threads=model.tree.threads,
            duration=job.duration, lines=written.lines, order=model.ranked,
            clock_lines=[*clock_lines(placed.record, placements, len(model.tree.nodes)), *causal_lines(placed.causal)], is_cut=job.is_cut,
            events={name: count for name, count in written.events.items() if name in catalogue().layouts}, dropped=dropped,
            repaired=repaired, left_out=dict(written.left_out), ledger=balance, sizes=written.sizes, types=written.types,
            load=written.load, cpu=job.workers.spent.text(), unread=job.unread,
            notes=[*(note for result in results for note in result.notes), *said(infos), *absent.unasked(infos, job.selection), *job.notes],
            placed=_placed(infos, placements),
            clocks=table(placed.record, MOST) if placed.record else [],
            warnings=[*job.warnings, *lost(infos), *placed.warnings, *_warnings(infos, placements, job.selection, results),
                      *_too_long(job.duration), *(f"{name}: {count:,} rows or records are not accounted for: a mistake of nsys2prv's"
                                                  for name, count in balance.missing.items())])

    def details(self) -> str:
        """Where each report was placed, and where the time went."""
        return "\n".join([*self.placed, *([f"  {self.cpu}"] if self.cpu else [])])

    def __repr__(self) -> str:
        trace = next((str(path) for path in self.sizes if ".prv" in path.suffixes), "")
        return (f"<Summary of {trace}: {plural(self.ranks, 'task')} on {plural(self.hosts, 'host')}, {self.duration / 1e9:.3f} s, "
                f"{self.lines:,} lines, {plural(len(self.warnings), 'warning')}; .text() tells all>")

    def _repr_html_(self) -> str:
        return closing_html(self)

    def text(self, verbose: bool = False) -> str:
        """The closing summary; verbose: with everything that was noticed."""
        return closing_text(self, verbose)


def _placed(infos: list[ReportInfo], placements: list[Placement]) -> list[str]:
    earliest = min(placement.map.offset for placement in placements)
    return [f"  {info.given}: host {info.host or 'unknown'}, local time 0 at {placement.map.offset - earliest:,} ns "
            f"after the first report's, by {placement.method}" for info, placement in zip(infos, placements, strict=True)]


def _warnings(infos: list[ReportInfo], placements: list[Placement], selection: Selection, results: list[Extracted]) -> list[str]:
    warnings = absent.kinds(infos, selection, results)
    unplaced = [info.name for info, placement in zip(infos, placements, strict=True) if placement.method == UNPLACED]
    if unplaced and len(infos) > 1:
        warnings.append(f"{some(unplaced)}: no clock in the report; placed at the start of the others")
    placed = [placement.map.offset for info, placement in zip(infos, placements, strict=True)
              if placement.method != UNPLACED and not info.absolute]
    if placed and max(placed) - min(placed) > FAR_APART:
        warnings.append(f"the reports begin up to {(max(placed) - min(placed)) / 86_400e9:.1f} days apart: are they of one job?")
    hidden = sorted({result.report for result in results if result.events.get("cuda_graph")})
    if hidden:
        warnings.append(f"{some([infos[index].name for index in hidden])}: CUDA graphs were traced as a whole, so the kernels inside "
                        "them are not in the report; profile with --cuda-graph-trace=node to see them")
    if idle := absent.idle(infos, selection):
        warnings.append(f"{some(idle)}: no work on any GPU")
    return warnings


def _too_long(duration: int) -> list[str]:
    if duration <= EXACT_TIMES:
        return []
    return [f"the trace spans {duration / 86_400e9:,.0f} days; beyond {EXACT_TIMES / 86_400e9:.0f} Paraver cannot tell nanoseconds apart"]
