"""Write a .pcf (event types with the labels of their values), and read the .pcf of an earlier trace
for the values of names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import BinaryIO

import polars as pl
from msgspec import Struct, field

from nsys2prv._util.errors import Nsys2prvError, name_damaged_file
from nsys2prv._util.files import LARGEST_PCF, read_given
from nsys2prv.events.catalogue import LAST_HASHED_DOMAIN, DomainCode, Field, NameSet, load_catalogue

#: What breaks lines, reorders text or is none: control characters, line ends and marks of direction
#: of Unicode (a regex that Python and Rust both read).
CONTROL_PATTERN = "[\\x00-\\x1f\\x7f-\\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]+"
_CONTROL = re.compile(CONTROL_PATTERN)
#: Longer labels are cut: Paraver draws the first few dozen characters.
LONGEST_LABEL = 1000
NO_NAME = "(no name)"
_IN_BRACKETS = re.compile(r"\[[^\[\]]*\]")
#: What is written as an escape, and the escapes.
_NOT_ASCII = re.compile(r"[^\x00-\x7f]|\\(?=u[0-9a-f]{4}|U[0-9a-f]{8})")
_ESCAPE = re.compile(r"\\(?:u([0-9a-f]{4})|U([0-9a-f]{8}))")
END_LABEL = "End"
#: Labels written at a time.
LABELS_AT_ONCE = 100_000
OPTIONS = """DEFAULT_OPTIONS

LEVEL               THREAD
UNITS               NANOSEC
LOOK_BACK           100
SPEED               1
FLAG_ICONS          ENABLED
NUM_OF_STATE_COLORS 1000
YMAX_SCALE          37


DEFAULT_SEMANTIC

THREAD_FUNC         State As Is

"""
_TYPE = re.compile(r"\d+[ \t]+(\d{1,18})[ \t]+(.*)")
_VALUE = re.compile(r"(\d{1,18})[ \t]+(.*)")
#: Greater values are none of ours, and leave no room behind them.
GREATEST_VALUE = 10**9
NO_NAMES = pl.DataFrame(schema={"label": pl.String, "value": pl.Int64, "sure": pl.Boolean})


class EventType(Struct, frozen=True):
    """An event type and, where its values have names, their labels: a frame of `value` and `label`,
    as :func:`make_labels_safe` makes it (0 is always End).
    """

    #: Number of the type.
    code: int
    #: Label of the type, one line.
    label: str
    #: Frame of `value` and `label`, None where values have no names.
    labels: pl.DataFrame | None = None


class StateLabel(Struct, frozen=True):
    """A value of state records."""

    #: What state records hold.
    value: int
    #: Name of the state, one line.
    label: str
    #: Red, green, blue.
    color: tuple[int, int, int]


def write_pcf(
    types: Iterable[EventType], file: BinaryIO, states: Sequence[StateLabel] = ()
) -> None:
    """Write the file, in ASCII (:func:`nsys2prv.writers.paraver.pcf.to_ascii`). There is no STATES section
    where the trace has no states: POP's BasicAnalysis tells by it.

    The colour column is 0 for types with named values and 7 for counters. Types in a row that share
    one frame of labels share its lines.
    """
    file.write(OPTIONS.encode())
    if states:
        labels = "".join(f"{state.value} {_to_line(state.label)}\n" for state in states)
        colors = "".join(
            f"{state.value} {{{','.join(map(str, state.color))}}}\n" for state in states
        )
        file.write(f"\nSTATES\n{labels}\n\nSTATES_COLOR\n{colors}\n".encode())
    for _, alike in groupby(
        types, key=lambda one: id(one.labels) if one.labels is not None else -one.code
    ):
        group = list(alike)
        labels = group[0].labels
        color = 7 if labels is None else 0
        heads = "".join(f"{color} {one.code} {_to_line(one.label)}\n" for one in group)
        file.write(f"\nEVENT_TYPE\n{heads}".encode())
        if labels is None:
            continue
        file.write(f"VALUES\n0 {END_LABEL}\n".encode())
        for piece in labels.select("value", "label").iter_slices(LABELS_AT_ONCE):
            lines = "".join(f"{value} {label}\n" for value, label in piece.iter_rows())
            file.write(to_ascii(lines).encode())


def _to_line(label: str) -> str:
    return to_ascii(clean_label(label))


def clean_label(text: str) -> str:
    """Return one line of valid text without control characters, never empty, never all in a pair of
    brackets.
    """
    line = _CONTROL.sub(" ", text.encode("utf-8", "replace").decode("utf-8")).strip()
    if len(line) > LONGEST_LABEL:
        line = line[: LONGEST_LABEL - 3].rstrip() + "..."
    if _IN_BRACKETS.fullmatch(line):
        line = f"({line[1:-1]})"
    return NO_NAME if line in ("", "()") else line


def to_ascii(text: str) -> str:
    """Return the text with `\u00e9` or `\U0001f600` for characters that are not ASCII, which some
    readers of .pcf files refuse.

    :func:`from_ascii` gives the text back: a backslash that would read as such an escape is written
    as one.
    """
    return text if text.isascii() and "\\" not in text else _NOT_ASCII.sub(_escape_character, text)


def _escape_character(match: re.Match[str]) -> str:
    number = ord(match[0])
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def from_ascii(text: str) -> str:
    """Return the text that :func:`to_ascii` was given."""
    return _ESCAPE.sub(_unescape_character, text) if "\\" in text else text


def _unescape_character(escape: re.Match[str]) -> str:
    number = int(escape[1] or escape[2], 16)
    return chr(number) if number < 0xD800 or 0xDFFF < number < 0x110000 else escape[0]


def make_labels_safe(labels: pl.DataFrame) -> pl.DataFrame:
    """Return the labels as single lines of valid text, none empty, too long or with brackets, each
    but once.
    """
    checked = labels.select(
        odd=pl.col("label").str.contains(rf"{CONTROL_PATTERN}|^\s|\s$|^\[|^\(\)$|^$")
        | (pl.col("label").str.len_bytes() > LONGEST_LABEL),
        bracket=pl.col("label").str.contains("[", literal=True),
    )
    if checked["odd"].any():
        odd = labels.filter(checked["odd"])
        labels = _rename(labels, {value: clean_label(label) for value, label in odd.iter_rows()})
    if checked["bracket"].any():
        labels = _replace_brackets(labels)
    return _make_unique(labels if labels["value"].is_sorted() else labels.sort("value"))


def _replace_brackets(labels: pl.DataFrame) -> pl.DataFrame:
    """Return the labels with braces where they have brackets.

    Paraver's short names (heads of columns, what it tells under the mouse) leave out all from the
    first [ to the last ]: `step [1]` and `step [2]` would both be `step`. A label with only one of
    the two stays.
    """
    label = pl.col("label")
    cut = label.str.contains("[", literal=True) & label.str.contains("]", literal=True)
    braces = label.str.replace_all("[", "{", literal=True).str.replace_all("]", "}", literal=True)
    return labels.with_columns(label=pl.when(cut).then(braces).otherwise(label))


def _make_unique(labels: pl.DataFrame) -> pl.DataFrame:
    """Return the labels with a number behind those that an earlier value, or End, already has."""
    texts = labels["label"]
    if texts.n_unique() == len(texts) and not (texts == END_LABEL).any():
        return labels
    repeated = labels.filter(pl.col("label").is_duplicated() | (pl.col("label") == END_LABEL))
    taken = set(labels["label"]) | {END_LABEL}
    counts: dict[str, int] = {END_LABEL: 1}
    renamed = {}
    for value, label in repeated.iter_rows():
        counts[label] = counts.get(label, 0) + 1
        if counts[label] > 1:
            while (candidate := f"{label} #{counts[label]}") in taken:
                counts[label] += 1
            taken.add(candidate)
            renamed[value] = candidate
    return _rename(labels, renamed)


def _rename(labels: pl.DataFrame, renamed: dict[int, str]) -> pl.DataFrame:
    """Return the labels with new ones for some values."""
    label = pl.col("value").replace_strict(renamed, default=pl.col("label"), return_dtype=pl.String)
    return labels.with_columns(label=label)


class PcfType(Struct):
    """An event type as a .pcf has it."""

    #: Number of the type.
    code: int
    #: Label of the type, one line.
    label: str
    #: Value -> label; empty where values have no names.
    labels: dict[int, str] = field(default_factory=dict)


def read_pcf(path: Path) -> list[PcfType]:
    """Return the event types of a .pcf, whoever wrote it. Raises one line where it is none."""
    with name_damaged_file(path):
        if path.is_file() and _is_trace(path):
            raise Nsys2prvError(f"{path}: is a trace; give the .pcf beside it")
        text = read_given(path, LARGEST_PCF).decode("utf-8", "replace")
    types: list[PcfType] = []
    block: list[PcfType] = []
    inside, valued = False, False
    for line in text.split("\n"):
        # A section begins with a word at the begin of its line; entries begin with a number.
        if inside and line[:1].isdigit():
            if valued and (match := _VALUE.match(line)):
                for pcf_type in block:
                    pcf_type.labels[int(match[1])] = from_ascii(match[2].strip())
            elif not valued and (match := _TYPE.match(line)):
                block.append(PcfType(int(match[1]), from_ascii(match[2].strip())))
                types.append(block[-1])
        elif line.strip() == "VALUES":
            valued = True
        elif line[:1].isalpha() and not line.startswith("PRECISION"):
            inside, valued, block = line.strip() == "EVENT_TYPE", False, []
    if not types:
        raise Nsys2prvError(f"{path}: is no .pcf of a Paraver trace: it names no event type")
    return types


def _is_trace(path: Path) -> bool:
    """True if the file begins like a .prv."""
    with path.open("rb") as file:
        return file.read(8) == b"#Paraver"


def read_base_names(paths: Sequence[Path]) -> dict[str, pl.DataFrame]:
    """Return name set -> frame of `label`, `value` (each only once) and `sure`: whether the label
    means this value and no other. The earlier file decides.
    """
    by_set: dict[str, list[pl.DataFrame]] = {}
    for path in paths:
        for name_set, frame in _read_file(read_pcf(path)).items():
            by_set.setdefault(name_set, []).append(frame)
    return {
        name_set: pl.concat(frames)
        .unique("value", keep="first", maintain_order=True)
        .with_columns(pl.col("sure") & pl.col("label").is_first_distinct())
        for name_set, frames in by_set.items()
    }


def _read_file(types: Sequence[PcfType]) -> dict[str, pl.DataFrame]:
    """Return the names of one file by set."""
    fields = [
        field
        for layout in load_catalogue().layouts.values()
        for field in layout.fields
        if isinstance(field.values, NameSet)
    ]
    by_set: dict[str, list[pl.DataFrame]] = {}
    for pcf_type in sorted(types, key=lambda item: item.code):
        labels = pl.DataFrame(
            list(pcf_type.labels.items()),
            schema={"value": pl.Int64, "label": pl.String},
            orient="row",
        )
        labels = _replace_brackets(
            labels.filter(pl.col("value").is_between(1, GREATEST_VALUE)).select("label", "value")
        )
        for name_set in {
            shown.values.name for shown in fields if _is_type_of_field(pcf_type, shown)
        }:
            by_set.setdefault(name_set, []).append(labels)
    return {
        name_set: pl.concat(frames)
        .unique(maintain_order=True)
        .with_columns(sure=~pl.col("label").is_duplicated())
        for name_set, frames in by_set.items()
    }


def _is_type_of_field(pcf_type: PcfType, field: Field) -> bool:
    """True if an event type of a .pcf is the one that a field has, in any NVTX domain."""
    if not isinstance(field.code, DomainCode):
        return pcf_type.code == field.code
    if pcf_type.code in dict(field.code.named).values():
        return True
    number, rest = divmod(
        pcf_type.code - field.code.base, field.code.code_of("", 1) - field.code.code_of("", 0)
    )
    return (
        rest == 0
        and 0 <= number <= LAST_HASHED_DOMAIN
        and pcf_type.label.startswith(field.label.partition("{domain}")[0])
    )


def count_families(names: pl.DataFrame) -> pl.DataFrame:
    """Return the labels with `members`: how many share each but for the number behind it."""
    bare = pl.col("label").str.extract(r"(?s)^(.*) #\d+$", 1)
    family = pl.when(bare.is_in(names["label"].implode())).then(bare).otherwise("label")
    return (
        names.with_columns(family=family)
        .with_columns(members=pl.len().over("family"))
        .drop("family")
    )
