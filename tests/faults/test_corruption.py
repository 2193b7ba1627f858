"""Silent corruption: the data of an operation changes, and a disk reports success for what it has not done."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

import simdist
from simdist.cluster import switched
from simdist.errors import FaultError
from simdist.faults import BitFlip, Fault, HostCrash, LostSync, RankFault, ShortWrite, SlowDisk
from simdist.result import RunResult
from tests.faults.programs import MS, events_of


def _negative(rank: int, op: str = "all_reduce", nth: int = 1) -> BitFlip:
    """Return a fault that flips the sign of the first float32 in the rank's input."""
    return BitFlip(rank=rank, op=op, nth=nth, byte=3, bit=7)


def _run(body: Callable[..., Any], *faults: Fault, **options: Any) -> RunResult:
    result = simdist.run(body, faults=faults, **({"world_size": 2} | options))
    result.raise_for_failure()
    return result


def _reduced() -> list[float]:
    dist.init_process_group("gloo")
    tensor = torch.tensor([1.0, 2.0])
    dist.all_reduce(tensor)
    dist.all_reduce(tensor)
    return list(tensor.tolist())


def test_a_bit_of_what_is_reduced_flips_once_and_every_rank_gets_the_same() -> None:
    result = _run(_reduced, _negative(1))

    assert result.values == [[0.0, 8.0]] * 2
    assert [event.data["text"] for event in events_of(result, "fault")] == [
        "bit 7 of byte 3 of what rank 1 gives to all_reduce flips"
    ]


def test_flips_of_one_operation_add_up() -> None:
    faults = [_negative(1), BitFlip(rank=1, nth=1, byte=7, bit=7)]
    result = _run(_reduced, *faults)

    assert result.values == [[0.0, 0.0]] * 2


def test_in_the_middle_if_no_byte_is_named() -> None:
    def body() -> list[int]:
        dist.init_process_group("gloo")
        tensor = torch.zeros(5, 2, dtype=torch.uint8).T  # in memory order, as Gloo reduces it
        dist.all_reduce(tensor)
        return list(tensor.flatten().tolist())

    assert _run(body, BitFlip(rank=0, nth=1, bit=3)).values == [[0] * 7 + [8] + [0] * 2] * 2


def _sent(operation: str) -> Any:
    """Return the result on this rank, if rank 1's input is a one."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    one, zero = torch.ones(1), torch.zeros(1)
    got = [torch.zeros(1), torch.zeros(1)]
    if operation == "broadcast":
        dist.broadcast(one if rank == 1 else zero, 1)
        return float(one if rank == 1 else zero)
    if operation == "reduce":
        dist.reduce(one, 0)
        return float(one) if rank == 0 else None
    if operation == "all_gather":
        dist.all_gather(got, one)
    if operation == "gather":
        dist.gather(one, got if rank == 0 else None, 0)
    if operation == "scatter":
        dist.scatter(zero, [one, one.clone()] if rank == 1 else None, 1)
        return float(zero)
    if operation == "reduce_scatter":
        dist.reduce_scatter(zero, [one, one.clone()])
        return float(zero)
    if operation == "all_to_all":
        dist.all_to_all(got, [one, one.clone()])
    if operation == "send":
        dist.send(one, 0) if rank == 1 else dist.recv(zero, 1)
        return float(zero)
    return [float(each) for each in got]


@pytest.mark.parametrize(
    ("operation", "values"),
    [
        ("broadcast", [-1, -1]),
        ("reduce", [0, None]),
        ("all_gather", [[1, -1], [1, -1]]),
        ("gather", [[1, -1], [0, 0]]),
        ("scatter", [-1, 1]),
        ("reduce_scatter", [0, 2]),
        ("all_to_all", [[1, -1], [1, 1]]),
        ("send", [-1, 0]),
    ],
)
def test_every_operation_carries_it(operation: str, values: list[Any]) -> None:
    assert _run(_sent, _negative(1, operation), args=(operation,)).values == values


def test_over_nccl_it_flips_on_the_device() -> None:
    def body() -> tuple[float, float]:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
        tensor, got = torch.ones(2, device=device), torch.zeros(1, device=device)
        dist.all_reduce(tensor)
        dist.send(tensor[:1], 1) if dist.get_rank() == 0 else dist.recv(got, 0)
        return tensor[0].item(), got[0].item()

    cluster = switched(2, hosts=1, devices_per_host=2)
    faults = [_negative(1), BitFlip(rank=0, op="send", nth=1, byte=2, bit=7)]
    assert _run(body, *faults, cluster=cluster).values == [(1.1754943508222875e-38, 0.0), (0.0, 1.1754943508222875e-38)]


def test_the_programs_modes_do_not_see_it() -> None:
    class Seen(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            names.append(str(func))
            return func(*args, **(kwargs or {}))

    names: list[str] = []

    def body() -> None:
        dist.init_process_group("gloo")
        tensor = torch.ones(1)
        with Seen():  # type: ignore[no-untyped-call]
            dist.all_reduce(tensor)

    _run(body, BitFlip(rank=0, nth=1), world_size=1)
    assert names == ["c10d.allreduce_.default"]


def test_a_rank_that_gives_nothing_has_no_bit_to_flip() -> None:
    def body() -> None:
        dist.init_process_group("gloo")
        tensor = torch.zeros(1)
        dist.broadcast(tensor, 0)

    result = simdist.run(body, world_size=2, faults=[BitFlip(rank=1, op="broadcast", nth=1)])
    assert repr(result.ranks[1].exception) == "ValueError('rank 1 gives 0 bytes to broadcast; there is no byte 0')"


def test_a_bit_of_a_write_flips(tmp_path: Path) -> None:
    def body(folder: Path) -> bytes:
        (folder / "a").write_bytes(b"abc")
        return (folder / "a").read_bytes()

    fault = BitFlip(rank=0, op="write", nth=1, bit=1)
    assert _run(body, fault, world_size=1, args=(tmp_path,), disk=tmp_path).values == [b"a`c"]


def _saves(folder: Path) -> bytes:
    if not (folder / "a").exists():
        with (folder / "a").open("wb") as file:
            file.write(b"abc")
            file.flush()
            os.fsync(file.fileno())
        directory = os.open(folder, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)
        simdist.step(1)
    return (folder / "a").read_bytes()


@pytest.mark.parametrize(("op", "left"), [(None, b"abc"), ("fsync", b"")])
def test_a_sync_that_is_lost_is_noticed_when_power_is(tmp_path: Path, op: str | None, left: bytes) -> None:
    lost = [] if op is None else [LostSync(rank=0, op=op, every=1)]
    faults = [*lost, HostCrash(rank=0, at_step=1, down_ns=MS, outcome=0)]
    options = {"args": (tmp_path,), "disk": tmp_path, "max_restarts": 1}

    assert _run(_saves, *faults, world_size=1, **options).values == [left]


def test_a_sync_that_is_lost_takes_its_time_all_the_same(tmp_path: Path) -> None:
    faults = [LostSync(rank=0, nth=1), SlowDisk(delay_ns=2 * MS)]
    result = _run(_saves, *faults, world_size=1, args=(tmp_path,), disk=tmp_path)

    assert result.virtual_time_ns == 4 * 2 * MS
    assert [event.data["effect"] for event in events_of(result, "storage")] == ["create", "write", "fsync", "fsync_dir"]


def test_what_is_wrong_with_them_is_reported() -> None:
    faults = [
        BitFlip(rank=0, op="barrier", nth=1),
        BitFlip(rank=0, op="write", nth=1, when="after"),
        LostSync(rank=0, op="write", nth=1),
        BitFlip(rank=0, at_ns=5),
    ]
    with pytest.raises(FaultError) as caught:
        simdist.run(print, world_size=1, faults=faults)

    text = str(caught.value)
    for line in (
        "faults[0].op: 'barrier' carries nothing of the rank; op is a collective, a send, or 'write'",
        "faults[1].when: 'after' is too late; it is done to the operation itself",
        "faults[1]: it strikes what a rank does to a simulated disk, and there is none; mount one",
        "faults[2].op: 'write' makes nothing durable; op is one of 'fsync', 'fdatasync', 'fsync_dir', 'sync'",
        "faults[3]: a time and a step, point or operation are two triggers; give one of them",
    ):
        assert line in text


class Scaled(RankFault):
    """The rank's input is multiplied by ten."""

    op: str | None = "all_reduce"

    def change(self, payload: Any) -> Any:
        return [each * 10 for each in payload]


def test_a_users_own_fault_changes_what_is_given() -> None:
    assert _run(_reduced, Scaled(rank=0, nth=2)).values == [[22.0, 44.0]] * 2


class Doubled(Scaled):
    """The rank's input becomes twice as long, which is not allowed."""

    def change(self, payload: Any) -> Any:
        return [torch.cat([each, each]) for each in payload]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Doubled(rank=0, nth=1), "a judge makes other shapes of the tensors of all_reduce"),
        (Scaled(rank=0, op="barrier", nth=1), None),
        (Scaled(rank=0, op="store", nth=1), "store.set can't be changed"),
        (Scaled(rank=0, op=None, at_step=0), "step can't be changed"),
    ],
)
def test_what_cannot_be_changed_says_so(fault: Fault, said: str | None) -> None:
    def body() -> None:
        simdist.step(0)
        _reduced()
        dist.barrier()

    result = simdist.run(body, world_size=1, faults=[fault])
    assert result.ok if said is None else said in str(result.ranks[0].exception)


def test_a_write_that_is_short_and_changed(tmp_path: Path) -> None:
    def body(folder: Path) -> int | None:
        with (folder / "a").open("wb", buffering=0) as file:
            return file.write(b"abcd")

    faults = [BitFlip(rank=0, op="write", nth=1, byte=0, bit=0), ShortWrite(rank=0, nth=1, bytes_written=2)]
    result = _run(body, *faults, world_size=1, args=(tmp_path,), disk=tmp_path)

    assert result.values == [2]
    assert (tmp_path / "a").read_bytes() == b"`b"


def test_a_changed_write_has_as_many_bytes(tmp_path: Path) -> None:
    class Longer(RankFault):
        op: str | None = "write"

        def change(self, payload: Any) -> Any:
            return payload + b"!"

    result = simdist.run(
        lambda folder: (folder / "a").write_bytes(b"abc"),
        world_size=1,
        args=(tmp_path,),
        disk=tmp_path,
        faults=[Longer(rank=0, nth=1)],
    )
    assert "a judge makes 4 bytes of the 3 of a write" in str(result.ranks[0].exception)
