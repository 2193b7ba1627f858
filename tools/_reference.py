"""The reference pages, written from the code: `python tools/docs.py reference`.

Each page says at its top that it is generated. Facts that the code does not contain (what a key of a file means, how a
fault acts on real processes) are in tables; a test checks that they are complete.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from typing import Any

import click

from simdist.docs import FOLDER
from tools._meanings import FIELDS, KEYS, OWN_FIELDS, REAL

__all__ = ["PACKAGES", "generated", "public_names", "write_reference"]

PACKAGES = (
    "simdist",
    "simdist.cluster",
    "simdist.faults",
    "simdist.judges",
    "simdist.storage",
    "simdist.testing",
    "simdist.result",
    "simdist.errors",
    "simdist.trace",
    "simdist.scenario",
    "simdist.sweeps",
    "simdist.searches",
    "simdist.strategies",
    "simdist.determinism",
    "simdist.hardware",
    "simdist.c10d",
    "simdist.kernel",
)
_NOTE = "<!-- Written by `python tools/docs.py reference`; change the docstrings instead. -->\n\n"


def write_reference(*, check: bool) -> int:
    """Write the pages, or print which would change; returns the exit code."""
    changed = []
    for topic, text in generated().items():
        file = FOLDER / f"{topic}.md"
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            changed.append(topic)
            if not check:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
    for topic in changed:
        print(f"{topic}: {'out of date' if check else 'written'}")
    return int(check and bool(changed))


def generated() -> dict[str, str]:
    """Return all pages of the reference that are made from code, by topic."""
    pages = {f"reference/{package.replace('.', '-')}": _package(package) for package in PACKAGES}
    pages |= {
        "reference/faults": _faults(),
        "reference/scenario-files": _scenario_files(),
        "reference/commands": _commands(),
        "reference/pytest": _pytest(),
        "reference/collectives": _collectives(),
        "reference/replaced-names": _replaced(),
    }
    return {topic: text.rstrip() + "\n" for topic, text in pages.items()}


# -- names of a package ------------------------------------------------------------------------------------------------


def public_names(package: str) -> list[tuple[str, Any]]:
    """Return the public names of a package that are not packages, in alphabetical order."""
    module = importlib.import_module(package)
    found = [(name, getattr(module, name)) for name in module.__all__]
    return sorted(
        ((name, each) for name, each in found if not inspect.ismodule(each)), key=lambda pair: pair[0].lower()
    )


def _package(package: str) -> str:
    module = importlib.import_module(package)
    summary, _, _ = inspect.getdoc(module).partition("\n\n") if module.__doc__ else ("", "", "")  # type: ignore[union-attr]  # it has a docstring
    parts = [f"# {package}\n\n{' '.join(summary.split())}\n\n{_NOTE}"]
    if package == "simdist":
        others = "\n".join(f"- [{each}]({each.replace('.', '-')}.md)" for each in PACKAGES[1:])
        parts.append(f"The packages below it:\n\n{others}\n\n")
    parts += [_entry(name, each) for name, each in public_names(package)]
    return "".join(parts)


def _entry(name: str, each: Any) -> str:
    if inspect.isclass(each):
        return _class(name, each)
    if callable(each):
        return f"## {name}\n\n```py\n{name}{_signature(each)}\n```\n\n{_markdown(inspect.getdoc(each))}\n\n"
    return f"## {name}\n\n{_constant(each)}\n\n"


def _constant(each: Any) -> str:
    if isinstance(each, Mapping):
        return f"A table by name: {', '.join(f'`{key}`' for key in each)}."
    if isinstance(each, tuple | list | frozenset | set):
        values = sorted(map(str, each)) if isinstance(each, frozenset | set) else [str(value) for value in each]
        return f"{', '.join(f'`{value}`' for value in values)}."
    if isinstance(each, int | float | str):
        return f"`{each!r}`"
    return f"A value of type `{type(each).__name__}`."


def _class(name: str, kind: type) -> str:
    base = "" if not issubclass(kind, BaseException) else f" ({kind.__mro__[1].__name__})"
    signature = "" if issubclass(kind, BaseException) else f"```py\n{name}{_signature(kind)}\n```\n\n"
    parts = [
        f"## {name}\n\n{signature}",
        f"An exception{base}.\n\n" if base else "",
        f"{_markdown(inspect.getdoc(kind))}\n\n",
    ]
    documented = {member for base in kind.__mro__[1:] if _is_ours(base) for member in vars(base)}
    for member, value in vars(kind).items():
        if member in documented and member != "__init__":
            continue  # documented in its base class
        if member.startswith("_"):
            continue
        function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if isinstance(value, property):
            parts.append(f"### {name}.{member}\n\nA property. {_markdown(inspect.getdoc(value))}\n\n")
        elif inspect.isfunction(function):
            parts.append(
                f"### {name}.{member}\n\n```py\n{member}{_signature(function)}\n```\n\n{_markdown(inspect.getdoc(function))}\n\n"
            )
    return "".join(parts)


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "simdist" and not kind.__name__.startswith("_")


def _signature(each: Any) -> str:
    try:
        found = inspect.signature(each)
    except (TypeError, ValueError):
        return "(...)"
    text = re.sub(r"(: |-> )'((?:[^'\\]|\\.)*)'", r"\1\2", str(found))
    text = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", _without_specs(text))
    text = re.sub(r"<[^<>]*(?: at 0x[0-9a-f]+|object)[^<>]*>", "...", text).replace("'", '"')
    text = text.replace("collections.abc.", "").replace("typing.", "")
    text = re.sub(r'(: |-> )"(\w+)"(?= =|,|\)|$)', r"\1\2", text)
    if len(text) <= 90:
        return text
    inner, depth, pieces, last = text, 0, [], 0
    opened = inner.index("(")
    for index, letter in enumerate(inner):
        depth += letter in "([{"
        depth -= letter in ")]}"
        if (depth == 1 and letter == ",") or (depth == 0 and letter == ")"):
            pieces.append(inner[(last or opened) + 1 : index].strip())
            last = index
            if depth == 0:
                break
    lines = "".join(f"    {piece},\n" for piece in pieces if piece)
    return f"(\n{lines}){inner[last + 1 :]}"


def _without_specs(text: str) -> str:
    """Replace `Annotated[int, Whole(least=1)]` by `int`."""
    while (start := text.find("Annotated[")) >= 0:
        depth, comma = 0, -1
        for index in range(start + len("Annotated"), len(text)):
            depth += text[index] in "([{"
            depth -= text[index] in ")]}"
            if depth == 1 and text[index] == "," and comma < 0:
                comma = index
            if depth == 0:
                break
        text = text[:start] + text[start + len("Annotated[") : comma] + text[index + 1 :]
    return text


_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Yields|Example|Examples|Note):\s*$", re.MULTILINE)
_TITLES = {"Args": "Arguments", "Example": "Example", "Examples": "Examples"}


def _markdown(doc: str | None) -> str:
    """Return a docstring with its sections as Markdown."""
    if not doc:
        return ""
    pieces = _SECTION.split(doc)
    parts = [_prose(pieces[0])]
    for title, body in zip(pieces[1::2], pieces[2::2], strict=True):
        indented = re.split(r"\n(?=\S)", body.strip("\n"), maxsplit=1)
        text = textwrap.dedent(indented[0])
        parts.append(f"**{_TITLES.get(title, title)}**\n\n{_section(title, text)}")
        if len(indented) > 1:
            parts.append(_prose(indented[1]))
    return "\n\n".join(part for part in parts if part.strip())


def _section(title: str, text: str) -> str:
    if title.startswith("Example"):
        return f"```py\n{text.strip()}\n```"
    if title in ("Returns", "Yields", "Note"):
        return " ".join(text.split())
    entries = re.split(r"\n(?=\S)", text.strip())
    lines = []
    for entry in entries:
        name, _, said = entry.partition(":")
        lines.append(
            f"- `{name.strip()}`: {_escaped(' '.join(said.split()))}"
            if said
            else f"- {_escaped(' '.join(entry.split()))}"
        )
    return "\n".join(lines)


def _prose(text: str) -> str:
    blocks = []
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        if block.startswith(("    ", "\t")):
            blocks.append(f"```py\n{textwrap.dedent(block).rstrip()}\n```")
        elif block.strip():
            blocks.append(_escaped(block.strip()))
    return "\n\n".join(blocks)


def _escaped(text: str) -> str:
    """Escape stars and angle brackets outside of code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([*<])", r"\\\1", part) for part in parts)


# -- faults ------------------------------------------------------------------------------------------------------------


def _faults() -> str:
    from simdist.faults import KINDS, fields_of, file_key

    rows = [
        "# Faults\n\nEvery kind of fault, with its fields and what becomes of it on real processes.\n\n" + _NOTE,
        'In a scenario a fault is `[[faults]]` with `kind = "crash"`; in Python it is `simdist.faults.Crash(...)`. Times in '
        'files are texts such as "3s" or "10ms"; in Python they are whole numbers of nanoseconds. '
        "[Inject a fault](../how-to/inject-a-fault.md) shows how to use them.\n\n",
    ]
    common = _common_fields()
    rows.append("## Keys that most kinds have\n\n" + _FIELD_TITLES)
    rows += [_field_row(name, default) for name, default in common.items()]
    for word, kind in KINDS.items():
        rows.append(f"\n## {word}\n\n`simdist.faults.{kind.__name__}`. {_markdown(inspect.getdoc(kind))}\n\n")
        rows.append(f"On real processes: {REAL[word]}.\n\n")
        fields = {name: field.default for name, field in fields_of(kind).items()}
        alone = {name for name in fields if common.get(name, fields) != fields[name] or (word, name) in OWN_FIELDS}
        shared = [f"`{file_key(name)}`" for name in fields if name not in alone]
        own = {name: default for name, default in fields.items() if name in alone}
        if own:
            rows.append(_FIELD_TITLES + "".join(_field_row(*field, word) for field in own.items()) + "\n")
        rows.append(f"Also, as above: {', '.join(shared)}.\n")
    return "".join(rows)


_FIELD_TITLES = "| in a file | in Python | meaning | default |\n|---|---|---|---|\n"


def _field_row(name: str, default: object, kind: str = "") -> str:
    from simdist.faults import SHORT_KEYS, file_key

    said = "required" if default is ... else f"`{default!r}`"
    meaning = OWN_FIELDS.get((kind, name), FIELDS[name])
    key = f"`{name}` or `{file_key(name)}`" if name in SHORT_KEYS else f"`{file_key(name)}`"
    return f"| {key} | `{name}` | {meaning} | {said} |\n"


def _common_fields() -> dict[str, object]:
    """Return the optional fields that most kinds have, each with the default that most of them have."""
    from simdist.faults import KINDS, fields_of

    found: list[tuple[str, object]] = []
    for kind in KINDS.values():
        found += [(name, field.default) for name, field in fields_of(kind).items() if field.default is not ...]
    names = dict.fromkeys(name for name, _ in found)
    defaults = {name: max((each for each in found if each[0] == name), key=found.count)[1] for name in names}
    return {name: default for name, default in defaults.items() if 2 * found.count((name, default)) > len(KINDS)}


# -- scenario files ----------------------------------------------------------------------------------------------------


def scenario_keys() -> dict[str, dict[str, str]]:
    """Return every key that a scenario can have, by section, with its default as text."""
    from simdist.cluster import TOPOLOGIES, Jitter, NcclModel, _devices
    from simdist.scenario import _schema
    from simdist.values import specs_of

    def wanted(model: Any) -> dict[str, str]:
        return {name: _default(field.default) for name, field in model.model_fields.items()}

    cluster: dict[str, str] = {}
    for topology in TOPOLOGIES:
        cluster |= dict.fromkeys(_schema.cluster_section(topology).model_fields, "")
    return {
        "": wanted(_schema.HEADER),
        "workload": wanted(_schema.Target),
        "cluster": cluster,
        "device": dict.fromkeys(("model", *_devices._KEYS), ""),
        "nccl": {name.removesuffix("_bytes_per_s"): "" for name in specs_of(NcclModel)},
        "jitter": {name.removesuffix("_ns"): "" for name in specs_of(Jitter)},
        "disk": wanted(_schema.DISK_SECTION),
        "expect": wanted(_schema.Expect),
    }


def _default(value: Any) -> str:
    text = str(value)
    if text == "PydanticUndefined" or value is ...:
        return "required"
    if value is None or value in ("", (), [], {}):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{text}`"


def _scenario_files() -> str:
    rows = [
        "# Scenario files\n\nEvery key of a scenario file, section by section.\n\n" + _NOTE,
        'Durations are texts such as "30s", "1.5ms" or "10min"; bandwidths such as "25Gbit/s" or "4GB/s"; sizes such as '
        '"80GiB". A number without a unit counts nanoseconds, bytes per second or bytes. `simdist validate FILE` reports '
        "all problems of a file at once.\n\n",
    ]
    for section, keys in scenario_keys().items():
        rows.append(
            f"## {f'[{section}]' if section else 'Before the first section'}\n\n| key | meaning | default |\n|---|---|---|\n"
        )
        rows += [f"| `{key}` | {KEYS[section][key]} | {default} |\n" for key, default in keys.items()]
        rows.append("\n")
    rows.append("## [env]\n\nAdditional environment variables of every rank.\n\n")
    rows.append(
        '## [[faults]]\n\n`kind` and the keys of that kind: [Faults](faults.md). A class of your own is `kind = "module:Class"`.\n\n'
    )
    rows.append(_topologies())
    return "".join(rows)


def _topologies() -> str:
    from simdist.cluster import TOPOLOGIES
    from simdist.scenario import _schema

    rows = ["## Topologies\n\n| topology | what it is | keys |\n|---|---|---|\n"]
    for name, topology in TOPOLOGIES.items():
        summary = " ".join((inspect.getdoc(topology.make) or "").partition("\n\n")[0].split())
        keys = ", ".join(
            f"`{key}`" for key in _schema.cluster_keys(name) if key not in ("devices_per_host", "device_memory")
        )
        rows.append(f"| `{name}` | {_escaped(summary)} | {keys} |\n")
    return "".join(rows)


# -- commands, pytest --------------------------------------------------------------------------------------------------


def _commands() -> str:
    from simdist.cli._main import main

    rows = ["# Commands\n\nEvery command of `simdist` with its options.\n\n" + _NOTE]
    rows.append(
        "Exit codes: 0 every expectation holds, 1 one fails, 2 bad input (every problem in one message), 130 interrupted. "
        "`simdist parity` also ends with 3 if nothing was comparable.\n\n"
    )
    for name, command in sorted(main.commands.items()):
        context = click.Context(command, info_name=f"simdist {name}", terminal_width=96)
        help_text = _launch_help() if name == "launch" else command.get_help(context)
        rows.append(f"## simdist {name}\n\n```text\n{help_text.rstrip()}\n```\n\n")
    return "".join(rows)


def _launch_help() -> str:
    done = subprocess.run(
        [sys.executable, "-m", "simdist", "launch", "--help"],
        capture_output=True,
        text=True,
        check=True,
        env=_plain_environment(),
    )
    return done.stdout


def _plain_environment() -> dict[str, str]:
    import os

    return dict(os.environ) | {"COLUMNS": "96", "PYTHONPATH": str(FOLDER.parents[1])}


def _pytest() -> str:
    from simdist.testing import Sim, plugin

    class Parser:
        rows: list[str] = []  # noqa: RUF012  # there is one instance

        def getgroup(self, *_: object) -> Parser:
            return self

        def addoption(self, name: str, *, help: str, metavar: str = "", **_: object) -> None:
            self.rows.append(f"| `{name}{f'={metavar}' if metavar else ''}` | {help} |\n")

    class Config:
        rows: list[str] = []  # noqa: RUF012  # there is one instance

        class option:
            simdist_trace = simdist_events = simdist_scheduler = None

        def addinivalue_line(self, _: str, text: str) -> None:
            name, _, said = text.partition(": ")
            self.rows.append(f"`@pytest.mark.{name}`: {said}.\n\n")

    class Manager:
        def has_plugin(self, _: str) -> bool:
            return True

    parser, config = Parser(), Config()
    plugin.pytest_addoption(parser, Manager())  # type: ignore[arg-type]  # has the methods that the plugin calls
    plugin.pytest_configure(config)  # type: ignore[arg-type]  # likewise
    fixtures = {
        "rank": plugin._rank,
        "world_size": plugin._world_size,
        "sim": plugin._sim,
        "disk": plugin._disk,
        "simdist_seed": plugin._simdist_seed,
    }
    return "".join(
        [
            "# The pytest plugin\n\nEvery marker, fixture and option. The plugin comes with the package.\n\n" + _NOTE,
            "## Markers\n\n",
            *config.rows,
            "The arguments mean what they mean for [simdist.run](simdist.md#run); besides, `seeds` runs the test once for each of "
            "these seeds, `init=False` leaves `init_process_group` to the body, and `timeout` is that of the default group.\n\n",
            "## Fixtures\n\n| fixture | what it is |\n|---|---|\n",
            *(
                f"| `{name}` | {_escaped(' '.join((inspect.getdoc(fixture) or _doc_of_fixture(fixture)).split()))} |\n"
                for name, fixture in fixtures.items()
            ),
            "\n## Options\n\n| option | what it does |\n|---|---|\n",
            *parser.rows,
            "\n",
            _class("Sim", Sim).replace("## Sim\n", "## The fixture sim\n", 1),
        ]
    )


def _doc_of_fixture(fixture: Any) -> str:
    return inspect.getdoc(getattr(fixture, "_fixture_function", fixture)) or ""


# -- collectives -------------------------------------------------------------------------------------------------------


def _collectives() -> str:
    from simdist.c10d.surface._coverage import FUNCTIONS, METHODS

    rows = [
        "# Collectives and groups\n\nEvery public call of torch.distributed and every method of a group: simulated, local or refused.\n\n"
        + _NOTE,
        "*Simulated* calls do what they do on real processes. *Local* calls set or return something on the rank itself. *Refused* "
        "calls raise the error shown. The table is that of Gloo; over NCCL, calls that ProcessGroupNCCL lacks raise "
        "its errors, and [Gloo and NCCL](../explanation/exactness.md) names the rest.\n\n",
    ]
    for title, table in (("Functions of torch.distributed", FUNCTIONS), ("Methods of ProcessGroup", METHODS)):
        rows.append(f"## {title}\n\n")
        for status, word in (("supported", "Simulated"), ("local", "Local")):
            names = sorted(name for name, entry in table.items() if entry.status == status)
            rows.append(f"{word}: {', '.join(f'`{name}`' for name in names)}.\n\n")
        rows.append("| refused | error | text | real Gloo refuses it, too |\n|---|---|---|---|\n")
        rows += [
            f"| `{name}` | `{entry.error}` | {_escaped(entry.says)} | {'yes' if entry.real else 'no'} |\n"
            for name, entry in sorted(table.items())
            if entry.status == "refused"
        ]
        rows.append("\n")
    return "".join(rows)


# -- what a world replaces ---------------------------------------------------------------------------------------------

_REPLACED = """
import dataclasses, json
from simdist.cli._patches import replaced
print(json.dumps({where: [dataclasses.asdict(each) for each in found] for where, found in replaced().items()}))
"""


_WORLDS = {
    "In every world": "every world",
    "In worlds with a disk, besides": "with a disk",
    "In worlds with judges, besides": "with judges",
    "Where a program polls, has child processes, or imports the module": "where used",
    "In worlds with virtual devices, besides": "with devices",
}


def _replaced() -> str:
    from simdist.process import Patched

    done = subprocess.run(
        [sys.executable, "-c", _REPLACED], capture_output=True, text=True, check=True, env=_plain_environment()
    )
    found_in = {where: [Patched(**each) for each in rows] for where, rows in json.loads(done.stdout).items()}
    import torch

    rows = [
        "# Replaced names\n\nEvery name of Python and torch that a world replaces while it runs, and in which worlds.\n\n"
        + _NOTE,
        "All of them are put back when the world ends. On a thread that is not a rank's, a replacement calls the original. The "
        f"list is that of Python {sys.version_info.major}.{sys.version_info.minor} and torch {str(torch.__version__).partition('+')[0]}; "
        "a name that a version lacks is left out there, and so are names of libraries besides torch that a program imports. "
        "Not in the list either are functions that change files: while a world ends, they do nothing for ranks that were killed. "
        "`simdist patches NAME` shows how each is replaced. See [Isolation](../explanation/isolation.md).\n\n",
    ]
    for title, where in _WORLDS.items():
        found = found_in[where]
        by = {each.by: each.why for each in found}
        rows.append(f"## {title}\n\n")
        for module, why in sorted(by.items()):
            rows.append(f"**`{module}`**: {why}.\n\n| owner | names |\n|---|---|\n")
            owners: dict[str, list[str]] = {}
            for each in found:
                if each.by == module:
                    owners.setdefault(each.owner, []).append(each.name)
            rows += [
                f"| `{owner}` | {', '.join(f'`{name}`' for name in sorted(names))} |\n"
                for owner, names in sorted(owners.items())
            ]
            rows.append("\n")
    return "".join(rows)
