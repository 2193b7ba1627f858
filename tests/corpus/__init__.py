"""Small programs with real bugs, each with a fixed version and the public report on which it is based.

Every entry is one function whose `buggy` argument switches the bug on; it has the mechanism of the report, but not its
code. `tools/corpus.py` runs all of them without knowing the bugs, and prints what is found with judges off and on.
"""

from tests.corpus import averages, control_flow, layouts, more_layouts, races, replicas, resumes, samples, values
from tests.corpus._entries import ENTRIES, Entry, entry
from tests.corpus._runs import Outcome, outcome_of

__all__ = [
    "ENTRIES",
    "Entry",
    "Outcome",
    "averages",
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
