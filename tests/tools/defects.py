"""Provide a small sound trace with all kinds of records, and put defects into it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

PRV = """\
#Paraver (21/11/2025 at 07:30):100_ns:2(2,1):1:2(2:1,1:2),1
c:1:1:2:1:2
1:1:1:1:1:0:40:1
1:3:1:2:1:0:90:1
2:1:1:1:1:0:10:3:20:7
2:1:1:1:1:5:10:4
3:1:1:1:1:5:5:3:1:2:1:6:7:64:9
2:2:1:1:2:6:10:3
2:1:1:1:1:8:10:0
2:2:1:1:2:9:10:0
2:1:1:1:1:9:10:0:20:0
1:1:1:1:1:40:90:2
"""
PCF = """\
DEFAULT_OPTIONS

LEVEL               THREAD

STATES
0 Idle
1 Running
2 Waiting

STATES_COLOR
1 {0,0,255}

EVENT_TYPE
0 10 Range
VALUES
0 End
3 outer
4 inner

EVENT_TYPE
7 20 Number
PRECISION 2
"""
ROW = """\
LEVEL CPU SIZE 3
1.a
2.a
1.b

LEVEL NODE SIZE 2
a
b

LEVEL TASK SIZE 2
first
second

LEVEL THREAD SIZE 3
main
CUDA-D0.S7
other
"""
TEXTS = {"prv": PRV, "pcf": PCF, "row": ROW}
#: Line (from 1) of the sound file -> what stands there instead: a line, several, or none. A line
#: behind the last one is added.
Edit = Mapping[int, str | Sequence[str] | None]


def edit_text(text: str, edit: Edit) -> str:
    """Return the text with some lines replaced; line numbers are those before the edit."""
    lines = [*text.split("\n")[:-1], ""]
    result: list[str] = []
    for number, line in enumerate(lines, 1):
        new = edit.get(number, line if number < len(lines) else None)
        result += [] if new is None else [new] if isinstance(new, str) else new
    return "\n".join(result) + "\n"


def write_trace(
    folder: Path, files: Mapping[str, Edit] | None = None, **texts: bytes | str | None
) -> Path:
    """Write the sound trace with edits by file (`prv`, `pcf`, `row`), or with other texts for its
    files (None: no file).
    """
    for ending, sound in TEXTS.items():
        text = texts.get(ending, edit_text(sound, (files or {}).get(ending, {})))
        path = folder / f"t.{ending}"
        path.unlink(missing_ok=True)
        if text is not None:
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder / "t.prv"
