"""The reference pages, written from the code: `python tools/docs.py reference`.

Each page says at its top that it is generated. What code cannot say of itself (what a key of a file means, what a fault
does on real processes) stands in the tables below, and a test holds that they are complete.
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

# What the keys of a scenario mean; a test compares with the keys that files can have.
KEYS: Mapping[str, Mapping[str, str]] = {
    "": {
        "title": "One line that says what the scenario shows. Reports print it.",
        "world_size": "Number of ranks.",
        "backend": '"gloo", "nccl" (virtual CUDA devices) or "sim" (ideal: no timeouts, always strict).',
        "seed": "Seed of everything that is drawn.",
        "max_restarts": "How often all ranks start again after one failed, as torchrun does.",
        "min_hosts": "A restart goes on with so many hosts if others stay down. Without it, a restart waits for all.",
        "policy": '"fifo": ranks run in order of arrival. "random": the seed decides, also at locks and store requests. "pct:D": by priorities that change D - 1 times.',
        "start_time": "The date and time of the virtual calendar when the run begins.",
        "isolate": "`true`: each rank imports your modules for itself, which files always do. A list adds libraries.",
        "share": "Modules that all ranks share because they can be imported only once.",
        "program_time": "Virtual time that each program takes that a rank starts.",
        "strict": "Turns what the backend accepts in silence, hangs on or dies of into an error that names the calls.",
        "judges": "`true`: all judges look on. A list names some: what they find fails the scenario.",
        "values": '"shapes": large payloads of floating-point numbers are not moved; only the course of the program is simulated.',
        "portable": "The scenario also runs on real processes; `simdist parity` takes it.",
        "time_scale": "On real processes, timeouts and durations are multiplied by this.",
    },
    "workload": {
        "target": '"module:function", found from the file\'s folder first. It runs on every rank.',
        "folder": "Where the module is, relative to the file.",
        "args": "Positional arguments of the function.",
        "kwargs": "Keyword arguments of the function. `{tmp}` stands for the run's folder.",
    },
    "cluster": {
        "topology": "The shape of the network.",
        "hosts": "Number of hosts. Ranks are spread over them in order.",
        "gpus_per_host": "GPUs of each host; each has a NIC on a rail of its own.",
        "hosts_per_leaf": "Hosts at each leaf switch.",
        "oversubscription": "How many times more bandwidth the leaves have downwards than upwards.",
        "latency": "Time that a message takes between hosts, without its bytes.",
        "bandwidth": "Bandwidth of a host's NIC.",
        "local_latency": "Time that a message takes within a host.",
        "local_bandwidth": "Bandwidth between two ranks of a host.",
        "bus_bandwidth": "Bandwidth that all ranks of a host share.",
        "switch_bandwidth": "Bandwidth that all hosts share at the switch.",
        "core_latency": "Additional time through the core.",
        "spine_latency": "Additional time through the spine.",
        "nvlink_latency": "Time that a message takes over NVLink.",
        "nvlink_bandwidth": "Bandwidth of NVLink for each GPU.",
        "devices_per_host": 'Virtual CUDA devices of each host: a number, or "ranks" for one for each rank.',
        "device_memory": "Memory of each virtual device.",
        "calibration": "A file that `simdist calibrate` wrote, with what this machine costs.",
    },
    "device": {
        "model": 'The speed of devices: "h100" or "a100", from NVIDIA\'s data sheets.',
        "flops": "Operations a second.",
        "flops_float32": "Operations a second in float32; default: `flops`.",
        "flops_float64": "Operations a second in float64; default: `flops`.",
        "bandwidth": "Bandwidth of the device's memory.",
        "launch": "Time to launch a kernel.",
        "host_bandwidth": "Bandwidth between host and device.",
    },
    "nccl": {
        "algorithm": '"auto", "ring" or "tree".',
        "protocol": '"auto", "simple", "ll" or "ll128".',
        "channels": "Number of channels, or 0 for NCCL's choice.",
        "gpu": "The generation of GPU that NCCL's tuning tables are for.",
        "cpu": "The kind of CPU that NCCL's tuning tables are for.",
        "links": 'How GPUs of a host are connected: "nvlink" or "pci".',
        "local_bandwidth": "Bandwidth between GPUs of a host; default: that of the cluster.",
        "bandwidth": "Bandwidth between hosts; default: that of the cluster.",
    },
    "jitter": {
        "start": "Under a policy that draws, each rank begins up to so much late.",
        "disk": "Under a policy that draws, an effect on the simulated disk takes up to so many times as long in addition.",
        "compute": "Under a policy that draws, what a virtual device does takes up to so many times as long in addition.",
    },
    "disk": {
        "profile": 'What the file system promises: "ext4", "xfs", "btrfs", "posix" or "nfs".',
        "bandwidth": "Bytes that the disk writes a second.",
        "latency": "Time that each effect takes.",
        "local": "Each host has a disk of its own beside the shared one, at `SIMDIST_LOCAL_DISK`.",
        "local_profile": "The file system of the local disks.",
        "names_late": "How long a host that looked for a name in vain does not see it (NFS).",
    },
    "expect": {
        "outcomes": 'How ranks end: one for all, or a table with keys such as "0" and "1-3".',
        "exception": "The type and the message or a pattern of what ranks raise.",
        "restarts": "The number of restarts.",
        "equal_values": "What the ranks return is equal: `true`, or a list of keys.",
        "same_as_without_faults": "What the ranks return is what they return without faults: `true`, or a list of keys.",
        "same_as_one_rank": "What the ranks return is what a run with one rank returns: `true`, or a list of keys.",
        "min_values": "The least value of each key that ranks return.",
        "max_values": "The greatest value of each key that ranks return.",
        "checkpoint": "Files that `torch.load` reads, with the entries that they must have.",
        "deadlock": "Whether the run ends in a deadlock.",
        "faults_strike": "Whether every fault has to strike.",
        "min_virtual_time": "The least virtual time of the run.",
        "max_virtual_time": "The greatest virtual time of the run.",
        "max_events": "The greatest number of events.",
        "max_steps_lost": "The greatest number of steps that a restart may lose.",
        "equal_states": "What the ranks state with `simdist.state` is equal bit for bit after each step.",
        "same_states_as_without_faults": "What the ranks state is what they state without faults.",
        "samples_once": "Size of the data set: each sample is reported once an epoch with `simdist.samples`.",
        "max_files": "The greatest number of files on the disk at the end.",
        "findings": "The judges that find something; by default none does.",
        "no_late_writes": "No process writes after its rank was started again.",
    },
}
# What the fields of faults mean, wherever they stand.
FIELDS: Mapping[str, str] = {
    "rank": "The rank that the fault strikes.",
    "ranks": "The ranks that the fault strikes.",
    "at": "Virtual time at which it strikes.",
    "at_ns": "Virtual time at which it strikes, in nanoseconds.",
    "step": "The step, named by `simdist.step(i)`, at which it strikes.",
    "at_step": "The step, named by `simdist.step(i)`, at which it strikes.",
    "point": 'The place, named by `simdist.point("name")`, at which it strikes.',
    "at_point": 'The place, named by `simdist.point("name")`, at which it strikes.',
    "op": "The operation at which it strikes.",
    "nth": "The n-th such operation, counted from 1.",
    "when": '"before", "during" or "after" the operation.',
    "life": 'The restart round, counted from 0, or "every".',
    "every": "Strikes again at every n-th operation, point or step.",
    "period": "Strikes again after this time.",
    "period_ns": "Strikes again after this time, in nanoseconds.",
    "probability": "Strikes only in this share of cases, drawn from the seed.",
    "name": "A name, for `after` and for reports.",
    "after": "The name of the fault that has to strike first. Times and counts begin then.",
    "optional": "The run does not fail if the fault never strikes.",
    "signal": "The signal, by name.",
    "exit_code": "The exit code, in place of a signal.",
    "bytes_written": "How many bytes of the write are written; None: half of them.",
    "down": "How long the machine stays down; default: for ever.",
    "down_ns": "How long the machine stays down, in nanoseconds; default: for ever.",
    "all_hosts": "All machines go down, not only that of the rank.",
    "outcome": "Which of the states that the file system allows is left; default: drawn.",
    "disks": '"own", "swapped" or "empty": with which local disks hosts come back.',
    "duration": "How long it lasts; default: for ever.",
    "duration_ns": "How long it lasts, in nanoseconds; default: for ever.",
    "error": "The error that the program gets.",
    "message": "The text of the exception.",
    "delay": "How much later.",
    "delay_ns": "How much later, in nanoseconds.",
    "jitter": "Up to how much later in addition, drawn anew each time; all times are alike.",
    "jitter_ns": "Up to how much later in addition, in nanoseconds, drawn anew each time; all times are alike.",
    "tail_share": "The share, from 0 to 1, of what takes `tail_ns` longer; drawn.",
    "tail": "How much longer those in the tail take in addition.",
    "tail_ns": "How much longer those in the tail take in addition, in nanoseconds.",
    "offset": "By how much the clock is ahead (negative: behind).",
    "offset_ns": "By how much the clock is ahead (negative: behind), in nanoseconds.",
    "drift_ppm": "How many microseconds the clock gains per second (negative: loses).",
    "share": "The share of packets that are lost, from 0 to 1; drawn.",
    "bandwidth": 'How many bytes per second still pass; a text such as "1MB/s" in a file.',
    "start": "When it begins; default: at once.",
    "start_ns": "When it begins, in nanoseconds.",
    "until": "When it ends; default: never.",
    "until_ns": "When it ends, in nanoseconds; default: never.",
    "src": "The rank that sends.",
    "dst": "The rank that receives.",
    "groups": "The groups of ranks between which no message passes.",
    "one_way": "Whether only what goes from the first group to the others does not pass.",
    "up": "For how long, at the end of each period, the network is whole.",
    "up_ns": "For how long, at the end of each period, the network is whole, in nanoseconds.",
    "host": "Whether all ranks of its host are meant, and not the rank alone.",
    "stalls": "Whether the disk hangs instead of being slow.",
    "free_bytes": "How many bytes are still free.",
    "path": "The file, relative to the disk.",
    "both_ways": "Whether messages in the other direction are meant, too.",
    "byte": "Which byte.",
    "bit": "Which bit of the byte.",
    "values": '"nan", "inf" or "zeros": what some of the elements become.',
    "kernel": "The operator whose results are wrong; default: matrix products.",
    "factor": "What one element of each result is multiplied by.",
}
# Where a field means something else in one kind: by the kind and the field's name in Python.
OWN_FIELDS: Mapping[tuple[str, str], str] = {
    ("bad_values", "share"): "The share of the elements that change, at least one.",
    ("partition", "period_ns"): "The network splits and heals in turn, once in this time, in nanoseconds.",
}
REAL: Mapping[str, str] = {
    "crash": "the same signal or exit code",
    "host_crash": "not replayed; the report says why",
    "hang": "SIGSTOP and SIGCONT",
    "signal": "the same signal",
    "raise": "the same exception",
    "slow_rank": "a sleep before each operation",
    "link_delay": "a switch between network namespaces: Linux, root, TUN devices, Gloo, one machine",
    "link_loss": "a switch between network namespaces loses packets: Linux, root, TUN devices, Gloo, one machine",
    "link_slow": "a switch between network namespaces with slow links: Linux, root, TUN devices, Gloo, one machine",
    "partition": "a switch between network namespaces: Linux, root, TUN devices, Gloo, one machine; not one way",
    "isolate": "a switch between network namespaces: Linux, root, TUN devices, Gloo, one machine; not a host",
    "hold": "a switch between network namespaces; both directions only",
    "store_delay": "a proxy in front of the store; not with restarts",
    "store_lost": "a proxy in front of the store; not with restarts",
    "store_away": "a proxy in front of the store; not with restarts",
    "store_stale": "torchrun shares its store over restarts",
    "io_error": "not replayed; the report says why",
    "short_write": "not replayed; the report says why",
    "slow_disk": "not replayed; the report says why",
    "disk_full": "not replayed; the report says why",
    "bit_rot": "not replayed; the report says why",
    "lost_sync": "not replayed; the report says why",
    "bit_flip": "not replayed; the report says why",
    "clock_skew": "not replayed; the report says why",
    "bad_values": "not replayed; the report says why",
    "wrong_result": "not replayed; the report says why",
    "device_error": "not replayed; the report says why",
    "device_wrong": "not replayed; the report says why",
}


def write_reference(*, check: bool) -> int:
    """Write the pages, or say which would change; the exit code."""
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
    """All pages of the reference that are made from code, by topic."""
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
    """The public names of a package that are not packages, in the order of the alphabet."""
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
            continue  # it does what its base class says
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
    """`Annotated[int, Whole(least=1)]` as `int`."""
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
    """A docstring with sections as Markdown."""
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
    """Stars and angle brackets outside of code as text."""
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
    from simdist.faults import file_key

    said = "required" if default is ... else f"`{default!r}`"
    meaning = OWN_FIELDS.get((kind, name), FIELDS[name])
    return f"| `{file_key(name)}` | `{name}` | {meaning} | {said} |\n"


def _common_fields() -> dict[str, object]:
    """The optional fields that most kinds have, each with the same default in most."""
    from simdist.faults import KINDS, fields_of

    found: list[tuple[str, object]] = []
    for kind in KINDS.values():
        found += [(name, field.default) for name, field in fields_of(kind).items() if field.default is not ...]
    names = dict.fromkeys(name for name, _ in found)
    defaults = {name: max((each for each in found if each[0] == name), key=found.count)[1] for name in names}
    return {name: default for name, default in defaults.items() if 2 * found.count((name, default)) > len(KINDS)}


# -- scenario files ----------------------------------------------------------------------------------------------------


def scenario_keys() -> dict[str, dict[str, str]]:
    """Every key that a scenario can have, by section, with what its value has to be."""
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
        '"80GiB". `simdist validate FILE` reports all problems of a file at once.\n\n',
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
    plugin.pytest_addoption(parser, Manager())  # type: ignore[arg-type]  # what it calls of it
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
print(json.dumps([[dataclasses.asdict(each) for each in found] for found in replaced()]))
"""


def _replaced() -> str:
    from simdist.process import Patched

    done = subprocess.run(
        [sys.executable, "-c", _REPLACED], capture_output=True, text=True, check=True, env=_plain_environment()
    )
    plain, devices = ([Patched(**each) for each in rows] for rows in json.loads(done.stdout))
    import torch

    rows = [
        "# Replaced names\n\nEvery name of Python, torch and other libraries that a world replaces while it runs.\n\n"
        + _NOTE,
        "All of them are put back when the world ends. On a thread that is not a rank's, a replacement calls the original. The "
        f"list is that of Python {sys.version_info.major}.{sys.version_info.minor} and torch {str(torch.__version__).partition('+')[0]}; "
        "a name that a version lacks is left out there. `simdist patches NAME` shows how each is replaced. See [Isolation](../explanation/isolation.md).\n\n",
    ]
    for title, found in (("In every world", plain), ("In worlds with virtual devices, besides", devices)):
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
