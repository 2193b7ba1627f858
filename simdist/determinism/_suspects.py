"""The usual suspects: calls on a line that may return something else each time, by name."""

from __future__ import annotations

import ast
import functools
import re

from simdist.determinism._source import Statement

__all__ = ["makes_set", "suspect"]

# Kind, the names or the ends of dotted names that show it, advice; the first match counts.
_CALLS: tuple[tuple[str, str, str], ...] = (
    ("id()", r"id", "an object's address differs in each process; use a number or a name of your own"),
    ("hash()", r"hash|__hash__", "the hash of text differs in each process; use zlib.crc32 or hashlib"),
    (
        "random bytes from the system",
        r"uuid\.uuid[14]|uuid[14]|os\.urandom|urandom|getrandom|secrets\..*|token_\w+|randbelow|SystemRandom"
        r"|tempfile\..*|mkdtemp|mkstemp|NamedTemporaryFile|TemporaryDirectory|gettempprefix",
        "derive it from the rank and the seed",
    ),
    (
        "an unseeded generator",
        r"(?:np\.|numpy\.|torch\.)?random\..*|Random|default_rng|RandomState|SeedSequence|PCG64|Philox|MT19937|SFC64"
        r"|(?:torch\.)?Generator|.*\.seed|initial_seed|shuffle|randint|rand|randn|randperm|normal_|uniform_|bernoulli",
        "give it a seed",
    ),
    (
        "the wall clock",
        r"time\.(?!sleep\b)\w+|clock_gettime\w*|perf_counter\w*|monotonic\w*|process_time\w*|thread_time\w*|time|time_ns|now"
        r"|utcnow|today|getloadavg|getmtime|getctime|getatime|st_[mca]time\w*|boot_time|cpu_times",
        "it is not virtual here: use time.time() or its like",
    ),
    (
        "when garbage is collected",
        r"gc\..*|get_count|weakref\..*|WeakSet|WeakValueDictionary|WeakKeyDictionary|getrefcount|_alive",
        "let nothing depend on it: close things yourself",
    ),
    (
        "the order of a folder",
        r"listdir|scandir|glob|iglob|rglob|iterdir|walk|fwalk",
        "sort the names",
    ),
    (
        "memory that was never written",
        r"(?:torch\.|np\.|numpy\.)?empty(?:_like|_strided|_permuted)?|new_empty\w*|resize_\w*|set_",
        "use zeros",
    ),
    (
        "the surroundings of the process",
        r"environ\w*|.*environ\..*|getenv\w*|getpid|getppid|uname|gethostby\w+|getaddrinfo|getcwd|cwd|cpu_count|getlogin"
        r"|getuser|expanduser|getrusage|get_native_id|get_ident|sched_getaffinity|gettempdir|executable|hash_info|flags\..*|argv"
        r"|platform\.(?:release|version|platform|processor)",
        "pass it to the ranks: simdist.run(env=...), arguments",
    ),
    (
        "a thread outside the simulation",
        r"threading\..*|.*\.(?:get_nowait|qsize|is_set|is_alive|get|empty|full)|active_count|enumerate",
        "ranks must not look at what other threads do",
    ),
    (
        "a program outside the simulation",
        r"subprocess\..*|Popen|check_output|check_call|communicate|getoutput|getstatusoutput|os\.system|os\.popen|popen",
        "what it does is the machine's: run it before, and pass its output to the ranks",
    ),
    (
        "a file left over",
        r"open|read|readline\w*|read_text|read_bytes|exists|is_file|is_dir|isfile|isdir|stat|getsize|st_size|load",
        "write into a fresh folder in each run",
    ),
)


def suspect(statement: Statement, line: int | None = None) -> tuple[str, str] | None:
    """The kind of the first suspect that the statement names, and the advice; with `line` only on that line of it."""
    dotted = [
        name
        for node in statement.nodes
        if (line is None or getattr(node, "lineno", line) == line) and (name := _dotted(node))
    ]
    for kind, pattern, advice in _CALLS:
        if any(_pattern(pattern).fullmatch(name) for name in dotted):
            return kind, advice
    return None


def makes_set(statement: Statement) -> bool:
    """True if the statement has a set in it."""
    return any(
        isinstance(node, ast.Set | ast.SetComp)
        or (isinstance(node, ast.Name) and node.id in ("set", "frozenset"))
        or (isinstance(node, ast.Attribute) and node.attr in ("union", "intersection", "difference", "pop"))
        for node in statement.nodes
    )


@functools.cache
def _pattern(words: str) -> re.Pattern[str]:
    return re.compile(rf"(?:\w+\.)*(?:{words})")


def _dotted(node: ast.AST) -> str:
    """The dotted name that is called or read; "" if there is none."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value) or '_'}.{node.attr}"
    return ""
