"""Hosts, links and the cost of messages on them.

A cluster is a networkx graph of hosts with latency and bandwidth on its links, and a placement of ranks on hosts;
`_topologies.py` makes the usual ones. The `Network` alone decides how long wires are busy: everything that moves bytes
is a flow on its links, and flows share them by max-min fairness. For a pair of ranks and an instant it also knows the
latency of a message, and whether it gets through at all; link faults are conditions that a higher layer adds to it.
The backends define what a whole collective costs when nothing else is on the links, and its load on each. A
`Host` is a machine while a world lives: processes live on it, and it can go down and come back.

Open `_graph.py` first, then `_wires.py` (the speeds of flows, and when they are computed) and `_filling.py` (how).
Nothing here knows torch.
"""

from simdist.cluster._devices import DEVICE_MODELS, DeviceModel, DeviceModelSpec
from simdist.cluster._flows import Flow, Link, Load
from simdist.cluster._graph import BUILD, Cluster, build
from simdist.cluster._host import Host, Resident
from simdist.cluster._jitter import Jitter
from simdist.cluster._links import Path
from simdist.cluster._nccl import NcclModel
from simdist.cluster._network import Clock, Condition, Drawn, Network
from simdist.cluster._pace import Pace
from simdist.cluster._topologies import TOPOLOGIES, Topology, fat_tree, make, one_host, rail_optimised, switched
from simdist.cluster._topologies import problems_of as topology_problems

__all__ = [
    "BUILD",
    "DEVICE_MODELS",
    "TOPOLOGIES",
    "Clock",
    "Cluster",
    "Condition",
    "DeviceModel",
    "DeviceModelSpec",
    "Drawn",
    "Flow",
    "Host",
    "Jitter",
    "Link",
    "Load",
    "NcclModel",
    "Network",
    "Pace",
    "Path",
    "Resident",
    "Topology",
    "build",
    "fat_tree",
    "make",
    "one_host",
    "rail_optimised",
    "switched",
    "topology_problems",
]
