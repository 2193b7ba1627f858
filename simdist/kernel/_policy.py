"""The order of tasks that are runnable at the same instant, and of requests that take equally long."""

from __future__ import annotations

import random
import re
from collections import deque
from collections.abc import Callable
from typing import Protocol

from simdist.kernel._orders import OrderPolicy
from simdist.kernel._streams import stream
from simdist.kernel._task import Task

__all__ = ["POLICIES", "FifoPolicy", "Policy", "PriorityPolicy", "RandomPolicy", "make_policy", "policy_problem"]

# Those without parameters; `make_policy` has the others.
POLICIES = ("fifo", "random")


class Policy(Protocol):
    """A bag of runnable tasks. `push` and `pop` are hot."""

    preempts: bool
    """True if a thread lets others run first where it takes a lock, even if the lock is free."""

    @property
    def touch(self) -> Callable[..., None] | None:
        """Called, if it is not None, with what the running task reads or changes that others may, too: see `Guide`."""
        ...

    def push(self, task: Task) -> None:
        """Add a task that became runnable."""

    def pop(self) -> Task:
        """Take the next task to run.

        Raises:
            IndexError: there is none.
        """
        ...

    def extra_ns(self, usual_ns: int) -> int:
        """The extra time on the way of something that would otherwise meet others at one instant."""
        ...

    def jitter_ns(self, most_ns: int) -> int:
        """How much later than usual something begins or ends, `most_ns` at most; see `cluster.Jitter`."""
        ...

    def __len__(self) -> int: ...


class FifoPolicy(deque[Task]):
    """First come, first served: the order in which tasks became runnable."""

    preempts = False
    touch = None
    push = deque.append
    pop = deque.popleft  # the other end of the deque, on purpose

    def extra_ns(self, usual_ns: int) -> int:
        """Return 0."""
        return 0

    def jitter_ns(self, most_ns: int) -> int:
        """Return 0."""
        return 0


class RandomPolicy:
    """Every runnable task is equally likely; the draws come from the stream "schedule" of the seed.

    Half of the messages and requests take as long as usual, the rest up to nine times as long: long enough for another
    rank to send a request and get the answer in between, as on real machines. These draws come from the stream
    "jitter".
    """

    preempts = True
    touch = None
    _BLOCK = 1024
    _LONGEST = 8  # times the usual length, on top of it

    def __init__(self, seed: int) -> None:
        self._tasks: list[Task] = []
        self.draw_from(seed)

    def draw_from(self, seed: int) -> None:
        """Take all further draws from this seed."""
        self._generator = stream(seed, "schedule")
        self._draws: list[int] = []
        self._jitter = stream(seed, "jitter")

    def push(self, task: Task) -> None:
        """Add a task that became runnable."""
        self._tasks.append(task)

    def extra_ns(self, usual_ns: int) -> int:
        """A random part of eight times the usual length, or none."""
        drawn = int(self._jitter.integers(-self._LONGEST * usual_ns, self._LONGEST * usual_ns + 1))
        return max(0, drawn)

    def jitter_ns(self, most_ns: int) -> int:
        """A random part of `most_ns`."""
        return int(self._jitter.integers(0, most_ns + 1))

    def pop(self) -> Task:
        """Take a runnable task at random."""
        count = len(self._tasks)
        if count < 2:
            return self._tasks.pop()
        if not self._draws:
            self._draws = self._generator.integers(0, 2**62, self._BLOCK).tolist()
        return self._tasks.pop(self._draws.pop() % count)

    def __len__(self) -> int:
        return len(self._tasks)


class PriorityPolicy:
    """Probabilistic concurrency testing: each task has a random priority, and the highest that is runnable runs.

    At `depth` - 1 turns, drawn from the seed, the task that would run falls behind all others. A bug that needs `depth`
    orders between tasks is found with a probability that does not shrink with the number of possible schedules
    (Burckhardt et al., "A randomized scheduler with probabilistic guarantees of finding bugs", 2010). The length of a
    run is not known before: the turns are drawn so that each power of two is equally likely. Requests of a task with a
    low priority take longer: as long again as usual for each task above it, up to eight times.
    """

    preempts = True
    touch = None
    _LONGEST = 8  # times the usual length, on top of it
    _LONGEST_RUN = 14  # in turns, as a power of two

    def __init__(self, seed: int, depth: int) -> None:
        self._tasks: list[Task] = []
        self._depth = depth
        self._turns = 0
        self.draw_from(seed)

    def draw_from(self, seed: int) -> None:
        """Draw priorities and change points anew from this seed."""
        # Not a generator of numpy, which takes a lock for each draw: it is a lock of the world, where other tasks may
        # go first.
        self._generator = random.Random(f"{seed} priorities")
        exponents = [self._generator.uniform(0, self._LONGEST_RUN) for _ in range(self._depth - 1)]
        self._changes = sorted(self._turns + int(2**exponent) for exponent in exponents)
        self._priorities: dict[Task, float] = {}  # the highest runs; those that fell are below zero
        self._fallen = 0
        self._last: Task | None = None

    def push(self, task: Task) -> None:
        """Add a task that became runnable."""
        self._tasks.append(task)
        if task not in self._priorities:
            self._priorities[task] = self._generator.random()

    def pop(self) -> Task:
        """Take the runnable task of the highest priority."""
        if not self._tasks:
            raise IndexError("no task is runnable")
        task = self._highest()
        if len(self._tasks) > 1:
            self._turns += 1
            while self._changes and self._turns >= self._changes[0]:
                self._changes.pop(0)
                self._fallen += 1
                self._priorities[task] = -float(self._fallen)
                task = self._highest()
        self._tasks.remove(task)
        self._last = task
        return task

    def _highest(self) -> Task:
        for task in self._tasks:  # those that were pushed before the draws began anew
            if task not in self._priorities:
                self._priorities[task] = self._generator.random()
        return max(self._tasks, key=self._priorities.__getitem__)

    def extra_ns(self, usual_ns: int) -> int:
        """As long again as usual for each task above the one that runs."""
        own = self._priorities.get(self._last, 0.0) if self._last is not None else 0.0
        above = sum(priority > own for priority in self._priorities.values())
        return usual_ns * min(above, self._LONGEST)

    def jitter_ns(self, most_ns: int) -> int:
        """A random part of `most_ns`."""
        return self._generator.randint(0, most_ns)

    def __len__(self) -> int:
        return len(self._tasks)


class _TurningPolicy:
    """Another policy that after a number of decisions draws from another seed: the run is the same up to there.

    Decisions are choices among several tasks, and durations.
    """

    preempts = True
    touch = None

    def __init__(self, policy: RandomPolicy | PriorityPolicy, decisions: int, seed: int) -> None:
        self._policy = policy
        self._left = decisions
        self._seed = seed
        self.push = policy.push

    def _decide(self) -> None:
        if self._left == 0:
            self._policy.draw_from(self._seed)
        self._left -= 1

    def pop(self) -> Task:
        """Take the next task of the other policy."""
        if len(self._policy) > 1:
            self._decide()
        return self._policy.pop()

    def extra_ns(self, usual_ns: int) -> int:
        """The other policy's extra time."""
        self._decide()
        return self._policy.extra_ns(usual_ns)

    def jitter_ns(self, most_ns: int) -> int:
        """The other policy's jitter."""
        self._decide()
        return self._policy.jitter_ns(most_ns)

    def __len__(self) -> int:
        return len(self._policy)


_SEED = r"[0-9]{1,19}"
_FORM = re.compile(
    r"(?P<name>random|pct(:(?P<depth>[1-9][0-9]?))?)"
    rf"(@(?P<seed>{_SEED})(\+(?P<decisions>[0-9]{{1,9}})@(?P<other>{_SEED}))?)?"
)
_ORDER = re.compile(r"order:(?P<places>[0-9]{1,6}(\.[0-9]{1,6})*)?")
_DEPTH = 3


def policy_problem(name: str) -> str:
    """Why there is no policy of this name; "" if there is one."""
    if name in POLICIES or _FORM.fullmatch(name) or _ORDER.fullmatch(name):
        return ""
    if name.startswith("order"):
        return "expected 'order:1.0.2', where a number says which of several tasks goes first"
    if name.startswith("pct"):
        return "expected 'pct' or 'pct:D', where D is a depth from 1 to 99"
    return f"unknown scheduling policy {name!r}; expected 'fifo', 'random', 'pct:D' or 'order:1.0.2'"


def make_policy(name: str, seed: int) -> Policy:
    """Return the policy called `name`: "fifo", "random", or "pct:D" with a depth D ("pct" is "pct:3").

    "NAME@S" draws from a seed S of its own, and "NAME@S+K@T" does so for K decisions, and then from the seed T.
    "order:1.0.2" has a place for each choice among several tasks.

    Raises:
        ValueError: there is no such policy.
    """
    if name == "fifo":
        return FifoPolicy()
    listed = _ORDER.fullmatch(name)
    if listed is not None:
        return OrderPolicy([int(place) for place in (listed["places"] or "0").split(".")])
    form = _FORM.fullmatch(name)
    if form is None:
        raise ValueError(policy_problem(name))
    seed = seed if form["seed"] is None else int(form["seed"])
    policy: RandomPolicy | PriorityPolicy
    policy = RandomPolicy(seed) if form["name"] == "random" else PriorityPolicy(seed, int(form["depth"] or _DEPTH))
    return policy if form["other"] is None else _TurningPolicy(policy, int(form["decisions"]), int(form["other"]))
