"""Compiles the reader of tables and the writer of lines while the package is built, and parses the
YAML files that come with it. Where that cannot be, the package does without.

python hatch_build.py      puts it into the checkout, as `pip install -e .` does
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run by itself
    BuildHookInterface = object  # type: ignore[assignment, misc]

PACKAGE = Path("nsys2prv")
#: What the YAML files say, as Python, which starts twenty times as fast.
PARSED = Path("nsys2prv/_util/shipped_data.py")
#: The commit that a wheel was built from.
COMMIT = Path("nsys2prv/_util/commit.txt")
SOURCES = Path("nsys2prv/_util/native")
MODULE = "_core"


def compiled(root: Path, folder: Path) -> Path:
    """The extension module, made in this folder. Raises OSError or CalledProcessError where there
    is no compiler, or no Python.h.
    """
    made = folder / (MODULE + sysconfig.get_config_var("EXT_SUFFIX"))
    linker = shlex.split(sysconfig.get_config_var("LDSHARED") or "cc -shared")
    if os.environ.get("CC"):
        linker[:1] = shlex.split(os.environ["CC"])
    sources = sorted(map(str, (root / SOURCES).glob("*.c")))
    subprocess.run(
        [*linker, "-O3", "-fPIC", f"-I{sysconfig.get_path('include')}", *sources, "-o", str(made)],
        check=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    return made


def parsed(root: Path, made: Path) -> Path:
    """The module that `nsys2prv/_util/data_files.py` looks into: digest of a text -> what makes its data.
    Raises ImportError where there is no PyYAML.
    """
    import yaml

    lines = ['"""Made by hatch_build.py of the YAML files of this package."""', "", "PARSED = {"]
    for file in sorted((root / PACKAGE).rglob("*.yaml")):
        text = file.read_text(encoding="utf-8")
        data = repr(yaml.safe_load(text))
        lines.append(f"    {sha256(text.encode()).hexdigest()!r}: lambda: {data},  # {file.name}")
    made.write_text("\n".join([*lines, "}", ""]), encoding="utf-8")
    return made


def named_commit(root: Path, made: Path) -> Path | None:
    """Write the commit of the checkout, for `nsys2prv --version`; None where it is not known."""
    sys.path.insert(0, str(root))
    try:
        from nsys2prv._util.version import describe_commit
    finally:
        sys.path.remove(str(root))
    if not (commit := describe_commit(root)):
        return None
    made.write_text(f"{commit}\n", encoding="utf-8")
    return made


class Compile(BuildHookInterface):
    """Puts both modules into a wheel, or for an editable installation beside its sources."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        if version != "editable" and (commit := named_commit(root, folder / COMMIT.name)):
            build_data["force_include"][str(commit)] = str(COMMIT)
        try:
            made = parsed(root, root / PARSED if version == "editable" else folder / PARSED.name)
            build_data["force_include"][str(made)] = str(PARSED)
        except ImportError as error:
            self.app.display_warning(
                f"installed without parsed data, starting takes longer: {error}"
            )
        try:
            made = compiled(root, root / SOURCES if version == "editable" else folder)
        except (OSError, subprocess.CalledProcessError) as error:
            told = getattr(error, "stderr", None) or str(error).encode()
            self.app.display_warning(
                "installed without what is compiled, conversions take longer: "
                + told.decode(errors="replace").strip().splitlines()[0]
            )
            return
        build_data["pure_python"], build_data["infer_tag"] = False, True
        build_data["force_include"][str(made)] = str(SOURCES / made.name)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        self._folder.cleanup()


if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    print(parsed(here, here / PARSED))
    try:
        print(compiled(here, here / SOURCES))
    except (OSError, subprocess.CalledProcessError) as problem:
        sys.exit(f"{problem}\n{(getattr(problem, 'stderr', None) or b'').decode(errors='replace')}")
