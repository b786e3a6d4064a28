"""Run the scripts and launch commands of the documents, with stand-ins for nsys and launchers."""

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted(
    path for path in (ROOT / "docs" / "scripts").iterdir() if path.suffix in (".sh", ".sbatch")
)
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


DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def list_blocks(document: Path, language: str) -> list[str]:
    """Return the code blocks of a document in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", document.read_text("utf-8"), re.M | re.S)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_code_blocks_of_documents_have_no_syntax_errors(document: Path) -> None:
    for block in (*list_blocks(document, "sh"), *list_blocks(document, "bash")):
        subprocess.run(["bash", "-n"], input=block, text=True, check=True)
    for block in list_blocks(document, "python"):
        ast.parse(block)
    for block in list_blocks(document, "yaml"):
        yaml.safe_load(block)


def test_the_kubernetes_job_profiles_every_pod() -> None:
    job = yaml.safe_load((ROOT / "docs" / "scripts" / "pytorchjob.yaml").read_text())
    for pods in job["spec"]["pytorchReplicaSpecs"].values():
        (container,) = pods["template"]["spec"]["containers"]
        assert container["command"][:2] == ["nsys", "profile"]
        assert "--output=/reports/rank%q{RANK}" in container["command"]
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pods["template"]["spec"]["volumes"]}


#: Variables that a launcher or a user of the script sets.
LAUNCHER_VARIABLES = re.compile("RANK|OMPI_|PMI|MV2_|PALS_|MPI_|SLURM_|NSYS_|LOCAL_RANK")
#: Stand-ins on the PATH of a reader. Launchers start two ranks; nsys writes its arguments to the report.
STAND_INS = {
    "nsys": """
if [ "$1" = export ]; then
    case "$2" in --help) echo "  --include-json";; *) while [ "$1" != -o ]; do shift; done; cp "$SAMPLE" "$2";; esac
    exit
fi
shift
arguments="$*"
while :; do
    case "$1" in
    --output=*) name=$(basename "$(echo "$1" | sed 's/%q{\\([A-Z_]*\\)}/${\\1}/g; s/^/echo /' | sh)") ;;
    --*) ;;
    *) break ;;
    esac
    shift
done
echo "$arguments" > "run/$name.nsys-rep"
exec "$@"
""",
    "srun": 'for r in 0 1; do SLURM_PROCID=$r SLURM_LOCALID=$r "$@" & done; wait',
    "mpirun": 'shift 2; for r in 0 1; do OMPI_COMM_WORLD_RANK=$r "$@" & done; wait',
    "torchrun": 'shift 3; for r in 0 1; do RANK=$r LOCAL_RANK=$r "$@" & done; wait',
    "deepspeed": 'shift; for r in 0 1; do RANK=$r LOCAL_RANK=$r "$@" & done; wait',
    "docker": 'while [ "$1" != IMAGE ]; do shift; done; shift 2; RANK=0 exec nsys "$@"',
    "apptainer": 'while [ "$1" != IMAGE.sif ]; do shift; done; shift 2; exec nsys "$@"',
    "nsys2prv": 'exec "$PYTHON" -m nsys2prv "$@"',
    **dict.fromkeys(("python", "julia", "vllm", "trtllm-bench", "uv", "app"), 'echo "$@"'),
}


@pytest.mark.parametrize("number", range(len(list_blocks(ROOT / "docs" / "profiling.md", "sh"))))
def test_launch_commands_run(number: int, tmp_path: Path) -> None:
    block = list_blocks(ROOT / "docs" / "profiling.md", "sh")[number]
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for name, text in STAND_INS.items():
        (bin_folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (bin_folder / name).chmod(0o755)
    shutil.copy(bin_folder / "app", tmp_path / "app")
    shutil.copy(ROOT / "docs" / "scripts" / "profile-rank.sh", tmp_path)
    sample = ROOT / "sample_reports" / "graphs" / "rank0.sqlite"
    run = tmp_path / "run"
    run.mkdir()
    if "nsys2prv quality" in block:
        shutil.copy(sample, run)
    environment = {
        name: text for name, text in os.environ.items() if not LAUNCHER_VARIABLES.match(name)
    }
    environment |= {
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "PYTHON": sys.executable,
        "SAMPLE": str(sample),
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", block], env=environment, cwd=tmp_path, check=False
    )
    # The sample lacks the kernels of its CUDA graphs.
    assert done.returncode == (6 if "nsys2prv quality" in block else 0)
    commands = {"nsys profile", "profile-rank.sh"}
    assert any(run.glob("*.nsys-rep")) == any(command in block for command in commands)


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


@pytest.fixture
def run_rank(tmp_path: Path) -> Callable[..., str]:
    """Return a function that runs profile-rank.sh with variables, and returns the program's output.

    A stand-in for nsys writes its options to the report, and runs the program.
    """
    nsys = tmp_path / "nsys"
    nsys.write_text(
        "#!/bin/sh\n"
        'for word; do case "$word" in --output=*) echo "$@" > "${word#--output=}.nsys-rep";; esac; done\n'
        'while [ "$1" != echo ]; do shift; done\n'
        'exec "$@"\n'
    )
    nsys.chmod(0o755)
    known = {
        name: text for name, text in os.environ.items() if not LAUNCHER_VARIABLES.match(name)
    } | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    script = ROOT / "docs" / "scripts" / "profile-rank.sh"

    def run(**variables: str) -> str:
        words = [script, "echo", "two words", "end"]
        done = subprocess.run(
            words, env=known | variables, cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return done.stdout

    return run


@pytest.mark.parametrize(
    "variable",
    [
        *("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"),
        *("MV2_COMM_WORLD_RANK", "PALS_RANKID", "SLURM_PROCID"),
    ],
)
def test_ranks_of_every_launcher_have_a_report_each(
    variable: str, run_rank: Callable[..., str], tmp_path: Path
) -> None:
    # The batch step of Slurm sets its variable to 0 for all processes of another launcher.
    for rank in ("0", "1", "10"):
        numbers = {"SLURM_PROCID": "0", variable: rank}
        assert run_rank(NSYS_RANKS="0 10", **numbers) == "two words end\n"
    reports = {path.name: path.read_text() for path in (tmp_path / "run").iterdir()}
    assert sorted(reports) == ["rank0.nsys-rep", "rank10.nsys-rep"]
    assert "--cuda-graph-trace=node" in reports["rank0.nsys-rep"].split()


HYDRA = {"PMI_RANK": "1", "MPI_LOCALRANKID": "1"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (HYDRA, "mpich"),
        # In a batch script, and with proxies that srun starts, one per node.
        (HYDRA | {"SLURM_PROCID": "0"}, "mpich"),
        (HYDRA | {"SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}, "mpich"),
        (HYDRA | {"NSYS_OPTIONS": "--trace=mpi,osrt"}, "mpich"),
        (HYDRA | {"NSYS_OPTIONS": "--trace=cuda"}, ""),
        (HYDRA | {"NSYS_MORE": "--mpi-impl=openmpi"}, "openmpi"),
        ({"PMI_RANK": "1"}, "mpich"),
        # srun --mpi=pmi2 starts programs of any MPI.
        ({"PMI_RANK": "1", "SLURM_PROCID": "1", "SLURM_STEP_ID": "0"}, ""),
        ({"OMPI_COMM_WORLD_RANK": "1", "SLURM_PROCID": "0"}, "openmpi"),
        ({"RANK": "1"}, ""),
    ],
)
def test_nsys_learns_the_mpi_of_the_launcher(
    variables: dict[str, str], expected: str, run_rank: Callable[..., str], tmp_path: Path
) -> None:
    run_rank(**variables)
    options = (tmp_path / "run" / "rank1.nsys-rep").read_text()
    assert re.findall(r"--mpi-impl=(\w+)", options) == ([expected] if expected else [])


def test_a_process_without_a_rank_is_refused(tmp_path: Path) -> None:
    script = ROOT / "docs" / "scripts" / "profile-rank.sh"
    done = subprocess.run(
        [script, "true"], env={"PATH": os.environ["PATH"]}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
