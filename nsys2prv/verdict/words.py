"""Convert facts to sentences with the templates in findings.yaml, and choose advice by its rules.

Facts are numbers and recorded names. Sentences are made last, and no code reads them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from string import Formatter
from typing import Any

import numpy as np
from msgspec import Struct, convert

from nsys2prv._util.files import load_shipped_file
from nsys2prv._util.text import (
    capitalize,
    format_count,
    format_nanoseconds,
    format_ordinal,
    format_size,
    uncapitalize,
)

TEXTS = load_shipped_file(__package__, "findings.yaml")
#: Kind of cause, or of its finding -> advice.
ADVICE: dict[str, str] = TEXTS["advice"]
#: Optional parts of a template, omitted if one of their facts is unknown.
_OPTIONAL = re.compile(r"\[(.*?)\]")
#: Formats of facts in addition to Python's; `#call` counts calls, and `?` is only a condition.
_FORMATS: dict[str, Callable[[Any], str]] = {
    "ns": format_nanoseconds,
    "size": format_size,
    "first": capitalize,
    "lower": lambda fact: uncapitalize(f"{fact}"),
    "nth": format_ordinal,
    "?": lambda _: "",
}


class _Words(Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec[:1] == "#":
            return format_count(value, format_spec[1:])
        return _FORMATS.get(format_spec, lambda fact: format(fact, format_spec))(value)


_WORDS = _Words()


class Said(Struct, frozen=True):
    """A sentence, or a part of one, that is not yet text: the key of its template, and its facts."""

    #: Key of `says` in findings.yaml.
    key: str
    facts: dict[str, Any]

    def __str__(self) -> str:
        def keep_known(part: re.Match[str]) -> str:
            named = (name for _, name, *_ in _WORDS.parse(part[1]) if name)
            return part[1] if all(self.facts.get(name) for name in named) else ""

        return _WORDS.vformat(_OPTIONAL.sub(keep_known, TEXTS["says"][self.key]), (), self.facts)


def say(key: str, **facts: Any) -> Said:
    """Return the sentence with this key and these facts (times in ns)."""
    return Said(key, facts)


class Claim(Struct, frozen=True):
    """A description of a cause of lost time, whose facts are checked before it is shown."""

    #: Of `kinds` in findings.yaml.
    key: str
    evidence: Sequence[Said | str]
    #: Its edges, and the cost of each (ns): the moment to look at is that of the most costly.
    worst: tuple[np.ndarray, np.ndarray]
    #: Its stated facts, which must amount to the savings: by how much each culprit exceeds the others, or the
    #: total time on all ranks that the change removes (ns).
    states: float
    #: Its title; None for the text of `key` in `says`.
    title: Said | None = None
    #: Key of ADVICE, and kind of the finding; "" for the ones of `key`.
    advice: str = ""
    kind: str = ""
    #: The tasks at fault.
    tasks: tuple[int, ...] = ()
    #: Start, end (ns of the trace) and ranks, if this is not the moment of `worst`.
    moment: tuple[int, int, tuple[int, ...]] | None = None
    #: Share of the span that is saved, if it differs from the cause's savings.
    gain: float | None = None
    #: Whether some of it has to stay.
    is_limit: bool = False


class Rule(Struct, frozen=True, forbid_unknown_fields=True):
    """A rule that selects advice (`do`) for hosts with certain facts (`when`)."""

    #: Name of a fact -> a regular expression that matches it, its minimum, or its truth value.
    when: dict[str, bool | float | str]
    #: Key of ADVICE.
    do: str


RULES = convert(TEXTS["rules"], dict[str, list[Rule]])


def choose_advice(rules: str, **facts: bool | float | str) -> str:
    """Return the key in ADVICE of the first rule whose conditions are all met, or "". rules: name
    of the list of rules. facts: values that conditions compare.
    """

    def holds(fact: bool | float | str, wanted: bool | float | str) -> bool:
        if isinstance(wanted, str):
            return re.search(wanted, str(fact)) is not None
        return fact == wanted if isinstance(wanted, bool) else float(fact) >= wanted

    fitting = (
        rule.do
        for rule in RULES[rules]
        if all(holds(facts[name], wanted) for name, wanted in rule.when.items())
    )
    return next(fitting, "")
