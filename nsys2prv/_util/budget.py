"""Limit memory and time: the amount of work for a given input, and how much of it is in memory at a
time.

A small file can cause any amount of work: a text to which thousands of rows refer, a dictionary in
a Parquet file, thousands of rows with the same start, thousands of processes with one event each.
If work grows with the product of such numbers, it is estimated in advance and limited. Each limit
is far above the amounts that Nsight Systems records in a file of that size, and grows with the size
of the reports, so no large job reaches it:

    what is limited           limit                                      beyond the limit
    values in NVTX payloads   LEAST_VALUES + 1 per BYTES_PER_VALUE       payloads are dropped
    one NVTX payload          PAYLOAD_BYTES                              it is dropped
    processes and devices     LEAST_PROCESSES + 1 per BYTES_PER_PROCESS  error
    rows of Parquet tables    LEAST_ROWS + 1 per BYTES_PER_ROW           error
    values of Parquet tables  LEAST_CELLS + CELLS_PER_BYTE               error
    pages of Parquet tables   LEAST_UNPACKED + UNPACKED_PER_BYTE         error
    texts of small tables     LEAST_TEXT + TEXT_PER_BYTE                 error
    names of rows             LEAST_NAMES + NAMES_PER_BYTE               cut, to LEAST_NAME or more
    functions in call stacks  LEAST_NAMES + NAMES_PER_BYTE               cut, to LEAST_NAME or more
    names of objects          OBJECT_NAME                                cut
    lines of a .prv.gz        LEAST_TRACE + TRACE_PER_BYTE               error
    rows of a join of events  rows on the left (`columns.join_first`)    first of equal keys

Within these limits, each command needs at most 1 GiB of memory and a minute for reports of 20 MB.

The module also configures how the C library, polars and Python use memory. Columns of some MB are
created and dropped repeatedly. By default, glibc returns each of them to the system at once, and
every new column causes page faults, which take a fifth of a conversion's time. Python also collects
garbage among modules while it imports them, which takes a sixth of the startup time.

If the address space is limited (``ulimit -v``), reserved memory counts, too: glibc reserves 64 MB
for each of the first threads that allocate memory, three fifths of a conversion's total. If nothing
is left, libraries crash or end the process with messages of their own. The limit is therefore
checked before they are imported.
"""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nsys2prv._util.errors import Nsys2prvError
from nsys2prv._util.text import format_size

#: Bytes of a payload. A payload describes a range with a few numbers of about ten bytes each;
#: longer payloads are data. The processed size of a payload grows with the square of its length,
#: because each value has a path.
PAYLOAD_BYTES = 1 << 14
#: Minimum number of values in the payloads of a report; and bytes of its file for each additional
#: value. A row of an NVTX range takes more than 30 bytes, and each value in it about ten more.
LEAST_VALUES, BYTES_PER_VALUE = 4_000_000, 4
#: Number of values of payloads in memory at a time; and maximum number of bytes in their paths.
VALUES_TOGETHER, PATH_BYTES = 400_000, 1 << 25
#: Minimum number of processes and devices, which analyses process one by one; and bytes of the
#: reports for each additional one. Every process with events takes more bytes than this.
LEAST_PROCESSES, BYTES_PER_PROCESS = 1_000, 16_384
#: Minimum number of rows in a folder of Parquet tables; and bytes for each additional row. Times
#: alone, which never repeat, take more bytes per row than this, even if compressed.
LEAST_ROWS, BYTES_PER_ROW = 1_000_000, 2
#: Values of a folder's tables at least, and further ones for each byte: tables of kernels have some 40 columns,
#: and a row takes ten bytes, however many of these are always equal.
LEAST_CELLS, CELLS_PER_BYTE = 1 << 25, 8
#: Bytes of a folder's pages when unpacked at least, and further ones for each packed byte: events are
#: packed to a third or a tenth.
LEAST_UNPACKED, UNPACKED_PER_BYTE = 1 << 27, 16
#: Minimum number of bytes in all texts of a small Parquet table, counting each text in every row;
#: and additional bytes per byte of the files, because a text that is in every row is stored only
#: once.
LEAST_TEXT, TEXT_PER_BYTE = 1 << 29, 32
#: Bytes of the names of a task at least, and further ones for each byte of the report; one text may be the
#: name of ranges in thousands of domains. Bytes that are left of a name at least.
LEAST_NAMES, NAMES_PER_BYTE, LEAST_NAME = 1 << 26, 4, 200
#: Characters of the name of a thread, process, domain or category; many may have the same one.
OBJECT_NAME = 1_000
#: Bytes of a compressed trace when unpacked at least, and further ones for each packed byte. Traces are
#: packed to a tenth; of equal lines, to a thirtieth.
LEAST_TRACE, TRACE_PER_BYTE = 1 << 31, 100

# What a worker has in memory at a time. None of these numbers changes a result. Rows are of tables,
# of runs or of frames; a row takes some ten to hundred bytes.

#: Reading. Rows of a part of a table, and of one task: small enough to share the work out, large enough
#: that opening the report again costs nothing.
PART_ROWS, TASK_ROWS = 200_000, 400_000
#: Rows of a table that SQLite returns at a time, and rows of a large table that are processed
#: together.
SELECTED_ROWS, TABLE_ROWS = 50_000, 400_000
#: Rows of a table in which its first and last events are searched, and in which launches are.
SURVEY_ROWS, LAUNCH_ROWS = 20_000, 1_000_000
#: Maximum number of cells of a table of all times and metrics; a larger table is split into tables
#: with this many metrics.
METRIC_CELLS, METRICS_TOGETHER = 1 << 24, 8
#: Pairs of NVTX ranges and calls that are looked at together.
RANGE_PAIRS = 1 << 20
#: What a process remembers: names with their classes, results of few texts, shapes of runs; and how many
#: distinct stacks there may be for the next task to be told what was found out of them.
REMEMBERED_NAMES, REMEMBERED_TEXTS, REMEMBERED_SHAPES = 1 << 17, 100_000, 4096
#: Small results that the reports of most ranks share.
REMEMBERED_RESULTS = 64
DISTINCT_STACKS = 1 << 16
#: A frame of at most so many rows and bytes stays in memory: a file takes longer than its rows.
SMALL_FRAME_ROWS, SMALL_FRAME_BYTES = 1_000, 8_192
#: Storing. Rows that are moved to lanes together.
LANE_ROWS = 500_000
#: Relating. Facts (bytes) that one task brings into order, unless one report has more (of NCCL, fifty
#: thousand kernels), and of a bucket, which one task matches.
FACT_BYTES, BUCKET_BYTES = 10_000_000, 8_000_000
#: Calls that are gathered at once, unless they are one communicator's that the report numbers; kernels
#: that one task compares with each other (some 60 MB); lines that it stores; allocations.
PIECE_ROWS, MATCHED_ROWS, LINE_ROWS, ALLOCATION_ROWS = 50_000, 100_000, 200_000, 500_000
#: Kernels that CUDA graphs launch are looked at if there are fewer of a job's, and pairs of a meeting and
#: a stream: all are in memory at once.
MOST_IN_GRAPHS, MOST_COMPARED = 5_000_000, 1 << 25
#: Analyzing. Number of executions (about) with durations in memory, unless one group has more;
#: intervals or events that are compared with sets of times; edges of the replay that are processed
#: together.
EXECUTIONS, INTERVAL_ROWS, EDGE_ROWS = 1_000_000, 250_000, 1 << 18
#: Writing. Records in one window of the trace (some tens of MB), and per run of the trace, if this
#: is more: with very many runs, a window must justify the access to each run. Number of sampled
#: values that cost as much as one other record.
WINDOW_RECORDS, RECORDS_PER_RUN, VALUES_PER_RECORD = 300_000, 400, 6
#: Maximum number of records in a small run: joining it costs less than a hundred windows that
#: access it. Maximum number of records in a joined run.
SMALL_RUN, JOINED_RECORDS = 32_768, 200_000
#: Names that get their values together, bytes of names that are read once, and labels that are written
#: together.
NAME_ROWS, NAME_BYTES, LABELS_AT_ONCE = 1_000_000, 1 << 24, 100_000
#: Bytes of text that the compiled writer makes at a time, many times the length of a line; of a trace
#: that are checked together; and the longest line that is taken for one.
TEXT_BYTES, BLOCK_BYTES, LONGEST_LINE = 1 << 24, 1 << 20, 1 << 26
#: Parameters of glibc's mallopt(3).
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
#: Settings of jemalloc, with polars' prefix: blocks of some MB are treated like others, and freed
#: memory is kept for 1 s, in one place for all threads.
_POLARS = "_RJEM_MALLOC_CONF", "oversize_threshold:0,dirty_decay_ms:1000,narenas:1"
#: How polars runs queries: most here are of few rows, for which its other way takes six times as long.
_ENGINE = "POLARS_ENGINE_AFFINITY", "in-memory"
#: Blocks up to this size come from the heap (glibc takes no more), and a process keeps this
#: much freed memory at the end of its heap.
HEAP_BLOCK_BYTES, KEPT_BYTES = 32 << 20, 128 << 20
#: If memory is more important than time, because the only unit has so many records, freed blocks of
#: at least this size are returned to the system.
MANY_RECORDS, RETURNED_BYTES = 10_000_000, 8 << 20
#: Less freed memory than this stays in the process, and all in a heap smaller than this: to use new pages
#: takes longer.
FREED_BYTES, SMALL_HEAP_BYTES = 64 << 20, 448 << 20
#: Address space that a process needs, for its libraries most of all; and for each thread of polars,
#: which has one per CPU or one alone.
NEEDED_BYTES, BYTES_PER_THREAD = 768 << 20, 256 << 20
#: Reports of so little in all are read and analyzed as quickly by the fewest threads that polars has.
SMALL_BYTES, FEWEST_THREADS = 16 << 20, 2
#: The variable with polars' number of threads, and the variables of libraries that this process has set.
POLARS_THREADS = "POLARS_MAX_THREADS"
_CHOSEN: set[str] = set()
#: Heap that now counts as small (bytes).
_SMALL_HEAP = {"bytes": SMALL_HEAP_BYTES}


class FolderBudget:
    """Limits the rows and bytes that are read from a folder of Parquet files, because damaged files
    may state any number.
    """

    def __init__(self, size: int) -> None:
        """Set up the budget for a folder. size: of all files (bytes)."""
        self._left = {
            "rows": LEAST_ROWS + size // BYTES_PER_ROW,
            "values": LEAST_CELLS + CELLS_PER_BYTE * size,
            "bytes when unpacked": LEAST_UNPACKED + UNPACKED_PER_BYTE * size,
            "bytes of texts": LEAST_TEXT + TEXT_PER_BYTE * size,
        }

    def take(self, what: str, count: int) -> None:
        """Subtract `count` rows or bytes from the budget. what: noun for the error. Raise
        ValueError if too few are left.
        """
        self._left[what] -= count
        if self._left[what] < 0:
            raise ValueError(
                f"with it the folder has more {what} than files of their size may have"
            )


def count_allowed(least: int, size: int, bytes_each: int) -> int:
    """Return the largest plausible number of items in input of this size (bytes): `least`, and one
    more for each `bytes_each` bytes.
    """
    return least + size // bytes_each


def check_processes(count: int, size: int) -> None:
    """Raise Nsys2prvError if there are too many processes and devices to analyze, for reports of
    this size (bytes).
    """
    allowed = count_allowed(LEAST_PROCESSES, size, BYTES_PER_PROCESS)
    if count > allowed:
        raise Nsys2prvError(
            f"the reports have {count:,} processes and devices, but at most {allowed:,} are analyzed in "
            f"reports of {format_size(size)}; omit reports of helper processes, or convert the reports to a trace"
        )


def check_unpacked(path: Path, unpacked: int, packed: int) -> None:
    """Raise Nsys2prvError if a compressed trace unpacks to too much. unpacked, packed: sizes in
    bytes.
    """
    if unpacked > LEAST_TRACE + TRACE_PER_BYTE * packed:
        raise Nsys2prvError(
            f"{path}: {format_size(packed)} unpack to more than {format_size(unpacked)}, which is too much for a trace; write it again"
        )


def keep_freed_memory() -> None:
    """Let this process and its children reuse freed memory, also in polars' own allocator if polars
    is not loaded yet.

    This has no effect without glibc.
    """
    for setting in (_POLARS, _ENGINE):
        os.environ.setdefault(*setting)
    limit = find_limit("RLIMIT_AS")
    if limit is not None and limit < BYTES_PER_THREAD * (os.cpu_count() or 1):
        os.environ.setdefault("POLARS_MAX_THREADS", "1")
    _set_malloc((_MMAP_THRESHOLD, HEAP_BLOCK_BYTES), (_TRIM_THRESHOLD, KEPT_BYTES))
    _SMALL_HEAP["bytes"] = SMALL_HEAP_BYTES
    if limit is not None:
        _set_malloc((_ARENA_MAX, 1))


def limit_threads(jobs: int, paths: Iterable[str | Path]) -> None:
    """Set the number of threads for polars, which must not be imported yet: as many as workers, but
    only a few for small reports, where waking threads takes longer than the work. jobs: number of
    workers, 0 for one per CPU. paths: the reports.

    Never set a single thread, because polars then rounds some quotients differently.
    """
    given = map(Path, paths)
    files = (file for one in given for file in (one.iterdir() if one.is_dir() else [one]))
    with suppress(OSError):
        if jobs or sum(file.stat().st_size for file in files) <= SMALL_BYTES:
            _set_threads(POLARS_THREADS, max(jobs or 0, FEWEST_THREADS))


def use_one_thread() -> None:
    """Limit numeric libraries to one thread, in this process and its children, unless the user's
    environment sets the number. Libraries that are already in use do not change.
    """
    for library in (POLARS_THREADS, "OPENBLAS_NUM_THREADS"):
        _set_threads(library, 1)


def _set_threads(library: str, count: int) -> None:
    """Set the number of threads of a library, unless its environment variable was set before this
    process set it.
    """
    if library in _CHOSEN or library not in os.environ:
        _CHOSEN.add(library)
        os.environ[library] = str(count)


def return_large_blocks() -> None:
    """Let this process return freed blocks of at least RETURNED_BYTES to the system immediately, and
    what it has kept until now.
    """
    _set_malloc((_MMAP_THRESHOLD, RETURNED_BYTES), (_TRIM_THRESHOLD, RETURNED_BYTES))
    _SMALL_HEAP["bytes"] = 0
    return_freed_memory()


def _set_malloc(*settings: tuple[int, int]) -> None:
    with suppress(AttributeError, OSError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in settings:
            mallopt(parameter, value)


class _Heap(ctypes.Structure):
    """Amounts of memory that glibc's mallinfo2(3) returns."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks"),
            *("fordblks", "keepcost"),
        )
    )


def return_freed_memory() -> None:
    """Return freed memory to the system if there is much, also heap blocks that are too small for larger
    allocations.
    """
    with suppress(AttributeError, OSError, TypeError):
        library = ctypes.CDLL(None)
        measure = getattr(library, "mallinfo2", None)
        if measure is not None:
            measure.restype = _Heap
            heap = measure()
            if heap.fordblks < FREED_BYTES or heap.arena < _SMALL_HEAP["bytes"]:
                return
        library.malloc_trim(0)


def check_address_space() -> None:
    """Raise Nsys2prvError if the limit on address space leaves too little for importing the
    libraries, or if they would crash soon after.
    """
    limit = find_limit("RLIMIT_AS")
    if limit is not None and limit < NEEDED_BYTES:
        raise Nsys2prvError(
            f"out of memory: processes may have {limit >> 20} MB of address space (ulimit -v), but {NEEDED_BYTES >> 20} MB "
            "are needed"
        )


def find_limit(name: str) -> int | None:
    """Return a resource limit of this process, such as RLIMIT_AS (bytes) or RLIMIT_NOFILE; None if
    there is none.
    """
    try:
        import resource
    except ImportError:  # not on every system
        return None
    limit = resource.getrlimit(getattr(resource, name))[0]
    return None if limit == resource.RLIM_INFINITY else limit


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """In a `with` block that imports modules, pause garbage collection. Then exclude from it all
    objects that exist, and collect rarely.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        collect_garbage_seldom()
        if collecting:
            gc.enable()


def collect_garbage_seldom() -> None:
    """Exclude existing objects (imports, results of many tasks) from garbage collection, so that
    they are not scanned repeatedly.
    """
    gc.set_threshold(100_000)
