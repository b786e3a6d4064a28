"""Test that every value of a trace equals the result of plain SQL on its export, for a folder of
real exports.

NSYS2PRV_CORPUS names the folder. Traces are read back by an independent reader
(``tools.trace_reader``) and compared with SQL on the export (``tools.sql_truth``). The converter is
never compared with itself.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from tools.conversions import EVERY_ATTRIBUTE, find_time_zero
from tools.corpus import EXPORTS, REPORTS, name_report, skip_without_corpus
from tools.pertalde import check_with_pertalde, needs_pertalde
from tools.sql_truth import GEOMETRY, Truth, make_label, read_thread_owners
from tools.trace_reader import Comm, Interval, Row, Trace, read_trace

from nsys2prv import Options, convert
from nsys2prv._util.errors import NothingToWrite
from nsys2prv.events.catalogue import load_catalogue

#: Event types of the kinds that have one; those of NVTX differ by domain and are found by their
#: labels.
CODES = {
    "api": 63000000,
    "memory": 63000001,
    "kernel": 63000006,
    "nccl_kernel": 63000007,
    "graph": 63000008,
    "sync": 63000030,
    "osrt": 66400000,
    "pthread": 61000000,
}

NVTX = {
    "pushpop": "NVTX pushpop ranges ",
    "startend": "NVTX startend ranges ",
    "mark": "NVTX marks ",
}
DEFAULT_DOMAIN = "default domain"
KINDS = (*CODES, *NVTX)
#: Of which calls lie within each other.
NESTED = {"api", "osrt", "pthread"}
#: What the traces hold: other kinds of events have truth tests of their own.
KINDS_OF_TRUTH = ("cuda", "nvtx", "osrt", "pthread")

BYTES, SOURCE, TARGET, ERROR = 63000002, 63000040, 63000041, 63000020
STARTEND_OF_ANY_DOMAIN = 9004
TAGS = {"launch": 55001, "memory": 55002}


@dataclass
class Pair:
    """An export and its trace (an empty one where the converter found nothing to write), and where
    that was written.
    """

    truth: Truth
    trace: Trace
    written: bool
    path: Path


@pytest.fixture(scope="module", params=REPORTS, ids=name_report)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    output = tmp_path_factory.mktemp("trace") / "out.prv"
    options = Options(
        KINDS_OF_TRUTH, full_kernel_names=True, nvtx_rules="none", cut=EVERY_ATTRIBUTE
    )
    try:
        convert([request.param], output, options)
    except NothingToWrite:
        with closing(Truth(request.param)) as truth:
            yield Pair(truth, Trace(), False, output)
        return
    trace, zero = read_trace(output), find_time_zero(output, request.param)
    trace.owners = read_thread_owners(request.param)
    with closing(Truth(request.param, zero + trace.duration)) as truth:
        truth.zero = zero
        # Calls of NCCL are a kind of their own, its start-end ranges and marks are not.
        truth.query("DELETE FROM event WHERE domain = 'NCCL' AND kind = 'pushpop'")
        yield Pair(truth, trace, True, output)


# ---- a trace in the terms of the truth --------------------------------------------------------------------------------


def list_codes(trace: Trace, kind: str) -> dict[int, str]:
    """Return event types of a kind -> NVTX domain, "" for the default domain and for what is not
    NVTX.
    """
    if kind in CODES:
        return {CODES[kind]: ""}
    result = {}
    for code, text in trace.labels.types.items():
        if text.startswith(NVTX[kind]):
            domain = text.removeprefix(NVTX[kind])
            result[code] = "" if domain == DEFAULT_DOMAIN else domain
    return result


def locate(trace: Trace, row: Row) -> tuple[int, str]:
    """Return process id and row, as the truth names them."""
    pid = trace.find_process(row)
    name = trace.get_row_name(row)
    return pid, name if name.startswith("CUDA-D") else f"thread {name.split()[-1]}"


def read_name(trace: Trace, code: int, interval: Interval, known: set[str]) -> str:
    """Return the label of a range, without the number that tells apart names which agree once cut
    or cleaned.
    """
    text = trace.get_label(code, interval.value)
    return text if text in known else re.sub(r" #\d+$", "", text)


def list_intervals(pair: Pair, kind: str) -> Iterator[tuple[Interval, str, str]]:
    """Return the ranges of a kind, with domain and name."""
    known = set(pair.truth.sum_by_name(kind))
    for code, domain in list_codes(pair.trace, kind).items():
        for interval in pair.trace.list_intervals(code):
            # A graph traced as a whole is a kernel, too.
            if code != CODES["kernel"] or CODES["graph"] not in interval.others:
                yield interval, domain, read_name(pair.trace, code, interval, known)


def sum_totals(durations: Iterable[tuple[object, int]]) -> dict:
    """Return key -> count and total duration."""
    counts: Counter[object] = Counter()
    sums: Counter[object] = Counter()
    for key, duration in durations:
        counts[key] += 1
        sums[key] += duration
    return {key: (count, sums[key]) for key, count in counts.items()}


def count_comms(trace: Trace, kind: str) -> list[Comm]:
    return [comm for comm in trace.comms if comm.tag == TAGS[kind]]


# ---- one trace of one export ----------------------------------------------------------------------------------------------------------


def test_a_trace_is_written_unless_there_is_nothing(pair: Pair) -> None:
    assert pair.written == (not pair.truth.empty)


def test_the_trace_is_sound(pair: Pair) -> None:
    assert not pair.trace.violations, str(pair.trace.violations)


def test_all_events_lie_in_the_trace(pair: Pair) -> None:
    """It begins and ends with events of any kind, of which the truth has some."""
    if pair.written:
        first, last = pair.truth.find_span()
        assert 0 <= first <= last <= pair.trace.duration


def test_no_range_hides_another(pair: Pair) -> None:
    """Types that views read by their last value hold one range at a time on a row."""
    flat = {kind: pair.trace.deepest.get(CODES[kind], 0) for kind in CODES.keys() - NESTED}
    assert all(depth <= 1 for depth in flat.values()), flat


@pytest.mark.parametrize("kind", KINDS)
def test_every_range_begins_and_ends_where_it_did(pair: Pair, kind: str) -> None:
    """Exactly the ranges of the export, each with its own name: so nesting is kept too."""
    actual = Counter(
        (*locate(pair.trace, interval.row), domain, name, interval.begin, interval.end)
        for interval, domain, name in list_intervals(pair, kind)
    )
    expected = Counter()
    for (pid, row, domain, name, begin, end), count in pair.truth.count_ranges(kind).items():
        expected[pid, row, make_label(domain) if domain else "", name, begin, end] += count
    assert actual == expected


def test_start_end_ranges_stand_under_one_type_too(pair: Pair) -> None:
    ranges = sum_totals(
        ("all", interval.end - interval.begin)
        for interval, _, _ in list_intervals(pair, "startend")
    )
    together = sum_totals(
        ("all", it.end - it.begin) for it in pair.trace.list_intervals(STARTEND_OF_ANY_DOMAIN)
    )
    assert together == ranges


def test_bytes_by_operation(pair: Pair) -> None:
    result: Counter[str] = Counter()
    for interval, _, name in list_intervals(pair, "memory"):
        result[name] += interval.others.get(BYTES, 0)
    assert dict(result) == pair.truth.sum_bytes_by_operation()


@pytest.mark.parametrize("kind", TAGS)
def test_lines(pair: Pair, kind: str) -> None:
    """From the thread and time of the call to the row and time of the operation, within one
    process.
    """
    result = Counter()
    for comm in count_comms(pair.trace, kind):
        (pid, caller), (other, row) = (
            locate(pair.trace, comm.sender),
            locate(pair.trace, comm.receiver),
        )
        assert pid == other, comm
        result[pid, caller, comm.send, row, comm.receive, comm.size] += 1
    assert result == pair.truth.count_lines(kind)


def test_no_line_of_another_kind(pair: Pair) -> None:
    assert {comm.tag for comm in pair.trace.comms} <= set(TAGS.values())


def test_kernel_attributes(pair: Pair) -> None:
    fields = load_catalogue().layouts["cuda_kernel"].fields
    code_of = {field.column: field.code for field in fields if field.column}
    codes = [code_of[column] for column in GEOMETRY]
    result = Counter(
        (name, *(interval.others.get(code, 0) for code in codes))
        for kind in ("kernel", "nccl_kernel")
        for interval, _, name in list_intervals(pair, kind)
    )
    assert result == pair.truth.count_geometries()


def test_memory_kinds_of_copies(pair: Pair) -> None:
    trace = pair.trace
    result = Counter(
        tuple(
            trace.get_label(code, interval.others[code]) if code in interval.others else ""
            for code in (SOURCE, TARGET)
        )
        for interval, _, name in list_intervals(pair, "memory")
        if name != "CUDA memset"
    )
    assert result == pair.truth.count_memory_kinds()


def test_errors_of_calls(pair: Pair) -> None:
    result = Counter(
        (name, call.others[ERROR])
        for call, _, name in list_intervals(pair, "api")
        if ERROR in call.others
    )
    assert dict(result) == pair.truth.count_errors()


# ---- one trace of many exports ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[Truth], Trace]]:
    """Return one compressed trace of all exports that do not say when they were made: their
    processes and names meet in it.
    """
    skip_without_corpus()
    truths = [Truth(path) for path in EXPORTS]
    chosen = [
        (path, truth)
        for path, truth in zip(EXPORTS, truths, strict=True)
        if not truth.list_columns("TARGET_INFO_SESSION_START_TIME") and not truth.empty
    ]
    if len(chosen) < 2:
        pytest.skip("fewer than two exports without a clock")
    output = tmp_path_factory.mktemp("merged") / "out.prv.gz"
    convert(
        [path for path, _ in chosen],
        output,
        Options(KINDS_OF_TRUTH, full_kernel_names=True, nvtx_rules="none", cut=EVERY_ATTRIBUTE),
    )
    yield [truth for _, truth in chosen], read_trace(output)
    for truth in truths:
        truth.close()


def test_the_merged_trace_is_sound(merged: tuple[list[Truth], Trace]) -> None:
    assert not merged[1].violations, str(merged[1].violations)


@pytest.mark.parametrize("kind", KINDS)
def test_counts_by_name_add_up(merged: tuple[list[Truth], Trace], kind: str) -> None:
    truths, trace = merged
    expected: Counter[str] = Counter()
    for truth in truths:
        expected.update({name: count for name, (count, _) in truth.sum_by_name(kind).items()})
    actual: Counter[str] = Counter()
    for code in list_codes(trace, kind):
        actual.update(
            read_name(trace, code, interval, set(expected))
            for interval in trace.list_intervals(code)
        )
    assert actual == expected


@pytest.mark.parametrize("kind", TAGS)
def test_lines_add_up(merged: tuple[list[Truth], Trace], kind: str) -> None:
    truths, trace = merged
    result = count_comms(trace, kind)
    assert len(result) == sum(sum(truth.count_lines(kind).values()) for truth in truths)
    assert all(comm.sender[0] == comm.receiver[0] for comm in result)


@needs_pertalde
def test_another_reader_finds_nothing_wrong(pair: Pair) -> None:
    assert not pair.written or check_with_pertalde(pair.path) == ""
