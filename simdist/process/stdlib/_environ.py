"""A rank's own `os.environ`. The mapping object stays the same; its data depend on the caller.

A rank may put another object in its place (`Slots.switch` swaps it), such as a deep copy that it made before.
"""

from __future__ import annotations

import copy
import functools
import os
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

from simdist.process._imports import imported_for_all
from simdist.process._process import OS_ENVIRON, SimProcess
from simdist.process._runtime import Patches, Replacement, current_process, current_runtime, on_ranks

__all__ = ["Encoded", "begin", "encoded", "encoded_name", "forked_environ", "host_environ", "install", "variable_of"]
__all__ += ["with_imports"]


Encoded = bytes
"""A name or a value as `os.environ` keeps it; text on Windows. The stubs say that `encodekey` returns text anywhere."""

_environ: Any = OS_ENVIRON  # has what the stubs leave out


class _EnvironData(MutableMapping[Encoded, Encoded]):
    """Stands in for `os.environ._data`: encoded names and values, of the calling rank or of the host."""

    def __init__(self, host: dict[Encoded, Encoded]) -> None:
        self.of_host = host

    def _here(self) -> dict[Encoded, Encoded]:
        process = current_process()
        return self.of_host if process is None else process.environ

    def __getitem__(self, key: Encoded) -> Encoded:
        process = current_process()  # not `_here`: torch reads a dozen variables when it makes a group
        return (self.of_host if process is None else process.environ)[key]

    def __setitem__(self, key: Encoded, value: Encoded) -> None:
        here = self._here()
        before, here[key] = here.get(key), value
        _note_import(key, before, value)
        _report(key)

    def __delitem__(self, key: Encoded) -> None:
        _note_import(key, self._here().pop(key), None)
        _report(key)

    def __iter__(self) -> Iterator[Encoded]:
        return iter(self._here())

    def __len__(self) -> int:
        return len(self._here())

    def __contains__(self, key: object) -> bool:
        return key in self._here()

    def copy(self) -> dict[Encoded, Encoded]:
        return self._here().copy()

    def __reduce__(self) -> tuple[type[_CopiedData], tuple[dict[Encoded, Encoded]]]:
        return _CopiedData, (self.copy(),)


class _CopiedData(dict[Encoded, Encoded]):
    """The data of a deep copy of `os.environ`. What a rank changes in it reaches its process as well: `putenv`."""

    def __setitem__(self, key: Encoded, value: Encoded) -> None:
        super().__setitem__(key, value)
        process = current_process()
        if process is not None:
            process.environ[key] = value

    def __delitem__(self, key: Encoded) -> None:
        super().__delitem__(key)
        process = current_process()
        if process is not None:
            process.environ.pop(key, None)

    def __reduce__(self) -> tuple[type[_CopiedData], tuple[dict[Encoded, Encoded]]]:
        return _CopiedData, (dict(self),)


# Variables that modules which all ranks share have set while one rank imported them, before and after; None: not there.
_of_imports: dict[Encoded, tuple[Encoded | None, Encoded | None]] = {}


def _report(key: Encoded) -> None:
    runtime, process = current_runtime(), current_process()
    if runtime is not None and process is not None and key in runtime.variable_listeners:
        runtime.variable_listeners[key](process)


def _note_import(key: Encoded, before: Encoded | None, after: Encoded | None) -> None:
    """Make a change for all processes of the world, and those of later worlds, if a shared module makes it."""
    runtime = current_runtime()
    if runtime is not None and before != after and imported_for_all(sys._getframe(2)):
        _of_imports[key] = _of_imports.get(key, (before,))[0], after
        for process in runtime.processes.values():
            _adopt(process.environ, key, before, after)


def _adopt(environ: dict[Encoded, Encoded], key: Encoded, before: Encoded | None, after: Encoded | None) -> None:
    if environ.get(key) == before:  # else the process has chosen its own
        environ.pop(key, None)
        if after is not None:
            environ[key] = after


def with_imports(environ: dict[Encoded, Encoded]) -> dict[Encoded, Encoded]:
    """Set the variables that shared modules have set, unless the process has another value than the first importer."""
    for key, (before, after) in _of_imports.items():
        _adopt(environ, key, before, after)
    return environ


def forked_environ(mapping: os._Environ[str]) -> os._Environ[str]:
    """What a forked child has as `os.environ` if that is its parent's."""
    return mapping if mapping is _environ else copy.deepcopy(mapping)


def host_environ() -> Mapping[Encoded, Encoded]:
    """The host's own environment, also while a world lives; names and values encoded."""
    data = _environ._data
    found: Mapping[Encoded, Encoded] = data.of_host if isinstance(data, _EnvironData) else data
    return found


# Remembered: a world encodes the same few words for each of its ranks, and worlds start by the thousand.
@functools.lru_cache(maxsize=1024)
def encoded_name(name: str) -> Encoded:
    """A name as `os.environ` keeps it."""
    found: Encoded = _environ.encodekey(name)
    return found


@functools.lru_cache(maxsize=4096)
def _encoded_value(value: str) -> Encoded:
    found: Encoded = _environ.encodevalue(value)
    return found


def encoded(environ: dict[str, str]) -> dict[Encoded, Encoded]:
    """`environ` as `os.environ` keeps it: names and values encoded."""
    return {encoded_name(name): _encoded_value(value) for name, value in environ.items()}


def variable_of(process: SimProcess, name: str) -> str | None:
    """A variable in the environment of a process; None if it has none of that name.

    Returns what `os.environ.get` does on that rank, without its ten calls.
    """
    value = process.environ.get(encoded_name(name))
    found: str | None = None if value is None else _environ.decodevalue(value)
    return found


def install(patches: Patches) -> None:
    """Keep a rank's changes away from the C environment of the host."""
    patches.redirect(_REPLACEMENTS)


def begin(patches: Patches) -> None:
    """Give each rank its own data."""
    data = _EnvironData(_environ._data)
    patches.replace(os.environ, "_data", data)
    if hasattr(os, "environb"):
        patches.replace(os.environb, "_data", data)


_REPLACEMENTS = tuple(Replacement(os, name, on_ranks(lambda *_, **__: None)) for name in ("putenv", "unsetenv"))
