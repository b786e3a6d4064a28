"""What a trace lacks though it was asked for, or though the reports hold it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from nsys2prv.errors import Nsys2prvError
from nsys2prv.events import all_kinds
from nsys2prv.events.kind import EventKind
from nsys2prv.reading.extracted import Extracted
from nsys2prv.report.info import ReportInfo
from nsys2prv.report.opening import open_source
from nsys2prv.selection import Selection

#: So many reports at most are asked what they have in the place of such a kind: it may mean walking through a table.
ASKED = 3


def kinds(infos: Sequence[ReportInfo], selection: Selection, results: Sequence[Extracted]) -> list[str]:
    """A warning for each name given to -t, of a kind or of a group of kinds, of which no report holds an event."""
    found: Counter[str] = Counter()
    for result in results:
        found.update(result.events)
    dropped = {kind for result in results for kind, account in result.accounts.items() if account.dropped}
    warnings = []
    for name in sorted(selection.asked):
        named = [kind for kind in selection.kinds if kind.name == name]
        meant = named or [kind for kind in selection.kinds if kind.called(name)]
        if meant and not any(kind.name in dropped or any(found[layout] for layout in kind.layouts) for kind in meant):
            warnings.append(f"{name}: the reports hold no events of this kind{_elsewhere(named[0], infos) if named else ''}")
    return warnings


def _elsewhere(kind: EventKind, infos: Sequence[ReportInfo]) -> str:
    if kind.elsewhere is None:
        return ""
    for info in infos[:ASKED]:
        try:
            with open_source(info.path) as source:
                if told := kind.elsewhere(source):
                    return f": {told}"
        except Nsys2prvError:
            # What was read from a store need not be there any more.
            continue
    return ""


def idle(infos: Sequence[ReportInfo], selection: Selection) -> list[str]:
    """The names of reports without any work on a GPU, if such work was asked for."""
    if not any(kind.on_gpu for kind in selection.kinds):
        return []
    return [info.name for info in infos if not _worked(info)]


def unasked(infos: Sequence[ReportInfo], selection: Selection) -> list[str]:
    """A note where the reports hold work on GPUs and none was asked for."""
    if any(kind.on_gpu for kind in selection.kinds):
        return []
    left_out = dict.fromkeys(name for info in infos for name in _worked(info))
    return [f"work on GPUs that -t leaves out: {', '.join(sorted(left_out))}"] if left_out else []


def _worked(info: ReportInfo) -> list[str]:
    """The kinds of work on GPUs that a report holds."""
    return [kind.name for kind in all_kinds() if kind.on_gpu and info.parts.keys() & set(kind.tables)]
