"""Kill real runs at random moments, and look for what they leave behind.

    python tools/kill_runs.py                      # 200 runs of all kinds, some twenty minutes
    python tools/kill_runs.py --runs 10 --seed 7 --kinds crash,links

Each run is a `simdist run --real gloo` or a `simdist parity` in a process of its own, which gets SIGINT, SIGTERM or
SIGKILL at a moment drawn from the seed, anywhere between its start and the end of an undisturbed run. Two seconds later
nothing of it may be left: no process, no listening socket, no network namespace, no temporary file. While it runs, its
sockets may listen only on the loopback device or inside a namespace of the run. Kind "links" needs root. Exit codes: 0
nothing was left, 1 something was.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import click

ROOT = Path(__file__).resolve().parents[1]
KINDS: dict[str, tuple[str, ...]] = {
    "plain": ("run", "scenarios/ring_order.toml", "--real", "gloo"),
    "crash": ("run", "scenarios/crash_before.toml", "--real", "gloo"),
    "hang": ("run", "scenarios/hang.toml", "--real", "gloo"),
    "restarts": ("run", "scenarios/restarts_exhausted.toml", "--real", "gloo"),
    "links": ("run", "scenarios/partition_outlasts_timeout.toml", "--real", "gloo"),
    "parity": ("parity", "scenarios/crash_before.toml", "scenarios/exception.toml", "scenarios/ring_order.toml"),
}
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
PATIENCE_S = 2.0
_MARK = "SIMDIST_KILL_RUNS"  # in the environment of the starter, and so of every process below it
_LISTENING = "0A"  # <linux/tcp_states.h>


@dataclass(slots=True)
class Killed:
    """One run that was killed, and what it left.

    `gone_s` is the time from the signal until nothing was left, None if something was left after two seconds; `left`
    lists what was.
    """

    kind: str
    number: signal.Signals
    moment_s: float
    processes: int = 0
    code: int | None = None
    gone_s: float | None = None
    left: list[str] = field(default_factory=list)
    stderr: str = ""

    @property
    def problems(self) -> list[str]:
        """What is wrong with the run."""
        lines = list(self.left)
        if "Traceback" in self.stderr and "simdist" in self.stderr:  # Python's own start does not count
            lines.append(f"a traceback on stderr: {self.stderr.strip()!r}")
        return lines


@dataclass(slots=True)
class Run:
    """A real run under way: `folder` has its temporary files, `mark` identifies its processes."""

    starter: subprocess.Popen[bytes]
    stderr: IO[bytes]
    folder: Path
    mark: bytes
    namespaces: set[str] = field(default_factory=set)
    sockets: set[str] = field(default_factory=set)
    open_to_all: set[str] = field(default_factory=set)

    def processes(self) -> list[int]:
        """Return the processes of the run that live, whatever their parents are."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            # The process has ended meanwhile, or is a zombie, which has no environment.
            with suppress(OSError):
                if self.mark in path.read_bytes():
                    found.append(int(path.parent.name))
        return found

    def look(self) -> int:
        """Record the sockets and namespaces that the run has now; returns its number of processes."""
        here = _link(Path("/proc/self/ns/net"))
        found = self.processes()
        for pid in found:
            namespace = _link(Path(f"/proc/{pid}/ns/net"))
            if namespace != here:
                self.namespaces |= {namespace} - {""}
                continue
            links = set(_descriptors(pid))
            self.namespaces |= {link for link in links if link.startswith("net:")}
            for address, socket in _listening(pid):
                if socket in links:
                    self.sockets.add(socket)
                    # As /proc has them: 127.0.0.1, ::ffff:127.0.0.1, ::1.
                    if address[-8:] != "0100007F" and address != "0" * 24 + "01000000":
                        self.open_to_all.add(address)
        return len(found)

    def left(self) -> list[str]:
        """Return what is left of the run."""
        lines = [f"process {pid}: {_words(pid)}" for pid in self.processes()]
        lines += [f"temporary file {path}" for path in sorted(self.folder.iterdir())]
        if not lines:  # the search for the rest takes long, and processes keep it alive
            pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
            inside = {pid: {_link(Path(f"/proc/{pid}/ns/net")), *_descriptors(pid)} for pid in pids}
            for what, names in (("namespace", self.namespaces), ("listening socket", self.sockets)):
                lines += [f"{what} {name} in {pid}" for pid, has in inside.items() for name in sorted(names & has)]
        return lines


@contextmanager
def real_run(kind: str) -> Iterator[Run]:
    """Start a run of this kind; kills in the end all processes that it left."""
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):  # a shell's background job; its children would ignore SIGINT, too
        signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="simdist-kills-") as folder, tempfile.TemporaryFile() as stderr:
        mark = f"{_MARK}={Path(folder).name}"
        environment = os.environ | {"TMPDIR": folder, _MARK: Path(folder).name, "PYTHONPATH": str(ROOT)}
        environment["TORCHINDUCTOR_CACHE_DIR"] = f"{tempfile.gettempdir()}/torchinductor"  # torch keeps it for later
        starter = subprocess.Popen(
            [sys.executable, "-m", "simdist", *KINDS[kind]],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )
        run = Run(starter, stderr, Path(folder), mark.encode())
        try:
            yield run
        finally:
            for pid in run.processes():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            starter.wait()


def kill(kind: str, number: signal.Signals, moment_s: float, *, processes: int = 0) -> Killed:
    """Start a run, kill its starter after `moment_s` seconds, and look for what is left two seconds later.

    The seconds count from the moment at which the run has `processes` processes.
    """
    killed = Killed(kind, number, moment_s)
    with real_run(kind) as run:
        while run.starter.poll() is None and len(run.processes()) < processes:
            time.sleep(0.02)
        deadline = time.monotonic() + moment_s
        while (rest := deadline - time.monotonic()) > 0 and run.starter.poll() is None:
            time.sleep(min(rest, 0.05))
        killed.processes = run.look()
        run.starter.send_signal(number)
        struck = time.monotonic()
        while run.starter.poll() is None and time.monotonic() < struck + PATIENCE_S:
            time.sleep(0.01)
        while killed.left or killed.gone_s is None:
            killed.left = run.left()
            elapsed = time.monotonic() - struck
            if not killed.left:
                killed.gone_s = elapsed
            elif elapsed > PATIENCE_S:
                break
            else:
                time.sleep(0.02)
        killed.code = run.starter.poll()
        run.stderr.seek(0)
        killed.stderr = run.stderr.read().decode("utf-8", "replace")
        killed.left += [f"listened at {address}, for everybody" for address in sorted(run.open_to_all)]
    return killed


def undisturbed_s(kind: str) -> float:
    """Return how long a run of this kind takes, in seconds."""
    started = time.monotonic()
    with real_run(kind) as run:
        run.starter.wait()
    return time.monotonic() - started


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:  # the process has ended meanwhile
        return ""


def _descriptors(pid: int) -> list[str]:
    with suppress(OSError):
        return [_link(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
    return []


def _listening(pid: int) -> Iterator[tuple[str, str]]:
    """Yield the listening sockets in this process's network: the address, and the socket's name in descriptors."""
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == _LISTENING:
                    yield words[1].partition(":")[0], f"socket:[{words[9]}]"


def _words(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    return ""


@click.command()
@click.option("--runs", default=200, show_default=True, help="How many, taking turns among the kinds.")
@click.option("--seed", default=0, show_default=True, help="Of the signals and the moments.")
@click.option("--kinds", default=",".join(KINDS), show_default=True, help="Which kinds of runs.")
def main(runs: int, seed: int, kinds: str) -> None:
    """Kill real runs at random moments, and look for what they leave behind."""
    chosen = kinds.split(",")
    if unknown := [kind for kind in chosen if kind not in KINDS]:
        raise click.BadParameter(f"{', '.join(unknown)}: there are {', '.join(KINDS)}", param_hint="--kinds")
    whole_s = {kind: undisturbed_s(kind) for kind in chosen}
    click.echo(", ".join(f"{kind} {seconds:.1f} s" for kind, seconds in whole_s.items()))
    drawn = random.Random(seed)
    done: list[Killed] = []
    for index in range(runs):
        kind = chosen[index % len(chosen)]
        done.append(kill(kind, drawn.choice(SIGNALS), drawn.uniform(0.0, whole_s[kind])))
        last = done[-1]
        gone = "-" if last.gone_s is None else f"{last.gone_s * 1e3:.0f} ms"
        click.echo(
            f"{index + 1:4} {kind:8} {last.number.name} at {last.moment_s:5.2f} s, {last.processes:2} processes, "
            f"exit {last.code}, gone after {gone}" + "".join(f"\n     LEFT {line}" for line in last.problems)
        )
    bad = [each for each in done if each.problems]
    times = sorted(each.gone_s or PATIENCE_S for each in done)
    click.echo(
        f"{len(done)} runs, {sum(each.processes > 1 for each in done)} killed with processes below the starter; "
        f"{len(bad)} left something; gone after {times[len(times) // 2]:.2f} s (median), "
        f"{times[-1]:.2f} s (worst)"
    )
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
