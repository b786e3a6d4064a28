"""`out.nsys2prv.json`: of what a trace was made, how, and the account of it: what became of every
row that was read, and of every record made of them. It lies beside the trace.

Rows and records balance, for every kind of event and every layout: nothing is lost without a name.

Nothing of it depends on when, where or by how many processes the trace was written. It holds
nothing of a job's environment. The only paths in it are those of the reports, as they were given;
with `--no-paths` only their names.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from nsys2prv._util.version import __version__
from nsys2prv.clock.maps import ClockMap
from nsys2prv.conversion.job import Job
from nsys2prv.conversion.ledger import group_by_name
from nsys2prv.conversion.options import Options
from nsys2prv.conversion.summary import Summary
from nsys2prv.events import all_kinds
from nsys2prv.events.kind import Account
from nsys2prv.events.reasons import describe_reason, explain_unread_table

ENDING = ".nsys2prv.json"
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
            **{
                balance: {
                    name: {**asdict(account), "missing": account.missing}
                    for name, account in getattr(summary.ledger, balance).items()
                }
                for balance in ("records", "lines")
            },
            "tables": summary.ledger.tables,
            "tables_not_read": _list_not_read(job),
        },
        "repaired": group_by_name(summary.repaired),
        "reasons": _describe_reasons(summary),
        "notes": _describe_notes(job, summary.notes, options),
        "warnings": _describe_notes(job, summary.warnings, options),
    }
    return json.dumps(content, indent=1, ensure_ascii=True) + "\n"


def _describe_notes(job: Job, lines: Sequence[str], options: Options) -> list[str]:
    """Return the notes and warnings, without the folders of the reports if these are not wanted."""
    notes = list(map(str, lines))
    if options.without_paths:
        folders = {f"{info.given.parent}/" for info in job.infos}
        for folder in sorted(sorted(folders), key=len, reverse=True):
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
    # A clock file is given in place of a method.
    return (
        Path(value).name
        if isinstance(value, str) and "/" in value and value.endswith((".yaml", ".yml"))
        else value
    )


def describe_inputs(job: Job) -> list[dict[str, Any]]:
    """Return for each report what :func:`checksum_task` finds."""
    paths = [info.given for info in job.infos]
    tasks = [paths[first : first + TOGETHER] for first in range(0, len(paths), TOGETHER)]
    return [
        description for of_task in job.workers.run(checksum_task, tasks) for description in of_task
    ]


def checksum_task(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Return sizes and checksums of some reports."""
    return [_describe_file(path) for path in paths]


def _describe_file(path: Path) -> dict[str, Any]:
    """Return size and checksum of a file, or of the files of a folder; nothing for one that stayed
    where a store was made.
    """
    if path.is_dir():
        files = sorted(member for member in path.iterdir() if member.is_file())
        return {
            "bytes": sum(member.stat().st_size for member in files),
            "checksums": {member.name: compute_checksum(member) for member in files},
        }
    return (
        {"bytes": path.stat().st_size, "checksum": compute_checksum(path)} if path.exists() else {}
    )


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
    keys = {key for _, key in summary.repaired}
    for account in ledger.kinds.values():
        keys |= {*account.dropped, *account.skipped, *account.synthesized}
    for writing in (*ledger.records.values(), *ledger.lines.values()):
        keys |= writing.left_out.keys()
    for counts in ledger.tables.values():
        keys |= counts.keys() - {"rows"}
    return {key: describe_reason(key) for key in sorted(keys)}


def _describe_account(account: Account) -> dict[str, Any]:
    reasons = {
        name: dict(sorted(getattr(account, name).items()))
        for name in ("dropped", "skipped", "synthesized")
    }
    return {"rows": account.rows, "records": account.records, **reasons, "missing": account.missing}


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
