"""torchrun's command line and simdist's, from words to a `Launch`; all problems are reported at once."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import uuid
import zipfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.distributed.elastic.multiprocessing import Std
from torch.distributed.run import get_args_parser, parse_min_max_nnodes

from simdist.cluster import BUILD, DEVICE_MODELS
from simdist.errors import ScenarioError, SimdistError
from simdist.faults import Fault
from simdist.inside.torch import find_cpu_count
from simdist.launch._accelerate import NOT_INSTALLED, accelerate_options, is_installed
from simdist.launch._launchers import ELASTIC, LAUNCHERS, TORCH
from simdist.launch._plan import Launch
from simdist.scenario import load_faults
from simdist.settings import SETTINGS
from simdist.values import brief, findings_of, guess, parse_duration

if TYPE_CHECKING:
    from simdist.judges import Judge

__all__ = ["LaunchError", "has_main", "parsed"]

_MOST_RANKS = 4096
_RENDEZVOUS = ("c10d", "etcd", "etcd-v2", "static")  # torch's own backends
# Options of torchrun that have no effect here and must keep their defaults, and why.
_REFUSED = {
    "no_python": "ranks are simulated in Python; run the script itself",
    "logs_specs": "log files stand where torchrun puts them by default; see --log-dir, --redirects and --tee",
    "numa_binding": "a simulated node has no processors to bind to; leave it out",
    "virtual_local_rank": "a worker's device is cuda:LOCAL_RANK; leave it out",
    "event_log_handler": "simdist keeps its own events; see --events",
}


class LaunchError(SimdistError):
    """The command line is wrong; the message has one line for each problem."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(tuple(problems))
        self.problems = tuple(problems)

    def __str__(self) -> str:
        count = len(self.problems)
        head = f"simdist launch: {count} {'problem' if count == 1 else 'problems'}"
        return "\n".join([head, *(f"  {problem}" for problem in self.problems)])


class _Parser(argparse.ArgumentParser):
    """Raises the error that argparse would print before it ends the process."""

    ours: tuple[argparse.Action, ...] = ()  # options that torchrun lacks

    def error(self, message: str) -> Any:
        raise LaunchError([f"{message}; see simdist launch --help"])

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        # argparse looks at all words, including those of the script, whose `--device=cpu` is not short for one of ours.
        found: list[Any] = super()._get_option_tuples(option_string)
        return found if len(found) < 2 else [each for each in found if each[0] not in self.ours]


def _parser() -> argparse.ArgumentParser:
    """Return a parser of torchrun's options, and in a separate group simdist's."""
    made = get_args_parser()
    made.__class__ = _Parser
    made.prog = "simdist launch"
    made.description = "Run a script as torchrun does, on simulated ranks."
    _add_ours(made)
    return made


def _add_ours(made: argparse.ArgumentParser) -> None:
    ours = made.add_argument_group("simdist")
    ours.add_argument(
        "--launcher",
        choices=list(LAUNCHERS),
        default="torchrun",
        help="The launcher whose variables are set; python: none, for scripts and test suites that start their ranks "
        "themselves. After `--launcher accelerate`, accelerate's own options follow.",
    )
    ours.add_argument("--seed", default="0", help="Seed of scheduling and of all random numbers; 0 by default.")
    ours.add_argument("--faults", metavar="FILE", help="A TOML file with [[faults]], as in a scenario.")
    ours.add_argument(
        "--devices", default="0", metavar="N", help="Virtual CUDA devices on each node; ranks is one for each worker."
    )
    ours.add_argument("--device-model", metavar="NAME", help="Compute model of the devices: a100 or h100.")
    ours.add_argument(
        "--program-time",
        default="0ns",
        metavar="TIME",
        help='Virtual time that programs take which the script starts, such as "5ms" or "1h"; 0 by default.',
    )
    ours.add_argument(
        "--isolate",
        action="append",
        default=[],
        metavar="MODULE",
        help="An installed module that each worker imports for itself, as it does the script's own; may repeat.",
    )
    ours.add_argument(
        "--share",
        action="append",
        default=[],
        metavar="MODULE",
        help="A module that all workers share because it can be imported only once; may repeat.",
    )
    ours.add_argument(
        "--stall-s",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="Real seconds after which a worker that waits for something real ends the run; 30 by default.",
    )
    ours.add_argument(
        "--judge",
        action="append",
        nargs="?",
        const="all",
        metavar="NAMES",
        help="Report what does not hold although nothing fails: all judges, or those named, as in replicas,samples.",
    )
    ours.add_argument("--trace", metavar="OUT", help="Write a Chrome trace, for Perfetto.")
    ours.add_argument("--events", metavar="OUT", help="Write each event as a line of JSON.")
    ours.add_argument("--timeline", metavar="OUT", help="Draw the run, as SVG or PNG.")
    ours.add_argument("--graph", metavar="OUT", help="Draw who waits for whom, as SVG or PNG.")
    ours.add_argument("--streams", metavar="OUT", help="Draw the streams of virtual devices, as SVG or PNG.")
    ours.add_argument(
        "--check-determinism",
        "--check_determinism",
        action="store_true",
        help="Repeat in a fresh process and compare event for event.",
    )
    if isinstance(made, _Parser):
        made.ours = tuple(ours._group_actions)


def parsed(words: Sequence[str]) -> tuple[Launch, argparse.Namespace]:
    """Return the launch, and all options as given.

    Raises:
        LaunchError: names all problems.
        SystemExit: help was requested, and is printed.
    """
    words = _with_judges(words)
    made = _parser()
    problems: list[str] = []
    env: dict[str, str] = {}
    leaves_out: tuple[str, ...] = ()
    if list(words[:2]) == ["--launcher", "accelerate"] or list(words[:1]) == ["--launcher=accelerate"]:
        options, env, elastic = _accelerates(words, made)
        leaves_out = () if elastic else (*TORCH, *ELASTIC)
    else:
        options, unknown = made.parse_known_args(list(words))
        if options.launcher == "accelerate":
            problems.append("--launcher accelerate: has to stand first, for accelerate's own options follow it")
            if unknown:  # for that reason; all else may be read wrongly, too
                raise LaunchError(problems)
        elif unknown:
            hint = guess(unknown[0].partition("=")[0], re.findall(r"--[\w-]+", made.format_usage()))
            made.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        leaves_out = LAUNCHERS[options.launcher].leaves_out
    for name, why in _REFUSED.items():
        if getattr(options, name) != made.get_default(name) and getattr(options, name) not in (None, "0", [], False):
            problems.append(f"--{name.replace('_', '-')}: not supported: {why}")
    nodes = _nodes(options.nnodes, problems)
    if options.node_rank != 0:
        problems.append("--node-rank: all nodes are simulated here, and started by one command; leave it out")
    devices: int | None
    if options.devices == "ranks":
        devices = workers = _workers(options.nproc_per_node, 0, problems)
    else:
        devices = _whole("--devices", options.devices, 0, problems)
        workers = _workers(options.nproc_per_node, devices or 0, problems)
    if devices is not None:
        problems += [f"--devices: {each.text}" for each in findings_of(BUILD["devices_per_host"], devices)]
    model = None
    if options.device_model is not None:
        problems += [
            f"--device-model: {each.text}" for each in findings_of(BUILD["device_model"], options.device_model)
        ]
        model = DEVICE_MODELS.get(options.device_model)
        if not devices:
            problems.append("--device-model: the nodes have no devices; say --devices")
    program_ns = 0
    try:
        program_ns = parse_duration(options.program_time)
    except ValueError as error:
        problems.append(f"--program-time: {error}")
    for option, name in (("--isolate", "isolate"), ("--share", "share"), ("--stall-s", "stall_s")):
        problems += [f"{option}: {each.text}" for each in findings_of(SETTINGS[name], getattr(options, name))]
    judges: bool | tuple[str | Judge, ...] = False
    if options.judge:
        from simdist.judges import judges_named  # which runs without judges do not need

        try:
            script = Path(options.training_script)
            judges = judges_named(options.judge, script.resolve().parent if script.is_file() else Path.cwd())
        except ValueError as error:
            problems.append(f"--judge: {error}")
    seed = _whole("--seed", options.seed, 0, problems)
    if options.max_restarts < 0:
        problems.append(f"--max-restarts: {options.max_restarts} is too small; the least is 0")
    if options.monitor_interval <= 0:
        problems.append(f"--monitor-interval: {options.monitor_interval} is too small; it must be greater than 0")
    if nodes is not None and workers is not None and nodes[1] * workers > _MOST_RANKS:
        problems.append(f"{nodes[1]} nodes with {workers} workers each: more than {_MOST_RANKS} ranks")
        workers = None
    if leaves_out and LAUNCHERS[options.launcher].starts_one and (nodes, workers) != ((1, 1), 1):
        problems.append("--launcher python: the script starts the ranks; leave --nnodes and --nproc-per-node out")
    _check_script(options, problems)
    _check_rendezvous(options, problems)
    faults: tuple[Fault, ...] = ()
    if options.faults is not None:
        size = nodes[1] * workers if nodes is not None and workers is not None else None
        try:
            faults = load_faults(options.faults, size, max(0, options.max_restarts))
        except ScenarioError as error:
            problems += [f"--faults {error.source}: {problem}" for problem in error.problems]
    shown = _local_ranks(options.local_ranks_filter, problems)
    redirects, tee = (_streams(name, getattr(options, name), problems) for name in ("redirects", "tee"))
    if options.log_dir is not None and Path(options.log_dir).is_file():
        problems.append(f"--log-dir: {brief(options.log_dir)} is a file; expected a folder, or a name for one")
    if leaves_out and options.max_restarts:
        problems.append(f"--max-restarts: {options.launcher} does not restart workers; leave it out")
    if problems:
        raise LaunchError(problems)
    assert nodes is not None
    assert workers is not None
    grace_s = getattr(options, "shutdown_timeout", None)  # an option of torchrun since torch 2.12
    if grace_s is None:
        grace_s = 30
    rendezvous = _rendezvous(options, nodes[1], seed or 0)
    if leaves_out:
        rendezvous |= {"agent_store": False, "fixed_master": True}
    launch = Launch(
        script=options.training_script,
        script_args=tuple(options.training_script_args),
        module=options.module,
        min_nodes=nodes[0],
        nodes=nodes[1],
        workers=workers,
        max_restarts=options.max_restarts,
        role=options.role,
        monitor_ns=round(options.monitor_interval * 1e9),
        grace_ns=round(grace_s * 1e9),
        signals=options.signals_to_handle,
        log_dir=options.log_dir,
        shown=shown,
        redirects=redirects,
        tee=tee,
        filters=(
            ("stdout", tuple(options.duplicate_stdout_filters)),
            ("stderr", tuple(options.duplicate_stderr_filters)),
        ),
        prefix=os.environ.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"),
        launcher=options.launcher,
        env=tuple(sorted(env.items())),
        leaves_out=leaves_out,
        of_shell=tuple((name, os.environ[name]) for name in leaves_out if name in os.environ),
        devices=devices or 0,
        device_model=model,
        program_ns=program_ns,
        isolate=tuple(options.isolate),
        share=tuple(options.share),
        stall_s=options.stall_s,
        judges=judges,
        seed=seed or 0,
        faults=faults,
        words=tuple(words),
        **rendezvous,
    )
    return launch, options


def _with_judges(words: Sequence[str]) -> list[str]:
    """Return the words, with a name after each `--judge` before the script."""
    if "--judge" not in words:
        return list(words)
    from simdist.judges import with_names

    named = with_names(words)
    try:
        behind = len(_parser().parse_args(named).training_script_args)  # the script's arguments, which stay unchanged
    except LaunchError:
        behind = 0
    return [*named[: len(named) - behind], *words[len(named) - behind :]]


def _nodes(text: str, problems: list[str]) -> tuple[int, int] | None:
    try:
        least, most = parse_min_max_nnodes(text)
    except (RuntimeError, ValueError):
        problems.append(f"--nnodes: expected a number or MIN:MAX, found {brief(text)}")
        return None
    if not 0 < least <= most:
        problems.append(f"--nnodes: expected 0 < MIN <= MAX, found {brief(text)}")
        return None
    return least, most


def _workers(text: str, devices: int, problems: list[str]) -> int | None:
    if text in ("gpu", "auto") and devices:
        return devices
    if text in ("cpu", "auto"):
        return find_cpu_count()  # a node has the processors of this machine
    if text == "gpu":
        problems.append("--nproc-per-node: the nodes have no GPUs; say how many each has with --devices")
        return None
    if text == "xpu":
        problems.append("--nproc-per-node: 'xpu' is not simulated; give a number, or gpu with --devices")
        return None
    return _whole("--nproc-per-node", text, 1, problems)


def _whole(name: str, text: str, least: int, problems: list[str]) -> int | None:
    try:
        number = int(text)
    except ValueError:
        problems.append(f"{name}: expected a whole number, found {brief(text)}")
        return None
    if number < least:
        problems.append(f"{name}: {number} is too small; the least is {least}")
        return None
    if number >= 2**64:
        problems.append(f"{name}: {brief(text)} is too large; the most is {2**64 - 1}")
        return None
    return number


def _local_ranks(text: str, problems: list[str]) -> frozenset[int] | None:
    if not text:
        return None
    try:
        return frozenset(int(part) for part in text.split(","))
    except ValueError:
        problems.append(f"--local-ranks-filter: expected numbers with commas, such as 0,1, found {brief(text)}")
        return None


def _streams(name: str, text: str, problems: list[str]) -> int | dict[int, int]:
    try:
        reported = Std.from_str(text)
    except ValueError:
        problems.append(
            f"--{name}: expected 0, 1 (stdout), 2 (stderr) or 3 (both), or these by local rank, such as 0:3,1:1, "
            f"found {brief(text)}"
        )
        return 0
    return {rank: int(each) for rank, each in reported.items()} if isinstance(reported, dict) else int(reported)


def _accelerates(
    words: Sequence[str], made: argparse.ArgumentParser
) -> tuple[argparse.Namespace, dict[str, str], bool]:
    if not is_installed():
        raise LaunchError([NOT_INSTALLED])
    try:
        return accelerate_options(words, _add_ours, made)
    except (ValueError, AssertionError, ConnectionError, ImportError, OSError) as error:
        raise LaunchError([str(error)]) from None


def _check_script(options: argparse.Namespace, problems: list[str]) -> None:
    script = options.training_script
    if options.module:
        try:
            top = importlib.util.find_spec(script.partition(".")[0])
        except (ImportError, ValueError):
            top = None
        if top is None and not _is_here(script.partition(".")[0]):
            problems.append(f"-m: no module named {brief(script)}")
    elif Path(script).is_dir():
        if not has_main(script):
            problems.append(f"{script}: this folder has no __main__.py; expected a Python script, or a module with -m")
    elif not Path(script).is_file():
        problems.append(f"{script}: no such file; expected a Python script, or a module with -m")


def has_main(program: str) -> bool:
    """True for a folder or an archive with a `__main__.py`, which Python runs like a script."""
    path = Path(program)
    if path.is_file() and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return "__main__.py" in archive.namelist()
    return (path / "__main__.py").is_file()


def _check_rendezvous(options: argparse.Namespace, problems: list[str]) -> None:
    backend = options.rdzv_backend
    known = {*_RENDEZVOUS, *(each.name for each in metadata.entry_points(group="torchrun.handlers"))}
    if backend not in known and not options.standalone:
        problems.append(f"--rdzv-backend: expected one of {', '.join(sorted(known))}, found {brief(backend)}")
    conf = (options.rdzv_conf or "").strip()
    if conf and not all(key.strip() and value.strip() for key, _, value in (p.partition("=") for p in conf.split(","))):
        problems.append(f"--rdzv-conf: expected KEY=VALUE, several with commas, found {brief(conf)}")


def _is_here(name: str) -> bool:
    return Path(f"{name}.py").is_file() or Path(name).is_dir()


def _rendezvous(options: argparse.Namespace, nodes: int, seed: int) -> dict[str, Any]:
    """Return the rendezvous of the group, as torchrun determines it."""
    alone = options.standalone or (
        options.rdzv_backend == "static" and not options.rdzv_endpoint and options.master_port is None and nodes == 1
    )
    endpoint = options.rdzv_endpoint
    if not alone and options.rdzv_backend == "static" and not endpoint:
        endpoint = f"{options.master_addr}:{options.master_port or 29500}"
    host, _, port = endpoint.rpartition(":") if ":" in endpoint else (endpoint, "", "")
    dynamic = alone or options.rdzv_backend != "static"
    own_id = str(uuid.UUID(int=seed, version=4))  # torchrun draws one
    return {
        "run_id": own_id if alone else options.rdzv_id,
        "master_addr": "localhost" if alone or not host else host,
        "master_port": int(port) if port.isdigit() and int(port) else 29500,
        "agent_store": not dynamic or os.environ.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "0") != "1",
        "fixed_master": not dynamic,
    }
