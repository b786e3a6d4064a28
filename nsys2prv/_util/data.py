"""Files of data that come with the package, and YAML, in which most of them and those of users are
written.
"""

from __future__ import annotations

from hashlib import sha256
from importlib.resources import files
from typing import Any

#: Levels of nesting that YAML texts may have.
DEEPEST = 50


def data_text(package: str, name: str) -> str:
    """Return the text of a file that lies beside a package's modules."""
    return files(package).joinpath(name).read_text(encoding="utf-8")


def data_texts(package: str, suffix: str) -> list[str]:
    """Return the texts of all files of a package's folder whose names end so, by name."""
    found = (file for file in files(package).iterdir() if file.name.endswith(suffix))
    return [file.read_text(encoding="utf-8") for file in sorted(found, key=lambda file: file.name)]


def shipped(text: str) -> Any:
    """What the text of a YAML file of the package says.

    ``hatch_build.py`` parses these files while the package is built. A file that is another since
    then is parsed here.
    """
    try:
        from nsys2prv._util.shipped_data import PARSED
    except ImportError:
        return parsed(text)
    make = PARSED.get(sha256(text.encode()).hexdigest())
    return parsed(text) if make is None else make()


def parsed(text: str) -> Any:
    """Parse YAML text. Raises yaml.YAMLError for what is none, or is nested too deeply.

    libyaml, where PyYAML has it, is several times as fast; it would overflow the stack by nesting.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    depth = 0
    for event in yaml.parse(text, Loader=loader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise yaml.YAMLError(f"nested more than {DEEPEST} levels deep")
    return yaml.load(text, Loader=loader)
