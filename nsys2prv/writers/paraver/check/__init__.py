"""Check a Paraver trace, whoever wrote it, for what would crash, hang or mislead Paraver. No Nsight.

Here are the rules (rules.yaml) and what was found, one finding for each broken rule, with its first
place; and the lines of a .prv or .prv.gz: read in blocks of whole lines, split into columns, and
checked as lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import numpy as np
from isal import isal_zlib
from msgspec import Struct, field

from nsys2prv._util.data_files import load_shipped_file
from nsys2prv._util.errors import Nsys2prvError, name_damaged_file


class Severity(Enum):
    """ERROR: Paraver or a tool of it crashes, hangs, refuses, loses something or shows it wrongly.
    WARNING: it misleads. REMARK: good to know.
    """

    ERROR = "error"
    WARNING = "warning"
    REMARK = "remark"


class Rule(Struct, frozen=True):
    """Rule of the check."""

    #: Name by which findings tell it.
    name: str
    #: Part of the trace that it applies to.
    part: str
    #: How bad breaking it is.
    severity: Severity
    #: What is wrong, in words.
    wrong: str
    #: What breaking it causes.
    effect: str


_DECLARED = load_shipped_file("nsys2prv.writers.paraver.check", "rules.yaml")
#: Part of a trace -> title.
PARTS: dict[str, str] = {part: declared["title"] for part, declared in _DECLARED.items()}
#: Name -> rule.
RULES = {
    name: Rule(name, part, Severity(severity), wrong, effect)
    for part, declared in _DECLARED.items()
    for name, rule in declared["rules"].items()
    for (severity, wrong), (_, effect) in [rule.items()]
}
#: Distinct details that are kept for a message, and the longest text of a line that is quoted.
MOST_EXAMPLES, LONGEST_QUOTE = 4, 100
#: Bytes of text in a block: its columns stay in the processor's cache. The longest line that is
#: taken for one.
BLOCK_BYTES, LONGEST_LINE = 1 << 18, 1 << 26
GZIP_WINDOW_BITS = 31
COLON, NEWLINE, MINUS, ZERO = b":\n-0"
STATE, EVENT, COMM, COLLECTIVE, COMMENT = b"1234#"
#: Fields of a state and of a communication; fields of an event before its first pair.
STATE_FIELDS, COMM_FIELDS, EVENT_FIELDS = 8, 15, 6
CUTTER_FIELDS = 7
#: Digits of which numbers are made at once, and the most that are read.
WORD_BYTES, MOST_DIGITS = 8, 24
LARGEST_NUMBER = 2**63 - 1
#: By number of digits: where they stand among eight bytes, and what of a byte is the digit. Then
#: every other pair of digits.
_DIGITS = np.array(
    [
        0x0F0F0F0F0F0F0F0F << 8 * (WORD_BYTES - digits) & 2**64 - 1
        for digits in range(WORD_BYTES + 1)
    ],
    np.uint64,
)
_PAIRS = np.uint64(0x000000FF000000FF)


class CheckFinding(Struct):
    """Broken rule in one of the trace's files."""

    #: Name of the broken rule.
    rule: str
    #: Name of the file.
    file: str
    #: First line, from 1; 0 for the file as a whole.
    line: int
    #: Number of places where it is broken.
    count: int
    #: Quoted texts, numbers or names that are wrong, a few.
    examples: list[str] = field(default_factory=list)
    #: Whether there are further examples.
    more: bool = False

    @property
    def severity(self) -> Severity:
        """Return how bad it is."""
        return RULES[self.rule].severity

    @property
    def message(self) -> str:
        """Return one sentence: what is wrong, with examples, and its effect."""
        rule = RULES[self.rule]
        shown = ", ".join([*self.examples, *(["..."] if self.more else [])])
        return f"{rule.wrong}{f' ({shown})' if shown else ''}: {rule.effect}"


class CheckFindings:
    """Collects findings of one file by rule."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.by_rule: dict[str, CheckFinding] = {}

    def add(self, rule: str, line: int = 0, *examples: object, count: int = 1) -> None:
        """Count places of a broken rule, of which `line` is the first; examples are kept up to a
        few, each once.
        """
        finding = self.by_rule.setdefault(rule, CheckFinding(rule, self.file, line, 0))
        finding.count += count
        finding.line = min(finding.line, line)
        for example in examples:
            text = make_printable(str(example))
            if text in finding.examples:
                continue
            if len(finding.examples) == MOST_EXAMPLES:
                finding.more = True
                break
            finding.examples.append(text)


def sort_findings(*files: CheckFindings) -> tuple[CheckFinding, ...]:
    """Return the findings of all files: the worst first, then by file and line."""
    order = list(Severity)
    return tuple(
        sorted(
            (finding for file in files for finding in file.by_rule.values()),
            key=lambda one: (order.index(one.severity), one.file, one.line, one.rule),
        )
    )


def make_printable(text: str) -> str:
    """Return a text on one line, cut where it is long."""
    line = "".join(
        character if character.isprintable() else ascii(character)[1:-1] for character in text
    )
    return line if len(line) <= LONGEST_QUOTE else line[:LONGEST_QUOTE] + "..."


def split_opening(path: Path, findings: CheckFindings) -> tuple[bytes, Iterator[bytes]]:
    """Return the first line of a trace, and the blocks of lines behind it."""
    text = read_blocks(path, findings)
    opening, _, rest = next(text, b"").partition(b"\n")
    return opening, chain([rest] if rest else [], text)


def read_blocks(path: Path, findings: CheckFindings) -> Iterator[bytes]:
    """Yield whole lines, of about BLOCK_BYTES bytes each time, without carriage returns at their ends;
    every block ends with a line end.
    """
    rest: list[bytes] = []
    number, returns = 1, 0
    for piece in _read_pieces(path, findings):
        end = piece.rfind(b"\n") + 1
        if not end:
            rest.append(piece)
            if sum(map(len, rest)) > LONGEST_LINE:
                raise Nsys2prvError(
                    f"{path}: not a Paraver trace: a line of more than {LONGEST_LINE >> 20} MiB"
                )
            continue
        block = b"".join((*rest, memoryview(piece)[:end]))
        if b"\r\n" in block:
            if not returns:
                returns = number + block[: block.index(b"\r\n")].count(b"\n")
            findings.add("line-ends", returns, count=block.count(b"\r\n"))
            block = block.replace(b"\r\n", b"\n")
        number += block.count(b"\n")
        yield block
        rest = [piece[end:]] if end < len(piece) else []
    if rest:
        findings.add("line-cut", number)
        yield b"".join(rest).removesuffix(b"\r") + b"\n"


def _read_pieces(path: Path, findings: CheckFindings) -> Iterator[bytes]:
    with name_damaged_file(path), path.open("rb", buffering=0) as file:
        if path.suffix == ".gz":
            yield from _decompress_members(file, findings)
            return
        while piece := file.read(BLOCK_BYTES):
            yield piece


def _decompress_members(file: BinaryIO, findings: CheckFindings) -> Iterator[bytes]:
    """Yield the text of all members of a gzip file, a bounded piece at a time, and what is wrong
    with them.
    """
    members = 0
    member, waiting = None, b""
    try:
        while waiting or (waiting := file.read(BLOCK_BYTES)):
            if member is None:
                waiting = waiting.lstrip(b"\0") if members else waiting
                if not waiting:
                    continue
                member, members = isal_zlib.decompressobj(GZIP_WINDOW_BITS), members + 1
            text = member.decompress(waiting, BLOCK_BYTES)
            if text:
                yield text
            waiting = member.unused_data if member.eof else member.unconsumed_tail
            if member.eof:
                member = None
        while member is not None and (text := member.decompress(b"", BLOCK_BYTES)):
            yield text
        if member is not None and not member.eof:
            findings.add("damaged-gzip", 0, "the last member has no end")
    except isal_zlib.error as error:
        findings.add("damaged-gzip", 0, f"member {members}: {error}")
    if members > 1:
        findings.add("gzip-members", 0, f"{members} members", count=members)


class BlockLines(Struct, frozen=True):
    """The lines of a block."""

    #: All bytes of the block (uint8).
    text: np.ndarray
    #: First byte of each line.
    kind: np.ndarray
    #: Index of the first field of each line.
    first: np.ndarray
    #: Number of fields of each line.
    fields: np.ndarray
    #: Number in each field of all lines (int64), 0 where it is empty or no number.
    numbers: np.ndarray
    #: Place in `text` behind each field.
    ends: np.ndarray
    #: Lines with a byte that belongs to no number.
    broken: np.ndarray
    #: Fields whose number is too large.
    overflow: np.ndarray
    #: Number of characters of each field, without a minus.
    widths: np.ndarray

    def find_lines(self, fields: np.ndarray) -> np.ndarray:
        """Return the lines in which these fields stand."""
        return np.searchsorted(self.first, fields, "right") - 1

    def find_pairs(self, events: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return, for each type:value pair of these lines of events, the index of its line among
        them and the field of its type.
        """
        counts = (self.fields[events] - EVENT_FIELDS) // 2
        before = np.cumsum(counts) - counts
        first = np.repeat(self.first[events] + EVENT_FIELDS - 2 * before, counts)
        return np.repeat(np.arange(len(events)), counts), first + 2 * np.arange(len(first))

    def quote_line(self, line: int) -> str:
        """Return the text of a line."""
        begin = self.ends[self.first[line] - 1] + 1 if line else 0
        return (
            self.text[begin : self.ends[self.first[line] + self.fields[line] - 1]]
            .tobytes()
            .decode("utf-8", "replace")
        )


class BlockReporter(Struct, frozen=True):
    """A block of the trace's lines, the first of which is line `base` of the file, and where
    findings go.
    """

    #: Lines of the block.
    lines: BlockLines
    #: Line of the file that is the first.
    base: int
    #: Where findings go.
    findings: CheckFindings

    def report(self, rule: str, lines: np.ndarray, example: object = None) -> None:
        """Report a rule broken in these lines of the block (indices, ascending); the first is
        quoted unless an example is given.
        """
        if len(lines):
            shown = self.lines.quote_line(int(lines[0])) if example is None else example
            examples = [shown] if shown else []
            self.findings.add(rule, self.base + int(lines[0]), *examples, count=len(lines))


def split_lines(block: bytes) -> BlockLines:
    """Return the fields of whole lines."""
    padded = np.frombuffer(b"".join((b"0" * MOST_DIGITS, block)), np.uint8)
    text = padded[MOST_DIGITS:]
    marks = np.flatnonzero(text - np.uint8(ZERO) > 9)
    separators = text[marks]
    newline = separators == NEWLINE
    odd = ~newline & (separators != COLON)
    negative = broken = np.empty(0, np.int64)
    ends = marks
    if odd.any():
        ends, newline, places = marks[~odd], newline[~odd], marks[odd]
        opens = (places == 0) | (text[places - 1] == COLON) | (text[places - 1] == NEWLINE)
        sound = (text[places] == MINUS) & opens & (text[places + 1] - np.uint8(ZERO) <= 9)
        negative, broken = np.searchsorted(ends, places[sound]), places[~sound]
    last = np.flatnonzero(newline)
    first = np.concatenate(([0], last[:-1] + 1))
    begins = np.concatenate(([0], ends[:-1] + 1))
    starts = begins[first]
    begins[negative] += 1
    widths = ends - begins
    numbers, overflow = _parse_numbers(padded, ends, widths)
    numbers[negative] *= -1
    return BlockLines(
        text,
        text[starts],
        first,
        last - first + 1,
        numbers,
        ends,
        np.unique(np.searchsorted(ends[last], broken)),
        overflow,
        widths,
    )


def _parse_numbers(
    padded: np.ndarray, ends: np.ndarray, widths: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers that end at these places of the text, and which of them are too large
    (these are 0).
    """
    # The eight bytes from every place of the text on, as numbers.
    words = np.ndarray(len(padded) - WORD_BYTES + 1, "<u8", padded, 0, (1,))
    at = ends + (MOST_DIGITS - WORD_BYTES)
    numbers = _parse_eight_digits(words[at], widths)
    if len(widths) and int(widths.max()) <= WORD_BYTES:
        return numbers.view(np.int64), np.empty(0, np.int64)
    long = np.flatnonzero(widths > WORD_BYTES)
    numbers[long] += _parse_eight_digits(
        words[at[long] - WORD_BYTES], widths[long] - WORD_BYTES
    ) * np.uint64(10**8)
    longer = long[widths[long] > 2 * WORD_BYTES]
    if not len(longer):
        return numbers.view(np.int64), longer
    high = _parse_eight_digits(words[at[longer] - 2 * WORD_BYTES], widths[longer] - 2 * WORD_BYTES)
    sums = numbers[longer] + np.minimum(high, np.uint64(999)) * np.uint64(10**16)
    over = (high > 999) | (sums > LARGEST_NUMBER) | (widths[longer] > MOST_DIGITS)
    numbers[longer] = np.where(over, np.uint64(0), sums)
    return numbers.view(np.int64), longer[over]


def _parse_eight_digits(words: np.ndarray, widths: np.ndarray) -> np.ndarray:
    """Return numbers from the last `widths` of eight bytes of text, the first of which is the
    lowest byte. Neighbours are added in pairs: tens and ones, then hundreds, then ten thousands;
    the last two steps by one multiplication each, whose upper half is the sum.
    """
    words &= _DIGITS.take(widths, mode="clip")
    upper = words >> np.uint64(8)
    words *= np.uint64(10)
    words += upper
    upper = words >> np.uint64(16)
    upper &= _PAIRS
    upper *= np.uint64(1 + (10**4 << 32))
    words &= _PAIRS
    words *= np.uint64(10**2 + (10**6 << 32))
    words += upper
    words >>= np.uint64(32)
    return words


class ReadableLines(Struct, frozen=True):
    """Lines (indices in the block) of records that Paraver can read, by kind."""

    #: Lines of state records.
    states: np.ndarray
    #: Lines of events.
    events: np.ndarray
    #: Lines of communications.
    comms: np.ndarray


def check_lines(place: BlockReporter, communicators: int) -> ReadableLines:
    """Check the lines of a block and return those of records that Paraver can read. communicators:
    number of lines of communicators that the header announces behind it.
    """
    lines = place.lines
    kind = lines.kind
    width = lines.widths[lines.first]
    empty = (lines.fields == 1) & (width == 0)
    record = (kind >= STATE) & (kind <= COMM)
    other = np.flatnonzero(~record)
    if len(other) or empty.any():
        _check_other_lines(place, other[~empty[other]], communicators)
        place.report("empty-line", np.flatnonzero(empty), "")
        record &= ~empty
    if place.base <= communicators + 1:
        missing = np.flatnonzero(record[: max(communicators + 2 - place.base, 0)])
        place.report("communicators-missing", missing)
    single = width == 1
    broken = np.zeros(len(kind), bool)
    broken[lines.broken] = True
    place.report("unknown-record", np.flatnonzero(record & ~single & ~broken))
    place.report("number-syntax", np.flatnonzero(record & broken))
    record &= single & ~broken
    _check_fields(place, record)
    return ReadableLines(
        *(np.flatnonzero(record & (kind == which)) for which in (STATE, EVENT, COMM))
    )


def _check_other_lines(place: BlockReporter, other: np.ndarray, communicators: int) -> None:
    """Check lines that are no record of a state, event or communication."""
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
        if lines.quote_line(line).split(":")[1] == "CUTTER":
            place.report("crash-comment", np.array([line]))
    rest = other[~communicator & (kind != COLLECTIVE) & (kind != COMMENT)]
    odd = rest[np.isin(lines.kind[rest], np.frombuffer(b" \t", np.uint8))]
    blanks = odd[np.array([not lines.quote_line(line).strip(" \t") for line in odd], bool)]
    place.report("blank-line", blanks, "")
    place.report("unknown-record", np.setdiff1d(rest, blanks))


def _check_fields(place: BlockReporter, record: np.ndarray) -> None:
    """Check how many fields records have and what they are; leaves out of `record` what Paraver
    cannot read.
    """
    lines = place.lines
    kind, fields = lines.kind, lines.fields
    state, event, comm = record & (kind == STATE), record & (kind == EVENT), record & (kind == COMM)
    few = (
        (state & (fields < STATE_FIELDS))
        | (event & (fields < EVENT_FIELDS))
        | (comm & (fields < COMM_FIELDS))
    )
    place.report("fields-missing", np.flatnonzero(few))
    place.report(
        "fields-beyond",
        np.flatnonzero((state & (fields > STATE_FIELDS)) | (comm & (fields > COMM_FIELDS))),
    )
    last = lines.first + fields - 1
    odd = event & (fields % 2 == 1) & ~few
    colon = np.zeros(len(kind), bool)
    if odd.any():
        ends = lines.ends[last[odd]]
        colon[odd] = lines.text[ends - 1] == COLON
        place.report("trailing-colon", np.flatnonzero(colon))
        place.report("odd-pair", np.flatnonzero(odd & ~colon))
    place.report(
        "event-without-pair",
        np.flatnonzero(event & ((fields == EVENT_FIELDS) | (colon & (fields == EVENT_FIELDS + 1)))),
    )
    empty = np.flatnonzero(lines.widths == 0)
    at = lines.find_lines(empty)
    inside = record[at] & ~(colon[at] & (empty == last[at]))
    place.report("empty-field", np.unique(at[inside]))
    at = lines.find_lines(lines.overflow)
    place.report("number-overflow", np.unique(at[record[at]]))
    record &= ~few
