"""Provide general tools for all rooms: files, text, progress, workers, columns.

Nothing here knows about profiles. The modules are independent of each other. `native` is the
compiled core; :mod:`workers` runs functions in other processes. This module contains the version of
the program and its source commit.
"""

from __future__ import annotations

# For type checkers: the command is to start soon.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

__version__ = "1.0.0"

#: File of an installed package that names the commit it was built from; tools/make_package_data.py writes it.
COMMIT = "commit.txt"


def describe_commit(checkout: Path) -> str:
    """Return the commit of a checkout, with "-dirty" if files were changed; "" if it is not a git
    checkout.
    """
    import subprocess

    options = ["--always", "--dirty", "--abbrev=12", "--exclude=*"]
    if not (checkout / ".git").exists():
        return ""
    try:
        done = subprocess.run(
            ["git", "-C", str(checkout), "describe", *options],
            capture_output=True,
            text=True,
            timeout=5,
            stdin=subprocess.DEVNULL,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def format_version(package: Path) -> str:
    """Return the version as shown to users. package: the installed package. In a checkout, the
    folder above contains pyproject.toml and .git.
    """
    checkout = package.parent
    if (checkout / ".git").exists() and (checkout / "pyproject.toml").is_file():
        commit = describe_commit(checkout)
        where = f"commit {commit} in {checkout}" if commit else f"checkout {checkout}"
        return f"nsys2prv {__version__} ({where})"
    built_from = package / "_util" / COMMIT
    commit = built_from.read_text(encoding="utf-8").strip() if built_from.is_file() else ""
    return f"nsys2prv {__version__}" + (f" (commit {commit})" if commit else "")
