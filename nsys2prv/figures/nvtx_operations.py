"""Sum NVTX ranges by name: calls, host time, and the GPU time of the work launched inside, as a
tree and by rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import polars as pl

from nsys2prv._util.columns import DURATION, factorize, factorize_together
from nsys2prv._util.intervals import (
    find_parents,
    find_points_within,
    order_ranges,
    split_ranges,
)
from nsys2prv._util.text import format_count
from nsys2prv.figures.device_group import (
    COMMUNICATING,
    CONVOLUTION,
    GEMM,
    MEMORY,
    TENSOR_NO,
    TENSOR_YES,
    WORK,
    Collected,
    DeviceGroup,
    Frames,
    to_arrays,
)
from nsys2prv.figures.result import Context, Result, divide_columns
from nsys2prv.table.event_reader import RANGES

#: Row (a number for each thread and sort of ranges), begin, end, group of the name of some ranges.
Ranges = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
#: Text that frameworks append to an operation's name (PyTorch's emit_nvtx).
TAIL = r",\s*(?:op_id|seq|sizes|input_op_ids|stashed seq|fwd_op_id)\b.*$"
NUMBER = r"\d+"
#: Largest number of names that differ only in numbers and stay separate: layers do, steps of a long run
#: do not.
MOST_APART = 64
IS_KERNEL, KIND, TENSOR = pl.col("what") != MEMORY, pl.col("class"), pl.col("tensor")


def _time_if(condition: pl.Expr) -> pl.Expr:
    return pl.when(condition).then(DURATION).otherwise(0)


#: Sums over the work of a range -> the value of each operation.
SUMS = {
    "gpu_ns": DURATION,
    "kernels": IS_KERNEL.cast(pl.Int64),
    "nccl_ns": _time_if(pl.col("what").is_in(COMMUNICATING)),
    "memory_ns": _time_if(~IS_KERNEL),
    "gemm_ns": _time_if(IS_KERNEL & (KIND == GEMM)),
    "gemm_tensor_ns": _time_if(IS_KERNEL & (KIND == GEMM) & (TENSOR == TENSOR_YES)),
    "gemm_without_ns": _time_if(
        IS_KERNEL & KIND.is_in((GEMM, CONVOLUTION)) & (TENSOR == TENSOR_NO)
    ),
}
#: Between the names of a path.
BETWEEN = " / "
#: Greatest depth at which paths of nested ranges are distinguished.
DEEPEST = 12
#: Larger sums of times are from damaged reports.
GREATEST_SUM = 1 << 62


def fold_labels(labels: pl.DataFrame) -> pl.DataFrame:
    """Group NVTX names: if many differ only in numbers, they are one group. Return for each name
    (`value`) its `group` (a number from 0) and `operation` (the name of the group). labels: value
    and label.
    """
    names = labels.with_columns(base=pl.col("label").str.replace(TAIL, ""))
    names = names.with_columns(pattern=pl.col("base").str.replace_all(NUMBER, "*"))
    apart = pl.col("base").n_unique().over("pattern") <= MOST_APART
    names = names.with_columns(operation=pl.when(apart).then("base").otherwise("pattern"))
    number = pl.col("operation").rank("dense").cast(pl.Int32) - 1
    return names.select("value", number.alias("group"), "operation")


def make_value_table(names: pl.DataFrame, *columns: str) -> np.ndarray:
    """Turn columns about names into a table that is indexed by the value of the name (int32, shape
    (columns, values)), with -1 for values without a name. names: with `value`, from
    :func:`fold_labels`.
    """
    values = names["value"].to_numpy()
    table = np.full((len(columns), int(values.max(initial=-1)) + 1), -1, np.int32)
    table[:, values] = names.select(pl.col(columns).cast(pl.Int32)).to_numpy().T
    return table


def collect(unit: DeviceGroup) -> Collected:
    """Yield the sums of NVTX ranges by task and name (`names`), and by path of names (`tree`)."""
    columns = ("sender", "sent", "thread", "begin", "end", "what", "class", "tensor")
    work = unit.list_launched_work(columns)
    # Launches are nearly in order, which numpy's sort uses.
    work = work[np.lexsort(to_arrays(work, "sent", "sender"))]
    captured = list_captured_work(unit, work.schema)
    names = []
    for ranges in _list_ranges(unit, captured):
        of_names, tree = _sum_ranges(unit, work, captured, ranges)
        names.append(of_names)
        yield "tree", tree
    sums = pl.concat(names).group_by("task", "group").agg(pl.all().sum())
    yield "names", sums.sort("task", "group")
    uncaptured = unit.reader.count_nodes(unit.number) - captured.height
    yield "uncaptured", pl.DataFrame({"count": [uncaptured]})


def list_captured_work(unit: DeviceGroup, schema: pl.Schema) -> pl.DataFrame:
    """Return the work of replayed CUDA graphs as if it were launched when it was captured: with the
    capturing thread as `sender` and the capture time as `sent`. schema: of the columns.
    """
    if not unit.reader.captures:
        return schema.to_frame()
    replayed = unit.reader.read_replays(unit.number)
    replayed = replayed.rename({"captor": "sender", "captured": "sent"})
    replayed = unit.work.cast({"thread": pl.Int64}).join(replayed, on=("thread", "begin"))
    return replayed.select(*schema).cast(schema).sort("sender", "sent", maintain_order=True)


def _sum_ranges(
    unit: DeviceGroup, work: pl.DataFrame, captured: pl.DataFrame, ranges: Ranges
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Sum ranges by task and name, and by path of names. ranges: from :func:`_list_ranges`. work:
    sorted by launching thread and launch time. captured: work of replayed graphs, sorted by
    capturing thread.

    Replayed work counts in the ranges that were open when it was captured. In ranges whose names
    also occur around graph launches, such as an iteration, it counts by launch.
    """
    row, begin, end, group = ranges
    thread = unit.reader.rows.main_rows[row // len(RANGES)]
    _, parent = find_parents(row, begin, end)
    # Names without a group have -1.
    path, places = number_paths(group + 1, parent, np.arange(len(row)), DEEPEST)
    # Of single ranges, only the sums over those with the same name and path are needed.
    task = unit.task_of[thread].astype(np.int64)
    (task_of, group_of, path_of), alike = factorize_together(task, group.astype(np.int64), path)
    (tasks, groups), name_of = factorize_together(task_of, group_of)
    names, tree = {"task": tasks, "group": groups}, {"place": places}

    def add(column: str, sums: np.ndarray) -> None:
        names[column] = _sum_groups(name_of, sums, len(tasks))
        tree[column] = _sum_groups(path_of, sums, len(places))

    def prepare(
        rows: np.ndarray, around: np.ndarray
    ) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
        """Return a function that sums values of ranges, and these without those of the ranges
        within. rows: the ranges with a value. around: of all, the range around it.
        """
        inner = np.flatnonzero(around[rows] >= 0)
        own, outer, count = alike[rows], alike[around[rows[inner]]], len(path_of)

        def sum_up(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            whole = np.bincount(own, values, count)
            return whole, whole - np.bincount(outer, values[inner], count)

        return sum_up

    # Before a part of a job there are ranges for the work that was captured in them alone.
    called = np.flatnonzero(begin >= unit.reader.begin)
    lasts = (end - begin)[called]
    add("calls", np.bincount(alike[called], minlength=len(path_of)))
    for column, sums in zip(
        ("host_ns", "host_exclusive_ns"), prepare(called, parent)(lasts), strict=True
    ):
        add(column, sums)
    spans = thread, begin, end
    rows, sums_of = _sum_within(work, *spans)
    sum_up = prepare(rows, parent)
    found = {name: sum_up(values) for name, values in sums_of}
    whole, exclusive = ({name: sums[at] for name, sums in found.items()} for at in range(2))
    if captured.height:
        apart = unit.number_apart(thread, group)
        is_captor, counted = _choose_captors(work, captured, apart, *spans)
        others = work.join(counted, on=("thread", "begin"), how="anti", maintain_order="left")
        rows, sums_of = _sum_within(others, *spans)
        sum_up = prepare(rows, parent)
        exclusive = {name: sum_up(values)[1] for name, values in sums_of}
        rows, sums_of = _sum_within(captured, *spans)
        own = is_captor[rows]
        captor = np.where((parent >= 0) & is_captor[parent], parent, -1)
        sum_up = prepare(rows[own], captor)
        for name, values in sums_of:
            more = sum_up(values[own])
            whole[name] = whole[name] + more[0]
            exclusive[name] = exclusive[name] + more[1]
    for name in SUMS:
        add(name, whole[name])
        add(f"{name}_exclusive", exclusive[name])
    # The first path is that of no range.
    return pl.DataFrame(names), pl.DataFrame(tree)[1:]


def _choose_captors(
    work: pl.DataFrame,
    captured: pl.DataFrame,
    group: np.ndarray,
    thread: np.ndarray,
    begin: np.ndarray,
    end: np.ndarray,
) -> tuple[np.ndarray, pl.DataFrame]:
    """Return a mask of the ranges in which replayed work counts by its capture, and that work.
    group: of the names of ranges.
    """
    replays = work.join(captured, on=("thread", "begin"), how="semi", maintain_order="left")
    since, until = find_points_within(thread, begin, end, *to_arrays(replays, "sender", "sent"))
    replaying = np.unique(group[until > since])
    since, until = find_points_within(thread, begin, end, *to_arrays(captured, "sender", "sent"))
    is_captor = (until > since) & ~np.isin(group, replaying)
    steps = np.zeros(captured.height + 1, np.int64)
    np.add.at(steps, since[is_captor], 1)
    np.subtract.at(steps, until[is_captor], 1)
    return is_captor, captured.filter(pl.Series(np.cumsum(steps)[:-1] > 0))


def _sum_within(
    work: pl.DataFrame, thread: np.ndarray, begin: np.ndarray, end: np.ndarray
) -> tuple[np.ndarray, Iterator[tuple[str, np.ndarray]]]:
    """Find the ranges within which work was sent. Return them, and for each of SUMS its name and
    the sums of their work. work: sorted by thread and time.
    """
    since, until = find_points_within(thread, begin, end, *to_arrays(work, "sender", "sent"))
    rows = np.flatnonzero(until > since)
    since, until = since[rows], until[rows]
    least = int(since.min(initial=work.height))
    inside = work[least : max(int(until.max(initial=0)), least)]

    def sum_up(value: pl.Expr) -> np.ndarray:
        before = np.concatenate([[0], np.cumsum(inside.select(value).to_series().to_numpy())])
        return before[until - least] - before[since - least]

    return rows, ((name, sum_up(value)) for name, value in SUMS.items())


def _sum_groups(groups: np.ndarray, values: np.ndarray, count: int) -> np.ndarray:
    """Return the sum of values in each group, limited to the range of int64 in case of damaged
    times.
    """
    return np.bincount(groups, values, count).clip(-GREATEST_SUM, GREATEST_SUM).astype(np.int64)


def _list_ranges(unit: DeviceGroup, captured: pl.DataFrame) -> Iterator[Ranges]:
    """Yield ranges sorted by row and start, longer ranges first, in batches of whole nests. From
    before a part of a job, only ranges in which work was captured are included. NCCL's ranges are
    not operations of the program.
    """
    rows = pl.col("thread") * len(RANGES)
    kinds = (read_ranges(unit, captured, layout, ("range",), np.int32) for layout in RANGES)
    ranges = pl.concat(one.with_columns(thread=rows + at) for at, one in enumerate(kinds))
    row, begin, end, name = to_arrays(ranges, "thread", "begin", "end", "range")
    order = order_ranges(begin, end, row).astype(np.int32)
    row, begin, end = row[order], begin[order], end[order]
    for part in split_ranges(row, begin, end):
        yield row[part], begin[part], end[part], unit.options.find_groups(name[order[part]])


def read_ranges(
    unit: DeviceGroup,
    captured: pl.DataFrame,
    layout: str,
    fields: Sequence[str],
    dtype: type[np.signedinteger] = np.int64,
    wanted: Callable[[Mapping[str, np.ndarray]], np.ndarray] | None = None,
) -> pl.DataFrame:
    """Return the ranges of a layout, as :meth:`EventReader.read_begins` does, and ranges before a
    part of a job in which work was captured. captured: from :func:`list_captured_work`. wanted:
    function that selects ranges.
    """
    ranges = unit.reader.read_begins(layout, fields, unit.number, wanted, dtype)
    if not unit.reader.whole or not captured.height:
        return ranges
    at = captured.select("sender", "sent").unique().sort("sender", "sent")
    main, first = unit.reader.rows.main_rows, unit.reader.begin

    def keep(columns: Mapping[str, np.ndarray]) -> np.ndarray:
        thread, begin, end = (columns[name] for name in ("thread", "begin", "end"))
        order, holds = np.argsort(main[thread], kind="stable"), np.zeros(len(thread), bool)
        sides = main[thread][order], begin[order], end[order]
        since, until = find_points_within(*sides, *to_arrays(at, "sender", "sent"))
        holds[order] = until > since
        if wanted:
            holds &= wanted(columns)
        return holds & (thread >= 0) & (begin < first)

    earlier = unit.reader.whole.read_begins(layout, fields, unit.number, keep, dtype)
    return pl.concat([ranges, earlier.with_columns(pl.col("end").clip(None, first))])


def number_paths(
    part: np.ndarray, up: np.ndarray, rows: np.ndarray, deepest: int
) -> tuple[np.ndarray, list[str]]:
    """Return the path number of each range (-1 for ranges not in `rows`), and the paths by number.

    A path joins its parts from the outermost, each after a comma; path 0 is empty. Ranges deeper
    than `deepest` have the path of the enclosing range. part: of each range (at least 0). up: index
    in `rows` of the enclosing range, or -1.
    """
    path, texts = np.full(len(part), -1), [""]
    size = int(part.max(initial=0)) + 1
    for _ in range(deepest):
        above = np.where(up[rows] < 0, 0, path[up[rows]])
        ready = above >= 0
        keys, codes = factorize(above[ready] * size + part[rows[ready]])
        path[rows[ready]] = len(texts) + codes
        texts += [f"{texts[key // size]},{key % size}" for key in keys.tolist()]
        rows = rows[~ready]
        if not len(rows):
            break
    while (path[rows] < 0).any():
        path[rows] = path[up[rows]]
    return path, texts


def conclude(frames: Frames, context: Context, result: Result) -> None:
    """Add tables of operations (NVTX ranges), as a tree and by rank, to the result."""
    texts = context.folded.select(pl.col("group").cast(pl.Int64), "operation").unique("group")
    names = frames["names"].join(texts, on="group", how="left")
    sums = pl.exclude("group", "task", "operation").sum()
    has_work = bool(context.reader.layouts & set(WORK))
    whole = names.group_by("operation", maintain_order=True).agg(
        sums, ranks=pl.col("task").n_unique().cast(pl.Int64)
    )
    operations = _compute_figures(whole, ["operation", "ranks"], has_work)
    result.add("operations", operations)
    tree = _compute_figures(_merge_trees(frames["tree"], texts), ["path", "depth"], has_work)
    # In the order of a tree, whatever characters are in names.
    path = pl.col("path").str.replace_all("\0", BETWEEN, literal=True)
    result.add("tree", tree.sort("path").with_columns(path))
    per_rank = names.group_by("operation", "task", maintain_order=True).agg(sums)
    by_rank = context.label_tasks(_compute_figures(per_rank, ["task", "operation"], has_work))
    result.add("by_rank", by_rank)
    uncaptured = frames["uncaptured"]["count"].sum()
    if uncaptured > 0:
        result.missing.append(
            f"NVTX ranges of CUDA graph captures: the reports lack the capture of {format_count(uncaptured, 'operation')} "
            "(start profiling before it)"
        )
    if has_work and not context.reader.layouts & {"launch", "memory"}:
        absent = context.explain_absence(("cuda_api",))
        result.missing.append(
            f"GPU time of operations: {absent}, or its calls launched no GPU work"
        )


def _compute_figures(rows: pl.DataFrame, keys: list[str], has_work: bool) -> pl.DataFrame:
    """Return statistics of operations, the longest first; with GPU columns if there is GPU work."""
    of_gpus = (
        "gpu_ns",
        pl.col("gpu_ns_exclusive").alias("gpu_exclusive_ns"),
        "kernels",
        "nccl_ns",
        "memory_ns",
        "gemm_ns",
        divide_columns("gemm_tensor_ns", "gemm_ns").alias("tensor_core_share"),
        pl.col("gemm_without_ns").alias("gemm_without_tensor_cores_ns"),
    )
    ordered = rows.sort("gpu_ns", "host_ns", descending=True, maintain_order=True)
    shown = [*keys, "calls", "host_ns", "host_exclusive_ns"]
    return ordered.select(*shown, *(of_gpus if has_work else ()))


def _merge_trees(tree: pl.DataFrame, texts: pl.DataFrame) -> pl.DataFrame:
    """Return the sums over the trees of all units by `path` (names from the outermost, separated by
    null characters), and their `depth`.
    """
    names = {group + 1: name for group, name in texts.rows()}
    merged = tree.group_by("place", maintain_order=True).agg(pl.all().sum())
    groups = [[int(one) for one in place.split(",")[1:]] for place in merged["place"]]
    paths = ["\0".join(names.get(one, "") for one in path) for path in groups]
    depths = [len(path) - 1 for path in groups]
    return merged.with_columns(
        path=pl.Series(paths, dtype=pl.String), depth=pl.Series(depths, dtype=pl.Int64)
    )
