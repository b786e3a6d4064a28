"""Paraver views (.cfg files): their grammar, writing, reading, and the catalogue they are made
from. ``python tools/make_views.py`` writes every view of ``cfgs/catalogue`` that is committed.
"""

#: Beside the views: paths of those to open first, a line each, in their order.
FIRST = "first.txt"
