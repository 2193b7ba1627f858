"""The program's name of a parameter: in a module that a function has as a variable at the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

from torch import nn

from simdist.frames import user_frames, variables_of

__all__ = ["name_in_group", "names_in_frames"]


def names_in_frames(frame: FrameType | None) -> dict[int, str]:
    """Return names of parameters by id, from modules and variables in the program's frames, innermost first."""
    found: dict[int, str] = {}
    for each in user_frames(frame):
        values = variables_of(each)
        owner = values.get("self")
        if owner is not None and not isinstance(owner, nn.Module):
            values |= {f"self.{name}": value for name, value in getattr(owner, "__dict__", {}).items()}
        for value in values.values():
            if isinstance(value, nn.Module):
                for name, parameter in value.named_parameters():
                    found.setdefault(id(parameter), name.removeprefix("module."))
        for name, value in values.items():
            if isinstance(value, nn.Parameter) or getattr(value, "requires_grad", False) is True:
                found.setdefault(id(value), name)
    return found


def name_in_group(group: Mapping[str, Any], place: int, index: int, names: Mapping[int, str]) -> str:
    """Return the name of a parameter in an optimizer's group; its place if it has no name."""
    given: Sequence[str] = group.get("param_names", ())
    if index < len(given):
        return given[index]
    return names.get(id(group["params"][index])) or f"parameter {index} of group {place}"
