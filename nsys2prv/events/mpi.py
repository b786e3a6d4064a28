"""MPI calls on the host threads that make them, and the facts by which
:mod:`nsys2prv.relations.mpi` matches messages.

Nsight writes every call once, but for two cases, in which several rows have the same thread and
times: a Wait or Test call has a row for each of its requests, and MPI_Sendrecv has two rows, for
the message sent and the one received, where these differ. Nothing in such a row says which it is
but its place: the first is the one sent, as in the function's arguments. A table whose rows are not
in the order of the calls does not tell.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from nsys2prv._util.columns import ABSENT, factorize, factorize_together, occurrence
from nsys2prv.events.attributes import number_or_zero, optional
from nsys2prv.events.extraction import Extraction
from nsys2prv.events.kind import Rows, declare_kind
from nsys2prv.events.names.calls import LAYOUTS, function_name, layout_of
from nsys2prv.events.reasons import Reason
from nsys2prv.nsight.communicators import UNKNOWN, Communicators
from nsys2prv.nsight.info import PROCESS_MASK
from nsys2prv.nsight.source import NULL, Part

P2P, COLLECTIVES, START_WAIT, OTHER = (
    "MPI_P2P_EVENTS",
    "MPI_COLLECTIVES_EVENTS",
    "MPI_START_WAIT_EVENTS",
    "MPI_OTHER_EVENTS",
)
#: Layout of the calls whose names tell nothing, by table.
BY_TABLE = {
    P2P: "mpi_point_to_point",
    START_WAIT: "mpi_point_to_point",
    COLLECTIVES: "mpi_collective",
    OTHER: "mpi_other",
}
#: Rows around a part in which further rows of its calls are looked for.
NEIGHBOURS = 4096

#: Facts: messages sent and received, what became of requests, blocking collectives, and the
#: processes that call MPI.
MESSAGES, REQUESTS, MEETINGS, PROCESSES = (
    "mpi_messages",
    "mpi_requests",
    "mpi_meetings",
    "mpi_processes",
)
#: What a message's fact is: the call that transfers it, the one that prepares a persistent request
#: for it, or a call that either sends or receives it (its `source` is then the caller).
SEND, RECEIVE, SEND_INIT, RECEIVE_INIT, EITHER = 1, 2, 3, 4, 5
#: What a request's fact is: another use of its handle, the start of a persistent one, a call that
#: returns when it is complete, and one that may return earlier.
USED, STARTED, COMPLETED, ASKED = 1, 2, 3, 4

_SENDS = frozenset(
    "MPI_" + name
    for name in ("Send", "Bsend", "Ssend", "Rsend", "Isend", "Ibsend", "Issend", "Irsend")
)
_RECEIVES = frozenset("MPI_" + name for name in ("Recv", "Irecv", "Mrecv", "Imrecv"))
_BOTH = frozenset(
    "MPI_" + name for name in ("Sendrecv", "Sendrecv_replace", "Isendrecv", "Isendrecv_replace")
)
_SEND_INITS = frozenset(
    "MPI_" + name for name in ("Send_init", "Bsend_init", "Ssend_init", "Rsend_init")
)
_RECEIVE_INITS = frozenset({"MPI_Recv_init"})
_STARTS = frozenset({"MPI_Start", "MPI_Startall"})
_WAITS = frozenset({"MPI_Wait", "MPI_Waitall"})
#: Blocking collectives in which all wait for all, all for the root, and the root for all; in the
#: first, sizes are equal on all ranks.
_ALL_EQUAL = (
    "MPI_Barrier",
    "MPI_Allreduce",
    "MPI_Allgather",
    "MPI_Alltoall",
    "MPI_Reduce_scatter_block",
)
_ALL = (*_ALL_EQUAL, "MPI_Allgatherv", "MPI_Alltoallv", "MPI_Alltoallw", "MPI_Reduce_scatter")
_FROM_ROOT = ("MPI_Bcast", "MPI_Scatter", "MPI_Scatterv")
_TO_ROOT = ("MPI_Reduce", "MPI_Gather", "MPI_Gatherv")
#: What a meeting's fact says of who waits.
ALL, FROM_ROOT, TO_ROOT = 0, 1, 2
_MEETINGS = {
    name: (number, waits)
    for number, (name, waits) in enumerate(
        [
            *((name, ALL) for name in _ALL),
            *((name, FROM_ROOT) for name in _FROM_ROOT),
            *((name, TO_ROOT) for name in _TO_ROOT),
        ],
        1,
    )
}
_BEGINNINGS = frozenset({"MPI_Init", "MPI_Init_thread", "MPI_Session_init"})
_ENDINGS = frozenset({"MPI_Finalize", "MPI_Session_finalize"})


class _Calls(Struct):
    """Rows of one table: names and layouts by code, columns, process of each (globalPid) and its
    rank (UNKNOWN if not known).
    """

    names: list[str]
    codes: np.ndarray
    columns: dict[str, np.ndarray]
    process: np.ndarray
    rank: np.ndarray

    def called(self, functions: frozenset[str]) -> np.ndarray:
        """Return a mask of the rows that are calls of one of these functions."""
        return np.array([name in functions for name in self.names], bool)[self.codes]

    def chosen(self, rows: np.ndarray) -> _Calls:
        columns = {name: column[rows] for name, column in self.columns.items()}
        return _Calls(self.names, self.codes[rows], columns, self.process[rows], self.rank[rows])


def extract(extraction: Extraction, part: Part) -> Iterator[Rows]:
    reader = {
        P2P: _point_to_point,
        COLLECTIVES: _collectives,
        START_WAIT: _start_wait,
        OTHER: _other,
    }[part.table]
    yield from reader(extraction, part)


def _point_to_point(extraction: Extraction, part: Part) -> Iterator[Rows]:
    calls, mine = _read(
        extraction,
        part,
        ("commHandle", "commUid", "tag", "remoteRank", "size", "requestHandle"),
        around=True,
    )
    both = calls.called(_BOTH)
    place, of = _places(calls, both)
    in_order = _in_order(calls)
    calls, both, place, of = calls.chosen(mine), both[mine], place[mine], of[mine]
    communicators = _communicators(extraction)
    communicator = _communicator(communicators, calls)
    partner = communicators.world_ranks(communicator, calls.columns["remoteRank"])
    key = communicators.keys(communicator)
    told = both & ((of == 1) | in_order)
    sent, received = told & (place == 0), told & ((place == 1) | (of == 1))
    for role, rows in (
        (SEND, calls.called(_SENDS) | sent),
        (RECEIVE, calls.called(_RECEIVES) | received),
        (SEND_INIT, calls.called(_SEND_INITS)),
        (RECEIVE_INIT, calls.called(_RECEIVE_INITS)),
        (EITHER, both & ~told),
    ):
        _message_facts(extraction, calls, np.flatnonzero(rows), role, key, partner)
    yield from _rows(
        extraction,
        part.table,
        calls,
        place == 0,
        {
            "size": optional(calls.columns["size"]),
            "tag": optional(calls.columns["tag"]),
            "partner": optional(partner),
            "communicator": _communicator_names(extraction, communicators, communicator),
        },
    )


def _message_facts(
    extraction: Extraction,
    calls: _Calls,
    rows: np.ndarray,
    role: int,
    key: np.ndarray,
    partner: np.ndarray,
) -> None:
    """Set messages aside. `partner` is UNKNOWN where the call names none: MPI_ANY_SOURCE and
    MPI_PROC_NULL are negative.
    """
    if not len(rows):
        return
    columns = {name: column[rows] for name, column in calls.columns.items()}
    own, other = calls.rank[rows], partner[rows]
    sent = role in (SEND, SEND_INIT, EITHER)
    extraction.fact(
        MESSAGES,
        {
            "process": calls.process[rows],
            "object_thread": extraction.threads(columns["globalTid"]),
            "time_begin": columns["start"],
            "time_end": columns["end"],
            "role": np.full(len(rows), role, np.int8),
            "communicator": key[rows],
            "source": own if sent else other,
            "destination": other if sent else own,
            "named": columns["remoteRank"] >= 0,
            "tag": columns["tag"],
            "size": columns["size"],
            "request": columns["requestHandle"],
        },
    )


def _collectives(extraction: Extraction, part: Part) -> Iterator[Rows]:
    calls, _ = _read(
        extraction, part, ("commHandle", "commUid", "rootRank", "size", "recvSize", "requestHandle")
    )
    _request_facts(extraction, calls, np.full(len(calls.codes), USED, np.int8))
    communicators = _communicators(extraction)
    communicator = _communicator(communicators, calls)
    _meeting_facts(extraction, calls, communicators, communicator)
    yield from _rows(
        extraction,
        part.table,
        calls,
        np.ones(len(calls.codes), bool),
        {
            "sent": number_or_zero(calls.columns["size"]),
            "received": number_or_zero(calls.columns["recvSize"]),
            "root": optional(communicators.world_ranks(communicator, calls.columns["rootRank"])),
            "communicator": _communicator_names(extraction, communicators, communicator),
        },
    )


def _meeting_facts(
    extraction: Extraction, calls: _Calls, communicators: Communicators, communicator: np.ndarray
) -> None:
    """Set blocking collectives aside: function, who waits, and a signature that is equal on all
    ranks.
    """
    function, waits = (
        np.array([_MEETINGS.get(name, (0, ALL))[item] for name in calls.names], np.int64)[
            calls.codes
        ]
        for item in (0, 1)
    )
    key = communicators.keys(communicator)
    rows = np.flatnonzero(
        (function > 0)
        & (key != 0)
        & (calls.columns["start"] != NULL)
        & (calls.columns["end"] != NULL)
    )
    if len(rows):
        function, communicator = function[rows], communicator[rows]
        size = np.where(function <= len(_ALL_EQUAL), number_or_zero(calls.columns["size"][rows]), 0)
        root = communicators.world_ranks(communicator, calls.columns["rootRank"][rows])
        extraction.fact(
            MEETINGS,
            {
                "process": calls.process[rows],
                "time_begin": calls.columns["start"][rows],
                "time_end": calls.columns["end"][rows],
                "communicator": key[rows],
                "waits": waits[rows],
                "is_root": (root == calls.rank[rows]) & (root != UNKNOWN),
                "signature": ((size & 0xFFFFFFFFFFFF) << 8) | function,
            },
        )


def _start_wait(extraction: Extraction, part: Part) -> Iterator[Rows]:
    calls, mine = _read(extraction, part, ("requestHandle",), around=True)
    place, _ = _places(calls, np.ones(len(calls.codes), bool))
    calls, place = calls.chosen(mine), place[mine]
    role = np.where(
        calls.called(_STARTS), STARTED, np.where(calls.called(_WAITS), COMPLETED, ASKED)
    ).astype(np.int8)
    _request_facts(extraction, calls, role)
    yield from _rows(extraction, part.table, calls, place == 0, {})


def _request_facts(extraction: Extraction, calls: _Calls, role: np.ndarray) -> None:
    """Set aside what the calls do with requests."""
    rows = np.flatnonzero(calls.columns["requestHandle"] != NULL)
    if len(rows):
        extraction.fact(
            REQUESTS,
            {
                "process": calls.process[rows],
                "object_thread": extraction.threads(calls.columns["globalTid"][rows]),
                "time_begin": calls.columns["start"][rows],
                "time_end": calls.columns["end"][rows],
                "role": role[rows],
                "request": calls.columns["requestHandle"][rows],
            },
        )


def _other(extraction: Extraction, part: Part) -> Iterator[Rows]:
    calls, _ = _read(extraction, part, ())
    yield from _rows(extraction, part.table, calls, np.ones(len(calls.codes), bool), {})


def _read(
    extraction: Extraction, part: Part, names: tuple[str, ...], around: bool = False
) -> tuple[_Calls, np.ndarray]:
    """Return the calls of a part and the indices of its own rows among them; `around`: some rows
    before and after it come along.
    """
    wanted = ("start", "end", "globalTid", "textId", *names)
    own = extraction.read(part, wanted, short=True)
    columns = {name: own[name] for name in wanted}
    mine = np.arange(own.rows)
    if around:
        whole = extraction.report.parts[part.table]
        sides = (
            Part(part.table, max(whole.first, part.first - NEIGHBOURS), part.first - 1),
            Part(part.table, part.last + 1, min(whole.last, part.last + NEIGHBOURS)),
        )
        before, after = (
            extraction.database.read(side, wanted) if side.first <= side.last else None
            for side in sides
        )
        pieces = [piece for piece in (before, own, after) if piece is not None]
        columns = {name: np.concatenate([piece[name] for piece in pieces]) for name in wanted}
        mine = mine + (before.rows if before else 0)
    thread = columns["globalTid"]
    process = np.where(thread == NULL, 0, thread & PROCESS_MASK)
    ids, codes = factorize(columns["textId"])
    processes, process_codes = factorize(process)
    ranks = _communicators(extraction).own_ranks(processes)
    calls = _Calls(
        [function_name(text) for text in extraction.strings(ids)],
        codes,
        columns,
        process,
        ranks[process_codes],
    )
    began, ended = (
        np.unique(process[calls.called(names)]) if part.table == OTHER else processes[:0]
        for names in (_BEGINNINGS, _ENDINGS)
    )
    extraction.fact(
        PROCESSES,
        {
            "process": processes,
            "rank": ranks,
            "began": np.isin(processes, began),
            "ended": np.isin(processes, ended),
        },
    )
    return calls, mine


def _places(calls: _Calls, concerned: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return, for the rows concerned, each row's place among the rows of its call, from 0, and
    their number. Others are the first of one.
    """
    place, of = np.zeros(len(concerned), np.int64), np.ones(len(concerned), np.int64)
    rows = np.flatnonzero(concerned)
    _, codes = factorize_together(
        *(calls.columns[name][rows] for name in ("globalTid", "start", "end", "textId"))
    )
    place[rows] = occurrence(codes)
    of[rows] = np.bincount(codes)[codes]
    return place, of


def _in_order(calls: _Calls) -> bool:
    """True if the rows of each thread are in the order of their begins, or of their ends."""
    by_thread = np.argsort(calls.columns["globalTid"], kind="stable")
    same = np.diff(calls.columns["globalTid"][by_thread]) == 0
    return any(
        (np.diff(calls.columns[name][by_thread])[same] >= 0).all() for name in ("start", "end")
    )


def _communicators(extraction: Extraction) -> Communicators:
    if "communicators" not in extraction.state_between_parts:
        extraction.state_between_parts["communicators"] = Communicators(
            extraction.report, extraction.database
        )
    return extraction.state_between_parts["communicators"]


def _communicator(communicators: Communicators, calls: _Calls) -> np.ndarray:
    return communicators.find(
        calls.rank, calls.columns["commHandle"], calls.columns["commUid"], calls.columns["start"]
    )


def _communicator_names(
    extraction: Extraction, communicators: Communicators, communicator: np.ndarray
) -> np.ndarray:
    """Return local name indices of communicators; ABSENT for those not known."""
    rows = np.flatnonzero(communicator != UNKNOWN)
    result = np.full(len(communicator), ABSENT)
    if len(rows):
        found, codes = factorize(communicator[rows])
        result[rows] = extraction.name(
            "mpi_communicators", codes, text=[communicators.names[index] for index in found]
        )
    return result


def _rows(
    extraction: Extraction,
    table: str,
    calls: _Calls,
    wanted: np.ndarray,
    fields: dict[str, np.ndarray],
) -> Iterator[Rows]:
    """Yield the wanted calls by layout. `fields` are those of the table's layout beside the name."""
    layouts = np.array(
        [LAYOUTS.index(layout_of(name, BY_TABLE[table])) for name in calls.names], np.int64
    )
    of_call = layouts[calls.codes]
    extraction.account.skipped[Reason.FURTHER_ROW] += len(wanted) - int(wanted.sum())
    if extraction.least:
        # Short calls are left out of the trace, not of the matching of messages.
        own = np.flatnonzero(wanted)
        wanted = np.zeros(len(wanted), bool)
        wanted[own] = extraction.long_enough(calls.columns["start"][own], calls.columns["end"][own])
    for index, layout in enumerate(LAYOUTS):
        rows = np.flatnonzero(wanted & (of_call == index))
        if not len(rows):
            continue
        used = np.flatnonzero(layouts == index)
        renumbered = np.searchsorted(used, calls.codes[rows])
        columns = {
            "call": extraction.name(layout, renumbered, text=[calls.names[code] for code in used])
        }
        columns.update(_fields(layout, len(rows)))
        if layout == BY_TABLE[table]:
            columns.update({name: column[rows] for name, column in fields.items()})
        start, end, thread = (calls.columns[name][rows] for name in ("start", "end", "globalTid"))
        yield Rows(layout, start, end, extraction.threads(thread), columns)


def _fields(layout: str, count: int) -> dict[str, np.ndarray]:
    """Return fields of calls whose table has no such columns."""
    absent, zero = np.full(count, ABSENT), np.zeros(count, np.int64)
    if layout == "mpi_point_to_point":
        return {"size": absent, "tag": absent, "partner": absent, "communicator": absent}
    return (
        {"sent": zero, "received": zero, "root": absent, "communicator": absent}
        if layout == "mpi_collective"
        else {}
    )


KINDS = (declare_kind("mpi_event_trace", extract),)
