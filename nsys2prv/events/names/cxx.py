"""Demangled C++ names, read into small trees."""

from __future__ import annotations

import re

from nsys2prv._util.yaml_files import load_shipped, read_data_text

# Deeper brackets are passed over, so that no name makes the tree too deep to walk.
MAX_DEPTH = 64


_DATA = load_shipped(read_data_text(__package__, "kernel_words.yaml"))
#: Sets of words in the names of kernels.
WORDS = {key: frozenset(words.split()) for key, words in _DATA.items() if key != "wrappers"}
#: Wrapper -> which of its arguments stands for the whole.
WRAPPERS = {word: place for place, words in _DATA["wrappers"].items() for word in words.split()}
_FUNDAMENTAL, _QUALIFIERS = WORDS["fundamental"], WORDS["qualifiers"]


class NamePart:
    """One step of a qualified name: `text<args>(params)`, or a lambda with its ordinal."""

    __slots__ = ("args", "ordinal", "params", "text")

    def __init__(self, text: str, ordinal: int = 0) -> None:
        self.text = text
        self.args: list[Expr] | None = None
        self.params: list[Expr] | None = None
        self.ordinal = ordinal

    @property
    def is_operator(self) -> bool:
        return self.text.startswith("operator") and not self.text.isidentifier()


class Expr:
    """A type, function or value: the steps of its name, its pointer stars, where it stands."""

    __slots__ = ("end", "path", "stars", "start")

    def __init__(self, path: list[NamePart], stars: int, start: int, end: int) -> None:
        self.path = path
        self.stars = stars
        self.start = start
        self.end = end


_ORDINAL, _OPERATOR, _NAME, _LAMBDA, _SCOPE, _OPEN, _CLOSE, _COMMA, _STAR = range(1, 10)
_TOKEN = re.compile(
    r"\([\w:]+(?: \w+)?\)(?=-?\d)"  # a cast
    r"|(?:\(instance |#)(\d+)"  # [lambda() (instance 2)] of NVIDIA's demangler, {lambda()#2} of GNU's
    r"|(operator\s*(?:\(\s*\)|\[\s*\]|[-+*/%^&|~!=<>,]{1,3}(?=\s*[(<])))"
    r"|(-?\d[\w.]*|[^\W\d][\w.$]*(?:::(?!operator\b)[^\W\d][\w.$]*)*|\$_\d+)"
    r"|'lambda(\d*)'|(::)|([<(\[{])|([>)\]}])|(,)|(\*)"  # 'lambda0' is LLVM's second lambda
)
# What a closing bracket may close; "l" is the "<" of GCC's `f()::<lambda(int)>`.
_CLOSES = {")": "(", "]": "[", "}": "{", ">": "<l"}


def parse_name(name: str, parameters: bool = False) -> Expr:
    """Read a demangled name in one pass. Nothing is an error: odd text gives an odd tree.

    The kernel's own parameter list is left unread unless ``parameters`` are asked for.
    """
    stack: list[tuple[str, list[NamePart], int, int, list[Expr]]] = []
    args: list[Expr] = []
    path: list[NamePart] = []
    group: Expr | None = None  # a closed (...), which is a cast if a value follows
    function: list[NamePart] = []  # the last thing with a parameter list, outside all brackets
    stars = start = end = skipped = before = 0
    seen = False  # whether the argument being read has anything in it

    def finish(position: int) -> None:
        if group is not None and not path:
            args.append(group)
        elif seen:
            args.append(Expr(path, stars, start, position))

    def close(position: int) -> None:
        nonlocal args, path, group, stars, start, seen
        finish(position)
        content = args
        opener, path, stars, start, args = stack.pop()
        seen, group = True, None
        head = content[0].path[0] if content and content[0].path else None
        if opener == "<":
            path[-1].args = content
        elif opener == "(" and path:
            path[-1].params = content
        elif opener != "(" and head is not None and head.text == "lambda":
            head.ordinal = head.ordinal or 1
            path.append(head)
        elif not path and content:
            group = content[0]

    for token in _TOKEN.finditer(name):
        kind = token.lastindex or 0
        if skipped or (kind == _OPEN and len(stack) == MAX_DEPTH):
            skipped += (kind == _OPEN) - (kind == _CLOSE)
            continue
        position, word = token.start(), token[0]
        if kind in (_NAME, _OPERATOR):
            if word in _QUALIFIERS:
                before = kind
                continue
            steps = (
                [NamePart(step) for step in word.split("::")] if "::" in word else [NamePart(word)]
            )
            if before == _SCOPE:
                path += steps
            elif (
                len(path) == 1
                and word in _FUNDAMENTAL
                and path[0].text.rpartition(" ")[2] in _FUNDAMENTAL
            ):
                path[0].text += " " + word
            else:
                if not stack and path and path[-1].params is not None:
                    function = path
                path, stars = steps, 0
            if word[0] == "$":  # clang: f()::$_0
                path[-1] = NamePart("lambda", int(word[2:8]) + 1)
            group, seen = None, True
        elif kind == _OPEN:
            if word == "<":
                if (
                    path
                    and path[-1].args is None
                    and position == end
                    and before in (_NAME, _OPERATOR)
                ):
                    pass
                elif not path or before == _SCOPE:
                    word = "l"
                else:
                    continue  # a comparison
            elif (
                word == "("
                and not stack
                and path
                and not parameters
                and name.find("(", position + 1) < 0
            ):
                break
            stack.append((word, path, stars, start, args))
            args, path, stars, start, seen, group = [], [], 0, token.end(), False, None
        elif kind == _CLOSE:
            openers = _CLOSES[word]
            if word == ">":
                if stack and stack[-1][0] in openers:
                    close(position)
            elif any(frame[0] == openers for frame in stack):
                while stack[-1][0] != openers:
                    close(position)
                close(position)
        elif kind == _COMMA:
            finish(position)
            path, stars, start, seen, group = [], 0, token.end(), False, None
        elif kind == _STAR:
            stars, seen = stars + 1, True
        elif kind == _ORDINAL:
            if path:
                path[-1].ordinal = int(token[1][:6])
        elif kind == _LAMBDA:
            path = [*path] if before == _SCOPE else []
            path.append(NamePart("lambda", int(token[4][:6]) + 2 if token[4] else 1))
            seen = True
        before, end = kind, token.end()
    while stack:
        close(len(name))
    if not path and group is not None:
        return group
    if function and not (path and path[-1].params is not None):
        path = function  # what follows it: attributes, requirements, ".cold"
    return Expr(path, 0, 0, len(name))
