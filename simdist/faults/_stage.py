"""The actions of a fault on a simulation, and on the rank that it strikes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from simdist.cluster import Condition, Network
    from simdist.kernel import Verdict

__all__ = ["Stage", "StruckRank"]


class StruckRank(Protocol):
    """The rank that a fault strikes, simulated or real: the actions on its process."""

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
        """Let the process die of a signal, "SIGKILL"; no `finally` runs."""
        ...

    def exit(self, code: int) -> None:
        """End the process as by `os._exit`."""
        ...

    def signal(self, signal: str) -> None:
        """Send the process a signal, "SIGTERM": its handler runs, or the default action without one."""
        ...

    def stop(self, duration_ns: int | None) -> None:
        """Stop the process, as under SIGSTOP, for a while or (None) until the fault is lifted."""
        ...

    def crash_host(
        self, down_ns: int | None, *, every: bool = False, outcome: int | None = None, disks: str = "own"
    ) -> None:
        """Take the machine of the process down, for a while or (None) until the fault is lifted; simulated only.

        With `every` all machines go down. `outcome` selects one of the admissible outcomes of their disks, counted from
        0, the most suspicious first; None draws one. `disks` says what happens to the hosts' own disks: "own", "empty"
        or "swapped" (see `HostCrash`).
        """
        ...

    def break_device(self, error: str) -> None:
        """Break the devices of the process: for good ("ecc", "lost"), or for the next allocation ("oom"). Simulated."""
        ...


class Stage(Protocol):
    """A simulation, as one fault sees it. Everything that the fault sets up here ends when it is lifted."""

    @property
    def now_ns(self) -> int:
        """Virtual time."""
        ...

    @property
    def origin_ns(self) -> int:
        """The origin of the fault's times: the start of the run, or the strike of the fault that it comes after."""
        ...

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        ...

    @property
    def network(self) -> Network:
        """The costs of messages between ranks; see `keep` for conditions that a fault lays on it."""
        ...

    def call_at(self, time_ns: int, action: Callable[[], None]) -> None:
        """Call `action` at a virtual time, soon if that has passed; never if the fault is lifted before."""
        ...

    def report(self) -> None:
        """Strike now: the fault counts as struck, and the run's events get the text of `begins`."""
        ...

    def report_end(self) -> None:
        """End now: the run's events get the text of `ends`."""
        ...

    def draw(self, rank: int | None = None) -> float:
        """Return the next number from 0 to 1, by the run's seed, of the fault's own stream in the present life.

        With `rank` the number is for an action of this rank: each rank has a stream of its own.
        """
        ...

    def number(self, *words: str | int) -> float:
        """Return a number from 0 to 1: always the same for the same words, the same fault and the run's seed."""
        ...

    def keep(self, condition: Condition) -> None:
        """Note a condition that the fault has laid on the network; it ends when the fault is lifted."""
        ...

    def delay_operations(self, lateness_ns: Callable[[int, int], int]) -> None:
        """Call `lateness_ns(rank, now_ns)` before each operation, which starts so much later."""
        ...

    def delay_requests(self, lateness_ns: Callable[[int, int], int]) -> None:
        """Call `lateness_ns(rank, now_ns)` before each request to the launcher's store, which takes so much longer."""
        ...

    def delay_effects(self, lateness_ns: Callable[[int, int], int]) -> None:
        """Call `lateness_ns(rank, now_ns)` before each effect on a simulated disk, which happens so much later."""
        ...

    def skew_clock(self, rank: int, skew_ns: Callable[[int], int]) -> None:
        """Set the wall clock of the host on which a rank begins wrong by `skew_ns(time_ns)` at each virtual time."""
        ...

    def change_kernels(self, place: Callable[[int, str, int], tuple[int, float] | None]) -> None:
        """Call `place(rank, name, size)` after each kernel of a virtual device; its result has `size` elements.

        `place` returns which element is multiplied, counted from 0, and the factor; None: none. `name` is the
        operator's, "mm".
        """
        ...

    def lose_store(self) -> None:
        """End the launcher's store."""
        ...

    def stop_store(self) -> None:
        """Stop the launcher's store from now on, also that of a later life; see `resume_store`."""
        ...

    def resume_store(self) -> None:
        """Let the store answer again, unless another fault has stopped it, too; also done when the fault is lifted."""
        ...

    def keep_store(self) -> None:
        """Let a restart find the launcher's store as the life before left it; the fault strikes then."""
        ...

    def judge(self, event: type, judge: Callable[[Any], Verdict]) -> None:
        """Put announced events of this type to `judge`; its verdict and those of other judges are added up.

        These events are announced: `OperationCalled`, `OperationAdmitted`, `MessageRead` and `StoreRequested` in
        `simdist.c10d`, `StepReached` and `PointReached` in `simdist.process`, and `StorageCalled` in `simdist.files`.
        """
        ...
