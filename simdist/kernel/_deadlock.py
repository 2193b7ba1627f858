"""The report when no task can ever run again, or all only poll: the waits, and the cycle among them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

import networkx as nx

from simdist.errors import DeadlockError, LivelockError
from simdist.frames import frames_by_thread, user_line
from simdist.kernel._task import Task, TaskState

if TYPE_CHECKING:
    from simdist.kernel._simulation import Simulation

__all__ = ["Wait", "describe_deadlock", "describe_livelock"]


class Wait(Protocol):
    """What a task is parked on. Both methods are called only when something went wrong."""

    def describe(self) -> str:
        """The wait in words that a user knows: the operation, its group, its peers."""
        ...

    def waits_for(self) -> Iterable[Task]:
        """The tasks that could end this wait, in a fixed order."""
        ...


def describe_deadlock(simulation: Simulation) -> DeadlockError | None:
    """The report of the tasks that wait for each other in a cycle, or None if there is no cycle."""
    parked = [task for task in simulation.tasks if task.state is TaskState.PARKED and task.waiting is not None]
    may_go_on = _that_may_go_on(parked)
    stuck = [task for task in parked if task not in may_go_on]
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(task.name for task in stuck)
    for task in stuck:
        assert task.waiting is not None
        for other in task.waiting.waits_for():
            if other.name in graph and not other.paused:
                graph.add_edge(task.name, other.name)
    cycle = _shortest_cycle(graph)
    if not cycle:
        return None
    return DeadlockError(_report(simulation, parked, cycle), cycle, simulation.now_ns)


def _that_may_go_on(parked: Sequence[Task]) -> list[Task]:
    """The tasks whose wait ends without others, like a wait for an event with a timeout, and all that wait for them.

    Without daemons: a daemon that looks every second whether there is anything to do would hide every deadlock.
    """
    found = [task for task in parked if not task.daemon and getattr(task.waiting, "timed", False)]
    if not found:
        return []
    waits = {task: list(task.waiting.waits_for()) for task in parked if task.waiting is not None}
    for other in found:  # it grows meanwhile
        found += [task for task, awaited in waits.items() if other in awaited and task not in found]
    return found


def describe_livelock(simulation: Simulation) -> LivelockError:
    """Return the report of the tasks that only sleep and poll, each with its line of code."""
    alive = [task for task in simulation.tasks if task.state not in (TaskState.DONE, TaskState.FROZEN)]
    frames = frames_by_thread()
    lines = [f"at {simulation.now_ns / 1e9:.9f} s nothing has happened for long but sleeping and asking:"]
    for task in alive[:32]:
        wait = f", in {task.waiting.describe()}" if task.waiting is not None else ""
        lines.append(f"  {task.name}{user_line(frames.get(task.ident))}{wait}")
    if len(alive) > 32:
        lines.append(f"  and {len(alive) - 32} more tasks")
    lines.append("a loop that would have ended may sleep longer each time, or call simdist.step(i) when it gets on")
    return LivelockError("\n".join(lines))


def _shortest_cycle(graph: nx.DiGraph[str]) -> list[str]:
    # The first non-trivial component in task order, and in it the shortest way from its first task back to itself.
    components = [c for c in nx.strongly_connected_components(graph) if len(c) > 1 or graph.has_edge(*(list(c) * 2))]
    if not components:
        return []
    order = {name: index for index, name in enumerate(graph.nodes)}
    component = min(components, key=lambda c: min(order[name] for name in c))
    start = min(component, key=order.__getitem__)
    inside = graph.subgraph(component)
    ways = [
        nx.shortest_path(inside, successor, start)
        for successor in sorted(inside.successors(start), key=order.__getitem__)
    ]
    return [start, *min(ways, key=len)]


def _report(simulation: Simulation, parked: Sequence[Task], cycle: Sequence[str]) -> str:
    lines = [
        f"deadlock at {simulation.now_ns / 1e9:.9f} s: {' -> '.join(cycle)}",
        *(
            f"  {task.name} waits in {task.waiting.describe()} since {task.parked_at_ns / 1e9:.9f} s"
            for task in parked[:32]
            if task.waiting is not None
        ),
    ]
    if len(parked) > 32:
        lines.append(f"  and {len(parked) - 32} more tasks")
    finished = [task.name for task in simulation.tasks if task.state is TaskState.DONE]
    if finished:
        shown = ", ".join(finished[:16]) + (f" and {len(finished) - 16} more" if len(finished) > 16 else "")
        lines.append(f"  finished before: {shown}")
    return "\n".join(lines)
