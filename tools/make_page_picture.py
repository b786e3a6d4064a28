"""Draw ``docs/report.png``, the head of the page of `nsys2prv report --html`: ``python
tools/make_page_picture.py``.

Needs Chromium and Pillow. The job is the sample that the tutorial looks at.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from nsys2prv.cli import main

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "report.png"
JOB = "sample_reports/training"
WIDTH, HEIGHT, COLORS = 1180, 1680, 200
CHROMIUM = (
    "chromium",
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--hide-scrollbars",
    f"--window-size={WIDTH},{HEIGHT}",
)


def draw() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        page, shot = folder / "page.html", folder / "shot.png"
        # The page shows the job's path as it is given.
        os.chdir(ROOT)
        if status := main(["report", JOB, "-q", "--html", str(page)]):
            sys.exit(status)
        subprocess.run(
            [
                *CHROMIUM,
                f"--user-data-dir={folder / 'browser'}",
                f"--screenshot={shot}",
                page.as_uri(),
            ],
            check=True,
            stderr=subprocess.DEVNULL,
            timeout=120,
        )
        with Image.open(shot) as picture:
            picture.convert("RGB").quantize(COLORS, dither=Image.Dither.NONE).save(
                PICTURE, optimize=True
            )


if __name__ == "__main__":
    draw()
