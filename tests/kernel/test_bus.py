from __future__ import annotations

from dataclasses import dataclass

from simdist.kernel import PASS, Bus, Simulation, Verdict
from simdist.records import Issued, MessageIssued, Packed, Record, Slept, issued, message_issued, slept

LOST = ConnectionError("lost")


@dataclass(frozen=True)
class Sent:
    size_bytes: int


@dataclass(frozen=True)
class SentTwice(Sent):
    pass


def bus_of(*log: list[Packed]) -> Bus:
    return Bus(log=(log[0] if log else []).append)


def test_an_event_that_nobody_judges_passes() -> None:
    bus = bus_of()

    assert bus.announce(Sent(3)) is PASS
    assert not bus.active
    assert not bus.wants(Sent)


def test_a_bus_wants_what_someone_judges() -> None:
    bus = bus_of()
    bus.intercept(Sent, lambda event: PASS)

    assert bus.active
    assert bus.wants(Sent)
    assert not bus.wants(SentTwice)


def test_every_judge_is_asked_and_what_they_say_is_added_up() -> None:
    bus = bus_of()
    asked = []

    def add_judge(name: str, verdict: Verdict) -> None:
        def judge(event: Sent) -> Verdict:
            asked.append((name, event))
            return verdict

        bus.intercept(Sent, judge)

    add_judge("indifferent", PASS)
    add_judge("slow", Verdict(delay_ns=5))
    add_judge("lossy", Verdict(error=LOST))

    verdict = bus.announce(Sent(3))

    assert verdict == Verdict(delay_ns=5, error=LOST)
    assert asked == [("indifferent", Sent(3)), ("slow", Sent(3)), ("lossy", Sent(3))]


def test_strikes_come_one_after_the_other_where_the_later_one_is_due() -> None:
    bus = bus_of()
    struck: list[str] = []
    bus.intercept(Sent, lambda event: Verdict(delay_ns=1, strike=lambda: struck.append("first")))
    bus.intercept(Sent, lambda event: Verdict(delay_ns=2, strike=lambda: struck.append("second"), when="after"))
    bus.intercept(Sent, lambda event: Verdict(delay_ns=4))

    verdict = bus.announce(Sent(3))
    assert verdict.strike is not None
    verdict.strike()

    assert (verdict.delay_ns, verdict.when, struck) == (7, "after", ["first", "second"])


def test_only_events_of_exactly_the_type_are_judged() -> None:
    bus = bus_of()
    bus.intercept(Sent, lambda event: Verdict(error=LOST))

    assert bus.announce(Sent(1)).error is LOST
    assert bus.announce(SentTwice(1)) is PASS


def test_a_judge_looks_at_each_event_by_itself() -> None:
    bus = bus_of()
    bus.intercept(Sent, lambda event: Verdict(error=LOST) if event.size_bytes > 9 else PASS)

    assert [bus.announce(Sent(size)).error for size in (9, 10)] == [None, LOST]


def test_listeners_are_called_in_their_order_and_for_exactly_their_type() -> None:
    bus = bus_of()
    reported: list[tuple[str, Sent]] = []
    bus.listen(Sent, lambda event: reported.append(("first", event)))
    bus.listen(Sent, lambda event: reported.append(("second", event)))

    bus.report(Sent(3))
    bus.report(SentTwice(4))

    assert reported == [("first", Sent(3)), ("second", Sent(3))]
    assert bus.hears(Sent)
    assert not bus.hears(SentTwice)
    assert not bus.active  # a listener judges nothing


def test_who_has_stopped_listening_is_called_no_more() -> None:
    bus = bus_of()
    reported: list[tuple[str, int]] = []
    end = bus.listen(Sent, lambda event: reported.append(("first", event.size_bytes)))
    bus.listen(Sent, lambda event: reported.append(("second", event.size_bytes)))

    bus.report(Sent(1))
    end()
    end()
    bus.report(Sent(2))

    assert reported == [("first", 1), ("second", 1), ("second", 2)]


def test_a_bus_hears_nothing_after_the_last_listener_of_a_kind() -> None:
    bus = bus_of()
    end = bus.listen(Sent, lambda event: None)

    end()

    assert not bus.hears(Sent)


def test_who_stops_listening_while_all_are_called_ends_it_for_nobody_else() -> None:
    bus = bus_of()
    reported: list[Sent] = []
    ends = [bus.listen(Sent, lambda event: ends[0]())]
    bus.listen(Sent, reported.append)

    bus.report(Sent(1))
    bus.report(Sent(2))

    assert reported == [Sent(1), Sent(2)]


def test_the_log_has_every_record_before_a_listener_hears_of_it() -> None:
    log: list[Packed] = []
    bus = bus_of(log)
    reported: list[tuple[Record, int]] = []
    bus.listen(Slept, lambda record: reported.append((record, len(log))))

    bus.record(slept(5, 1, 1_000))
    bus.record(issued(6, 0, "barrier", "0", 0, 0, "", (), -1, True))

    assert reported == [(Slept(5, 1, 1_000), 1)]
    assert log == [(5, "sleep", 1, 1_000), (6, "issue", 0, "barrier", "0", 0, 0, "", (), -1, True)]


def test_a_listener_of_a_kind_hears_all_its_classes_of_records_all_kinds() -> None:
    bus = bus_of()
    calls: list[Issued] = []
    every: list[Record] = []
    bus.listen(Issued, calls.append)
    bus.listen(Record, every.append)

    bus.record(slept(5, 1, 1_000))
    bus.record(message_issued(6, 0, "send", "0", 0, 4, "int32", (1,), 1, True, 7))

    message = MessageIssued(6, 0, "send", "0", 0, 4, "int32", (1,), 1, True, 7)
    assert calls == [message]
    assert every == [Slept(5, 1, 1_000), message]


def test_a_record_goes_straight_to_the_log_while_nobody_listens_to_any() -> None:
    log: list[Packed] = []
    append = log.append
    bus = Bus(log=append)
    bus.listen(Sent, lambda event: None)
    straight = bus.record
    end = bus.listen(Slept, lambda record: None)
    looking = bus.record
    end()

    assert straight is append
    assert looking is not append
    assert bus.record is append


def test_what_a_simulation_records_is_in_its_log() -> None:
    simulation = Simulation()

    simulation.bus.record(slept(0, 0, 7))

    assert simulation.events.records == [(0, "sleep", 0, 7)]
