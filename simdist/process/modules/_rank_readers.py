"""Installed libraries that keep the number or the groups of a rank, found by what their files say.

`RANK = int(os.getenv("RANK", -1))` at the top of a library's module is right where each rank is a process that imports
the library for itself. Where ranks share the module, all of them are the rank that imported it first. The same goes for
a function under `functools.cache` that calls `dist.get_rank()`, and for one that puts a new group into a global name.

When a module of a distribution is first imported, the files of the distribution are searched if it requires torch, and
so are those of its requirements that require torch. A file is parsed only if it has the name of a variable in quotes,
or calls a function that asks for a rank or makes a group.

In doubt: three kinds are missed, and need `isolate=["library"]`: libraries that require torch as an extra only, modules
that get the number from another module's function, and modules that compute the variable's name.
"""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

__all__ = ["Installed", "installed", "keeps_rank", "kept_for_all", "reads_rank", "stores_rank", "tops_of"]

# Variables that launchers set to a different value for each rank of a host.
_VARIABLES = frozenset(
    (
        "RANK",
        "LOCAL_RANK",
        "ROLE_RANK",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_NODE_RANK",
        "PMIX_RANK",
        "PMI_RANK",
        "SLURM_LOCALID",
        "SLURM_PROCID",
    )
)
_NAMED = re.compile(rb"[\"'](?:%s)[\"']" % "|".join(sorted(_VARIABLES)).encode())
_ASKS = frozenset(("get_rank", "get_node_local_rank", "get_group_rank"))
_ASKS |= {"new_group", "new_subgroups", "new_subgroups_by_enumeration", "init_device_mesh"}
_CACHED_ASKS = _ASKS | {"get_world_size", "is_initialized"}  # the same on all ranks, but not in the next world
_CALLED = re.compile(rb"\b(?:%s)\b" % "|".join(sorted(_CACHED_ASKS)).encode())
_READERS = frozenset(("environ", "environb", "getenv"))
_LATER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_NEVER_READ = frozenset(("torch", "simdist"))

Installed = tuple[importlib.metadata.Distribution, frozenset[str]]
"""A distribution, and the normal names of those that it requires without an extra."""


@functools.cache
def installed() -> Mapping[str, Installed]:
    """All distributions, by normal name."""
    about = {}
    for distribution in importlib.metadata.distributions():
        # `distribution.metadata` uses a parser of mail, which takes four times as long.
        header = (distribution.read_text("METADATA") or "").partition("\n\n")[0]
        name = re.search(r"^Name: *(\S+)", header, re.MULTILINE)
        if name is not None:
            requires = re.findall(r"^Requires-Dist: *([\w.-]+)([^\n]*)", header, re.MULTILINE)
            needs = frozenset(_normal(each) for each, marker in requires if "extra" not in marker.partition(";")[2])
            about[_normal(name[1])] = distribution, needs
    return about


def tops_of(distribution: importlib.metadata.Distribution) -> Collection[str]:
    """The top-level names of a distribution's modules in Python; compiled ones inside are imported once for all."""
    firsts = (file.partition("/")[0].removesuffix(".py") for file in _files_of(distribution) if file.endswith(".py"))
    return {first for first in firsts if first.isidentifier()}


def keeps_rank(top: str) -> bool:
    """True if its distribution, or one that this requires, has a module that keeps the number or a group of a rank."""
    begin = _tops_that_need_torch().get(top)
    if begin is None:
        return False
    about = installed()
    names = [begin]
    for name in names:  # it grows
        if _keeps_rank_somewhere(name):
            return True
        names += [each for each in sorted(about[name][1]) if each in _need_torch() and each not in names]
    return False


def reads_rank(source: bytes) -> bool:
    """True if a module of this source reads the number of a rank from the environment when it is imported.

    Example:
        >>> reads_rank(b'RANK = int(os.getenv("RANK", -1))')
        True
        >>> reads_rank(b'def rank(): return int(os.environ["RANK"])')
        False
    """
    tree = None if _NAMED.search(source) is None else _parsed(source)
    if tree is None:
        return False
    readers = {each.name for each in tree.body if isinstance(each, _LATER[:2]) and _reads(ast.walk(each))}
    for statement in _run_at_import(tree.body):
        nodes = list(_walk_now(statement))
        if _reads(nodes):
            return True
        calls = (each.func for each in nodes if isinstance(each, ast.Call))
        if any(isinstance(each, ast.Name) and each.id in readers for each in calls):
            return True
    return False


def stores_rank(source: bytes) -> bool:
    """True if a function of a module of this source keeps a rank's number or groups for later calls.

    Example:
        >>> stores_rank(b"@functools.cache\\ndef rank(): return dist.get_rank()")
        True
        >>> stores_rank(b"def rank(): return dist.get_rank()")
        False
    """
    tree = _parsed_if_asking(source)
    if tree is None:
        return False
    shared = {"cls", *(each.name for each in tree.body if isinstance(each, ast.ClassDef)), *_assigned(tree)}
    for function in ast.walk(tree):
        if isinstance(function, _LATER[:2]):
            nodes = list(ast.walk(function))
            if _is_cached(function) and (_calls(nodes, _CACHED_ASKS) or _reads(nodes)):
                return True
            if _changes_globals(nodes, shared) and (_calls(nodes, _ASKS) or _reads(nodes)):
                return True
    return False


def kept_for_all(source: bytes) -> list[str]:
    """What functions of a module of this source keep of one rank for all ranks that share the module.

    Variables that functions assign, and attributes of classes, are left out: each rank has its own.

    Example:
        >>> kept_for_all(b"@functools.cache\\ndef rank(): return dist.get_rank()")
        ['the cache of rank()']
        >>> kept_for_all(b"groups = {}\\ndef begin(): groups['data'] = dist.new_group()")
        ["groups['data']"]
    """
    tree = _parsed_if_asking(source)
    if tree is None:
        return []
    shared, found = _assigned(tree), dict[str, None]()
    for function in ast.walk(tree):
        if isinstance(function, _LATER[:2]):
            nodes = list(ast.walk(function))
            if _is_cached(function) and (_calls(nodes, _CACHED_ASKS) or _reads(nodes)):
                found[f"the cache of {function.name}()"] = None
            elif _calls(nodes, _ASKS) or _reads(nodes):
                found |= dict.fromkeys(map(ast.unparse, _changed_inside(nodes, shared)))
    return list(found)


def _parsed_if_asking(source: bytes) -> ast.Module | None:
    asks = _CALLED.search(source) is not None or _NAMED.search(source) is not None
    return _parsed(source) if asks else None


def _assigned(tree: ast.Module) -> set[str]:
    """The names that are assigned at the top level of a module or of its classes."""
    return {
        node.id
        for statement in _run_at_import(tree.body)
        if isinstance(statement, ast.Assign | ast.AnnAssign)
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def _is_cached(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    for each in function.decorator_list:
        name = _name_of(each.func if isinstance(each, ast.Call) else each)
        if "cache" in name and name != "cached_property":
            return True
    return False


def _changes_globals(nodes: Collection[ast.AST], shared: Collection[str]) -> bool:
    """True if the nodes assign to a name that they declare as global, or inside the value of a `shared` name."""
    declared = {name for node in nodes if isinstance(node, ast.Global) for name in node.names}
    known = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    if declared & known:
        return True
    return bool(_changed_inside(nodes, shared))


def _changed_inside(nodes: Collection[ast.AST], shared: Collection[str]) -> list[ast.AST]:
    """The nodes that assign inside the value of a `shared` name."""
    local = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    local |= {node.arg for node in nodes if isinstance(node, ast.arg) and node.arg != "cls"}
    return [
        node
        for node in nodes
        if isinstance(node, ast.Attribute | ast.Subscript)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id in shared
        and node.value.id not in local
    ]


def _calls(nodes: Collection[ast.AST], names: Collection[str]) -> bool:
    return any(isinstance(node, ast.Call) and _name_of(node.func) in names for node in nodes)


def _name_of(node: ast.expr) -> str:
    """The last part of a dotted name; "" for other expressions."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _parsed(source: bytes) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _reads(nodes: Collection[ast.AST] | Iterator[ast.AST]) -> bool:
    names_one = reads = False
    for node in nodes:
        names_one = names_one or (isinstance(node, ast.Constant) and node.value in _VARIABLES)
        reads = reads or (isinstance(node, ast.Attribute) and node.attr in _READERS)
        reads = reads or (isinstance(node, ast.Name) and node.id in _READERS)
    return names_one and reads


def _run_at_import(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module and of its classes, without those that run only as a program (`__main__`)."""
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            yield from _run_at_import(statement.body)
        elif not (isinstance(statement, ast.If) and "__main__" in ast.unparse(statement.test)):
            yield statement


def _walk_now(statement: ast.stmt) -> Iterator[ast.AST]:
    """The nodes that run with the statement: of a function, its decorators and defaults without its body."""
    waiting: list[ast.AST] = [statement]
    for node in waiting:  # it grows
        yield node
        if isinstance(node, _LATER):
            waiting += [node.args, *getattr(node, "decorator_list", ())]
        else:
            waiting += ast.iter_child_nodes(node)


@functools.cache
def _keeps_rank_somewhere(name: str) -> bool:
    distribution = installed()[name][0]
    for file in _files_of(distribution):
        if file.endswith(".py"):
            try:
                source = Path(str(distribution.locate_file(file))).read_bytes()
            except OSError:
                continue
            if reads_rank(source) or stores_rank(source):
                return True
    return False


@functools.cache
def _need_torch() -> frozenset[str]:
    """Distributions that require torch, directly or through others, but not as an extra."""
    about = installed()
    found = {"torch"}
    while more := {name for name, (_, needs) in about.items() if name not in found and needs & found}:
        found |= more
    return frozenset(found - _NEVER_READ)


@functools.cache
def _tops_that_need_torch() -> Mapping[str, str]:
    """Top-level names of modules -> the distribution, for those that require torch."""
    about = installed()
    return {top: name for name in sorted(_need_torch()) for top in tops_of(about[name][0])}


def _files_of(distribution: importlib.metadata.Distribution) -> list[str]:
    record = distribution.read_text("RECORD") or ""
    return [line.partition(",")[0] for line in record.splitlines()]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
