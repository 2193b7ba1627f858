"""`simdist launch --launcher accelerate`: the command line of `accelerate launch`, evaluated by accelerate.

Its parser, its configuration file and its functions determine the workers' variables and the options that it would pass
to torchrun; the workers are then simulated like all others.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["NOT_INSTALLED", "accelerate_options", "is_installed"]

NOT_INSTALLED = "--launcher accelerate: accelerate is not installed; pip install 'simdist[programs]'"


def is_installed() -> bool:
    """True if accelerate is installed."""
    return importlib.util.find_spec("accelerate") is not None


def accelerate_options(
    words: Sequence[str], add_ours: Callable[[argparse.ArgumentParser], None], torchruns: argparse.ArgumentParser
) -> tuple[argparse.Namespace, dict[str, str], bool]:
    """Return torchrun's options as `accelerate launch` would use them, the variables it sets, and if it uses torchrun.

    Raises:
        ValueError: accelerate refuses these words; the message is accelerate's.
    """
    from accelerate.commands import launch as command
    from accelerate.utils import launch as preparation

    parser = command.launch_command_parser()
    parser.__class__ = type(torchruns)
    parser.prog = "simdist launch --launcher accelerate"
    add_ours(parser)
    args: Any = parser.parse_args(list(words))
    for name in ("tpu", "tpu_use_cluster", "mpirun_hostfile"):
        if getattr(args, name):
            raise ValueError(f"--{name} is not simulated; give --num_processes and --num_machines alone")
    devices = int(args.devices) if str(args.devices).isdigit() else 0
    if args.num_processes is None and devices:
        args.num_processes = devices * (args.num_machines or 1)
    args.machine_rank = args.machine_rank or 0
    args.main_process_ip = args.main_process_ip or ("127.0.0.1" if (args.num_machines or 1) == 1 else "host0")
    args, defaults, _ = command._validate_launch_command(args)
    if not args.num_processes:
        raise ValueError("--num_processes: how many? this machine has no GPUs to count; or give --devices N")
    several = args.num_processes > 1 or args.multi_gpu or args.use_fsdp or args.use_megatron_lm or args.use_deepspeed
    in_use = preparation.is_port_in_use
    preparation.is_port_in_use = lambda port: False  # the nodes are simulated, and no port is in use
    try:
        if args.use_deepspeed:
            args.deepspeed_multinode_launcher = "standard"
            args.deepspeed_fields_from_accelerate_config = ",".join(defaults.deepspeed_config if defaults else ())
            variables = preparation.prepare_deepspeed_cmd_env(args)[1]
        elif several:
            variables = preparation.prepare_multi_gpu_env(args)
        else:
            variables = preparation.prepare_simple_launcher_cmd_env(args)[1]
    finally:
        preparation.is_port_in_use = in_use
    if args.cpu or args.use_cpu:
        variables["ACCELERATE_USE_CPU"] = "True"
    options = torchruns.parse_args([args.training_script])
    for name in vars(options):
        if getattr(args, name, None) is not None:
            setattr(options, name, getattr(args, name))
    options.node_rank = 0
    return options, {name: value for name, value in variables.items() if os.environ.get(name) != value}, several
