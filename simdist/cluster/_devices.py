"""How long a device computes: a roofline from its data sheet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any

from simdist.errors import TopologyError
from simdist.values import (
    PYTHON,
    Bandwidth,
    Dialect,
    Duration,
    Finding,
    Maybe,
    Number,
    Spec,
    Unfit,
    brief,
    guess_or_list,
    settle_fields,
    specs_of,
)

__all__ = ["DEVICE_MODELS", "DeviceModel", "DeviceModelSpec"]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DeviceModel:
    """A kernel's time on its stream: the longer of its arithmetic and its traffic, but at least a launch.

    `flops` is the rate of matrix products, convolutions and attention per second in half precision, `flops_float32` and
    `flops_float64` in those types (by default the same). `bytes_per_s` is the rate at which every kernel reads and
    writes, and `host_bytes_per_s` (by default the same) that of copies from and to the host. `launch_ns` is the least
    time of a kernel.

    Raises:
        TopologyError: an argument is invalid.

    Example:
        >>> DeviceModel(flops=1e15, bytes_per_s=3_000_000_000_000, launch_ns=2_000).kernel_ns(0, 6_000_000)
        2000
    """

    flops: Annotated[float, Number(above=0)]
    bytes_per_s: Annotated[int, Bandwidth()]
    launch_ns: Annotated[int, Duration()] = 0
    flops_float32: Annotated[float | None, Maybe(Number(above=0))] = None
    flops_float64: Annotated[float | None, Maybe(Number(above=0))] = None
    host_bytes_per_s: Annotated[int | None, Maybe(Bandwidth())] = None

    def __post_init__(self) -> None:
        problems = settle_fields(self)
        if problems:
            raise TopologyError("; ".join(problems))

    def __repr__(self) -> str:
        said = (f"{each.name}={getattr(self, each.name)!r}" for each in fields(self))
        return f"simdist.cluster.DeviceModel({', '.join(said)})"

    def kernel_ns(self, flops: float, size_bytes: int, *, element_bytes: int = 2) -> int:
        """The time of a kernel with so many operations and bytes, on elements of `element_bytes`."""
        rate = {8: self.flops_float64, 4: self.flops_float32}.get(element_bytes) or self.flops
        return max(self.launch_ns, round(flops * 1e9 / rate), round(size_bytes * 1e9 / self.bytes_per_s))

    def copy_ns(self, size_bytes: int) -> int:
        """The time of a copy from or to the host."""
        return max(self.launch_ns, round(size_bytes * 1e9 / (self.host_bytes_per_s or self.bytes_per_s)))


# From NVIDIA's data sheets of the SXM modules: dense figures of tensor cores (never those of TF32: torch multiplies
# matrices of float32 in full precision unless a flag is set), memory, and half of PCIe's rate in both directions. A
# launch is in no data sheet.
DEVICE_MODELS: Mapping[str, DeviceModel] = {
    "a100": DeviceModel(
        flops=312e12,
        flops_float32=19.5e12,
        flops_float64=19.5e12,
        bytes_per_s=2_039_000_000_000,
        host_bytes_per_s=32_000_000_000,
    ),
    "h100": DeviceModel(
        flops=989e12,
        flops_float32=67e12,
        flops_float64=67e12,
        bytes_per_s=3_350_000_000_000,
        host_bytes_per_s=64_000_000_000,
    ),
}

# Keys of [device] in a scenario: the fields, without units.
_KEYS = {
    "flops": "flops",
    "bandwidth": "bytes_per_s",
    "launch": "launch_ns",
    "flops_float32": "flops_float32",
    "flops_float64": "flops_float64",
    "host_bandwidth": "host_bytes_per_s",
}


@dataclass(frozen=True, slots=True)
class DeviceModelSpec(Spec):
    """None, a `DeviceModel`, the name of one; or a table of its fields, where `model` names one to start from."""

    def check(self, value: object, dialect: Dialect = PYTHON) -> DeviceModel | None:
        if value is None or isinstance(value, DeviceModel):
            return value
        if isinstance(value, str):
            return _named(value, ())
        if not isinstance(value, Mapping):
            names = " or ".join(map(repr, DEVICE_MODELS))
            table = dialect.table if dialect.units else "a simdist.cluster.DeviceModel"
            raise Unfit([Finding((), f"expected {names}, or {table}, found {dialect.found(value)}")])
        return _from_table(value, dialect)


def _named(name: object, path: tuple[str, ...]) -> DeviceModel:
    if not isinstance(name, str) or name not in DEVICE_MODELS:
        hint = guess_or_list(str(name), DEVICE_MODELS)
        raise Unfit([Finding(path, f"unknown device {brief(name)}{hint}")])
    return DEVICE_MODELS[name]


def _from_table(table: Mapping[str, Any], dialect: Dialect) -> DeviceModel:
    specs = specs_of(DeviceModel)
    findings: list[Finding] = []
    said: dict[str, Any] = {}
    if "model" in table:
        try:
            said = asdict(_named(table["model"], ("model",)))
        except Unfit as unfit:
            findings += unfit.findings
    for key, value in table.items():
        if key == "model":
            continue
        if key not in _KEYS:
            findings.append(Finding((str(key),), f"unknown key{guess_or_list(str(key), ['model', *_KEYS])}"))
            continue
        try:
            said[_KEYS[key]] = specs[_KEYS[key]].check(value, dialect)
        except Unfit as unfit:
            findings += [Finding((key, *finding.path), finding.text) for finding in unfit.findings]
    if "model" not in table:
        findings += [
            Finding((key,), "missing; it has no default without a model")
            for key in ("flops", "bandwidth")
            if key not in table
        ]
    if findings:
        raise Unfit(findings)
    return DeviceModel(**said)
