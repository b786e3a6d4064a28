"""Test defects of whole files, and traces as other programs write them."""

import gzip
import importlib
import json
from pathlib import Path

import numpy as np
import pytest
from tools.defects import PCF, PRV, ROW, write_trace
from tools.paramedir import classify_trace, skip_without_paramedir

from nsys2prv.cli import main
from nsys2prv.writers.paraver.check import CheckResult, check_trace

HEADER, COMMUNICATOR, *RECORDS = PRV.splitlines(keepends=True)


def find_rules(result: CheckResult) -> set[tuple[str, str, int, int]]:
    return {
        (finding.rule, finding.file, finding.line, finding.count) for finding in result.findings
    }


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ({"prv": PRV[:-1]}, ("line-cut", "t.prv", 12, 1)),
        ({"prv": HEADER + COMMUNICATOR + "#only a comment\n"}, ("no-records", "t.prv", 0, 1)),
        ({"prv": HEADER + COMMUNICATOR}, ("no-records", "t.prv", 0, 1)),
        ({"prv": HEADER}, ("no-records", "t.prv", 0, 1)),
        ({"prv": ""}, ("not-a-trace", "t.prv", 1, 1)),
        ({"prv": b"\x00\xff\xfe binary"}, ("not-a-trace", "t.prv", 1, 1)),
        ({"pcf": None}, ("pcf-missing", "t.pcf", 0, 1)),
        ({"pcf": PCF.replace("\n", "\r\n")}, ("pcf-line", "t.pcf", 1, 22)),
        ({"pcf": PCF.encode().replace(b"outer", b"out\xffer")}, ("label-text", "t.pcf", 17, 1)),
        ({"row": None}, ("row-missing", "t.row", 0, 1)),
        ({"row": ROW.encode().replace(b"main", b"m\xffin")}, ("row-name", "t.row", 15, 1)),
    ],
)
def test_defects_of_files(
    tmp_path: Path, texts: dict[str, bytes | str | None], expected: tuple[str, str, int, int]
) -> None:
    assert expected in find_rules(check_trace(write_trace(tmp_path, **texts)))


def test_a_name_that_paraver_does_not_take(tmp_path: Path) -> None:
    other = write_trace(tmp_path).rename(tmp_path / "t.txt")
    assert find_rules(check_trace(other)) == {("file-name", "t.txt", 0, 1)}
    skip_without_paramedir()
    assert classify_trace(tmp_path, other) == "unrecognised"


def test_compressed_traces(tmp_path: Path) -> None:
    write_trace(tmp_path)
    whole, half = gzip.compress(PRV.encode()), len(PRV) // 2
    packed = tmp_path / "t.prv.gz"
    sound = check_trace(tmp_path / "t.prv")
    for content, expected in (
        (whole, set()),
        (whole + b"\0" * 8, set()),
        (gzip.compress(PRV[:half].encode()) + gzip.compress(PRV[half:].encode()), set()),
        (b"".join(gzip.compress(line.encode()) for line in PRV.splitlines(keepends=True)), set()),
    ):
        packed.write_bytes(content)
        assert find_rules(check_trace(packed)) == expected
        assert check_trace(packed).contents == sound.contents
    for content in (
        whole[:-4],
        whole[:-20],
        whole[:40],
        whole + b"rubbish",
        whole[:30] + b"\xff\xff\xff" + whole[33:],
    ):
        packed.write_bytes(content)
        assert "damaged-gzip" in {finding.rule for finding in check_trace(packed).findings}


def test_a_header_as_bsc_writes_it(tmp_path: Path) -> None:
    """No nodes, no CPUs, and a colon before the tasks."""
    header = HEADER.replace("2(2,1):1:2(2:1,1:2),1", "0:1:2:(2:1,1:1)")
    prv = write_trace(
        tmp_path,
        prv=header + "".join("2:0" + line[3:] for line in RECORDS if line.startswith("2:")),
    )
    result = check_trace(prv)
    assert {finding.rule for finding in result.findings} == set()
    assert result.contents.objects["THREAD"] == 3
    skip_without_paramedir()
    assert classify_trace(tmp_path, prv) == "done"


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sound = write_trace(tmp_path)
    (tmp_path / "warned").mkdir()
    (tmp_path / "bad").mkdir()
    warned = write_trace(tmp_path / "warned", {"prv": {10: None}})
    bad = write_trace(tmp_path / "bad", {"prv": {5: "2:1:1:1:1:0:10:3:20:-7"}})
    assert main(["check", str(sound), "--strict"]) == 0
    assert (
        capsys.readouterr().out
        == f"""{sound}:
  12 lines: 6 events with 8 values, 3 states, 1 communications
  2 nodes with 3 CPUs, 1 application, 2 tasks, 3 threads
  2 event types: 10, 20
  times from 0 to 90 ns, the trace ends at 100
  nothing found
"""
    )
    assert main(["check", str(warned)]) == 0
    assert main(["check", str(warned), "--strict"]) == 1
    assert "  warning open-at-end t.prv:8: the last value of a type" in capsys.readouterr().out
    assert main(["check", str(sound), str(bad), "--json"]) == 1
    first, second = json.loads(capsys.readouterr().out)
    assert (first["trace"], first["findings"], first["contents"]["pairs"]) == (str(sound), [], 8)
    assert [
        (item["severity"], item["rule"], item["file"], item["line"], item["count"])
        for item in second["findings"]
    ] == [("error", "negative-value", "t.prv", 5, 1)]
    assert main(["check"]) == 2
    assert main(["check", str(sound), "--stict"]) == 2
    assert main(["check", str(tmp_path / "none.prv")]) == 1
    assert (
        capsys.readouterr().err.splitlines()[-1]
        == f"nsys2prv: error: {tmp_path / 'none.prv'}: no such file"
    )


def test_without_the_compiled_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Modules take the core as they find it when they are first imported: not within this test.
    importlib.import_module("nsys2prv.verdict.findings")
    monkeypatch.setattr("nsys2prv._util.native.core", None)
    report = str(Path(__file__).parents[3] / "sample_reports/graphs")
    prv = str(write_trace(tmp_path))
    analyses = ["report", report], ["--report", report, str(tmp_path / "new.prv")]
    for command in ["check", prv], ["cfgs", "--for", prv], *analyses:
        assert main(command) == 1
        assert "needs the compiled core" in capsys.readouterr().err
    assert not (tmp_path / "new.prv").exists()


def damage_text(text: str, random: np.random.Generator) -> bytes:
    """Return a text with some bytes changed, left out or put in, and lines repeated, lost or cut."""
    content = bytearray(text.encode())
    for _ in range(int(random.choice((1, 1, 2, 5)))):
        place, byte = (
            int(random.integers(len(content))),
            int(random.choice(list(b"0123456789:,-() \n\r\t#c.\xff"))),
        )
        match int(random.integers(4)):
            case 0:
                content[place] = byte
            case 1:
                content.insert(place, byte)
            case 2 if len(content) > 1:
                del content[place]
            case _:
                lines = bytes(content).split(b"\n")
                line = int(random.integers(len(lines)))
                lines[line] = (lines[line][:2], b"", lines[int(random.integers(len(lines)))])[
                    int(random.integers(3))
                ]
                content = bytearray(b"\n".join(lines) or b"\n")
    return bytes(content)


@pytest.mark.slow
def test_whatever_the_damage_there_is_an_answer(tmp_path: Path) -> None:
    random = np.random.default_rng(11)
    for _ in range(400):
        ending, text = (("prv", PRV), ("prv", PRV), ("pcf", PCF), ("row", ROW))[
            int(random.integers(4))
        ]
        assert (
            check_trace(write_trace(tmp_path, **{ending: damage_text(text, random)})).path
            == tmp_path / "t.prv"
        )


def test_what_paraver_does_not_read_is_found(tmp_path: Path) -> None:
    """Of traces damaged at random, those that paramedir does not read whole all have an error or a
    warning.
    """
    skip_without_paramedir()
    random = np.random.default_rng(12)
    unread = 0
    for _ in range(120):
        prv = write_trace(tmp_path, prv=damage_text(PRV, random))
        if classify_trace(tmp_path, prv) != "done":
            unread += 1
            result = check_trace(prv)
            assert result.findings, prv.read_bytes()
    assert unread > 40
