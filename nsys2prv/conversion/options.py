"""Declare the options of a conversion and of a cut, as users write them, and the plans made from
them: checked options in terms of the catalogue, before any report is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from fnmatch import fnmatchcase
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from nsys2prv._util import workers
from nsys2prv._util.errors import Nsys2prvError, UsageError
from nsys2prv._util.files import load_shipped_file, read_given
from nsys2prv._util.native import require_core
from nsys2prv._util.text import UNITS, list_some
from nsys2prv.clock.maps import ClockRecord, read_record
from nsys2prv.events import (
    Selection,
    all_kinds,
    describe_unknown_kind,
    list_kind_names,
    parse_least_durations,
    select_kinds,
)
from nsys2prv.events.catalogue import load_catalogue
from nsys2prv.events.extraction import ReadingSettings
from nsys2prv.events.host import check_callstack
from nsys2prv.events.kind import ALL, EventKind
from nsys2prv.events.name_rules import load_class_rules, load_nvtx_rules
from nsys2prv.export.info import ReportInfo
from nsys2prv.match import MPI, NCCL, Relation, all_relations

#: Values of --align other than a clock file: all observations, one model's observations, UTC alone, local
#: times unchanged.
AUTO, UTC, NONE = "auto", "utc", "none"
METHODS = (AUTO, UTC, MPI, NCCL, NONE)
METHODS_WITH_OBSERVATIONS = (AUTO, MPI, NCCL)
_MOMENT = rf"(\d+(?:\.\d+)?)({'|'.join(UNITS)}|%|)"
_SPAN = re.compile(rf"\s*(?:{_MOMENT})?\s*:\s*(?:{_MOMENT})?\s*")
_ITERATIONS = re.compile(r"(.+):(\d+)(?:-(\d+))?", re.DOTALL)
#: Ranks have no more digits.
_RANKS = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
#: The kinds with names of regions, read only for these unless selected otherwise.
NAMED_RANGES = ("nvtx_pushpop_trace", "nvtx_startend_trace")
#: Values of --lines: messages and collectives, also launches with their fields, nothing.
MESSAGES, LAUNCHES, NO_LINES = "messages", "launches", "none"
#: Maximum number of ranks or hosts that are listed if an option names an unknown one.
MOST_LISTED = 8


_MISTAKES: dict[str, str] = load_shipped_file(__package__, "mistakes.yaml")


def make_error(
    mistake: str, error: type[Nsys2prvError] = UsageError, /, **words: object
) -> Nsys2prvError:
    """Return the error for a mistake listed in ``mistakes.yaml``. mistake: its key. words: values
    for the placeholders in the message.
    """
    return error(_MISTAKES[mistake].format(**words))


class CutOptions(Struct, frozen=True):
    """Options that choose a part of a job to write. By default, nothing is excluded."""

    #: FROM:TO of trace time, in seconds, with a unit (ns, us, ms, s) or in % of the trace; either
    #: end may be empty.
    time: str = ""
    #: Glob pattern of NVTX range names: from the first begin to the last end of any. `name:n` or
    #: `name:a-b` takes the n-th on each thread, from 1.
    region: str = ""
    #: Keep the times of the whole trace instead of starting at 0.
    keep_time: bool = False
    #: Ranks to keep, as numbers and ranges; all if empty.
    ranks: tuple[str, ...] = ()
    #: Hosts to keep, as glob patterns; all if empty.
    hosts: tuple[str, ...] = ()
    #: Rows to keep, by the words of :meth:`ObjectModel.list_row_words`, as glob patterns; all if empty.
    keep_rows: tuple[str, ...] = ()
    #: Keep the attributes of events.
    arguments: bool = True
    #: Kind of event, by the names that -t takes -> the fields that its events keep.
    fields: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: Communication lines to keep: MESSAGES (of a part in time LAUNCHES), LAUNCHES or NO_LINES.
    lines: str = MESSAGES
    #: Kind of event -> greatest number of samples per second of each metric.
    rates: Mapping[str, int] = field(default_factory=dict)

    @property
    def draws_launches(self) -> bool:
        """Return True if the lines from launching calls to their work are written: on request, and
        for a time range.
        """
        is_part = bool(self.time or self.region)
        return self.lines == LAUNCHES or (self.lines == MESSAGES and is_part)


class Moment(Struct, frozen=True):
    """A time of the trace as given in options: in ns, or as a share of the trace's duration."""

    #: ns, or a share.
    number: Decimal
    #: True for a share.
    ratio: bool = False

    def resolve(self, duration: int) -> int:
        """Return the time in ns for a trace of this duration (ns)."""
        return int(self.number * duration) if self.ratio else int(self.number)


class Region(Struct, frozen=True):
    """NVTX ranges with matching names, or some of their occurrences on each thread."""

    #: Glob pattern of names.
    pattern: str
    #: Number of the first range on each thread, from 1.
    first: int = 1
    #: Number of the last one (included); None for all that follow.
    last: int | None = None


def parse_span(text: str) -> tuple[Moment | None, Moment | None]:
    """Parse a time range FROM:TO. Return its two ends; None for an end that is not given. Raise
    UsageError for invalid text.
    """
    if not text:
        return None, None
    match = _SPAN.fullmatch(text)
    if match is None or not (match[1] or match[3]):
        raise make_error("time", text=text)
    begin, end = _make_moment(match[1], match[2], text), _make_moment(match[3], match[4], text)
    if begin and end and begin.ratio == end.ratio and end.number < begin.number:
        raise make_error("time_backwards", text=text)
    return begin, end


def _make_moment(digits: str | None, unit: str, whole: str) -> Moment | None:
    if digits is None:
        return None
    number = Decimal(digits)
    if unit == "%":
        if number > 100:
            raise make_error("time_beyond_end", text=whole)
        return Moment(number / 100, ratio=True)
    ns = number * UNITS[unit or "s"]
    if ns >= 1 << 61:
        raise make_error("time_too_late", text=whole)
    return Moment(ns)


def _parse_region(text: str) -> Region | None:
    """Return the selected ranges; None for an empty text. Raise UsageError for invalid text."""
    if not text:
        return None
    match = _ITERATIONS.fullmatch(text)
    if match is None:
        return Region(text)
    first = int(match[2])
    last = int(match[3]) if match[3] else first
    if not 1 <= first <= last:
        raise make_error("region_iterations", text=text, name=match[1])
    return Region(match[1], first, last)


def _parse_ranks(words: Iterable[str]) -> dict[str, range]:
    """Return word -> the ranks that it names. Raise UsageError for invalid words."""
    ranks = {}
    for word in words:
        match = _RANKS.fullmatch(word)
        if match is None:
            raise make_error("ranks", word=word)
        ranks[word] = range(int(match[1]), int(match[2] or match[1]) + 1)
        if not ranks[word]:
            raise make_error("ranks_empty", word=word)
    return ranks


def parse_method(method: str) -> str | ClockRecord:
    """Return the method that --align names, or the corrections in the clock file that it names.
    Raise Nsys2prvError, in one line, for anything else.
    """
    if method in METHODS:
        return method
    try:
        return read_record(read_given(Path(method)).decode("utf-8"), method)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not text"
        words = {"method": method, "methods": ", ".join(METHODS), "why": why}
        raise make_error("align", Nsys2prvError, **words) from None


class CutPlan(Struct, frozen=True):
    """The checked options of a cut."""

    #: The options as given.
    options: CutOptions = field(default_factory=CutOptions)
    #: Begin of the span of time; None for the trace's own.
    first: Moment | None = None
    #: End of the span of time; None for the trace's own.
    last: Moment | None = None
    #: NVTX ranges that determine the span.
    region: Region | None = None
    #: Layouts and kinds of lines that are left out.
    away: frozenset[str] = frozenset()
    #: Layout of counters -> greatest number of samples per second.
    rates: dict[str, int] = field(default_factory=dict)
    #: Ranks to keep, for each of the options'.
    ranks: dict[str, range] = field(default_factory=dict)
    #: Layout -> bits of the fields that are written; kind of lines -> 0 if none is written.
    field_masks: dict[str, int] = field(default_factory=dict)

    @classmethod
    def from_options(cls, cut: CutOptions, launches: bool = False) -> CutPlan:
        """Check the options of a cut and return a plan. launches: True if the trace's format has
        lines from launches by default. Raise UsageError for invalid options.
        """
        first, last = parse_span(cut.time)
        return cls(
            cut,
            first,
            last,
            region=_parse_region(cut.region),
            away=frozenset(load_catalogue().lines) if cut.lines == NO_LINES else frozenset(),
            rates=_find_rates(cut.rates),
            ranks=_parse_ranks(cut.ranks),
            field_masks=_choose_fields(
                cut, cut.draws_launches or (launches and cut.lines == MESSAGES)
            ),
        )

    @property
    def changes_runs(self) -> bool:
        """Return True if the stored records have to be rewritten, apart from the choice of rows and
        reports.
        """
        return bool(self.options.time or self.region or self.away or self.rates)


def add_regions(selection: Selection, plan: CutPlan) -> tuple[Selection, CutPlan]:
    """Return the event kinds to read, and the plan of the cut. NVTX ranges that are only needed to
    find a region are read but not written.
    """
    if not plan.region:
        return selection, plan
    kinds = tuple(
        kind for kind in all_kinds() if kind in selection.kinds or kind.name in NAMED_RANGES
    )
    added, asked = (
        {layout for kind in some for layout in kind.layouts} for some in (kinds, selection.kinds)
    )
    return replace(selection, kinds=kinds), replace(plan, away=plan.away | (added - asked))


def find_layouts(name: str) -> list[str]:
    """Return the layouts (types of records) of the event kinds and relations with this name; empty
    for an unknown name.
    """
    meant: list[EventKind | Relation] = [kind for kind in all_kinds() if kind.is_called(name)]
    meant += [relation for relation in all_relations() if name in (relation.name, "all")]
    return list(dict.fromkeys(layout for source in meant for layout in source.layouts))


def _choose_fields(cut: CutOptions, launches: bool) -> dict[str, int]:
    """Return layout -> bits of the fields to write, and kind of lines -> 1 if they are written.
    launches: include launch lines and their fields.
    """
    layouts = load_catalogue().layouts
    masks = {
        name: int(launches or not one.of_launch) for name, one in load_catalogue().lines.items()
    }
    masks |= {
        name: one.usual_mask | one.launch_mask * launches if cut.arguments else 1
        for name, one in layouts.items()
    }
    for kind, names in cut.fields.items():
        known = find_layouts(kind)
        chosen = [layouts[name] for name in known if layouts[name].fields]
        if not chosen:
            option = f"--args {kind}={','.join(names)}"
            if known or kind in list_kind_names():
                raise make_error("args_none", option=option)
            raise make_error("args_unknown", option=option, why=describe_unknown_kind(kind))
        field_names = dict.fromkeys(field.name for layout in chosen for field in layout.fields[1:])
        for name in names:
            if name not in field_names and name != ALL:
                known_fields = ", ".join((*field_names, ALL))
                raise make_error("args_field", kind=kind, name=name, known=known_fields)
        for layout in chosen:
            masks[layout.name] = sum(
                1 << bit
                for bit, field in enumerate(layout.fields)
                if not bit or field.name in names
            ) | (layout.every_mask if ALL in names else 0)
    return masks


def _choose_stored_fields(plan: CutPlan, options: Options, selection: Selection) -> dict[str, int]:
    """Return layout -> bits of the fields to store, and kind of lines -> whether to store them:
    those to write, and those that any stage reads.
    """
    layouts, masks = load_catalogue().layouts, plan.field_masks
    needed = dict.fromkeys(masks, 0)
    if options.report or any(kind.opt_in and not kind.tables for kind in selection.kinds):
        needed = dict.fromkeys(masks, 1) | dict.fromkeys(layouts, -1)
    elif options.states:
        needed |= {name: layout.state_mask for name, layout in layouts.items()}
    if plan.region:
        needed |= {name: -1 for kind in NAMED_RANGES for name in find_layouts(kind)}
    return {name: mask | needed[name] for name, mask in masks.items()}


def _find_rates(rate_of_kind: Mapping[str, int]) -> dict[str, int]:
    rates: dict[str, int] = {}
    for kind, rate in rate_of_kind.items():
        layouts_found = find_sampled_layouts(find_layouts(kind))
        if not layouts_found:
            sources: tuple[EventKind | Relation, ...] = (*all_kinds(), *all_relations())
            sampled = [source.name for source in sources if find_sampled_layouts(source.layouts)]
            raise make_error("sample_kind", kind=kind, rate=rate, known=", ".join(sampled))
        if not 1 <= rate <= 1_000_000_000:
            raise make_error("sample_rate", kind=kind, rate=rate)
        rates.update({name: min(rate, rates.get(name, rate)) for name in layouts_found})
    return rates


def find_sampled_layouts(layouts: Iterable[str]) -> list[str]:
    """Return the layouts (types of records) that contain samples."""
    return [name for name in layouts if not load_catalogue().layouts[name].fields]


def choose_reports(infos: Sequence[ReportInfo], plan: CutPlan) -> list[int]:
    """Return the numbers of the reports from the requested hosts. Raise Nsys2prvError if a host has
    no report.
    """
    hosts = [info.host or "unknown-host" for info in infos]
    chosen = set() if plan.options.hosts else set(range(len(infos)))
    for pattern in plan.options.hosts:
        matching = {at for at, host in enumerate(hosts) if fnmatchcase(host, pattern)}
        if not matching:
            known_hosts = list_some(sorted(set(hosts)), MOST_LISTED)
            raise make_error("hosts", Nsys2prvError, pattern=pattern, known=known_hosts)
        chosen |= matching
    return sorted(chosen)


class Options(Struct, frozen=True):
    """Options of a conversion, with the names of the command line, which `nsys2prv help` explains.
    Defaults for a part of the job are in :class:`CutOptions`.

    kinds: values of -t; all kinds if empty. demanded: on-demand kinds, in addition to the others.
    full_kernel_names: --kernel-names full. min_duration: event kind -> ns. without_paths:
    --no-paths. mesh: selects the kind parallel_groups. metadata: False for --no-metadata. report:
    add the findings to the summary's `report`. keep_going: list unreadable reports in the summary's
    `unread`.

    jobs: 0 for one per CPU, the default of the command line. A script with more than one needs the
    usual `if __name__ == "__main__":`. quiet: show no progress.
    """

    kinds: tuple[str, ...] = ()
    compress: bool = False
    full_kernel_names: bool = False
    jobs: int = 1
    tmp: Path | None = None
    quiet: bool = True
    min_duration: Mapping[str, int] = field(default_factory=dict)
    kernel_rules: Path | None = None
    align: str = AUTO
    demanded: tuple[str, ...] = ()
    callstack: int = 1
    nvtx_rules: str | Path | None = None
    states: bool = False
    cut: CutOptions = field(default_factory=CutOptions)
    metadata: bool = True
    engine: str = workers.DEFAULT_ENGINE
    scheduler: str | None = None
    report: bool = False
    keep_going: bool = False
    without_paths: bool = False
    anonymous: bool = False
    mesh: str = ""


#: The default options.
DEFAULTS = Options()


def choose_options(options: Options | None, fields: Mapping[str, object]) -> Options:
    """Return the options (None: the defaults), with some fields replaced. Raise UsageError for an
    unknown field.
    """
    if unknown := set(fields).difference(Options.__struct_fields__):
        known = ", ".join(Options.__struct_fields__)
        raise make_error("unknown_option", unknown=", ".join(sorted(unknown)), known=known)
    return replace(options or DEFAULTS, **fields)


class Plan(Struct, frozen=True):
    """Checked options: what to read and how to align it. :meth:`from_options` makes a plan, and
    raises errors before any file is changed.
    """

    #: Kinds of events to read.
    selection: Selection
    #: Settings of reading.
    settings: ReadingSettings
    #: The method of clock alignment.
    method: str | ClockRecord
    #: Parts to leave out.
    cut: CutPlan
    #: The options as given.
    options: Options

    @property
    def observes_clocks(self) -> bool:
        """Return True if host clocks are aligned by observations."""
        return self.method in METHODS_WITH_OBSERVATIONS

    @classmethod
    def from_options(cls, options: Options, launches: bool = False) -> Plan:
        """Check the options and return a plan. launches: True if the trace's format has lines from
        launches by default.

        Raise UsageError for invalid options. Raise Nsys2prvError for an unreadable file of rules or
        clocks, or if an analysis or states need the missing compiled core.
        """
        if options.report:
            require_core("an analysis")
            if options.cut.keep_rows:
                raise make_error("keep_rows_report")
        if options.states:
            require_core("--states")
        kinds = options.kinds.split(",") if isinstance(options.kinds, str) else options.kinds
        selection, cut = add_regions(
            select_kinds(kinds, options.demanded + ("parallel_groups",) * bool(options.mesh)),
            CutPlan.from_options(options.cut, launches),
        )
        settings = ReadingSettings(
            min_durations=parse_least_durations(options.min_duration),
            kernel_rules=load_class_rules(options.kernel_rules),
            nvtx_rules=load_nvtx_rules(options.nvtx_rules),
            callstack=check_callstack(options.callstack),
            stacks=options.report,
            field_masks=_choose_stored_fields(cut, options, selection),
        )
        return cls(selection, settings, parse_method(options.align), cut, options)
