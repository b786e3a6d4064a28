"""Spack's recipe. docs/installing.md says how to install with it."""

from spack.package import depends_on, license, variant, version
from spack_repo.builtin.build_systems.python import PythonPackage


class PyNsys2prv(PythonPackage):
    """One Paraver trace of a whole parallel GPU job, from its per-rank NVIDIA Nsight Systems
    exports."""

    license("Apache-2.0")

    # Built from the checkout that this file is in: `spack develop`, or `dev_path=CHECKOUT`.
    version("main")

    variant("mpi", default=False, description="Work on the ranks of an MPI job, --engine mpi")

    depends_on("c", type="build")
    depends_on("python@3.10:", type=("build", "link", "run"))
    depends_on("py-scikit-build-core@0.11:", type="build")
    depends_on("cmake@3.26:", type="build")
    depends_on("py-pyyaml@6.0:", type=("build", "run"))
    depends_on("py-isal@1.6:", type=("build", "run"))
    depends_on("py-jinja2@3.1:", type=("build", "run"))
    depends_on("py-msgspec@0.18.5:", type=("build", "run"))
    depends_on("py-numpy@1.26:", type=("build", "run"))
    depends_on("py-polars@1.22:", type=("build", "run"))
    depends_on("py-tqdm@4.60:", type=("build", "run"))
    depends_on("py-typing-extensions", type=("build", "run"))
    depends_on("py-mpi4py@4.0:", type=("build", "run"), when="+mpi")
