"""Hosts, links and what a message costs on them.

A cluster is a networkx graph of hosts with latency and bandwidth on its links, and a placement of ranks on hosts. The
`Network` answers, for a pair of ranks and an instant, how long a message takes and whether it gets through at all; link
faults are conditions that someone above adds to it. `_costs.py` holds the closed forms for whole collectives.

Open `_graph.py` first. Nothing here knows torch.
"""

from simdist.cluster._costs import (
    allgather_ns,
    allreduce_ns,
    alltoall_ns,
    barrier_ns,
    reduce_ns,
    reduce_segments,
    segments,
)
from simdist.cluster._graph import BUILD, Cluster, build
from simdist.cluster._network import Condition, Network, Path

__all__ = [
    "BUILD",
    "Cluster",
    "Condition",
    "Network",
    "Path",
    "allgather_ns",
    "allreduce_ns",
    "alltoall_ns",
    "barrier_ns",
    "build",
    "reduce_ns",
    "reduce_segments",
    "segments",
]
