"""Speed and memory of a conversion, beside the floors of reading its columns and writing its bytes in the same run.

    python benchmarks/run.py [--ranks 4] [--events-per-rank 2500000] [--runs 3] [--keep DIR]

Machines are noisy: compare the ratios of one run, never absolute figures of two. Needs Linux (/proc).
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

#: Columns that the conversion reads of the largest tables.
SCANNED = {
    "CUPTI_ACTIVITY_KIND_KERNEL": "start, end, deviceId, streamId, correlationId, globalPid, graphNodeId, demangledName, shortName, gridX, "
                                  "gridY, gridZ, blockX, blockY, blockZ, staticSharedMemory, dynamicSharedMemory, localMemoryTotal, "
                                  "registersPerThread",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start, end, eventClass, globalTid, correlationId, nameId, returnValue",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start, end, deviceId, streamId, correlationId, globalPid, bytes, copyKind",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": "start, end, streamId, correlationId, globalPid, eventId",
    "NVTX_EVENTS": "start, end, eventType, globalTid, domainId, category, textId, text",
}
SAMPLE_SECONDS = 0.05


def tree_memory(root: int) -> int:
    """Proportional memory (PSS, bytes) of a process and its descendants."""
    parents, total, members = {}, 0, {root}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError):
                continue
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in members} - members
        members |= more
        grown = bool(more)
    for pid in members:
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:"))
    return total


def convert(reports: list[Path], output: Path) -> tuple[float, int]:
    """Wall seconds and peak memory (bytes, all processes together) of one conversion."""
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "nsys2prv", "-q", "-m", *map(str, reports), str(output)])
    peak = 0
    while process.poll() is None:
        peak = max(peak, tree_memory(process.pid))
        time.sleep(SAMPLE_SECONDS)
    if process.returncode:
        raise SystemExit(f"the conversion failed with exit status {process.returncode}")
    return time.perf_counter() - started, peak


def scan(reports: list[Path]) -> tuple[float, int]:
    """Wall seconds (one process) and rows of a bare scan of the columns, by the same driver."""
    import adbc_driver_manager as manager
    import adbc_driver_sqlite
    import polars as pl

    started, rows = time.perf_counter(), 0
    for report in reports:
        connection = manager.AdbcConnection(adbc_driver_sqlite.connect(f"file:{report}?mode=ro&immutable=1"))
        for table, columns in SCANNED.items():
            step, first = 200_000, 1
            while True:
                statement = manager.AdbcStatement(connection)
                names = [name.strip() for name in columns.split(",")]
                quoted = ", ".join("COALESCE(text, '') AS text" if name == "text" else f'"{name}"' for name in names)
                statement.set_sql_query(f"SELECT {quoted} FROM {table} WHERE rowid BETWEEN {first} AND {first + step - 1}")
                found = pl.DataFrame(statement.execute_query()[0]).height
                statement.close()
                rows += found
                first += step
                if not found:
                    break
    return time.perf_counter() - started, rows


def write(size: int, output: Path) -> float:
    """Wall seconds of writing as many bytes."""
    block = b"2:1:1:1:1:123456789:63000006:4001\n" * 30_000
    started = time.perf_counter()
    with output.open("wb", buffering=0) as file:
        while size > 0:
            size -= file.write(block[:size])
    return time.perf_counter() - started


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--ranks", type=int, default=4)
    options.add_argument("--events-per-rank", type=int, default=2_500_000)
    options.add_argument("--runs", type=int, default=3)
    options.add_argument("--keep", type=Path, help="folder for the reports, used again when they are there")
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        if not any(folder.glob("rank*.sqlite")):
            subprocess.run([sys.executable, "-m", "nsys2prv.samples", str(folder), "--ranks", str(arguments.ranks),
                            "--hosts", str(max(1, arguments.ranks // 8)), "--events-per-rank", str(arguments.events_per_rank)], check=True)
        reports = sorted(folder.glob("rank*.sqlite"))
        output = Path(temporary) / "out.prv"
        seconds, peaks, scans, writes, rows = [], [], [], [], 0
        for _ in range(arguments.runs):
            elapsed, peak = convert(reports, output)
            seconds.append(elapsed)
            peaks.append(peak)
            elapsed, rows = scan(reports)
            scans.append(elapsed)
            writes.append(write(output.stat().st_size, Path(temporary) / "floor"))
        with output.open("rb") as file:
            lines = sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 24), b""))
        wall, floor = statistics.median(seconds), statistics.median(scans) + statistics.median(writes)
        print(f"{len(reports)} ranks, {rows:,} rows, {lines:,} lines, {output.stat().st_size / 1e6:,.0f} MB; "
              f"medians of {arguments.runs} runs")
        print(f"conversion     {wall:8.2f} s   {rows / wall:12,.0f} rows/s   {lines / wall:12,.0f} lines/s")
        print(f"scan alone     {statistics.median(scans):8.2f} s   (one process)")
        print(f"write alone    {statistics.median(writes):8.2f} s")
        print(f"wall / floors  {wall / floor:8.2f}")
        print(f"peak memory    {max(peaks) / 2**20:8.0f} MiB, all processes together (PSS)")


if __name__ == "__main__":
    main()
