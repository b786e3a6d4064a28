"""Write, while the package is built, its YAML files as Python (twenty times as fast to start with) and
the commit that it is built from.

python tools/make_package_data.py FOLDER      writes shipped_data.py and commit.txt there
"""

from __future__ import annotations

import sys
from hashlib import sha256
from pathlib import Path
from runpy import run_path

import yaml

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "nsys2prv"


def write_parsed_data(path: Path) -> None:
    """Write the module in which `nsys2prv/_util/files.py` looks up a text by its digest."""
    lines = ['"""Made by tools/make_package_data.py."""', "", "PARSED = {"]
    for file in sorted(PACKAGE.rglob("*.yaml")):
        text = file.read_text(encoding="utf-8")
        data = repr(yaml.safe_load(text))
        lines.append(f"    {sha256(text.encode()).hexdigest()!r}: lambda: {data},  # {file.name}")
    path.write_text("\n".join([*lines, "}", ""]), encoding="utf-8")


def write_commit(checkout: Path, path: Path) -> bool:
    """Write the commit of a checkout, for `nsys2prv --version`; False where it is not known."""
    # By its path: another checkout may be installed.
    util = run_path(str(PACKAGE / "_util" / "__init__.py"))
    if commit := util["describe_commit"](checkout):
        path.write_text(f"{commit}\n", encoding="utf-8")
    return bool(commit)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    write_parsed_data(folder / "shipped_data.py")
    write_commit(ROOT, folder / "commit.txt")
