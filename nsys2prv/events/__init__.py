"""Read all event kinds, and select the kinds that the user requested (``-t``).

Input: the tables of a report. Output: `Rows` or `Counters`, a form that does not depend on Paraver.
Start in :mod:`kind`, which defines an event kind. Each of the other modules reads a family of
kinds.

The catalogue declares all kinds and names the function that reads each of them. Adding a kind
therefore changes no other module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cache

from msgspec import Struct

from nsys2prv._util.errors import UsageError
from nsys2prv._util.text import format_duration
from nsys2prv.events.catalogue import load_catalogue
from nsys2prv.events.kind import ALL, EventKind, declare_kind

#: Largest number of names that are offered for an unknown one.
MOST_SUGGESTIONS = 3


@cache
def all_kinds() -> tuple[EventKind, ...]:
    """Return all event kinds, in alphabetical order."""
    return tuple(map(declare_kind, sorted(load_catalogue().kinds)))


class Selection(Struct, frozen=True):
    """The event kinds that the user selected with `-t`."""

    #: To translate.
    kinds: tuple[EventKind, ...]
    #: Names of kinds or groups that the user gave. If one finds nothing, there is a warning.
    asked: frozenset[str]


def list_kind_names() -> list[str]:
    """Return all names that `-t` accepts."""
    called = {name for kind in all_kinds() for name in (kind.name, *kind.groups, *kind.implied_by)}
    return sorted({*called, ALL})


def describe_unknown_kind(name: str) -> str:
    """Return the error message for an unknown kind. It contains the name used here if other tools
    use the given name, or similar names.
    """
    of_report = [kind.name for kind in all_kinds() if name in kind.stats]
    if of_report:
        return f"no such kind of event; use {','.join(of_report)}, which have the rows of this nsys stats report"
    *near, last = get_close_matches(name.lower(), list_kind_names(), MOST_SUGGESTIONS) or [""]
    meant = " or ".join(filter(None, [", ".join(near), last]))
    return f"no such kind of event; {f'did you mean {meant}? ' if meant else ''}`nsys2prv --kinds` lists all"


def select_kinds(words: Iterable[str], demanded: Iterable[str] = ()) -> Selection:
    """Return the event kinds selected by the names given with `-t`.

    `-name` excludes a kind. Without names, or with only exclusions, all kinds are selected.
    On-demand kinds are selected only by their own names, in addition to the others. demanded: names
    of on-demand kinds to add. Raise UsageError for an unknown name.
    """
    kinds = all_kinds()
    chosen: set[str] = set()
    left_out: set[str] = set()
    named: set[str] = set()
    opt_in = {kind.name for kind in kinds if kind.opt_in}
    demanded = list(demanded)
    names = [word.strip() for word in (*words, *demanded) if word.strip()]
    for word in names:
        negative, name = word.startswith("-"), word.lstrip("-")
        members = {
            kind.name
            for kind in kinds
            if kind.is_called(name) or (name in kind.implied_by and not negative)
        }
        if not negative:
            members -= opt_in - {name}
        if not members:
            raise UsageError(f"-t {name}: {describe_unknown_kind(name)}")
        if negative:
            left_out |= members
        else:
            chosen |= members
            named |= {name} - {ALL}
    if all(word.startswith("-") or word in opt_in for word in names):
        chosen |= {kind.name for kind in kinds} - opt_in
    left_out -= set(demanded)
    return Selection(
        tuple(kind for kind in kinds if kind.name in chosen - left_out), frozenset(named)
    )


def parse_least_durations(durations: Mapping[str, int]) -> dict[str, int]:
    """Return event kind -> duration (ns) below which its ranges are dropped. durations: the same by
    names as for `-t`.

    The name of a kind takes precedence over groups, and groups over `all`. Of several groups, the
    longest duration applies. Raise UsageError for an unknown name, a kind without durations, or an
    invalid duration.
    """
    for name, duration in durations.items():
        text = f"{name}={format_duration(duration)}"
        members = [kind for kind in all_kinds() if kind.is_called(name)]
        if not members:
            raise UsageError(f"--min-duration {text}: {describe_unknown_kind(name)}")
        if not any(kind.has_duration for kind in members):
            raise UsageError(
                f"--min-duration {text}: events of this kind have no duration; give another kind"
            )
        if not 0 <= duration < 1 << 63:
            raise UsageError(f"--min-duration {name}={duration}: no duration in ns")
    least: dict[str, int] = {}
    for kind in all_kinds():
        levels = (
            [durations[name] for name in level if name in durations]
            for level in ((kind.name,), kind.groups, (ALL,))
        )
        if kind.has_duration and (fitting := next(filter(None, levels), None)):
            least[kind.name] = max(fitting)
    return least
