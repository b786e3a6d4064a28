"""Collect the truth: the fate of collectives and messages, in true time, and the contents of reports as
written.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from .cluster import Cluster, Communicator, Ints, Team, Thread, make_handle, make_uid
from .data import DATA, read_columns
from .mpi import Table
from .nvtx import CATEGORY, DOMAIN, DOMAIN_NAMES, MARK, PUSH_POP, START_END, THREAD, CallNumbers
from .options import Options
from .program import Domain, Kind, Op, Payload, Program
from .report import Truth
from .timeline import Block

TALLIED = ("rows", "ns", "bytes")
VARYING_END = re.compile(r", (op_id|seq) = .*$| \d+$")  # of a range's text


class CollectiveTruth:
    """Keeps true begin and end of the collectives of every n-th step, up to a limit."""

    def __init__(self, options: Options, cluster: Cluster) -> None:
        self.options, self.cluster = options, cluster
        self.ordinals: Counter[int] = Counter()  # calls so far on each communicator
        self.total, self.every = 0, 1
        self.found: list[Truth] = []

    def record(self, program: Program, block: Block, epochs: Ints, first: int | None) -> None:
        """Record runs that begin at ``epochs``; the first is step ``first``, or no step at all."""
        if first is None:
            return
        listed = [
            (index, comm)
            for index in program.all_of(Kind.COLLECTIVE)
            for comm in self.cluster.all_of(program.ops[index].payload.group)
        ]
        self.total = len(listed) * self.options.steps
        self.every = max(1, -(-self.total // max(1, self.options.truth_collectives)))
        for run, epoch in enumerate(epochs.tolist()):
            for index, comm in listed:
                op, ordinal = program.ops[index], self.ordinals[comm.hash]
                grouped = op.payload.function == "Group"
                self.ordinals[comm.hash] += len(op.calls) if grouped else 1
                if (first + run) % self.every == 0:
                    told = {"step": first + run, "function": op.payload.function}
                    told |= {"communicator": comm.hash, "ordinal": ordinal, "bytes": op.bytes}
                    told["ranks"] = ranks = list(comm.ranks)
                    told["streams"] = [self.cluster.ranks[one].stream(op.stream) for one in ranks]
                    told["begin"], told["end"] = (
                        (epoch + np.rint(edge[run, ranks, index]).astype(np.int64)).tolist()
                        for edge in block.gpu
                    )
                    self.found.append(told | self._tell_more(program, op, comm, told))

    def _tell_more(self, program: Program, op: Op, comm: Communicator, told: Truth) -> Truth:
        """Return the facts about a collective that are included only on request."""
        calls = [program.nccl_calls[number] for number in op.calls]
        more: Truth = {"root": op.payload.root % len(comm.ranks)} if op.payload.root >= 0 else {}
        if op.payload.function == "Group":
            more["members"] = [{"function": call.function, "bytes": call.bytes} for call in calls]
        if self.options.advanced and op.payload.function != "SendRecv":
            numbers, step = CallNumbers(program, self.cluster, comm.ranks[0]), told["step"]
            more["api_ids"] = [numbers.api_id(number, step) for number in op.calls]
            more["sequence_numbers"] = [numbers.sequence(number, step) for number in op.calls]
        if self.options.bandwidth_truth:
            more |= _sum_costs(op.payload, calls, told["begin"], told["end"])
        return more

    def tell(self) -> Truth:
        """Return the sections of the truth."""
        told: Truth = {"collectives_total": self.total}
        told |= {"collectives_of_every_nth_step": self.every, "collectives": self.found}
        wanted = self.options.bandwidth_truth
        return told | ({"about_bandwidth": DATA["about"]["bandwidth"]} if wanted else {})


def _sum_costs(whole: Payload, calls: list[Payload], begin: list[int], end: list[int]) -> Truth:
    """Sum up wait, lateness, transfer and bandwidth of a collective, in the order of its ranks."""
    size, ring = len(begin), whole.function == "SendRecv"
    last = [
        max(begin[(rank + step) % size] for step in (-1, 0, 1)) if ring else max(begin)
        for rank in range(size)
    ]
    transfer = [done - ready for done, ready in zip(end, last, strict=True)]
    volume = float(whole.bytes) if ring else sum(call.count_bus_bytes(size) for call in calls)
    costs: Truth = {"late": [own - min(begin) for own in begin]}
    costs["wait"] = [ready - own for ready, own in zip(last, begin, strict=True)]
    costs |= {"transfer": transfer, "bus_bytes": volume}
    costs["bus_gb_per_s"] = [round(volume / ns, 6) for ns in transfer]
    if ring:
        costs["pairs"] = []
        for sender in range(size):
            receiver = (sender + whole.peer) % size
            ready = max(begin[sender], begin[receiver])
            pair = {"from": sender, "to": receiver, "bytes": whole.bytes, "ready": ready}
            rate = round(whole.bytes / (end[receiver] - ready), 6)
            costs["pairs"].append({**pair, "end": end[receiver], "gb_per_s": rate})
    return costs


class MpiTruth:
    """Collects the truth about MPI over all phases; steps are sampled, as for NCCL."""

    def __init__(self, options: Options, cluster: Cluster) -> None:
        self.options, self.grid = options, cluster.grid
        self.ordinals: dict[tuple[Any, ...], int] = {}
        self.kept = True  # whether the run being recorded is told in full
        self.totals = {"messages": 0, "unmatched": 0, "collectives": 0}
        self.found: dict[str, list[Truth]] = {kind: [] for kind in self.totals}

    def record(self, program: Program, block: Block, epochs: Ints, first: int | None) -> None:
        """Record runs that begin at ``epochs``; the first is step ``first``, or no step at all."""
        messages = self.options.ranks * max(1, len(program.messages)) * self.options.steps
        every = max(1, -(-messages // max(1, self.options.truth_collectives)))
        completing = {}  # of every operation that starts a request the one that completes it
        for index, call in program.list_mpi():
            if call.blocks:
                completing |= dict.fromkeys(call.waits, index)
        for run, epoch in enumerate(epochs.tolist()):
            step = None if first is None else first + run
            begin, end, arrived = (
                epoch + np.rint(np.nan_to_num(one[run])).astype(np.int64)
                for one in (block.host_begin, block.host_end, block.arrival)
            )
            self.kept = step is None or step % every == 0
            found = self._list_messages(program, completing, begin, end, arrived)
            for kind, told in [*found, *self._list_collectives(program, completing, begin, end)]:
                self.found[kind].append({"step": step, **told})

    def _next(self, kind: str, *key: int) -> int:
        """Count one more; return how many there were before."""
        self.totals[kind] += 1
        ordinal = self.ordinals.get(known := (kind == "collectives", *key), 0)
        self.ordinals[known] = ordinal + 1
        return ordinal

    def _list_messages(
        self, program: Program, completing: dict[int, int], begin: Ints, end: Ints, arrived: Ints
    ) -> Iterator[tuple[str, Truth]]:
        for number, message in enumerate(program.messages):
            kind = "unmatched" if message.receive < 0 else "messages"
            for sender, receiver in enumerate(message.to):
                if receiver < 0:
                    continue
                communicator = make_uid(self.grid.members(message.team, sender), message.team)
                ordinal = self._next(kind, communicator, sender, receiver, message.tag)
                if not self.kept:
                    continue
                told = {"sender": sender, "receiver": receiver, "tag": message.tag}
                told |= {"communicator": communicator, "bytes": message.size, "ordinal": ordinal}
                told["send"] = [int(edge[sender, message.send]) for edge in (begin, end)]
                if message.receive >= 0:
                    ends = ((message.send, sender), (message.receive, receiver))
                    functions = [program.ops[op].mpi.function_of(rank) for op, rank in ends]
                    last = completing.get(message.receive, message.receive)
                    size = message.find_received_size(program.ops[message.receive].mpi)
                    told |= {"capacity": size, "functions": functions}
                    received = [int(edge[receiver, message.receive]) for edge in (begin, end)]
                    told |= {"receive": received, "arrived": int(arrived[receiver, number])}
                    told["completed"] = int(end[receiver, last])
                yield kind, told

    def _list_collectives(
        self, program: Program, completing: dict[int, int], begin: Ints, end: Ints
    ) -> Iterator[tuple[str, Truth]]:
        for index, call in program.list_mpi():
            for members in self.grid.teams[call.team] if call.table is Table.COLLECTIVES else ():
                communicator, ranks = make_uid(members, call.team), list(members)
                ordinal = self._next("collectives", communicator)
                if not self.kept:
                    continue
                told = {"function": call.function, "communicator": communicator, "ordinal": ordinal}
                told["root"] = members[call.root % len(members)] if call.root >= 0 else None
                told |= {"size": call.sent, "recv_size": call.received, "ranks": ranks}
                ends = end[ranks, completing.get(index, index)]
                told |= {"begin": begin[ranks, index].tolist(), "end": ends.tolist()}
                yield "collectives", told

    def tell(self) -> Truth:
        """Return the section of the truth, if the job uses MPI."""
        if not self.options.mpi:
            return {}
        teams = [team for team in Team if team is not Team.OWN]
        known = [(team, members) for team in sorted(teams) for members in self.grid.teams[team]]
        known += [(Team.OWN, (rank,)) for rank in range(self.options.ranks) if rank % 2]
        communicators = [
            {"uid": make_uid(members, team), "kind": team.name.lower(), "ranks": list(members)}
            | {"handles": [make_handle(team, rank) for rank in members]}
            for team, members in known
        ]
        told: Truth = {"about": DATA["about"]["mpi"], "grid": [self.grid.rows, self.grid.columns]}
        told["communicators"] = communicators
        told |= {f"{kind}_total": total for kind, total in self.totals.items()}
        return {"mpi": told | self.found}


def sum_tables(path: Path) -> Truth:
    """Sum rows, ns and bytes of the events in a finished export, by table and by name, found as ``data.yaml``
    describes.
    """
    told: Truth = {}
    with closing(sqlite3.connect(path)) as database:
        texts = dict(database.execute("SELECT id, value FROM StringIds"))
        database.create_function("find_text", 1, texts.get, deterministic=True)
        database.create_function("name_range", 5, _name_range, deterministic=True)
        present = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
        for table in sorted(present & DATA["summed_tables"].keys()):
            how = {"bytes": "0", "of": "", **DATA["summed_tables"][table]}
            lasts = {"start", "end"} <= read_columns(table).keys()
            ns = 'sum(coalesce("end", start) - start)' if lasts else "0"
            query = f"SELECT {how['name']}, count(*), {ns}, sum({how['bytes']})"
            summed = database.execute(f"{query} FROM {table} {how['of']} GROUP BY 1 ORDER BY 1")
            by_name = {
                name: {"rows": rows, "ns": ns, "bytes": size or 0}
                for name, rows, ns, size in summed
            }
            sums = {key: sum(one[key] for one in by_name.values()) for key in TALLIED}
            told |= {table: {**sums, "by_name": by_name}} if by_name else {}
    return told


def _name_range(kind: int, domain: int, text: str, ends: bool, thread: int) -> str:
    """Name a row of NVTX_EVENTS by its writer: its event type, domain, text, whether it has an end, and its
    thread (distance from the pid).
    """
    plain = VARYING_END.sub("", text)
    if kind in (CATEGORY, THREAD, DOMAIN):
        return "definitions"
    if thread in (Thread.FORWARD, Thread.BACKWARD):
        return f"pytorch/{plain}"
    if domain == Domain.NCCL and kind == START_END:
        return f"NCCL/{'proxy' if text.startswith('ProxyOp') else 'GPU'} {text}"
    if domain == Domain.NCCL or (kind == PUSH_POP and thread != Thread.PIN_MEMORY):
        return f"{DOMAIN_NAMES[domain]}/{plain}"
    return "marks and start/end ranges" if ends or kind == MARK else "unfinished ranges"


def sum_mpi_calls(path: Path) -> Truth:
    """Sum the calls of MPI in a finished export and their ns by function, in the order of their
    first ones; a call has a row for each request, or two, for sending and for receiving, which begin
    together.
    """
    with closing(sqlite3.connect(path)) as database:
        present = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
        rows = " UNION ALL ".join(
            f"SELECT start, max(end) AS end, textId FROM {table} GROUP BY start, textId"
            for table in DATA["summed_tables"]
            if table.startswith("MPI_") and table in present
        )
        query = (
            f"SELECT value, count(*), sum(end - start) FROM ({rows}) JOIN StringIds ON id = textId"
        )
        found = database.execute(f"{query} GROUP BY textId ORDER BY min(start)")
        return {name: {"calls": calls, "ns": ns} for name, calls, ns in found}
