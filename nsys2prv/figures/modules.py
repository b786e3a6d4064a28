"""Sum GPU work by the modules that launched it, as a tree: model, block, attention, projection.

Modules are the NVTX push/pop ranges of frameworks and users: dotted names (hooks of vLLM, SGLang
and TensorRT-LLM, `torch.cuda.nvtx`), FSDP's ranges before and after a module's forward pass (the
module runs between them), XLA modules, and any other nested ranges. Ranges around whole models,
such as steps, are excluded. Numbers are removed from names, so that the layers of a model form one
branch; layers are compared with each other and across ranks.

Work belongs to the innermost range that was open when it was launched, or captured into a graph.
Operators (PyTorch's emit_nvtx) are the leaves of modules, and include everything that runs within
them. An operator of the backward pass has the sequence number of the operator whose gradient it
computes, and belongs to the module of that operator: the last one of its process with this number
before it. Operators that run forward within it recompute activations.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache, partial
from itertools import accumulate

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.columns import COUNT, factorize_together, find_edges, sum_by
from nsys2prv._util.intervals import Spans, find_innermost, find_parents, merge_spans, order_ranges
from nsys2prv.events.stacks import SEPARATOR
from nsys2prv.figures.device_group import MEMORY, Collected, DeviceGroup, Frames, to_arrays
from nsys2prv.figures.nvtx_operations import (
    BETWEEN,
    NUMBER,
    fold_labels,
    list_captured_work,
    number_paths,
    read_ranges,
)
from nsys2prv.figures.products import (
    RATES,
    list_product_work,
    rate_products,
    sum_products,
    sum_rates,
)
from nsys2prv.figures.result import Context, Result, divide_columns
from nsys2prv.figures.thresholds import MOST_PARTS
from nsys2prv.figures.time_division import lay_out_flames

#: Sorts of ranges: operators, those of the backward pass, modules by their whole name, other ranges; what
#: comes before and after a module.
OPERATOR, BACKWARD, MODULE, OTHER, BEFORE, AFTER = range(1, 7)
#: Maximum depth of distinct modules.
DEEPEST = 32
#: Ways to record modules.
_RECORDED_BY = (
    "PyTorch: torch.cuda.nvtx.range_push, emit_nvtx; vLLM: --enable-layerwise-nvtx-tracing; SGLang: "
    "--enable-layerwise-nvtx-marker; Megatron-LM: --profile --nvtx-ranges"
)
#: Passes of a model.
FORWARD, IN_BACKWARD, AGAIN = range(3)
_PASSES = {IN_BACKWARD: "backward_gpu_ns", AGAIN: "recomputed_gpu_ns"}
#: Names -> their sort, and the kept part, by the first pattern that matches.
_XLA = r"^(?:XlaModule:#(?:.*?,)?hlo_module=|Thunk:#(?:.*?,)?hlo_op=)([^,#]+?)(?:\.\d+)?[,#]"
_FSDP = r"^FSDP::(pre|post)_(?:forward|backward)\w* \(([^)]+)\)"
_OF_BACKWARD = r"^(?:autograd::engine::evaluate_function: )?(?<name>\w*Backward\d*)$|^autograd::engine::evaluate_function: (.*)$"
_OPERATORS = r"^\w+::|^nccl|^record_param_comms$"
_LIBRARY = r"^(?:megatron|nemo)\.core\."
_DOTTED = r"^[A-Za-z_]\w*(?:\.\w+)+$"
#: Words for the backward pass, in names of ranges that are of it.
_IN_BACKWARD = r"(?i)(?:^|[\W_])(?:backward|bwd)(?:$|[\W_])|^layer_\d+b$"
#: Words for passes at the end of a name, which are none of its parts.
_PASS = r"(?i)[ ._](?:forward|fwd|backward|bwd)$|^MFSDP "
_OF_LAYER = r"^(layer_\d+)[fb]$"
#: Names of repeated, similar parts of models, with their numbers.
_LAYERS = r"(?i)(?:^|_)(?:layers?|blocks?|h)\.\d+$"
#: Wrappers that FSDP and others put between a module and its parent.
_WRAPPER = r"\.(?:_\w*wrapped_module|_orig_mod|module)\b|^(?:module|_orig_mod)\."


def classify_names(labels: pl.DataFrame) -> pl.DataFrame:
    """Find out which NVTX names are modules or operators of a model. Return for each name (`value`,
    `label`) its `sort`, whether it is `backward`, its `text`, and its `part`, a number from 0 for
    each text.
    """
    label = pl.col("label")
    has_operators = labels["label"].str.starts_with("aten::").any()
    names = (
        fold_labels(labels)
        .join(labels, on="value", maintain_order="left")
        .with_columns(
            xla=label.str.extract(_XLA, 1),
            when=label.str.extract(_FSDP, 1),
            fsdp=label.str.extract(_FSDP, 2),
            node=pl.coalesce(
                label.str.extract(_OF_BACKWARD, 1), label.str.extract(_OF_BACKWARD, 2)
            ),
            bare=label.str.replace_all(_PASS, ""),
        )
    )
    # A function of the program has its name, and that of its backward pass the same before Backward.
    gradients = labels["label"].str.extract(r"^(\w+)Backward\d*$").drop_nulls()
    has_gradient = label.is_in(gradients.to_list())
    is_operator = has_gradient | label.str.contains(_OPERATORS)
    is_dotted = pl.col("bare").str.contains(_DOTTED) & ~label.str.contains(_LIBRARY + r"|\.py$")
    sort = (
        pl.when(pl.col("when") == "pre").then(BEFORE)
        .when(pl.col("when") == "post").then(AFTER)
        .when(pl.col("node").is_not_null() & has_operators).then(BACKWARD)
        .when(is_operator & has_operators).then(OPERATOR)
        .when(is_dotted).then(MODULE)
        .otherwise(OTHER)
    )  # fmt: skip
    # A name without its pass may be empty.
    other = pl.col("operation").str.replace(_LIBRARY, "").str.replace_all(_PASS, "")
    other = other.str.replace(_OF_LAYER, "$1")
    text = pl.coalesce(
        pl.col("fsdp").str.replace_all(_WRAPPER, ""),
        pl.when(sort == BACKWARD).then("node"),
        pl.when(sort == OPERATOR).then("label"),
        pl.when(sort == MODULE).then(pl.col("bare").str.replace_all(_WRAPPER, "")),
        "xla",
        pl.when(other != "").then(other),
        "operation",
    )
    is_backward = (sort == BACKWARD) | label.str.contains(_IN_BACKWARD)
    names = names.select("value", sort=sort, backward=is_backward, text=text)
    number = pl.col("text").rank("dense").cast(pl.Int64) - 1
    return names.with_columns(part=number)


# ---- ranges, and the work within them ------------------------------------------------------------


class Ranges(Struct, frozen=True):
    """The NVTX push/pop ranges of a unit, sorted by thread and start, longer ranges first, with
    their nesting.
    """

    thread: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    #: Of their names; numbers: of operators that of their gradient.
    sort: np.ndarray
    backward: np.ndarray
    part: np.ndarray
    #: The part, as a number of its unit.
    part_of_unit: np.ndarray
    number: np.ndarray
    #: The range around each, -1 for none; rows of each depth, the outermost first.
    parent: np.ndarray
    levels: Sequence[np.ndarray]

    def take_above(self, rows: np.ndarray, values: np.ndarray, default: int = -1) -> np.ndarray:
        """Return for each of some ranges the value of the range that encloses it. rows: indices of
        these ranges. values: of all ranges. default: for outermost ranges.
        """
        above = self.parent[rows]
        return np.where(above >= 0, values[above], default)

    def spread_up(self, values: np.ndarray) -> np.ndarray:
        """Return for each range the largest value (at least 0) of the range and the ranges within
        it.
        """
        found = values.copy()
        for rows in reversed(self.levels):
            rows = rows[(self.parent[rows] >= 0) & (found[rows] > 0)]
            np.maximum.at(found, self.parent[rows], found[rows])
        return found

    def find_innermost(self, thread: np.ndarray, time: np.ndarray) -> np.ndarray:
        """Find for each pair of thread and time the innermost range that is open then. Return its
        index, or -1.
        """
        return find_innermost((self.thread, self.begin, self.end), self.parent, thread, time)


class Places(Struct, frozen=True):
    """The module, operator and pass of the model to which each range belongs, as indices of ranges,
    or -1.
    """

    #: The module, the outermost operator within that, and the operator of the backward pass.
    module: np.ndarray
    operator: np.ndarray
    node: np.ndarray
    #: FORWARD, IN_BACKWARD or AGAIN.
    passes: np.ndarray


def _read_ranges(unit: DeviceGroup, captured: pl.DataFrame) -> Ranges:
    frame = read_ranges(unit, captured, "nvtx_pushpop", ("range", "number"))
    sort, backward, part = np.load(str(unit.options.modules), mmap_mode="r")[:, frame["range"]]
    thread = unit.reader.rows.main_rows[frame["thread"].to_numpy()]
    frame = frame.with_columns(
        thread=thread.astype(np.int32),
        sort=sort.astype(np.int8),
        backward=backward.astype(np.int8),
        part=part,
    )
    is_hook = pl.col("sort").is_in((BEFORE, AFTER))
    by = ("thread", "part", "backward")
    hooks = (
        frame.filter(is_hook)
        .sort(*by, "begin")
        .with_columns(next=pl.col("sort").shift(-1).over(by), end=pl.col("end").shift(-1).over(by))
        .filter(pl.col("sort") == BEFORE, pl.col("next") == AFTER)
        .with_columns(sort=pl.lit(MODULE, pl.Int8))
        .drop("next")
    )
    frame = pl.concat([frame.filter(~is_hook), hooks])
    frame = frame[order_ranges(*to_arrays(frame, "begin", "end", "thread"))]
    depth, parent = find_parents(*to_arrays(frame, "thread", "begin", "end"))
    # Small numbers are sorted in linear time.
    rows = np.argsort(depth.astype(np.min_scalar_type(depth.max(initial=0))), kind="stable")
    levels = np.split(rows, find_edges(depth[rows])[1:-1])
    names = ("begin", "end", "sort", "backward", "part")
    (thread, number), columns = to_arrays(frame, "thread", "number"), to_arrays(frame, *names)
    part_of_unit = unit.number_apart(thread, columns[-1])
    return Ranges(thread, *columns, part_of_unit, number, parent, levels)


def _find_modules(ranges: Ranges) -> np.ndarray:
    """Return a mask of the ranges that are modules. A range without a dotted name that contains
    ranges with dotted names is a step, or the whole model.
    """
    is_named = ranges.sort == MODULE
    is_other = ranges.sort == OTHER
    around = np.unique(ranges.part_of_unit[ranges.spread_up(is_named) & is_other])
    return is_named | (is_other & ~np.isin(ranges.part_of_unit, around))


def _find_modules_around(ranges: Ranges, is_module: np.ndarray, linked: np.ndarray) -> np.ndarray:
    """Return the module of each range: itself, the linked one, or that of the range around it, or
    -1. linked: module of the forward pass, for operators of the backward pass.
    """
    module = np.where(is_module, np.arange(len(is_module), dtype=np.int32), linked)
    for rows in ranges.levels:
        rows = rows[module[rows] < 0]
        module[rows] = ranges.take_above(rows, module)
    return module


def _place(ranges: Ranges, is_module: np.ndarray) -> Places:
    """Return the places of ranges in the tree, without links to the forward pass."""
    count = len(is_module)
    operator, node = np.full((2, count), -1, np.int32)
    passes = np.zeros(count, np.int8)
    is_backward = ranges.sort == BACKWARD
    backward_part = np.where(is_backward, ranges.part, -1)
    for rows in ranges.levels:
        of_operator, of_node, of_pass = (
            ranges.take_above(rows, one, default)
            for one, default in ((operator, -1), (node, -1), (passes, FORWARD))
        )
        # The function of an operator lies in what the engine makes of it, by the same name.
        around = ranges.take_above(rows, backward_part)
        is_node = is_backward[rows] & (around != ranges.part[rows])
        node[rows] = np.where(is_node, rows, of_node)
        first = is_node | ((ranges.sort[rows] == OPERATOR) & (of_operator < 0))
        within = np.where(first, rows, of_operator)
        operator[rows] = np.where(is_module[rows], -1, within)
        # Operators have a number if a gradient will be computed.
        is_forward = (ranges.sort[rows] == OPERATOR) & (ranges.number[rows] > 0)
        is_forward |= is_module[rows] & (ranges.backward[rows] == 0)
        again = (of_pass == AGAIN) | ((of_node >= 0) & is_forward)
        backward = (of_pass == IN_BACKWARD) | (ranges.backward[rows] > 0)
        passes[rows] = np.where(again, AGAIN, np.where(backward, IN_BACKWARD, FORWARD))
    module = _find_modules_around(ranges, is_module, np.full(count, -1, np.int32))
    return Places(module, operator, node, passes)


def _match_operators(
    ranges: Ranges, places: Places, of_thread: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return operators in the backward pass, and the operator in the forward pass of each. of_thread: for
    each range, the group of threads that share sequence numbers.
    """
    has_number = ranges.number > 0
    forward = np.flatnonzero(
        has_number & (ranges.sort == OPERATOR) & (places.passes != IN_BACKWARD)
    )
    backward = np.flatnonzero(has_number & (ranges.sort == BACKWARD))
    made, asked = (
        pl.DataFrame(
            {"of": of_thread[rows], "number": ranges.number[rows], "begin": ranges.begin[rows]}
        ).with_columns(row=rows).sort("begin")
        for rows in (forward, backward)
    )  # fmt: skip
    by = ["of", "number"]
    found = asked.join_asof(made, on="begin", by=by, check_sortedness=False).drop_nulls()
    rows, operators = to_arrays(found, "row", "row_right")
    return rows, operators


def _number_counters(ranges: Ranges, unit: DeviceGroup, work: pl.DataFrame) -> np.ndarray:
    """Return for each range the number of its group that shares sequence numbers: its process and,
    if several threads of the process have such operators, the GPU that its thread uses most.
    """
    task = unit.task_of[ranges.thread].astype(np.int64)
    counts = work.group_by("sender", "device").len().sort("len", "device")
    used = np.full(len(unit.task_of), -1)
    used[counts["sender"].to_numpy()] = counts["device"].to_numpy()
    counting = (ranges.number > 0) & (ranges.sort == OPERATOR)
    threads = np.unique(ranges.thread[counting])
    tasks, counted = np.unique(unit.task_of[threads], return_counts=True)
    several = np.isin(task, tasks[counted > 1])
    return factorize_together(task, np.where(several, used[ranges.thread], -1))[1]


def _number_paths(
    ranges: Ranges, is_module: np.ndarray, places: Places
) -> tuple[np.ndarray, list[str]]:
    """Return the path of each module (-1 for other ranges), and the paths: parts from the
    outermost, each after a comma.

    An outermost range of the backward pass, as on autograd's thread, has the path of the forward
    pass's ranges with the same name, if there is one.
    """
    up = ranges.take_above(np.arange(len(is_module)), places.module)
    # A dotted name is a whole path.
    up = np.where(ranges.sort == MODULE, -1, up)
    rows = np.flatnonzero(is_module)
    path, texts = number_paths(ranges.part, up, rows, DEEPEST)
    is_apart = is_module & (ranges.sort == OTHER) & (ranges.backward > 0) & (up < 0)
    is_forward = is_module & (ranges.sort == OTHER) & (ranges.backward == 0)
    modules = pl.DataFrame({"part": ranges.part_of_unit, "path": path, "up": up})
    modules = modules.with_row_index("row")
    usual = modules.filter(pl.Series(is_forward)).group_by("part")
    usual = usual.agg(pl.col("up").first(), paths=pl.col("path").n_unique())
    usual = usual.filter(pl.col("paths") == 1)
    apart = modules.filter(pl.Series(is_apart)).drop("up").join(usual, on="part")
    if not apart.height:
        return path, texts
    up[apart["row"].to_numpy()] = apart["up"].to_numpy()
    return number_paths(ranges.part, up, rows, DEEPEST)


def collect(unit: DeviceGroup) -> Collected:
    """Yield the work of the model's modules and operators by place, task and pass (`work`), how
    often they were executed (`calls`), and products by place (`products`).
    """
    columns = ("sender", "sent", "thread", "begin", "end", "what", "device")
    work = unit.list_launched_work(columns) if unit.has("nvtx_pushpop") else unit.work.clear()
    if not work.height:
        return
    captured = list_captured_work(unit, work.schema)
    ranges = _read_ranges(unit, captured)
    if not len(ranges.thread):
        return
    is_module = _find_modules(ranges)
    places = _place(ranges, is_module)
    if (ranges.sort == BACKWARD).any():
        counters = _number_counters(ranges, unit, work)
        backward, forward = _match_operators(ranges, places, counters)
        linked = np.full(len(is_module), -1, np.int32)
        # The second time those within what is computed again.
        for _ in range(2):
            linked[places.node[backward]] = places.module[forward]
            module = _find_modules_around(ranges, is_module, linked)
            places = replace(places, module=module)
    path, texts = _number_paths(ranges, is_module, places)

    def find_places(rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return the place of each range (path and operator), and its pass."""
        module, operator = places.module[rows], places.operator[rows]
        return {
            "path": np.where(module < 0, 0, path[module]),
            "part": np.where(operator < 0, -1, ranges.part[operator]),
            "pass": places.passes[rows],
        }

    def name_places(columns: Mapping[str, np.ndarray]) -> pl.DataFrame:
        """Return columns with the places of :func:`find_places` as texts."""
        paths, parts = (columns[name].tolist() for name in ("path", "part"))
        names = [
            texts[one] + (f";{part}" if part >= 0 else "")
            for one, part in zip(paths, parts, strict=True)
        ]
        return pl.DataFrame({"place": pl.Series(names, dtype=pl.String), **columns}).drop(
            "path", "part"
        )

    rows, replays = _find_ranges(work, captured, ranges, places)
    overlapped = np.zeros(work.height, np.int64)
    begin, end, device = to_arrays(work, "begin", "end", "device")
    for one in unit.devices:
        own = device == one
        overlapped[own] = _find_overlaps(begin[own], end[own]).within(begin[own], end[own])
    inside = np.flatnonzero(rows >= 0)
    what, task = (one.to_numpy()[inside] for one in (work["what"], unit.list_tasks(work)))
    sums = sum_by(
        {**find_places(rows[inside]), "task": task},
        gpu_ns=end[inside] - begin[inside],
        overlapped_ns=overlapped[inside],
        kernels=what != MEMORY,
    )
    yield "work", name_places(sums)
    # Hooks push a further, empty range for the result of a module.
    works = np.zeros(len(is_module), bool)
    works[rows[inside]] = True
    works = ranges.spread_up(works)
    entered = np.flatnonzero(works & (is_module | (places.operator == np.arange(len(works)))))
    # Before a part of a job there are ranges for the work that was captured in them alone.
    called = (ranges.begin[entered] >= unit.reader.begin).astype(np.int64)
    called = np.where(replays[entered] > 0, replays[entered], called)
    task = unit.task_of[ranges.thread[entered]].astype(np.int64)
    yield "calls", name_places(sum_by({**find_places(entered), "task": task}, calls=called))
    products = list_product_work(unit)
    if products.height:
        at = ranges.find_innermost(*to_arrays(products, "sender", "at"))
        products = products.hstack(name_places(find_places(at))).filter(pl.Series(at >= 0))
        yield "products", sum_products(products, "place", "pass")


def _find_ranges(
    work: pl.DataFrame, captured: pl.DataFrame, ranges: Ranges, places: Places
) -> tuple[np.ndarray, np.ndarray]:
    """Return the innermost range in which each operation was launched (or captured, if that was in
    a module), or -1. Return also the number of replays of the work captured in each range; 0 if
    graphs are replayed in ranges with the same name.
    """
    rows = ranges.find_innermost(*to_arrays(work, "sender", "sent"))
    replays = np.zeros(len(ranges.thread), np.int64)
    if not captured.height:
        return rows, replays
    key = ("thread", "begin")
    made = captured.select(*key, "sender", "sent").unique(key)
    made = made.with_columns(times=pl.len().over("sender", "sent"))
    made = work.select(*key).join(made, on=key, how="left", maintain_order="left")
    within = ranges.find_innermost(*to_arrays(made.fill_null(-1), "sender", "sent"))
    is_better = (within >= 0) & (places.module[within] >= 0)
    launched = np.zeros(len(replays), bool)
    launched[rows[is_better & (rows >= 0)]] = True
    np.maximum.at(
        replays,
        within[is_better],
        made["times"].fill_null(0).to_numpy()[is_better].astype(np.int64),
    )
    replays = ranges.spread_up(replays)
    around = np.unique(ranges.part_of_unit[ranges.spread_up(launched)])
    replays[np.isin(ranges.part_of_unit, around)] = 0
    return np.where(is_better, within, rows), replays


def _find_overlaps(begin: np.ndarray, end: np.ndarray) -> Spans:
    """Return the times in which at least two intervals, sorted by begin, overlap."""
    # Each overlaps earlier ones until the last of these ends.
    return merge_spans(begin[1:], np.minimum(end[1:], np.maximum.accumulate(end)[:-1]))


# ---- tables --------------------------------------------------------------------------------------


def conclude(frames: Frames, context: Context, result: Result) -> None:
    """Add modules of the model as a tree and as a flame graph, and a comparison of layers, to the
    result.
    """
    if not frames["work"].height:
        result.missing.append(f"modules: no NVTX push/pop range launches GPU work ({_RECORDED_BY})")
        return
    names = classify_names(context.labels["nvtx"])
    places = pl.concat([frames[one].select("place") for one in ("work", "calls")]).unique()
    found = _fold_places(places["place"].sort(), names)
    if found["path"].list.len().max() < 2 and not found["layer"].count():
        result.missing.append(f"modules: no nested NVTX ranges with GPU work ({_RECORDED_BY})")
        return
    everything = [frames["work"], frames["calls"]]
    if frames["products"].height:
        rated = rate_products(frames["products"], context)
        everything.append(sum_rates(rated, "place", "pass"))
    rows = pl.concat(everything, how="diagonal_relaxed").join(found, on="place", how="inner")
    sums = _roll_up(rows)
    result.add("modules", _make_tree(sums))
    result.add("layers", _compare_layers(sums, context))
    stack = pl.col("path").list.eval(pl.element().str.replace_all(SEPARATOR, ":", literal=True))
    own = context.label_tasks(rows.filter(pl.col("gpu_ns") > 0)).sort("rank", nulls_last=True)
    own = own.select("rank", stack=stack.list.join(SEPARATOR), time_ns="gpu_ns")
    result.add("flame", lay_out_flames(own))


def _fold_places(places: pl.Series, names: pl.DataFrame) -> pl.DataFrame:
    """Return for each place its `path`, the removed layer number (`layer`, or null), and the
    layer's `name` and depth (`since`).

    A path consists of the names of modules from the outermost, without numbers, and of an operator
    (`operator`: whether it ends in one).
    """
    known = names.group_by("part").agg(
        pl.col("text").first(), dotted=pl.col("sort").is_in((MODULE, BEFORE, AFTER)).any()
    )
    # A number belongs to the name before it.
    texts = {
        part: (re.split(r"\.(?!\d+(?:\.|$))", text) if dotted else [text], dotted)
        for part, text, dotted in known.rows()
    }
    fold = cache(partial(re.compile(NUMBER).sub, "*"))
    is_of_layers = cache(re.compile(_LAYERS).search)
    paths: list[tuple[list[str], list[str], bool]] = []
    variants: dict[str, set[str]] = defaultdict(set)
    for place in places.to_list():
        parts = [texts[int(part)] for part in place.partition(";")[0].split(",")[1:]]
        path = [one for own, _ in parts for one in own]
        alike = [*accumulate(map(fold, path), "{}\0{}".format)]
        paths.append((path, alike, any(dotted for _, dotted in parts)))
        for one, of in zip(path, alike, strict=True):
            variants[of].add(one)
    rows = []
    for place, (path, alike, is_dotted) in zip(places.to_list(), paths, strict=True):
        _, _, operator = place.partition(";")
        # A few numbered parts of a block are different modules; layers, and experts, are alike.
        most = MOST_PARTS if is_dotted else 1
        counted = [depth for depth, one in enumerate(alike) if len(variants[one]) > most]
        named = [depth for depth, one in enumerate(path) if is_of_layers(one)]
        since = next(iter((named or counted) if is_dotted else counted[-1:]), -1)
        shown = [fold(one) if depth in (since, *counted) else one for depth, one in enumerate(path)]
        shown += [".".join(texts[int(operator)][0])] if operator else []
        name = path[since] if since >= 0 else None
        layer = int(re.findall(NUMBER, name)[-1][-18:]) if name else None
        rows.append((place, shown, bool(operator), layer, name, since))
    schema = {
        "place": pl.String,
        "path": pl.List(pl.String),
        "operator": pl.Boolean,
        "layer": pl.Int64,
        "name": pl.String,
        "since": pl.Int64,
    }
    return pl.DataFrame(rows, schema, orient="row")


def _roll_up(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows for every enclosing module: `path` (one text), `depth`, and whether they are
    its `own`. The layer is null if the path has none yet.
    """
    length, pieces = pl.col("path").list.len(), []
    for depth in range(int(rows["path"].list.len().max() or 0)):
        is_last = length == depth + 1
        piece = rows.filter(length > depth).with_columns(
            path=pl.col("path").list.head(depth + 1).list.join("\0"),
            depth=pl.lit(depth, pl.Int64),
            own=is_last,
            operator=pl.col("operator") & is_last,
            layer=pl.when(pl.col("since").is_between(0, depth)).then("layer"),
        )
        pieces.append(piece)
    return pl.concat(pieces)


def _count_calls() -> pl.Expr:
    """Return an expression for the number of executions in the forward pass; of all executions if
    none is in a forward pass; null if unknown.
    """
    own = pl.col("calls").filter("own")
    forward = own.filter(pl.col("pass").filter("own") == FORWARD).sum()
    return pl.when(forward > 0).then(forward).when(own.sum() > 0).then(own.sum())


def _make_tree(sums: pl.DataFrame) -> pl.DataFrame:
    """Return the table of modules and operators."""
    gpu, flop, ideal = (pl.col(name) for name in ("gpu_ns", "flop", "ideal_ns"))
    layers = pl.col("layer").n_unique() - pl.col("layer").is_null().any()
    figures = {
        "layers": pl.when(layers > 0).then(layers).cast(pl.Int64),
        "calls": _count_calls(),
        "gpu_ns": gpu.sum(),
        "gpu_exclusive_ns": gpu.filter("own").sum(),
        "overlapped_ns": pl.col("overlapped_ns").sum(),
        "kernels": pl.col("kernels").sum(),
    }
    for one, name in _PASSES.items():
        if (sums["pass"] == one).any():
            figures[name] = gpu.filter(pl.col("pass") == one).sum()
    if "flop" in sums.columns:
        is_known = ideal.count() == flop.count()
        figures |= {
            "tflop": pl.when(flop.count() > 0).then(flop.sum() / 1e12),
            "flop": flop.sum(),
            "product_ns": pl.col("product_ns").sum(),
            "ideal_ns": pl.when(is_known).then(ideal.sum()),
        }
    tree = sums.group_by("path", "depth").agg(**figures).filter(pl.col("gpu_ns") > 0)
    if "flop" in tree.columns:
        tree = tree.with_columns(**RATES).drop("flop", "product_ns", "ideal_ns")
    # Of sibling modules the longest comes first.
    lasts, order = dict(tree.select("path", "gpu_ns").rows()), []
    for path in tree["path"].to_list():
        above = accumulate(path.split("\0"), "{}\0{}".format)
        order.append([(-lasts[one], one) for one in above])
    rows = sorted(range(len(order)), key=order.__getitem__)
    return tree[rows].with_columns(_join_names())


def _join_names() -> pl.Expr:
    """Return an expression for paths as shown to users."""
    return pl.col("path").str.replace_all("\0", BETWEEN, literal=True)


def _compare_layers(sums: pl.DataFrame, context: Context) -> pl.DataFrame:
    """Return a comparison of the GPU time per execution between layers and between ranks: medians,
    and the slowest of each; and the layer that exceeds the median rank most on one rank.
    """
    of_layers = sums.filter(pl.col("layer").is_not_null() & ~pl.col("operator"))
    figures = {"gpu_ns": pl.col("gpu_ns").sum(), "calls": _count_calls()}
    each = pl.col("each")

    def measure(*by: str) -> pl.DataFrame:
        found = of_layers.group_by("path", *by).agg(**figures, name=pl.col("name").min())
        return found.with_columns(each=divide_columns("gpu_ns", "calls")).drop_nulls("each")

    def find_slowest(rows: pl.DataFrame, *keys: str) -> pl.DataFrame:
        slowest = rows.sort("each", *keys).group_by("path")
        return slowest.agg(
            pl.col("name", *keys).last(),
            layers=COUNT,
            median_gpu_ns=each.median(),
            share=divide_columns(each.last(), each.median()),
        )

    layers = find_slowest(measure("layer"), "layer").filter(pl.col("layers") > 1)
    layers = layers.select("path", "layers", "median_gpu_ns", slowest="name", slowest_share="share")
    ranks = context.label_tasks(find_slowest(measure("task"), "task"))
    ranks = ranks.select("path", slowest_rank="rank", slowest_rank_share="share")
    cells = measure("layer", "task")
    cells = cells.with_columns(each=divide_columns("each", each.median().over("path", "layer")))
    cells = cells.filter(pl.col("task").n_unique().over("path") > 1)
    worst = context.label_tasks(find_slowest(cells, "layer", "task"))
    worst = worst.select("path", worst_layer="name", worst_rank="rank", worst_share="share")
    rows = of_layers.group_by("path").agg(**figures).join(layers, on="path").join(ranks, on="path")
    if worst.height:
        rows = rows.join(worst, on="path", how="left")
    rows = rows.sort("gpu_ns", "path", descending=[True, False])
    first = ("layers", "calls", "gpu_ns")
    return rows.select(_join_names().alias("operation"), *first, pl.exclude("path", *first))
