"""The functions that users call: `run`, `spawn`, `step`, `point`."""

from __future__ import annotations

import datetime
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from typing import TYPE_CHECKING, Any, TypeVar

from simdist.process import PointReached, SimProcess, StepReached, carry_out, current_process, handed_over, own
from simdist.records import step_begun
from simdist.result import RunResult
from simdist.settings import ALWAYS, START_TIME, call_text, check_settings
from simdist.world import OwnArguments, World, WorldSpec, on_each_rank

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
    ranks share this process and its memory: an object in the closure of `fn` is the same for all of them.

    Args:
        fn: the program of a rank.
        world_size: number of ranks.
        args: positional arguments of `fn`. Each rank has its own copies of tensors, arrays, modules, optimizers,
            schedulers, DataLoaders and generators of random numbers, as processes would have; other objects are one for
            all ranks, such as a dataset, a list of more than 1,000 samples, or one that collects results.
        kwargs: keyword arguments of `fn`, likewise.
        backend: "gloo" behaves as Gloo does; "sim" is ideal: it has no timeouts, so a call that would time out
            deadlocks. "nccl" is a world of virtual devices, one for each rank unless the cluster says otherwise, with
            NCCL. The program picks one in `init_process_group`.
        seed: determines the `random` policy, Python's and numpy's generators, and all other random choices.
        cluster: hosts and links, from `simdist.cluster`; one host by default.
        faults: the injected faults, from `simdist.faults`.
        max_restarts: the number of times that all ranks are restarted after one has failed, as torchrun does. With 0 a
            failure does not stop the other ranks.
        min_hosts: a restart continues without hosts that are down if at least this many are left, the first among them,
            after the 30 virtual seconds that a rendezvous waits for more; ranks are numbered anew. None: it waits for
            all.
        env: additional environment of every rank.
        argv: `sys.argv` of every rank.
        disk: a folder that is a simulated disk for the ranks, or a `simdist.storage.Mount` of it. Writes there are
            real; a host crash leaves a state that the disk's file system allows, chosen by the seed.
        strict: if Gloo would silently accept a call, hang on it or crash, raise an error that names the calls; by
            default only with backend "sim".
        judges: report violated conditions even if nothing fails: replicas that differ, samples that are read twice or
            never, a value that is no number, collectives that are left over. True: all judges of simdist; or a sequence
            of names and your own instances (`simdist.judges`). A run with a finding is not `ok`.
        record_results: add a "result" event with a checksum over the contents that an operation left in each rank's
            tensors, for comparisons of runs.
        values: "shapes" leaves large payloads of floating-point numbers where they are, for programs of which only the
            course matters: the collectives that are called, their times, order and shapes, and the failures. Everything
            else is as with "all": matching, errors, times, faults, traces. If a rank passes more than 4096 bytes of
            floating-point numbers to a call, or any to an all_to_all, these are not reduced, copied or checksummed;
            outputs keep their previous contents. Integers, booleans, bytes and small payloads are moved, and so are
            objects, stores and barriers. Floating-point numbers add nothing to the digest. Judges that compare values
            are off, and refused by name; so are faults that change payloads.
        policy: the order of ranks, and of threads of a rank, that are runnable at the same instant: "fifo" or "random",
            which also changes the order wherever a thread takes a lock, and makes some of the requests to stores, and
            of the messages to any receiver, take up to nine times as long, so that others overtake them. "pct:3" gives
            each task a random priority, and changes two of them on the way (any depth D, D - 1 changes). "random@17"
            and "pct:3@17" use a seed of their own, as the schedules of `simdist.explore` do. "order:1.0.2" determines
            each choice among several, as systematic searches do.
        start_time: the day, or day and time, on the ranks' calendar when the world begins (`time.time`,
            `datetime.now`); UTC unless it has another zone. Virtual time itself counts from 0.
        isolate: with True each rank has its own imports, as a spawned process would: `fn` is looked up by name in the
            rank's own import of its module. This applies to all modules of the user and to the libraries that keep
            state of a rank (`simdist.process.PER_RANK`). A sequence names further modules instead of True. The closure
            of `fn` and its arguments stay shared.
        share: names of modules that are shared nevertheless.
        program_ns: the virtual duration of a program outside the simulation that a rank starts (`subprocess`,
            `os.system`): a rank that waits for the program continues after it. A program that runs until a rank ends it
            needs a long duration. `RunResult.programs` names these programs, since their answers do not follow from the
            seed.
        stall_s: real seconds after which a rank that does not give the baton back fails the run: it waits for an event
            outside the simulation. A rank that computes has ten times as long, and so does one whose program computes,
            as a compiler (on Linux). A rank that keeps even the GIL (a regular expression that backtracks for ever)
            can't be stopped: after `stall_s`, but at least 5 s, the stacks of all threads are written to stderr, and
            three seconds later the process ends (on Linux; the stack of the rank ends with its name).
        echo: called with (rank, virtual ns, "stdout" or "stderr", line) for each line that a rank prints. It is the
            host's code: what it prints is no output of the rank. An exception from it ends the world, and is raised by
            this call.
        progress: called with (virtual ns, events so far) about ten times per real second; likewise.
        replay: the call or command that repeats this run, for failure messages; made from the arguments if None. It has
            every argument that determines the run, and a note where one is too long to be shown in full.

    Returns:
        The result of every rank. A failing rank does not raise here; see `RunResult.raise_for_failure`.

    Raises:
        ArgumentError: arguments are invalid; one line for each problem. FaultError if only faults are wrong,
            TopologyError if the cluster does not fit the world.
        SimdistError: another world is running.
        StallError: a rank blocks on something outside the simulation, or computes for too long.
        LivelockError: all ranks only sleep or poll repeatedly, and no event is due.
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
    call = on_each_rank(fn, settings["args"], settings["kwargs"] or {})
    rest = {name: value for name, value in checked.items() if name not in ("fn", "args", "kwargs")}
    return World(WorldSpec(call=lambda rank: call(), checked=True, **rest)).run()


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

    No launcher's environment is set: `fn` initialises its group itself, as under the real function. As there, each
    process imports the user's modules separately; `backend`, `isolate` and `share` are those of `run`. Objects of the
    user's classes among `args` are made anew for each process, and so are tensors, modules and optimizers, over the
    same memory; other objects are shared, such as lists. The processes' output appears in `sys.stdout` and
    `sys.stderr` of the caller. `daemon` and `start_method` are accepted and have no effect.

    Returns:
        None with `join`; otherwise a context whose `join` runs the world.

    Raises:
        ArgumentError, FaultError: as `run`.
        ProcessRaisedException: a process raised; its traceback is in the text.
        ProcessExitedException: a process exited with a code other than 0, or died by a signal.
        RunFailedError: all processes succeeded, but a fault that is not optional never struck.
    """
    from simdist.world import SpawnContext

    given = {"fn": fn, "args": args, "nprocs": nprocs, "join": join, "backend": backend}
    given |= {"seed": seed, "faults": faults, "isolate": isolate, "share": share}
    checked = check_settings("simdist.spawn", given)
    arguments = OwnArguments({f"args[{place}]": value for place, value in enumerate(checked["args"])})

    def call(rank: int) -> object:
        mine = arguments.on_rank(in_shared_memory=True)
        return own(fn)(rank, *handed_over([*mine.values()]))

    spec = WorldSpec(
        call=call,
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
        variables=Context(),  # as a process that begins anew
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
    """Announce a program's step or point, and carry out the verdict. It takes no time, so "during" is at once."""
    what = "step" if isinstance(event, StepReached) else "point"
    left = carry_out(process, process.simulation.bus.announce(event), what, yields=True)
    if left is not None:
        left[1]()
        process.simulation.sleep(0)


# Checked even if equal to `_DEFAULTS`: required arguments, and those by which faults are checked.
_LOOKED_AT = ("fn", "world_size", "max_restarts")
_DEFAULTS: Mapping[str, Any] = {
    name: None if parameter.default is parameter.empty else parameter.default
    for name, parameter in inspect.signature(run).parameters.items()
}
