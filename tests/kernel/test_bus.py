from __future__ import annotations

from dataclasses import dataclass

from simdist.kernel import PASS, Bus, Verdict


@dataclass(frozen=True)
class Sent:
    size_bytes: int


@dataclass(frozen=True)
class SentTwice(Sent):
    pass


def test_an_event_that_nobody_judges_passes() -> None:
    bus = Bus()

    assert bus.announce(Sent(3)) is PASS
    assert not bus.active
    assert not bus.wants(Sent)


def test_a_bus_wants_what_someone_judges() -> None:
    bus = Bus()
    bus.intercept(Sent, lambda event: PASS)

    assert bus.active
    assert bus.wants(Sent)
    assert not bus.wants(SentTwice)


def test_the_first_verdict_that_does_not_pass_decides_and_the_rest_are_not_asked() -> None:
    bus = Bus()
    asked = []

    def judge(name: str, verdict: Verdict) -> None:
        def interceptor(event: Sent) -> Verdict:
            asked.append((name, event))
            return verdict

        bus.intercept(Sent, interceptor)

    judge("indifferent", PASS)
    judge("slow", Verdict(delay_ns=5))
    judge("lossy", Verdict(drop=True))

    verdict = bus.announce(Sent(3))

    assert verdict == Verdict(delay_ns=5)
    assert asked == [("indifferent", Sent(3)), ("slow", Sent(3))]


def test_only_events_of_exactly_the_type_are_judged() -> None:
    bus = Bus()
    bus.intercept(Sent, lambda event: Verdict(drop=True))

    assert bus.announce(Sent(1)).drop
    assert bus.announce(SentTwice(1)) is PASS


def test_an_interceptor_judges_each_event_by_itself() -> None:
    bus = Bus()
    bus.intercept(Sent, lambda event: Verdict(drop=True) if event.size_bytes > 9 else PASS)

    assert [bus.announce(Sent(size)).drop for size in (9, 10)] == [False, True]
