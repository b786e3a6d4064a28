"""Further tables of programming models, libraries and frameworks: OpenACC, OpenMP, cuBLAS and
cuDNN, graphics, ranges as PyTorch makes them.

Most is declared: what happens in every step, and where in the step (shares from 0 to 1).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .cluster import Ints, Thread
from .data import DATA
from .nvtx import MARK, PUSH_POP
from .report import Report, Scene, Truth, count, enum_label, totals

FIRST_DOMAIN = 21  # of libraries


def add_libraries(scene: Scene) -> Truth:
    """Truth: table, or NVTX domain -> function, or text -> rows and ns."""
    truth: Truth = {}
    for table, event_class, function, low, high in DATA["library_calls"]:
        added = scene.insert(
            table, scene.at(low), scene.at(high), 0, eventClass=event_class, nameId=function
        )
        count(truth.setdefault(table, {}), function, *added)
    first = scene.steps[:1, 0] // 2
    for name, event_class in (("cuDNN", 33), ("cuBLAS", 35)):
        started = {"eventClass": event_class, "nameId": f"{name} profiling started"}
        process = scene.report.rank.global_pid
        scene.insert(f"{name.upper()}_EVENTS", first, first, globalTid=process, **started)
    for number, (domain, ranges) in enumerate(DATA["library_ranges"].items(), FIRST_DOMAIN):
        scene.insert("NVTX_EVENTS", first, None, 0, eventType=75, textId=domain, domainId=number)
        for text, low, high in ranges:
            given = {"eventType": PUSH_POP, "textId": text, "domainId": number}
            added = scene.insert("NVTX_EVENTS", scene.at(low), scene.at(high), 0, **given)
            count(truth.setdefault(domain, {}), text, *added)
    return truth


SOURCE, FUNCTION = "/home/user/app/solver.f90", "relax"


def add_openacc(scene: Scene) -> Truth:
    """Truth: end of the table's name -> by_source (`name@file:line`) and by_construct -> rows, ns
    and bytes.
    """
    truth: Truth = {}
    rank = scene.report.rank
    for table, kind, name, line, low, high, columns in DATA["openacc"]:
        steps, known = slice(None if line else 1), line > 0
        begin, end = scene.at(low)[steps], scene.at(high)[steps]
        given = {**columns, "nameId": name, "eventKind": kind, "lineNo": line, "cuStreamId": 7}
        given |= {"cuDeviceId": rank.device, "cuContextId": rank.context}
        given |= {"srcFile": SOURCE, "funcName": FUNCTION} if known else {}
        given["DeviceType"] = 4 if known else 2
        added = scene.insert(f"CUPTI_ACTIVITY_KIND_OPENACC_{table}", begin, end, 0, **given)
        found = truth.setdefault(table, {"by_source": {}, "by_construct": {}})
        source = f"{name}@{SOURCE}:{line}" if known else name
        for way, label in (
            ("by_source", source),
            ("by_construct", enum_label("ENUM_OPENACC_EVENT_KIND", kind)),
        ):
            entry = count(found[way], label, *added)
            entry["bytes"] = entry.get("bytes", 0) + added[0] * (columns.get("bytes") or 0)
    return truth


OPENMP = 78  # event class
#: Distances of thread ids from the pid; the main thread is the fourth of a team.
WORKERS = (40, 41, 42)
REGION = (0.10, 0.80)  # where in the step the parallel region is


class _Team:
    """Writes the events of a team of OpenMP threads. truth: record layout -> value -> rows and ns."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.truth = scene, {}
        self.number = np.arange(1, len(scene.steps) + 1)  # of each step's region

    def write(
        self,
        layout: str,
        value: int,
        table: str,
        low: float,
        high: float | None,
        thread: int = 0,
        lost: int | None = None,
        **columns: Any,
    ) -> None:
        """One event of every step on a thread; `high` None: a point in time.

        lost: what stands for the end of the last step's, which then ends with its region.
        """
        begin = self.scene.at(low)
        end = begin if high is None else self.scene.at(high)
        length = np.ones(len(begin), np.int64) if high is None else end - begin
        if lost is not None:
            end[-1], length[-1] = lost, self.scene.at(REGION[1])[-1] - begin[-1]
        self.insert(table, begin, end, thread, **columns)
        found = self.truth.setdefault(f"openmp_{layout}", {})
        count(found, str(value), len(begin), int(length.sum()))

    def insert(self, table: str, begin: Ints, end: Ints, thread: int = 0, **columns: Any) -> None:
        """Add rows to one of the tables."""
        columns |= {"eventClass": OPENMP, "nameId": f"OpenMP {table.replace('_', ' ').lower()}"}
        self.scene.insert(f"OPENMP_EVENT_KIND_{table}", begin, end, thread, **columns)


def add_openmp(scene: Scene) -> Truth:
    """A parallel region of four threads in every step, with every kind of event; a last region
    stays unfinished, and of the last finished one two workers' events are not: their ends are of
    another clock, or 0.

    Truth: closed: record layout -> value -> rows and ns; open: begins of what never ends.
    """
    team = _Team(scene)
    write, first, region = team.write, 4 * team.number, {"parallelId": team.number}
    write("parallel", 28, "PARALLEL", *REGION, **region, parentTaskId=1)
    other_clock = scene.report.rank.start_clock + int(scene.steps[-1, 1])
    for number, thread in enumerate((0, *WORKERS)):
        own = {**region, "taskId": first + number}
        late, lost = number / 200, {3: other_clock, 2: 0}.get(number)
        write("implicit_task", 2, "TASK", 0.11 + late, 0.79, thread, lost, **own, kind=2)
        write("workshare", 1, "WORKSHARE", 0.14, 0.40, thread, **own, kind=1, count=1 << 12)
        write("dispatch", 1, "DISPATCH", 0.15 + late, None, thread, **own, kind=1)
        write("barrier", 3, "SYNC_REGION", 0.41 + late, 0.45, thread, **own, kind=3)
        write("sync_wait", 3, "SYNC_REGION_WAIT", 0.42 + late, 0.45, thread, **own, kind=3)
        write("barrier", 2, "SYNC_REGION", 0.75, 0.785, thread, lost, **own, kind=2)
    own, task, (one, two, three) = {**region, "taskId": first}, 1000 + team.number, WORKERS
    schedule = {"priorTaskStatus": 7, "priorTaskId": first + 1, "nextTaskId": task}
    write("master", 32, "MASTER", 0.46, 0.48, **own)
    write("reduction", 33, "REDUCTION", 0.49, 0.50, **own)
    write("workshare", 3, "WORKSHARE", 0.51, 0.60, **own, kind=3, count=1)
    write("task_create", 15, "TASK_CREATE", 0.52, None, parentTaskId=first, newTaskId=task)
    write("sync_region", 5, "SYNC_REGION", 0.53, 0.59, **own, kind=5)
    write("task_schedule", 7, "TASK_SCHEDULE", 0.53, None, one, **region, **schedule)
    write("task", 4, "TASK", 0.531, 0.58, one, **region, taskId=task, kind=4)
    write("task", 4, "TASK", 0.54, 0.55, two, **region, taskId=1000 + task, kind=4 | 1 << 27)
    write("cancel", 17, "CANCEL", 0.56, None, two, taskId=1000 + task)
    write("flush", 26, "FLUSH", 0.57, None, three, threadId=4)
    lock = {"kind": 1, "waitId": 0x7F00_0000_1000}
    write("lock_init", 1, "LOCK_INIT", 0.02, None, **lock)
    write("mutex_wait", 1, "MUTEX_WAIT", 0.61, 0.62, **lock, taskId=4)
    write("mutex_released", 1, "MUTEX_RELEASED", 0.64, None, **lock, taskId=4)
    write("lock_destroy", 1, "LOCK_DESTROY", 0.90, None, **lock)
    critical = {"kind": 5, "waitId": lock["waitId"] + 64}
    for number, thread in enumerate((0, *WORKERS)):
        at = 0.65 + number / 50
        write("mutex_wait", 5, "MUTEX_WAIT", 0.645, at, thread, **critical, taskId=4)
        write("critical_section", 5, "CRITICAL_SECTION", at, at + 0.019, thread, **critical)
    begin, last = scene.steps[-1:, 1], int(team.number[-1]) + 1
    team.insert("PARALLEL", begin, 0 * begin, parallelId=last)
    scene.insert(
        "OPENMP_EVENT_KIND_TASK",
        begin + 1000,
        0 * begin,
        one,
        eventClass=OPENMP,
        nameId="OpenMP parallel",
        parallelId=last,
        taskId=10_000,
        kind=2,
    )
    team.insert("THREAD", begin // 2, begin, one, threadId=2, threadType=2)
    closed = int(begin[0])
    team.truth["openmp_thread"] = {"2": {"rows": 1, "ns": closed - closed // 2}}
    return {
        "closed": team.truth,
        "open": {"openmp_parallel": closed, "openmp_implicit_task": closed + 1000},
    }


#: Event classes.
GL, GL_DEBUG, GL_WORKLOAD, VULKAN, VULKAN_WORKLOAD, VULKAN_DEBUG = 2, 4, 5, 53, 54, 66
FRAMES = 3  # of a step
CALL_NS, FRAME_NS = 40_000, 1_000_000
OPENGL = ("glClear", "glDrawElements", "glDrawElements", "eglSwapBuffers")
VULKAN_CALLS = ("vkBeginCommandBuffer", "vkQueueSubmit", "vkQueuePresentKHR")
VIDEO = (
    ("NVVIDEO_DECODER_API", 86, Thread.LOADER_0, 0, "cuvidDecodePicture"),
    ("NVVIDEO_DECODER_API", 86, Thread.LOADER_0, 1, "cuvidMapVideoFrame64"),
    ("NVVIDEO_ENCODER_API", 83, Thread.LOADER_1, 0, "nvEncEncodePicture"),
)


def add_graphics(scene: Scene) -> Truth:
    """Every step draws a few frames, encodes and decodes. OpenGL's rows are as nsys 2024.2 writes
    them: one context, frames counted from 1, workloads from the first to the last call they serve.
    Truth: table -> thread (distance from the pid) or queue -> name -> rows and ns.
    """
    begins = [
        begin + frame * FRAME_NS for begin in scene.steps[:, 0].tolist() for frame in range(FRAMES)
    ]
    drawing = _Drawing(scene)
    for frame, at in enumerate(begins, 1):
        drawing.draw_opengl(frame, at + int(scene.random.integers(10_000)))
        drawing.draw_vulkan(at + 500_000 + int(scene.random.integers(10_000)))
    for at in begins[::FRAMES]:
        for table, kind, thread, place, name in VIDEO:
            begin = at + place * 3 * CALL_NS
            end = begin + 2 * CALL_NS + place
            drawing.add(table, name, begin, end, thread=thread, eventClass=kind, nameId=name)
    for table, rows in drawing.rows.items():
        scene.insert_rows(table, rows)
    return {
        "tables": {table: totals(found) for table, found in sorted(drawing.found.items())},
        "frames": len(begins),
    }


class _Drawing:
    """Rows of graphics' tables until they are written."""

    def __init__(self, scene: Scene) -> None:
        self.report = scene.report
        self.rows: dict[str, list[dict[str, Any]]] = {}
        # By table: place, name, begin, end.
        self.found: dict[str, list[tuple[str, str, int, int]]] = {}
        self.calls = 0

    def add(
        self,
        table: str,
        name: str,
        begin: int,
        end: int | None,
        queue: str = "",
        thread: int = Thread.LOADER_1,
        **columns: Any,
    ) -> None:
        """One row, told of under its queue, or its thread. Text in columns is put into StringIds."""
        string, tid = self.report.export.string, self.report.rank.global_tid(thread)
        texts = {
            key: string(value) if isinstance(value, str) else value
            for key, value in columns.items()
        }
        row = {"start": begin, "end": end, "globalTid": tid, **texts}
        self.rows.setdefault(table, []).append(row)
        told = (queue or str(int(thread)), name, begin, begin + 1 if end is None else end)
        self.found.setdefault(table, []).append(told)

    def draw_opengl(self, frame: int, at: int) -> None:
        """A frame from `at` on: calls, their work on the GPU, and groups of debug output."""
        common: dict[str, Any] = {"endGlobalTid": None, "endNameId": None, "returnValue": 0}
        common |= {"contextId": 1, "gpu": self.report.rank.gpu, "display": None}
        for place, name in enumerate(OPENGL):
            self.calls += 1
            begin = at + place * 2 * CALL_NS
            call = {"correlationId": self.calls, "endCorrelationId": None, "nameId": name}
            call |= {"eventClass": GL, "frameId": frame}
            self.add("OPENGL_API", name, begin, begin + CALL_NS + place, **call, **common)
        work = {"correlationId": self.calls - 3, "endCorrelationId": self.calls, "frameId": None}
        work |= {"eventClass": GL_WORKLOAD, "nameId": "glClear"}
        work |= common | {"endNameId": "eglSwapBuffers"}
        self.add("OPENGL_WORKLOAD", "glClear", at + CALL_NS, at + 9 * CALL_NS, "OpenGL", **work)
        debug = {"eventClass": GL_DEBUG, "source": 33354, "khrdType": 33385, "id": 0}
        debug |= {"severity": 33387, "correlationId": None, "context": 1}
        for name, begin, end in (("frame", at - 100, at + 8 * CALL_NS), ("swap", at + 50, None)):
            self.add("KHR_DEBUG_EVENTS", name, begin, end, textId=name, **debug)

    def draw_vulkan(self, at: int) -> None:
        """Calls, a label, and two command buffers at work at the same time, of which the report
        names one.
        """
        common: dict[str, Any] = {"endCorrelationId": None, "contextId": 7}
        for place, name in enumerate(VULKAN_CALLS):
            self.calls += 1
            begin = at + place * 2 * CALL_NS
            common |= {"correlationId": self.calls}
            call = {"id": self.calls, "eventClass": VULKAN, "nameId": name}
            self.add("VULKAN_API", name, begin, begin + CALL_NS, **call, **common)
        common["color"] = None
        for name, shift, label in (("vkQueueSubmit", 0, None), ("shadows", CALL_NS, "shadows")):
            begin, end = at + 3 * CALL_NS + shift, at + 6 * CALL_NS + shift
            work = {"eventClass": VULKAN_WORKLOAD, "nameId": "vkQueueSubmit", "textId": label}
            work["gpu"] = self.report.rank.gpu
            self.add("VULKAN_WORKLOAD", name, begin, end, "Vulkan", **work, **common)
        debug = {"nameId": "vkCmdBeginDebugUtilsLabelEXT", "textId": "shadows"}
        debug["eventClass"] = VULKAN_DEBUG
        self.add("VULKAN_DEBUG_API", "shadows", at - 50, at + 7 * CALL_NS, **debug, **common)


DEPTH, OPERATORS, STREAM = 24, 4, 31
FORWARD, BACKWARD = 40, 41  # distances of thread ids from the pid
LEAD_NS, SPAN_NS, LAUNCHED_NS, KERNEL_NS, PACE_NS = 1_000, 20_000, 30_000, 1_500, 2_000
FIRST_CORRELATION = 1 << 24  # far from those of the job
LAUNCH = "cudaLaunchKernel_v7000"


class _Range(NamedTuple):
    """A range of a step."""

    name: str  # in the trace
    tail: str  # the end of the text, which differs from call to call ({seq} and {op} are filled in)
    thread: int
    begin: int  # ns since the step's ranges begin
    end: int
    payload: int | None = None


def _ranges() -> list[_Range]:
    found = [
        _Range(
            f"Module.{level}", "", FORWARD, 10 * level, SPAN_NS - 10 * level, None if level else 1
        )
        for level in range(DEPTH)
    ]
    found.append(_Range("backward", "", BACKWARD, 0, SPAN_NS))
    both, engine = ", seq = {seq}, op_id = {op}", "autograd::engine::evaluate_function: "
    sizes = ", op_id = {op}, sizes = [[8, 16], [16, 32]], input_op_ids = [(1,0)]"
    for at in _turns():
        outer, inner = (at, at + 3_000), (at + 500, at + 2_500)
        found += [
            _Range("aten::addmm", both, FORWARD, *outer),
            _Range("aten::mm", sizes, FORWARD, *inner),
            _Range(f"{engine}AddmmBackward0", ", op_id = {op}", BACKWARD, *outer),
            _Range("AddmmBackward0", both, BACKWARD, *inner),
        ]
    return found


def _turns() -> range:
    return range(1_000, 1_000 + 4_000 * OPERATORS, 4_000)


def add_pytorch_ranges(scene: Scene) -> Truth:
    """After every step a thread runs an operator four times within modules that lie DEPTH deep, and
    another thread runs what belongs to it in the backward pass; all their kernels go to one stream,
    by turns.
    """
    report, epochs, made = scene.report, scene.steps[:, 1] + LEAD_NS, _ranges()
    steps, whole = len(epochs), KERNEL_NS + (2 * OPERATORS - 2) * PACE_NS
    texts, numbers = _texts(steps, made)
    ranges = {"eventType": PUSH_POP, "globalTid": report.tids([one.thread for one in made])}
    ranges |= {"domainId": 0, "text": texts}
    ranges["int64Value"] = np.array([one.payload for one in made], object)
    begin, end = (
        epochs[:, None] + np.array([getattr(one, edge) for one in made])
        for edge in ("begin", "end")
    )
    report.insert("NVTX_EVENTS", [f"pytorch/{one.name}" for one in made], ranges, begin, end)
    _add_kernels(report, epochs)
    mark = {"eventType": MARK, "globalTid": report.rank.global_tid(FORWARD), "domainId": 0}
    mark |= {"text": "loss", "floatValue": np.full(1, 0.5)}
    report.insert("NVTX_EVENTS", ["pytorch/loss"], mark, epochs[:, None] + SPAN_NS + 500, None)
    host: dict[str, list[int]] = {}
    for one in made:
        count, total = host.get(one.name, (0, 0))
        host[one.name] = [count + steps, total + steps * (one.end - one.begin)]
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


def _texts(steps: int, made: list[_Range]) -> tuple[Any, list[int]]:
    """Texts of all ranges (step, range), and the sequence numbers in them, ascending."""
    texts, used = np.empty((steps, len(made)), object), []
    for step in range(steps):
        seen = {FORWARD: 0, BACKWARD: 0}
        for place, one in enumerate(made):
            sequence = 100 * step + seen[one.thread]
            if "{seq}" in one.tail:
                seen[one.thread] += 1
                used.append(sequence)
            texts[step, place] = one.name + one.tail.format(
                seq=sequence, op=1 + step * len(made) + place
            )
    return texts, sorted(used)


def _add_kernels(report: Report, epochs: Ints) -> None:
    """The launching calls of both threads, and their kernels by turns."""
    threads, rank = [FORWARD, BACKWARD] * OPERATORS, report.rank
    called = epochs[:, None] + np.array([at + 800 for at in _turns() for _ in range(2)])
    begun = epochs[:, None] + LAUNCHED_NS + PACE_NS * np.arange(2 * OPERATORS)
    correlation = FIRST_CORRELATION + np.arange(called.size).reshape(called.shape)
    report.insert_calls([LAUNCH] * len(threads), threads, correlation, called, called + 400)
    names = ["addmm_forward" if thread == FORWARD else "addmm_backward" for thread in threads]
    named = report.strings(names)
    columns = rank.columns | {"streamId": STREAM, "correlationId": correlation, "blockX": 128}
    columns |= dict.fromkeys(("demangledName", "shortName", "mangledName"), named)
    columns |= {"registersPerThread": 32, "tensorSizeMinusOneElements": "[]", "gridId": correlation}
    columns |= dict.fromkeys(("gridX", "gridY", "gridZ", "blockY", "blockZ"), 1)
    columns |= dict.fromkeys(("staticSharedMemory", "dynamicSharedMemory"), 0)
    columns |= dict.fromkeys(("localMemoryPerThread", "localMemoryTotal"), 0)
    report.insert("CUPTI_ACTIVITY_KIND_KERNEL", names, columns, begun, begun + KERNEL_NS)
