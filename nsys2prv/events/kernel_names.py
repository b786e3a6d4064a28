"""Make readable labels of CUDA kernels by parsing demangled C++ names into small trees.

A demangled kernel name contains too much (policies, iterators, parameter lists, casts), and its
short name too little: half of PyTorch's kernels are called ``vectorized_elementwise_kernel``. A
label consists of the kernel's own name and the template arguments that distinguish kernels::

    void at::native::vectorized_elementwise_kernel<(int)4, at::native::CUDAFunctor_add<float>,
        std::array<char *, (unsigned long)3>>(int, T2, T3)
    vectorized_elementwise_kernel<CUDAFunctor_add<float>>

``#2`` marks the second lambda of a function; ``(float)`` after it lists the types of its arguments.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import count

from msgspec import Struct

from nsys2prv._util.files import load_shipped_file

# Deeper brackets are skipped, so that no name makes the tree too deep.
MAX_DEPTH = 64


_DATA = load_shipped_file("nsys2prv.events.catalogue", "kernel_words.yaml")
#: Sets of words in the kernel names.
WORDS = {key: frozenset(words.split()) for key, words in _DATA.items() if key != "wrappers"}
#: Wrapper -> index of the argument that replaces the whole name.
WRAPPERS = {word: place for place, words in _DATA["wrappers"].items() for word in words.split()}
_FUNDAMENTAL, _QUALIFIERS = WORDS["fundamental"], WORDS["qualifiers"]


class NamePart(Struct):
    """A step of a qualified C++ name: `text<args>(params)`, or a lambda with its number."""

    #: The name.
    text: str
    #: Of a lambda, from 1; else 0.
    ordinal: int = 0
    #: Its template arguments, None if it has none.
    args: list[Expr] | None = None
    #: Its parameter list, None if it has none.
    params: list[Expr] | None = None

    @property
    def is_operator(self) -> bool:
        """True for operators, such as `operator()`."""
        return self.text.startswith("operator") and not self.text.isidentifier()


class Expr(Struct):
    """A type, function or value: the steps of its name, and its pointer stars."""

    #: The steps of its name.
    path: list[NamePart]
    #: Number of its pointer stars.
    stars: int = 0


_ORDINAL, _OPERATOR, _NAME, _LAMBDA, _SCOPE, _OPEN, _CLOSE, _COMMA, _STAR = range(1, 10)
_TOKEN = re.compile(
    r"\([\w:]+(?: \w+)?\)(?=-?\d)"  # a cast
    r"|(?:\(instance |#)(\d+)"  # [lambda() (instance 2)] of NVIDIA's demangler, {lambda()#2} of GNU's
    r"|(operator\s*(?:\(\s*\)|\[\s*\]|[-+*/%^&|~!=<>,]{1,3}(?=\s*[(<])))"
    r"|(-?\d[\w.]*|[^\W\d][\w.$]*(?:::(?!operator\b)[^\W\d][\w.$]*)*|\$_\d+)"
    r"|'lambda(\d*)'|(::)|([<(\[{])|([>)\]}])|(,)|(\*)"  # 'lambda0' is LLVM's second lambda
)
# Brackets that a closing bracket may close; "l" is the "<" of GCC's `f()::<lambda(int)>`.
_CLOSES = {")": "(", "]": "[", "}": "{", ">": "<l"}


def parse_name(name: str, parameters: bool = False) -> Expr:
    """Parse a demangled name in one pass. Unusual text never raises an error; it gives an unusual
    tree.

    parameters: also parse the parameter list of the kernel itself.
    """
    return _NameReader().read(name, parameters)


class _NameReader:
    """Parser of one name, token by token."""

    def __init__(self) -> None:
        #: For each open bracket: it, and path, stars and arguments around it.
        self._stack: list[tuple[str, list[NamePart], int, list[Expr]]] = []
        #: Contents since the innermost bracket: arguments; for the last one, the steps of its name,
        #: its stars, and whether it has any text.
        self._args: list[Expr] = []
        self._path: list[NamePart] = []
        self._stars, self._seen = 0, False
        #: A closed (...), which is a cast if a value follows.
        self._group: Expr | None = None
        #: The last thing with a parameter list, outside all brackets.
        self._function: list[NamePart] = []
        #: Kind of the previous token, and its end.
        self._before = self._end = 0

    def read(self, name: str, parameters: bool) -> Expr:
        """Return the tree of the name."""
        skipped = 0  # brackets open that lie too deep
        for token in _TOKEN.finditer(name):
            kind = token.lastindex or 0
            if skipped or (kind == _OPEN and len(self._stack) == MAX_DEPTH):
                skipped += (kind == _OPEN) - (kind == _CLOSE)
                continue
            position, word = token.start(), token[0]
            if kind in (_NAME, _OPERATOR):
                if word in _QUALIFIERS:
                    self._before = kind
                    continue
                self._read_word(word)
            elif kind == _OPEN:
                opener = self._find_opener(word, position)
                if not opener:
                    continue
                outermost = not (parameters or self._stack) and self._path
                if opener == "(" and outermost and name.find("(", position + 1) < 0:
                    break  # the kernel's own parameters
                self._stack.append((opener, self._path, self._stars, self._args))
                self._args = []
                self._begin_argument()
            elif kind == _CLOSE:
                self._close_all(word)
            elif kind == _COMMA:
                self._finish_argument()
                self._begin_argument()
            elif kind == _STAR:
                self._stars, self._seen = self._stars + 1, True
            elif kind == _ORDINAL:
                if self._path:
                    self._path[-1].ordinal = int(token[1][:6])
            elif kind == _LAMBDA:
                self._path = [*self._path] if self._before == _SCOPE else []
                ordinal = int(token[4][:6]) + 2 if token[4] else 1
                self._path.append(NamePart("lambda", ordinal))
                self._seen = True
            self._before, self._end = kind, token.end()
        while self._stack:
            self._close()
        path = self._path
        if not path and self._group is not None:
            return self._group
        if self._function and not (path and path[-1].params is not None):
            path = self._function  # what follows it: attributes, requirements, ".cold"
        return Expr(path)

    def _read_word(self, word: str) -> None:
        path = self._path
        steps = [NamePart(step) for step in word.split("::")] if "::" in word else [NamePart(word)]
        if self._before == _SCOPE:
            path += steps
        elif (
            len(path) == 1
            and word in _FUNDAMENTAL
            and path[0].text.rpartition(" ")[2] in _FUNDAMENTAL
        ):
            path[0].text += " " + word
        else:
            if not self._stack and path and path[-1].params is not None:
                self._function = path
            self._path, self._stars = steps, 0
        if word[0] == "$":  # clang: f()::$_0
            self._path[-1] = NamePart("lambda", int(word[2:8]) + 1)
        self._group, self._seen = None, True

    def _find_opener(self, word: str, position: int) -> str:
        """Return the kind of an opening bracket: the bracket itself, "l" in `f()::<lambda(int)>`,
        "" for a comparison.
        """
        if word != "<":
            return word
        path, follows = self._path, self._before in (_NAME, _OPERATOR) and position == self._end
        if path and path[-1].args is None and follows:
            return "<"
        return "l" if not path or self._before == _SCOPE else ""

    def _begin_argument(self) -> None:
        self._path, self._stars = [], 0
        self._seen, self._group = False, None

    def _finish_argument(self) -> None:
        if self._group is not None and not self._path:
            self._args.append(self._group)
        elif self._seen:
            self._args.append(Expr(self._path, self._stars))

    def _close_all(self, word: str) -> None:
        """Close the bracket that this character closes. A parenthesis also closes all brackets that
        are open within it.
        """
        openers = _CLOSES[word]
        if word == ">":
            if self._stack and self._stack[-1][0] in openers:
                self._close()
        elif any(around[0] == openers for around in self._stack):
            while self._stack[-1][0] != openers:
                self._close()
            self._close()

    def _close(self) -> None:
        """Close the innermost bracket and attach its contents to the name before it."""
        self._finish_argument()
        content = self._args
        opener, path, self._stars, self._args = self._stack.pop()
        self._path, self._seen, self._group = path, True, None
        head = content[0].path[0] if content and content[0].path else None
        if opener == "<":
            path[-1].args = content
        elif opener == "(" and path:
            path[-1].params = content
        elif opener != "(" and head is not None and head.text == "lambda":
            head.ordinal = head.ordinal or 1
            path.append(head)
        elif not path and content:
            self._group = content[0]


_LABEL_LENGTH = 120
_SUFFIX_LENGTH = 40
#: Of labels that fit into a column of Paraver's, and of their begins.
_SHORT_LENGTH, _HEAD = 42, 26
# Important facts are at the front. Longer names are not read further, which bounds the cost.
_PARSED_LENGTH = 8192
_STRUCTURE = re.compile(r"[<(\[{:]")

_LIBRARIES, _NOISE, _NOISE_ANYWHERE, _SCALARS = (
    WORDS[key] for key in ("libraries", "noise", "noise_anywhere", "scalars")
)
_WITHOUT_NUMBERS, _SHAPES, _LAUNCHERS, _GENERIC = (
    WORDS[key] for key in ("without_numbers", "shapes", "launchers", "generic")
)
_VALUES = {"true": "1", "false": "0", "void": ""}

# ---- formatting ---------------------------------------------------------------------------------


def _format_argument(expr: Expr, depth: int) -> str:
    """Return a readable form of an argument; "" for arguments that carry no information. depth:
    levels of inner arguments to show.
    """
    path = expr.path
    if len(path) > 1 or (path and path[0].ordinal):
        path = [part for part in path if not part.is_operator]
        for at, part in enumerate(path):
            if part.ordinal:
                return _format_lambda(path[:at], path[at:], depth)
    text = _format_path(path, depth) if path else ""
    return text + "*" * expr.stars if text else ""


def _format_path(path: list[NamePart], depth: int) -> str:
    last = path[-1]
    name, args = last.text, last.args
    if len(path) == 1 and not args:
        if name[0] in "-0123456789":
            return name.rstrip("uUlL")
        return _VALUES.get(name, name)
    library = path[0].text if len(path) > 1 and path[0].text in _LIBRARIES else ""
    if name in _NOISE_ANYWHERE:
        return ""
    if library:
        if name in _NOISE or any(
            "Policy" in part.text or part.text.startswith("policy_") for part in path
        ):
            return ""
        if args and name in WRAPPERS and WRAPPERS[name] < len(args):
            return _format_argument(args[WRAPPERS[name]], depth) + "*" * (name == "device_ptr")
    if name.startswith("__nv_") and args:  # how nvcc itself writes an extended lambda
        return _format_nvcc_lambda(args, depth)
    if len(path) > 1 and (path[-2].args or name in _GENERIC):
        owner = path[-2].text
        if path[-2].args:
            owner = _format_path([path[0], path[-2]] if len(path) > 2 else path[:1], depth)
        name = f"{owner}::{name}" if owner else name
    shape = library in ("cute", "cutlass") and last.text in _SHAPES
    if not args or (depth <= 0 and not shape):
        return name
    if library:
        return _format_library_template(library, last.text, name, args, depth)
    texts = [text for arg in args if (text := _format_argument(arg, depth - 1))]
    return _append_arguments(name, texts)


def _format_library_template(
    library: str, template: str, name: str, args: list[Expr], depth: int
) -> str:
    """Return a template of a known library in readable form, based on the known meanings of its
    arguments.
    """
    if library in _LAUNCHERS:
        args = [arg for arg in args if _has_lambda(arg)][:1] or args
    elif library == "Eigen" and template.startswith("Tensor"):
        return _format_eigen(template, args, depth)
    texts = [text for arg in args if (text := _format_argument(arg, depth - 1))]
    if library in ("cute", "cutlass") and template in _SHAPES:
        if texts and all(not text.strip("0123456789x") for text in texts):
            return "x".join(texts)
        return "" if template == "tuple" else _append_arguments(name, texts)
    if template in ("array", "Array") and texts and texts[0] == "char*":
        return ""  # the data pointers of a PyTorch kernel
    if library == "at":
        if template in _WITHOUT_NUMBERS:
            texts = [text for text in texts if not text.isdigit()] or texts
        scalars = {text for text in texts if text in _SCALARS}
        if len(scalars) == 1:  # BinaryFunctor<float,float,float,...>: once is enough
            first = texts.index(scalars.pop())
            texts = [text for at, text in enumerate(texts) if at == first or text != texts[first]]
    return _append_arguments(name, texts)


def _format_eigen(template: str, args: list[Expr], depth: int) -> str:
    """Return an Eigen expression as a formula:
    ``sum(Tensor<float,1>,Broadcasting(Tensor<float,1>))``.
    """
    texts = [_format_argument(arg, depth - 1) for arg in args]
    texts = [text for text in texts if text and not text.startswith("array")]
    if template == "TensorAssignOp" and texts and texts[0].startswith("Tensor<"):
        return ",".join(texts[1:])
    if template == "Tensor" or not template.endswith("Op"):
        return _append_arguments(template, texts[:2])
    operation = template[len("Tensor") : -len("Op")]
    if operation.startswith("Cwise"):
        operation, texts = _find_eigen_operation(args[0]), texts[1:]
    return f"{operation}({','.join(texts)})" if depth > 1 else operation


def _find_eigen_operation(expr: Expr) -> str:
    name, args = (expr.path[-1].text, expr.path[-1].args) if expr.path else ("", None)
    if name in ("scalar_left", "scalar_right") and args and len(args) > 2:
        return f"{_find_eigen_operation(args[2])}_{name[7:]}"
    return name.removeprefix("scalar_").removesuffix("_op")


def _format_lambda(function: list[NamePart], lambdas: list[NamePart], depth: int) -> str:
    """Return the name of a lambda, which includes the function that contains it."""
    ordinals = [part.ordinal for part in lambdas if part.ordinal]
    torch = bool(function) and function[0].text == "at"
    if torch and (
        function[-1].text in _NOISE or (function[-1].text in WRAPPERS and function[-1].args)
    ):
        return _format_path(function, depth)
    types = ""
    if torch and len(ordinals) > 1:
        # A lambda contains an operator, this contains a data type, and this contains the code. The
        # argument types identify the second.
        arguments = dict.fromkeys(
            text for arg in lambdas[-1].params or () if (text := _format_argument(arg, 1))
        )
        if any(text.split()[-1] in _SCALARS for text in arguments):
            types = f"({','.join(arguments)})"
            ordinals = [ordinals[0], ordinals[-1]]
            ordinals = ordinals if ordinals[1] > 1 else ordinals[:1]
    number = "#" + ".".join(map(str, ordinals)) if ordinals != [1] else ""
    if not function:
        return "lambda" + number
    name = _format_path(function, depth) or function[-1].text
    if (
        len(function) > 1
        and function[0].text not in _LIBRARIES
        and not (function[-2].args or function[-1].text in _GENERIC)
    ):
        name = f"{function[-2].text}::{name}"  # a method without its class says little
    return name + number + types


def _format_nvcc_lambda(args: list[Expr], depth: int) -> str:
    """Return the lambda in ``__nv_dl_wrapper_t<__nv_dl_tag<type of f, &f, ordinal>, captures...>``
    and similar templates.
    """
    for arg in args:
        tag = arg.path[-1] if arg.path else None
        if tag and tag.text.startswith("__nv_") and tag.args and len(tag.args) > 2:
            ordinal = _format_argument(tag.args[-1], 0)
            return _format_argument(tag.args[1], depth) + (f"#{ordinal}" if ordinal != "1" else "")
    return "lambda"


def _has_lambda(expr: Expr) -> bool:
    return any(
        part.ordinal or part.text.startswith("__nv_") or any(map(_has_lambda, part.args or ()))
        for part in expr.path
    )


def _append_arguments(name: str, texts: list[str]) -> str:
    return f"{name}<{','.join(texts)}>" if texts else name


# ---- labels -------------------------------------------------------------------------------------


def _clean(text: str) -> str:
    """Return one line of printable characters. Labels in brackets are changed, because Paraver's
    own labels look like this.
    """
    if not text.isprintable():
        text = "".join(char if char.isprintable() else " " for char in text)
    text = " ".join(text.split())
    while text[:1] == "[" and text[-1:] == "]":
        text = text[1:-1].strip()
    return text


def _shorten(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."


def _normalize(name: str) -> str:
    name = name[:_PARSED_LENGTH].removeprefix("typeinfo name for ")
    if "<unnamed>" in name:
        name = name.replace("<unnamed>::", "").replace("<unnamed>", "unnamed")
    if "(anonymous " in name:
        name = re.sub(r"\(anonymous (?:namespace|class|struct)\)(?:::)?", "", name)
    return name


def make_kernel_label(demangled: str, short: str) -> str:
    """Return the label of a kernel: one line of at most 120 characters, never empty. demangled,
    short: its names in the report.
    """
    name = _clean(demangled[:_PARSED_LENGTH]) or _clean(short[:_PARSED_LENGTH]) or "unnamed kernel"
    if not _STRUCTURE.search(name):
        return _shorten(name, _LABEL_LENGTH)
    tree = parse_name(_normalize(name))
    label = deeper = ""
    # CUTLASS states tile, types and schedule first. There, the start says more than an outline.
    for depth in (MAX_DEPTH,) if "cutlass::" in name else (MAX_DEPTH, 6, 5, 4, 3, 2, 1, 0):
        deeper, label = label, _clean(_format_argument(tree, depth))
        if len(label) <= _LABEL_LENGTH:
            break
    if len(label) < _LABEL_LENGTH // 2 and deeper:
        label = deeper
    return _shorten(label or _clean(short) or name, _LABEL_LENGTH)


# ---- making labels distinct ---------------------------------------------------------------------


def make_labels_unique(labels: Sequence[str], full: Sequence[str]) -> list[str]:
    """Return unique labels. full[i] is the full name of the kernel with labels[i].

    Kernels with equal labels get the template arguments or parameters in which they differ,
    otherwise a number by their order among the sorted full names. The result depends only on the
    pairs, not on their order. Equal pairs keep equal labels.
    """
    kernels: defaultdict[str, set[str]] = defaultdict(set)
    for label, name in zip(labels, full, strict=True):
        kernels[label].add(name)
    taken = set(kernels)
    unique: dict[tuple[str, str], str] = {}
    for label in sorted(label for label, names in kernels.items() if len(names) > 1):
        names = sorted(kernels[label])
        by_label: defaultdict[str, list[str]] = defaultdict(list)
        for name, difference in zip(names, _find_differences(names), strict=True):
            by_label[f"{label} {difference}" if difference else label].append(name)
        for candidate, same in sorted(by_label.items()):
            numbered = (f"{candidate} #{number}" for number in count(1))
            for name in same:
                choice = candidate if len(same) == 1 and candidate not in taken else next(numbered)
                while choice in taken:
                    choice = next(numbered)
                unique[label, name] = choice
                taken.add(choice)
    return [unique.get((label, name), label) for label, name in zip(labels, full, strict=True)]


def abbreviate_labels(labels: Sequence[str]) -> list[str]:
    """Shorten labels to 42 characters so that they remain distinct.

    A longer label becomes the first of these that is unique: the name without template arguments;
    its start and end; its start and the text from the first difference; its start and a number.
    """
    short, taken = {label: label for label in labels if len(label) <= _SHORT_LENGTH}, {*labels}
    of_name = Counter(label.partition("<")[0] for label in taken)
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for label in sorted({*labels} - short.keys()):
        name, arguments, _ = label.partition("<")
        ends = f"{label[:_HEAD]}..{label.rstrip('.')[_HEAD + 2 - _SHORT_LENGTH :]}"
        is_known = arguments and of_name[name] == 1 and len(name) <= _SHORT_LENGTH - 4
        groups[f"{name}<..>" if is_known else ends].append(label)
    for candidate, group in sorted(groups.items()):
        first, last = group[0], group[-1]
        common = next(
            (at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other),
            0,
        )
        for label in group:
            choice = candidate
            if len(group) > 1:
                rest = _SHORT_LENGTH - _HEAD // 2 - 2
                begin = max(_HEAD // 2, min(common - 2, len(label) - rest))
                choice = f"{label[: _HEAD // 2]}..{label[begin : begin + rest]}"
            numbered = (f"{choice[: _SHORT_LENGTH - 4]}#{number}" for number in count(1))
            while choice in taken:
                choice = next(numbered)
            taken.add(choice)
            short[label] = choice
    return [short[label] for label in labels]


def _find_differences(names: list[str]) -> list[str]:
    """Return the distinctive part of each name, with as few words as distinguish most names."""
    chosen, distinct = [""] * len(names), 1
    trees = [parse_name(_normalize(name), parameters=True) for name in names]
    for column in _find_differing_places(trees):
        tried = [f"{old},{new}" if old else new for old, new in zip(chosen, column, strict=True)]
        if len(set(tried)) > distinct:
            chosen, distinct = tried, len(set(tried))
        if distinct == len(names):
            break
    if max(map(len, chosen)) > _SUFFIX_LENGTH:
        pairs = enumerate(zip(min(chosen), max(chosen), strict=False))
        common = next((at for at, (one, other) in pairs if one != other), 0)
        chosen = ["..." + text[common:] if common > 1 else text for text in chosen]
    chosen = [_shorten(_clean(text), _SUFFIX_LENGTH) for text in chosen]
    return [text if not text or text.startswith("(") else f"<{text}>" for text in chosen]


def _find_differing_places(exprs: Sequence[Expr]) -> Iterator[list[str]]:
    """Yield the positions at which some names differ, outermost first: the text of each name at
    this position.
    """
    if all(expr == exprs[0] for expr in exprs):
        return
    last = {(expr.path[-1].text, expr.path[-1].ordinal) if expr.path else None for expr in exprs}
    if len(last) > 1:
        yield [_format_argument(expr, 2) or _format_plainly(expr, 1) for expr in exprs]
        yield [_format_plainly(expr, 2) for expr in exprs]
        return
    yield ["::".join(part.text for part in expr.path[:-1]) for expr in exprs]
    yield ["*" * expr.stars for expr in exprs]
    ends = {len(expr.path) for expr in exprs}
    for at in range(-min(ends), 0) if len(ends) == 1 else [-1]:
        parts = [expr.path[at] for expr in exprs]
        yield [f"{part.text}#{part.ordinal}" if part.ordinal else "" for part in parts]
        for lists in [part.args for part in parts], [part.params for part in parts]:
            if len({None if args is None else len(args) for args in lists}) > 1:
                texts = [",".join(_format_plainly(arg, 1) for arg in args or ()) for args in lists]
                if lists[0] is parts[0].params:
                    long = max(map(len, texts)) > _SUFFIX_LENGTH
                    texts = [
                        f"({len(args or ())} parameters)" if long else f"({text})"
                        for args, text in zip(lists, texts, strict=True)
                    ]
                yield texts
            elif lists[0]:
                for column in zip(*lists, strict=True):
                    yield from _find_differing_places(column)


def _format_plainly(expr: Expr, depth: int) -> str:
    """Return an argument without namespaces, casts and inner arguments, but otherwise unchanged."""
    if not expr.path:
        return "*" * expr.stars
    last = expr.path[-1]
    text = last.text + (f"#{last.ordinal}" if last.ordinal else "")
    if last.args and depth > 0:
        text += f"<{','.join(_format_plainly(arg, depth - 1) for arg in last.args)}>"
    return text + "*" * expr.stars
