"""Make all files that are made from declarations: ``python tools/make_all.py``.

These are views, the page of analyses, the man page, JSON Schemas, and the golden traces of the tests. ``git
diff`` then shows the effects of a changed declaration.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
MAKERS = (
    "tools/make_views.py",
    "tools/make_analysis.py",
    "tools/make_command_line.py",
    "tools/make_schemas.py",
    "tests/test_golden.py",
)


def main() -> int:
    """Run the makers; returns the exit status of the first that fails, else 0."""
    for maker in MAKERS:
        if status := subprocess.run([sys.executable, maker], cwd=ROOT).returncode:
            print(f"make_all: {maker} failed", file=sys.stderr)
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
