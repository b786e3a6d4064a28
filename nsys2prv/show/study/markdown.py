"""Write a study as an assessment in Markdown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import count

from nsys2prv._util import __version__
from nsys2prv._util.files import load_templates
from nsys2prv._util.text import escape_to_one_line, format_nanoseconds, format_share
from nsys2prv.figures.study_model import FAIR, GOOD, SIGNS, ComparedRuns, Row, rate_efficiency
from nsys2prv.show.study.plots import find_sections
from nsys2prv.show.study.summary import describe_history, summarise_study, write_title
from nsys2prv.show.text import GROUPS, WORKS, format_figure, format_work, use_micro_sign

#: Markdown's indentation of a factor, and its special characters.
INDENT = "&nbsp;" * 4
#: An underscore within a word means nothing.
_SPECIAL = re.compile(r"[\\`*\[\]<>|~&]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}
#: Sections in the order of the document, by which figures are numbered.
ORDER = ("structure", "scalability", "regions", "balance", "history")


def format_markdown(study: ComparedRuns, pictures: Mapping[str, str] | None = None) -> str:
    """Return a study as a document in Markdown. pictures: name -> path of its plots."""
    environment = load_templates(__package__, keep_trailing_newline=True)
    environment.filters |= {
        "row": lambda cells: f"| {' | '.join(cells)} |",
        "md": escape_markdown,
        "figure": _mark_figure,
        "percent": lambda share: "-" if share is None else format_share(share),
        "ns": lambda time: "-" if time is None else format_nanoseconds(time),
        "work": format_work,
        "cause": lambda finding: f"{finding.title.rstrip('.')} ({format_share(finding.share)})",
        "number": lambda value: "-" if value is None else f"{value:,.1f}",
    }
    template, title = environment.get_template("study.md"), write_title(study)
    summary = summarise_study(study)
    texts = {
        "title": title,
        "summary": summary,
        "pictures": _sort_pictures(study, pictures or {}),
        "history": describe_history(study),
        "version": __version__,
        "indent": INDENT,
        "groups": GROUPS,
    }
    texts |= {"works": WORKS, "good": f"{100 * GOOD:.0f}", "fair": f"{100 * FAIR:.0f}"}
    return use_micro_sign(template.render(study=study, **texts))


def _sort_pictures(
    study: ComparedRuns, pictures: Mapping[str, str]
) -> dict[str, list[tuple[int, str, str]]]:
    """Return section -> its pictures: number, title, path."""
    sections: dict[str, list[tuple[int, str, str]]] = {one: [] for one in ORDER}
    section_of = find_sections(study) if pictures else {}
    for name, path in pictures.items():
        sections[section_of.get(name, "balance")].append((0, name.replace("_", " "), path))
    numbers = count(1)
    return {
        section: [(next(numbers), *rest) for _, *rest in own] for section, own in sections.items()
    }


def _mark_figure(value: float | None, row: Row) -> str:
    """Return a value as text; an efficiency with its rating."""
    is_rated = value is not None and row.is_efficiency
    return format_figure(row, value) + (SIGNS[rate_efficiency(value)] if is_rated else "")


def escape_markdown(text: str) -> str:
    """Escape a text so that Markdown shows it unchanged, also in a table cell."""
    one_line = escape_to_one_line(text)
    return _SPECIAL.sub(lambda found: _ENTITIES.get(found[0], f"\\{found[0]}"), one_line)
