"""Tables of one form, a line each: a call or a piece of work with a begin, an end, a thread and a
name.

The section ``calls`` of the files in ``events`` declares them; how a line is written stands in
``events/README.md``. From a line come the layout and the name set of the catalogue, and with
:mod:`nsys2prv.events.calls` the kind of event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Event types of a line: its code names the event, code + 1 is the result, code + 2... the numbers.
RESULT, NUMBERS = 1, 2
#: Codes of lines lie this far apart.
STEP = 100


@dataclass(frozen=True)
class CallTable:
    """One line. name: of kind, layout and name set. table: of the export; label: for people, of the
    kind and the event type.

    names: columns with ids of StringIds, of which the first that has a text names the event. enum:
    an ENUM_ table, whose label for the number in the one column of `names` is the name. Without
    either the label is. time: the columns of begin and end (ns), or of a point in time alone.
    thread: the column of the globalTid (or globalPid). queue: the word for rows of work on GPUs,
    one for each process and GPU (its number in the column `gpu`); "" for calls of host threads.
    result: column of a result, told where it is above 0. numbers: further columns and the labels of
    their types. marks: rows without an end are points in time. state: as in layouts.
    """

    name: str
    table: str
    code: int
    label: str
    groups: tuple[str, ...] = ()
    names: tuple[str, ...] = ("nameId",)
    enum: str = ""
    time: tuple[str, ...] = ("start", "end")
    thread: str = "globalTid"
    queue: str = ""
    gpu: str = "gpu"
    result: str = ""
    numbers: tuple[tuple[str, str], ...] = ()
    marks: bool = False
    state: Any = None

    @property
    def lasting(self) -> bool:
        return len(self.time) > 1


def call_tables(lines: Mapping[str, Mapping[str, Any]]) -> dict[str, CallTable]:
    """Return the declarations of a section ``calls``."""
    return {name: _table(name, line) for name, line in lines.items()}


def _table(name: str, line: Mapping[str, Any]) -> CallTable:
    several = {
        key: tuple(line[key]) if isinstance(line[key], list) else (line[key],)
        for key in ("names", "time")
        if key in line
    }
    groups = (line["group"],) if "group" in line else ()
    rest = {
        key: value
        for key, value in line.items()
        if key not in ("group", "names", "time", "numbers")
    }
    return CallTable(
        name, groups=groups, numbers=tuple(line.get("numbers", {}).items()), **several, **rest
    )


def layouts(tables: Mapping[str, CallTable]) -> dict[str, dict[str, Any]]:
    """Return the layouts of call tables, as a section ``layouts`` says them. Work on GPUs does not
    nest: it has rows to spare.
    """
    return {
        name: {
            "title": call.label,
            "nests": not call.queue,
            "fields": _fields(call),
            "state": call.state,
        }
        for name, call in tables.items()
    }


def _fields(call: CallTable) -> dict[str, dict[str, Any]]:
    fields: dict[str, dict[str, Any]] = {
        "call": {"code": call.code, "label": call.label, "values": {"names": call.name}}
    }
    if call.result:
        fields["result"] = {
            "code": call.code + RESULT,
            "label": f"Result of {call.label}",
            "optional": True,
        }
    for place, (column, label) in enumerate(call.numbers):
        fields[column] = {"code": call.code + NUMBERS + place, "label": label, "optional": True}
    return fields


def name_sets(tables: Mapping[str, CallTable]) -> dict[str, dict[str, Any]]:
    """Return the name sets of call tables, as a section ``name_sets`` says them: open ones."""
    return {name: {"space": name, "first": 1} for name in tables}
