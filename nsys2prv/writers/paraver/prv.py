"""Write a .prv, with the .pcf and .row beside it.

A line of the .prv is a sequence of parts. Lines come in batches with the same parts, and their
numbers are in columns. Batches are merged by time, and formatted by the compiled `native/lines.c`
if it is installed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from functools import cached_property
from itertools import accumulate, chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import ClassVar

import numpy as np
import polars as pl
from msgspec import Struct, field

from nsys2prv._util.budget import TEXT_BYTES
from nsys2prv._util.columns import ABSENT
from nsys2prv._util.errors import Nsys2prvError
from nsys2prv._util.files import name_beside
from nsys2prv._util.native import core
from nsys2prv.events.catalogue import CALLERS, DomainCode, Field, load_catalogue
from nsys2prv.table.runs import Run, find_present_fields, read_run
from nsys2prv.table.samples import read_samples
from nsys2prv.table.slices import AlikeRanges, Slice, list_closings
from nsys2prv.table.windows import Window
from nsys2prv.writers import MOST_OBJECTS, TraceContent, WindowBytes
from nsys2prv.writers.paraver.pcf import (
    RANK,
    abbreviate_kernels,
    format_row_file,
    make_counter_types,
    make_event_types,
    number_metrics,
    write_pcf,
)
from nsys2prv.writers.rows import GPU_ROWS, MAIN_ROWS, ObjectModel, ObjectTree

#: Padding after texts: the compiled writer copies 16 bytes at once.
_BEHIND = bytes(16)


class Choice(Struct, frozen=True, dict=True):
    """A part of a line that is one of several texts, chosen by index."""

    #: The text of each index.
    texts: tuple[bytes, ...]

    @cached_property
    def joined(self) -> tuple[bytes, np.ndarray]:
        """All texts concatenated as bytes, and an array of where each starts and where the last
        ends (int32).
        """
        return b"".join(self.texts) + _BEHIND, np.cumsum([0, *map(len, self.texts)], dtype=np.int32)


#: Layouts of calls that have a communicator.
COMMUNICATING = frozenset(("mpi_point_to_point", "mpi_collective"))
#: Integers of any size, from 0 up; or indices, and the numbers (int64) they refer to.
Column = np.ndarray | tuple[np.ndarray, np.ndarray]
#: A text that is the same in all lines, one of several texts by a column, or the numbers of a column.
Part = bytes | tuple[Choice, Column] | Column


class Batch(Struct):
    """Lines of the .prv that consist of the same parts, such as all records of one layout."""

    #: Time of each line, ns.
    times: np.ndarray
    #: Parts of each line, before its end.
    parts: Sequence[Part]
    #: Order among lines of equal time.
    ties: np.ndarray | None = None


#: Rows for devices of a machine if only some of its ranks are converted.
SPARE_ROWS = 100


#: Choices of rows that a trace with too many rows is offered, the first one that is small enough.
FEWER_ROWS = ((MAIN_ROWS, GPU_ROWS), (GPU_ROWS,), (MAIN_ROWS,))


def check_rows(model: ObjectModel) -> None:
    """Raise Nsys2prvError if the trace has more rows than Paraver can show. The message names the
    rows and the ranks that would fit.
    """
    rows = list(accumulate(len(task.threads) for task in model.tree.tasks))
    if rows and rows[-1] > MOST_OBJECTS:
        offers = []
        words = model.list_row_words()
        for choice in FEWER_ROWS:
            kept = sum(not set(choice).isdisjoint(of_row) for of_row in words)
            if 0 < kept <= MOST_OBJECTS:
                offers.append(f"--keep-rows {','.join(choice)} ({kept:,} rows)")
                break
        # Rows of devices come after the rows of processes.
        own = rows[: len(model.processes)]
        most = MOST_OBJECTS - SPARE_ROWS - rows[-1] + own[-1]
        fitting = model.processes[: bisect_right(own, most)]
        if known := [one.rank for one in fitting if one.rank is not None]:
            offers.append(f"some ranks, such as --ranks {min(known)}-{max(known)}")
        offers.append("fewer kinds, such as -t mpi,nccl,device_state")
        raise Nsys2prvError(
            f"the trace would have {rows[-1]:,} rows, but Paraver can show {MOST_OBJECTS:,}; try "
            f"{', '.join(offers)}, or out.pftrace, which has no such limit"
        )


class ParaverWriter(Struct, dict=True):
    """Writes .prv files, with the .pcf (labels) and .row (names of rows) beside them."""

    unit: ClassVar[str] = "lines"
    draws_launches: ClassVar[bool] = False
    beside: ClassVar[tuple[str, ...]] = (".pcf", ".row")
    opening: ClassVar[str] = ""

    #: Address of every thread, as records name it.
    addresses: list[str] = field(default_factory=list)
    #: (name, number) of every NVTX domain.
    domain_codes: list[tuple[str, int]] = field(default_factory=list)
    #: Event type by layout and label.
    counter_codes: dict[tuple[str, str], int] = field(default_factory=dict)
    #: Zeros for every sampled number, at the end of the trace.
    closings: list[pl.DataFrame] = field(default_factory=list)
    #: Layout -> bits of the fields to write.
    field_masks: Mapping[str, int] = field(default_factory=dict)
    #: Distinct callers, by level: event values, ABSENT after the last one.
    callers: np.ndarray = np.zeros((0, 0), np.int64)

    def begin(self, content: TraceContent) -> bytes:
        """Return the header line, and comment lines about the clocks. Raise Nsys2prvError if there
        are more rows than Paraver can show.
        """
        check_rows(content.model)
        self.addresses, self.domain_codes = content.model.tree.addresses, content.domain_codes
        self.field_masks, self.callers = content.layouts, content.global_ids.callers
        self.counter_codes = number_metrics(content.metrics)
        sampled = defaultdict(list)
        for row, metrics in sorted(content.sampled.items()):
            sampled[tuple(sorted({self.counter_codes[metric] for metric in metrics}))].append(row)
        for codes, rows in sorted(sampled.items()):
            ends = pl.DataFrame({"time": content.duration, "row": rows})
            zeros = (pl.lit(0, pl.Int64).alias(str(code)) for code in codes)
            self.closings.append(ends.with_columns(zeros))
        # From the reports, so that the same reports always give the same bytes.
        date = content.begin_utc or datetime.fromtimestamp(0, timezone.utc)
        uses_mpi = not COMMUNICATING.isdisjoint(content.layouts)
        members = content.model.members if uses_mpi else []
        header = _format_header(content.model.tree, date, content.duration, members)
        return (header + content.comments).encode()

    def window(self, window: Window, number: int, is_last: bool) -> WindowBytes:
        """Return the lines of a time window, sorted by time."""
        tables, repeated = read_samples(window.samples, self.counter_codes)
        tables += self.closings if is_last else []
        batches = [*self._make_batches(window), *map(self._make_sample_batch, tables)]
        return WindowBytes(merge_lines(batches), sum(len(one.times) for one in batches), repeated)

    def end(self, content: TraceContent, trace: Path) -> None:
        """Write the .pcf and the .row."""
        pcf, row = (name_beside(trace, ending) for ending in self.beside)
        counters = make_counter_types(content.metrics, self.counter_codes)
        held = dict.fromkeys(content.layouts, 0)
        for run in content.runs:
            if run.index is not None:
                name = run.shape.name
                held[name] |= (run.index.always | run.index.some) & content.layouts[name]
        values = content.values
        if not content.full_kernel_names:
            values = {**values, **abbreviate_kernels(values)}
        domains, ranks = dict(content.domain_codes), _list_ranks(content.runs)
        types = make_event_types(held, values, domains, counters, ranks)
        states = load_catalogue().states if content.has_states else ()
        with pcf.open("wb") as file:
            write_pcf(types, file, states)
        row.write_bytes(format_row_file(content.model.tree).encode())

    @cached_property
    def _begins(self) -> tuple[Choice, ...]:
        """Starts of lines for each thread: of states, of events, of senders; and the continuation
        for receivers.
        """
        return tuple(
            Choice(tuple(f"{before}:{address}:".encode() for address in self.addresses))
            for before in ("1", "2", "3", "")
        )

    @cached_property
    def _known_choices(self) -> dict[tuple, Choice]:
        """Cache of event types by NVTX domain, and of callers by row, for all windows."""
        return {}

    def _make_batches(self, window: Window) -> Iterator[Batch]:
        """Yield the batches of a window: states of rows; then ends of ranges, so that they precede
        starts at the same time; then starts; each by layout and fields. Lines between rows come
        last.
        """
        states, events, _, _ = self._begins
        for one in window.states:
            begin, end, state = one.times, one.column("end"), one.column("state")
            yield Batch(begin, [(states, _find(one, "row")), begin, b":", end, b":", state])
        made: list[tuple[bool, str, int, Batch]] = []
        for ranges in window.ranges:
            for is_begin, rows in ((False, ranges.at_end), (True, ranges.at_begin)):
                for alike in ranges.split(rows):
                    times = alike.begin if is_begin else alike.until
                    parts = (events, _find(alike, "row")), times
                    batch = Batch(times, [*parts, *self._list_fields(alike, is_begin)])
                    if is_begin and alike.layout.nests:
                        # If ranges begin together the longer one is the outer one.
                        batch.ties = -alike.find_order()
                    made.append((is_begin, alike.layout.name, alike.mask, batch))
        for ranges, times, rows in list_closings(window.ranges):
            none = AlikeRanges(ranges, ranges.index.always, slice(0))
            batch = Batch(times, [(events, rows), times, *self._list_fields(none, False)])
            made.append((False, ranges.layout.name, none.mask, batch))
        made.sort(key=itemgetter(0, 1, 2))
        yield from (batch for *_, batch in made)
        yield from map(
            self._make_line_batch, sorted(window.lines, key=lambda one: one.run.shape.name)
        )

    def _list_fields(self, alike: AlikeRanges, is_begin: bool) -> Iterator[Part]:
        """Yield the event types of fields, each with its value, or 0 at ends. Callers are one part."""
        mask = alike.mask & self.field_masks[alike.layout.name]
        fields = find_present_fields(alike.layout.name, mask).values()
        behind = b":" if is_begin else b":0"
        for are_callers, alike_fields in groupby(fields, lambda one: one.level > 0):
            if are_callers:
                callers = self._choose_callers([*alike_fields], is_begin)
                yield callers, _find(alike, CALLERS)
                continue
            for one in alike_fields:
                if isinstance(one.code, DomainCode):
                    yield self._choose_code(one.code, behind), _find(alike, "domain")
                else:
                    yield b":%d%s" % (one.code, behind)
                if is_begin and one.offset:
                    yield np.add(alike.column(one.name), one.offset, dtype=np.int64)
                elif is_begin:
                    yield _find(alike, one.name)

    def _choose_code(self, code: DomainCode, behind: bytes) -> Choice:
        """Return `:type` for each NVTX domain, followed by a text."""
        if (code, behind) not in self._known_choices:
            codes = (code.code_of(*domain) for domain in self.domain_codes)
            texts = tuple(b":%d%s" % (number, behind) for number in codes)
            self._known_choices[code, behind] = Choice(texts)
        return self._known_choices[code, behind]

    def _choose_callers(self, callers: Sequence[Field], is_begin: bool) -> Choice:
        """Return the callers of each stack, or 0 for each at ends."""
        key = is_begin, *(one.code for one in callers)
        if key not in self._known_choices:
            texts = (
                b"".join(
                    b":%d:%d" % (one.code, value if is_begin else 0)
                    for one, value in zip(callers, values, strict=True)
                    if value != ABSENT
                )
                for values in self.callers[:, [one.level - 1 for one in callers]].tolist()
            )
            self._known_choices[key] = Choice(tuple(texts))
        return self._known_choices[key]

    def _make_line_batch(self, lines: Slice) -> Batch:
        sender, receiver, size = (_find(lines, name) for name in ("sender", "receiver", "size"))
        send, receive = lines.times, lines.column("receive")
        # As in Extrae's traces: the logical receive is its post, if known; in a part, the post may
        # be before the part.
        has_posts = "posted" in lines.run.columns
        posted = np.clip(lines.column("posted"), 0, receive) if has_posts else receive
        fixed = load_catalogue().lines[lines.run.shape.name].tag
        tag = _find(lines, "tag") if fixed is None else b"%d" % fixed
        _, _, senders, receivers = self._begins
        sent = (senders, sender), send, b":", send
        received = (receivers, receiver), posted, b":", receive
        return Batch(send, [*sent, *received, b":", size, b":", tag])

    def _make_sample_batch(self, samples: pl.DataFrame) -> Batch:
        time, row, *numbers = (one.to_numpy() for one in samples.get_columns())
        codes = (f":{name}:".encode() for name in samples.columns[2:])
        parts = chain.from_iterable(zip(codes, numbers, strict=True))
        return Batch(time, [(self._begins[1], row), time, *parts])


def _list_ranks(runs: Iterable[Run]) -> list[int]:
    """Return the ranks that fields of ranges name, sorted."""
    ranks: set[int] = set()
    for run in runs:
        fields = [] if run.index is None else load_catalogue().layouts[run.shape.name].fields
        names = [one.name for one in fields if one.unit == RANK and one.name in run.columns]
        for values in (read_run(run, *names) if names else {}).values():
            ranks.update(np.unique(values[values >= 0]).tolist())
    return sorted(ranks)


def _format_header(tree: ObjectTree, date: datetime, duration: int, members: Sequence[int]) -> str:
    """Return the header line of the .prv, and the line of MPI_COMM_WORLD, which BSC's Dimemas needs
    for collectives. duration: in ns. members: tasks in that communicator, from 1; empty without
    MPI.
    """
    cpus = ",".join(map(str, tree.cpus_per_node))
    tasks = ",".join(f"{len(task.threads)}:{task.node + 1}" for task in tree.tasks)
    objects = f"{len(tree.nodes)}({cpus}):1:{len(tree.tasks)}({tasks})"
    world = f",1\nc:1:1:{len(members)}:{':'.join(map(str, members))}" if members else ""
    return f"#Paraver ({date:%d/%m/%Y at %H:%M}):{duration}_ns:{objects}{world}\n"


def _find(found: Slice | AlikeRanges, name: str) -> Column:
    """Return a column that contains no times, for writing."""
    values, table = found.find(name)
    return values if table is None else (values, table)


def merge_lines(batches: Iterable[Batch]) -> Iterator[np.ndarray]:
    """Write lines of several batches as text, sorted by time. Yield it in pieces (uint8).

    Lines with equal times keep the order of the batches, then of their rows. Batches with ties are
    ordered by these.
    """
    batches = [batch for batch in batches if len(batch.times)]
    if not batches:
        return
    if core is None:
        yield _format_by_polars(batches)
        return
    order = np.empty(sum(len(batch.times) for batch in batches), np.uint64)
    core.order_lines(
        [(_to_integers(batch.times), _to_integers(batch.ties)) for batch in batches], order
    )
    programs = [(make_program(batch.parts), len(batch.times)) for batch in batches]
    while len(order):
        text = np.empty(TEXT_BYTES, np.uint8)
        lines, size = core.write_lines(programs, order, text)
        if not lines:
            raise ValueError(f"a line of more than {TEXT_BYTES:,} bytes")
        order = order[lines:]
        yield text[:size]


def _to_integers(values: np.ndarray | None) -> np.ndarray | None:
    return None if values is None else np.ascontiguousarray(values, np.int64)


def _split_part(part: tuple[Choice, Column] | Column) -> tuple[Choice | None, Column]:
    """Return the texts that a column selects (None for plain numbers), and the column."""
    return part if isinstance(part[0], Choice) else (None, part)


def make_program(parts: Sequence[Part]) -> tuple[tuple, ...]:
    """Describe a line for the compiled writer: return its texts, each with the part after it (see
    `native/lines.c`).
    """
    steps, text = [], b""
    for part in parts:
        if isinstance(part, bytes):
            text += part
            continue
        choice, column = _split_part(part)
        steps.append((text + _BEHIND, column, *(choice.joined if choice else ())))
        text = b""
    return (*steps, (text + b"\n" + _BEHIND,))


def _order_by_numpy(batches: Sequence[Batch]) -> np.ndarray:
    """Return the order of all lines by time, as the compiled `order` does. Lines are numbered
    through all batches.
    """
    times = np.concatenate([batch.times for batch in batches])
    ties = [np.zeros_like(one.times) if one.ties is None else one.ties for one in batches]
    tied = np.repeat([one.ties is not None for one in batches], [len(one.times) for one in batches])
    order = np.argsort(times, kind="stable")
    # Lines with ties change places with others of the same time; all other lines keep theirs.
    places = np.flatnonzero(tied[order])
    lines = order[places]
    order[places] = lines[np.lexsort((np.concatenate(ties)[lines], times[lines]))]
    return order


def _format_by_polars(batches: Sequence[Batch]) -> np.ndarray:
    """Return the same bytes with polars. This is much slower; it is for installations without the
    compiled core.
    """
    text = pl.concat([_format_batch(batch) for batch in batches]).gather(_order_by_numpy(batches))
    return np.frombuffer("".join(text).encode("latin-1"), np.uint8)


def _format_batch(batch: Batch) -> pl.Series:
    """Return the lines of a batch. Bytes are read as Latin-1, which preserves all of them."""
    pieces: list[pl.Expr | pl.Series] = [pl.repeat("", len(batch.times))]
    for part in (*batch.parts, b"\n"):
        if isinstance(part, bytes):
            pieces.append(pl.lit(part.decode("latin-1")))
            continue
        choice, column = _split_part(part)
        values = column[1][column[0]] if isinstance(column, tuple) else column
        numbers = pl.Series(values.astype(np.uint64))
        if choice is None:
            pieces.append(numbers.cast(pl.String))
        else:
            pieces.append(
                pl.Series([text.decode("latin-1") for text in choice.texts]).gather(numbers)
            )
    return pl.select(pl.concat_str(pieces)).to_series()
