"""Documents say what is so: pages that are made, links, what is quoted."""

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
    """There the name belongs to another program."""
    for path in (
        DOCS.parent / "README.md",
        *DOCS.glob("*.md"),
        *(DOCS.parent / "nsys2prv").rglob("*.py"),
    ):
        assert not re.search(r"pip3? install [^\n&]*nsys2prv", path.read_text(encoding="utf-8")), (
            path
        )


def test_every_page_is_in_the_index(made: dict[str, str]) -> None:
    index, site = (DOCS / "index.md").read_text(), (DOCS.parent / "mkdocs.yml").read_text()
    pages = {page.name for page in DOCS.glob("*.md")}
    assert [name for name in pages - {"index.md"} if f"]({name}" not in index] == []
    assert [name for name in pages | made.keys() if f": {name}\n" not in site] == []


def test_links_of_documents_lead_to_files_and_headings(made: dict[str, str]) -> None:
    """Also in a checkout, which lacks the pages that are made with the site."""
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
    """Words in code face that begin a paragraph, or a row of a table of messages or reasons."""
    files = [path for ending in ("py", "yaml") for path in PACKAGE.rglob(f"*.{ending}")]
    source = "\n".join(path.read_text(encoding="utf-8") for path in files)
    source = " ".join(re.sub(r'"\s*\n\s*f?"', "", source).replace('\\"', '"').split())
    text = (DOCS / "troubleshooting.md").read_text(encoding="utf-8").partition("## Former")[0]
    rows = re.findall(r"^\| (`.*?) \| ", text, re.M)
    quoted = re.findall(r"\*\*`([^`]+)`\*\*", text) + re.findall("`([^`]+)`", "\n".join(rows))
    assert len(quoted) > 90
    parts = {part.strip() for one in quoted for part in re.split(r"\bR\b", one)}
    assert sorted(part for part in parts if part not in source) == []


#: Commands that need what tests do not have: an installation, Paraver, or the reader's own reports.
NOT_RUN = re.compile(r"wxparaver|--install|^(?!nsys2prv)|\brun/|\b4gpu/|\bbefore/|man nsys2prv")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["README.md", "docs/tutorial.md", "docs/questions.md"])
def test_commands_of_documents_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = DOCS.parent
    blocks = re.findall(
        r"^```sh\n(.*?)^```$", (root / name).read_text(encoding="utf-8"), re.M | re.S
    )
    lines = [
        line.split("  #")[0].split(" && ")[-1] for block in blocks for line in block.splitlines()
    ]
    commands = [shlex.split(line)[1:] for line in lines if not NOT_RUN.search(line.strip())]
    (tmp_path / "sample_reports").symlink_to(root / "sample_reports")
    monkeypatch.chdir(tmp_path)
    for words in commands:
        with contextlib.suppress(SystemExit):
            # A limit may be exceeded, or a capture lack something.
            assert main(words) in (0, 4, 5, 6), words
    assert commands
