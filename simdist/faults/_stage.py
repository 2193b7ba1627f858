"""What a fault can do to a simulation, and to the rank that it strikes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from simdist.cluster import Condition, Network
    from simdist.kernel import Verdict

__all__ = ["Stage", "StruckRank"]


class StruckRank(Protocol):
    """The rank that a fault strikes, simulated or real: what can be done to its process."""

    @property
    def rank(self) -> int:
        """Its rank in the world."""
        ...

    @property
    def life(self) -> int:
        """The restart round, counted from 0."""
        ...

    @property
    def is_real(self) -> bool:
        """True for a real process."""
        ...

    def kill(self, signal: str) -> None:
        """The process dies of a signal, "SIGKILL"; no `finally` runs."""
        ...

    def exit(self, code: int) -> None:
        """The process leaves as by `os._exit`."""
        ...

    def signal(self, signal: str) -> None:
        """The process gets a signal, "SIGTERM": its handler runs, or what is usual without one happens."""
        ...

    def stop(self, duration_ns: int | None) -> None:
        """The process stops, as under SIGSTOP, for a while or (None) until the fault is lifted."""
        ...

    def crash_host(
        self, down_ns: int | None, *, every: bool = False, outcome: int | None = None, disks: str = "own"
    ) -> None:
        """The machine of the process goes down, for a while or (None) until the fault is lifted; simulated only.

        With `every` all machines do. `outcome` says which of the admissible outcomes their disks take, counted from 0,
        the most suspicious first; None draws one. `disks` is what becomes of those that hosts have of their own: "own",
        "empty" or "swapped" (see `HostCrash`).
        """
        ...

    def break_device(self, error: str) -> None:
        """The devices of the process break: for good ("ecc", "lost"), or for the next allocation ("oom"); simulated."""
        ...


class Stage(Protocol):
    """A simulation, as one fault sees it. All that the fault sets up here ends when it is lifted."""

    @property
    def now_ns(self) -> int:
        """Virtual time."""
        ...

    @property
    def origin_ns(self) -> int:
        """From when the fault's times count: the start of the run, or the strike of the fault that it comes after."""
        ...

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        ...

    @property
    def network(self) -> Network:
        """What messages between ranks cost; see `keep` for what is laid on it."""
        ...

    def call_at(self, time_ns: int, action: Callable[[], None]) -> None:
        """Call `action` at a virtual time, soon if that has passed; never if the fault is lifted before."""
        ...

    def report(self) -> None:
        """The fault strikes now: it counts as struck, and the run's events say what it `begins` with."""
        ...

    def report_end(self) -> None:
        """The fault is over now: the run's events say what it `ends` with."""
        ...

    def draw(self, rank: int | None = None) -> float:
        """The next number from 0 to 1, by the run's seed, of the fault's own stream in the present life.

        With `rank` it is one for what this rank does: each rank has a stream of its own.
        """
        ...

    def number(self, *words: str | int) -> float:
        """A number from 0 to 1: always the same for the same words, the same fault and the run's seed."""
        ...

    def keep(self, condition: Condition) -> None:
        """The fault has laid this on the network; it ends when the fault is lifted."""
        ...

    def delay_operations(self, lateness_ns: Callable[[int, int], int]) -> None:
        """Before each operation ask `lateness_ns(rank, now_ns)`; it starts so much later."""
        ...

    def delay_requests(self, lateness_ns: Callable[[int, int], int]) -> None:
        """Before each request to the launcher's store ask `lateness_ns(rank, now_ns)`; it takes so much longer."""
        ...

    def delay_effects(self, lateness_ns: Callable[[int, int], int]) -> None:
        """Before each effect on a simulated disk ask `lateness_ns(rank, now_ns)`; it comes so much later."""
        ...

    def skew_clock(self, rank: int, skew_ns: Callable[[int], int]) -> None:
        """The wall clock of the host that a rank begins on is wrong by `skew_ns(time_ns)` at each virtual time."""
        ...

    def change_kernels(self, place: Callable[[int, str, int], tuple[int, float] | None]) -> None:
        """After each kernel of a virtual device ask `place(rank, name, size)` about its result of so many elements.

        It says which of them is multiplied, counted from 0, and by what; None: none. `name` is the operator's, "mm".
        """
        ...

    def lose_store(self) -> None:
        """The launcher's store is gone."""
        ...

    def stop_store(self) -> None:
        """The launcher's store does not answer from now on, that of a later life neither; see `resume_store`."""
        ...

    def resume_store(self) -> None:
        """It answers again, unless another fault has stopped it, too; also when the fault is lifted."""
        ...

    def keep_store(self) -> None:
        """A restart finds the launcher's store as the life before left it; the fault strikes then."""
        ...

    def judge(self, event: type, judge: Callable[[Any], Verdict]) -> None:
        """Put announced events of this type to `judge`; its verdict and those of others are added up.

        Announced are, in `simdist.c10d`, `OperationCalled`, `OperationAdmitted`, `MessageRead` and `StoreRequested`,
        in `simdist.process` `StepReached` and `PointReached`, and in `simdist.files` `StorageCalled`.
        """
        ...
