"""Test call stacks: callers of calls, owners of samples, rows in odd orders and numbers."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from tools.conversions import convert_and_read, list_labelled_intervals
from tools.exports import PID, Row, make_call, make_export, make_global_tid, make_os_call

from nsys2prv.events.stacks import find_owner, label_frame
from nsys2prv.export.source import FRAME_COLUMNS, StackRows
from nsys2prv.export.sqlite import open_database

CALLER, SAMPLE_OWNER, OWN_FUNCTION, ITS_CALLER = 70000000, 67000103, 67000104, 67000105
APP, CUDA, CUDART = "/home/u/app", "/usr/lib/libcuda.so.550", "/usr/lib/libcudart.so.12"
LIBC, MPI = "/usr/lib/libc.so.6", "/opt/openmpi/lib/libmpi.so.40"
#: Numbers of functions and modules.
TEXTS = [
    *("read", "cudaMalloc_v3020", "0x7f11", "cudaMalloc", "cudaError cudaMalloc<int>(int**)"),
    *("setup(Grid&)", "main", "__libc_start_main", "MPI_Send", "0x4021", "memcpy"),
    *(APP, CUDA, CUDART, LIBC, MPI, "/home/u/plugin.so"),
]
TO_SETUP = (("0x7f11", CUDA), ("cudaMalloc", CUDART), ("cudaError cudaMalloc<int>(int**)", APP))
OUTER = (("setup(Grid&)", APP), ("main", APP), ("main", APP), ("__libc_start_main", LIBC))


def make_stack(number: int, *frames: tuple[str, str]) -> list[Row]:
    """Return the rows of a stack, the innermost frame first."""
    return [
        {
            "id": number,
            "symbol": TEXTS.index(name) + 1,
            "module": TEXTS.index(module) + 1,
            "stackDepth": depth,
        }
        for depth, (name, module) in enumerate(frames)
    ]


def convert_stacks(tmp_path: Path, tables: dict[str, list[Row]]) -> object:
    strings = [{"id": number, "value": text} for number, text in enumerate(TEXTS, 1)]
    tables = {**tables, "StringIds": strings}
    report = make_export(tmp_path / "r.sqlite", tables, {"row": "INTEGER PRIMARY KEY"})
    return convert_and_read([report], tmp_path / "o.prv")[0]


def list_callers(trace: object, level: int) -> list[tuple[str, int, int]]:
    return sorted(list_labelled_intervals(trace, CALLER + level), key=lambda one: one[1])


@pytest.mark.parametrize(("shift", "apart"), [(0, False), (1, False), (1, True)])
def test_callers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shift: int, apart: bool) -> None:
    """Callers are functions of the program. Exports of 2022 number the stacks of CUDA's calls from 0, but the stacks from 1, and have them in
    rows that repeat the calls, in other parts of the table too, of the greatest rowids that there are.
    """
    monkeypatch.setattr("nsys2prv.conversion.read.PART_ROWS", 3)
    stacks = make_stack(1, *TO_SETUP, *OUTER) + make_stack(2, ("0x4021", "/home/u/plugin.so"))
    calls = [
        make_call(0, 10, 1, callchainId=1 - shift),
        make_call(20, 30, 2, callchainId=None if shift else 0),
        make_call(40, 50, 3, callchainId=2 - shift),
        make_call(80, 90, 4, callchainId=1 - shift, nameId=None),
    ]
    if apart:
        without = [{**call, "callchainId": None} for call in calls]
        # Another process has the same correlation ids.
        calls = [{**calls[1], "correlationId": 1, "globalTid": make_global_tid(PID + 1)}, *calls]
        calls = [{**call, "eventClass": 67, "end": call["end"] + 2} for call in calls] + without
        calls = [{**call, "row": (1 << 63) - row} for row, call in enumerate(calls, 1)]
    tables = {"CUPTI_ACTIVITY_KIND_RUNTIME": calls, "CUDA_CALLCHAINS": stacks[::-1]}
    trace = convert_stacks(tmp_path, tables)
    assert list_callers(trace, 1) == [
        ("setup (app)", 0, 10),
        ("plugin.so (no symbols)", 40, 50),
        ("setup (app)", 80, 90),
    ]
    assert list_callers(trace, 2) == [("main (app)", 0, 10), ("main (app)", 80, 90)]
    assert list_callers(trace, 3) == []


def test_a_library_is_the_caller_where_the_program_is_not_known(tmp_path: Path) -> None:
    stacks = make_stack(1, ("read", LIBC), ("MPI_Send", MPI), ("0x4021", MPI))
    stacks += make_stack(2, ("read", LIBC), ("0x7f11", CUDA))
    stacks += make_stack(3, ("read", LIBC), ("0x4021", MPI))
    calls = [make_os_call(20 * one, 20 * one + 10, callchainId=one + 1) for one in range(3)]
    trace = convert_stacks(tmp_path, {"OSRT_API": calls, "OSRT_CALLCHAINS": stacks})
    assert list_callers(trace, 1) == [
        ("MPI_Send (libmpi.so.40)", 0, 10),
        ("libmpi.so.40 (no symbols)", 40, 50),
    ]


def test_samples_tell_whose_code_runs_and_for_which_function(tmp_path: Path) -> None:
    frames = [
        [("memcpy", LIBC), *OUTER],
        [("memcpy", LIBC)],
        [("0x7f11", CUDA), ("cudaMalloc", CUDART), *OUTER],
    ]
    samples = [
        {"id": number, "start": 100 * number, "globalTid": make_global_tid(PID), "cpuCycles": 1}
        for number in (1, 2, 3)
    ]
    stacks = [row for number, stack in enumerate(frames, 1) for row in make_stack(number, *stack)]
    trace = convert_stacks(tmp_path, {"COMPOSITE_EVENTS": samples, "SAMPLING_CALLCHAINS": stacks})
    owners = sorted(list_labelled_intervals(trace, SAMPLE_OWNER), key=lambda one: one[1])
    assert [label for label, *_ in owners] == ["The program", "The system", "The CUDA driver"]
    own = [label for label, *_ in list_labelled_intervals(trace, OWN_FUNCTION)]
    assert own == ["setup (app)", "setup (app)"]
    assert {label for label, *_ in list_labelled_intervals(trace, ITS_CALLER)} == {"main (app)"}


@pytest.mark.parametrize(
    ("name", "path", "owner"),
    [
        ("step", "/home/u/nsys/openmpi/Injection/app", "the program"),
        ("main", "/opt/nsight-systems/2024.2/target-linux-x64/nsys-launcher", "the profiler"),
        ("solve", "/home/u/jacobi", "the program"),
        ("std::vector<int>::push_back(int)", APP, "the system"),
        ("float* std::fill_n<float*>(float*, long)", APP, "the system"),
        ("clover::alloc(int)", "/x/spack/opt/bin/cuda-cloverleaf", "the program"),
        ("operator new(unsigned long)", APP, "the system"),
        ("cudaStreamSynchronize", APP, "the CUDA driver"),
        ("cublasSgemm_v2", "/usr/local/cuda/lib64/libcublas.so.12", "a CUDA library"),
        (
            "x",
            "/opt/nvidia/nsight-systems/2025.1/target-linux-x64/libToolsInjection64.so",
            "the profiler",
        ),
        ("do_lookup_x", "/lib64/ld-2.31.so", "the loader"),
        ("_PyEval_EvalFrameDefault", "/usr/bin/python3.11", "the interpreter"),
        ("at::native::add", "/x/site-packages/torch/lib/libtorch_cpu.so", "a library"),
        ("[Broken backtraces]", "[Broken backtraces]", "the system"),
        ("schedule", "[kernel.kallsyms]", "the system"),
        ("run", "/scratch/me/build/lib/libmuphys_core.so", "the program"),
    ],
)
def test_owners_of_frames(name: str, path: str, owner: str) -> None:
    assert find_owner(name, path) == owner


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("(anonymous namespace)::run(int)", "run (app)"),
        ("Grid::operator()(int) const", "Grid::operator() (app)"),
        ("fill<float>(float*, int) [clone .constprop.0]", "fill<float> (app)"),
        ("double* clover::alloc<double>(int)", "clover::alloc<double> (app)"),
        ("std::pair<int, int> Grid::size() const", "Grid::size (app)"),
        ("operator delete(void*, unsigned long)", "operator delete (app)"),
        ("run(int, bool (*)(float*), char)", "run (app)"),
        ("void run(std::vector<f(*)()>&)::{lambda(int)#3}::operator()(int) const", "run (app)"),
        ("rand::random_range::hbd00c8cb99adf1d2", "rand::random_range (app)"),
        ("0x4021", "app (no symbols)"),
        ("", "app (no symbols)"),
    ],
)
def test_labels_of_frames(name: str, label: str) -> None:
    assert label_frame(name, APP) == label


@pytest.mark.parametrize("order", ["ascending", "shuffled", "two runs"])
def test_stacks_are_found_by_their_ids_in_any_order(tmp_path: Path, order: str) -> None:
    numbers = np.random.default_rng(1)
    rows = [
        {"id": stack, "stackDepth": depth, "symbol": depth % 3, "module": 10 + kind}
        for stack, kind in enumerate(numbers.integers(1, 5, 3000).tolist())
        for depth in range(kind)
    ]
    rows_of = {stack: list(of) for stack, of in itertools.groupby(rows, lambda row: row["id"])}
    if order == "shuffled":
        numbers.shuffle(rows)
    if order == "two runs":
        rows.sort(key=lambda row: row["stackDepth"] > 0)
    with open_database(make_export(tmp_path / "r.sqlite", {"T": rows})) as database:
        stacks = database.read_stacks("T", 5, 2900)
        columns = database.read(database.tables["T"].whole, FRAME_COLUMNS, where="{id} >= 2000")
    assert stacks.ids.tolist() == list(range(5, 2901))
    frames = np.split(stacks.frames, np.cumsum(stacks.lengths)[:-1])
    for stack, code in zip(stacks.ids.tolist(), stacks.codes.tolist(), strict=True):
        found = [(stack, *frame) for frame in frames[code].tolist()]
        assert sorted(found) == [tuple(row.values()) for row in rows_of[stack]]
    assert set(StackRows.from_frames(columns).sums) == set(stacks.sums)
