"""Findings in words: each cause that the replay names becomes one, with who or what it is, what was
measured, the moment to look at, and what helps.
"""

from __future__ import annotations

from msgspec.structs import replace

from nsys2prv.analysis.cause_context import CauseContext
from nsys2prv.analysis.culprits import describe_culprit
from nsys2prv.analysis.device_group import WORK
from nsys2prv.analysis.finding_texts import VIEW_NEEDS
from nsys2prv.analysis.limits import describe_limit, describe_messages, describe_transfers
from nsys2prv.analysis.pauses import describe_place
from nsys2prv.analysis.result import Finding
from nsys2prv.replay.causes import Cause
from nsys2prv.replay.questions import Names, describe_cause

#: Views of a finding.
MOST_VIEWS = 2
#: Kind of cause -> what makes its finding; all others of the whole job: `describe_limit`.
_DESCRIBE = {
    "place": describe_place,
    "messages": describe_messages,
    "transfers": describe_transfers,
}


def write_finding(cause: Cause, facts: CauseContext, names: Names) -> Finding:
    """Return the finding of a cause."""
    if cause.suspect:
        finding, where = describe_culprit(cause, facts, cause.suspect), ""
    else:
        finding = _DESCRIBE.get(cause.kind, describe_limit)(cause, facts)
        where = facts.places.find_function(cause.changes[0][0])
    views = tuple(view for view in finding.views if _shows_something(view, facts))[:MOST_VIEWS]
    what_if = describe_cause(cause, facts.replay, names)
    return replace(finding, views=views, where=where, what_if=what_if)


def _shows_something(view: str, facts: CauseContext) -> bool:
    needs = (layouts for part, layouts in VIEW_NEEDS.items() if part in view)
    return bool(facts.context.reader.layouts & {*next(needs, (*WORK, "cuda_api"))})
