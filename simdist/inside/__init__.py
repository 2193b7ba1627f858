"""What simdist knows of the inside of Python, the system and torch: private names, layouts, symbols, texts, versions.

The rest of the package uses this by purpose and spells out none of it (`tools/check.py` checks that). `python` and
`system` do not load torch, `torch` does. Each thing that is not guaranteed is a *fact* with a probe, which `simdist
doctor` and the test suite run on the installed Python and torch.
"""

from simdist.inside._facts import Fact, facts
from simdist.inside._versions import COMPLETE, PYTHONS, TRIED, warn_of_newer

__all__ = ["COMPLETE", "PYTHONS", "TRIED", "Fact", "facts", "warn_of_newer"]
