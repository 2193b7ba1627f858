"""How the members of a group find each other: through the store that they share.

Real Gloo exchanges addresses through the store and connects every pair, which is quadratic. Here the members meet in a
communicator that belongs to the store's server and is named by the store's prefix, and each parks once until all have
arrived. The visible parts of the exchange are kept: a key per rank, and the error of a rank whose peers never arrive.

Invariants:
- The groups that ever met at a prefix are in the server's `groups`, in the order of their first members. A member
  joins the first of them that has its size and not its rank; if there is none, it begins another. So a group that is
  made again under the same name (a new life, a second `init_process_group`) never meets members of a complete one.
- A communicator is `connected` once, a fixed time after the last member has joined, and stays so; a rank that waits
  parks until then and looks again each time it is woken.
- A member that fails before all have joined, or whose process ends, leaves the communicator. Its address stays in the
  store, and so do those of the members of an earlier group. A member reads the others' addresses `connect_ns` after
  the last of them is there. If a peer has not set its own by then, the member uses an old address, and the group never
  connects. So making a group again at one store is a race, as on real processes (torch 2.13 with
  torchrun's store: `destroy_process_group`, `init_process_group`; a restart).

Doubts: the port numbers decide which of two real processes opens the connection between them, and so what each sees
when the other is missing from a lazy group or has given up ("Connect timeout" after five times the timeout for the one
that waits, "Connection refused" for the one that opens); the simulation shows the view of the one that opens it. A rank
that is started again may complete a group that its earlier life's peers still wait in, because it was never complete.
Of two real processes the one with the lower port waits for the other. So one pair in four connects although one of the
two has read an old address; here none does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from torch.distributed.distributed_c10d import PG_WRAPPER_STORE_PREFIX

from simdist.c10d.calls._log import log
from simdist.c10d.calls._member import Member, MembersAwaited, MembersMet
from simdist.c10d.engine._communicator import Communicator
from simdist.c10d.engine._strategies import Backend, Unreachable
from simdist.c10d.surface._store import SimStore
from simdist.cluster import Network
from simdist.errors import SimdistError
from simdist.inside.torch import Place
from simdist.kernel import Task
from simdist.process import SimProcess

if TYPE_CHECKING:
    from simdist.c10d.engine._streamed import StreamCommunicator

__all__ = ["connect"]

_CONNECTING = 5  # times the group's timeout: how long Gloo waits for a connection (gloo/transport/tcp/pair.h)


class _Connecting:
    """A member waits for the others. `ranks` are the members' ranks in the world, if they are known."""

    def __init__(self, communicator: Communicator, ranks: Sequence[int]) -> None:
        self._communicator = communicator
        self._ranks = ranks

    def describe(self) -> str:
        return f"connecting group {self._communicator.name!r}; not there yet: {self._missing()}"

    def waits_for(self) -> Iterable[Task]:
        missing = {self._ranks[rank] for rank in self._missing()} if self._ranks else set()
        tasks = self._communicator.simulation.tasks
        # If a rank was started again, its last life counts.
        last = {task.context.rank: task for task in tasks if isinstance(task.context, SimProcess)}
        return [task for rank, task in sorted(last.items()) if rank in missing]

    def _missing(self) -> list[int]:
        return self._communicator.missing


class _Misled:
    """A member waits for a connection to an address where no member of its group listens, or that no peer makes."""

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator

    def describe(self) -> str:
        name = self._communicator.name
        return f"connecting group {name!r} by addresses in the store, where old ones stood as well"

    def waits_for(self) -> Iterable[Task]:
        return ()


def connect(
    process: SimProcess,
    network: Network,
    store: SimStore,
    rank: int,
    size: int,
    timeout_ns: int,
    backend: Backend,
    *,
    strict: bool = False,
    lazy: bool = False,
    ranks: Sequence[int] = (),
) -> Member:
    """Join the group that meets at `store`'s prefix; parks until all `size` members have joined, unless `lazy`.

    A member of a lazy group waits for the others before its first operation, by `Member.connect`. `ranks` are the
    members' ranks in the world, or empty if they are not known; a waiting member can then not name the tasks that it
    waits for.

    Raises:
        DistStoreError: not all joined within `timeout_ns`; a TCPStore's text names the key of the first one missing.
        DistNetworkError: the store is gone before they have.
        RuntimeError: likewise, at a FileStore.
        SimdistError: the store is a real one.
    """
    if not isinstance(store, SimStore):
        raise SimdistError(
            f"the group's store is a real {type(store).__name__}, made outside the simulation; "
            "make it inside the rank's function, or use init_method='env://'"
        )
    simulation = process.simulation
    prefix = store._name("")
    if simulation.policy.touch is not None:
        simulation.policy.touch(("members", store.server.name, prefix), writes=False)  # each takes its own place
    communicator = _communicator_at(process, network, store, rank, size, backend, strict=strict, ranks=ranks)
    if not backend.completion.on_streams:
        store.announce(f"0/{rank}", b"simdist")
        if store.server.stopped:
            _wait_for_answer(process, store, 1 if rank == 0 else 0, timeout_ns)
    if store.server.gone:
        store.require_server(process)
    member = communicator.join(rank, process)
    bus = simulation.bus
    if bus.heard and bus.hears(MembersAwaited):
        bus.report(MembersAwaited(process, communicator, -1))
    if backend.completion.on_streams:
        return member  # its connections are made later, one by one
    if communicator.joined == size and not communicator.misled:
        begin = simulation.now_ns + (backend.connect_ns if size > 1 else 0)
        simulation.call_at(begin, lambda: _release(communicator))
    elif communicator.deserted:
        _wake(communicator)  # the last address may be there
    wait = _Connecting(communicator, ranks)
    limit_ns = timeout_ns
    if store._kind == "file":
        limit_ns = (timeout_ns // 1_000_000_000 + 1) * 1_000_000_000  # a FileStore counts in whole seconds

    def withdraw(_: SimProcess) -> None:
        if not communicator.connected:
            communicator.withdraw(member)

    def has_old_addresses() -> bool:
        return communicator.deserted or store.server.outlived or len(store.server.groups[prefix]) > 1

    def wait_for_all() -> None:
        limited, late_ns = backend.failure.has_timeouts and size > 1, backend.failure.late_ns
        deadline_ns = simulation.now_ns + limit_ns + late_ns if limited else None
        task, server = simulation.check(), store.server
        server.connected[task] = None
        if not lazy:
            process.end_listeners[withdraw] = None
        try:
            while not communicator.connected:
                if backend.unreachable is not None and has_old_addresses():
                    _look_for_others(process, store, communicator, rank, backend.unreachable, timeout_ns)
                if communicator.joined < size:
                    store.require_server(process)
                if not simulation.park(wait, deadline_ns) and not communicator.connected:
                    missing = next((r for r in communicator.missing if not server.has(f"{prefix}0/{r}")), 0)
                    store._give_up(
                        [f"{prefix}0/{missing}"], timedelta(milliseconds=timeout_ns // 1_000_000), "Wait timeout"
                    )
        except BaseException:
            if not lazy:
                withdraw(process)
            raise
        finally:
            process.end_listeners.pop(withdraw, None)
            server.connected.pop(task, None)
        if bus.heard and bus.hears(MembersMet):
            bus.report(MembersMet(process, communicator, -1))
        process.drain()

    if lazy:
        member.connect = wait_for_all
    else:
        wait_for_all()
    return member


def _look_for_others(
    process: SimProcess,
    store: SimStore,
    communicator: Communicator,
    rank: int,
    words: Unreachable,
    timeout_ns: int,
) -> None:
    """Read the others' addresses, in a store that has old addresses; returns at once if one is not there yet.

    Raises:
        RuntimeError: a peer has not set its new address yet, or a member of the group has read too early.
    """
    simulation, prefix = process.simulation, store._name("0/")

    def early() -> list[int]:
        missing = communicator.missing
        return missing if all(store.server.has(f"{prefix}{peer}") for peer in missing) else []

    def is_alive(peer: int) -> bool:
        before = [generation.members[peer] for generation in store.server.groups[store._name("")]]
        return any(member is not None and member.process.running for member in before)

    misled_by = early()
    if misled_by:
        simulation.sleep(communicator.backend.connect_ns)
        misled_by = [peer for peer in misled_by if peer in communicator.missing]
    if not misled_by and not communicator.misled:
        return
    communicator.misled = True
    dead = next((peer for peer in misled_by if not is_alive(peer)), None)
    text = words.unconnected() if dead is None else words.refused_by_peer(dead, rank)
    if dead is None:
        wait, deadline_ns = _Misled(communicator), simulation.now_ns + _CONNECTING * timeout_ns
        while simulation.park(wait, deadline_ns):
            pass  # woken for another reason
    log(process, "E", text, Place.MESH_FAILED)
    raise RuntimeError(text)


def _wait_for_answer(process: SimProcess, store: SimStore, peer: int, timeout_ns: int) -> None:
    """Wait at a store that does not answer; the wait for the `peer`'s key may have timed out when it does."""
    asked_ns = process.simulation.now_ns
    store.server.wait_for_answer(process)
    if process.simulation.now_ns - asked_ns >= timeout_ns and not store.server.gone:
        store._give_up([f"{store._name('')}0/{peer}"], timedelta(milliseconds=timeout_ns // 1_000_000), "Wait timeout")


def _communicator_at(
    process: SimProcess,
    network: Network,
    store: SimStore,
    rank: int,
    size: int,
    backend: Backend,
    *,
    strict: bool,
    ranks: Sequence[int],
) -> Communicator:
    """Return the communicator that meets at the store's prefix and lacks this rank; a new one if there is none."""
    prefix = store._name("")
    generations = store.server.groups.setdefault(prefix, [])
    known: Communicator
    for known in generations:
        if known.size == size and known.members[rank] is None:
            return known
    name, simulation = _group_name(prefix), process.simulation
    made: Communicator
    if backend.completion.on_streams:
        kind = _stream_communicator(backend)
        made = kind(simulation, network, name, size, backend, strict=strict, ranks=ranks)
    else:
        made = _communicator(backend)(simulation, network, name, size, backend, strict=strict)
    made.again = bool(generations)
    generations.append(made)
    return made


def _communicator(backend: Backend) -> type[Communicator]:
    if backend.moves_payloads:
        return Communicator
    from simdist.c10d.engine._unmoved import UnmovedCommunicator  # few worlds need it

    return UnmovedCommunicator


def _stream_communicator(backend: Backend) -> type[StreamCommunicator]:
    from simdist.c10d.engine._streamed import StreamCommunicator  # imports devices

    if backend.moves_payloads:
        return StreamCommunicator
    from simdist.c10d.engine._unmoved_streamed import UnmovedStreamCommunicator

    return UnmovedStreamCommunicator


def _release(communicator: Communicator) -> None:
    communicator.connected = communicator.joined == communicator.size  # a member may have left since
    _wake(communicator)


def _wake(communicator: Communicator) -> None:
    for member in communicator.members:
        if member is not None:
            member.process.wake()


def _group_name(prefix: str) -> str:
    # "default_pg/0//cpu//" -> "0": torch's own name of the group.
    parts = [part for part in prefix.split("/") if part]
    if parts and parts[-1].startswith(f"{PG_WRAPPER_STORE_PREFIX}:"):  # the group over which its ranks compare calls
        return parts[-1]
    return parts[-2] if len(parts) >= 2 else prefix
