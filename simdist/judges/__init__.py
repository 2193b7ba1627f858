"""Judges: rules for any distributed training, checked while it runs.

A fault injects an error on request. A judge does the reverse: it finds errors that nobody requested, even if nothing
fails. Each judge is one class (`Judge`) with one protocol: when a world is made, `begin` gets a `Hearing`, through
which the judge listens to the world's bus and reports its findings (`find`).

| judge | finds |
|---|---|
| `Replicas` | parameters, gradients and optimizer state that should be equal on several ranks, and are not |
| `Collectives` | collectives that some ranks called more often, works without a wait, gradients that count twice |
| `Buffers` | tensors that are changed while a send or a collective still holds them |
| `Races` | files and keys of stores that several ranks use in no defined order |
| `Finite` | the first step with a value that is infinite or NaN, and the rank that made it |
| `Samples` | samples that are read twice or never in an epoch, epochs in the same order, workers that draw the same |

`_court.py` holds the hearings of one world. `_instruments.py` makes the events that only judges need (`_events.py`);
nothing of torch is hooked or wrapped before a judge listens. `_order.py` has the order of events over ranks,
`_contents.py` makes one copy of equal contents of ranks, `_models.py` has the models in DDP. Worlds without judges
import nothing of this. A judge changes nothing: a run with judges has the same digest as the run without.

Open `_judge.py` first, then `samples/_samples.py` for an easy judge, and `replicas/_replicas.py` for the hardest.
"""

from simdist.judges._buffers import Buffers
from simdist.judges._collectives import Collectives
from simdist.judges._court import Court
from simdist.judges._events import (
    BackwardCalled,
    BatchDrawn,
    BatchRead,
    FileUsed,
    LoaderBegan,
    LoaderEnded,
    ModelWrapped,
    OptimizerBegins,
    OptimizerStepped,
    StateLoaded,
    WorkerReady,
)
from simdist.judges._finite import Finite
from simdist.judges._instruments import hear_of_files
from simdist.judges._judge import Ending, Hearing, Judge, Moment
from simdist.judges._names import JUDGES, judges_named, judges_of, judges_problem, names_of, with_names
from simdist.judges._trails import Step, Trails
from simdist.judges.races import Races
from simdist.judges.replicas import Replicas
from simdist.judges.samples import Samples

__all__ = [
    "JUDGES",
    "BackwardCalled",
    "BatchDrawn",
    "BatchRead",
    "Buffers",
    "Collectives",
    "Court",
    "Ending",
    "FileUsed",
    "Finite",
    "Hearing",
    "Judge",
    "LoaderBegan",
    "LoaderEnded",
    "ModelWrapped",
    "Moment",
    "OptimizerBegins",
    "OptimizerStepped",
    "Races",
    "Replicas",
    "Samples",
    "StateLoaded",
    "Step",
    "Trails",
    "WorkerReady",
    "hear_of_files",
    "judges_named",
    "judges_of",
    "judges_problem",
    "names_of",
    "with_names",
]
