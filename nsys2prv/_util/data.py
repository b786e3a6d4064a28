"""Files of data that come with the package, and YAML, in which most of them and those of users are
written.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import yaml


def data_text(package: str, name: str) -> str:
    """The text of a file that lies beside a package's modules."""
    return files(package).joinpath(name).read_text(encoding="utf-8")


def data_texts(package: str, suffix: str) -> list[str]:
    """The texts of all files of a package's folder whose names end so, by name."""
    found = (file for file in files(package).iterdir() if file.name.endswith(suffix))
    return [file.read_text(encoding="utf-8") for file in sorted(found, key=lambda file: file.name)]


def parsed(text: str) -> Any:
    """What YAML text says. libyaml, where PyYAML has it, is several times as fast."""
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
