"""Names that make simulated objects on a rank and real ones elsewhere."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from simdist.process import current_process

__all__ = ["dispatching"]


class _Dispatching(type):
    """Metaclass of a name that makes simulated objects on a rank and real ones elsewhere."""

    real: type
    simulated: type
    make: Callable[..., object]
    unlike: Callable[[object], bool] = staticmethod(lambda instance: False)  # simulated, and yet no instance
    like: Callable[[object], bool] = staticmethod(lambda instance: False)  # of another class, and yet one

    def __call__(cls, *args: object, **kwargs: object) -> object:
        if current_process() is None:
            return cls.real(*args, **kwargs)
        return cls.make(*args, **kwargs)

    def __instancecheck__(cls, instance: object) -> bool:
        if isinstance(instance, (cls.real, cls.simulated)):
            return not cls.unlike(instance)
        return cls.like(instance)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls.real | cls.simulated)

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls.real, name)


@functools.cache  # to make a class takes longer than most of what is replaced, and worlds start by the thousand
def dispatching(name: str, real: type, simulated: type, make: Callable[..., object]) -> Any:
    return _Dispatching(name, (), {"real": real, "simulated": simulated, "make": staticmethod(make)})
