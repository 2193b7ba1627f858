"""A calibration file: the measurements of `simdist calibrate`, as arguments of `simdist.cluster.build`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel

from simdist.scenario._reader import NotTomlError, read_toml
from simdist.scenario._schema import Problem, check, section
from simdist.settings import ANYTHING, SETTINGS
from simdist.values import ListOf, Number, Text, plain, shortened

__all__ = ["CalibrationError", "calibrated"]

_SHOWN = 8  # problems


class CalibrationError(Exception):
    """The file can't be used; the text says why."""


def _entry() -> type[BaseModel]:
    """Return the keys of [[world]]."""
    from simdist.cluster import BUILD  # networkx comes with it

    keys = {
        "ranks": (SETTINGS["world_size"], ...),
        "local_latency": (BUILD["local_latency_ns"], ...),
        "local_bandwidth": (BUILD["local_bandwidth_bytes_per_s"], ...),
        "error": (Number(), 0.0),
    }
    reductions = {"reduction_slowdown": 1.0, "reduction_latency_slowdown": 1.0, "reduction_from_bytes": 0}
    return section("Entry", keys | {name: (BUILD[name], default) for name, default in reductions.items()})


_FILE = section("File", {"backend": (Text(), ...), "world": (ListOf(ANYTHING), ...)})


def calibrated(path: Path, world_size: int) -> dict[str, Any]:
    """Return the entry of this world size.

    Raises:
        CalibrationError: there is no such file or entry, or `simdist calibrate` did not write the file.
    """
    name = shortened(plain(path.name), 200)
    try:
        raw = read_toml(path)
    except FileNotFoundError:
        raise CalibrationError(f"{name}: no such file") from None
    except NotTomlError as error:
        raise CalibrationError(f"{name}: {error}") from None
    problems: list[Problem] = []
    content = check(_FILE, raw, (), problems)
    listed = raw["world"] if isinstance(raw.get("world"), list) else []
    if content is not None and not listed:
        problems.append(Problem(("world",), "is empty; there is an entry for each number of ranks"))
    entries = [check(_entry(), entry, ("world", index), problems) for index, entry in enumerate(listed)]
    if problems:
        reported = "; ".join(str(problem) for problem in problems[:_SHOWN])
        more = f"; and {len(problems) - _SHOWN} more problems" if len(problems) > _SHOWN else ""
        raise CalibrationError(f"{name}: no calibration: {reported}{more}")
    worlds = {values["ranks"]: values for entry in entries if entry is not None for values in [dict(entry)]}
    if world_size not in worlds:
        known = ", ".join(map(str, worlds))
        raise CalibrationError(f"{name} has no entry for {world_size} ranks; it has {known}")
    entry = worlds[world_size]
    return {
        "local_latency_ns": entry["local_latency"],
        "local_bandwidth_bytes_per_s": entry["local_bandwidth"],
        "reduction_slowdown": entry["reduction_slowdown"],
        "reduction_latency_slowdown": entry["reduction_latency_slowdown"],
        "reduction_from_bytes": entry["reduction_from_bytes"],
    }
