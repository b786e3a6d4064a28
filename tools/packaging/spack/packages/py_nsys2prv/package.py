"""Spack's recipe. docs/installing.md says how to install with it."""

import os

from spack.package import InstallError, depends_on, find, license, run_after, variant, version
from spack_repo.builtin.build_systems.python import PythonPackage

#: Wheels of the SQLite driver, which Spack has no package for.
DRIVER = ("adbc_driver_manager-*.whl", "adbc_driver_sqlite-*.whl")


class PyNsys2prv(PythonPackage):
    """One Paraver trace of a whole parallel GPU job, from its per-rank NVIDIA Nsight Systems
    exports."""

    license("Apache-2.0")

    # Built from the checkout that this file is in: `spack develop`, or `dev_path=CHECKOUT`.
    version("main")

    variant("plot", default=True, description="Draw the pictures of the page of reports")
    variant("mpi", default=False, description="Work on the ranks of an MPI job, --engine mpi")

    depends_on("c", type="build")
    depends_on("python@3.10:", type=("build", "link", "run"))
    depends_on("py-hatchling", type="build")
    depends_on("py-pyyaml@6.0:", type=("build", "run"))
    depends_on("py-isal@1.6:", type=("build", "run"))
    depends_on("py-jinja2@3.1:", type=("build", "run"))
    depends_on("py-msgspec@0.18.5:", type=("build", "run"))
    depends_on("py-numpy@1.26:", type=("build", "run"))
    depends_on("py-polars@1.22:", type=("build", "run"))
    depends_on("py-tqdm@4.60:", type=("build", "run"))
    depends_on("py-typing-extensions", type=("build", "run"))
    depends_on("py-matplotlib@3.8:", type=("build", "run"), when="+plot")
    depends_on("py-mpi4py@4.0:", type=("build", "run"), when="+mpi")

    @run_after("install")
    def install_driver(self):
        """Install the SQLite driver from the folder `wheels` of the checkout."""
        folder = os.path.join(self.stage.source_path, "wheels")
        wheels = [wheel for pattern in DRIVER for wheel in find(folder, pattern)]
        if len(wheels) != len(DRIVER):
            raise InstallError(f"{folder}: put {' and '.join(DRIVER)} there (docs/installing.md)")
        self.spec["python"].command(
            "-m", "pip", "install", "--no-deps", "--no-index", f"--prefix={self.prefix}", *wheels
        )
