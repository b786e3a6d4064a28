"""The summary of a conversion, for people: what was written, what is missing, what Nsight Systems
reported as lost; and `out.nsys2prv.json`, which lies beside the trace: of what that was made, how,
and the account of every row that was read, and of every record made of them.

Nothing in that file depends on when, where or by how many processes the trace was written. It holds
nothing of a job's environment. The only paths in it are those of the reports, as they were given;
with `--no-paths` only their names.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from html import escape
from itertools import chain
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import asdict

from nsys2prv._util.errors import ClockNote, Detail
from nsys2prv._util.text import format_count, format_size
from nsys2prv._util.version import __version__
from nsys2prv.clock.maps import ClockMap, Placement
from nsys2prv.conversion.job import (
    Job,
    Ledger,
    RecordBalance,
    collect_notes,
    collect_warnings,
    group_by_name,
    make_ledger,
    sum_accounts,
)
from nsys2prv.conversion.options import Options
from nsys2prv.conversion.timeline import (
    MOST_HOSTS,
    describe_causal_moves,
    describe_clocks,
    describe_hosts,
)
from nsys2prv.events import all_kinds
from nsys2prv.events.catalogue import load_catalogue
from nsys2prv.events.kind import Account, Reason, describe_reason, explain_unread_table, is_routine
from nsys2prv.nsight.info import ReportInfo

#: Layouts named in the short summary, and further lines on what is not as it should be.
MOST_EVENTS, MOST_LINES = 4, 6
#: How tasks are ordered, for people, by what the model calls it.
ORDERS = {
    "MPI ranks": "in the order of their MPI ranks",
    "launcher's environment": "in the order of the launcher's rank numbers",
    "file names": "in the order of the file names, as no report tells a rank",
}
METADATA_ENDING = ".nsys2prv.json"
#: Bytes at each end of a file that its checksum is of: whole reports would take longer to read than
#: to convert.
CHECKED = 1 << 20
#: Reports whose checksums are taken in one go.
TOGETHER = 16
CHECKSUM = (
    "blake2b (16 bytes) of the file's size (8 bytes, little-endian), its first MiB and its last MiB"
)
#: Options that do not change the trace, or are places of the machine.
NOT_TOLD = frozenset(
    {"jobs", "tmp", "quiet", "engine", "scheduler", "metadata", "compress", "without_paths"}
)


class Summary(Struct, dict=True):
    """Summary of a conversion."""

    #: Number of ranks.
    ranks: int
    #: Number of hosts.
    hosts: int
    #: Number of GPUs with work.
    devices: int
    #: Number of rows of the trace.
    threads: int
    #: Length of the trace, ns.
    duration: int
    #: Number of lines of the .prv.
    lines: int
    #: How the reports were put in order.
    order: str
    #: How the clocks of hosts were aligned, in a line or two.
    clock_lines: list[str]
    #: Records written, by layout.
    events: dict[str, int]
    #: Rows dropped, by (kind, key of :class:`nsys2prv.events.kind.Reason`).
    dropped: dict[tuple[str, str], int]
    #: Rows changed, by (kind, key).
    repaired: dict[tuple[str, str], int]
    #: Size of every file, bytes.
    sizes: dict[Path, int]
    #: Records not written, by (layout or kind of lines, key).
    left_out: dict[tuple[str, str], int] = field(default_factory=dict)
    #: Account of all rows and records.
    ledger: Ledger = field(default_factory=Ledger)
    #: Notes; those that are :class:`nsys2prv._util.errors.Detail` need no attention.
    notes: list[str] = field(default_factory=list)
    #: Where each report was placed in time, a line for each.
    placed: list[str] = field(default_factory=list)
    #: How the clock of each host was aligned.
    clocks: list[str] = field(default_factory=list)
    #: What the user should know, a line each.
    warnings: list[str] = field(default_factory=list)
    #: Event types in the trace.
    types: frozenset[int] = frozenset()
    #: Text of the analyses, "" if they were not asked for.
    report: str = ""
    #: What options would make of a large trace, for people.
    smaller: str = ""
    #: CPU seconds by stage, in one line.
    cpu: str = ""
    #: One line for each report that could not be read, with keep_going.
    unread: list[str] = field(default_factory=list)
    #: True if only a part of the job was asked for.
    is_cut: bool = False

    @property
    def trace(self) -> str:
        """The path of the .prv, "" without one."""
        return next((str(path) for path in self.sizes if ".prv" in path.suffixes), "")

    @cached_property
    def views(self) -> dict[str, str]:
        """Views to be opened first, and what each shows in a sentence."""
        from nsys2prv.paraver.cfg.fits import choose_first_views

        return choose_first_views(self.types)

    @classmethod
    def from_job(
        cls,
        job: Job,
        events: Counter[str],
        left_out: Counter[tuple[str, str]],
        *,
        lines: int,
        types: frozenset[int],
        sizes: dict[Path, int],
        smaller: str = "",
    ) -> Summary:
        """Return the summary of a trace. events: records and samples by layout, communication lines
        by kind. left_out: made but not written, by (layout or kind of lines, reason). The others
        are as in the summary.
        """
        timeline, model, kinds = job.timeline, job.model, sum_accounts(job.results)

        def list_counts(name: str) -> dict[tuple[str, str], int]:
            return {
                (kind, reason): count
                for kind, account in kinds.items()
                for reason, count in getattr(account, name).items()
            }

        ledger = make_ledger(kinds, job.results, events, left_out)
        return cls(
            ranks=model.ranks,
            hosts=len(model.tree.nodes),
            devices=model.devices,
            threads=model.tree.threads,
            duration=job.duration,
            lines=lines,
            order=model.ranked,
            clock_lines=[
                *describe_clocks(timeline.record, timeline.placements, len(model.tree.nodes)),
                *describe_causal_moves(timeline.causal),
            ],
            is_cut=job.is_cut,
            events={
                name: count for name, count in events.items() if name in load_catalogue().layouts
            },
            dropped=list_counts("dropped"),
            repaired=list_counts("repaired"),
            left_out=dict(left_out),
            ledger=ledger,
            sizes=sizes,
            types=types,
            smaller=smaller,
            cpu=job.workers.spent.text(),
            unread=job.unread,
            notes=collect_notes(job),
            placed=_describe_placements(job.infos, timeline.placements),
            clocks=describe_hosts(timeline.record, MOST_HOSTS) if timeline.record else [],
            warnings=[
                *collect_warnings(job),
                *(
                    f"{name}: {count:,} rows or records are not accounted for: a bug in nsys2prv, please report it"
                    for name, count in ledger.missing.items()
                ),
            ],
        )

    def __repr__(self) -> str:
        return (
            f"<Summary of {self.trace}: {format_count(self.ranks, 'task')} on {format_count(self.hosts, 'host')}, {self.duration / 1e9:.3f} s, "
            f"{self.lines:,} lines, {format_count(len(self.warnings), 'warning')}; .text() tells all>"
        )

    def _repr_html_(self) -> str:
        """Return the summary for notebooks, with its warnings first."""
        parts = {"warnings": self.warnings, **_make_parts(self, verbose=False)}
        return "".join(
            f"<b>{escape(title)}</b><ul style='list-style: none'>{''.join(f'<li>{_format_html_line(line)}</li>' for line in lines)}</ul>"
            for title, lines in parts.items()
            if lines
        )

    def text(self, verbose: bool = False) -> str:
        """Return the closing summary for people. verbose: with all events by kind, every note and
        where the time went.
        """
        return "\n".join(
            line
            for title, lines in _make_parts(self, verbose).items()
            for line in (f"{title}:", *(f"  {line}" for line in lines))
        )


def _describe_placements(infos: list[ReportInfo], placements: list[Placement]) -> list[str]:
    earliest = min(placement.map.offset for placement in placements)
    return [
        f"  {info.given}: host {info.host or 'unknown'}, local time 0 at {placement.map.offset - earliest:,} ns "
        f"after the first report's, by {placement.method}"
        for info, placement in zip(infos, placements, strict=True)
    ]


def _format_html_line(line: str) -> str:
    return escape(line.strip()).replace("  ", " &nbsp;")


def _make_parts(summary: Summary, verbose: bool) -> dict[str, list[str]]:
    """Return the lines of each part, by its title."""
    parts = {
        "the job": _describe_job(summary),
        "its clocks": [
            *summary.clock_lines,
            *(note for note in summary.notes if isinstance(note, ClockNote)),
            *(summary.clocks if verbose else []),
        ],
        "what was written": [
            *_describe_files(summary),
            *(_describe_all_events if verbose else _describe_main_events)(summary),
            *_list_notes(summary, verbose),
        ],
        "what to look at now": _describe_next_steps(summary),
    }
    if verbose:
        parts["where the reports were placed, and where the time went"] = [
            *map(str.strip, summary.placed),
            *filter(None, [summary.cpu]),
        ]
    return parts


def _describe_job(summary: Summary) -> list[str]:
    order = f"; tasks {ORDERS.get(summary.order, summary.order)}" if summary.ranks > 1 else ""
    return [
        f"{format_count(summary.ranks, 'task')} on {format_count(summary.hosts, 'host')}, {format_count(summary.devices, 'GPU')}; "
        f"{summary.duration / 1e9:.3f} s{order}"
    ]


def _describe_files(summary: Summary) -> list[str]:
    sizes = [(path, format_size(size)) for path, size in summary.sizes.items()]
    (trace, size), *others = sorted(sizes, key=lambda item: ".prv" not in item[0].suffixes)
    beside = ", ".join(f"{path.name} {size}" for path, size in others)
    return [
        f"{trace}  {size}, {summary.lines:,} lines for {format_count(summary.threads, 'row')}",
        *([f"beside it: {beside}"] if beside else []),
    ]


def _describe_main_events(summary: Summary) -> list[str]:
    counts = (+Counter(summary.events)).most_common()
    more = ""
    if len(counts) > MOST_EVENTS:
        more = f", and {format_count(len(counts) - MOST_EVENTS, 'other kind')} (-v lists all)"
    main = (f"{count:,} {_find_title(name)}" for name, count in counts[:MOST_EVENTS])
    return [", ".join(main) + more]


def _describe_all_events(summary: Summary) -> list[str]:
    layouts = load_catalogue().layouts
    width = max((len(f"{count:,}") for count in summary.events.values()), default=1)
    counts = +Counter(summary.events)
    return [f"{count:>{width},} {layouts[name].title}" for name, count in counts.items()]


def _list_notes(summary: Summary, verbose: bool) -> list[str]:
    """Return notes on what is missing or changed in the trace: those that need attention, or all."""
    notes = [note for note in summary.notes if not isinstance(note, ClockNote)]
    noted = [*((isinstance(note, Detail), note) for note in notes), *_list_reasons(summary)]
    shown = [line for routine, line in noted if verbose or not routine]
    quiet = len(noted) - len(shown)
    if len(shown) > MOST_LINES and not verbose:
        further = len(shown) - MOST_LINES + 1
        shown[MOST_LINES - 1 :] = [f"{format_count(further, 'further note')}: -v lists all"]
    elif quiet:
        shown.append(
            f"{format_count(quiet, 'note')} that {'needs' if quiet == 1 else 'need'} no action: -v lists all"
        )
    return [*shown, *filter(None, [summary.smaller])]


def _list_reasons(summary: Summary) -> Iterator[tuple[bool, str]]:
    """Yield, by kind and reason, whether all is routine and what became of rows and records."""
    for fate, counts in (("left out", summary.dropped), ("changed", summary.repaired)):
        for (kind, reason), count in sorted(counts.items()):
            what = f"{format_count(count, 'row')} of {kind} {fate}"
            yield is_routine(reason), f"{what}: {describe_reason(reason)}"
    for (name, reason), count in sorted(summary.left_out.items()):
        if reason != Reason.IN_OTHER_REPORT:
            what = f"{count:,} {_find_title(name)} left out: {describe_reason(reason)}"
            # Of a cut its note tells it in one line.
            yield summary.is_cut or is_routine(reason), what


def _find_title(name: str) -> str:
    """Return the title of a layout or of a kind of lines, as used within a sentence."""
    layout = load_catalogue().layouts.get(name)
    title = layout.title if layout else load_catalogue().lines[name].label
    return title if title[1:2].isupper() or title[2:3].isupper() else title[:1].lower() + title[1:]


def _describe_next_steps(summary: Summary) -> list[str]:
    width = max(map(len, summary.views), default=0)
    trace = summary.trace or "TRACE"
    views = [f"  {view:<{width}}  {shown}" for view, shown in summary.views.items()]
    opening = f"in Paraver: copy the views with `nsys2prv cfgs views`; open one with `wxparaver {trace} views/VIEW`; to begin with:"
    return [
        *([opening, *views] if views else []),
        "in tables: `nsys2prv report REPORT...` shows what holds the job back; --html FILE writes a web page",
    ]


def make_metadata(
    job: Job,
    inputs: Sequence[dict[str, Any]],
    summary: Summary,
    options: Options,
    clock: str | None,
) -> str:
    """Return the content of the file. inputs: as :func:`describe_inputs` finds them. clock: name of
    the clock file beside the trace, if there is one.
    """
    content = {
        "nsys2prv": __version__,
        "trace": {
            "files": {path.name: size for path, size in summary.sizes.items()},
            "lines": summary.lines,
            "duration_ns": summary.duration,
            "begins_utc_ns": job.timeline.epoch,
            "tasks": summary.ranks,
            "hosts": summary.hosts,
            "gpus": summary.devices,
            "rows": summary.threads,
            "tasks_ordered_by": summary.order,
        },
        # Those that are not what they are by default; of files the names.
        "options": {
            name: told for name, told in _to_plain(options).items() if name not in NOT_TOLD
        },
        "checksum": CHECKSUM,
        "inputs": [
            {
                "name": info.given.name if options.without_paths else str(info.given),
                **files,
                "host": info.host,
                "schema": info.schema,
                "nsys": info.product,
                "clock": {"method": placement.method, **_describe_clock(to_trace)},
            }
            for info, files, placement, to_trace in zip(
                job.infos, inputs, job.timeline.placements, job.clocks, strict=False
            )
        ],
        "clock_file": clock,
        "ledger": {
            "kinds": {
                kind: _describe_account(account) for kind, account in summary.ledger.kinds.items()
            },
            "records": _describe_balances(summary.ledger.records),
            "lines": _describe_balances(summary.ledger.lines),
            "tables": summary.ledger.tables,
            "tables_not_read": _list_not_read(job),
        },
        "repaired": group_by_name(summary.repaired),
        "reasons": _describe_reasons(summary),
        "notes": _describe_notes(job, summary.notes, options),
        "warnings": _describe_notes(job, summary.warnings, options),
    }
    return json.dumps(content, indent=1, ensure_ascii=True) + "\n"


def describe_inputs(job: Job) -> list[dict[str, Any]]:
    """Return for each report what :func:`checksum_task` finds."""
    paths = [info.given for info in job.infos]
    tasks = [paths[first : first + TOGETHER] for first in range(0, len(paths), TOGETHER)]
    return list(chain.from_iterable(job.workers.run(checksum_task, tasks)))


def checksum_task(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Return sizes and checksums of some reports."""
    return [_describe_file(path) for path in paths]


def compute_checksum(path: Path) -> str:
    """Return the checksum that :data:`CHECKSUM` names, in hexadecimal digits. SQLite counts changes
    in the first bytes of a database.
    """
    size = path.stat().st_size
    digest = hashlib.blake2b(size.to_bytes(8, "little"), digest_size=16)
    with path.open("rb") as file:
        digest.update(file.read(CHECKED))
        file.seek(max(0, size - CHECKED))
        digest.update(file.read(CHECKED))
    return digest.hexdigest()


def _describe_notes(job: Job, lines: Sequence[str], options: Options) -> list[str]:
    """Return the notes and warnings, without the folders of the reports if these are not wanted."""
    notes = list(map(str, lines))
    if options.without_paths:
        folders = {f"{info.given.parent}/" for info in job.infos}
        for folder in sorted(folders, key=len, reverse=True):
            notes = [line.replace(folder, "") for line in notes]
    return notes


def _to_plain(value: object) -> Any:
    if isinstance(value, Path):
        return value.name
    if isinstance(value, Struct):
        return {
            name: _to_plain(getattr(value, name))
            for name in value.__struct_fields__
            if getattr(value, name) != getattr(type(value)(), name)
        }
    if isinstance(value, Mapping):
        return {str(key): _to_plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_to_plain(item) for item in value]
    if isinstance(value, str) and "/" in value and value.endswith((".yaml", ".yml")):
        # A clock file is given in place of a method.
        return Path(value).name
    return value


def _describe_file(path: Path) -> dict[str, Any]:
    """Return size and checksum of a file, or of the files of a folder; nothing for one that stayed
    where a store was made.
    """
    if not path.exists():
        return {}
    if path.is_file():
        return {"bytes": path.stat().st_size, "checksum": compute_checksum(path)}
    files = sorted(member for member in path.iterdir() if member.is_file())
    return {
        "bytes": sum(member.stat().st_size for member in files),
        "checksums": {member.name: compute_checksum(member) for member in files},
    }


def _describe_clock(clock: ClockMap) -> dict[str, Any]:
    """Return the report's clock map: trace time = local + offset + drift * (local - pivot), then
    moved by lines between the shifts [(time, ns)], if any.
    """
    description: dict[str, Any] = {
        "offset_ns": int(clock.offset),
        "drift": float(clock.drift),
        "pivot_ns": int(clock.pivot),
    }
    if clock.shifts is not None:
        times, shifts = clock.shifts.times.tolist(), clock.shifts.shifts.tolist()
        description["shifts"] = [[time, by] for time, by in zip(times, shifts, strict=True)]
    return description


def _describe_reasons(summary: Summary) -> dict[str, str]:
    """Return the text of every reason that the account names."""
    ledger = summary.ledger
    accounts, balances = ledger.kinds.values(), (*ledger.records.values(), *ledger.lines.values())
    keys = {key for _, key in summary.repaired}.union(
        *((*account.dropped, *account.skipped, *account.synthesized) for account in accounts),
        *(balance.left_out for balance in balances),
        *ledger.tables.values(),
    )
    return {key: describe_reason(key) for key in sorted(keys - {"rows"})}


def _describe_account(account: Account) -> dict[str, Any]:
    reasons = {
        name: dict(sorted(getattr(account, name).items()))
        for name in ("dropped", "skipped", "synthesized")
    }
    return {"rows": account.rows, "records": account.records, **reasons, "missing": account.missing}


def _describe_balances(balances: Mapping[str, RecordBalance]) -> dict[str, dict[str, Any]]:
    return {
        name: {**asdict(balance), "missing": balance.missing} for name, balance in balances.items()
    }


def _list_not_read(job: Job) -> dict[str, dict[str, Any]]:
    """Return the tables with rows that none of the selected kinds reads: how many rows at most, and
    why.
    """
    read, translated = (
        {table for kind in kinds for table in (*kind.tables, *kind.reads.lookup_tables)}
        for kinds in (job.selection.kinds, all_kinds())
    )
    rows: Counter[str] = Counter()
    for info in job.infos:
        for table, part in info.parts.items():
            if table not in read and not table.startswith("ENUM_"):
                rows[table] += part.last - part.first + 1
    return {
        table: {
            "rows": count,
            "why": "not asked for" if table in translated else explain_unread_table(table),
        }
        for table, count in sorted(rows.items())
    }
