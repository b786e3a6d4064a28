"""Whether a view shows anything of a trace, from the event types, communication tags and states that the trace holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from nsys2prv.paraver.cfg.grammar import OF_STATES, SELECTED
from nsys2prv.paraver.cfg.model import Cfg, Filter, Single
from nsys2prv.paraver.contents import Contents

#: More types than this are told by the first and the last.
NAMED = 3
#: Functions that tell of communications, not of events.
OF_COMMUNICATIONS = frozenset((
    "Last Tag", "Comm Size", "Comm Recv. Partner", "Comm Partner", "Last Send Dur.", "Next Recv Dur.", "Last Send Size",
    "Send Bytes in Transit", "Send Messages in Transit", "Recv Bytes in Transit", "Recv Messages in Transit", "Send BandWidth",
    "Recv BandWidth", "Recv Negative Messages", "Recv Negative Bytes", "Number Of Sends", "Number Of Send Bytes",
    "Number Of Receives", "Number Of Receive Bytes", "Event Bytes", "Event Sent Bytes"))


def why_empty(cfg: Cfg, trace: Contents, names: Mapping[int, str]) -> str:
    """What a view needs and the trace lacks, in words; empty if it shows something. names: event type -> name.

    Of the types of a window that guards the view one suffices; of others it needs all that it lists, and something other than 0
    in each of its windows.
    """
    singles = [window for window in cfg.windows if isinstance(window, Single)]
    guards = [window.types for window in singles if window.guards]
    others = [window.types for window in singles if not window.guards and not any(_meet(window.types, guard) for guard in guards)]
    reasons = [reason for types in guards for reason in _of_types(types, trace, names, any_suffices=True)]
    reasons += [reason for types in others for reason in _of_types(types, trace, names, any_suffices=False)]
    reasons += [reason for window in singles for reason in _of_tags(window, trace)]
    if not trace.states and any(_function(window) in OF_STATES for window in singles):
        reasons.append("no states")
    return "; ".join(dict.fromkeys(reasons))


def _function(window: Single) -> str:
    """What a window takes of a thread's records."""
    return window.functions["thread"].name if "thread" in window.functions else SELECTED["thread"][1]


def _meet(types: Filter, guard: Filter) -> bool:
    """Whether a window's types are among those of a guard, or partly."""
    if "[x,y]" not in (types.condition, guard.condition):
        return not set(types.values).isdisjoint(guard.values)
    ranges = [(min(one.values), max(one.values)) for one in (types, guard) if one.values]
    return len(ranges) == 2 and max(first for first, _ in ranges) <= min(last for _, last in ranges)


def _of_types(types: Filter, trace: Contents, names: Mapping[int, str], any_suffices: bool) -> Iterator[str]:
    if not types.values:
        return
    if types.condition == "[x,y]":
        first, last = types.values
        if not any(first <= code <= last for code in trace.filled):
            yield f"no {_words(types.values, names, ' to ')}"
        return
    missing = [code for code in types.values if code not in trace.types]
    if missing and not (any_suffices and len(missing) < len(types.values)):
        yield f"no {_words(missing, names)}"
    elif not trace.filled.intersection(types.values):
        yield f"nothing but 0 in {_words(types.values, names)}"


def _of_tags(window: Single, trace: Contents) -> Iterator[str]:
    if _function(window) not in OF_COMMUNICATIONS:
        return
    wanted = window.filters.get("tag_msg", Filter("All"))
    if not any(_passes(wanted, tag) for tag in trace.tags):
        yield "no communication" + (f" of tag {', '.join(f'{tag:.0f}' for tag in wanted.values)}" if wanted.condition == "=" else "")


def _passes(condition: Filter, value: float) -> bool:
    """As Paraver does: `=` of one, the others of all."""
    values = condition.values
    tests = {"All": True, "None": False, "=": value in values, "!=": value not in values,
             "<": all(value < one for one in values), ">": all(value > one for one in values),
             "[x,y]": bool(values) and min(values) <= value <= max(values)}
    return tests[condition.condition]


def _words(codes: Sequence[float], names: Mapping[int, str], between: str = "") -> str:
    """Types by name; `between`: they are the ends of a range."""
    numbers = [int(code) for code in codes]
    called = {names.get(number, "") for number in numbers}
    if len(called) == 1 and called != {""}:
        listed = ", ".join(map(str, numbers)) if len(numbers) <= NAMED and not between else f"{numbers[0]} … {numbers[-1]}"
        return f"{called.pop()} ({listed})"
    words = [f"{names[number]} ({number})" if number in names else f"event type {number}" for number in numbers]
    return (between or ", ").join(words) if len(words) <= NAMED else f"{words[0]} … {words[-1]}"
