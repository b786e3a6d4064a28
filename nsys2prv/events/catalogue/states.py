"""States of rows, and which of them the ranges of a layout imply: sections ``states`` and
``state_rules`` of the files in ``events``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class State:
    """A value of state records. color: red, green, blue."""

    value: int
    label: str
    color: tuple[int, int, int]


@dataclass(frozen=True)
class StateRule:
    """The state that a row is in within a range. field: of the record, that tells; "" for the one
    that names the event.

    names: of fields with names, states and regular expressions (blanks are for the eye), of which
    the first that is found in the name tells; values: of other fields, values and states.
    otherwise: the state where neither tells, None for none. yields: it tells only where no other
    range does.
    """

    otherwise: int | None = None
    field: str = ""
    names: tuple[tuple[int, str], ...] = ()
    values: tuple[tuple[int, int], ...] = ()
    yields: bool = False


def states(section: Mapping[int, Mapping[str, Any]]) -> tuple[State, ...]:
    """Return the states, by value."""
    return tuple(
        State(value, spec["label"], tuple(spec["color"])) for value, spec in sorted(section.items())
    )


def rule(
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
