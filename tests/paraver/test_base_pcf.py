"""--base-pcf: names keep their values from trace to trace, and Paraver sees it."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from tools.conversions import convert_and_read
from tools.exports import Row, make_export, make_nvtx_range

from nsys2prv import Options, convert
from nsys2prv._util.columns import FrameWriter
from nsys2prv.cli import main
from nsys2prv.events.catalogue import NameSet, load_catalogue
from nsys2prv.writers.names import NameFile, assign_values

SAMPLES = Path(__file__).parents[2] / "sample_reports"
KERNEL, NCCL_KERNEL, RANGES = 63000006, 63000007, 9600


def list_reports(name: str) -> list[Path]:
    return sorted((SAMPLES / name).glob("rank*.sqlite"))


@pytest.mark.slow
@pytest.mark.parametrize("sample", ["training", "graphs", "cluster"])
def test_a_trace_on_its_own_base_is_the_same(sample: str, tmp_path: Path) -> None:
    prv, pcf = tmp_path / "o.prv", tmp_path / "o.pcf"
    options = Options(demanded=("nvtx_on_gpu",))
    convert(list_reports(sample), prv, options)
    before = prv.read_bytes(), pcf.read_bytes()
    summary = convert(
        list_reports(sample), prv, Options(demanded=("nvtx_on_gpu",), base_pcf=(pcf,))
    )
    assert (prv.read_bytes(), pcf.read_bytes()) == before
    assert not any("with new ones" in note for note in summary.notes)


def convert_ranges(
    folder: Path, name: str, *texts: str, base: str = ""
) -> tuple[dict[str, int], list[str]]:
    """Convert ranges with these names; return the value of each label of the trace, and the
    summary's notes.
    """
    rows: list[Row] = [
        make_nvtx_range(10 * place, 10 * place + 5, text, tid=1) for place, text in enumerate(texts)
    ]
    report = make_export(folder / f"{name}.sqlite", {"NVTX_EVENTS": rows})
    trace, summary = convert_and_read(
        [report],
        folder / f"{name}.prv",
        base_pcf=tuple(folder / f"{item}.pcf" for item in base.split()),
        nvtx_rules="none",
    )
    return {
        label: value for value, label in trace.labels.values[RANGES].items() if value
    }, summary.notes


def test_new_names_follow_those_of_all_bases(tmp_path: Path) -> None:
    assert convert_ranges(tmp_path, "a", "b", "d")[0] == {"b": 1, "d": 2}
    assert convert_ranges(tmp_path, "b", "a", "b", "c", base="a")[0] == {"a": 3, "b": 1, "c": 4}
    assert convert_ranges(tmp_path, "c", "a", "d", "e", base="a b")[0] == {"a": 3, "d": 2, "e": 5}
    assert convert_ranges(tmp_path, "d", "a", "b", base="b a")[0] == {"a": 3, "b": 1}


def test_names_that_share_a_label_keep_their_values_only_where_all_are_there(
    tmp_path: Path,
) -> None:
    one, two, three = ("x" * 1001 + end for end in "abc")
    first, _ = convert_ranges(tmp_path, "a", one, two, "it #5")
    short = "x" * 997 + "..."
    assert first == {"it #5": 1, short: 2, f"{short} #2": 3}
    result, notes = convert_ranges(tmp_path, "b", two, three, "it #5", "it #6", base="a")
    assert result == {"it #5": 1, short: 2, f"{short} #2": 3, "it #6": 4}
    result, notes = convert_ranges(tmp_path, "c", two, "it #5", base="a")
    assert result == {"it #5": 1, short: 4}
    assert any("1 with new ones" in note for note in notes)
    result, notes = convert_ranges(tmp_path, "d", one, two, three, base="a")
    assert sorted(result.values()) == [4, 5, 6]
    assert any("2 with new ones" in note for note in notes)


def test_names_of_a_base_that_still_has_brackets_keep_their_values(tmp_path: Path) -> None:
    assert convert_ranges(tmp_path, "a", "b", "a [1]", "a [2]")[0] == {
        "a {1}": 1,
        "a {2}": 2,
        "b": 3,
    }
    pcf = tmp_path / "a.pcf"
    pcf.write_text(pcf.read_text().replace("{", "[").replace("}", "]"))
    assert convert_ranges(tmp_path, "b", "0", "a [2]", "b", base="a")[0] == {
        "a {2}": 2,
        "b": 3,
        "0": 4,
    }


def assign_set_values(
    tmp_path: Path, base: dict[str, dict[str, int]], **texts: list[str]
) -> dict[str, dict[str, int]]:
    """Return the values that a space of three sets gives to texts."""
    sets = {
        name: NameSet(name, "space", first, "cuda_api.txt" if name == "calls" else None)
        for name, first in (("calls", 2500), ("some", 3000), ("more", 3005))
    }
    met = {}
    for name, item in texts.items():
        path = tmp_path / f"{name}.arrow"
        with FrameWriter(path) as frames:
            met[name] = {0: NameFile(frames.append({"text": item}))}
    frames = {
        name: pl.DataFrame(
            {"label": list(item), "value": list(item.values()), "sure": True},
            schema_overrides={"value": pl.Int64},
        )
        for name, item in base.items()
    }
    return {
        name: dict(values.labels.select("label", "value").iter_rows())
        for name, values in assign_values(sets, met, {}, frames).items()
        if values.labels.height
    }


def test_sets_of_a_space_do_not_overlap_and_fixed_values_stay(tmp_path: Path) -> None:
    fixed = load_catalogue().name_sets["cuda_api"].list_known_values()
    call, number = next(iter(fixed.items()))
    base = {"some": {"a": 3000, "b": 3001}, "more": {"k": 3005}, "calls": {call: 7, "own": number}}
    assert assign_set_values(tmp_path, base, some=["a", "c", "d"]) == {
        "some": {"a": 3000, "c": 3002, "d": 3003}
    }
    assert assign_set_values(tmp_path, base, some=["a", *"cdefg"]) == {
        "some": {"a": 3000, **{name: 3006 + place for place, name in enumerate("cdefg")}}
    }
    result = assign_set_values(tmp_path, base, some=list("cdefgh"), more=["j", "k"])
    assert result["more"]["k"] == 3005
    everything = [*result["some"].values(), *result["more"].values()]
    assert len(set(everything)) == len(everything)
    assert assign_set_values(tmp_path, base, calls=[call, "own"])["calls"] == {
        call: number,
        "own": 2500,
    }
    assert assign_set_values(tmp_path, {"some": {"a": 3008}}, more=["j", "k", "l", "m"]) == {
        "more": {name: 3009 + place for place, name in enumerate("jklm")}
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"#Paraver (01/01/2026 at 00:00):1:0:1:1(1:0)\n", "is a trace; give the .pcf beside it"),
        (b"hello\n", "is no .pcf"),
        (b"", "is no .pcf"),
        (b"\xff\x00\xfe" * 50, "is no .pcf"),
        (b"EVENT_TYPE\n", "is no .pcf"),
        (None, "No such file"),
    ],
)
def test_what_is_no_pcf_is_one_line(
    content: bytes | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = tmp_path / "base.pcf"
    if content is not None:
        base.write_bytes(content)
    assert (
        main(
            ["-q", "--base-pcf", str(base), str(list_reports("graphs")[0]), str(tmp_path / "o.prv")]
        )
        == 1
    )
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error
    assert not (tmp_path / "o.prv").exists()


def test_a_pcf_of_others_is_read_as_it_stands(tmp_path: Path) -> None:
    (tmp_path / "base.pcf").write_text(
        "DEFAULT_OPTIONS\n\nEVENT_TYPE\n9\t9600\tNVTX pushpop ranges default domain\n9\t9700\tNVTX pushpop ranges other\nVALUES\n0\tEnd\n"
        "12\tb \n13\ttwice\n14\ttwice\n99999999999999999999 far\n2000000000 too far\n\nEVENT_TYPE\n9 9620 other\nVALUES\n77 a\n\n"
        "GRADIENT_COLOR\n0 {0,255,2}\n"
    )
    assert convert_ranges(tmp_path, "a", "a", "b", "twice", "far", "too far", base="base")[0] == {
        "b": 12,
        "a": 15,
        "far": 16,
        "too far": 17,
        "twice": 18,
    }
