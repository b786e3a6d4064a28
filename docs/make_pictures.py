"""Draw the pictures of docs/views.md with Paraver itself:  python docs/make_pictures.py [VIEW...]

Needs wxparaver and paramedir (Paraver), Xvfb and Pillow. Each view is opened on a trace of a sample
job, zoomed to where the work is, and the part of the virtual screen that it covers is kept.
wxparaver's own way to draw without a screen (-i) ends with a crash on every timeline that is made
of others, and draws tables without labels.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from nsys2prv import Options, convert
from nsys2prv.writers.paraver.views import copy_views

ROOT = Path(__file__).parent.parent
PICTURES = ROOT / "docs" / "views"
SCREEN = (1700, 1000)
#: Where a view's window is put on the screen, right of Paraver's main window, and its size.
LEFT, TOP, WIDTH, HEIGHT = 320, 20, 800, 60
ROW = 15
#: Of tables: width, and heights of the tools above, the names of columns, a row, and what is below;
#: what is at the right.
TABLE_WIDTH, TOOLBAR, HEADER, CELL, BELOW, MARGIN = 1340, 46, 30, 23, 70, 45
#: A place in the first, empty name of a column.
PLAIN = 40
COLORS = 48
#: Seconds: between two looks at the screen, until it is given up.
LOOK, LIMIT = 1.5, 40
QUIET = {
    "apps_checked": 1,
    "help_contents_question": 1,
    "prev_session_load": 0,
    "session_save_time": 0,
    "single_instance": 0,
}


@dataclass(frozen=True)
class Scene:
    """A trace: of a sample's ranks and kinds of events, and further options; timelines show the
    part from begin to end of it.
    """

    sample: str
    ranks: int
    kinds: tuple[str, ...]
    begin: float
    end: float
    views: tuple[str, ...]
    more: dict[str, object] = field(default_factory=dict)


SCENES = (
    Scene(
        "training",
        2,
        ("cuda", "nvtx", "nccl"),
        0.42,
        0.465,
        ("views/cuda_activities", "views/nvtx_ranges"),
    ),
    Scene(
        "training",
        2,
        ("cuda", "nccl"),
        0.42,
        0.465,
        (
            "views/launch_latency",
            "analysis/kernels-inflight",
        ),
    ),
    Scene(
        "training",
        4,
        ("kernels", "memory"),
        0.42,
        0.465,
        (
            "views/kernel_duration",
            "basics/memory_operations",
            "basics/kernel_class",
        ),
    ),
    Scene("training", 4, ("kernels", "memory"), 0.57, 0.73, ("analysis/idle_gaps_2dh",)),
    Scene(
        "training",
        4,
        ("kernels", "memory", "nccl"),
        0,
        1,
        (
            "analysis/kernel-class-time_2dh",
            "analysis/overlap_2dh",
            "analysis/nccl_late_by_task_2dh",
            "analysis/nccl_wait_by_task_2dh",
            "analysis/nccl_bw_mbs",
            "model/Device_State",
            "model/GPU_LB",
        ),
    ),
    Scene("training", 4, ("nccl",), 0.12, 1, ("views/nccl_wait",)),
    Scene(
        "training",
        1,
        ("kernels", "memory", "nccl"),
        0,
        1,
        (
            "analysis/kernel_time_2dh",
            "analysis/gemm_without_tensor_cores_2dh",
        ),
    ),
    Scene("training", 1, ("cuda_api_trace",), 0, 1, ("analysis/api_time_2dh",)),
    Scene("cluster", 4, ("mpi",), 0.83, 1, ("views/mpi_messages",)),
    Scene(
        "training",
        2,
        ("gpu_metrics",),
        0.42,
        0.465,
        (
            "hwcounters/sm_active",
            "hwcounters/tensor_active",
            "hwcounters/dram_bw_throughput",
        ),
    ),
    Scene("cluster", 2, ("gpu_metrics",), 0.88, 0.98, ("hwcounters/PCIe-throughput-added",)),
    Scene("cluster", 2, ("nic_metrics",), 0.88, 0.98, ("hwcounters/nic_bytes_sent",)),
    Scene(
        "training",
        2,
        ("cuda", "nvtx", "nccl"),
        0.42,
        0.465,
        ("views/nvtx_on_gpu", "analysis/nvtx_on_gpu_time_2dh"),
        {"demanded": ("nvtx_on_gpu",)},
    ),
    Scene(
        "training",
        2,
        ("cuda", "nccl", "osrt"),
        0.42,
        0.465,
        ("analysis/state_time_2dh",),
        {"states": True},
    ),
    Scene(
        "training",
        4,
        ("kernels", "memory", "nccl", "device_state"),
        0.63,
        0.72,
        ("model/physical_gpu_state",),
    ),
    Scene(
        "machine",
        2,
        ("cpu",),
        0.93,
        1,
        ("basics/thread_states", "analysis/cpu_samples_2dh"),
    ),
    Scene("machine", 2, ("openmp",), 0.885, 0.92, ("basics/openmp",)),
    Scene("machine", 2, ("openacc",), 0.893, 0.905, ("basics/openacc_constructs",)),
    Scene("machine", 2, ("memory_usage",), 0.4, 1, ("views/gpu_memory_usage",)),
)


def main(wanted: list[str]) -> int:
    missing = [name for name in ("wxparaver", "paramedir", "Xvfb") if shutil.which(name) is None]
    if missing:
        print(f"not on the PATH: {', '.join(missing)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number, scene in enumerate(SCENES):
            views = [view for view in scene.views if not wanted or view in wanted]
            if not views:
                continue
            trace = folder / f"{scene.sample}{number}.prv"
            reports = sorted((ROOT / "sample_reports" / scene.sample).glob("*.sqlite"))[
                : scene.ranks
            ]
            convert(reports, trace, Options(kinds=scene.kinds, jobs=1, quiet=True, **scene.more))
            copy_views(folder / trace.stem, trace)
            home = _home(folder, trace, ROOT / "cfgs" / f"{views[0]}.cfg")
            for view in views:
                picture = PICTURES / f"{view}.png"
                picture.parent.mkdir(parents=True, exist_ok=True)
                _draw(folder, home, trace, view, scene).save(picture, optimize=True)
                print(f"{picture.relative_to(ROOT)}  {picture.stat().st_size:,} bytes", flush=True)
    return 0


def _home(folder: Path, trace: Path, view: Path) -> dict[str, str]:
    """An environment in which Paraver asks nothing when it starts."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    environment = {**os.environ, "HOME": str(home)}
    settings = home / ".paraver" / "paraver.xml"
    if not settings.exists():
        subprocess.run(
            ["paramedir", trace, view, folder / "first.out"],
            env=environment,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        text = settings.read_text()
        for tag, value in QUIET.items():
            text = re.sub(rf"(<{tag}>)[^<]*(<)", rf"\g<1>{value}\2", text)
        settings.write_text(text)
    return environment


def _draw(
    folder: Path, environment: dict[str, str], trace: Path, view: str, scene: Scene
) -> Image.Image:
    text = (folder / trace.stem / f"{view}.cfg").read_text()
    table = "Analyzer2D.Name" in text
    level = re.findall(r"^window_level (\w+)", text, re.M)[-1]
    chosen = re.search(r"^Analyzer2D.Objects: (\d.*)$", text, re.M)
    rows = len(chosen[1].split(",")) if chosen else _rows(trace, level)
    width, height = (
        (TABLE_WIDTH, TOOLBAR + HEADER + CELL * rows + BELOW)
        if table
        else (WIDTH, HEIGHT + ROW * rows)
    )
    for tag, value in {
        "window_position_x": LEFT,
        "window_position_y": TOP,
        "window_width": width,
        "window_height": height,
        "window_begin_time_relative": scene.begin,
        "window_end_time_relative": scene.end,
        "window_scale_relative": scene.end,
        "Analyzer2D.X:": LEFT,
        "Analyzer2D.Y:": TOP,
        "Analyzer2D.Width:": width,
        "Analyzer2D.Height:": height,
    }.items():
        text = re.sub(rf"^({re.escape(tag)}) .*$", rf"\1 {value}", text, flags=re.M)
    cfg = folder / "view.cfg"
    cfg.write_text(text)
    with _screen(folder) as (display, screen):
        program = subprocess.Popen(
            ["wxparaver", trace, cfg],
            env={**environment, "DISPLAY": display},
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            pixels = _settled(screen)
        finally:
            os.killpg(program.pid, signal.SIGTERM)
            program.wait()
    shown = pixels[TOP : TOP + height + TOOLBAR, LEFT : LEFT + width]
    shown = _cells(shown, rows) if table else shown[:height]
    return Image.fromarray(np.ascontiguousarray(shown)).quantize(COLORS)


def _rows(trace: Path, level: str) -> int:
    found = re.search(
        rf"^LEVEL {level.upper()} SIZE (\d+)", trace.with_suffix(".row").read_text(), re.M
    )
    return int(found[1]) if found else 1


@contextmanager
def _screen(folder: Path) -> Iterator[tuple[str, Path]]:
    """A virtual screen: its name, and the file that holds what it shows."""
    taken, given = os.pipe()
    server = subprocess.Popen(
        [
            "Xvfb",
            "-displayfd",
            str(given),
            "-screen",
            "0",
            f"{SCREEN[0]}x{SCREEN[1]}x24",
            "-fbdir",
            folder,
            "-nocursor",
        ],
        pass_fds=(given,),
        stderr=subprocess.DEVNULL,
    )
    os.close(given)
    try:
        with os.fdopen(taken) as number:
            yield f":{number.readline().strip()}", folder / "Xvfb_screen0"
    finally:
        server.terminate()
        server.wait()


def _settled(screen: Path) -> np.ndarray:
    """The screen, once there is a view and it does not change any more."""
    last, start = _pixels(screen), time.monotonic()
    while time.monotonic() - start < LIMIT:
        time.sleep(LOOK)
        now = _pixels(screen)
        if now[TOP + 10 :, LEFT + 10 :].any() and np.array_equal(now, last):
            return now
        last = now
    raise SystemExit("no view turned up on the screen")


def _pixels(screen: Path) -> np.ndarray:
    """Red, green and blue by row and column, from an X window dump."""
    data = screen.read_bytes()
    head = struct.unpack(">25I", data[:100])
    width, height, line, colors = head[4], head[5], head[12], head[19]
    pixels = np.frombuffer(data, np.uint8, height * line, head[0] + 12 * colors)
    return pixels.reshape(height, line // 4, 4)[:, :width, 2::-1]


def _cells(window: np.ndarray, rows: int) -> np.ndarray:
    """A table's window without its tools and totals, to the last line between columns that are
    whole.
    """
    cells = window[TOOLBAR : TOOLBAR + HEADER + CELL * rows]
    head = cells[2 : HEADER - 2]
    lines = (head == head[0]).all(axis=(0, 2)) & (head[0] != head[0, PLAIN]).any(axis=1)
    lines[TABLE_WIDTH - MARGIN :] = False
    return cells[:, : np.flatnonzero(lines)[-1] + 1]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
