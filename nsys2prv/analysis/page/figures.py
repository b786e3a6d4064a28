"""The figures of the page: where the time of devices went, why they idle, durations of kernels,
sampled metrics, stragglers, the critical path; iterations, which differ from the others and whether
they drift; operations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl

from nsys2prv._util.text import make_natural_key
from nsys2prv.analysis.page.parts import (
    MOST_ROWS,
    Block,
    Grid,
    HeatMap,
    Items,
    Lines,
    Material,
    Spread,
    Stacked,
)

#: Colour-blind safe.
COMPUTE, OVERLAPPED, NCCL, MEMORY = "#0072B2", "#56B4E9", "#D55E00", "#E69F00"
#: What hosts do while devices are idle: colours, names.
IDLE = {
    "mpi_ns": ("#CC79A7", "idle: host in MPI"),
    "nccl_ns": ("#8C564B", "idle: host in NCCL"),
    "io_ns": ("#009E73", "idle: host in I/O"),
    "synchronisation_ns": ("#F0E442", "idle: host waits for it"),
    "launch_ns": ("#7F7FBF", "idle: host in CUDA calls"),
    "unknown_ns": ("#999999", "idle: cause unknown"),
}
#: Shown open, in this order; others are folded away.
FIRST = (
    "SMs Active [Throughput %]",
    "Tensor Active [Throughput %]",
    "DRAM Read Bandwidth [Throughput %]",
    "DRAM Write Bandwidth [Throughput %]",
    "IB: Bytes sent [bytes/ms]",
    "IB: Bytes received [bytes/ms]",
)
#: Maps on a page.
MOST_MAPS = 48
#: Ranks in figures of ranks.
MOST_SHOWN = 30
#: What the host threads of late ranks did, each on its own (they may be at the same time): colours
#: and names.
HOSTS = {
    "host_mpi_ns": ("#CC79A7", "host in MPI"),
    "host_nccl_ns": ("#8C564B", "host in NCCL"),
    "host_io_ns": ("#009E73", "host in I/O"),
    "host_synchronisation_ns": ("#F0E442", "host waits for the device"),
    "host_launch_ns": ("#7F7FBF", "host in CUDA calls"),
}
#: What the critical path does on a rank: colours and names.
ON_PATH = {
    "kernels_ns": ("#0072B2", "kernels"),
    "nccl_ns": ("#D55E00", "NCCL, after the last rank came"),
    "memory_ns": ("#009E73", "memory operations"),
    "other_ns": ("#999999", "no device works: launches, calls, hosts"),
}
#: An outlier's distance from the median in scaled median absolute deviations, and as a fraction of
#: the median.
FAR, LEAST_FAR = 3.5, 0.05
#: A trend is told from so many iterations on, from this z of Mann and Kendall's test on, and from
#: this change over all iterations on.
LEAST_COUNT, LEAST_Z, LEAST_DRIFT = 8, 3.0, 0.05
#: Iterations of which slopes are taken between all pairs; of more, every so many.
MOST_SLOPES = 500
RULE = f"Circled: more than {FAR:g} scaled median absolute deviations and {LEAST_FAR:.0%} of the median away from the median."
#: Curves of efficiencies by iteration: names, columns.
CURVES = {
    "parallel": "parallel_efficiency",
    "load balance": "load_balance_efficiency",
    "communication": "communication_efficiency",
    "orchestration": "orchestration_efficiency",
}
#: Between the names of a path of operations.
BETWEEN = " / "
#: Operations in the picture of ranks.
MOST_OPERATIONS = 40


def divide_elapsed_time(material: Material) -> Iterator[Block]:
    """Divide the time of each device."""
    devices, overlap = (
        material.find_frame("efficiencies.devices"),
        material.find_frame("overlap.devices"),
    )
    if devices is None:
        return
    elapsed = int(str(material.job.get("covered_ns", material.duration))) or 1
    overlapped = nccl = np.zeros(devices.height, np.int64)
    if overlap is not None:
        own = devices.select("device").join(overlap, on="device", how="left", maintain_order="left")
        overlapped, nccl = (
            own[name].fill_null(0).to_numpy() for name in ("overlapped_ns", "nccl_exposed_ns")
        )
    parts = {
        "computing": (COMPUTE, devices["compute_ns"].to_numpy() - overlapped),
        "computing and communicating": (OVERLAPPED, overlapped),
        "communication alone": (NCCL, nccl),
        "copies alone": (MEMORY, devices["exposed_ns"].to_numpy() - nccl),
    }
    gaps = material.find_frame("idle.gaps_of_devices")
    if gaps is not None:
        sums = gaps.group_by("device").agg(pl.col(*IDLE).sum())
        causes = devices.select("device").join(sums, on="device", how="left", maintain_order="left")
        parts |= _color_columns(causes.fill_null(0), IDLE)
    else:
        parts["idle"] = (IDLE["unknown_ns"][0], elapsed - devices["active_ns"].to_numpy())
    yield Stacked(
        "Each device's elapsed time",
        devices["device"].to_list(),
        {
            name: (colour, values / elapsed)
            for name, (colour, values) in parts.items()
            if np.any(values)
        },
        "% of the elapsed time",
        note="Copies are all memory operations; alone means while the device computes nothing.",
    )


def map_use(material: Material) -> Iterator[Block]:
    """Show how devices are used over time."""
    use = material.find_frame("metrics.use")
    for column, activity in (
        ("compute_share", "computing"),
        ("nccl_share", "communicating"),
        ("active_share", "doing any work"),
    ):
        if use is not None and use[column].max():
            title, folded = f"Devices {activity} over time", column == "active_share"
            percent = use.select("device", "bin", pl.col(column) * 100)
            yield _map_over_time(material, title, percent, column, "device", "% of a bin", folded)


def _color_columns(
    frame: pl.DataFrame, named: Mapping[str, tuple[str, str]]
) -> dict[str, tuple[str, np.ndarray]]:
    """Return the columns that are not all 0 as parts of a whole. named: column -> colour, name."""
    return {
        name: (colour, frame[column].to_numpy())
        for column, (colour, name) in named.items()
        if frame[column].sum()
    }


def number_labels(labels: pl.Series, order: list[str]) -> np.ndarray:
    """Return the place of each label in an order that has all of them."""
    return labels.replace_strict(order, range(len(order)), return_dtype=pl.Int64).to_numpy()


def pivot_grid(
    frame: pl.DataFrame, column: str, row: str = "device", across: str = "bin"
) -> tuple[list[str], np.ndarray]:
    """Return labels of rows, and (rows, bins) of a column, NaN where there is none."""
    labels = frame[row].unique(maintain_order=True).to_list()
    values = np.full((len(labels), int(frame[across].max()) + 1), np.nan)
    at = number_labels(frame[row], labels), frame[across].to_numpy()
    values[at] = frame[column].cast(pl.Float64).to_numpy()
    return labels, values


def _map_over_time(
    material: Material,
    title: str,
    frame: pl.DataFrame,
    column: str,
    row: str,
    unit: str,
    folded: bool,
) -> HeatMap:
    """Show a column of a frame over time, a row for each value of `row`. unit: what is counted; of
    percentages 100 has the brightest colour.
    """
    labels, values = pivot_grid(frame, column, row)
    time = 0, material.duration / 1e9
    high = 100 if unit.startswith("%") else None
    return HeatMap(title, labels, values, time, "time (s)", unit, high=high, folded=folded)


def divide_gaps(material: Material) -> Iterator[Block]:
    """Divide idle time by the length of gaps."""
    gaps = material.find_frame("idle.gaps")
    if gaps is None or not gaps["time_ns"].sum():
        return
    # Of what all devices could have done.
    whole = gaps["elapsed_share"].to_numpy() / np.maximum(gaps["time_ns"].to_numpy(), 1)
    parts = {
        name.removeprefix("idle: "): (colour, values * whole)
        for name, (colour, values) in _color_columns(gaps, IDLE).items()
    }
    yield Stacked(
        "Idle time by gap length, and what the host did",
        gaps["length"].to_list(),
        parts,
        "% of the elapsed time of all devices",
    )


def spread_kernel_durations(material: Material) -> Iterator[Block]:
    """Show how long the executions of kernels take."""
    durations, kernels = (
        material.find_frame("kernels.durations"),
        material.find_frame("kernels.kernels"),
    )
    if durations is None or kernels is None:
        return
    rows = durations["row"].unique().sort().to_list()
    bins = durations.group_by("row").len()["len"].max()
    edges, counts = np.zeros((len(rows), bins + 1)), np.zeros((len(rows), bins))
    for at, row in enumerate(rows):
        own_rows = durations.filter(pl.col("row") == row)
        # A single duration is a bin of some width, to be seen.
        low, high = max(own_rows["low_ns"][0], 1), max(own_rows["high_ns"][-1], 1)
        alone = own_rows.height == 1
        edges[at] = (
            np.linspace(low / 1.01, high * 1.01, bins + 1)
            if alone
            else np.append(own_rows["low_ns"], high)
        )
        counts[at] = 1 if alone else own_rows["count"]
    two = material.find_frame("kernels.two_modes")
    of_two = [] if two is None else two.select("kernel", "low_ns", "high_ns").rows()
    modes_of_kernel = {kernel: (low, high) for kernel, low, high in of_two}
    shown = kernels[rows]
    labels = shown["kernel"].to_list()
    yield Spread(
        "Durations of the kernels that take the most time",
        labels,
        edges,
        counts,
        shown["median_ns"].cast(pl.Float64).to_numpy(),
        [modes_of_kernel.get(label) for label in labels],
    )


def map_metrics(material: Material) -> Iterator[Block]:
    """Show sampled metrics over time, and name those that are not shown."""
    maps = material.find_frame("metrics.map")
    if maps is None:
        return
    greatest = dict(maps.group_by("metric", maintain_order=True).agg(pl.col("mean").max()).rows())
    silent = [name for name, most in greatest.items() if not most]
    telling = sorted(set(greatest) - set(silent))
    order = [name for name in FIRST if name in telling]
    order += [name for name in telling if name not in FIRST]
    maps = maps.with_columns(label=pl.format("{} {}", "node", "device"))
    parts = maps.partition_by("metric", as_dict=True)
    for name in order[:MOST_MAPS]:
        unit = "%" if "%" in name else _find_unit(name)
        folded = name not in FIRST
        yield _map_over_time(material, name, parts[(name,)], "mean", "label", unit, folded)
    notes = [f"0 all the time: {', '.join(silent)}"] if silent else []
    if left := order[MOST_MAPS:]:
        notes.append(f"not drawn, as there are more than {MOST_MAPS}: {', '.join(left)}")
    if notes:
        yield Items(notes)


def _find_unit(name: str) -> str:
    return name[name.rfind("[") + 1 : -1] if name.endswith("]") else "mean"


def compare_stragglers(material: Material) -> Iterator[Block]:
    """Show for which ranks the others wait."""
    ranking = material.find_frame("collectives.stragglers")
    if ranking is None or not ranking["others_waited_ns"].sum():
        return
    first = ranking.head(MOST_SHOWN)
    share = first["others_waited_ns"].to_numpy() / ranking["others_waited_ns"].sum()
    yield Stacked(
        "Which rank the others wait for",
        first["rank"].to_list(),
        {"time that others waited for this rank": ("#D55E00", share)},
        "% of all waits in matched collectives",
        note=_say_how_many(ranking),
    )


def _say_how_many(ranks: pl.DataFrame) -> str:
    """Return a note for a figure that does not show all ranks."""
    left_out = ranks.height > MOST_SHOWN
    return f"The first {MOST_SHOWN} of {ranks.height:,} ranks." if left_out else ""


def compare_late_hosts(material: Material) -> Iterator[Block]:
    """Show what late ranks did while the others waited."""
    doing = material.find_frame("collectives.meanwhile")
    if doing is None:
        return
    doing = doing.filter(doing["total_late_ns"] > 0).head(MOST_SHOWN)
    if not doing.height:
        return
    parts = _color_columns(doing.with_columns(pl.col(*HOSTS) / pl.col("total_late_ns")), HOSTS)
    rest = np.clip(1 - sum((values for _, values in parts.values()), np.zeros(doing.height)), 0, 1)
    parts["host elsewhere"] = ("#999999", rest)
    yield Stacked(
        "What the host threads of late ranks did while the others waited",
        doing["rank"].to_list(),
        parts,
        "% of the time that the rank was late",
        note="The table below says what their GPUs did, which may do several things at a time.",
        folded=doing.height < 2,
    )


def compare_path_of_ranks(material: Material) -> Iterator[Block]:
    """Show on which ranks the critical path is."""
    ranks = material.find_frame("critical_path.ranks")
    if ranks is None:
        return
    whole, first = ranks["time_ns"].sum(), ranks.head(MOST_SHOWN)
    yield Stacked(
        "On which ranks the critical path is",
        first["rank"].to_list(),
        {
            name: (colour, first[column].to_numpy() / whole)
            for column, (colour, name) in ON_PATH.items()
        },
        "% of the path",
        note=_say_how_many(ranks),
        folded=ranks.height < 2,
    )


def find_outliers(values: np.ndarray) -> list[int]:
    """Return the indices of the values that are far from the others; of fewer than 4 none is."""
    if len(values) < 4:
        return []
    middle = np.median(values)
    distance = np.abs(values - middle)
    spread = 1.4826 * np.median(distance)
    return np.flatnonzero((distance > FAR * spread) & (distance > LEAST_FAR * abs(middle))).tolist()


def estimate_drift(values: np.ndarray) -> float | None:
    """Return the change over all values as a fraction of their median (Theil and Sen's slope), None
    where it is none that counts.
    """
    if len(values) < LEAST_COUNT or not np.median(values):
        return None
    step = -(-len(values) // MOST_SLOPES)
    chosen = values[::step].astype(float)
    count = len(chosen)
    first, second = np.triu_indices(count, 1)
    rise = chosen[second] - chosen[first]
    score = np.sign(rise).sum()
    z = (abs(score) - 1) / np.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    change = (
        float(np.median(rise / (second - first)))
        * (len(values) - 1)
        / step
        / float(np.median(values))
    )
    return change if z >= LEAST_Z and abs(change) >= LEAST_DRIFT else None


def order_as_tree(tree: pl.DataFrame, most: int) -> tuple[pl.DataFrame, list[int]]:
    """Return the rows of `operations.tree` (path, depth, ...) in the order of a tree, `path` by its
    last name as `operation`, and their depths.

    Siblings are by GPU time, if there is any, then host time, greatest first; of more than `most` rows those of
    greatest time and what they lie in. A name may itself hold the separator, so what a path lies in
    is the longest path before one that is a level less deep.
    """
    paths, depths = tree["path"].to_list(), tree["depth"].to_list()
    level = dict(zip(paths, depths, strict=True))
    above = {path: _find_parent_path(path, level) for path in paths}
    times = [name for name in ("gpu_ns", "host_ns") if name in tree.columns]
    weight = dict(zip(paths, tree.select(times).rows(), strict=True))
    heaviest = sorted(paths, key=weight.__getitem__, reverse=True)
    kept: set[str | None] = set()
    for path in heaviest:
        if len(kept) >= most:
            break
        up: str | None = path
        while up is not None and up not in kept:
            kept.add(up)
            up = above[up]
    within: dict[str | None, list[str]] = {}
    for path in heaviest:
        if path in kept:
            within.setdefault(above[path], []).append(path)
    ordered: list[tuple[str, int]] = []
    waiting = [(path, 0) for path in reversed(within.get(None, []))]
    while waiting:
        path, depth = waiting.pop()
        ordered.append((path, depth))
        waiting += [(inner, depth + 1) for inner in reversed(within.get(path, []))]
    row = {path: number for number, path in enumerate(paths)}
    names = [path[len(up) + len(BETWEEN) :] if (up := above[path]) else path for path, _ in ordered]
    frame = tree[[row[path] for path, _ in ordered]].select(
        pl.Series("operation", names, dtype=pl.String), pl.exclude("path", "depth")
    )
    return frame, [depth for _, depth in ordered]


def _find_parent_path(path: str, level: dict[str, int]) -> str | None:
    """Return the path that this one lies in."""
    end = path.rfind(BETWEEN) if level[path] else -1
    while end > 0:
        if level.get(path[:end], -1) == level[path] - 1:
            return path[:end]
        end = path.rfind(BETWEEN, 0, end)
    return None


def show_iterations(material: Material) -> Iterator[Block]:
    """Show the iterations that were asked for, or say how to ask for them."""
    rows = material.find_frame("efficiencies.iterations")
    if rows is None:
        if "efficiencies" in material.results:
            hint = 'efficiencies of iterations: give the name of an NVTX range, as in --iterations "step*"'
            yield Items([hint], "missing")
        return
    elapsed = rows["elapsed_ns"].to_numpy()
    efficiencies = {
        name: 100 * rows[column].cast(float).fill_null(float("nan")).to_numpy()
        for name, column in CURVES.items()
    }
    yield Lines(
        "Elapsed time and efficiencies by iteration",
        rows["iteration"].to_numpy(),
        "iteration",
        {"elapsed (ms)": {"elapsed": elapsed / 1e6}, "efficiency (%)": efficiencies},
        find_outliers(elapsed),
        RULE,
    )
    if trend := estimate_drift(elapsed):
        way = "longer" if trend > 0 else "shorter"
        drift = (
            f"Iterations get {way}: by {abs(trend):.1%} of their median from the first to the last."
        )
        yield Items([drift])
    if rows.height > 1:
        yield from _map_devices(material)
        yield from _map_classes(material, rows.height)
    yield from material.make_grid("efficiencies.over_iterations")
    yield from material.make_grid("efficiencies.iterations", folded=True)
    yield from material.make_grid("efficiencies.host_iterations", folded=True)


def _map_devices(material: Material) -> Iterator[Block]:
    """Show how useful each device is in each iteration."""
    devices = material.find_frame("efficiencies.iterations_of_devices")
    if devices is None:
        return
    by_number = devices.with_columns(at=devices["iteration"] - 1)
    labels, values = pivot_grid(by_number, "useful_share", across="at")
    yield HeatMap(
        "Useful share of each device in each iteration",
        labels,
        100 * values,
        (0.5, values.shape[1] + 0.5),
        "iteration",
        "% of the iteration",
        True,
        high=100,
    )


def _map_classes(material: Material, iterations: int) -> Iterator[Block]:
    """Show which classes of kernels make iterations longer or shorter."""
    times = material.find_frame("kernels.classes_by_iteration")
    if times is None:
        return
    sums = times.group_by("class", maintain_order=True).agg(pl.col("time_ns").sum())
    order = sums.sort("time_ns", descending=True)["class"].to_list()
    values = np.zeros((len(order), iterations))
    at = number_labels(times["class"], order), times["iteration"].to_numpy() - 1
    values[at] = times["time_ns"].to_numpy()
    yield HeatMap(
        "Kernel classes by iteration, most time first",
        order,
        100 * values / values.mean(axis=1, keepdims=True),
        (0.5, iterations + 0.5),
        "iteration",
        "time, % of the mean",
        True,
        low=None,
    )


def make_operation_tree(material: Material) -> Iterator[Block]:
    """Return the operations as a tree."""
    tree = material.find_frame("operations.tree")
    if tree is None:
        return
    frame, depths = order_as_tree(tree, MOST_ROWS)
    left = tree.height - frame.height
    note = f"{left:,} paths that take the least time are left out." if left else ""
    yield Grid("Operations as a tree", frame, "operations.tree", note, depths=depths)


def compare_operations_of_ranks(material: Material) -> Iterator[Block]:
    """Show where ranks differ: an operation's time on each rank relative to the mean over ranks."""
    by_rank, whole = (
        material.find_frame("operations.by_rank"),
        material.find_frame("operations.operations"),
    )
    if by_rank is None or whole is None or by_rank["rank"].n_unique() < 2:
        return
    has_work = "gpu_ns" in whole.columns and whole["gpu_ns"].sum()
    column = "gpu_ns" if has_work else "host_ns"
    ordered = whole.sort(column, descending=True, maintain_order=True).filter(pl.col(column) > 0)
    names = ordered["operation"].head(MOST_OPERATIONS).to_list()
    if not names:
        return
    ranks = by_rank["rank"].unique(maintain_order=True).to_list()
    ranks.sort(key=make_natural_key)
    chosen = by_rank.filter(pl.col("operation").is_in(names))
    values = np.zeros((len(names), len(ranks)))
    at = number_labels(chosen["operation"], names), number_labels(chosen["rank"], ranks)
    values[at] = chosen[column].to_numpy()
    processor = "GPU" if column == "gpu_ns" else "host"
    yield HeatMap(
        "How ranks differ in operations",
        names,
        100 * values / values.mean(axis=1, keepdims=True),
        (0, len(ranks)),
        f"rank, from {ranks[0]} to {ranks[-1]}",
        f"{processor} time, % of the mean",
        True,
        low=None,
        folded=True,
    )
