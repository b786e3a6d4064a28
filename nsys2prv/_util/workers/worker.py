"""Worker process: run the tasks that arrive on standard input, and write their outcomes to standard
output.

It ends when its input ends, whatever it is doing: the process that started it is gone then, or has
no use for it.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
import traceback
from io import FileIO
from queue import SimpleQueue

from nsys2prv._util.memory import keep_freed_memory

#: A message is its length and that many bytes; an empty one is the last.
_LENGTH_BYTES = 8


def send_message(file: FileIO, message: bytes) -> None:
    """Write a message to a pipe. Raises OSError where nobody reads."""
    for data in (len(message).to_bytes(_LENGTH_BYTES, "little"), message):
        left = memoryview(data)
        while left:
            left = left[file.write(left) :]


def receive_message(file: FileIO) -> bytearray:
    """Read a message from a pipe. Raises EOFError where it ends."""
    return _read_exactly(file, int.from_bytes(_read_exactly(file, _LENGTH_BYTES), "little"))


def _read_exactly(file: FileIO, size: int) -> bytearray:
    data = bytearray(size)
    left = memoryview(data)
    while left:
        count = file.readinto(left)
        if not count:
            raise EOFError
        left = left[count:]
    return data


def serve_tasks() -> None:
    """Do tasks until there is no other; never returns."""
    # A terminal interrupts all processes of a command: the one that started this ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with FileIO(os.dup(1), "w") as outcomes:
        # What libraries print must not get between the outcomes.
        os.dup2(2, 1)
        try:
            keep_freed_memory()
            tasks: SimpleQueue[bytearray] = SimpleQueue()
            threading.Thread(target=_receive_tasks, args=(tasks,), daemon=True).start()
            while True:
                send_message(outcomes, _run_message(tasks.get()))
        finally:
            os._exit(1)


def _receive_tasks(tasks: SimpleQueue[bytearray]) -> None:
    try:
        with FileIO(0) as file:
            while message := receive_message(file):
                tasks.put(message)
    finally:
        os._exit(0)


def _run_message(message: bytearray) -> bytes:
    """Return whether a task succeeded, its result or error, and the process it ran in."""
    try:
        function, args, kwargs = pickle.loads(message)
        return pickle.dumps((True, function(*args, **kwargs), ""), pickle.HIGHEST_PROTOCOL)
    except BaseException as error:
        where = traceback.format_exc()
        try:
            return pickle.dumps((False, error, where))
        except Exception:
            return pickle.dumps((False, RuntimeError(repr(error)), where))
