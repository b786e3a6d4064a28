"""What Paraver needs to load a trace: sizes of its records in memory (sizeof of paraver-kernel's types), and its speed as measured."""

from __future__ import annotations

from pathlib import Path

from nsys2prv.check.findings import Findings
from nsys2prv.check.records import Records

PAIR_BYTES, STATE_BYTES, COMM_BYTES, CPU_BYTES = 32, 64, 312, 8
#: While it loads, vectors grow by doubling and are sorted.
WHILE_LOADING = 1.5
PAIR_SECONDS, COMM_SECONDS = 1e-6, 5e-6
#: wxparaver's limit, and what it takes for the size of compressed text. Smaller traces need no remark.
ASKS_FROM, GZIP_FACTOR, WORTH_SAYING = 500 << 20, 6.3, 64 << 20


def memory(records: Records) -> int:
    """Bytes that Paraver's records of the trace take."""
    return (PAIR_BYTES * records.pairs.pairs + STATE_BYTES * records.states + COMM_BYTES * records.comms
            + CPU_BYTES * records.objects.with_cpu)


def check_size(path: Path, records: Records, findings: Findings) -> None:
    needed = memory(records)
    if needed > WORTH_SAYING:
        seconds = PAIR_SECONDS * (records.pairs.pairs + 2 * records.states) + COMM_SECONDS * records.comms
        findings.add("memory", path.name, examples=[f"{needed / 1e9:.1f} GB, about {needed * WHILE_LOADING / 1e9:.1f} GB while it loads, "
                                                    f"for {seconds:.0f} s or more"])
    size = path.stat().st_size * (GZIP_FACTOR if path.suffix == ".gz" else 1)
    if size > ASKS_FROM:
        findings.add("asks-to-cut", path.name, examples=[f"{size / (1 << 20):.0f} MB"])
