"""A rank's first environment, encoded as Python keeps it: the host's, torchrun's and the user's variables."""

from __future__ import annotations

from collections.abc import Mapping

from simdist.process import encoded
from simdist.world._spec import WorldSpec
from simdist.world._torchrun import said_to_all, said_to_rank

__all__ = ["host_environ", "rank_environ", "shared_environ"]

(_HOSTNAME,) = encoded({"HOSTNAME": ""})


def shared_environ(
    spec: WorldSpec, base: Mapping[bytes, bytes], world_size: int, hosts: int, port: int, restarts: int
) -> dict[bytes, bytes]:
    """The environment of all ranks of a life, based on the host's."""
    said: Mapping[bytes, bytes] = {}
    if spec.torchrun:
        said = said_to_all(world_size, hosts, port, restarts, spec.max_restarts)
    return {**base, **said, **encoded(dict(spec.env or {}))}


def host_environ(spec: WorldSpec, base: Mapping[bytes, bytes], host: str) -> dict[bytes, bytes]:
    """The variable in which shells and containers keep the machine's name, if the host has it."""
    named = _HOSTNAME in base and "HOSTNAME" not in (spec.env or {})
    return encoded({"HOSTNAME": host}) if named else {}


def rank_environ(
    spec: WorldSpec, life: int, rank: int, local_rank: int, local_size: int, host_index: int
) -> Mapping[bytes, bytes]:
    """The variables of one rank."""
    if not spec.torchrun:
        return {}
    said = said_to_rank(rank, local_rank, local_size, host_index)
    return (
        said if spec.rank_env is None else {**said, **encoded(dict(spec.rank_env(life, rank, local_rank, host_index)))}
    )
