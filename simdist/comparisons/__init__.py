"""Runs that should come to the same: `simdist.agree` (layouts) and `simdist.resume` (a training that was killed).

`_layouts.py` says how a layout cuts a model and a batch, and how near two results have to be.
"""

from simdist.comparisons._agree import AgreeReport, agree
from simdist.comparisons._layouts import Layout
from simdist.comparisons._resume import ResumeReport, resume

__all__ = ["AgreeReport", "Layout", "ResumeReport", "agree", "resume"]
