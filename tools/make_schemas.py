"""Write the JSON Schemas of the output of `--json` (``nsys2prv/show/schemas/``), and their page
(``docs/json.md``), from the classes: ``python tools/make_schemas.py``. Comments above fields describe them.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from nsys2prv.figures import study_model
from nsys2prv.figures.result import MOMENT, Finding, Result, Table
from nsys2prv.figures.study_model import ComparedRuns, Interval, Run, Scaling, Work
from nsys2prv.show import finished_job
from nsys2prv.show.difference.facts import Checked, Comparison, Limit, Reason
from nsys2prv.show.finished_job import JobFacts

ROOT = Path(__file__).parent.parent
SCHEMAS = ROOT / "nsys2prv" / "show" / "schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
#: Columns of a table: a list for each, all of the same length.
COLUMNS = {"type": "object", "additionalProperties": {"type": "array"}}
#: What properties of classes add to their fields in JSON.
OF_FINDINGS = {
    "at_most": {
        "type": "boolean",
        "description": "True if the share is a limit: no more can be saved.",
    },
    "group": {
        "enum": ["causes", "limits", "once"],
        "description": "Group of the finding. Shares of one group refer to the same time.",
    },
}
OF_COMPARISONS = {
    "change": {
        "type": "number",
        "description": "Relative increase from A to B (0.22: 22% longer).",
    },
    "job_change": {"type": "number", "description": "Relative increase of the whole job."},
    "is_alike": {"type": "boolean", "description": "True if the change may be due to chance."},
    "disagrees": {
        "type": "boolean",
        "description": "True if the job and the unit change differently.",
    },
    "headline": {"type": "string", "description": "One sentence that summarizes the comparison."},
}
HEAD = """# JSON of reports, comparisons and studies

`nsys2prv report --json FILE`, `diff --json FILE` and `study --json FILE` write all their results, for scripts and agents.
`format` contains the name and version of the format. The version increases if a field is removed or changes its meaning. New fields
may be added without a new version, so ignore unknown fields. The schemas (JSON Schema, draft 2020-12) are installed with the package:

```python
import importlib.resources
import json

folder = importlib.resources.files("nsys2prv.show") / "schemas"
schema = json.loads((folder / "report.schema.json").read_text())
```

All times are in ns; points in time count from the start of the trace. Shares and efficiencies are fractions of 1. Unknown values are
missing or `null`, never 0. In tables, columns that end in `_ns` are durations, in `_bytes` sizes, and in `_gb_s` 10^9 bytes per second.
`docs/analysis.md` lists the tables of each analysis.
"""


def list_comments(kind: type) -> dict[str, str]:
    """Return field -> the comment right above it."""
    found: dict[str, str] = {}
    lines: list[str] = []
    for line in inspect.getsource(kind).splitlines():
        if comment := re.match(r"    #: (.*)", line):
            lines.append(comment[1])
            continue
        if lines and (field := re.match(r"    (\w+): ", line)):
            found[field[1]] = " ".join(lines)
        lines = []
    return found


def describe_fields(schema: dict[str, Any], kinds: Iterable[type]) -> None:
    """Add the comments of classes to their schemas."""
    for kind in kinds:
        if kind.__name__ not in schema["$defs"]:
            continue
        comments = list_comments(kind)
        renamed = {"frame": "columns"}
        for name, text in comments.items():
            own = schema["$defs"][kind.__name__]["properties"].get(renamed.get(name, name))
            if own is not None and text:
                own["description"] = text


def make_schemas() -> dict[str, dict[str, Any]]:
    """Return the schemas by name."""
    kinds = [JobFacts, Comparison, Finding, Result, Table, Reason, Limit, Checked]
    _, defined = msgspec.json.schema_components(
        kinds, schema_hook=lambda _: COLUMNS, ref_template="#/$defs/{name}"
    )
    report: dict[str, Any] = {
        "$schema": DIALECT,
        "title": finished_job.FORMAT,
        "description": "Output of `nsys2prv report --json` and `nsys2prv diff --json`.",
        "type": "object",
        "properties": {
            "format": {"const": finished_job.FORMAT},
            "job": {
                "description": "The job; for `diff`, the names of two runs and their comparison.",
                "anyOf": [
                    {"$ref": "#/$defs/JobFacts", "required": ["name", "duration_ns", "records"]},
                    {"$ref": "#/$defs/ComparedJobs"},
                ],
            },
            "findings": {"type": "array", "items": {"$ref": "#/$defs/Finding"}},
            "analyses": {
                "description": "Results by the names of their analyses; for `diff`, `difference`.",
                "type": "object",
                "additionalProperties": {"$ref": "#/$defs/Result"},
            },
        },
        "required": ["format", "job", "findings", "analyses"],
        "$defs": defined,
    }
    defined["ComparedJobs"] = {
        "description": "Two runs, from `diff`.",
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "Names of both runs, as text."},
            "comparison": {"$ref": "#/$defs/Comparison"},
        },
        "required": ["name", "comparison"],
    }
    describe_fields(report, kinds)
    finding = defined["Finding"]["properties"]
    moment = {"begin_ns": {"type": "integer"}, "end_ns": {"type": "integer"}}
    moment["ranks"] = {"type": "array", "items": {"type": "integer"}}
    finding["moments"]["items"] = {"properties": moment, "required": [*MOMENT]}
    finding |= OF_FINDINGS
    defined["Comparison"]["properties"] |= OF_COMPARISONS
    of_result = defined["Result"]
    for name in ("name", "findings"):
        of_result["properties"].pop(name)
    of_result["required"].remove("name")
    parts = [Scaling, Run, Interval, Work]
    _, defined = msgspec.json.schema_components(
        [ComparedRuns, *parts], ref_template="#/$defs/{name}"
    )
    study = {"$schema": DIALECT, "title": study_model.FORMAT, "$defs": defined}
    study["description"] = "Output of `nsys2prv study --json`."
    describe_fields(study, [ComparedRuns, *parts])
    study |= {"$ref": "#/$defs/ComparedRuns"}
    defined["ComparedRuns"]["properties"]["format"] = {"const": study_model.FORMAT}
    return {"report": report, "study": study}


def name_type(schema: Mapping[str, Any]) -> str:
    """Return the display name of a field's type."""
    if "$ref" in schema:
        return (
            f"[{schema['$ref'].rpartition('/')[2]}](#{schema['$ref'].rpartition('/')[2].lower()})"
        )
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(name_type, schema["anyOf"])))
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {name_type(schema.get('items') or {})}" if schema.get("items") else "list"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {name_type(schema['additionalProperties'])}"
    return str(kind)


def make_page(schemas: Mapping[str, dict[str, Any]]) -> str:
    """Return the page on the schemas."""
    parts = [HEAD]
    for name, schema in schemas.items():
        parts.append(
            f"## {schema['title']}\n\n{schema['description']} Schema: `{name}.schema.json`.\n"
        )
        kinds = {"": schema} if "properties" in schema else {}
        for kind, own in (kinds | schema["$defs"]).items():
            if kind:
                about = own.get("description", "").split("\n\n")[0].replace("\n", " ")
                parts.append(f"### {kind}\n\n{about}\n".replace("\n\n\n", "\n"))
            rows = [
                f"| `{field}` | {name_type(one)} | {one.get('description', '')} |".replace(
                    "  ", " "
                )
                for field, one in own.get("properties", {}).items()
            ]
            parts.append("\n".join(["| field | type | meaning |", "|---|---|---|", *rows]) + "\n")
    return "\n".join(parts)


def main() -> None:
    """Write the schemas and their page."""
    schemas = make_schemas()
    SCHEMAS.mkdir(exist_ok=True)
    for name, schema in schemas.items():
        text = json.dumps(schema, indent=1)
        (SCHEMAS / f"{name}.schema.json").write_text(f"{text}\n", encoding="utf-8", newline="\n")
    page = ROOT / "docs" / "json.md"
    page.write_text(make_page(schemas), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
