"""Plan of a job: its options, checked before any file of the job is touched."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl
from msgspec import Struct, field

from nsys2prv._util.errors import UsageError
from nsys2prv.clock.record import ClockRecord
from nsys2prv.conversion import timeline
from nsys2prv.conversion.cut.plan import CutPlan, with_regions
from nsys2prv.conversion.options import Options
from nsys2prv.events.cpu import checked
from nsys2prv.events.extraction import Settings
from nsys2prv.events.names.classes import load_rules
from nsys2prv.events.names.nvtx import load_rules as load_nvtx_rules
from nsys2prv.events.selection import Selection, least_durations, select
from nsys2prv.paraver.values import base_names


class Plan(Struct, frozen=True):
    """Checked options: what to read and how to place it. Made by :meth:`of`, which raises before
    any file is touched.
    """

    selection: Selection
    settings: Settings
    method: str | ClockRecord = timeline.AUTO
    causal: bool = False
    full_kernel_names: bool = False
    base: Mapping[str, pl.DataFrame] | None = None
    states: bool = False
    cut: CutPlan = field(default_factory=CutPlan)
    keep_going: bool = False
    without_paths: bool = False

    @classmethod
    def of(cls, options: Options) -> Plan:
        """Check the options and make a plan of them. Raises UsageError, or Nsys2prvError for a file
        of rules or clocks that cannot be read.
        """
        settings = Settings(
            least=least_durations(options.min_duration),
            rules=load_rules(options.kernel_rules),
            nvtx_rules=load_nvtx_rules(options.nvtx_rules),
            callstack=checked(options.callstack),
        )
        method = timeline.parse_method(options.align)
        kinds = options.kinds.split(",") if isinstance(options.kinds, str) else options.kinds
        if options.causal and method == timeline.NONE:
            raise UsageError(
                "--causal moves ranks against each other, --align none leaves them as they are: give one of them"
            )
        base = base_names(options.base_pcf) if options.base_pcf else None
        selection, cut = with_regions(select(kinds, options.demanded), CutPlan.of(options.cut))
        return cls(
            selection,
            settings,
            method,
            options.causal,
            options.full_kernel_names,
            base,
            options.states,
            cut,
            options.keep_going,
            options.without_paths,
        )
