"""TCPStore, HashStore, FileStore and PrefixStore on simulated ranks, with the texts and waits of real stores."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import simdist
from simdist.inside.torch import c10d_bindings
from tests.c10d.stores import (
    FILE,
    HALF,
    HOST,
    LATE_S,
    LOST,
    PIPE,
    alone,
    dist,
    filed,
    gave_up,
    hashed,
    me,
    prefixed,
    shared,
    tcp,
)
from tests.c10d.strategies import store_steps
from tests.c10d.worlds import Diary, attempt, now_ns, outcome, sleep_s, values


@pytest.mark.parametrize(("make", "prefix", "fresh"), [(tcp, "/", 1), (prefixed, "/pre/", 1), (hashed, "", 0)])
def test_a_store_answers_as_the_real_one(make: Callable[[], Any], prefix: str, fresh: int) -> None:
    def late(*keys: str, limit_ms: int = 500) -> str:
        if make is hashed:
            return "DistStoreError: Wait timeout"
        return gave_up(", ".join(prefix + key for key in keys), limit_ms)

    def body() -> list[tuple[str, float]]:
        store = make()
        diary = Diary(now_ns())
        steps: list[Callable[[], object]] = [
            lambda: store.num_keys(),
            lambda: store.get("nope"),
            lambda: store.wait(["nope"], timedelta(seconds=0.3)),
            lambda: store.wait(["nope", "nope2"]),
            lambda: store.set("a", "1"),
            lambda: store.wait(["a", "nope"], timedelta(seconds=0.2)),
            lambda: store.get("a"),
            lambda: store.num_keys() - fresh,
            lambda: (store.add("a", 5), store.get("a")),
            lambda: (store.add("cnt", 3), store.get("cnt"), store.add("cnt", -5)),
            lambda: (store.compare_set("c1", "", "x"), store.check(["c1"])),
            lambda: (store.compare_set("c2", "exp", "x"), store.check(["c2"])),
            lambda: (store.set("c3", "v"), store.compare_set("c3", "w", "x"), store.compare_set("c3", "v", "x")),
            lambda: (store.get("c3"), store.compare_set("c3", "", "y"), store.get("c3")),
            lambda: (store.delete_key("c3"), store.delete_key("c3")),
            lambda: (store.check(["a"]), store.check(["a", "missing"]), store.check([])),
            lambda: (store.append("a", "XY"), store.get("a"), store.append("ap", "Z"), store.get("ap")),
            lambda: store.add("a", 1),
            lambda: (store.multi_set(["m1", "m2"], ["1", "2"]), store.multi_get(["m1", "m2"])),
            lambda: store.multi_get(["m1", "no"]),
            lambda: (store.has_extended_api(), store.timeout),
            lambda: (store.num_keys() - fresh, store.list_keys()),
            lambda: (store.set("bytes", b"\x00\xff"), store.get("bytes")),
            lambda: (store.queue_push("q", "v1"), store.queue_len("q"), store.queue_pop("q"), store.queue_len("q")),
            lambda: store.queue_pop("q"),
            lambda: store.queue_pop("q", False),
        ]
        for index, step in enumerate(steps):
            diary.call(str(index), step, show=True)
        return [(entry.outcome, round(entry.ended_ms / 1000, 1)) for entry in diary.entries]

    assert alone(body) == [
        (str(fresh), 0.0),
        (late("nope"), 0.5),
        (late("nope", limit_ms=300), 0.8),
        (late("nope", "nope2"), 1.3),
        ("None", 1.3),
        (late("a", "nope", limit_ms=200), 1.5),
        ("b'1'", 1.5),
        ("1", 1.5),
        ("(6, b'6')", 1.5),
        ("(3, b'3', -2)", 1.5),
        ("(b'x', True)", 1.5),
        ("(b'exp', False)", 1.5),
        ("(None, b'v', b'x')", 1.5),
        ("(b'x', b'x', b'x')", 1.5),
        ("(True, False)", 1.5),
        ("(True, False, True)", 1.5),
        ("(None, b'6XY', None, b'Z')", 1.5),
        ("7", 1.5),  # as stoll reads it
        ("(None, [b'1', b'2'])", 1.5),
        (late("m1", "no"), 2.0),
        ("(True, datetime.timedelta(microseconds=500000))", 2.0),
        ("(6, ['a', 'ap', 'c1', 'cnt', 'm1', 'm2'])", 2.0),
        ("(None, b'\\x00\\xff')", 2.0),
        ("(None, 1, b'v1', 0)", 2.0),
        (late("q"), 2.5),
        ("QueueEmptyError: queue is empty", 2.5),
    ]


@pytest.mark.parametrize(
    ("make", "late", "keys"),
    [
        (tcp, "DistStoreError: barrier timeout after 500ms, key: c", ["b", "c"]),
        (prefixed, gave_up("/pre/c/last_member"), None),
        (hashed, "DistStoreError: Wait timeout", None),
        (filed, "RuntimeError: Wait timeout", None),
    ],
)
def test_a_stores_barrier_counts_those_who_gave_up(make: Callable[[], Any], late: str, keys: list[str] | None) -> None:
    def body() -> tuple[list[str], list[str]]:
        store = make()
        steps = [("b", 1), ("b", 1), ("c", 2), ("c", 2), ("c", 2)]
        said = [attempt(functools.partial(store.barrier, key, size)) for key, size in steps]
        return said, [key for key in store.list_keys() if key != "efcount/"]

    by_keys = ["b/last_member", "b/num_members", "c/last_member", "c/num_members"]
    assert alone(body) == (["ok", "ok", late, "ok", "ok"], keys or by_keys)


@pytest.mark.parametrize("view", [lambda store: store, lambda store: dist.PrefixStore("pre", store)])
def test_a_stores_barrier_ends_with_the_last_rank(view: Callable[[Any], Any]) -> None:
    def body() -> int:
        store = view(shared())
        begin = now_ns()
        sleep_s(0.1 * me())
        store.barrier("here", 3)
        return round((now_ns() - begin) / 1e6)

    assert values(body, 3) == [200] * 3


def test_a_barrier_that_cannot_end_is_named_in_the_report() -> None:
    def body() -> None:
        shared().barrier("here", 3, timedelta(days=1))

    result = simdist.run(body, world_size=2)

    assert "store.barrier(['here'])" in str(result)


def test_a_tcp_store_reports_its_backend_and_a_view_its_innermost_store() -> None:
    def body() -> tuple[Any, ...]:
        store = dist.TCPStore(HOST, 0, 1, True, use_libuv=False)
        view = dist.PrefixStore("b", dist.PrefixStore("a", store))
        return (
            store.libuvBackend,
            store.clone().libuvBackend,
            tcp().libuvBackend,
            view._underlying_non_prefix_store is store,
        )

    assert alone(body) == (False, False, True, True)


def test_a_store_at_any_free_port_leaves_torchs_default_ports_free() -> None:
    def body() -> list[int]:
        stores = [dist.TCPStore("localhost", port, 1, True) for port in (0, 29400, 0)]
        return [store.port for store in stores]

    assert alone(body) == [32768, 29400, 32769]


def test_a_store_of_the_programs_own_lacks_what_it_does_not_define() -> None:
    class Own(dist.Store):  # type: ignore[misc]  # untyped
        def wait(self, keys: list[str]) -> None:
            waited.append(keys)

    def body() -> list[str]:
        own = Own()
        dist.PrefixStore("pre", own).wait(["a"])
        calls = (
            lambda: own.append("a", "b"),
            lambda: own.multi_set(["a"], ["b"]),
            lambda: own.multi_get(["a"]),
            lambda: own.barrier("a", 1),
            lambda: own.queue_pop("a"),
        )
        return [attempt(call) for call in calls]

    waited: list[list[str]] = []
    assert alone(body) == body()
    assert waited == [["pre/a"]] * 2


def test_a_file_store_answers_as_the_real_one() -> None:
    def body() -> list[tuple[str, float]]:
        store = filed()
        diary = Diary(now_ns())
        steps: list[Callable[[], object]] = [
            lambda: store.num_keys(),
            lambda: (store.set("a", "1"), store.num_keys()),
            lambda: store.get("nope"),
            lambda: store.wait(["nope"], timedelta(seconds=0.3)),
            lambda: store.wait(["nope"], timedelta(seconds=1.5)),
            lambda: (store.add("a", 5), store.add("c", 3), store.add("c", -5)),
            lambda: (
                store.set("txt", "hello"),
                store.compare_set("txt", "w", "x"),
                store.compare_set("txt", "hello", "x"),
            ),
            lambda: store.add("txt", 1),
            lambda: (store.compare_set("c1", "", "x"), store.compare_set("c2", "exp", "x"), store.check(["c2"])),
            lambda: (store.delete_key("txt"), store.delete_key("txt")),
            lambda: (store.append("a", "XY"), store.multi_get(["a"]), store.multi_set(["m1"], ["1"])),
            lambda: store.has_extended_api(),
            lambda: (store.list_keys(), store.num_keys()),
            lambda: store.queue_push("q", "1"),
            lambda: store.queue_len("q"),
            lambda: store.path,
        ]
        for index, step in enumerate(steps):
            diary.call(str(index), step, show=True)
        return [(entry.outcome, round(entry.ended_ms / 1000, 1)) for entry in diary.entries]

    assert alone(body) == [
        ("1", 0.0),
        ("(None, 2)", 0.0),
        ("RuntimeError: Timeout waiting for key: nope after 500 ms", 1.0),
        ("RuntimeError: Wait timeout", 2.0),
        ("RuntimeError: Wait timeout", 4.0),
        ("(6, 3, -2)", 4.0),
        ("(None, b'hello', b'x')", 4.0),
        ("ValueError: stoll", 4.0),
        ("(b'x', b'exp', False)", 4.0),
        ("(True, True)", 4.0),
        ("(None, [b'6XY'], None)", 4.0),
        ("False", 4.0),
        ("(['a', 'c', 'c1', 'efcount/', 'm1'], 5)", 4.0),
        ("NotImplementedError: queue support is not implemented.", 4.0),
        ("NotImplementedError: queue support is not implemented.", 4.0),
        (repr(FILE), 4.0),
    ]


def test_adding_to_what_is_no_number_breaks_a_tcp_store_s_connection_only() -> None:
    def body() -> tuple[list[str], bytes]:
        store = tcp()
        other = dist.TCPStore(HOST, 1234, None, False, HALF)
        store.set("txt", "hello")
        said = [attempt(lambda: store.add("txt", 1))]
        said += [attempt(call) for call in (lambda: store.get("txt"), lambda: store.set("x", "1"), store.num_keys)]
        return said, other.get("txt")

    assert alone(body) == ([LOST, LOST, PIPE, PIPE], b"hello")


def test_adding_to_what_is_no_number_is_a_value_error_in_a_hash_store() -> None:
    def body() -> tuple[str, bytes]:
        store = hashed()
        store.set("txt", "hello")
        return attempt(lambda: store.add("txt", 1)), store.get("txt")

    assert alone(body) == ("ValueError: stoll", b"hello")


def test_multi_set_wants_as_many_values_as_keys() -> None:
    def body() -> tuple[str, bool]:
        store = tcp()
        return attempt(lambda: store.multi_set(["m1", "m2"], ["1"])), store.check(["m1"])

    assert alone(body) == ("DistStoreError: multiSet keys and values vectors must be of same size", False)


def test_a_value_that_is_neither_text_nor_bytes_is_refused() -> None:
    assert alone(lambda: attempt(lambda: tcp().set("n", 5))).startswith("TypeError: ")


def test_a_wait_for_a_queue_ends_with_its_first_element_which_is_empty() -> None:
    def body() -> tuple[bool, bytes, bool, int]:
        store = tcp()
        store.queue_push("q", "1")
        store.wait(["q"])
        return store.check(["q"]), store.get("q"), store.delete_key("q"), store.queue_len("q")

    assert alone(body) == (True, b"", False, 1)


def test_a_timeout_of_zero_gives_up_at_once() -> None:
    def body() -> tuple[str, int]:
        store = tcp()
        begin = now_ns()
        return attempt(lambda: store.wait(["no"], timedelta(0))), now_ns() - begin

    assert alone(body) == (gave_up("/no", 0), 0)


def test_prefixes_nest_and_list_their_own_keys_only() -> None:
    def body() -> tuple[Any, ...]:
        base = tcp()
        inner = dist.PrefixStore("pg", base)
        outer = dist.PrefixStore("0/", inner)
        base.set("x", "1")
        outer.set("k", "v")
        late = attempt(lambda: outer.wait(["zz"], timedelta(seconds=0.1)))
        return outer.list_keys(), inner.list_keys(), base.list_keys(), outer.num_keys(), late

    assert alone(body) == (["k"], ["0//k"], ["pg/0//k", "x"], 3, gave_up("/pg/0//zz", 100))


def test_a_prefix_store_shares_the_timeout_of_what_is_under_it() -> None:
    def body() -> list[timedelta]:
        base = tcp()
        view = dist.PrefixStore("p", base)
        view.set_timeout(timedelta(seconds=7))
        clone = view.clone()
        clone.set_timeout(timedelta(seconds=9))
        return [base.timeout, view.timeout, clone.timeout]

    assert alone(body) == [timedelta(seconds=7), timedelta(seconds=7), timedelta(seconds=9)]


def test_a_prefix_store_knows_what_is_under_it() -> None:
    def body() -> bool:
        base = tcp()
        view = dist.PrefixStore("p", base)
        return view.underlying_store is base

    assert alone(body)


def test_every_rank_has_a_hash_store_of_its_own_and_clones_share_it() -> None:
    def body() -> bytes:
        store = dist.HashStore()
        store.set("mine", os.environ["RANK"])
        sleep_s(0.1)
        return bytes(store.clone().get("mine"))

    assert values(body, 3) == [b"0", b"1", b"2"]


def test_ranks_that_open_one_file_share_a_store() -> None:
    def body() -> int:
        store = dist.FileStore(FILE, 3)
        total: int = store.add("arrived", 1)
        store.wait([f"go{total}"]) if total < 3 else None
        store.set(f"go{total - 1}", "1")
        return total

    assert sorted(values(body, 3)) == [1, 2, 3]


def test_a_file_has_one_store_under_any_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def body() -> bytes:
        dist.FileStore(str(tmp_path / "file")).set("key", "value")
        return bytes(dist.FileStore("file").get("key"))

    assert alone(body) == b"value"


def test_a_file_loses_its_keys_when_as_many_close_it_as_should_open_it(tmp_path: Path) -> None:
    def opened() -> Any:
        return dist.FileStore(str(tmp_path / "file"), 2)

    def body() -> list[bool]:
        found = []
        for _ in range(3):  # as with torch 2.13: one has closed it, two have, and it is new
            store = opened()
            found.append(store.check(["key"]))
            store.set("key", "value")
            del store
        return found

    assert alone(body) == [False, True, False]


@pytest.mark.parametrize("made_by", ["program", "store"])
def test_the_keys_of_a_file_go_when_the_program_removes_it(tmp_path: Path, made_by: str) -> None:
    def body() -> list[bool]:
        path = tmp_path / "file"
        if made_by == "program":
            path.touch()
        dist.FileStore(str(path)).set("key", "value")
        found = [dist.FileStore(str(path)).check(["key"])]
        path.unlink()
        return [*found, dist.FileStore(str(path)).check(["key"])]

    assert alone(body) == [True, False]


def test_the_file_is_there_until_as_many_have_closed_it(tmp_path: Path) -> None:
    path = tmp_path / "file"

    def body() -> list[bool]:
        found = []
        for _ in range(2):  # as with torch 2.13
            store = dist.FileStore(str(path), 2)
            found.append(path.exists())
            del store
            found.append(path.exists())
        return found

    assert alone(body) == [True, True, True, False]


def test_a_file_that_the_program_made_is_removed_when_all_close_it(tmp_path: Path) -> None:
    def body() -> list[str]:
        path = tmp_path / "file"
        path.touch()
        store = dist.FileStore(str(path), 1)
        store.set("key", "value")
        del store
        return [each.name for each in tmp_path.iterdir()]

    assert alone(body) == []


def test_no_file_of_a_store_is_left_after_the_run(tmp_path: Path) -> None:
    def body() -> bool:
        dist.FileStore(str(tmp_path / "file")).set("key", "value")
        return (tmp_path / "file").exists()

    assert alone(body) is True
    assert list(tmp_path.iterdir()) == []


def test_the_file_of_another_run_may_go_at_any_moment(tmp_path: Path) -> None:
    path, other = tmp_path / "file", tmp_path / "other"

    def body() -> tuple[bool, bool]:
        dist.FileStore(str(other)).set("key", "value")
        path.write_bytes(other.read_bytes())  # as if another process had made it
        dist.FileStore(str(path), 1).set("key", "value")
        kept = path.exists()
        dist.FileStore(str(path)).set("key", "value")
        path.unlink()
        return kept, dist.FileStore(str(path)).check(["key"])

    assert alone(body) == (True, True)


def test_a_process_that_is_killed_leaves_the_keys_of_its_file() -> None:
    def body() -> list[bool]:
        if me() == 1:
            store = dist.FileStore(FILE, 2)
            store.set("key", "value")
            os.kill(os.getpid(), signal.SIGKILL)
        sleep_s(1)
        found = []
        for _ in range(3):
            store = dist.FileStore(FILE, 2)
            found.append(store.check(["key"]))
            del store
        return found

    assert simdist.run(body, world_size=2).ranks[0].value == [True] * 3


def modelled(
    step: tuple[Any, ...], data: dict[str, bytes], queues: dict[str, list[bytes]], late: Callable[[list[str]], str]
) -> Any:
    """Return the answer of a store that holds `data` and `queues`."""
    name, *arguments = step

    def missing(keys: list[str]) -> bool:
        return any(key not in data and not queues.get(key) for key in keys)

    key: Any = arguments[0] if arguments else ""
    match name:
        case "set":
            data[key] = arguments[1]
        case "append":
            data[key] = data.get(key, b"") + arguments[1]
        case "get":
            return late([key]) if missing([key]) else data.get(key, b"")
        case "compare_set":
            _, expected, desired = arguments
            if key not in data and expected:
                return expected
            if data.get(key, b"") == expected:
                data[key] = desired
            return data[key]
        case "delete_key":
            return data.pop(key, None) is not None
        case "check":
            return not missing(key)
        case "wait":
            return late(key) if missing(key) else None
        case "count":
            total = int(data.get("number", b"0")) + arguments[0]
            data["number"] = str(total).encode()
            return total
        case "multi_set":
            data.update(key)
        case "multi_get":
            return late(key) if missing(key) else [data.get(one, b"") for one in key]
        case "queue_push":
            queues.setdefault(key, []).append(arguments[1])
        case "queue_pop":
            return queues[key].pop(0) if queues.get(key) else late([key])
        case "queue_len":
            return len(queues.get(key, []))
        case "num_keys":
            return len(data) + 1
        case "list_keys":
            return sorted(data)
    return None


def done_on(store: Any, step: tuple[Any, ...]) -> Any:
    name, *arguments = step
    try:
        if name == "count":
            return store.add("number", *arguments)
        if name == "multi_set":
            return store.multi_set(list(arguments[0]), list(arguments[0].values()))
        return getattr(store, name)(*arguments)
    except dist.DistStoreError as error:
        return outcome(error)


@settings(max_examples=25, deadline=None)
@given(steps=st.lists(store_steps, max_size=40), prefix=st.sampled_from(["", "p", "p/q"]))
def test_a_store_is_a_dictionary_with_waiters(steps: list[tuple[Any, ...]], prefix: str) -> None:
    def body() -> list[Any]:
        store = dist.PrefixStore(prefix, tcp()) if prefix else tcp()
        return [done_on(store, step) for step in steps]

    data: dict[str, bytes] = {}
    queues: dict[str, list[bytes]] = {}
    full = f"/{prefix}/" if prefix else "/"
    answers = alone(body)

    for step, answer in zip(steps, answers, strict=True):
        assert answer == modelled(step, data, queues, lambda keys: gave_up(", ".join(full + key for key in keys))), step


@settings(max_examples=25, deadline=None)
@given(
    sets=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40)), max_size=12),
    waits=st.lists(
        st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=3), st.integers(0, 40), st.integers(1, 30)),
        max_size=4,
    ),
)
def test_a_wait_ends_when_its_last_key_comes_or_its_time_is_up(
    sets: list[tuple[int, int]], waits: list[tuple[list[int], int, int]]
) -> None:
    def main() -> tuple[bool, float] | None:
        store = shared()
        base = now_ns()
        if me() == 0:
            for key, at in sorted(sets, key=lambda pair: pair[1]):
                sleep_s(max(0.0, at + 0.5 - (now_ns() - base) / 1e9))
                store.set(str(key), "1")
            sleep_s(200)
            return None
        keys, begin, limit = waits[me() - 1]
        sleep_s(begin)
        try:
            store.wait([str(key) for key in keys], timedelta(seconds=limit))
        except dist.DistStoreError:
            return False, (now_ns() - base) / 1e9
        return True, (now_ns() - base) / 1e9

    ends = values(main, len(waits) + 1)[1:]

    there = {key: min(at for k, at in sets if k == key) + 0.5 for key, _ in sets}
    for (keys, begin, limit), end in zip(waits, ends, strict=True):
        last = max(there.get(key, float("inf")) for key in keys)
        answered = max(float(begin), last) + 0.0001  # a round trip after the later of request and key
        assert end == ((True, answered) if last <= begin + limit else (False, begin + limit + LATE_S))


def test_stores_and_groups_of_torchs_bindings_are_those_of_ranks() -> None:
    def body() -> tuple[list[float], bool]:
        store = c10d_bindings.PrefixStore("own", c10d_bindings.FileStore("meeting", 2))
        dist.init_process_group("gloo", store=store, rank=me(), world_size=2)
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
        return tensor.tolist(), isinstance(backend, c10d_bindings.ProcessGroupGloo)

    assert values(body, 2) == [([2.0, 2.0], True)] * 2
