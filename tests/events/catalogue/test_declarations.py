"""Test that each event type has one meaning, and that mistakes in a declaration are refused."""

import re
from pathlib import Path
from typing import Any

import pytest
from declaration_checks import check_declarations, check_event_types

from nsys2prv.events import catalogue as module
from nsys2prv.events.catalogue import Catalogue

OSRT = "event type 66400000: .*field 'call' of layout 'osrt'.*"


def build_catalogue(monkeypatch: pytest.MonkeyPatch, **added: dict[str, Any]) -> Catalogue:
    """Build the catalogue as its files are, with further entries of sections."""
    data, files = module._read_sections()
    for section, entries in added.items():
        data[section].update(entries)
        files.update(dict.fromkeys(((section, name) for name in entries), "new.yaml"))
    monkeypatch.setattr(module, "_read_sections", lambda: (data, files))
    result = module.load_catalogue.__wrapped__()
    check_event_types(result)
    return result


def make_layout(code: Any, label: str = "New kind", **entries: Any) -> dict[str, Any]:
    return {
        "new_kind": {
            "title": "new kind",
            "fields": {"what": {"code": code, "label": label, **entries}},
        }
    }


def test_every_event_type_has_one_meaning() -> None:
    assert len(check_event_types(module.load_catalogue())) > 1000


def test_a_new_layout_with_the_type_of_another_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=OSRT) as error:
        build_catalogue(monkeypatch, layouts=make_layout(66400000))
    assert "field 'what' of layout 'new_kind'" in str(error.value)


@pytest.mark.parametrize(
    ("added", "message"),
    [
        ({"layouts": {"new": {"fields": {}}}}, "layouts: new: .*title"),
        ({"layouts": {"new": {"title": "", "fields": {}, "tilte": ""}}}, "layouts: new: .*tilte"),
        (
            {"layouts": {"new": {"title": "", "state": "runing"}}},
            "layouts: new: nothing is called 'runing'",
        ),
        ({"name_sets": {"new": {"frist": 1}}}, "name_sets: new: .*frist"),
        ({"calls": {"new": {"tabel": "NEW"}}}, "calls: new: .*tabel"),
    ],
)
def test_what_is_wrong_in_a_declaration_is_named(
    monkeypatch: pytest.MonkeyPatch, added: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^catalogue/events/new.yaml: {message}"):
        build_catalogue(monkeypatch, **added)


def test_a_name_set_has_a_space_of_its_own_and_begins_at_1(monkeypatch: pytest.MonkeyPatch) -> None:
    names = build_catalogue(monkeypatch, name_sets={"new_names": {}}).name_sets["new_names"]
    assert (names.space, names.first) == ("new_names", 1)


def test_a_new_line_of_calls_with_the_type_of_another_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ValueError, match=OSRT) as error:
        build_catalogue(
            monkeypatch,
            calls={"new_kind": {"table": "NEW", "code": 66400000, "label": "OS Runtime Calls"}},
        )
    assert "layout 'new_kind'" in str(error.value)


def test_a_field_that_means_the_same_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    build_catalogue(monkeypatch, layouts=make_layout(9200, "Correlation ID"))


def test_a_field_of_another_label_is_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="event type 9200"):
        build_catalogue(monkeypatch, layouts=make_layout(9200, "Correlation"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("\nkinds:", "\nkind:", "own.yaml: section 'kind' is unknown; did you mean 'kinds'"),
        (
            "label: Own",
            "labels: Own",
            "own.yaml: layouts: own: call: key 'labels' is unknown; did you",
        ),
        (
            "title: own calls",
            "titel: own",
            "own.yaml: layouts: own: key 'titel' is unknown; did you",
        ),
        (
            "layouts: [own]",
            "layouts: [ownn]",
            "own.yaml: kinds: own: layout 'ownn' is unknown; did you",
        ),
        (
            "names: own",
            "names: owns",
            "own.yaml: layouts: own: call: values: names: 'owns' is unknown",
        ),
        ("{names:", "{name:", "own.yaml: layouts: own: call: values: key 'name' is unknown"),
    ],
)
def test_what_is_misspelt_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = """
kinds:
  own: {title: Own calls, tables: [OWN], layouts: [own]}
layouts:
  own:
    title: own calls
    fields:
      call: {code: 69299900, label: Own, column: nameId, values: {names: own}}
name_sets:
  own: {}
"""
    file = tmp_path / "own.yaml"
    file.write_text(text)
    check_declarations(tmp_path)
    assert old in text
    file.write_text(text.replace(old, new))
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        check_declarations(tmp_path)


def test_the_declarations_are_sound() -> None:
    check_declarations()
