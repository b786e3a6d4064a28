"""Sections of the files in ``events`` that are more than a list: ``calls``, tables of one form, a
line each, and ``states`` with ``state_rules``, the states of rows and which of them ranges imply.

How a line of ``calls`` is written stands in ``events/README.md``. From a line come the layout and
the name set of the catalogue, and with :mod:`nsys2prv.events.calls` the kind of event.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

#: Event types of a line: its code names the event, code + 1 is the result, code + 2... the numbers.
RESULT, NUMBERS = 1, 2


class CallTable(Struct, frozen=True):
    """One line of the section: a table whose rows are calls of host threads, or work on GPUs."""

    #: Name of the kind of event, of its layout and of its name set.
    name: str
    #: Table of the export.
    table: str
    #: Event type that names the event; those of its result and its numbers follow.
    code: int
    #: Title of the kind and of the event type.
    label: str
    #: Further command-line names that include the kind.
    groups: tuple[str, ...] = ()
    #: Columns with ids of StringIds, of which the first that has a text names the event.
    names: tuple[str, ...] = ("nameId",)
    #: ENUM_ table, whose label for the number in the one column of `names` names the event. "" for
    #: none: where no column of `names` has a text either, the label does.
    enum: str = ""
    #: Columns of begin and end (ns), or of a point in time alone.
    time: tuple[str, ...] = ("start", "end")
    #: Column of the globalTid, or globalPid.
    thread: str = "globalTid"
    #: Title of the rows of work on GPUs, one for each process and GPU; "" for calls of host
    #: threads.
    queue: str = ""
    #: Column of the GPU's number.
    gpu: str = "gpu"
    #: Column of a result, which is written where it is above 0; "" for none.
    result: str = ""
    #: Further columns, and the labels of their event types.
    numbers: tuple[tuple[str, str], ...] = ()
    #: Rows without an end are points in time.
    marks: bool = False
    #: As in layouts.
    state: Any = None

    @property
    def has_duration(self) -> bool:
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


def call_layouts(tables: Mapping[str, CallTable]) -> dict[str, dict[str, Any]]:
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


def call_name_sets(tables: Mapping[str, CallTable]) -> dict[str, dict[str, Any]]:
    """Return the name sets of call tables, as a section ``name_sets`` says them: open ones."""
    return {name: {"space": name, "first": 1} for name in tables}


class State(Struct, frozen=True):
    """A value of state records."""

    #: Value in the trace.
    value: int
    #: Label in the .pcf.
    label: str
    #: Red, green, blue, 0 to 255.
    color: tuple[int, int, int]


class StateRule(Struct, frozen=True):
    """The state that a row is in during an event: by the names, else by the values, else
    `otherwise`.
    """

    #: State where neither `names` nor `values` decide, None for none.
    otherwise: int | None = None
    #: Field of the record that decides; "" for the one that names the event.
    field: str = ""
    #: For fields with names: states and regular expressions, of which the first that is found in
    #: the name decides.
    names: tuple[tuple[int, str], ...] = ()
    #: For other fields: values and states.
    values: tuple[tuple[int, int], ...] = ()
    #: The state counts only where no other event is in one.
    yields: bool = False


def parse_states(section: Mapping[int, Mapping[str, Any]]) -> tuple[State, ...]:
    """Return the states, by value."""
    return tuple(
        State(value, spec["label"], tuple(spec["color"])) for value, spec in sorted(section.items())
    )


def parse_state_rule(
    spec: str | Mapping[str, Any] | None,
    rules: Mapping[str, Mapping[str, Any]],
    known: tuple[State, ...],
) -> StateRule | None:
    """Return the rule of a layout's key ``state``: the label of a state, or the name of a rule and
    whether it yields.
    """
    if spec is None:
        return None
    values = {state.label: state.value for state in known}
    if isinstance(spec, str):
        return StateRule(values[spec])
    found = rules[spec["rule"]]
    return StateRule(
        values[found["otherwise"]] if "otherwise" in found else None,
        found.get("field", ""),
        tuple(
            # Blanks are for the eye.
            (values[label], pattern.replace(" ", ""))
            for label, pattern in found.get("names", {}).items()
        ),
        tuple(
            (value, values[label])
            for label, numbers in found.get("values", {}).items()
            for value in numbers
        ),
        spec.get("yields", False),
    )
