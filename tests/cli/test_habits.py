"""Test that commands and options of other programs are answered with the equivalent here."""

from pathlib import Path

import pytest

from nsys2prv import convert
from nsys2prv.cli import main
from nsys2prv.cli.arguments import CONVERSION, Parser, load_commands
from nsys2prv.conversion.options import CutOptions, Options
from nsys2prv.events import all_kinds, list_kind_names

REPORT = Path(__file__).parents[2] / "sample_reports" / "graphs" / "rank1.sqlite"


def read_error(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Return the single line on standard error of an impossible command."""
    assert main([str(argument) for argument in arguments]) in (2, 3)
    text = capsys.readouterr().err
    assert text.count("\n") == 1, text
    return text


LEGACY = {
    option: here
    for names, here in load_commands()[CONVERSION]["legacy"].items()
    for option in names.split()
}


@pytest.mark.parametrize("option", LEGACY)
def test_options_of_bscs_tool_are_answered(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for line in (
        [option, REPORT, tmp_path / "o"],
        [option, "100", REPORT, tmp_path / "o"],
        [REPORT, tmp_path / "o", option],
        [REPORT, tmp_path / "o", option, "100"],
    ):
        error = read_error(capsys, *line)
        assert f"{option} is an option of BSC's nsys2prv; here, {LEGACY[option]}" in error
    assert not list(tmp_path.iterdir())
    assert option not in Parser(CONVERSION).format_help().replace(",", " ").split()


@pytest.mark.parametrize(
    "arguments", [["-fstep@domain/2"], ["--filter-nvtx=step"], ["-ms"], ["-zc"], ["-q", "-N"]]
)
def test_however_they_are_written(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "is an option of BSC's nsys2prv" in read_error(capsys, *arguments, REPORT, "o")


def test_what_the_answers_name_is_there() -> None:
    for line in (
        ["--region", "step:3"],
        ["--time", "5ns:10ns"],
        ["-t=-kernels"],
        ["--min-duration", "cuda_api_trace=100"],
        ["-v"],
        ["--list"],
        ["--nvtx-rules", "f"],
    ):
        Parser(CONVERSION).parse_args([*line, "r.sqlite", "o"])
    of_stats = {name for kind in all_kinds() for name in kind.stats}
    assert len(of_stats) >= 10
    assert not of_stats & {*list_kind_names()}


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("cuda_gpu_trace", "use kernels,memory, which have the rows of this nsys stats report"),
        ("kernel", "did you mean kernels? `nsys2prv --kinds`"),
        ("NVTX_mark", "did you mean nvtx_marks"),
        ("-openmpi", "openmp"),
        ("syscall", "did you mean syscalls"),
        ("zzzz", "event; `nsys2prv --kinds` lists all"),
    ],
)
def test_a_kind_that_is_none(name: str, answer: str, capsys: pytest.CaptureFixture[str]) -> None:
    error = read_error(capsys, "-t", name, REPORT, "o")
    assert answer in error
    assert f"-t {name.lstrip('-')}: no such kind of event" in error
    assert len(error) < 200
    assert "no such kind of event" in read_error(
        capsys, "--min-duration", f"{name.lstrip('-')}=5", REPORT, "o"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("time", "message"),
    [
        ("10000000:50000000", "10000000ns:50000000ns"),
        ("10000000:90%", "10000000ns:90%"),
        ("50:", "50ns:"),
    ],
)
def test_times_that_were_meant_in_ns(
    time: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = read_error(capsys, "--time", time, REPORT, tmp_path / "o")
    assert "numbers without a unit are seconds, so append ns to nanoseconds\n" in error
    convert([REPORT], tmp_path / "o", Options(cut=CutOptions(time=message)))


def test_a_cut_that_leaves_nothing_out_says_so(tmp_path: Path) -> None:
    def notes(time: str) -> list[str]:
        return [
            note
            for note in convert([REPORT], tmp_path / "o", Options(cut=CutOptions(time=time))).notes
            if note.startswith("cut: ")
        ]

    assert notes("0:50000000") == [
        "cut: --time 0:50000000 selects the whole trace; numbers without a unit are seconds"
    ]
    assert notes("0%:") == []


def test_options_of_a_conversion_are_fields_that_have_the_defaults() -> None:
    given = vars(Parser(CONVERSION).parse_args([]))
    fields = {*Options.__struct_fields__, *CutOptions.__struct_fields__}
    further = {"paths", "list", "trace", "kernel_names", "verbose", "version", "multi_report"}
    assert given.keys() - fields == further
    assert fields - given.keys() == {"cut", "full_kernel_names"}
    flags = {name for name, value in given.items() if isinstance(value, bool)}
    said_here = {name for name, value in given.items() if value not in (None, [])} - flags
    assert said_here == {"jobs"}
