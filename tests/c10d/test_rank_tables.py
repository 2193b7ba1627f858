"""Tables in torch's modules and classes that each rank has for itself, under every name that refers to them."""

from __future__ import annotations

import importlib
import multiprocessing
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed import distributed_c10d
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlanner
from torch.distributed.distributed_c10d import _world as world_taken_early

import simdist
from tests.c10d.worlds import values

_c10d: Any = distributed_c10d
_dcp: Any = dcp
_tensor: Any = torch.distributed.tensor
NAMES = ("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "tags_to_pg", "pg_to_tag")
CACHES = sorted(name for name in vars(SavePlanner) if name.startswith("_cached_"))


def test_the_groups_are_there_by_every_name() -> None:
    def body() -> dict[str, bool]:
        dist.init_process_group("gloo")
        dist.new_group([0, 1])
        from torch.distributed.distributed_c10d import _pg_map

        default: Any = dist.group.WORLD
        assert len(_pg_map) == 2
        assert _pg_map[default][0] == "gloo"
        assert dict(_pg_map) == dict(_c10d._world.pg_map)
        assert world_taken_early.pg_map == _c10d._world.pg_map
        assert sorted(_c10d._pg_names.values()) == ["0", "1"]
        same = {name: getattr(_c10d, f"_{name}") == getattr(_c10d._world, name) for name in NAMES}
        dist.destroy_process_group()
        assert not _pg_map
        return same

    assert values(body, 2) == [dict.fromkeys(NAMES, True)] * 2
    assert [type(getattr(_c10d, f"_{name}")) for name in NAMES] == [dict] * len(NAMES)


@pytest.mark.parametrize(
    "look",
    [
        lambda tables: tables[dist.group.WORLD],
        lambda tables: tables.get(dist.group.WORLD),
        lambda tables: dict(tables.items())[dist.group.WORLD],
        lambda tables: next(iter(tables.values())),
        lambda tables: tables.setdefault(dist.group.WORLD, {}),
        lambda tables: tables.copy()[dist.group.WORLD],
        lambda tables: (tables | {})[dist.group.WORLD],
        lambda tables: ({} | tables)[dist.group.WORLD],
        lambda tables: tables.pop(dist.group.WORLD),
        lambda tables: (tables == {dist.group.WORLD: dict(enumerate(range(3)))} and tables)[dist.group.WORLD],
        lambda tables: repr(tables).endswith(f"{dict(enumerate(range(3)))}}}") and tables.popitem()[1],
        lambda tables: dict.fromkeys(dist.get_process_group_ranks(None)) and tables[dist.group.WORLD],
    ],
)
def test_the_ranks_of_the_default_group_are_there_when_one_looks(look: Callable[[Any], dict[int, int]]) -> None:
    def body() -> tuple[int, dict[int, int]]:
        dist.init_process_group("gloo")
        tables = _c10d._world.pg_group_ranks
        own = next(iter(dict.values(tables)))
        kept = len(own)
        found = look(tables)
        assert found is own
        found[7] = dist.get_rank()  # each rank has its own table, as each process has
        return kept, found

    expected = dict(enumerate(range(3)))
    assert values(body, 3) == [(0, {**expected, 7: rank}) for rank in range(3)]
    assert "range" not in vars(_c10d)


def test_ranks_and_groups_are_counted_as_ever_while_a_world_runs() -> None:
    def body() -> tuple[list[int], list[object], list[int]]:
        dist.init_process_group("gloo")
        everyone = dist.get_process_group_ranks(dist.new_group())
        objects: list[object] = [None, None, None]
        dist.all_gather_object(objects, dist.get_rank())
        return everyone, objects, dist.get_process_group_ranks(None)

    assert values(body, 3) == [([0, 1, 2], [0, 1, 2], [0, 1, 2])] * 3


def test_torch_s_threaded_group_on_a_rank_knows_its_ranks() -> None:
    def body() -> list[list[int]]:
        from torch.testing._internal.common_distributed import spawn_threads_and_init_comms

        threaded: Any = spawn_threads_and_init_comms
        found: list[list[int]] = []
        threaded(lambda self: found.append(dist.get_process_group_ranks(None)), world_size=3)(None)
        return found

    assert values(body, 2) == [[[0, 1, 2]] * 3] * 2


def test_no_module_of_torch_has_the_host_s_tables_on_a_rank() -> None:
    tables = {id(getattr(_c10d, f"_{name}")) for name in NAMES} | {id(getattr(SavePlanner, name)) for name in CACHES}

    def body() -> list[str]:
        dist.init_process_group("gloo")
        modules = [(name, each) for name, each in list(sys.modules.items()) if name.partition(".")[0] == "torch"]
        return [
            f"{name}.{key}" for name, each in modules for key, value in list(vars(each).items()) if id(value) in tables
        ]

    assert values(body, 2) == [[], []]


def test_a_program_that_counts_groups_destroys_the_last() -> None:
    def body() -> bool:
        """As Lightning's `TorchCollective.teardown`."""
        dist.init_process_group("gloo")
        group = dist.new_group([0, 1])
        dist.destroy_process_group(group)
        if len(_c10d._pg_map) == 1:
            dist.destroy_process_group()
        return dist.is_initialized()

    assert values(body, 2) == [False, False]


def _save(folder: Path, steps: int) -> dict[str, int]:
    """Save a state of which each rank has a part, with cached plans; returns the sizes of the caches."""
    rank = dist.get_rank()
    for step in range(steps):
        state = {"all": torch.full((4,), float(step)), f"of {rank}": torch.full((2,), float(10 * rank + step))}
        planner = DefaultSavePlanner(enable_plan_caching=True)
        _dcp.save(state, checkpoint_id=folder / str(step), planner=planner)
        loaded = {name: torch.zeros_like(each) for name, each in state.items()}
        _dcp.load(loaded, checkpoint_id=folder / str(step))
        assert all(torch.equal(loaded[name], each) for name, each in state.items())
    return {name: len(getattr(SavePlanner, name)) for name in CACHES}


def test_each_rank_of_each_world_has_its_own_plans(tmp_path: Path) -> None:
    def body(folder: Path) -> dict[str, int]:
        assert {name: len(getattr(SavePlanner, name)) for name in CACHES} == dict.fromkeys(CACHES, 0)
        dist.init_process_group("gloo")
        return _save(folder, 3)

    of_coordinator = dict.fromkeys(CACHES, 1)
    of_others = {name: int(name in ("_cached_save_plan", "_cached_final_save_plan")) for name in CACHES}
    for number in range(2):
        result = simdist.run(body, world_size=2, args=(tmp_path / str(number),))
        result.raise_for_failure()

        assert result.values == [of_coordinator, of_others]
        assert next(path.name for path in sorted((tmp_path / str(number) / "2").iterdir())) == ".metadata"
    assert [getattr(SavePlanner, name) for name in CACHES] == [{}] * len(CACHES)


def _in_child(queue: Any) -> None:
    found = dict(SavePlanner._cached_save_plan)
    SavePlanner._cached_save_plan["child"] = "plan"  # type: ignore[assignment]
    queue.put((found, list(SavePlanner._cached_save_plan)))


@pytest.mark.parametrize(("method", "inherited"), [("fork", {"mine": "plan"}), ("spawn", {})])
def test_a_forked_child_begins_with_its_parent_s_plans(method: str, inherited: dict[str, str]) -> None:
    def body() -> Any:
        SavePlanner._cached_save_plan["mine"] = "plan"  # type: ignore[assignment]
        context: Any = multiprocessing.get_context(method)
        queue = context.Queue()
        child = context.Process(target=_in_child, args=(queue,))
        child.start()
        said = queue.get()
        child.join()
        return said, list(SavePlanner._cached_save_plan)

    assert values(body, 1) == [((inherited, [*inherited, "child"]), ["mine"])]


def test_a_table_does_all_that_a_dictionary_does() -> None:
    def body() -> None:
        table: Any = SavePlanner._cached_save_plan
        table["a"] = 1
        table |= {"b": 2}
        assert table == {"a": 1, "b": 2}
        assert table is SavePlanner._cached_save_plan
        assert (table | {"c": 3}, {"c": 3} | table) == ({"a": 1, "b": 2, "c": 3}, {"c": 3, "a": 1, "b": 2})
        assert ({**table}, dict(table), table.copy(), list(reversed(table))) == (*[{"a": 1, "b": 2}] * 3, ["b", "a"])
        assert isinstance(table, dict)
        assert (repr(table), bool(table), len(table)) == ("{'a': 1, 'b': 2}", True, 2)
        assert (table.pop("a"), table.popitem(), table.setdefault("d", 4), table.get("x")) == (1, ("b", 2), 4, None)
        del table["d"]
        assert not table

    values(body, 2)


@pytest.mark.filterwarnings("ignore")  # torch's warnings about itself
def test_rules_for_sharding_and_handlers_of_metrics_are_each_rank_s_own() -> None:
    metrics: Any = importlib.import_module("torch.distributed.elastic.metrics")
    sharding: Any = importlib.import_module("torch.distributed.tensor.experimental")
    optimizers: Any = importlib.import_module("torch.distributed.optim.utils")
    table = optimizers.functional_optim_map
    operator = torch.ops.aten.erfc.default
    propagator = _tensor.DTensor._op_dispatcher.sharding_propagator
    metrics_api: Any = sys.modules["torch.distributed.elastic.metrics.api"]
    before = propagator.op_strategy_funcs.get(operator), len(table), dict(metrics_api._metrics_map)

    def body() -> Any:
        dist.init_process_group("gloo")
        if dist.get_rank() == 0:
            rule = sharding.register_sharding(operator)
            rule(lambda x: [([_tensor.Replicate()], [_tensor.Replicate()])])
            optimizers.register_functional_optim("mine", torch.optim.SGD)
            metrics.configure(metrics.NullMetricHandler(), group="mine")
        dist.barrier()
        reported = propagator.op_strategy_funcs.get(operator) is not before[0]
        return reported, "mine" in table, "mine" in metrics_api._metrics_map

    assert values(body, 2) == [(True, True, True), (False, False, False)]
    after = propagator.op_strategy_funcs.get(operator), len(table), dict(metrics_api._metrics_map)
    assert after == before
