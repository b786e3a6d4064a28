"""Looking at all reports before any of them is read: in workers, several small ones at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from nsys2prv._util.errors import Nsys2prvError
from nsys2prv.conversion.startup import bytes_of
from nsys2prv.nsight.info import ReportInfo, inspect
from nsys2prv.nsight.opening import prepared

#: Reports that a worker looks at in one go: so many, or those with so many bytes.
TOGETHER, TOGETHER_BYTES = 16, 50_000_000

#: An export, and the report as it was given.
Export = tuple[Path, Path]


def inspect_reports(
    paths: Sequence[Path],
    folder: Path,
    keep_going: bool,
    run: Callable[[Callable, Iterable], Iterator],
) -> Iterator[ReportInfo | Nsys2prvError]:
    """Read the metadata of the reports, in their order; for one that cannot be read, the error.

    folder: where exports are made of reports that are none, by this process. keep_going: also after
    one that none can be made of. run: maps over tasks, in order.
    """
    for found in run(inspect_task, _portions(paths, folder, keep_going)):
        yield from found


def inspect_task(task: Sequence[Export | Nsys2prvError]) -> list[ReportInfo | Nsys2prvError]:
    """Read the metadata of some reports."""
    return [export if isinstance(export, Nsys2prvError) else _looked_at(*export) for export in task]


def names(task: Sequence[Export | Nsys2prvError]) -> str:
    """Return the task's reports for people, the first of them."""
    return next(
        (str(export[1]) for export in task if not isinstance(export, Nsys2prvError)), "nsys2prv"
    )


def _looked_at(path: Path, source: Path) -> ReportInfo | Nsys2prvError:
    try:
        return inspect(path, source)
    except Nsys2prvError as error:
        return error


def _portions(
    paths: Sequence[Path], folder: Path, keep_going: bool
) -> Iterator[list[Export | Nsys2prvError]]:
    """Divide the reports into portions inspected together. None waits behind an export that had to
    be made.
    """
    portion: list[Export | Nsys2prvError] = []
    size = 0
    for number, path in enumerate(paths):
        try:
            export = prepared(path, folder / f"export-{number}")
            portion.append(export)
            size += bytes_of(export[0])
            made = export[0] != path
        except Nsys2prvError as error:
            portion.append(error)
            made = False
            if not keep_going:
                break
        if len(portion) >= TOGETHER or size >= TOGETHER_BYTES or made:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion
