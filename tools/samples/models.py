"""Further tables of programming models, libraries and frameworks: OpenACC, OpenMP, cuBLAS and
cuDNN, graphics, ranges as PyTorch makes them.

Most is declared in ``data.yaml``: what happens in every step, and where in the step (shares from 0
to 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .cluster import Ints, Thread
from .data import DATA, find_enum_label
from .nvtx import MARK, PUSH_POP
from .report import Report, Scene, Truth, count, sum_events

FIRST_DOMAIN = 21  # of libraries


def add_libraries(scene: Scene) -> Truth:
    """Add calls of libraries. Truth: table, or NVTX domain -> function, or text -> rows and ns."""
    truth: Truth = {}
    for table, event_class, function, low, high in DATA["library_calls"]:
        named = {"eventClass": event_class, "nameId": function}
        added = scene.insert(table, scene.at(low), scene.at(high), thread=0, **named)
        count(truth.setdefault(table, {}), function, *added)
    first = scene.steps[:1, 0] // 2
    for name, event_class in (("cuDNN", 33), ("cuBLAS", 35)):
        started = {"eventClass": event_class, "nameId": f"{name} profiling started"}
        process = scene.report.rank.global_pid
        scene.insert(f"{name.upper()}_EVENTS", first, first, globalTid=process, **started)
    for number, (domain, ranges) in enumerate(DATA["library_ranges"].items(), FIRST_DOMAIN):
        defined = {"eventType": 75, "textId": domain, "domainId": number, "thread": 0}
        scene.insert("NVTX_EVENTS", first, **defined)
        for text, low, high in ranges:
            given = {"eventType": PUSH_POP, "textId": text, "domainId": number, "thread": 0}
            added = scene.insert("NVTX_EVENTS", scene.at(low), scene.at(high), **given)
            count(truth.setdefault(domain, {}), text, *added)
    return truth


SOURCE, FUNCTION = "/home/user/app/solver.f90", "relax"


def add_openacc(scene: Scene) -> Truth:
    """Add constructs of OpenACC. Truth: end of the table's name -> by_source (`name@file:line`) and
    by_construct -> rows, ns and bytes.
    """
    truth: Truth = {}
    rank = scene.report.rank
    for table, kind, name, line, low, high, columns in DATA["openacc"]:
        steps = slice(None if line else 1)
        given = {**columns, "nameId": name, "eventKind": kind, "lineNo": line, "cuStreamId": 7}
        given |= {"cuDeviceId": rank.device, "cuContextId": rank.context}
        given |= {"srcFile": SOURCE, "funcName": FUNCTION} if line else {}
        given["DeviceType"] = 4 if line else 2
        begin, end = scene.at(low)[steps], scene.at(high)[steps]
        added = scene.insert(f"CUPTI_ACTIVITY_KIND_OPENACC_{table}", begin, end, thread=0, **given)
        found = truth.setdefault(table, {"by_source": {}, "by_construct": {}})
        source = f"{name}@{SOURCE}:{line}" if line else name
        construct = find_enum_label("ENUM_OPENACC_EVENT_KIND", kind)
        for way, label in (("by_source", source), ("by_construct", construct)):
            entry = count(found[way], label, *added)
            entry["bytes"] = entry.get("bytes", 0) + added[0] * (columns.get("bytes") or 0)
    return truth


OPENMP = 78  # event class
TEAM = (0, 40, 41, 42)  # distances of thread ids from the pid
REGION_END = 0.80  # where in the step the parallel region ends


def add_openmp(scene: Scene) -> Truth:
    """Add a parallel region of four threads in every step, with every kind of event; a last region
    stays unfinished, and of the last finished one two workers' events are not: their ends are of
    another clock, or 0.

    Truth: closed: record layout -> value -> rows and ns; open: begins of what never ends.
    """
    closed: Truth = {}
    number = np.arange(1, len(scene.steps) + 1)
    ids = {"region": number, "first": 4 * number, "second": 4 * number + 1}
    ids |= {"task": 1000 + number, "subtask": 2000 + number}

    def insert(table: str, begin: Ints, end: Ints, thread: int, **more: Any) -> None:
        columns = {"eventClass": OPENMP, "nameId": f"OpenMP {table.replace('_', ' ').lower()}"}
        scene.insert(f"OPENMP_EVENT_KIND_{table}", begin, end, thread=thread, **columns | more)

    def write(event: Sequence[Any], lost: int | None = None) -> None:
        """Add an event of every step; ``lost`` stands for the last step's end."""
        place, layout, value, table, low, high, columns = event
        begin = scene.at(low)
        end = begin if high is None else scene.at(high)
        length = np.ones(len(begin), np.int64) if high is None else end - begin
        if lost is not None:
            end[-1], length[-1] = lost, scene.at(REGION_END)[-1] - begin[-1]
        named = {key: ids.get(one, one) for key, one in columns.items()}
        insert(table, begin, end, TEAM[place], **named)
        found = closed.setdefault(f"openmp_{layout}", {})
        count(found, str(value), len(begin), int(length.sum()))

    region, *events = DATA["openmp_events"]
    write(region)
    ends = {3: scene.report.rank.start_clock + int(scene.steps[-1, 1]), 2: 0}
    for place in range(len(TEAM)):
        ids["own"] = ids["first"] + place
        for layout, value, table, low, high, special, columns in DATA["openmp_team"]:
            begin = low + place / 200 if "late" in special else low
            lost = ends.get(place) if "lost" in special else None
            write((place, layout, value, table, begin, high, columns), lost)
    for event in events:
        write(event)
    begin, last = scene.steps[-1:, 1], len(number) + 1
    insert("PARALLEL", begin, 0 * begin, 0, parallelId=last)
    task = {"parallelId": last, "taskId": 10_000, "kind": 2, "nameId": "OpenMP parallel"}
    insert("TASK", begin + 1000, 0 * begin, TEAM[1], **task)
    insert("THREAD", begin // 2, begin, TEAM[1], threadId=2, threadType=2)
    end = int(begin[0])
    closed["openmp_thread"] = {"2": {"rows": 1, "ns": end - end // 2}}
    opened = {"openmp_parallel": end, "openmp_implicit_task": end + 1000}
    return {"closed": closed, "open": opened}


FRAMES, FRAME_NS, CALLS = 3, 1_000_000, 7  # frames of a step; calls of a frame


def add_graphics(scene: Scene) -> Truth:
    """Draw a few frames in every step, encode and decode. OpenGL's rows are as nsys 2024.2 writes
    them: one context, frames counted from 1, workloads from the first to the last call they serve.
    Truth: table -> thread (distance from the pid) or queue -> name -> rows and ns.
    """
    rank, encode = scene.report.rank, scene.report.export.encode
    rows: dict[str, list[dict[str, Any]]] = {}
    found: dict[str, list[tuple[str, str, int, int]]] = {}  # by table: place, name, begin, end

    def draw(section: str, at: int, ids: dict[str, int]) -> None:
        """Add the events of a section that is drawn at ``at``."""
        for table, name, place, after, lasts, columns in DATA[section]:
            begin, end = at + after, None if lasts is None else at + after + lasts
            thread = Thread[place] if place in Thread.__members__ else Thread.LOADER_1
            row = {"start": begin, "end": end, "globalTid": rank.global_tid(thread)}
            row |= DATA["graphics_columns"][table]
            for column, value in columns.items():
                row[column] = encode(table, column, ids.get(value, value))
            rows.setdefault(table, []).append(row)
            told = place if place not in Thread.__members__ else str(int(thread))
            found.setdefault(table, []).append((told, name, begin, end or begin + 1))

    begins = [
        begin + frame * FRAME_NS for begin in scene.steps[:, 0].tolist() for frame in range(FRAMES)
    ]
    for frame, at in enumerate(begins):
        ids = {"number": frame + 1, "gpu": rank.gpu}
        ids |= {f"call {number}": CALLS * frame + number for number in range(1, CALLS + 1)}
        draw("opengl_frame", at + int(scene.random.integers(10_000)), ids)
        draw("vulkan_frame", at + 500_000 + int(scene.random.integers(10_000)), ids)
    for at in begins[::FRAMES]:
        draw("video_calls", at, {})
    for table, listed in rows.items():
        scene.report.add(table, " ".join(listed[0]), [list(row.values()) for row in listed])
    summed = {table: sum_events(events) for table, events in sorted(found.items())}
    return {"tables": summed, "frames": len(begins)}


DEPTH, OPERATORS, STREAM = 24, 4, 31
FORWARD, BACKWARD = Thread.FORWARD, Thread.BACKWARD
LEAD_NS, SPAN_NS, LAUNCHED_NS, KERNEL_NS, PACE_NS = 1_000, 20_000, 30_000, 1_500, 2_000
TURNS = range(1_000, 1_000 + 4_000 * OPERATORS, 4_000)  # when operators begin, ns
FIRST_CORRELATION = 1 << 24  # far from those of the job


class _Range(NamedTuple):
    """A range of a step."""

    name: str  # in the trace
    tail: str  # the end of the text, which differs from call to call ({seq} and {op} are filled in)
    thread: int
    begin: int  # ns since the step's ranges begin
    end: int


def _list_ranges() -> list[_Range]:
    levels = [(f"Module.{level}", 10 * level) for level in range(DEPTH)]
    found = [_Range(name, "", FORWARD, edge, SPAN_NS - edge) for name, edge in levels]
    found.append(_Range("backward", "", BACKWARD, 0, SPAN_NS))
    both, engine = ", seq = {seq}, op_id = {op}", "autograd::engine::evaluate_function: "
    sizes = ", op_id = {op}, sizes = [[8, 16], [16, 32]], input_op_ids = [(1,0)]"
    for at in TURNS:
        outer, inner = (at, at + 3_000), (at + 500, at + 2_500)
        found += [
            _Range("aten::addmm", both, FORWARD, *outer),
            _Range("aten::mm", sizes, FORWARD, *inner),
            _Range(f"{engine}AddmmBackward0", ", op_id = {op}", BACKWARD, *outer),
            _Range("AddmmBackward0", both, BACKWARD, *inner),
        ]
    return found


def add_pytorch_ranges(scene: Scene) -> Truth:
    """After every step run an operator four times within modules that lie DEPTH deep, and on
    another thread what belongs to it in the backward pass; all their kernels go to one stream, by
    turns.
    """
    report, epochs, made = scene.report, scene.steps[:, 1] + LEAD_NS, _list_ranges()
    steps, whole = len(epochs), KERNEL_NS + (2 * OPERATORS - 2) * PACE_NS
    texts, numbers = _write_texts(steps, made)
    ranges = {"eventType": PUSH_POP, "thread": [one.thread for one in made]}
    ranges |= {"domainId": 0, "text": texts}
    ranges["int64Value"] = np.array([1] + [None] * (len(made) - 1), object)
    begin, end = (
        epochs[:, None] + np.array([getattr(one, edge) for one in made])
        for edge in ("begin", "end")
    )
    report.insert("NVTX_EVENTS", begin, end, **ranges)
    _add_kernels(report, epochs)
    mark = {"eventType": MARK, "thread": FORWARD, "domainId": 0}
    mark |= {"text": "loss", "floatValue": np.full(1, 0.5)}
    report.insert("NVTX_EVENTS", epochs + SPAN_NS + 500, **mark)
    host: dict[str, list[int]] = {}
    for one in made:
        rows, ns = host.get(one.name, (0, 0))
        host[one.name] = [rows + steps, ns + steps * (one.end - one.begin)]
    inner = [OPERATORS * steps, OPERATORS * steps * KERNEL_NS]
    on_gpu = {
        one.name: inner if "::" in one.name or "Addmm" in one.name else [steps, steps * whole]
        for one in made
    }
    return {
        "host": host,
        "sequence_numbers": numbers,
        "on_gpu": on_gpu,
        "stream": STREAM,
        "threads": [report.rank.pid + FORWARD, report.rank.pid + BACKWARD],
        "payloads": {"int64Value": steps, "floatValue": steps},
    }


def _write_texts(steps: int, made: list[_Range]) -> tuple[Any, list[int]]:
    """Write the texts of all ranges (step, range); also return the sequence numbers in them."""
    texts, used = np.empty((steps, len(made)), object), []
    for step in range(steps):
        seen = {FORWARD: 0, BACKWARD: 0}
        for place, one in enumerate(made):
            sequence, operator = 100 * step + seen[one.thread], 1 + step * len(made) + place
            if "{seq}" in one.tail:
                seen[one.thread] += 1
                used.append(sequence)
            texts[step, place] = one.name + one.tail.format(seq=sequence, op=operator)
    return texts, sorted(used)


def _add_kernels(report: Report, epochs: Ints) -> None:
    """Add the launching calls of both threads, and their kernels by turns."""
    threads = [FORWARD, BACKWARD] * OPERATORS
    called = epochs[:, None] + np.array([at + 800 for at in TURNS for _ in range(2)])
    begun = epochs[:, None] + LAUNCHED_NS + PACE_NS * np.arange(2 * OPERATORS)
    correlation = FIRST_CORRELATION + np.arange(called.size).reshape(called.shape)
    launches = ["cudaLaunchKernel_v7000"] * len(threads)
    report.insert_calls(called, called + 400, launches, thread=threads, correlationId=correlation)
    names = ["addmm_forward", "addmm_backward"] * OPERATORS
    columns = report.rank.columns | {"streamId": STREAM, "correlationId": correlation}
    named = ("demangledName", "shortName", "mangledName")
    columns |= dict.fromkeys(named, names)
    columns |= {"registersPerThread": 32, "tensorSizeMinusOneElements": "[]", "gridId": correlation}
    columns |= dict.fromkeys(("gridX", "gridY", "gridZ", "blockY", "blockZ"), 1) | {"blockX": 128}
    columns |= dict.fromkeys(("staticSharedMemory", "dynamicSharedMemory"), 0)
    columns |= dict.fromkeys(("localMemoryPerThread", "localMemoryTotal"), 0)
    report.insert("CUPTI_ACTIVITY_KIND_KERNEL", begun, begun + KERNEL_NS, **columns)
