"""Judges of the user's own that a scenario names as "module:Class", looked for in the file's folder first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from simdist.scenario._workload import importable

if TYPE_CHECKING:
    from simdist.judges import Judge

__all__ = ["own_judges_importable", "with_own_judges"]


@contextmanager
def own_judges_importable(source: str, wanted: object) -> Iterator[None]:
    """While inside, the judges that the file at `source` names can be imported."""
    with ExitStack() as stack:
        for said in wanted if isinstance(wanted, list | tuple) else ():
            if isinstance(said, str) and ":" in said:
                stack.enter_context(importable(Path(source).resolve().parent, said))
        yield


def with_own_judges(source: str, wanted: bool | Sequence[str | Judge]) -> bool | tuple[str | Judge, ...]:
    """Return the setting, with instances of the user's own judges."""
    if isinstance(wanted, bool) or not any(isinstance(said, str) and ":" in said for said in wanted):
        return wanted if isinstance(wanted, bool) else tuple(wanted)
    from simdist.judges import judges_of

    with own_judges_importable(source, wanted):
        return tuple(judges_of(wanted))
