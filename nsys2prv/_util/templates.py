"""Compile the templates of the package once, as modules are: what jinja2 makes of them lies in Python's cache
beside this module, where that can be written. `load_templates` of :mod:`files` imports this when needed.
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
        """Load a compiled template, if there is one of this text."""
        with suppress(OSError), self._find(bucket).open("rb") as file:
            bucket.load_bytecode(file)

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keep a compiled template."""
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
    """Return the templates in a package's folder. load_text: returns their text by name; settings: of jinja2."""
    return jinja2.Environment(
        loader=jinja2.FunctionLoader(load_text),
        undefined=jinja2.StrictUndefined,
        bytecode_cache=_CompiledTemplates(package),
        **settings,
    )
