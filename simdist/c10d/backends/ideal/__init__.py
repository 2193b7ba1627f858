"""The ideal backend, "sim": no timeouts, so that what would time out is a deadlock, and strict by default."""

from simdist.c10d.backends.ideal._failure import IdealFailure

__all__ = ["IdealFailure"]
