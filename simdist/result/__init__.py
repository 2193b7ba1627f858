"""The result of a run: plain frozen data, without torch, so that reports and workers can pass it around.

`_outcome.py` has the parts, `_result.py` the whole, `RunResult`. `_spans.py` makes spans of events: which operation ran
on which rank from when to when. The rest is the report of a run that failed, one text for `raise_for_failure`, the
pytest plugin, the command line and `spawn`:

    4 ranks, backend gloo, seed 0 (fifo order), 950.008 us of virtual time
    ranks disagree on collective #1 of group '0': ranks 0, 2, 3 all_reduce of float32[6]; rank 1 all_reduce...
    rank 1, first to fail, at 950.008 us, train.py:48: raised RuntimeError: Connection closed by peer [127.0.0.1]:40002
        200 us  barrier #0: done in 200 us
        400 us  all_reduce #1 of float32[8]: failed after 550.008 us
    ranks 0, 2, 3, at 900.008 us to 950.008 us: returned
    replay: simdist.run(train, world_size=4, seed=0)

It shows, from top to bottom: the setting; the faults that struck; what judges found; the deadlock; the collectives that
ranks did not call alike (`_collectives.py`); for each rank, grouped by ranks that did the same, how it ended, what it
did last and what it printed (`_stanzas.py`); how to replay it. It is made from the result and its events only, so a run
on real processes has the same report. `report_of` (`_report.py`) makes it, within `LINES` lines of `WIDTH` letters for
any number of ranks.
"""

from simdist.result._outcome import Event, FaultResult, JudgeFinding, RankResult, Status
from simdist.result._report import LINES, WIDTH, Report, report_of
from simdist.result._result import RunResult
from simdist.result._spans import Span, spans_of
from simdist.result._words import exit_words, how_it_ended

__all__ = [
    "LINES",
    "WIDTH",
    "Event",
    "FaultResult",
    "JudgeFinding",
    "RankResult",
    "Report",
    "RunResult",
    "Span",
    "Status",
    "exit_words",
    "how_it_ended",
    "report_of",
    "spans_of",
]
