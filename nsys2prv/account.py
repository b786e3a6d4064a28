"""What becomes of the rows of a kind of event, from reading to what people are told."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields


@dataclass
class Account:
    """Of one kind of event. rows: that were read; records: made of them. dropped: rows that are lost, by reason; aside: rows that are no
    record by design; beyond: records that no row of its own stands for. repaired: rows that were changed, whatever became of them.

    rows + beyond = records + dropped + aside.
    """

    rows: int = 0
    records: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    aside: Counter[str] = field(default_factory=Counter)
    beyond: Counter[str] = field(default_factory=Counter)
    repaired: Counter[str] = field(default_factory=Counter)

    @property
    def missing(self) -> int:
        """Rows that nothing accounts for: 0."""
        return self.rows + self.beyond.total() - self.records - self.dropped.total() - self.aside.total()

    def __add__(self, other: Account) -> Account:
        return Account(*(getattr(self, part.name) + getattr(other, part.name) for part in fields(self)))
