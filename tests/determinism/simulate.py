"""Runs a planted or a clean program; a fresh process imports this, and nothing that takes long."""

from __future__ import annotations

import importlib

import simdist

WITH_A_THREAD = ("thread_outside", "queue_that_a_thread_fills")


def simulate(module: str, name: str) -> None:
    """Run a program on two ranks, with the thread that some need."""
    function = getattr(importlib.import_module(module), name)
    if name not in WITH_A_THREAD:
        simdist.run(function, world_size=2)
        return
    helper = importlib.import_module("tests.determinism.helper")
    helper.start_thread()
    try:
        simdist.run(function, world_size=2)
    finally:
        helper.stop_thread()
