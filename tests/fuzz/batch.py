"""Run seeds in this process, one after another, and write a line of JSON to standard output before
and after each.
"""

import json
import os
import shutil
import sys
import time
import traceback
from pathlib import Path

from nsys2prv.cli import main

from . import inputs, oracle


def run_seeds(first: int, last: int, bases: list[Path], folder: Path, keep: Path | None) -> None:
    """Run all seeds first <= seed < last in a folder of their own.

    keep: the folder for inputs with faults.
    """
    talk = os.fdopen(os.dup(1), "w", buffering=1)
    for seed in range(first, last):
        talk.write(json.dumps({"seed": seed}) + "\n")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        talk.write(json.dumps(run_seed(seed, bases, folder, keep)) + "\n")
    shutil.rmtree(folder, ignore_errors=True)


def run_seed(seed: int, bases: list[Path], folder: Path, keep: Path | None) -> dict[str, object]:
    """Return the input of a seed, and the outcome."""
    case = inputs.make_input(seed, bases, folder)
    faults: list[str] = []
    seconds, status = 0.0, None
    for arguments in case.commands:
        outcome = _run_command(arguments, folder)
        seconds, status = max(seconds, outcome.seconds), outcome.status
        try:
            faults += oracle.find_faults(outcome, folder, case.output)
        except Exception as error:
            faults.append(
                f"oracle: {type(error).__name__}: {error}: {traceback.format_exc()[-600:]}"
            )
        if outcome.status:
            break
    if faults and keep:
        shutil.copytree(folder, keep / str(seed), dirs_exist_ok=True)
    return {
        "seed": seed,
        "status": status,
        "seconds": seconds,
        "told": case.told,
        "faults": faults,
        "commands": case.commands if faults else [],
    }


def _run_command(arguments: list[str], folder: Path) -> oracle.Outcome:
    """Run a command with its streams in files: code that is not Python writes there too."""
    before = oracle.read_state(folder)
    streams = [folder.with_name(f"{folder.name}.{name}") for name in ("stdout", "stderr")]
    saved = [os.dup(number) for number in (1, 2)]
    raised, status = "", None
    began = time.monotonic()
    try:
        for number, path in zip((1, 2), streams, strict=True):
            with path.open("wb") as file:
                os.dup2(file.fileno(), number)
        try:
            status = main(arguments)
        except BaseException as error:
            raised = (
                f"{type(error).__name__}: {str(error)[:200]} at {' < '.join(_list_places(error))}"
            )
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        for number, descriptor in zip((1, 2), saved, strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)
    seconds = time.monotonic() - began
    texts = [path.read_text(errors="replace") for path in streams]
    for path in streams:
        path.unlink()
    return oracle.Outcome(arguments, status, raised, texts[0], texts[1], seconds, before)


def _list_places(error: BaseException) -> list[str]:
    """Return the places that an exception came from, innermost first."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if "nsys2prv" in frame.filename
    ]
    return [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames[:-5:-1]]
