"""Fakes for the kernel's tests: a wait, and a world of tasks that log what they do."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from simdist.kernel import Simulation, Task

__all__ = ["Script", "Waiting", "finish"]


@dataclass(eq=False)
class Waiting:
    """A wait for `tasks`."""

    text: str = "something"
    tasks: Sequence[Task] = ()

    def describe(self) -> str:
        return self.text

    def waits_for(self) -> Iterable[Task]:
        return self.tasks


class Script:
    """The tasks of one simulation, and a log of `(now_ns, entry)`."""

    def __init__(self, simulation: Simulation | None = None) -> None:
        self.simulation = Simulation() if simulation is None else simulation
        self.log: list[tuple[int, str]] = []
        self.tasks: dict[str, Task] = {}

    def note(self, entry: str) -> None:
        self.log.append((self.simulation.now_ns, entry))

    def task(self, name: str, function: Callable[[], object]) -> Task:
        def body() -> None:
            function()

        self.tasks[name] = self.simulation.spawn(body, name)
        return self.tasks[name]

    def sleepers(self, **spans_ns: int) -> None:
        """Spawn tasks that sleep for a span and then log their name."""

        def sleeper(name: str, span_ns: int) -> None:
            self.simulation.sleep(span_ns)
            self.note(name)

        for name, span_ns in spans_ns.items():
            self.task(name, functools.partial(sleeper, name, span_ns))

    def park(self, text: str = "something", *others: str, deadline_ns: int | None = None) -> bool:
        """Park the running task until it is woken, waiting for the tasks named."""
        waiting = Waiting(text, [self.tasks[name] for name in others])
        return self.simulation.park(waiting, deadline_ns)

    def run(self) -> list[tuple[int, str]]:
        """Run to the end, close, and return the log."""
        finish(self.simulation)
        return self.log


def finish(simulation: Simulation) -> None:
    """Run to the end and close; no thread may be left."""
    simulation.run()
    leaked = simulation.close()

    assert leaked == []
