"""Redirects, while a world lives, methods that user code took before it began."""

from __future__ import annotations

from collections.abc import Iterable

from simdist.process._early import EarlyMethods
from simdist.process._patches import Patches
from simdist.process.stdlib import _clock
from simdist.process.threads import _lock_methods

__all__ = ["follow"]

_EARLY = EarlyMethods(_clock.taken_early, _lock_methods.taken_early)


def follow(patches: Patches, called: Iterable[object]) -> None:
    """Redirect methods in the user's modules, and those reachable from `called`, which the ranks run."""
    early = _EARLY.among(called)
    if early:
        patches.switch_on(early)
