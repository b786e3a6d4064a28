"""The version of the program."""

from __future__ import annotations

__version__ = "1.0.0.dev0"
