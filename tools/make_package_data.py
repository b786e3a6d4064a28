"""Write, while the package is built, its YAML files as Python (twenty times as fast to start with) and
the commit that it is built from.

python tools/make_package_data.py FOLDER      writes shipped_data.py and commit.txt there
"""

from __future__ import annotations

import re
import sys
from hashlib import sha256
from pathlib import Path
from runpy import run_path

import yaml

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "nsys2prv"
RULES = PACKAGE / "events" / "catalogue" / "kernel_rules.yaml"
#: In regular expressions: what gives letters another meaning; parts that stand for several texts, the
#: innermost first, of which those in plain groups count; words.
_UNCOMMON = re.compile(r"\\[^\W_dwsbDWSB]|\(\?[a-zA-Z-]+[:)]|[^\x00-\x7f]")
_PART = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^]\\])*\]|(?:\(\??[^()[\\?*{]*\)|[^()|])(?:[*?]|\{[^}]*\})[+?]?"
    r"|\((?:\?:|\?P<\w+>)?([^()[\\?*{]*)\)|\(\??[^()[\\?*{]*\)",
    re.DOTALL,
)
_WORD = re.compile(r"[a-z0-9_]{2,}")
_FIRST_MARK = 0xE000


def write_parsed_data(path: Path) -> None:
    """Write the module in which `nsys2prv/_util/files.py` looks up a text by its digest."""
    lines = ['"""Made by tools/make_package_data.py."""', "", "PARSED = {"]
    for file in sorted(PACKAGE.rglob("*.yaml")):
        text = file.read_text(encoding="utf-8")
        data = yaml.safe_load(text)
        if file == RULES:
            data["words"] = find_words_of_rules(data["rules"])
        lines.append(f"    {sha256(text.encode()).hexdigest()!r}: lambda: {data!r},  # {file.name}")
    path.write_text("\n".join([*lines, "}", ""]), encoding="utf-8")


def find_words_of_rules(rules: list[dict[str, str]]) -> dict[str, list[str]]:
    """Return the words of the patterns of kernels' names that have some."""
    found = {pattern: find_words(pattern) for pattern in (rule["name"] for rule in rules)}
    return {pattern: sorted(words) for pattern, words in found.items() if words}


def find_words(pattern: str) -> frozenset[str]:
    """Return words, one of which occurs in each matching text, in lower case; none if a part of the pattern
    has no word.
    """
    groups: dict[str, frozenset[str]] = {}

    def replace_part(part: re.Match[str]) -> str:
        if not part[1]:
            return " "
        groups[mark := chr(_FIRST_MARK + len(groups))] = list_words(part[1])
        return mark

    def list_words(text: str) -> frozenset[str]:
        listed = []
        for branch in text.lower().split("|"):
            choices = [frozenset([word]) for word in _WORD.findall(branch)]
            choices += [groups[mark] for mark in branch if groups.get(mark)]
            listed.append(max(choices, key=lambda words: min(map(len, words)), default=frozenset()))
        return frozenset().union(*listed) if all(listed) else frozenset()

    count = 0 if _UNCOMMON.search(pattern) else 1
    while count:
        pattern, count = _PART.subn(replace_part, pattern)
    return list_words(pattern) if not set("()[\\") & set(pattern) else frozenset()


def write_commit(checkout: Path, path: Path) -> bool:
    """Write the commit of a checkout, for `nsys2prv --version`; False where it is not known."""
    # By its path: another checkout may be installed.
    util = run_path(str(PACKAGE / "_util" / "__init__.py"))
    if commit := util["describe_commit"](checkout):
        path.write_text(f"{commit}\n", encoding="utf-8")
    return bool(commit)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    write_parsed_data(folder / "shipped_data.py")
    write_commit(ROOT, folder / "commit.txt")
