"""Gloo's groups that are made in another way: connected late, or watched by the flight recorder.

Covers classes of PyTorch's test_c10d_gloo.py whose names but not texts are available (ProcessGroupGlooLazyInitTest: the
tests of the group again, with TORCH_GLOO_LAZY_INIT; ProcessGroupGlooFRTest: the dumps of the recorder), and
LocalRankTest of test_c10d_common.py.
"""

from __future__ import annotations

import json
import os
import pickle
import time
from typing import Any

import torch
import torch.distributed

from tests.conformance.arms import Bodies, on_both_arms, options

Tensor = torch.Tensor
dist: Any = torch.distributed  # its stubs leave out much of what is called here
_c: Any = torch._C._distributed_c10d
LAZY = "TORCH_GLOO_LAZY_INIT"


class LazyBodies(Bodies):
    """The operations of a group that connects on first use; the tests are its subclasses."""

    __test__ = False

    def lazy(self) -> Any:
        """Return a group whose members have not met yet."""
        raise NotImplementedError

    def test_allreduce_basics(self) -> None:
        group = self.lazy()
        for reduction, expected in ((dist.ReduceOp.SUM, 10.0), (dist.ReduceOp.PRODUCT, 24.0), (dist.ReduceOp.MAX, 4.0)):
            tensor = torch.tensor([self.rank + 1.0])
            group.allreduce([tensor], options(dist.AllreduceOptions, reduceOp=reduction)).wait()

            self.assertEqual(tensor.item(), expected)

    def test_broadcast_basics(self) -> None:
        group = self.lazy()
        for root in range(self.world_size):
            tensor = torch.tensor([self.rank])
            group.broadcast([tensor], options(dist.BroadcastOptions, rootRank=root)).wait()

            self.assertEqual(tensor.item(), root)

    def test_gather_and_scatter_basics(self) -> None:
        group = self.lazy()
        for root in range(self.world_size):
            mine = self.rank == root
            gathered = [torch.tensor([-1]) for _ in range(self.world_size)]
            own = torch.tensor([self.rank])
            group.gather([gathered] if mine else [], [own], options(dist.GatherOptions, rootRank=root)).wait()
            parts = [[part + 10 for part in gathered]] if mine else []
            group.scatter([own], parts, options(dist.ScatterOptions, rootRank=root)).wait()

            self.assertEqual(own.item(), self.rank + 10)

    def test_allgather_and_reduce_scatter_basics(self) -> None:
        group = self.lazy()
        outputs = [torch.tensor([-1]) for _ in range(self.world_size)]
        group.allgather([outputs], [torch.tensor([self.rank])]).wait()
        total = torch.tensor([0])
        group.reduce_scatter([total], [outputs]).wait()

        self.assertEqual([output.item() for output in outputs], list(range(self.world_size)))
        self.assertEqual(total.item(), self.rank * self.world_size)

    def test_send_recv_all_to_all(self) -> None:
        group = self.lazy()
        others = [rank for rank in range(self.world_size) if rank != self.rank]
        received = {rank: torch.tensor([-1]) for rank in others}
        works = [group.send([torch.tensor([self.rank])], rank, 0) for rank in others]
        works += [group.recv([received[rank]], rank, 0) for rank in others]
        for work in works:
            work.wait()

        self.assertEqual({rank: tensor.item() for rank, tensor in received.items()}, {rank: rank for rank in others})


@on_both_arms
class TestLazyInitByEnvironment(LazyBodies):
    def lazy(self) -> Any:
        os.environ[LAZY] = "1"
        return dist.ProcessGroupGloo(self.store(), self.rank, self.world_size)

    def test_a_group_is_there_before_its_other_members(self) -> None:
        reported = dist.PrefixStore("news", self.store())
        if self.rank == 0:
            reported.wait([f"made {rank}" for rank in range(1, self.world_size)])
        os.environ[LAZY] = "1"
        store = dist.PrefixStore("lazy", self.store())
        group = dist.ProcessGroupGloo(store, self.rank, self.world_size)
        reported.set(f"made {self.rank}", "")
        tensor = torch.ones(1)
        group.allreduce([tensor]).wait()

        self.assertEqual(tensor.item(), self.world_size)


@on_both_arms
class TestLazyInitByDevice(LazyBodies):
    def lazy(self) -> Any:
        device = dist.ProcessGroupGloo.create_device(interface="lo", lazy_init=True)
        return dist.ProcessGroupGloo(
            self.store(), self.rank, self.world_size, options(dist.ProcessGroupGloo._Options, _devices=[device])
        )

    def test_the_environment_says_yes_or_no(self) -> None:
        os.environ[LAZY] = "perhaps"
        with self.refused("Invalid value for environment variable: TORCH_GLOO_LAZY_INIT"):
            dist.ProcessGroupGloo.create_device(interface="lo")


@on_both_arms
class TestFlightRecorder(Bodies):
    ranks = 2

    def recorded(self, calls: int) -> None:
        os.environ["TORCH_FR_BUFFER_SIZE"] = "10"
        self.init()
        for index in range(calls):
            self.wait_until_retired()
            dist.all_reduce(torch.full((3, 4), float(index)))
        self.wait_until_retired()

    def wait_until_retired(self) -> None:
        """Wait until all works are retired: its own thread retires a real work after its end, in any order."""
        for _ in range(500):
            entries = json.loads(_c._dump_fr_trace_json(includeCollectives=True)).get("entries", [])
            if all(entry["retired"] for entry in entries):
                break
            time.sleep(0.01)

    def check(self, dump: Any) -> None:
        self.assertEqual(dump["version"], "2.10")
        self.assertEqual(dump["comm_lib_version"], "")
        self.assertEqual(list(dump["pg_config"].values()), [{"name": "", "desc": "", "ranks": "[0, 1]"}])
        self.assertEqual({int(value) for value in dump["pg_status"]["0"].values()}, {3, -1})
        barrier, *sums = dump["entries"]
        self.assertEqual(barrier["profiling_name"], "gloo:barrier")
        self.assertEqual(barrier["input_sizes"], [])
        for number, entry in enumerate(sums, 1):
            self.assertEqual(entry["profiling_name"], "gloo:all_reduce")
            self.assertEqual((entry["record_id"], entry["collective_seq_id"]), (number, number + 1))
            self.assertEqual(list(entry["process_group"]), ["0", "default_pg"])
            self.assertEqual((entry["input_sizes"], entry["output_sizes"]), ([[3, 4]], [[3, 4]]))
            self.assertEqual((entry["input_dtypes"], entry["output_dtypes"]), (["Float"], ["Float"]))
            self.assertEqual((entry["state"], entry["retired"], entry["is_p2p"]), ("scheduled", True, False))
            self.assertEqual(entry["timeout_ms"], 1_800_000)

    def test_short_json(self) -> None:
        self.recorded(2)

        self.check(json.loads(_c._dump_fr_trace_json(includeCollectives=True)))

    def test_short_pickle(self) -> None:
        self.recorded(2)
        dump = pickle.loads(_c._dump_fr_trace(includeCollectives=True))

        self.check(dump)
        self.assertEqual(dump["entries"][1]["frames"][0]["name"], "all_reduce")

    def test_long(self) -> None:
        self.recorded(12)
        entries = pickle.loads(_c._dump_fr_trace())["entries"]

        self.assertEqual([entry["record_id"] for entry in entries], list(range(3, 13)))
        self.assertEqual([entry["collective_seq_id"] for entry in entries], list(range(4, 14)))

    def test_messages_are_not_recorded(self) -> None:
        self.recorded(0)
        dist.recv(torch.ones(1), 0) if self.rank else dist.send(torch.ones(1), 1)

        self.assertEqual(len(json.loads(_c._dump_fr_trace_json())["entries"]), 1)


@on_both_arms
class TestLocalRank(Bodies):
    def test_node_local_rank(self) -> None:
        os.environ["LOCAL_RANK"] = str(self.rank)

        self.assertEqual(dist.get_node_local_rank(), self.rank)

    def test_node_local_rank_overrides_the_fallback(self) -> None:
        os.environ["LOCAL_RANK"] = str(self.rank)

        self.assertEqual(dist.get_node_local_rank(fallback_rank=123), self.rank)

    def test_without_env(self) -> None:
        os.environ.pop("LOCAL_RANK", None)
        with self.assertRaisesRegex(RuntimeError, "LOCAL_RANK is not in the environment"):
            dist.get_node_local_rank()

    def test_without_env_with_fallback(self) -> None:
        os.environ.pop("LOCAL_RANK", None)

        self.assertEqual(dist.get_node_local_rank(fallback_rank=2), 2)
