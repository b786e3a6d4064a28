"""Write ``docs/analysis.md`` from ``tools/analysis.md``, running its code on a sample and inserting the
output: ``python tools/make_analysis.py``.
"""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path

from nsys2prv.analyses import ANALYSES
from nsys2prv.figures.result import FINDING_KINDS

ROOT = Path(__file__).parent.parent


def page() -> str:
    """The text of the page, each piece of Python followed by its output."""
    kinds = "\n".join(f"* `{kind}`: {meaning}" for kind, meaning in FINDING_KINDS.items())
    template = (ROOT / "tools" / "analysis.md").read_text(encoding="utf-8")
    abouts = {one.name: one.about.split("\n\n")[0].split() for one in ANALYSES}
    rows = [f"| `{name}` | {' '.join(words)} |" for name, words in abouts.items()]
    table = "\n".join(["| analysis | shows |", "|---|---|", *rows])
    text = template.replace("KINDS_OF_FINDINGS", kinds).replace("\nANALYSES\n", f"\n{table}\n")
    parts, namespace = [], {}
    for number, part in enumerate(text.split("```python\n")):
        if number == 0:
            parts.append(part)
            continue
        code, rest = part.split("```\n", 1)
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(code, namespace)
        output = "\n".join(line.rstrip() for line in said.getvalue().splitlines())
        parts.append(
            f"```python\n{code}```\n" + (f"\n```text\n{output}\n```\n" if output else "") + rest
        )
    return "".join(parts)


if __name__ == "__main__":
    os.chdir(ROOT)
    (ROOT / "docs" / "analysis.md").write_text(page(), encoding="utf-8", newline="\n")
