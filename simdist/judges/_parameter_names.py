"""What the program calls a parameter: its name in a module that the program has at hand where it steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

from torch import nn

from simdist.frames import user_frames

__all__ = ["name_in_group", "names_in_frames"]


def names_in_frames(frame: FrameType | None) -> dict[int, str]:
    """By the parameters' ids, their names in the modules and variables of the program's functions, innermost first."""
    found: dict[int, str] = {}
    for each in user_frames(frame):
        values = dict(each.f_locals)
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
    """The name of a parameter of an optimizer's group; its place where nobody has named it."""
    given: Sequence[str] = group.get("param_names", ())
    if index < len(given):
        return given[index]
    return names.get(id(group["params"][index])) or f"parameter {index} of group {place}"
