"""A Python function that runs many times."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from simdist.errors import ArgumentError
from simdist.frames import raising_line
from simdist.programs._attempt import Attempt, Bounds, Problems, Program, Progress, Ran, fewer_steps, ran_within
from simdist.programs._scratch import scratch_folder
from simdist.result import RunResult, how_it_ended
from simdist.scenario import fill
from simdist.settings import SETTINGS, call_text, check_settings, has_devices
from simdist.storage import Mount
from simdist.values import guess_or_list, shown, text_of

if TYPE_CHECKING:
    from simdist.settings import CheckedSettings

__all__ = ["FunctionProgram", "Seen", "count_problems", "said_by", "setting_problems", "watched"]


@dataclass(frozen=True, slots=True)
class Seen:
    """Data for an oracle: a run of `attempt`, the plain run if there was one, and the disk's folder, still there.

    Without a disk `folder` is empty.
    """

    result: RunResult
    plain: RunResult | None
    attempt: Attempt
    folder: str

    def outcomes(self) -> Iterator[tuple[str, str]]:
        """Yield the rank that failed first, if one did."""
        failed = self.result.first_failure()
        if failed is not None:
            yield "outcomes", f"rank {failed.rank} {how_it_ended(failed)}"


def watched(seen: Seen) -> Iterator[tuple[str, str]]:
    """The default oracle: every rank returns, judges find nothing, and every fault strikes."""
    yield from seen.outcomes()
    if seen.result.findings:
        yield "judges", seen.result.findings[0].problem
    for fault in seen.result.faults:
        if not fault.ok:
            yield "faults_strike", f"never struck: {fault.called}"


def said_by(check: Callable[..., object] | None, caller: str, *given: object) -> str | None:
    """Return a run's problem by the `check` given to `caller`, which may assert instead; None if there is none.

    Raises:
        ArgumentError: `check` returned neither a text nor None.
    """
    if check is None:
        return None
    try:
        said = check(*given)
    except AssertionError as error:
        text = text_of(error).strip().partition("\n")[0]
        return text or f"AssertionError ({raising_line(error.__traceback__)})"
    if said is None or isinstance(said, str):
        return said or None
    raise ArgumentError(caller, [f"check: returned {shown(said)}; expected a text that says what is wrong, or None"])


@dataclass(slots=True, kw_only=True)
class FunctionProgram:
    """A function. `settings` are those of `simdist.run`, `caller` is the name of the search, for its errors.

    With `mount` each run has a fresh disk, whose folder replaces "{tmp}" in arguments and in `mount`. The `oracle`
    yields a run's problems; by default that a rank failed, a judge found something, or a fault never struck.
    """

    caller: str
    function: Callable[..., object]
    settings: CheckedSettings
    mount: Mount | None = None
    oracle: Callable[[Seen], Iterable[tuple[str, str]]] = watched
    _plain: RunResult | None = field(default=None, init=False, compare=False)
    _folder: str | None = field(default=None, init=False, compare=False)  # of the runs' folders; None: the usual one

    @property
    def hosts(self) -> int:
        cluster = self.settings.get("cluster")
        return 1 if cluster is None else len(cluster.hosts)

    @property
    def has_disk(self) -> bool:
        return self.mount is not None

    @property
    def has_local_disks(self) -> bool:
        return self.mount is not None and self.mount.local is not None

    @property
    def has_devices(self) -> bool:
        return has_devices(self.settings)

    @property
    def moves_payloads(self) -> bool:
        return bool(self.settings.get("values", "all") == "all")

    @property
    def forgets(self) -> bool:
        isolated = self.settings.get("isolate", False) is not False and not self.settings.get("share")
        closes_over = getattr(self.function, "__closure__", None) or not hasattr(self.function, "__code__")
        given = (*self.settings.get("args", ()), *(self.settings.get("kwargs") or {}).values())
        return isolated and not closes_over and all(map(_is_constant, given))

    def fresh(self) -> FunctionProgram:
        return replace(self)

    def warm(self) -> None:
        """Do nothing: the function's module is already imported."""

    @contextmanager
    def ready(self) -> Iterator[None]:
        check_settings(self.caller, {"fn": self.function, **self.settings})
        yield

    def run(self, attempt: Attempt, bounds: Bounds | None = None) -> Ran:
        ran = ran_within(bounds, lambda progress: self._run(attempt, progress))
        if attempt.is_plain and self._plain is None and ran.result is not None:
            self._plain, self._folder = ran.result, scratch_folder(ran.result.events)
        return ran

    def _run(self, attempt: Attempt, progress: Progress | None) -> tuple[RunResult, Problems]:
        import simdist

        with ExitStack() as stack:
            settings, places = self._settings(attempt), {}
            if self.mount is not None:
                places = {
                    name: stack.enter_context(
                        tempfile.TemporaryDirectory(prefix="simdist-", dir=self._folder, ignore_cleanup_errors=True)
                    )
                    for name in ("tmp", "local")
                }
                tmp, local = places["tmp"], places["local"] if self.has_local_disks else None
                settings["disk"] = replace(self.mount, folder=tmp, local=local)
                settings |= {name: fill(settings[name], tmp) for name in ("args", "kwargs") if settings.get(name)}
            result = simdist.run(self.function, **settings, progress=progress)
            problems = list(self.oracle(Seen(result, self._plain, attempt, places.get("tmp", ""))))
            for name, place in places.items():
                problems = [(problem, text.replace(place, f"{{{name}}}")) for problem, text in problems]
            return result, tuple(problems)

    def _settings(self, attempt: Attempt) -> dict[str, Any]:
        settings: dict[str, Any] = {**self.settings, **({"policy": attempt.policy} if attempt.policy else {})}
        settings["faults"] = [*self.settings.get("faults", ()), *attempt.faults]
        if attempt.restarts:
            settings["max_restarts"] = max(int(settings.get("max_restarts", 0)), attempt.restarts)
        return settings | ({"min_hosts": self.hosts - 1} if attempt.fewer_hosts else {})

    def replay(self, attempt: Attempt) -> str:
        from simdist.api import run

        defaults = {name: each.default for name, each in inspect.signature(run).parameters.items()}
        return call_text("simdist.run", self.function, self._settings(attempt), defaults)

    def smaller(self) -> Iterator[Program]:
        size = self.settings["world_size"]
        if self.settings.get("cluster") is None:
            for fewer in dict.fromkeys((2, size // 2, size - 1)):
                if 1 <= fewer < size:
                    yield replace(self, settings={**self.settings, "world_size": fewer})
        kwargs = self.settings.get("kwargs") or {}
        for name, value in fewer_steps(kwargs):
            yield replace(self, settings={**self.settings, "kwargs": {**kwargs, name: value}})


def _is_constant(value: object) -> bool:
    """True if no rank can change the value for others."""
    if isinstance(value, tuple):
        return all(map(_is_constant, value))
    return value is None or isinstance(value, str | bytes | int | float | complex)


def setting_problems(
    settings: Mapping[str, object], *, what: str, taken: Sequence[str], own: Iterable[str] = ()
) -> Iterator[str]:
    """Yield the problems of names of settings. `taken` are those that `what`, a search, sets itself.

    `own` are its further arguments, for guesses at a misspelt name.
    """
    yield from (f"{name}: a {what} has its own" for name in settings if name in taken)
    no_more = (*taken, "fn", "settings", "nprocs", "join")
    known = [name for name in dict.fromkeys([*own, *SETTINGS]) if name not in no_more]
    unknown = [name for name in settings if name not in (*known, *taken)]
    yield from (f"{name}: unknown argument{guess_or_list(name, known)}" for name in unknown)


def count_problems(**counts: object) -> Iterator[str]:
    """Yield the numbers that are no counts of at least 1."""
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            yield f"{name}: {value!r} is no count; 1 is the least"
