"""Classify kernels by name: class, tensor cores, layout and tile of a GEMM; NCCL's kernels and
their operations.

The rules of classes are data (``kernel_rules.yaml``, and what users put before it); this module
reads, checks and applies them.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from pathlib import Path
from timeit import repeat
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from nsys2prv._util.errors import Nsys2prvError
from nsys2prv._util.files import (
    check_rule_keys,
    load_shipped_file,
    parse_rule_file,
    read_rule_file,
)
from nsys2prv.events.call_indexes import OPERATIONS
from nsys2prv.events.catalogue import load_catalogue, map_labels

SHIPPED = "kernel_rules.yaml"
#: Characters that are looked at, of a whole name and of the kernel's own, so that no name is slow.
LONGEST_NAME, LONGEST_OWN_NAME = 2048, 512
#: Names whose classes a process remembers.
REMEMBERED = 1 << 14
_KEYS = ("class", "name", "full", "tensor_cores", "shape")
#: YAML's booleans, as rules write them.
_BOOLEANS = {True: "yes", False: "no"}
_GROUPS = ("layout", "m", "n", "k")
_UNNAMED = re.compile(r"(?:<unnamed>|\(anonymous namespace\))::")
_RETURN_TYPE = re.compile(r"\A(?:void\s+|(?:typename\s+)?std::enable_if<.{0,500}?>::type\s+)+")
#: Texts that users' patterns are tried on.
PROBES = ("a", "0", "a_", "a0_", "a::")
#: The same within a group that is repeated without limit.
_NESTED_REPEAT = re.compile(
    r"\((?:[^()\\\[]|\\.|\[\^?\]?[^\]]*\])*(?:[*+]|\{\d*,\})[^()]*\)(?:[*+]|\{\d*,\})"
)
_NCCL_KERNEL = re.compile(
    load_shipped_file("nsys2prv.events.catalogue", SHIPPED)["nccl_kernels"], re.VERBOSE
)
_NCCL_COLLECTIVE = re.compile(
    r"(AllReduce|AllGather|ReduceScatter|SendRecv|AlltoAll|Broadcast|Reduce|Gather|Scatter)"
)


class ClassRule(Struct, frozen=True):
    """A rule that has been checked. Patterns are "" for none."""

    #: Value of the set kernel_class.
    kind: int
    #: Pattern of the function's name.
    name: str = ""
    #: Pattern of the demangled name.
    full: str = ""
    #: Value of the set tensor_cores.
    tensor_cores: int = 0
    #: Pattern with groups for layout and tile.
    shape: str = ""


class KernelClass(NamedTuple):
    """Properties of a kernel that its name gives."""

    #: Value of the set kernel_class.
    kind: int
    #: Value of the set tensor_cores.
    tensor_cores: int
    #: Layout and tile of a GEMM ("nn 128x128x64"), if its name states them.
    shape: str = ""


class Classifier:
    """Applies rules in their order; remembers the names it has seen."""

    def __init__(self, rules: Iterable[ClassRule]) -> None:
        self._rules = tuple(rules)
        self._gemm = map_labels("kernel_class")["gemm"]
        self._unknown = KernelClass(
            map_labels("kernel_class")["other"], map_labels("tensor_cores")["unknown"]
        )
        #: Returns the class of a kernel by its demangled name, or by any other name it has.
        self.classify = lru_cache(REMEMBERED)(self._classify)

    def classify_many(self, names: Sequence[str]) -> tuple[np.ndarray, np.ndarray, list[str]]:
        """Return the classes of many kernels in columns: kinds, tensor cores, shapes."""
        classes = [self.classify(name) for name in names]
        numbers = np.array([one[:2] for one in classes], np.int64).reshape(-1, 2)
        return numbers[:, 0], numbers[:, 1], [one.shape for one in classes]

    def _classify(self, name: str) -> KernelClass:
        full, own = normalize_name(name[:LONGEST_NAME])
        for rule in self._rules:
            if _compile(rule.name).search(own) and _compile(rule.full).search(full):
                shaped = rule.shape and rule.kind == self._gemm
                match = _compile(rule.shape).search(full) if shaped else None
                found = match.groupdict() if match else {}
                tile = "x".join(filter(None, map(found.get, ("m", "n", "k"))))
                shape = " ".join(filter(None, (found.get("layout"), tile)))
                return KernelClass(rule.kind, rule.tensor_cores, shape)
        return self._unknown


def normalize_name(name: str) -> tuple[str, str]:
    """Return the lower-case texts that rules match: the demangled name without return type and
    unnamed namespaces, and the kernel's own name in it.
    """
    full = _UNNAMED.sub("", name) if "<unnamed>" in name or "(anonymous" in name else name
    full = _RETURN_TYPE.sub("", full).lower()
    return full, re.split("[<(]", full, maxsplit=1)[0][:LONGEST_OWN_NAME]


def is_nccl_kernel(name: str) -> bool:
    """True if a name, demangled, mangled or short, is one of NCCL's kernels."""
    return _NCCL_KERNEL.match(name) is not None


def find_nccl_operation(name: str) -> int:
    """Return the nccl_operation that a kernel's name tells, 0 for none (``ncclDevKernel_Generic``)."""
    match = _NCCL_COLLECTIVE.search(name)
    return OPERATIONS[match.group(1).lower()] if match else 0


@cache
def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


@lru_cache(maxsize=4)
def get_classifier(rules: tuple[ClassRule, ...]) -> Classifier:
    """Return the classifier of these rules, made once in a process."""
    return Classifier(rules)


# ---- reading rules ------------------------------------------------------------------------------------------------------------------


def load_rules(path: Path | None = None) -> tuple[ClassRule, ...]:
    """Return the rules of this file, if any, and then those that come with nsys2prv. What is wrong
    with the file is one line.
    """
    own = () if path is None else read_rules(read_rule_file(path, "kernel"), str(path))
    return own + _load_shipped_rules()


@cache
def _load_shipped_rules() -> tuple[ClassRule, ...]:
    """Return the shipped rules, not checked, which takes as long as to compile all patterns; a test
    does that.
    """
    rules = load_shipped_file("nsys2prv.events.catalogue", SHIPPED)["rules"]
    return tuple(map(_parse_rule, rules))


def read_rules(text: str, source: str) -> tuple[ClassRule, ...]:
    """Return rules from YAML text; `source` names it in errors."""
    rules = parse_rule_file(text, source, "kernel")["rules"]
    for number, spec in enumerate(rules, 1):
        _check_rule(spec, f"{source}: rule {number}")
    return tuple(map(_parse_rule, rules))


def _parse_rule(spec: dict[str, Any]) -> ClassRule:
    """Return a rule from its keys."""
    tensor = spec.get("tensor_cores", "unknown")
    return ClassRule(
        map_labels("kernel_class")[spec["class"].lower()],
        spec.get("name", ""),
        spec.get("full", ""),
        map_labels("tensor_cores")[_BOOLEANS.get(tensor, tensor).lower()],
        spec.get("shape", ""),
    )


def _check_rule(spec: Any, where: str) -> None:
    """Raise where a rule is wrong; `where` begins the message."""
    check_rule_keys(spec, _KEYS, where)
    patterns = {
        key: _check_pattern(spec[key], f"{where}: {key}")
        for key in ("name", "full", "shape")
        if key in spec
    }
    if not ("name" in patterns or "full" in patterns):
        raise Nsys2prvError(f"{where}: lacks the key name or full")
    kind = spec.get("class")
    if not isinstance(kind, str) or kind.lower() not in map_labels("kernel_class"):
        labels = ", ".join(label for _, label in load_catalogue().value_sets["kernel_class"].labels)
        raise Nsys2prvError(f"{where}: class {str(kind)[:40]!r} is none of {labels}")
    tensor = spec.get("tensor_cores", "unknown")
    tensor = _BOOLEANS[tensor] if isinstance(tensor, bool) else tensor
    if not isinstance(tensor, str) or tensor.lower() not in map_labels("tensor_cores"):
        raise Nsys2prvError(
            f"{where}: tensor_cores {str(tensor)[:40]!r} is none of yes, no, unknown"
        )
    shape = patterns.get("shape", "")
    if shape and not set(re.compile(shape).groupindex) & set(_GROUPS):
        raise Nsys2prvError(
            f"{where}: shape needs a group named {', '.join(_GROUPS[:-1])} or {_GROUPS[-1]}, such as (?P<m>[0-9]+)"
        )


def _takes_for_ever(pattern: str) -> bool:
    """True if searching a few letters takes a thousand times longer than it should."""
    search = _compile(pattern).search
    return any(
        min(repeat(lambda text=(part * 20)[:20] + "\0": search(text), number=1, repeat=3)) > 0.01
        for part in PROBES
    )


def _check_pattern(pattern: Any, where: str) -> str:
    if not isinstance(pattern, str) or not pattern:
        raise Nsys2prvError(
            f"{where}: {str(pattern)[:40]!r} is not a regular expression; put it in quotes"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _compile(pattern)
        if _NESTED_REPEAT.search(pattern) and _takes_for_ever(pattern):
            raise re.error("some names would take for ever, as it repeats what repeats")
    except (re.error, OverflowError, RecursionError) as error:
        raise Nsys2prvError(
            f"{where}: {pattern[:60]!r} is not a regular expression: {str(error).partition(chr(10))[0]}"
        ) from error
    return pattern
