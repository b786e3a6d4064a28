"""Simulate small jobs of MPI by the rules of its protocols, without asynchronous progress, and write the
reports that Nsight Systems would write.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tools.exports import Row, make_export, make_global_tid, make_strings

#: ns of a call by itself, and of a byte.
CALL, BYTE, LATENCY = 2_000, 0.1, 3_000
WORLD = 7000
MS = 1_000_000
#: Yields a function that returns when something is so, None where that is not known yet; or ns of work.
Steps = Generator["Callable[[], int | None] | int", None, None]


@dataclass
class Protocols:
    """Bytes up to which sends are local, and up to which they need their receiver inside of MPI alone."""

    local: int = 256
    inside: int = 4096


@dataclass
class Message:
    source: int
    place: int
    sent: int
    size: int
    #: What the send waits for: local, inside or posted.
    rule: str


@dataclass
class Rank:
    """A process: the program that it runs calls these functions with `yield from`."""

    job: Job
    number: int
    now: int = 0
    #: Begin and end of calls; the last may be open.
    inside: list[list[int | None]] = field(default_factory=list)
    rows: list[tuple[str, Row]] = field(default_factory=list)
    handles: int = 100
    collectives: int = 0

    def work(self, time: int) -> Steps:
        yield time

    def enter_after(self, time: int) -> int | None:
        """Return when it is inside of MPI next."""
        for begin, end in self.inside:
            if end is None or end > time:
                return max(time, begin or 0)
        return None

    def call(self, name: str, table: str, done: Callable[[], int | None], *rows: Row) -> Steps:
        """Make a call that ends when something is so."""
        begin = self.now
        self.inside.append([begin, None])
        yield lambda: None if (time := done()) is None else max(time, begin + CALL)
        self.inside[-1][1] = self.now
        for row in rows or ({},):
            own = {"start": begin, "end": self.now, "name": name, **row}
            self.rows.append((table, own))

    def at_once(self) -> int:
        return self.now

    def _send(self, to: int, size: int, rule: str) -> Callable[[], int | None]:
        message = self.job.send(self.number, to, size, rule, self.now)
        return lambda: self.job.find_released(message, to)

    def _receive(self, source: int) -> Callable[[], int | None]:
        place = self.job.post(source, self.number)
        return lambda: self.job.find_arrived(source, self.number, place)

    def send(self, to: int, size: int, name: str = "MPI_Send") -> Steps:
        rule = "posted" if "Ss" in name else ""
        done = self._send(to, size, rule)
        yield from self.call(name, "MPI_P2P_EVENTS", done, self._describe(to, size))

    def recv(self, source: int, size: int) -> Steps:
        done = self._receive(source)
        yield from self.call("MPI_Recv", "MPI_P2P_EVENTS", done, self._describe(source, size))

    def sendrecv(self, to: int, source: int, size: int) -> Steps:
        both = self._send(to, size, ""), self._receive(source)
        rows = self._describe(to, size), self._describe(source, size)
        yield from self.call("MPI_Sendrecv", "MPI_P2P_EVENTS", lambda: latest(both), *rows)

    def start(self, name: str, partner: int, size: int) -> Generator:
        """Start a request; returns its handle and when it is done."""
        done = self._send(partner, size, "") if "send" in name else self._receive(partner)
        self.handles += 1
        row = {**self._describe(partner, size), "requestHandle": self.handles}
        yield from self.call(name, "MPI_P2P_EVENTS", self.at_once, row)
        return self.handles, done

    def wait(
        self, *requests: tuple[int, Callable[[], int | None]], name: str = "MPI_Waitall"
    ) -> Steps:
        rows = ({"requestHandle": handle} for handle, _ in requests)
        done = [one for _, one in requests]
        yield from self.call(name, "MPI_START_WAIT_EVENTS", lambda: latest(done), *rows)

    def poll(self, request: tuple[int, Callable[[], int | None]]) -> Steps:
        """Test a request until it is complete: only the last test is recorded."""
        handle, done = request
        self.inside.append([self.now, None])
        yield done
        self.inside[-1][1] = self.now + CALL
        row = {"start": self.now, "end": self.now + CALL, "name": "MPI_Test"}
        self.rows.append(("MPI_START_WAIT_EVENTS", {**row, "requestHandle": handle}))
        yield CALL

    def meet(
        self, name: str, awaits: Callable[[int], bool], root: int | None = None, size: int = 8
    ) -> Steps:
        """Make a collective in which it waits for the ranks that `awaits` names."""
        come = self.job.meet(self)
        others = [one for one in range(len(self.job.ranks)) if awaits(one)]

        def is_done() -> int | None:
            return (
                max(come[one] for one in others) + LATENCY
                if all(one in come for one in others)
                else None
            )

        done = is_done if others else self.at_once
        row = {"commHandle": WORLD, "size": size, "rootRank": root}
        yield from self.call(name, "MPI_COLLECTIVES_EVENTS", done, row)

    def barrier(self) -> Steps:
        yield from self.meet("MPI_Barrier", lambda _: True)

    def _describe(self, partner: int, size: int) -> Row:
        return {
            "commHandle": WORLD,
            "tag": 1,
            "remoteRank": partner,
            "size": size,
            "requestHandle": None,
        }


def latest(conditions: list | tuple) -> int | None:
    """Return when all of some conditions hold."""
    times = [one() for one in conditions]
    return None if None in times else max(times)


class Job:
    """Ranks that run a program, one of which may be late."""

    def __init__(
        self,
        ranks: int,
        protocols: Protocols,
        program: Callable[[Rank], Steps],
        slower: Callable[[int, int], float] = lambda source, to: 1,
        per_host: int = 1 << 20,
    ) -> None:
        """slower: how many times as long a byte takes from one rank to another."""
        self.slower, self.per_host = slower, per_host
        self.ranks = [Rank(self, number) for number in range(ranks)]
        self.protocols = protocols
        self.sent: dict[tuple[int, int], list[Message]] = {}
        self.posted: dict[tuple[int, int], list[int]] = {}
        self.come: list[dict[int, int]] = []
        #: What a pattern of its own keeps: when ranks did something.
        self.epochs: dict[object, list[int]] = {}
        self.run([self.start(rank, program) for rank in self.ranks])

    def start(self, rank: Rank, program: Callable[[Rank], Steps]) -> Steps:
        yield from rank.call("MPI_Init", "MPI_OTHER_EVENTS", lambda: 10_000)
        yield from program(rank)
        yield from rank.meet("MPI_Barrier", lambda _: True)
        yield from rank.call("MPI_Finalize", "MPI_OTHER_EVENTS", rank.at_once)

    def run(self, programs: list[Steps]) -> None:
        """Let all ranks go on in the order of time."""
        waiting: dict[int, Callable[[], int | None] | int] = dict.fromkeys(range(len(programs)), 0)
        while waiting:
            times = {
                number: self.ranks[number].now + one if isinstance(one, int) else one()
                for number, one in waiting.items()
            }
            known = {number: time for number, time in times.items() if time is not None}
            assert known, "a deadlock"
            number = min(known, key=lambda one: (known[one], one))
            self.ranks[number].now = known[number]
            try:
                waiting[number] = next(programs[number])
            except StopIteration:
                del waiting[number]

    @property
    def length(self) -> int:
        return max(rank.now for rank in self.ranks)

    def send(self, source: int, to: int, size: int, rule: str, now: int) -> Message:
        limits, sent = self.protocols, self.sent.setdefault((source, to), [])
        usual = "local" if size <= limits.local else "inside" if size <= limits.inside else "posted"
        sent.append(Message(source, len(sent), now, size, rule or usual))
        return sent[-1]

    def post(self, source: int, to: int) -> int:
        """Post a receive; returns which of its kind it is."""
        posted = self.posted.setdefault((source, to), [])
        posted.append(self.ranks[to].now)
        return len(posted) - 1

    def find_released(self, message: Message, to: int) -> int | None:
        """Return when a send is complete."""
        if message.rule == "local":
            return message.sent
        since = message.sent
        if message.rule == "posted":
            posted = self.posted.get((message.source, to), [])
            if message.place >= len(posted):
                return None
            since = max(since, posted[message.place])
        there = self.ranks[to].enter_after(since)
        return None if there is None else there + self.measure(message, to)

    def find_arrived(self, source: int, to: int, place: int) -> int | None:
        """Return when a receive is complete."""
        sent = self.sent.get((source, to), [])
        if place >= len(sent):
            return None
        since = max(sent[place].sent, self.posted[source, to][place])
        there = self.ranks[to].enter_after(since)
        return None if there is None else there + self.measure(sent[place], to)

    def measure(self, message: Message, to: int) -> int:
        """Return how long the data of a message move."""
        return LATENCY + int(message.size * BYTE * self.slower(message.source, to))

    def meet(self, rank: Rank) -> dict[int, int]:
        if rank.collectives == len(self.come):
            self.come.append({})
        come = self.come[rank.collectives]
        rank.collectives += 1
        come[rank.number] = rank.now
        return come

    def write(self, folder: Path) -> list[Path]:
        """Write a report for each rank."""
        return [*self._write(folder)]

    def _write(self, folder: Path) -> Iterator[Path]:
        members = ",".join(str(rank.number) for rank in self.ranks)
        folder.mkdir(parents=True, exist_ok=True)
        for rank in self.ranks:
            names = [*dict.fromkeys(row["name"] for _, row in rank.rows)]
            thread = make_global_tid(1 + rank.number, 1 + rank.number)
            tables: dict[str, list[Row]] = {}
            for table, row in rank.rows:
                text = names.index(row["name"]) + 1
                rest = {name: value for name, value in row.items() if name != "name"}
                tables.setdefault(table, []).append({**rest, "globalTid": thread, "textId": text})
            own = {"rank": rank.number, "timestamp": 0, "commHandle": WORLD, "members": members}
            tables |= {
                "TARGET_INFO_SYSTEM_ENV": [
                    {"name": "Hostname", "value": f"node{1 + rank.number // self.per_host}"}
                ],
                "StringIds": make_strings(*names),
                "MPI_RANKS": [{"globalTid": thread, "rank": rank.number}],
                "MPI_COMMUNICATORS": [{**own, "localRank": rank.number, "size": len(self.ranks)}],
            }
            yield make_export(folder / f"rank{rank.number}.sqlite", tables)
