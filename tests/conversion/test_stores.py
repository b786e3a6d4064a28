"""Stores: reading on one machine and writing on another give the bytes of a direct conversion; what
does not fit is one line.
"""

from __future__ import annotations

import io
import json
import random
import re
import shutil
import zipfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import pytest
from msgspec import Struct, field
from tools.commands import read_error_line, run_main
from tools.conversions import convert_to_bytes
from tools.corpus import EXPORTS, NO_CORPUS
from tools.folders import convert_export_folder

from nsys2prv import Options, convert
from nsys2prv._util.errors import NothingToWrite, Nsys2prvError
from nsys2prv._util.store_file import from_json, to_json
from nsys2prv.conversion import opened_reports
from nsys2prv.conversion.opened_reports import extract_to
from nsys2prv.conversion.report_stores import compute_digest
from nsys2prv.store import task_result
from nsys2prv.store.task_result import find_unpacked_size

SAMPLES = Path(__file__).parents[2] / "sample_reports"
SETS = sorted(path.name for path in SAMPLES.iterdir() if path.is_dir())
TRAINING = sorted((SAMPLES / "training").glob("rank*.sqlite"))
GRAPHS = sorted((SAMPLES / "graphs").glob("rank*.sqlite"))
RULES = """
rules:
- class: attention
  name: "^gemm"
"""


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the files of a trace, without the one that says of what it was made."""
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if not path.name.endswith(".nsys2prv.json")
    }


@pytest.fixture
def store(tmp_path: Path) -> Path:
    extract_to(GRAPHS, tmp_path / "graphs.store")
    return tmp_path / "graphs.store"


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_same_bytes_as_a_direct_conversion(name: str, tmp_path: Path) -> None:
    reports = sorted((SAMPLES / name).glob("rank*.sqlite"))
    expected = convert_to_bytes(reports, tmp_path / "expected")
    stores = [tmp_path / "first.store", tmp_path / "others.store"]
    extract_to(reports[:1], stores[0])
    extract_to(reports[1:], stores[1])
    assert convert_to_bytes(stores[::-1], tmp_path / "merged") == expected
    folder = convert_export_folder(reports[0], tmp_path / "rank0.parquetdir")
    assert convert_to_bytes([stores[1], folder], tmp_path / "mixed") == expected
    # Merging has left the stores as they were.
    assert convert_to_bytes(stores, tmp_path / "again") == expected


@pytest.mark.skipif(not EXPORTS, reason=NO_CORPUS)
@pytest.mark.parametrize("report", EXPORTS[3::8], ids=lambda path: path.stem[:40])
def test_same_bytes_as_of_real_exports(report: Path, tmp_path: Path) -> None:
    extract_to([report], tmp_path / "a.store")
    assert convert_to_bytes([tmp_path / "a.store"], tmp_path / "merged") == convert_to_bytes(
        [report], tmp_path / "expected"
    )


@pytest.mark.slow
def test_several_workers_and_small_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opened_reports, "SMALL_JOB_ROWS", 0)
    expected = convert_to_bytes(TRAINING, tmp_path / "expected")
    for name, options in {
        "processes": {"jobs": 2, "engine": "processes"},
        "threads": {"jobs": 3, "engine": "threads"},
    }.items():
        extract_to(TRAINING, tmp_path / f"{name}.store", Options(**options))
        assert (
            convert_to_bytes([tmp_path / f"{name}.store"], tmp_path / name, **options) == expected
        )
    assert (tmp_path / "processes.store").read_bytes() == (tmp_path / "threads.store").read_bytes()


@pytest.mark.slow
def test_a_store_knows_what_it_was_read_with(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(RULES)
    reading = [
        "-t",
        "kernels,nvtx,cpu",
        "--min-duration",
        "nvtx=20us",
        "--kernel-rules",
        tmp_path / "rules.yaml",
        "--callstack",
        3,
    ]
    for folder in ("expected", "merged", "beside"):
        (tmp_path / folder).mkdir()
    assert (
        run_main("-q", *reading, "--align", "utc", *TRAINING, tmp_path / "expected" / "out.prv")
        == 0
    )
    assert run_main("extract", "-q", *reading, *TRAINING[:2], "-o", tmp_path / "a.store") == 0
    assert run_main("extract", "-q", *reading, *TRAINING[2:], "-o", tmp_path / "b.store") == 0
    assert (
        run_main(
            "merge",
            "-q",
            "--align",
            "utc",
            tmp_path / "a.store",
            tmp_path / "b.store",
            tmp_path / "merged" / "out.prv",
        )
        == 0
    )
    assert read_files(tmp_path / "merged") == read_files(tmp_path / "expected")
    # Reports beside a store are read with the same.
    assert (
        run_main(
            "-q",
            "--align",
            "utc",
            tmp_path / "a.store",
            *TRAINING[2:],
            tmp_path / "beside" / "out.prv",
        )
        == 0
    )
    assert read_files(tmp_path / "beside") == read_files(tmp_path / "expected")


def test_other_options_are_refused(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        run_main(
            "extract",
            "-q",
            "-t",
            "kernels",
            "--min-duration",
            "kernels=1us",
            TRAINING[0],
            "-o",
            tmp_path / "other.store",
        )
        == 0
    )
    assert run_main("merge", "-q", store, tmp_path / "other.store", tmp_path / "out.prv") == 1
    assert "was extracted with other options (-t, --min-duration) than" in read_error_line(capsys)
    assert run_main("-q", "--callstack", 2, store, tmp_path / "out.prv") == 1
    assert "was extracted with other options (--callstack) than this command" in read_error_line(
        capsys
    )
    assert not list(tmp_path.glob("out*"))


def test_the_same_report_twice_is_refused(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main("-q", store, GRAPHS[1], tmp_path / "out.prv") == 1
    assert f"{GRAPHS[1]}: contains rank1.sqlite, which is in {store}, too" in read_error_line(
        capsys
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["merge", "{report}", "{out}"], 2, "is not a store"),
        (["extract", "{store}", "-o", "{out}"], 2, "is a store already"),
        (
            ["merge", "-t", "kernels", "{store}", "{out}"],
            2,
            "--trace is not an option of nsys2prv merge: give it to nsys2prv extract",
        ),
        (
            ["extract", "--max-size", "1MB", "{report}", "-o", "{out}"],
            2,
            "--max-size is not an option of nsys2prv extract: give it to nsys2prv merge",
        ),
        (
            ["extract", "--no-metadata", "{report}", "-o", "{out}"],
            2,
            "--no-metadata is not an option of nsys2prv extract: give it to nsys2prv merge",
        ),
        (
            ["extract", "--list", "{report}", "-o", "{out}"],
            2,
            "--list is not an option of nsys2prv extract: give it to nsys2prv itself",
        ),
        (
            ["extract", "--align", "utc", "{report}", "-o", "{out}"],
            2,
            "--align is not an option of nsys2prv extract: give it to nsys2prv merge",
        ),
        (["extract", "{report}"], 2, "-o/--output is missing"),
        (["extract", "-o", "{out}"], 2, "give at least one report"),
        (["extract", "{report}", "-o", "{report}"], 1, "is not a store; remove it"),
        (["extract", "{report}", "-o", "{out}/no/folder"], 1, "no such folder"),
        (["{report}", "{store}"], 2, "the last argument is the trace to write"),
        (["merge", "{store}"], 2, "at least one store"),
    ],
)
def test_what_is_given_wrongly(
    arguments: list[str],
    status: int,
    message: str,
    store: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = tmp_path / "rank0.sqlite"
    shutil.copyfile(GRAPHS[0], report)
    names = {"report": str(report), "store": str(store), "out": str(tmp_path / "out")}
    before = read_files(tmp_path)
    assert run_main(*(argument.format_map(names) for argument in arguments)) == status
    assert message in read_error_line(capsys)
    assert read_files(tmp_path) == before


def copy_changed(store: Path, target: Path, member: str, content: bytes | None) -> Path:
    """Write a store with another content of one member, or without it."""
    with zipfile.ZipFile(store) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            if name != member:
                new.writestr(name, old.read(name))
            elif content is not None:
                new.writestr(
                    name,
                    content,
                    zipfile.ZIP_DEFLATED if name.endswith(".json") else zipfile.ZIP_STORED,
                )
    return target


def test_a_store_of_another_version_is_refused(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metadata = json.loads(zipfile.ZipFile(store).read("store.json"))
    for name, value in (("version", 999), ("program", "0.0.1"), ("catalogue", "other")):
        other = copy_changed(
            store,
            tmp_path / f"{name}.store",
            "store.json",
            json.dumps({**metadata, name: value}).encode(),
        )
        assert run_main("merge", "-q", other, tmp_path / "out.prv") == 1
        assert "was made by another nsys2prv" in read_error_line(capsys)


@pytest.mark.slow
def test_a_damaged_store_is_one_line(store: Path, tmp_path: Path) -> None:
    sound = store.read_bytes()
    dice = random.Random(3)
    cut = [sound[:length] for length in (60, 1000, len(sound) // 2, len(sound) - 1)]
    flipped = []
    for _ in range(25):
        content = bytearray(sound)
        # Not among the few bytes by which it is known.
        content[dice.randrange(100, len(content))] ^= 1 << dice.randrange(8)
        flipped.append(bytes(content))
    same = convert_to_bytes([store], tmp_path / "expected")
    for number, content in enumerate([*cut, *flipped]):
        store.write_bytes(content)
        try:
            result = convert_to_bytes([store], tmp_path / str(number))
        except Nsys2prvError as error:
            check_one_line(error, store)
        else:
            # Bits of the archive's directory that say nothing of the content, such as dates.
            assert number >= len(cut)
            assert result == same


def check_one_line(error: Nsys2prvError, store: Path) -> None:
    assert str(error).startswith(f"{store}: ")
    assert "\n" not in str(error)


@pytest.mark.slow
def test_a_store_that_tells_lies_is_one_line(store: Path, tmp_path: Path) -> None:
    """Checksums are right, contents are not: nothing but an error comes of it."""
    archive = zipfile.ZipFile(store)
    members = [name for name in archive.namelist() if name != "mimetype"]
    entry = next(name for name in members if name.endswith("result.json"))
    data = next(name for name in members if "/runs-" in name)
    for number, (name, content) in enumerate(
        [
            *((name, None) for name in members[:12]),
            (entry, b"[]"),
            (entry, b"{"),
            (entry, b"[" * 100_000),
            ("store.json", b"{}"),
            ("store.json", b"null"),
            (data, b"ARROW1"),
            (data, archive.read(next(name for name in members if "/names-" in name))),
        ]
    ):
        other = copy_changed(store, tmp_path / f"{number}.store", name, content)
        with pytest.raises(Nsys2prvError) as caught:
            convert_to_bytes([other], tmp_path / str(number))
        check_one_line(caught.value, other)


def test_members_in_the_place_of_each_other_are_refused(store: Path, tmp_path: Path) -> None:
    archive = zipfile.ZipFile(store)
    one, other = [name for name in archive.namelist() if name.endswith(".arrow")][:2]
    swapped = copy_changed(store, tmp_path / "one.store", one, archive.read(other))
    swapped = copy_changed(swapped, tmp_path / "both.store", other, archive.read(one))
    with pytest.raises(Nsys2prvError, match="damaged") as caught:
        convert_to_bytes([swapped], tmp_path / "out")
    check_one_line(caught.value, swapped)


def test_kinds_that_there_are_not_are_refused(store: Path, tmp_path: Path) -> None:
    metadata = json.loads(zipfile.ZipFile(store).read("store.json"))
    kinds = next(
        part for part in metadata["contents"] if isinstance(part, list) and "kernels" in part
    )
    kinds.append("gremlins")
    metadata["digest"] = compute_digest(metadata)
    other = copy_changed(
        store, tmp_path / "other.store", "store.json", json.dumps(metadata).encode()
    )
    with pytest.raises(
        Nsys2prvError, match="kinds of events that there are not: gremlins"
    ) as caught:
        convert_to_bytes([other], tmp_path / "out")
    check_one_line(caught.value, other)


@pytest.mark.slow
def test_what_would_unpack_to_thousands_of_times_its_size_is_refused(
    store: Path, tmp_path: Path
) -> None:
    zeros = io.BytesIO()
    pl.DataFrame({"time": np.zeros(40_000_000, np.int64)}).write_ipc(zeros, compression="zstd")
    with pytest.raises(zipfile.BadZipFile, match=r"runs-0\.arrow unpacks to 320,000,000 bytes"):
        task_result._read_frame(lambda _: io.BytesIO(zeros.getvalue()), "runs-0.arrow")
    for number, (name, content) in enumerate([("store.json", b" " * 300_000_000)]):
        other = copy_changed(store, tmp_path / f"{number}.store", name, content)
        assert other.stat().st_size < 3_000_000
        with pytest.raises(
            Nsys2prvError,
            match=rf"{re.escape(name.rsplit('/', 1)[-1])} unpacks to \d\d\d,\d{{3}},\d{{3}} bytes",
        ):
            convert_to_bytes([other], tmp_path / str(number))


def test_tables_tell_what_they_unpack_to() -> None:
    file = io.BytesIO()
    columns = {
        "number": np.arange(100_000),
        "text": [f"name {number}" for number in range(100_000)],
    }
    pl.DataFrame(columns).write_ipc(file, compression="zstd")
    assert (
        800_000 + sum(map(len, columns["text"])) <= find_unpacked_size(file.getvalue()) < 4_000_000
    )


def test_indices_beyond_what_a_store_holds_are_refused(store: Path, tmp_path: Path) -> None:
    archive = zipfile.ZipFile(store)
    for entry in [name for name in archive.namelist() if name.endswith("result.json")]:
        document = json.loads(archive.read(entry))
        objects = (
            next(
                index
                for index, part in enumerate(document[0])
                if isinstance(part, list) and part and part[0][0] == "ThreadKey"
            )
            if "ThreadKey" in str(document)
            else None
        )
        if objects is not None:
            document[0][objects] = []
            other = copy_changed(
                store, tmp_path / "other.store", entry, json.dumps(document).encode()
            )
            with pytest.raises(Nsys2prvError, match="damaged"):
                convert_to_bytes([other], tmp_path / "out")
            return
    pytest.fail("no result with threads")


def test_a_store_is_replaced_by_a_complete_one_only(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = read_files(tmp_path)

    def broken(*_: object) -> None:
        raise OSError(28, "nothing free")

    monkeypatch.setattr(opened_reports, "pack_result", broken)
    with pytest.raises(Nsys2prvError, match="no space left"):
        extract_to(GRAPHS, store)
    assert read_files(tmp_path) == before


def test_stores_without_events_are_no_error_until_all_are(tmp_path: Path) -> None:
    options = Options(kinds=("openacc",))
    extract_to(GRAPHS, tmp_path / "graphs.store", options)
    with pytest.raises(NothingToWrite):
        convert([tmp_path / "graphs.store"], tmp_path / "out.prv")


class Pair(NamedTuple):
    left: int
    right: str = ""


class Other(NamedTuple):
    left: int


class Thing(Struct, frozen=True):
    number: int
    keys: list[Pair | Other] = field(default_factory=list)
    maybe: Pair | None = None
    table: Mapping[tuple[str, int], float] = field(default_factory=dict)
    count: Counter[str] = field(default_factory=Counter)
    path: Path = Path()
    names: frozenset[str] = frozenset()
    both: tuple[int, str] = (0, "")


def test_structs_as_json_and_back() -> None:
    thing = Thing(
        1 << 62,
        [Pair(1, "ü\udcff"), Other(2)],
        None,
        {("a", 1): 0.1},
        Counter(a=2),
        Path("/x/\udcff"),
        frozenset({"b", "a"}),
        (3, "c"),
    )
    document = json.loads(json.dumps(to_json(thing, Thing)))
    assert from_json(document, Thing) == thing
    for index, invalid in (
        (0, "1"),
        (0, True),
        (1, [["Thing", [1]]]),
        (1, [["Pair", [1]]]),
        (2, 5),
        (3, {"a": 1}),
        (5, 7),
        (7, [1]),
    ):
        with pytest.raises((ValueError, TypeError)):
            from_json(
                [invalid if place == index else value for place, value in enumerate(document)],
                Thing,
            )


def test_the_archive_says_what_it_is(store: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(store.read_bytes())) as archive:
        assert archive.namelist()[0] == "mimetype"
        assert archive.testzip() is None
