"""The pytest plugin: tests whose body runs on every rank of a simulated world, and tests that drive a world.

    @pytest.mark.simdist(world_size=4)
    def test_sum(rank):
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor)
        assert tensor.item() == 6

The marker runs the body once on each rank, in one process and in virtual time. Fixtures are set up once, before; what
they return is one object for all ranks, except that each rank has its own copy of tensors, modules and optimizers (and
of `self` in a test class), as processes would. Inside, `monkeypatch.setenv`, `capsys` and `caplog` are the rank's own.

| keyword | default | meaning |
|---|---|---|
| world_size | 4 | number of ranks; may stand alone: `simdist(8)` |
| backend | "gloo" | or "nccl", on virtual devices; or "sim": ideal, so that what would time out is a deadlock |
| init | None | the default group is there when the body begins, and destroyed after it; False leaves both to the body |
| timeout | None | of that group: "30s", nanoseconds or a timedelta; None: the backend's own |
| seeds | (0,) | a count or the seeds themselves: one test for each |
| policy | None | order of ranks that could run at once: "fifo", "random", "pct:D"; None: fifo for seed 0, else random |
| faults | () | faults from `simdist.faults`, or a function of the seed that returns them |
| strict | None | as `simdist.run`'s |
| judges | False | likewise: True, or names and instances of judges; with `--simdist-judges` True is the default |
| values | "all" | likewise: "shapes" moves no large payloads |
| max_restarts, cluster, env, start_time, isolate, share, program_ns, stall_s | | likewise |

A parametrized argument of the test with the name of a keyword (`parametrize("world_size", [2, 4])`) sets it. Markers of
class and module are defaults for the function's. `rank` and `world_size` are fixtures.

The test passes if every rank returns, or is ended by a fault that was asked for; a fault that never strikes fails it.
It is skipped if all ranks skip; that some skip and others don't is a failure. Otherwise the rank that failed first, in
virtual time, is the test's failure, with its own traceback, for `--pdb`, `xfail` and all else; below it stands what
each rank did last, and the command that replays it.

The fixture `sim` (see `Sim`) is for tests that drive worlds from outside; such a test's marker gives the defaults.

With `@pytest.mark.simdist_sweep(world_size=2, ...)` the body is run once undisturbed, and then once for each crash at
each moment (`simdist.sweep` has the keywords), and has to come back each time. Its fixture `disk` is its disk's folder.

With `--simdist-explore N` a marked test runs under N other schedules after the usual one (`simdist.explore`), until one
fails. Its fixtures are set up once for all of them, so what they return should not change.

Options: `--simdist-seed`, `--simdist-seeds`, `--simdist-explore`, `--simdist-check-determinism`, `--simdist-judges`,
`--simdist-trace`, `--simdist-scheduler`.

pytest loads this module in every run, so it imports nothing but pytest; open `_plugin/__init__.py` for the rest.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pdb import Pdb

    from simdist.testing._plugin._sim import Sim

__all__ = ["is_simulated", "pytest_addoption", "pytest_configure", "pytest_enter_pdb", "pytest_generate_tests"]
__all__ += ["pytest_leave_pdb", "pytest_pyfunc_call", "pytest_report_header", "pytest_runtest_makereport"]
__all__ += ["pytest_runtest_setup", "pytest_runtestloop"]

last_words = 2  # the file to which C code writes stacks when Python can't run any more; the kernel reads this
_NAMES = ("simdist", "simdist.testing.plugin")  # the names of the entry point, and for `-p` and `pytest_plugins`


class _Alias:
    """Holds the plugin's other name, so that pytest does not load it twice."""


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Add the options."""
    for name in _NAMES:
        if not pluginmanager.has_plugin(name):
            pluginmanager.register(_Alias(), name)
    group = parser.getgroup("simdist", "simulated ranks of torch.distributed")
    group.addoption("--simdist-seed", type=_count, metavar="S", help="run each simulated test with seed S only")
    group.addoption(
        "--simdist-seeds", type=_positive, metavar="N", help="run each simulated test with N seeds, from its first on"
    )
    group.addoption(
        "--simdist-explore", type=_positive, metavar="N", help="run each marked test under N other schedules, too"
    )
    group.addoption(
        "--simdist-check-determinism",
        action="store_true",
        help="repeat each simulated test in a fresh process, and fail it at the first event that differs",
    )
    group.addoption(
        "--simdist-judges", action="store_true", help="let all judges look on in each simulated test, unless it says"
    )
    group.addoption(
        "--simdist-scheduler",
        metavar="ADDRESS",
        help="run simulated tests on a Dask cluster, such as tcp://10.0.0.1:8786",
    )
    group.addoption("--simdist-trace", metavar="DIR", help="write a Chrome trace of each simulated world to DIR")
    group.addoption("--simdist-events", metavar="DIR", help="write the events of each simulated world to DIR, as lines")


def _count(text: str) -> int:
    return _whole(text, 0)


def _positive(text: str) -> int:
    return _whole(text, 1)


def _whole(text: str, least: int) -> int:
    from argparse import ArgumentTypeError

    try:
        number = int(text)
    except ValueError:
        raise ArgumentTypeError(f"expected a whole number, found {text!r}") from None
    if number < least:
        raise ArgumentTypeError(f"{number} is too small; the least is {least}")
    return number


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and make the folders that options name."""
    config.addinivalue_line(
        "markers",
        "simdist(world_size=4, *, backend, seeds, faults, strict, judges, values, policy, init, timeout, max_restarts, "
        "cluster, env, start_time, isolate, share, program_ns, stall_s): run the test's body on every rank of a "
        "simulated world",
    )
    config.addinivalue_line(
        "markers",
        "simdist_sweep(world_size=2, *, profile, strikes, outcomes, limit, max_steps_lost, check, ...): run the test's "
        "body on every rank, crash it at every moment, and start it again; the fixture disk is its disk's folder",
    )
    if config.option.simdist_trace or config.option.simdist_events:
        from simdist.testing._plugin._files import make_folders

        make_folders(config)
    if config.option.simdist_scheduler is not None:
        from simdist.testing._plugin._elsewhere import Elsewhere

        elsewhere = Elsewhere(config, config.option.simdist_scheduler, is_simulated)
        config.pluginmanager.register(elsewhere, "simdist-elsewhere")


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Let output that Python can't report go to pytest's faulthandler's file, and not into a capture."""
    global last_words
    from _pytest.faulthandler import fault_handler_stderr_fd_key

    before, last_words = last_words, session.config.stash.get(fault_handler_stderr_fd_key, last_words)
    try:
        return (yield)
    finally:
        last_words = before


def pytest_report_header(config: pytest.Config) -> str | None:
    """Report what the options ask for."""
    option = config.option
    words = [
        *([f"seed {option.simdist_seed}"] if option.simdist_seed is not None else []),
        *([f"{option.simdist_seeds} seeds each"] if option.simdist_seeds is not None else []),
        *([f"{option.simdist_explore} more schedules each"] if option.simdist_explore is not None else []),
        *(["all judges"] if option.simdist_judges else []),
        *(["each test twice, events compared"] if option.simdist_check_determinism else []),
        *([f"traces in {option.simdist_trace}"] if option.simdist_trace else []),
        *([f"on the workers of {option.simdist_scheduler}"] if option.simdist_scheduler else []),
    ]
    return f"simdist: {', '.join(words)}" if words else None


def is_simulated(item: pytest.Item) -> bool:
    """True if the test's body runs on ranks, or it drives worlds."""
    return item.get_closest_marker("simdist") is not None or "sim" in getattr(item, "fixturenames", ())


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one test for each seed, if there are several."""
    if is_simulated(metafunc.definition):
        from simdist.testing._plugin._settings import parametrize_seeds

        parametrize_seeds(metafunc)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse the marker where unittest calls the test, not pytest."""
    if not isinstance(item, pytest.Function) or item.cls is None:
        return
    from unittest import TestCase

    if issubclass(item.cls, TestCase) and item.get_closest_marker("simdist") is not None:
        pytest.fail(
            f"{item.nodeid}: @pytest.mark.simdist does not work on unittest's test cases; "
            "derive the class from simdist.testing.MultiProcessTestCase instead",
            pytrace=False,
        )


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Run a marked test on ranks; end the worlds that a test with `sim` leaves."""
    __tracebackhide__ = True
    if pyfuncitem.get_closest_marker("simdist_sweep") is not None:
        from simdist.testing._plugin._sweep import sweeping_call

        with sweeping_call(pyfuncitem):
            return (yield)
    if not is_simulated(pyfuncitem):
        return (yield)
    from simdist.testing._plugin._execution import simulated_call

    with simulated_call(pyfuncitem):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to a failure what each rank did; for misuses of simdist, show the test's lines only."""
    if call.excinfo is not None and type(call.excinfo.value).__module__ == "simdist.errors" and is_simulated(item):
        from simdist.testing._plugin._frames import in_the_test

        call.excinfo = in_the_test(item, call.excinfo)
    report = yield
    if call.when == "call" and is_simulated(item):
        from simdist.testing._plugin._worlds import add_to_report

        add_to_report(item, report)
    return report


def pytest_enter_pdb(config: pytest.Config, pdb: Pdb) -> None:
    """While a person debugs a rank, real time does not count."""
    _debugging(True, pdb)


def pytest_leave_pdb(config: pytest.Config, pdb: Pdb) -> None:
    """Count real time again: the rank goes on."""
    _debugging(False, pdb)


def _debugging(begins: bool, debugger: Pdb) -> None:
    import sys

    if "simdist.process" in sys.modules:
        from simdist.testing._plugin._debugging import debugging

        debugging(begins, debugger)


@pytest.fixture(name="disk")
def _disk(request: pytest.FixtureRequest) -> str:
    """The folder of the simulated disk of a test with `@pytest.mark.simdist_sweep`; each run has a fresh one."""
    if request.node.get_closest_marker("simdist_sweep") is None:
        pytest.fail("the fixture disk is for tests with @pytest.mark.simdist_sweep", pytrace=False)
    return "{tmp}"


@pytest.fixture(name="sim")
def _sim(request: pytest.FixtureRequest, simdist_seed: int) -> Iterator[Sim]:
    """Drives simulated worlds from outside: `sim.run(fn, world_size=4)`, `sim.crash(2, at="3s")`; see `Sim`."""
    from simdist.testing._plugin._sim import open_sim

    with open_sim(request.node, simdist_seed) as sim:
        yield sim


@pytest.fixture(name="simdist_seed")
def _simdist_seed(request: pytest.FixtureRequest) -> int:
    """The seed of this test's worlds."""
    from simdist.testing._plugin._settings import seed_of

    return seed_of(request.node)


@pytest.fixture(name="rank")
def _rank(request: pytest.FixtureRequest) -> object:
    """The rank on which the body of a test marked with `simdist` runs."""
    from simdist.testing._plugin._arguments import rank_placeholder

    return rank_placeholder(request.node)


@pytest.fixture(name="world_size")
def _world_size(request: pytest.FixtureRequest) -> int:
    """The number of ranks of a test marked with `simdist`."""
    from simdist.testing._plugin._settings import world_size_of

    return world_size_of(request.node)
