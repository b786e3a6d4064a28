"""A job's analyses as one HTML page that refers to nothing outside itself.

Data goes one way: results of :mod:`nsys2prv.analysis` -> :mod:`sections`, what is said in which
order (data classes of :mod:`parts`) -> :mod:`drawing`, pictures as SVG, and :mod:`html`, which
fills the templates.
"""
