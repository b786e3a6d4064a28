"""Reasons for which rows and records are lost, changed, or counted apart, and for which tables are
not read at all.

Accounts (:class:`nsys2prv.events.kind.Account`) count by reason. A reason is a short key, which
stays the same from version to version: scripts find it in ``out.nsys2prv.json``. Its text in
``reasons.yaml`` is for people. Some keys have a detail behind them: ``too-short: 5 us``.
"""

from __future__ import annotations

from enum import Enum
from functools import cache

from nsys2prv._util.yaml_files import load_shipped, read_data_text

#: Between a key and its detail.
SEPARATOR = ": "


class Reason(str, Enum):
    """A reason, by its key.

    >>> Reason.TOO_SHORT.with_detail("5 us")
    'too-short: 5 us'
    >>> describe_reason("too-short: 5 us"), is_routine("too-short: 5 us")
    ('shorter than 5 us', False)
    """

    def __str__(self) -> str:
        return self.value

    def with_detail(self, detail: str) -> str:
        """Return the key with a detail."""
        return f"{self.value}{SEPARATOR}{detail}"

    @property
    def text(self) -> str:
        """The text for people; "{}" stands for the detail."""
        return _load_texts()["routine"].get(self.value) or _load_texts()["unusual"][self.value]

    @property
    def routine(self) -> bool:
        """Happens in every capture, or has a warning of its own: needs nobody's attention."""
        return self.value in _load_texts()["routine"]

    # Rows that are dropped.
    NO_TIME = "no-time"
    FAR = "far-from-capture"
    TOO_SHORT = "too-short"
    NVTX_RULE = "nvtx-rule"
    NOT_PROFILED = "not-profiled"
    OTHERS_NOT_PROFILED = "others-not-profiled"
    NO_DIRECTION = "no-scheduling-direction"
    REPEATED_BACKTRACE = "repeated-for-backtrace"
    NO_EVENT = "no-event"
    NO_SAMPLE = "no-sample"
    NO_SWITCH_COLUMNS = "no-switch-columns"
    SWITCHED_IN_BEFORE = "switched-in-before"
    PAYLOAD_TEXT = "payload-text"
    RARE_PAYLOAD_NAME = "rare-payload-name"
    OUTSIDE_PROGRAM = "outside-program"

    # Samples that are dropped.
    SAMPLE_WITHOUT_TIME = "sample-without-time"
    SAMPLE_WITHOUT_VALUE = "sample-without-value"
    SAMPLE_INCOMPLETE = "sample-incomplete"
    SAMPLE_BEFORE_CAPTURE = "sample-before-capture"
    SAMPLE_REPEATED = "sample-repeated"

    # Rows that are no records by design.
    FACT = "fact"
    FURTHER_ROW = "further-row"
    WITHIN_SWITCH = "within-switch"
    HAS_FIELD_ROWS = "has-field-rows"
    EVENT_WITH_NUMBERS = "event-with-numbers"
    PAYLOAD_WITH_NUMBERS = "payload-with-numbers"
    NOT_SELECTED = "not-selected"

    # Records that no row of their own stands for.
    NUMBER_IN_EVENT = "number-in-event"
    VALUE_IN_PAYLOAD = "value-in-payload"
    SHARED_ID = "shared-id"
    COMPLETION_ON_GPU = "completion-on-gpu"
    THREAD_END = "thread-end"
    ZERO_AT_END = "zero-at-end"
    ZERO_UNSAMPLED = "zero-unsampled"
    FROM_SEVERAL_ROWS = "from-several-rows"

    # Rows that are changed.
    NOT_INTEGER = "not-integer"
    END_BEFORE_BEGIN = "end-before-begin"
    NO_END = "no-end"
    NO_END_IN_REGION = "no-end-in-region"
    NO_SWITCH_OUT = "no-switch-out"
    TOO_MANY_OVERLAPS = "too-many-overlaps"
    CUT_TO_PROGRAM = "cut-to-program"
    MOVED_TO_PROGRAM = "moved-to-program"
    MOVED_TO_CAPTURE = "moved-to-capture"
    DAMAGED_PAYLOAD = "damaged-payload"
    NEGATIVE_SAMPLE = "negative-sample"
    SAMPLE_TOO_GREAT = "sample-too-great"
    FRACTION_TOO_SMALL = "fraction-too-small"
    NOT_A_NUMBER = "not-a-number"

    # Records that are not written.
    LINE_WITHOUT_TIME = "line-without-time"
    IN_OTHER_REPORT = "in-other-report"
    OUTSIDE_CUT = "outside-cut"
    HALF_OUTSIDE_CUT = "half-outside-cut"
    ROW_LEFT_OUT = "row-left-out"
    KIND_LEFT_OUT = "kind-left-out"
    ABOVE_SAMPLE_RATE = "above-sample-rate"


@cache
def _load_texts() -> dict[str, dict[str, str]]:
    """Return key -> text, of reasons that are routine and of those that are not."""
    return load_shipped(read_data_text(__package__, "reasons.yaml"))


def parse_reason(key: str) -> Reason:
    """Return the reason of a key, with or without a detail. Raises ValueError for no key."""
    return Reason(key.partition(SEPARATOR)[0])


def describe_reason(key: str) -> str:
    """Return what a key, with or without a detail, tells people."""
    return parse_reason(key).text.replace("{}", key.partition(SEPARATOR)[2])


def is_routine(key: str) -> bool:
    """True if rows dropped or changed for this reason need nobody's attention."""
    return parse_reason(key).routine


#: Of tables that ``tables.yaml`` does not know.
UNKNOWN_TABLE = "unknown to this version"


@cache
def _load_reasons_not_read() -> tuple[dict[str, str], dict[str, str]]:
    """Return name -> reason, and the beginning of a name -> reason, the longest first."""
    names: dict[str, str] = {}
    beginnings: dict[str, str] = {}
    for reason, tables in load_shipped(read_data_text(__package__, "tables.yaml")).items():
        for table in tables:
            target = beginnings if table.endswith("*") else names
            if table.rstrip("*") in target:
                raise ValueError(f"tables.yaml: {table} stands there twice")
            target[table.rstrip("*")] = reason
    return names, dict(sorted(beginnings.items(), key=lambda item: -len(item[0])))


def explain_unread_table(table: str) -> str:
    """Return why a table that no kind of event reads is not translated."""
    names, beginnings = _load_reasons_not_read()
    return names.get(table) or next(
        (text for start, text in beginnings.items() if table.startswith(start)), UNKNOWN_TABLE
    )


def rank_reason(text: str) -> int:
    """Return the place of a reason: unknown tables first, then as ``tables.yaml`` has them from its
    end, where those with events are.
    """
    reasons = list(load_shipped(read_data_text(__package__, "tables.yaml")))
    return -reasons.index(text) if text in reasons else -len(reasons)
