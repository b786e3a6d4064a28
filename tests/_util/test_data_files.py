"""Test data files of the package, parsed when it is built or on demand."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from make_package_data import PACKAGE, find_words, write_parsed_data

from nsys2prv._util import files
from nsys2prv._util.files import load_shipped

ROOT = Path(__file__).parents[2]
MODULE = "nsys2prv._util.shipped_data"


@pytest.fixture
def built_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Build the module from the current files, in place of the existing one."""
    write_parsed_data(tmp_path / "shipped_data.py")
    spec = spec_from_file_location(MODULE, tmp_path / "shipped_data.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, MODULE, module)
    return module


def test_built_data_is_what_the_files_say(
    built_module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [file.read_text(encoding="utf-8") for file in PACKAGE.rglob("*.yaml")]
    expected = [yaml.safe_load(text) for text in texts]
    with monkeypatch.context() as without_yaml:
        without_yaml.setitem(sys.modules, "yaml", None)
        built = [load_shipped(text) for text in texts]
    rules = next(data for data in built if {"nccl_kernels", "rules"} <= set(data))
    assert rules.pop("words")
    assert built == expected
    assert len(built_module.PARSED) == len(texts)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("ab?cd|(?:ef|(?:gh)+i)K", "cd ef gh"), (r"fo{2}[\]|b]ar|x(?!yy)zz", "ar zz"),
        ("(?:c.)*de(?<=mm)", "de"), (r"\x6dy_k", ""), ("(?:Lo(?:ng)?|short)N", "lo short"), ("a|bc", ""),
    ],
)  # fmt: skip
def test_words_of_patterns(pattern: str, words: str) -> None:
    assert find_words(pattern) == {*words.split()}


def test_a_changed_file_is_parsed(built_module: ModuleType) -> None:
    assert load_shipped("a: {1: yes}") == {"a": {1: True}}


def test_data_is_parsed_where_none_was_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, MODULE, None)
    assert load_shipped("a: [1, 2]") == {"a": [1, 2]}


def test_data_is_made_anew_each_time(built_module: ModuleType) -> None:
    text = (ROOT / "nsys2prv/events/tables.yaml").read_text(encoding="utf-8")
    load_shipped(text).clear()
    assert load_shipped(text) == yaml.safe_load(text)


def test_deep_nesting_is_an_error_and_no_crash() -> None:
    for text in ("[" * 100_000, "- " * 100_000 + "x", "{a: " * 100_000):
        with pytest.raises(yaml.YAMLError):
            files.parse_yaml(text)
