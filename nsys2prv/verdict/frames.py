"""Collect thread and GPU activity as frames of each device group, for findings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import polars as pl

from nsys2prv._util.columns import DURATION, sum_by
from nsys2prv._util.intervals import EMPTY, SIDES, Spans, unite
from nsys2prv.figures import host_time
from nsys2prv.figures.cpu_time import collect_cpu_time
from nsys2prv.figures.device_group import (
    COMMUNICATING,
    COMMUNICATION,
    COMPUTE,
    CONVOLUTION,
    GEMM,
    GRAPH,
    MEMORY,
    TENSOR_NO,
    Collected,
    Columns,
    DeviceGroup,
    Part,
    find_driving_threads,
    find_mpi_span,
    to_arrays,
)
from nsys2prv.figures.kernels import measure_other_work
from nsys2prv.figures.products import list_product_work, sum_products
from nsys2prv.figures.stacks import count_mpi_samples, measure_places


def collect(unit: DeviceGroup) -> Collected:
    """Yield thread and GPU activity in frames with these names.

    `hosts` (ns), `ranges`, `places`: thread activity of each process outside CUDA and MPI calls
    while its GPUs are idle. `uses`, `activities` (by name): activity of the thread that launches
    GPU work before the first GPU work, after the last, and while GPUs are idle; without GPU work,
    at all times; for MPI, from MPI_Init to MPI_Finalize. `devices`, `kernels`, `copies`: GPU
    activity in total, by kernel and launch configuration, and by kind of copy. `products`: GEMM
    kernels without Tensor Cores, on devices that have them. `shapes`: products with known shapes.
    `mpi_samples`: CPU samples of main threads by MPI call, if MPI was not traced. `mpi`: time in
    MPI. `failed`: failed CUDA API calls. `unrecorded`: kinds of events missing from the reports.
    `cpu_waits`, `cpu_runs`: see cpu_time.py.
    """
    window = unit.options.covered_steady
    for device in unit.devices:
        times = _find_times(unit, int(np.argmax(unit.device_of == device)), window)
        yield "devices", _measure_device(unit, device, window, times)
        for row in measure_other_work(unit, device, times):
            yield "other_work", row
    yield "copies", _sum_copies(unit, window)
    if unit.has("cuda_kernel"):
        yield "kernels", _sum_kernels(unit, window)
    names = "class", "tensor", "name", "device", "thread"
    classes, tensor, name, device, thread = to_arrays(unit.work, *names)
    is_product = np.isin(classes, (GEMM, CONVOLUTION)) & (tensor == TENSOR_NO)
    for one, known in unit.options.gpus:
        if one in unit.devices and known and not host_time.select_gpus(known, "no_tensor_cores"):
            is_product &= device != one
    of_products = {
        "name": name[is_product], "device": device[is_product], "task": unit.task_of[thread[is_product]]
    }  # fmt: skip
    yield "products", sum_by(of_products)
    yield from _collect_shapes(unit)
    # From here on only the active times of devices are needed.
    unit.forget_work()
    for task in unit.tasks:
        yield from _collect_hosts(unit, task, window)
    for overhead in host_time.collect_overhead(unit):
        yield "overhead", overhead
    call, error = to_arrays(unit.api.filter(pl.col("error") > 0), "call", "error")
    failed = sum_by({"call": call, "error": error}, count=np.ones(len(call), np.int64))
    yield "failed", failed
    yield "unrecorded", {"what": host_time.list_unrecorded(unit)}


def _collect_shapes(unit: DeviceGroup) -> Collected:
    """Yield products with known shapes by task, and the total time of the kernels after which they
    are named.
    """
    inside = unit.is_in_steady()
    work = list_product_work(unit)
    if not work.height:
        return
    work = work.with_columns(unit.list_tasks(work)).filter(inside)
    products = sum_products(work, "task")
    every = unit.work.with_columns(unit.list_tasks(unit.work)).filter(inside)
    every = every.filter(pl.col("what") == COMPUTE).group_by("task", "name")
    sums = every.agg(name_ns=DURATION.sum())
    yield "shapes", products.join(sums, on=("task", "name"), how="left", maintain_order="left")


def _collect_hosts(unit: DeviceGroup, task: int, window: Spans) -> Collected:
    """Yield the thread activity of a task. window: the time that counts."""
    devices = [one for one in unit.devices if task in unit.list_device_tasks(one)]
    drivers = [one for device in devices for one in find_driving_threads(unit, device)]
    main = host_time.choose_thread(unit, task)
    others = dict.fromkeys(one for one in drivers if unit.task_of[one] == task and one != main)
    busy = unite(*(unit.find_active_spans(one) for one in devices))
    of_host = unit.covered
    if span := find_mpi_span(unit, main):
        of_host = window if unit.options.steady else unit.covered.clip(*span)
        yield "mpi", _make_columns([span], *SIDES)
    yield "mpi_samples", _label(count_mpi_samples(unit, main, window), task)
    outside = host_time.find_outside_calls(unit, main, window)
    found = host_time.find_host_parts(unit, main, outside - busy)
    parts_of_host = host_time.sum_host_parts(found)
    yield "hosts", _label(_make_columns([(*parts_of_host.values(),)], *parts_of_host), task)
    yield from collect_cpu_time(unit, task, [main, *others], window)
    asked = {"all": of_host}
    if unit.find_span_of_work(main):
        asked = _find_times(unit, main, window)
    moments = {when: time.find_longest() for when, time in asked.items()}
    asked = {when: time - busy for when, time in asked.items()}
    *of_asked, of_main = host_time.sum_ranges(unit, main, *asked.values(), outside)
    if not others:
        unit.forget_ranges()
    yield "ranges", _label(of_main, task)
    yield "places", _label(measure_places(unit, main, outside - busy), task)
    # Of many calls these times need much memory.
    del outside
    parts = [[*host_time.find_host_parts(unit, main, one, others=True)] for one in asked.values()]
    uses = [
        (*moments[when], time.length, *host_time.sum_host_parts(found).values())
        for (when, time), found in zip(asked.items(), parts, strict=True)
    ]
    yield "uses", _label(_make_columns(uses, *SIDES, "length", *host_time.PARTS), task, asked)
    given = [*asked.values()], of_asked, parts
    activities = host_time.list_activities(unit, main, *given, others=True)
    when = map([*asked].__getitem__, activities.pop("at"))
    yield "activities", _label(activities, task, when)
    # These times have millions of intervals, too.
    del asked, parts, given
    for thread in others:
        time = host_time.find_outside_calls(unit, thread, window)
        yield "places", _label(measure_places(unit, thread, time - busy), task)
        yield "ranges", _label(host_time.sum_ranges(unit, thread, time)[0], task)


def _make_columns(rows: Sequence[tuple[int, ...]], *names: str) -> Columns:
    return dict(zip(names, np.array(rows, np.int64).T, strict=True))


def _label(columns: Part, task: int, when: Iterable[str] | None = None) -> Columns:
    """Return small columns with `task` and, if given, `when` for each row."""
    if isinstance(columns, pl.DataFrame):
        columns = {
            one.name: one.to_list() if one.dtype == pl.String else one.to_numpy()
            for one in columns.iter_columns()
        }
    labels = {"task": np.full(len(next(iter(columns.values()))), task)}
    return {**columns, **labels} if when is None else {**columns, **labels, "when": [*when]}


def _measure_device(
    unit: DeviceGroup, device: int, window: Spans, times: Mapping[str, Spans]
) -> Columns:
    """Return the activities of a device in the analyzed time, and before and after it. times:
    before and after the GPU work (or the steady state), and between (`idle`).
    """
    inner = times["idle"]
    row = {"device": device, "length": window.length, "inner": inner.length}
    row["busy"] = unit.merge_device_work(device, COMPUTE, GRAPH, MEMORY).overlap(window)
    compute = unit.merge_device_work(device, COMPUTE, GRAPH)
    row["compute"] = compute.overlap(window)
    working = unit.merge_device_work(device, COMPUTE, GRAPH, *COMMUNICATING)
    row["working"] = working.overlap(window)
    alone = window & (working - compute)
    row["communication_begin"], row["communication_end"] = alone.find_longest()
    del compute
    active = unit.find_active_spans(device)
    row["active"] = active.overlap(window)
    copies = active - working
    row["copies_begin"], row["copies_end"] = (window & copies).find_longest()
    row |= {f"copies_{when}": copies.overlap(times[when]) for when in ("before", "after")}
    row["idle_begin"], row["idle_end"] = (inner - active).find_longest()
    task = unit.find_main_task(device)
    row |= {"task": task, "host": unit.find_host(task), "copies": row["active"] - row["working"]}
    return _make_columns([(*row.values(),)], *row)


def _sum_kernels(unit: DeviceGroup, time: Spans) -> Columns:
    """Return the time (ns) of kernels that do not communicate, in a set of times, by `name`,
    `launch` and `device`, with `begin` and `end` of the longest.
    """
    fields, keys = ("kernel", "class", "launch"), ("name", "launch", "device")
    names, parts = ("name", "launch", "device", "time", "longest", "begin", "end"), []
    for _, kernels in unit.reader.read_windows("cuda_kernel", fields, unit.number, np.int32):
        kernels = kernels.filter(pl.col("class") != COMMUNICATION)
        begin, end, kernel, launch, thread = to_arrays(
            kernels, *SIDES, "kernel", "launch", "thread"
        )
        lasts = time.within(begin, end)
        columns = kernel, launch, unit.device_of[thread], lasts, lasts, begin, end
        parts.append(host_time.sum_times(dict(zip(names, columns, strict=True)), *keys))
    sums = parts[0]
    if len(parts) > 1:
        sums = host_time.sum_times(
            {one: np.concatenate([part[one] for part in parts]) for one in names}, *keys
        )
    return {one: sums[one].astype(np.int64) for one in names if one != "longest"}


def _sum_copies(unit: DeviceGroup, time: Spans) -> Columns:
    """Return count, bytes and time (ns) of memory operations by `operation`, `source`,
    `destination`.
    """
    keys = ("operation", "source", "destination")
    copies = unit.read_begins("memory_operation", (*keys, "bytes"))
    lasts = time.within(*to_arrays(copies, *SIDES))
    counted = lasts > 0
    *of_keys, size = (one[counted] for one in to_arrays(copies, *keys, "bytes"))
    values = {"count": np.ones(len(size), np.int64), "bytes": size, "time": lasts[counted]}
    return sum_by(dict(zip(keys, of_keys, strict=True)), **values)


def _find_times(unit: DeviceGroup, row: int, window: Spans) -> dict[str, Spans]:
    """Return the covered times `before` the first GPU work in the unit of a row, `after` the last,
    and between (`idle`). With a steady state (window), these are before, after and within it.
    """
    before, after = EMPTY, EMPTY
    if span := unit.find_span_of_work(row):
        first, last = span
        if unit.options.steady and len(window):
            first, last = max(first, int(window.begin[0])), min(last, int(window.end[-1]))
        before, after = unit.covered.clip(0, first), unit.covered.clip(last, unit.duration)
    inner = window if unit.options.steady else window - before - after
    return {"before": before, "after": after, "idle": inner}
