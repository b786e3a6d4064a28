"""Test that output of libraries about damaged data is hidden."""

import os
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from nsys2prv._util.files import hide_stderr


def test_what_libraries_print_is_hidden_while_any_thread_reads(
    capfd: pytest.CaptureFixture[str],
) -> None:
    both = Barrier(2)

    def read(_: int) -> None:
        with hide_stderr():
            both.wait(60)
            os.write(2, b"thread panicked")

    with ThreadPoolExecutor(2) as executor:
        list(executor.map(read, range(2)))
    os.write(2, b"shown")
    assert capfd.readouterr().err == "shown"
