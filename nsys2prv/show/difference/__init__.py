"""Compare two runs of a program: whether they can be compared, by how much one takes longer, and why, in parts
that add up to the difference.

What is compared is an iteration, where both runs repeat the same work, else the whole job. Its time goes along
the critical path (`path` of findings, :mod:`nsys2prv.verdict.path_parts`), so that the parts of two runs add
up to their difference; what each rank does (`work`) says which of them do more, more often or slower. Facts
first, then sentences; no code reads these. Start in :mod:`comparison`; :mod:`facts` has what is found.
"""
