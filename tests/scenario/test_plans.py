from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from simdist import faults
from simdist.cluster import DEVICE_MODELS, DeviceModel, NcclModel
from simdist.errors import ScenarioError
from simdist.scenario import ExpectedException, load

Write = Callable[..., str]


def test_defaults_are_fixed(write: Write, tmp_path: Path) -> None:
    plan = load(write("world_size = 3"))

    assert (plan.backend, plan.seed, plan.max_restarts, plan.policy) == ("gloo", 0, 0, "fifo")
    assert (plan.faults, plan.cluster, plan.env, plan.title, plan.name) == ((), {}, {}, "", "file")
    assert (plan.workload.target, plan.workload.folder) == ("job:work", tmp_path)
    assert plan.expect.outcomes == ("returned",) * 3
    assert (plan.expect.deadlock, plan.expect.faults_strike, plan.expect.restarts) == (False, True, None)


def test_every_fault_kind_has_its_keys(write: Write) -> None:
    source = write(
        """
        world_size = 4
        max_restarts = 2
        [[faults]]
        kind = "crash"
        rank = 2
        step = 12
        op = "all_reduce"
        nth = 2
        when = "during"
        life = 1
        signal = "SIGABRT"
        [[faults]]
        kind = "crash"
        rank = 1
        at = "3ms"
        exit_code = 7
        life = "every"
        [[faults]]
        kind = "hang"
        rank = 0
        at = 5
        duration = "1s"
        [[faults]]
        kind = "slow_rank"
        rank = 3
        delay = "1ms"
        start = "1s"
        until = "2s"
        [[faults]]
        kind = "link_delay"
        src = 0
        dst = 1
        delay = "2ms"
        both_ways = false
        [[faults]]
        kind = "partition"
        groups = [[0, 1], [2, 3]]
        start = "1s"
        until = "2s"
        [[faults]]
        kind = "hold"
        src = 0
        dst = 2
        until = "30s"
        both_ways = true
        """
    )

    assert load(source).faults == (
        faults.Crash(rank=2, at_step=12, op="all_reduce", nth=2, when="during", life=1, signal="SIGABRT"),
        faults.Crash(rank=1, at_ns=3_000_000, exit_code=7, life=None),
        faults.Hang(rank=0, at_ns=5, duration_ns=1_000_000_000),
        faults.SlowRank(rank=3, delay_ns=1_000_000, start_ns=1_000_000_000, until_ns=2_000_000_000),
        faults.LinkDelay(src=0, dst=1, delay_ns=2_000_000, both_ways=False),
        faults.Partition(groups=((0, 1), (2, 3)), start_ns=1_000_000_000, until_ns=2_000_000_000),
        faults.Hold(src=0, dst=2, until_ns=30_000_000_000, both_ways=True),
    )


def test_the_cluster_section_becomes_the_arguments_of_build(write: Write) -> None:
    plan = load(write('world_size = 4\ncluster = {hosts = 2, latency = "20us", local_bandwidth = "1GB/s"}'))

    assert plan.cluster == {"hosts": 2, "latency_ns": 20_000, "local_bandwidth_bytes_per_s": 1_000_000_000}


def test_a_topology_has_keys_of_its_own(write: Write) -> None:
    text = 'world_size = 4\ncluster = {topology = "fat_tree", hosts = 4, hosts_per_leaf = 2, core_latency = "2us"}'
    plan = load(write(text))

    assert plan.cluster == {"topology": "fat_tree", "hosts": 4, "hosts_per_leaf": 2, "core_latency_ns": 2_000}


def test_hosts_have_devices_when_the_cluster_says_so(write: Write) -> None:
    one = load(write('world_size = 4\ncluster = {devices_per_host = 2, device_memory = "16GiB"}'))
    each = load(write('world_size = 4\ncluster = {topology = "one_host", devices_per_host = "ranks"}'))

    assert one.cluster == {"devices_per_host": 2, "device_memory_bytes": 16 << 30}
    assert each.cluster == {"topology": "one_host", "devices_per_host": "ranks"}


def test_devices_compute_as_fast_as_their_section_says(write: Write) -> None:
    cluster = "cluster = {devices_per_host = 1}"
    named = load(write(f'world_size = 2\nbackend = "nccl"\n{cluster}\n[device]\nmodel = "h100"\nlaunch = "3us"'))
    own = load(write('world_size = 2\nbackend = "nccl"\n[device]\nflops = 2e12\nbandwidth = "1GB/s"'))

    assert named.cluster["device_model"] == replace(DEVICE_MODELS["h100"], launch_ns=3_000)
    assert own.cluster == {"device_model": DeviceModel(flops=2e12, bytes_per_s=10**9)}


def test_nccl_chooses_as_its_section_says(write: Write) -> None:
    text = 'world_size = 2\nbackend = "nccl"\n[nccl]\nalgorithm = "tree"\nchannels = 4\nlocal_bandwidth = "40GB/s"'

    plan = load(write(text))

    model = NcclModel(algorithm="tree", channels=4, local_bandwidth_bytes_per_s=40 * 10**9)
    assert plan.cluster == {"nccl": model}


def test_a_calibration_serves_a_topology_with_hosts(write: Write, tmp_path: Path) -> None:
    world = 'ranks = 4\nlocal_latency = "7ns"\nlocal_bandwidth = "2GB/s"\nreduction_slowdown = 2.5\nerror = 0.1'
    (tmp_path / "machine.toml").write_text(f'backend = "gloo"\n[[world]]\n{world}\n')

    plan = load(write('world_size = 4\ncluster = {topology = "one_host", calibration = "machine.toml"}'))

    assert plan.cluster == {
        "topology": "one_host",
        "local_latency_ns": 7,
        "local_bandwidth_bytes_per_s": 2_000_000_000,
        "reduction_slowdown": 2.5,
        "reduction_latency_slowdown": 1.0,
        "reduction_from_bytes": 0,
    }


def test_outcomes_by_rank_leave_the_others_at_returned(write: Write) -> None:
    plan = load(write('world_size = 5\n[expect]\noutcomes = {"0" = "killed", "2, 3-4" = "raised"}'))

    assert plan.expect.outcomes == ("killed", "returned", "raised", "raised", "raised")


def test_a_rank_with_an_expected_exception_is_expected_to_raise(write: Write) -> None:
    plan = load(write('world_size = 3\n[expect.exception]\n"1-2" = {type = "OSError", message = "no"}'))

    assert plan.expect.outcomes == ("returned", "raised", "raised")
    assert plan.expect.exceptions == dict.fromkeys((1, 2), ExpectedException(type="OSError", message="no"))


def test_keys_to_compare_are_all_some_or_not_asked(write: Write) -> None:
    expect = load(write('world_size = 1\n[expect]\nequal_values = true\nsame_as_without_faults = ["a"]')).expect

    assert (expect.equal_values, expect.same_as_without_faults) == ((), ("a",))
    assert load(write("world_size = 1\n[expect]\nequal_values = false")).expect.equal_values is None


def test_overrides_take_the_place_of_what_the_file_says(write: Write) -> None:
    source = write('world_size = 4\n[[faults]]\nkind = "crash"\nrank = 3\nstep = 1')

    plan = load(
        source,
        overrides=["world_size=2", "faults[0].rank=1", "workload.kwargs.label=slow net", "expect.outcomes.1=killed"],
    )

    assert (plan.world_size, plan.faults[0]) == (2, faults.Crash(rank=1, at_step=1))
    assert (plan.workload.kwargs, plan.expect.outcomes) == ({"label": "slow net"}, ("returned", "killed"))


def test_the_replay_command_repeats_seed_and_overrides(write: Write) -> None:
    source = write("world_size = 4\nseed = 3")

    plan = load(source, overrides=["workload.kwargs.label=a b"])

    assert plan.replay == f"simdist run {source} --seed 3 --set 'workload.kwargs.label=a b'"


def test_loading_leaves_no_trace_in_the_interpreter(write: Write) -> None:
    source, path = write("world_size = 2"), list(sys.path)

    load(source)

    assert sys.path == path
    assert "job" not in sys.modules


@pytest.mark.parametrize("name", ["path", "modules"])
def test_a_program_that_deletes_what_imports_need_is_reported(name: str, write: Write, tmp_path: Path) -> None:
    source, kept = write("world_size = 2"), (sys.path, sys.modules)
    (tmp_path / "job.py").write_text(f"import sys\ndel sys.{name}\nimport nowhere\n")

    try:
        with pytest.raises(ScenarioError, match="importing 'job' raised"):
            load(source)
        assert (sys.path, sys.modules) == kept
    finally:
        sys.path, sys.modules = kept


def test_a_module_of_the_same_name_from_elsewhere_is_set_aside_for_a_while(write: Write, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "job.py").write_text("def nothing(): ...\n")
    sys.path.insert(0, str(other))
    try:
        import job  # type: ignore[import-not-found]

        load(write("world_size = 2"))

        assert sys.modules["job"] is job
    finally:
        sys.path.remove(str(other))
        sys.modules.pop("job", None)


def test_a_library_that_lies_deeper_in_the_folder_stays_loaded(write: Write, tmp_path: Path) -> None:
    site = tmp_path / "venv" / "site"
    site.mkdir(parents=True)
    (site / "deeplib.py").write_text("")
    (tmp_path / "uses.py").write_text("import deeplib\ndef work(): ...\n")
    sys.path.append(str(site))
    try:
        load(write("world_size = 2", workload='[workload]\ntarget = "uses:work"'))

        assert "deeplib" in sys.modules
        assert "uses" not in sys.modules
    finally:
        sys.path.remove(str(site))
        sys.modules.pop("deeplib", None)
