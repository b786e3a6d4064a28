"""Test the number of threads of numeric libraries, in workers and elsewhere."""

import os

import pytest

from nsys2prv._util import budget


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "_CHOSEN", set())
    for library in (budget.POLARS_THREADS, "OPENBLAS_NUM_THREADS"):
        monkeypatch.delenv(library, raising=False)


def test_workers_have_one_thread_each_however_many_there_are() -> None:
    budget.limit_threads(8, [])
    assert os.environ[budget.POLARS_THREADS] == "8"
    budget.use_one_thread()
    assert os.environ[budget.POLARS_THREADS] == "1"


def test_what_the_user_says_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(budget.POLARS_THREADS, "3")
    budget.limit_threads(8, [])
    budget.use_one_thread()
    assert os.environ[budget.POLARS_THREADS] == "3"
    assert os.environ["OPENBLAS_NUM_THREADS"] == "1"
