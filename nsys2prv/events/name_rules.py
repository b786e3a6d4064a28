"""Apply rules to names.

For kernels, rules find the class, Tensor Core use, and layout and tile of a GEMM. For NVTX ranges
and marks, they change or drop names. The rules are data (``kernel_rules.yaml``,
``nvtx_rules.yaml``, and rules of the user, which come first). This module reads, checks and applies
them. NVTX patterns use Rust's regex syntax, as polars does, so that no name makes a pattern slow.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from itertools import chain, count
from pathlib import Path
from timeit import repeat
from typing import Any, NamedTuple, TypeVar

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util import files
from nsys2prv._util.budget import REMEMBERED_NAMES, REMEMBERED_RESULTS, REMEMBERED_TEXTS
from nsys2prv._util.columns import ABSENT, factorize
from nsys2prv._util.errors import Nsys2prvError
from nsys2prv.events.catalogue import load_catalogue, map_labels
from nsys2prv.export.source import FEW_TEXTS, DistinctTexts, Texts, decode_texts, number_distinct

T = TypeVar("T")
#: Number of characters that are searched: of a whole name, and of the kernel's own name, so that no
#: name is slow.
LONGEST_NAME, LONGEST_OWN_NAME = 2048, 512
_CLASS_KEYS = ("class", "name", "full", "tensor_cores", "shape")
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
#: In place of a file: no rules at all.
NONE = "none"
#: The group of a pattern that is kept as a number.
NUMBER = "number"
#: Name of the default domain in patterns; its own is empty.
DEFAULT_DOMAIN = "default domain"
_NVTX_KEYS = ("match", "replace", "drop", "domain")
_BUILTIN = "builtin"
#: A group in a replacement: $1, $name, ${name}; $$ is a dollar sign.
_REFERENCE = re.compile(r"\$\$|\$\{(?P<braced>[^}]*)\}|\$(?P<bare>[0-9A-Za-z_]+)")
_WHOLE = re.compile(r"[0-9]+")
#: Numbers in a template, as in native/texts.h: not after a letter, digit or character beyond ASCII.
#: (A class of all these would compile ten times as slowly.)
_NUMBERS = re.compile(r"(?<![^\x00-/:-@\[-`{-\x7f])[0-9]{1,18}(?![0-9])")
#: Stand-in for the first number of a template; as long as numbers may be.
_FIRST = 10**17
#: Replaces the place of a number: each text of the template must be examined.
_EACH_APART = -2


def _load_shipped(what: str) -> dict[str, Any]:
    return files.load_shipped_file("nsys2prv.events.catalogue", f"{what}_rules.yaml")


class ClassRule(Struct, frozen=True):
    """A checked rule that gives kernels a class by patterns in their names. Missing patterns are
    "".
    """

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
    """The class of a kernel and other properties that its name shows."""

    #: Value of the set kernel_class.
    kind: int
    #: Value of the set tensor_cores.
    tensor_cores: int
    #: Layout and tile of a GEMM ("nn 128x128x64"), if its name states them.
    shape: str = ""


class Classifier:
    """Applies class rules to the names of kernels in order, and caches the results."""

    def __init__(self, rules: Iterable[ClassRule]) -> None:
        #: Words: each text that a shipped pattern matches contains one of them. They are found when
        #: the package is built.
        known = _load_shipped("kernel").get("words", {})
        self._rules = [(rule, known.get(rule.name or rule.full, ())) for rule in rules]
        self._words = list(chain(("<",), *known.values()))  # polars asks for one at least
        kinds, tensor_cores = map_labels("kernel_class"), map_labels("tensor_cores")
        self._gemm, self._unknown = (
            kinds["gemm"],
            KernelClass(kinds["other"], tensor_cores["unknown"]),
        )
        self._classes: dict[str, KernelClass] = {}
        self._select = lru_cache(REMEMBERED_NAMES)(self._select_rules)

    def classify(self, names: Sequence[str]) -> list[KernelClass]:
        """Return the class of each kernel by its name. names: demangled, or in any other form."""
        if len(self._classes) > REMEMBERED_NAMES:
            self._classes.clear()
        if new := list({name for name in names if name not in self._classes}):
            texts = [normalize_name(name[:LONGEST_NAME]) for name in new]
            fulls = pl.Series([full.encode("utf-8", "replace") for full, _ in texts]).cast(
                pl.String
            )
            words = fulls.str.extract_many(self._words, overlapping=True).to_list()
            self._classes.update(zip(new, map(self._apply, texts, words), strict=True))
        return [self._classes[name] for name in names]

    def _apply(self, texts: tuple[str, str], words: list[str]) -> KernelClass:
        """Return the class of a name. texts: as from :func:`normalize_name`. words: the words of
        rules that the texts contain.
        """
        full, own = texts
        for rule in self._select(frozenset(words)):
            if _compile(rule.name).search(own) and _compile(rule.full).search(full):
                shaped = rule.shape and rule.kind == self._gemm
                match = _compile(rule.shape).search(full) if shaped else None
                found = match.groupdict() if match else {}
                tile = "x".join(filter(None, map(found.get, ("m", "n", "k"))))
                shape = " ".join(filter(None, (found.get("layout"), tile)))
                return KernelClass(rule.kind, rule.tensor_cores, shape)
        return self._unknown

    def _select_rules(self, found: frozenset[str]) -> list[ClassRule]:
        """Return the rules that may match a name with these words."""
        return [rule for rule, words in self._rules if not words or found.intersection(words)]


def normalize_name(name: str) -> tuple[str, str]:
    """Return the two lower-case texts that rules search: the demangled name without return type and
    unnamed namespaces, and the kernel's own name.
    """
    full = _UNNAMED.sub("", name) if "<unnamed>" in name or "(anonymous" in name else name
    full = _RETURN_TYPE.sub("", full).lower()
    return full, re.split("[<(]", full, maxsplit=1)[0][:LONGEST_OWN_NAME]


@cache
def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


#: Returns the classifier of a tuple of rules, made once in a process.
get_classifier = lru_cache(maxsize=4)(Classifier)


# ---- names of NVTX ranges ------------------------------------------------------------------------


class NvtxRule(Struct, frozen=True):
    """A checked rule that renames or drops NVTX ranges. Patterns are searched in names."""

    #: Pattern of the range's name.
    match: str
    #: Replacement of every match; None to drop names that match.
    replace: str | None
    #: Pattern of the domain's name, "" for any domain.
    domain: str = ""
    #: Whether the pattern has a group `number`.
    keeps: bool = False
    #: Whether numbers of any digits match alike (:func:`rename_by_template`).
    any_digits: bool = False


def may_drop(rules: Sequence[NvtxRule]) -> bool:
    """Return True if a rule drops names."""
    return any(rule.replace is None for rule in rules)


#: Result of the rules for a text: `name` ("" if nothing remains); whether it is kept (`wanted`);
#: the kept number, or ABSENT.
RENAMED = {"name": pl.String, "wanted": pl.Boolean, "number": pl.Int64}


@lru_cache(256)
def select_rules(
    rules: tuple[NvtxRule, ...], domains: tuple[str, ...]
) -> list[tuple[NvtxRule, ...]]:
    """Return for each of these NVTX domains the rules that apply to its names ("" for the default
    domain).
    """
    names = pl.Series(domains, dtype=pl.String).replace("", DEFAULT_DOMAIN)
    others = {
        rule: names.filter(~names.str.contains(rule.domain)).to_list()
        for rule in rules
        if rule.domain
    }
    return [tuple(rule for rule in rules if name not in others.get(rule, ())) for name in names]


def rename_ranges(texts: pl.Series, rules: Sequence[NvtxRule]) -> pl.DataFrame:
    """Rename NVTX ranges by rules. Return a frame with the columns RENAMED, one row per name.

    Each rule gets the result of the rules before it. Different names often become equal, and each
    rule is applied only once per distinct name. A rule that keeps a number skips names that already
    have one.
    """
    codes, wanted = np.arange(len(texts)), np.ones(len(texts), bool)
    numbers = np.full(len(texts), ABSENT)
    for rule in rules:
        matching = texts.str.contains(rule.match).to_numpy()[codes] & wanted
        if rule.keeps:  # a second number would be lost
            matching &= numbers == ABSENT
        rows = np.flatnonzero(matching)
        if not len(rows):
            continue
        if rule.replace is None:
            wanted[rows] = False
            continue
        changing, of_row = factorize(codes[rows])
        chosen = texts.gather(changing)
        if rule.keeps:
            kept = chosen.str.extract_groups(rule.match).struct.field(NUMBER)
            kept = kept.cast(pl.Int64, strict=False).fill_null(ABSENT)
            numbers[rows] = kept.to_numpy()[of_row]
        renamed, of_changed = number_distinct(chosen.str.replace_all(rule.match, rule.replace))
        codes[rows] = len(texts) + of_changed[of_row]
        texts = pl.concat([texts, renamed.str.strip_chars()])
    return pl.DataFrame({"name": texts.gather(codes), "wanted": wanted, "number": numbers})


def rename_by_template(
    texts: DistinctTexts, rules: Sequence[NvtxRule]
) -> tuple[pl.DataFrame, np.ndarray, np.ndarray] | None:
    """Rename as :func:`rename_ranges` does, but only once for texts that differ in numbers alone,
    such as "aten::mm, seq = 7" and "aten::mm, seq = 8".

    Return three parts: the results (without numbers), the row of each text in them, and the number
    of each text. Return None if this saves too little, or if a rule may treat such texts
    differently.
    """
    if len(texts) <= FEW_TEXTS or not rules or not all(rule.any_digits for rule in rules):
        return None
    templates = texts.templates
    if templates is None:
        return None
    firsts = list(map(_renumber, decode_texts(templates.firsts).to_list()))
    of_firsts = rename_texts(firsts, rules)
    outcomes = zip(firsts, of_firsts["name"], of_firsts["number"], strict=True)
    places = np.array([_find_kept_number(*one) for one in outcomes], np.int64)[templates.codes]
    codes, numbers = templates.codes, texts.read_numbers(np.maximum(places, ABSENT))
    alone = np.flatnonzero(places == _EACH_APART)
    if not len(alone):
        return of_firsts, codes, numbers
    distinct, of_alone = number_distinct(texts.take(alone))
    others = rename_texts(DistinctTexts(distinct).decode(), rules)
    codes = codes.copy()
    codes[alone] = of_firsts.height + of_alone
    numbers[alone] = others["number"].to_numpy()[of_alone]
    return pl.concat([of_firsts, others]), codes, numbers


def rename_texts(texts: Texts, rules: Sequence[NvtxRule]) -> pl.DataFrame:
    """Rename as :func:`rename_ranges` does. Results for few texts are cached for later parts of
    reports, because compiling the patterns takes longer than renaming the texts of most parts.
    """
    if not isinstance(texts, list):
        return rename_ranges(texts, rules)
    rename = _rename_few if len(texts) <= FEW_TEXTS else _rename_known
    return rename(tuple(texts), tuple(rules))


def _rename_known(texts: tuple[str, ...], rules: tuple[NvtxRule, ...]) -> pl.DataFrame:
    """Return :func:`rename_texts`, with the results that are known."""
    known = _get_known_texts(rules)
    if new := list(dict.fromkeys(text for text in texts if text not in known)):
        renamed = rename_ranges(pl.Series(new, dtype=pl.String), rules)
        known.update(zip(new, renamed.iter_rows(), strict=True))
    outcomes = [known[text] for text in texts]
    if len(known) > REMEMBERED_TEXTS:
        known.clear()
    return pl.DataFrame(outcomes, schema=RENAMED, orient="row")


#: The next rank often has the same texts.
_rename_few = lru_cache(REMEMBERED_RESULTS)(_rename_known)


@cache
def _get_known_texts(rules: tuple[NvtxRule, ...]) -> dict[str, tuple[str, bool, int]]:
    """Return the cache of renamed texts for these rules."""
    return {}


def _renumber(text: str) -> str:
    """Replace the numbers in a text by _FIRST, _FIRST + 1 and so on, so that all texts of a
    template become equal.
    """
    numbers = count(_FIRST)
    return _NUMBERS.sub(lambda _: str(next(numbers)), text)


def _find_kept_number(text: str, name: str, number: int) -> int:
    """Return the index of the number in a template that the rules keep (0 is the first), or ABSENT.

    name, number: result of the rules for a renumbered text. Return _EACH_APART if texts of the
    template may get different names, because the name is not the start of the text, or contains a
    number.
    """
    if not text.startswith(name) or _NUMBERS.search(text, 0, len(name)):
        return _EACH_APART
    if number == ABSENT:
        return ABSENT
    return number - _FIRST if _FIRST <= number < _FIRST + len(text) else _EACH_APART


# ---- ranges by their names --------------------------------------------------------------------------------------------------------

#: Text before and after a number that the shipped rules remove from a name.
NUMBERED = (
    *((before, "") for before in (" ", "#", " #", ":", ": ", "=", " = ", "-", "_", ", seq = ")),
    *((before + bracket[0], bracket[1]) for before in ("", " ") for bracket in ("[]", "()")),
)


class NamePattern(Struct, frozen=True):
    """NVTX range names that match a glob pattern: names in the trace, or names in reports, from
    which the rules removed a number.
    """

    #: The pattern as a regular expression.
    expression: str
    #: Names of the trace that match: value, label.
    names: pl.DataFrame
    #: Names of the trace that may match with a number after them: value, label.
    numbered: pl.DataFrame

    @classmethod
    def from_glob(cls, pattern: str, labels: pl.DataFrame) -> NamePattern:
        """Return the names that match a glob pattern. labels: value and label of all NVTX names."""
        labels = labels.select(pl.col("value").cast(pl.Int64), "label")
        expression, begin = translate_glob(pattern), re.match(r"[^*?[]*", pattern)[0]
        label, start = pl.col("label"), pl.lit(begin)
        matching = label.str.contains(expression)
        alike = label.str.starts_with(start) | start.str.starts_with(label)
        return cls(expression, labels.filter(matching), labels.filter(~matching & alike))

    def find_matches(self, values: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Return a mask of the ranges that match. values: event values of the names. numbers:
        numbers of the ranges; 0 without a number, because a trace has no number 0.
        """
        found = np.isin(values, self.names["value"].to_numpy())
        if not self.numbered.height:
            return found
        ranges = pl.DataFrame({"value": values, "number": np.maximum(numbers, 0)}).cast(pl.Int64)
        pairs = ranges.unique().join(self.numbered, on="value", how="inner")
        texts = (
            pl.concat_str("label", pl.lit(before), "number", pl.lit(behind))
            for before, behind in NUMBERED
        )
        matching = pl.any_horizontal(text.str.contains(self.expression) for text in texts)
        pairs = pairs.filter(matching).select("value", "number", hit=True)
        hits = ranges.join(pairs, on=["value", "number"], how="left", maintain_order="left")["hit"]
        return found | hits.fill_null(False).to_numpy()


def translate_glob(pattern: str) -> str:
    """Return a glob pattern as a regular expression for Rust's regex."""

    def translate(match: re.Match[str]) -> str:
        text, negated, members = match[0], match[1], match[2]
        if members is None:
            return {"*": ".*", "?": "."}.get(text, re.escape(text))
        pieces = (
            f"{re.escape(first)}-{re.escape(last)}" if first else re.escape(single)
            for first, last, single in re.findall("(?s)(.)-(.)|(.)", members)
            if first <= last
        )
        # Nothing is in an empty range such as [z-a].
        allowed = "".join(pieces) or r"^\s\S"
        return f"[^{allowed}]" if negated else f"[{allowed}]"

    translated = re.sub(r"(?s)\[(!?)(\]?[^\]]*)\]|.", translate, pattern)
    return f"^(?s:{translated})$"


# ---- reading rules ---------------------------------------------------------------------------------


def load_class_rules(path: Path | None = None) -> tuple[ClassRule, ...]:
    """Return the class rules in this file, if any, followed by the built-in ones. Raise
    Nsys2prvError, in one line, for mistakes in the file.
    """
    own = () if path is None else read_class_rules(files.read_rule_file(path, "kernel"), str(path))
    return own + _load_shipped_class_rules()


@cache
def _load_shipped_class_rules() -> tuple[ClassRule, ...]:
    """Return the built-in rules without checking them: the check takes as long as compiling all
    patterns, and a test makes it.
    """
    rules = _load_shipped("kernel")["rules"]
    return tuple(map(_parse_class_rule, rules))


def read_class_rules(text: str, source: str) -> tuple[ClassRule, ...]:
    """Return the class rules in a YAML text. source: name of the text in errors."""
    rules = files.parse_rule_file(text, source, "kernel")["rules"]
    for number, spec in enumerate(rules, 1):
        _check_class_rule(spec, f"{source}: rule {number}")
    return tuple(map(_parse_class_rule, rules))


def _parse_class_rule(spec: dict[str, Any]) -> ClassRule:
    """Return a rule from its keys in YAML."""
    tensor = spec.get("tensor_cores", "unknown")
    return ClassRule(
        map_labels("kernel_class")[spec["class"].lower()],
        spec.get("name", ""),
        spec.get("full", ""),
        map_labels("tensor_cores")[_BOOLEANS.get(tensor, tensor).lower()],
        spec.get("shape", ""),
    )


def _check_class_rule(spec: Any, where: str) -> None:
    """Raise Nsys2prvError if a rule is wrong. where: start of the message."""
    files.check_rule_keys(spec, _CLASS_KEYS, where)
    patterns = {
        key: _check_pattern(spec[key], f"{where}: {key}", _try_class_pattern)
        for key in ("name", "full", "shape")
        if key in spec
    }
    if not ("name" in patterns or "full" in patterns):
        raise Nsys2prvError(f"{where}: lacks the key name or full")
    kind, kinds = spec.get("class"), map_labels("kernel_class")
    labels = dict(load_catalogue().value_sets["kernel_class"].labels)
    if not isinstance(kind, str) or kind.lower() not in kinds:
        raise Nsys2prvError(
            f"{where}: class {str(kind)[:40]!r} is not one of {', '.join(labels.values())}"
        )
    tensor = spec.get("tensor_cores", "unknown")
    tensor = _BOOLEANS[tensor] if isinstance(tensor, bool) else tensor
    if not isinstance(tensor, str) or tensor.lower() not in map_labels("tensor_cores"):
        raise Nsys2prvError(
            f"{where}: tensor_cores {str(tensor)[:40]!r} is not one of yes, no, unknown"
        )
    written = load_catalogue().layouts["cuda_kernel"].by_name["tensor_cores"].only_with
    if tensor.lower() == "yes" and written and kinds[kind.lower()] not in written[1]:
        *names, last = (labels[one] for one in written[1])
        raise Nsys2prvError(
            f"{where}: tensor_cores: yes is only for {', '.join(names)} and {last}, not {kind}"
        )
    shape = patterns.get("shape", "")
    if shape and not set(re.compile(shape).groupindex) & set(_GROUPS):
        raise Nsys2prvError(
            f"{where}: shape needs a group named {', '.join(_GROUPS[:-1])} or {_GROUPS[-1]}, such as (?P<m>[0-9]+)"
        )


def _takes_for_ever(pattern: str) -> bool:
    """Return True if searching a few letters takes a thousand times longer than expected."""
    search = _compile(pattern).search
    return any(
        min(repeat(lambda text=(part * 20)[:20] + "\0": search(text), number=1, repeat=3)) > 0.01
        for part in PROBES
    )


def _check_pattern(pattern: Any, where: str, try_out: Callable[[str], T]) -> T:
    """Return the result of trying a pattern. Raise Nsys2prvError if the pattern is invalid."""
    if not isinstance(pattern, str) or not pattern:
        raise Nsys2prvError(
            f"{where}: {str(pattern)[:40]!r} is not a regular expression; put it in quotes"
        )
    try:
        return try_out(pattern)
    except (re.error, OverflowError, RecursionError, pl.exceptions.PolarsError) as error:
        reason = str(error).strip().splitlines() or ["not understood"]
        raise Nsys2prvError(
            f"{where}: {pattern[:60]!r} is not a regular expression: {reason[-1].strip()}"
        ) from error


def _try_class_pattern(pattern: str) -> str:
    """Return a pattern if Python accepts it and it is fast for every name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _compile(pattern)
    if _NESTED_REPEAT.search(pattern) and _takes_for_ever(pattern):
        raise re.error("it has nested repetitions, which take too long for some names")
    return pattern


def load_nvtx_rules(source: str | Path | None = None) -> tuple[NvtxRule, ...]:
    """Return the NVTX rules in this file, if any, followed by the built-in ones, unless the file or
    the word `none` excludes these.
    """
    if source is None or str(source) == NONE:
        return _load_shipped_nvtx_rules() if source is None else ()
    return read_nvtx_rules(files.read_rule_file(Path(source), "NVTX"), str(source))


@cache
def _load_shipped_nvtx_rules() -> tuple[NvtxRule, ...]:
    """Return the built-in rules without checking them: the check takes as long as applying them,
    and a test makes it.
    """
    rules = _load_shipped("nvtx")["rules"]
    group = f"(?<{NUMBER}>"
    return tuple(
        NvtxRule(rule["match"], rule["replace"], keeps=group in rule["match"], any_digits=True)
        for rule in rules
    )


def read_nvtx_rules(text: str, source: str) -> tuple[NvtxRule, ...]:
    """Return the NVTX rules in a YAML text. source: name of the text in errors."""
    data = files.parse_rule_file(text, source, "NVTX", (_BUILTIN,))
    builtin = data.get(_BUILTIN, True)
    if not isinstance(builtin, bool):
        raise Nsys2prvError(f"{source}: {_BUILTIN} must be yes or no, not {str(builtin)[:40]!r}")
    numbered = enumerate(data["rules"], 1)
    rules = tuple(_parse_nvtx_rule(rule, f"{source}: rule {number}") for number, rule in numbered)
    return rules + _load_shipped_nvtx_rules() if builtin else rules


def _parse_nvtx_rule(spec: Any, where: str) -> NvtxRule:
    """Return a rule from its keys in YAML. where: start of error messages."""
    files.check_rule_keys(spec, _NVTX_KEYS, where)
    if "match" not in spec:
        raise Nsys2prvError(f"{where}: lacks the key match")
    groups = _check_pattern(spec["match"], f"{where}: match", _list_groups)
    if "domain" in spec:
        _check_pattern(spec["domain"], f"{where}: domain", _list_groups)
    drop = spec.get("drop", False)
    if not isinstance(drop, bool):
        raise Nsys2prvError(f"{where}: drop must be yes or no, not {str(drop)[:40]!r}")
    if drop == ("replace" in spec):
        raise Nsys2prvError(f"{where}: needs either `replace` or `drop: yes`")
    replacement = None if drop else _check_replacement(spec["replace"], groups, f"{where}: replace")
    keeps = not drop and NUMBER in groups
    return NvtxRule(spec["match"], replacement, spec.get("domain", ""), keeps)


def _list_groups(pattern: str) -> set[str]:
    """Return the groups in a Rust regex pattern, by number and by name."""
    named = pl.Series([""]).str.extract_groups(pattern).struct.fields
    pl.Series([""]).str.contains(pattern)
    return {"0", *named, *(str(number) for number in range(1, len(named) + 1))}


def _check_replacement(text: Any, groups: set[str], where: str) -> str:
    """Return a replacement text if all its groups exist in the pattern. Raise Nsys2prvError
    otherwise.
    """
    if not isinstance(text, str):
        raise Nsys2prvError(f"{where}: {str(text)[:40]!r} is not text; put it in quotes")
    for match in _REFERENCE.finditer(text):
        group = match["braced"] if match["braced"] is not None else match["bare"]
        if group is not None and group not in groups:
            digits = _WHOLE.match(group)
            hint = f"; write ${{{digits[0]}}} before further letters" if digits else ""
            raise Nsys2prvError(f"{where}: {match[0]!r} is not a group of the pattern{hint}")
    return text
