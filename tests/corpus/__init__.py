"""Small programs with real bugs, each with its fixed twin and the public report that it was written after.

Every entry is one function whose `buggy` argument switches the bug on; its mechanism is that of the report, its code is
not. `tools/corpus.py` runs all of them without knowing any fault, and says what is found with judges off and on.
"""

from tests.corpus import control_flow, layouts, more_layouts, races, replicas, resumes, samples, values
from tests.corpus._entries import ENTRIES, Entry, entry
from tests.corpus._runs import Outcome, outcome_of

__all__ = [
    "ENTRIES",
    "Entry",
    "Outcome",
    "control_flow",
    "entry",
    "layouts",
    "more_layouts",
    "outcome_of",
    "races",
    "replicas",
    "resumes",
    "samples",
    "values",
]
