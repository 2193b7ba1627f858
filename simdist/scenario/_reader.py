"""A scenario file's raw table: TOML from the disk, with the `--set` overrides applied."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simdist.scenario._schema import Path as KeyPath
from simdist.scenario._schema import Problem
from simdist.values import brief, found, guess, plain, shortened

__all__ = ["NotTomlError", "Table", "apply_overrides", "parse_override", "parsed", "read", "read_toml"]

Table = dict[str, Any]
_LONGEST = 16 << 20  # bytes of a file
_DEEPEST = 64  # levels of nesting


def read(source: str, problems: list[Problem]) -> Table | None:
    """Return the table of the file `source`; or None, and the reason is appended to `problems`."""
    path = Path(source)
    try:
        return read_toml(path)
    except FileNotFoundError:
        problems.append(Problem((), f"no such file{guess(path.stem, _neighbours(path))}"))
    except NotTomlError as error:
        problems.append(Problem((), str(error)))
    return None


class NotTomlError(Exception):
    """A file can't be read, or is no TOML; the text says why."""


def read_toml(path: Path) -> Table:
    """Return the table of a file.

    Raises:
        FileNotFoundError: there is no such file.
        NotTomlError: it can't be read, or is no TOML.
    """
    try:
        with path.open("rb") as stream:
            data = stream.read(_LONGEST + 1)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise NotTomlError(f"cannot be read: {reason or error}") from None
    if len(data) > _LONGEST:
        raise NotTomlError(f"not TOML: more than {_LONGEST >> 20} MiB")
    try:
        return parsed(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise NotTomlError(f"not TOML: byte {error.start} is no UTF-8 text") from None


def parsed(text: str) -> Table:
    """Return the table of a text.

    Raises:
        NotTomlError: the text is no TOML, or has something that Python can't take: huge numbers, deep nesting.
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise NotTomlError(_toml_text(str(error))) from None
    except ValueError:  # Python makes no numbers of so many digits
        digits = re.search(rf"[0-9_]{{{sys.get_int_max_str_digits()},}}", text)
        line = f"line {text.count(chr(10), 0, digits.start()) + 1}: " if digits else ""
        limit = f"{sys.get_int_max_str_digits():,}"
        raise NotTomlError(f"{line}not TOML: a number of more than {limit} digits") from None
    except RecursionError:
        raise NotTomlError("not TOML: nested too deep") from None
    if _depth(table) > _DEEPEST:
        raise NotTomlError(f"not TOML: nested too deep; {_DEEPEST} levels are the most")
    return table


def _depth(value: object) -> int:
    """Return how deep lists and tables are nested."""
    deepest, waiting = 0, [(value, 0)]
    while waiting:
        node, depth = waiting.pop()
        deepest = max(deepest, depth)
        inside = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
        waiting += [(each, depth + 1) for each in inside]
    return deepest


def _neighbours(path: Path) -> list[str]:
    try:
        return [entry.stem for entry in path.parent.glob("*.toml")] if path.parent.is_dir() else []
    except OSError:
        return []


def _toml_text(message: str) -> str:
    match = re.fullmatch(r"(.*) \(at (line \d+, column \d+|end of document)\)", message, re.DOTALL)
    reason, place = (match[1], match[2]) if match else (message, "")
    reason = shortened(plain(reason[:1].lower() + reason[1:]), 200)
    return f"{place}: not TOML: {reason}" if place else f"not TOML: {reason}"


def parse_override(text: str) -> tuple[KeyPath, object]:
    """Return the key path and value of one `key.path=value`. The value is TOML; any other text is taken as plain text.

    Raises:
        ValueError: there is no "=", or no valid TOML key.
    """
    key, equals, value = text.partition("=")
    if not equals:
        raise ValueError("expected key=value")
    try:
        # TOML's own dotted keys, so that quotes mean the same; an index such as [0] becomes one more key.
        dotted = re.sub(r"\[(\d+)\]", r".\1", key.strip())
        node: Any = parsed(f"{dotted} = 0")
    except NotTomlError:
        raise ValueError(f"{brief(key.strip())} is no key; write it as in 'workload.kwargs.epochs=1'") from None
    path: list[str] = []
    while isinstance(node, dict):
        if len(node) != 1:  # the key continues after an end of line
            raise ValueError(f"{brief(key.strip())} is no key; write it as in 'workload.kwargs.epochs=1'")
        (name,) = node
        path.append(name)
        node = node[name]
    return tuple(path), _value(value.strip())


def _value(text: str) -> object:
    try:
        table = parsed(f"value = {text}")
    except NotTomlError:
        return text
    return table["value"] if len(table) == 1 else text


def apply_overrides(table: Table, overrides: Sequence[str], problems: list[Problem]) -> list[KeyPath]:
    """Put each `key.path=value` into `table`; failures are appended to `problems`.

    Returns the paths that were set. The schema checks whether a key is known, as if the file had it.
    """
    paths: list[KeyPath] = []
    for text in overrides:
        try:
            path, value = parse_override(text)
            paths.append(_put(table, path, value))
        except ValueError as error:
            problems.append(Problem((), f"--set {shortened(plain(text), 200)}: {error}"))
    return paths


def _put(table: Table, path: KeyPath, value: object) -> KeyPath:
    node: Any = table
    done: list[str | int] = []
    for position, part in enumerate(path):
        last = position == len(path) - 1
        if isinstance(node, list):
            if not (str(part).isdecimal() and len(str(part)) < 10 and int(part) < len(node)):
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
