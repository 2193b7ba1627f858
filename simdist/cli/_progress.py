"""The live line of a run: virtual time, events, events per second; on a terminal only."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from simdist.values import format_duration

__all__ = ["LiveLine"]


class LiveLine:
    """A transient line on stderr while inside; prints nothing if stderr is no terminal."""

    def __init__(self) -> None:
        self._live: Live | None = None
        if sys.stderr.isatty():
            # The caller draws the line: a drawing thread of rich would run during the ranks. Redirecting the standard
            # streams is off because they belong to the ranks meanwhile.
            stream = Console(file=sys.stderr, markup=False, highlight=False)
            self._live = Live(
                console=stream, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
            )
        self._begun = time.perf_counter()
        self._last = (self._begun, 0)

    def __enter__(self) -> LiveLine:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.update(Text(""))
            self._live.stop()

    def progress(self, now_ns: int, events: int) -> None:
        """Show the run's progress; fits `simdist.run`."""
        if self._live is None:
            return
        real, (before, count) = time.perf_counter(), self._last
        rate = max(events - count, 0) / max(real - before, 1e-6)
        self._last = (real, events)
        self.say(f"virtual time {format_duration(now_ns)}   {events:,} events   {rate:,.0f} events/s")

    def rate(self, done: int) -> float:
        """Return how many steps take place in a minute, with `done` since the start."""
        return 60 * done / max(time.perf_counter() - self._begun, 1e-6)

    def say(self, text: str) -> None:
        """Show `text` in place of the line."""
        if self._live is not None:
            self._live.update(Text(text), refresh=True)

    def clear(self) -> None:
        """Empty the line, so that other text can be printed."""
        self.say("")
