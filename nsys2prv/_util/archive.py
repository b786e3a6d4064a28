"""The file that a store is: a ZIP archive, whose directory has a size and a checksum for each
member.

Its first member tells what it is, as in documents of other programs. It comes into being under its
name when it is complete.
"""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path
from typing import BinaryIO

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
    return (
        head.startswith(b"PK\x03\x04")
        and head[_HEAD:].startswith(TYPE.encode())
        and CONTENT in head
    )


class ArchiveWriter:
    """Adds members to a new archive. The same members make the same bytes."""

    def __init__(self, path: Path) -> None:
        self._zip = zipfile.ZipFile(path, "w")
        self.add_bytes(TYPE, CONTENT)

    def add_bytes(self, name: str, content: bytes) -> None:
        self._zip.writestr(_member_of(name), content)

    def move_folder(self, folder: Path) -> None:
        """Add the files of a folder as members of its name, and remove it."""
        for path in sorted(folder.iterdir()):
            with (
                path.open("rb") as source,
                self._zip.open(
                    _member_of(f"{folder.name}/{path.name}"), "w", force_zip64=True
                ) as target,
            ):
                shutil.copyfileobj(source, target, BLOCK)
        shutil.rmtree(folder)

    def members(self) -> Members:
        """Return the members of the archive so far."""
        return members(self._zip)

    def close(self) -> None:
        self._zip.close()


def _member_of(name: str) -> zipfile.ZipInfo:
    """Return a new member; tables are compressed already."""
    member = zipfile.ZipInfo(name)
    member.compress_type = zipfile.ZIP_DEFLATED if name.endswith(".json") else zipfile.ZIP_STORED
    return member


def open_archive(path: Path) -> zipfile.ZipFile:
    """Open an archive for reading. Raises zipfile.BadZipFile for one that is cut short, or of which
    a member would unpack to far more than it can be made of.
    """
    archive = zipfile.ZipFile(path)
    try:
        for told in archive.infolist():
            check_unpacked(told.file_size, told.compress_size, told.filename)
    except zipfile.BadZipFile:
        archive.close()
        raise
    return archive


def members(archive: zipfile.ZipFile) -> Members:
    """Return the members of the archive so far."""
    return sorted(
        [info.filename, info.CRC, info.file_size]
        for info in archive.infolist()
        if info.filename != TYPE
    )


def member(archive: zipfile.ZipFile, name: str) -> BinaryIO:
    """Open a member to read; its end raises zipfile.BadZipFile where its checksum does not fit."""
    return archive.open(name)


def check_unpacked(unpacked: int, packed: int, name: str) -> None:
    """Raise zipfile.BadZipFile where `packed` bytes would unpack to far more than they can have
    been made of.
    """
    if unpacked > max(MOST_BYTES, MOST_TIMES * packed):
        raise zipfile.BadZipFile(f"{name} unpacks to {unpacked:,} bytes")
