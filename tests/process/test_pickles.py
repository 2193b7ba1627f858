"""Pickles of a rank load anywhere, without simdist; and dates have the same types as outside."""

from __future__ import annotations

import datetime
import io
import pickle
import subprocess
import sys
from datetime import date as early_date
from datetime import datetime as early_datetime
from typing import Any

import pytest
import torch
import torch.distributed as dist

import simdist
from tests.c10d.worlds import sleep_s, values

HOUR = datetime.datetime(2026, 1, 1, 1)  # after the begin of a world
HOUR_S = HOUR.replace(tzinfo=datetime.UTC).timestamp()

pytestmark = pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow:DeprecationWarning")  # since Python 3.12


class Stamp(datetime.datetime):
    """A subclass, such as pandas and others have."""


def moments() -> list[Any]:
    """Return the date in every way."""
    sleep_s(3600)
    return [
        datetime.datetime.now(),
        early_datetime.now(),
        datetime.datetime.now(datetime.UTC),
        early_datetime.now(tz=datetime.timezone(datetime.timedelta(hours=2))),
        datetime.datetime.utcnow(),
        datetime.datetime.today(),
        datetime.date.today(),
        early_date.today(),
    ]


def test_dates_are_of_the_type_that_they_are_outside() -> None:
    def body() -> list[type]:
        return [type(moment) for moment in (*moments(), Stamp.now(), Stamp.today())]

    (types,) = simdist.run(body, world_size=1).values

    assert types == [datetime.datetime] * 6 + [datetime.date] * 2 + [Stamp] * 2


def test_names_imported_early_show_virtual_time() -> None:
    (found,) = simdist.run(moments, world_size=1).values

    local = datetime.datetime.fromtimestamp(HOUR_S)
    utc = HOUR.replace(tzinfo=datetime.UTC)
    assert found == [local, local, utc, utc, HOUR, local, local.date(), local.date()]
    assert abs(datetime.datetime.now().year - 2100) < 100  # the host's own again


def test_what_holds_dates_goes_through_pickle_torch_and_object_collectives() -> None:
    def body() -> tuple[bytes, bytes, Any]:
        dist.init_process_group("gloo")
        held = {"at": moments(), "span": datetime.timedelta(1), "zone": datetime.UTC}
        buffer = io.BytesIO()
        torch.save(held, buffer)
        received: list[Any] = [held if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(received, 0)
        return pickle.dumps(held), buffer.getvalue(), received[0]

    result = simdist.run(body, world_size=2)

    pickled, saved, held = result.values[0]
    assert result.values[1][2] == held
    assert pickle.loads(pickled) == held
    assert torch.load(io.BytesIO(saved), weights_only=False) == held


def test_a_process_without_simdist_loads_what_a_rank_pickled() -> None:
    def body() -> bytes:
        import pathlib
        import random
        import time
        import uuid

        import numpy as np

        clocks = [time.time, time.monotonic, datetime.datetime, datetime.datetime.now]
        states = [random.getstate(), random.Random(3), np.random.default_rng(3), time.localtime()]
        return pickle.dumps([*moments(), *clocks, *states, uuid.uuid4(), pathlib.Path("x"), OSError("gone")])

    (pickled,) = values(body, 1)
    loading = (
        "import sys, pickle, time, datetime; sys.modules['simdist'] = None; "
        "found = pickle.loads(sys.stdin.buffer.read()); "
        "assert found[8] is time.time and found[10] is datetime.datetime; print(found[0], len(found))"
    )

    done = subprocess.run([sys.executable, "-c", loading], input=pickled, capture_output=True, check=False)

    local = datetime.datetime.fromtimestamp(HOUR_S)
    assert (done.stdout.decode().strip(), done.stderr.decode()) == (f"{local} 19", "")


def test_tensors_pickle_to_the_same_bytes_wherever_their_memory_is() -> None:
    kept: list[torch.Tensor] = []

    def body() -> tuple[bytes, bytes]:
        kept.extend(torch.zeros(2) for _ in range(7))  # so that the next run gets other addresses
        shared = torch.arange(6.0)
        held = {"bias": shared[:2], "weight": shared, "other": torch.ones(3, dtype=torch.int64)}
        buffer = io.BytesIO()
        torch.save(held, buffer, _use_new_zipfile_serialization=False)
        return pickle.dumps(held), buffer.getvalue()

    first, second = values(body, 2), values(body, 2)

    assert first == second
    assert first[0] == first[1]
    pickled, saved = first[0]
    for held in (pickle.loads(pickled), torch.load(io.BytesIO(saved))):
        assert {name: tensor.tolist() for name, tensor in held.items()} == {
            "bias": [0.0, 1.0],
            "weight": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0],
            "other": [1, 1, 1],
        }
    again = torch.load(io.BytesIO(saved))
    assert again["bias"].untyped_storage().data_ptr() == again["weight"].untyped_storage().data_ptr()


def test_modules_with_hooks_pickle_to_equal_bytes_in_each_world_and_rank() -> None:
    def body() -> tuple[bytes, int]:
        module = torch.nn.ReLU()
        handle = module.register_forward_hook(print)
        return pickle.dumps(module), handle.id

    host = torch.nn.ReLU().register_forward_hook(print).id

    assert values(body, 2) == values(body, 2) == [(values(body, 1)[0][0], host + 1)] * 2
    assert torch.nn.ReLU().register_forward_hook(print).id == host + 1


def test_a_world_leaves_the_types_as_they_were() -> None:
    before = dict(vars(datetime.datetime))

    simdist.run(moments, world_size=2)

    assert dict(vars(datetime.datetime)) == before
