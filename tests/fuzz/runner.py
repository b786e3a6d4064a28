"""Run batches of seeds in a separate process, which may crash or hang, and collect faults."""

import json
import math
import os
import queue
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from .bases import ROOT

#: Seconds for one input. One that takes longer in a batch is tried again alone, for the machine may
#: have been busy: then these are seconds of the processor, within PATIENCE.
LIMIT = 10.0
#: Seconds until a process that says nothing hangs: for its imports, or for an input alone.
PATIENCE = 60.0
#: Inputs of one process.
BATCH = 200


@dataclass
class Tally:
    """Outcomes of all inputs. faults: seed -> fault and mutation. told: number of faults already
    printed.
    """

    inputs: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    mutations: Counter[str] = field(default_factory=Counter)
    faults: dict[int, list[str]] = field(default_factory=dict)
    slowest: float = 0.0
    told: int = 0

    def add(self, message: dict) -> None:
        self.inputs += 1
        self.statuses[str(message["status"])] += 1
        self.mutations.update(message["told"][1:])
        self.slowest = max(self.slowest, message["seconds"])
        if message["faults"]:
            self.faults[message["seed"]] = [
                *message["faults"],
                f"({', '.join(message['told'])}; {message['commands']})",
            ]


def run_all(
    seeds: range,
    folder: Path,
    keep: Path | None = None,
    until: float = float("inf"),
    speak=lambda _: None,
) -> Tally:
    """Run all seeds, or those begun before the time `until` (time.monotonic)."""
    tally = Tally()
    following = seeds.start
    while following < seeds.stop and time.monotonic() < until:
        following = _run_batch(
            following, min(following + BATCH, seeds.stop), folder, keep, until, tally
        )
        speak(tally)
    return tally


def _pass_lines_on(stream: Iterable[str], lines: queue.Queue[str]) -> None:
    """Put each line into the queue when it comes, and "" at the end."""
    for line in stream:
        lines.put(line)
    lines.put("")


def _limit_processor_time() -> None:
    """End this process when it has computed for longer than an input may."""
    seconds = math.ceil(LIMIT)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))


def _run_batch(
    first: int, last: int, folder: Path, keep: Path | None, until: float, tally: Tally
) -> int:
    """Run seeds in one process; return the first that was not done."""
    command = [
        sys.executable,
        "-m",
        "tests.fuzz",
        "--batch",
        f"{first}:{last}",
        "--folder",
        str(folder),
        *(["--keep", str(keep)] if keep else []),
    ]
    environment = {**os.environ, "POLARS_MAX_THREADS": "1"}
    is_alone = last - first == 1
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        preexec_fn=_limit_processor_time if is_alone else None,
    ) as child:
        lines: queue.Queue[str] = queue.Queue()
        complaints: list[str] = []
        readers = [
            threading.Thread(target=_pass_lines_on, args=(child.stdout, lines), daemon=True),
            threading.Thread(target=lambda: complaints.extend(child.stderr), daemon=True),
        ]
        for reader in readers:
            reader.start()
        at, problem = first, None
        # The first answer takes as long as the imports.
        patience = PATIENCE
        while True:
            try:
                line = lines.get(timeout=patience)
            except queue.Empty:
                child.kill()
                problem = f"no end within {patience:g} s"
                break
            if not line:
                break
            message = json.loads(line)
            if "status" in message:
                tally.add(message)
                at = message["seed"] + 1
                if time.monotonic() > until:
                    child.kill()
                    return last
            patience = PATIENCE if is_alone else LIMIT
        child.wait()
        for reader in readers:
            reader.join(5)
    if at >= last:
        return last
    if child.returncode == -signal.SIGXCPU:
        problem = f"no end within {LIMIT:g} s of the processor"
    problem = problem or f"the process ended with {child.returncode}: {''.join(complaints)[-400:]}"
    if not is_alone:
        return _run_batch(at, at + 1, folder, keep, until, tally)
    tally.inputs += 1
    tally.faults[at] = [problem]
    return at + 1
