"""Tasks that only sleep, or ask in vain, for ever."""

from __future__ import annotations

from functools import partial

import pytest

from simdist.errors import LivelockError
from simdist.kernel import Simulation


def sleep_for_ever(simulation: Simulation) -> None:
    while True:
        simulation.sleep(5)


def test_a_world_that_only_sleeps_ends_with_a_report_of_every_line() -> None:
    simulation = Simulation(idle_turns=100)
    for name in ("a", "b"):
        simulation.spawn(partial(sleep_for_ever, simulation), name)

    with pytest.raises(LivelockError) as caught:
        simulation.run()
    leaked = simulation.close()

    first, *tasks = str(caught.value).splitlines()
    assert first == "at 0.000000125 s nothing has happened for long but sleeping and asking:"
    assert [line.split(" in ")[0][:4] for line in tasks] == ["  a ", "  b "]
    assert all("test_livelock.py:" in line and "in sleep_for_ever, in sleep until" in line for line in tasks)
    assert leaked == []


def test_events_are_progress_unless_they_say_that_someone_asked() -> None:
    def work(*, asks: bool) -> None:
        simulation = Simulation(idle_turns=100)

        def steps() -> None:
            for _ in range(1_000_000 if asks else 1_000):
                simulation.sleep(5)
                simulation.events.add((simulation.now_ns, "step", 0))
                simulation.polls += asks

        simulation.spawn(steps, "steps")
        try:
            simulation.run()
        finally:
            simulation.close()

    work(asks=False)
    with pytest.raises(LivelockError):
        work(asks=True)


def test_two_runs_stop_at_the_same_moment() -> None:
    texts = []
    for _ in range(2):
        simulation = Simulation(idle_turns=1_000)
        simulation.spawn(partial(sleep_for_ever, simulation), "a")
        with pytest.raises(LivelockError) as caught:
            simulation.run()
        simulation.close()
        texts.append(str(caught.value))

    assert texts[0] == texts[1]
