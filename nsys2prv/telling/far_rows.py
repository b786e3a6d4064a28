"""Rows that were left out because their times are far outside of their report's capture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from nsys2prv.reading.extracted import Extracted
from nsys2prv.report.capture import FAR
from nsys2prv.report.info import ReportInfo


def far_rows(infos: Sequence[ReportInfo], results: Iterable[Extracted]) -> list[str]:
    """A warning that names the reports and kinds of events, where there are such rows."""
    kinds: Counter[str] = Counter()
    reports: set[int] = set()
    for result in results:
        for kind, account in result.accounts.items():
            if count := account.dropped[FAR]:
                kinds[kind] += count
                reports.add(result.report)
    if not kinds:
        return []
    names = [infos[report].name for report in sorted(reports)]
    where = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return [f"{where}: {FAR} are left out, for their times are damaged: "
            + ", ".join(f"{count:,} of {kind}" for kind, count in kinds.most_common())]
