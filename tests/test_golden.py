"""Test whole traces, byte for byte. After an intended change, ``python tests/test_golden.py``
rewrites them; read the difference.
"""

import subprocess
import sys
from difflib import unified_diff
from pathlib import Path

import pytest

from nsys2prv import Options, convert

HERE = Path(__file__).parent
GOLDEN = HERE / "golden"
SAMPLES = HERE.parent / "sample_reports"
#: Changed lines of a golden file that are shown.
MOST_LINES = 12
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
    changes = [_describe_change(GOLDEN / path.name, path) for path in written]
    assert not any(changes), "\n".join(filter(None, changes))


def test_trace_is_the_same_without_the_compiled_core(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['nsys2prv._util.native._core'] = None\n"
        "from nsys2prv.cli import main; sys.exit(main())"
    )
    command = [sys.executable, "-c", code, "-q", "-j", "1", "--no-metadata"]
    trace = tmp_path / "graphs.prv"
    subprocess.run([*command, SAMPLES / "graphs", trace], check=True, cwd=tmp_path)
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (GOLDEN / path.name).read_bytes()
    assert trace.exists()


def _describe_change(golden: Path, written: Path) -> str:
    """Return how many lines of a golden file change, and the first ones; "" where none does."""
    if golden.read_bytes() == written.read_bytes():
        return ""
    old, new = (path.read_text().splitlines() for path in (golden, written))
    lines = [line for line in unified_diff(old, new, lineterm="", n=0) if line[:1] in "-+"][2:]
    shown = "\n".join(line[:200] for line in lines[:MOST_LINES])
    return f"{golden.name}: {len(lines)} lines differ, at first\n{shown}"


if __name__ == "__main__":
    for trace in TRACES:
        for file in write_sample(trace, GOLDEN):
            print(file)
