"""Flows on links: moments worked out by hand, and the law of sharing on random flows and topologies."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simdist.cluster import Cluster, Flow, Link, Network, Pace, build
from tests.cluster.wire_clock import WireClock

KB = 1_000


class Wire:
    """A network with messages on it: `ends` returns when each was through."""

    def __init__(self, cluster: Cluster) -> None:
        self.clock = WireClock()
        self.network = Network(cluster, self.clock)
        self.flows: list[Flow] = []

    def send(self, source: int, target: int, size: int, *, at: int = 0, latency_ns: int = 0) -> None:
        def leave() -> None:
            byte_ns = self.network.path(source, target).byte_ns
            wire_ns = round(size * byte_ns)
            entry_ns = at + latency_ns
            traffic = [(source, target, float(size))]
            self.flows.append(
                self.network.begin(
                    entry_ns, entry_ns + wire_ns, byte_ns, lambda: self.network.load(traffic), lambda: None
                )
            )

        self.clock.call_at(at, leave)

    def ends(self) -> list[int]:
        self.clock.run()
        return [flow.end_ns for flow in self.flows]


def local(ranks: int) -> Wire:
    """Return a network of one host, with a nanosecond for each byte."""
    return Wire(build(ranks, local_bandwidth_bytes_per_s=1_000_000_000))


def test_a_lone_flow_takes_its_own_time_and_needs_no_timer() -> None:
    wire = local(2)

    wire.send(0, 1, 5 * KB, latency_ns=70)

    assert wire.ends() == [70 + 5 * KB]
    assert wire.clock.asked == 1  # the test's own timer


Message = tuple[int, int, int] | tuple[int, int, int, int] | tuple[int, int, int, int, int]
MESSAGES: dict[str, tuple[list[Message], list[int]]] = {  # source, target, bytes, moment, latency; when each ends
    "one after the other": ([(0, 1, KB), (0, 1, KB, KB), (0, 1, KB, 2 * KB, 5)], [KB, 2 * KB, 3 * KB + 5]),
    "two from one rank share its way out": ([(0, 1, 4 * KB), (0, 2, 4 * KB)], [8 * KB, 8 * KB]),
    "two to one rank share its way in": ([(0, 2, 4 * KB), (1, 2, KB)], [5 * KB, 2 * KB]),
    "both ways are ways of their own": ([(0, 1, 4 * KB), (1, 0, 4 * KB)], [4 * KB, 4 * KB]),
    "a later one slows what is left": ([(0, 1, 4 * KB), (0, 2, 4 * KB, 3 * KB)], [5 * KB, 8 * KB]),
    "latency uses nothing": ([(0, 1, 4 * KB), (0, 2, 2 * KB, 0, 3 * KB)], [5 * KB, 6 * KB]),
}


@pytest.mark.parametrize("case", MESSAGES)
def test_flows_of_a_host_share_the_ways_out_of_and_into_their_ranks(case: str) -> None:
    messages, ends = MESSAGES[case]
    wire = local(3)

    for source, target, size, *when in messages:
        at, latency_ns = (*when, 0, 0)[:2]
        wire.send(source, target, size, at=at, latency_ns=latency_ns)

    assert wire.ends() == ends


def test_one_that_goes_faster_elsewhere_leaves_the_rest_to_others() -> None:
    graph: Any = nx.Graph()
    graph.add_edge("a", "s", latency_ns=0, bandwidth=1_000_000_000)
    graph.add_edge("b", "s", latency_ns=0, bandwidth=250_000_000)
    graph.add_edge("c", "s", latency_ns=0, bandwidth=1_000_000_000)
    wire = Wire(Cluster(graph, ("a", "b", "c"), shared_links=True))

    wire.send(0, 1, KB)  # limited to a quarter of rank 0's bandwidth
    wire.send(0, 2, 3 * KB)

    assert wire.ends() == [4 * KB, 4 * KB]


def test_a_node_with_a_bandwidth_takes_no_more_than_that_in_all() -> None:
    graph: Any = nx.Graph()
    graph.add_node("s", bandwidth=1_000_000_000)
    for host in "abcd":
        graph.add_edge(host, "s", latency_ns=0, bandwidth=1_000_000_000)
    wire = Wire(Cluster(graph, tuple("abcd"), shared_links=True))

    wire.send(0, 1, KB)
    wire.send(2, 3, KB)

    assert wire.ends() == [2 * KB, 2 * KB]


def test_by_default_ranks_of_a_host_do_not_share_its_edge() -> None:
    def ends(*, shared: bool) -> list[int]:
        plain = build(4, hosts=2, latency_ns=0, bandwidth_bytes_per_s=1_000_000_000)
        wire = Wire(Cluster(plain.graph, plain.placement, shared_links=shared))
        wire.send(0, 2, KB)
        wire.send(1, 3, KB)
        return wire.ends()

    assert ends(shared=False) == [KB, KB]
    assert ends(shared=True) == [2 * KB, 2 * KB]


def test_a_flow_that_is_withdrawn_gives_its_share_back() -> None:
    wire = local(3)
    wire.send(0, 1, 4 * KB)
    wire.send(0, 2, 4 * KB)

    wire.clock.call_at(2 * KB, lambda: wire.network.withdraw(wire.flows[0]))

    assert wire.ends() == [2 * KB, 5 * KB]


def test_many_that_begin_together_are_shared_out_once() -> None:
    wire = local(33)
    changes = []
    change = wire.network._wires.change

    def counted(now_ns: int) -> list[Flow]:
        changes.append(now_ns)
        return change(now_ns)

    for target in range(1, 33):
        wire.send(0, target, KB)
    wire.network._wires = _Watched(wire.network._wires, counted)  # type: ignore[assignment]

    assert wire.ends() == [32 * KB] * 32
    assert changes == [0, 32 * KB]


class _Watched:
    def __init__(self, wires: Any, change: Callable[[int], list[Flow]]) -> None:
        self._wires = wires
        self.change = change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wires, name)


@dataclass(frozen=True)
class Followed:
    """Two messages of one nanosecond a byte: `asks` returns the present load of the links, and until when it holds."""

    wire: Wire
    first_ns: int
    gap_ns: int

    def asks(self) -> tuple[dict[Link, float], int]:
        now = self.wire.clock.now_ns
        load = dict(self.wire.network.followed_load([(0, 1, 1.0)]))
        second_ns = self.first_ns + self.gap_ns
        if now < self.first_ns:
            return load, self.first_ns
        return ({}, second_ns) if now < second_ns else (load, second_ns + KB)


def test_a_followed_flow_takes_links_only_when_it_has_messages_there() -> None:
    wire = local(3)
    followed = Followed(wire, KB, KB)

    def begin() -> None:
        wire.flows.append(wire.network.follow(3 * KB, 1.0, followed.asks, lambda: None))

    wire.clock.call_at(0, begin)
    wire.send(0, 2, 2 * KB)

    assert wire.ends() == [3 * KB, 3 * KB]  # half, whole, half; the followed flow moves its own end itself


def test_a_pace_stretches_what_moves_while_it_is_slow() -> None:
    pace = Pace()
    pace.change(100, 0.5)
    pace.change(200, 1.0)
    pace.change(300, 0.25)

    assert [pace.end_ns(start, 20) for start in (70, 80, 90, 100, 190, 200, 290, 300)] == [
        90,
        100,
        120,
        140,
        215,
        220,
        340,
        380,
    ]


def test_the_last_word_at_one_moment_counts() -> None:
    pace = Pace()
    pace.change(100, 0.5)
    pace.change(100, 1.0)

    assert pace.end_ns(90, 20) == 110


# -- the law ---------------------------------------------------------------------------------------------------------

# With even numbers of bytes no time has to be rounded to whole nanoseconds.
WIDTHS = st.sampled_from([100_000_000, 250_000_000, 500_000_000, 1_000_000_000, 2_000_000_000])
HOSTS = st.integers(2, 6)


@st.composite
def topologies(draw: st.DrawFn) -> Cluster:
    """Draw a tree of hosts and switches with some more edges; some nodes have a bandwidth; ranks are anywhere."""
    count = draw(HOSTS)
    names = [f"n{index}" for index in range(count)]
    graph: Any = nx.Graph()
    graph.add_node(names[0])
    edges = {(draw(st.integers(0, index - 1)), index) for index in range(1, count)}
    edges |= set(draw(st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=3)))
    for a, b in sorted(edges):
        if a != b:
            graph.add_edge(names[a], names[b], latency_ns=draw(st.integers(0, 500)), bandwidth=draw(WIDTHS))
    for name in names:
        if draw(st.integers(0, 3)) == 0:
            graph.nodes[name]["bandwidth"] = draw(WIDTHS)
    placement = draw(st.lists(st.sampled_from(names), min_size=2, max_size=6))
    width = draw(WIDTHS)
    return Cluster(graph, tuple(placement), 50, width, shared_links=draw(st.booleans()))


@dataclass(frozen=True)
class Sent:
    begin: int
    latency: int
    pairs: tuple[tuple[int, int, int], ...]  # source, target, bytes: one for a message, more for a collective


@st.composite
def flows(draw: st.DrawFn, ranks: int) -> Sent:
    rank = st.integers(0, ranks - 1)
    pair = st.tuples(rank, rank, st.integers(1, 2_500).map(lambda half: 2 * half))
    pair = pair.filter(lambda found: found[0] != found[1])
    pairs = draw(st.lists(pair, min_size=1, max_size=4))
    return Sent(draw(st.integers(0, 20_000)), draw(st.sampled_from([0, 0, 300, 4_000])), tuple(pairs))


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Cluster, list[Sent]]:
    cluster = draw(topologies())
    return cluster, draw(st.lists(flows(cluster.world_size), min_size=1, max_size=7))


def wants(cluster: Cluster, sent: Sent) -> dict[Any, Fraction]:
    """Return the nanoseconds for which each link is busy, worked out from the graph alone."""
    busy: dict[Any, Fraction] = {}
    for source, target, size in sent.pairs:
        a, b = cluster.placement[source], cluster.placement[target]
        nodes = [a] if a == b else nx.shortest_path(cluster.graph, a, b, weight="latency_ns")
        costs: dict[Any, int] = {}
        if cluster.shared_links:
            costs |= {(x, y): cluster.graph.edges[x, y]["bandwidth"] for x, y in itertools.pairwise(nodes)}
            costs |= {x: w for x in nodes if (w := cluster.graph.nodes[x].get("bandwidth")) is not None}
        if a == b or not cluster.shared_links:
            narrowest = min(
                [cluster.graph.edges[x, y]["bandwidth"] for x, y in itertools.pairwise(nodes)]
                or [cluster.local_bandwidth, *costs.values()]
            )
            costs |= {("out", source, a == b): narrowest, ("in", target, a == b): narrowest}
        for link, bandwidth in costs.items():
            busy[link] = busy.get(link, Fraction(0)) + Fraction(size * 10**9, bandwidth)
    return busy


@settings(max_examples=50, deadline=None)
@given(worlds())
def test_no_link_carries_more_than_it_can_and_no_flow_is_faster_than_alone(world: tuple[Cluster, list[Sent]]) -> None:
    cluster, given_flows = world
    clock = WireClock()
    network = Network(cluster, clock)
    begun: list[tuple[Sent, Flow]] = []
    speeds: dict[int, list[tuple[int, float]]] = {}  # by flow: since when, and which speed

    def leave(index: int, sent: Sent) -> None:
        traffic = [(source, target, float(size)) for source, target, size in sent.pairs]
        wire_ns = round(network.busiest_ns(traffic))
        entry = sent.begin + sent.latency
        size = sum(size for *_, size in sent.pairs)
        speeds[index] = [(entry, 1.0)]

        def moved() -> None:
            speeds[index].append((clock.now_ns, flow.speed))

        flow = network.begin(entry, entry + wire_ns, wire_ns / size, lambda: network.load(traffic), moved)
        begun.append((sent, flow))

    for index, sent in enumerate(sorted(given_flows, key=lambda sent: sent.begin)):
        clock.call_at(sent.begin, functools.partial(leave, index, sent))
    clock.run()

    busy = [wants(cluster, sent) for sent, _ in begun]
    alone = [int(max(each.values())) for each in busy]
    for index, (sent, flow) in enumerate(begun):
        assert flow.end_ns >= sent.begin + sent.latency + alone[index]
        done = sum(
            (min(until, flow.end_ns) - since) * speed
            for (since, speed), (until, _) in itertools.pairwise([*speeds[index], (flow.end_ns, 0.0)])
        )
        assert alone[index] - 1e-3 <= done <= alone[index] + 1.01

    def speed_at(index: int, moment: int) -> float:
        if not speeds[index][0][0] <= moment < begun[index][1].end_ns:
            return 0.0
        return next(speed for since, speed in reversed(speeds[index]) if since <= moment)

    moments = sorted({since for each in speeds.values() for since, _ in each} | {flow.end_ns for _, flow in begun})
    for moment in moments:  # speeds are constant from each moment to the next
        rates = [speed_at(index, moment) for index in range(len(begun))]
        used: dict[Any, float] = {}
        for index, rate in enumerate(rates):
            for link, amount in busy[index].items():
                used[link] = used.get(link, 0.0) + rate * float(amount) / alone[index]
        assert all(amount <= 1 + 1e-9 for amount in used.values())
        for index, rate in enumerate(rates):  # max-min: a full link limits a flow, and no flow there is faster
            if 0 < rate < 1:
                mine = rate * sum(size for *_, size in begun[index][0].pairs) / alone[index]
                others = [
                    max(
                        rates[other] * sum(size for *_, size in begun[other][0].pairs) / alone[other]
                        for other in range(len(begun))
                        if link in busy[other]
                    )
                    for link in busy[index]
                    if used[link] >= 1 - 1e-6
                ]
                assert any(fastest <= mine * (1 + 1e-6) for fastest in others)


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_overlapped_flows_cost_what_one_of_their_total_size_costs(share: float) -> None:
    wire = local(4)
    for index in range(8):
        wire.send(0, 1, 6 * KB, at=round(index * KB * share), latency_ns=300)

    assert 0 <= max(wire.ends()) - (300 + 8 * 6 * KB) <= 8  # each change rounds up to a whole nanosecond
