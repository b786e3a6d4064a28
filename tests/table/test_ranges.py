"""Compare slices of stored ranges with all ranges examined one by one."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from nsys2prv._util.columns import ABSENT, OPEN
from nsys2prv._util.stored_columns import save_object
from nsys2prv.clock.maps import ClockMap
from nsys2prv.events.catalogue import CALLERS, load_catalogue
from nsys2prv.table import range_index, runs
from nsys2prv.table.runs import RESOLVED, TRACE, Run, SpillReader, SpillWriter
from nsys2prv.table.slices import GlobalIds, IdTable, RangeSlice, read_slice
from nsys2prv.table.windows import GLOBAL_IDS, WindowReader, join_task

LAYOUT = load_catalogue().layouts["nvtx_pushpop"]
KERNELS = load_catalogue().layouts["cuda_kernel"]
STATES = load_catalogue().layouts["thread_state"]
LENGTH = 5_000
CLOCKS = [ClockMap(1000), ClockMap(70, -3e-4, 1_345), ClockMap(90, 2e-3, 400), ClockMap()]

Columns = dict[str, np.ndarray]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "BLOCK_ROWS", 8)
    monkeypatch.setattr(range_index, "LATE_ROWS", 20)


def _make_ids(duration: int = 10_000) -> GlobalIds:
    """Return numbers of three tasks, of which each has its own."""
    random = np.random.default_rng(5)
    objects, domains, names = (
        IdTable.from_columns([random.integers(1, 1000, 50) for _ in range(3)]) for _ in range(3)
    )
    none = IdTable.from_columns([]), np.zeros((0, 0), np.int64)
    return GlobalIds(CLOCKS, duration, objects, domains, {"nvtx": names}, *none)


def _make_ranges(random: np.random.Generator, rows: int, open_share: float) -> Columns:
    """Return ranges by (begin, -end): most are short, some last long, and some are open."""
    begin = random.integers(0, LENGTH, rows)
    length = np.where(random.random(rows) < 0.9, random.integers(1, 9, rows), LENGTH // 2)
    end = np.where(random.random(rows) < open_share, OPEN, begin + length)
    order = np.lexsort((-end, begin))
    columns = {"begin": begin[order], "end": end[order], "row": random.integers(0, 50, rows)}
    columns |= {"domain": random.integers(0, 50, rows), "range": random.integers(0, 50, rows)}
    number = random.integers(-1, 1 << 40, rows)
    columns["number"] = np.where(random.random(rows) < 0.5, ABSENT, number)
    columns["own"] = np.full(rows, ABSENT)
    return columns


def _store(folder: Path, columns: Columns, report: int, task: int) -> Run:
    path = folder / f"ranges-{report}-{task}.bin"
    with SpillWriter(path, report, task) as writer:
        writer.append_ranges(LAYOUT, _make_ranges(np.random.default_rng(1), 9, 0))
        return writer.append_ranges(LAYOUT, columns)


def _list_expected(columns: Columns, ids: GlobalIds, report: int, task: int) -> list[tuple]:
    """Return begin, end, row, domain, name and number of all ranges, in the trace's terms."""
    clock, rows = ids.clocks[report], []
    tables = [one.get_table(task) for one in (ids.objects, ids.domains, ids.names["nvtx"])]
    if task == RESOLVED:
        tables = [np.arange(50)] * 3
    listed = (columns[name].tolist() for name in columns)
    for begin, end, *local, number, _ in zip(*listed, strict=True):
        first = int(clock.to_global(np.array([begin]))[0])
        last = OPEN if end == OPEN else int(clock.to_global(np.array([end]))[0])
        first -= clock.slack > 0 and last <= first and first > 0
        known = (int(one[index]) for one, index in zip(tables, local, strict=True))
        rows.append((first, last, *known, number))
    return rows


def _list_found(found: RangeSlice) -> list[tuple]:
    columns = [found.begin, found.end, found.column("row"), found.column("domain")]
    columns += [found.find_field("range"), found.find_field("number")]
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _is_inside(time: int, first: int, last: int | None) -> bool:
    return time >= first and (last is None or time < last)


@pytest.mark.parametrize("report", [0, 1, 2, TRACE])
@pytest.mark.parametrize("rows", [1, 7, 8, 9, 300])
@pytest.mark.parametrize("open_share", [0, 0.05])
def test_windows_have_what_begins_and_what_ends_there(
    tmp_path: Path, report: int, rows: int, open_share: float
) -> None:
    random = np.random.default_rng(rows + report)
    columns, ids = _make_ranges(random, rows, open_share), _make_ids()
    task = RESOLVED if report == TRACE else report
    run = pickle.loads(pickle.dumps(_store(tmp_path, columns, report, task)))
    every = _list_expected(columns, ids, report, task)
    bounds = [0, *sorted(random.integers(0, 8_000, 12).tolist()), None]
    with SpillReader() as reader:
        assert _list_found(read_slice(run, ids, reader)) == every
        for place, first in enumerate(bounds[:-1]):
            for last in bounds[place + 1 :]:
                begins = [row for row in every if _is_inside(row[0], first, last)]
                ends = [row for row in every if _is_inside(min(row[1], ids.duration), first, last)]
                found = read_slice(run, ids, reader, window=(first, last))
                listed = np.array(_list_found(found), object).reshape(-1, 6)
                assert listed[found.at_begin].tolist() == [list(row) for row in begins]
                assert listed[found.at_end].tolist() == [list(row) for row in ends]
                alone = read_slice(run, ids, reader, window=(first, last), ends=False)
                assert _list_found(alone) == begins


def test_ranges_are_split_by_their_fields(tmp_path: Path) -> None:
    """Check that kernels are written without numbers that are 0 or unknown, and only products with
    their use of Tensor Cores.
    """
    rows, random = 60, np.random.default_rng(7)
    columns: Columns = {"begin": np.arange(rows), "end": np.arange(rows) + 5}
    columns["row"] = np.zeros(rows, np.int64)
    for bit, field in enumerate(KERNELS.fields):
        if not field.level:
            least = 0 if not bit or (field.values is not None and not field.optional) else ABSENT
            columns[field.name] = random.integers(least, 6, rows)
    with SpillWriter(tmp_path / "kernels.bin", 0, 0) as writer, SpillReader() as reader:
        run = writer.append_ranges(KERNELS, columns)
        writer.file.flush()
        assert {name: column.tolist() for name, column in reader.read_local(run).items()} == {
            name: column.tolist() for name, column in columns.items()
        }
        found = read_slice(run, replace(_make_ids(), names={}), reader)
    masks = np.zeros(rows, np.int64)
    for alike in found.split():
        masks[alike.rows] = alike.mask
    for bit, field in enumerate(KERNELS.fields):
        if field.level:
            continue
        column = columns[field.name]
        assert found.find_field(field.name).tolist() == column.tolist()
        skips = bit and field.values is None and not field.optional
        written = column > 0 if skips else (column != ABSENT) | (not field.optional)
        if field.name == "tensor_cores":
            written = (columns["class"] >= 1) & (columns["class"] <= 3)
        assert (masks >> bit & 1).tolist() == written.astype(int).tolist(), field.name


def test_joined_ranges_are_those_of_all_pieces(tmp_path: Path) -> None:
    random, ids = np.random.default_rng(3), _make_ids()
    stored, every = [], []
    for report in range(3):
        columns = _make_ranges(random, 40, 0.1)
        if report == 1:
            columns["order"] = columns["end"]
            columns.pop("number")
            columns = {**columns, "number": np.full(40, ABSENT)}
        listed = {name: column for name, column in columns.items() if name != "order"}
        listed = {name: listed[name] for name in _make_ranges(random, 1, 0)}
        stored.append(_store(tmp_path, columns, report, report))
        every += _list_expected(listed, ids, report, report)
    save_object(ids, tmp_path / GLOBAL_IDS)
    [joined] = join_task((tmp_path, 0, [stored]))
    every.sort(key=lambda row: row[0])
    with SpillReader() as reader:
        found = read_slice(joined, ids, reader)
        assert _list_found(found) == every
        assert found.find_order().tolist() == found.end.tolist()
        late = read_slice(joined, ids, reader, window=(2_000, None))
    ends = late.until[late.at_end]
    assert sorted(ends.tolist()) == sorted(
        one for one in (min(row[1], ids.duration) for row in every) if one >= 2_000
    )


def test_states_cease_once_a_row_with_the_trace(tmp_path: Path) -> None:
    columns = {"begin": np.array([5, 6, 7, 7]), "row": np.array([3, 1, 3, 2])}
    columns |= {"end": columns["begin"] + 1, "state": np.ones(4, int), "cpu": np.zeros(4, int)}
    with SpillWriter(tmp_path / "states.bin", 0, 0) as writer:
        run = writer.append_ranges(STATES, columns)
    ids = _make_ids()
    with WindowReader([run], ids, ends=True) as reader:
        [first] = reader.read(0, 2_000).ranges
        [last] = reader.read(2_000, None).ranges
    assert (len(first), first.closings.size, len(last)) == (4, 0, 0)
    rows = ids.objects.get_table(0)[[1, 2, 3]].tolist()
    assert last.closings.tolist() == [[ids.duration] * 3, rows]
    assert not [*first.split(first.at_end), *last.split(last.at_begin)]


def test_callers_are_kept_where_any_row_has_some(tmp_path: Path) -> None:
    layout = load_catalogue().layouts["cuda_api"]
    columns = {"begin": np.arange(3), "end": np.arange(3) + 1, "row": np.zeros(3, int)}
    columns |= {field.name: np.ones(3, int) for field in layout.fields if not field.level}
    with SpillWriter(tmp_path / "calls.bin", 0, 0) as writer:
        without = writer.append_ranges(layout, columns)
        having = writer.append_ranges(layout, {**columns, CALLERS: np.array([0, 2, 1])})
    assert not without.index.always & layout.callers_mask
    assert having.index.always & layout.callers_mask == layout.callers_mask
