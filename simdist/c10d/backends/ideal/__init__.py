"""The ideal backend, "sim": it is strict by default and has no timeouts, so that a hang is a deadlock."""

from simdist.c10d.backends.ideal._failure import IdealFailure

__all__ = ["IdealFailure"]
