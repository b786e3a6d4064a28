"""Read and write sizes, counts and durations for people, and lay out text for terminals.

Sorts names naturally, makes text safe for terminals, fits lines and tables to their width without
losing anything (lines are not wrapped in a pipe), and shows progress on standard error.
"""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from difflib import get_close_matches
from math import ceil
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from tqdm import tqdm

#: Most names that an unknown one is compared with.
MOST_COMPARED = 10_000
#: Unit -> ns, the largest first.
UNITS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_DURATION = re.compile(rf"(\d+(?:\.\d+)?)({'|'.join(UNITS)}|)")
#: Characters that move the cursor, hide or reorder text: control characters but tab and line feed, and
#: Unicode's marks of direction.
_UNSAFE = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)

#: Ends a colour of a terminal.
PLAIN = "\x1b[0m"
#: Characters of the name of a kernel in a sentence.
LONGEST_NAME = 56
#: Lines that the heading of a column may take.
MOST_HEADING_LINES = 3
#: Characters that a text is shortened to at least, so that names are still told apart.
LEAST_NAME = 20
#: Rows of a table that may become columns.
MOST_TURNED = 6
#: Columns of a terminal that are too few to lay anything out for.
NARROWEST = 40
#: Start of a line: blanks, or words and a gap. The text after it is in a column.
_BEGIN = re.compile(r" *(?:\S+(?: \S+)* {2,})?")
#: How much of a command's time each of its phases takes, against the others.
WEIGHTS = {"opening": 5, "reading": 45, "clocks": 15, "writing": 30, "analysing": 30, "page": 10}
#: Phases before a job can be written or analyzed.
PREPARING = ("opening", "reading", "clocks")
#: Upper bounds from here on (ns) are written in ms.
SHORTEST_IN_MS = 10_000_000
#: Seconds for which nothing is shown.
SILENT = 1.0
BAR_FORMAT = "{desc} {percentage:3.0f}%|{bar}| {elapsed}<{remaining}"


def inflect(noun: str, count: int) -> str:
    """Return the noun, or its regular plural if the count is not 1."""
    return noun if count == 1 else f"{noun}s"


def format_count(count: int, noun: str) -> str:
    """Return "1 task", "3 tasks": a count and its noun."""
    return f"{count:,} {inflect(noun, count)}"


def capitalize(text: str) -> str:
    """Return the text with a capital first letter; the other letters do not change."""
    return text[:1].upper() + text[1:]


def uncapitalize(text: str) -> str:
    """Return the text with a lower-case first letter, unless it begins with an acronym, such as
    GPUs.
    """
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]


def list_some(names: Sequence[str], most: int = 3, separator: str = ", ") -> str:
    """Return the first names (at most `most`), and the number of further ones, as text."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return separator.join(names[:most]) + more


def list_differing(
    described: Iterable[tuple[str, str]], form: str = "{who}: {what}", between: str = "; "
) -> str:
    """Return a text that says how named things differ, such as `4 GPUs: A100; 8 GPUs: H100`; "" if
    they do not. described: (name, property) of each. form: format of each. between: separator.
    """
    found: dict[str, list[str]] = {}
    for name, what in described:
        found.setdefault(what, []).append(name)
    each = (form.format(who=list_some(names), what=what) for what, names in found.items())
    return between.join(each) if len(found) > 1 else ""


def suggest_range(wanted: str, names: Sequence[str]) -> str:
    """Return a hint for an unknown NVTX range name: the most similar name, or how to list all
    names.
    """
    if near := get_close_matches(wanted.strip("*"), names[:MOST_COMPARED], 1):
        return f"did you mean {near[0]}?"
    return "`nsys2prv report REPORT... --only operations` lists all names"


def format_size(size: float) -> str:
    """Return a size (bytes) as text, in units of 1000."""
    return format_scaled(size, ("B", "kB", "MB", "GB", "TB"), 1)


def format_scaled(value: float, units: Sequence[str], decimals: int = 2) -> str:
    """Return a value as text in the largest of these units in which it is at least 1. Each unit is
    1000 times the one before. decimals: digits after the point.
    """
    place = 0
    while abs(value) >= 1000 and place < len(units) - 1:
        value, place = value / 1000, place + 1
    # Nothing is not negative.
    rounded = round(value, decimals if place else 0) or 0.0
    return f"{rounded:.{decimals if place else 0}f} {units[place]}"


def parse_duration(text: str) -> int:
    """Return nanoseconds for a number with or without a unit. Raise ValueError for other text."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return round(Decimal(match[1]) * UNITS[match[2] or "ns"])


def format_seconds(ns: int) -> str:
    """Return a trace time (ns) as text in seconds."""
    return f"{ns / 1e9:.9f}".rstrip("0").rstrip(".") + " s"


def choose_decimals(length: int) -> int:
    """Return the number of decimals that clearly distinguish the start and end of a span in
    seconds. length: ns.
    """
    return min(max(11 - len(str(max(length, 1))), 3), 9)


def format_moment(time: float, length: float) -> str:
    """Return a trace time as text in seconds, with the digits that suit the length of the trace.
    time, length: ns.
    """
    return f"{time / 1e9:.{choose_decimals(round(length))}f} s"


def format_span(begin: int, end: int) -> str:
    """Return a time span as text in seconds, with enough digits to distinguish start and end.
    begin, end: ns.
    """
    digits = choose_decimals(end - begin)
    return f"{begin / 1e9:.{digits}f}-{end / 1e9:.{digits}f} s"


def format_duration(ns: int) -> str:
    """Return a duration (ns) as text in the largest unit in which it is a whole number."""
    unit, size = next((unit, size) for unit, size in UNITS.items() if ns % size == 0)
    return f"{ns // size} {unit}"


def make_natural_key(text: str) -> tuple:
    """Return a sort key that compares digits in a text as numbers of any length."""
    return tuple(
        (1, len(part.lstrip("0")), part.lstrip("0"), part)
        if part[0] in "0123456789"
        else (0, 0, "", part)
        for part in re.split("([0-9]+)", text)
        if part
    )


def escape_unprintable(text: str) -> str:
    """Return the text with escapes for characters that move the cursor, or hide or reorder text."""
    return _UNSAFE.sub(lambda match: ascii(match[0])[1:-1], text)


def escape_to_one_line(text: str) -> str:
    """Return the text as :func:`escape_unprintable` does, and also replace line ends and tabs."""
    return escape_unprintable(text).replace("\n", "\\n").replace("\t", " ")


class Column(Struct, frozen=True):
    """A column of a table of text: heading and cells."""

    #: Its heading.
    head: str
    #: Its texts, one for each row.
    cells: list[str]
    #: Whether they are texts, at the left, not numbers.
    is_text: bool = True
    #: Escape sequence for the colour of each cell, "" for none. A table that has to be broken for its
    #: width has no colours.
    colours: list[str] = []

    @property
    def width(self) -> int:
        """Number of characters in the longest cell."""
        return max(map(len, self.cells), default=0)


def find_width() -> int | None:
    """Return the width of the terminal; None if standard output is not a terminal."""
    if not sys.stdout.isatty():
        return None
    return max(shutil.get_terminal_size().columns, NARROWEST)


def print_text(text: str) -> None:
    """Print lines, folded to the width of the terminal, with control characters escaped."""
    print("\n".join(fold_lines(text.splitlines(), find_width())))


def fold_lines(lines: Sequence[str], width: int | None, hang: int = 4) -> list[str]:
    """Return lines with control characters escaped, folded to `width`. Continuation lines are
    indented to the column of their text, or by `hang` blanks.
    """
    safe = [escape_unprintable(line) for line in lines]
    return [part for line in safe for part in _fold_line(line, width, hang)]


def fold_command(line: str, width: int) -> list[str]:
    """Fold a command so that its lines can still be pasted into a shell."""
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    *folded, last = textwrap.wrap(
        line, width - 2, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return [*(f"{part} \\" for part in folded), last]


def _fold_line(line: str, width: int | None, hang: int) -> list[str]:
    if width is None or len(line) <= width:
        return [line]
    if "$(" in line:
        return fold_command(line, width)
    begin = re.match(_BEGIN, line)
    indent = begin.end() if begin and begin[0].strip() else width
    if indent > width // 2:
        indent = len(line) - len(line.lstrip()) + hang
    # Words that are too long, such as paths, are to be copied whole.
    text = line.lstrip()
    return textwrap.wrap(
        text,
        width,
        initial_indent=line[: len(line) - len(text)],
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    )


def lay_out_table(columns: Sequence[Column], width: int | None) -> list[str]:
    """Lay out a table as lines of text that fit the width.

    These steps are tried in turn: break the headings, turn a few rows into columns, shorten the
    first texts, and place parts below each other. Each part starts with the first column and the
    texts after it.
    """
    if width is None:
        return _align(columns, 1)
    first, *others = columns
    names = [shorten(name, max(20, 2 * width // 5)) for name in first.cells]
    shortened = [Column(first.head, names, first.is_text), *others]
    for candidate in (columns, shortened):
        for lines in range(1, MOST_HEADING_LINES + 1):
            if measure_table(candidate, lines) <= width:
                return _align(candidate, lines)
        if 1 < len(candidate[0].cells) <= MOST_TURNED:
            turned = _turn(candidate)
            if measure_table(turned, 1) <= width:
                return _align(turned, 1)
    naming = shortened[:1]
    for column in others[:-1]:
        is_wide = measure_table([*naming, column]) > width // 2
        if not column.is_text or (is_wide and _tell_apart(naming)):
            break
        least = min(LEAST_NAME, width // 5)
        room = max(width // 2 - measure_table(naming) - 2, least) if is_wide else column.width
        naming.append(Column(column.head, [shorten(name, room) for name in column.cells]))
    whole = [*shortened[:1], *others[: len(naming) - 1]]
    parts = _split(naming, columns[len(naming) :], width, whole)
    lines = [("", *_align(part, MOST_HEADING_LINES)) for part in parts]
    return [line for part in lines for line in part][1:]


def _tell_apart(columns: Sequence[Column]) -> bool:
    """Return True if these columns distinguish all rows."""
    rows = list(zip(*(column.cells for column in columns), strict=True))
    return len({*rows}) == len(rows)


def shorten(text: str, width: int) -> str:
    """Shorten a text to at most this width by removing its middle."""
    if len(text) <= width:
        return text
    tail = width // 3
    return f"{text[: width - tail - 1]}…{text[len(text) - tail :]}"


def _wrap_heading(column: Column, lines: int) -> list[str]:
    """Wrap a heading to at most `lines` lines, but not narrower than the cells need."""
    for width in range(column.width, len(column.head)):
        wrapped = textwrap.wrap(column.head, max(width, 1), break_long_words=False)
        if len(wrapped) <= lines and max(map(len, wrapped)) <= max(width, 1):
            return wrapped
    return [column.head]


def measure_table(columns: Sequence[Column], lines: int = MOST_HEADING_LINES) -> int:
    """Return the width of a table with headings of `lines` lines."""
    heads = (max(map(len, _wrap_heading(column, lines))) for column in columns)
    return sum(2 + max(head, one.width) for head, one in zip(heads, columns, strict=True))


def _align(columns: Sequence[Column], lines: int) -> list[str]:
    """Return the lines of a table with headings in `lines` lines."""
    heads = [_wrap_heading(column, lines) for column in columns]
    height = max(map(len, heads))
    padded = []
    for head, column in zip(heads, columns, strict=True):
        texts = [*[""] * (height - len(head)), *head, *column.cells]
        width, side = max(map(len, texts)), "<" if column.is_text else ">"
        colours = [*[""] * height, *(column.colours or [""] * len(column.cells))]
        padded.append(
            [
                f"{colour}{text:{side}{width}}{PLAIN if colour else ''}"
                for text, colour in zip(texts, colours, strict=True)
            ]
        )
    return ["  ".join(["", *line]).rstrip() for line in zip(*padded, strict=True)]


def _turn(columns: Sequence[Column]) -> list[Column]:
    """Return the table with rows and columns exchanged. The first column becomes the headings."""
    first, *others = columns
    rows = zip(*(column.cells for column in others), strict=True)
    return [
        Column(first.head, [column.head for column in others]),
        *(Column(name, list(row), False) for name, row in zip(first.cells, rows, strict=True)),
    ]


def _split(
    names: Sequence[Column], columns: Sequence[Column], width: int, whole: Sequence[Column]
) -> Iterator[list[Column]]:
    """Yield parts of a table that fit the width. Each has the columns that name its rows, and some
    others. whole: these naming columns in the first part, where they may be wider.
    """
    part = list(whole)
    for column in columns:
        if measure_table([*part, column], MOST_HEADING_LINES) > width:
            if len(part) > len(names):
                yield part
            part = list(names)
        room = width - measure_table(names, MOST_HEADING_LINES) - 2
        if column.width > room:
            yield _fold_cells(names, column, room)
        else:
            part.append(column)
    if len(part) > len(names):
        yield part


def _fold_cells(names: Sequence[Column], column: Column, width: int) -> list[Column]:
    """Return the columns with additional rows for the remaining text of cells wider than `width`."""
    folded = [textwrap.wrap(cell, width) or [""] for cell in column.cells]

    def spread(cells: Sequence[str]) -> list[str]:
        rows = zip(cells, folded, strict=True)
        return [text for cell, lines in rows for text in (cell, *[""] * (len(lines) - 1))]

    beside = [Column(one.head, spread(one.cells), one.is_text) for one in names]
    return [*beside, Column(column.head, [line for lines in folded for line in lines])]


class Progress:
    """Progress bar for all phases of a command, on terminals and in notebooks. Phases outside it
    have their own bars if none is shown.
    """

    def __init__(self, quiet: bool, phases: Iterable[str] = ()) -> None:
        self._off = quiet or not ("ipykernel" in sys.modules or sys.stderr.isatty())
        self._ahead = list(phases)
        self._bar: tqdm | None = None

    @contextmanager
    def show_phase(self, name: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show a phase during a `with` block. Yield a function to call with the number of newly
        finished pieces, out of `total`.
        """
        if self._off or (self._bar is not None and name not in self._ahead):
            yield lambda _: None
            return
        if name not in self._ahead:
            self._ahead = [name]
        if self._bar is None:
            from tqdm import tqdm

            whole = sum(WEIGHTS[phase] for phase in self._ahead)
            self._bar = tqdm(
                total=whole, bar_format=BAR_FORMAT, delay=SILENT, file=sys.stderr, leave=False
            )
        bar, left = self._bar, float(WEIGHTS[name])
        bar.set_description_str(name, refresh=False)

        def fill(done: float) -> None:
            # Sums of shares may be more than the whole by rounding.
            bar.update(min(done, bar.total - bar.n))

        def advance(pieces: int) -> None:
            nonlocal left
            done = min(left, WEIGHTS[name] * pieces / max(1, total))
            left -= done
            fill(done)

        try:
            yield advance
            fill(left)
            self._ahead.remove(name)
        except BaseException:
            self._ahead.clear()
            raise
        finally:
            if not self._ahead:
                bar.close()
                self._bar = None


def shorten_name(name: str) -> str:
    """Return a kernel name, shortened to LONGEST_NAME characters."""
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}…"


def format_nanoseconds(value: float) -> str:
    """Return a duration (ns) as text with three significant digits: "1.50 ms", "298 ms"."""
    # Rounding may lead to the next unit: 999.9 us are 1.00 ms.
    rounded = float(f"{value:.3g}")
    unit, size = next((one for one in UNITS.items() if abs(rounded) >= one[1]), ("ns", 1))
    number = rounded / size
    if unit == "ns":
        return f"{round(number)} ns"
    digits = 2 if abs(number) < 10 else 1 if abs(number) < 100 else 0
    # Seconds have no larger unit.
    return f"{number if abs(number) < 1000 else value / size:,.{digits}f} {unit}"


def format_bound(ns: float) -> str:
    """Return an upper bound as text: in whole microseconds; from 10 ms on, in ms with one decimal."""
    return f"{ns / 1e6:,.1f} ms" if ns >= SHORTEST_IN_MS else f"{ceil(ns / 1000):,} us"


def format_share(share: float, decimals: int = 1) -> str:
    """Return a fraction of 1 as a percentage: "5.1%"."""
    return f"{100 * share:.{decimals}f}%"


class Note(Struct, frozen=True):
    """A note about a finding, or about excluded data."""

    text: str
    #: True if no action is needed: shown with --verbose and in the file beside the trace.
    is_routine: bool = False
    #: True for one on clocks that do not agree, shown with the hosts' clocks.
    is_on_clocks: bool = False


def format_ordinal(number: int) -> str:
    """Return `1st`, `2nd`, `11th`."""
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{dict(enumerate(('st', 'nd', 'rd'), 1)).get(number % 10, 'th')}"
