"""Read pages of `nsys2prv report`, and render them with Chromium."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
#: A browser that looks for nothing outside.
ALONE = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--enable-logging=stderr",
    "--v=0",
)


@dataclass
class PageTable:
    """A table of a page.

    rows: the cells of each row, numbers where they have a figure, texts otherwise. depths: the
    depth of each row of a tree.
    """

    columns: list[str] = field(default_factory=list)
    rows: list[list[object]] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)


class Page(HTMLParser):
    """A parsed page.

    tables: by source. tags: all that were opened, with their attributes. text: everything outside
    of scripts and styles.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: dict[str, PageTable] = {}
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._table: PageTable | None = None
        self._cell: str | None = None
        self._within = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attribute_list: list[tuple[str, str | None]]) -> None:
        attributes = dict(attribute_list)
        self.tags.append((tag, attributes))
        if tag in ("script", "style"):
            self._within = tag
        if tag == "table":
            self._table = self.tables[str(attributes["data-source"])] = PageTable()
        elif tag == "th" and self._table:
            self._table.columns.append(str(attributes["title"]))
        elif tag == "tr" and self._table and self._table.columns:
            self._table.rows.append([])
            self._table.depths.append(int(attributes.get("data-d") or 0))
        elif tag == "td" and self._table:
            value = attributes.get("data-v", "text")
            self._cell = "" if value == "text" else None
            self._table.rows[-1].append("" if value == "text" else float(value) if value else None)

    def handle_endtag(self, tag: str) -> None:
        if tag == "table":
            self._table = None
        if tag == self._within:
            self._within = ""
        if tag in ("td", "table"):
            self._cell = None

    def handle_data(self, data: str) -> None:
        self.text += "" if self._within else data
        if self._table and self._table.rows and self._cell is not None:
            self._table.rows[-1][-1] = str(self._table.rows[-1][-1]) + data.removesuffix("\n")


def list_references(text: str) -> Iterator[str]:
    """Yield what a page would have to fetch: values of attributes and style that point outside of
    it.
    """
    for tag, attributes in Page(text).tags:
        for name in ("src", "href", "xlink:href", "srcset", "action", "poster", "data"):
            value = attributes.get(name)
            if value is not None and not value.startswith(("#", "data:")):
                yield f"{tag} {name}={value}"
    yield from re.findall(r"url\((?!#)[^)]*\)|@import[^;]*", text)


def render_in_chromium(folder: Path, page: Path, *options: str) -> tuple[str, list[str]]:
    """Return the HTML that Chromium makes of a page once its scripts have run, and its console
    messages.
    """
    process = subprocess.run(
        [
            str(CHROMIUM),
            *ALONE,
            f"--user-data-dir={folder / 'browser'}",
            *options,
            "--dump-dom",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=240,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-2000:]
    return process.stdout, [
        line for line in process.stderr.splitlines() if "CONSOLE" in line or "Uncaught" in line
    ]
