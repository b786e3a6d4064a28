"""Mutate texts that users give: clock files, rules, labels of earlier traces, results of analyses,
traces to be checked.
"""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

from nsys2prv import Options, convert
from nsys2prv._util.errors import NothingToWrite
from nsys2prv._util.files import read_data_text

from . import files, values

#: A clock file has more to say of several hosts than the bases have.
CLOCKS = """hosts:
  node01: {offset_ns: 0, drift_ppm: 0.0, method: reference}
  node02: {offset_ns: -125000, drift_ppm: 3.5, at_utc_ns: 1760000000000000000, method: nccl, bound_ns: 900, spread_ns: 30,
    observations: 12, reference: node01, samples: [[1760000000000000000, 5, 3], [1760000000000000100, 5, 3]]}
notes: [a note]
causality: {held back: {before: {checked: 5, violated: 1, largest_ns: 900}, after: {checked: 5, violated: 0}}}
"""
WORDS = (
    "x",
    "",
    "null",
    "true",
    "[]",
    "{}",
    "*a",
    "&a",
    "!!python/object:os.system",
    "!!binary x",
    "? ",
    "- ",
    ": ",
    *(one for one in values.TEXTS if isinstance(one, str)),
)
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
WORD = re.compile(r"\w+")


def make_folder(report: Path) -> Path:
    """Return a folder with a trace of a base and all that belongs to it, and rules; made when it is
    first asked for.
    """
    folder = report.parent.with_name("traces") / report.stem
    if not folder.exists():
        new = folder.with_suffix(".new")
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        try:
            convert([report], new / "out.prv", Options(report=True))
        except NothingToWrite:
            for name in ("out.prv", "out.pcf", "out.row", "out.report.json"):
                (new / name).write_text("")
        (new / "out.clock.yaml").write_text(CLOCKS)
        for name in ("kernel_rules.yaml", "nvtx_rules.yaml"):
            (new / name).write_text(read_data_text("nsys2prv.events.catalogue", name))
        new.rename(folder)
    return folder


def mutate(random: Random, content: bytes) -> tuple[bytes, list[str]]:
    """Return other content, and what was done."""
    text = content.decode("utf-8", "replace")
    changes = []
    for mutation in random.choices(
        list(MUTATIONS), list(MUTATIONS.values()), k=random.choice((1, 1, 2, 4))
    ):
        text = mutation(random, text)
        changes.append(mutation.__name__)
    data = bytearray(text.encode("utf-8", "surrogatepass"))
    if random.random() < 0.1 and data:
        random.choice(files.MUTATIONS)(random, data)
        changes.append("bytes")
    if random.random() < 0.02:
        data = bytearray(text.encode("utf-16", "replace"))
    return bytes(data), changes


def change_number(random: Random, text: str) -> str:
    return _replace(
        random,
        NUMBER,
        text,
        lambda: random.choice(
            (
                str(values.draw_integer(random)),
                "9" * 30,
                "-1",
                "0",
                "1e400",
                "nan",
                "0x10",
                ".5",
                "1_000",
                "",
            )
        ),
    )


def change_word(random: Random, text: str) -> str:
    return _replace(random, WORD, text, lambda: random.choice(WORDS))


def _replace(random: Random, pattern: re.Pattern[str], text: str, other: Callable[[], str]) -> str:
    matches = list(pattern.finditer(text))
    if not matches:
        return text + other()
    for match in sorted(
        random.sample(matches, min(len(matches), random.choice((1, 1, 3)))),
        key=lambda match: -match.start(),
    ):
        text = text[: match.start()] + other() + text[match.end() :]
    return text


def drop_lines(random: Random, text: str) -> str:
    lines = text.splitlines(keepends=True)
    first = random.randrange(len(lines) + 1)
    del lines[first : first + random.choice((1, 1, 5))]
    return "".join(lines)


def repeat_lines(random: Random, text: str) -> str:
    lines = text.splitlines(keepends=True)
    at = random.randrange(len(lines) + 1)
    lines[at:at] = random.choices(lines, k=random.choice((1, 3))) if lines else []
    return "".join(lines)


def indent(random: Random, text: str) -> str:
    lines = text.splitlines(keepends=True)
    if lines:
        at = random.randrange(len(lines))
        lines[at] = (
            random.choice((" ", "    ", "\t")) + lines[at]
            if random.random() < 0.5
            else lines[at].lstrip()
        )
    return "".join(lines)


def truncate(random: Random, text: str) -> str:
    return text[: random.randrange(len(text) + 1)]


def nest(random: Random, text: str) -> str:
    deep = random.choice((50, 3000, 100_000))
    return random.choice(
        (
            text + "\nx: " + "[" * deep,
            "[" * deep + "]" * deep,
            '{"a":' * deep,
            "- " * deep,
            "a: " * deep,
        )
    )


def reference_references(random: Random, text: str) -> str:
    """Write references to references: a few lines that stand for billions."""
    return (
        "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12))
        + random.choice((text, "rules: *a11\n", "hosts: *a11\n"))
    )


def add_long_line(random: Random, text: str) -> str:
    return text + random.choice(("x", " ", "9", "é")) * random.choice((5_000, 3_000_000))


MUTATIONS: dict[Callable[[Random, str], str], int] = {
    change_number: 12,
    change_word: 12,
    drop_lines: 5,
    repeat_lines: 4,
    indent: 3,
    truncate: 3,
    nest: 2,
    reference_references: 1,
    add_long_line: 1,
}
