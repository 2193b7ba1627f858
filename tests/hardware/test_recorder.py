"""The recorder of real runs, where torch returns no work: the test needs no other process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from simdist.hardware.rank import _recorder


def test_a_call_without_a_work_is_over_when_it_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    made: Any = _recorder.Recorder
    recorder = made.__new__(made)
    ended: list[str] = []
    ticket = SimpleNamespace(completed=lambda: ended.append("completed"))
    monkeypatch.setattr(made, "_issue", lambda *_: ticket)
    monkeypatch.setattr(_recorder, "Work", SimpleNamespace(unbox=lambda _: None))  # like NCCL without async_op
    returned = [torch.ones(2)], object()
    operator = SimpleNamespace(redispatch=lambda *_: returned)
    keyset = SimpleNamespace(remove=lambda _: None)
    group_class: Any = dist.ProcessGroup  # the stubs know one of its constructors
    group = group_class(0, 1)

    result = recorder._function(operator, lambda *_: [None])(keyset, [torch.ones(2)], group.boxed())

    assert result is returned
    assert ended == ["completed"]
