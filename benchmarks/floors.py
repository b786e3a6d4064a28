"""The floors of a conversion: the bytes of its inputs read, and the bytes of its trace written;
nothing else.

floors.py read REPORT...            prints bytes, CPU seconds and wall seconds, without those of
starting Python floors.py write BYTES FILE          the same of a new file
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

#: Bytes of one read, and of one write.
BLOCK = 1 << 20


def read(reports: list[Path]) -> int:
    """Read every byte of the reports, one block after the other; returns how many there are."""
    buffer, total = bytearray(BLOCK), 0
    for report in reports:
        with report.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                total += count
    return total


def write(size: int, path: Path) -> int:
    """Write `size` bytes of trace lines to a new file."""
    line = b"2:1:1:1:1:123456789:63000006:4001\n"
    block = (line * (BLOCK // len(line) + 1))[:BLOCK]
    left = size
    with path.open("wb", buffering=0) as file:
        while left > 0:
            left -= file.write(block[:left])
    return size


def main() -> None:
    what, *given = sys.argv[1:]
    wall, begun = time.perf_counter(), time.process_time()
    amount = (
        read([Path(name) for name in given])
        if what == "read"
        else write(int(given[0]), Path(given[1]))
    )
    print(amount, time.process_time() - begun, time.perf_counter() - wall)


if __name__ == "__main__":
    main()
