"""The Python side of `torch.distributed` that has no public name: its one world, its plugins, its wrappers."""

from __future__ import annotations

import contextlib
import datetime
import dis
import functools
import inspect
from collections.abc import Iterable
from types import CodeType, ModuleType
from typing import Any, Protocol

import torch
import torch.distributed.distributed_c10d as c10d
from torch._C._distributed_c10d import (
    Backend,
    FileStore,
    HashStore,
    PrefixStore,
    ProcessGroup,
    Store,
    TCPStore,
    Work,
    _DistributedBackendOptions,
    get_debug_level,
)
from torch.distributed.distributed_c10d import _World

from simdist.inside._facts import fact
from simdist.inside.torch._bindings import c10d_bindings, missing

__all__ = ["BackendOptions", "BackendRequest", "FileStore", "HashStore", "PrefixStore", "SplitParent", "Store"]
__all__ += ["TCPStore", "Work", "backend_plugin", "c10d_module", "calls_override", "counts_ranks", "get_debug_level"]
__all__ += ["group_world", "init_method_name", "nccl_means_nccl2", "newer_group_tables", "op_types"]
__all__ += ["wrap_for_debugging"]

c10d_module: ModuleType = c10d
"""`torch.distributed.distributed_c10d`, with what its stubs leave out."""

BackendOptions = Backend.Options


class SplitParent(Protocol):
    """An NCCL backend whose communicator is split."""

    bound_device_id: torch.device | None

    def count_split(self, index: int) -> None:
        """Count a communicator that is split from this one, on a device."""
        ...


class BackendRequest(_DistributedBackendOptions):
    """The options by which torch asks for a backend.

    torch's own class accepts only backends of C++ as the one from which a communicator is split, and since torch 2.14
    it is used for NCCL too.
    """

    split_from: SplitParent | None = None  # hides the attribute of C++


def group_world() -> _World:
    """torch's object with all groups (`_world`): in a world of simdist, that of the calling rank."""
    world: _World = c10d_module._world
    return world


def newer_group_tables(known: Iterable[str]) -> list[str]:
    """The tables by group that torch has besides the known ones, such as 2.15's `pg_flight_recorder_hooks`."""
    return _newer_group_tables(c10d_module._World, tuple(known))


@functools.cache
def _newer_group_tables(world: type, known: tuple[str, ...]) -> list[str]:
    beside = {*known, "pg_config_info", "pg_default_device"}  # one is computed, one is of older versions
    names = (name for name, each in vars(world).items() if isinstance(each, property))
    return [name for name in names if name.startswith("pg_") and name not in beside]


@functools.cache
def counts_ranks() -> CodeType | None:
    """The code that makes the default group's table of ranks from a `range`, its only one; None if there is none."""
    code: CodeType = inspect.unwrap(c10d.init_process_group).__code__
    ranges = [each for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL" and each.argval == "range"]
    return code if len(ranges) == 1 else None


def init_method_name() -> str:
    """The variable of `distributed_c10d` with the init method of the default group."""
    return "_default_pg_init_method"


def backend_plugin(name: str) -> c10d.Backend._BackendPlugin | None:
    """The backend that a program has registered under a name (`Backend.register_backend`); None if there is none."""
    return c10d.Backend._plugins.get(name.upper())


def nccl_means_nccl2() -> bool:
    """True if the backend "nccl" is the newer ProcessGroupNCCL2: since torch 2.15, unless TORCH_DIST_USE_NCCL2=0."""
    version = tuple(int(part) for part in str(torch.__version__).split(".")[:2])
    return hasattr(c10d_module, "_create_nccl2_process_group") and version >= _NCCL2_BY_DEFAULT


_NCCL2_BY_DEFAULT = (2, 15)


def wrap_for_debugging(
    group: ProcessGroup, name: str, store: Store, rank: int, size: int, timeout: datetime.timedelta
) -> ProcessGroup:
    """The group that compares calls, which torch puts around each group at debug level DETAIL."""
    wrapper: ProcessGroup = c10d_module._create_process_group_wrapper(group, name, store, rank, size, timeout)
    return wrapper


def op_types() -> dict[str, int]:
    """The numbers of `c10d::OpType` by name (torch/csrc/distributed/c10d/Work.hpp)."""
    return {name: int(kind) for name, kind in c10d_bindings.OpType.__members__.items()}


@functools.cache
def calls_override(name: str) -> bool:
    """True if C++'s method of this name calls that of a Python subclass, as it does since torch 2.14.

    `name` is "all_gather_single" or "reduce_scatter_single". In older versions the method goes to the dispatcher.
    """
    if not hasattr(ProcessGroup, name):  # before torch 2.13 they have only their older names
        return False
    called: list[str] = []
    probed: Any = type("Probed", (ProcessGroup,), {name: lambda *_: called.append(name)})
    group, tensor = probed(0, 1), torch.ones(1)
    with contextlib.suppress(RuntimeError):  # the dispatcher finds no backend
        getattr(ProcessGroup, name)(group, tensor, tensor)
    return called == [name]


@fact(
    "torch.c10d.world",
    what="`distributed_c10d` keeps all groups in one object, which can be replaced",
    source="torch/distributed/distributed_c10d.py, _World",
    seen="2.13, 2.14",
    feature="process groups of ranks: no world starts",
)
def _world_is_known() -> str:
    tables = ("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "group_count")
    functions = ("_create_process_group_wrapper", "_object_to_tensor", "_get_default_group", "_get_group_size")
    return (
        missing(group_world(), tables)
        or missing(c10d_module, (*functions, "_coalescing_manager", "_check_p2p_op_list", init_method_name()))
        or missing(c10d_module.Backend, ("_plugins",))
    )


@fact(
    "torch.c10d.ranks",
    what="`init_process_group` makes the table of the default group's ranks from its only `range`",
    source="torch/distributed/distributed_c10d.py, init_process_group",
    seen="2.13",
    feature="worlds of thousands of ranks: each would keep a table of all, in quadratic time and memory",
)
def _ranks_are_counted() -> str:
    return "" if counts_ranks() is not None else "`init_process_group` has no `range`, or several"


@fact(
    "torch.c10d.bindings",
    what="C++ keeps process groups, works and DDP's reducer where Python can replace their parts",
    source="torch/csrc/distributed/c10d/init.cpp",
    seen="2.13, 2.14",
    feature="DDP and functional collectives on ranks",
)
def _bindings_are_known() -> str:
    registry = ("_register_process_group", "_resolve_process_group", "_register_work", "OpType", "DebugLevel")
    return missing(c10d_bindings, registry) or missing(
        c10d_bindings.Reducer, ("_set_forward_pass_work_handle", "_delay_all_reduce")
    )
