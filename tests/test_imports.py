"""Test that rooms, and the modules beside them, import in one direction, also lazily: each imports
only those before it in this list.
"""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "nsys2prv"
ROOMS = (
    "_util",
    "clock",
    "export",
    "events",
    "table",
    "match",
    "replay",
    "writers",
    "conversion",
    "figures",
    "verdict",
    "show",
    "analyses",
    "open_job",
    "study_runs",
    "cli",
)


def test_rooms_import_in_one_direction():
    violations = []
    paths = [path for room in ROOMS for path in PACKAGE.rglob(f"{room}/**/*.py")]
    paths += [path for room in ROOMS for path in PACKAGE.glob(f"{room}.py")]
    for path in paths:
        place = ROOMS.index(path.relative_to(PACKAGE).parts[0].removesuffix(".py"))
        for node in _list_nodes(ast.parse(path.read_text())):
            for module in _list_imported(node):
                parts = module.split(".")
                if parts[0] == "nsys2prv" and not {*parts[1:2]} & {*ROOMS[: place + 1]}:
                    violations.append(f"{path.relative_to(PACKAGE)}:{node.lineno} imports {module}")
    assert not violations, "\n".join(violations)


def test_no_circle_of_modules():
    modules = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        modules[name.removesuffix(".__init__")] = ast.parse(path.read_text())
    graph = {}
    for name, tree in modules.items():
        imported = {
            whole if (whole := f"{node.module}.{alias.name}") in modules else node.module
            for node in _list_nodes(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        graph[name] = imported & modules.keys() - {"nsys2prv", name}
    TopologicalSorter(graph).prepare()


def test_the_package_is_its_rooms():
    found = {path.name for path in PACKAGE.iterdir() if any(path.glob("*.py"))}
    found |= {path.stem for path in PACKAGE.glob("*.py")}
    assert found == {*ROOMS, "__init__", "__main__"}


def _list_nodes(tree: ast.AST) -> set[ast.AST]:
    """Return the nodes that are run; imports for type checkers alone do not count."""
    nodes = [*ast.walk(tree)]
    checked = [
        inner
        for node in nodes
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    ]
    return {*nodes} - {*checked}


def _list_imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return (
            [f"nsys2prv.{alias.name}" for alias in node.names]
            if node.module == "nsys2prv"
            else [node.module or ""]
        )
    return []
