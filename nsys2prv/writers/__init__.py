"""Write traces, one folder or module per format, behind one interface.

In: `TraceContent` and the records of each window. Out: the bytes of the trace and the files beside
it. Start in :mod:`writer`, the interface; :mod:`rows` has the rows of a trace in any format. The
ending of the output chooses the writer.
"""

from __future__ import annotations

import re
from pathlib import Path

from nsys2prv.writers.paraver.prv import ParaverWriter
from nsys2prv.writers.perfetto.pftrace import PerfettoWriter
from nsys2prv.writers.writer import Writer

#: Ending of a trace -> what writes it; the first is that of a name without any of them.
WRITERS: dict[str, type[Writer]] = {".prv": ParaverWriter, ".pftrace": PerfettoWriter}


def choose_writer(output: str | Path, compress: bool = False) -> tuple[type[Writer], Path]:
    """Return what writes an output given as `out`, `out.prv` or `out.prv.gz`, and the trace's name."""
    endings = "|".join(map(re.escape, WRITERS))
    match = re.fullmatch(rf"(?s)(.*?)({endings})?(\.gz)?", Path(output).name)
    name, ending, packed = match.groups() if match and match[2] else (Path(output).name, None, None)
    ending = ending or next(iter(WRITERS))
    trace = f"{name}{ending}.gz" if compress or packed else f"{name}{ending}"
    return WRITERS[ending], Path(output).parent / trace
