"""Test the frames of an opened job: its events in trace time, as in the trace converted from the
same reports.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from tools.conversions import convert_and_read
from tools.exports import KERNEL, make_export, make_kernel, make_strings
from tools.slow import mark_slow_except
from tools.trace import Trace
from tools.view_answers import SAMPLES

import nsys2prv
from nsys2prv._util.errors import Nsys2prvError, UsageError
from nsys2prv.figures.device_group import list_labels
from nsys2prv.open_job import OpenJob

#: Layout -> event type of its naming field, which is written for no other layout.
NAMING = {
    "cuda_api": 63000000,
    "cuda_kernel": 63000006,
    "nccl_kernel": 63000007,
    "cuda_graph": 63000008,
    "memory_operation": 63000001,
    "cuda_synchronization": 63000030,
    "osrt": 66400000,
    "mpi_collective": 50000002,
}

#: Type of the graphs that were traced as a whole.
GRAPH = 63000100
PLACE = ["begin", "end", "rank", "row", "node", "device", "stream"]


@pytest.fixture(scope="module", params=mark_slow_except(sorted(SAMPLES), "graphs"))
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[OpenJob, Trace]]:
    output = tmp_path_factory.mktemp("frames") / "trace.prv"
    trace, _ = convert_and_read(SAMPLES[request.param], output)
    with nsys2prv.open(SAMPLES[request.param]) as job:
        yield job, trace


def _group_ranges(rows: Iterable[tuple]) -> list[tuple]:
    """Return row, begin and end (ns) of the ranges of each name, in order."""
    groups: dict[str, list[tuple]] = {}
    for row, name, begin, end in rows:
        groups.setdefault(name, []).append((row, begin, end))
    return [tuple(sorted(group)) for group in groups.values()]


@pytest.mark.slow
@pytest.mark.parametrize("layout", NAMING)
def test_events_are_those_of_the_trace(both: tuple[OpenJob, Trace], layout: str) -> None:
    job, trace = both
    code = NAMING[layout]
    written = Counter(
        (item.row[0], trace.get_label(code, item.value), item.begin, item.end)
        for item in trace.list_intervals(code)
        # Graphs that were traced as a whole count as kernels in Paraver.
        if layout != "cuda_kernel" or GRAPH not in item.others
    )
    if layout not in job.layouts:
        assert not written
        return
    name = job.frame(layout).columns[len(PLACE)]
    frame = job.frame(layout, name)
    found = frame.select("rank", name, "begin", "end").rows()
    # A .pcf has shorter names: the same ranges have one name, whatever it is.
    names = _group_ranges((rank + 1, *others) for rank, *others in found)
    assert Counter(names) == Counter(_group_ranges(written.elements()))
    assert frame["begin"].is_sorted()


def test_a_frame_as_users_see_it(both: tuple[OpenJob, Trace]) -> None:
    job, _ = both
    frame = job.frame("cuda_kernel", "kernel", "class", "grid_x", "correlation")
    assert frame.columns == [*PLACE, "kernel", "class", "grid_x", "correlation"]
    assert set(frame["class"].cast(str)) <= set(list_labels("kernel_class").values())
    assert frame["device"].null_count() == 0
    assert set(frame["device"].unique()) <= set(job.devices["device"])
    ranks = frame["rank"].unique().sort().to_list()
    assert ranks == list(range(job.rows["rank"].max() + 1))
    values = job.frame("cuda_kernel", "kernel", labels=False)["kernel"]
    assert values.dtype.is_integer()


def test_fields_that_are_called_as_places_are(both: tuple[OpenJob, Trace]) -> None:
    job, _ = both
    assert job.frame("nccl_kernel", "rank", "bytes").columns == [*PLACE, "event_rank", "bytes"]
    synchronised = job.frame("cuda_synchronization", "type", "stream")
    assert synchronised["stream"].null_count() == synchronised.height
    assert synchronised["event_stream"].drop_nulls().len()


def test_kinds_go_by_the_names_of_the_command_line(both: tuple[OpenJob, Trace]) -> None:
    job, _ = both
    frames = [job.frame(layout, "kernel") for layout in ("cuda_kernel", "nccl_kernel")]
    kernels = job.frame("kernels", "kernel", "bytes")
    assert kernels.height == job.kinds["kernels"] == sum(frame.height for frame in frames)
    assert kernels["begin"].is_sorted()
    assert kernels.columns == [*PLACE, "kernel", "bytes"]
    assert job.frame("memory").equals(job.frame("memory_operation"))


def test_lines_lead_to_what_was_launched(both: tuple[OpenJob, Trace]) -> None:
    job, trace = both
    lines = job.lines("launch")
    assert lines.height == sum(1 for line in trace.comms if line.tag == 55001)
    assert (lines["begin"] >= lines["sent"]).all()


def test_what_is_not_there(both: tuple[OpenJob, Trace]) -> None:
    job, _ = both
    with pytest.raises(UsageError, match=r"no such kind of event; this job has .*kernels"):
        job.frame("cuda_kernels")
    with pytest.raises(UsageError, match="grid: no field of cuda_kernel; it has kernel, class"):
        job.frame("cuda_kernel", "grid")
    with pytest.raises(UsageError, match="no such analysis; there are findings, efficiencies"):
        job.analyse("efficiency")
    with pytest.raises(UsageError, match="no NVTX range"):
        job.analyse("efficiencies", iterations="nothing like this*")
    assert job.frame("openmp" if "openmp" in job.layouts else "nvtx_payload").height == 0


def test_temporary_files_are_removed(tmp_path: Path) -> None:
    export = make_export(
        tmp_path / "r.sqlite", {"StringIds": make_strings("k"), KERNEL: [make_kernel(1, 5)]}
    )
    folder = tmp_path / "tmp"
    folder.mkdir()
    with nsys2prv.open(export, tmp=folder) as job:
        assert any(folder.iterdir())
        assert job.frame("cuda_kernel")["kernel"].to_list() == ["k"]
    assert not any(folder.iterdir())
    with pytest.raises(Nsys2prvError, match="no-such"):
        nsys2prv.open(tmp_path / "no-such.sqlite", tmp=folder)
    assert not any(folder.iterdir())
