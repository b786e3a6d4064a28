"""Name the figures of POP's efficiencies (rows.yaml), which reports and studies show alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from nsys2prv._util.data_files import load_shipped_file

#: From these fractions on an efficiency is good, and fair. POP takes less than 80 % for worth a
#: look, BSC's BasicAnalysis less than 60 % for critical.
GOOD, FAIR = 0.8, 0.6
#: Ends of paths of load balance within nodes, and between them.
BETWEEN_NODES = ("_in", "_out")
#: How an efficiency is rated -> the sign behind it, where no colours are.
SIGNS = {"good": "", "fair": "-", "poor": "!"}


class Row(Struct, frozen=True):
    """A figure of a run."""

    #: What JSON calls it: `speedup`, or `device.parallel` for a figure of a part of the run.
    path: str
    #: 0 for the outermost of a tree of efficiencies.
    depth: int
    #: As BSC and TALP name it.
    name: str
    #: How it is defined.
    about: str
    #: Its name below what it is a factor of, if that is enough there.
    short: str = ""

    @property
    def is_efficiency(self) -> bool:
        """Whether it is a fraction of which 1 is the best."""
        return self.path not in ("elapsed_ns", "speedup")

    @property
    def label(self) -> str:
        """Its name below what it is a factor of."""
        return self.short or self.name

    @property
    def bare_name(self) -> str:
        """Its name where it is clear whose efficiency it is."""
        return self.name.removeprefix("Device ").removeprefix("MPI ").removesuffix(" efficiency")

    def find_value(self, metrics: Mapping[str, Any]) -> float | None:
        """Return the figure among those of a run or region, None where it is not known."""
        part, _, key = self.path.rpartition(".")
        return (metrics.get(part) or {} if part else metrics).get(key)


#: All figures, in the order in which they are shown.
ROWS = tuple(Row(path, *rest) for path, rest in load_shipped_file(__package__, "rows.yaml").items())
ROW_OF = {row.path: row for row in ROWS}


def rate_efficiency(value: float) -> str:
    """Return whether an efficiency, as it is printed (79.96 % is 80.0 %), is good, fair or poor."""
    printed = round(value, 3)
    return "good" if printed >= GOOD else "fair" if printed >= FAIR else "poor"


def format_efficiency(value: float | None) -> str:
    """Return an efficiency with the sign of its rating, or a blank, behind it."""
    return f"{100 * value:.1f} %{SIGNS[rate_efficiency(value)]:1}" if value is not None else "- "


def list_known_rows(figures: Sequence[Mapping[str, Any]]) -> list[tuple[Row, list[float | None]]]:
    """Return the rows of which any of these runs or regions has a figure, with their figures; those
    within and between nodes where there are several nodes.
    """
    found = [(row, [row.find_value(one) for one in figures]) for row in ROWS]
    between = [values for row, values in found if row.path.endswith(BETWEEN_NODES[1])]
    if not any(value not in (None, 1.0) for values in between for value in values):
        found = [(row, values) for row, values in found if not row.path.endswith(BETWEEN_NODES)]
    return [(row, values) for row, values in found if any(one is not None for one in values)]
