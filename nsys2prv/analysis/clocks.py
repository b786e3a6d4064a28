"""How the clocks of the hosts were corrected, and how well.

Times of two hosts can be compared to within the sum of their bounds: shorter waits between them, and
shorter lateness, tell nothing. The host with the greatest bound, or of which none is known, comes
first. Hosts that are not comparable shared nothing that tells how their clocks differ.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from nsys2prv.analysis.result import Analysis, Context, Result, Table
from nsys2prv.analysis.unit import Unit


def collect(_: Unit) -> dict[str, pl.DataFrame]:
    return {}


def conclude(_: Mapping[str, pl.DataFrame], context: Context) -> Result:
    if not context.clocks.height:
        return Result(
            "clocks",
            ANALYSIS.title,
            missing=["clocks of hosts: none was corrected against another"],
        )
    table = Table(
        "Corrections of the hosts' clocks, least certain first", context.clocks, __doc__ or ""
    )
    return Result("clocks", ANALYSIS.title, {"hosts": table})


ANALYSIS = Analysis("clocks", "Clocks of hosts", (), collect, conclude)
