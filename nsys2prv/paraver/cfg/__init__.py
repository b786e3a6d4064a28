"""Paraver views (.cfg files): their grammar, writing, reading, and the catalogue they are made
from.

``python -m nsys2prv.paraver.cfg [FOLDER]`` writes every view of FOLDER/catalogue.
"""

#: Beside the views: paths of those to open first, a line each, in their order.
FIRST = "first.txt"
