"""Messages meet as in a search of simple lists, and the cost does not grow with the number of waiting ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

import simdist
from simdist.c10d.engine._matching import Matching
from simdist.faults import Crash

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 2), st.integers(0, 1), st.integers(0, 1)),
        st.tuples(st.just("receive"), st.none() | st.integers(0, 2), st.integers(0, 1), st.integers(0, 1)),
        st.tuples(st.just("hear"), st.integers(0, 2), st.integers(0, 1), st.integers(0, 1)),
        st.tuples(st.just("withdraw"), st.integers(0, 40)),
        st.tuples(st.just("put back"), st.integers(0, 2), st.integers(0, 1), st.integers(0, 1)),
    ),
    max_size=40,
)


@dataclass(eq=False)
class Message:
    name: int
    place: int = -1


@dataclass
class Search:
    """The same matching, by searching two lists."""

    sends: list[tuple[int, int, int, int]] = field(default_factory=list)  # name, source, target, tag
    receives: list[tuple[int, int | None, int, int]] = field(default_factory=list)

    def send(self, name: int, source: int, target: int, tag: int) -> int | None:
        for entry in self.receives:
            if entry[2:] == (target, tag) and entry[1] in (None, source):
                if entry[1] is None:
                    break  # it meets this receive once the receiver learns of it
                self.receives.remove(entry)
                return entry[0]
        self.sends.append((name, source, target, tag))
        return None

    def receive(self, name: int, source: int | None, target: int, tag: int) -> int | None:
        for entry in self.sends if source is not None else ():
            if entry[2:] == (target, tag) and source == entry[1]:
                self.sends.remove(entry)
                return entry[0]
        self.receives.append((name, source, target, tag))
        return None

    def hear(self, source: int, target: int, tag: int) -> tuple[int, int] | None:
        sends = [entry for entry in self.sends if entry[1:] == (source, target, tag)]
        receives = [entry for entry in self.receives if entry[2:] == (target, tag) and entry[1] in (None, source)]
        if not sends or not receives:
            return None
        self.sends.remove(sends[0])
        self.receives.remove(receives[0])
        return sends[0][0], receives[0][0]

    def withdraw(self, name: int) -> None:
        self.sends = [entry for entry in self.sends if entry[0] != name]
        self.receives = [entry for entry in self.receives if entry[0] != name]


@given(STEPS)
def test_matching_finds_what_a_search_finds(steps: list[tuple[Any, ...]]) -> None:
    matching: Matching[Message] = Matching()
    search = Search()
    messages: list[Message] = []
    for action, *details in steps:
        if action == "withdraw":
            if details[0] < len(messages):
                matching.withdraw(messages[details[0]])
                search.withdraw(details[0])
            continue
        if action == "hear":
            waits = any(each[2:] == tuple(details[1:]) and each[1] in (None, details[0]) for each in search.receives)
            assert matching.awaited(*details) == waits
            both = matching.hear(*details)
            assert (None if both is None else tuple(each.name for each in both)) == search.hear(*details)
            continue
        name = len(messages)
        message = Message(name)
        messages.append(message)
        source, target, tag = details
        if action == "put back":
            if any(entry[2:] == (target, tag) and entry[1] in (None, source) for entry in search.receives):
                continue  # only a send without a receive here is put back
            matching.put_back(message, source, target, tag)
            search.sends.append((name, source, target, tag))
            continue
        if action == "receive" and source is None:
            matching.receive_from_any(message, target, tag)
            search.receive(name, source, target, tag)
            firsts = {entry[1]: entry[0] for entry in reversed(search.sends) if entry[2:] == (target, tag)}
            assert [each.name for each in matching.offered(target, tag)] == sorted(firsts.values())
            assert matching.awaits_any(target, tag)
            continue
        call: Callable[..., Message | None] = matching.send if action == "send" else matching.receive
        found = call(message, source, target, tag)
        expected = (search.send if action == "send" else search.receive)(name, source, target, tag)

        assert (None if found is None else found.name) == expected
    assert [message.name for message in matching.sends()] == [entry[0] for entry in search.sends]
    assert [message.name for message in matching.receives()] == [entry[0] for entry in search.receives]
    assert bool(matching) == bool(search.sends or search.receives)


class CountingMessage(Message):
    """Counts how often its place is read."""

    looks = 0

    def __getattribute__(self, name: str) -> Any:
        if name == "place":
            CountingMessage.looks += 1
        return super().__getattribute__(name)


def looks_per_message(count: int) -> float:
    matching: Matching[CountingMessage] = Matching()
    CountingMessage.looks = 0
    for name in range(count):
        if name % 3:
            matching.receive(CountingMessage(name), 1, 0, 0)
        else:
            matching.receive_from_any(CountingMessage(name), 0, 0)
    for name in range(count):
        assert matching.send(CountingMessage(name), 1, 0, 0) is not None or matching.hear(1, 0, 0) is not None
    return CountingMessage.looks / count


def test_the_cost_of_a_message_does_not_grow_with_those_that_wait() -> None:
    assert looks_per_message(10_000) < 1.1 * looks_per_message(100)


def test_thousands_of_outstanding_messages_arrive_in_order() -> None:
    count = 3000

    def body() -> list[float]:
        dist.init_process_group("gloo")
        tensors = [torch.zeros(1) for _ in range(count)]
        if dist.get_rank() == 0:
            works = [dist.irecv(tensor, 1) for tensor in tensors]
        else:
            works = [dist.isend(tensor.fill_(index), 0) for index, tensor in enumerate(tensors)]
        for work in works:
            assert work is not None
            work.wait()
        return [tensor.item() for tensor in tensors]

    result = simdist.run(body, world_size=2)

    assert result.values == [list(range(count))] * 2


def test_many_messages_to_a_dead_peer_fail_at_one_look() -> None:
    count = 300

    def body() -> int:
        dist.init_process_group("gloo")
        if dist.get_rank() == 0:
            dist.barrier()
        works = [dist.irecv(torch.zeros(1), 0) for _ in range(count)]
        failed = 0
        for work in works:
            try:
                assert work is not None
                work.wait()
            except RuntimeError as error:
                failed += "Connection closed by peer" in str(error)
        return failed

    result = simdist.run(body, world_size=3, faults=[Crash(rank=0, op="barrier")])

    assert result.values == [None, count, count]
