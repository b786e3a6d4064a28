"""Paraver views (.cfg files): their grammar, writing, and the catalogue they are made
from. ``python tools/make_views.py`` writes every view of ``cfgs/catalogue`` that is committed.
"""
