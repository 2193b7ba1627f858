"""Judges: what must hold of any distributed training, asked while it runs.

A fault is something that goes wrong because somebody asked for it; a judge is the reverse: it finds what is wrong
although nobody did, and although nothing fails. Each is one class (`Judge`) behind one protocol: when a world is made,
`begin` is given a `Hearing`, through which the judge listens to the world's bus and reports what it found (`find`).

| judge | finds |
|---|---|
| `Replicas` | parameters, gradients and optimizer state that should be equal on several ranks, and are not |
| `Collectives` | collectives that some ranks called more often, works nobody waited for, gradients reduced twice |
| `Buffers` | tensors that are changed while a send or a collective still holds them |
| `Races` | files and keys of stores that several ranks use while nothing puts them in order |
| `Finite` | the first step with a value that is infinite or no number, and the rank that made it |
| `Samples` | samples that are read twice or never in an epoch, and epochs in the same order |

`_court.py` holds the hearings of one world, `_instruments.py` makes the events that only judges want (`_events.py`):
nothing of torch is hooked or wrapped before a judge listens to it. `_order.py` knows what happened before what,
`_contents.py` copies once what ranks hold alike, `_models.py` has the models in DDP. Nothing here is imported by worlds
without judges. A judge changes nothing: a run with judges has the digest of the run without.

Open `_judge.py` first, then `samples/_samples.py` for a judge that is easily read, and `_replicas.py` for the hardest.
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
)
from simdist.judges._finite import Finite
from simdist.judges._instruments import hear_of_files
from simdist.judges._judge import Ending, Hearing, Judge, Moment
from simdist.judges._names import JUDGES, judges_named, judges_of, judges_problem, names_of, with_names
from simdist.judges._replicas import Replicas
from simdist.judges._trails import Step, Trails
from simdist.judges.races import Races
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
    "Step",
    "Trails",
    "hear_of_files",
    "judges_named",
    "judges_of",
    "judges_problem",
    "names_of",
    "with_names",
]
