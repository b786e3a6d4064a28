"""Run commands on a terminal of their own, a pseudo terminal."""

import os
import struct
import sys
from collections.abc import Mapping, Sequence

from tools.commands import ENVIRONMENT

#: Runs each command line in one process, and prints its exit status behind what it printed.
PROGRAM = """import sys
from nsys2prv.cli import main
for line in sys.argv[1:]:
    print("\\x1d", main(line.split("\\x1f")), flush=True)
"""


def run_on_terminal(
    lines: Sequence[Sequence[object]], columns: int, environment: Mapping[str, str]
) -> list[str]:
    """Return what each command line of nsys2prv prints on a terminal of so many columns. All must
    end with status 0.
    """
    import fcntl
    import pty
    import termios

    words = ["\x1f".join(map(str, line)) for line in lines]
    variables = {**ENVIRONMENT, "TERM": "xterm-256color", **environment}
    variables = {name: text for name, text in variables.items() if name != "COLUMNS" and text}
    child, terminal = pty.fork()
    if not child:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        os.execve(sys.executable, [sys.executable, "-c", PROGRAM, *words], variables)
    pieces = []
    while True:
        try:
            pieces.append(os.read(terminal, 1 << 16))
        except OSError:  # the other side is closed
            break
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    text = b"".join(pieces).decode().replace("\r\n", "\n")
    assert status == 0, text
    *printed, _ = text.split("\x1d 0\n")
    assert len(printed) == len(lines), text
    return printed
