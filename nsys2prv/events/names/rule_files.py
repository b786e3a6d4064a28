"""Files of rules, of nsys2prv and of users: YAML with a list under the key `rules`. What is wrong
with one is one line.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nsys2prv._util.data import parsed
from nsys2prv._util.errors import Nsys2prvError
from nsys2prv._util.files import read_given


def text_of(path: Path, what: str) -> str:
    """Return the text of a user's file; `what`: of what rules, for errors."""
    try:
        return read_given(path).decode("utf-8")
    except OSError as error:
        raise Nsys2prvError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise Nsys2prvError(f"{path}: {what} rules must be UTF-8 text") from error


def document(text: str, source: str, what: str, more: Sequence[str] = ()) -> dict[str, Any]:
    """Parse the text: a list under `rules`, and perhaps the keys `more`. source: name of the file
    in errors.
    """
    import yaml

    try:
        data = parsed(text)
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


def keys_checked(spec: Any, keys: Sequence[str], where: str) -> dict[str, Any]:
    """Return a rule as a dictionary of known keys."""
    if not isinstance(spec, dict):
        raise Nsys2prvError(f"{where}: a rule has keys {', '.join(keys)}")
    for key in spec:
        if key not in keys:
            raise Nsys2prvError(
                f"{where}: unknown key {str(key)[:40]!r}; a rule has {', '.join(keys)}"
            )
    return spec
