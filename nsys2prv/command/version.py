"""What `nsys2prv --version` says: the version and, in a checkout, its commit."""

from __future__ import annotations

import subprocess
from pathlib import Path

from nsys2prv import __version__


def version_text(package: Path = Path(__file__).parents[1]) -> str:
    """For people. package: the installed package; in a checkout the folder above has its pyproject.toml and .git."""
    checkout = package.parent
    if not ((checkout / ".git").exists() and (checkout / "pyproject.toml").is_file()):
        return f"nsys2prv {__version__}"
    try:
        told = subprocess.run(["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
                              capture_output=True, text=True, timeout=5, stdin=subprocess.DEVNULL, check=True)
    except (OSError, subprocess.SubprocessError):
        return f"nsys2prv {__version__} (checkout {checkout})"
    return f"nsys2prv {__version__} (commit {told.stdout.strip()} in {checkout})"
