"""Test exports with shifted times (--ts-shift, --ts-normalize), for some ranks only."""

from pathlib import Path

import pytest
from tools.conversions import convert_and_read
from tools.exports import KERNEL, make_export, make_host, make_kernel, make_strings

SECOND, UTC, KERNEL_CODE = 1_000_000_000, 1_780_000_000_000_000_000, 63000006


def export_rank(path: Path, rank: int, shift: int = 0, normalize: bool = False) -> Path:
    """Write a report of the one host, whose capture begins `rank` seconds after that of rank 0."""
    # UTC was read 7 ns late on rank 1; what counts is the host's own clock.
    utc = UTC + rank * (SECOND + 7)
    added = shift + utc * normalize
    settings = {"TIME_SHIFT": str(shift), "TIME_NORMALIZE": str(normalize).lower()}
    return make_export(
        path / f"rank{rank}.sqlite",
        {
            "StringIds": make_strings("kern"),
            KERNEL: [make_kernel(added + at, added + at + 10) for at in range(0, 500, 100)],
            "META_DATA_EXPORT": [
                {"name": f"EXPORT_PARAM_{name}", "value": value} for name, value in settings.items()
            ],
            **make_host("node", utc, 50 + rank * SECOND),
            "ANALYSIS_DETAILS": [{"duration": SECOND}],
        },
    )


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("shift", [0, 40 * SECOND, -3 * SECOND])
def test_what_the_export_added_is_undone(tmp_path: Path, shift: int, normalize: bool) -> None:
    reports = [export_rank(tmp_path, 0), export_rank(tmp_path, 1, shift, normalize)]
    trace, summary = convert_and_read(reports, tmp_path / "out.prv")
    begins = {1: [], 2: []}
    for item in trace.list_intervals(KERNEL_CODE):
        begins[item.row[0]].append(item.begin)
    assert begins[1] == list(range(0, 500, 100))
    assert begins[2] == [SECOND + at for at in range(0, 500, 100)]
    assert not summary.dropped
