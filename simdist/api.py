"""The functions that users call: `run`, `spawn`, `step`, `point`."""

from __future__ import annotations

import datetime
import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from simdist.process import PointReached, SimProcess, StepReached, carry_out, current_process, handed_over, own
from simdist.records import step_begun
from simdist.result import RunResult
from simdist.settings import ALWAYS, START_TIME, call_text, check_settings
from simdist.world import World, WorldSpec

if TYPE_CHECKING:
    from simdist.cluster import Cluster
    from simdist.faults import Fault
    from simdist.judges import Judge
    from simdist.storage import Mount
    from simdist.world import SpawnContext

__all__ = ["point", "run", "spawn", "step"]

_T = TypeVar("_T")


def run(
    fn: Callable[..., _T],
    *,
    world_size: int,
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    backend: str = "gloo",
    seed: int = 0,
    cluster: Cluster | None = None,
    faults: Sequence[Fault] = (),
    max_restarts: int = 0,
    min_hosts: int | None = None,
    env: Mapping[str, str] | None = None,
    argv: Sequence[str] | None = None,
    policy: str = "fifo",
    start_time: datetime.date = START_TIME,
    isolate: bool | Sequence[str] = False,
    share: Sequence[str] = (),
    program_ns: int = 0,
    disk: Mount | str | os.PathLike[str] | None = None,
    strict: bool | None = None,
    judges: bool | Sequence[str | Judge] = False,
    record_results: bool = False,
    values: str = "all",
    stall_s: float = 30.0,
    echo: Callable[[int, int, str, str], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
    replay: str | None = None,
) -> RunResult[_T]:
    """Call `fn(*args, **kwargs)` once per rank, on simulated ranks, with the environment that torchrun sets.

    `fn` is ordinary code that imports torch.distributed; `init_process_group("gloo")` gives it a simulated group. All
    ranks share this process and its memory: what `fn` closes over is one object for all of them.

    Args:
        fn: the program of a rank.
        world_size: number of ranks.
        args: positional arguments of `fn`, the same on every rank.
        kwargs: keyword arguments of `fn`.
        backend: "gloo" behaves as Gloo does; "sim" is ideal: no timeouts, so what would time out is a deadlock. "nccl"
            is a world of virtual devices, one for each rank unless the cluster says otherwise, and NCCL on them. The
            program picks one in `init_process_group`.
        seed: drives the `random` policy, Python's and numpy's generators, and whatever else is drawn.
        cluster: hosts and links, from `simdist.cluster`; one host by default.
        faults: what goes wrong, from `simdist.faults`.
        max_restarts: how often all ranks are started again after one has failed, as torchrun does. With 0 nobody
            stops the others: each rank goes on to its own end.
        min_hosts: a restart goes on without hosts that are down if so many are left, the first among them, after the 30
            virtual seconds that a rendezvous waits for more; ranks are numbered anew. None: it waits for all.
        env: additional environment of every rank.
        argv: `sys.argv` of every rank.
        disk: a folder that is a simulated disk for the ranks, or a `simdist.storage.Mount` of it. What is written there
            is real; what a host crash leaves of it is what the disk's file system allows, chosen by the seed.
        strict: turn what Gloo accepts in silence, hangs on or dies of into an error that names the calls; by default
            only with backend "sim".
        judges: look on and report what does not hold although nothing fails: replicas that differ, samples that are
            read twice or never, a value that is no number, collectives that are left over. True is all that come with
            simdist; or some by name, and instances of your own (`simdist.judges`). A run with a finding is not `ok`.
        record_results: add a "result" event with a checksum over all that an operation left in each rank's tensors; for
            comparing runs.
        values: "shapes" leaves large payloads of floating-point numbers where they are, for programs of which only the
            course matters: which collectives are called, when, in which order, with which shapes, and what goes wrong.
            Everything else is as with "all": matching, errors, times, faults, traces. Nothing is reduced, copied or
            checksummed of more than 4096 bytes of floating-point numbers that a rank brings to a call, and of an
            all_to_all of any size; what outputs hold afterwards is what they held before. Integers, booleans, bytes and
            small payloads are moved, and so are objects, stores and barriers. Floating-point numbers add nothing to the
            digest. Judges that compare values are off, and refused by name; so are faults that change payloads.
        policy: who goes first among ranks, and threads of a rank, that are runnable at the same instant: "fifo" or
            "random", which also lets others go first wherever a thread takes a lock, and lets a part of the requests to
            stores, and of the messages to any receiver, take up to nine times as long, so that others come in between.
            "pct:3" gives each task a random priority, and changes two of them on the way (any depth D, D - 1 changes).
            "random@17" and "pct:3@17" draw from a seed of their own, as the schedules of `simdist.explore` do.
            "order:1.0.2" says at each choice among several which of them goes first, as systematic searches do.
        start_time: the day, or day and time, that the calendar of the ranks shows when the world begins (`time.time`,
            `datetime.now`); UTC unless it says otherwise. Virtual time itself counts from 0.
        isolate: True lets each rank import for itself what a spawned process would: `fn` is looked up by name in the
            rank's own import of its module, and so are all modules of the user's and the libraries that keep state of a
            rank (`simdist.process.PER_RANK`). Names of further modules may stand instead of True. What `fn` closes over
            and its arguments stay shared.
        share: names of modules that are shared all the same.
        program_ns: how long a program outside the simulation takes that a rank starts (`subprocess`, `os.system`), in
            virtual time: a rank that waits for it goes on after that. One that is to run until a rank ends it needs a
            long one. `RunResult.programs` names them, for what they answer is no function of the seed.
        stall_s: real seconds after which a rank that does not give the baton back fails the run: it waits for something
            that the simulation does not know. One that computes may for ten times as long, and so may one whose
            program computes, as a compiler (on Linux). One that keeps even the GIL (a regular expression that
            backtracks for ever) can't be stopped by anybody: after `stall_s`, but at least 5 s, the stacks of all
            threads go to stderr, and three seconds later the process ends (on Linux; the stack of the rank ends with
            its name).
        echo: called with (rank, virtual ns, "stdout" or "stderr", line) for each line that a rank prints. What it
            raises ends the world, and comes out of this call.
        progress: called with (virtual ns, events so far) about ten times per real second; likewise.
        replay: the call or command that repeats this run, for failure messages; made from the arguments if None. It
            has every argument that determines the run, and says so where one is too long to be shown in full.

    Returns:
        What became of every rank. A failing rank does not raise here; see `RunResult.raise_for_failure`.

    Raises:
        ArgumentError: arguments are not what they have to be; one line for each. FaultError if only faults are wrong,
            TopologyError if the cluster does not fit the world.
        SimdistError: another world is running.
        StallError: a rank blocks on something outside the simulation, or computes for too long.
        LivelockError: all ranks only sleep or ask whether something is done, time and again, and nothing is due.
        ThreadLimitError: the system has no thread for each rank.
    """
    determining = {
        "world_size": world_size,
        "seed": seed,
        "args": args,
        "kwargs": kwargs,
        "backend": backend,
        "policy": policy,
        "start_time": start_time,
        "isolate": isolate,
        "share": share,
        "program_ns": program_ns,
        "max_restarts": max_restarts,
        "min_hosts": min_hosts,
        "cluster": cluster,
        "env": env,
        "argv": argv,
        "disk": disk,
        "strict": strict,
        "judges": judges,
        "record_results": record_results,
        "values": values,
        "faults": faults,
    }
    watching = {"stall_s": stall_s, "echo": echo, "progress": progress}
    every: dict[str, Any] = {"fn": fn, **determining, **watching, "replay": replay}
    given = {name: value for name, value in every.items() if name in _LOOKED_AT or value is not _DEFAULTS[name]}
    checked: dict[str, Any] = {**every, **check_settings("simdist.run", given)}
    settings = {name: checked[name] for name in determining}
    if replay is None:
        shown = {name: settings[name] for name in settings if name in given or name in ALWAYS}
        if "faults" in shown:
            shown["faults"] = list(shown["faults"])
        checked["replay"] = call_text("simdist.run", fn, shown, _DEFAULTS)
    bound = functools.partial(fn, *settings["args"], **(settings["kwargs"] or {}))
    rest = {name: value for name, value in checked.items() if name not in ("fn", "args", "kwargs")}
    return World(WorldSpec(call=lambda rank: own(bound)(), checked=True, **rest)).run()


def spawn(
    fn: Callable[..., object],
    args: Sequence[object] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
    *,
    backend: str = "gloo",
    seed: int = 0,
    faults: Sequence[Fault] = (),
    isolate: bool | Sequence[str] = True,
    share: Sequence[str] = (),
) -> SpawnContext | None:
    """Stand in for `torch.multiprocessing.spawn`: call `fn(rank, *args)` on `nprocs` simulated processes.

    No launcher's environment is set: `fn` initialises its group itself, as under the real one. As there, each process
    imports the user's modules for itself; `backend`, `isolate` and `share` are those of `run`. Objects of the user's
    classes among `args` are made anew for it; other objects are shared, lists and tensors too. What they print appears
    in `sys.stdout` and `sys.stderr` of the caller. `daemon` and `start_method` are accepted and mean nothing here.

    Returns:
        None with `join`; otherwise a context whose `join` runs the world.

    Raises:
        ArgumentError, FaultError: as `run`.
        ProcessRaisedException: a process raised; its traceback is in the text.
        ProcessExitedException: a process left with another code than 0, or died by a signal.
        RunFailedError: all did well, but a fault never struck that is not optional.
    """
    from simdist.world import SpawnContext

    given = {"fn": fn, "args": args, "nprocs": nprocs, "join": join, "backend": backend}
    given |= {"seed": seed, "faults": faults, "isolate": isolate, "share": share}
    checked = check_settings("simdist.spawn", given)
    arguments = checked["args"]
    spec = WorldSpec(
        call=lambda rank: own(fn)(rank, *handed_over(arguments)),
        world_size=checked["nprocs"],
        backend=checked["backend"],
        seed=checked["seed"],
        faults=checked["faults"],
        isolate=checked["isolate"],
        share=checked["share"],
        stop_on_failure=True,
        torchrun=False,
        echo_last_lines=True,
        prints_exceptions=False,
        checked=True,
    )
    context = SpawnContext(spec)
    if not join:
        return context
    while not context.join():
        pass
    return None


def step(index: int) -> None:
    """Name the training step that begins; faults and traces refer to it. Does nothing outside a simulation."""
    process = current_process()
    if process is None:
        return
    simulation = process.simulation
    simulation.check()
    simulation.bus.record(step_begun(simulation.now_ns, process.rank, int(index)))
    if simulation.bus.wants(StepReached):
        _announce(process, StepReached(process, int(index)))


def point(name: str) -> None:
    """Name a place in the program, such as "before the rename"; a fault can strike whenever a rank passes it.

    Does nothing outside a simulation, and leaves no event in one.
    """
    process = current_process()
    if process is None:
        return
    simulation = process.simulation
    simulation.check()
    if simulation.bus.wants(PointReached):
        _announce(process, PointReached(process, str(name)))


def _announce(process: SimProcess, event: StepReached | PointReached) -> None:
    """Announce what a program says of itself, and act on the verdict. It takes no time, so "during" is at once."""
    what = "step" if isinstance(event, StepReached) else "point"
    left = carry_out(process, process.simulation.bus.announce(event), what, yields=True)
    if left is not None:
        left[1]()
        process.simulation.sleep(0)


# Checked even if they are what stands in `_DEFAULTS`: what has to be given, and what faults are held against.
_LOOKED_AT = ("fn", "world_size", "max_restarts")
_DEFAULTS: Mapping[str, Any] = {
    name: None if parameter.default is parameter.empty else parameter.default
    for name, parameter in inspect.signature(run).parameters.items()
}
