"""Models of a cluster that have a section in a scenario."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Generic, TypeVar

from simdist.errors import TopologyError
from simdist.values import PYTHON, Dialect, Finding, Spec, Unfit, guess_or_list, settle_fields, specs_of

__all__ = ["Described", "ModelSpec"]

Model = TypeVar("Model")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Described:
    """The base of models: plain data, checked when it is made, shown as the call that makes it."""

    def __post_init__(self) -> None:
        problems = settle_fields(self)
        if problems:
            raise TopologyError("; ".join(problems))

    def __repr__(self) -> str:
        values = {each.name: (getattr(self, each.name), each.default) for each in fields(self)}
        said = ", ".join(f"{name}={value!r}" for name, (value, default) in values.items() if value != default)
        return f"simdist.cluster.{type(self).__name__}({said})"


@dataclass(frozen=True, slots=True)
class ModelSpec(Spec, Generic[Model]):
    """None, a `model`, or a table of its fields without their units: [nccl] or [jitter] in a scenario."""

    model: type[Model]

    def check(self, value: object, dialect: Dialect = PYTHON) -> Model | None:
        if value is None or isinstance(value, self.model):
            return value
        if not isinstance(value, Mapping):
            expected = dialect.table if dialect.units else f"a simdist.cluster.{self.model.__name__}"
            raise Unfit([Finding((), f"expected {expected}, found {dialect.found(value)}")])
        specs = specs_of(self.model)
        names = {name.removesuffix("_bytes_per_s").removesuffix("_ns"): name for name in specs}
        findings: list[Finding] = []
        said = {}
        for key, given in value.items():
            if key not in names:
                findings.append(Finding((str(key),), f"unknown key{guess_or_list(str(key), names)}"))
                continue
            try:
                said[names[key]] = specs[names[key]].check(given, dialect)
            except Unfit as unfit:
                findings += [Finding((key, *finding.path), finding.text) for finding in unfit.findings]
        if findings:
            raise Unfit(findings)
        return self.model(**said)
