"""Reasons for which rows and records are lost, changed, or counted apart.

Accounts (:class:`nsys2prv.events.kind.Account`) count by reason. A reason is a short key, which
stays the same from version to version: scripts find it in ``out.nsys2prv.json``. Its text is for
people. Some keys have a detail behind them: ``too-short: 5 us``.
"""

from __future__ import annotations

from enum import Enum

#: Between a key and its detail.
SEPARATOR = ": "


class Reason(str, Enum):
    """A reason: its key, its text, and whether it is routine.

    >>> Reason.TOO_SHORT.of("5 us")
    'too-short: 5 us'
    >>> reason_text("too-short: 5 us"), is_routine("too-short: 5 us")
    ('shorter than 5 us', False)
    """

    #: For people; "{}" stands for the detail.
    text: str
    #: Happens in every capture, or has a warning of its own: needs nobody's attention.
    routine: bool

    def __new__(cls, key: str, text: str, routine: bool = False) -> Reason:
        member = str.__new__(cls, key)
        member._value_ = key
        member.text = text
        member.routine = routine
        return member

    def __str__(self) -> str:
        return self.value

    def of(self, detail: str) -> str:
        """Return the key with a detail."""
        return f"{self.value}{SEPARATOR}{detail}"

    # Rows that are dropped.
    NO_TIME = "no-time", "rows without usable times"
    FAR = "far-from-capture", "rows far outside the capture", True
    TOO_SHORT = "too-short", "shorter than {}"
    NVTX_RULE = "nvtx-rule", "left out by NVTX rules"
    NOT_PROFILED = "not-profiled", "of {}, which is not profiled", True
    OTHERS_NOT_PROFILED = (
        "others-not-profiled",
        "of further processes that are not profiled",
        True,
    )
    NO_DIRECTION = "no-scheduling-direction", "rows that neither begin nor end a time on a CPU"
    REPEATED_BACKTRACE = (
        "repeated-for-backtrace",
        "duplicate rows of backtrace collection",
        True,
    )
    NO_EVENT = "no-event", "fields of events that are missing"
    NO_SAMPLE = "no-sample", "fields of events that are not samples (ftrace, ETW, hypervisor)"
    NO_SWITCH_COLUMNS = "no-switch-columns", "switches of contexts whose table lacks columns"
    SWITCHED_IN_BEFORE = (
        "switched-in-before",
        "switches out of contexts that were on the GPU before the report begins",
        True,
    )
    PAYLOAD_TEXT = "payload-text", "texts in NVTX payloads", True
    RARE_PAYLOAD_NAME = "rare-payload-name", "numbers in NVTX payloads with rare names"
    OUTSIDE_PROGRAM = (
        "outside-program",
        "before the first or after the last event of the program",
        True,
    )

    # Samples that are dropped.
    SAMPLE_WITHOUT_TIME = "sample-without-time", "samples without usable times"
    SAMPLE_WITHOUT_VALUE = "sample-without-value", "samples without a value"
    SAMPLE_INCOMPLETE = "sample-incomplete", "samples without a value or a time"
    SAMPLE_BEFORE_CAPTURE = "sample-before-capture", "samples from before the capture", True
    SAMPLE_REPEATED = (
        "sample-repeated",
        "samples of one metric at the same time, of which one is kept",
        True,
    )

    # Rows that are no records by design.
    FACT = "fact", "facts from which events follow"
    FURTHER_ROW = (
        "further-row",
        "further rows of a call: its other requests, or the message that it received",
    )
    WITHIN_SWITCH = "within-switch", "moments within a switch, and those at which one out ends"
    HAS_FIELD_ROWS = "has-field-rows", "events, whose fields are rows of {}"
    EVENT_WITH_NUMBERS = "event-with-numbers", "events, whose numbers are counted one by one"
    PAYLOAD_WITH_NUMBERS = "payload-with-numbers", "payloads, whose numbers are counted one by one"
    NOT_SELECTED = "not-selected", "of no kind of event that was asked for"

    # Records that no row of their own stands for.
    NUMBER_IN_EVENT = "number-in-event", "numbers in events"
    VALUE_IN_PAYLOAD = "value-in-payload", "numbers and texts in payloads"
    SHARED_ID = "shared-id", "fields of several events with one id"
    COMPLETION_ON_GPU = "completion-on-gpu", "completions on the GPU"
    THREAD_END = "thread-end", "ends of threads, written as 1 ns"
    ZERO_AT_END = "zero-at-end", "zeros where a number ends and no other follows"
    ZERO_UNSAMPLED = "zero-unsampled", "zeros where nothing was sampled"
    FROM_SEVERAL_ROWS = "from-several-rows", "found by several rows together"

    # Rows that are changed.
    NOT_INTEGER = "not-integer", "values that are not integers"
    END_BEFORE_BEGIN = "end-before-begin", "ranges that end before they begin, made 1 ns long"
    NO_END = "no-end", "ranges without an end, closed at the end of the trace", True
    NO_END_IN_REGION = (
        "no-end-in-region",
        "ranges without an end, closed with their parallel region",
        True,
    )
    NO_SWITCH_OUT = (
        "no-switch-out",
        "contexts whose switch out is not in the report, closed where the next is switched in",
        True,
    )
    TOO_MANY_OVERLAPS = (
        "too-many-overlaps",
        "ranges that overlap {} others and share a row with one of them",
    )
    CUT_TO_PROGRAM = (
        "cut-to-program",
        "ranges that reach beyond the first or last event of the program, cut there",
        True,
    )
    MOVED_TO_PROGRAM = (
        "moved-to-program",
        "messages from before the first or after the last event of the program, moved there",
        True,
    )
    MOVED_TO_CAPTURE = (
        "moved-to-capture",
        "messages from before or after the capture, moved to its begin or end",
        True,
    )
    DAMAGED_PAYLOAD = "damaged-payload", "NCCL payloads that cannot be read"
    NEGATIVE_SAMPLE = "negative-sample", "negative samples, set to 0", True
    SAMPLE_TOO_GREAT = (
        "sample-too-great",
        "samples too large for a trace, set to the largest value that it holds",
    )
    FRACTION_TOO_SMALL = (
        "fraction-too-small",
        "fractions too small beside others of their name, set to 0",
    )
    NOT_A_NUMBER = "not-a-number", "fractions that are not numbers, set to 0"

    # Records that are not written.
    LINE_WITHOUT_TIME = "line-without-time", "without usable times"
    IN_OTHER_REPORT = (
        "in-other-report",
        "held by several reports, of which the first one's are written",
        True,
    )
    OUTSIDE_CUT = "outside-cut", "outside the cut"
    HALF_OUTSIDE_CUT = "half-outside-cut", "with one end outside the cut"
    ROW_LEFT_OUT = "row-left-out", "on rows that are left out"
    KIND_LEFT_OUT = "kind-left-out", "not selected by the options"
    ABOVE_SAMPLE_RATE = "above-sample-rate", "more than {} samples per second"


def reason_of(key: str) -> Reason:
    """Return the reason of a key, with or without a detail. Raises ValueError for no key."""
    return Reason(key.partition(SEPARATOR)[0])


def reason_text(key: str) -> str:
    """Return what a key, with or without a detail, tells people."""
    return reason_of(key).text.replace("{}", key.partition(SEPARATOR)[2])


def is_routine(key: str) -> bool:
    """True if rows dropped or changed for this reason need nobody's attention."""
    return reason_of(key).routine
