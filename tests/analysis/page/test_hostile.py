"""Names that are HTML stay names."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest
from tools.pages import CHROMIUM, Page, render_in_chromium
from tools.view_answers import SAMPLES

from nsys2prv.cli import main

EVIL = "<script>document.title='caught'</script>"
QUOTED = '" onmouseover="alert(1)" x=\''
HEAD = "</title></style><img src=x onerror=alert(1)>$x^2$"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile & <b>")
    for path in SAMPLES["training"][:2]:
        copy = shutil.copy(path, folder)
        with sqlite3.connect(copy) as export:
            for text, column, table in (
                ("zero_grad", "text", "NVTX_EVENTS"),
                ("forward", "value", "StringIds"),
            ):
                assert export.execute(
                    f"UPDATE {table} SET {column} = ? WHERE {column} = ?", (EVIL, text)
                ).rowcount
            assert export.execute(
                "UPDATE StringIds SET value = ? WHERE value = 'optimizer'", (QUOTED,)
            ).rowcount
            export.execute(
                "UPDATE NVTX_EVENTS SET text = 'a / b & \u0007 \u202e]]>' WHERE text LIKE 'layer_00%'"
            )
            export.execute(
                "UPDATE TARGET_INFO_SYSTEM_ENV SET value = ? WHERE name = 'Hostname'", (HEAD,)
            )
            ids = export.execute(
                "SELECT DISTINCT demangledName FROM CUPTI_ACTIVITY_KIND_KERNEL LIMIT 3"
            ).fetchall()
            export.executemany(
                "UPDATE StringIds SET value = 'void evil' || id || '<script>(int)' WHERE id = ?",
                ids,
            )
    written = folder / "page <i>.html"
    assert (
        main(
            [
                "report",
                *map(str, sorted(folder.glob("*.sqlite"))),
                "-q",
                "--align",
                "utc",
                "--html",
                str(written),
            ]
        )
        == 0
    )
    return written


@pytest.mark.slow
def test_names_are_text(page: Path) -> None:
    parsed = Page(page.read_text(encoding="utf-8"))
    assert [tag for tag, _ in parsed.tags].count("script") == 1
    images = [str(attributes["src"]) for tag, attributes in parsed.tags if tag == "img"]
    assert all(source.startswith("data:image/png;base64,") for source in images)
    assert not any(name.startswith("on") for _, attributes in parsed.tags for name in attributes)
    operations = {row[0] for row in parsed.tables["operations.operations"].rows}
    assert {EVIL, QUOTED} <= operations
    assert HEAD in parsed.text
    assert any("<script>" in str(row[0]) for row in parsed.tables["kernels.kernels"].rows)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not on the PATH")
def test_a_browser_runs_none_of_them(page: Path, tmp_path: Path) -> None:
    shown, complaints = render_in_chromium(tmp_path, page)
    assert complaints == []
    assert "<title>caught" not in shown
