"""Stores that only this machine reaches, for a job whose processes are all on it.

A TCPStore listens on every address of the machine, whatever host it is given (torch 2.13), unless it gets a socket that
listens already.
"""

from __future__ import annotations

import importlib
import socket
from typing import Any

__all__ = ["serve_on_loopback"]


def serve_on_loopback(*modules: str) -> None:
    """From now on, a store that these modules of torch serve at a loopback address listens there and nowhere else."""
    store: Any = importlib.import_module("torch.distributed").TCPStore

    def local_store(host_name: str, port: int, *args: object, **kwargs: object) -> object:
        listener = _listener(host_name, port) if kwargs.get("is_master") else None
        if listener is not None:
            port = listener.getsockname()[1]
            kwargs["master_listen_fd"] = listener.detach()  # the store closes it
        return store(host_name, port, *args, **kwargs)

    for module in modules:
        importlib.import_module(module).TCPStore = local_store  # type: ignore[attr-defined]


def _listener(host: str, port: int) -> socket.socket | None:
    if host != "localhost" and not host.startswith("127."):
        return None
    try:
        return socket.create_server((host, port))
    except OSError:  # torch itself reports the error, or shares the store that has the port
        return None
