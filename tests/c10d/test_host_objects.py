"""The host program's own objects and threads: outside a world, and used by its ranks."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

import simdist
from simdist.errors import SimdistError
from tests.beside import wait_for_host

stores: Any = dist  # the stubs leave them out
views: Any = dist

WAY_OUT = "make the store inside the rank's function, or use init_method='env://'"


def host_stores(folder: Path) -> list[Any]:
    return [stores.HashStore(), stores.FileStore(str(folder / "file"), 2), stores.PrefixStore("x", stores.HashStore())]


def test_ranks_wait_for_keys_in_a_real_store_in_virtual_time(tmp_path: Path) -> None:
    stores = host_stores(tmp_path)

    def body() -> list[Any]:
        found: list[Any] = []
        for store in stores:
            began = time.monotonic()
            if os.environ["RANK"] == "1":
                time.sleep(1.5)
                store.set("key", "1")
            else:
                store.wait(["key"], timedelta(seconds=2))
                found += [views.PrefixStore("view", store).check(["key"]), store.get("key")]
                found.append(store.multi_get(["key"]))
            found.append(round(time.monotonic() - began, 2))
            time.sleep(1)
        return found

    first, second = simdist.run(body, world_size=2).values

    assert first == [False, b"1", [b"1"], 1.5] * 3
    assert second == [1.5] * 3


def test_a_key_that_never_comes_into_a_real_store_is_reported_in_its_words(tmp_path: Path) -> None:
    hash_store, file_store, _ = host_stores(tmp_path)

    def body(store: Any) -> list[Any]:
        store.set_timeout(timedelta(seconds=2))
        waits: tuple[Callable[[], Any], ...] = (
            lambda: store.wait(["no"]),
            lambda: store.wait(["no"], timedelta(milliseconds=500)),
            lambda: store.get("no"),
        )
        reported = []
        for wait in waits:
            began_ns = time.monotonic_ns()
            with pytest.raises(RuntimeError) as caught:
                wait()
            reported.append((type(caught.value).__name__, str(caught.value), time.monotonic_ns() - began_ns))
        return reported

    second, late = 1_000_000_000, 1_000_000
    assert simdist.run(body, world_size=1, args=(hash_store,)).values == [
        [("DistStoreError", "Wait timeout", limit + late) for limit in (2 * second, second // 2, 2 * second)]
    ]
    assert simdist.run(body, world_size=1, args=(file_store,)).values == [
        [
            ("RuntimeError", "Wait timeout", 3 * second + late),  # the store counts in whole seconds
            ("RuntimeError", "Wait timeout", second + late),
            ("RuntimeError", "Timeout waiting for key: no after 2000 ms", 3 * second + late),
        ]
    ]


def test_a_rank_hears_that_a_real_store_would_keep_the_others_waiting(tmp_path: Path) -> None:
    stores = host_stores(tmp_path)

    def body() -> list[str]:
        reported = []
        for store in stores:
            with pytest.raises(SimdistError) as caught:
                store.queue_pop("key")
            reported.append(str(caught.value))
        return reported

    found = simdist.run(body, world_size=1).values[0]

    assert found == [
        f"rank 0: queue_pop of a real {kind}, made outside the simulation, would wait in real time, and no other rank "
        f"could run; {WAY_OUT}"
        for kind in ("HashStore", "FileStore", "PrefixStore")
    ]


def test_a_group_at_a_real_store_is_refused(tmp_path: Path) -> None:
    stores = host_stores(tmp_path)

    def body() -> list[str]:
        reported = []
        for store in stores:
            with pytest.raises(SimdistError) as caught:
                dist.init_process_group("gloo", store=store, rank=0, world_size=1)
            reported.append(str(caught.value))
        return reported

    assert simdist.run(body, world_size=1).values[0] == [
        f"a real {kind}, made outside the simulation, was passed to a simulated rank; {WAY_OUT}"
        for kind in ("HashStore", "FileStore", "PrefixStore")
    ]


@pytest.mark.parametrize("with_store", [True, False])
def test_every_rank_may_have_a_fake_group_in_every_world(with_store: bool) -> None:
    def body() -> tuple[int, int, list[float]]:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        rank = int(os.environ["RANK"])
        options: dict[str, Any] = {"store": FakeStore()} if with_store else {}
        dist.init_process_group("fake", rank=rank, world_size=4, **options)
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        dist.barrier()
        group = dist.new_group([0, 1])
        dist.destroy_process_group(group) if rank < 2 else None
        found = dist.get_rank(), dist.get_world_size(), tensor.tolist()
        dist.destroy_process_group()
        return found

    for _ in range(2):
        assert simdist.run(body, world_size=2).values == [(0, 4, [1.0, 1.0]), (1, 4, [1.0, 1.0])]


def test_what_a_module_registers_is_there_for_all_ranks_and_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "registering_module.py").write_text(
        "import torch.distributed as dist\n"
        "dist.Backend.register_backend('of_a_module', lambda *args: None, devices=['cpu'])\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    def body() -> tuple[bool, bool]:
        dist.Backend.register_backend(f"own{os.environ['RANK']}", lambda *args: None, devices=["cpu"])
        import registering_module  # type: ignore[import-not-found]  # noqa: F401

        return "of_a_module" in dist.Backend.backend_list, hasattr(dist.Backend, f"OWN{os.environ['RANK']}")

    for _ in range(2):
        result = simdist.run(body, world_size=3)
        result.raise_for_failure()
        assert result.values == [(True, True)] * 3
    assert "of_a_module" in dist.Backend.backend_list
    assert not any(name.startswith("own") for name in dist.Backend.backend_list)
    # As if this process had never imported the module.
    dist.Backend.backend_list.remove("of_a_module")
    for table in (dist.Backend.backend_capability, dist.Backend.backend_type_map):
        table.pop("of_a_module", None)
    dist.Backend._plugins.pop("OF_A_MODULE", None)
    del dist.Backend.OF_A_MODULE  # type: ignore[attr-defined]


def test_another_thread_of_the_host_sees_no_group_of_a_rank() -> None:
    asked, answered = threading.Event(), threading.Event()
    seen: list[Any] = []
    torchs = c10d._world

    def look() -> None:
        assert asked.wait(30)
        world = c10d._world
        seen.extend([dist.is_initialized(), dist.group.WORLD, world.group_count, world.pg_map is torchs.pg_map])
        answered.set()

    def body() -> bool:
        dist.init_process_group("gloo")
        if dist.get_rank() == 0:
            asked.set()
            wait_for_host(answered)
        dist.barrier()
        return dist.is_initialized()

    thread = threading.Thread(target=look)
    thread.start()
    values = simdist.run(body, world_size=2).values
    thread.join()

    assert values == [True, True]
    assert seen == [False, None, 0, True]


def test_another_thread_of_the_host_may_use_its_own_group_beside_a_world(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # torch replaces it when a group is made
    asked, answered = threading.Event(), threading.Event()
    seen: list[Any] = []

    def meet() -> None:
        assert asked.wait(30)
        dist.init_process_group("gloo", store=stores.HashStore(), rank=0, world_size=1)
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        seen.extend([dist.get_world_size(), len(c10d._world.pg_config_info), tensor.item()])
        answered.set()

    def body() -> int:
        dist.init_process_group("gloo")
        if dist.get_rank() == 0:
            asked.set()
            wait_for_host(answered)
        dist.barrier()
        return dist.get_world_size()

    thread = threading.Thread(target=meet)
    thread.start()
    values = simdist.run(body, world_size=2).values
    thread.join()

    try:
        assert values == [2, 2]
        assert [*seen, dist.is_initialized()] == [1, 1, 1.0, True]
    finally:
        dist.destroy_process_group()


def test_nothing_of_torchs_module_is_left_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c10d, "_backend", "the host's")

    def body() -> None:
        dist.init_process_group("gloo")
        dist.new_group([0])
        dist.barrier()

    before = dict(vars(c10d))
    simdist.run(body, world_size=2)

    assert {name for name, value in vars(c10d).items() if value is not before.get(name)} == set()


@pytest.fixture(params=[False, True], ids=["sockets", "libuv"])
def servers(request: pytest.FixtureRequest) -> Iterator[list[Any]]:
    """A list with a real server, which ends when its last reference is gone."""
    made = [stores.TCPStore("localhost", 0, None, True, wait_for_workers=False, use_libuv=request.param)]
    yield made
    made.clear()


def test_a_rank_is_a_client_of_a_real_server_in_this_process(servers: list[Any]) -> None:
    def body() -> tuple[bytes, bytes, float]:
        rank, host, port = int(os.environ["RANK"]), servers[0].host, servers[0].port
        settings: dict[str, Any] = {"is_master": False, "wait_for_workers": False, "use_libuv": False}
        store = stores.TCPStore(host_name=host, port=port, **settings) if rank else servers[0]
        for each in (store, stores.PrefixStore("pre", store)):
            each.set_timeout(timedelta(seconds=2))
            if rank:
                time.sleep(1)
                each.set("key", "set" if each is store else "set by a view")
            each.wait(["key"])
        return store.get("key"), store.get("pre/key"), round(time.monotonic(), 1)

    values = simdist.run(body, world_size=2).values

    assert values == [(b"set", b"set by a view", 2.0)] * 2


def test_several_threads_of_a_rank_wait_in_a_real_tcp_store(servers: list[Any]) -> None:
    def body() -> list[bytes]:
        client = stores.TCPStore("localhost", servers[0].port, is_master=False, wait_for_workers=False)
        found: list[bytes] = []

        def wait(number: int) -> None:
            found.append(client.get(f"key{number}"))

        waiting = [threading.Thread(target=wait, args=(number,)) for number in range(3)]
        for thread in waiting:
            thread.start()
        for number in range(3):
            time.sleep(1)
            servers[0].set(f"key{number}", str(number))
        for thread in waiting:
            thread.join()
        return found

    assert simdist.run(body, world_size=1).values == [[b"0", b"1", b"2"]]
