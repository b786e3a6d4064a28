"""Paraver views (.cfg files): their grammar, writing, and the catalogue they are made
from. ``python tools/make_views.py`` writes every view of ``cfgs/catalogue`` that is committed.
"""

#: Beside the views: path, description and contents of those to open first, a line of JSON each.
FIRST = "first.jsonl"
