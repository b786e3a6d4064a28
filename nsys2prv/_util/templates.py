"""Compile the package's jinja2 templates only once: compiled templates are stored in Python's cache
folder beside this module, if it is writable. `load_templates` of :mod:`files` imports this module
when needed.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

import jinja2
from jinja2.bccache import Bucket, BytecodeCache


class _CompiledTemplates(BytecodeCache):
    """Compiled templates of one folder of the package."""

    def __init__(self, package: str) -> None:
        self._start = Path(cache_from_source(__file__)).with_name(
            f"{package}-jinja2-{jinja2.__version__}-"
        )

    def _find(self, bucket: Bucket) -> Path:
        return Path(f"{self._start}{bucket.key}.{sys.implementation.cache_tag}")

    def load_bytecode(self, bucket: Bucket) -> None:
        """Load the compiled template of this text, if there is one."""
        with suppress(OSError), self._find(bucket).open("rb") as file:
            bucket.load_bytecode(file)

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Store a compiled template."""
        if sys.dont_write_bytecode:
            return
        path = self._find(bucket)
        new = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
        with suppress(OSError):
            new.write_bytes(bucket.bytecode_to_string())
            os.replace(new, path)


def make_environment(
    package: str, load_text: Callable[[str], str], **settings: Any
) -> jinja2.Environment:
    """Return the jinja2 templates in a package's folder. load_text: function that returns the text
    of a template by its name. settings: further settings of jinja2.
    """
    return jinja2.Environment(
        loader=jinja2.FunctionLoader(load_text),
        undefined=jinja2.StrictUndefined,
        bytecode_cache=_CompiledTemplates(package),
        **settings,
    )
