"""Compare two runs of a program: are they comparable, how much longer does one take, and why, in
parts that add up to the difference.

The compared unit is an iteration if both runs repeat the same work, otherwise the whole job. Its
time is divided along the critical path (`path` of findings, :mod:`nsys2prv.verdict.path_parts`), so
that the parts of two runs add up to their difference. The work of each rank (`work`) shows which
ranks do more, more often or slower. Facts are computed first, then sentences, which no code reads.
Start in :mod:`comparison`; :mod:`facts` declares the results.
"""
