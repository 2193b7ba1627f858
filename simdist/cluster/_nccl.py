"""NCCL's view of a cluster's GPUs and links, if it is wanted: plain data, which the NCCL backend reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from simdist.cluster._model_spec import Described
from simdist.values import Bandwidth, Maybe, OneOf, Whole

__all__ = ["NcclModel"]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class NcclModel(Described):
    """How NCCL adds up and what it costs: by its own tuning model, on a graph of channels.

    `algorithm` and `protocol` are NCCL's own choice if they are "auto". `channels`, and the bandwidth of each within a
    host and between hosts, come from the cluster's links unless they are given. `gpu` is the GPUs' generation, `cpu`
    the CPUs' maker, `links` the connection between the GPUs of a host.

    Raises:
        TopologyError: an argument is invalid.

    Example:
        >>> NcclModel(algorithm="tree", channels=2)
        simdist.cluster.NcclModel(algorithm='tree', channels=2)
    """

    algorithm: Annotated[str, OneOf(("auto", "ring", "tree"))] = "auto"
    protocol: Annotated[str, OneOf(("auto", "ll", "ll128", "simple"))] = "auto"
    channels: Annotated[int | None, Maybe(Whole(least=1, most=64))] = None
    gpu: Annotated[str, OneOf(("volta", "ampere", "hopper", "blackwell"))] = "hopper"
    cpu: Annotated[str, OneOf(("intel", "amd"))] = "intel"
    links: Annotated[str, OneOf(("nvlink", "pci"))] = "nvlink"
    local_bandwidth_bytes_per_s: Annotated[int | None, Maybe(Bandwidth())] = None
    bandwidth_bytes_per_s: Annotated[int | None, Maybe(Bandwidth())] = None
