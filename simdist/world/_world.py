"""One world from start to end: the engine under `simdist.run`, `simdist.spawn`, scenarios and the pytest plugin."""

from __future__ import annotations

import datetime
import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Literal

import torch

from simdist import native
from simdist.c10d import StoreServer, TorchState, host_server, problems_at_end, torch_generator, unseen_steps
from simdist.cluster import Cluster, Host, Network, build
from simdist.errors import InternalError, SimdistError, StallError, StrictError, UnsupportedError
from simdist.faults import Injector
from simdist.inside import warn_of_newer
from simdist.inside.torch import set_backward_threads
from simdist.kernel import BEYOND, Simulation, TaskKilled, make_policy, one_core
from simdist.process import (
    Isolation,
    PythonReplacements,
    RankBegan,
    Rounds,
    Runtime,
    Sharing,
    SimProcess,
    Slots,
    Undoing,
    collector_of,
    encoded,
    ignored_by_host,
    leave_to_rounds,
    separate_attributes,
    shut_down,
    trace_main_thread,
    with_imports,
)
from simdist.records import started
from simdist.result import JudgeFinding, RunResult
from simdist.storage import Mount
from simdist.trace import EventStream
from simdist.values import program_lines
from simdist.world._agent import Agent
from simdist.world._assertions import assertions_of
from simdist.world._environ import host_environ, rank_environ, shared_environ
from simdist.world._no_devices import explain, without_devices
from simdist.world._observer import WorldEnded, observers
from simdist.world._ranks import print_exception, rank_results, standing_frames
from simdist.world._spec import WorldSpec
from simdist.world._torchrun import AGENT_HOST

if TYPE_CHECKING:
    from simdist.device import DeviceState
    from simdist.files import Disks
    from simdist.judges import Court

__all__ = ["World"]

_AGENT_PORT = 29500
_FREE_PORTS = 45_000  # later lives have ports from here: ports next to the known one are often the program's own
_FIRST_PID = 1000
_AGENT_PID = 500  # of the launcher's agent, on each host
_NO_RANK = -1  # the launcher's own
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)
_DEBUG = b"TORCH_DISTRIBUTED_DEBUG"  # as environments keep names


@functools.lru_cache(maxsize=64)
def _one_host(world_size: int) -> Cluster:
    # Kept: a world never changes its cluster, and worlds start by the thousand.
    return build(world_size)


def _do_nothing() -> None:
    """Replaces a method of a world that has ended."""


def _leave_store(runs: bool) -> None:
    """Replaces another method of a world that has ended."""


def _prepare_thread(process: SimProcess) -> None:
    """Set torch's per-thread settings as in a process of one core."""
    set_backward_threads(False)  # as `torch.autograd.set_multithreading_enabled` does
    torch.get_num_threads()  # a thread takes the count of the process at its first look: not one that a rank has set
    torch.set_num_threads(1)  # counts per thread: OpenMP's setting is one


class World:
    """Runs a `WorldSpec` once: `run` from start to end; or in parts, `start`, `advance` and `finish`, then `close`."""

    def __init__(self, spec: WorldSpec) -> None:
        self._spec = spec
        self._cluster = spec.cluster or _one_host(spec.world_size)
        if spec.backend == "nccl" and not self._cluster.devices_per_host:
            self._cluster = replace(self._cluster, devices_per_host="ranks")
        network = Network(self._cluster)
        self._strict = strict = spec.backend == "sim" if spec.strict is None else spec.strict
        self._torch = TorchState(
            network, backend=spec.backend, strict=strict, results=spec.record_results, values=spec.values
        )
        self._slots = Slots(spec.seed, torch_generator(), native)
        self._slots.add(self._torch.switch)
        self._devices: DeviceState | None = None
        if self._cluster.devices_per_host:
            from simdist.device import DeviceState  # other worlds do not need it

            judged = False
            if spec.judges:
                from simdist.judges import Races, names_of

                judged = Races.name in names_of(spec.judges)
            self._devices = DeviceState(self._cluster, strict=strict, judged=judged)
            self._slots.add(self._devices.switch)
        self._in_rounds = self._devices is not None and spec.world_size > 1
        if self._in_rounds:
            self._slots.add(Rounds().switch)
        self._simulation = Simulation(
            policy=make_policy(spec.policy, spec.seed),
            on_switch=self._slots.switch,
            stall_s=spec.stall_s,
            progress=spec.progress,
        )
        network.clock = self._simulation
        self._simulation.wrap_steps(unseen_steps)
        self._runtime = Runtime(self._simulation, self._slots, seed=spec.seed, python=PythonReplacements())
        self._runtime.programs.duration_ns = spec.program_ns
        self._runtime.hosts = self._cluster.hosts
        self._epoch_ns = (spec.start_time - _EPOCH) // _MICROSECOND * 1000
        for observer in observers():
            observer.world_begins(self._simulation.bus)
        cluster = self._cluster
        self._hosts = {name: Host(name, cluster.ranks_of(name), network) for name in cluster.hosts}
        self._hosts[cluster.hosts[0]].listeners.append(self._on_first_host)
        self._agent = Agent(
            self._simulation,
            max_restarts=spec.max_restarts,
            stop_on_failure=spec.stop_on_failure,
            start=self._start_life,
            hosts=self._hosts.values(),
            min_hosts=spec.min_hosts,
            monitor_ns=spec.monitor_ns,
            grace_ns=spec.grace_ns,
        )
        self._network = network
        self._injector: Injector | None = None
        self._disk: Disks | None = None
        self._court: Court | None = None
        self._store: StoreServer | None = None  # the agent's, of the present life
        self._port = _AGENT_PORT  # the port in the ranks' MASTER_PORT
        self._store_runs = True  # False: it does not answer
        self._lives: list[list[SimProcess]] = []
        self._launcher: SimProcess | None = None
        self._leaked: list[str] = []
        self._standing: dict[int, FrameType] = {}  # frames of threads that hang, until these have ended
        self._finished: RunResult | None = None  # reported when the world has ended
        self._undo = Undoing()
        self._base_environ: dict[bytes, bytes] = {}
        self._ignored: Sequence[int] = ()  # signals that this process ignored when the world began

    def _begin_rounds(self) -> None:
        """Collect garbage in rounds from now on: others see when garbage closes a rank's pipe, socket or the like."""
        if not self._in_rounds:
            self._in_rounds = True
            leave_to_rounds()
            self._slots.add(Rounds().switch)

    def run(self) -> RunResult:
        """Start every rank, run the world to its end, and leave no trace of it.

        Raises:
            StallError: a rank blocked outside the simulation.
            SimdistError: another world is active in this process.
        """
        self.start()
        try:
            result = self.finish()
            self.close()
        except BaseException as error:
            self._undo.close()  # also what an interrupted `close` has left
            if isinstance(error, StallError):
                error.left_behind = tuple(self._leaked)
                error.args = (*error.args[:-1], error.left_behind)
            raise
        return result

    def start(self) -> None:
        """Make the world, with every rank ready at virtual time 0. It exists until `close`.

        Raises:
            SimdistError: another world is active in this process.
        """
        self._ignored = ignored_by_host()
        self._base_environ = os.environ._data.copy()  # type: ignore[attr-defined]  # CPython's own attribute
        try:
            self._make_ready()
        except BaseException:
            self._undo.close()
            raise

    def _make_ready(self) -> None:
        warn_of_newer()
        undo = self._undo
        if hasattr(os, "sched_getaffinity"):
            self._runtime.cores = os.sched_getaffinity(0)
        undo.enter(one_core())
        undo.enter(collector_of(self._spec.world_size, in_rounds=self._in_rounds))
        undo.add(self._cut_cycles)  # before the collector runs again: it would traverse all that is freed here
        self._runtime.in_child = self._leave_to_parent
        undo.add(self._runtime.deactivate)
        self._runtime.activate(self._spec.call)
        self._runtime.keep_file_times()
        self._runtime.thread_begins += [_prepare_thread, self._torch.begin_thread]
        self._torch.follow(self._runtime)
        self._runtime.collect_in_rounds = self._begin_rounds
        chosen = self._spec.isolate
        if chosen is not False:
            isolation = Isolation(self._runtime, Sharing(() if chosen is True else chosen, self._spec.share))
            undo.add(isolation.end)
            isolation.begin()
        undo.add(self._slots.restore)
        undo.add(self._torch.uninstall)
        self._torch.install(self._simulation.bus, flags_apart=chosen is not False)
        if self._devices is not None:
            undo.add(self._devices.uninstall)
            self._devices.install(self._runtime.stops, self._runtime.child_begins)
        else:
            undo.add(without_devices())
        undo.add(self._end_threads)
        if self._spec.judges:
            from simdist.judges import Court  # other worlds do not need it

            bus, spec = self._simulation.bus, self._spec
            self._court = Court(spec.judges, bus, spec.world_size, strict=self._strict, values=spec.values)
            undo.add(self._court.close)
            self._court.open()
        touch = self._simulation.policy.touch
        if touch is not None:
            from simdist.judges import hear_of_files

            looks = ("read", "seen", "missed")
            undo.add(
                hear_of_files(
                    self._simulation.bus, lambda used: None if used.use in looks else touch(BEYOND, writes=True)
                )
            )
        if self._spec.disk is not None:
            from simdist.files import mount

            assert isinstance(self._spec.disk, Mount)  # the settings were checked
            varies = 0.0 if self._cluster.jitter is None else self._cluster.jitter.disk
            hosts, seed = self._hosts.values(), self._spec.seed
            self._disk = mount(self._spec.disk, self._runtime, hosts, seed=seed, jitter=varies)
        self._injector = Injector(
            self._simulation,
            self._network,
            self._spec.faults,
            self._lose_store,
            self._let_store_run,
            hosts=tuple(self._hosts.values()),
            seed=self._spec.seed,
            has_devices=self._devices is not None,
        )
        launcher = self._spec.launcher
        if launcher is not None and chosen is False:
            separate_attributes(self._runtime)
        self._start_life(0)
        if launcher is not None:
            self._start_launcher(launcher)

    def advance(self, until_ns: int) -> bool:
        """Run all events up to virtual time `until_ns`, including that instant, and hand the baton back.

        Between two calls this thread sees its own process: environment, streams, generators. Returns False if the
        world has ended.

        Raises:
            StallError: a rank blocked outside the simulation.
            SimdistError: `until_ns` has passed.
        """
        self._slots.random.adopt()
        try:
            return self._simulation.run_until(until_ns)
        except StallError as error:
            self._report_time(error)
            raise
        finally:
            self._slots.random.restore()

    def finish(self) -> RunResult:
        """Run the world to its end, and return how every rank ended.

        Raises:
            StallError: a rank blocked outside the simulation.
        """
        self._slots.random.adopt()
        try:
            self._simulation.run()
            self._require_no_escape()
            result = self._result()
        except StallError as error:
            self._report_time(error)
            raise
        self._slots.random.restore()
        self._finished = result
        return result

    def close(self) -> None:
        """End what still runs, refusing every effect, and restore the host process. May be repeated.

        Raises:
            InternalError: a thread did not end.
        """
        if self._lives:
            self._slots.random.adopt()  # the host may have drawn since it got the baton back
        self._undo.close()
        self._standing.clear()
        finished, self._finished = self._finished, None
        if finished is not None:
            self._simulation.bus.report(WorldEnded(finished))
        if self._leaked:
            leaked, self._leaked = self._leaked, []
            raise InternalError(f"threads of {', '.join(leaked)} did not end with their world, and are left behind")

    @property
    def now_ns(self) -> int:
        """Virtual time."""
        return self._simulation.now_ns

    @property
    def processes(self) -> Sequence[SimProcess]:
        """The processes of the present life, by rank."""
        return self._lives[-1] if self._lives else ()

    @property
    def hosts(self) -> Mapping[str, Host]:
        """The machines that the processes live on, by name."""
        return self._hosts

    def _on_first_host(self, host: Host) -> None:
        """Lose the launcher's store, which the first host serves, when that host goes down."""
        if not host.up:
            self._lose_store()

    @property
    def runtime(self) -> Runtime:
        """The state of the running process, and the patches."""
        return self._runtime

    @property
    def injector(self) -> Injector:
        """Injects the faults; exists from `start` on."""
        assert self._injector is not None
        return self._injector

    def _require_no_escape(self) -> None:
        """Raise if an error escaped from `_main`: that is no rank's failure, and would look as if the rank hung."""
        for task in self._simulation.tasks:
            if task.error is not None:
                raise InternalError(f"{task.name} ended with {task.error!r}") from task.error

    def _lose_store(self) -> None:
        if self._store is not None:
            self._store.close()

    def _let_store_run(self, runs: bool) -> None:
        self._store_runs = runs
        if self._store is not None and self._store.stopped is runs:
            if runs:
                self._store.resume()
            else:
                self._store.stop()

    def _keep_store(self) -> bool:
        """Keep the launcher's store for the life that begins, if a fault demands it; False: that life makes its own."""
        store, injector = self._store, self._injector
        if store is None or store.gone or injector is None or not injector.keeps_store():
            return False
        store.outlive()
        return True

    def _end_threads(self) -> None:
        with self._runtime.files_cut_off():
            self._leaked = self._simulation.close()

    def _leave_to_parent(self) -> None:
        """In a process that was forked from this one: restore everything, so that it may run worlds of its own."""
        self._simulation.forget(
            SimdistError("this process was forked while a simulated world ran; the world goes on in its parent only")
        )
        self._undo.close()
        self._leaked = []

    def _report_time(self, error: StallError) -> None:
        error.task = f"{error.task} (virtual time {self._simulation.now_ns / 1e9:.9f} s)"

    # -- lives ---------------------------------------------------------------------------------------------------

    def _start_life(self, life: int) -> None:
        """Begin a life on the hosts that are up: their ranks are numbered in the order of their places."""
        simulation = self._simulation
        placement = self._cluster.placement
        processes = []
        reported, base = self._spec.env or {}, self._base_environ
        if not self._keep_store():
            wanted = reported.get("MASTER_PORT", "")
            self._port = int(wanted) if wanted.isdigit() else _FREE_PORTS + life if life else _AGENT_PORT
            if self._spec.torchrun and reported.get("TORCHELASTIC_USE_AGENT_STORE", "True") == "True":
                first = self._cluster.hosts[0]  # where the launcher's rendezvous is
                address = reported.get("MASTER_ADDR", AGENT_HOST)
                self._store = host_server(
                    self._torch.servers, address, self._port, lambda host: self._cluster.path(first, host)[0], on=first
                )
                self._let_store_run(self._store_runs)
        local: dict[str, int] = {}
        hosts = [name for name in self._cluster.hosts if self._hosts[name].up]
        places = [place for place in range(self._spec.world_size) if self._hosts[placement[place]].up]
        shared = shared_environ(self._spec, base, len(places), len(hosts), self._port, self._agent.restarts)
        on_hosts = {host: with_imports({**shared, **host_environ(self._spec, base, host)}) for host in hosts}
        for rank, place in enumerate(places):
            host = placement[place]
            index = local[host] = local.get(host, -1) + 1
            size = len(self._hosts[host].ranks)
            process = SimProcess(
                simulation,
                rank=rank,
                place=place,
                pid=_FIRST_PID + life * self._spec.world_size + place,
                life=life,
                host=self._hosts[host],
                parent_pid=_AGENT_PID,
                environ={
                    **on_hosts[host],
                    **rank_environ(self._spec, life, rank, index, size, hosts.index(host)),
                    **self._on_disks(host),
                },
                epoch_ns=self._epoch_ns,
                echo=self._spec.echo,
                argv=list(self._spec.argv if self._spec.argv is not None else sys.argv[:1]),
                ignored=self._ignored,
            )
            process.shows_last_lines = self._spec.echo_last_lines
            said, host_said = process.environ.get(_DEBUG), base.get(_DEBUG)
            process.torch_state = self._torch.new_rank(None if said == host_said else os.fsdecode(said or b"OFF"))
            process.random_states = self._slots.random.fresh(rank, life)
            self._runtime.processes[process.pid] = process
            processes.append(process)
        self._lives.append(processes)
        self._agent.watch(processes)
        jitter = self._cluster.jitter
        for process in processes:
            name = f"rank {process.rank}" if life == 0 else f"rank {process.rank} (life {life})"
            late_ns = simulation.policy.jitter_ns(jitter.start_ns) if jitter is not None and jitter.start_ns else 0
            process.spawn(self._spec.with_variables(self._main, process, late_ns), name)
            simulation.bus.record(started(simulation.now_ns, process.rank, life, process.pid, process.host.name))
        assert self._injector is not None
        self._injector.start_life(life, dict(enumerate(processes)))

    def _start_launcher(self, function: Callable[[], None]) -> None:
        """Start the launcher's process. It is no rank: it has no result, and nothing is recorded of it."""
        host = self._hosts[self._cluster.hosts[0]]
        process = SimProcess(
            self._simulation,
            rank=_NO_RANK,
            place=0,
            pid=_AGENT_PID,
            life=0,
            host=host,
            epoch_ns=self._epoch_ns,
            environ={**self._base_environ, **encoded(dict(self._spec.env or {})), **self._on_disks(host.name)},
            argv=list(self._spec.argv if self._spec.argv is not None else sys.argv[:1]),
        )
        process.lineage = " launcher"
        self._launcher = process
        process.torch_state = self._torch.new_rank(None)
        process.random_states = self._slots.random.fresh(0, 0, process.lineage)
        self._runtime.processes[process.pid] = process

        def main() -> None:
            _prepare_thread(process)
            trace_main_thread()
            function()
            shut_down(process)
            process.end("returned", 0)

        process.spawn(self._spec.with_variables(main), "the launcher")

    def _on_disks(self, host: str) -> dict[bytes, bytes]:
        return {} if self._disk is None else encoded(dict(self._disk.environ_of(host)))

    def _main(self, process: SimProcess, late_ns: int) -> None:
        """A rank's life, which begins `late_ns` late: the user's function, and how its process ends after it."""
        _prepare_thread(process)
        trace_main_thread()
        if late_ns:
            self._simulation.sleep(late_ns)
        if self._simulation.bus.hears(RankBegan):
            self._simulation.bus.report(RankBegan(process))
        status: Literal["returned", "raised", "exited"] = "returned"
        code, error = 0, None
        try:
            value = self._spec.call(process.rank)
            isolation = self._runtime.isolation
            process.value = value if isolation is None else isolation.handed_back(value)
        except TaskKilled:
            raise
        except SystemExit as leaving:
            status = "exited"
            asked = leaving.code
            if asked is not None and not isinstance(asked, int):
                sys.stderr.write(f"{asked}\n")
                asked = 1
            code = (asked or 0) & 0xFF
        except BaseException as raised:
            status, code, error = "raised", 1, raised
            if self._devices is None:
                explain(raised, launched=self._spec.replay.startswith("simdist launch"))
            if self._spec.prints_exceptions or not isinstance(raised, Exception):
                print_exception(process, raised)
            if self._runtime.isolation is not None:
                self._runtime.isolation.handed_back(raised)
        shut_down(process)
        process.run_at_exit(print_exception)
        if self._strict and status == "returned":
            problems = problems_at_end(process)
            if problems:
                status, code, error = "raised", 1, StrictError("; ".join(problems))
        if self._disk is not None:
            self._disk.leave(process)
        process.end(status, code, error)

    # -- the end -------------------------------------------------------------------------------------------------

    def _result(self) -> RunResult:
        simulation = self._simulation
        self._standing = standing = standing_frames(simulation.tasks)
        idents = {process.rank: process.main.ident for process in self._lives[-1] if process.main is not None}
        frames = {rank: standing[ident] for rank, ident in idents.items() if ident in standing}
        if self._spec.on_frames is not None:
            self._spec.on_frames(frames)
        ranks = rank_results(self._lives, simulation.now_ns, frames)
        stream = EventStream(simulation.events.records)
        said = assertions_of(self._runtime.extras)
        return RunResult(
            digest=simulation.events.digest(),
            virtual_time_ns=simulation.now_ns,
            restarts=self._agent.restarts,
            ranks=ranks,
            events=stream,
            seed=self._spec.seed,
            replay=self._spec.replay,
            deadlock=simulation.deadlock,
            faults=self.injector.account(),
            backend=self._spec.backend,
            policy=self._spec.policy,
            strict=self._strict,
            programs=program_lines(self._runtime.programs.started()),
            shared_state=self._runtime.left_behind.changes(),
            refused=UnsupportedError.take_texts(),
            judges=() if self._court is None else self._court.names,
            findings=(*said.broken.values(), *(() if self._court is None else self._findings(self._court, stream))),
            sometimes=tuple(sorted(said.reached.items())),
            backends=tuple(sorted(self._torch.backends)),
        )

    def _findings(self, court: Court, events: EventStream) -> tuple[JudgeFinding, ...]:
        from simdist.judges import Ending

        statuses = [{process.rank: process.status for process in life} for life in self._lives]
        return court.findings(Ending(events, statuses))

    def _cut_cycles(self) -> None:
        """Cut the cycles between processes, tasks and groups; otherwise a finished world waits for the collector."""
        for life in self._lives:
            for process in life:
                process.torch_state.forget()
                process.forget()
        self._lives.clear()
        if self._launcher is not None:
            self._launcher.forget()
            self._launcher = None
        self._simulation.tasks.clear()
        self._simulation.bus.dismiss()
        self._slots.forget()
        self._runtime.in_child = _do_nothing
        if self._injector is not None:
            self._injector.lose_store = _do_nothing
            self._injector.let_store_run = _leave_store
        self._store = None
        vars(self).pop("_agent", None)
        self._network.close()
        for host in self._hosts.values():
            host.listeners.clear()
            host.residents.clear()
