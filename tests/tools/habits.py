"""Habits of wording that nothing a user reads has."""

import re
from collections.abc import Iterator

#: Regular expressions, each with the habit that it finds.
HABITS = {
    "blank before %": r"\d %",
    "calls of CUDA": r"\bcalls of (CUDA|MPI|NCCL|the operating system)\b",
    "work of a GPU": r"\bwork of (a GPU|GPUs)\b|\bwork on any GPU\b",
    "of which it is not known": r"\b(of which|whose) [a-z]+ (is|are) (not )?known\b",
    "what as a noun": r"\bwhat (is|are|takes?|holds?|happened) ",
    "negated noun": r"\bno (gain|fault|verdict|recorded call)\b",
    "those of the others": r"\b(those|that) of (the )?others?\b|\bthe others'",
    "told": r"\b(cannot|can) be told\b|\btells?\b",
    "phrases": r"\bin all\b(?! [a-z]+s\b)|\bmend\b|\bas a rule\b|\bis said of\b|\ball in a row\b|\bin so little\b",
    "British spelling": r"\bStart-up\b|\bShut-down\b|\b(serial|synchron)isation\b",
    "plural of one": r"\b1 (calls|iterations|kernels|nodes|ranks|times|transfers|sends|receives|rows|executions|reports)\b",
    "number before its comparison": r", on other ranks \d",
    "otherwise mostly": r"\bis otherwise mostly\b|\botherwise the host\b",
    "verbs": r"\b(lies|lie|stands) (in|at|behind|for)\b|\bkept [A-Z]",
    "none of": r"\bis none of\b|\bthere is no such\b|\bare they of\b",
    "noun without its verb": r": nothing to (write|align)\b|\bnothing to write:",
    "option without a verb": r"; (add|do:|profile again with the options) (?=--)",
    "once": r"\bof the job, once\b",
    "four digits of a duration": r"\b\d\d+\.\d\d (us|ms|s)\b",
    "left out": r"\bleft out\b",
}


def find_habits(text: str) -> Iterator[str]:
    """Yield the habits that a text has, with the words around each."""
    for habit, pattern in HABITS.items():
        if match := re.search(f".{{0,40}}(?:{pattern}).{{0,40}}", text):
            yield f"{habit}: {match[0]}"
