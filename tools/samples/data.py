"""The files of data beside the modules: ``data.yaml``, and tables with tabs between columns."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import yaml


def read_text(name: str) -> str:
    """The text of a file of data."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


@cache
def read_rows(name: str) -> list[list[str]]:
    """The rows of a table, without comments."""
    return [line.split("\t") for line in read_text(name).splitlines() if not line.startswith("#")]


def as_json(value: Any) -> str:
    """JSON as exports have it: without spaces."""
    return json.dumps(value, separators=(",", ":"))


DATA: dict[str, Any] = yaml.load(read_text("data.yaml"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
