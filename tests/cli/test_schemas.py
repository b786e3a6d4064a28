"""Test that the output of `--json` conforms to its JSON Schemas, which are made from the classes."""

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from tools.commands import GRAPHS, ROOT
from tools.studies import make_study_data

from nsys2prv.cli import main

SCHEMAS = ROOT / "nsys2prv" / "show" / "schemas"


def read_schema(name: str) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
    Draft202012Validator.check_schema(schema)
    return schema


@pytest.mark.parametrize(
    ("command", "schema"),
    [
        (["report", str(GRAPHS)], "report"),
        (["diff", str(GRAPHS), str(GRAPHS), "--fail-above", "5%"], "report"),
        (["study", "earlier.json"], "study"),
        (["study", str(GRAPHS)], "study"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_output_is_as_its_schema_says(
    command: list[str], schema: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("earlier.json").write_text(json.dumps(make_study_data()))
    assert main([*command, "-q", "--json", "out.json"]) == 0
    content = json.loads(Path("out.json").read_text())
    validator = Draft202012Validator(read_schema(schema))
    assert [error.message for error in validator.iter_errors(content)] == []
    for damaged in ({**content, "format": "other"}, {"format": content["format"]}):
        assert not validator.is_valid(damaged)
    if schema == "report":
        known = {*read_schema(schema)["$defs"]["JobFacts"]["properties"], "comparison"}
        assert {*content["job"]} <= known, "each field is described"


def test_schemas_and_their_page_are_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import make_schemas

    made = json.loads(json.dumps(make_schemas.make_schemas()))
    assert {name: read_schema(name) for name in made} == made
    assert (ROOT / "docs" / "json.md").read_text(encoding="utf-8") == make_schemas.make_page(made)
