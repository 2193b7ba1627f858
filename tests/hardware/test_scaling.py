"""Timeouts are scaled once, whatever code is between the program and torch."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import importlib
import json
from datetime import timedelta
from types import FunctionType

from torch._C._distributed_c10d import TCPStore

from simdist.hardware.links._loopback import serve_on_loopback
from simdist.hardware.rank._scaling import scale_time

given = []
TCPStore.__init__ = lambda self, *args, **kwargs: given.append(kwargs["timeout"].total_seconds())
serve_on_loopback("torch.distributed.rendezvous")
scale_time(0.001)


def make(seconds):
    try:
        TCPStore("localhost", 1, 2, timeout=timedelta(seconds=seconds))
    except TypeError:  # pybind11 misses its own __init__
        pass


# As torch's rendezvous does, with a timeout that `init_process_group` has scaled; and as a program does.
rendezvous = importlib.import_module("torch.distributed.rendezvous")  # the package's name for it is a function
inside = vars(rendezvous) | {"timedelta": timedelta}
FunctionType(make.__code__, inside)(1.8)
make(60)
print(json.dumps(given))
"""


@pytest.mark.real
def test_a_timeout_that_torch_hands_on_is_not_scaled_again() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)

    assert (done.stderr, json.loads(done.stdout or "null")) == ("", [1.8, 0.06])
