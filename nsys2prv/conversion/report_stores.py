"""Stores: reports that were read elsewhere (``nsys2prv extract``), and take the place of their
exports.
"""

from __future__ import annotations

import errno
import hashlib
import json
import zipfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.data_files import WRONG, blame_data, read_data_texts
from nsys2prv._util.errors import Nsys2prvError
from nsys2prv._util.store_file import (
    Members,
    from_json,
    is_archive,
    list_members,
    open_archive,
    to_json,
)
from nsys2prv._util.version import __version__
from nsys2prv.conversion import reading
from nsys2prv.events import Selection, all_kinds
from nsys2prv.events.catalogue import load_catalogue
from nsys2prv.events.extraction import ReadingSettings
from nsys2prv.nsight.info import ReportInfo
from nsys2prv.nsight.job_checks import are_copies, make_session_key
from nsys2prv.store.task_result import TaskResult, unpack_result

if TYPE_CHECKING:
    from nsys2prv.conversion.options import Plan

#: Of the form of stores. Raise it with every change of what they hold.
VERSION = 8
MANIFEST = "store.json"
#: Of the manifest, without this.
DIGEST = "digest"
#: Settings of reading, by the options that give them.
OPTIONS = {
    "least": "--min-duration",
    "rules": "--kernel-rules",
    "nvtx_rules": "--nvtx-rules",
    "callstack": "--callstack",
}
_DAMAGE = (zipfile.BadZipFile, zlib.error, *WRONG)


class ArchivedReport(Struct, frozen=True):
    """Report in a store."""

    #: Facts of the report.
    info: ReportInfo
    #: Folders of the results of the tasks, in order, for both stages of reading.
    stages: list[list[str]]
    #: First and last time of the report's events, read or not, in local ns; None if it has none.
    span: tuple[int, int] | None = None


class ArchiveManifest(Struct, frozen=True):
    """Contents of a store."""

    #: Names of the kinds that were read.
    kinds: list[str]
    #: Kinds that the user named.
    asked: frozenset[str]
    #: Settings of reading.
    settings: ReadingSettings
    #: Reports in the store.
    reports: list[ArchivedReport]


@cache
def compute_catalogue_digest() -> str:
    """Return a digest that tells event types and layouts from those of another version."""
    package = load_catalogue.__module__
    texts = [*read_data_texts(package, ".yaml"), *read_data_texts(f"{package}.events", ".yaml")]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def make_manifest(contents: ArchiveManifest, members: Members) -> bytes:
    """Return the member that tells what a store holds. members: the other members."""
    manifest = {
        "version": VERSION,
        "program": __version__,
        "catalogue": compute_catalogue_digest(),
        "members": members,
        "contents": to_json(contents, ArchiveManifest),
    }
    # Without what is no JSON, as it is read back.
    manifest = json.loads(json.dumps(manifest, default=int))
    return json.dumps({DIGEST: compute_digest(manifest), **manifest}).encode()


def compute_digest(manifest: dict[str, Any]) -> str:
    """Return a digest that changes with anything in the manifest."""
    rest = {key: value for key, value in manifest.items() if key != DIGEST}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def open_stores(paths: Sequence[Path]) -> dict[Path, ArchiveManifest]:
    """Return the paths that are stores, and what they hold. Raises one clear line for one that
    cannot be read by this version.
    """
    return {path: _open_store(path) for path in paths if is_archive(path)}


def _open_store(path: Path) -> ArchiveManifest:
    try:
        with open_archive(path) as archive, archive.open(MANIFEST) as file:
            manifest = json.load(file)
            if (
                manifest["version"] != VERSION
                or manifest["program"] != __version__
                or manifest["catalogue"] != compute_catalogue_digest()
            ):
                raise Nsys2prvError(
                    f"{path}: this store was made by another nsys2prv ({str(manifest['program'])[:40]}) than this one "
                    f"({__version__}): extract it again, or merge it with that one"
                )
            if manifest[DIGEST] != compute_digest(manifest):
                raise ValueError("it says other things of itself than it did")
            if manifest["members"] != [one for one in list_members(archive) if one[0] != MANIFEST]:
                raise ValueError("other members are in it than there were")
            contents = from_json(manifest["contents"], ArchiveManifest)
            if unknown := set(contents.kinds) - {kind.name for kind in all_kinds()}:
                raise ValueError(
                    f"kinds of events that there are not: {', '.join(sorted(unknown))}"
                )
    except OSError as error:
        raise Nsys2prvError(f"{path}: {error.strerror or error}") from None
    except _DAMAGE as error:
        raise make_damaged_error(path, error) from None
    return contents


@contextmanager
def blame_stores(paths: Sequence[Path]) -> Iterator[None]:
    """Name the first of these stores where an exception comes of wrong data in what is made of
    them.
    """
    if not paths:
        yield
        return
    with blame_data(partial(make_damaged_error, paths[0])):
        yield


def make_damaged_error(path: Path, error: BaseException) -> Nsys2prvError:
    reason = next(iter(str(error).splitlines()), "") or type(error).__name__
    return Nsys2prvError(
        f"{path}: this store is damaged or cut short ({reason[:120]}); extract it again"
    )


def list_contents(plan: Plan, reports: list[ArchivedReport]) -> ArchiveManifest:
    """Return the contents of a store of these reports, read by a plan."""
    selection = plan.selection
    kinds = [kind.name for kind in selection.kinds]
    return ArchiveManifest(kinds, selection.asked, plan.settings, reports)


def check_settings_match(plan: Plan, usual: Plan, stores: Mapping[Path, ArchiveManifest]) -> Plan:
    """Return the plan with the stores' own selection and settings, unless others than the usual are
    asked for. Raises one clear line where they do not fit.
    """
    (path, first), *others = stores.items()
    for other_path, other in others:
        _check_same(str(other_path), other, str(path), first)
    wanted = list_contents(plan, [])
    if wanted != list_contents(usual, []):
        _check_same(str(path), first, "this command", wanted)
    kinds_by_name = {kind.name: kind for kind in all_kinds()}
    kinds = tuple(kinds_by_name[name] for name in first.kinds)
    return replace(plan, selection=Selection(kinds, first.asked), settings=first.settings)


def _check_same(name: str, one: ArchiveManifest, other_name: str, other: ArchiveManifest) -> None:
    different = ["-t"] if one.kinds != other.kinds else []
    different += [
        OPTIONS.get(setting, setting)
        for setting in ReadingSettings.__struct_fields__
        if getattr(one.settings, setting) != getattr(other.settings, setting)
    ]
    if different:
        raise Nsys2prvError(
            f"{name}: was extracted with other options ({', '.join(different)}) than {other_name}"
        )


def check_no_duplicate_reports(reports: Sequence[tuple[ReportInfo, Path]]) -> None:
    """Raise one clear line where two files, one of them a store, hold the same report."""
    seen: dict[Hashable, list[tuple[ReportInfo, Path]]] = defaultdict(list)
    for info, path in reports:
        if (session := make_session_key(info)) is None:
            continue
        alike = seen[session]
        for other, place in alike:
            if place != path and are_copies(other, info):
                raise Nsys2prvError(
                    f"{path}: contains {info.name}, which is in {place}, too; give it once"
                )
        alike.append((info, path))


def replace_with_archived_tasks(
    tasks: Sequence[reading.ReadingTask],
    stage: int,
    archived: dict[int, tuple[Path, ArchivedReport]],
) -> list[reading.ReadingTask]:
    """Return the tasks of a stage, those of reports in stores taken from there. archived: by the
    report's number.
    """
    planned = Counter(task.report for task in tasks)
    for report, (path, stored) in archived.items():
        more = len(stored.stages[stage]) - planned[report]
        if more:
            name = stored.info.name
            wrong = (
                f"more results of {name} than tasks"
                if more > 0
                else f"results of {name} are missing"
            )
            raise make_damaged_error(path, ValueError(wrong))
    folders = {report: iter(stored.stages[stage]) for report, (_, stored) in archived.items()}
    return [
        replace(task, stored=(archived[task.report][0], next(folders[task.report])))
        if task.report in archived
        else task
        for task in tasks
    ]


def run_reading_task(task: reading.ReadingTask) -> TaskResult:
    """Read the task's parts, or take what a store has of them."""
    if task.stored is None:
        return reading.read_task(task)
    store, folder = task.stored
    try:
        with open_archive(store) as archive:
            return unpack_result(
                lambda name: archive.open(f"{folder}/{name}"),
                task.spill,
                task.number,
                task.report,
            )
    except OSError as error:
        # Places before the begin of the file, which damage may name.
        raise make_damaged_error(store, error) if error.errno == errno.EINVAL else error from None
    except _DAMAGE as error:
        raise make_damaged_error(store, error) from None
