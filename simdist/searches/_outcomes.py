"""Ends of runs: an outcome that two runs may share, and the cause of a failure, by which failures are merged.

Both are independent of times: an outcome says how each rank ended and what it returned. A cause ignores numbers in a
text, and how many ranks it lists.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simdist.programs import EndlessError, Ran
from simdist.result import RankResult, RunResult, how_it_ended
from simdist.values import rank_text, repr_of, shortened, text_of, without_source

__all__ = ["Cause", "cause_of", "outcome_of", "shape_of"]

_NUMBER = re.compile(r"0x[0-9a-f]+|[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?")
_FOLDER = re.compile(r"simdist-\w{8}(?=/)")  # of one run, under the folder of temporary files
_RANKS = re.compile(r"\branks? N((, |-| and )N)*")
_LONGEST = 200  # letters of a value


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a run failed.

    `kind` is "raised", "exited", "killed", "hung", "finding", "expectation", "wrong" (what ranks returned), "endless"
    or "internal". Two failures with one `key` have the same cause.
    """

    kind: str
    text: str
    key: str
    rank: int = -1
    where: str = ""

    def __str__(self) -> str:
        return f"{self.text} ({self.where})" if self.where else self.text

    def summary(self) -> dict[str, Any]:
        """Return the cause as JSON-ready data."""
        return {"kind": self.kind, "cause": self.text, "rank": self.rank, "where": self.where}


def outcome_of(result: RunResult) -> str:
    """Return how each rank ended, in one line; ranks that ended alike are grouped."""
    ends: dict[str, list[int]] = {}
    for rank in result.ranks:
        ends.setdefault(_end_of(rank), []).append(rank.rank)
    return "; ".join(f"{rank_text(ranks)} {end}" for end, ranks in ends.items())


def _end_of(rank: RankResult) -> str:
    if rank.status == "returned":
        return f"returned {_value_text(rank.value)}"
    if rank.status == "hung":
        return f"hung at {rank.where}" if rank.where else "hung"
    return _NUMBER.sub("N", how_it_ended(rank)) if rank.status == "raised" else how_it_ended(rank)


def _value_text(value: Any) -> str:
    """Return a rank's value as text; tensors by shape and checksum, so that equal texts are equal values."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {_value_text(each)}' for key, each in value.items())}}}"
    if isinstance(value, list | tuple):
        inside = ", ".join(map(_value_text, value))
        return f"[{inside}]" if isinstance(value, list) else f"({inside})"
    if hasattr(value, "dtype") and hasattr(value, "shape") and hasattr(value, "detach"):
        from simdist._content import content_checksum

        whole = value.to_local() if hasattr(value, "to_local") else value
        if value.numel() > 4 or hasattr(value, "to_local"):
            return f"<{value.dtype} of shape {tuple(value.shape)}, checksum {content_checksum([whole]):08x}>"
    return re.sub(r" at 0x[0-9a-f]+", "", repr_of(value))


def cause_of(ran: Ran) -> Cause | None:
    """Return why a run failed: the first reason; None if it did not."""
    if isinstance(ran.error, EndlessError):
        return Cause("endless", str(ran.error), "endless") if ran.error.settled else None
    if ran.error is not None:
        text = f"{type(ran.error).__name__}: {shortened(str(ran.error), _LONGEST)}"
        return Cause("internal", text, _key("internal", type(ran.error).__name__, text))
    result = ran.result
    assert result is not None
    failed = dict(ran.problems)
    first = result.first_failure()
    if first is not None and "outcomes" in failed:
        return _cause_of_end(first)
    if result.findings and "judges" in failed:
        finding = result.findings[0]
        text = f"judge {finding.judge}: {finding.problem}"
        return Cause("finding", text, _key("finding", finding.judge, finding.problem), finding.rank, finding.where)
    for name, text in ran.problems:
        return Cause("expectation", f"{name}: {text}", _key("expectation", name, text))
    return None


def _cause_of_end(rank: RankResult) -> Cause:
    text = f"rank {rank.rank} {how_it_ended(rank)}"
    if rank.exception is not None:
        said = without_source(text_of(rank.exception).strip()).partition("\n")[0]
        key = _key("raised", type(rank.exception).__name__, said)
    else:
        key = _key(rank.status, rank.waiting if rank.status == "hung" else str(rank.exit_code), rank.where)
    return Cause(rank.status, shortened(text, _LONGEST), key, rank.rank, rank.where)


def shape_of(text: str) -> str:
    """Return a text without parts that differ between runs that fail alike, and between worlds of different sizes."""
    return _RANKS.sub("ranks N", _NUMBER.sub("N", _FOLDER.sub("simdist-", text)))


def _key(*parts: str) -> str:
    return shortened(shape_of(" | ".join(parts)), 300)
