"""The judge of replicas: copies of a model's parameters on several ranks, and the steps that train them.

Open `_replicas.py` first. `_tables.py` has the parameters of each rank, and which ranks are meant to be equal;
`_leaves.py` those of losses. The other files each have one rule: `_modes.py`, `_untrained.py`, `_kept_gradients.py`
and `_undone_steps.py`.
"""

from simdist.judges.replicas._leaves import leaves_of
from simdist.judges.replicas._replicas import Replicas

__all__ = ["Replicas", "leaves_of"]
