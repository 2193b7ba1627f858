"""Files and keys that ranks use without an order are found, whichever was first; ordered uses are not reported."""

from __future__ import annotations

import os
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import simdist
from tests.judges.programs import grouped, line_of, only_finding, run

SEEDS = range(1, 8)


def saves(rank: int, *, path: str, order: str) -> None:
    if rank == 0:
        torch.save({"weight": torch.ones(2)}, path)
    if order == "barrier":
        dist.barrier()
    elif order == "monitored":
        dist.monitored_barrier()
    elif order == "message" and rank == 0:
        for other in (1, 2):
            dist.send(torch.ones(1), other)
    elif order == "message":
        dist.recv(torch.ones(1), 0)
    elif order == "broadcast":
        dist.broadcast(torch.ones(1), 0)
    elif order == "from another":
        dist.broadcast(torch.ones(1), 1)
    elif order == "object":
        dist.broadcast_object_list([path], 0)
    elif order == "group":
        dist.new_group([0, 1, 2])
    elif order == "work":
        work: Any = dist.all_reduce(torch.ones(1), async_op=True)
        work.wait()
    elif order == "key":
        store = dist.distributed_c10d._get_default_store()
        store.set("saved", "1") if rank == 0 else store.wait(["saved"])
    elif order == "counter" and rank == 0:
        dist.distributed_c10d._get_default_store().add("saved", 1)
    elif order == "counter":
        while dist.distributed_c10d._get_default_store().add("saved", 0) < 1:
            time.sleep(0.1)
    if rank or order != "from another":
        torch.load(path)


def test_a_file_that_is_read_before_anything_says_that_it_is_there(tmp_path: Path) -> None:
    path = str(tmp_path / "saved.pt")

    found = only_finding(run(partial(saves, path=path, order="none"), "races"))

    assert (found.rank, found.where) == (1, line_of(saves, "torch.load"))
    assert found.against == line_of(saves, "torch.save")
    assert found.problem == f"reads file {path}, and rank 0 writes it: nothing puts the one before the other"


@pytest.mark.parametrize(
    "order",
    ["barrier", "monitored", "message", "broadcast", "object", "group", "work", "key", "counter"],
)
def test_a_file_that_is_read_in_order_is_left_alone(tmp_path: Path, order: str) -> None:
    for seed in (0, *SEEDS):
        path = str(tmp_path / f"{seed}.pt")
        policy = "random" if seed else "fifo"

        assert run(partial(saves, path=path, order=order), "races", seed=seed, policy=policy).ok


def test_a_broadcast_puts_nothing_after_who_is_not_its_root(tmp_path: Path) -> None:
    path = str(tmp_path / "saved.pt")

    found = only_finding(run(partial(saves, path=path, order="from another"), "races"))

    assert (found.rank, found.where) == (1, line_of(saves, "torch.load"))


def test_the_early_reader_is_to_blame_whoever_was_first(tmp_path: Path) -> None:
    path = str(tmp_path / "saved.pt")
    torch.save({}, path)  # an old file: a rank that is too early reads it

    results = [
        run(partial(saves, path=path, order="none"), "races", seed=seed, policy="random").findings for seed in SEEDS
    ]

    assert {found[0].where for found in results} == {line_of(saves, "torch.load")}


def removes(rank: int, *, path: str, waits: bool) -> None:
    if rank == 0:
        Path(path).write_text("work")
    dist.barrier()
    Path(path).read_text()
    if waits:
        dist.barrier()
    if rank == 2:
        os.remove(path)


def test_a_file_that_is_removed_while_others_may_read_it(tmp_path: Path) -> None:
    path = str(tmp_path / "shared")

    found = only_finding(run(partial(removes, path=path, waits=False), "races"))

    assert (found.rank, found.where) == (2, line_of(removes, "os.remove"))
    assert found.against == line_of(removes, "read_text")
    assert run(partial(removes, path=path, waits=True), "races").ok


def renames(rank: int, *, folder: str, alone: bool) -> None:
    staging, final = os.path.join(folder, "staging"), os.path.join(folder, "final")
    os.makedirs(staging, exist_ok=True)
    Path(staging, f"part{rank}").write_text("part")
    if alone:
        dist.barrier()
    if rank == 2:
        os.rename(staging, final)
    if alone:
        dist.barrier()
        Path(final, "part0").read_text()


def test_a_folder_that_is_renamed_while_others_may_write_into_it(tmp_path: Path) -> None:
    found = only_finding(run(partial(renames, folder=str(tmp_path), alone=False), "races"))

    assert (found.rank, found.where) == (2, line_of(renames, "os.rename"))


def test_a_folder_that_is_renamed_alone_is_left_alone(tmp_path: Path) -> None:
    assert run(partial(renames, folder=str(tmp_path), alone=True), "races").ok


def waits_for_file(rank: int, *, path: str, whole: bool) -> None:
    if rank == 0:
        with open(f"{path}.new" if whole else path, "w") as file:
            file.write("text")
        if whole:
            os.replace(f"{path}.new", path)
    while not os.path.exists(path):
        time.sleep(0.1)
    with open(path) as file:
        file.read()


def test_who_waits_for_a_file_may_read_what_was_renamed(tmp_path: Path) -> None:
    for seed in SEEDS:
        path = str(tmp_path / str(seed))

        assert run(partial(waits_for_file, path=path, whole=True), "races", seed=seed, policy="random").ok


def test_who_waits_for_a_file_may_read_half_of_what_is_written_in_place(tmp_path: Path) -> None:
    found = only_finding(run(partial(waits_for_file, path=str(tmp_path / "text"), whole=False), "races"))

    assert (found.rank, found.where) == (1, line_of(waits_for_file, "with open(path) as"))


def test_ranks_may_append_to_one_file(tmp_path: Path) -> None:
    def appends(rank: int) -> None:
        with open(tmp_path / "log", "a") as file:
            file.write(f"{rank}\n")

    assert run(appends, "races").ok


def test_what_all_ranks_write_is_a_race(tmp_path: Path) -> None:
    def writes(rank: int) -> None:
        (tmp_path / "config").write_text("same")

    found = only_finding(run(writes, "races"))

    assert found.problem.startswith("writes file ")


def test_temporary_files_of_ranks_have_no_name_in_common(tmp_path: Path) -> None:
    def body(rank: int) -> None:
        with tempfile.TemporaryFile(dir=tmp_path) as nameless, tempfile.NamedTemporaryFile(dir=tmp_path) as named:
            torch.save(torch.ones(2), nameless)
            torch.save(torch.ones(2), named)

    assert run(body, "races").ok


def test_a_file_that_an_opener_opens_is_seen(tmp_path: Path) -> None:
    def body(rank: int) -> None:
        with open("shared", "w", opener=lambda name, flags: os.open(tmp_path / name, flags)) as file:
            file.write(str(rank))

    assert only_finding(run(body, "races")).problem.startswith(f"writes file {tmp_path / 'shared'}, and rank")


def test_a_lock_on_a_file_puts_its_holders_in_order(tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")

    def locked(rank: int) -> None:
        with open(tmp_path / "lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (tmp_path / "text").write_text(str(rank))
            fcntl.flock(lock, fcntl.LOCK_UN)

    assert run(locked, "races").ok


@pytest.mark.parametrize("by_descriptor", [True, False])
@pytest.mark.parametrize("content", ["", "text"])
def test_an_empty_file_is_opened_for_writing_to_lock_it(content: str, by_descriptor: bool, tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")

    def opened() -> Any:
        if by_descriptor:
            return os.fdopen(os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT | os.O_TRUNC), "w")
        return open(tmp_path / "lock", "w")

    def locked(rank: int) -> None:
        time.sleep(rank if not content else 2 * rank)
        with opened() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            lock.write(content)
            time.sleep(1.5)

    if content:
        assert only_finding(run(locked, "races")).problem.startswith("writes file")
    else:
        assert run(locked, "races").ok


def counts(rank: int, *, in_one_step: bool) -> None:
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.set("done", "0")
    dist.barrier()
    if in_one_step:
        store.add("done", 1)
    else:
        store.set("done", str(int(store.get("done")) + 1))


def test_a_key_that_is_read_and_written_back_loses_updates() -> None:
    result = run(partial(counts, in_one_step=False), "races", world_size=2)

    found = only_finding(result)
    assert found.problem == "key 'done' loses an update: ranks 0 and 1 both read it, and write it back"
    assert (found.rank, found.where) == (1, line_of(counts, 'store.set("done", str'))


def test_a_lost_update_is_found_in_whatever_order_requests_arrive() -> None:
    left: list[int] = []

    def reads_and_writes(rank: int) -> None:
        store = dist.distributed_c10d._get_default_store()
        if rank == 0:
            store.set("done", "0")
        dist.barrier()
        store.set("done", str(int(store.get("done")) + 1))
        dist.barrier()
        if rank == 0:
            left.append(int(store.get("done")))

    for policy, seeds in (("random", range(32, 44)), ("pct:4", range(8))):
        found = [bool(run(reads_and_writes, "races", seed=seed, policy=policy).findings) for seed in seeds]

        assert found == [count < 3 for count in left[-len(seeds) :]]
    assert {*left} == {1, 2, 3}


def test_an_addition_that_is_written_over_is_lost() -> None:
    def adds(rank: int) -> None:
        store = dist.distributed_c10d._get_default_store()
        if rank == 0:
            store.set("done", "0")
        dist.barrier()
        if rank == 0:
            found = int(store.get("done"))
            time.sleep(1)
            store.set("done", str(found + 1))
        elif rank == 1:
            time.sleep(0.5)
            store.add("done", 0)
            store.add("done", 1)

    found = only_finding(run(adds, "races"))

    assert found.problem == (
        "key 'done' loses an update: rank 0 read it, rank 1 added to it, and rank 0 writes back what it had read"
    )


def test_a_key_that_is_set_anew_after_a_barrier_is_left_alone() -> None:
    def begins_anew(rank: int) -> None:
        store = dist.distributed_c10d._get_default_store()
        if rank == 0:
            store.set("done", "0")
        dist.barrier()
        store.get("done")
        store.add("done", 1)
        dist.barrier()
        if rank == 0:
            store.set("done", "0")

    assert run(begins_anew, "races").ok


def test_a_key_that_is_counted_by_the_store_is_left_alone() -> None:
    assert run(partial(counts, in_one_step=True), "races").ok


def test_ranks_may_take_turns_by_a_key() -> None:
    def turns(rank: int) -> None:
        store = dist.distributed_c10d._get_default_store()
        if rank == 0:
            store.set("turn", "0")
        while int(store.get("turn")) != rank:
            time.sleep(0.1)
        store.set("turn", str(rank + 1))

    for seed in SEEDS:
        assert run(turns, "races", seed=seed, policy="random").ok


def restarted(folder: str, *, apart: bool) -> None:
    dist.init_process_group("gloo")
    store: Any = getattr(dist, "FileStore")(os.path.join(folder, "store"), 2)  # noqa: B009  # stubs lack it
    life = os.environ["TORCHELASTIC_RESTART_COUNT"]
    key = f"address{life}" if apart else "address"
    if dist.get_rank() == 0:
        time.sleep(1)
        store.set(key, life)
    else:
        store.get(key)
    dist.barrier()
    if life == "0" and dist.get_rank() == 1:
        raise RuntimeError("once")
    dist.barrier()
    dist.destroy_process_group()


def test_a_key_that_an_earlier_life_left(tmp_path: Path) -> None:
    program = partial(restarted, str(tmp_path), apart=False)

    found = only_finding(simdist.run(program, world_size=2, max_restarts=1, judges=["races"]))

    assert (found.rank, found.life, found.where) == (1, 1, line_of(restarted, "store.get"))
    assert found.against == line_of(restarted, "store.set")


def test_lives_with_keys_of_their_own_are_left_alone(tmp_path: Path) -> None:
    program = partial(restarted, str(tmp_path), apart=True)

    assert simdist.run(program, world_size=2, max_restarts=1, judges=["races"]).ok


def test_the_order_of_ranks_begins_anew_in_each_life(tmp_path: Path) -> None:
    path = tmp_path / "text"

    def program() -> None:
        dist.init_process_group("gloo")
        if dist.get_rank() == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":
            path.read_text()
        if dist.get_rank() == 0 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            path.write_text("of the first life")
            raise RuntimeError("once")
        dist.barrier()
        dist.destroy_process_group()

    result = simdist.run(program, world_size=2, max_restarts=1, judges=["races"])

    assert result.ok
    assert result.restarts == 1


def test_a_run_with_the_judge_has_the_digest_of_the_run_without(tmp_path: Path) -> None:
    body = grouped(partial(saves, path=str(tmp_path / "saved.pt"), order="barrier"))

    digests = {simdist.run(body, world_size=3, judges=judges).digest for judges in (False, ["races"], True)}

    assert len(digests) == 1


def test_nothing_stays_wrapped_after_the_world() -> None:
    before = open, os.open, os.stat, os.rename, torch.save

    run(lambda rank: None, "races")

    assert (open, os.open, os.stat, os.rename, torch.save) == before


def on_streams(*, waits: bool, changes: bool) -> None:
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank())
    tensor = torch.ones(4, device="cuda")
    work: Any = dist.all_reduce(tensor, async_op=True)
    if waits:
        work.wait()
    if changes:
        tensor.add_(1)
    work.wait()
    torch.cuda.synchronize()
    dist.destroy_process_group()


def test_a_tensor_that_a_stream_changes_while_another_may_use_it() -> None:
    program = partial(on_streams, waits=False, changes=True)

    result = simdist.run(program, world_size=2, backend="nccl", judges=["races"])

    found = result.findings[0]
    assert found.where == line_of(on_streams, "tensor.add_")
    assert found.against == line_of(on_streams, "dist.all_reduce")
    assert "add_ " in found.problem
    assert "nothing puts the one before the other" in found.problem


def test_streams_that_wait_for_each_other_are_left_alone() -> None:
    program = partial(on_streams, waits=True, changes=True)

    assert simdist.run(program, world_size=2, backend="nccl", judges=["races"]).ok


def test_streams_are_not_watched_for_other_judges() -> None:
    program = partial(on_streams, waits=False, changes=True)

    assert simdist.run(program, world_size=2, backend="nccl", judges=["finite"]).ok


def made_twice(*, backend: str, apart: str) -> None:
    if apart == "served":
        os.environ.update(TORCHELASTIC_USE_AGENT_STORE="False", MASTER_PORT="29700")
    for turn in range(2):
        if apart == "prefix":
            client = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)  # type: ignore[attr-defined]
            store = dist.PrefixStore(f"turn{turn}", client)  # type: ignore[attr-defined]
            rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            dist.init_process_group(backend, store=store, rank=rank, world_size=size)
        else:
            dist.init_process_group(backend)
        dist.all_reduce(torch.ones(1, device=f"cuda:{dist.get_rank()}" if backend == "nccl" else "cpu"))
        dist.destroy_process_group()


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_a_group_that_is_made_again_at_the_keys_of_an_earlier_one(backend: str) -> None:
    program = partial(made_twice, backend=backend, apart="")

    found = only_finding(simdist.run(program, world_size=2, backend=backend, judges=["races"]))

    assert found.problem.startswith("group '0' is made anew at the keys of an earlier one")
    assert found.where == line_of(made_twice, "dist.init_process_group(backend)")


@pytest.mark.parametrize(("backend", "apart"), [("gloo", "prefix"), ("gloo", "served"), ("nccl", "prefix")])
def test_groups_with_keys_of_their_own_are_left_alone(backend: str, apart: str) -> None:
    program = partial(made_twice, backend=backend, apart=apart)

    assert simdist.run(program, world_size=2, backend=backend, judges=["races"]).ok


def test_a_group_made_again_needs_no_addresses_without_a_network() -> None:
    program = partial(made_twice, backend="sim", apart="")

    assert simdist.run(program, world_size=2, backend="sim", judges=["races"]).ok
