"""The event stream of a run, and its running digest.

The log is the first listener on the bus. It takes packed records (see `simdist.records`): plain tuples of values that
have the same bytes in every process.
"""

from __future__ import annotations

import hashlib
import marshal
from collections.abc import Callable

from simdist.records import Packed

__all__ = ["EventLog"]

_CHUNK = 4096


class EventLog:
    """Append-only list of records with a digest over all of them.

    Keeps at most `keep` records for readers; the digest covers the rest too.
    """

    def __init__(self, keep: int = 2_000_000) -> None:
        self.records: list[Packed] = []
        self.add: Callable[[Packed], None] = self.records.append  # hot: one call per event
        self._keep = keep
        self._hash = hashlib.blake2b(digest_size=16)
        self._hashed = 0  # how many records of the present list are in the hash
        self.dropped = 0

    def __len__(self) -> int:
        return self.dropped + len(self.records)

    def settle(self) -> None:
        """Bring the digest up to date, and drop records beyond the limit; cheap when there is little to do."""
        records = self.records
        while len(records) - self._hashed >= _CHUNK:
            # Version 2 of the marshal format: later ones encode whether a string is interned and how often an object
            # is referenced, which differs between runs. Chunks lie at fixed positions of the stream.
            end = self._hashed + _CHUNK
            self._hash.update(marshal.dumps(records[self._hashed : end], 2))
            self._hashed = end
            if end > self._keep:
                kept = max(self._keep, 0)
                self.dropped += end - kept
                del records[kept:end]
                self._hashed = kept

    def digest(self) -> str:
        """The hash over everything recorded so far, as 32 hexadecimal digits."""
        self.settle()
        whole = self._hash.copy()
        whole.update(marshal.dumps(self.records[self._hashed :], 2))
        return whole.hexdigest()
