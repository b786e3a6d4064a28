"""Test that what is read or measured in pieces, or of some threads and metrics, is what all is."""

import re
from pathlib import Path

import numpy as np
import pytest
from tools.commands import SAMPLES

import nsys2prv
from nsys2prv._util import intervals
from nsys2prv.analyses import make_device_group
from nsys2prv.figures import host_time
from nsys2prv.figures.device_group import AnalysisOptions, DeviceGroup
from nsys2prv.open_job import OpenJob
from nsys2prv.show.finished_job import FinishedJob

TRAINING = sorted((SAMPLES / "training").glob("*.sqlite"))


@pytest.mark.parametrize("rows", [1, 7, 100])
def test_host_activity_is_the_same_in_pieces(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def analyse(reports: list[Path]) -> str:
        with nsys2prv.open(reports, jobs=1) as job:
            return FinishedJob(job.describe(), job.analyse("findings")).to_json()

    whole = analyse(TRAINING[:1])
    for module in (host_time, intervals):
        monkeypatch.setattr(module, "INTERVAL_ROWS", rows)
    assert analyse(TRAINING[:1]) == whole


def open_training() -> OpenJob:
    return nsys2prv.open(TRAINING[:1], jobs=1)


def test_the_first_screen_needs_no_tables_of_iterations() -> None:
    with open_training() as job:
        every, few = (
            job.analyse("efficiencies", divided=divided)["efficiencies"].tables
            for divided in (True, False)
        )
    left_out = {"iterations", "over_iterations", "iterations_of_devices", "host_iterations"}
    assert {*every} - {*few} == left_out
    for name, table in few.items():
        assert table.frame.equals(every[name].frame)


def test_ordered_ranges_of_a_thread() -> None:
    with open_training() as job:
        options = AnalysisOptions(groups=job.group_table)
        unit = make_device_group(options, job.saved_reader, job.units[0])
        every = unit.read_ordered_ranges("nvtx_pushpop")
        threads = np.unique(every[0]).tolist()
        assert len(threads) > 1
        for thread in threads:
            own = unit.read_ordered_ranges("nvtx_pushpop", thread)
            for whole, alone in zip(every, own, strict=True):
                assert alone.tolist() == whole[every[0] == thread].tolist()


def test_calls_of_a_thread() -> None:
    with open_training() as job:
        options = AnalysisOptions(groups=job.group_table)
        given = job.reader, job.units[0], options, Path()
        every = DeviceGroup(*given).api
        threads = every["thread"].unique().to_list()
        assert len(threads) > 1
        for thread in threads:
            alone = DeviceGroup(*given, caller=thread).api
            assert alone.equals(every.filter(thread=thread))


def test_samples_of_some_metrics() -> None:
    with nsys2prv.open(TRAINING, jobs=1) as job:
        every = [*job.reader.read_samples("gpu_metric")]
        some = [*job.reader.read_samples("gpu_metric", names=re.compile("SM"))]
    assert len(every) == len(some) > 1
    for whole, part in zip(every, some, strict=True):
        places = [place for place, name in enumerate(whole.metrics) if name.startswith("SM")]
        assert 0 < len(places) < len(whole.metrics)
        assert part.metrics == tuple(whole.metrics[place] for place in places)
        assert part.time.tolist() == whole.time.tolist()
        np.testing.assert_array_equal(part.values, whole.values[:, places])
