"""Draw ``docs/report.png``, the head of the page of `nsys2prv report --html`: ``python
tools/make_page_picture.py``.

Needs Chromium, matplotlib and Pillow. The job is an imagined one.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from samples import Options, generate

from nsys2prv.cli.main import main

PICTURE = Path(__file__).parent.parent / "docs" / "report.png"
JOB = Options(ranks=8, hosts=2, steps=48, layers=6, gpu_metrics=2000)
WIDTH, HEIGHT, COLORS = 1180, 2250, 200
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
        generate(folder / "job", JOB)
        reports = sorted(map(str, (folder / "job").glob("*.sqlite")))
        page, shot = folder / "page.html", folder / "shot.png"
        if status := main(
            ["report", *reports, "-q", "--region", "iteration*", "--html", str(page)]
        ):
            sys.exit(status)
        # Where the job lies is nobody's business.
        page.write_text(
            page.read_text(encoding="utf-8").replace(f"{folder / 'job'}/", ""), encoding="utf-8"
        )
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
