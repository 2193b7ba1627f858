"""What a rank of a scenario runs that has an entry's buggy program for its workload."""

from __future__ import annotations

import os
from typing import Any

__all__ = ["main"]


def main(name: str, folder: str) -> Any:
    """The buggy program of that name, with an empty folder that all ranks have."""
    from tests.corpus import ENTRIES
    from tests.corpus._runs import ranks_of

    os.environ["CORPUS_FOLDER"] = folder
    return ranks_of(next(entry for entry in ENTRIES if entry.name == name), buggy=True)()
