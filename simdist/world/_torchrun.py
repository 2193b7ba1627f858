"""The environment that torchrun gives to its workers, encoded as `os.environ` keeps it.

Cached, because worlds start by the thousand: the results must not be changed.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from simdist.process import encoded

__all__ = ["AGENT_HOST", "said_to_all", "said_to_rank"]

AGENT_HOST = "127.0.0.1"  # of the launcher's store


@functools.lru_cache(maxsize=64)
def said_to_all(world_size: int, hosts: int, port: int, restarts: int, max_restarts: int) -> Mapping[bytes, bytes]:
    """The variables of each rank of a life."""
    size = str(world_size)
    return encoded(
        {
            "WORLD_SIZE": size,
            "ROLE_WORLD_SIZE": size,
            "ROLE_NAME": "default",
            "GROUP_WORLD_SIZE": str(hosts),
            "MASTER_ADDR": AGENT_HOST,
            "MASTER_PORT": str(port),
            "TORCHELASTIC_RESTART_COUNT": str(restarts),
            "TORCHELASTIC_MAX_RESTARTS": str(max_restarts),
            "TORCHELASTIC_RUN_ID": "simdist",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
            "OMP_NUM_THREADS": "1",
        }
    )


@functools.lru_cache(maxsize=4096)
def said_to_rank(rank: int, local_rank: int, local_size: int, host_index: int) -> Mapping[bytes, bytes]:
    """The additional variables of one rank."""
    return encoded(
        {
            "RANK": str(rank),
            "LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": str(local_size),
            "GROUP_RANK": str(host_index),
            "ROLE_RANK": str(rank),
        }
    )
