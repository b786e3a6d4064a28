"""Read pages of `nsys2prv report`: their texts, and the data that their scripts draw."""

import base64
import json
import re
import zlib
from collections.abc import Iterator
from html.parser import HTMLParser

import numpy as np


class Page(HTMLParser):
    """A parsed page. tags: all that were opened, with their attributes. text: everything outside of
    scripts and styles. jobs: the data of each job.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text, self._within = "", ""
        self.jobs: list[PageData] = []
        self._is_data = False
        self.feed(text)

    def handle_starttag(self, tag: str, attribute_list: list[tuple[str, str | None]]) -> None:
        attributes = dict(attribute_list)
        self.tags.append((tag, attributes))
        if tag in ("script", "style"):
            self._within = tag
            self._is_data = attributes.get("class") == "data"

    def handle_endtag(self, tag: str) -> None:
        if tag == self._within:
            self._within = ""

    def handle_data(self, data: str) -> None:
        if self._within and self._is_data:
            self.jobs.append(PageData(data))
        self.text += "" if self._within else data


class PageData:
    """The data of a job on a page. facts: the JSON in front."""

    def __init__(self, block: str) -> None:
        data = zlib.decompress(base64.b64decode(block))
        length = int.from_bytes(data[:4], "little")
        self.facts = json.loads(data[4 : 4 + length])
        self.body = data[4 + length :]

    @property
    def tables(self) -> dict[str, dict[str, list]]:
        """The columns of each table, by name."""
        tables = (table for one in self.facts["tables"] for table in one["tables"])
        return {
            table["name"]: {name: values for name, _, values, _ in table["columns"]}
            for table in tables
        }

    def read_track(self, lane: int, kind: str) -> dict[str, np.ndarray]:
        """Return the columns of a lane's events of a kind."""
        names = self.facts["columns"][kind]
        for of_lane, of_kind, count, at in self.facts["tracks"]:
            if (of_lane, of_kind) == (lane, kind):
                columns = {}
                for name in names:
                    columns[name], at = self._read_varints(at, count)
                columns["begin"] = np.cumsum(columns["begin"])
                columns["end"] += columns["begin"]
                return columns
        return {name: np.zeros(0, np.int64) for name in names}

    def _read_varints(self, at: int, count: int) -> tuple[np.ndarray, int]:
        column = np.zeros(count, np.int64)
        for number in range(count):
            shift = 0
            while True:
                byte = self.body[at]
                at += 1
                column[number] |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    break
        return column, at


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
