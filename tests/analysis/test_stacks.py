"""Test that findings name a place in the program, from call stacks and then CPU samples, or none."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tools.exports import (
    PID,
    Row,
    make_call,
    make_export,
    make_global_tid,
    make_kernel,
    make_os_call,
    make_strings,
)

import nsys2prv
from nsys2prv._util.intervals import merge_spans
from nsys2prv.cli import main as main_of_cli
from nsys2prv.figures import stacks

MS = 1_000_000
NAMES = (
    "cudaLaunchKernel", "k", "main", "init(int)", "MPI_Init", "memcpy", "cuptiRun", "cudaMalloc"
)  # fmt: skip
MODULES = (
    "/home/u/app", "/usr/lib/libc.so.6", "/opt/lib/libmpi.so.40", "/opt/libcupti.so.12", "/j/libLLVM-15jl.so"
)  # fmt: skip
TEXTS = (*NAMES, *MODULES)
APP, LIBC, MPI, CUPTI, LLVM = MODULES
Stack = tuple[tuple[str, str], ...]


def find_place(
    tmp_path: Path, *stacks: Stack, every: int = 1, step: int = 1, calls: bool = False
) -> str:
    """Return where the job's finding of its start says that it waits: for 100 ms before its first kernel, of
    which a sample is taken each `step` ms, with these stacks in turn; only each `every`-th has all frames.
    calls: of the system, in place of samples.
    """
    samples: list[Row] = []
    frames: list[Row] = []
    for number in range(1, 100, step):
        stack = stacks[number // every % len(stacks)]
        sample = {"id": number, "start": number * MS, "globalTid": make_global_tid(PID)}
        samples.append(sample | {"cpuCycles": 1, "threadState": None})
        frames += [
            {"id": number, "symbol": TEXTS.index(name) + 1, "module": TEXTS.index(module) + 1, "stackDepth": depth}
            for depth, (name, module) in enumerate(stack if number % every == 0 else stack[:1])
        ]  # fmt: skip
    made = (make_os_call(at * MS, at * MS + MS, 6, callchainId=at) for at in range(1, 100, step))
    tables = {
        **({"OSRT_API": [*made]} if calls else {"COMPOSITE_EVENTS": samples}),
        "OSRT_CALLCHAINS" if calls else "SAMPLING_CALLCHAINS": frames,
        "CUPTI_ACTIVITY_KIND_RUNTIME": [make_call(0, 1, 9, nameId=8), make_call(100 * MS, 101 * MS, 1, nameId=1)],
        "CUPTI_ACTIVITY_KIND_KERNEL": [make_kernel(101 * MS, 110 * MS, demangledName=2, shortName=2, correlationId=1)],
        "StringIds": make_strings(*TEXTS),
    }  # fmt: skip
    with nsys2prv.open(make_export(tmp_path / "r.sqlite", tables), quiet=True) as job:
        finding = next(one for one in job.findings() if one.kind == "startup")
        places = job.places()
    assert ("compiling code" in finding.title) is (stacks[0][0][1] == LLVM)
    if finding.where:
        assert finding.where.endswith(places["where"][0])
        assert finding.where.startswith(f"{places['idle_share'][0]:.0%}")
    return finding.where


def test_whole_stacks_are_folded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of 100 ms in cudaMalloc a kernel runs for 40; what the system does in it is not told again, nor
    what a call does within a call.
    """
    stacks = {
        1: (("cudaMalloc", APP), ("init(int)", APP), ("init(int)", APP), ("main", APP)),
        2: (("0x1", LIBC), ("0x2", LIBC), ("main", APP), ("[Broken backtraces]", APP)),
        3: (("memcpy", LIBC), ("0x2", LIBC), ("main", APP)),
    }
    texts = (*TEXTS, "0x1", "0x2", "[Broken backtraces]", "read")
    number = {text: place for place, text in enumerate(texts, 1)}
    frames = [
        {"id": stack, "stackDepth": depth, "symbol": number[name], "module": number[module]}
        for stack, rows in stacks.items()
        for depth, (name, module) in enumerate(rows)
    ]
    os_calls = ((10, 20, 2), (200, 250, 2), (210, 220, 3))
    tables = {
        "CUPTI_ACTIVITY_KIND_RUNTIME": [make_call(0, 100 * MS, 1, nameId=8, callchainId=1)],
        "CUDA_CALLCHAINS": frames,
        "OSRT_API": [
            make_os_call(begin * MS, end * MS, number["read"], callchainId=stack)
            for begin, end, stack in os_calls
        ],
        "OSRT_CALLCHAINS": frames,
        "CUPTI_ACTIVITY_KIND_KERNEL": [make_kernel(60 * MS, 100 * MS, correlationId=1)],
        "StringIds": make_strings(*texts),
    }
    with nsys2prv.open(make_export(tmp_path / "r.sqlite", tables), quiet=True, jobs=1) as job:
        idle, whole = job.stacks(), job.stacks(while_idle=False)
        flame = job.analyse("stacks")["stacks"].tables["flame"].frame
    times = {
        "main;init;cudaMalloc": (60, 100),
        "[Broken backtraces];main;[libc.so.6]": (40, 40),
        "main;[libc.so.6];memcpy": (10, 10),
    }
    for place, frame in enumerate((idle, whole)):
        found = dict(frame.select("stack", "time_ns").rows())
        assert found == {stack: time[place] * MS for stack, time in times.items()}
        assert frame["drives_gpus"].all()
    main = flame.filter(depth=1, name="main").row(0, named=True)
    assert (main["time_ns"], main["begin_ns"]) == (70 * MS, 40 * MS)
    assert flame.filter(depth=0)["time_ns"].to_list() == [110 * MS]
    # Who asks for these alone sees them.
    assert main_of_cli(["report", "-q", "--only", "stacks", str(tmp_path / "r.sqlite")]) == 0
    (line,) = (one for one in capsys.readouterr().out.splitlines() if "init;cudaMalloc" in one)
    assert line.split()[-3:] == ["60.0", "ms", "1"]


def test_flame_graphs_hold_threads_that_launch_kernels(tmp_path: Path) -> None:
    """Check that samples of another thread, which launches no GPU work, are excluded."""
    stacks = [(1, 0, "main"), (2, 0, "init(int)")]
    tables = {
        "CUPTI_ACTIVITY_KIND_RUNTIME": [
            make_call(0, 10 * MS, 1, nameId=8, globalTid=make_global_tid(PID + 1))
        ],
        "CUPTI_ACTIVITY_KIND_KERNEL": [make_kernel(60 * MS, 100 * MS, correlationId=1)],
        "OSRT_API": [
            make_os_call(20 * MS, 40 * MS, 3, tid=PID + 1, callchainId=1),
            make_os_call(20 * MS, 50 * MS, 3, callchainId=2),
        ],
        "OSRT_CALLCHAINS": [
            {"id": one, "stackDepth": depth, "symbol": TEXTS.index(name) + 1, "module": 9}
            for one, depth, name in stacks
        ],
        "StringIds": make_strings(*TEXTS),
    }
    with nsys2prv.open(make_export(tmp_path / "r.sqlite", tables), quiet=True, jobs=1) as job:
        drives = dict(job.stacks(while_idle=False).select("stack", "drives_gpus").rows())
        flame = job.analyse("stacks")["stacks"].tables["flame"].frame
    assert drives == {"main": True, "init": False}
    assert set(flame["name"]) == {"all", "main"}


def test_a_stack_that_is_not_there(tmp_path: Path) -> None:
    tables = {
        "CUPTI_ACTIVITY_KIND_RUNTIME": [make_call(0, 10, 1, nameId=8, callchainId=5)],
        "CUDA_CALLCHAINS": [{"id": 1, "stackDepth": 0, "symbol": 1, "module": 1}],
        "StringIds": make_strings(*TEXTS),
    }
    with nsys2prv.open(make_export(tmp_path / "r.sqlite", tables), quiet=True, jobs=1) as job:
        assert job.stacks(while_idle=False).is_empty()
        assert "none in the table" in job.analyse("stacks")["stacks"].missing[0]


IN_INIT = (("memcpy", LIBC), ("init(int)", APP), ("main", APP))


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("module", [LIBC, MPI])
def test_samples_with_stacks_stand_for_those_without(
    tmp_path: Path, every: int, module: str
) -> None:
    """Though the others are in a library by their one function."""
    where = find_place(tmp_path, (("memcpy", module), *IN_INIT[1:]), every=every)
    share, _, place = where.partition(" in ")
    assert place.startswith("init (app), called by main")
    assert 85 <= int(share.removesuffix("%")) <= 100


@pytest.mark.parametrize("calls", [False, True])
def test_mpi_that_was_not_traced(calls: bool, tmp_path: Path) -> None:
    where = find_place(tmp_path, (("MPI_Init", MPI), ("main", APP)), calls=calls)
    assert where.endswith("in main (app), in MPI, which was not traced: add mpi to --trace")


def test_code_that_is_compiled_is_not_computed(tmp_path: Path) -> None:
    assert "memcpy (libLLVM" in find_place(tmp_path, (("memcpy", LLVM), *IN_INIT))


PROFILER = (("cuptiRun", CUPTI), *IN_INIT)
MOSTLY = [IN_INIT, *[PROFILER] * 9]


@pytest.mark.parametrize(("stacks", "step"), [([PROFILER], 1), (MOSTLY, 1), ([IN_INIT], 60)])
def test_too_little_is_no_place(tmp_path: Path, stacks: list[Stack], step: int) -> None:
    assert find_place(tmp_path, *stacks, step=step) == ""


def test_samples_at_rare_places_take_their_part_of_the_time() -> None:
    """Ten samples stand for 100 ns of 10, three of them at one place."""
    places = [16 * place for place in (1, 1, 1, *range(2, 9))]
    samples = pl.DataFrame({"begin": range(10), "lasts": [10] * 10, "place": places})
    time = merge_spans(np.array([0]), np.array([10]))
    divided = stacks.divide_time(time, [], stacks._forget_rare(samples))
    assert dict(divided.select("place", "time").rows())[16] == 3
