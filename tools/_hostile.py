"""Values, texts and programs that are made to break the code that reads them."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["EXPRESSIONS", "MODULES", "PRELUDE", "TEXTS", "VALUES", "damaged", "mutated", "places", "toml"]

LONG = "9" * 5000

TEXTS: tuple[str, ...] = (
    "",
    " ",
    "x",
    "0",
    "-1",
    "1.5",
    "nan",
    "1e999",
    "0x10",
    "3ms",
    "3 parsecs",
    "1e3s",
    LONG,
    "a" * 300,
    "a" * 5000,
    ".".join("a" * 3000),
    "a\0b",
    "a\x1b[31mred",
    "a\nb",
    "a\tb",
    "\ud800",
    "\u202egnp.exe",
    "\U0001f680",
    "$\\frac{1}$ <b>&amp;",
    "../" * 60 + "etc/passwd",
    "/",
    "/dev/null",
    "/none/such/folder/file.svg",
    "--rank",
    "0-2",
    "2-0",
    "0,1",
    "{tmp}",
    "all_reduce",
    "all_redcue",
    "every",
    "SIGKILL",
    "gloo",
    "job:total",
    "job:fails",
    "job:",
    ":total",
    "job",
    "math:sqrt",
    "os:_exit",
    "(" * 500,
    "a{99999999999}",
)


def deep(levels: int) -> list[Any]:
    """Return lists in lists, `levels` deep."""
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


# Values that TOML and JSON can express.
VALUES: tuple[Any, ...] = (
    *TEXTS,
    0,
    1,
    -1,
    3,
    2**31,
    2**63 - 1,
    2**63,
    10**30,
    0.5,
    -0.0,
    1e308,
    float("inf"),
    float("nan"),
    True,
    False,
    [],
    {},
    [1],
    [[0], [1]],
    ["a", 1, None],
    {"a": 1},
    {"": {"a\0": [1]}},
    deep(30),
    deep(90),
    list(range(50)),
)

# The same in Python, and values that only Python can express. `Loud` raises at its repr, `Odd` at everything.
PRELUDE = """
import numpy as np
import torch
import simdist
from simdist.cluster import Cluster, build
from simdist.faults import *

class Loud:
    def __repr__(self): raise RuntimeError("no repr")
    __str__ = __repr__

class Odd:
    def _raise(self, *args, **kwargs): raise RuntimeError("odd")
    __eq__ = __ne__ = __lt__ = __len__ = __iter__ = __bool__ = __index__ = __int__ = __float__ = _raise
    __getitem__ = __contains__ = __repr__ = __str__ = __getattr__ = _raise
    __hash__ = object.__hash__

def deep(levels):
    found = []
    for _ in range(levels):
        found = [found]
    return found

def endless():
    found = []
    found.append(found)
    return found

def nothing(*args, **kwargs): pass
"""
EXPRESSIONS: tuple[str, ...] = (
    *(repr(text) for text in TEXTS if len(text) < 100),
    *(repr(value) for value in (0, 1, -1, 3, 2**31, 2**63 - 1, 2**63, 10**30, 0.5, -0.0, 1e308, True, False, None)),
    "10**5000",
    "-10**5000",
    "float('inf')",
    "float('nan')",
    "1j",
    "b'x'",
    "bytearray(b'x')",
    "()",
    "[]",
    "{}",
    "set()",
    "[1, 'a', None]",
    "{1: 2}",
    "{'a': 1}",
    "{'A': 'b'}",
    "['a', 'b']",
    "range(3)",
    "iter([1])",
    "(each for each in [])",
    "object()",
    "Loud()",
    "Odd()",
    "[Loud()]",
    "[Odd()]",
    "{'a': Odd()}",
    "deep(200)",
    "deep(5000)",
    "endless()",
    "type",
    "Exception",
    "nothing",
    "np",
    "...",
    "NotImplemented",
    "np.int64(1)",
    "np.uint8(200)",
    "np.float32(1)",
    "np.bool_(True)",
    "np.arange(3)",
    "np.array('x')",
    "torch.tensor(1)",
    "torch.ones(3)",
    "torch.float32",
    "Crash",
    "Crash(rank=0, nth=1)",
    "[Crash(rank=0, nth=1)]",
    "[Crash(rank=9, at_ns='x', op=3)]",
    "['crash']",
    "build(2)",
    "build(3)",
)

_WORK = "def work(*args, **kwargs):\n    "
MODULES: tuple[str | bytes, ...] = (
    "class Mute(Exception):\n    def __str__(self): raise RuntimeError\nraise Mute()\n",
    "class Mute(BaseException):\n    def __str__(self): raise SystemExit\n    __repr__ = __str__\nraise Mute()\n",
    "import sys\nsys.modules[__name__] = 3\n",
    "import sys\nsys.modules[__name__] = None\n",
    "import sys\ndel sys.modules[__name__]\n",
    "import sys\nclass M:\n    work = staticmethod(print)\nsys.modules[__name__] = M()\n",
    "import sys\nclass M:\n    def __getattr__(self, name): raise OSError(name)\nsys.modules[__name__] = M()\n",
    "def __getattr__(name): raise RuntimeError(name)\n",
    "def __getattr__(name): raise SystemExit(name)\n",
    "def __getattr__(name): return 3\n",
    "raise SystemExit(3)\n",
    "raise SystemExit('bye')\n",
    "raise GeneratorExit\n",
    "raise BaseExceptionGroup('all', [ValueError(1), KeyError(2)])\n",
    "def f(): f()\nf()\n",
    "import nothing_of_that_name\n",
    "import job.nothing\n",
    "from . import x\n",
    "this is no python\n",
    "def work(:\n",
    "x = '\x00'\n",
    "\tx\n  y\n",
    "x = " + "(" * 300 + ")" * 300 + "\n",
    "x = " + "1" * 5000 + "\n",
    b"\xff\xfe\x00",
    b"# coding: nonsense\n",
    b"\xef\xbb\xbfdef work(): pass\n",
    "__path__ = 3\n__file__ = 5\ndef work(): pass\n",
    "work = 3\n",
    "class work:\n    def __new__(cls, *args): raise OSError\n",
    "class Odd:\n    @property\n    def __signature__(self): raise OSError\n"
    "    def __call__(self): pass\nwork = Odd()\n",
    "class Loud:\n    def __repr__(self): raise OSError\ndef work(a, b=Loud()): pass\n",
    "import warnings\nwarnings.warn('x', UserWarning)\ndef work(): pass\n",
    "print('loading')\ndef work(): pass\n",
    "async def work(): pass\n",
    "def work():\n    yield 1\n",
    f"{_WORK}raise type('\\x1b[31m', (Exception,), {{}})('\\x00\\ud800')\n",
    f"class Mute(Exception):\n    def __str__(self): raise RuntimeError\n    __repr__ = __str__\n{_WORK}raise Mute\n",
    f"{_WORK}raise BaseExceptionGroup('all', [ValueError(1), BaseException(2)])\n",
    f"{_WORK}raise KeyboardInterrupt\n",
    f"{_WORK}return 10**5000\n",
    f"{_WORK}return {{1: float('nan'), (1,): 2}}\n",
    "class Loud:\n    def __repr__(self): raise OSError\n    __eq__ = __repr__\n    __hash__ = None\n"
    f"{_WORK}return Loud()\n",
    f"{_WORK}found = []\n    found.append(found)\n    return found\n",
    f"{_WORK}import sys\n    sys.exit([1, 2])\n",
    f"{_WORK}import sys\n    sys.exit(10**30)\n",
    f"{_WORK}print('\\ud800\\x1b[31m\\x00')\n",
    f"{_WORK}import sys\n    sys.stdout.write('x' * 100000)\n",
    f"{_WORK}import sys\n    sys.stdout.close()\n",
    f"{_WORK}import os\n    os.environ['A' * 3000] = 'b'\n",
    f"{_WORK}work(*args)\n",
    f"{_WORK}raise OSError(5, 'x' * 100000)\n",
    f"{_WORK}import torch.distributed as dist\n    dist.init_process_group('gloo')\n"
    "    dist.new_group([0], group_desc='\\x1b[31m$\\\\x$\\x00')\n    dist.barrier()\n",
    f"{_WORK}import torch.distributed as dist\n    dist.init_process_group('glo')\n",
)


def mutated(rng: random.Random, value: Any, edits: int) -> Any:
    """Return a copy of a table with some values replaced, removed or added."""
    result = json.loads(json.dumps(value))
    for _ in range(edits):
        found = places(result)
        if not found:
            return result
        node, key = rng.choice(found)
        what = rng.random()
        if what < 0.72:
            node[key] = copy.deepcopy(rng.choice(VALUES))
        elif what < 0.84:
            del node[key]
        elif isinstance(node, dict):
            node[rng.choice(TEXTS[:30]) or "extra"] = copy.deepcopy(rng.choice(VALUES))
        else:
            node.append(copy.deepcopy(rng.choice(VALUES)))
    return result


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return every container of a table with each of its keys."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        node = waiting.pop()
        keys: Sequence[Any] = (
            list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        )
        found += [(node, key) for key in keys]
        waiting += [node[key] for key in keys]
    return found


def damaged(rng: random.Random, text: bytes) -> bytes:
    """Return a text with some of its bytes changed, cut out, doubled or moved."""
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(text) + 1)
        end = min(len(text), at + rng.randint(0, 12))
        new: Callable[[], bytes] = rng.choice(
            [
                lambda: b"",
                lambda: rng.randbytes(rng.randint(1, 6)),
                lambda at=at, end=end, text=text: text[at:end] * 3,  # type: ignore[misc]
                lambda: rng.choice(
                    [b"[" * 3000, b"{" * 3000, b"9" * 5000, b"\0", b"\xff", b'"', b"\n", b"-", b"\x1b["]
                ),
            ]
        )
        text = text[:at] + new() + text[end:]
    return text


def toml(table: Mapping[str, Any]) -> str:
    """Return a table as TOML; null, which TOML does not have, becomes a text."""
    return "".join(f"{_key(name)} = {_toml(value)}\n" for name, value in table.items())


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(name)} = {_toml(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) or value is None:
        return _key(str(value))
    return repr(value)


def _key(text: str) -> str:
    escaped = "".join(
        each if each.isprintable() and each not in '"\\' else f"\\U{ord(each):08x}" for each in text if each != "\ud800"
    )
    return f'"{escaped}"'
