"""Show several runs of one program: scalability and efficiencies as POP defines them.

In: :class:`nsys2prv.figures.study_model.ComparedRuns`. Out: text, HTML, Markdown, CSV or TALP's JSON.
Start in :mod:`formats`.
"""
