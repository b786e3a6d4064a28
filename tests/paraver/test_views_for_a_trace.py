"""Test which views have data in a trace, and the workspaces through which Paraver offers them."""

import base64
import gzip
import re
import struct
from collections.abc import Collection
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from msgspec.structs import replace
from tools import view_answers
from tools.view_reader import find_reason_to_ask, read_cfg

from nsys2prv import Options, convert
from nsys2prv._util.errors import Nsys2prvError
from nsys2prv.cli import main
from nsys2prv.events.catalogue import load_catalogue
from nsys2prv.writers.paraver import check
from nsys2prv.writers.paraver.cfg import (
    LARGE_VALUE,
    Contents,
    Filter,
    Single,
    View,
    explain_empty_view,
    format_cfg,
    load_environment,
    load_views,
)
from nsys2prv.writers.paraver.kernels import find_kernel_to_show
from nsys2prv.writers.paraver.views import (
    TraceContents,
    Workspace,
    find_views_for_trace,
    install_views,
    make_views,
)

ROOT = Path(__file__).parents[2]
VIEWS = {view.path: view for view in load_views().views}
SAMPLES = ("cluster", "graphs", "training")
HEADER = "#Paraver (01/01/2026 at 00:00):1000_ns:1(2):1:1(2:1),1\nc:1:1:1:1\n"
KERNEL, NCCL, GRAPH, API, GRID, METRIC, TENSOR = (
    63000006,
    63000007,
    63000008,
    63000000,
    9101,
    9403,
    9405,
)
NVTX, OWN_NVTX, ON_GPU, PTHREAD = 9600, 69100000, 9630, 61000000
#: What Paraver calls a column or plane of the value 0: all of the time, where a window is 0
#: throughout.
ZERO = {"0", "0 ns", "value 0", "End", "Unknown state 0", "Not valid thread: 65536"}


# --------------------------------------------------------------------------------------------- what a trace holds
@pytest.fixture(scope="module", params=SAMPLES)
def trace(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[str]]:
    """Convert a sample; return its trace, and the views that its summary names."""
    path = tmp_path_factory.mktemp("trace") / "out.prv"
    summary = convert(
        sorted((ROOT / "sample_reports" / request.param).glob("*.sqlite")),
        path,
        Options(jobs=1, quiet=True),
    )
    return path, summary.views


def _read_contents(path: Path) -> Contents:
    """Return the contents of a trace, read line by line."""
    pairs, tags = set(), set()
    for line in path.read_text().splitlines():
        fields = line.split(":")
        if fields[0] == "2":
            pairs.update(zip(map(int, fields[6::2]), map(int, fields[7::2]), strict=True))
        elif fields[0] == "3":
            tags.add(int(fields[14]))
    return Contents(
        frozenset(code for code, _ in pairs),
        frozenset(code for code, value in pairs if value),
        frozenset(tags),
        values=frozenset((code, min(value, LARGE_VALUE)) for code, value in pairs),
    )


@pytest.mark.slow
@pytest.mark.parametrize("block", [1 << 22, 4096, 7])
def test_contents_of_a_trace(
    trace: tuple[Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    path, _ = trace
    if block < 1000:
        path = _write_views(tmp_path, "".join(path.read_text().splitlines(keepends=True)[:60]))
    monkeypatch.setattr(check, "BLOCK_BYTES", block)
    expected = _read_contents(path)
    assert expected.types
    assert TraceContents(path).whole == expected
    packed = tmp_path / "packed.prv.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert TraceContents(packed).whole == expected


def _write_views(folder: Path, text: str) -> Path:
    path = folder / "made.prv"
    path.write_text(text)
    return path


def test_lines_that_paraver_reads_are_read(tmp_path: Path) -> None:
    path = _write_views(
        tmp_path,
        HEADER
        + "\n".join(
            [
                "# a comment:2:3:4:5:6:7:8:9:10:11",
                "1:1:1:1:1:0:10:1",
                "2:1:1:1:1:5:7:0:8:12",
                "2:1:1:1:1:5:4294967295:9223372036854775807",
                "",
                "2:1:1:1:1:5",
                "2:1:1:1:1:6:7",
                "2:1:1:1:1:6:x7:1:12345678901:1",
                "2:1:1:1:1:6:9:x",
                "4:1:1:1:1:5:77:77",
                "3:1:1:1:1:0:0:1:1:1:2:3:3:64:55001",
                "3:1:1:1:1:0:0:1:1:1:2:3:3:64",
                "2:1:1:1:2:9:7:0:7:3",
                "2:1:1:1:2:9:8:99:8:100",
            ]
        ),
    )
    values = {(7, 0), (7, 3), (8, 12), (8, 99), (8, 100), (2**32 - 1, 100)}
    assert TraceContents(path).whole == Contents(
        frozenset({7, 8, 2**32 - 1}),
        frozenset({7, 8, 2**32 - 1}),
        frozenset({55001}),
        frozenset({1}),
        frozenset(values),
    )


def test_a_trace_without_records_is_empty(tmp_path: Path) -> None:
    assert (
        TraceContents(_write_views(tmp_path, HEADER)).whole
        == TraceContents(_write_views(tmp_path, "#Paraver ():1:0:1:1(1:1)")).whole
        == Contents(frozenset(), frozenset(), frozenset(), values=frozenset())
    )


def test_what_is_no_trace_is_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compressed = gzip.compress(
        HEADER.encode() + np.random.default_rng(1).bytes(9000).hex().encode()
    )
    (tmp_path / "cut.prv.gz").write_bytes(compressed[:2000])
    (tmp_path / "spoilt.prv.gz").write_bytes(compressed[:1000] + b"\xff" * 100 + compressed[1100:])
    (tmp_path / "plain.prv.gz").write_text(HEADER)
    (tmp_path / "other.prv").write_text("SQLite format 3")
    (tmp_path / "empty.prv").write_text("")
    for name, words in (
        ("cut.prv.gz", "damaged"),
        ("spoilt.prv.gz", "damaged"),
        ("plain.prv.gz", "gzip"),
        ("missing.prv", "No such file"),
        ("other.prv", "not a Paraver trace"),
        ("empty.prv", "not a Paraver trace"),
        ("", "is a folder"),
    ):
        assert main(["cfgs", "--for", str(tmp_path / name)]) == (1 if name else 2)
        output = capsys.readouterr()
        assert output.out == ""
        assert re.fullmatch(
            rf"nsys2prv: error: {re.escape(str(tmp_path))}[^\n]*{words}[^\n]*\n", output.err
        ), output.err
    assert main(["cfgs", "--for", str(tmp_path / "empty.prv"), str(tmp_path / "views")]) == 1
    assert not (tmp_path / "views").exists()


def test_a_line_without_end_is_not_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "LONGEST_LINE", 1 << 10)
    monkeypatch.setattr(check, "BLOCK_BYTES", 1 << 8)
    with pytest.raises(Nsys2prvError, match="a line of more than"):
        TraceContents(_write_views(tmp_path, HEADER + "2:1" * 2000))


# ------------------------------------------------------------------------------------------------ views that show something
OVERLAP = "analysis/nccl_exposed_2dh.cfg"
COMPUTING, MUTEXES = "hwcounters/sm-active-avg-2dh.cfg", "analysis/mutex_contention.cfg"
IN_FLIGHT, TENSORS = "analysis/kernels-inflight.cfg", "hwcounters/tensor_util_per_kernel-2dh.cfg"
ACTIVITIES, USEFUL = "views/cuda_activities.cfg", "model/GPU_LB.cfg"
RANGES, OUTSIDE = "analysis/nvtx_time_2dh.cfg", "model/host_outside_mpi_2dh.cfg"
KERNELS = "extra/basics/cuda_kernel.cfg"
EITHER = f"kernel ({KERNEL}), event type {GRAPH}"
#: View -> event types of a trace, what else it has, and why the view shows nothing of it.
REASONS = {
    KERNELS: [
        ({KERNEL}, {}, ""),
        ({NCCL}, {}, f"no kernel ({KERNEL})"),
        ({KERNEL}, {"filled": set()}, f"nothing but 0 in kernel ({KERNEL})"),
    ],
    ACTIVITIES: [({GRAPH}, {}, ""), ({GRID}, {}, f"no event type {API} … event type {GRAPH}")],
    # Every kind of event that is joined.
    TENSORS: [
        ({GRAPH, TENSOR}, {}, ""),
        ({KERNEL}, {}, f"no event type {TENSOR}"),
        ({TENSOR}, {}, f"no kernel ({KERNEL}) to event type {GRAPH}"),
    ],
    # Of the types of a window one suffices.
    COMPUTING: [
        ({KERNEL, METRIC}, {}, ""),
        ({GRAPH, METRIC}, {}, ""),
        ({NCCL, METRIC}, {}, f"no {EITHER}"),
        ({KERNEL, METRIC}, {"filled": {METRIC}}, f"nothing but 0 in {EITHER}"),
    ],
    # Not those that keep Paraver from asking.
    RANGES: [({ON_GPU}, {}, f"no event type {NVTX} … event type "), ({NVTX, ON_GPU}, {}, "")],
    "views/nccl_size.cfg": [({NCCL}, {}, "no event type 9501")],
    # What may be 1 without events is no need.
    OVERLAP: [({NCCL}, {}, ""), ({NCCL, KERNEL}, {}, ""), ({KERNEL}, {}, f"no event type {NCCL}")],
    USEFUL: [({NCCL}, {}, f"no {EITHER}")],
    OUTSIDE: [({50000002}, {}, ""), ({API}, {}, "no event type 50000001 to event type 50000005")],
    MUTEXES: [
        ({PTHREAD}, {}, ""),
        ({PTHREAD}, {"values": {(PTHREAD, 0), (PTHREAD, 18)}}, ""),
        (
            {PTHREAD},
            {"values": {(PTHREAD, 0), (PTHREAD, 3), (API, 8)}},
            f"no value 8, 18 in event type {PTHREAD}",
        ),
    ],
    IN_FLIGHT: [
        ({API, KERNEL}, {"tags": {55001}}, ""),
        ({API, KERNEL}, {"tags": {55002}}, "no communication of tag 55001"),
    ],
}


@pytest.mark.parametrize("view", REASONS)
def test_why_a_view_shows_nothing(view: str) -> None:
    names = {KERNEL: "kernel", METRIC: "SMs active"}
    for types, more, expected in REASONS[view]:
        contents = Contents(
            frozenset(types),
            frozenset(more.get("filled", types)),
            frozenset(more.get("tags", ())),
            values=frozenset(more["values"]) if "values" in more else None,
        )
        reason = explain_empty_view(VIEWS[view], contents, names)
        assert reason.startswith(expected), types
        assert bool(reason) == bool(expected), types


def test_views_of_states_need_states() -> None:
    view = "analysis/state_time_2dh.cfg"
    kernels = Contents(frozenset({KERNEL}), frozenset({KERNEL}), frozenset())
    assert explain_empty_view(VIEWS[view], kernels, {}) == "no states"
    with_states = Contents(frozenset({KERNEL}), frozenset({KERNEL}), frozenset(), frozenset({0, 1}))
    assert explain_empty_view(VIEWS[view], with_states, {}) == ""


# -------------------------------------------------------------------------------------------------------- as Paraver does
#: Views of kernels that last for a sample: whether there are any is not told by event types.
OF_LONG_KERNELS = {
    f"hwcounters/{name}.cfg"
    for name in (
        *("tensor_per_gemm-2dh", "tensor_util_per_kernel-2dh", "aggregated_bw_perkernel-2dh"),
        *("mips_kernel_2dh", "inst_kernel_2dh", "full-gpu-instructions-kernel-2dh"),
    )
}


#: Timelines that are shown for their lines, which paramedir does not give.
OF_LINES = {"views/nccl_messages.cfg", "views/launches_and_copies.cfg"}


@pytest.mark.parametrize("sample", [*view_answers.SAMPLES, *view_answers.MADE])
def test_views_that_show_something_are_those_of_which_paraver_gives_figures(sample: str) -> None:
    answers = view_answers.answer_views(sample)
    shown = {fit.path: not fit.lacking for fit in find_views_for_trace(answers.path)}
    listed = {path for path in (answers.tables.keys() & shown.keys()) - OF_LINES if shown[path]}
    assert listed - OF_LONG_KERNELS == {
        path
        for path in (answers.tables.keys() & shown.keys()) - OF_LINES
        if _has_figures(answers, path)
    } - (OF_LONG_KERNELS & listed)
    assert [
        path
        for path, view in VIEWS.items()
        if shown[path] and find_reason_to_ask(view.cfg, answers.present)
    ] == []


def _has_figures(answers: view_answers.Answers, path: str) -> bool:
    """Return whether paramedir's answer to a view is more than the time in which its windows are 0;
    for a view of planes, whether it names any.
    """
    histogram = VIEWS[path].cfg.histogram
    if histogram is None:
        return any(value for _, value in answers.list_bursts(path))
    planes = (
        re.split(r"^(?=[^\t\n]+\n\t)", answers.tables[path], flags=re.M)
        if histogram.planes
        else [f"table\n{answers.tables[path]}"]
    )
    tables = [
        table
        for name, _, table in (plane.partition("\n") for plane in planes)
        if name and "\t" not in name and name not in ZERO
    ]
    for head, *rows in (table.split("\n\n")[0].split("\n") for table in tables):
        columns = head.split("\t")[1:]
        if any(
            cell and name not in ZERO and float(cell)
            for row in rows
            for name, cell in zip(columns, row.split("\t")[1:], strict=True)
        ):
            return True
    return False


def test_the_summary_names_views_that_show_something(trace: tuple[Path, list[str]]) -> None:
    path, named = trace
    shown = {fit.path for fit in find_views_for_trace(path) if not fit.lacking}
    assert len(named) == 5
    assert set(named) <= shown


def test_a_listing_begins_with_ten_views_of_all_menus(
    trace: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = trace
    assert main(["cfgs", "--for", str(path)]) == 0
    head, *lines, rest = capsys.readouterr().out.splitlines()
    shown = {fit.path for fit in find_views_for_trace(path) if not fit.lacking}
    named = [line.split()[0] for line in lines if line.startswith("  ")]
    assert len(set(named)) == len(named) == 10
    assert set(named) <= shown
    assert head.startswith(f"{len(shown)} of {len(VIEWS)} views (with those made by rule, which")
    assert rest.startswith(f"and {len(shown) - 10} more; --all lists them, and")
    first = {
        title: [path for path in group if path in shown]
        for title, group in load_views().menus.items()
    }
    assert all(group[0] in named for group in first.values() if group)


def test_views_written_for_a_trace_name_its_event_types_alone(tmp_path: Path) -> None:
    path = _write_views(tmp_path, HEADER + f"2:1:1:1:1:5:{NVTX}:1:{OWN_NVTX}:1\n")
    assert main(["cfgs", "--all", "--for", str(path), str(tmp_path / "views")]) == 0
    assert sorted(
        str(file.relative_to(tmp_path / "views")) for file in (tmp_path / "views").rglob("*.cfg")
    ) == sorted(VIEWS)
    narrow = read_cfg((tmp_path / "views" / "views" / "nvtx_ranges.cfg").read_text())
    assert narrow.windows[0].filters["evt_type"] == Filter("=", (NVTX, OWN_NVTX))
    assert replace(narrow, windows=narrow.windows[1:]) == replace(
        VIEWS["views/nvtx_ranges.cfg"].cfg, windows=narrow.windows[1:]
    )
    for unchanged in ("extra/basics/nvtx_mark.cfg", "views/cuda_activities.cfg"):
        assert (tmp_path / "views" / unchanged).read_text() == format_cfg(VIEWS[unchanged].cfg)


@pytest.mark.parametrize(
    ("tasks", "threads", "timeline", "by_task", "table"),
    [(2, 30, 510, 250, 256), (16, 208, 860, 300, 578)],
)
def test_views_written_for_a_trace_are_as_high_as_its_rows_need(
    tasks: int, threads: int, timeline: int, by_task: int, table: int, tmp_path: Path
) -> None:
    path = _write_views(tmp_path, HEADER + f"2:1:1:1:1:5:{KERNEL}:1\n")
    path.with_suffix(".row").write_text(f"LEVEL TASK SIZE {tasks}\n\nLEVEL THREAD SIZE {threads}\n")
    assert main(["cfgs", "--for", str(path), str(tmp_path / "views")]) == 0
    heights = {
        view: [
            int(height)
            for height in re.findall(
                r"^(?:window_height|Analyzer2D\.Height:) (\d+)$",
                (tmp_path / "views" / view).read_text(),
                re.MULTILINE,
            )
        ]
        for view in ("views/kernel_duration.cfg", "views/nccl_wait.cfg", "model/Device_State.cfg")
    }
    assert set(heights["views/kernel_duration.cfg"]) == {timeline}
    assert set(heights["views/nccl_wait.cfg"]) == {by_task}
    assert heights["model/Device_State.cfg"][-1] == table


#: Tables that Paraver opens without a question on some traces that they show nothing of: efficiencies
#: of devices that never compute are 0 %, NCCL's types lie among those of NVTX ranges, and of NVLink's
#: metrics a GPU has some or others.
OPENED = {
    "model/device_communication_efficiency.cfg",
    "model/device_load_balance.cfg",
    "model/device_parallel_efficiency.cfg",
    "analysis/nvtx_time_2dh.cfg",
    "extra/analysis/nccl_call_category_time_2dh.cfg",
    "extra/analysis/nccl_operation_category_time_2dh.cfg",
    "extra/analysis/nvtx_pushpop_calls_2dh.cfg",
    "extra/analysis/nvtx_pushpop_time_2dh.cfg",
}


def test_no_table_opens_silently_with_figures_of_something_else(
    trace: tuple[Path, list[str]],
) -> None:
    """Whatever kind of event a trace lacks: Paraver asks, or the table's columns leave out 0, as
    which all of the time would count.
    """
    contents = TraceContents(trace[0]).whole
    tables = {
        path: view
        for path, view in VIEWS.items()
        if view.cfg.histogram is not None and not (view.cfg.histogram.columns.first or 0) > 0
    }
    states = {path for path in tables if "/state_" in path}
    silent = set()
    for layout in load_catalogue().layouts.values():
        lacking = contents.types & {field.code for field in layout.fields}
        left = contents.types - lacking
        values = frozenset(pair for pair in contents.values or () if pair[0] in left)
        without = replace(contents, types=left, filled=contents.filled - lacking, values=values)
        if lacking:
            silent |= {
                path
                for path, view in tables.items()
                if explain_empty_view(view, without, {}) and not find_reason_to_ask(view.cfg, left)
            }
    assert silent - states - OPENED == set()


def test_paraver_opens_views_without_a_question_that_show_something_of_one_kind_alone() -> None:
    """Three timelines of which a trace has one, too."""
    questioned = set()
    for layout in load_catalogue().layouts.values():
        if all(isinstance(field.code, int) for field in layout.fields) and layout.fields:
            codes = frozenset(field.code for field in layout.fields)
            contents = Contents(codes, codes, frozenset())
            questioned |= {
                path
                for path, view in VIEWS.items()
                if not explain_empty_view(view, contents, {})
                and find_reason_to_ask(view.cfg, codes)
            }
    assert questioned == set()


# ------------------------------------------------------------------------------------------------------ workspaces
@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> list[ElementTree.Element]:
    """The workspaces in a home directory that had one of its own, installed twice."""
    home = tmp_path_factory.mktemp("home")
    file = home / ".paraver" / "workspaces.xml"
    file.parent.mkdir()
    own = Workspace("my <own>", 1, [(1, "AQAAAAUAAAA=")], [("a & b.cfg", "A")])
    file.write_text(load_environment().get_template(file.name).render(spaces=[own]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        for _ in range(2):
            install_views()
    spaces = ElementTree.parse(file).getroot().findall("*/workspaces/item/second")
    names = ElementTree.parse(file).getroot().iterfind("*/workspacesOrder/item")
    assert [one.text for one in names] == [one.findtext("name") for one in spaces]
    assert spaces[-1].findtext("autoTypes/item/WorkspaceValue").strip() == "AQAAAAUAAAA="
    assert (spaces[-1].findtext("name"), spaces[-1].findtext("type")) == ("my <own>", "1")
    assert spaces[-1].findtext("hintCFGs/item/first") == "a & b.cfg"
    return spaces[:-1]


def _list_types(space: ElementTree.Element) -> set[int]:
    stored = (base64.b64decode(one.text) for one in space.iter("WorkspaceValue"))
    kinds, types = zip(*(struct.unpack("<iI", one) for one in stored), strict=True)
    assert set(kinds) == {2}
    return set(types)


def _is_offered(view: View, present: Collection[int]) -> bool:
    """Return whether Paraver has a view in its menu, not grey: where a trace has any event type of it."""
    singles = [window for window in view.cfg.windows if isinstance(window, Single)]
    return not any(one.types.values for one in singles) or any(
        min(one.types.values) <= code <= max(one.types.values)
        if one.types.condition == "[x,y]"
        else code in one.types.values
        for one in singles
        for code in present
        if one.types.values
    )


@pytest.mark.parametrize("trace", [*SAMPLES, "machine", "mpi"], indirect=True)
@pytest.mark.parametrize("of_trace", [True, False], ids=["for the trace", "for all"])
def test_every_entry_of_the_menus_shows_something(
    of_trace: bool, trace: tuple[Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder, count, _ = install_views(trace[0] if of_trace else None)
    spaces = ElementTree.parse(folder.parent / "workspaces.xml").iterfind(
        "*/workspaces/item/second"
    )
    present = TraceContents(trace[0]).whole.types
    lacking = {fit.path: fit.lacking for fit in find_views_for_trace(trace[0])}
    menus = {
        space.findtext("name").removeprefix("nsys2prv "): [
            str(Path(one.text).relative_to(folder)) for one in space.iterfind("hintCFGs/item/first")
        ]
        for space in spaces
        if _list_types(space) & present
    }
    offered = {
        path
        for group in menus.values()
        for path in group
        for one in (path, *(VIEWS[path].opens_if if of_trace else ()))
        if _is_offered(VIEWS[one], present)
    }
    assert offered
    assert [path for path in offered if lacking[path]] == []
    if of_trace:
        of_menus = {path for group in load_views().menus.values() for path in group}
        assert offered == {path for path in of_menus if not lacking[path]}
        assert count == len(offered)
    for title, group in menus.items():
        assert group == [path for path in load_views().menus[title] if path in group]
        assert all((folder / path).is_file() for path in group)


def test_a_workspace_opens_what_shows_something_and_zooms_it_together(
    trace: tuple[Path, list[str]],
) -> None:
    shown = {fit.path for fit in find_views_for_trace(trace[0]) if not fit.lacking}
    texts = make_views(trace[0])
    spaces = [view for view in VIEWS.values() if view.opens]
    assert len(spaces) == 3
    for space in spaces:
        members = [VIEWS[one] for one in (*space.opens, *space.opens_if) if one in shown]
        cfg = read_cfg(texts[space.path])
        assert len(cfg.tables) == sum(view.cfg.histogram is not None for view in members) > 0
        assert [table.title for table in cfg.tables] == [
            view.cfg.histogram.title for view in members if view.cfg.histogram
        ]
        assert any(window.look.shown for window in cfg.windows)
        assert {window.look.group for window in cfg.windows} == {1}
        assert texts[space.path].count("Analyzer2D.Synchronize: 1\n") == len(cfg.tables)
        # Side by side, on a screen of 1920 × 1080 pixels.
        lines = texts[space.path].splitlines()
        places = {
            name: [
                int(line.rpartition(" ")[2])
                for line in lines
                if line.startswith(f"Analyzer2D.{name}: ")
            ]
            for name in ("X", "Y", "Width", "Height")
        }
        corners = [*zip(*places.values(), strict=True)]
        assert all(x + width <= 1920 and y + height <= 1200 for x, y, width, height in corners)
        assert len({corner[:2] for corner in corners}) == len(corners)


def test_workspaces_are_those_of_the_menus(installed: list[ElementTree.Element]) -> None:
    for space in installed:
        title = space.findtext("name").removeprefix("nsys2prv ")
        views = {VIEWS[path].title for path in load_views().menus[title]}
        assert {item.findtext("second") for item in space.iterfind("hintCFGs/item")} <= views
        # Those of what few traces have are not offered on others.
        assert (not _list_types(space) & {KERNEL, API, GRAPH, 63000001}) == (
            title in ("4 MPI", "8 GPU metrics", "9 CPU and host")
        ), title


@pytest.mark.parametrize(("longer", "shown"), [(1, 6), (2, 5)], ids=["most time", "bimodal"])
def test_durations_open_on_the_matrix_product_that_tells_most(
    longer: int,
    shown: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    lines = []
    # Kernel, class (1: matrix products), begin, end.
    for kernel, of_class, begin, end in (
        (7, 11, 0, 90000),
        (6, 1, 210, 5000),
        *(
            (5, 1, 6000 + 100 * at, 6010 + 100 * at + 10 * (longer - 1) * (at % 2))
            for at in range(90)
        ),
    ):
        cpu = 1 + (of_class == 1)
        lines.append((begin, f"2:{cpu}:1:1:{cpu}:{begin}:{KERNEL}:{kernel}:63000060:{of_class}"))
        lines.append((end, f"2:{cpu}:1:1:{cpu}:{end}:{KERNEL}:0:63000060:0"))
    path = tmp_path / "o.prv"
    path.write_text(HEADER + "".join(f"{line}\n" for _, line in sorted(lines)))
    assert find_kernel_to_show(path) == shown
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["cfgs", "--view", "kernel-duration-3dh", "--for", str(path)]) == 0
    view = Path(capsys.readouterr().out.strip()).read_text()
    assert view.endswith(f"Analyzer2D.3D_FixedValue: {shown}\n")


def test_a_view_opens_at_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["cfgs", "--view", "nccl_wait", "--time", "1.5:1500.2ms"]) == 0
    lines = Path(capsys.readouterr().out.strip()).read_text().splitlines()
    assert "window_begin_time 1500000000" in lines
    assert "window_stop_time 1500200000" in lines
    assert main(["cfgs", "--view", "nccl_wiat"]) == 2
    assert "did you mean nccl_wait?" in capsys.readouterr().err
    (tmp_path / ".paraver" / "workspaces.xml").write_text("<boost")
    assert main(["cfgs", "--install"]) == 1
    assert "workspaces.xml: Paraver's workspaces cannot be read" in capsys.readouterr().err
    assert (tmp_path / ".paraver" / "workspaces.xml").read_text() == "<boost"
