"""Comparisons of runs that should be equal: `simdist.agree` (layouts) and `simdist.resume` (a killed training).

`_layouts.py` has the division of a model and a batch by a layout, and the tolerances of two results.
"""

from simdist.comparisons._agree import AgreeReport, agree
from simdist.comparisons._layouts import Layout
from simdist.comparisons._resume import ResumeReport, resume

__all__ = ["AgreeReport", "Layout", "ResumeReport", "agree", "resume"]
