"""A program's reports on its training, for expectations: its state, and the samples that it uses."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping

import torch

from simdist.process import current_process
from simdist.records import samples_reported, state_reported

__all__ = ["samples", "state"]


def state(**parts: object) -> None:
    """Report the rank's state at the end of a step, as in `state(model=model, optimizer=optimizer)`.

    A part is a tensor, a generator, an object with a `state_dict` (a module, an optimizer, a gradient scaler), a dict
    or a list of these, or a plain value. A hash of each tensor is kept, so that expectations can report which one
    differs: `equal_states` between ranks, `same_states_as_without_faults` from the undisturbed run. Does nothing
    outside a simulation.
    """
    process = current_process()
    if process is None:
        return
    simulation = process.simulation
    simulation.check()
    reported = tuple(f"{name} {_hash(leaf)}" for part, value in parts.items() for name, leaf in _leaves(part, value))
    simulation.bus.record(state_reported(simulation.now_ns, process.rank, reported))


def samples(indices: Iterable[int], *, epoch: int = 0) -> None:
    """Report which samples of the data set the present step uses on this rank.

    The expectation `samples_once` counts them. Call it after `step`, once or more in each step. Does nothing outside a
    simulation.
    """
    process = current_process()
    if process is None:
        return
    simulation = process.simulation
    simulation.check()
    simulation.bus.record(
        samples_reported(simulation.now_ns, process.rank, int(epoch), tuple(int(index) for index in indices))
    )


def _leaves(name: str, value: object) -> Iterator[tuple[str, object]]:
    if hasattr(value, "state_dict"):
        value = value.state_dict()
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _leaves(f"{name}.{key}", each)
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            yield from _leaves(f"{name}[{index}]", each)
    else:
        yield name.replace(" ", "_"), value


def _hash(value: object) -> str:
    if isinstance(value, torch.Generator):
        value = value.get_state()
    if isinstance(value, torch.Tensor):
        part: torch.Tensor = getattr(value, "_local_tensor", value)  # this rank's part of a DTensor
        plain = part.detach().cpu().contiguous()
        data = f"{plain.dtype} {tuple(plain.shape)} ".encode() + bytes(plain.reshape(-1).view(torch.uint8).numpy())
    else:
        data = repr(value).encode(errors="surrogateescape")
    return hashlib.blake2b(data, digest_size=8).hexdigest()
