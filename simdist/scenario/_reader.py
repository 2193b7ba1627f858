"""A scenario file's raw table: TOML from the disk, with the `--set` overrides applied."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simdist.scenario._schema import Path as KeyPath
from simdist.scenario._schema import Problem
from simdist.values import found, guess

__all__ = ["apply_overrides", "parse_override", "read"]


def read(source: str, problems: list[Problem]) -> dict[str, Any] | None:
    """The table that the file `source` holds; or None, and why it can't be read is appended to `problems`."""
    path = Path(source)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        near = [entry.stem for entry in path.parent.glob("*.toml")] if path.parent.is_dir() else []
        problems.append(Problem((), f"no such file{guess(path.stem, near)}"))
        return None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        problems.append(Problem((), f"cannot be read: {reason or error}"))
        return None
    try:
        return tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        problems.append(Problem((), f"not TOML: byte {error.start} is no UTF-8 text"))
    except tomllib.TOMLDecodeError as error:
        problems.append(Problem((), _toml_text(str(error))))
    except RecursionError:
        problems.append(Problem((), "not TOML: nested too deep"))
    return None


def _toml_text(message: str) -> str:
    match = re.fullmatch(r"(.*) \(at (line \d+, column \d+|end of document)\)", message, re.DOTALL)
    reason, place = (match[1], match[2]) if match else (message, "")
    reason = reason[:1].lower() + reason[1:]
    return f"{place}: not TOML: {reason}" if place else f"not TOML: {reason}"


def parse_override(text: str) -> tuple[KeyPath, Any]:
    """The key path and value of one `key.path=value`. The value is TOML; what is no TOML is taken as plain text.

    Raises:
        ValueError: there is no "=", or no key that TOML could have.
    """
    key, equals, value = text.partition("=")
    if not equals:
        raise ValueError("expected key=value")
    try:
        # TOML's own dotted keys, so that quotes mean the same; an index such as [0] is written as one more key.
        plain = re.sub(r"\[(\d+)\]", r".\1", key.strip())
        node: Any = tomllib.loads(f"{plain} = 0")
    except tomllib.TOMLDecodeError:
        raise ValueError(f"{key.strip()!r} is no key; write it as in 'workload.kwargs.epochs=1'") from None
    path: list[str] = []
    while isinstance(node, dict):
        (name,) = node
        path.append(name)
        node = node[name]
    return tuple(path), _value(value.strip())


def _value(text: str) -> Any:
    try:
        table = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    return table["value"] if len(table) == 1 else text


def apply_overrides(table: dict[str, Any], overrides: Sequence[str], problems: list[Problem]) -> list[KeyPath]:
    """Put each `key.path=value` into `table`; what can't be put is appended to `problems`.

    Returns the paths that were set. Whether a key is known is for the schema to say, as if the file had it.
    """
    paths: list[KeyPath] = []
    for text in overrides:
        try:
            path, value = parse_override(text)
            paths.append(_put(table, path, value))
        except ValueError as error:
            problems.append(Problem((), f"--set {text}: {error}"))
    return paths


def _put(table: dict[str, Any], path: KeyPath, value: Any) -> KeyPath:
    node: Any = table
    done: list[str | int] = []
    for position, part in enumerate(path):
        last = position == len(path) - 1
        if isinstance(node, list):
            if not (str(part).isdecimal() and int(part) < len(node)):
                count = "it has no entry" if not node else f"its entries are 0 to {len(node) - 1}"
                raise ValueError(f"{Problem(tuple(done), '').where} is a list, {count}")
            part = int(part)
        elif not isinstance(node, dict):
            raise ValueError(f"{Problem(tuple(done), '').where} is {found(node)}, not a table")
        done.append(part)
        if last:
            node[part] = value
        elif isinstance(node, dict):
            node = node.setdefault(str(part), {})
        else:
            node = node[part]
    return tuple(done)
