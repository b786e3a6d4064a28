"""Read and write files: names of reports, YAML of the package, rule files of users, and outputs
that appear only when complete.

Outputs are written to a folder beside their destination and then moved there together. If a run
fails, they are removed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from difflib import get_close_matches
from functools import partial
from importlib.resources import files
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from nsys2prv._util.errors import (
    Nsys2prvError,
    UsageError,
    name_damaged_file,
    note_written,
)
from nsys2prv._util.text import format_size

if TYPE_CHECKING:
    from jinja2 import Environment
try:
    import fcntl
except ImportError:  # not on every system
    fcntl = None  # type: ignore[assignment]

AnyClosable = TypeVar("AnyClosable", bound="Closable")
#: Endings of files that only nsys reads, and of every file that is a report.
NOT_EXPORTED = {".nsys-rep", ".qdrep"}
FILE_ENDINGS = {".sqlite", *NOT_EXPORTED}
#: Endings of the files of a folder of tables (Arrow's are not read), and of the names that nsys gives
#: such folders by default.
TABLE_ENDINGS = {".parquet", ".arrow"}
FOLDER_ENDINGS = (".parquetdir", ".arrowdir", "_pqtdir", "_arwdir")
#: Bytes of the largest file that is read as rules or clocks.
LARGEST_TEXT = 32_000_000
#: Start and end of the names of temporary folders. Between them are the digest of the host where
#: the process runs, and a random part.
PREFIX, SUFFIX = ".nsys2prv-", ".tmp"
_OURS = re.compile(re.escape(PREFIX) + r"([0-9a-f]{8})-[\w-]+" + re.escape(SUFFIX))
#: In a temporary folder: the file that its process keeps locked, the list of files to put in place,
#: and the folder of replaced files.
LOCK, NAMES, EARLIER = ".lock", ".names.json", ".earlier"
#: Name of the file that is to be locked, until it is.
UNLOCKED = ".unlocked"
#: Seconds after which a folder without a lock file was left by a run that was killed as it began.
UNLOCKED_SECONDS = 60.0
#: Seconds without a change after which a folder of another machine was left by a run that was killed.
ABANDONED_SECONDS = 7 * 86_400.0
#: Errors of a file system without space.
FULL = (errno.ENOSPC, errno.EDQUOT)


class Closable:
    """Base class for objects that a `with` block closes."""

    def __enter__(self: AnyClosable) -> AnyClosable:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the files."""
        raise NotImplementedError


def has_report_name(path: Path) -> bool:
    """Return True if the file name is almost certainly that of a report."""
    return path.name.lower().endswith((*FILE_ENDINGS, *FOLDER_ENDINGS))


def name_beside(trace: Path, ending: str) -> Path:
    """Return the path of a file beside a trace, with this ending in place of the trace's own (and
    of .gz).
    """
    return trace.with_name(trace.name.removesuffix(".gz")).with_suffix(ending)


def describe_missing_file(path: Path) -> str:
    """Return the message for a missing file. It suggests the most similar existing name, if any."""
    missing = next(
        (part for part in (path, *path.parents) if part.parent.is_dir() and not part.exists()), path
    )
    try:
        # Without endings: these alone are alike in most names of a folder.
        there = {Path(name).stem: name for name in sorted(os.listdir(missing.parent))}
    except OSError:
        there = {}
    near = get_close_matches(missing.stem, there, 1)
    likely = missing.with_name(there[near[0]]) / path.relative_to(missing) if near else path
    return f"{path}: no such file" + (f"; did you mean {likely}?" if likely.exists() else "")


def read_given(path: Path, largest: int = LARGEST_TEXT) -> bytes:
    """Return the content of a regular file of at most `largest` bytes.

    Raise OSError if it cannot be read. Raise Nsys2prvError if it is larger, or a pipe or device,
    which may never end.
    """
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise Nsys2prvError(f"{path}: is not a regular file; give the name of a file")
    with path.open("rb") as file:
        content = file.read(largest + 1)
    if len(content) > largest:
        raise Nsys2prvError(
            f"{path}: is larger than {format_size(largest)}, the limit for a file of this kind"
        )
    return content


def make_temporary_name() -> str:
    """Return a new name for a temporary folder of this host."""
    return f"{PREFIX}{_digest_host()}-{secrets.token_hex(4)}{SUFFIX}"


@contextmanager
def make_temporary_folder(parent: Path) -> Iterator[Path]:
    """Create a folder in `parent` that is always removed at the end of a `with` block, and remove
    leftovers of dead runs. Raise OSError if it cannot be created.
    """
    remove_leftovers(parent)
    folder = parent / make_temporary_name()
    try:
        folder.mkdir(0o700)
        # The file gets its name when it is locked. Another run would take an unlocked file for that
        # of a dead run.
        with (folder / UNLOCKED).open("w") as lock:
            _try_lock(lock)
            (folder / UNLOCKED).rename(folder / LOCK)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def put_in_place(staging: Path, finals: Sequence[Path]) -> None:
    """Move the files in `staging` to their final paths, all or none. Both are on the same file
    system, and the names are the same.

    The first file is removed before the others change, and moved last. A final file without a new
    version in `staging` is deleted. Links are replaced, not followed.
    """
    note_written(*_place(staging, finals))


def _place(staging: Path, finals: Sequence[Path]) -> list[Path]:
    """Move files as :func:`put_in_place` does; return the new files."""
    new = {final: (staging / final.name).exists() for final in finals}
    (staging / NAMES).write_text(json.dumps({final.name: there for final, there in new.items()}))
    earlier = staging / EARLIER
    earlier.mkdir()
    try:
        for final in finals:
            if os.path.lexists(final):
                final.replace(earlier / final.name)
        for final in reversed(finals):
            if new[final]:
                (staging / final.name).replace(final)
    except BaseException:
        _undo_placing(staging, new)
        raise
    return [final for final, there in new.items() if there]


def _undo_placing(staging: Path, finals: Mapping[Path, bool], is_whole: bool = False) -> None:
    """Restore the replaced files and remove the new ones.

    If all new files are in place, they are kept, unless they belong to a larger set that failed
    (`is_whole`). finals: final path -> whether it has a new file.
    """
    if not (is_whole or (staging / next(iter(finals)).name).exists()):
        return
    for final, new in reversed(finals.items()):
        with suppress(OSError):
            if os.path.lexists(staging / EARLIER / final.name):
                (staging / EARLIER / final.name).replace(final)
            elif new and not (staging / final.name).exists():
                final.unlink()


def is_one_of(path: Path, others: Iterable[str | Path]) -> bool:
    """Return True if a path leads to one of these files, also through another name or a link."""
    return path.exists() and any(Path(other).exists() and path.samefile(other) for other in others)


def check_not_read(outputs: Iterable[Path], inputs: Iterable[str | Path]) -> None:
    """Raise Nsys2prvError if a file to be written or removed is an input, also under another name
    or through a link.
    """
    there = {identity: path for path in outputs if (identity := _identify_file(path)) is not None}
    for source in inputs if there else ():
        if (path := there.get(_identify_file(source))) is not None:
            raise UsageError(
                f"{path}: would overwrite {source}, which is an input; give another output"
            )
    for path in there.values():
        # A table in a folder of tables, which is read as one export.
        if path.suffix in TABLE_ENDINGS and _identify_file(path.parent) in map(
            _identify_file, inputs
        ):
            raise UsageError(
                f"{path}: would overwrite a table of {path.parent}, which is an input; give another output"
            )


def _identify_file(path: str | Path) -> tuple[int, int] | None:
    """Return a key that is equal for all paths of one file; None if there is no file."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


def check_folder(folder: Path) -> None:
    """Raise Nsys2prvError if files cannot be written to this folder."""
    if not folder.is_dir():
        if folder.exists():
            raise Nsys2prvError(f"{folder}: this is not a folder; give a folder")
        raise Nsys2prvError(f"{folder}: no such folder; create it or give another one")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise Nsys2prvError(f"{folder}: no permission to write there; give another folder")


def write_complete_files(texts: Mapping[Path, str]) -> None:
    """Write files (path -> text) and create their folders, so that files appear only when complete,
    all or none. Devices and pipes are written first. Raise Nsys2prvError, in one line.
    """
    special = [path for path in texts if path.exists() and not path.is_file()]
    plain = [path for path in texts if path not in special]
    for path in special:
        with name_damaged_file(path):
            note_written(path)
            path.write_text(texts[path], encoding="utf-8")
    folders = [*dict.fromkeys(folder for path in plain for folder in _list_missing(path.parent))]
    with _remove_on_error(folders), ExitStack() as stack:
        for folder in folders:
            with name_damaged_file(folder):
                folder.mkdir()
        staging: dict[Path, list[Path]] = {}
        for parent in dict.fromkeys(path.parent for path in plain):
            finals = [path for path in plain if path.parent == parent]
            with name_damaged_file(finals[0]):
                new = stack.enter_context(make_temporary_folder(parent))
                staging[new] = finals
                for path in finals:
                    (new / path.name).write_text(texts[path], encoding="utf-8", newline="\n")
        placed: list[Path] = []
        try:
            for new, finals in staging.items():
                with name_damaged_file(finals[0]):
                    _place(new, finals)
                placed.append(new)
        except BaseException:
            for new in reversed(placed):
                _undo_placing(new, dict.fromkeys(staging[new], True), is_whole=True)
            raise
    note_written(*plain)


def _list_missing(folder: Path) -> list[Path]:
    """Return the folders on this path that do not exist, the outermost first."""
    return [one for one in (*reversed(folder.parents), folder) if not one.exists()]


@contextmanager
def _remove_on_error(folders: Sequence[Path]) -> Iterator[None]:
    """Remove these new folders if a `with` block fails."""
    try:
        yield
    except BaseException:
        for folder in reversed(folders):
            with suppress(OSError):
                folder.rmdir()
        raise


def remove_leftovers(parent: Path) -> None:
    """Remove files that killed runs left in a folder, and restore the files that they were
    replacing.
    """
    with suppress(OSError):
        for entry in os.scandir(parent):
            folder = Path(entry.path)
            ours = _OURS.fullmatch(entry.name)
            if ours and entry.is_dir(follow_symlinks=False):
                # Whether a process of another machine has ended is not known.
                find_end = _is_dead if ours[1] == _digest_host() else _is_abandoned
                with suppress(OSError, ValueError):
                    if folder.lstat().st_uid == os.geteuid() and find_end(folder):
                        file = folder / NAMES
                        names = json.loads(file.read_text()) if file.exists() else {}
                        if names and all(Path(name).name == name for name in names):
                            finals = {parent / name: bool(new) for name, new in names.items()}
                            _undo_placing(folder, finals)
                        shutil.rmtree(folder, ignore_errors=True)


def _is_dead(folder: Path) -> bool:
    """Return True if the process that locked a folder is known to have ended."""
    try:
        with (folder / LOCK).open("r+") as lock:
            return _try_lock(lock) is True
    except FileNotFoundError:
        return time.time() - folder.stat().st_mtime > UNLOCKED_SECONDS


def _is_abandoned(folder: Path) -> bool:
    """Return True if nothing in a folder has changed for ABANDONED_SECONDS."""
    changed = [folder, *folder.rglob("*")]
    return time.time() - max(one.lstat().st_mtime for one in changed) > ABANDONED_SECONDS


def _try_lock(file: BinaryIO) -> bool | None:
    """Lock a file and return True. Return False if another process has locked it, None if locks are
    not supported.
    """
    if fcntl is None:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in (errno.EAGAIN, errno.EACCES) else None
    return True


def overwrite(path: Path, offset: int, data: memoryview) -> None:
    """Overwrite bytes of a file from an offset. Workers on other hosts may overwrite other parts at
    the same time.

    The part is locked meanwhile: without locks, an NFS client writes whole pages from its cache, and
    with them old values of neighboring parts.
    """
    with path.open("r+b", buffering=0) as file:
        if fcntl is not None:
            # File systems without locks refuse.
            with suppress(OSError):
                fcntl.lockf(file, fcntl.LOCK_EX, len(data), offset)
        file.seek(offset)
        while len(data):
            data = data[file.write(data) :]


def _digest_host() -> str:
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


@contextmanager
def create_temporary_file(path: Path) -> Iterator[BinaryIO]:
    """Open a new file in a temporary folder for writing, for a `with` block. Raise Nsys2prvError,
    in one line, if it cannot be written.
    """
    try:
        with path.open("wb") as file:
            yield file
    except OSError as error:
        # numpy does not report why it cannot write an array completely.
        reason = (error.strerror or os.strerror(errno.ENOSPC)).lower()
        place = str(path).partition(PREFIX)[0]
        raise Nsys2prvError(f"{place}: {reason}; give another folder with --tmp DIR") from error


def describe_write_error(error: OSError, target: Path, folders: Sequence[Path]) -> Nsys2prvError:
    """Return the error for users for an OSError while `target` was made from temporary files in
    these folders.
    """
    names = [str(name) for name in (error.filename, error.filename2) if name]
    for folder in folders:
        if not folder.is_dir():
            return Nsys2prvError(
                f"{folder}: the folder or its file system was removed while {target.name} was written"
            )
    ours = {folder: str(folder / PREFIX) for folder in folders}
    named_folders = [
        folder for folder in folders if any(name.startswith(ours[folder]) for name in names)
    ]
    # polars puts the system's error number only into its text.
    named = re.search(r"\(os error (\d+)\)", str(error)) if error.errno is None else None
    if (int(named[1]) if named else error.errno) in FULL:
        full = named_folders[0] if named_folders else min(folders, key=_find_free_space)
        if full != target.parent:
            place = f"{full}; free some, or give another folder with --tmp DIR"
        else:
            place = "its folder; free some, or give another output"
            place += "" if len(folders) > 1 else " or a folder for temporary files, --tmp DIR"
        return Nsys2prvError(f"{target}: not written, no space left in {place}")
    outside = [name for name in names if not name.startswith(tuple(ours.values()))]
    place = outside[-1] if outside else target
    suffix = " (of a temporary file)" if named_folders and not outside else ""
    return Nsys2prvError(f"{place}: {error.strerror or error}{suffix}")


def _find_free_space(folder: Path) -> int:
    with suppress(OSError):
        return shutil.disk_usage(folder).free
    return 1 << 62


#: A number longer than any in our files.
_LONG_NUMBER = re.compile(r"[-+]?(?:0[xob])?[0-9a-fA-F_:]{100,}")
#: Levels of nesting that YAML texts may have.
DEEPEST_NESTING = 50


def read_data_text(package: str, name: str) -> str:
    """Return the text of a file that comes with the package. package: the package in whose folder
    it is. name: of the file.
    """
    return files(package).joinpath(name).read_text(encoding="utf-8")


def read_data_texts(package: str, suffix: str) -> dict[str, str]:
    """Return name -> text for all files with this suffix in a package's folder, sorted by name."""
    names = sorted(file.name for file in files(package).iterdir() if file.name.endswith(suffix))
    return {name: read_data_text(package, name) for name in names}


def load_templates(package: str, **settings: Any) -> Environment:
    """Return the jinja2 templates in a package's folder. settings: further settings of jinja2."""
    from nsys2prv._util.templates import make_environment

    settings = {"trim_blocks": True, "lstrip_blocks": True, **settings}
    return make_environment(package, partial(read_data_text, package), **settings)


def load_shipped_file(package: str, name: str) -> Any:
    """Return the data in a YAML file that comes with the package. package: the package in whose
    folder it is. name: of the file.
    """
    return load_shipped(read_data_text(package, name))


def load_shipped(text: str) -> Any:
    """Return the data in a YAML file of the package, given its text.

    ``tools/make_package_data.py`` parses these files when the package is built. A file that has
    changed since is parsed here.
    """
    try:
        from nsys2prv._util.shipped_data import PARSED
    except ImportError:
        return parse_yaml(text)
    make = PARSED.get(hashlib.sha256(text.encode()).hexdigest())
    return parse_yaml(text) if make is None else make()


def parse_yaml(text: str) -> Any:
    """Parse YAML text. Raise yaml.YAMLError if it is invalid or nested too deeply.

    libyaml, if PyYAML has it, is several times as fast, but deep nesting would overflow its stack.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    depth = 0
    for event in yaml.parse(text, Loader=loader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST_NESTING:
            raise yaml.YAMLError(f"nested more than {DEEPEST_NESTING} levels deep")
        if isinstance(event, yaml.ScalarEvent) and _LONG_NUMBER.fullmatch(event.value):
            raise yaml.YAMLError(f"a number of {len(event.value)} digits")
    try:
        return yaml.load(text, Loader=loader)
    except ValueError as error:  # of a date
        raise yaml.YAMLError(str(error)) from error


def read_rule_file(path: Path, what: str) -> str:
    """Return the text of a user's file. what: kind of rules, for error messages."""
    try:
        with name_damaged_file(f"--{what.lower()}-rules {path}"):
            return read_given(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise Nsys2prvError(f"{path}: {what} rules must be UTF-8 text") from error


def parse_rule_file(text: str, source: str, what: str, more: Sequence[str] = ()) -> dict[str, Any]:
    """Parse a user's rule file. Return its data: a list under `rules`, and optionally the keys in
    `more`. source: name of the file in errors. what: kind of rules, for errors.
    """
    import yaml

    try:
        data = parse_yaml(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark is not None else ""
        problem = (
            getattr(error, "problem", None) or str(error).partition("\n")[0] or "nested too deeply"
        )
        raise Nsys2prvError(f"{source}: not YAML{where}: {problem}") from error
    if (
        not isinstance(data, dict)
        or set(data) - {"rules", *more}
        or not isinstance(data.get("rules"), list)
    ):
        beside = f" (beside it: {', '.join(more)})" if more else ""
        raise Nsys2prvError(f"{source}: {what} rules are a list under the one key `rules`{beside}")
    return data


def check_rule_keys(spec: Any, keys: Sequence[str], where: str) -> None:
    """Raise Nsys2prvError unless a rule is a dictionary with known keys only. where: place of the
    rule, for the error.
    """
    if not isinstance(spec, dict):
        raise Nsys2prvError(f"{where}: a rule has keys {', '.join(keys)}")
    for key in spec:
        if key not in keys:
            raise Nsys2prvError(
                f"{where}: unknown key {str(key)[:40]!r}; a rule has {', '.join(keys)}"
            )


_hiding, _hiders, _standard = Lock(), 0, -1


@contextmanager
def hide_stderr() -> Iterator[None]:
    """Hide the output of libraries on standard error while any thread is inside a `with` block.
    (polars prints before it raises.)
    """
    global _hiders, _standard
    with _hiding:
        _hiders += 1
        if _hiders == 1:
            _standard = os.dup(2)
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        with _hiding:
            _hiders -= 1
            if not _hiders:
                os.dup2(_standard, 2)
                os.close(_standard)
