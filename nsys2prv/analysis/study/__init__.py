"""Compare several runs of one program: scalability and efficiencies as POP defines them.

In: reports of each run, or what `study --json` wrote earlier. Out: a `Study` (:mod:`study`), as
text, HTML, CSV or TALP's JSON. Start in :mod:`runs`, which makes it; rows.yaml
declares its figures.
"""
