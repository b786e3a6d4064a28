"""Every error and every reason for loss is explained in docs/troubleshooting.md, and what is
quoted there is still printed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from nsys2prv.events.kind import Reason

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "troubleshooting.md"
#: Stands for what a message fills in.
HOLE = "\0"
#: Classes of errors that end a run with their text, and those of wrong command lines.
ERRORS = {"Nsys2prvError", "MissingPackage", "NothingToWrite", "Unreadable"}
USAGE = "UsageError"
#: Words by which the message of a wrong command line says itself what to write.
SAYS_WHAT_TO_DO = re.compile(r"\b(give|write|use|did you mean|there are|as in|takes|see|holds)\b")
#: Placeholders of the page.
PLACEHOLDER = re.compile(r"\.\.\.|\b(?:N|M|E|R|A|B|KIND|NAME|FILE|HOST|RANK|PROCESS|OPTION|LIST)\b")


def _list_templates(node: ast.expr) -> list[str]:
    """Return the texts that an expression may be, with holes for what it fills in."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else [HOLE]
    if isinstance(node, ast.JoinedStr):
        return [
            "".join(
                str(part.value) if isinstance(part, ast.Constant) else HOLE for part in node.values
            )
        ]
    if isinstance(node, ast.BinOp):
        return [
            left + right
            for left in _list_templates(node.left)
            for right in _list_templates(node.right)
        ]
    if isinstance(node, ast.IfExp):
        return [*_list_templates(node.body), *_list_templates(node.orelse)]
    return [HOLE]


def _count_words(text: str) -> int:
    """Return the number of words; none for a name without a blank."""
    return len(re.findall(r"[a-z]{2,}", text)) if " " in text.strip() else 0


@cache
def _load_modules() -> tuple[tuple[Path, tuple[ast.AST, ...]], ...]:
    """Return the modules of the package with their nodes."""
    return tuple(
        (path.relative_to(ROOT), tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8")))))
        for path in sorted((ROOT / "nsys2prv").rglob("*.py"))
        if path.name != "shipped_data.py"
    )


def _list_raised(names: set[str]) -> Iterator[tuple[str, str]]:
    """Yield the place and text of each error of these classes that is raised."""
    for path, nodes in _load_modules():
        for node in nodes:
            if (
                isinstance(node, ast.Raise)
                and isinstance(node.exc, ast.Call)
                and getattr(node.exc.func, "id", "") in names
                and node.exc.args
            ):
                for text in _list_templates(node.exc.args[0]):
                    yield f"{path}:{node.lineno}", text


@cache
def _load_quotes() -> tuple[re.Pattern[str], ...]:
    """Return the patterns of what the page has between backticks."""
    quotes = re.findall(r"`([^`\n]+)`", PAGE.read_text(encoding="utf-8"))
    return tuple(filter(None, map(_make_pattern, quotes)))


def _make_pattern(quote: str) -> re.Pattern[str] | None:
    """Return the pattern of the messages that a quote is of; None for one too short to be of any."""
    parts = [part.strip(' :,()"') for part in PLACEHOLDER.split(quote)]
    if sum(len(part) for part in parts) < 8:
        return None
    return re.compile(".*".join(re.escape(part) for part in parts), re.S)


def _is_explained(text: str) -> bool:
    return any(pattern.search(text) for pattern in _load_quotes())


def _make_readable(places: list[tuple[str, str]]) -> str:
    return "\n".join(f"{place}: {text.replace(HOLE, '{}')}" for place, text in places)


@pytest.mark.slow
def test_errors_are_explained() -> None:
    # What is nothing but the words of the operating system has a section of its own.
    errors = [(place, text) for place, text in _list_raised(ERRORS) if _count_words(text)]
    assert len(errors) > 60
    unexplained = [(place, text) for place, text in errors if not _is_explained(text)]
    assert not unexplained, f"docs/troubleshooting.md lacks\n{_make_readable(unexplained)}"


@pytest.mark.slow
def test_wrong_command_lines_are_explained_or_say_what_to_write() -> None:
    errors = [(place, text) for place, text in _list_raised({USAGE}) if _count_words(text)]
    assert len(errors) > 40
    unexplained = [
        (place, text)
        for place, text in errors
        if not SAYS_WHAT_TO_DO.search(text) and not _is_explained(text)
    ]
    assert not unexplained, f"docs/troubleshooting.md lacks\n{_make_readable(unexplained)}"


def test_reasons_for_loss_and_repair_are_explained() -> None:
    reasons = [(str(reason), reason.text) for reason in _list_printed_reasons()]
    assert len(reasons) > 20
    unexplained = [(place, text) for place, text in reasons if not _is_explained(text)]
    assert not unexplained, f"docs/troubleshooting.md lacks\n{_make_readable(unexplained)}"


def _list_printed_reasons() -> Iterator[Reason]:
    """Yield the reasons for which rows are left out or changed: those that the summary prints."""
    designed = {
        Reason.FACT,
        Reason.FURTHER_ROW,
        Reason.WITHIN_SWITCH,
        Reason.HAS_FIELD_ROWS,
        Reason.EVENT_WITH_NUMBERS,
        Reason.PAYLOAD_WITH_NUMBERS,
        Reason.NOT_SELECTED,
        Reason.NUMBER_IN_EVENT,
        Reason.VALUE_IN_PAYLOAD,
        Reason.SHARED_ID,
        Reason.COMPLETION_ON_GPU,
        Reason.THREAD_END,
        Reason.ZERO_AT_END,
        Reason.ZERO_UNSAMPLED,
        Reason.FROM_SEVERAL_ROWS,
    }
    yield from (reason for reason in Reason if reason not in designed)


def test_quoted_messages_are_printed() -> None:
    """What is bold or begins a row of a table is a message that the source has."""
    text = PAGE.read_text(encoding="utf-8")
    heads = [
        *re.findall(r"^\*\*(.+?)\*\*", text, re.M),
        *re.findall(r"^\| (.+?) \|", text, re.M),
    ]
    quotes = [
        quote
        for head in heads
        for quote in re.findall(r"`([^`]+)`", head)
        if " " in quote and not quote.startswith(("nsys", "-"))
    ]
    assert len(quotes) > 80
    source = [
        template.replace("{}", HOLE)
        for _, nodes in _load_modules()
        for node in nodes
        if isinstance(node, ast.Constant | ast.JoinedStr)
        for template in _list_templates(node)
    ]
    source += [reason.text.replace("{}", HOLE) for reason in Reason]
    stale = [
        quote
        for quote in quotes
        if (pattern := _make_pattern(quote)) is not None and not any(map(pattern.search, source))
    ]
    assert not stale, f"no message has {stale}"
