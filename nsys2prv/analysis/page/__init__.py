"""A job's analyses as one HTML page that refers to nothing outside itself.

Data goes one way: results of :mod:`nsys2prv.analysis` -> :mod:`sections`, what is said in which
order (:mod:`parts`) -> :mod:`drawing`, pictures as SVG, and :mod:`markup`, HTML -> :mod:`document`,
the template filled.
"""
