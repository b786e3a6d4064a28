"""Test that a page has the values of the JSON and the events of the reports, and needs nothing
outside it.
"""

import json
import math
import re
import sqlite3
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tools.exports import KERNEL, make_export, make_kernel, make_strings
from tools.pages import Page, list_references
from tools.view_answers import SAMPLES

import nsys2prv
from nsys2prv.cli import main
from nsys2prv.figures.result import DECLARED, Finding, group_findings
from nsys2prv.show.finished_job import FinishedJob
from nsys2prv.show.page import load_environment, make_job_page, make_page
from nsys2prv.show.page.data import encode_varints
from nsys2prv.show.page.events import read_collectives
from nsys2prv.show.page.excerpts import choose_excerpts
from nsys2prv.show.page.sections import list_signs, place_products
from nsys2prv.show.text import use_micro_sign

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module", params=["training", "cluster", "graphs", "machine"])
def page_and_json(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, dict]:
    """Return a page, and the JSON of the same run."""
    folder, job = tmp_path_factory.mktemp(request.param), ROOT / "sample_reports" / request.param
    page, data = folder / "r.html", folder / "r.json"
    assert main(["report", str(job), "-q", "--html", str(page), "--json", str(data)]) == 0
    return page.read_text(encoding="utf-8"), json.loads(data.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_the_page_has_what_the_json_has(page_and_json: tuple[str, dict]) -> None:
    text, data = page_and_json
    page = Page(text)
    (job,) = page.jobs
    drawn = {"metrics.map", "time.over_time", "time.by_iteration", "stacks.flame", "modules.flame"}
    known = {
        f"{analysis}.{name}": table["columns"]
        for analysis, one in data["analyses"].items()
        for name, table in one["tables"].items()
    }
    assert set(job.tables) == set(known) - drawn
    for source, columns in job.tables.items():
        for name, values in columns.items():
            for shown, value in zip(values, known[source][name], strict=False):
                expected = (
                    {True: "yes", False: "no"}.get(value, value)
                    if isinstance(value, bool)
                    else value
                )
                assert shown == (
                    pytest.approx(expected, rel=1e-5) if isinstance(expected, float) else expected
                )
    for finding in data["findings"]:
        assert use_micro_sign(finding["title"]) in page.text
    notes = [line for one in job.facts["tables"] for line in (*one["notes"], *one["missing"])]
    for name, one in data["analyses"].items():
        # Where few jobs have anything of an analysis, the page does not say that there is nothing.
        is_told = bool(one["tables"]) or not DECLARED[name].special
        assert not is_told or {*one["missing"], *one["notes"]} <= {*notes}
    for note in [*data["job"]["notes"], *data["job"]["warnings"]]:
        assert use_micro_sign(note) in page.text
    assert not [*list_references(text)]
    written = re.sub(r'class="data">[^<]*', "", text)
    assert not re.search(r"https?:|file:|xmlns|unsafe", written, re.IGNORECASE)
    shown = sorted(
        float(one["data-v"]) for tag, one in page.tags if tag == "li" and "data-v" in one
    )
    nodes = len(data["job"]["nodes"])
    tables = data["analyses"]["efficiencies"]["tables"]
    efficiencies = [
        column[0]
        for name in ("device", "host")
        for key, column in tables[name]["columns"].items()
        if key.endswith("efficiency") and (nodes > 1 or ("_in_" not in key and "_out_" not in key))
    ]
    assert shown == pytest.approx(sorted(one for one in efficiencies if one is not None))


def test_bar_tables_and_findings_agree(page_and_json: tuple[str, dict]) -> None:
    """Check that the parts of the time add up, and match the efficiencies."""
    text, data = page_and_json
    lanes = pl.DataFrame(data["analyses"]["time"]["tables"]["lanes"]["columns"])
    lanes = lanes.unique(["node", "device"]).drop_nulls("length_ns")
    parts = lanes.select(pl.exclude("rank", "node", "device", "paraver_task", "length_ns"))
    assert parts.sum_horizontal().to_list() == lanes["length_ns"].to_list()
    computing = (lanes["compute_ns"].sum() + lanes["both_ns"].sum()) / lanes["length_ns"].sum()
    assert f"compute for {100 * computing:.0f}% of" in text
    assert f"{computing:.1%} compute" in data["analyses"]["findings"]["notes"][0]
    shares = re.findall(r"<b>([\d.]+)%</b>", text.split('class="legend"')[1].split("</ul>")[0])
    assert sum(map(float, shares)) == pytest.approx(100, abs=0.6)


def test_bars_of_findings_compare_those_of_a_group(page_and_json: tuple[str, dict]) -> None:
    """Check that one-time costs have shares of the job, causes and limits of the steady state."""
    text, data = page_and_json
    findings = [*map(Finding.from_dict, data["findings"])]
    most = {name: max(0.01, *(one.share for one in own)) for name, own in group_findings(findings)}
    expected = [100 * one.share / most[one.group] for one in findings]
    widths = re.findall(r'class="f-mark" width="([\d.]+)"', text)
    assert [*map(float, widths)] == pytest.approx(expected, abs=0.06)


def test_calls_of_nccl_are_not_drawn_as_mpi(page_and_json: tuple[str, dict]) -> None:
    (job,) = Page(page_and_json[0]).jobs
    names = zip(job.facts["names"], job.facts["nameClasses"], strict=True)
    drawn = {job.facts["classes"][of] for name, of in names if name.startswith("nccl")}
    assert drawn <= {"nccl", "ncclcall", "nvtx"}


@pytest.mark.slow
@pytest.mark.parametrize("budget", [100_000, 3_000])
def test_events_are_those_of_the_reports(budget: int) -> None:
    """Check that the page has all events in the times that it covers, complete and unchanged."""
    with nsys2prv.open(SAMPLES["training"], jobs=1, quiet=True) as job:
        results = job.analyse()
        excerpts = choose_excerpts(job, results, budget)
        (data,) = Page(make_page(FinishedJob(job.describe(), results, excerpts))).jobs
        assert data.facts["carried"] <= 1.3 * budget
        layouts = {"k": "cuda_kernel", "n": "nccl_kernel", "m": "memory_operation"}
        frames = {kind: job.frame(layout) for kind, layout in layouts.items()}
        waits = job.frame("nccl_collective", "late", "wait").filter(pl.col("late") >= 0)
        for lane, cover in enumerate(data.facts["cover"]):
            inside = [(pl.col("begin") < end) & (pl.col("end") > begin) for begin, end in cover]
            assert inside
            for kind, frame in frames.items():
                events = data.read_track(lane, kind)
                known = frame.filter((pl.col("rank") == lane) & pl.any_horizontal(inside))
                shown = pl.DataFrame({name: events[name] for name in ("begin", "end")})
                shown = shown.filter(pl.any_horizontal(inside))
                assert shown.height == known.height > 0
                for name in ("begin", "end"):
                    assert shown[name].sort().to_list() == known[name].sort().to_list()
            if budget > 3_000:
                own = waits.filter(pl.col("rank") == lane)
                assert data.read_track(lane, "n")["wait"].sum() >= own["wait"].sum()
                assert data.read_track(lane, "h")["begin"].size > 1000


def test_maps_of_kernels_and_messages_have_what_sql_has() -> None:
    """Check the executions and time of the longest kernels by iteration, and the senders and
    receivers.
    """
    with nsys2prv.open(SAMPLES["training"], jobs=1, quiet=True) as job:
        found = choose_excerpts(job, job.analyse("findings", "time", "iterations"))
        steady = job.steady
    assert found is not None
    events, (begin, end) = found.events, (steady.iteration_begins[0], steady.end)
    assert events.edges.tolist() == [*steady.iteration_begins, steady.end]
    rank = 2
    own = events.kernels.filter(lane=rank).group_by("name").agg(pl.col("count", "time").sum())
    shift = "min(start) OVER () - ?1"
    query = f"""WITH k AS (SELECT value AS name, start - ({shift}) AS start, end - start AS time FROM
        CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = shortName WHERE value NOT LIKE 'nccl%')
        SELECT name, count(*), sum(time) FROM k WHERE start BETWEEN ?2 AND ?3 GROUP BY 1
        ORDER BY 3 DESC LIMIT 5"""
    first = int(events.tracks["k"].filter(lane=rank)["begin"][0])
    with sqlite3.connect(SAMPLES["training"][rank]) as export:
        expected = export.execute(query, (first, int(begin), int(end) - 1)).fetchall()
    # Names are shortened.
    most = sorted(own.rows(), key=lambda row: -row[2])
    for (name, count, time), (known, *values) in zip(most[:5], expected, strict=True):
        assert found.kernels[name][:12] == known[:12]
        assert [count, time] == pytest.approx(values, rel=5e-5)
    pairs = events.pairs.sort("from").rows()
    assert [(one, to, count) for one, to, count, *_ in pairs] == [
        (one, (one + 1) % 4, 20) for one in range(4)
    ]
    sent = events.messages.group_by("from").agg(pl.col("bytes").sum()).sort("from")["bytes"]
    assert [pair[3] for pair in pairs] == sent.to_list()


def test_metrics_are_on_one_scale() -> None:
    """Check that percentages are from 0 to 100 and are shown below their GPU."""
    name, lane = "GR Active [Throughput %]", 2
    with nsys2prv.open(SAMPLES["training"], jobs=1, quiet=True) as job:
        (data,) = Page(make_job_page(job)).jobs
    (metric,) = (one for one in data.facts["metrics"] if one["name"] == "GR Active [%]")
    assert (metric["top"], metric["unit"]) == (100, "%")
    assert sorted(place["lane"] for place in metric["places"]) == [0, 1, 2, 3]
    (at,) = (place["at"] for place in metric["places"] if place["lane"] == lane)
    shown = np.frombuffer(data.body[at : at + metric["columns"]], np.uint8)
    with sqlite3.connect(SAMPLES["training"][lane]) as export:
        (mean,) = export.execute(
            "SELECT avg(value) FROM GPU_METRICS JOIN TARGET_INFO_GPU_METRICS USING (typeId, metricId) "
            "WHERE metricName = ?",
            (name,),
        ).fetchone()
    assert (shown[shown > 0].mean() - 1) / 254 * 100 == pytest.approx(mean, abs=2)


def test_collectives_of_mpi_are_joined_over_ranks() -> None:
    """Check that no member waits after the arrival of the last one."""
    with nsys2prv.open(ROOT / "sample_reports" / "mpi", jobs=1, quiet=True) as job:
        (data,) = Page(make_job_page(job)).jobs
    tracks = [data.read_track(lane, "h") for lane in range(4)]
    calls = pl.concat([pl.DataFrame(track) for track in tracks]).filter(pl.col("collective") > 0)
    first, last = pl.col("begin").min(), pl.col("begin").max()
    whole = calls.filter((pl.len() == 4).over("collective"))
    assert whole.height > 40
    assert (
        whole["late"] == whole.select((pl.col("begin") - first).over("collective"))["begin"]
    ).all()
    limits = pl.min_horizontal("end", last.over("collective")) - pl.col("begin")
    assert whole.select(pl.col("wait") <= limits).to_series().all()
    assert (whole["wait"] > 0).sum() > 20


def test_mpi_calls_wait_as_the_tables_say() -> None:
    """Check that waits of calls on the page add up to the waits by rank, except waits for ranks
    outside MPI.
    """
    with nsys2prv.open(ROOT / "sample_reports" / "mpi", jobs=1, quiet=True) as job:
        results = job.analyse()
        (data,) = Page(
            make_page(FinishedJob(job.describe(), results, choose_excerpts(job, results)))
        ).jobs
        table = results["collectives"].tables["mpi_waiting"].frame
    for rank, own in table.group_by("waiting_rank"):
        lane = next(at for at, one in enumerate(data.facts["lanes"]) if one["who"] == rank[0])
        assert sum(data.read_track(lane, "h")["wait"]) == pytest.approx(
            own["wait_ns"].sum(), rel=0.01
        )


@pytest.mark.parametrize(("name", "signs"), [("mpi", ["wait", "message"]), ("graphs", ["message"])])
def test_the_legend_has_waits_and_messages(name: str, signs: list[str]) -> None:
    with nsys2prv.open(ROOT / "sample_reports" / name, jobs=1) as job:
        results = job.analyse("time", "findings")
        finished = FinishedJob(job.describe(), results, choose_excerpts(job, results))
    assert [colour for colour, _ in list_signs(finished)] == signs


def test_moments_have_the_times_of_their_reports() -> None:
    """Check that the report of the first culprit has a kernel at the start of a moment, where the
    page says, and that others wait at the collective which the page names.
    """
    with nsys2prv.open(SAMPLES["training"], jobs=1, quiet=True) as job:
        results = job.analyse()
        moments = [one for one in choose_excerpts(job, results).moments if one]
        collectives = read_collectives(job)
        frames = [job.frame(name) for name in ("cuda_kernel", "nccl_kernel")]
    kernels = pl.concat([frame.select("rank", "begin") for frame in frames])
    assert moments
    for moment in moments:
        rank = int(re.search(r"\d+", moment.report)[0])
        assert rank == (*moment.culprits, *moment.lanes)[0]
        assert moment.local[0] >= 0
        if moment.collective:
            met = collectives.filter(collective=moment.collective)["begin"]
            assert met.min() < moment.end
            assert moment.begin <= met.max()
            assert met.max() - met.min() < moment.end - moment.begin or met.max() == moment.begin
        near = kernels.filter((pl.col("rank") == rank) & (pl.col("begin") >= moment.begin))
        (begin,) = near["begin"].sort()[:1]
        report = ROOT / "sample_reports" / "training" / moment.report
        with sqlite3.connect(f"file:{report}?mode=ro", uri=True) as database:
            query = "SELECT min(start) FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE start >= ? - 2"
            ((start,),) = database.execute(query, (moment.local[0],))
        assert start - moment.local[1] == pytest.approx(begin - moment.end, abs=2_000)


def test_numbers_are_packed() -> None:
    values = np.array([0, 1, 127, 128, 300, 2**31, 2**55 - 1, -5])
    packed, begins = encode_varints(values)
    assert packed[:5] == bytes([0, 1, 127, 128, 1])
    assert packed[-1] == 0
    assert begins.tolist() == [0, 1, 2, 3, 5, 7, 12, 20, 21]
    assert encode_varints(values[:0])[0] == b""


def test_what_cannot_be_printed() -> None:
    template = load_environment().from_string("{{ text }}")
    text = "\ud800<\0\u202e 5\u00a0% 5.00 us"
    assert template.render(text=text) == "\ufffd&lt;\ufffd\ufffd 5\u00a0% 5.00 µs"


def test_what_is_no_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reports = [str(path) for path in SAMPLES["graphs"]]
    data, both = str(tmp_path / "a.json"), str(tmp_path / "both.json")
    assert main(["report", *reports, "-q", "--only", "kernels", "--json", data]) == 0
    assert main(["diff", data, data, "--json", both]) == 0
    capsys.readouterr()
    for arguments, status, message in (
        ([both], 1, "contains the difference of two jobs"),
        ([data, data], 2, "this is a finished report"),
        ([data, "--iterations", "x"], 2, "this is a finished report"),
        ([data, "--ranks", "0"], 2, "this is a finished report"),
        ([data, "--only", "idle"], 2, "which contains kernels"),
        ([data, "--html", str(tmp_path / "no" / "x.html")], 1, "no such folder"),
    ):
        assert main(["report", *arguments]) == status
        error = capsys.readouterr().err
        assert message in error
        assert len(error.splitlines()) == 1
    # A page of a single analysis.
    assert main(["report", data, "--html", str(tmp_path / "x.html")]) == 0
    text = Page((tmp_path / "x.html").read_text()).text
    assert "Kernels" in text
    assert "Nothing found" not in text, "findings were not asked for"


def test_a_page_without_names_of_events(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = [
        {"timestamp": 10 * number, "typeId": 1 << 56, "metricId": number, "value": 1}
        for number in range(20)
    ]
    report = make_export(
        tmp_path / "r.sqlite",
        {"StringIds": make_strings("k"), KERNEL: [make_kernel(1, 5)], "GPU_METRICS": metrics},
    )
    assert main(["report", "-q", "--html", str(tmp_path / "r.html"), str(report)]) == 0
    assert (tmp_path / "r.html").exists()


def test_products_are_placed_below_what_gpus_can_do() -> None:
    """Check that both axes are logarithmic, from one power of ten to another, and that areas of
    points are proportional to time.
    """
    bf16 = {"data_type": "bf16", "peak_tflop_s": 1000.0, "memory_gb_s": 2000.0}
    rows = [
        {**bf16, "flop_per_byte": 10.0, "tflop_s": 10.0, "time_ns": 100, "allowed_tflop_s": 20.0},
        {**bf16, "flop_per_byte": 1000.0, "tflop_s": 1.0, "time_ns": 400, "allowed_tflop_s": 1e3},
        {**bf16, "flop_per_byte": 1.0, "tflop_s": 5.0, "time_ns": 1, "allowed_tflop_s": None},
    ]
    picture = place_products(pl.DataFrame(rows))
    assert [text for _, text in picture.across] == ["10", "100", "1000"]
    assert [text for _, text in picture.up] == ["1", "10", "100", "1000"]
    ((line, height, name),) = picture.roofs
    # From 2 TB/s at 10 FLOP per byte to the peak at 500, and on.
    low = 400 - 44 - 340 * math.log10(20) / 3
    turn = 62 + 508 * math.log10(50) / 2
    assert line == f"62.0,{low:.2f} {turn:.2f},16.0 570.0,16.0"
    assert (height, name) == (16.0, "bf16: 1000 TFLOP/s, 2.00 TB/s")
    assert [one[:3] for one in picture.points] == [(62.0, 242.67, 7.0), (570.0, 356.0, 14.0)]
