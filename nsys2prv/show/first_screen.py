"""Write the first screen of a report, 24 lines of 80 columns: what ran, how efficiently, what costs
most, what to try, and where to look. ``--full`` prints everything else.
"""

from __future__ import annotations

from collections.abc import Sequence

from nsys2prv._util.text import (
    PLAIN,
    Column,
    capitalize,
    fold_lines,
    format_count,
    format_share,
    inflect,
    lay_out_table,
)
from nsys2prv.figures.result import NOTHING, Finding, Result
from nsys2prv.show.text import (
    BOLD,
    FIRST_TABLES,
    LABEL_WIDTH,
    MOST_SHORT,
    Style,
    format_table,
    list_details,
    list_efficiencies,
    make_figure_column,
    wrap_text,
)

#: Lines and columns of the screen. Narrower terminals are respected, wider ones are used.
LINES, COLUMNS = 24, 80
#: Maximum number of lines of the heading, and of rows of efficiencies.
MOST_HEAD, MOST_RATED = 5, 5
#: Blanks between a title and its savings, at least.
GAP = 2
#: Columns of a finding's number.
INDENT = 3
MORE = "--full"


def format_first_screen(
    results: Sequence[Result],
    head: Sequence[str],
    notes: Sequence[str],
    style: Style,
    whole: str = "the job",
) -> str:
    """Return the report on one screen, as text. head: first lines. notes: about the capture, below
    these. whole: name of the time to which shares refer without a steady state.
    """
    width = min(style.width or COLUMNS, style.text_width)
    found = next(result for result in results if result.name == "findings")
    span = "the steady state" if "phases" in found.tables else whole
    parts = [_shorten_head(head, notes, width)] if head else []
    if asked := found.tables.get("what_if"):
        frame = asked.frame
        parts.append([*style.format_title(asked.title), *format_table(frame, frame.height, width)])
    parts += [wrap_text(note, width, 2) for note in found.notes[:1]]
    parts += [lines for result in results if (lines := _format_efficiencies(result, style))]
    used = sum(len(part) + 1 for part in parts)
    parts.append(_format_bottlenecks(found, style, width, (span, whole), max(LINES - used, 0)))
    return "\n\n".join("\n".join(part) for part in parts)


def _shorten_head(head: Sequence[str], notes: Sequence[str], width: int) -> list[str]:
    """Return the lines of the heading that fit, and the number of notes that do not."""
    shown, left = fold_lines(head, width), len(notes)
    for note in notes:
        lines = fold_lines([note], width)
        if len(shown) + len(lines) + (left > 1) <= MOST_HEAD:
            shown += lines
            left -= 1
    more = "more " * (left < len(notes))
    return shown + [f"  {left} {more}{inflect('note', left)} on this capture: {MORE}"] * (left > 0)


def _format_efficiencies(result: Result, style: Style) -> list[str]:
    """Return the top-level efficiencies, one line each, with host efficiencies if they fit."""
    if result.name != FIRST_TABLES or not (found := list_efficiencies(result)):
        return []
    parts, known = found
    # One GPU has no others to be compared with.
    device = result.tables.get("device")
    is_single = device is not None and device.frame["devices"].max() == 1
    parts_of_job = ("mpi.", "openmp.") if is_single else ("device.", "mpi.", "openmp.")
    if not any(row.path.startswith(parts_of_job) for row, _ in known):
        return []
    second = [place for place, (row, _) in enumerate(known) if place and not row.depth]
    first = known[: min(second, default=len(known))]
    # The first tree as deep as fits, then only the roots of the others.
    depth = max(
        most
        for most in range(max(row.depth for row, _ in first) + 1)
        if not most or sum(row.depth <= most for row, _ in first) <= MOST_RATED - bool(second)
    )
    shown = [one for one in first if one[0].depth <= depth]
    shown += [known[place] for place in second][: MOST_RATED - len(shown)]
    names = Column("Efficiencies (POP)", ["  " * row.depth + row.label for row, _ in shown])
    columns = [
        make_figure_column(
            part, [(row, values[place]) for row, values in shown], style, in_words=True
        )
        for place, part in enumerate(parts)
    ]
    first, *rows = [line.removeprefix("  ") for line in lay_out_table([names, *columns], None)]
    return [_emphasize(first, style), *rows]


def _emphasize(title: str, style: Style) -> str:
    return f"{BOLD}{title}{PLAIN}" if style.colours else title


def _format_bottlenecks(
    found: Result, style: Style, width: int, times: tuple[str, str], room: int
) -> list[str]:
    """Return the lines of the first findings: all titles, then as many details as fit. times: names of
    the times to which shares of savings and of one-time costs refer.
    """
    shown, more = found.findings[:MOST_SHORT], len(found.findings) - MOST_SHORT
    nothing = (found.missing or [NOTHING])[0]
    if all(one.happens_once for one in shown):
        shown = shown[: MOST_SHORT - 1]
        more = len(found.findings) - len(shown)
    is_numbered = any(one.share for one in shown)
    title = "Bottlenecks"
    if is_numbered and not all(one.happens_once for one in shown):
        title += f" (savings: how much shorter {times[0]} would be)"
    lines = [_emphasize(title, style)] if is_numbered else []
    if all(one.happens_once for one in found.findings):
        lines += wrap_text(capitalize(nothing), width, 2)
    titles = [
        _format_title(one, f"{number}. " if is_numbered else "", width, times[1])
        for number, one in enumerate(shown, 1)
    ]
    room -= len(lines) + 1
    details = [_fold_details(one, width) for one in shown]
    # Advice for the first finding comes before the titles of others.
    least = len(details[0].get("Try", ())) if details else 0
    while len(titles) > 1 and sum(map(len, titles)) + least > room:
        titles.pop()
        more += 1
    room -= sum(map(len, titles))
    rest = "efficiencies, tables, Paraver commands"
    footer = (
        f"{format_count(more, 'more bottleneck')}, {rest}: {MORE}"
        if more > 0
        else f"{capitalize(rest)}: {MORE}"
    )
    for of_title, folded in zip(titles, details, strict=False):
        lines += of_title
        # Advice, where to look, then measurements.
        kept = set()
        for label in ("Try", "See", "Evidence"):
            if label in folded and len(folded[label]) <= room:
                kept.add(label)
                room -= len(folded[label])
        lines += [line for label, own in folded.items() if label in kept for line in own]
    return [*lines, *wrap_text(footer, width, 2)]


def _fold_details(finding: Finding, width: int) -> dict[str, list[str]]:
    """Return label -> lines for each detail of a finding."""
    indent = INDENT + LABEL_WIDTH
    return {
        label: wrap_text(f"{'':{INDENT}}{label:{LABEL_WIDTH}}{text}", width, indent)
        for label, text in list_details(finding, most=1)
        if label != "Where"
    }


def _format_title(finding: Finding, number: str, width: int, whole: str) -> list[str]:
    """Return the title of a finding, with its savings at the right of the first line."""
    saves, part = "", whole.removesuffix(" of the job")
    if finding.share:
        at_most = "at most " if finding.is_limit else ""
        saves = f"saves {at_most}{format_share(finding.share)}"
        if finding.happens_once:
            saves = f"one-time cost: {format_share(finding.share)} of {part}"
    room = width - len(saves) - GAP * bool(saves)
    first, *others = wrap_text(number + finding.title, room, len(number))
    rest = " ".join(line.strip() for line in others)
    others = wrap_text(f"{'':{len(number)}}{rest}", width, len(number)) if rest else []
    return [f"{first:{width - len(saves)}}{saves}".rstrip(), *others]
