"""Account for every row and record of a job: it is in the trace, or counted with the reason why not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field

from nsys2prv.conversion.job import sum_counters
from nsys2prv.events.kind import Account
from nsys2prv.events.reasons import Reason
from nsys2prv.store.task_result import TaskResult


class RecordBalance(Struct):
    """Records or sampled numbers of a layout, or lines of a kind. made = written + left_out."""

    #: Number that was made.
    made: int = 0
    #: Number that is in the trace.
    written: int = 0
    #: Reason -> number.
    left_out: dict[str, int] = field(default_factory=dict)

    @property
    def missing(self) -> int:
        """Records that nothing accounts for: 0."""
        return self.made - self.written - sum(self.left_out.values())


class Ledger(Struct):
    """Accounts of all rows and records of a job."""

    #: By kind of event, or relation.
    kinds: dict[str, Account] = field(default_factory=dict)
    #: By layout.
    records: dict[str, RecordBalance] = field(default_factory=dict)
    #: By kind of line.
    lines: dict[str, RecordBalance] = field(default_factory=dict)
    #: For tables of which kinds take rows by conditions: their rows, and those that no kind took.
    tables: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def missing(self) -> dict[str, int]:
        """Return what does not balance, by kind, layout or kind of line: empty unless something is
        wrong.
        """
        return {
            name: account.missing
            for accounts in (self.kinds, self.records, self.lines)
            for name, account in accounts.items()
            if account.missing
        }


def sum_accounts(results: Iterable[TaskResult]) -> dict[str, Account]:
    """Return the accounts of all results together, by kind of event, or relation."""
    accounts: dict[str, Account] = {}
    for result in results:
        for kind, account in result.accounts.items():
            accounts[kind] = accounts.get(kind, Account()) + account
    return dict(sorted(accounts.items()))


def make_ledger(
    kinds: Mapping[str, Account],
    results: Sequence[TaskResult],
    written: Mapping[str, int],
    left_out: Mapping[tuple[str, str], int],
) -> Ledger:
    """Return the account. kinds: the :func:`sum_accounts` of the results. written: records by
    layout and lines by kind; left_out: those that are not, by (layout or kind of line, reason).
    """
    reasons = group_by_name(left_out)
    events = sum_counters(result.events for result in results)
    for result in results:
        for (name, reason), count in result.left_out.items():
            # These were taken off the events.
            events[name] += count * (reason == Reason.IN_OTHER_REPORT)
    lines = sum_counters(result.lines for result in results)
    tables = sum_counters(result.tables for result in results)
    taken = sum_counters(result.of_table for result in results)

    def balance(made: Counter[str]) -> dict[str, RecordBalance]:
        return {
            name: RecordBalance(made[name], written.get(name, 0), reasons.get(name, {}))
            for name in sorted(made)
        }

    return Ledger(
        {kind: account for kind, account in kinds.items() if account.rows or account.synthesized},
        balance(+events),
        balance(lines),
        {
            table: {"rows": tables[table], Reason.NOT_SELECTED: tables[table] - taken[table]}
            for table in sorted(tables)
        },
    )


def group_by_name(counts: Mapping[tuple[str, str], int]) -> dict[str, dict[str, int]]:
    """Return counts by (kind or layout, reason) as reason -> count for each kind or layout."""
    by_name: dict[str, dict[str, int]] = {}
    for (name, reason), count in sorted(counts.items()):
        if count:
            by_name.setdefault(name, {})[reason] = count
    return by_name
