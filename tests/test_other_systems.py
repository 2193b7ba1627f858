"""Features that only Linux has are optional: without them everything imports, and the main job runs."""

from __future__ import annotations

import os
import pkgutil
import sys

import simdist
from tests.warm import HASH_SEEDS, Interpreters

# Torch and the standard library are built for Linux here, so they are imported first. Modules imported after them find
# a system without the features that only Linux has.
_ELSEWHERE = """
import asyncio, multiprocessing.util, os, select, signal, socket, subprocess, sys, sysconfig, threading
import click, networkx, numpy, pydantic, pytest, rich.console, simpy
import torch, torch.distributed, torch.distributed.elastic.multiprocessing, torch.nn.parallel, torch.optim

sysconfig.get_config_vars()  # made once, of files that a Mac names otherwise
sys.platform = "darwin"
missing = ("copy_file_range eventfd memfd_create pidfd_open posix_fadvise posix_fallocate setns splice unshare "
           "getxattr listxattr removexattr setxattr O_TMPFILE O_DIRECT").split()
for name in [each for each in dir(os) if each.lower().startswith("sched_")] + missing:
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGRTMIN", "SIGRTMAX", "sigtimedwait", "sigwaitinfo"):
    if hasattr(signal, name):
        delattr(signal, name)


def refuse(event, arguments):
    if event == "open" and str(arguments[0]).startswith(("/proc", "/dev/net")):
        raise FileNotFoundError(2, "No such file or directory", arguments[0])


sys.addaudithook(refuse)
"""
_JOB = """
import simdist
from simdist.faults import Crash
import torch.distributed as dist


def job():
    dist.init_process_group("gloo")
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    return tensor.tolist()


print(simdist.run(job, world_size=2).values[0])
broken = simdist.run(job, world_size=2, faults=[Crash(rank=1, op="all_reduce", nth=1, when="during")])
print(broken.ranks[1].exit_code)
"""
_JOBS_LINES = ["[2.0, 2.0, 2.0, 2.0]", "-9"]
_QUESTIONS = """
from simdist.hardware import why_no_namespaces
from simdist.kernel import why_not_one_core
print(why_not_one_core())
print(why_no_namespaces())
"""


def elsewhere(interpreters: Interpreters, code: str) -> str:
    done = interpreters.run([sys.executable, "-c", _ELSEWHERE + code], anew=["simdist"])
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_module_imports_and_the_main_job_runs_on_other_systems_too(
    interpreters: Interpreters,
) -> None:
    names = [each.name for each in pkgutil.walk_packages(simdist.__path__, "simdist.")]
    assert len(names) > 200

    said = elsewhere(
        interpreters,
        f"{_JOB}{_QUESTIONS}\nimport importlib\nfor name in {names!r}:\n    importlib.import_module(name)\n",
    )

    assert said.splitlines() == [*_JOBS_LINES, *["they are Linux's, and this is darwin"] * 2]


def test_a_system_that_refuses_is_no_error(interpreters: Interpreters) -> None:
    refusing = """
import os, torch
from contextlib import contextmanager

def refuse(*_):
    raise PermissionError(1, "Operation not permitted")

@contextmanager
def without(call):
    original = getattr(os, call)
    setattr(os, call, refuse)
    yield
    setattr(os, call, original)

from simdist.kernel import one_core, why_not_one_core
for call in ("sched_setaffinity", "sched_setscheduler"):
    with without(call):
        with one_core() as core:
            print(core)
        print(why_not_one_core())
os.sched_setaffinity = os.sched_setscheduler = refuse
"""
    before_any_world = os.environ | {"PYTHONHASHSEED": HASH_SEEDS[1]}  # the answer of the system is asked for once
    done = interpreters.run([sys.executable, "-c", refusing + _JOB], env=before_any_world)

    assert done.returncode == 0, done.stderr
    refused = ["None", "the system refuses them: [Errno 1] Operation not permitted"]
    assert done.stdout.splitlines() == [*refused, *refused, *_JOBS_LINES]
