"""The failures of earlier searches, in a local folder: replayed first, and deleted when they no longer fail.

As hypothesis keeps its examples: a folder for each scenario, with a small file for each cause.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from simdist.errors import ScenarioError
from simdist.programs import Attempt
from simdist.scenario import Plan
from simdist.searches._outcomes import Cause
from simdist.searches._tokens import read_token, token_of

__all__ = ["Database"]


@dataclass(frozen=True, slots=True)
class Database:
    """The entries of one scenario, below `folder`."""

    folder: Path
    plan: Plan

    @property
    def _place(self) -> Path:
        return self.folder / self.plan.name

    def entries(self) -> Iterator[tuple[Path, Attempt]]:
        """Yield the failures, in the order of file names; unreadable ones, or those that no longer fit, are skipped."""
        for path in sorted(self._place.glob("*.json")) if self._place.is_dir() else ():
            try:
                _, attempt = read_token(json.loads(path.read_text(encoding="utf-8"))["token"], self.plan.source)
            except (OSError, ValueError, KeyError, TypeError, ScenarioError):
                continue
            yield path, attempt

    def keep(self, cause: Cause, attempt: Attempt, plan: Plan) -> None:
        """Write a failure to a file, in place of an earlier one of the same cause."""
        self._place.mkdir(parents=True, exist_ok=True)
        entry = {"cause": str(cause), "token": token_of(plan, attempt)}
        path = self._place / f"{zlib.crc32(cause.key.encode()):08x}.json"
        path.write_text(json.dumps(entry, indent=2) + "\n", encoding="utf-8")

    def forget(self, path: Path) -> None:
        """Delete a failure that no longer fails."""
        path.unlink(missing_ok=True)
