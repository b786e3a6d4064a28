"""Write the findings of a job as a Paraver tutorial: a page with links that load the trace, open
views at the moments of findings, and open all other views with data in the trace.

Paraver lists the tutorials in one specific folder (Help, Tutorials). A link is a path relative to
the page.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from shlex import quote

from nsys2prv._util.files import load_templates, write_complete_files
from nsys2prv.figures.result import group_findings
from nsys2prv.show.finished_job import FinishedJob
from nsys2prv.show.text import GROUPS, NOTHING
from nsys2prv.writers.paraver.cfg import load_views
from nsys2prv.writers.paraver.views import (
    find_paraver_folder,
    find_views_for_trace,
    make_view,
    make_views,
)

#: Name of the page that Paraver looks for, and of the folder of views beside it.
PAGE, VIEWS = "index.html", "cfgs"
#: Paraver's folder of tutorials unless its preferences name another one.
TUTORIALS = "paraver-tutorials"
_NAMED = re.compile(r"<tutorials_path>([^<]+)</tutorials_path>")


def find_tutorials_folder() -> Path:
    """Return the folder in which Paraver looks for tutorials."""
    try:
        preferences = (find_paraver_folder() / "paraver.xml").read_text(encoding="utf-8")
    except (OSError, ValueError):
        preferences = ""
    named = _NAMED.search(preferences)
    return Path(named[1]) if named else Path.home() / TUTORIALS


def describe_opening(page: Path) -> str:
    """Return a sentence about how to open a tutorial in Paraver, which only lists those in its own
    folder, whatever -t says.
    """
    folder, listed = page.parent.absolute(), find_tutorials_folder()
    command = f"wxparaver -t {quote(str(page))}, and click its title"
    if folder.parent == listed.absolute():
        return command
    return f"link its folder (ln -s {quote(str(folder))} {quote(str(listed))}/), then {command}"


def write_tutorial(job: FinishedJob, trace: Path, folder: Path) -> Path:
    """Write a tutorial about a job's findings, which Paraver opens, to a folder, which is created;
    return its page. trace: of the job, with the times of its findings. Raise Nsys2prvError if the
    trace cannot be read or the folder cannot be written.
    """
    titles = {fit.path: fit.title for fit in find_views_for_trace(trace) if not fit.lacking}
    texts = {path: text for path, text in make_views(trace).items() if path in titles}
    number, groups = 0, []
    for group, findings in group_findings(job.findings):
        groups.append((GROUPS[group].format(span=job.part[0], whole=job.whole[0]), entries := []))
        for finding in findings:
            number += 1
            links = []
            for view in (one for one in finding.views if one in titles):
                name = f"finding{number}_{PurePosixPath(view).name}"
                texts[name] = make_view(view, finding.span, trace)
                links.append((name, titles[view]))
            entries.append((finding, links))
    menus = {
        title: [(path, titles[path]) for path in paths if path in texts]
        for title, paths in load_views().menus.items()
    }
    page = (
        load_templates(__package__, autoescape=True)
        .get_template("tutorial.html")
        .render(
            name=job.description.get("title") or job.description["name"],
            trace=Path(os.path.relpath(trace.absolute(), folder.absolute())).as_posix(),
            groups=groups,
            menus=menus,
            folder=VIEWS,
            nothing="" if number else NOTHING,
        )
    )
    # The page is written last, when everything else exists.
    written = {folder / VIEWS / path: text for path, text in texts.items()}
    write_complete_files({**written, folder / PAGE: page})
    return folder / PAGE
