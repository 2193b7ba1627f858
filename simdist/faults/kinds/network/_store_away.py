"""`StoreAway`: the launcher's store does not answer for a while."""

from __future__ import annotations

from simdist.faults._lasting import LastingFault
from simdist.faults._stage import Stage
from simdist.faults._store_fault import StoreFault
from simdist.values import LONGEST_NS

__all__ = ["StoreAway"]


class StoreAway(StoreFault, LastingFault):
    """The launcher's store does not answer from `start_ns` to `until_ns`, as when its process or its host is paused.

    Connections stay, and new ones are accepted. Requests wait, and are answered afterwards, however late: a client of a
    TCPStore has no time-out for answers. A wait for keys whose time runs out meanwhile fails when the store is back. A
    request without an answer (`set`) returns at once.

    Example:
        >>> import os, simdist, time
        >>> import torch.distributed as dist
        >>> def work():
        ...     store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
        ...     time.sleep(2)
        ...     store.set("key", "value")
        ...     return store.get("key"), round(time.monotonic(), 2)
        >>> simdist.run(work, world_size=1, faults=[StoreAway(start_ns=10**9, until_ns=5 * 10**9)]).values
        [(b'value', 5.0)]
    """

    def request_delay_ns(self, rank: int, now_ns: int) -> int:
        """Return the time until the end, for real processes only."""
        if not self.is_on(now_ns):
            return 0
        return (LONGEST_NS if self.until_ns is None else self.until_ns) - now_ns

    def lay_on(self, stage: Stage, start_ns: int, until_ns: int | None) -> None:
        """Stop the store, and let it go on."""
        if until_ns is not None and until_ns <= stage.now_ns:
            return
        if start_ns > stage.now_ns:
            stage.call_at(start_ns, stage.stop_store)
        else:
            stage.stop_store()
        if until_ns is not None:
            stage.call_at(until_ns, stage.resume_store)

    def begins(self) -> str:
        """The text when the store is silent."""
        return "the launcher's store does not answer"

    def ends(self) -> str:
        """The text when the store is back."""
        return "the launcher's store answers again"
