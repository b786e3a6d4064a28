"""The batch scripts of the documents run, with stand-ins for Slurm."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted((ROOT / "docs" / "scripts").iterdir())
#: Starts the command several times, as srun does: `mpiexec` where it is one of MPI, else processes.
SRUN = """#!/bin/bash
if [ "$1" = nsys2prv ]; then
    exec mpiexec -n 3 "{python}" -m "$@"
fi
"$@" &
exec "$@"
"""
#: Lets Open MPI start ranks as root, and more than there are CPUs.
MPI_AS_ROOT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_have_no_mistakes_of_syntax(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["mpi", "dask"])
def test_batch_scripts_convert(engine: str, tmp_path: Path) -> None:
    if engine == "mpi":
        reason = "no mpi4py that fits the MPI here"
        pytest.importorskip("mpi4py.MPI", reason=reason, exc_type=ImportError)
        if not shutil.which("mpiexec"):
            pytest.skip("no MPI here")
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    (bin_folder / "srun").write_text(SRUN.format(python=sys.executable))
    for name, module in {"nsys2prv": "-m nsys2prv", "dask": "-m dask", "python3": ""}.items():
        (bin_folder / name).write_text(f'#!/bin/bash\nexec "{sys.executable}" {module} "$@"\n')
    for program in bin_folder.iterdir():
        program.chmod(0o755)
    environment = os.environ | MPI_AS_ROOT | {"PATH": f"{bin_folder}:{os.environ['PATH']}"}
    script = ROOT / "docs" / "scripts" / f"convert-{engine}.sbatch"
    run = tmp_path / "run"
    shutil.copytree(ROOT / "sample_reports" / "graphs", run)
    trace = run / "job.prv"
    subprocess.run(["bash", script, run, trace], env=environment, check=True, timeout=300, cwd=ROOT)
    alone = tmp_path / "alone.prv"
    subprocess.run([sys.executable, "-m", "nsys2prv", "-q", run, alone], check=True, cwd=ROOT)
    assert trace.read_bytes() == alone.read_bytes()
    left = {path.name for path in run.iterdir()} - {path.name for path in tmp_path.iterdir()}
    assert not [name for name in left if name.startswith(("dask", "."))]
