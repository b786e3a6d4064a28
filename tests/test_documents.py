"""Test documents: generated pages, links, quotations, commands."""

import ast
import contextlib
import re
import shlex
from pathlib import Path

import pytest
from declaration_checks import check_event_types, find_free_types
from make_command_line import man_page
from make_pages import PAGES

from nsys2prv import Options, convert
from nsys2prv.cli import main
from nsys2prv.events.catalogue import load_catalogue
from nsys2prv.writers.paraver.cfg import load_views

DOCS = Path(__file__).parent.parent / "docs"
PACKAGE = DOCS.parent / "nsys2prv"
TRAINING = DOCS.parent / "sample_reports" / "training"


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    """Return name -> text of the pages that are made with the site."""
    return {name: make() for name, make in PAGES.items()}


def test_the_man_page_is_up_to_date() -> None:
    again = "python tools/make_command_line.py writes it"
    assert man_page() == (DOCS / "nsys2prv.1").read_text(encoding="utf-8"), again


def test_the_tour_names_files_that_there_are() -> None:
    text = (DOCS / "development.md").read_text()
    root = DOCS.parent
    named = set(re.findall(r"`(?!out\.)([\w./]+\.(?:py|c|yaml))[`:]", text))
    assert len(named) > 40
    for name in named:
        places = (root / name, root / "nsys2prv" / name, root / "tools" / name)
        in_room = [*(root / "nsys2prv").rglob(name)] if "/" not in name else []
        assert any(place.is_file() for place in (*places, *in_room)), name


def test_the_tour_names_functions_and_classes_that_there_are() -> None:
    text = (DOCS / "development.md").read_text()
    files = [path for room in ("nsys2prv", "tests") for path in (DOCS.parent / room).rglob("*.py")]
    known = {*re.findall(r"\w+", "\n".join(path.read_text() for path in files))}
    quoted = re.findall(r"`([A-Za-z_]\w*(?:\.\w+)*)(?:\([^`]*\))*`", text)
    names = {part for quote in quoted for part in quote.split(".") if re.search("[A-Z_]", part)}
    assert len(names) > 40
    assert names <= known, f"nothing is called {sorted(names - known)}"


def test_the_event_types_that_the_tool_offers_are_free() -> None:
    taken = check_event_types(load_catalogue()).keys()
    field, line = find_free_types(load_catalogue())
    assert field not in taken
    assert line % 100 == 0
    assert taken.isdisjoint(range(line, line + 100))
    calls = {call.code // 100 for call in load_catalogue().calls.values()}
    assert field // 100 not in calls


def test_nobody_is_told_to_install_from_the_index() -> None:
    """Check this because the name belongs to another program there."""
    for path in (
        DOCS.parent / "README.md",
        *DOCS.glob("*.md"),
        *(DOCS.parent / "nsys2prv").rglob("*.py"),
    ):
        assert not re.search(r"pip3? install [^\n&]*nsys2prv", path.read_text(encoding="utf-8")), (
            path
        )


def test_the_readme_has_one_command_to_install_and_run_and_one_to_test() -> None:
    """CI runs both as they are written there."""
    text = (DOCS.parent / "README.md").read_text()
    first, second = re.findall(r"^pip install .*", text, re.MULTILINE)
    assert first.endswith("&& nsys2prv sample_reports/training training.prv")
    assert second.endswith("&& python -m pytest")


def test_every_page_is_in_the_index(made: dict[str, str]) -> None:
    index, site = (DOCS / "index.md").read_text(), (DOCS.parent / "mkdocs.yml").read_text()
    pages = {page.name for page in DOCS.glob("*.md")}
    assert [name for name in pages - {"index.md"} if f"]({name}" not in index] == []
    assert [name for name in pages | made.keys() if f": {name}\n" not in site] == []


def test_links_of_documents_lead_to_files_and_headings(made: dict[str, str]) -> None:
    """Check this also in a checkout, which lacks the pages that are made with the site."""
    root = DOCS.parent
    pages = [root / "README.md", root / "CONTRIBUTING.md", *DOCS.glob("*.md")]
    texts = {page: page.read_text(encoding="utf-8") for page in pages}
    for page, text in (texts | {DOCS / name: text for name, text in made.items()}).items():
        for link, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", text):
            target = (page.parent / link if link else page).resolve()
            assert target.exists() or page.name in made, (page.name, link)
            assert target.is_relative_to(DOCS) or page.parent == root, (page.name, link)
            titles = re.findall(r"^#+ (.+)$", texts.get(target, text if not link else ""), re.M)
            plain = (re.sub(r"[^\w\s-]", "", title.lower()) for title in titles)
            assert not anchor or anchor in {re.sub(r"[\s-]+", "-", title) for title in plain}, (
                page.name,
                link,
                anchor,
            )


def test_messages_name_documents_that_there_are() -> None:
    for path in (DOCS.parent / "nsys2prv").rglob("*.*"):
        if path.suffix in (".py", ".yaml", ".md") and path.name != "shipped_data.py":
            for name in re.findall(r"\bdocs/[\w.-]+\.(?:md|ipynb)", path.read_text()):
                assert (DOCS.parent / name).exists(), (path.name, name)


def test_pictures_are_those_of_the_page_of_views_and_small(made: dict[str, str]) -> None:
    pictures = sorted((DOCS / "views").rglob("*.png"))
    named = re.findall(r"\]\((.*\.png)\)", made["views.md"])
    assert sorted(named) == [str(path.relative_to(DOCS)) for path in pictures]
    sizes = [path.stat().st_size for path in pictures]
    assert max(sizes) <= 40_000
    assert sum(sizes) <= 1_500_000


def test_the_tutorial_names_entries_of_menus() -> None:
    entries = re.findall(
        r"^Hints > nsys2prv (.+) > \*\*(.+)\*\*$",
        (DOCS / "tutorial.md").read_text(encoding="utf-8"),
        re.M,
    )
    by_path = {view.path: view.title for view in load_views().views}
    titles = {menu: [by_path[path] for path in group] for menu, group in load_views().menus.items()}
    assert len(entries) == 4
    assert [entry for menu, entry in entries if entry not in titles[menu]] == []
    named = ("Waiting in NCCL by task", "NCCL waiting", "Tensor cores by GEMM")
    assert {title for group in titles.values() for title in group} >= set(named)


def test_the_tutorial_quotes_what_the_commands_print(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    assert main(["report", str(TRAINING), "-q"]) == 0
    printed = capsys.readouterr().out.splitlines()
    quoted = [
        line
        for block in re.findall(r"^```text\n(.*?)^```$", text, re.M | re.S)
        for line in block.splitlines()
    ]
    assert len(quoted) >= 10
    assert [line for line in quoted if line not in printed] == []
    summary = convert(TRAINING, tmp_path / "t.prv", Options(jobs=1, quiet=True))
    (clocks,) = re.findall(r"`(\d nodes aligned by .+?)`", text, re.S)
    assert " ".join(clocks.split()) in summary.text()


def test_the_tutorial_s_python_prints_the_figures_that_it_tells(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    monkeypatch.chdir(DOCS.parent)
    exec(compile(code, "tutorial.md", "exec"), {})
    printed = re.findall(r"^│ (\d) +┆ ([\d.]+) +│$", capsys.readouterr().out, re.M)
    times = {int(rank): round(float(us)) for rank, us in printed}
    match = re.search(
        r"ranks 0 to 2, `load_batch` takes (\d+) µs; on rank 3 it takes (\d+) µs", text
    )
    assert match
    assert [times[rank] for rank in range(4)] == [int(match[1])] * 3 + [int(match[2])]


def test_troubleshooting_quotes_messages_that_there_are() -> None:
    """Check words in code face that begin a paragraph, or a row of a table of messages or reasons."""
    files = [path for ending in ("py", "yaml") for path in PACKAGE.rglob(f"*.{ending}")]
    source = "\n".join(path.read_text(encoding="utf-8") for path in files)
    source = " ".join(re.sub(r'"\s*\n\s*f?"', "", source).replace('\\"', '"').split())
    text = (DOCS / "troubleshooting.md").read_text(encoding="utf-8").partition("## Former")[0]
    rows = re.findall(r"^\| (`.*?) \| ", text, re.M)
    quoted = re.findall(r"\*\*`([^`]+)`\*\*", text) + re.findall("`([^`]+)`", "\n".join(rows))
    assert len(quoted) > 90
    parts = {part.strip() for one in quoted for part in re.split(r"\bR\b", one)}
    assert sorted(part for part in parts if part not in source) == []


#: Placeholders and the reader's own files -> what takes their place here.
STAND_INS = {
    "REPORT...": "run/",
    "REPORTS": "run/",
    "DIR": "views",
    "TRACE": "job.prv",
    "A": "before/",
    "B": "after/",
    "NAME": "overlap",
    "COMMAND": "report",
    "FILE": "f.json",
    "step*": "iteration*",
    "step*:100-109": "iteration*:5-9",
    "10s:20s": "10%:20%",
    **{f"rank{which}": "run/" for which in ("*.sqlite", "9.sqlite", "*.parquetdir")},
}
READERS_JOBS = [
    "before",
    "after",
    "run",
    "run1",
    "run2",
    "run3",
    "old1",
    "old2",
    "new1",
    "new2",
    "8",
    "16",
    "64",
    "4gpu",
    "8gpu",
    "16gpu",
    "32gpu",
    "reports",
]


def list_commands(text: str) -> list[list[str]]:
    """Return the arguments of the commands in blocks of a document, and of commands in sentences
    that name files.
    """
    blocks = "\n".join(re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S)).replace("\\\n", " ")
    lines = [line.split("  #")[0].split(" && ")[-1].strip() for line in blocks.splitlines()]
    lines += re.findall(r"`(nsys2prv [^`]*[/*.A-Z][^`]*)`", text)
    commands = [shlex.split(line) for line in lines if "wxparaver" not in line]
    return [
        [STAND_INS.get(word, word) for word in words]
        for _, *words in filter(lambda words: words[:1] == ["nsys2prv"], commands)
        if words not in (["-v", "..."], ["report", "--json", "FILE"])
    ]


COMMANDS = {
    path.relative_to(DOCS.parent).as_posix(): list_commands(path.read_text(encoding="utf-8"))
    for path in (DOCS.parent / "README.md", *sorted(DOCS.glob("*.md")))
}


@pytest.fixture(scope="module")
def readers_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with jobs, traces and results as a reader of the documents has them."""
    folder = tmp_path_factory.mktemp("reader")
    for name in READERS_JOBS:
        (folder / name).symlink_to(TRAINING)
    (folder / "sample_reports").symlink_to(TRAINING.parent)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for words in (
            "run/ job.prv",
            "report run/ --json report.json",
            "report after/ --json after.json",
            "study 4gpu/ 8gpu/ --json study.json",
        ):
            assert main([*words.split(), "-q"]) == 0
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, commands in COMMANDS.items() if commands])
def test_commands_of_documents_run(
    name: str, readers_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(readers_folder)
    monkeypatch.setenv("HOME", str(readers_folder))
    rules = re.search(r"^```yaml\n(.*?)^```$", (DOCS.parent / name).read_text("utf-8"), re.M | re.S)
    Path("mine.yaml").write_text(rules[1] if rules else "")
    for words in COMMANDS[name]:
        with contextlib.suppress(SystemExit):
            # A limit may be exceeded, or a capture lack something.
            assert main(words) in (0, 4, 5, 6), words


def test_most_documents_have_commands_that_are_run() -> None:
    assert sum(map(len, COMMANDS.values())) > 60
    assert {"README.md", "docs/analysis.md", "docs/cutting.md", "docs/study.md"} <= {
        name for name, commands in COMMANDS.items() if commands
    }


#: A docstring says what a function does or what a class is, not what it is about.
RIDDLES = re.compile(
    r"^(?:(?:Return|Yield|Say|Tell) )?(?:what|whose|those|which|who|whoever)\b(?!-)"
    r"|\b(?:of which it|tells? of|whoever|is no cause|not to be had)\b",
    re.I,
)


def test_docstrings_begin_plainly() -> None:
    found = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                text = ast.get_docstring(node) or ""
                if RIDDLES.search(text):
                    found.append(f"{path.relative_to(PACKAGE)}: {text.splitlines()[0]}")
    assert not found, "name what is returned, as in: Return the calls of a thread"
