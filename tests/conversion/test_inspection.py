"""Test that workers and this process inspect reports in the same way: in order, with one line about
an unreadable one.
"""

from pathlib import Path

import pytest
from tools.conversions import convert_to_bytes

from nsys2prv import Options, convert
from nsys2prv._util.errors import Nsys2prvError
from nsys2prv._util.workers import Pool
from nsys2prv.conversion.convert import inspect_reports
from nsys2prv.export import report_files

TRAINING = sorted((Path(__file__).parents[2] / "sample_reports" / "training").glob("rank*.sqlite"))


def truncate_report(report: Path, copy: Path) -> Path:
    """Write a report without its second half."""
    content = report.read_bytes()
    copy.write_bytes(content[: len(content) // 2])
    return copy


def test_nothing_is_made_of_further_reports_once_one_cannot_be_looked_at(tmp_path: Path) -> None:
    missing = tmp_path / "none.nsys-rep"
    result = list(inspect_reports([TRAINING[0], missing, TRAINING[1]], tmp_path, False, Pool()))
    assert [str(info).split(":")[0] for info in result[1:]] == [str(missing)]
    assert (
        len(list(inspect_reports([TRAINING[0], missing, TRAINING[1]], tmp_path, True, Pool()))) == 3
    )


def test_workers_tell_what_is_wrong_with_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_files, "SMALL_JOB_BYTES", 0)
    damaged = truncate_report(TRAINING[1], tmp_path / "damaged.sqlite")
    with pytest.raises(
        Nsys2prvError, match=f"^{damaged}: cannot be read as an SQLite export"
    ) as error:
        convert(
            [TRAINING[0], damaged, tmp_path / "none.sqlite"],
            tmp_path / "out.prv",
            Options(jobs=2, quiet=True),
        )
    assert "\n" not in str(error.value)
    summary = convert(
        [TRAINING[0], damaged, TRAINING[1]],
        tmp_path / "out.prv",
        Options(jobs=2, quiet=True, keep_going=True),
    )
    assert len(summary.unread) == 1
    assert summary.unread[0].startswith(f"{damaged}: ")
    alone = convert_to_bytes([TRAINING[0], TRAINING[1]], tmp_path / "alone", quiet=True)
    assert (tmp_path / "out.prv").read_bytes() == alone["out.prv"]
