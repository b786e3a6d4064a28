"""Read MPI calls of host threads with communicators and partner ranks, and store facts to match
messages (:mod:`nsys2prv.match.mpi`).

nsys writes one row per call, with two exceptions, where several rows have the same thread and
start. A Wait or Test call has a row for each of its requests. MPI_Sendrecv has two rows, for the
sent and the received message, if these differ in partner, tag or size. The row of the sent message
ends where it starts. If both rows have the end of the call, the first one is the sent message, as
in the arguments of the function; in a table that is not sorted by calls, this is unknown. A row of
MPI_Sendrecv with MPI_PROC_NULL has no partner.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache, cached_property
from itertools import chain

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.columns import (
    ABSENT,
    blank_negative,
    count_occurrences,
    factorize,
    factorize_together,
    fill_with_zero,
    take_rows,
)
from nsys2prv._util.files import load_shipped_file
from nsys2prv.events.attributes import read_fields
from nsys2prv.events.catalogue import load_catalogue
from nsys2prv.events.extraction import Extraction
from nsys2prv.events.kind import Reason, Rows
from nsys2prv.export.communicators import MPICH_WORLD, SELF, UNKNOWN, WORLD, make_key
from nsys2prv.export.info import ReportInfo, find_processes
from nsys2prv.export.source import NULL, Part

P2P, COLLECTIVES, START_WAIT, OTHER = (
    f"MPI_{calls}_EVENTS" for calls in ("P2P", "COLLECTIVES", "START_WAIT", "OTHER")
)
#: Layouts of the catalogue; the set of names of each is called the same.
MPI_LAYOUTS = ("mpi_point_to_point", "mpi_collective", "mpi_other", "mpi_one_sided", "mpi_io")
_FUNCTION = re.compile(r"p?mpi(x?)_(\w+)", re.IGNORECASE)
#: Suffixes of Fortran interfaces (mpif.h, mpi_f08 with and without descriptors) and of the
#: large-count interface of MPI 4.
_SUFFIX = re.compile(r"(_f08ts|_f08|_fts|_f|_c)+$")
_ONE_SIDED = re.compile(
    r"MPI_(Win_|R?put$|R?get$|R?accumulate$|R?get_accumulate$|Fetch_and_op$|Compare_and_swap$)"
)
#: Table -> layout of calls whose names do not decide, and its columns in addition to those of all
#: tables.
TABLES = load_shipped_file("nsys2prv.events.catalogue", "mpi/tables.yaml")
#: Rows around a part in which further rows of its calls are looked for.
NEIGHBOURS = 4096

#: Facts: messages sent and received, requests, blocking collectives, and processes that call MPI.
MESSAGES, REQUESTS, MEETINGS, PROCESSES = (
    f"mpi_{fact}" for fact in ("messages", "requests", "meetings", "processes")
)
#: Roles of messages in facts: the call that transfers it, the one that prepares a persistent request
#: for it, or a call that either sends or receives it (its `source` is then the caller).
SEND, RECEIVE, SEND_INIT, RECEIVE_INIT, EITHER = 1, 2, 3, 4, 5
#: Replaces a communicator if the call has none, because it receives a message found by MPI_Mprobe.
ANYWHERE = -1
#: Roles of requests in facts: another use of its handle, the start of a persistent one, a call that
#: returns when it is complete, and one that may return earlier.
USED, STARTED, COMPLETED, ASKED = 1, 2, 3, 4
#: Who waits in a meeting.
ALL, FROM_ROOT, TO_ROOT, FROM_LOWER = 0, 1, 2, 3

#: Role -> names of the functions that have it.
_ROLES_FILE = load_shipped_file("nsys2prv.events.catalogue", "mpi/roles.yaml")
_ROLES = {role: [f"MPI_{name}" for name in names.split()] for role, names in _ROLES_FILE.items()}
#: Roles of blocking collectives -> waiting ranks. Collectives with equal sizes come first.
_WAITS = {
    "all_wait_of_equal_size": ALL,
    "all_wait": ALL,
    "all_wait_for_root": FROM_ROOT,
    "root_waits": TO_ROOT,
}
#: Blocking collective -> its number from 1, and who waits.
_MEETINGS = {
    name: (number, _WAITS[role])
    for number, (role, name) in enumerate(
        ((role, name) for role in _WAITS for name in _ROLES[role]), 1
    )
}


def list_meeting_values() -> tuple[dict[int, int], dict[int, int]]:
    """Return two maps for MPI collectives, the first for blocking calls, the second for nonblocking
    calls: event value -> the members that wait (ALL, FROM_ROOT, TO_ROOT, FROM_LOWER).
    """
    values = load_catalogue().name_sets["mpi_collective"].list_known_values()
    names = {name: who for name, (_, who) in _MEETINGS.items()}
    names |= dict.fromkeys(("MPI_Scan", "MPI_Exscan"), FROM_LOWER)
    later = {f"MPI_I{name.removeprefix('MPI_').lower()}": who for name, who in names.items()}
    blocking, at_once = (
        {values[name]: who for name, who in of.items() if name in values} for of in (names, later)
    )
    return blocking, at_once


class Communicators:
    """Finds the communicators of MPI calls in one report. A communicator's number is its index in
    `names`.
    """

    def __init__(self, info: ReportInfo) -> None:
        rows = info.communicators
        ranks = {row.rank for row in rows} or set(list(info.launcher_ranks.values())[:1])
        self._ranks = info.ranks
        #: For processes without a recorded rank, if there is only one.
        self._only_rank = ranks.pop() if len(ranks) == 1 and not info.ranks else UNKNOWN
        #: Index of the world communicator if only MPICH's handle identifies it.
        self._mpich_world = len(rows)
        self.names = [*(row.name for row in rows), WORLD]
        #: Of each and of UNKNOWN a number that means it in all reports, and how many ranks it has.
        self.keys = np.array([*(row.key for row in rows), make_key(WORLD), 0], np.int64)
        members = [row.members or () for row in rows]
        self.sizes = np.array([*map(len, members), 0, 0], np.int64)
        self._start = np.cumsum(self.sizes) - self.sizes
        self._table = np.array([*chain.from_iterable(members), UNKNOWN], np.int64)
        #: Rank, handle, time (local ns) from which the handle means the communicator, and the
        #: communicator's index. Communicators that no call made exist from the beginning.
        self._handles = _transpose(
            (row.rank, row.handle, NULL if row.name in {WORLD, SELF} else row.time, index)
            for index, row in enumerate(rows)
            if row.handle is not None
        )
        # Of several with one number the first counts.
        self._uids = _transpose(
            (row.rank, row.uid, 0, index)
            for index, row in reversed(list(enumerate(rows)))
            if row.uid is not None
        )
        places = [
            of.index(row.rank) if row.rank in of else UNKNOWN
            for row, of in zip(rows, members, strict=True)
        ]
        self._places = np.array([*places, UNKNOWN, UNKNOWN], np.int64)

    def find_own_ranks(self, processes: np.ndarray) -> np.ndarray:
        """Return the rank in MPI_COMM_WORLD of each process (globalPid), or UNKNOWN."""
        ranks = [self._ranks.get(process, self._only_rank) for process in processes.tolist()]
        return np.array(ranks, np.int64)

    def find(
        self, ranks: np.ndarray, handles: np.ndarray, uids: np.ndarray, times: np.ndarray
    ) -> np.ndarray:
        """Return the number of the communicator that each call uses, or UNKNOWN.

        ranks: rank of the caller. handles, uids: commHandle and commUid. A freed handle may be
        reused, so the latest communicator with this handle at the time of the call is used.
        """
        by_uid = _find_latest(self._uids, ranks, uids, np.zeros_like(times))
        by_handle = _find_latest(self._handles, ranks, handles, times)
        found = np.where(by_uid == UNKNOWN, by_handle, by_uid)
        found = np.where((found == UNKNOWN) & (handles == MPICH_WORLD), self._mpich_world, found)
        return np.where(self.keys[found] != 0, found, UNKNOWN)

    def to_world_ranks(self, communicators: np.ndarray, ranks: np.ndarray) -> np.ndarray:
        """Translate ranks in communicators to ranks in MPI_COMM_WORLD. Invalid ranks and unknown
        communicators give UNKNOWN; members without a report give NOT_REPORTED. communicators:
        numbers.
        """
        inside = (communicators != UNKNOWN) & (ranks >= 0) & (ranks < self.sizes[communicators])
        listed = self._table[np.where(inside, self._start[communicators] + ranks, -1)]
        return np.where((communicators == self._mpich_world) & (ranks >= 0), ranks, listed)

    def find_own_places(self, communicators: np.ndarray, ranks: np.ndarray) -> np.ndarray:
        """Return the caller's rank in each communicator, or UNKNOWN. ranks: of the callers in
        MPI_COMM_WORLD.
        """
        return np.where(communicators == self._mpich_world, ranks, self._places[communicators])


def _transpose(rows: Iterable[tuple[int, ...]]) -> np.ndarray:
    """Return rows as an array of four columns."""
    return np.array(list(rows), np.int64).reshape(-1, 4).T


def _find_latest(
    known: np.ndarray, ranks: np.ndarray, numbers: np.ndarray, times: np.ndarray
) -> np.ndarray:
    """Return the index of the latest known entry for each rank, number and time; of simultaneous
    ones the last, or UNKNOWN. known: ranks, numbers, times and indices.
    """
    _, codes = factorize_together(*map(np.append, known[:2], (ranks, numbers)))
    moments = np.unique(known[2])
    # A number for each code and moment, ascending.
    keys = codes * (len(moments) + 1)
    keys += np.searchsorted(moments, np.append(known[2], times), "right")
    own, wanted = np.split(keys, [len(known[2])])
    order = np.argsort(own, kind="stable")
    own, index = np.append(-1, own[order]), np.append(UNKNOWN, known[3][order])
    place = np.searchsorted(own, wanted, "right") - 1
    is_known = own[place] // (len(moments) + 1) == wanted // (len(moments) + 1)
    return np.where(is_known, index[place], UNKNOWN)


class _CallRows(Struct, dict=True):
    """Rows of an MPI table. All arrays have one element per row."""

    #: Extraction that read the rows.
    extraction: Extraction
    #: Table of the rows.
    table: str
    #: Names of functions, by code.
    names: list[str]
    #: Index of each row's function.
    codes: np.ndarray
    #: Column of the table -> int64; also `process` (globalPid) and `rank` (of the process in
    #: MPI_COMM_WORLD, UNKNOWN if not known).
    columns: dict[str, np.ndarray]
    #: The communicators of the report.
    communicators: Communicators

    def mask_role(self, *roles: str) -> np.ndarray:
        """Return a mask of the rows whose functions have one of these roles."""
        functions = {name for role in roles for name in _ROLES[role]}
        return np.array([name in functions for name in self.names], bool)[self.codes]

    def take(self, rows: np.ndarray) -> _CallRows:
        """Return the rows with these indices."""
        columns = take_rows(self.columns, rows)
        return replace(self, codes=self.codes[rows], columns=columns)

    @cached_property
    def communicator(self) -> np.ndarray:
        """Return the communicator number of each call, or UNKNOWN."""
        names = ("rank", "commHandle", "commUid", "start")
        return self.communicators.find(*(self.columns[name] for name in names))

    def to_world_ranks(self, column: str) -> np.ndarray:
        """Return the ranks in a column, translated to ranks in MPI_COMM_WORLD."""
        return self.communicators.to_world_ranks(self.communicator, self.columns[column])

    def save_fact(self, fact: str, rows: np.ndarray, **columns: np.ndarray) -> None:
        """Store these columns of some rows as a fact, with process and times."""
        if not len(rows):
            return
        own = {"process": "process", "time_begin": "start", "time_end": "end"}
        columns = {name: self.columns[column] for name, column in own.items()} | columns
        chosen = take_rows(columns, rows)
        if "request" in chosen:
            thread = self.columns["globalTid"][rows]
            chosen["object_thread"] = self.extraction.intern_threads(thread)
        self.extraction.add_fact(fact, chosen)


def extract_mpi_calls(extraction: Extraction, part: Part) -> Iterator[Rows]:
    """Yield MPI calls, and store facts to match them with calls of other ranks."""
    calls, own_rows = _read_calls(extraction, part)
    if part.table == P2P:
        yield from _extract_point_to_point(calls, own_rows)
    elif part.table == COLLECTIVES:
        yield from _extract_collectives(calls)
    elif part.table == START_WAIT:
        place, *_ = _find_places(calls, np.ones(len(calls.codes), bool))
        calls, place = calls.take(own_rows), place[own_rows]
        started, waited = map(calls.mask_role, ("starts_requests", "waits_for_requests"))
        _save_requests(calls, np.select([started, waited], [STARTED, COMPLETED], ASKED))
        yield from _make_rows(calls, place == 0)
    else:
        yield from _make_rows(calls)


def _extract_point_to_point(calls: _CallRows, own_rows: np.ndarray) -> Iterator[Rows]:
    both = calls.mask_role("sends_and_receives")
    place, row_count, first_end, end = _find_places(calls, both)
    is_known = both & ((row_count == 1) | (first_end != end) | _is_in_order(calls))
    calls.columns["end"] = end
    calls = calls.take(own_rows)
    both, place, row_count, is_known = (
        column[own_rows] for column in (both, place, row_count, is_known)
    )
    # UNKNOWN if the call names no partner: MPI_ANY_SOURCE and MPI_PROC_NULL are negative.
    partner = calls.to_world_ranks("remoteRank")
    key = calls.communicators.keys[calls.communicator]
    no_handle = (calls.columns["commHandle"] == NULL) & (calls.columns["commUid"] == NULL)
    key = np.where(no_handle & calls.mask_role("receives"), ANYWHERE, key)
    both &= calls.columns["remoteRank"] != NULL
    is_known &= both
    sent, received = is_known & (place == 0), is_known & ((place == 1) | (row_count == 1))
    for role, rows in (
        (SEND, calls.mask_role("sends") | sent),
        (RECEIVE, calls.mask_role("receives") | received),
        (SEND_INIT, calls.mask_role("prepares_to_send")),
        (RECEIVE_INIT, calls.mask_role("prepares_to_receive")),
        (EITHER, both & ~is_known),
    ):
        is_sent = role in (SEND, SEND_INIT, EITHER)
        calls.save_fact(
            MESSAGES,
            np.flatnonzero(rows),
            role=np.full(len(rows), role, np.int8),
            communicator=key,
            source=calls.columns["rank"] if is_sent else partner,
            destination=partner if is_sent else calls.columns["rank"],
            named=calls.columns["remoteRank"] >= 0,
            tag=calls.columns["tag"],
            size=calls.columns["size"],
            request=calls.columns["requestHandle"],
        )
    yield from _make_rows(calls, place == 0, partner=blank_negative(partner))


def _extract_collectives(calls: _CallRows) -> Iterator[Rows]:
    _save_requests(calls, np.full(len(calls.codes), USED))
    meetings = [_MEETINGS.get(name, (0, ALL)) for name in calls.names]
    function, waits = np.array(meetings, np.int64).reshape(-1, 2)[calls.codes].T
    key = calls.communicators.keys[calls.communicator]
    root = calls.to_world_ranks("rootRank")
    # Sizes are used only if they are equal on all ranks.
    sizes_tell = function <= len(_ROLES["all_wait_of_equal_size"])
    size = np.where(sizes_tell, fill_with_zero(calls.columns["size"]), 0)
    timed = (calls.columns["start"] != NULL) & (calls.columns["end"] != NULL)
    calls.save_fact(
        MEETINGS,
        np.flatnonzero((function > 0) & (key != 0) & timed),
        communicator=key,
        waits=waits,
        is_root=(root == calls.columns["rank"]) & (root != UNKNOWN),
        signature=((size & 0xFFFFFFFFFFFF) << 8) | function,
    )
    sizes = _find_sizes(calls) if calls.extraction.stores else {}
    yield from _make_rows(calls, root=blank_negative(root), **sizes)


def _find_sizes(calls: _CallRows) -> dict[str, np.ndarray]:
    """Return the bytes that each collective sends and receives, as fields, from the counts in the
    call's arguments; ABSENT if unknown.

    nsys records the bytes of all members together. With MPI_IN_PLACE, the caller's own part is
    missing. This is detected if the bytes do not divide evenly among the other members, or if the
    root has a different size. If it is not detected, the result is too small by one member's share.
    """
    communicators = calls.communicators
    sent, received = (blank_negative(calls.columns[name]) for name in ("size", "recvSize"))
    members = communicators.sizes[calls.communicator]
    place = communicators.find_own_places(calls.communicator, calls.columns["rank"])
    scans, scans_others = calls.mask_role("scans"), calls.mask_role("scans_others")
    shares = []
    for size, other, role, to_others, rooted in (
        (sent, received, "sent_for_all", members - 1 - place, "from_root_of_equal_size"),
        (received, sent, "received_from_all", place, "to_root_of_equal_size"),
    ):
        multiplied = scans | scans_others | calls.mask_role(role)
        parts = np.select([scans, scans_others], [to_others + 1, to_others], members)
        parts = np.where((members > 0) & (place >= 0), parts, 0)
        in_place = calls.mask_role(rooted) & (other == ABSENT)
        in_place |= ~scans_others & (size % np.maximum(parts, 1) != 0)
        parts = np.where(multiplied, parts - in_place, 1)
        share = np.where(parts > 0, size // np.maximum(parts, 1), ABSENT)
        even = size % np.maximum(parts, 1) == 0
        shares.append(np.where((size == ABSENT) | ~even, ABSENT, share))
    return {"sent": shares[0], "received": shares[1]}


def _save_requests(calls: _CallRows, role: np.ndarray) -> None:
    """Store facts about the requests that calls create, complete or free."""
    request = calls.columns["requestHandle"]
    rows = np.flatnonzero(request != NULL)
    calls.save_fact(REQUESTS, rows, role=role.astype(np.int8), request=request)


def _read_calls(extraction: Extraction, part: Part) -> tuple[_CallRows, np.ndarray]:
    """Return the calls of a part, and the indices of the part's own rows. If a call may have
    several rows, some rows before and after the part are included.
    """
    wanted = ("start", "end", "globalTid", "textId", *TABLES[part.table]["columns"])
    own = extraction.read(part, wanted, short=True)
    pieces, first = [own], 0
    if part.table in (P2P, START_WAIT):
        whole = extraction.report.parts[part.table]
        before = replace(part, first=max(whole.first, part.first - NEIGHBOURS), last=part.first - 1)
        after = replace(part, first=part.last + 1, last=min(whole.last, part.last + NEIGHBOURS))
        if before.first <= before.last:
            pieces.insert(0, extraction.database.read(before, wanted))
            first = pieces[0].rows
        if after.first <= after.last:
            pieces.append(extraction.database.read(after, wanted))
    columns = {name: np.concatenate([piece[name] for piece in pieces]) for name in wanted}
    own_rows = np.arange(first, first + own.rows)
    communicators = extraction.find_once("communicators", lambda: Communicators(extraction.report))
    process = columns["process"] = find_processes(columns["globalTid"])
    ids, codes = factorize(columns["textId"])
    processes, process_codes = factorize(process)
    ranks = communicators.find_own_ranks(processes)
    columns["rank"] = ranks[process_codes]
    names = [normalize_function_name(text) for text in extraction.read_strings(ids)]
    calls = _CallRows(extraction, part.table, names, codes, columns, communicators)
    began, ended = (
        np.isin(processes, process[calls.mask_role(role)]) for role in ("begins", "ends")
    )
    fact = {"process": processes, "rank": ranks, "began": began, "ended": ended}
    extraction.add_fact(PROCESSES, fact)
    return calls, own_rows


def _find_places(calls: _CallRows, concerned: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return, for the rows concerned, the row's position among the rows of its call (from 0, by
    end), the number of these rows, and their first and last end. Any other row counts as the only
    row of its call.
    """
    place, row_count = np.zeros(len(concerned), np.int64), np.ones(len(concerned), np.int64)
    first, last = calls.columns["end"].copy(), calls.columns["end"].copy()
    rows = np.flatnonzero(concerned)
    rows = rows[np.argsort(last[rows], kind="stable")]
    of_call = (calls.columns[name][rows] for name in ("globalTid", "start", "textId"))
    _, codes = factorize_together(*of_call)
    place[rows] = count_occurrences(codes)
    row_count[rows] = np.bincount(codes)[codes]
    ends = np.zeros((2, codes.max(initial=-1) + 1), np.int64)
    ends[0, codes[::-1]] = first[rows[::-1]]
    ends[1, codes] = last[rows]
    first[rows], last[rows] = ends[:, codes]
    return place, row_count, first, last


def _is_in_order(calls: _CallRows) -> bool:
    """Return True if the rows of each thread are sorted by start or by end."""
    by_thread = np.argsort(calls.columns["globalTid"], kind="stable")
    same = np.diff(calls.columns["globalTid"][by_thread]) == 0
    return any(
        (np.diff(calls.columns[name][by_thread])[same] >= 0).all() for name in ("start", "end")
    )


@cache
def _map_known_names() -> dict[str, tuple[str, str]]:
    """Return function name in lower case -> (its spelling, its layout)."""
    sets = load_catalogue().name_sets
    return {
        name.lower(): (name, layout)
        for layout in MPI_LAYOUTS
        for name in sets[layout].list_known_values()
    }


def normalize_function_name(text: str) -> str:
    """Return the standard C spelling of an MPI function: MPI_Send for `mpi_send_`, `PMPI_Send` and
    `MPI_Send_c`. Other texts are returned unchanged.
    """
    match = _FUNCTION.fullmatch(text.strip())
    if match is None:
        return text
    prefix, rest = f"MPI{match[1].upper()}_", match[2].lower().rstrip("_")
    for candidate in (rest, _SUFFIX.sub("", rest)):
        if (prefix + candidate).lower() in _map_known_names():
            return _map_known_names()[(prefix + candidate).lower()][0]
    return prefix + (_SUFFIX.sub("", rest) or rest).capitalize()


def find_layout(function: str, otherwise: str) -> str:
    """Return the layout (type of record) of an MPI function; `otherwise` for unknown functions."""
    if function.lower() in _map_known_names():
        return _map_known_names()[function.lower()][1]
    if function.startswith("MPI_File_"):
        return "mpi_io"
    return "mpi_one_sided" if _ONE_SIDED.match(function) else otherwise


def _name_communicators(calls: _CallRows) -> np.ndarray:
    """Return the local name index of each call's communicator, or ABSENT."""
    names = calls.communicators.names
    number = calls.communicator
    return calls.extraction.name_rows(
        "mpi_communicators", [number], lambda met: [names[at] for at in met], number != UNKNOWN
    )


def _make_rows(
    calls: _CallRows, wanted: np.ndarray | None = None, **fields: np.ndarray
) -> Iterator[Rows]:
    """Yield rows of MPI calls by layout. wanted: mask of the calls (default: all). fields: of the
    table's layout that have no column.
    """
    if wanted is None:
        wanted = np.ones(len(calls.codes), bool)
    extraction, own_layout = calls.extraction, TABLES[calls.table]["layout"]
    if not extraction.stores:
        # Their times count, and the threads that they are on.
        start, end, thread = (calls.columns[name] for name in ("start", "end", "globalTid"))
        yield Rows(own_layout, start, end, extraction.intern_threads(thread), {}).where(wanted)
        return
    if fields:
        fields["communicator"] = _name_communicators(calls)
        fields |= read_fields(extraction, own_layout, calls.columns)
    found = [MPI_LAYOUTS.index(find_layout(name, own_layout)) for name in calls.names]
    layouts = np.array(found, np.int64)
    of_call = layouts[calls.codes]
    extraction.account.skipped[Reason.FURTHER_ROW] += len(wanted) - int(wanted.sum())
    # Short calls are excluded from the trace, but not from the matching of messages.
    own = np.flatnonzero(wanted)
    times = (calls.columns[name][own] for name in ("start", "end"))
    wanted = np.zeros(len(wanted), bool)
    wanted[own] = extraction.mask_long_enough(*times)
    for index, layout in enumerate(MPI_LAYOUTS):
        rows = np.flatnonzero(wanted & (of_call == index))
        if not len(rows):
            continue
        used = np.flatnonzero(layouts == index)
        places = np.searchsorted(used, calls.codes[rows])
        names = [calls.names[code] for code in used]
        columns = {"call": extraction.intern_names(layout, places, text=names)}
        if layout == own_layout:
            columns |= take_rows(fields, rows)
        start, end, thread = (calls.columns[name][rows] for name in ("start", "end", "globalTid"))
        yield Rows(layout, start, end, extraction.intern_threads(thread), columns)
