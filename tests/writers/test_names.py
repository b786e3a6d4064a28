"""Test that names of events have one value each, and that sets which views show together do not
overlap.
"""

from pathlib import Path

from nsys2prv._util.stored_columns import FrameWriter
from nsys2prv.events.catalogue import NameSet
from nsys2prv.table.task_result import TaskResult
from nsys2prv.writers.names import assign_values


def test_sets_of_a_space_do_not_overlap_and_known_values_stay(tmp_path: Path) -> None:
    sets = {
        name: NameSet(name, "space", first, "cuda_api.txt" if name == "calls" else None)
        for name, first in (("calls", 2500), ("some", 3000), ("more", 3002))
    }
    call, number = next(iter(sets["calls"].list_known_values().items()))
    texts = {"calls": [call, "own"], "some": ["c", "a", "b"], "more": ["a"]}
    with FrameWriter(tmp_path / "names") as frames:
        names = {name: frames.append_frame({"text": own}) for name, own in texts.items()}
    result = TaskResult(0, 0, 0, names=names)
    assert {
        name: dict(values.labels.select("label", "value").iter_rows())
        for name, values in assign_values(sets, [result], {}).items()
    } == {
        "calls": {call: number, "own": 2500},
        "some": {"a": 3000, "b": 3001, "c": 3002},
        "more": {"a": 3003},
    }
