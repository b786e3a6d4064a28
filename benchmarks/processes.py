"""Running commands and taking their time, CPU and memory. Linux only: /proc."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

#: Between looks at memory, which cost some ms each; and between looks at whether the command has
#: ended, or begun to write.
SAMPLE_SECONDS, LOOK_SECONDS = 0.2, 0.01


@dataclass(frozen=True)
class Taken:
    """Of a command and all processes that it started. wall, cpu (user and system): seconds. peak:
    bytes, the sum of proportional sizes (PSS) when it was largest. first: seconds until `begun` was
    true, None where it never was. out: what it printed.
    """

    wall: float
    cpu: float
    peak: int
    first: float | None
    out: str


def take(
    command: Sequence[str | Path],
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    begun: Callable[[], bool] | None = None,
) -> Taken:
    """Run a command to its end. begun: asked again and again, whether its first byte is there."""
    started = time.perf_counter()
    process = subprocess.Popen(
        [*map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=cwd,
        env={**os.environ, **(environment or {})},
        text=True,
        errors="replace",
        bufsize=-1,
    )
    os.set_blocking(process.stdout.fileno(), False)
    peak, first, looked, said = 0, None, 0.0, []
    while True:
        ended, status, usage = os.wait4(process.pid, os.WNOHANG)
        said.append(_waiting(process))
        now = time.perf_counter() - started
        if ended:
            break
        if first is None and begun is not None and begun():
            first = now
        if now - looked > SAMPLE_SECONDS:
            looked, peak = now, max(peak, _memory(process.pid))
        time.sleep(LOOK_SECONDS)
    process.stdout.close()
    process.returncode = os.waitstatus_to_exitcode(status)
    out = "".join(said)
    if process.returncode:
        raise SystemExit(
            f"{' '.join(map(str, command[:6]))} ... failed with exit status {process.returncode}:\n{out[-2000:]}"
        )
    return Taken(now, usage.ru_utime + usage.ru_stime, peak, first, out)


def _waiting(process: subprocess.Popen) -> str:
    try:
        return process.stdout.read() or ""
    except (BlockingIOError, TypeError):
        return ""


def _memory(root: int) -> int:
    """Proportional memory (PSS, bytes) of a process and its descendants."""
    children: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                parent = int(Path(entry.path, "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    waiting, total = [root], 0
    while waiting:
        pid = waiting.pop()
        waiting += children.get(pid, ())
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        total += sum(
            int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:")
        )
    return total
