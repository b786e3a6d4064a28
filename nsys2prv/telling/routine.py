"""Which reasons of the account ask nobody to do anything: told with --verbose and in the file beside the trace."""

from __future__ import annotations

from nsys2prv.events import diagnostics, gpu_contexts, openmp, profiled, sampling
from nsys2prv.model.devices import TWICE
from nsys2prv.report.capture import FAR
from nsys2prv.store import span

#: What happens in every capture, at its begin and its end, and with the rows of other processes; rows far outside have a warning.
REASONS = frozenset({
    FAR, TWICE, diagnostics.OUTSIDE, gpu_contexts.BEFORE, gpu_contexts.LOST, openmp.WITH_REGION, profiled.UNNAMED, sampling.REPEATED,
    span.CUT, span.MOVED, span.OUTSIDE, "duplicate rows of backtrace collection", "ranges without an end, closed at the end of the trace",
    "samples from before the capture", "texts in NVTX payloads",
})
#: The end of reasons that name a process.
NOT_PROFILED = "which is not profiled"


def is_routine(reason: str) -> bool:
    """Whether nobody need do anything about rows that were dropped or changed for this reason."""
    return reason in REASONS or reason.endswith(NOT_PROFILED)
