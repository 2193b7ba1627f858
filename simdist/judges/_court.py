"""The judges of one world, which begin before its ranks and report their findings when it has ended."""

from __future__ import annotations

from collections.abc import Sequence

from simdist.judges._contents import Newest
from simdist.judges._instruments import Instruments
from simdist.judges._judge import Ending, Hearing, Judge
from simdist.judges._names import judges_of
from simdist.kernel import Bus
from simdist.process import call_all
from simdist.result import JudgeFinding

__all__ = ["Court"]


class Court:
    """Holds a hearing for each judge. `close` always removes everything, whatever happened before."""

    def __init__(
        self, wanted: bool | Sequence[str | Judge], bus: Bus, world_size: int, *, strict: bool, values: str = "all"
    ) -> None:
        self._instruments = Instruments()
        newest = Newest()
        self._hearings = [
            Hearing(judge, bus, world_size, strict, self._instruments.prepare, newest)
            for judge in judges_of(wanted)
            if values == "all" or not judge.compares_values
        ]
        self.names = tuple(hearing.judge.name for hearing in self._hearings)

    def open(self) -> None:
        """Let every judge begin."""
        for hearing in self._hearings:
            hearing.judge.begin(hearing)

    def findings(self, ending: Ending) -> tuple[JudgeFinding, ...]:
        """Return the findings of all judges, the earliest first."""
        found = [finding for hearing in self._hearings for finding in hearing.end(ending)]
        return tuple(sorted(found, key=lambda finding: finding.time_ns))

    def close(self) -> None:
        """End every hearing, and remove all instruments."""
        call_all(*(hearing.close for hearing in self._hearings), self._instruments.close)
