"""The batch scripts of the documents run, with stand-ins for Slurm."""

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


@pytest.mark.parametrize(
    "variable", ["RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"]
)
def test_ranks_of_every_launcher_have_a_report_each(variable: str, tmp_path: Path) -> None:
    """A stand-in for nsys writes its options to the report, and runs the program."""
    nsys = tmp_path / "nsys"
    nsys.write_text(
        "#!/bin/sh\n"
        'for word; do case "$word" in --output=*) echo "$@" > "${word#--output=}.nsys-rep";; esac; done\n'
        'while [ "$1" != echo ]; do shift; done\n'
        'exec "$@"\n'
    )
    nsys.chmod(0o755)
    ranks = {"RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}
    environment = {name: text for name, text in os.environ.items() if name not in ranks}
    environment |= {"PATH": f"{tmp_path}:{os.environ['PATH']}", "NSYS_RANKS": "0 10"}
    script = ROOT / "docs" / "scripts" / "profile-rank.sh"
    for rank in ("0", "1", "10"):
        done = subprocess.run(
            [script, "echo", "two words", "end"],
            env=environment | {variable: rank},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == "two words end\n"
    reports = {path.name: path.read_text() for path in (tmp_path / "run").iterdir()}
    assert sorted(reports) == ["rank0.nsys-rep", "rank10.nsys-rep"]
    assert "--cuda-graph-trace=node" in reports["rank0.nsys-rep"].split()


def test_a_process_without_a_rank_is_refused(tmp_path: Path) -> None:
    script = ROOT / "docs" / "scripts" / "profile-rank.sh"
    done = subprocess.run(
        [script, "true"], env={"PATH": os.environ["PATH"]}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
