"""Harmless writes of ranks to state that they share, each with the reason.

Measured with the programs of `tools/shared_state.py` and of `scenarios/programs`, in their first and second run. An
entry is one attribute, all attributes of one class, or a name in any module. `simdist.shared_writes` does not report
these writes. It reports all others: one report too many is better than a missing one.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

__all__ = ["is_harmless"]

# Whole modules: their state does not belong to programs.
_MODULES = {
    r"(simdist|networkx|simpy)\.": "our own, and what we use",
    r"(_?pytest|pluggy|xdist|coverage|hypothesis)\b": "the test runner's",
    r"(debugpy|_?pydev\w*)\b": "the debugger's",
    r"_cython_\d\w*\.": "types that all extensions in Cython use, registered by the first",
}
# Names with the same meaning in every module.
_ANYWHERE = {
    r"__warningregistry__|__builtins__|__doc__|__path__": "Python's own, of each module",
    r"_abc_impl|_abc_\w+|__abstractmethods__|__annotations__|__annotat\w+|__match_args__": "Python's own, of a class",
    r"__dataclass_\w+__": "what `dataclasses` has found out about a class",
    r"__slotnames__": "what `copyreg` has found out about a class",
    r"_value2member_map_": "members of an enumeration of flags, by each sum that somebody has asked for",
    r"__builtins_dict___\d+": "dynamo's name for the builtins, in modules whose functions it has compiled",
    r"\w*_(cache|memo|lru|registry_cache)\w*|(cache|memo|lru)\w*": "named as a cache",
}
_IMPORTS = "what has been imported"
_SOURCES = "sources of code, by file"
_REGISTERED = "operators, types and rules that a module registers when it is imported"
_FIRST_USE = "found on first use, and the same for all"
_COUNTS = "a count of what was done, which nothing is decided by"
_NUMBERS = "numbers that only grow, and are compared within one rank only"
_NAMED = "what there is by its name, one entry for each"
_LOGS = "for logs of all that was compiled in this process"
_SETTINGS = "read from a setting, and again when that changes"
_WRAPPED = "dynamo marks it as not to be compiled"
_CLOSED = "a handler that is closed goes on to write"
_TENSORDICT = "what tensordict replaces when it is imported"
_LOCKS = "locks, found held by none"
_ATTRIBUTES = {
    "_frozen_importlib_external._NamespacePath._epoch": "counts the calls of invalidate_caches",
    "_frozen_importlib_external.PathFinder.find_distributions": "what importlib_metadata replaces when it is imported",
    "asyncio.coroutines._iscoroutine_typecache": _FIRST_USE,
    "base64._a85chars": _FIRST_USE,
    "base64._a85chars2": _FIRST_USE,
    "base64._b32rev": _FIRST_USE,
    "base64._b32tab2": _FIRST_USE,
    "base64._b85chars": _FIRST_USE,
    "base64._b85chars2": _FIRST_USE,
    "base64._b85dec": _FIRST_USE,
    "concurrent.futures.process._system_limited": _FIRST_USE,
    "concurrent.futures.process._system_limits_checked": _FIRST_USE,
    "concurrent.futures.ProcessPoolExecutor": _IMPORTS,
    "concurrent.futures.ThreadPoolExecutor": _IMPORTS,
    "cython_runtime.cline_in_traceback": "a setting of Cython, which an extension writes where it is not there",
    "fsspec.registry._registry": _IMPORTS,
    "inspect._filesbymodname": _SOURCES,
    "inspect.modulesbyfile": _SOURCES,
    "linecache.cache": _SOURCES,
    "logging._defaultLastResort._closed": _CLOSED,
    "logging._handlerList": "handlers, found in the loggers themselves",
    "logging._handlers": "handlers, found in the loggers themselves",
    "multiprocessing.context._concrete_contexts": _IMPORTS,
    "multiprocessing.synchronize.SemLock._make_name": "other names of semaphores, once loky has been imported",
    "numpy._core.overrides.ARRAY_FUNCTIONS": _IMPORTS,
    "numpy.iinfo._max_vals": _FIRST_USE,
    "numpy.iinfo._min_vals": _FIRST_USE,
    "pkgutil._NAME_PATTERN": "an expression, compiled on first use",
    "pkgutil._LENIENT_PATTERN": "likewise, since Python 3.15",
    "sys.last_exc": "for a debugger",
    "sys.last_traceback": "for a debugger",
    "sys.last_type": "for a debugger",
    "sys.last_value": "for a debugger",
    "sys.lazy_modules": _IMPORTS,  # of Python 3.15
    "sys.modules": _IMPORTS,
    "sys.path_importer_cache": _IMPORTS,
    "tempfile._name_sequence": "names of temporary files, drawn anew in a process of another number",
    "threading._active": "threads of the host, such as a debugger's; those of ranks leave it when they end",
    "threading._threading_atexits": "what `concurrent.futures` registers when it is imported",
    "tqdm.std.TqdmDefaultWriteLock.mp_lock": _LOCKS,
    "tqdm.std.TqdmDefaultWriteLock.th_lock": _LOCKS,
    "tqdm.std.tqdm._lock": _LOCKS,
    "tqdm.asyncio.tqdm_asyncio._lock": _LOCKS,
    "tqdm.asyncio.tqdm_asyncio.monitor": "a thread that looks after slow bars, made anew where it has ended",
    "tqdm.std.tqdm.monitor": "a thread that looks after slow bars, made anew where it has ended",
    "unittest.mock.file_spec": _FIRST_USE,
    "unittest.mock.open_spec": _FIRST_USE,
    "urllib.parse._hextobyte": _FIRST_USE,
    "urllib.parse._typeprog": _FIRST_USE,
    "torch._decomp.decompositions_for_rng.PhiloxStateTracker.*": "set anew at the beginning of each trace",
    "torch._custom_class_base._FakeScriptObject_cls": _IMPORTS,  # 2.14 on
    "torch._dynamo.backends.registry._BACKENDS": _REGISTERED,
    "torch._dynamo.backends.registry._COMPILER_FNS": _REGISTERED,
    "torch._dynamo.convert_frame.output_codes.seen": "code that dynamo made, so that it leaves that alone",
    "torch._dynamo.device_interface._device_initialized": _REGISTERED,
    "torch._dynamo.device_interface.device_interfaces": _REGISTERED,
    "torch._dynamo.eval_frame.cached_backends": "compilers by their identity, one entry for each",
    "torch._dynamo.eval_frame.DynamoTLS.traced_frame_infos": _LOGS,
    "torch._dynamo.graph_break_reasons": _LOGS,
    "torch._dynamo.guards._CLOSURE_VARS": _FIRST_USE,
    "torch._dynamo.mutation_guard.GenerationTracker.*": _NUMBERS,
    "torch._dynamo.output_graph.compilation_time_metrics": _COUNTS,
    "torch._dynamo.output_graph.graph_break_reasons": _LOGS,
    "torch._dynamo.pgo._CODE_STATE": "what was seen of code, which is each rank's own where modules are",
    "torch._dynamo.trace_rules.*": "rules made of torch's own objects; dropped and made again",
    "torch._dynamo.utils.CHROMIUM_EVENT_LOG": _LOGS,
    "torch._dynamo.utils.CleanupManager.*": _NUMBERS,
    "torch._dynamo.utils.compilation_time_metrics": _COUNTS,
    "torch._dynamo.utils.cumulative_time_spent_ns": _COUNTS,
    "torch._dynamo.utils.graph_break_reasons": _LOGS,
    "torch._dynamo.utils.op_count": _COUNTS,
    "torch._dynamo.variables.builder._DYNAMIC_SOURCES": _SETTINGS,
    "torch._dynamo.variables.builder._DYNAMIC_SOURCES_CONFIG_HASH": _SETTINGS,
    "torch._dynamo.variables.builder._DYNAMIC_VALUES": _SETTINGS,
    "torch._dynamo.variables.builder._DYNAMIC_VALUES_CONFIG_HASH": _SETTINGS,
    "torch._dynamo.variables.builder._UNBACKED_SOURCES": _SETTINGS,
    "torch._dynamo.variables.builder._UNBACKED_SOURCES_CONFIG_HASH": _SETTINGS,
    "torch._functorch._aot_autograd.logging_utils.graph_being_compiled": _LOGS,
    "torch._functorch._aot_autograd.logging_utils.nth_graph": _LOGS,
    "torch._functorch.predispatch.DECOMPOSITIONS_LOADED": _REGISTERED,
    "torch._functorch.predispatch.DECOMPOSITIONS_LOCK": _REGISTERED,
    "torch._functorch.predispatch.VMAP_DECOMPOSITIONS_LIB": _REGISTERED,
    "torch._functorch.vmap._create_batched_inputs": _TENSORDICT,
    "torch._functorch.vmap._process_batched_inputs": _TENSORDICT,
    "torch._functorch.vmap._unwrap_batched": _TENSORDICT,
    "torch._higher_order_ops.invoke_leaf_function._leaf_function_module_retriever": _FIRST_USE,
    "torch._higher_order_ops.utils.hops_that_skip_faketensor_cache": _REGISTERED,
    "torch._higher_order_ops.utils.registered_hop_fake_fns": _REGISTERED,
    "torch._inductor.utils._registered_caches": _REGISTERED,
    "torch._jit_internal._overloaded_fns": _REGISTERED,
    "torch._jit_internal._overloaded_method_class_fileno": _REGISTERED,
    "torch._jit_internal._overloaded_methods": _REGISTERED,
    "torch._library.custom_ops.OPDEF_TO_LIB": _REGISTERED,
    "torch._library.opaque_object._OPAQUE_TYPES_BY_NAME": _REGISTERED,
    "torch._logging._internal.LOG_TRACE_HANDLER._closed": _CLOSED,
    "torch._logging.structured.INTERN_TABLE": _LOGS,
    "torch._opaque_base._FakeScriptObject_cls": _IMPORTS,
    "torch._library.triton.triton_ops_to_kernels": _REGISTERED,
    "torch._TritonLibrary.ops_table": _REGISTERED,
    "torch._ops._higher_order_ops": _REGISTERED,
    "torch._ops.cached_ops": _REGISTERED,
    "torch._subclasses.fake_impls.FAST_OP_IMPLEMENTATIONS": _REGISTERED,
    "torch._subclasses.fake_tensor.FakeTensorMode.*": "results for shapes and types, which mean the same on every rank",
    "torch._subclasses.meta_utils.DESCRIBER_NEXT_ID": _NUMBERS,
    "torch._weights_only_unpickler._marked_safe_globals_set": "each rank's own, and put back; torch adds its own types",
    "torch.autograd.profiler._cupti_monitor_checked": _FIRST_USE,
    "torch.autograd.profiler._cupti_monitor_module": _FIRST_USE,
    "torch.compiler._cache.CacheArtifactFactory._artifact_types": _REGISTERED,
    "torch.compiler._cache.CacheInfo.*": "what a program would save of what it has compiled",
    "torch.cpu._current_stream": "streams of the CPU mean nothing",
    "torch.distributed._spmd_types_available": _FIRST_USE,  # 2.14 on
    "torch.distributed.c10d_logger._log_handlers": "handlers by the name of where they write",
    "torch.distributed.device_mesh._distributed_opaque_types_registered": _REGISTERED,
    "torch.distributed.distributed_c10d.Backend.*": "each rank's own, but for what an imported module registers",
    "torch.distributed.elastic.events._events_loggers": "loggers by the name of where they write",
    "torch.distributed.fsdp._fully_shard._fully_shard.cls_to_fsdp_cls": "a class for each class",
    "torch.distributed.logging_handlers._log_handlers": "handlers by the name of where they write",
    "torch.distributed.tensor.placement_types.Placement.*": "methods of a class of C++, given to it by the import",
    "torch.distributions.distribution.Distribution._validate_args": "switched off for good by dynamo's import",
    "torch.distributions.*.deterministic_sample": _TENSORDICT,
    "torch.export.dynamic_shapes.SUPPORTED_NODES": _REGISTERED,
    "torch.fx._compatibility._BACK_COMPAT_OBJECTS": _REGISTERED,
    "torch.fx._compatibility._MARKED_WITH_COMPATIBILITY": _REGISTERED,
    "torch.fx._symbolic_trace.Tracer.trace": _WRAPPED,
    "torch.fx._symbolic_trace._proxyable_classes": _REGISTERED,
    "torch.fx._symbolic_trace._wrapped_fns_to_patch": _REGISTERED,
    "torch.fx.experimental.proxy_tensor._FAKE_TENSOR_ID_TO_PROXY_MAP_FOR_EXPORT": "for the messages of a failed export",
    "torch.fx.experimental.proxy_tensor._side_effectful_functions": _REGISTERED,
    "torch.fx.graph_module._loader.*": "sources of traced code, by a number that goes on",
    "torch.fx.node._side_effectful_functions": _REGISTERED,
    "torch.fx.traceback.current_meta": "an equal copy, put back at the end of each trace",
    "torch.jit._builtins._builtin_table": _FIRST_USE,
    "torch.jit._get_trace_graph": _WRAPPED,
    "torch.jit._state._name_to_pyclass": _NAMED,
    "torch.jit._state._script_classes": _NAMED,
    "torch.jit.trace": _WRAPPED,
    "torch.jit.trace_module": _WRAPPED,
    "torch.library._defs": _REGISTERED,
    "torch.library._impls": _REGISTERED,
    "torch.library._keep_alive": _REGISTERED,
    "torch.manual_seed": _WRAPPED,
    "torch.multiprocessing.reductions.shared_cache.limit": "after how many tensors it looks for those that have gone",
    "torch.nn.modules.module.Module.___needs_generation_tag_patch": _WRAPPED,
    "torch.nn.modules.module.Module.__init__": _WRAPPED,
    "torch.nn.modules.module.Module.__setstate__": _WRAPPED,
    "torch.ops._dir": _FIRST_USE,
    "torch.ops.loaded_libraries": _IMPORTS,
    "torch.optim.*._init_group": _WRAPPED,
    "torch.optim.optimizer._single_tensor_*": _REGISTERED,
    "torch.optim.*._fused_*": _WRAPPED,
    "torch.optim.*.step": _WRAPPED,
    "torch.optim.optimizer._foreach_supported_types": _FIRST_USE,
    "torch.utils._foreach_utils._foreach_supported_types": _FIRST_USE,
    "torch.utils._pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE": _REGISTERED,
    "torch.utils._pytree.SUPPORTED_NODES": _REGISTERED,
    "torch.utils._pytree.SUPPORTED_SERIALIZED_TYPES": _REGISTERED,
    "torch.utils._stats.simple_call_counter": _COUNTS,
    "torch.utils.data.datapipes.datapipe.*DataPipe.functions": _REGISTERED,
    "logging: handlers of 'torch.__trace'": _LOGS,
    "fsspec.implementations.local.LocalFileSystem.*": "which process used it last; for another it drops what it keeps",
    "lightning.pytorch.utilities._pytree.SUPPORTED_NODES": _REGISTERED,
    "unittest.mock._patch._active_patches": "what is replaced is reported itself",
    "weakref.finalize._registry": "what is to be done when an object goes, by the object",
    "rich._console": "one that writes to whatever `sys.stdout` is then",
}


def _patterns() -> Iterator[str]:
    yield from _MODULES
    for names in _ANYWHERE:
        yield rf".*\.(?:{names})$"
    for name in _ATTRIBUTES:
        yield re.escape(name).replace(r"\*", r"[\w.]*") + "$"


_HARMLESS = re.compile("|".join(f"(?:{pattern})" for pattern in _patterns()), re.IGNORECASE)


@functools.lru_cache(maxsize=4096)
def is_harmless(name: str) -> bool:
    """True for a module, a variable or an attribute of a class whose changes are not reported."""
    return _HARMLESS.match(name) is not None
