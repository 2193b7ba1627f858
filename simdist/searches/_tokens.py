"""A failing run as one word, for an issue: `simdist replay sd1-eNp...`.

It holds the scenario's path, its overrides and seed, the policy and the faults in the words of a file: all that the run
depends on besides the program itself. It is packed JSON; its prefix is the version of the format.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from simdist.errors import ScenarioError
from simdist.programs import Attempt, overrides_of
from simdist.scenario import Plan, fault_text, load, undisturbed
from simdist.values import brief

__all__ = ["read_token", "token_of"]

_FORM = "sd1-"


def token_of(plan: Plan, attempt: Attempt) -> str:
    """Return the token of an attempt at a scenario."""
    source = os.path.relpath(plan.source) if Path(plan.source).is_absolute() else plan.source
    faults = [fault_text(fault) for fault in attempt.faults]
    data = [Path(source).as_posix(), plan.seed, list(plan.overrides), attempt.policy, faults]
    packed = zlib.compress(json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode(), 9)
    return _FORM + _letters(packed)


def _letters(packed: bytes) -> str:
    return base64.urlsafe_b64encode(packed).decode().rstrip("=")


def read_token(token: str, source: str | None = None) -> tuple[Plan, Attempt]:
    """Return the scenario, without faults of its own, and the attempt. `source` is another path for the same file.

    Raises:
        ScenarioError: it is no token, or the file has changed.
    """
    path, seed, overrides, policy, faults = _unpacked(token)
    if source is not None:
        path = source
    elif not Path(path).exists():
        raise ScenarioError(path, ["there is no such file here; go to the folder of the search, or say --file PATH"])
    said = list(overrides_of(policy, ()))[:1]
    struck = load(path, overrides=(*overrides, *said, f"faults=[{', '.join(faults)}]"))
    plan = replace(undisturbed(load(path, overrides=overrides)), seed=seed)
    return plan, Attempt(policy=policy, faults=struck.faults)


def _unpacked(token: str) -> tuple[str, int, tuple[str, ...], str, list[str]]:
    text = token.strip()
    try:
        if not text.startswith(_FORM):
            raise ValueError(text)
        body = text.removeprefix(_FORM)
        packed = base64.b64decode(body + "=" * (-len(body) % 4), altchars="-_", validate=True)
        unpacker = zlib.decompressobj()
        data: Any = json.loads(unpacker.decompress(packed, 1 << 20))
        if not unpacker.eof or unpacker.unused_data or _FORM + _letters(packed) != text:
            raise ValueError(text)  # a part is missing, or there is too much
        path, seed, overrides, policy, faults = data
        fits = isinstance(path, str) and isinstance(seed, int) and isinstance(policy, str)
        if not fits or not all(isinstance(each, str) for each in (*overrides, *faults)):
            raise ValueError(text)
    except (ValueError, TypeError, binascii.Error, zlib.error):
        problem = f"{brief(token)} is no token; expected what simdist fuzz prints, {_FORM}..., as a whole"
        raise ScenarioError("TOKEN", [problem]) from None
    return path, seed, tuple(overrides), policy, list(faults)
