"""The file that a store is, a ZIP archive whose directory has a size and a checksum for each
member, and Structs as JSON.

Its first member tells what it is, as in documents of other programs. It comes into being under its
name when it is complete. From JSON nothing is made that the annotations of a Struct do not name,
whoever wrote the text.
"""

from __future__ import annotations

import collections.abc
import shutil
import types
import zipfile
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

#: The first member, and its content.
TYPE, CONTENT = "mimetype", b"application/x-nsys2prv-store"
#: Bytes before the name of a ZIP archive's first member.
_HEAD = 30
BLOCK = 1 << 20
#: A member may unpack to so many times its size, or to so many bytes: tables of one value take
#: little, but not next to nothing.
MOST_TIMES, MOST_BYTES = 1_000, 256_000_000
#: Name, checksum and size of each.
Members = list[list[str | int]]


def is_archive(path: Path) -> bool:
    """True if a file begins like a store, damaged or not."""
    try:
        # Opening what is no file, such as a pipe, may wait for ever.
        if not path.is_file():
            return False
        with path.open("rb") as file:
            head = file.read(_HEAD + len(TYPE) + len(CONTENT))
    except OSError:
        return False
    return head.startswith(b"PK\x03\x04") and head[_HEAD:] == TYPE.encode() + CONTENT


class ArchiveWriter:
    """Adds members to a new archive. The same members make the same bytes."""

    def __init__(self, path: Path) -> None:
        self._zip = zipfile.ZipFile(path, "w")
        self.add_bytes(TYPE, CONTENT)

    def add_bytes(self, name: str, content: bytes) -> None:
        self._zip.writestr(_make_member(name), content)

    def move_folder(self, folder: Path) -> None:
        """Add the files of a folder as members of its name, and remove it."""
        for path in sorted(folder.iterdir()):
            member = _make_member(f"{folder.name}/{path.name}")
            with path.open("rb") as source, self._zip.open(member, "w", force_zip64=True) as target:
                shutil.copyfileobj(source, target, BLOCK)
        shutil.rmtree(folder)

    def members(self) -> Members:
        """Return the members of the archive so far."""
        return list_members(self._zip)

    def close(self) -> None:
        self._zip.close()


def _make_member(name: str) -> zipfile.ZipInfo:
    """Return a new member; tables are compressed already."""
    member = zipfile.ZipInfo(name)
    member.compress_type = zipfile.ZIP_DEFLATED if name.endswith(".json") else zipfile.ZIP_STORED
    return member


def open_archive(path: Path) -> zipfile.ZipFile:
    """Open an archive for reading. Raises zipfile.BadZipFile for one that is cut short, or of which
    a member would unpack to far more than it can be made of; the end of a member raises it where
    its checksum does not fit.
    """
    archive = zipfile.ZipFile(path)
    try:
        for member in archive.infolist():
            check_unpacked(member.file_size, member.compress_size, member.filename)
    except zipfile.BadZipFile:
        archive.close()
        raise
    return archive


def list_members(archive: zipfile.ZipFile) -> Members:
    """Return the members of the archive so far."""
    return sorted(
        [info.filename, info.CRC, info.file_size]
        for info in archive.infolist()
        if info.filename != TYPE
    )


def check_unpacked(unpacked: int, packed: int, name: str) -> None:
    """Raise zipfile.BadZipFile where `packed` bytes would unpack to far more than they can have
    been made of.
    """
    if unpacked > max(MOST_BYTES, MOST_TIMES * packed):
        raise zipfile.BadZipFile(f"{name} unpacks to {unpacked:,} bytes")


_SCALARS = (int, float, str, bool)
_MAPPINGS = (dict, Counter, collections.abc.Mapping)


def to_json(value: Any, kind: Any) -> Any:
    """Convert a value of this annotated type to what JSON can hold. Mappings become lists of pairs,
    a value of a union of classes its class name and value.
    """
    kind = getattr(kind, "__supertype__", kind)  # of a NewType
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        members = _drop_none(arguments)
        member = type(value) if type(value) in members else members[0]
        plain = to_json(value, member)
        return [member.__name__, plain] if len(members) > 1 else plain
    if kind is Path:
        return str(value)
    if origin in _MAPPINGS:
        key, item = _find_pair_types(origin, arguments)
        return [[to_json(name, key), to_json(items, item)] for name, items in value.items()]
    if origin in (list, tuple, frozenset):
        items = sorted(value) if origin is frozenset else value
        parts = _list_item_types(origin, arguments, len(value))
        return [to_json(item, part) for item, part in zip(items, parts, strict=True)]
    if hints := _read_hints(kind):
        return [to_json(getattr(value, name), part) for name, part in hints.items()]
    return value


def from_json(data: Any, kind: Any) -> Any:
    """Return the value of this annotated type that :func:`to_json` made `data` of. Raises
    ValueError, or TypeError, for what it cannot be.
    """
    kind = getattr(kind, "__supertype__", kind)  # of a NewType
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, types.UnionType):
        if data is None and type(None) in arguments:
            return None
        members = _drop_none(arguments)
        if len(members) == 1:
            return from_json(data, members[0])
        name, content = data
        return from_json(content, {member.__name__: member for member in members}.get(name))
    if kind in _SCALARS:
        if type(data) is not kind:
            raise ValueError(f"{data!r} is no {kind.__name__}")
        return data
    if kind is Path:
        return Path(from_json(data, str))
    if not isinstance(data, list):
        raise ValueError(f"{data!r} is no list")
    if origin in _MAPPINGS:
        key, item = _find_pair_types(origin, arguments)
        collection = Counter if origin is Counter else dict
        return collection(
            {from_json(name, key): from_json(content, item) for name, content in data}
        )
    if origin in (list, tuple, frozenset):
        parts = _list_item_types(origin, arguments, len(data))
        return origin(from_json(item, part) for item, part in zip(data, parts, strict=True))
    hints = _read_hints(kind)
    if not hints:
        raise TypeError(f"no way to read a {kind}")
    fields = zip(data, hints.items(), strict=True)
    return kind(**{name: from_json(item, part) for item, (name, part) in fields})


def _drop_none(arguments: tuple) -> list:
    return [member for member in arguments if member is not type(None)]


def _find_pair_types(origin: Any, arguments: tuple) -> tuple:
    return (arguments[0], int) if origin is Counter else arguments


def _list_item_types(origin: Any, arguments: tuple, count: int) -> list:
    """Return the types of the items."""
    fixed = origin is tuple and arguments[-1] is not Ellipsis
    return list(arguments) if fixed else [arguments[0]] * count


@cache
def _read_hints(kind: Any) -> dict[str, Any]:
    """Return the annotated types of what makes a Struct or a named tuple; empty for all others."""
    names = getattr(kind, "__struct_fields__", getattr(kind, "_fields", ()))
    hints = get_type_hints(kind) if names else {}
    return {name: hints[name] for name in names}
