"""Make the metadata of a trace, `out.nsys2prv.json`: inputs, options, clocks, and an account of
every row and record, written or left out and why.

In: a job, its summary and options. Out: the text of the file. It does not depend on when, where or
by how many processes the trace was written, and holds nothing of a job's environment. Its only
paths are those of the reports as they were given; with `--no-paths` only their names.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field, to_builtins
from msgspec.structs import asdict, replace

from nsys2prv._util import __version__
from nsys2prv.conversion.job import Job, sum_counters
from nsys2prv.conversion.options import DEFAULTS, Options
from nsys2prv.events import all_kinds
from nsys2prv.events.kind import Account, Reason, describe_reason, explain_unread_table

if TYPE_CHECKING:
    from nsys2prv.conversion.summary import Summary

#: Ending of the file.
ENDING = ".nsys2prv.json"
#: Bytes at each end of a file that its checksum is of: whole reports would take longer to read than
#: to convert.
CHECKED_BYTES = 1 << 20
#: How the checksums are made, for readers of the file.
CHECKSUM = (
    "blake2b (16 bytes) of the file's size (8 bytes, little-endian), its first MiB and its last MiB"
)
#: Options that do not change the trace, or are places of the machine.
UNRECORDED = frozenset(
    {"jobs", "tmp", "quiet", "engine", "scheduler", "metadata", "compress", "without_paths"}
)


class RecordBalance(Struct):
    """Balance of the records or samples of a layout, or of a kind of lines: made = written +
    left_out.
    """

    #: Number that was made.
    made: int = 0
    #: Number that is in the trace.
    written: int = 0
    #: Reason -> number.
    left_out: dict[str, int] = field(default_factory=dict)

    @property
    def missing(self) -> int:
        """Return the number of records that nothing accounts for: 0."""
        return self.made - self.written - sum(self.left_out.values())


class Ledger(Struct):
    """Accounts of all rows and records of a job."""

    #: By kind of event, or relation.
    kinds: dict[str, Account] = field(default_factory=dict)
    #: By layout.
    records: dict[str, RecordBalance] = field(default_factory=dict)
    #: By kind of line.
    lines: dict[str, RecordBalance] = field(default_factory=dict)
    #: Tables whose rows are chosen by conditions -> number of rows, and of those that no kind chose.
    tables: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def missing(self) -> dict[str, int]:
        """Return what does not balance, by kind, layout or kind of line: empty unless something is
        wrong.
        """
        accounts = [*self.kinds.items(), *self.records.items(), *self.lines.items()]
        return {name: account.missing for name, account in accounts if account.missing}

    @classmethod
    def from_job(
        cls, job: Job, written: Mapping[str, int], left_out: Mapping[tuple[str, str], int]
    ) -> Ledger:
        """Return the account of a job. written: records by layout, lines by kind. left_out: by
        (layout or kind of lines, reason).
        """
        reasons: dict[str, dict[str, int]] = defaultdict(dict)
        for (name, reason), count in sorted(left_out.items()):
            if count:
                reasons[name][reason] = count
        kinds: dict[str, Account] = defaultdict(Account)
        for kind, account in (item for one in job.results for item in one.accounts.items()):
            if account.rows or account.synthesized:
                kinds[kind] += account
        events, lines, tables, taken = (
            sum_counters(getattr(result, name) for result in job.results)
            for name in ("events", "lines", "tables", "of_table")
        )
        for (name, reason), count in sum_counters(one.left_out for one in job.results).items():
            # These were taken off the events.
            events[name] += count * (reason == Reason.IN_OTHER_REPORT)
        records_balance, lines_balance = (
            {
                name: RecordBalance(count, written.get(name, 0), reasons[name])
                for name, count in sorted(made.items())
            }
            for made in (+events, lines)
        )
        rest = {
            table: {"rows": rows, Reason.NOT_SELECTED: rows - taken[table]}
            for table, rows in sorted(tables.items())
        }
        return cls(dict(sorted(kinds.items())), records_balance, lines_balance, rest)


def list_reasons(counts: Mapping[str, Mapping[str, int]]) -> dict[tuple[str, str], int]:
    """Return the counts, by (kind or layout, reason)."""
    return {
        (name, reason): count
        for name, reasons in counts.items()
        for reason, count in sorted(reasons.items())
        if count
    }


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
    ledger = summary.ledger
    content = {
        "nsys2prv": __version__,
        "trace": {
            "files": {path.name: size for path, size in summary.sizes.items()},
            "lines": summary.lines,
            "duration_ns": summary.duration,
            "begins_utc_ns": job.epoch,
            "tasks": summary.ranks,
            "hosts": summary.hosts,
            "gpus": summary.devices,
            "rows": summary.threads,
            "ranks_by": summary.ranks_by,
        },
        "options": _describe_options(options),
        "checksum": CHECKSUM,
        "inputs": [
            {
                "name": info.given.name if options.without_paths else str(info.given),
                **files,
                "host": info.host,
                "schema": info.schema,
                "nsys": info.product,
                # trace time = local + offset + drift * (local - pivot)
                "clock": {
                    "method": placement.method,
                    "offset_ns": int(clock_map.offset),
                    "drift": float(clock_map.drift),
                    "pivot_ns": int(clock_map.pivot),
                },
            }
            for info, files, placement, clock_map in zip(
                job.infos, inputs, job.placements, job.clocks, strict=False
            )
        ],
        "clock_file": clock,
        "ledger": {
            "kinds": {kind: _describe_account(one) for kind, one in ledger.kinds.items()},
            **{
                part: {
                    name: {**asdict(balance), "missing": balance.missing}
                    for name, balance in balances.items()
                }
                for part, balances in (("records", ledger.records), ("lines", ledger.lines))
            },
            "tables": ledger.tables,
            "tables_not_read": _list_not_read(job),
        },
        "repaired": {
            kind: dict(sorted(one.repaired.items()))
            for kind, one in ledger.kinds.items()
            if one.repaired
        },
        "reasons": _describe_reasons(summary),
        "quality": to_builtins(summary.quality),
        "notes": _describe_notes(job, summary.notes, options),
        "warnings": _describe_notes(job, summary.warnings, options),
    }
    return json.dumps(content, indent=1, ensure_ascii=True) + "\n"


def _describe_options(options: Options) -> dict[str, Any]:
    """Return the options that differ from their defaults; of files the names."""
    named = replace(
        options,
        align=Path(options.align).name,
        nvtx_rules=options.nvtx_rules and Path(options.nvtx_rules).name,
    )
    told, usual = (to_builtins(one, enc_hook=lambda path: path.name) for one in (named, DEFAULTS))
    return _find_changes(
        {name: value for name, value in told.items() if name not in UNRECORDED}, usual
    )


def _find_changes(told: dict[str, Any], usual: dict[str, Any]) -> dict[str, Any]:
    """Return the values that differ from the usual ones, recursively."""
    return {
        name: _find_changes(value, usual[name] or {}) if isinstance(value, dict) else value
        for name, value in told.items()
        if name not in usual or value != usual[name]
    }


def _describe_account(account: Account) -> dict[str, Any]:
    reasons = {
        name: dict(sorted(getattr(account, name).items()))
        for name in ("dropped", "skipped", "synthesized")
    }
    return {"rows": account.rows, "records": account.records, **reasons, "missing": account.missing}


def _list_not_read(job: Job) -> dict[str, dict[str, Any]]:
    """Return the tables that no selected kind reads: at most how many rows they have, and why."""
    read, translated = (
        {table for kind in kinds for table in (*kind.tables, *kind.lookup_tables)}
        for kinds in (job.selection.kinds, all_kinds())
    )
    rows: Counter[str] = Counter()
    for info in job.infos:
        for table, part in info.parts.items():
            if table not in read and not table.startswith("ENUM_"):
                rows[table] += part.rows
    return {
        table: {
            "rows": count,
            "why": "not asked for" if table in translated else explain_unread_table(table),
        }
        for table, count in sorted(rows.items())
    }


def _describe_reasons(summary: Summary) -> dict[str, str]:
    """Return the text of every reason that the account names."""
    ledger = summary.ledger
    keys = {key for _, key in summary.repaired}.union(
        *((*one.dropped, *one.skipped, *one.synthesized) for one in ledger.kinds.values()),
        *(one.left_out for one in (*ledger.records.values(), *ledger.lines.values())),
        *ledger.tables.values(),
    )
    return {key: describe_reason(key) for key in sorted(keys - {"rows"})}


def _describe_notes(job: Job, lines: Sequence[str], options: Options) -> list[str]:
    """Return the lines, without the folders of reports where paths are not wanted."""
    notes = list(map(str, lines))
    if options.without_paths:
        folders = {f"{info.given.parent}/" for info in job.infos}
        for folder in sorted(folders, key=len, reverse=True):
            notes = [line.replace(folder, "") for line in notes]
    return notes


def describe_inputs(job: Job) -> list[dict[str, Any]]:
    """Return sizes and checksums of the files of each report."""
    return list(job.run(describe_input, [info.given for info in job.infos]))


def describe_input(path: Path) -> dict[str, Any]:
    """Return sizes and checksums of a report, which is a file or a folder of files."""
    if path.is_file():
        return {"bytes": path.stat().st_size, "checksum": _compute_checksum(path)}
    files = sorted(member for member in path.iterdir() if member.is_file())
    return {
        "bytes": sum(member.stat().st_size for member in files),
        "checksums": {member.name: _compute_checksum(member) for member in files},
    }


def _compute_checksum(path: Path) -> str:
    """Return the checksum that :data:`CHECKSUM` describes, in hexadecimal. Its first bytes hold the
    number of changes that SQLite counts.
    """
    size = path.stat().st_size
    digest = hashlib.blake2b(size.to_bytes(8, "little"), digest_size=16)
    with path.open("rb") as file:
        digest.update(file.read(CHECKED_BYTES))
        file.seek(max(0, size - CHECKED_BYTES))
        digest.update(file.read(CHECKED_BYTES))
    return digest.hexdigest()
