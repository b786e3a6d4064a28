"""Mutations of stores whose archive stays whole: every member has the checksum that it should have."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random

import polars as pl

from nsys2prv.conversion.opened_reports import extract_to

from . import files, frames, values

Members = dict[str, bytes]


def find_store(report: Path) -> Path:
    """Return the store of a base, made when it is first asked for."""
    path = report.parent.with_name("stores") / f"{report.stem}.store"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        # The process may be ended meanwhile.
        extract_to([report], path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)
    return path


def copy_damaged(random: Random, source: Path, target: Path) -> list[str]:
    """Write a store made of another's members, and return what was done to them."""
    with zipfile.ZipFile(source) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    changes = []
    for mutation in random.choices(
        list(MUTATIONS), list(MUTATIONS.values()), k=random.choice((1, 1, 2, 4))
    ):
        mutation(random, members)
        changes.append(mutation.__name__)
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in members.items():
            packed = (
                zipfile.ZIP_DEFLATED
                if len(content) > 1_000_000 or name.endswith(".json")
                else zipfile.ZIP_STORED
            )
            archive.writestr(name, content, packed)
    return changes


def _choose_member(random: Random, members: Members, ending: str) -> str:
    return random.choice(
        [name for name in members if name.endswith(ending)] or [next(iter(members))]
    )


def change_metadata(random: Random, members: Members) -> None:
    """Put something else in one of the places of what a store says of itself."""
    name = (
        "store.json"
        if random.random() < 0.5 and "store.json" in members
        else _choose_member(random, members, ".json")
    )
    try:
        document = json.loads(members[name])
    except ValueError:
        return
    for _ in range(random.choice((1, 1, 1, 3))):
        document = _change_document(random, document)
    members[name] = json.dumps(document).encode()


def _change_document(random: Random, document: object) -> object:
    """Return a document with something else in one place, found by going down."""
    if isinstance(document, list | dict) and document and random.random() < 0.93:
        keys = list(range(len(document))) if isinstance(document, list) else list(document)
        key = random.choice(keys)
        share = random.random()
        if share < 0.85:
            document[key] = _change_document(random, document[key])
        elif share < 0.90:
            del document[key]
        elif share < 0.95 and isinstance(document, list):
            document.insert(key, document[random.choice(keys)])
        else:
            other = random.choice(keys)
            document[key], document[other] = document[other], document[key]
        return document
    if isinstance(document, int) and not isinstance(document, bool) and random.random() < 0.6:
        return random.choice(
            (
                document + 1,
                document - 1,
                -document,
                0,
                1,
                2**31,
                2**32,
                2**63,
                -(2**63),
                2**64,
                10**30,
                document ^ 1,
                document * 1000,
            )
        )
    value = random.choice(
        (
            values.draw_integer(random),
            10**40,
            0.5,
            True,
            None,
            "",
            [],
            {},
            [[]],
            "nvtx",
            *filter(lambda one: isinstance(one, str), values.TEXTS),
        )
    )
    return value


def exchange_members(random: Random, members: Members) -> None:
    one, other = (
        _choose_member(random, members, ".arrow"),
        _choose_member(random, members, ".arrow"),
    )
    members[one], members[other] = members[other], members[one]


def drop_member(random: Random, members: Members) -> None:
    if len(members) > 2:
        del members[random.choice(list(members)[1:])]


def rename_member(random: Random, members: Members) -> None:
    name = random.choice(list(members)[1:] or list(members))
    members[
        random.choice(
            (f"{name}x", f"../{name}", f"/{name}", name.upper(), name.replace("0", "1"), "x")
        )
    ] = members.pop(name)


def damage_bytes(random: Random, members: Members) -> None:
    name = random.choice(list(members))
    data = bytearray(members[name])
    if data:
        random.choice(files.MUTATIONS)(random, data)
    members[name] = bytes(data)


def damage_frame(random: Random, members: Members) -> None:
    name = _choose_member(random, members, ".arrow")
    try:
        frame = pl.read_ipc(members[name])
    except Exception:
        return
    data = io.BytesIO()
    try:
        frames.change_frame(random, frame).write_ipc(data, compression="zstd")
    except Exception:
        return
    members[name] = data.getvalue()


def swell_member(random: Random, members: Members) -> None:
    """Put a member into the store that unpacks to very much."""
    members[random.choice(list(members)[1:] or ["x"])] = bytes(
        random.choice((3_000_000, 300_000_000))
    )


MUTATIONS: dict[Callable[[Random, Members], None], int] = {
    change_metadata: 20,
    exchange_members: 6,
    drop_member: 2,
    rename_member: 2,
    damage_bytes: 6,
    damage_frame: 12,
    swell_member: 1,
}
