"""What simdist knows of the inside of Python, the system and torch: private names, layouts, symbols, texts, versions.

The rest of the package asks by purpose and writes none of it (`tools/check.py` holds that). `python` and `system` do
not load torch, `torch` does. Each thing that nobody promises is a *fact* with a probe, which `simdist doctor` and the
test suite run on whatever Python and torch are there.
"""

from simdist.inside._facts import Fact, facts
from simdist.inside._versions import COMPLETE, PYTHONS, TRIED, warn_of_newer

__all__ = ["COMPLETE", "PYTHONS", "TRIED", "Fact", "facts", "warn_of_newer"]
