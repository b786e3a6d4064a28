"""The study that Python gets, with all its forms."""

from __future__ import annotations

from pathlib import Path

from nsys2prv.figures.study_model import ComparedRuns
from nsys2prv.show.page import Frame, make_study_page
from nsys2prv.show.study.formats import format_markdown, write_talp_files


class Study(ComparedRuns):
    """Several runs of one program. :func:`nsys2prv.study` returns it; `runs` are in the order of their
    devices, nodes and ranks.
    """

    def __repr__(self) -> str:
        runs = ", ".join(run.label or run.name for run in self.runs)
        return f"<Study of {runs}: {self.scaling.used} scaling; .table, .region_table, .markdown()>"

    def markdown(self) -> str:
        """Return the paragraph and tables of an assessment, in Markdown."""
        return format_markdown(self)

    def to_talp(self, folder: str | Path) -> list[Path]:
        """Write a file in the form of TALP for each run, for TALP-Pages; return their paths."""
        return write_talp_files(self, Path(folder))

    def _repr_html_(self) -> str:
        return Frame(make_study_page(self))._repr_html_()
