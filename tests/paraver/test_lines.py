"""Test that formatting in columns equals plain formatting, with and without the compiled core."""

import shutil
import sysconfig
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nsys2prv import Options, convert
from nsys2prv.writers.paraver import prv
from nsys2prv.writers.paraver.prv import Batch, Choice, make_program, merge_lines

SAMPLES = Path(__file__).parents[2] / "sample_reports"
TYPES = [np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32, np.uint64, np.int64]
Write = Callable[[list[Batch]], str]
#: A line is one number: its row in so many bits, its batch above them.
ROW_BITS = 40


def _write_text(batches: list[Batch]) -> str:
    return b"".join(bytes(piece) for piece in merge_lines(batches)).decode()


@pytest.fixture(params=["compiled", "plain"])
def text_of(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Return the text of batches by each of the two writers."""
    if request.param == "plain":
        monkeypatch.setattr(prv, "core", None)
    elif prv.core is None:
        pytest.skip("installed without a compiler")
    return _write_text


def test_where_there_is_a_compiler_the_writer_is_compiled() -> None:
    compiler = (sysconfig.get_config_var("LDSHARED") or "cc").split()[0]
    if (
        shutil.which(compiler) is None
        or not Path(sysconfig.get_path("include"), "Python.h").exists()
    ):
        pytest.skip("no compiler here")
    assert prv.core is not None


def test_every_number_of_few_digits_and_beside_each_power_of_ten(text_of: Write) -> None:
    near = [10**power + offset for power in range(4, 19) for offset in range(-50, 51)]
    values = np.array([*range(20_001), *near, 2**62, 2**63 - 1], np.int64)
    assert text_of([Batch(np.arange(len(values)), [values])]) == "".join(
        f"{value}\n" for value in values.tolist()
    )


@pytest.mark.parametrize("dtype", TYPES)
def test_integers_of_any_size_and_at_any_distance(text_of: Write, dtype: type) -> None:
    random = np.random.default_rng(7)
    largest = min(np.iinfo(dtype).max, 2**62)
    records = np.zeros(
        1000, np.dtype([("odd", "u1"), ("value", dtype), ("which", dtype), ("more", "u2")])
    )
    records["value"] = [0, largest, *random.integers(0, largest, 998, np.uint64)]
    records["which"] = random.integers(0, 3, 1000)
    names = (b"", b"x", b"a text that is longer than what is copied at once, twice")
    ending = b", a rather long text that is the same in all lines"
    times = np.arange(1000)

    def write(step: int) -> str:
        which, value = records["which"][::step], records["value"][::step]
        return text_of([Batch(times, [(Choice(names), which), b" of ", value, ending])])

    expected = "".join(
        f"{names[which].decode()} of {value}, a rather long text that is the same in all lines\n"
        for which, value in zip(records["which"].tolist(), records["value"].tolist(), strict=True)
    )
    assert write(1) == expected
    assert write(-1).splitlines() == expected.splitlines()[::-1]


@pytest.mark.parametrize("dtype", TYPES)
def test_indices_stand_for_what_their_table_says(text_of: Write, dtype: type) -> None:
    names, table = (b"a", b"bc"), np.array([1, 0, 2**40])
    which, what = np.array([0, 1, 1], dtype), np.array([2, 1, 0], dtype)
    parts = [(Choice(names), (which, table[:2])), b" ", (what, table)]
    batch = Batch(np.arange(3), parts)
    assert text_of([batch]) == f"bc {2**40}\na 0\na 1\n"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_random_lines_in_time_order(text_of: Write, seed: int) -> None:
    random = np.random.default_rng(seed)
    names = (b"a", b"longer name", b"xyz")
    batches, expected = [], []
    for place in range(3):
        count = int(random.integers(1, 70_000))
        times = random.integers(0, 50_000, count)
        values = random.integers(0, 10 ** int(random.integers(1, 18)), count)
        kinds = random.integers(0, 3, count)
        parts = [(Choice(names), kinds), times, b":%d:" % place, values]
        batches.append(Batch(times, parts))
        expected += [
            (time, place, row, f"{names[kind].decode()}{time}:{place}:{value}\n")
            for row, (time, kind, value) in enumerate(
                zip(times.tolist(), kinds.tolist(), values.tolist(), strict=True)
            )
        ]
    assert text_of(batches) == "".join(line for *_, line in sorted(expected))


def test_ties_order_lines_of_equal_time(text_of: Write) -> None:
    times = np.array([5, 5, 5, 7], np.int64)
    free = Batch(np.array([5]), [np.array([100])])
    tied = Batch(times, [np.arange(4)], np.array([3, 1, 2, 0]))
    assert text_of([free, tied]) == "100\n1\n2\n0\n3\n"


def test_far_apart_times_still_sort(text_of: Write) -> None:
    times = np.array([2**61, 0, 5], np.int64)
    assert text_of([Batch(times, [times])]) == f"0\n5\n{2**61}\n"


def test_nothing_gives_nothing(text_of: Write) -> None:
    assert text_of([]) == ""
    none = np.zeros(0, np.int64)
    assert text_of([Batch(none, [none])]) == ""


def test_a_shape_takes_however_many_lines_at_once(text_of: Write) -> None:
    """Its room for lines grows with what is asked of it."""
    names = (b"a:", b"bcdef:")
    random = np.random.default_rng(5)
    for count in (3, 1, 40, 8191, 131_079, 5):
        chosen, numbers = random.integers(0, 2, count), random.integers(0, 10**8, count)
        expected = "".join(
            f"{names[which].decode()}{number}:end\n"
            for which, number in zip(chosen, numbers, strict=True)
        )
        parts = [(Choice(names), chosen), numbers, b":end"]
        assert text_of([Batch(np.arange(count), parts)]) == expected


@pytest.mark.parametrize("room", [64, 100, 1000])
def test_text_that_does_not_fit_at_once_comes_in_pieces(
    monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    if prv.core is None:
        pytest.skip("installed without a compiler")
    monkeypatch.setattr(prv, "TEXT_BYTES", room)
    values = np.arange(995, 1300)
    pieces = [bytes(piece) for piece in merge_lines([Batch(values, [b"line ", values])])]
    assert b"".join(pieces).decode() == "".join(f"line {value}\n" for value in values)
    assert all(len(piece) <= room and piece.endswith(b"\n") for piece in pieces)


@pytest.mark.parametrize(
    "part",
    [
        np.array([1, -1]),
        (Choice((b"a", b"b")), np.array([0, 2])),
        (Choice((b"a", b"b")), np.array([0, -1])),
        (np.array([0, 2]), np.arange(2)),
        (np.array([0, -1]), np.arange(2)),
        (np.array([0, 1]), np.array([3, -1])),
        (Choice((b"a", b"b")), (np.array([0, 1]), np.array([0, 2]))),
        np.array([1]),
        np.array([1.5, 2.5]),
        np.array([[1], [2]]),
        b"x" * 2000,
    ],
    ids=[
        "negative",
        "no such text",
        "negative index",
        "no such entry",
        "negative entry",
        "negative in the table",
        "no such text in the table",
        "too short",
        "fractions",
        "two dimensions",
        "no room",
    ],
)
def test_what_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch, part: prv.Part) -> None:
    """The compiled writer looks at nothing but what it was given."""
    if prv.core is None:
        pytest.skip("installed without a compiler")
    monkeypatch.setattr(prv, "TEXT_BYTES", 1000)
    with pytest.raises(ValueError):  # noqa: PT011
        _write_text([Batch(np.arange(2), [part])])


def test_orders_out_of_bounds_are_refused() -> None:
    if prv.core is None:
        pytest.skip("installed without a compiler")
    batch = (make_program([np.arange(3)]), 3)
    out = np.empty(1000, np.uint8)
    order = np.arange(3, dtype=np.uint64)
    second = order + np.uint64(1 << ROW_BITS)
    assert prv.core.write_lines([batch], order, out) == (3, 6)
    assert prv.core.write_lines([batch, batch], second, out) == (3, 6)
    for invalid in (
        ([batch], order + np.uint64(1)),
        ([batch], order - np.uint64(1)),
        ([batch], second),
        ([], order),
        ([batch, batch], second + np.uint64(1 << ROW_BITS)),
    ):
        with pytest.raises(ValueError, match="out of its bounds"):
            prv.core.write_lines(*invalid, out)
    with pytest.raises(TypeError):
        prv.core.write_lines(None, order, out)
    with pytest.raises((TypeError, BufferError)):
        prv.core.write_lines([batch], order, b"not to be written to")


@pytest.mark.parametrize("span", [1, 3, 1 << 11, 1 << 22, 1 << 40, (1 << 63) - 1])
@pytest.mark.parametrize("tied", [False, True])
def test_both_order_lines_alike(span: int, tied: bool) -> None:
    if prv.core is None:
        pytest.skip("installed without a compiler")
    random = np.random.default_rng(span)
    batches = [
        Batch(
            random.integers(0, span, count),
            [],
            random.integers(-3, 3, count) if tied and count % 2 else None,
        )
        for count in (1, 500, 2001, 33)
    ]
    order = np.empty(sum(len(batch.times) for batch in batches), np.uint64)
    prv.core.order_lines([(batch.times, batch.ties) for batch in batches], order)
    starts = np.cumsum([0, *(len(batch.times) for batch in batches)])
    lines = starts[order >> np.uint64(ROW_BITS)] + (order & np.uint64((1 << ROW_BITS) - 1))
    assert lines.tolist() == prv._order_by_numpy(batches).tolist()


def test_an_order_without_room_is_refused() -> None:
    if prv.core is None:
        pytest.skip("installed without a compiler")
    times, order = np.arange(3), np.empty(3, np.uint64)
    for batches, out in (
        ([(times, None)], order[:2]),
        ([(times, times[:2])], order),
        ([(times, None), (times, None)], order),
    ):
        with pytest.raises(ValueError, match="room for each line"):
            prv.core.order_lines(batches, out)
    with pytest.raises(TypeError):
        prv.core.order_lines([times], order)


@pytest.mark.parametrize("sample", ["training", "graphs"])
def test_both_write_the_same_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sample: str
) -> None:
    if prv.core is None:
        pytest.skip("installed without a compiler")
    reports = sorted((SAMPLES / sample).glob("rank*.sqlite"))
    traces = []
    for available in (True, False):
        if not available:
            monkeypatch.setattr(prv, "core", None)
        convert(reports, tmp_path / f"{available}.prv", Options(jobs=1, quiet=True, states=True))
        traces.append((tmp_path / f"{available}.prv").read_bytes())
    assert traces[0] == traces[1]
