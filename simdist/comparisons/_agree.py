"""`simdist.agree`: compares one training on one rank and on several."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack

from simdist.api import run
from simdist.comparisons._layouts import (
    Layout,
    Leaf,
    in_order,
    leaves_of,
    ratio_between,
    relative_error,
    tolerance_of,
    whole_of,
)
from simdist.errors import ArgumentError, RunFailedError
from simdist.result import RunResult, report_of
from simdist.values import Shown

if TYPE_CHECKING:
    import torch

    from simdist.settings import AgreeSettings

__all__ = ["AgreeReport", "LayoutDifference", "agree"]


@dataclass(frozen=True, slots=True)
class LayoutDifference:
    """A layout's first difference from one rank: the step (None: at the end), the value's name, and how it differs.

    `error` is the largest difference relative to the largest element, `tolerance` the allowed one for its type. `ratio`
    is a factor that alone explains the difference from the value of one rank.
    """

    layout: Layout
    problem: str
    step: int | None = None
    name: str = ""
    error: float = 0.0
    tolerance: float = 0.0
    ratio: float | None = None

    def __str__(self) -> str:
        where = f", step {self.step}" if self.step is not None else ""
        return f"{self.layout}{where}: {self.problem}"


@dataclass(frozen=True, slots=True)
class AgreeReport(Shown):
    """The result of `agree`: for each layout that differs from one rank, the first difference; and all results."""

    layouts: tuple[Layout, ...]
    differences: tuple[LayoutDifference, ...]
    compared: int  # values of one rank that were compared with each layout
    results: tuple[RunResult, ...]  # of one rank, and of each layout

    @property
    def ok(self) -> bool:
        """True if every layout agrees with one rank."""
        return not self.differences

    def __str__(self) -> str:
        bad = {difference.layout: difference for difference in self.differences}
        return "\n".join(
            str(bad[layout]) if layout in bad else f"{layout}: {self.compared} values as on one rank"
            for layout in self.layouts
        )

    def raise_for_failure(self) -> None:
        """Do nothing if all layouts agree.

        Raises:
            RunFailedError: the layouts differ; its text is the report.
        """
        if not self.ok:
            raise RunFailedError(f"{len(self.differences)} of {len(self.layouts)} layouts differ from one rank\n{self}")


def agree(
    train: Callable[[Layout], object],
    *,
    layouts: Iterable[Layout | int | Mapping[str, int]],
    tolerance: float | None = None,
    **settings: Unpack[AgreeSettings],
) -> AgreeReport:
    """Run one training on one rank and in each layout, and compare the returned values, step by step.

    `train(layout)` is called on every rank. It trains with the same global batch in every layout, divides it by
    `layout["dp"]` and the like, and returns the values that have to agree: numbers and tensors under names, such as
    `{"loss": [...], "grad_norm": [...], "gradients": [{...}, ...], "parameters": {...}}`. Lists are steps.
    A rank may return its part of a tensor: a DTensor, or a plain one that is smaller in one dimension, whose parts lie
    in the order of ranks. A rank without a value leaves its name out.

    Args:
        train: the program of a rank.
        layouts: numbers of ranks, or mappings such as `{"dp": 2, "tp": 2}`.
        tolerance: the allowed difference of values, relative to the largest element; by default that of sums in another
            order, by type: 1.2e-4 in float32, 0.03 in float16, 0.09 in bfloat16, 2.3e-13 in float64. Numbers that are
            no tensors count as float32.
        settings: further settings of `simdist.run`.

    Returns:
        For each layout that does not agree the first differing step and name, and how it differs.

    Raises:
        ArgumentError: a layout is invalid, or `train` returned nothing to compare.
        RunFailedError: the run on one rank failed.
    """
    wanted, lines = [], []
    for index, given in enumerate(layouts):
        try:
            wanted.append(Layout.of(given))
        except ValueError as error:
            lines.append(f"layouts[{index}]: {error}")
    if "world_size" in settings:
        lines.append("world_size: follows from the layout; leave it out")
    if "args" in settings:
        lines.append("args: the layout is the only one; bind others with functools.partial")
    if settings.get("values", "all") != "all":
        lines.append("values: what layouts train is compared; leave it out")
    if lines:
        raise ArgumentError("simdist.agree", lines)
    single = run(train, world_size=1, args=(Layout(),), **settings)
    single.raise_for_failure()
    reference = in_order(list(leaves_of(single.ranks[0].value)))
    if not [leaf for leaf in reference if leaf.value is not None]:
        raise ArgumentError("simdist.agree", ["train: returned nothing to compare; return tensors under names"])
    results = [run(train, world_size=layout.world_size, args=(layout,), **settings) for layout in wanted]
    found = [
        _first_difference(layout, result, reference, tolerance) for layout, result in zip(wanted, results, strict=True)
    ]
    differences = tuple(each for each in found if each is not None)
    return AgreeReport(tuple(wanted), differences, len(reference), (single, *results))


def _first_difference(
    layout: Layout, result: RunResult, reference: list[Leaf], tolerance: float | None
) -> LayoutDifference | None:
    if not result.ok:
        return LayoutDifference(layout, f"the run failed: {report_of(result).headline}")
    returned: dict[tuple[int | None, str], dict[int, object]] = {}
    for rank in result.ranks:
        for leaf in leaves_of(rank.value):
            if leaf.value is not None:
                returned.setdefault((leaf.step, leaf.name), {})[rank.rank] = leaf.value
    for leaf in reference:
        values = returned.pop((leaf.step, leaf.name), {})
        difference = _difference(layout, leaf, values, tolerance)
        if difference is not None:
            return replace(difference, step=leaf.step, name=leaf.name)
    for (step, name), values in returned.items():
        return LayoutDifference(layout, f"{name} of rank {min(values)} is none of the run on one rank", step, name)
    return None


def _difference(
    layout: Layout, leaf: Leaf, values: Mapping[int, object], tolerance: float | None
) -> LayoutDifference | None:
    name = leaf.name or "the value"
    if not values:
        return LayoutDifference(layout, f"no rank returned {name}")
    if isinstance(leaf.value, str | bytes):
        wrong = next((rank for rank, value in values.items() if value != leaf.value), None)
        return None if wrong is None else LayoutDifference(layout, f"{name} of rank {wrong} is another text")
    try:
        (expected,) = whole_of({0: leaf.value}, _tensor(leaf.value), 1).values()  # type: ignore[union-attr]  # no text: it has its own shape
        whole = whole_of(values, expected, layout.world_size)
    except (TypeError, ValueError, RuntimeError) as error:
        return LayoutDifference(layout, f"{name} can't be compared: {error}")
    if isinstance(whole, str):
        return LayoutDifference(layout, f"{name} {whole}")
    allowed = tolerance_of(expected.dtype) if tolerance is None else tolerance
    errors = {who: relative_error(value, expected) for who, value in whole.items()}
    of_parts = any(who.startswith("ranks [") for who in whole)  # in any of the possible orders
    worst = min(errors, key=errors.__getitem__) if of_parts else max(errors, key=errors.__getitem__)
    if errors[worst] <= allowed:
        return None
    ratio = ratio_between(whole[worst], expected)
    times = f": it is {ratio:.4g} times that of one rank" if ratio is not None else ""
    return LayoutDifference(
        layout,
        f"{name} of {worst} differs by {errors[worst]:.2g} of its largest element, and may by {allowed:.2g}{times}",
        error=errors[worst],
        tolerance=allowed,
        ratio=ratio,
    )


def _tensor(value: Any) -> torch.Tensor:
    import torch

    if hasattr(value, "placements"):
        whole: torch.Tensor = value.to_local()
        return whole
    return value.detach().cpu() if isinstance(value, torch.Tensor) else torch.tensor(float(value))
