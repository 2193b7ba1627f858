"""Run hundreds of worlds of every kind in one process, and list what is left of them.

    python tools/leaks.py                      # 500 worlds
    python tools/leaks.py --worlds 100 disk    # some, of the kinds whose names have the word

The tool compares threads, open files, child processes, variables of all modules and attributes of their classes
(replaced names), code of functions, names in `sys.modules`, files in the folder for temporary ones, signal handlers and
timers, loggers, environment, working folder, generators, torch's settings, objects of simdist that are still alive, and
memory. Each kind runs twice before, so that objects that are made once and kept exist. Exit codes: 0 nothing is left,
1 something is, 2 no such kind.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import signal
import sys
import tempfile
import threading
import types
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.host_state import host_state
from tools._leaks_programs import KINDS

__all__ = ["leaks_of", "main"]

_ROOM_MIB = 10  # memory may grow by this much in the second half of the worlds
# These may grow: caches with an entry for each request, statistics, numbers of handles.
_CACHES = (
    "__main__.",
    "__mp_main__.",
    "linecache.",
    "tests.",
    "tools.",
    "torch._dynamo.",
    "torch._inductor.",
    "torch._subclasses.",
    "torch.cpu._current_stream",  # an equal object, put back by a context
    "torch.fx.traceback.current_meta",  # likewise
    "torch.utils.hooks.RemovableHandle.next_id",
    "warnings.filters",  # the list object; its content is compared elsewhere
)


def main(words: Sequence[str] | None = None) -> int:
    """Run the worlds that the command line names, and print what they leave; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("words", nargs="*", metavar="KIND", help="part of the name of a kind; all by default")
    parser.add_argument("--worlds", type=int, default=500)
    options = parser.parse_args(words)
    kinds = [name for name in KINDS if not options.words or any(word in name for word in options.words)]
    if not kinds:
        print(f"no such kind: {', '.join(options.words)}; there are {', '.join(KINDS)}", file=sys.stderr)
        return 2
    left, ended = leaks_of(kinds, options.worlds)
    for name in kinds:
        print(f"{name}: {', '.join(f'{count} x {how}' for how, count in sorted(ended[name].items()))}")
    print(f"{options.worlds} worlds of {len(kinds)} kinds")
    for line in left:
        print(f"left: {line}")
    return 1 if left else 0


def leaks_of(
    kinds: Sequence[str], worlds: int, *, before: int = 2, room_mib: float = _ROOM_MIB
) -> tuple[list[str], dict[str, Counter[str]]]:
    """Return what is left after `worlds` worlds of these kinds in turn, and how their ranks ended, by kind.

    Each kind runs `before` times first, so that objects that are made once exist. Memory may grow by `room_mib` in the
    second half of the worlds.
    """
    ended: dict[str, Counter[str]] = {name: Counter() for name in kinds}
    for index in range(before * len(kinds)):
        KINDS[kinds[index % len(kinds)]](index)
    first, memory = _look(), _resident_mib()
    for index in range(worlds):
        if index == worlds // 2:
            memory = _resident_mib()  # caches have grown to their size by then
        name = kinds[index % len(kinds)]
        ended[name][" and ".join(sorted(KINDS[name](index)))] += 1
    grown = _resident_mib() - memory  # measured before `_look`, which takes tens of MiB itself
    after = _look()
    changed = [name for name, now in after.items() if _differs(first, name, now)]
    left = [f"{name}: {_shown(first.get(name))} -> {_shown(after[name])}" for name in changed]
    left += [f"{name}: gone" for name in first if name not in after]
    if grown > room_mib:
        left.append(f"memory: {grown:.0f} MiB more")
    return sorted(left), ended


def _differs(before: dict[str, object], name: str, now: object) -> bool:
    return not name.startswith(_CACHES) and (name not in before or before[name] != now)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) < 200 else f"{text[:200]}..."


def _look() -> dict[str, object]:
    """Return everything that is compared, by name."""
    for _ in range(3):
        gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's deprecated names warn when they are read
        names = _names()
    found: dict[str, object] = dict(host_state())
    found["threads"] = sorted(thread.name for thread in threading.enumerate())
    found["open files"] = _open_files()
    found["children"] = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    found["modules"] = sorted(sys.modules)
    found["temporary files"] = sorted(map(str, Path(tempfile.gettempdir()).iterdir())) if _is_quiet() else []
    found["working folder"] = Path.cwd()
    found["file mask"] = _mask()
    found["handlers"] = {number: signal.getsignal(number) for number in signal.valid_signals()}
    found["timers"] = [signal.getitimer(each)[0] > 0 for each in (signal.ITIMER_REAL, signal.ITIMER_PROF)]
    found["limits"] = sys.getrecursionlimit(), sys.getswitchinterval(), gc.isenabled(), gc.get_threshold()
    found["hooks"] = sys.gettrace(), sys.getprofile(), sys.excepthook, threading.excepthook, sys.unraisablehook
    found["search path"] = list(sys.path), list(map(id, sys.meta_path)), list(map(id, sys.path_hooks))
    found["warnings"] = list(warnings.filters), warnings.showwarning
    found["alive"] = _alive()
    found |= _loggers()
    found |= names
    return found


def _is_quiet() -> bool:
    """True if the folder for temporary files is our own, so that no other program writes to it."""
    return "TMPDIR" in os.environ


def _open_files() -> list[str]:
    links = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            links.append(str(entry.readlink()))
        except OSError:  # the descriptor of iterdir itself
            continue
    return sorted(link.partition(":[")[0] for link in links)


def _mask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _alive() -> dict[str, int]:
    """Count the objects of worlds, by class."""
    names = ("Simulation", "SimProcess", "Task", "World", "Runtime", "SimProcessGroup", "Isolation", "Network")
    counts = Counter(
        type(each).__name__ for each in gc.get_objects() if str(type(each).__module__).startswith("simdist.")
    )
    return {name: counts[name] for name in names if counts[name]}


def _loggers() -> dict[str, object]:
    found: dict[str, object] = {}
    manager: Any = logging.root.manager
    found["logging"] = manager.disable, logging.getLoggerClass()
    for name, logger in [("root", logging.root), *manager.loggerDict.items()]:
        if isinstance(logger, logging.Logger):
            state = logger.level, logger.propagate, logger.disabled, list(map(id, logger.handlers)), len(logger.filters)
            found[f"logger {name}"] = state
    return found


def _names() -> dict[str, object]:
    """Return the variables of modules, attributes of their classes, and code of their functions, by identity."""
    found: dict[str, object] = {}
    for module_name, module in list(sys.modules.items()):
        if not isinstance(module, types.ModuleType):
            continue
        for name, value in list(vars(module).items()):
            if name == "__warningregistry__":  # the warnings that were shown
                continue
            place = f"{module_name}.{name}"
            if _is_plain(value):
                continue
            found[place] = id(value)
            if isinstance(value, types.FunctionType):
                found[f"{place}()"] = id(value.__code__)
            elif isinstance(value, type) and value.__module__ == module_name:
                for attribute, each in list(vars(value).items()):
                    if isinstance(each, types.FunctionType):
                        found[f"{place}.{attribute}()"] = id(each), id(each.__code__)
    return found


def _is_plain(value: object) -> bool:
    """True for numbers and texts: they may be counters, and are new objects after each change."""
    return isinstance(value, int | float | str | bytes | tuple | type(None))


def _resident_mib() -> float:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    sys.exit(main())
