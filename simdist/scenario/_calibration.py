"""A calibration file: what `simdist calibrate` has measured, as arguments of `simdist.cluster.build`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from simdist.values import parse_bandwidth, parse_duration

__all__ = ["CalibrationError", "calibrated"]


class CalibrationError(Exception):
    """The file can't be used; the text says why."""


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    ranks: Annotated[int, Field(ge=1)]
    local_latency: Annotated[int, BeforeValidator(parse_duration)]
    local_bandwidth: Annotated[int, BeforeValidator(parse_bandwidth)]
    reduction_slowdown: Annotated[float, Field(gt=0, strict=False)] = 1.0
    reduction_latency_slowdown: Annotated[float, Field(gt=0, strict=False)] = 1.0
    reduction_from_bytes: Annotated[int, Field(ge=0)] = 0
    error: float = 0.0


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    backend: str
    world: Annotated[list[_Entry], Field(min_length=1)]


def calibrated(path: Path, world_size: int) -> dict[str, Any]:
    """The entry of this world size.

    Raises:
        CalibrationError: there is no such file or entry, or the file is none that `simdist calibrate` has written.
    """
    try:
        content = _File.model_validate(tomllib.loads(path.read_text("utf-8")))
    except OSError as error:
        raise CalibrationError(f"{path.name}: cannot be read: {error.strerror or error}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CalibrationError(f"{path.name}: not TOML: {error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise CalibrationError(f"{path.name}: no calibration: {where}: {first['msg']}") from None
    entry = next((entry for entry in content.world if entry.ranks == world_size), None)
    if entry is None:
        known = ", ".join(str(each.ranks) for each in content.world)
        raise CalibrationError(f"{path.name} has no entry for {world_size} ranks; it has {known}")
    return {
        "local_latency_ns": entry.local_latency,
        "local_bandwidth_bytes_per_s": entry.local_bandwidth,
        "reduction_slowdown": entry.reduction_slowdown,
        "reduction_latency_slowdown": entry.reduction_latency_slowdown,
        "reduction_from_bytes": entry.reduction_from_bytes,
    }
