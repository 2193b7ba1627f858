"""ProcessGroupNCCL's lines in torch's log."""

from __future__ import annotations

from simdist.c10d.calls._log import log, shows

__all__ = ["log", "shows"]
