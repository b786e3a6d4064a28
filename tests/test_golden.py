"""Whole traces, byte for byte. After an intended change: ``python tests/test_golden.py`` rewrites
them; read the difference.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from nsys2prv import Options, convert

HERE = Path(__file__).parent
GOLDEN = HERE / "golden"
SAMPLES = HERE.parent / "sample_reports"
#: Golden trace -> reports and options. Small ones: whoever changes the output should read it.
TRACES = {
    "graphs": (sorted((SAMPLES / "graphs").glob("rank*.sqlite")), Options(metadata=False)),
    "cluster": (
        sorted((SAMPLES / "cluster").glob("rank*.sqlite")),
        Options(kinds=("mpi_event_trace", "osrt", "pthread", "metrics", "nccl"), metadata=False),
    ),
    "full-names": (
        [SAMPLES / "graphs" / "rank1.sqlite"],
        Options(kinds=("kernels", "graphs"), full_kernel_names=True, metadata=False),
    ),
    "states": (
        [SAMPLES / "graphs" / "rank1.sqlite"],
        Options(kinds=("kernels", "graphs", "memory"), states=True, metadata=False),
    ),
}


def write_sample(name: str, folder: Path) -> list[Path]:
    reports, options = TRACES[name]
    convert(reports, folder / f"{name}.prv", options)
    return sorted(folder.glob(f"{name}.*"))


@pytest.mark.parametrize("name", TRACES)
def test_trace_is_the_golden_one(name: str, tmp_path: Path) -> None:
    written = write_sample(name, tmp_path)
    assert [path.name for path in written] == [
        path.name for path in sorted(GOLDEN.glob(f"{name}.*"))
    ]
    for path in written:
        assert path.read_bytes() == (GOLDEN / path.name).read_bytes(), f"{path.name} differs"


if __name__ == "__main__":
    for trace in TRACES:
        for file in write_sample(trace, GOLDEN):
            print(file)
