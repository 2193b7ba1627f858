"""The rows of the benchmark: measurement, sides, format of the cells, and budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Figures = Mapping[str, float]
Cells = Mapping[str, Figures]  # by side; a side that failed is missing

PEERS = ("mtpg", "mtpg-pinned", "gloo", "gloo-spawned", "local-tensor")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    `requests` maps a side to the request for `tools/_bench_probes.py` (and the environment of its process); `notes`
    maps a side to a fixed text instead. `show` turns figures into a cell. `met` compares the sides; None if there is
    nothing to compare with.
    """

    group: str
    what: str
    requests: Mapping[str, Mapping[str, Any]]
    show: Callable[[Figures], str]
    budget: str
    met: Callable[[Cells], bool | None]
    notes: Mapping[str, str]


def rows(*, quick: bool, spawn: bool) -> list[Row]:
    """Return all rows, in the order of the design's table."""
    return [
        *(_start(ranks, quick=quick, spawn=spawn) for ranks in (4, 8, 64)),
        *(_calls(ranks, quick=quick) for ranks in (4, 8, 16, 64, 256, 1024)),
        *(_calls(4, quick=quick, name=name) for name in ("broadcast", "all_gather", "gather", "all_gather_object")),
        *(_bandwidth(ranks, mebibytes, quick=quick) for ranks, mebibytes in ((4, 64), (8, 64), (8, 25))),
        _ddp(quick=quick),
        _ddp_judged(quick=quick),
        *(_world(ranks, quick=quick) for ranks in (1024, 4096)),
        _timeout(quick=quick),
        _faulted(quick=quick),
        _import(quick=quick),
        _collect(quick=quick),
        _tests(),
        _suite(),
        _operation("python", 15, quick=quick),
        _operation("compiled", 2, quick=quick),
        *(_ddp_on_devices(form, quick=quick) for form in ("python", "compiled")),
        _disk_save(quick=quick),
        _disk_memory(sync=True, quick=quick),
        _disk_memory(sync=False, quick=quick),
    ]


def _start(ranks: int, *, quick: bool, spawn: bool) -> Row:
    limit = {4: 1.5e-3, 8: 2.5e-3}.get(ranks)
    request = {"probe": "start", "ranks": ranks}
    requests = {
        "simdist": request | {"repeat": 20 if quick else 100},
        "mtpg": request | {"repeat": 20 if quick else 100},
        "mtpg-pinned": request | {"repeat": 20 if quick else 100},
    }
    if ranks <= 8:
        requests["gloo"] = request | {"repeat": 3 if quick else 10}
        if spawn:
            requests["gloo-spawned"] = request | {"repeat": 1}
    return Row(
        "a",
        f"start {ranks} ranks, one all_reduce, tear down",
        _with_sides(requests),
        lambda figures: _milliseconds(figures["seconds"]),
        "" if limit is None else f"{limit * 1e3:g} ms",
        lambda cells: None if limit is None else cells["simdist"]["seconds"] <= limit,
        {},
    )


def _calls(ranks: int, *, quick: bool, name: str = "all_reduce") -> Row:
    request: dict[str, Any] = {"probe": "calls", "ranks": ranks, "repeat": 3 if quick else 5, "name": name}
    own, has_goal = max(8, 8000 // ranks), name == "all_reduce"
    peer = {4: 1000, 8: 500, 16: 200, 64: 60, 256: 12, 1024: 2}[ranks]
    requests = {"simdist": request | {"calls": own}}
    if not (quick and ranks == 1024):
        requests |= {side: request | {"calls": peer} for side in ("mtpg", "mtpg-pinned")}
    if ranks <= 8:
        requests["gloo"] = request | {"calls": 500}

    def met(cells: Cells) -> bool | None:
        mine = cells["simdist"]["per_second"]
        bars = [1.25 * cells["mtpg-pinned"]["per_second"]] if "mtpg-pinned" in cells else []
        if "gloo" in cells:
            bars.append(cells["gloo"]["per_second"])
        return mine >= max(bars) if bars and has_goal else None

    return Row(
        "b",
        f"blocking {name} of one {'number' if name.endswith('object') else 'float'}, {ranks} ranks",
        _with_sides(requests),
        lambda figures: _rate(figures["per_second"]),
        "1.25 x pinned MTPG" if has_goal else "",
        met,
        {},
    )


def _bandwidth(ranks: int, mebibytes: int, *, quick: bool) -> Row:
    elements = (mebibytes << 20) // 4
    request = {"ranks": ranks, "elements": elements, "repeat": 3 if quick else 7}
    requests: dict[str, Mapping[str, Any]] = dict(
        _with_sides({side: request | {"probe": "bandwidth"} for side in ("simdist", "mtpg", "gloo")})
    )
    requests["simdist-python"] = {**requests["simdist"], "environ": {"SIMDIST_NATIVE": "0"}}
    requests["local-tensor"] = request | {"probe": "bandwidth-local-tensor"}

    def met(cells: Cells) -> bool | None:
        peers = [cells[side]["bytes_per_second"] for side in PEERS if side in cells]
        if not peers:
            return None
        mine = cells["simdist"]
        return mine["bytes_per_second"] >= 3 * max(peers) and mine["extra_payloads"] < 1

    return Row(
        "c",
        f"all_reduce of {mebibytes} MiB, {ranks} ranks (extra memory in payloads)",
        requests,
        lambda figures: f"{figures['bytes_per_second'] / 1e9:.1f} GB/s (+{figures['extra_payloads']:.1f})",
        "3 x the best, extra < 1 payload",
        met,
        {},
    )


def _ddp(*, quick: bool) -> Row:
    request = {
        "probe": "ddp",
        "ranks": 4,
        "steps": 40 if quick else 150,
        "repeat": 3 if quick else 5,
        "environ": {"OMP_NUM_THREADS": "1"},  # as torchrun sets it; with more, small products only get slower
    }

    def met(cells: Cells) -> bool | None:
        bars = [cells[side]["per_second"] for side in ("mtpg-pinned", "gloo") if side in cells]
        return cells["simdist"]["per_second"] >= max(bars) if bars else None

    return Row(
        "d",
        "DDP steps of a 3 x 64 MLP, 4 ranks",
        _with_sides(dict.fromkeys(("simdist", "mtpg", "mtpg-pinned", "gloo"), request)),
        lambda figures: _rate(figures["per_second"]),
        "1 x pinned MTPG",
        met,
        {},
    )


def _ddp_judged(*, quick: bool) -> Row:
    request = {"probe": "ddp-judged", "ranks": 4, "steps": 40 if quick else 150, "repeat": 5 if quick else 15}
    return Row(
        "d",
        "DDP steps of a 3 x 64 MLP, 4 ranks, all judges on (against none)",
        {"simdist": {**request, "environ": {"OMP_NUM_THREADS": "1"}}},
        lambda figures: f"{_rate(figures['per_second'])} ({figures['ratio']:.2f} x)",
        "1.3 x without",
        lambda cells: cells["simdist"]["ratio"] <= 1.3,
        {},
    )


def _world(ranks: int, *, quick: bool) -> Row:
    limit = {1024: 0.5, 4096: 3.0}[ranks]
    request = {"probe": "world", "ranks": ranks}
    sides = ("simdist",) if quick and ranks > 1024 else ("simdist", "mtpg")
    return Row(
        "e",
        f"world of {ranks} ranks, one all_reduce (peak memory)",
        _with_sides(dict.fromkeys(sides, request)),
        lambda figures: f"{figures['seconds']:.2f} s ({figures['peak_bytes'] / 2**20:.0f} MiB)",
        f"{limit:g} s",
        lambda cells: cells["simdist"]["seconds"] <= limit,
        {},
    )


def _timeout(*, quick: bool) -> Row:
    return Row(
        "f",
        "30-minute timeout, 4 ranks, one never calls: to the report",
        {"simdist": {"probe": "timeout", "repeat": 5 if quick else 20}},
        lambda figures: _milliseconds(figures["seconds"]),
        "10 ms",
        lambda cells: cells["simdist"]["seconds"] <= 10e-3,
        {"gloo": "1 800 s by definition"},
    )


def _faulted(*, quick: bool) -> Row:
    return Row(
        "f",
        "4 ranks x 10 DDP steps with a random fault: runs per minute, 2 processes",
        {"simdist": {"probe": "faulted", "runs": 60 if quick else 300, "processes": 2}},
        lambda figures: f"{figures['per_minute']:,.0f}/min".replace(",", " "),
        "600/min",
        lambda cells: cells["simdist"]["per_minute"] >= 600,
        {"gloo": "about 40/min"},
    )


def _import(*, quick: bool) -> Row:
    return Row(
        "g",
        "import simdist, torch not imported",
        {"simdist": {"probe": "import", "repeat": 5 if quick else 11}},
        lambda figures: _milliseconds(figures["seconds"]) + (" with torch" if figures["torch_imported"] else ""),
        "100 ms",
        lambda cells: cells["simdist"]["seconds"] <= 100e-3 and not cells["simdist"]["torch_imported"],
        {},
    )


def _collect(*, quick: bool) -> Row:
    return Row(
        "h",
        "pytest --collect-only of 2000 tests that do not use the plugin: what it adds",
        {"simdist": {"probe": "collect", "tests": 2000, "repeat": 5 if quick else 15}},
        lambda figures: f"{_milliseconds(figures['added'])} of {_milliseconds(figures['seconds'])}",
        "50 ms",
        lambda cells: cells["simdist"]["added"] <= 50e-3,
        {},
    )


def _tests() -> Row:
    return Row(
        "h",
        "100 pytest tests of a 4-rank world, one all_reduce each (with the start of Python and torch)",
        {"simdist": {"probe": "tests", "tests": 100}},
        lambda figures: f"{figures['tests_seconds']:.2f} s ({figures['seconds']:.1f} s)",
        "5 s",
        lambda cells: cells["simdist"]["seconds"] <= 5,
        {},
    )


def _suite() -> Row:
    def met(cells: Cells) -> bool | None:
        return 20 * cells["simdist"]["seconds"] <= cells["gloo"]["seconds"] if "gloo" in cells else None

    return Row(
        "i",
        "a suite for MultiProcessTestCase, 51 tests (tools/suite.py: spawned as well)",
        {
            "simdist": {"probe": "suite", "arm": "simulated", "repeat": 3},
            "gloo": {"probe": "suite", "arm": "forked", "repeat": 1},
        },
        lambda figures: f"{figures['seconds']:.2f} s",
        "1/20 of Gloo",
        met,
        {},
    )


def _operation(form: str, most: int, *, quick: bool) -> Row:
    def show(figures: Figures) -> str:
        here, there = figures["cpu_seconds"] * 1e6, figures["seconds"] * 1e6
        return f"{there:.1f} us ({there / here:.1f} x {here:.1f} us)"

    environ = {"SIMDIST_DEVICE_KERNELS": form}
    request = {"probe": "device-operation", "calls": 3000, "repeat": 7 if quick else 25, "environ": environ}
    kernels = "in Python" if form == "python" else "in C++"
    return Row(
        "j",
        f"a + b of 8 x 8 on a virtual device, kernels {kernels} (against a plain CPU)",
        {"simdist": request},
        show,
        f"{most} x the CPU",
        lambda cells: cells["simdist"]["seconds"] <= most * cells["simdist"]["cpu_seconds"],
        {},
    )


def _ddp_on_devices(form: str, *, quick: bool) -> Row:
    request = {"probe": "device-ddp", "ranks": 4, "steps": 20 if quick else 50, "repeat": 3 if quick else 5}
    environ = {"OMP_NUM_THREADS": "1", "SIMDIST_DEVICE_KERNELS": form}
    kernels = "in Python" if form == "python" else "in C++"
    return Row(
        "j",
        f"DDP steps of a 3 x 64 MLP on virtual devices, kernels {kernels}, 4 ranks (on the CPU)",
        {"simdist": {**request, "environ": environ}},
        lambda figures: f"{_rate(figures['per_second'])} ({_rate(figures['cpu_per_second'])})",
        "",
        lambda cells: None,
        {},
    )


def _disk_save(*, quick: bool) -> Row:
    def show(figures: Figures) -> str:
        ratio = figures["seconds"] / figures["real_seconds"]
        return f"{figures['seconds']:.2f} s ({ratio:.1f} x {figures['real_seconds']:.2f} s)"

    return Row(
        "k",
        f"torch.save of {256 if quick else 1024} MiB to a simulated disk (to the same one without)",
        {"simdist": {"probe": "disk-save", "megabytes": 256 if quick else 1024, "count": 3}},
        show,
        "2 x the disk itself",
        lambda cells: cells["simdist"]["seconds"] <= 2 * cells["simdist"]["real_seconds"],
        {},
    )


def _disk_memory(*, sync: bool, quick: bool) -> Row:
    def show(figures: Figures) -> str:
        return f"{figures['bytes'] / 2**20:.0f} MiB for {figures['saved_bytes'] / 2**30:.1f} GiB"

    return Row(
        "k",
        f"checkpoints of 256 MiB to a simulated disk, {'' if sync else 'not '}synced, the last two kept: memory",
        {"simdist": {"probe": "disk-memory", "megabytes": 256, "count": 8 if quick else 40, "sync": sync}},
        show,
        "2 GiB",
        lambda cells: cells["simdist"]["bytes"] <= 2 * 2**30,
        {},
    )


def _with_sides(requests: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    return {side: {**request, "side": side} for side, request in requests.items()}


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms".replace(",", " ")


def _rate(per_second: float) -> str:
    digits = 0 if per_second >= 100 else 1
    return f"{per_second:,.{digits}f}/s".replace(",", " ")
