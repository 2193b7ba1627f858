"""The format of torch's Flight Recorder: the version, the fields of a dump and of an entry, its names of types.

Two writers use it. A rank's own recorder (`simdist.c10d`) writes what real Gloo does: Gloo's recorder does not know
when an operation starts or ends, so a finished operation stays "scheduled", and is only marked "retired"
(FlightRecorder.hpp and ProcessGroupGloo.cpp, torch 2.13). The dumps of a whole run (`simdist.trace`) are for torch's
analyser, which takes a "scheduled" operation for one that hangs; so they say "completed" with its times, as NCCL does,
and list messages.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

__all__ = [
    "ELEMENT_BYTES",
    "SCALAR_TYPES",
    "flight_dump",
    "flight_entry",
    "flight_group",
    "flight_json",
    "flight_status",
]

_VERSION = "2.10"

SCALAR_TYPES: Mapping[str, str] = {  # Python's name of a type -> that of C++, in the order of c10::ScalarType
    "uint8": "Byte",
    "int8": "Char",
    "int16": "Short",
    "int32": "Int",
    "int64": "Long",
    "float16": "Half",
    "float32": "Float",
    "float64": "Double",
    "complex32": "ComplexHalf",
    "complex64": "ComplexFloat",
    "complex128": "ComplexDouble",
    "bool": "Bool",
    "qint8": "QInt8",
    "quint8": "QUInt8",
    "qint32": "QInt32",
    "bfloat16": "BFloat16",
    "quint4x2": "QUInt4x2",
    "quint2x4": "QUInt2x4",
    **{f"bits{kind}": f"Bits{kind}" for kind in ("1x8", "2x4", "4x2", "8", "16")},
    "float8_e5m2": "Float8_e5m2",
    "float8_e4m3fn": "Float8_e4m3fn",
    "float8_e5m2fnuz": "Float8_e5m2fnuz",
    "float8_e4m3fnuz": "Float8_e4m3fnuz",
    **{f"uint{bits}": f"UInt{bits}" for bits in (16, 32, 64, 1, 2, 3, 4, 5, 6, 7)},
    **{f"int{bits}": f"Int{bits}" for bits in (1, 2, 3, 4, 5, 6, 7)},
    "float8_e8m0fnu": "Float8_e8m0fnu",
    "float4_e2m1fn_x2": "Float4_e2m1fn_x2",
}
ELEMENT_BYTES: Mapping[str, int] = {  # of the types that process groups take
    "float32": 4,
    "float64": 8,
    "float16": 2,
    "bfloat16": 2,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "bool": 1,
    "complex64": 8,
    "complex128": 16,
}

Sizes = list[list[int]]


def flight_dump(
    config: Mapping[str, object],
    status: Mapping[str, object],
    entries: Sequence[Mapping[str, object]] | None,
    *,
    library: str = "",
) -> dict[str, object]:
    """A dump of a rank's recorder, as torch unpickles it; without entries if these are None."""
    found: dict[str, object] = {
        "version": _VERSION,
        "pg_config": config,
        "comm_lib_version": library,
        "pg_status": status,
    }
    return found if entries is None else {**found, "entries": entries}


def flight_json(dump: dict[str, object]) -> str:
    """A dump without frames as torch writes it in JSON: numbers of groups as text, 0 for unknown times."""
    found: dict[str, Any] = {**dump, "nccl_comm_state": {}}
    found["pg_status"] = {
        name: {key: str(value) for key, value in status.items()} for name, status in found["pg_status"].items()
    }
    for one in found.get("entries", ()):
        for name in ("time_discovered_started_ns", "time_discovered_completed_ns"):
            one[name] = one[name] or 0
    if not found.get("entries"):
        found.pop("entries", None)
    return json.dumps(found, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def flight_group(name: str, description: str, ranks: Iterable[int]) -> dict[str, str]:
    """A group in the configuration of a dump."""
    return {"name": name, "desc": description, "ranks": str(list(ranks))}


def flight_status(enqueued: int, completed: int, started: int = -1) -> dict[str, int]:
    """The progress of a group, in the status of a dump. Without timing it is unknown when an operation starts."""
    return {
        "last_enqueued_collective": enqueued,
        "last_started_collective": started,
        "last_completed_collective": completed,
    }


def flight_entry(
    *,
    record_id: int,
    pg_id: int,
    process_group: tuple[str, str],
    thread: tuple[str, str],
    collective_seq_id: int,
    p2p_seq_id: int = 0,
    op_id: int,
    profiling_name: str,
    time_created_ns: int,
    input_sizes: Sizes,
    output_sizes: Sizes,
    scalar_type: str,
    state: Literal["scheduled", "started", "completed"] = "scheduled",
    started_ns: int | None = None,
    completed_ns: int | None = None,
    duration_ms: float | None = None,
    retired: bool,
    timeout_ns: int | None = None,
    is_p2p: bool = False,
    frames: Iterable[tuple[str, int, str]] | None,
) -> dict[str, object]:
    """One operation, its fields in torch's order; `thread` is a name and an identifier, a frame (file, line, function).

    The entry has no `frames`, timeout or duration if these are None.
    """
    found: dict[str, object] = {}
    if frames is not None:
        found["frames"] = [{"name": function, "filename": file, "line": line} for file, line, function in frames]
    found |= {
        "record_id": record_id,
        "pg_id": pg_id,
        "process_group": process_group,
        "thread_name": thread[0],
        "thread_id": thread[1],
        "collective_seq_id": collective_seq_id,
        "p2p_seq_id": p2p_seq_id,
        "op_id": op_id,
        "profiling_name": profiling_name,
        "time_created_ns": time_created_ns,
        "input_sizes": input_sizes,
        "input_dtypes": [scalar_type] * len(input_sizes),
        "output_sizes": output_sizes,
        "output_dtypes": [scalar_type] * len(output_sizes),
        "state": state,
        "time_discovered_started_ns": started_ns,
        "time_discovered_completed_ns": completed_ns,
        "retired": retired,
    }
    if duration_ms is not None:
        found["duration_ms"] = duration_ms
    if timeout_ns is not None:
        found["timeout_ms"] = timeout_ns // 1_000_000
    return found | {"is_p2p": is_p2p}
