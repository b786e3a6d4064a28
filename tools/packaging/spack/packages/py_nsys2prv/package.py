"""Spack's recipe: `spack repo add tools/packaging/spack`, then `spack install py-nsys2prv`."""

from spack.package import depends_on, find, license, resource, run_after, variant, version
from spack_repo.builtin.build_systems.python import PythonPackage

#: Wheels of the SQLite driver, which Spack has no packages for: (project, Python, target) -> SHA-256.
DRIVER = "1.8.0"
WHEELS = {
    (
        "adbc_driver_manager",
        "cp311",
        "x86_64",
    ): "349fecd931e5211f00ce00d109fc80a484046fe41644aa402b97496919aa8c2a",
    (
        "adbc_driver_manager",
        "cp311",
        "aarch64",
    ): "fed9a2cb46602cff67f503bbf55c6ee2e69a7e5c07a08514b5bd27a656a3e40b",
    (
        "adbc_driver_manager",
        "cp312",
        "x86_64",
    ): "f7689b0cf30d77532189b30762e3f6a347275e57e511e885f0eba45ce40ce02c",
    (
        "adbc_driver_manager",
        "cp312",
        "aarch64",
    ): "abd11c6ecdc8119641d2a929e50c9f6ff822b322859bf08a085e7ba9d1adb399",
    (
        "adbc_driver_manager",
        "cp313",
        "x86_64",
    ): "8b4d34618a5e64e678210dfdf76704f11e09529fc221dbd576ead6c14555883d",
    (
        "adbc_driver_manager",
        "cp313",
        "aarch64",
    ): "d70431e659e8e51d222fa238410085f0c13921154e0a17e9a687f7896667138f",
    (
        "adbc_driver_sqlite",
        "py3",
        "x86_64",
    ): "d808b5cc11ed02a731fdf3d76e14a588add17b6065745be6c26f4f5cd05a6a14",
    (
        "adbc_driver_sqlite",
        "py3",
        "aarch64",
    ): "b3ca480ef8fc0721790d9ebe7706cb11dea28fbbf98c56ae6c6024da827829ba",
}


class PyNsys2prv(PythonPackage):
    """One Paraver trace of a whole parallel GPU job, from its per-rank NVIDIA Nsight Systems
    exports."""

    license("Apache-2.0")

    # Built from the checkout that this file is in: `spack develop`, or `dev_path=CHECKOUT`.
    version("main")

    variant("plot", default=True, description="Draw the pictures of the page of reports")
    variant("mpi", default=False, description="Work on the ranks of an MPI job, --engine mpi")

    depends_on("c", type="build")
    depends_on("python@3.11:3.13", type=("build", "link", "run"))
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

    for (project, tag, target), checksum in WHEELS.items():
        abi = "none" if tag == "py3" else tag
        name = f"{project}-{DRIVER}-{tag}-{abi}-manylinux2014_{target}.manylinux_2_17_{target}.whl"
        resource(
            name=f"{project}-{tag}-{target}",
            url=f"https://files.pythonhosted.org/packages/{tag}/a/{project.replace('_', '-')}/{name}",
            sha256=checksum,
            expand=False,
            placement=f"driver-{project}-{tag}-{target}",
            when=f"target={target}:" if tag == "py3" else f"^python@3.{tag[3:]} target={target}:",
        )

    @run_after("install")
    def install_driver(self):
        """Install the wheels of the SQLite driver that were fetched."""
        wheels = find(self.stage.source_path, "adbc_driver_*.whl")
        self.spec["python"].command(
            "-m", "pip", "install", "--no-deps", "--no-index", f"--prefix={self.prefix}", *wheels
        )
