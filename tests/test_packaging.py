"""Test that the recipes for Spack and for containers install what the package needs."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from nsys2prv import __version__

ROOT = Path(__file__).parent.parent
PACKAGING = ROOT / "tools" / "packaging"


class _Recorder:
    """Stand-in for Spack's directives that records the requests of a recipe."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple, dict]] = []

    def directive(self, name: str):
        return lambda *given, **more: self.calls.append((name, given, more))


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple, dict]]:
    """Return the directives of Spack's recipe."""
    recorder = _Recorder()
    package = ModuleType("spack.package")
    for name in ("license", "version", "variant", "depends_on"):
        setattr(package, name, recorder.directive(name))
    package.find, package.InstallError = lambda *_: [], RuntimeError
    python = ModuleType("spack_repo.builtin.build_systems.python")
    python.PythonPackage = object
    modules = {"spack.package": package, "spack_repo.builtin.build_systems.python": python}
    for name in ("spack", "spack_repo", "spack_repo.builtin", "spack_repo.builtin.build_systems"):
        modules[name] = ModuleType(name)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    path = PACKAGING / "spack" / "packages" / "py_nsys2prv" / "package.py"
    exec(compile(path.read_text(), str(path), "exec"), {})
    return recorder.calls


def _read_dependencies() -> dict[str, str]:
    """Return the lowest version of each package that pyproject.toml asks for."""
    text = (ROOT / "pyproject.toml").read_text()
    needed = text[text.index("\ndependencies = [") : text.index("[project.optional-dependencies]")]
    return dict(re.findall(r'^    "([\w-]+)>=([\d.]+)', needed, re.M))


def test_spack_asks_for_what_the_package_needs(recipe: list[tuple[str, tuple, dict]]) -> None:
    versions = dict(
        arguments[0].removeprefix("py-").rstrip(":").split("@")
        for name, arguments, more in recipe
        if name == "depends_on" and "@" in arguments[0] and "when" not in more
    )
    needed = _read_dependencies()
    assert len(needed) > 5
    assert {name: versions[name] for name in needed} == needed


def test_recipes_name_no_registry() -> None:
    for path in PACKAGING.rglob("*"):
        if path.is_file() and path.suffix != ".pyc":
            assert not re.search(r"https?://|[\w-]+\.(io|org|com)/", path.read_text()), path


def test_the_container_is_built_from_the_checkout() -> None:
    text = (PACKAGING / "Containerfile").read_text()
    assert "pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /checkout" in text
    assert not re.search(r"pip install[^\n]* nsys2prv", text)


def test_the_version_stands_in_one_place() -> None:
    result = [
        path.relative_to(ROOT)
        for pattern in ("*.toml", "*.cff", "nsys2prv/**/*.py", "docs/*.md", "tools/**/*.py")
        for path in ROOT.glob(pattern)
        if __version__ in path.read_text(encoding="utf-8")
    ]
    assert result == [Path("nsys2prv/_util/__init__.py")]
