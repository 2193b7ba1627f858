"""Run programs of every kind on ranks, and list what they leave in torch's Python modules.

    python tools/shared_state.py                  # every program
    python tools/shared_state.py fsdp2 compile    # some
    python tools/shared_state.py --all            # also what is known to be harmless, with the reason
    python tools/shared_state.py --ranks          # also what ranks see of each other while a world runs

All ranks of a world share torch's modules: a container, a cache or a flag in one of them that a rank writes is read by
the others, and by the next world. Each program runs once, so that what is imported and cached on first use is there,
and then again on another number of ranks. What differs after the second run from what was there before it, and a
flag that differs from what it was before the first, is written by ranks: an attribute that is another object, a
container with other contents, in modules, in classes and in what they hold. Each has to be a rank's own (a slot), or
stand in `HARMLESS` with the reason. With `--ranks` each rank also looks when all have run the program and none has
ended: a container or cache under `torch.distributed`, `torch.utils`, `torch._dynamo` or `torch.nn.parallel` that is
another than when the first rank began, and the same for all ranks, was written by one of them for all. Exit codes:
0 nothing else was found, 1 something was, 2 no such program.
"""

from __future__ import annotations

import argparse
import fnmatch
import functools
import gc
import sys
import time
import types
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import simdist
from tools._shared_state_programs import PROGRAMS

_STATISTICS = "a count of what was done, which nothing is decided by"
_NUMBERS = "numbers that only grow, and are compared within one rank only"
_OF_SHAPES = "kept by operators, shapes and types, which mean the same on every rank"
_REGISTERED = "done once, when it is first asked for, and the same for all"
_SETTINGS = "read from a setting of dynamo's, and again when that changes"
_OF_CODE = "kept by code objects, each of which dynamo has made for one rank"
_OF_MESHES = "kept by meshes, which are other ones on each rank"
_OWN = "each rank's own, and the same on those that do the same"
_OF_NO_DEVICE = "waits for a kind of device that is not there"
HARMLESS = {
    "torch._dynamo.utils._cleanup_owners": "who made a name in a scope, and scopes are each rank's own; torch 2.14",
    "torch._decomp.decompositions_for_rng.PhiloxStateTracker.*": "begun anew by each trace",
    "torch._dynamo.*CleanupManager.instance.*": _OF_CODE,
    "torch._dynamo.*code_context.*": _OF_CODE,
    "torch._dynamo.*orig_code_map.*": _OF_CODE,
    "torch._dynamo.convert_frame.FRAME_*": _OWN,
    "torch._dynamo.trace_rules.SKIP_DIRS": "with simdist's own folder, while a world lives in which ranks compile",
    "torch._dynamo.utils.curr_frame": _OWN,
    "torch.distributed.tensor._redistribute._gen_transform_infos": _OF_MESHES,
    "torch.distributed.tensor._redistribute._planner_cache": _OF_MESHES,
    "torch.fx.experimental.symbolic_shapes.ShapeEnv.*": "kept by the shapes of one trace, which are its own",
    "torch._dynamo.convert_frame.output_codes.seen*": "code that dynamo made, so that it leaves that alone",
    "torch._dynamo.eval_frame.DynamoTLS.traced_frame_infos": "what compiled calls of each rank traced, for logs",
    "torch._dynamo.eval_frame.cached_backends": "compilers by their identity, one entry for each",
    "torch._dynamo.*graph_break_reasons": "a list for `torch._dynamo.explain`, of all ranks together",
    "torch._dynamo.*.is_from_skip_guard_source": "a cache of a question about sources of guards, by their names",
    "torch._dynamo.mutation_guard.GenerationTracker.*": _NUMBERS,
    "torch._dynamo.trace_rules.get_torch_obj_rule_map": "rules made of torch's own objects; dropped and made again",
    "torch._dynamo.device_interface._device_initialized": _REGISTERED,
    "torch._dynamo.guards._CLOSURE_VARS": _REGISTERED,
    "torch._dynamo.variables.builder._DYNAMIC_*": _SETTINGS,
    "torch._dynamo.variables.builder._UNBACKED_*": _SETTINGS,
    "torch._dynamo.utils.CHROMIUM_EVENT_LOG": "for logs of all that was compiled in this process",
    "torch._dynamo.utils.CleanupManager.count": _NUMBERS,
    "torch._dynamo.utils._compilation_metrics": _STATISTICS,
    "torch._dynamo.utils.cumulative_time_spent_ns": _STATISTICS,
    "torch._dynamo.utils.op_count": _STATISTICS,
    "torch._functorch.predispatch.DECOMPOSITIONS_LOADED": _REGISTERED,
    "torch._functorch.predispatch.VMAP_DECOMPOSITIONS_LIB": _REGISTERED,
    "torch._subclasses.fake_tensor.FakeTensorMode.cache*": _OF_SHAPES,
    "torch._subclasses.meta_utils.DESCRIBER_NEXT_ID": _NUMBERS,
    "torch.autograd.profiler._cupti_monitor_checked": _REGISTERED,
    "torch.cpu._current_stream": "streams of the CPU mean nothing",
    "torch.distributed.device_mesh._distributed_opaque_types_registered": _REGISTERED,
    "torch.distributions.distribution.Distribution._validate_args": "switched off for good by dynamo's import",
    "torch.*._lazy_seed_tracker.call_order": _OF_NO_DEVICE,
    "torch.fx.experimental.proxy_tensor._FAKE_TENSOR_ID_TO_PROXY_MAP_FOR_EXPORT": "for the messages of a failed export",
    "torch.fx.graph_module._loader.*": (
        "sources of traced code, by a number that goes on; it stands in tracebacks through such code, so that a "
        "program that fails there has another digest in the second world of a process"
    ),
    "torch._logging._internal.structured_logging_overhead": _STATISTICS,
    "torch.jit._recursive.concrete_type_store.methods_compiled": "scripted types, one entry for each",
    "torch.utils._stats.simple_call_counter": _STATISTICS,
    "torch.utils.hooks.RemovableHandle.next_id": _NUMBERS,
}

_Found = dict[str, object]
_CONTAINERS = (dict, list, set, deque)
_PLAIN = (int, float, str, bytes, type(None))
_LONGEST = 120
_LONG_AFTER = 1e6  # seconds
_WHOLE = ("torch.",)
_LOOKED_AT = ("torch.distributed", "torch.utils", "torch._dynamo", "torch.nn.parallel")


def main(arguments: list[str] | None = None) -> int:
    """Run the programs that the arguments name, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", help=f"of {', '.join(PROGRAMS)}")
    parser.add_argument("--all", action="store_true", help="also report what is known to be harmless")
    parser.add_argument("--ranks", action="store_true", help="also compare what ranks see of each other")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.programs if name not in PROGRAMS]
    if unknown:
        parser.error(f"no program is called {', '.join(unknown)}; there are {', '.join(PROGRAMS)}")
    found: dict[str, tuple[str, list[str]]] = {}
    for name in options.programs or PROGRAMS:
        changes = written_by(PROGRAMS[name])
        if options.ranks:
            changes |= seen_by_all(PROGRAMS[name])
        for place, change in changes.items():
            found.setdefault(place, (change, []))[1].append(name)
    news = {place: each for place, each in found.items() if reason_for(place) is None}
    for place, (change, programs) in sorted(found.items()):
        reason = reason_for(place)
        if reason is None or options.all:
            print(f"{place}: {change}  ({', '.join(programs)})" + (f"\n    {reason}" if reason else ""))
    print(f"{len(found)} places written by ranks, {len(found) - len(news)} of them known to be harmless")
    return 1 if news else 0


def reason_for(place: str) -> str | None:
    """Return why it does no harm that ranks share this place; None if no reason is known."""
    return next((reason for pattern, reason in HARMLESS.items() if fnmatch.fnmatchcase(place, pattern)), None)


def written_by(*programs: Callable[[], object]) -> dict[str, str]:
    """Return what two ranks that run `programs` leave in torch's modules, after three have run them, and the changes.

    Flags and values that were None are compared with the state before the first run: one that is left set does not
    change again.
    """
    first = _looked_at()
    for program in programs:
        simdist.run(program, world_size=3).raise_for_failure()
    gc.collect()  # a collection removes entries of weak tables
    before = _looked_at() | {place: value for place, value in first.items() if value is None or type(value) is bool}
    for program in programs:
        simdist.run(program, world_size=2).raise_for_failure()
    return {
        place: _reported(before.get(place), now)
        for place, now in _looked_at().items()
        if place in before and not _same(before[place], now)
    }


def seen_by_all(program: Callable[[], object]) -> dict[str, str]:
    """Return what a rank that runs `program` writes for all ranks, with the changes; call `written_by` first.

    Flags and texts are left out: two ranks may each have the same one of their own.
    """
    seen: list[_Found] = []

    def look() -> None:
        seen.append({place: value for place, value in _looked_at().items() if place.startswith(_LOOKED_AT)})

    def run() -> None:
        if not seen:
            look()
        program()
        time.sleep(_LONG_AFTER)  # in virtual time: all other ranks have run the program by then
        look()
        time.sleep(_LONG_AFTER)

    simdist.run(run, world_size=2).raise_for_failure()
    before, one, other = seen
    return {
        place: f"for all ranks: {_reported(before[place], now)}"
        for place, now in one.items()
        if now
        and (isinstance(now, list) or type(now) is int)
        and not _same(before.get(place, now), now)
        and _same(now, other.get(place))
    }


def _looked_at() -> _Found:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns when its deprecated names are read
        return _state()


def _state() -> _Found:
    """Return everything that torch's Python code keeps in modules and classes, by place; of containers the content."""
    found: _Found = {}
    for name, module in list(sys.modules.items()):
        if f"{name}.".startswith(_WHOLE) and isinstance(module, types.ModuleType):
            for place, value in _attributes(name, vars(module)):
                found[place] = value
    return found


def _attributes(prefix: str, namespace: Mapping[str, Any], *, deep: bool = True) -> Iterator[tuple[str, object]]:
    for name, value in list(namespace.items()):
        kind: Any = type(value)
        sort = _sort(kind)
        if sort in ("", "module") or name.startswith("__"):
            continue
        place = f"{prefix}.{name}"
        if sort == "class":
            if deep and value.__module__ == prefix:
                yield from _attributes(place, vars(value), deep=False)
        elif sort == "container":
            yield place, _contents(value)
        elif sort == "cache":
            yield place, value.cache_info().currsize
        elif sort == "plain":
            yield place, value
        else:
            yield place, id(value)
            yield from ((f"{place}.{key}", each) for key, each in _inside(value, {id(value)}))


@functools.cache
def _sort(kind: type) -> str:
    """Return what is recorded of values of a type; nothing of most."""
    if issubclass(kind, type):
        return "class"
    if issubclass(kind, _CONTAINERS):
        return "container"
    if kind.__name__ == "_lru_cache_wrapper":
        return "cache"
    if issubclass(kind, (*_PLAIN, tuple)):
        return "plain"
    if kind.__module__.partition(".")[0] != "torch" or "__dict__" not in dir(kind):
        return ""
    return "module" if issubclass(kind, types.ModuleType) else "object"  # torch's own, with attributes


def _inside(value: Any, seen: set[int], depth: int = 3) -> Iterator[tuple[str, object]]:
    """Yield an object's attributes, and those of torch's objects in them."""
    for name, each in list(object.__getattribute__(value, "__dict__").items()):
        kind: Any = type(each)
        sort = _sort(kind)
        if sort == "container":
            yield name, _contents(each)
        elif sort == "plain" and not isinstance(each, tuple):
            yield name, each
        elif depth > 1 and sort in ("object", "module") and id(each) not in seen:
            seen.add(id(each))
            yield from ((f"{name}.{key}", found) for key, found in _inside(each, seen, depth - 1))


def _contents(container: Any) -> object:
    """Return a container's content by identity, so that no method of the program's objects is called.

    For a container in a dictionary its length is added.
    """
    if isinstance(container, dict):
        return [
            (id(key), id(value), len(value) if isinstance(value, _CONTAINERS) else 0)
            for key, value in list(container.items())
        ]
    found = [*map(id, list(container))]
    return sorted(found) if isinstance(container, set) else found


def _same(before: object, now: object) -> bool:
    return type(before) is type(now) and (before == now or before is now or repr(before) == "nan")


def _reported(before: object, now: object) -> str:
    if isinstance(before, list) and isinstance(now, list):
        kept = len(set(before) & set(now))
        return f"{len(now) - kept} entries new, {len(before) - kept} gone, of {len(now)}"
    return f"{before!r} is {now!r}"[:_LONGEST]


if __name__ == "__main__":
    sys.exit(main())
