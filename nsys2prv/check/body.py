"""The lines of a trace by kind: which are sound records, and what is wrong with the others."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from nsys2prv.check.fields import COLON
from nsys2prv.check.place import Place

STATE, EVENT, COMM, COLLECTIVE, COMMENT = b"1234#"
#: Fields of a state and of a communication; fields of an event before its first pair.
STATE_FIELDS, COMM_FIELDS, EVENT_FIELDS = 8, 15, 6
CUTTER_FIELDS = 7


@dataclass(frozen=True)
class Sound:
    """Lines (indices in the block) of records that Paraver can read, by kind."""

    states: np.ndarray
    events: np.ndarray
    comms: np.ndarray


def sound_lines(place: Place, communicators: int) -> Sound:
    """The records of a block; `communicators` lines of them follow the header."""
    lines = place.lines
    kind = lines.kind
    empty = lines.fields == 1
    empty[empty] = lines.ends[lines.first[empty]] == np.where(lines.first[empty] > 0, lines.ends[lines.first[empty] - 1] + 1, 0)
    record = (kind >= STATE) & (kind <= COMM)
    other = np.flatnonzero(~record)
    if len(other) or empty.any():
        _others(place, other[~empty[other]], communicators)
        place.report("empty-line", np.flatnonzero(empty), "")
        record &= ~empty
    if place.base <= communicators + 1:
        missing = np.flatnonzero(record[:max(communicators + 2 - place.base, 0)])
        place.report("communicators-missing", missing)
    single = lines.ends[lines.first] - np.concatenate(([0], lines.ends[lines.first[1:] - 1] + 1)) == 1
    broken = np.zeros(len(kind), bool)
    broken[lines.broken] = True
    place.report("unknown-record", np.flatnonzero(record & ~single & ~broken))
    place.report("number-syntax", np.flatnonzero(record & broken))
    record &= single & ~broken
    _fields(place, record)
    return Sound(*(np.flatnonzero(record & (kind == which)) for which in (STATE, EVENT, COMM)))


def _others(place: Place, other: np.ndarray, communicators: int) -> None:
    """Lines that are no record of a state, event or communication."""
    lines = place.lines
    kind = lines.kind[other]
    communicator = np.isin(kind, np.frombuffer(b"cCiI", np.uint8))
    announced = place.base + other <= communicators + 1
    place.report("communicator-beyond", other[communicator & ~announced])
    place.report("communicators-missing", other[~communicator & announced])
    place.report("collective", other[kind == COLLECTIVE])
    comments = other[kind == COMMENT]
    # Only comments of so many fields can be the cutter's; of those there are few.
    for line in comments[(lines.fields[comments] >= 4) & (lines.fields[comments] != CUTTER_FIELDS)]:
        if lines.quoted(line).split(":")[1] == "CUTTER":
            place.report("crash-comment", np.array([line]))
    rest = other[~communicator & (kind != COLLECTIVE) & (kind != COMMENT)]
    blank = np.array([bool(re.fullmatch(r"[ \t]+", lines.quoted(line))) for line in rest[np.isin(lines.kind[rest], (32, 9))]], bool)
    blanks = rest[np.isin(lines.kind[rest], (32, 9))][blank] if len(blank) else rest[:0]
    place.report("blank-line", blanks, "")
    place.report("unknown-record", np.setdiff1d(rest, blanks))


def _fields(place: Place, record: np.ndarray) -> None:
    """Check how many fields records have and what they are; leaves out of `record` what Paraver cannot read."""
    lines = place.lines
    kind, fields = lines.kind, lines.fields
    state, event, comm = record & (kind == STATE), record & (kind == EVENT), record & (kind == COMM)
    few = (state & (fields < STATE_FIELDS)) | (event & (fields < EVENT_FIELDS)) | (comm & (fields < COMM_FIELDS))
    place.report("fields-missing", np.flatnonzero(few))
    place.report("fields-beyond", np.flatnonzero((state & (fields > STATE_FIELDS)) | (comm & (fields > COMM_FIELDS))))
    last = lines.first + fields - 1
    odd = event & (fields % 2 == 1) & ~few
    colon = np.zeros(len(kind), bool)
    if odd.any():
        ends = lines.ends[last[odd]]
        colon[odd] = lines.text[ends - 1] == COLON
        place.report("trailing-colon", np.flatnonzero(colon))
        place.report("odd-pair", np.flatnonzero(odd & ~colon))
    place.report("event-without-pair", np.flatnonzero(event & ((fields == EVENT_FIELDS) | (colon & (fields == EVENT_FIELDS + 1)))))
    if len(lines.empty):
        at = lines.line_of(lines.empty)
        inside = record[at] & ~(colon[at] & (lines.empty == last[at]))
        place.report("empty-field", np.unique(at[inside]))
    if len(lines.overflow):
        at = lines.line_of(lines.overflow)
        place.report("number-overflow", np.unique(at[record[at]]))
    record &= ~few
