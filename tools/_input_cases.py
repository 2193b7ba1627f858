"""Bad inputs of every kind, each made from a seed: files and a command line, or a piece of Python."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools._hostile import EXPRESSIONS, MODULES, TEXTS, damaged, mutated, toml

__all__ = ["KINDS", "Case", "make"]

JOB = """
import torch
import torch.distributed as dist

def total(*args, **kwargs):
    dist.init_process_group("gloo")
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    dist.barrier()
    return {"total": tensor[0].item()}

def fails(*args, **kwargs):
    raise ValueError("bad batch")
"""


@dataclass(frozen=True)
class Case:
    """One input. `words` is a command line, in groups that only make sense together; `code` is Python instead.

    "OUT:name" stands for a file that exists before, with the content "old".
    """

    kind: str
    files: Mapping[str, bytes] = field(default_factory=dict)
    words: tuple[tuple[str, ...], ...] = ()
    code: str = ""
    parts: tuple[str, ...] = ()  # arguments in the code, which may be left out one by one


def make(kind: str, seed: str) -> Case:
    """Return the case of a kind with this seed."""
    return KINDS[kind](random.Random(f"{kind} {seed}"))


# -- files ----------------------------------------------------------------------------------------------------------


def _scenario(rng: random.Random) -> dict[str, Any]:
    """Return a valid scenario, in which each section appears now and then."""
    table: dict[str, Any] = {"title": "a test", "world_size": rng.choice([1, 2, 2, 2, 4])}
    table["workload"] = {"target": rng.choice(["job:total", "job:total", "job:fails"])}
    size = table["world_size"]
    if rng.random() < 0.3:
        table |= {"seed": 7, "policy": rng.choice(["fifo", "random"]), "max_restarts": rng.choice([0, 1])}
    if rng.random() < 0.2:
        table |= {"backend": "sim", "strict": True, "portable": True, "time_scale": 2.0}
    if rng.random() < 0.3:
        table["workload"] |= {"args": [1, "{tmp}"], "kwargs": {"rate": 0.5}}
    if rng.random() < 0.4:
        table["cluster"] = {"hosts": 1, "latency": "10us", "bandwidth": "1GB/s", "local_latency": "5us"}
    if rng.random() < 0.3:
        table["env"] = {"NAME": "value"}
    last = size - 1
    faults = [
        {"kind": "crash", "rank": last, "op": "all_reduce", "nth": 1, "when": "before", "life": 0, "exit_code": 3},
        {"kind": "crash", "rank": 0, "at": "1ms", "life": "every", "signal": "SIGTERM"},
        {"kind": "hang", "rank": last, "op": "barrier", "duration": "3ms"},
        {"kind": "raise", "rank": 0, "op": "barrier", "error": "ValueError", "message": "x"},
        {"kind": "slow_rank", "rank": 0, "delay": "1ms", "start": 0, "until": "3s"},
        {"kind": "store_delay", "delay": "1ms"},
        {"kind": "store_lost", "at": "1s"},
    ]
    if size > 1:
        faults += [
            {"kind": "link_delay", "src": 0, "dst": 1, "delay": "1ms", "both_ways": True},
            {"kind": "partition", "groups": [[0], [1]], "start": "1ms", "until": "2ms"},
            {"kind": "hold", "src": 0, "dst": 1, "until": "5ms"},
        ]
    if rng.random() < 0.7:
        table["faults"] = rng.sample(faults, rng.randint(1, 3))
    if rng.random() < 0.5:
        table["expect"] = rng.choice(
            [
                {"outcomes": "returned", "equal_values": ["total"], "restarts": 0, "max_virtual_time": "1h"},
                {
                    "outcomes": {"0": "returned"},
                    "min_values": {"total": 1.0},
                    "max_events": 1000,
                    "faults_strike": False,
                },
                {"exception": {"0": {"type": "ValueError", "message": "bad", "pattern": "b.d"}}, "deadlock": False},
                {"checkpoint": ["{tmp}/model.pt"], "same_as_without_faults": True},
            ]
        )
    return table


def _job(extra: Mapping[str, bytes]) -> dict[str, bytes]:
    return {"job.py": JOB.encode(), **extra}


def _of_scenario(rng: random.Random) -> Case:
    table = mutated(rng, _scenario(rng), rng.randint(0, 4))
    text = toml(table).encode("utf-8", "replace")
    if rng.random() < 0.25:
        text = damaged(rng, text)
    # A world of thousands of ranks is valid but slow, so it is validated and not run.
    small = isinstance(table.get("world_size"), int) and table["world_size"] <= 8
    words: list[tuple[str, ...]] = [(rng.choice(["run", "run", "validate"]) if small else "validate",), ("bad.toml",)]
    if rng.random() < 0.1:
        words = [("list",), (".",)]
    elif words[0] == ("run",) and rng.random() < 0.5:
        words += [option for option in _outputs(rng, ("json", "trace", "events", "timeline")) if rng.random() < 0.5]
    return Case("scenario", _job({"bad.toml": text}), tuple(words))


def _of_module(rng: random.Random) -> Case:
    source = rng.choice(MODULES)
    text = source if isinstance(source, bytes) else source.encode("utf-8", "surrogatepass")
    if rng.random() < 0.15:
        text = damaged(rng, text)
    expect = rng.choice(
        ["", "expect = {equal_values = true}", 'expect = {outcomes = "raised", exception = {pattern = "x"}}']
    )
    scenario = f'world_size = 2\n{expect}\n[workload]\ntarget = "mod:work"\n'.encode()
    words: list[tuple[str, ...]] = [(rng.choice(["run", "run", "validate"]),), ("bad.toml",)]
    if words[0] == ("run",):
        words += [option for option in _outputs(rng, ("json", "trace", "timeline")) if rng.random() < 0.4]
    return Case("module", {"mod.py": text, "bad.toml": scenario}, tuple(words))


def _of_calibration(rng: random.Random) -> Case:
    entry = {"ranks": 2, "local_latency": 35_000, "local_bandwidth": 3_000_000_000, "reduction_slowdown": 1.5}
    entry |= {"reduction_latency_slowdown": 1.0, "reduction_from_bytes": 4096, "error": 0.1}
    table = mutated(rng, {"backend": "gloo", "world": [entry, entry | {"ranks": 3}]}, rng.randint(0, 3))
    text = toml(table).encode("utf-8", "replace")
    if rng.random() < 0.25:
        text = damaged(rng, text)
    name = rng.choice(["machine.toml"] * 5 + [each for each in TEXTS if "\ud800" not in each])
    scenario = {"world_size": 2, "cluster": {"calibration": name}, "workload": {"target": "job:total"}}
    files = {"machine.toml": text, "bad.toml": toml(scenario).encode("utf-8", "replace")}
    return Case("calibration", _job(files), ((rng.choice(["run", "validate", "validate"]),), ("bad.toml",)))


@functools.cache
def _traces() -> tuple[bytes, bytes]:
    """Return a Chrome trace and a file of events of a run in which much happens."""
    from simdist.cli import main

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        (path / "job.py").write_text(JOB)
        scenario = {
            "world_size": 3,
            "max_restarts": 1,
            "workload": {"target": "job:total"},
            "faults": [{"kind": "crash", "rank": 1, "op": "barrier"}, {"kind": "slow_rank", "rank": 0, "delay": "1ms"}],
        }
        (path / "a.toml").write_text(toml(scenario))
        outputs = ("--trace", str(path / "a.json"), "--events", str(path / "a.jsonl"), "--json", "/dev/null")
        with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
            main(["run", str(path / "a.toml"), *outputs], standalone_mode=False)
        return (path / "a.json").read_bytes(), (path / "a.jsonl").read_bytes()


def _of_trace(rng: random.Random) -> Case:
    chrome, events = _traces()
    if rng.random() < 0.5:
        table = mutated(rng, json.loads(chrome), rng.randint(0, 4))
        text = json.dumps({"traceEvents": table.pop("traceEvents", []), **table}, separators=(",", ":"))
        text = text if rng.random() < 0.1 else '{"traceEvents"' + text[len('{"traceEvents"') :]
    else:
        records = [json.loads(line) for line in events.splitlines()]
        for index in rng.sample(range(len(records)), rng.randint(0, 3)):
            records[index] = mutated(rng, records[index], rng.randint(1, 2))
        if rng.random() < 0.3:
            rng.shuffle(records)
        text = "\n".join(map(json.dumps, records))
    content = text.encode("utf-8", "replace")
    if rng.random() < 0.25:
        content = damaged(rng, content)
    words: list[tuple[str, ...]] = [("show",), ("trace",)]
    filters = [each for each in ("--rank", "--group", "--from", "--to", "--lines") if rng.random() < 0.12]
    words += [(option, rng.choice([*TEXTS, "0", "0-1", "1ms", "10", "0", "1"])) for option in filters]
    words += [option for option in _outputs(rng, ("timeline",)) if rng.random() < 0.4]
    return Case("trace", {"trace": content}, tuple(words))


# -- command lines --------------------------------------------------------------------------------------------------


def _outputs(rng: random.Random, names: Sequence[str]) -> list[tuple[str, ...]]:
    """Return options that name outputs: good ones, equal ones, and ones that cannot be written."""
    found: list[tuple[str, ...]] = []
    for name in names:
        good = {"timeline": "OUT:out.svg", "flight-recorder": "fr", "html": "OUT:out.html"}.get(
            name, f"OUT:{name}.json"
        )
        path = rng.choice([good] * 6 + ["OUT:same.svg", "OUT:same.svg", "job.py", "bad.toml", ".", "none/x.svg", ""])
        found.append((f"--{name}", path if rng.random() < 0.85 else rng.choice(TEXTS)))
    return found


_COMMANDS: dict[str, tuple[str, ...]] = {
    "run": (
        "seed",
        "set",
        "json",
        "trace",
        "events",
        "timeline",
        "flight-recorder",
        "check-determinism",
        "strict",
        "show-output",
        "real",
        "nccl-wait",
        "nnodes",
        "node-rank",
        "rdzv-endpoint",
        "rdzv-backend",
        "rdzv-id",
        "local-addr",
        "time-scale",
    ),
    "parity": (
        "real",
        "seed",
        "repeat",
        "timing-tolerance",
        "json",
        "html",
        "nnodes",
        "node-rank",
        "rdzv-endpoint",
        "rdzv-backend",
        "rdzv-id",
        "local-addr",
        "time-scale",
    ),
    "calibrate": ("real", "ranks", "output"),
    "show": ("rank", "group", "from", "to", "timeline", "lines"),
    "list": (),
    "validate": (),
}
_FLAGS = ("check-determinism", "strict", "show-output")
_REAL = ("real", "nnodes", "node-rank", "rdzv-endpoint", "rdzv-backend", "rdzv-id", "local-addr", "time-scale")
_GOOD = {
    "seed": ("0", "1"),
    "set": ("world_size=2", "workload.kwargs.x=1", "faults[0].rank=1", "seed=3", "a=", "=", "title=x"),
    "real": ("gloo", "nccl", "mpi"),
    "nccl-wait": ("async", "blocking", "never"),
    "nnodes": ("1", "2", "0"),
    "local-addr": ("127.0.0.1", "1.2.3", "localhost"),
    "rdzv-endpoint": ("127.0.0.1:29400", "host:", ":1", "1.2.3:4"),
    "rdzv-backend": ("c10d", "static", "c10"),
    "repeat": ("1",),
    "ranks": ("2",),
    "output": ("none/x",),
}


def _of_options(rng: random.Random) -> Case:
    command = rng.choice([*_COMMANDS, "run", "run", "parity", "parity"])
    words: list[tuple[str, ...]] = [(command,)]
    scenario = toml(_scenario(rng) | {"faults": [{"kind": "crash", "rank": 0, "op": "barrier"}]}).encode()
    good = {"show": "trace", "list": "."}.get(command, "bad.toml")
    if command != "calibrate" and rng.random() < 0.95:
        words.append((good if rng.random() < 0.8 else rng.choice(TEXTS),))
    chosen = [name for name in _COMMANDS[command] if rng.random() < 0.22]
    outputs = ("json", "trace", "events", "timeline", "flight-recorder", "html")
    for name in chosen:
        if name in outputs:
            words += _outputs(rng, (name,))
        elif name in _FLAGS:
            words.append((f"--{name}",))
        else:
            value = rng.choice(_GOOD.get(name, ("0", "1"))) if rng.random() < 0.4 else rng.choice(TEXTS)
            if name == "set" and rng.random() < 0.5:
                key = rng.choice(
                    ["world_size", "title", "faults[0].rank", "workload.target", "expect.restarts", "env.A"]
                )
                value = f"{key}={rng.choice(TEXTS)}"
            words.append((f"--{name}", value))
    # A command that would start real processes gets an invalid option too, so that it is refused.
    if command in ("parity", "calibrate") or any(f"--{name}" == word[0] for name in _REAL for word in words):
        words.append(("--real-timeout", rng.choice(["0", "-1", "nan", "inf", "x"])))
    elif ("--check-determinism",) in words:
        words.append(("--json", "none/x.json"))
    if rng.random() < 0.1:
        words.insert(rng.randrange(len(words) + 1), (rng.choice(TEXTS),))
    return Case("options", _job({"bad.toml": scenario, "trace": _traces()[1]}), tuple(words))


# -- Python ---------------------------------------------------------------------------------------------------------

# By call: its first argument, its required arguments, and the arguments that may be hostile.
_CALLS: dict[str, tuple[str, dict[str, str], tuple[str, ...]]] = {
    "simdist.run": (
        "nothing",
        {"world_size": "2"},
        (
            *("world_size", "args", "kwargs", "backend", "seed", "cluster", "faults", "max_restarts", "env", "argv"),
            *("policy", "strict", "record_results", "stall_s", "replay"),
        ),
    ),
    "simdist.spawn": (
        "nothing",
        {"nprocs": "2"},
        ("nprocs", "args", "seed", "faults", "join", "daemon", "start_method"),
    ),
    "simdist.check_determinism": (
        "nothing",
        {"world_size": "2", "no_such": "1"},
        ("world_size", "args", "env", "faults"),
    ),
    "build": (
        "",
        {"world_size": "2"},
        (
            *("world_size", "hosts", "latency_ns", "bandwidth_bytes_per_s", "local_latency_ns"),
            *("local_bandwidth_bytes_per_s", "reduction_slowdown", "reduction_from_bytes"),
        ),
    ),
    "Cluster": (
        "",
        {"graph": "build(2).graph", "placement": "('host0', 'host0')"},
        (
            *("graph", "placement", "local_latency_ns", "local_bandwidth", "reduction_slowdown"),
            *("reduction_from_bytes", "made_by"),
        ),
    ),
}
_TRIGGER = ("rank", "at_ns", "at_step", "op", "nth", "when", "life")
_FAULTS: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "Crash": ({"rank": "0", "nth": "1"}, (*_TRIGGER, "signal", "exit_code")),
    "HostCrash": ({"rank": "0", "nth": "1"}, (*_TRIGGER, "down_ns")),
    "Hang": ({"rank": "0", "nth": "1"}, (*_TRIGGER, "duration_ns")),
    "Signal": ({"rank": "0", "nth": "1"}, (*_TRIGGER, "signal")),
    "Raise": ({"rank": "0", "nth": "1"}, (*_TRIGGER, "error", "message")),
    "SlowRank": ({"rank": "0", "delay_ns": "5"}, ("rank", "delay_ns", "start_ns", "until_ns")),
    "LinkDelay": (
        {"src": "0", "dst": "1", "delay_ns": "5"},
        ("src", "dst", "delay_ns", "start_ns", "both_ways", "jitter_ns", "tail_share", "tail_ns"),
    ),
    "LinkLoss": ({"src": "0", "dst": "1", "share": "0.5"}, ("src", "dst", "share", "start_ns", "both_ways")),
    "LinkSlow": ({"src": "0", "dst": "1", "bandwidth": "5"}, ("src", "dst", "bandwidth", "start_ns", "both_ways")),
    "Partition": ({"groups": "((0,), (1,))"}, ("groups", "start_ns", "until_ns", "one_way", "period_ns", "up_ns")),
    "Isolate": ({"rank": "0"}, ("rank", "host", "start_ns", "until_ns")),
    "Hold": ({"src": "0", "dst": "1"}, ("src", "dst", "start_ns", "until_ns", "both_ways")),
    "StoreDelay": ({"delay_ns": "5"}, ("delay_ns", "rank", "start_ns", "until_ns")),
    "StoreLost": ({"at_ns": "5"}, ("at_ns",)),
}
_GROUPS = ("[[0], [1]]", "[[0, 'a'], [1]]", "[[0], [0]]", "[0, 1]", "[[], []]", "[np.arange(1), [1]]", "[Odd(), [1]]")


def _arguments(rng: random.Random, needed: Mapping[str, str], names: Sequence[str], most: int) -> tuple[str, ...]:
    said = dict(needed)
    for name in rng.sample(names, min(len(names), rng.randint(1, most))):
        said[name] = rng.choice(_GROUPS) if name == "groups" and rng.random() < 0.5 else rng.choice(EXPRESSIONS)
    return tuple(f"{name}={value}" for name, value in said.items())


def _of_python(rng: random.Random) -> Case:
    if rng.random() < 0.4:
        kind = rng.choice(list(_FAULTS))
        parts = _arguments(rng, *_FAULTS[kind], most=3)
        return Case("python", code=f"simdist.run(nothing, world_size=2, faults=[{kind}(%s)])", parts=parts)
    call = rng.choice([*_CALLS, "simdist.run", "simdist.run"])
    first, needed, names = _CALLS[call]
    parts = _arguments(rng, needed, names, most=3)
    if first and rng.random() < 0.1:
        first = rng.choice(EXPRESSIONS)
    return Case("python", code=f"{call}({first + ', ' if first else ''}%s)", parts=parts)


_KEYWORDS = (
    *("world_size", "backend", "seeds", "faults", "strict", "policy", "init", "timeout", "max_restarts", "cluster"),
    *("env", "stall_s", "world_siz"),
)
_SIM = (
    "sim.run(nothing, %s)", "sim.crash(0, nth=1, %s)", "sim.hang(0, nth=1, %s)", "sim.slow(%s, by=1)",
    "sim.delay(0, 1, %s)", "sim.partition(%s)", "sim.start(nothing, world_size=1).advance(%s)", "sim.lose_store(at=%s)",
)  # fmt: skip


def _of_marker(rng: random.Random) -> Case:
    """Return a test file; one run of pytest takes many of them."""
    if rng.random() < 0.65:
        parts = tuple(
            f"{name}={rng.choice(EXPRESSIONS)}" for name in rng.sample(_KEYWORDS, rng.randint(1, 3)) if name != "seeds"
        )
        function = rng.choice(("faults", "cluster"))
        if rng.random() < 0.15:
            parts = (f"{function}=lambda _: {rng.choice(EXPRESSIONS)}",)
        elif rng.random() < 0.2:
            parts = (f"seeds={rng.choice([each for each in EXPRESSIONS if '2**' not in each])}",)
        return Case("marker", code="@pytest.mark.simdist(%s)\ndef test_it(): pass\n", parts=parts)
    call = rng.choice(_SIM)
    name = {"run": _KEYWORDS, "crash": ("op", "life", "when", "signal"), "hang": ("duration", "op", "life")}
    names = name.get(call[4:].partition("(")[0], ())
    value = rng.choice(EXPRESSIONS)
    parts = (f"{rng.choice(names)}={value}",) if names else (f"by={value}",) if "delay" in call else (value,)
    return Case("marker", code=f"def test_it(sim):\n    {call}\n", parts=parts)


KINDS: dict[str, Callable[[random.Random], Case]] = {
    "scenario": _of_scenario,
    "module": _of_module,
    "calibration": _of_calibration,
    "trace": _of_trace,
    "options": _of_options,
    "python": _of_python,
    "marker": _of_marker,
}
