"""Dataclasses and named tuples as JSON and back, by their annotations: nothing is made that these
do not name, whoever wrote the text.
"""

from __future__ import annotations

import collections.abc
import types
from collections import Counter
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

_SCALARS = (int, float, str, bool)
_MAPPINGS = (dict, Counter, collections.abc.Mapping)


def to_json(value: Any, kind: Any) -> Any:
    """Convert a value of this annotated type to what JSON can hold. Mappings become lists of pairs,
    a value of a union of classes its class name and value.
    """
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        member = type(value) if type(value) in arguments else _other(arguments)
        plain = to_json(value, member)
        return [member.__name__, plain] if len(_others(arguments)) > 1 else plain
    if kind is Path:
        return str(value)
    if origin in _MAPPINGS:
        key, item = _pair(origin, arguments)
        return [[to_json(name, key), to_json(found, item)] for name, found in value.items()]
    if origin in (list, tuple, frozenset):
        found = sorted(value) if origin is frozenset else value
        return [
            to_json(item, part)
            for item, part in zip(found, _parts(origin, arguments, len(value)), strict=True)
        ]
    if hints := _hints(kind):
        return [to_json(getattr(value, name), part) for name, part in hints.items()]
    return value


def from_json(data: Any, kind: Any) -> Any:
    """Return the value of this annotated type that :func:`to_plain` made `data` of. Raises
    ValueError, or TypeError, for what it cannot be.
    """
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, types.UnionType):
        if data is None and type(None) in arguments:
            return None
        if len(_others(arguments)) == 1:
            return from_json(data, _other(arguments))
        name, found = data
        return from_json(
            found, {member.__name__: member for member in _others(arguments)}.get(name)
        )
    if kind in _SCALARS:
        if type(data) is not kind:
            raise ValueError(f"{data!r} is no {kind.__name__}")
        return data
    if kind is Path:
        return Path(from_json(data, str))
    if not isinstance(data, list):
        raise ValueError(f"{data!r} is no list")
    if origin in _MAPPINGS:
        key, item = _pair(origin, arguments)
        made = Counter if origin is Counter else dict
        return made({from_json(name, key): from_json(found, item) for name, found in data})
    if origin in (list, tuple, frozenset):
        return origin(
            from_json(item, part)
            for item, part in zip(data, _parts(origin, arguments, len(data)), strict=True)
        )
    hints = _hints(kind)
    if not hints:
        raise TypeError(f"no way to read a {kind}")
    return kind(
        **{
            name: from_json(item, part)
            for item, (name, part) in zip(data, hints.items(), strict=True)
        }
    )


def _others(arguments: tuple) -> list:
    return [member for member in arguments if member is not type(None)]


def _other(arguments: tuple) -> Any:
    return _others(arguments)[0]


def _pair(origin: Any, arguments: tuple) -> tuple:
    return (arguments[0], int) if origin is Counter else arguments


def _parts(origin: Any, arguments: tuple, count: int) -> list:
    """Return the types of the items."""
    return (
        list(arguments)
        if origin is tuple and arguments[-1] is not Ellipsis
        else [arguments[0]] * count
    )


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """Return the annotated types of what makes a dataclass or a named tuple; empty for all others."""
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return {field.name: hints[field.name] for field in fields(kind) if field.init}
    return (
        get_type_hints(kind)
        if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")
        else {}
    )
