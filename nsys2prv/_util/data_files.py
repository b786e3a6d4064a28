"""Read data: YAML files of the package, rule files of users, and reports; any error in reading
becomes one line, without the output of libraries.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from threading import Lock
from typing import Any

from nsys2prv._util.errors import Nsys2prvError, name_damaged_file
from nsys2prv._util.files import read_given

#: A number that is none of ours.
_LONG_NUMBER = re.compile(r"[-+]?(?:0[xob])?[0-9a-fA-F_:]{100,}")
#: Levels of nesting that YAML texts may have.
DEEPEST_NESTING = 50


def read_data_text(package: str, name: str) -> str:
    """Return the text of a file that lies beside a package's modules."""
    return files(package).joinpath(name).read_text(encoding="utf-8")


def read_data_texts(package: str, suffix: str) -> dict[str, str]:
    """Return name -> text of all files of a package's folder whose names end so, by name."""
    data_files = (file for file in files(package).iterdir() if file.name.endswith(suffix))
    return {
        file.name: file.read_text(encoding="utf-8")
        for file in sorted(data_files, key=lambda file: file.name)
    }


def load_shipped_file(package: str, name: str) -> Any:
    """Return the data of a YAML file that lies beside a package's modules."""
    return load_shipped(read_data_text(package, name))


def load_shipped(text: str) -> Any:
    """Return the data of a YAML file of the package, given its text.

    ``tools/make_package_data.py`` parses these files while the package is built. A file that has
    changed since then is parsed here.
    """
    try:
        from nsys2prv._util.shipped_data import PARSED
    except ImportError:
        return parse_yaml(text)
    make = PARSED.get(sha256(text.encode()).hexdigest())
    return parse_yaml(text) if make is None else make()


def parse_yaml(text: str) -> Any:
    """Parse YAML text. Raises yaml.YAMLError for what is none, or is nested too deeply.

    libyaml, where PyYAML has it, is several times as fast; it would overflow the stack by nesting.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    depth = 0
    for event in yaml.parse(text, Loader=loader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST_NESTING:
            raise yaml.YAMLError(f"nested more than {DEEPEST_NESTING} levels deep")
        if isinstance(event, yaml.ScalarEvent) and _LONG_NUMBER.fullmatch(event.value):
            raise yaml.YAMLError(f"a number of {len(event.value)} digits")
    try:
        return yaml.load(text, Loader=loader)
    except ValueError as error:  # of a date
        raise yaml.YAMLError(str(error)) from error


def read_rule_file(path: Path, what: str) -> str:
    """Return the text of a user's file; `what`: the kind of rules, for errors."""
    try:
        with name_damaged_file(path):
            return read_given(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise Nsys2prvError(f"{path}: {what} rules must be UTF-8 text") from error


def parse_rule_file(text: str, source: str, what: str, more: Sequence[str] = ()) -> dict[str, Any]:
    """Parse the text: a list under `rules`, and perhaps the keys `more`. source: name of the file
    in errors.
    """
    import yaml

    try:
        data = parse_yaml(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark is not None else ""
        problem = (
            getattr(error, "problem", None) or str(error).partition("\n")[0] or "nested too deeply"
        )
        raise Nsys2prvError(f"{source}: not YAML{where}: {problem}") from error
    if (
        not isinstance(data, dict)
        or set(data) - {"rules", *more}
        or not isinstance(data.get("rules"), list)
    ):
        beside = f" (beside it: {', '.join(more)})" if more else ""
        raise Nsys2prvError(f"{source}: {what} rules are a list under the one key `rules`{beside}")
    return data


def check_rule_keys(spec: Any, keys: Sequence[str], where: str) -> None:
    """Raise Nsys2prvError where a rule is no dictionary of known keys."""
    if not isinstance(spec, dict):
        raise Nsys2prvError(f"{where}: a rule has keys {', '.join(keys)}")
    for key in spec:
        if key not in keys:
            raise Nsys2prvError(
                f"{where}: unknown key {str(key)[:40]!r}; a rule has {', '.join(keys)}"
            )


_hiding, _hiders, _standard = Lock(), 0, -1


@contextmanager
def hide_stderr() -> Iterator[None]:
    """Hide what libraries print (polars does before it raises) while any thread is within."""
    global _hiders, _standard
    with _hiding:
        _hiders += 1
        if _hiders == 1:
            _standard = os.dup(2)
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        with _hiding:
            _hiders -= 1
            if not _hiders:
                os.dup2(_standard, 2)
                os.close(_standard)
