"""The version of the program, and the commit that it was made from."""

from __future__ import annotations

# For type checkers: the command is to start soon.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

__version__ = "1.0.0.dev0"

#: File of an installed package that names the commit it was built from; hatch_build.py writes it.
COMMIT = "commit.txt"


def describe_commit(checkout: Path) -> str:
    """Return the commit of a checkout, with "-dirty" if files differ from it; "" where git cannot
    tell.
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
