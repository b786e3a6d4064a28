"""Test the Paraver views: they are made from their catalogue, valid in Paraver's grammar, and use
existing event types.

``test_views_in_paraver.py`` tests how Paraver reads them.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import make_views
import pytest
import yaml
from make_views import find_stray_views, make_files
from msgspec.structs import replace
from tools.view_reader import read_cfg
from view_catalogue import CATALOGUE, MENUS, load_menus, load_views
from view_catalogue import load_codes as codes_named
from view_checks import check_view, load_checked_views
from view_conditions import CfgError

from nsys2prv import Options, convert
from nsys2prv.events import all_kinds
from nsys2prv.events.catalogue import (
    FIRST_HASHED_DOMAIN,
    FORBIDDEN_DOMAINS,
    LAST_HASHED_DOMAIN,
    DomainCode,
    find_hashed_types,
    load_catalogue,
    load_counter_tables,
)
from nsys2prv.match import all_relations
from nsys2prv.writers.paraver.cfg import (
    Cfg,
    Composed,
    Filter,
    Function,
    Histogram,
    HistogramColumns,
    Look,
    Single,
    View,
    choose_first_views,
    format_cfg,
)
from nsys2prv.writers.paraver.pcf import list_codes

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "cfgs"
VIEWS = load_checked_views(FOLDER / CATALOGUE)
BY_PATH = {view.path: view for view in VIEWS}
KERNEL, NCCL, GRAPH, MEMORY = 63000006, 63000007, 63000008, 63000001
FIXED_DOMAINS = [(name, number) for number, name in enumerate(load_catalogue().domains)]
OWN_DOMAINS = [
    ("own", number)
    for number in range(FIRST_HASHED_DOMAIN, LAST_HASHED_DOMAIN + 1)
    if number not in FORBIDDEN_DOMAINS
]


# ----------------------------------------------------------------------------------------------- files and catalogue
def test_files_are_those_of_the_catalogue() -> None:
    files = make_files(VIEWS, FOLDER)
    old = [
        str(path)
        for path, text in files.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    assert not old, "not current: run python tools/make_views.py"
    assert find_stray_views(VIEWS, FOLDER) == []


def test_menus_are_short_and_lead_to_views_of_the_core() -> None:
    result = load_menus(FOLDER / CATALOGUE)
    assert [title.split()[0] for title in result] == list("123456789")
    for title, group in result.items():
        assert 0 < len({view.path for view in group}) == len(group) <= 20, title
        assert all(view.is_core for view in group), title
    assert sum(view.is_core for view in VIEWS) <= 90


def test_views_of_files_are_those_of_menus(tmp_path: Path) -> None:
    text = "codes: {first: 63000006, second: 63000007}\nviews:\n" + "".join(
        f"  basics/{name}: {{title: {name}, shows: {name}, unit: k, types: {name}}}\n"
        for name in ("first", "second")
    )
    for number, (listed, wrong) in enumerate(
        {
            "basics/first": "basics/second",
            "basics/first, basics/second, basics/third": "basics/third",
        }.items()
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        write_view(folder, text)
        (folder / CATALOGUE / MENUS).write_text(f"menus: {{1 One: [{listed}]}}\n")
        with pytest.raises(CfgError, match=f"name each view of a file here.*: {wrong}"):
            load_views(folder / CATALOGUE)


def test_every_field_and_metric_that_is_declared_has_a_timeline() -> None:
    codes = {
        field.code
        for layout in load_catalogue().layouts.values()
        for field in layout.fields
        if isinstance(field.code, int)
    }
    codes |= {
        code
        for layout in ("gpu_metric", "network_metric")
        for code in load_counter_tables()[layout].labels
    }
    shown = {
        code
        for view in VIEWS
        if view.cfg.histogram is None and len(view.cfg.windows) == 1
        for code in _list_types(view)
    }
    assert codes - shown == set()


def test_no_two_views_show_the_same() -> None:
    """But for their names and what is said of them, and those that open others."""
    same: dict[object, list[str]] = {}
    for view in (one for one in VIEWS if not one.opens):
        windows = [replace(window, title="", look=Look()) for window in view.cfg.windows]
        table = view.cfg.histogram and replace(view.cfg.histogram, title="")
        same.setdefault(str((windows, table)), []).append(view.path)
    assert [paths for paths in same.values() if len(paths) > 1] == []


def test_timelines_of_codes_mix_them_when_zoomed_out_and_rates_are_averaged() -> None:
    for view in VIEWS:
        for window in view.cfg.windows:
            if not (isinstance(window, Single) and window.guards):
                at_random = window.look.draw == "draw_randnotzero"
                of_its_moment = window.look.draw == "draw_last"
                assert of_its_moment or at_random == (window.look.style == "code"), view.path
    looks = {
        path: BY_PATH[path].cfg.windows[-1].look.draw
        for path in (
            "hwcounters/sm_active.cfg",
            "hwcounters/nic_bytes_sent.cfg",
            "views/kernel_duration.cfg",
            "views/nccl_wait.cfg",
        )
    }
    assert list(looks.values()) == ["draw_average", "draw_average", "draw_maximum", "draw_maximum"]


def test_gaps_below_a_pixel_are_as_dark_as_they_are_short() -> None:
    windows = BY_PATH["analysis/idle_gaps_2dh.cfg"].cfg.windows
    [gaps] = (window for window in windows if window.look.shown)
    assert gaps.look.draw == "draw_last"
    lengths = dict(load_catalogue().value_sets["names_of_views"].labels)
    assert set(gaps.look.colors) == {code for code in lengths if 1_000_100 < code < 1_000_200}
    brightness = [
        0.3 * red + 0.6 * green + 0.1 * blue
        for _, (red, green, blue) in sorted(gaps.look.colors.items())
    ]
    assert brightness == sorted(brightness)
    assert brightness[0] < 25
    assert brightness[-1] > 200


def test_views_of_menus_need_what_is_written_by_default(tmp_path: Path) -> None:
    shutil.copytree(FOLDER / CATALOGUE, tmp_path / CATALOGUE)
    kernels = tmp_path / CATALOGUE / "cuda_kernels.yaml"
    kernels.write_text(kernels.read_text().replace("types: kernel class", "types: Kernel GrdX", 1))
    with pytest.raises(CfgError, match=r"kernel_class.cfg: the menu 5 Kernels is for views"):
        load_checked_views(tmp_path / CATALOGUE)


#: Event types on which Paraver offers views of its own in the menu Hints, as its `workspaces.xml` has them,
#: and those of them that mean here what they mean there.
TYPES_OF_HINTS = {
    *(9200001, 30000000, 40000003, 40000033, 42000050, 50000001, 50000002, 50000003, 54000006),
    *(60000018, 60000019, 63000000, 63000001, 63100000, 69000000, 70000001, 90000001),
    *range(94000001, 94000008),
}
OF_THE_SAME_MEANING = {50000001, 50000002, 50000003, 63000000, 63000001, 70000001}


def test_no_event_type_is_taken_for_one_of_another_meaning() -> None:
    assert _list_codes() & TYPES_OF_HINTS == OF_THE_SAME_MEANING
    for first, last in find_hashed_types().values():
        assert not any(first <= code <= last for code in TYPES_OF_HINTS)
    # Extrae's events of GASPI, as those that it writes are called.
    assert not any(69000000 <= code < 69100000 for code in _list_codes())


def write_view(folder: Path, text: str) -> None:
    (folder / CATALOGUE).mkdir()
    (folder / CATALOGUE / "own.yaml").write_text(text)


def test_the_command_writes_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "cfgs"
    folder.mkdir()
    shutil.copytree(FOLDER / CATALOGUE, folder / CATALOGUE)
    (folder / "mine.cfg").write_text("#ParaverCFG\n")
    assert make_views.main([str(folder)]) == 0
    assert "mine.cfg" in capsys.readouterr().err
    core = [view for view in VIEWS if view.is_core]
    assert [(folder / view.path).read_text(encoding="utf-8") for view in core] == [
        format_cfg(view.cfg) for view in core
    ]


def test_the_command_names_the_view_that_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "codes: {kernel: 63000006}\nviews:\n  basics/k: {title: K, shows: k, unit: k, types: kernel, compose_thread: Maximum}\n"
    write_view(tmp_path, text)
    assert make_views.main([str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert "basics/k" in error
    assert "compose_thread: no function 'Maximum' of this group" in error


FAMILY = """
codes: {kernel: 63000006, NCCL: 63000007}
views: {}
families:
  - members:
      - {name: k, words: Kernels, types: kernel, more: {look: gradient, level: task}}
      - {name: n, words: NCCL kernels, types: [kernel, NCCL], more: {}}
    views:
      "basics/{name}": {title: "{words} now", shows: "{words}.", unit: "{words}", types: "{types}", "{more}": ""}
"""


def test_a_family_makes_a_view_of_each_member(tmp_path: Path) -> None:
    write_view(tmp_path, FAMILY)
    first, second = load_views(tmp_path / CATALOGUE)
    assert [(view.path, view.title, view.shows) for view in (first, second)] == [
        ("basics/k.cfg", "Kernels now", "Kernels."),
        ("basics/n.cfg", "NCCL kernels now", "NCCL kernels."),
    ]
    assert [view.cfg.windows[0].filters["evt_type"].values for view in (first, second)] == [
        (KERNEL,),
        (KERNEL, NCCL),
    ]
    assert [
        (view.cfg.windows[0].look.style, view.cfg.windows[0].level) for view in (first, second)
    ] == [("gradient", "task"), ("code", "thread")]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("name: n", "name: k", "another view has this path"),
        ("words: NCCL kernels", "words: Kernels", "another view has the title"),
        ("words: NCCL kernels, ", "", "'words'"),
    ],
)
def test_members_that_do_not_fit_their_family_are_refused(
    tmp_path: Path, old: str, new: str, problem: str
) -> None:
    write_view(tmp_path, FAMILY.replace(old, new, 1))
    with pytest.raises(CfgError, match=problem):
        load_checked_views(tmp_path / CATALOGUE)


def test_views_read_back_as_they_were_meant() -> None:
    assert [view.path for view in VIEWS if read_cfg(format_cfg(view.cfg)) != view.cfg] == []


# ------------------------------------------------------------------------------------------------------- event types
def test_event_types_are_those_of_the_events() -> None:
    known, tags = _list_codes(), {line.tag for line in load_catalogue().lines.values()}
    for view in VIEWS:
        assert set(_list_types(view)) <= known, view.path
        for window in _list_singles(view):
            assert set(window.filters.get("tag_msg", Filter("All")).values) <= tags, view.path
            if window.types.condition == "[x,y]":
                first, last = window.types.values
                assert first in known, view.path
                assert last in known or last == _find_last_nvtx(), view.path


def test_event_types_are_named_by_layout_and_field(tmp_path: Path) -> None:
    """So that a number stands in one place. Plain numbers are left where types have a series of
    them, or are BSC's and not translated.
    """
    write_view(
        tmp_path,
        "codes: {kernel: {cuda_kernel: kernel}, SMs: {gpu_metric: 'SMs Active [Throughput %]'}, both: [7, {cuda_api: call}]}",
    )
    assert codes_named(tmp_path / CATALOGUE) == {
        "kernel": (KERNEL,),
        "SMs": (9403,),
        "both": (7, 63000000),
    }
    topics = (
        yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        for path in (FOLDER / CATALOGUE).glob("*.yaml")
        if path.name == "codes.yaml"
    )
    plain = {
        number for topic in topics for number in topic["codes"].values() if isinstance(number, int)
    }
    fields = {field.code for layout in load_catalogue().layouts.values() for field in layout.fields}
    assert (
        plain
        & (fields | {code for table in load_counter_tables().values() for code in table.labels})
        == set()
    )


@pytest.mark.parametrize(
    "spec",
    [
        "{cuda_kernel: name}",
        "{kernel: kernel}",
        "{nvtx_pushpop: range}",
        "{gpu_metric: SMs Active}",
        "x",
    ],
)
def test_event_types_that_are_not_there_are_refused(spec: str, tmp_path: Path) -> None:
    write_view(tmp_path, f"codes: {{k: {spec}}}")
    with pytest.raises(CfgError, match=r"own\.yaml: event type 'k'"):
        codes_named(tmp_path / CATALOGUE)


def test_lines_of_messages_are_told_by_the_tags_they_do_not_have() -> None:
    (window,) = BY_PATH["views/mpi_messages.cfg"].cfg.windows
    assert window.filters["tag_msg"] == Filter(
        "!=", tuple(sorted(line.tag for line in load_catalogue().lines.values() if line.tag))
    )


def test_nvtx_views_show_all_domains() -> None:
    for layout, paths in {
        "nvtx_mark": ("extra/basics/nvtx_mark.cfg",),
        "nvtx_pushpop": (
            "views/nvtx_ranges.cfg",
            "analysis/nvtx_time_2dh.cfg",
            "extra/analysis/nvtx_pushpop_calls_2dh.cfg",
        ),
    }.items():
        fields = {field.name: field.code for field in load_catalogue().layouts[layout].fields}
        first = next(iter(fields.values()))
        known = {first.code_of(*domain) for domain in FIXED_DOMAINS}
        for path in paths:
            assert set(_list_types(BY_PATH[path])) == known | {fields["own"]}, path
    (any_domain,) = codes_named(FOLDER / CATALOGUE)["NVTX on GPU"]
    for path in ("views/nvtx_on_gpu.cfg", "analysis/nvtx_on_gpu_time_2dh.cfg"):
        assert set(_list_types(BY_PATH[path])) == {any_domain}, path


@pytest.mark.slow
def test_every_kind_of_event_has_a_view_to_open_first() -> None:
    """Where any view is of its types: those of samples of plugins and of payloads depend on the
    program.
    """
    viewed = {code for view in VIEWS for code in _list_types(view)}
    for kind in (*all_kinds(), *all_relations()):
        for layout in kind.layouts:
            labels = load_counter_tables()[layout].labels if layout in load_counter_tables() else {}
            types = list_codes({layout: -1}, {"own": LAST_HASHED_DOMAIN}) | set(labels)
            assert choose_first_views(types) or not types & viewed, layout


def test_views_to_open_first_come_in_their_order() -> None:
    order = sorted((view for view in VIEWS if view.first), key=lambda view: (view.first, view.path))
    assert [view.path for view in order[:2]] == [
        "views/cuda_activities.cfg",
        "views/nvtx_ranges.cfg",
    ]
    assert list(choose_first_views(_list_codes())) == [view.path for view in order[:5]]
    assert list(choose_first_views({9403})) == ["hwcounters/sm_active.cfg"]
    assert choose_first_views({1}) == {}


def _list_codes() -> set[int]:
    """Return every event type that there may be."""
    fields = [field for layout in load_catalogue().layouts.values() for field in layout.fields]
    plain = {field.code for field in fields if not isinstance(field.code, DomainCode)}
    by_domain = [field.code for field in fields if isinstance(field.code, DomainCode)]
    plain |= {code for table in load_counter_tables().values() for code in table.labels}
    plain |= {code for ends in find_hashed_types().values() for code in ends}
    return plain | {
        code.code_of(*domain) for code in by_domain for domain in FIXED_DOMAINS + OWN_DOMAINS
    }


def _find_last_nvtx() -> int:
    codes = [field.code for layout in load_catalogue().layouts.values() for field in layout.fields]
    return max(
        code.code_of(*domain)
        for code in codes
        if isinstance(code, DomainCode)
        for domain in (*FIXED_DOMAINS, OWN_DOMAINS[-1])
    )


def _list_singles(view: View) -> Iterator[Single]:
    return (window for window in view.cfg.windows if isinstance(window, Single))


def _list_types(view: View) -> list[int]:
    """Return event types that windows of the view name one by one."""
    return [
        int(code)
        for window in _list_singles(view)
        if window.types.condition == "="
        for code in window.types.values
    ]


# ----------------------------------------------------------------------------------------- what Paraver would not take
WINDOW = Single(
    "kernels",
    functions={"thread": Function("Last Evt Val")},
    filters={"evt_type": Filter("=", (KERNEL,))},
)
OTHER = replace(WINDOW, title="memory", filters={"evt_type": Filter("=", (MEMORY,))})
BOTH = Composed("both", operation="add", parents=(1, 2))
TABLE = Histogram("table", 1, 2, "Time")
GOOD = Cfg("Kernels and memory operations.", (WINDOW, OTHER, BOTH))


def _make_view_with(window: Single | Composed, **changes: object) -> Cfg:
    return replace(
        GOOD,
        windows=tuple(
            replace(item, **changes) if item is window else item for item in GOOD.windows
        ),
    )


WRONG = {
    "no function 'Stacked Val' of this group": _make_view_with(
        WINDOW, functions={"thread": Function("Stacked Val")}
    ),
    "no place 'thread' for a function": _make_view_with(
        BOTH, functions={"thread": Function("Last Evt Val")}
    ),
    "Prod takes 1 parameters": _make_view_with(WINDOW, functions={"topcompose1": Function("Prod")}),
    "no operation 'subtract'": _make_view_with(BOTH, operation="subtract"),
    r"parents \(1, 3\) are not windows before it": _make_view_with(BOTH, parents=(1, 3)),
    "no level 'tasks'": _make_view_with(WINDOW, level="tasks"),
    "level thread is finer than those of its parents": replace(
        GOOD, windows=(replace(WINDOW, level="task"), replace(OTHER, level="task"), BOTH)
    ),
    "ascending numbers": _make_view_with(WINDOW, look=Look("gradient", scale=(100.0, 0.0))),
    "a look without a scale": _make_view_with(WINDOW, look=Look(scale=(0.0, 100.0))),
    "no condition '=='": _make_view_with(WINDOW, filters={"evt_type": Filter("==", (KERNEL,))}),
    "3 values for": _make_view_with(WINDOW, filters={"evt_type": Filter("[x,y]", (1, 2, 3))}),
    "not within 1..2147483647": _make_view_with(
        WINDOW, filters={"evt_type": Filter("=", (2**31,))}
    ),
    "the range of event types is empty": _make_view_with(
        WINDOW, filters={"evt_type": Filter("[x,y]", (NCCL, KERNEL))}
    ),
    "title 'a/b'": _make_view_with(WINDOW, title="a/b"),
    "looks like a part of the view": replace(GOOD, description="window_name x"),
    "no window": Cfg("nothing", ()),
    "no statistic 'Times'": replace(GOOD, histogram=replace(TABLE, statistic="Times")),
    "level thread is finer than the control window's task": replace(
        _make_view_with(WINDOW, level="task"), histogram=TABLE
    ),
    "window 1 is a parent of window 3": replace(GOOD, histogram=replace(TABLE, data=3)),
    "Time has a column of 0 where nothing is there": replace(GOOD, histogram=TABLE),
    "# Bursts has a column of 0 where nothing is there": replace(
        GOOD, histogram=replace(TABLE, statistic="# Bursts")
    ),
    "must be 0 where the columns' window is": replace(
        GOOD, histogram=replace(TABLE, statistic="Average value")
    ),
    "need a width and an order": replace(
        GOOD, histogram=replace(TABLE, columns=HistogramColumns(1.0, 3.0, 2.0))
    ),
}


@pytest.mark.parametrize("problem", WRONG)
def test_what_paraver_would_crash_on_or_misread_is_refused(problem: str) -> None:
    with pytest.raises(CfgError, match=problem):
        check_view(WRONG[problem])


def test_a_good_view_is_written_and_read() -> None:
    look = Look("gradient", "Seconds", True, False, "draw_average", {1: (0, 1, 2)}, 3, (0.5, 200.0))
    functions = {
        "thread": Function("Next Evt Val"),
        "topcompose1": Function("Is Equal (Sign)", ((1.0, 2.0),)),
    }
    table = replace(TABLE, columns=HistogramColumns(2.0, 0.0, 9.0), planes=3, sort=True)
    cfg = replace(
        _make_view_with(WINDOW, look=look, functions=functions, physical=True), histogram=table
    )
    assert read_cfg(format_cfg(cfg)) == cfg


def test_columns_that_views_compute_have_names_whatever_a_trace_holds(tmp_path: Path) -> None:
    """Labels are those of an event type; Paraver takes them from the .pcf though no kernel was
    traced.
    """
    (labels,) = (
        field.values.labels
        for field in load_catalogue().layouts["cuda_kernel"].fields
        if field.name == "tensor_cores"
    )
    named = dict(labels)
    for view in VIEWS:
        if view.cfg.histogram and (first := view.cfg.histogram.columns.first or 0) > 1_000_000:
            last = view.cfg.histogram.columns.last
            assert {int(first), int(last)} <= named.keys(), view.path
        # A column of 0 and 1 would be headed 1.
        assert not view.cfg.histogram or view.cfg.histogram.columns != HistogramColumns(1, 1, 1), (
            view.path
        )
    reports = sorted((ROOT / "sample_reports" / "cluster").glob("*.sqlite"))
    convert(reports, tmp_path / "mpi.prv", Options(kinds=("mpi",), jobs=1, quiet=True))
    text = (tmp_path / "mpi.pcf").read_text()
    assert "\n1000033 Outside MPI\n" in text
    assert str(KERNEL) not in text
