"""Present several runs of one program: scalability and efficiencies as defined by POP.

Input: :class:`nsys2prv.figures.study_model.ComparedRuns`. Output: text, HTML, Markdown, CSV or
TALP's JSON. Start in :mod:`formats`.
"""
