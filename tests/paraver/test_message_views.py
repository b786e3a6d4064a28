"""Compare values of views of messages, copies, idle reasons and bursts with SQL on the reports, or
with the trace read by other means.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import pytest
from tools.view_answers import Answers, Work, group_by_task, merge_stretches, read_work, sum_lengths

from nsys2prv.writers.paraver.cfg import load_views

#: Tags of lines of launches and copies, and of messages of NCCL; all others are MPI's.
LAUNCHES, NCCL_MESSAGES = {55001, 55002}, 55010
CODES = load_views().codes
NVTX_CODES = {*CODES["NVTX range"], *CODES["NVTX range of the program's own domains"]}
MPI_SIZE, FILE_SIZE, PARTNER = 50100014, 68007002, 50100012
MPI_CODES, HOST_CODES = range(50000001, 50000006), range(50000001, 63000001)
MPI_TABLES = ("P2P", "COLLECTIVES", "START_WAIT", "OTHER")
#: Digits of a length (ns) or size -> what views call it.
LENGTHS = dict(
    enumerate(
        (
            *("Below 10 ns", "10 to 100 ns", "100 ns to 1 us", "1 to 10 us", "10 to 100 us"),
            *("100 us to 1 ms", "1 to 10 ms", "10 to 100 ms", "100 ms to 1 s", "1 to 10 s"),
        ),
        1,
    )
)
SIZES = dict(
    enumerate(
        (
            *("Below 10 bytes", "10 to 100 bytes", "100 bytes to 1 KB", "1 to 10 KB"),
            *("10 to 100 KB", "100 KB to 1 MB", "1 to 10 MB", "10 to 100 MB", "100 MB to 1 GB"),
        ),
        1,
    )
)
KINDS = {0: "pageable", 1: "pinned"}
CLOSE = 1e-9

Span = tuple[int, int]


def measure(spans: Iterable[Span]) -> int:
    """Return the time that spans cover together."""
    return sum_lengths(merge_stretches(Work((0, 0), *span, "", False) for span in spans))


def list_calls(answers: Answers, tables: Sequence[str], is_main: bool = False) -> list[list[Span]]:
    """Return the calls of each process by tables; is_main: of its main thread alone."""
    where = "WHERE globalTid % 16777216 = globalTid / 16777216 % 16777216" if is_main else ""
    rows = [
        row
        for table in tables
        for row in answers.query(f"SELECT start, end FROM {table} {where}")
        if row[2] is not None
    ]
    return [
        [(begin, end) for export, begin, end in rows if export == number]
        for number in range(len(answers.exports))
    ]


@pytest.fixture(scope="module")
def tasks(answers: Answers) -> list[list[Work]]:
    return [item for _, item in sorted(group_by_task(read_work(answers)).items())]


@pytest.fixture(scope="module")
def mpi(answers: Answers) -> list[list[Span]]:
    return list_calls(answers, [f"MPI_{name}_EVENTS" for name in MPI_TABLES])


def read_matrix(answers: Answers, view: str) -> dict[tuple[str, str], float]:
    """Return the cells of a table of tasks that are not 0, by the names of row and column."""
    head, *rows = answers.tables[view].split("\n\n")[0].splitlines()
    columns = head.split("\t")[1:-1]
    return {
        (name, column): float(cell)
        for name, *cells in (row.split("\t") for row in rows)
        for column, cell in zip(columns, cells, strict=False)
        if float(cell or 0)
    }


@pytest.mark.parametrize("library", ["mpi", "nccl"])
def test_messages_from_rank_to_rank(answers: Answers, library: str) -> None:
    trace = answers.load_trace()
    names, sent, counted = trace.names["TASK"], Counter(), Counter()
    for line in trace.comms:
        is_nccl = line.tag == NCCL_MESSAGES
        if line.tag not in LAUNCHES and is_nccl == (library == "nccl"):
            pair = names[line.sender[0] - 1], names[line.receiver[0] - 1]
            sent[pair] += line.size
            counted[pair] += 1
    if not sent:
        pytest.skip("no messages")
    assert read_matrix(answers, f"analysis/{library}_messages_2dh.cfg") == sent
    assert read_matrix(answers, f"{library.upper()} messages from rank to rank") == counted


def test_number_and_mean_duration_of_mpi_calls(answers: Answers) -> None:
    trace, lasting = answers.load_trace(), defaultdict(list)
    for code in MPI_CODES:
        for call in trace.list_intervals(code):
            lasting[trace.get_label(code, call.value)].append(call.end - call.begin)
    if not lasting:
        pytest.skip("no MPI")
    counts = {name: len(lengths) for name, lengths in lasting.items()}
    assert answers.sum_columns("Number of MPI calls") == counts
    means = answers.read_labelled_rows("analysis/mpi_calls_2dh.cfg")
    numbers = answers.read_labelled_rows("Number of MPI calls")
    times: Counter[str] = Counter()
    for mean, number in zip(means, numbers, strict=True):
        for name in mean:
            times[name] += mean[name] * number[name]
    assert times == pytest.approx({name: sum(lengths) for name, lengths in lasting.items()})


def test_outermost_nvtx_ranges_last_as_long_as_their_stretches(answers: Answers) -> None:
    trace, ranges = answers.load_trace(), defaultdict(list)
    view = "views/nvtx_outermost.cfg"
    if view not in answers.tables:
        pytest.skip("no NVTX ranges")
    for code in NVTX_CODES & trace.events.keys():
        for one in trace.events[code]:
            ranges[one.row].append(Work((0, 0), one.begin, one.end, "", False))
    lengths = Counter(end - begin for own in ranges.values() for begin, end in merge_stretches(own))
    bursts = answers.list_bursts(view)
    assert Counter(int(length) for length, value in bursts if value) == lengths
    assert all(length == value for length, value in bursts if value)


def test_time_in_mpi_by_partner(answers: Answers) -> None:
    times: Counter[str] = Counter()
    for call in answers.load_trace().list_intervals(MPI_CODES[0]):
        if PARTNER in call.others:
            times[f"rank {call.others[PARTNER] - 1}"] += call.end - call.begin
    if not times:
        pytest.skip("no partners")
    assert answers.sum_columns("analysis/mpi_partner_time_2dh.cfg") == times


@pytest.mark.parametrize(
    ("library", "code"),
    [
        ("mpi", MPI_SIZE),
        ("io", FILE_SIZE),
        ("nccl", *CODES["NCCL bytes"]),
        ("copies", *CODES["memory operation's bytes"]),
    ],
)
def test_sizes(answers: Answers, library: str, code: int) -> None:
    trace = answers.load_trace()
    sizes = {
        (interval.row, interval.begin): interval.others[code]
        for intervals in trace.events.values()
        for interval in intervals
        if code in interval.others and interval.end > interval.begin
    }
    if not sizes:
        pytest.skip("nothing with a size")
    shown = answers.sum_columns(f"analysis/{library}_sizes_2dh.cfg")
    assert {name: count for name, count in shown.items() if count} == Counter(
        SIZES[len(str(size))] for size in sizes.values() if size
    )


def test_copies_by_direction_and_host_memory(answers: Answers) -> None:
    count, bytes_moved, times = Counter(), Counter(), Counter()
    query = "copyKind, srcKind, dstKind, bytes, end - start FROM CUPTI_ACTIVITY_KIND_MEMCPY"
    for _, kind, source, target, size, lasts in answers.query(f"SELECT {query}"):
        name = {
            1: f"HtoD {KINDS.get(source)}",
            2: f"DtoH {KINDS.get(target)}",
            8: "DtoD",
            10: "PtoP",
        }[kind]
        count[name] += 1
        bytes_moved[name] += size
        times[name] += lasts
    for _, size, lasts in answers.query(
        "SELECT bytes, end - start FROM CUPTI_ACTIVITY_KIND_MEMSET"
    ):
        count["Set"] += 1
        bytes_moved["Set"] += size
        times["Set"] += lasts
    assert answers.sum_columns("analysis/copies_2dh.cfg") == times
    assert answers.sum_columns("Number of copies") == count
    assert answers.sum_columns("Bytes of copies (bytes)") == bytes_moved
    # Time times bandwidth of each stream, added up.
    rows, rates = (
        answers.read_labelled_rows(name)
        for name in ("analysis/copies_2dh.cfg", "Bandwidth of copies (MB per s)")
    )
    moved: Counter[str] = Counter()
    for time, rate in zip(rows, rates, strict=True):
        for name in time:
            moved[name] += time[name] * rate[name] / 1000
    assert moved == pytest.approx(bytes_moved, rel=CLOSE)


def test_idle_time_by_what_hosts_do(
    answers: Answers, tasks: list[list[Work]], mpi: list[list[Span]]
) -> None:
    cuda = list_calls(answers, ["CUPTI_ACTIVITY_KIND_RUNTIME"])
    system = list_calls(answers, ["OSRT_API"], is_main=True)
    expected = []
    for work, *hosts in zip(tasks, mpi, cuda, system, strict=True):
        spans = [(one.begin, one.end) for one in work]
        covered, row = measure(spans), []
        for calls in hosts:
            spans += calls
            row.append(measure(spans) - covered)
            covered += row[-1]
        expected.append((*row, answers.duration - covered))
    names = ("MPI", "CUDA API", "OS runtime", "Outside recorded calls")
    shown = answers.read_labelled_rows("analysis/idle_reason_2dh.cfg")
    assert [tuple(row.get(name, 0) for name in names) for row in shown if row] == expected
    bursts = answers.list_bursts("What hosts do while GPUs are idle")
    assert sum(length for length, value in bursts if value) == sum(map(sum, expected))


def test_host_bursts_by_length(answers: Answers) -> None:
    calls = defaultdict(list)
    for code, intervals in answers.load_trace().events.items():
        for call in intervals if code in HOST_CODES else ():
            calls[call.row].append(Work((0, 0), call.begin, call.end, "", False))
    times: Counter[str] = Counter()
    for own in calls.values():
        edges = [0, *(time for span in merge_stretches(own) for time in span), answers.duration]
        for begin, end in zip(edges[::2], edges[1::2], strict=True):
            if end > begin:
                times[LENGTHS[len(str(end - begin))]] += end - begin
    assert answers.sum_columns("analysis/host_bursts_2dh.cfg") == times


def test_gpus_that_compute_at_a_time(answers: Answers, tasks: list[list[Work]]) -> None:
    bursts = answers.list_bursts("views/gpus_computing.cfg")
    assert sum(length for length, _ in bursts) == answers.duration
    assert sum(length * value for length, value in bursts) == sum(
        measure((one.begin, one.end) for one in work if one.computes) for work in tasks
    )


def test_kernels_in_ranges_of_the_main_thread(answers: Answers, tasks: list[list[Work]]) -> None:
    ranges = list_calls(answers, ["(SELECT * FROM NVTX_EVENTS WHERE eventType = 59)"], is_main=True)
    expected = 0
    for work, own in zip(tasks, ranges, strict=True):
        kernels = [(one.begin, one.end) for one in work if not one.name.startswith("memory")]
        expected += measure(kernels) + measure(own) - measure([*kernels, *own])
    lines = answers.tables["analysis/kernels_in_nvtx_3dh.cfg"].splitlines()
    totals = [line.split("\t")[1:] for line in lines if line.startswith("Total\t")]
    assert sum(float(cell) for cells in totals for cell in cells if cell) == expected
