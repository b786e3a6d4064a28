"""Test the page in Chromium, with real mouse and keys: its contents, its reactions, and that it
loads nothing.
"""

import base64
import json
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from msgspec.structs import replace
from tools.studies import make_study_data
from tools.view_answers import SAMPLES

import nsys2prv
from nsys2prv._util.files import read_data_text
from nsys2prv.cli import main
from nsys2prv.show.finished_job import FinishedJob
from nsys2prv.show.page import WEB, join_modules, make_page, make_study_page
from nsys2prv.show.page.excerpts import choose_excerpts
from nsys2prv.show.study.formats import Study

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not on the PATH"),
]
path_of = Path(__file__).with_name
SCRIPT, QUOTED = "<script>document.title='caught'</script>", '" onmouseover="alert(1)" x=\''
IMAGE = "</title></style><img src=x onerror=alert(1)>{{7*7}}"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as engine:
        options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        started = engine.chromium.launch(executable_path=CHROMIUM, args=options)
        yield started
        started.close()


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_page(tmp_path_factory.mktemp("page"), SAMPLES["training"])


def write_page(folder: Path, reports: list[Path]) -> Path:
    page = folder / "page <i>.html"
    assert main(["report", *map(str, reports), "-q", "--html", str(page)]) == 0
    return page


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """Yield a function that opens a page; finally check that the console is empty and nothing was
    requested."""
    said: list[str] = []
    contexts = []

    def open_page(path: Path, **options: Any) -> Any:
        contexts.append(
            browser.new_context(
                **{"viewport": {"width": 1400, "height": 900}, "reduced_motion": "reduce"} | options
            )
        )
        page = contexts[-1].new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
        page.on(
            "request",
            lambda request: (
                said.append(request.url) if not request.url.startswith(("file:", "data:")) else None
            ),
        )
        page.goto(path.as_uri())
        page.locator("html[data-ready]").wait_for()
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert said == []


def read_tip(page: Any) -> str:
    return page.evaluate("(e => e && !e.hidden ? e.innerText : '')(document.querySelector('.tip'))")


def read_view(page: Any, root: str) -> tuple[float, float]:
    return tuple(page.evaluate(f"document.querySelector('{root}').timeline.view"))


def test_timeline_of_a_finding(training: Path, visit: Callable[..., Any]) -> None:
    """Hover names events, keys and the mouse move and zoom, and a click folds a rank."""
    page, root = visit(training), "#finding-2 .excerpt"
    page.locator("#finding-2").scroll_into_view_if_needed()
    canvas = page.locator(f"{root} canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    seen = set()
    for part in (0.3, 0.5, 0.7, 0.9):
        for y in (30, 45, 95, 240):
            page.mouse.move(box["x"] + part * box["width"], box["y"] + y)
            seen.add(read_tip(page).partition("\n")[0])
    assert len(seen) >= 4
    first = read_view(page, root)
    page.keyboard.press("w")
    zoomed = read_view(page, root)
    assert zoomed[1] - zoomed[0] < first[1] - first[0]
    page.keyboard.down("d")
    page.wait_for_timeout(300)
    page.keyboard.up("d")
    assert read_view(page, root)[0] > zoomed[0] + (zoomed[1] - zoomed[0]) * 0.06, "held keys repeat"
    page.keyboard.press("0")
    page.wait_for_timeout(300)
    assert read_view(page, root) == pytest.approx(first)
    page.keyboard.down("Shift")
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 240, steps=3)
    page.mouse.up()
    page.keyboard.up("Shift")
    assert read_view(page, root) == pytest.approx(first), (
        "what is selected is not zoomed to at once"
    )
    page.keyboard.press("z")
    page.wait_for_timeout(300)
    part = read_view(page, root)
    assert part[1] - part[0] < 0.5 * (first[1] - first[0])
    before = canvas.bounding_box()["height"]
    page.mouse.click(box["x"] + 30, box["y"] + 30)
    assert canvas.bounding_box()["height"] < before
    page.locator(f"{root} .tl-box").focus()
    page.keyboard.press(".")
    assert "duration" in page.inner_text(f"{root} div[aria-live]")
    page.get_by_role("button", name="in the whole timeline").nth(1).click()
    page.wait_for_timeout(900)
    assert read_view(page, "#whole") == pytest.approx(first)


def test_a_selection_says_what_sql_says(training: Path, visit: Callable[..., Any]) -> None:
    """Time, count, mean and longest of kernels, NCCL, copies and calls of two ranks in a selected time."""
    page, expected = visit(training), {}
    begin, end, lanes = 60_000_123, 171_234_567, (0, 2)
    launching = (
        "SELECT globalTid FROM CUPTI_ACTIVITY_KIND_RUNTIME r "
        "JOIN CUPTI_ACTIVITY_KIND_KERNEL USING (correlationId)"
    )
    tables = {
        "kernel": ("KERNEL", "k.shortName", "AND s.value NOT LIKE 'nccl%'"),
        "NCCL": ("KERNEL", "k.shortName", "AND s.value LIKE 'nccl%'"),
        "copy": ("MEMCPY", "1", ""),
        "call": ("RUNTIME", "k.nameId", f"AND globalTid IN ({launching})"),
    }
    first = "document.querySelector('#whole').timeline.data.getTrack({}, 'k').begin[0]"
    for lane in lanes:
        with sqlite3.connect(SAMPLES["training"][lane]) as export:
            of_kernels = "FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.shortName"
            (since,) = export.execute(
                f"SELECT min(start) {of_kernels} WHERE s.value NOT LIKE 'nccl%'"
            ).fetchone()
            since -= page.evaluate(first.format(lane))
            for sort, (table, name, condition) in tables.items():
                found = export.execute(
                    f"SELECT sum(min(k.end, ?2) - max(k.start, ?1)), count(*), sum(k.end - k.start), "
                    f"max(k.end - k.start) FROM CUPTI_ACTIVITY_KIND_{table} k JOIN StringIds s ON s.id = {name} "
                    f"WHERE k.start < ?2 AND k.end > ?1 {condition}",
                    (begin + since, end + since),
                ).fetchone()
                before = expected.get(sort, (0, 0, 0, 0))
                total = [one + (two or 0) for one, two in zip(before, found, strict=True)]
                expected[sort] = (*total[:3], max(before[3], found[3] or 0))
    page.evaluate(
        f"document.querySelector('#whole').timeline.selectArea({begin}, {end}, {[*lanes]})"
    )
    page.locator("#whole .selection tbody tr").first.wait_for()
    rows = page.evaluate(
        "[...document.querySelectorAll('#whole .selection tbody tr')]"
        ".map(row => [...row.cells].map(cell => cell.dataset.v ? Number(cell.dataset.v) : cell.textContent))"
    )
    said = dict.fromkeys(tables, (0, 0, 0, 0))
    for what, name, time, share, *more in rows:
        assert share == pytest.approx(time / (end - begin) / len(lanes), abs=1e-6)
        sort = "call" if what in ("CUDA API call", "CUDA synchronization") else what
        if sort in said and (sort != "copy" or "emset" not in name):
            count, mean, longest = more[:3]
            before = said[sort]
            total = (before[0] + time, before[1] + count, before[2] + count * mean)
            said[sort] = (*total, max(before[3], longest))
    # Hosts' clocks are corrected by up to 20 ppm.
    for sort, values in expected.items():
        assert said[sort] == pytest.approx(values, rel=5e-5), sort
    assert said["kernel"][1] > 1000


def test_shares_of_events_are_those_of_bins(training: Path, visit: Callable[..., Any]) -> None:
    """Compare the shares in pixel columns from single events with those from bins of analyses."""
    page = visit(training)
    page.locator("#whole canvas").scroll_into_view_if_needed()
    page.wait_for_timeout(400)
    differences = page.evaluate("""() => {
      const { data } = document.querySelector('#whole').timeline, found = [];
      for (const [key, division] of data.divisions) for (let bin = 0; bin < data.binCount; bin++) {
        const [lane, isHost] = key.split(' '), shares = [0, 0].map(() => data.binParts.map(() => 0));
        [division, data.binsOf.get(Number(lane)) ?? data.binsOf.get(lane)].forEach((source, number) => {
          if (isHost === 'true' || !source) return;
          source.addUntil((bin + 1) * data.duration / data.binCount, data.binCount / data.duration, shares[number]);
          source.addUntil(bin * data.duration / data.binCount, -data.binCount / data.duration, shares[number]);
        });
        if (shares[1].some(one => one)) found.push(...shares[0].map((one, part) => data.binParts[part].ofHost ? 0 : Math.abs(one - shares[1][part])));
      }
      return found;
    }""")
    assert len(differences) > 1000
    assert max(differences) < 0.01


def test_search_strip_and_iterations(training: Path, visit: Callable[..., Any]) -> None:
    page, whole = visit(training), "#whole"
    page.locator(f"{whole} input").fill("load_batch")
    assert page.inner_text(f"{whole} .tl-found").startswith("80 ")
    page.keyboard.press("Enter")
    assert "load_batch" in page.inner_text(f"{whole} div[aria-live]")
    assert page.inner_text(f"{whole} .tl-found").endswith(" of 80")
    page.locator(f"{whole} input").fill("/^(load|zero)_/")
    assert page.inner_text(f"{whole} .tl-found").startswith("160 ")
    page.locator(f"{whole} input").fill("100-120 ms")
    page.keyboard.press("Enter")
    page.wait_for_timeout(300)
    assert read_view(page, whole) == pytest.approx((100e6, 120e6))
    for name in ("streams", "all NVTX"):
        before = page.locator(f"{whole} canvas").bounding_box()["height"]
        rows = page.evaluate("document.querySelector('#whole').timeline.rows[0].height")
        page.locator(f"{whole} button", has_text=name).click()
        assert page.evaluate("document.querySelector('#whole').timeline.rows[0].height") > rows
        assert page.locator(f"{whole} canvas").bounding_box()["height"] >= before
    strip = page.locator("#strip canvas")
    strip.scroll_into_view_if_needed()
    box, before = strip.bounding_box(), read_view(page, whole)
    page.mouse.move(box["x"] + 600, box["y"] + 30)
    page.mouse.down()
    page.mouse.move(box["x"] + 760, box["y"] + 30, steps=3)
    page.mouse.up()
    page.wait_for_timeout(300)
    assert read_view(page, whole) != before
    bars = page.locator("#iteration-bars canvas")
    bars.scroll_into_view_if_needed()
    box = bars.bounding_box()
    # The longest one, in which a rank was held up.
    edges = page.evaluate("document.querySelector('#whole').timeline.data.iterations")
    lengths = [end - begin for begin, end in pairwise(edges)]
    longest, across = lengths.index(max(lengths)), box["width"] - 136
    page.mouse.move(box["x"] + 136 + across * (longest + 0.5) / len(lengths), box["y"] + 150)
    assert read_tip(page).startswith(f"iteration {longest + 1}\n")
    page.mouse.down()
    page.mouse.up()
    assert page.inner_text("#iteration-title").startswith(f"Iteration {longest + 1}: ")
    assert page.evaluate("document.querySelector('#iteration-timeline').timeline.marks.length") > 0
    heat = page.locator("#heat canvas").bounding_box()
    page.mouse.click(heat["x"] + 136 + 0.5 * (heat["width"] - 136) / 20, heat["y"] + 30)
    assert page.inner_text("#iteration-title").startswith("Iteration 1: ")


def test_tables_themes_and_print(training: Path, visit: Callable[..., Any]) -> None:
    page = visit(training)
    for _ in range(2):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    in_findings = "document.activeElement.closest('section').id"
    assert page.evaluate(in_findings) == "findings", "a link skips what is before them"
    page.fill("#kernel-filter", "gemm no")
    assert " of " in page.inner_text("#kernel-count")
    page.fill("#kernel-filter", "")
    page.click("#kernel-table th >> nth=3")
    counts = page.evaluate(
        "[...document.querySelectorAll('#kernel-table tbody tr')].map(row => Number(row.cells[3].dataset.v))"
    )
    assert counts == sorted(counts, reverse=True)
    tree = page.locator("details[data-source='operations.tree']")
    tree.locator("summary").click()
    tree.locator("tbody tr").nth(20).wait_for()
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    size = "{ const {width, height, clientWidth, clientHeight} = document.querySelector('.excerpt canvas'); printed = [width / clientWidth, height / clientHeight]; }"
    page.evaluate(f"addEventListener('beforeprint', () => {size})")
    assert len(page.pdf(print_background=True)) > 100_000
    assert page.locator(".excerpt canvas").count() == page.locator("article[data-moment]").count()
    across, down = page.evaluate("printed")
    assert across == pytest.approx(down, rel=0.01), "canvases are drawn for the width of the paper"
    page.evaluate("document.documentElement.classList.add('brief')")
    one = page.pdf(print_background=True, format="A4")
    assert len(re.findall(rb"/Type\s*/Page\b", one)) == 1, "the summary is one page"


def test_the_address_keeps_the_view(training: Path, visit: Callable[..., Any]) -> None:
    """Check that a reload shows the same, and that Back and Ctrl+Z undo one step after another."""
    page, root = visit(training), "#whole"
    timeline, views = "document.querySelector('#whole').timeline", []

    def note_step(part: str) -> None:
        page.wait_for_url(lambda url: part in url and url not in views)
        views.append(page.url)

    page.locator(f"{root} input").fill("/load_/")
    page.keyboard.press("Enter")
    note_step("&event=")
    page.wait_for_timeout(600)
    views[0], first = page.url, read_view(page, root)
    page.locator(f"{root} button", has_text="whole job").click()
    note_step("time=0-")
    page.evaluate(f"{timeline}.selectArea(60e6, 70e6, [0, 1, 3])")
    note_step("&selected=")
    page.click("#theme")
    note_step("&theme=dark")
    page.locator("nav a[href='#kernels']").click()
    page.wait_for_url(lambda url: "#kernels&" in url)
    page.reload()
    page.locator("html[data-ready]").wait_for()
    assert read_view(page, root)[0] == 0
    assert page.evaluate(f"{timeline}.area") == {"begin": 60e6, "end": 70e6, "lanes": [0, 1, 3]}
    assert page.evaluate(f"{timeline}.selected.i") >= 0
    assert page.input_value(f"{root} input") == "/load_/"
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate("scrollY") > 1000, "the section is part of the address"
    page.locator(f"{root} .tl-box").focus()
    for view, go in (
        (views[3], page.go_back),
        (views[2], lambda: page.keyboard.press("Control+z")),
        (views[1], page.go_back),
        (views[2], lambda: page.keyboard.press("Control+Shift+z")),
        (views[1], page.go_back),
        (views[0], page.get_by_role("button", name="undo").click),
    ):
        go()
        page.wait_for_url(view)
    assert page.evaluate("document.documentElement.dataset.theme") is None
    assert read_view(page, root) == pytest.approx(first, abs=1)


@pytest.mark.slow
def test_a_link_shows_what_was_shown(training: Path, visit: Callable[..., Any]) -> None:
    """Check that a copied link keeps streams, metrics, the place and the opened iteration, but not
    the colors.
    """
    page, root = visit(training), "#whole"
    page.click("#theme")
    page.locator(f"{root} button", has_text="streams").click()
    page.locator(f"{root} select[aria-label^=metrics]").select_option(index=3)
    page.evaluate("document.querySelector('#whole').timeline.box.scrollTop = 120")
    page.locator("#iteration-bars canvas").click(position={"x": 600, "y": 60})
    page.wait_for_url(lambda url: "iteration=" in url)
    look = """() => { const one = document.querySelector('#whole').timeline;
        return [one.options.streams, [...one.options.metrics], one.scroll,
            document.querySelector('#iteration-title').textContent]; }"""
    shown = page.evaluate(look)
    page.evaluate("navigator.clipboard.writeText = async text => { window.copied = text; }")
    page.locator(f"{root} button", has_text="copy link").click()
    link = page.evaluate("window.copied")
    page.goto("about:blank")
    page.goto(link)
    page.locator("html[data-ready]").wait_for()
    assert page.evaluate(look) == shown
    assert shown[0]
    assert shown[2] == 120
    assert page.evaluate("document.documentElement.dataset.theme ?? null") is None
    # What is no regular expression moves nothing, and leaves no text of the event before.
    page.locator(f"{root} .tl-box").focus()
    page.keyboard.press(".")
    before = read_view(page, root)
    page.locator(f"{root} input").fill("/[/")
    page.keyboard.press("Enter")
    assert read_view(page, root) == before
    assert page.locator(".tip").is_hidden()


def test_fingers(training: Path, visit: Callable[..., Any]) -> None:
    """Check that two fingers zoom a timeline, one moves it, and a tap selects an event."""
    page = visit(training, has_touch=True, viewport={"width": 420, "height": 900})
    canvas = page.locator("#whole canvas")
    canvas.scroll_into_view_if_needed()
    box, first = canvas.bounding_box(), read_view(page, "#whole")
    fingers = page.context.new_cdp_session(page)

    def touch(kind: str, *places: float) -> None:
        points = [{"x": box["x"] + x, "y": box["y"] + 40, "id": n} for n, x in enumerate(places)]
        fingers.send("Input.dispatchTouchEvent", {"type": f"touch{kind}", "touchPoints": points})

    touch("Start", 220, 260)
    for far in (10, 20, 30):
        touch("Move", 220 - far, 260 + far)
    touch("End")
    second = read_view(page, "#whole")
    assert second[1] - second[0] == pytest.approx((first[1] - first[0]) * 40 / 100, rel=0.02)
    touch("Start", 300)
    for far in (20, 40, 60):
        touch("Move", 300 - far)
    touch("End")
    third = read_view(page, "#whole")
    assert third[0] > second[0]
    assert third[1] - third[0] == pytest.approx(second[1] - second[0])
    page.touchscreen.tap(box["x"] + 300, box["y"] + 88)
    page.locator("#whole .event h3").wait_for()


@pytest.mark.parametrize("width", [1400, 420])
def test_nothing_is_wider_than_the_window(
    training: Path, visit: Callable[..., Any], width: int
) -> None:
    page = visit(training, viewport={"width": width, "height": 900}, color_scheme="dark")
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    page.wait_for_timeout(300)
    wider = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(wider) <= 0
    assert page.locator("#all-tables table").count() == page.locator("#all-tables details").count()


def test_a_difference_and_a_notebook(visit: Callable[..., Any], tmp_path: Path) -> None:
    """Check that iterations of two jobs move together, and that a frame shows the timeline of a
    finding.
    """
    training, difference = SAMPLES["training"][0].parent, tmp_path / "diff.html"
    assert main(["diff", str(training), str(training), "-q", "--html", str(difference)]) == 0
    page = visit(difference)
    read = "[...document.querySelectorAll('.aligned')].map(one => one.timeline.view)"
    page.locator(".aligned button", has_text="+").first.click()
    page.wait_for_timeout(300)
    first, second = page.evaluate(read)
    assert first == pytest.approx(second)
    assert second[1] - second[0] < 10_000_000
    assert page.locator("#findings tbody tr").count() >= 5
    with nsys2prv.open(SAMPLES["training"], jobs=1, quiet=True) as job:
        frame = job.timeline(finding=2)
        with pytest.raises(nsys2prv.Nsys2prvError, match="there are"):
            job.timeline(finding=99)
    cell = tmp_path / "cell.html"
    cell.write_text(
        f"<!doctype html><html data-ready=1><link rel=icon href='data:,'>{frame._repr_html_()}"
    )
    inner = visit(cell).frame_locator("iframe")
    inner.locator("html[data-ready]").wait_for()
    assert inner.locator(".excerpt canvas").count() == 1
    assert "rank" in inner.locator(".sentence").inner_text()


def test_modules(browser: Any) -> None:
    page = browser.new_page()
    script = path_of("modules.js").read_text(encoding="utf-8")
    # Colours of modules come from the page's style.
    page.add_style_tag(content=read_data_text(WEB, "page.css"))
    page.add_script_tag(content=join_modules(script))
    assert page.evaluate("failures") == []
    assert page.evaluate("checked") >= script.count("\ncheck("), "it ran to its end"
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("times", [1, 16], ids=["training", "64 ranks"])
def test_looks(times: int, scheme: str, visit: Callable[..., Any], tmp_path: Path) -> None:
    """Check that pages look about as before, from the gray of 64 x 40 parts of two screenshots.
    Delete entries of looks.json to accept a new look.
    """
    with nsys2prv.open(SAMPLES["training"], jobs=1, quiet=True) as job:
        results, described = job.analyse(), job.describe()
        excerpts = choose_excerpts(job, results) if times == 1 else None
    for name, table in results["time"].tables.items():
        # Each lane as often, on other hosts.
        frames = [
            table.frame.with_columns(
                pl.col("lane") + 4 * at
                if "lane" in table.frame.columns
                else pl.lit(f"n{at}").alias("node")
            )
            for at in range(times)
        ]
        results["time"].tables[name] = replace(table, frame=pl.concat(frames))
    path, looks = tmp_path / "page.html", path_of("looks.json")
    path.write_text(make_page(FinishedJob(described, results, excerpts)), encoding="utf-8")
    page = visit(path, color_scheme=scheme)
    known, shrink = json.loads(looks.read_text()), path_of("shrink.js").read_text()
    for place in ("summary", "timeline"):
        page.evaluate(f"document.querySelector('#{place}').scrollIntoView()")
        page.wait_for_timeout(400)
        shot = base64.b64encode(page.screenshot()).decode()
        grey = bytes(page.evaluate(shrink, f"data:image/png;base64,{shot}"))
        name = f"{times} {scheme} {place}"
        if name not in known:
            looks.write_text(json.dumps(known | {name: base64.b64encode(grey).decode()}, indent=0))
            known = json.loads(looks.read_text())
        before = np.frombuffer(base64.b64decode(known[name]), np.uint8).astype(int)
        assert abs(before - np.frombuffer(grey, np.uint8)).mean() < 8, name


def test_hostile_names_are_text(visit: Callable[..., Any], tmp_path: Path) -> None:
    changes = [
        ("NVTX_EVENTS SET text", "text = 'zero_grad'", SCRIPT),
        ("StringIds SET value", "value = 'forward'", SCRIPT),
        ("StringIds SET value", "value = 'optimizer'", QUOTED),
        ("StringIds SET value", "value LIKE 'nvjet%'", f"void {IMAGE}<x>(int)"),
        ("TARGET_INFO_SYSTEM_ENV SET value", "name = 'Hostname'", IMAGE),
    ]
    reports = [Path(shutil.copy(path, tmp_path)) for path in SAMPLES["training"][:2]]
    for path in reports:
        with sqlite3.connect(path) as export:
            for column, condition, name in changes:
                export.execute(f"UPDATE {column} = ? WHERE {condition}", (name,))
    page = visit(write_page(tmp_path, reports))
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    page.locator("#whole canvas").scroll_into_view_if_needed()
    box = page.locator("#whole canvas").bounding_box()
    for x in range(200, 1000, 60):
        page.mouse.move(box["x"] + x, box["y"] + 80)
    text = page.evaluate("document.body.textContent")
    assert IMAGE in text
    assert SCRIPT in text
    assert page.evaluate("document.images.length") == 0
    assert page.title().endswith(" - nsys2prv report")


def test_no_other_script_runs(training: Path, browser: Any, tmp_path: Path) -> None:
    other = tmp_path / "other.html"
    text = training.read_text(encoding="utf-8")
    other.write_text(text.replace("</main>", "</main><script>document.title = 'ran'</script>"))
    page = browser.new_page()
    page.goto(other.as_uri())
    assert page.title() != "ran"
    page.close()


def test_the_page_of_a_study(visit: Callable[..., Any], tmp_path: Path) -> None:
    """Check that runs without reports have plots, and that timelines of runs with reports move
    together.
    """
    path = tmp_path / "study.html"
    study = Study.from_dict(make_study_data())
    path.write_text(make_study_page(study, path), encoding="utf-8")
    page = visit(path, viewport={"width": 480, "height": 900})
    poor = "getComputedStyle(document.querySelector('td.p5')).backgroundColor"
    assert page.evaluate(poor) == "rgb(249, 193, 182)", "the policy lets its own style through"
    assert page.evaluate("document.documentElement.scrollWidth") <= 480
    assert page.locator("svg circle").count() > 40
    runs = [str(path.parent) for name in ("cluster", "training") for path in SAMPLES[name][:1]]
    assert main(["study", *runs, "-q", "--html", str(path)]) == 0
    page = visit(path)
    page.locator(".aligned button", has_text="+").first.click()
    page.wait_for_timeout(300)
    read = "[...document.querySelectorAll('.aligned')].map(({timeline}) => timeline.view[1] - timeline.view[0])"
    first, second = page.evaluate(read)
    assert first == pytest.approx(second)
