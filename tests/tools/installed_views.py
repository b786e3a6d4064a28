"""Install all views into one folder, as ``nsys2prv cfgs`` does."""

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from nsys2prv.writers.paraver.cfg import load_views
from nsys2prv.writers.paraver.views import copy_views

VIEWS = load_views().views


@cache
def install_views() -> Path:
    """Install all views once a session; return their folder."""
    target = Path(tempfile.mkdtemp(prefix="views-"))
    atexit.register(shutil.rmtree, target, ignore_errors=True)
    copy_views(target, everything=True)
    return target


def find_view_file(view: str) -> Path:
    """Return the installed file of a view."""
    return install_views() / view
