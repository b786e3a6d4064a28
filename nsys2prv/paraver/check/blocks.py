"""Read a .prv or .prv.gz in blocks of whole lines."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from isal import isal_zlib

from nsys2prv._util.errors import Nsys2prvError
from nsys2prv.paraver.check import CheckFindings

#: Bytes of text in a block: its columns stay in the processor's cache. The longest line that is
#: taken for one.
BLOCK, LONGEST_LINE = 1 << 18, 1 << 26
GZIP = 31


def read_blocks(path: Path, findings: CheckFindings) -> Iterator[bytes]:
    """Yield whole lines, of about BLOCK bytes each time, without carriage returns at their ends;
    every block ends with a line end.
    """
    rest: list[bytes] = []
    length, number, returns, cut = 0, 1, 0, True
    for piece in _read_pieces(path, findings):
        end = piece.rfind(b"\n") + 1
        if not end:
            rest.append(piece)
            length += len(piece)
            if length > LONGEST_LINE:
                raise Nsys2prvError(
                    f"{path}: not a Paraver trace: a line of more than {LONGEST_LINE >> 20} MiB"
                )
            continue
        block = b"".join((*rest, memoryview(piece)[:end]))
        if b"\r\n" in block:
            if not returns:
                returns = number + block[: block.index(b"\r\n")].count(b"\n")
            findings.add("line-ends", returns, count=block.count(b"\r\n"))
            block = block.replace(b"\r\n", b"\n")
        number += block.count(b"\n")
        yield block
        rest, length = ([piece[end:]], len(piece) - end) if end < len(piece) else ([], 0)
        cut = bool(rest)
    if cut and length:
        findings.add("line-cut", number)
        yield b"".join(rest).removesuffix(b"\r") + b"\n"


def split_opening(path: Path, findings: CheckFindings) -> tuple[bytes, Iterator[bytes]]:
    """Return the first line of a trace, and the blocks of lines behind it."""
    text = read_blocks(path, findings)
    opening, _, rest = next(text, b"").partition(b"\n")
    return opening, chain([rest] if rest else [], text)


def _read_pieces(path: Path, findings: CheckFindings) -> Iterator[bytes]:
    try:
        with path.open("rb", buffering=0) as file:
            if path.suffix == ".gz":
                yield from _decompress_members(file, findings)
                return
            while piece := file.read(BLOCK):
                yield piece
    except OSError as error:
        raise Nsys2prvError(f"{path}: {error.strerror or error}") from None


def _decompress_members(file: BinaryIO, findings: CheckFindings) -> Iterator[bytes]:
    """Yield the text of all members of a gzip file, a bounded piece at a time, and what is wrong
    with them.
    """
    members = 0
    member, waiting = None, b""
    try:
        while waiting or (waiting := file.read(BLOCK)):
            if member is None:
                waiting = waiting.lstrip(b"\0") if members else waiting
                if not waiting:
                    continue
                member, members = isal_zlib.decompressobj(GZIP), members + 1
            text = member.decompress(waiting, BLOCK)
            if text:
                yield text
            waiting = member.unused_data if member.eof else member.unconsumed_tail
            if member.eof:
                member = None
        while member is not None and (text := member.decompress(b"", BLOCK)):
            yield text
        if member is not None and not member.eof:
            findings.add("damaged-gzip", 0, "the last member has no end")
    except isal_zlib.error as error:
        findings.add("damaged-gzip", 0, f"member {members}: {error}")
    if members > 1:
        findings.add("gzip-members", 0, f"{members} members", count=members)
