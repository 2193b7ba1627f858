"""What methods that somebody took before the world began do while it lives."""

from __future__ import annotations

from collections.abc import Iterable

from simdist.process._early import EarlyMethods
from simdist.process._patches import Patches
from simdist.process.stdlib import _clock
from simdist.process.threads import _lock_methods

__all__ = ["follow"]

_EARLY = EarlyMethods(_clock.taken_early, _lock_methods.taken_early)


def follow(patches: Patches, called: Iterable[object]) -> None:
    """Redirect those in the user's modules, and those that hang on `called`, which is what runs on the ranks."""
    early = _EARLY.among(called)
    if early:
        patches.switch_on(early)
