"""Which module a rank is importing.

Only one rank imports a module that all share, and only in the first world of a process. What the module does to the
interpreter meanwhile (a warning filter for its own warnings, a way to pickle its own types) it does for all its users,
and it stays as long as the module does.
"""

from __future__ import annotations

from types import FrameType

from simdist.process._runtime import current_runtime

__all__ = ["imported_for_all", "module_under_import"]


def module_under_import(frame: FrameType | None) -> str:
    """The name of the module during whose import `frame` runs; "" if none."""
    module = ""
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith("<frozen importlib"):
            return module or _compiled_module(frame)
        if code.co_name == "<module>":
            module = frame.f_globals.get("__name__", "")
        frame = frame.f_back
    return ""


def _compiled_module(frame: FrameType) -> str:
    """The name of the compiled module that is loaded in `frame`, whose own code has no frame; "" if none is."""
    if frame.f_code.co_name != "_call_with_frames_removed":
        return ""
    first = next(iter(frame.f_locals.get("args", ())), None)  # the module itself, or its spec
    name = getattr(first, "__name__", "") or getattr(first, "name", "")
    return name if isinstance(name, str) else ""


def imported_for_all(frame: FrameType | None) -> bool:
    """True if `frame` runs during the import of a module that all ranks share."""
    runtime, module = current_runtime(), module_under_import(frame)
    if not module or runtime is None:
        return False
    return runtime.isolation is None or not runtime.isolation.isolates(module)
