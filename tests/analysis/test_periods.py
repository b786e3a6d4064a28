"""Test iterations found from the sequence of kernels or calls."""

import numpy as np
import pytest

from nsys2prv.figures.repeats import Events, Period, choose_alike, find_periods

RNG = np.random.default_rng(5)
LAYER, BACK = [1, 2, 3, 2, 4, 5], [6, 2, 7, 2, 8]
#: A step of training, with its layers; an optimizer; a forward pass alone, a checkpoint.
MICRO = [9, *LAYER * 6, 10, *BACK * 6]
OPTIMIZER = [11, 12, 12, 12, 12]
STEP = [*MICRO, *OPTIMIZER]
EVALUATION = [9, *LAYER * 6, 10, 13]


def make_events(names: list[int], **kwargs: list[int]) -> Events:
    """Return events that take 10 ns each, a moment apart; of each kind when what has such a name begins."""
    begin = 11 * np.arange(len(names))
    name = np.array(names)
    times = {key: begin[np.isin(name, value)] for key, value in kwargs.items()}
    if "waits" in times:
        times["waits"] = (times["waits"],)
    return Events(name, begin, begin + 10, **times)


def find_edges(events: Events) -> list[int] | None:
    """Return the indices of the events at which iterations start, and the index after the last one."""
    found = find_periods(events)
    if not found:
        return None
    # An iteration begins when the one before ends.
    return [*-(-found[0].begins // 11), found[0].end // 11 + 1]


def test_what_repeats_with_a_beginning_and_an_end() -> None:
    names = [9, 8, 9, 7] + [1, 2, 3, 2, 4] * 6 + [5, 6]
    assert find_edges(make_events(names, waits=[4])) == [*range(4, 35, 5)]


def test_steps_are_found_among_layers_and_micro_batches() -> None:
    accumulated = [*MICRO * 4, *OPTIMIZER]
    for step, signs in (
        (STEP, {"waits": [9]}),
        (accumulated, {"collectives": [11]}),
        (accumulated, {"updates": [12]}),
        # Each micro-batch loads something.
        (accumulated, {"waits": [9], "updates": [12]}),
        (accumulated, {"waits": [9], "collectives": [11]}),
    ):
        edges = find_edges(make_events(step * 10, **signs))
        assert edges == [*range(0, 10 * len(step) + 1, len(step))]


@pytest.mark.parametrize("signs", [{"waits": [9]}, {"updates": [12], "collectives": [11]}])
def test_evaluations_and_what_is_logged_now_and_then_are_no_iterations(
    signs: dict[str, list[int]],
) -> None:
    names, begins = [20, 21], []
    for number in range(20):
        begins.append(len(names))
        names += STEP + [14] * (number % 3 == 0) + EVALUATION * (number % 5 == 4)
    edges = find_edges(make_events(names, **signs))
    assert edges is not None
    assert edges == [*begins, len(names)]


def test_the_first_iteration_may_differ() -> None:
    names = [20, *MICRO, 30, 31, 32, *OPTIMIZER, *STEP * 8]
    edges = find_edges(make_events(names, updates=[12]))
    assert edges is not None
    assert np.diff(edges)[1:].tolist() == [len(STEP)] * 8


def test_kinds_of_kernels_may_differ_a_little() -> None:
    """Check this for a library that chooses among several kernels."""
    names = STEP * 30
    for place in RNG.choice(len(names), len(names) // 40, replace=False).tolist():
        names[place] = int(RNG.integers(40, 60))
    found = find_periods(make_events(names, waits=[9]))
    assert abs(found[0].usual / 11 - len(STEP)) < 1


def test_layers_of_one_pass_and_micro_batches_of_one_step_are_no_iterations() -> None:
    for names, signs in (
        (STEP, {"waits": [9], "updates": [12]}),
        (STEP, {}),
        ([9, *LAYER * 24, 10], {}),
        ([9, *LAYER * 24, 10], {"waits": [9, 10]}),
        # The weights of each layer are loaded before it.
        ([9, *LAYER * 24, 10], {"loads": [1]}),
        ([*MICRO * 8, *OPTIMIZER], {"updates": [12]}),
        ([*MICRO * 8, *OPTIMIZER], {"waits": [9], "collectives": [11]}),
    ):
        assert find_edges(make_events(names, **signs)) is None


def test_a_host_that_only_launches() -> None:
    """Check that tiny units, very many units, and units that contain others are not layers."""
    assert find_edges(make_events([9, *[1, 2] * 20])) == [*range(1, 42, 2)]
    layers = find_edges(make_events([9, *LAYER * 200]))
    assert layers == [*range(1, 1202, 6)]
    passes = [9, *LAYER * 24, 10]
    assert find_edges(make_events(passes * 10)) == [*range(0, 10 * len(passes) + 1, len(passes))]
    # Its layers are not those of the passes, though these come with a copy.
    assert find_edges(make_events(passes * 10, waits=[9])) is not None


def test_what_does_not_repeat() -> None:
    growing = [one for size in range(2, 30) for one in [1, *[2] * size, 3]]
    requests = [one for size in RNG.integers(1, 40, 60) for one in [*LAYER * 4, *[1, 5] * size]]
    for names in (RNG.integers(0, 50, 200).tolist(), [*range(30)], [], growing, requests):
        assert find_edges(make_events(names, waits=[1])) is None


def test_work_that_begins_as_requests_come_does_not_repeat_itself() -> None:
    names = make_events(LAYER * 40, waits=[1])
    pauses = (1.5 ** RNG.integers(0, 30, 40) * 10).astype(int).cumsum().repeat(len(LAYER))
    later = Events(names.name, names.begin + pauses, names.end + pauses, waits=names.waits)
    assert find_periods(names)
    assert not find_periods(later)


def test_a_capture_that_begins_and_ends_anywhere() -> None:
    whole = STEP * 12
    for first in range(0, len(STEP), 7):
        edges = find_edges(make_events(whole[first : -len(STEP) // 3], waits=[9]))
        assert edges is not None
        assert set(np.diff(edges)) == {len(STEP)}
        assert len(edges) >= 11


def make_period(names: list[int], later: int = 0) -> Period:
    events = make_events(names, waits=[9])
    moved = Events(events.name, events.begin + later, events.end + later, waits=events.waits)
    return find_periods(moved)[0]


def test_processes_must_agree() -> None:
    step, other = make_period(STEP * 9), make_period(STEP * 9, 7)
    layer = make_period([9, 2, 3] * 200)
    assert choose_alike([[layer, step], [other]]) == [step, other]
    assert choose_alike([[layer], [other]]) == []
    # One of three does nothing of the kind.
    assert choose_alike([[step], [], [other]]) == [step, other]
    assert choose_alike([[step], []]) == []


def test_processes_are_cut_at_the_same_places() -> None:
    """One of them is recorded from the middle of an iteration on."""
    whole, part = make_period(STEP * 12), make_period((STEP * 12)[30:], 30 * 11 + 3)
    assert part.begins[0] - 30 * 11 < 0.5 * part.usual
    choose_alike([[part], [whole]])
    assert (part.begins - whole.begins[1:] == 3).all()
    assert part.end - whole.end == 3
