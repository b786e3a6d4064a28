"""MPI functions by name: one spelling for each, whatever language or interface it was called through, and its kind."""

from __future__ import annotations

import re
from functools import cache

from nsys2prv.catalogue import catalogue

#: Layouts of the catalogue; the set of names of each is called the same.
LAYOUTS = ("mpi_point_to_point", "mpi_collective", "mpi_other", "mpi_one_sided", "mpi_io")
_FUNCTION = re.compile(r"p?mpi(x?)_(\w+)", re.IGNORECASE)
#: Suffixes of Fortran interfaces (mpif.h, mpi_f08 with and without descriptors) and of the large-count interface of MPI 4.
_SUFFIX = re.compile(r"(_f08ts|_f08|_fts|_f|_c)+$")
_ONE_SIDED = re.compile(r"MPI_(Win_|R?put$|R?get$|R?accumulate$|R?get_accumulate$|Fetch_and_op$|Compare_and_swap$)")


@cache
def _known() -> dict[str, tuple[str, str]]:
    """Name in small letters -> its spelling, and the layout that it belongs to."""
    sets = catalogue().name_sets
    return {name.lower(): (name, layout) for layout in LAYOUTS for name in sets[layout].known_values()}


def function_name(text: str) -> str:
    """The name of an MPI function as the standard spells it for C: MPI_Send for `mpi_send_`, `PMPI_Send` and `MPI_Send_c`.

    A text that is no name of an MPI function stays as it is.
    """
    match = _FUNCTION.fullmatch(text.strip())
    if match is None:
        return text
    prefix, rest = f"MPI{match[1].upper()}_", match[2].lower().rstrip("_")
    for candidate in (rest, _SUFFIX.sub("", rest)):
        if (prefix + candidate).lower() in _known():
            return _known()[(prefix + candidate).lower()][0]
    return prefix + (_SUFFIX.sub("", rest) or rest).capitalize()


def layout_of(function: str, otherwise: str) -> str:
    """The layout of a function by its name; `otherwise` for names that tell nothing."""
    if function.lower() in _known():
        return _known()[function.lower()][1]
    if function.startswith("MPI_File_"):
        return "mpi_io"
    return "mpi_one_sided" if _ONE_SIDED.match(function) else otherwise
