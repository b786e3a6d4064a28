"""CPU samples: in which function a running thread was, at points in time, with its callers where asked for.

A function that Nsight Systems has no name for stands under its module, for its address says nothing to people and differs from run to
run. Samples are rows of COMPOSITE_EVENTS; their frames are rows of SAMPLING_CALLCHAINS with the same id, depth 0 the innermost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from nsys2prv.columns import ABSENT, factorize, factorize_together
from nsys2prv.errors import UsageError
from nsys2prv.events.extraction import Extraction
from nsys2prv.events.kind import EventKind, Rows
from nsys2prv.events.profiled import of_profiled
from nsys2prv.events.sched import RUNNING, known_states
from nsys2prv.report.source import NULL, Part

TABLE, CHAINS = "COMPOSITE_EVENTS", "SAMPLING_CALLCHAINS"
LAYOUT, WITH_CALLERS = "cpu_sample", "cpu_sample_stack"
#: A row without cycles is no sample: it only carries the call chain of a change of state.
SAMPLES = "coalesce({cpuCycles}, 1) > 0"
NO_CHAIN = "(no call chain)"
#: Frames that a sample can have in the catalogue.
MOST_FRAMES = 32


@dataclass(frozen=True)
class Frames:
    """Frames at one depth, by sample id ascending. function, module: ids of strings."""

    sample: np.ndarray
    function: np.ndarray
    module: np.ndarray

    def of(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Function and module of samples, NULL where there is no frame."""
        if not len(self.sample):
            return np.full(len(samples), NULL), np.full(len(samples), NULL)
        place = np.minimum(np.searchsorted(self.sample, samples), len(self.sample) - 1)
        there = self.sample[place] == samples
        return np.where(there, self.function[place], NULL), np.where(there, self.module[place], NULL)


def checked(frames: int) -> int:
    """A number of frames that can be asked for. Raises UsageError for one that cannot."""
    if not 1 <= frames <= MOST_FRAMES:
        raise UsageError(f"--callstack {frames}: a sample has from 1 to {MOST_FRAMES} frames in a trace")
    return frames


def extract(extraction: Extraction, part: Part) -> Iterator[Rows]:
    columns = of_profiled(extraction, extraction.read(part, ("id", "start", "globalTid", "threadState")))
    if not columns.rows:
        return
    depth = extraction.settings.callstack
    frames = _frames(extraction, part, depth)
    function, module = frames[0].of(columns["id"])
    state = known_states(columns["threadState"])
    fields = {"function": _functions(extraction, function, module), "module": _modules(extraction, module),
              "state": np.where((columns["threadState"] <= 0) | (state == RUNNING), ABSENT, state)}
    if depth > 1:
        none = np.full(columns.rows, ABSENT)
        fields |= {f"caller_{number}": none for number in range(1, MOST_FRAMES)}
        for number, found in enumerate(frames[1:], 1):
            function, module = found.of(columns["id"])
            rows = np.flatnonzero(function != NULL)
            fields[f"caller_{number}"] = none.copy()
            fields[f"caller_{number}"][rows] = _functions(extraction, function[rows], module[rows])
    start = columns["start"]
    yield Rows(WITH_CALLERS if depth > 1 else LAYOUT, start, start + 1, extraction.threads(columns["globalTid"]), fields)


def _frames(extraction: Extraction, part: Part, depth: int) -> list[Frames]:
    """The frames of a part's samples by depth, found by the key of their table."""
    database = extraction.database
    nothing = Frames(*np.zeros((3, 0), np.int64))
    if not (extraction.has(CHAINS, "id", "stackDepth", "symbol", "module") and extraction.has(TABLE, "id")):
        return [nothing] * depth
    names = {"sample": "id", "depth": "stackDepth", "function": "symbol", "module": "module"}
    found = database.read_for(part, "id", CHAINS, tuple(names.values()), f"{{stackDepth}} < {depth}")
    frame = pl.DataFrame({name: found[column] for name, column in names.items()})
    if not frame.height:
        return [nothing] * depth
    by_depth = {number: rows for (number,), rows in frame.sort("sample").partition_by("depth", as_dict=True).items()}
    return [Frames(*(by_depth[number][name].to_numpy() for name in ("sample", "function", "module"))) if number in by_depth else nothing
            for number in range(depth)]


def _functions(extraction: Extraction, function: np.ndarray, module: np.ndarray) -> np.ndarray:
    """Local names of functions; of those without a name, of their modules."""
    (functions, modules), codes = factorize_together(function, module)
    texts = [_label(name, where) for name, where in zip(extraction.strings(functions), extraction.strings(modules), strict=True)]
    return extraction.name("cpu_function", codes, text=texts)


def _label(name: str, module: str) -> str:
    if not name:
        return NO_CHAIN
    # The column `unresolved` is no measure: it also marks functions that have names, and exports differ in it.
    return f"unresolved in {_short(module)}" if name.startswith("0x") else name


def _modules(extraction: Extraction, module: np.ndarray) -> np.ndarray:
    """Local names of modules, ABSENT where a sample has none."""
    rows = np.flatnonzero(module != NULL)
    result = np.full(len(module), ABSENT)
    if len(rows):
        ids, codes = factorize(module[rows])
        result[rows] = extraction.name("cpu_module", codes, text=[_short(text) for text in extraction.strings(ids)])
    return result


def _short(module: str) -> str:
    """A module's file name; the folders before it differ from machine to machine."""
    return module.replace("\\", "/").rstrip("/").rpartition("/")[2] or "a module without a name"


KINDS = (
    EventKind("cpu_samples", "CPU samples", "host thread", (TABLE,), (LAYOUT, WITH_CALLERS), extract, beside=(CHAINS,),
              groups=("cpu",), where=SAMPLES, lasting=False),
)
