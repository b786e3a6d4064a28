"""Compare two runs of a program: whether they are comparable, how much longer one takes, and why, in parts
that add up to the difference.

The compared unit is an iteration if both runs repeat the same work, otherwise the whole job. Its time is
divided along the critical path (`path` of findings, :mod:`nsys2prv.verdict.path_parts`), so that the parts of
two runs add up to their difference; the work of each rank (`work`) shows which ranks do more, more often or
slower. Facts come first, then sentences; no code reads these. Start in :mod:`comparison`; :mod:`facts`
declares the results.
"""
