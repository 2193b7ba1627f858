"""NCCL's own variables: their effect on its choices, its lines about unknown values, and the line of its version."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from simdist.c10d.backends.nccl.kernels._preferences import Preferences
from simdist.c10d.backends.nccl.kernels._tuning import Choice, Graph, choose, shrunk_channels
from simdist.cluster import NcclModel, build
from simdist.inside.torch import NcclPlace, Place
from simdist.process import current_process
from tests.builds import NCCL, VERSION
from tests.c10d.nccl.worlds import SAME_DEVICE, join, of, results, run, said

NO_ALGORITHM = ("Error : no" if VERSION < (2, 14) else "No") + " algorithm/protocol available"
CUDA = "13.0" if VERSION < (2, 12) else "13.2" if VERSION < (2, 14) else "13.3"  # the version that NCCL was built with
USAGE = (
    f"DistBackendError: NCCL error in: {Place.CALL_FAILED.path_for_cuda}, invalid usage (run with "
    f"NCCL_DEBUG=WARN for details), NCCL version {NCCL}\nncclInvalidUsage: This usually reflects invalid usage of NCCL "
    "library.\nLast error:\n"
)
EVERY = ("broadcast", "reduce", "all_gather", "reduce_scatter", "all_reduce")


def allowed(operation: str, **environ: str) -> list[str]:
    found = Preferences.read(environ)
    return [
        f"{algorithm} {protocol}"
        for algorithm in ("ring", "tree")
        for protocol in ("ll", "ll128", "simple")
        if found.allows(operation, algorithm, protocol)
    ]


def test_a_list_says_what_is_allowed_for_every_function() -> None:
    for operation in EVERY:
        assert allowed(operation, NCCL_ALGO="Ring", NCCL_PROTO="simple,ll") == ["ring ll", "ring simple"]
        assert allowed(operation, NCCL_ALGO="^Tree", NCCL_PROTO="^LL,LL128") == ["ring simple"]
        assert len(allowed(operation, NCCL_ALGO="^NVLS")) == len(allowed(operation)) == 6


def test_a_later_list_is_one_functions() -> None:
    said = "ring,collnetdirect;allreduce:tree,collnetdirect;broadcast:^tree"

    assert {line.split()[0] for line in allowed("all_reduce", NCCL_ALGO=said)} == {"tree"}
    assert {line.split()[0] for line in allowed("broadcast", NCCL_ALGO=said)} == {"ring"}
    assert {line.split()[0] for line in allowed("all_gather", NCCL_ALGO=said)} == {"ring"}
    assert allowed("all_reduce", NCCL_PROTO="LL,Simple;allreduce:^LL", NCCL_ALGO="ring") == [
        "ring ll128",
        "ring simple",
    ]


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("Rings", 'Unrecognized element token "Rings" when parsing "Rings"'),
        ("ring;tree", 'All entries except the first must have a prefix: "ring;tree"'),
        ("ring;sum:tree", 'Unrecognized prefix token "sum" when parsing "ring;sum:tree"'),
        ("allreduce:^nvl", 'Unrecognized element token "nvl" when parsing "allreduce:^nvl"'),
    ],
)
def test_what_nccl_does_not_know_fails_when_a_communicator_is_made(text: str, warning: str) -> None:
    def body() -> str:
        join()
        return said(lambda: dist.all_reduce(of(1)))

    assert results(body, env={"NCCL_ALGO": text}) == [USAGE + warning] * 2


def test_a_function_that_nothing_is_left_for_fails_in_nccls_words() -> None:
    def body() -> tuple[float, str, str]:
        join()
        tensor = of(1)
        dist.all_reduce(tensor)
        half = tensor.half()
        return tensor.item(), said(lambda: dist.broadcast(half, 0)), said(lambda: dist.reduce(tensor, 0))

    text = NO_ALGORITHM + " for function {} with datatype {}. NCCL_ALGO was set to Tree."
    for total, broadcast, reduce in results(body, env={"NCCL_ALGO": "Tree"}):
        assert total == 2
        assert broadcast == USAGE + text.format("Broadcast", "ncclFloat16")
        assert reduce == USAGE + text.format("Reduce", "ncclFloat32")


def test_switches_are_refused_with_another_way() -> None:
    def body() -> str:
        join()
        return said(lambda: dist.all_reduce(of(1)))

    assert results(body, env={"NCCL_ALGO": "NVLS,NVLSTree"})[0] == (
        "UnsupportedError: NCCL_ALGO was set to NVLS,NVLSTree. That leaves AllReduce to nvls, nvlstree, which switches "
        "do and are not simulated; allow Ring or Tree as well"
    )


def test_one_rank_needs_no_algorithm() -> None:
    def body() -> float:
        join()
        tensor = of(3)
        dist.broadcast(tensor, 0)
        return tensor.item()

    assert results(body, 1, env={"NCCL_ALGO": "Tree"}) == [3]


def chosen_time(env: dict[str, str], **model: Any) -> int:
    """Return the virtual nanoseconds of an all-reduce of 64 MiB on eight H100 of a host."""

    def body() -> int:
        join()
        process = current_process()
        assert process is not None
        tensor = torch.zeros(1 << 14, device="cuda")
        dist.all_reduce(tensor)
        torch.cuda.synchronize()
        begin_ns = process.simulation.now_ns
        dist.all_reduce(tensor)
        torch.cuda.synchronize()
        return process.simulation.now_ns - begin_ns

    cluster = build(4, devices_per_host=4, nccl=NcclModel(channels=2, **model))
    return int(results(body, 4, cluster=cluster, env=env)[0])


def test_the_variables_choose_as_the_model_of_the_cluster_does() -> None:
    for algorithm in ("ring", "tree"):
        for protocol in ("ll", "simple"):
            env = {"NCCL_ALGO": algorithm, "NCCL_PROTO": protocol}

            assert chosen_time(env) == chosen_time({}, algorithm=algorithm, protocol=protocol)
    assert chosen_time({"NCCL_ALGO": "^tree", "NCCL_PROTO": "^simple"}) < chosen_time({"NCCL_PROTO": "simple"})


def test_a_protocol_that_is_asked_for_is_taken_without_nvlink_too() -> None:
    graph = Graph(ranks=8, nodes=1, channels=2, intra=12, inter=12, links="pci")

    assert choose(graph, "all_reduce", 1 << 24, Preferences.read({"NCCL_PROTO": "LL128"})).protocol == "ll128"
    assert choose(graph, "all_reduce", 1 << 14, Preferences.read({"NCCL_PROTO": "^LL"})).protocol == "ll128"
    assert choose(graph, "all_reduce", 1 << 14, Preferences.read({"NCCL_PROTO": "Simple"})).protocol == "simple"
    assert choose(graph, "all_reduce", 1 << 24, Preferences.read({"NCCL_ALGO": "ring"})).protocol == "simple"


@pytest.mark.parametrize(
    ("environ", "channels"),
    [
        ({}, 12),
        ({"NCCL_MAX_NCHANNELS": "4"}, 4),
        ({"NCCL_MIN_NCHANNELS": "16"}, 16),
        ({"NCCL_MIN_NCHANNELS": "6", "NCCL_MAX_NCHANNELS": "2"}, 6),
        ({"NCCL_MAX_NRINGS": "3"}, 3),
        ({"NCCL_MAX_NRINGS": "3", "NCCL_MAX_NCHANNELS": "0x8"}, 8),
        ({"NCCL_MAX_NCHANNELS": "0"}, 1),
        ({"NCCL_MAX_NCHANNELS": "many"}, 1),  # C reads 0
        ({"NCCL_MIN_NCHANNELS": "1000"}, 64),
        ({"NCCL_MAX_CTAS": "5"}, 5),
        ({"NCCL_MIN_CTAS": "20"}, 20),
        ({"NCCL_MAX_CTAS": "-1"}, 12),
    ],
)
def test_numbers_of_channels_are_read_as_nccl_does(environ: dict[str, str], channels: int) -> None:
    assert Preferences.read(environ).channels(12) == channels


def test_a_groups_config_limits_its_channels_unless_a_variable_does() -> None:
    class Config:
        min_ctas, max_ctas = -2147483648, 4

    assert Preferences.read({}, Config).channels(12) == 4
    assert Preferences.read({"NCCL_MAX_CTAS": "6"}, Config).channels(12) == 6


def test_fewer_channels_are_another_order_of_additions() -> None:
    def body() -> list[float]:
        rank = join()
        generator = torch.Generator().manual_seed(rank)
        tensor = torch.randn(3 * 40_000, generator=generator).cuda()
        dist.all_reduce(tensor)
        return tensor.tolist()

    def bits(channels: int, **env: str) -> list[float]:
        model = NcclModel(algorithm="ring", protocol="simple", channels=channels)
        found: list[float] = results(body, 3, cluster=build(3, devices_per_host=3, nccl=model), env=env)[0]
        return found

    assert bits(3, NCCL_MAX_NCHANNELS="1") == bits(1)
    assert bits(3) != bits(1)


@pytest.mark.parametrize(
    ("environ", "algorithm", "protocol", "channels"),
    [
        ({}, "ring", "simple", 8),  # 256 KiB over 512 threads that want 64 bytes each
        ({"NCCL_NTHREADS": "256"}, "ring", "simple", 12),
        ({"NCCL_NTHREADS": "32"}, "ring", "simple", 12),  # 64 at least
        ({"NCCL_NTHREADS": "1024"}, "ring", "simple", 8),  # 512 at most
        ({"NCCL_NTHREADS": "100"}, "ring", "simple", 8),  # no multiple of 32: 512
        ({"NCCL_NTHREADS": "0"}, "ring", "simple", 8),
        ({"NCCL_NTHREADS": "256", "NCCL_LL128_NTHREADS": "640"}, "ring", "ll128", 12),
        ({"NCCL_THREAD_THRESHOLDS": "8 8 64 8 8 128"}, "ring", "simple", 4),
        ({"NCCL_THREAD_THRESHOLDS": "8 8 128"}, "ring", "simple", 8),
        ({"NCCL_THREAD_THRESHOLDS": "8 8 128"}, "tree", "simple", 4),
        ({"NCCL_THREAD_THRESHOLDS": "-1 -1 -1 512"}, "ring", "ll", 1),
    ],
)
def test_threads_want_their_share_before_another_channel_is_used(
    environ: dict[str, str], algorithm: str, protocol: str, channels: int
) -> None:
    graph = Graph(ranks=8, nodes=1, channels=12, intra=20, inter=20)
    chosen = Choice(algorithm, protocol, 1.0, 1.0, 1.0)

    assert shrunk_channels(graph, chosen, 1 << 18, None, Preferences.read(environ)) == channels


@pytest.mark.parametrize(
    ("environ", "sizes"),
    [
        ({}, [1, 1, 1]),
        ({"NCCL_BUFFSIZE": "4194304"}, [1, 1, 2 << 20]),
        ({"NCCL_LL_BUFFSIZE": "524288", "NCCL_LL128_BUFFSIZE": "4915200"}, [32 << 10, 576_000, 1]),
        ({"NCCL_BUFFSIZE": "-2"}, [1, 1, 1]),
    ],
)
def test_buffers_say_how_much_goes_around_at_once(environ: dict[str, str], sizes: list[int]) -> None:
    found = Preferences.read(environ)

    assert [found.loop_bytes(protocol, 1) for protocol in ("ll", "ll128", "simple")] == sizes


def test_a_smaller_buffer_is_another_order_of_additions() -> None:
    def body() -> list[float]:
        rank = join()
        tensor = torch.randn(3 * 4_000, generator=torch.Generator().manual_seed(rank)).cuda()
        dist.all_reduce(tensor)
        return tensor.tolist()

    def bits(**env: str) -> list[float]:
        model = NcclModel(algorithm="ring", protocol="simple", channels=1)
        found: list[float] = results(body, 3, cluster=build(3, devices_per_host=3, nccl=model), env=env)[0]
        return found

    assert bits(NCCL_BUFFSIZE="4194304") == bits()
    assert bits(NCCL_BUFFSIZE="8192") != bits()


def test_ranks_have_to_say_the_same() -> None:
    def body() -> str:
        import os

        if os.environ["RANK"] == "1":
            os.environ["NCCL_ALGO"] = "Ring"
        join()
        return said(lambda: dist.all_reduce(of(1)))

    result = run(body, 2, cluster=build(2, devices_per_host=2, nccl=NcclModel()))

    assert "are others on rank 1 than on rank 0 of a group" in str([rank.value for rank in result.ranks])


def test_the_line_of_the_version_is_said_once_where_nccl_says_it(tmp_path: Path) -> None:
    def body() -> None:
        join()
        dist.all_reduce(of(1))
        dist.all_reduce(of(1), group=dist.new_group([0, 1]))

    version = f"NCCL version {NCCL}+cuda{CUDA}\n"

    def printed(**env: str) -> list[str]:
        return [rank.stdout for rank in run(body, 2, env=env).ranks]

    assert printed() == ["", ""]
    assert printed(NCCL_DEBUG="version") == printed(NCCL_DEBUG="WARN") == [version, ""]
    first, second = printed(NCCL_DEBUG="INFO")
    assert first.endswith(f" [0] NCCL INFO {version}")
    assert second.endswith(f" [1] NCCL INFO {version}")
    assert printed(NCCL_DEBUG="INFO", NCCL_DEBUG_FILE=f"{tmp_path}/%h.%p.log") == ["", ""]
    assert sorted(path.read_text().partition("]")[2] for path in tmp_path.iterdir()) == [f" NCCL INFO {version}"] * 2


def test_a_warning_is_written_where_nccl_writes_it(tmp_path: Path) -> None:
    def body() -> None:
        torch.cuda.set_device(0)
        dist.init_process_group("nccl")
        dist.all_reduce(of(1))

    warning = f"[0] {NcclPlace.SAME_DEVICE.shown} NCCL WARN {SAME_DEVICE[1]}\n"

    def printed(**env: str) -> str:
        return run(body, 2, cluster=build(2, devices_per_host=1), env=env).ranks[1].stdout

    assert printed() == printed(NCCL_DEBUG="VERSION") == ""
    assert printed(NCCL_DEBUG="WARN").startswith("\n[2026-01-01 00:00:00] ")
    assert printed(NCCL_DEBUG="WARN").endswith(warning)
    assert printed(NCCL_DEBUG="WARN", NCCL_DEBUG_FILE=f"{tmp_path}/%p.log") == ""
    assert sum(path.read_text().count(f" NCCL WARN {SAME_DEVICE[1][:12]}") for path in tmp_path.iterdir()) == 2
