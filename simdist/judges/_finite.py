"""The first value that is not finite: where it was made, and how it reached the other ranks.

An optimizer should never step after a loss, or with gradients, that are infinite or NaN, or leave such parameters. The
judge also remembers and reports earlier signs: the first loss that was not finite, and the first reduction to which a
rank gave such a value. Alone these are no finding: a gradient scaler overflows on purpose, and skips the step.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import ClassVar

from simdist.c10d import OperationAdmitted
from simdist.c10d.calls import names_where
from simdist.judges._bits import first_not_finite, tensors_in
from simdist.judges._events import BackwardCalled, OptimizerBegins, OptimizerStepped
from simdist.judges._judge import Hearing, Judge, Moment
from simdist.judges._parameter_names import name_in_group, names_in_frames
from simdist.judges._sites import site_of
from simdist.kernel import PASS, Verdict

__all__ = ["Finite"]

_SPREAD = names_where(lambda row: row.reduces or (row.payload == "flat" and row.root == "gives"))


class Finite(Judge):
    """No optimizer steps after a loss or with gradients that are infinite or NaN, or leaves such parameters."""

    name: ClassVar[str] = "finite"
    compares_values: ClassVar[bool] = True

    def begin(self, hearing: Hearing) -> None:
        """Listen to losses, reductions and steps."""
        watch = _Watch(hearing)
        hearing.listen(BackwardCalled, watch.on_backward)
        hearing.look_before(OperationAdmitted, watch.on_operation)
        hearing.listen(OptimizerBegins, watch.on_begin)
        hearing.listen(OptimizerStepped, watch.on_step)


@dataclass(slots=True)
class _Sign:
    """A value on a rank that was not finite, before its optimizer stepped."""

    moment: Moment
    text: str
    is_loss: bool = False


class _Watch:
    """The judge's state for one world: the first signs in each rank's current step."""

    def __init__(self, hearing: Hearing) -> None:
        self._hearing = hearing
        self._signs: dict[tuple[int, int], list[_Sign]] = {}  # by life and rank
        self._done = False

    def on_backward(self, event: BackwardCalled) -> None:
        """Check a loss."""
        if self._done:
            return
        if first_not_finite(event.tensors) is None:  # earlier signs belong to a skipped step, or show in the gradients
            self._signs.pop((event.process.life, event.process.rank), None)
        else:
            moment = self._hearing.moment(event.process, event.where)
            self._sign(moment, f"its loss was not finite at {event.where}", is_loss=True)

    def on_operation(self, event: OperationAdmitted) -> Verdict:
        """Check the operands of a reduction, before it happens."""
        if self._done or event.operation not in _SPREAD:
            return PASS
        process = event.process
        signs = self._signs.get((process.life, process.rank))
        if (signs is None or len(signs) < 2) and first_not_finite(tensors_in(event.operands)) is not None:
            where = site_of(sys._getframe(1))
            self._sign(
                self._hearing.moment(process, where),
                f"it brought a value that was not finite into {event.operation} at {where}",
            )
        return PASS

    def on_begin(self, event: OptimizerBegins) -> None:
        """Check the gradients, and report a loss that was not finite, when a step begins."""
        if self._done:
            return
        self._look(event, "gradient")
        signs = self._signs.get((event.process.life, event.process.rank))
        loss = next((sign for sign in signs if sign.is_loss), None) if signs else None
        if loss is not None and not self._done:
            self._done = True
            self._hearing.find(
                f"the loss is not finite, and optimizer step {event.number} is taken",
                loss.moment,
                subject="loss",
                step=event.number,
                against=event.where,
            )

    def on_step(self, event: OptimizerStepped) -> None:
        """Check the parameters after a step. Then earlier signs no longer matter."""
        if self._done:
            return
        groups = event.optimizer.param_groups
        # Among ranks with equal content, only one is checked.
        one = len(groups) == 1  # hot
        parameters = groups[0]["params"] if one else [each for group in groups for each in group["params"]]
        content = self._hearing.newest.of((event.process, event.index, event.number), parameters)
        if content is None or not content.finite:
            self._look(event, "parameter")
            if content is not None:
                content.finite = not self._done
        self._signs.pop((event.process.life, event.process.rank), None)

    def _look(self, event: OptimizerBegins | OptimizerStepped, what: str) -> None:
        for place, group in enumerate(event.optimizer.param_groups):
            parameters = group["params"]
            tensors = [parameter.grad for parameter in parameters] if what == "gradient" else parameters
            index = first_not_finite(tensors)
            if index is not None:
                self._report(event, what, name_in_group(group, place, index, names_in_frames(sys._getframe(1))))
                return

    def _report(self, event: OptimizerBegins | OptimizerStepped, what: str, name: str) -> None:
        self._done = True
        process = event.process
        mine = self._hearing.moment(process, event.where)
        signs = [sign for (life, _), each in self._signs.items() if life == process.life for sign in each]
        first = min(signs, key=lambda sign: (sign.moment.events, sign.moment.rank), default=None)
        subject = f"gradient of {name}" if what == "gradient" else f"parameter {name}"
        when = f"{'in' if what == 'gradient' else 'after'} optimizer step {event.number}"
        moment = mine if first is None else first.moment
        elsewhere = moment.rank != process.rank
        notes = []
        if first is not None:
            notes += [sign.text for sign in signs if sign.moment.rank == first.moment.rank]
        elif what == "parameter":
            notes.append("its gradients were finite: the step made it")
        if elsewhere:
            notes.append(f"rank {process.rank} was the first to step with it, at {event.where}")
        self._hearing.find(
            f"{subject} is not finite {when}",
            moment,
            subject=name,
            step=event.number,
            against=event.where if event.where != moment.where else "",
            notes=notes,
        )

    def _sign(self, moment: Moment, text: str, *, is_loss: bool = False) -> None:
        self._signs.setdefault((moment.life, moment.rank), []).append(_Sign(moment, text, is_loss))
